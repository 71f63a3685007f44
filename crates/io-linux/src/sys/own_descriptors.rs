//! A table of descriptors of one's own.
#![allow(unsafe_code, reason = "descriptors that are closed in one table of several")]

use std::io;

/// The first descriptor that has no name of its own.
const FIRST: libc::c_uint = 3;

/// Gives this thread, and the threads that it starts, a table of descriptors of its own, in which only standard input,
/// output and error are open. No descriptor of the other threads is copied: a copy would be open for as long as this
/// thread runs, and who waits for its end would wait that long. (`Command` waits so for a program that it starts.)
///
/// The caller has opened nothing before that it uses afterwards, and drops nothing that it opened before.
///
/// # Errors
/// The system's error: its kernel is older than Linux 5.9.
pub fn enter() -> io::Result<()> {
    // SAFETY: no memory is touched. Other threads keep their table; the caller owns no descriptor from before.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_with_a_table_of_its_own_keeps_nothing_of_others_open() {
        let (mut reader, writer): (PipeReader, _) = io::pipe().unwrap();
        let (end, ended) = channel::<()>();
        let (entered, is_entered) = channel();
        let other = thread::spawn(move || {
            enter().unwrap();
            entered.send(()).unwrap();
            let _ = ended.recv();
        });
        is_entered.recv().unwrap();
        drop(writer);
        // It would wait for the other thread's end, which waits for this one's.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(end);
        other.join().unwrap();
    }
}
