//! How a serving thread is asked for a snapshot for a replacement process, and told what becomes of it.
//!
//! | which thread | does |
//! |---|---|
//! | the one that restarts the daemon | calls [`SaveRequester::ask`] |
//! | that of an attachment, or of an exporter's session | stops, writes a snapshot, calls [`SaveRequest::part`] with it, and waits |
//! | the asking thread | calls [`SaveReply::go`]: the replacement continues; or drops the [`SaveReply`]: the attachment stays |

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::link::ThreadWaker;

/// What a replacement process needs to continue an attachment.
#[derive(Debug)]
pub struct SavedAttachment {
    /// The attachment's state; only the replacement's code for the same front end reads it.
    pub snapshot: Vec<u8>,
    /// The open descriptors, in an order that the snapshot knows.
    pub descriptors: Vec<OwnedFd>,
    /// If the attachment's disk was moved: the file or block device of this machine that it was moved to, or the
    /// passage to a broker that may connect to the host which has it now.
    pub medium: Option<OwnedFd>,
}

/// Asks a serving thread, which answers with an `S`.
#[derive(Debug)]
pub struct SaveRequester<S> {
    questions: Arc<SaveRequestSlot<S>>,
    wake: Arc<ThreadWaker>,
}

#[derive(Debug)]
struct SaveRequestSlot<S> {
    /// Checked in every turn of the serving thread.
    is_asked: AtomicBool,
    asker: Mutex<Option<SaveRequest<S>>>,
}

impl<S> Clone for SaveRequester<S> {
    fn clone(&self) -> Self {
        Self { questions: Arc::clone(&self.questions), wake: Arc::clone(&self.wake) }
    }
}

/// A request for a snapshot, as the serving thread sees it.
#[derive(Debug)]
pub struct SaveRequest<S> {
    save_reply: Sender<SaveReply<S>>,
}

/// The serving thread's answer. That thread waits until this is dropped or [`SaveReply::go`] is called.
#[derive(Debug)]
pub struct SaveReply<S> {
    /// What the serving thread saved for the replacement.
    pub saved: S,
    go: Sender<()>,
}

/// The asking thread's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveDecision {
    /// The replacement process continues.
    Go,
    /// The attachment stays in this process.
    Stay,
}

/// An answer that is awaited.
#[derive(Debug)]
pub struct PendingSaveReply<S>(Receiver<SaveReply<S>>);

impl<S> SaveRequester<S> {
    /// A requester for a thread that `wake` wakes.
    pub fn new(wake: Arc<ThreadWaker>) -> Self {
        Self {
            questions: Arc::new(SaveRequestSlot { is_asked: AtomicBool::new(false), asker: Mutex::new(None) }),
            wake,
        }
    }

    /// Asks for a snapshot.
    pub fn ask(&self) -> PendingSaveReply<S> {
        let (save_reply, answer) = channel();
        *self.questions.asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(SaveRequest { save_reply });
        self.questions.is_asked.store(true, Ordering::Release);
        self.wake.wake();
        PendingSaveReply(answer)
    }

    /// The request, if there is one; for the serving thread.
    pub fn requested(&self) -> Option<SaveRequest<S>> {
        // Only the serving thread answers: a load, made in every turn, is enough.
        if !self.questions.is_asked.load(Ordering::Acquire) {
            return None;
        }
        self.questions.is_asked.store(false, Ordering::Release);
        self.questions.asker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S> PendingSaveReply<S> {
    /// The answer; `None` if the serving thread has ended meanwhile, or does not answer in time.
    pub fn wait(self, time_max: Duration) -> Option<SaveReply<S>> {
        self.0.recv_timeout(time_max).ok()
    }
}

impl<S> SaveRequest<S> {
    /// Answers with `saved`, and waits for the decision.
    pub fn part(self, saved: S) -> SaveDecision {
        let (go, gone) = channel();
        match self.save_reply.send(SaveReply { saved, go }) {
            Ok(()) if gone.recv().is_ok() => SaveDecision::Go,
            _ => SaveDecision::Stay,
        }
    }
}

impl<S> SaveReply<S> {
    /// Tells the serving thread that the replacement continues.
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
        SaveRequester::new(Arc::new(ThreadWaker::new().unwrap()))
    }

    #[test]
    fn asking_thread_decides_whether_an_attachment_stays() {
        let save_requester = save_requester();
        for is_meant in [true, false] {
            let reply = save_requester.ask();
            let asker = save_requester.requested().expect("somebody asked");
            assert!(save_requester.requested().is_none(), "once");
            let attachment = thread::spawn(move || asker.part(vec![1]));
            let save_reply = reply.wait(PATIENCE).expect("it answers");
            assert_eq!(save_reply.saved, [1]);
            if is_meant {
                save_reply.go();
            } else {
                drop(save_reply);
            }
            assert_eq!(attachment.join().unwrap(), if is_meant { SaveDecision::Go } else { SaveDecision::Stay });
        }
    }

    #[test]
    fn neither_side_of_a_save_waits_for_one_that_has_ended() {
        let save_requester = save_requester();
        let reply = save_requester.ask();
        drop(save_requester.requested());
        assert!(reply.wait(PATIENCE).is_none());
        drop(save_requester.ask());
        assert_eq!(save_requester.requested().expect("somebody asked").part(vec![1]), SaveDecision::Stay);
    }
}
