//! How an attachment is asked to be ready for another process, and what becomes of it.
//!
//! | who | does |
//! |---|---|
//! | whoever restarts the daemon | [`Parter::ask`]s, from its own thread |
//! | the attachment, on its thread | stops, writes itself down, [`Asker::part`]s with that, and waits |
//! | whoever asked | lets it [`Parted::go`]: another process has it; or drops the [`Parted`]: it stays |

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farbus_io::link::Wake;
use farbus_io::sys::vhci::Port;

use crate::session_relay::Saved;

/// Asks one attachment.
#[derive(Clone, Debug)]
pub struct Parter {
    asked: Arc<Mutex<Option<Asker>>>,
    wake: Arc<Wake>,
    port: Port,
}

/// What the attachment answers to.
#[derive(Debug)]
pub struct Asker {
    parted: Sender<Parted>,
}

/// What the attachment gave, which waits until this is let go of, one way or the other.
#[derive(Debug)]
pub struct Parted {
    /// What another process goes on with.
    pub saved: Saved,
    go: Sender<()>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another process has it.
    Go,
    /// It stays.
    Stay,
}

/// An answer that is waited for.
#[derive(Debug)]
pub struct Asked(Receiver<Parted>, Port);

impl Parter {
    /// For an attachment that `wake` wakes.
    pub(crate) fn new(wake: Arc<Wake>, port: Port) -> Self {
        Self { asked: Arc::default(), wake, port }
    }

    /// Asks it to be ready.
    pub fn ask(&self) -> Asked {
        let (parted, answer) = channel();
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Asker { parted });
        self.wake.wake();
        Asked(answer, self.port)
    }

    /// Whether somebody has asked: the attachment's question.
    pub(crate) fn asked(&self) -> Option<Asker> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Asked {
    /// The answer, and where it is plugged in; none if the attachment has ended meanwhile, or does not get to it in time.
    pub fn wait(self, time_max: Duration) -> Option<(Parted, Port)> {
        Some((self.0.recv_timeout(time_max).ok()?, self.1))
    }
}

impl Asker {
    /// Gives what there is to give, and waits for what becomes of it.
    pub(crate) fn part(self, saved: Saved) -> Verdict {
        let (go, gone) = channel();
        match self.parted.send(Parted { saved, go }) {
            Ok(()) if gone.recv().is_ok() => Verdict::Go,
            _ => Verdict::Stay,
        }
    }
}

impl Parted {
    /// Another process has it.
    pub fn go(self) {
        // It waits for nothing else.
        let _ = self.go.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn saved() -> Saved {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Saved { snapshot: vec![1], socket: socket.into() }
    }

    #[test]
    fn an_attachment_goes_or_stays_as_whoever_asked_decides() {
        let parter = Parter::new(Arc::new(Wake::new().unwrap()), Port(3));
        for is_meant in [true, false] {
            let asked = parter.ask();
            let asker = parter.asked().expect("somebody asked");
            assert!(parter.asked().is_none(), "once");
            let attachment = thread::spawn(move || asker.part(saved()));
            let (parted, port) = asked.wait(PATIENCE).expect("it answers");
            assert_eq!((parted.saved.snapshot.as_slice(), port), ([1].as_slice(), Port(3)));
            if is_meant {
                parted.go();
            } else {
                drop(parted);
            }
            assert_eq!(attachment.join().unwrap(), if is_meant { Verdict::Go } else { Verdict::Stay });
        }
    }

    #[test]
    fn nobody_waits_for_one_that_has_ended_and_it_does_not_wait_for_who_gave_up() {
        let parter = Parter::new(Arc::new(Wake::new().unwrap()), Port(3));
        let asked = parter.ask();
        drop(parter.asked());
        assert!(asked.wait(PATIENCE).is_none());
        drop(parter.ask());
        assert_eq!(parter.asked().expect("somebody asked").part(saved()), Verdict::Stay);
    }
}
