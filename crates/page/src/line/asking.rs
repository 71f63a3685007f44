//! The confined process's end of the line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use crate::api::journal::EventJournal;
use crate::api::refusal::HttpRefusal;
use crate::known::lab::LabInventory;
use crate::known::status::CombinedStatus;
use crate::line::frames::{FrameDecoder, OversizedFrame, encoded, receive, send};
use crate::line::messages::{
    ANSWER_BYTES_MAX, BrokerMessage, ClientCredentials, ConfinedMessage, PageAnswer, PageQuestion, QUESTION_BYTES_MAX,
    StatusExtent,
};
use crate::line::places::{QuestionSlot, QuestionSlots};

/// Asks the process that has the rights, and keeps what it says of the processes and of events.
#[derive(Debug)]
pub struct PageBrokerClient {
    /// What is to be sent. There are as many questions as there are places, and for each connection one that is quick,
    /// its end, and that of what it followed.
    out: UnboundedSender<Vec<u8>>,
    waiting: Mutex<BTreeMap<u64, PendingQuestion>>,
    last: AtomicU64,
    slots: QuestionSlots,
    status: watch::Sender<Arc<CombinedStatus>>,
    /// What is known of other hosts, for the next status.
    lab: Mutex<Arc<LabInventory>>,
    /// The connections that are served: each is told here that it is over.
    served: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    /// A copy of the other process's.
    pub journal: EventJournal,
}

/// A question that was sent.
#[derive(Debug)]
struct PendingQuestion {
    answer: oneshot::Sender<PageAnswer>,
    /// Held until the answer is here, also if nobody waits for it any more: the other process works for it.
    _place: Option<QuestionSlot>,
}

/// What is followed, until it is dropped.
#[derive(Debug)]
pub struct StatusFollowGuard {
    line: Arc<PageBrokerClient>,
    number: u64,
}

impl Drop for StatusFollowGuard {
    fn drop(&mut self) {
        self.line.say(&ConfinedMessage::Unfollow { follow: self.number });
    }
}

impl PageBrokerClient {
    /// The line over this stream. It works while [`run`](Self::run) is polled with what else it returns.
    pub fn new(journal: EventJournal) -> (Arc<Self>, UnboundedReceiver<Vec<u8>>) {
        let (out, to_send) = unbounded_channel();
        let line = Self {
            out,
            waiting: Mutex::default(),
            last: AtomicU64::default(),
            slots: QuestionSlots::default(),
            status: watch::channel(Arc::default()).0,
            lab: Mutex::default(),
            served: Mutex::default(),
            journal,
        };
        (Arc::new(line), to_send)
    }

    /// Sends what is to be sent on a task of its own, and hears the answers until the other process closes the line.
    pub async fn run(self: Arc<Self>, stream: UnixStream, mut to_send: UnboundedReceiver<Vec<u8>>) {
        let stream = Arc::new(stream);
        let sending = Arc::clone(&stream);
        tokio::spawn(async move {
            while let Some(frame) = to_send.recv().await {
                if send(&sending, &frame).await.is_err() {
                    return;
                }
            }
        });
        let mut decoder = FrameDecoder::new(ANSWER_BYTES_MAX);
        while let Ok(true) = receive(&stream, &mut decoder).await {
            loop {
                let broker_message = match decoder.poll_frame() {
                    Ok(Some(frame)) => serde_json::from_slice(frame),
                    Ok(None) => break,
                    Err(OversizedFrame { .. }) => return,
                };
                match broker_message {
                    Ok(broker_message) => self.hear(broker_message),
                    Err(error) => {
                        tracing::warn!(%error, "the page's other process says what is no message");
                        return;
                    }
                }
            }
        }
    }

