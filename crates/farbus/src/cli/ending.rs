//! What ends a command that shows what happens: SIGINT, SIGTERM, or that nobody reads its output any more.
//!
//! Writing tells the last of these too late: a page that is killed while a keyboard rests leaves a recording behind,
//! and `farbus events | head -1` waits for an event that nobody sees.

use std::io::{self, stdout};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;

/// What ends this command. A signal that comes from now on does not end the process by itself.
#[derive(Debug)]
pub struct Ending(Signals);

impl Ending {
    /// # Errors
    /// The system has no more descriptors.
    pub fn new() -> Result<Self, Failure> {
        Signals::new([SIGINT, SIGTERM]).map(Self).map_err(Failure::local)
    }

    /// Whether the command has to end.
    pub fn has_come(&mut self) -> bool {
        self.0.pending().next().is_some() || is_unread(&stdout(), Some(Duration::ZERO)).unwrap_or(false)
    }

    /// Calls `end` when the command has to end, in another thread. It may be called twice.
    pub fn tell(mut self, end: impl Fn() + Clone + Send + 'static) {
        let of_signal = end.clone();
        thread::spawn(move || {
            if self.0.forever().next().is_some() {
                of_signal();
            }
        });
        thread::spawn(move || {
            if is_unread(&stdout(), None).unwrap_or(false) {
                end();
            }
        });
    }
}

/// Waits until nobody reads a pipe, a socket or a terminal any more, at most for so long. A file is always read.
fn is_unread(output: &impl AsFd, time_max: Option<Duration>) -> io::Result<bool> {
    let timeout = time_max.and_then(|time_max| Timespec::try_from(time_max).ok());
    loop {
        let mut fds = [PollFd::new(output, PollFlags::empty())];
        match poll(&mut fds, timeout.as_ref()).map_err(io::Error::from) {
            Ok(_) => return Ok(fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn output_is_unread_once_its_last_reader_has_gone() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(&[0; 100]).unwrap();
        let second = reader.try_clone().unwrap();
        drop(reader);
        assert!(!is_unread(&writer, Some(Duration::ZERO)).unwrap(), "one has it still");
        drop(second);
        assert!(is_unread(&writer, None).unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!is_unread(&ours, Some(Duration::ZERO)).unwrap());
        drop(theirs);
        assert!(is_unread(&ours, None).unwrap());
    }

    #[test]
    fn a_file_is_always_read() {
        let file = std::fs::File::options().write(true).open("/dev/null").unwrap();
        assert!(!is_unread(&file, Some(Duration::from_millis(1))).unwrap());
    }
}
