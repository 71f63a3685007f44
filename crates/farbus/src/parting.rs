//! How a thread that serves something is asked to be ready for another process, and what becomes of it.
//!
//! | who | does |
//! |---|---|
//! | whoever restarts the daemon | [`Parter::ask`]s, from its own thread |
//! | an attachment, or a session of the exporter, on its thread | stops, writes itself down, [`Asker::part`]s with that, and waits |
//! | whoever asked | lets it [`Parted::go`]: another process has it; or drops the [`Parted`]: it stays |

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farbus_io::link::Wake;

/// Asks one of them, which gives an `S`.
#[derive(Debug)]
pub struct Parter<S> {
    asked: Arc<Mutex<Option<Asker<S>>>>,
    wake: Arc<Wake>,
}

impl<S> Clone for Parter<S> {
    fn clone(&self) -> Self {
        Self { asked: Arc::clone(&self.asked), wake: Arc::clone(&self.wake) }
    }
}

/// What it answers to.
#[derive(Debug)]
pub struct Asker<S> {
    parted: Sender<Parted<S>>,
}

/// What it gave; it waits until this is let go of, one way or the other.
#[derive(Debug)]
pub struct Parted<S> {
    /// What another process goes on with.
    pub saved: S,
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
pub struct Asked<S>(Receiver<Parted<S>>);

impl<S> Parter<S> {
    /// For one that `wake` wakes.
    pub(crate) fn new(wake: Arc<Wake>) -> Self {
        Self { asked: Arc::default(), wake }
    }

    /// Asks it to be ready.
    pub fn ask(&self) -> Asked<S> {
        let (parted, answer) = channel();
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Asker { parted });
        self.wake.wake();
        Asked(answer)
    }

    /// Whether somebody has asked: its own question.
    pub(crate) fn asked(&self) -> Option<Asker<S>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S> Asked<S> {
    /// The answer; none if it has ended meanwhile, or does not get to it in time.
    pub fn wait(self, time_max: Duration) -> Option<Parted<S>> {
        self.0.recv_timeout(time_max).ok()
    }
}

impl<S> Asker<S> {
    /// Gives what there is to give, and waits for what becomes of it.
    pub(crate) fn part(self, saved: S) -> Verdict {
        let (go, gone) = channel();
        match self.parted.send(Parted { saved, go }) {
            Ok(()) if gone.recv().is_ok() => Verdict::Go,
            _ => Verdict::Stay,
        }
    }
}

impl<S> Parted<S> {
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

    fn parter() -> Parter<Vec<u8>> {
        Parter::new(Arc::new(Wake::new().unwrap()))
    }

    #[test]
    fn an_attachment_goes_or_stays_as_whoever_asked_decides() {
        let parter = parter();
        for is_meant in [true, false] {
            let asked = parter.ask();
            let asker = parter.asked().expect("somebody asked");
            assert!(parter.asked().is_none(), "once");
            let attachment = thread::spawn(move || asker.part(vec![1]));
            let parted = asked.wait(PATIENCE).expect("it answers");
            assert_eq!(parted.saved, [1]);
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
        let parter = parter();
        let asked = parter.ask();
        drop(parter.asked());
        assert!(asked.wait(PATIENCE).is_none());
        drop(parter.ask());
        assert_eq!(parter.asked().expect("somebody asked").part(vec![1]), Verdict::Stay);
    }
}