    fn hear(&self, message: BrokerMessage) {
        match message {
            // Its client may be gone.
            BrokerMessage::Answer { id, answer } => {
                drop(self.waiting().remove(&id).map(|waiting| waiting.answer.send(answer)))
            }
            BrokerMessage::Ended { client } => drop(self.served().remove(&client).map(|served| served.send(()))),
            BrokerMessage::Lab(lab) => *self.lab.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(*lab),
            BrokerMessage::Status(statuses) => {
                let before = Arc::clone(&self.status.borrow());
                if statuses.version > before.version {
                    let lab = Arc::clone(&self.lab.lock().unwrap_or_else(PoisonError::into_inner));
                    self.status.send_replace(Arc::new(CombinedStatus::after(&before, statuses, lab)));
                }
            }
            BrokerMessage::Events { first, events } => self.journal.copy(first, events),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, PendingQuestion>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, message: &ConfinedMessage) -> bool {
        // If the other process has ended, so does this one.
        encoded(message, QUESTION_BYTES_MAX).is_ok_and(|frame| self.out.send(frame).is_ok())
    }

    /// Says that this process has given its rights away, and what it still has if that is too much.
    pub fn confined(&self, still_has: Option<String>) {
        self.say(&ConfinedMessage::Confined { still_has });
    }

    /// A connection is served from now on. The receiver hears when it has to end, because its token counts no more.
    pub fn serves(&self, client: u64) -> oneshot::Receiver<()> {
        let (end, ended) = oneshot::channel();
        self.served().insert(client, end);
        ended
    }

    /// Says that a connection is closed.
    pub fn closed(&self, client: u64) {
        self.served().remove(&client);
        self.say(&ConfinedMessage::Closed { client });
    }

    /// Asks for a client. Waits while too much is asked already, by it or by those that may do as much.
    ///
    /// # Errors
    /// [`HttpRefusal`]: the other process refused, or ended.
    pub async fn ask(&self, by: &ClientCredentials, question: PageQuestion) -> Result<PageAnswer, HttpRefusal> {
        let ended = || HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "the page ends");
        let slot = match question.is_quick() {
            true => None,
            false => Some(self.slots.take(by, by.scope).await.ok_or_else(ended)?),
        };
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let (answer_sender, answer) = oneshot::channel();
        self.waiting().insert(id, PendingQuestion { answer: answer_sender, _place: slot });
        if !self.say(&ConfinedMessage::Question { id, by: by.clone(), question }) {
            self.waiting().remove(&id);
            return Err(HttpRefusal::of(StatusCode::PAYLOAD_TOO_LARGE, "this is too much to be asked at once"));
        }
        match answer.await.map_err(|_| ended())? {
            PageAnswer::Refused { status, why } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Err(HttpRefusal { why: why.into(), ..HttpRefusal::of(status, "") })
            }
            answer => Ok(answer),
        }
    }

    /// What the processes said at most half a second ago and after the last operation, with what is wanted of other
    /// hosts.
    ///
    /// # Errors
    /// [`HttpRefusal`]: they cannot be asked for this client.
    pub async fn status(
        &self,
        by: &ClientCredentials,
        wanted: StatusExtent,
    ) -> Result<Arc<CombinedStatus>, HttpRefusal> {
        let known = self.status.borrow().version;
        self.ask(by, PageQuestion::Status { known, wanted }).await?;
        // It came before the answer.
        Ok(Arc::clone(&self.status.borrow()))
    }

    /// Has what the processes say sent here from now on, with events or without, until what is returned is dropped.
    /// With events it also returns the number of the last one before.
    ///
    /// # Errors
    /// [`HttpRefusal`]: this client may not have it.
    pub async fn follow(
        self: &Arc<Self>,
        by: &ClientCredentials,
        events: bool,
    ) -> Result<(watch::Receiver<Arc<CombinedStatus>>, StatusFollowGuard, u64), HttpRefusal> {
        let status = self.status.subscribe();
        let follow = self.last.fetch_add(1, Ordering::Relaxed);
        // Also if nobody waits for the answer any more.
        let following = StatusFollowGuard { line: Arc::clone(self), number: follow };
        let last = match self.ask(by, PageQuestion::Follow { follow, events }).await? {
            PageAnswer::Value(last) => last.as_u64().unwrap_or_default(),
            _ => 0,
        };
        Ok((status, following, last))
    }
}
