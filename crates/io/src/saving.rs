//! How a thread that serves something is asked to be ready for another process, and what becomes of it.
//!
//! | who | does |
//! |---|---|
//! | whoever restarts the daemon | [`SaveRequester::ask`]s, from its own thread |
//! | an attachment, or a session of the exporter, on its thread | stops, writes itself down, [`SaveRequest::part`]s with that, and waits |
//! | whoever asked | lets it [`SaveReply::go`]: another process has it; or drops the [`SaveReply`]: it stays |

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::link::Wake;

/// What another process goes on with of an attachment.
#[derive(Debug)]
pub struct Saved {
    /// Where everything stands.
    pub snapshot: Vec<u8>,
    /// What is open of it, in an order that the snapshot knows.
    pub descriptors: Vec<OwnedFd>,
}

/// Asks one of them, which gives an `S`.
#[derive(Debug)]
pub struct SaveRequester<S> {
    questions: Arc<Questions<S>>,
    wake: Arc<Wake>,
}

#[derive(Debug)]
struct Questions<S> {
    /// Looked at in every turn of whoever is asked.
    is_asked: AtomicBool,
    asker: Mutex<Option<SaveRequest<S>>>,
}

impl<S> Clone for SaveRequester<S> {
    fn clone(&self) -> Self {
        Self { questions: Arc::clone(&self.questions), wake: Arc::clone(&self.wake) }
    }
}

/// What it answers to.
#[derive(Debug)]
pub struct SaveRequest<S> {
    save_reply: Sender<SaveReply<S>>,
}

/// What it gave; it waits until this is let go of, one way or the other.
#[derive(Debug)]
pub struct SaveReply<S> {
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
pub struct Asked<S>(Receiver<SaveReply<S>>);

impl<S> SaveRequester<S> {
    /// For one that `wake` wakes.
    pub fn new(wake: Arc<Wake>) -> Self {
        Self { questions: Arc::new(Questions { is_asked: AtomicBool::new(false), asker: Mutex::new(None) }), wake }
    }

    /// Asks it to be ready.
    pub fn ask(&self) -> Asked<S> {
        let (save_reply, answer) = channel();
        *self.questions.asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(SaveRequest { save_reply });
        self.questions.is_asked.store(true, Ordering::Release);
        self.wake.wake();
        Asked(answer)
    }

    /// Whether somebody has asked: its own question.
    pub fn asked(&self) -> Option<SaveRequest<S>> {
        // Nobody else answers: a look is enough, and it is had in every turn.
        if !self.questions.is_asked.load(Ordering::Acquire) {
            return None;
        }
        self.questions.is_asked.store(false, Ordering::Release);
        self.questions.asker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S> Asked<S> {
    /// The answer; none if it has ended meanwhile, or does not get to it in time.
    pub fn wait(self, time_max: Duration) -> Option<SaveReply<S>> {
        self.0.recv_timeout(time_max).ok()
    }
}

impl<S> SaveRequest<S> {
    /// Gives what there is to give, and waits for what becomes of it.
    pub fn part(self, saved: S) -> Verdict {
        let (go, gone) = channel();
        match self.save_reply.send(SaveReply { saved, go }) {
            Ok(()) if gone.recv().is_ok() => Verdict::Go,
            _ => Verdict::Stay,
        }
    }
}

impl<S> SaveReply<S> {
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

    fn save_requester() -> SaveRequester<Vec<u8>> {
        SaveRequester::new(Arc::new(Wake::new().unwrap()))
    }

    #[test]
    fn an_attachment_goes_or_stays_as_whoever_asked_decides() {
        let save_requester = save_requester();
        for is_meant in [true, false] {
            let asked = save_requester.ask();
            let asker = save_requester.asked().expect("somebody asked");
            assert!(save_requester.asked().is_none(), "once");
            let attachment = thread::spawn(move || asker.part(vec![1]));
            let save_reply = asked.wait(PATIENCE).expect("it answers");
            assert_eq!(save_reply.saved, [1]);
            if is_meant {
                save_reply.go();
            } else {
                drop(save_reply);
            }
            assert_eq!(attachment.join().unwrap(), if is_meant { Verdict::Go } else { Verdict::Stay });
        }
    }

    #[test]
    fn nobody_waits_for_one_that_has_ended_and_it_does_not_wait_for_who_gave_up() {
        let save_requester = save_requester();
        let asked = save_requester.ask();
        drop(save_requester.asked());
        assert!(asked.wait(PATIENCE).is_none());
        drop(save_requester.ask());
        assert_eq!(save_requester.asked().expect("somebody asked").part(vec![1]), Verdict::Stay);
    }
}
