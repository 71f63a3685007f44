//! What ends a command that shows what happens: SIGINT, SIGTERM, or that nobody reads its output any more.
//!
//! Writing tells the last of these too late: a page that is killed while a keyboard rests leaves a recording behind,
//! and `farbus events | head -1` waits for an event that nobody sees.

use std::io::{self, stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::CommandFailure;

/// Ends with the exit code of a program that the command ran, after what a process says at its end (`main.rs`).
pub fn end(code: u8) -> ! {
    farbus_io_net::trust::end_quic();
    std::process::exit(code.into())
}

/// What ends this command. A signal that comes from now on does not end the process by itself.
#[derive(Debug)]
pub struct EndCondition(Signals);

impl EndCondition {
    /// # Errors
    /// The system has no more descriptors.
    pub fn new() -> Result<Self, CommandFailure> {
        Signals::new([SIGINT, SIGTERM]).map(Self).map_err(CommandFailure::local)
    }

    /// Whether the command has to end.
    pub fn has_come(&mut self) -> bool {
        self.0.pending().next().is_some() || is_unread(&stdout(), Some(Duration::ZERO)).unwrap_or(false)
    }

    /// The signal that has come, if one has.
    pub fn signal(&mut self) -> Option<i32> {
        self.0.pending().next()
    }

    /// Calls `end` when the command has to end, in another thread. It may be called twice. Returns
    /// what says afterwards whether a signal came.
    pub fn tell(mut self, end: impl Fn() + Clone + Send + 'static) -> EndingSignal {
        let (of_signal, ended_by) = (end.clone(), EndingSignal::default());
        let EndingSignal(came) = ended_by.clone();
        thread::spawn(move || {
            if let Some(signal) = self.0.forever().next() {
                came.store(signal, Ordering::Release);
                of_signal();
            }
        });
        thread::spawn(move || {
            if is_unread(&stdout(), None).unwrap_or(false) {
                end();
            }
        });
        ended_by
    }
}

/// The signal that ended a command, if one did.
#[derive(Clone, Debug, Default)]
pub struct EndingSignal(Arc<AtomicI32>);

impl EndingSignal {
    /// Fails if a signal came before the command had shown as much as `--count` asked for.
    ///
    /// # Errors
    /// [`CommandFailure::interrupted`].
    pub fn check(&self, shown: u64, count: Option<u64>) -> Result<(), CommandFailure> {
        match (self.0.load(Ordering::Acquire), count) {
            (signal, Some(count)) if signal != 0 && shown < count => {
                Err(CommandFailure::interrupted(signal, format!("{shown} of {count} came")))
            }
            _ => Ok(()),
        }
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
