//! The events of `/api/v1/events`: numbered, and the latest of them kept for clients that come back.
//!
//! Nothing is queued for a client. Each takes what comes after the last number that it has had, and learns how many
//! events it has missed because it was too slow. An event is written once, and all clients send the same bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

/// How many events are kept.
pub const KEPT_MAX: usize = 512;
/// The longest event, bytes of JSON; a longer one is replaced by its kind alone.
pub const EVENT_BYTES_MAX: usize = 16 << 10;
/// How many events a copy takes at once.
const TAKEN_MAX: usize = 32;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalEventKind {
    /// The processes have something else than before.
    Status,
    /// Something happened in a process (docs/control.md, Events).
    Happened,
    /// An operation has begun, has come further, or has ended.
    Operation,
}

impl JournalEventKind {
    /// The kind in the stream.
    pub const fn as_str(self) -> &'static str {
        match self {
            JournalEventKind::Status => "status",
            JournalEventKind::Happened => "happened",
            JournalEventKind::Operation => "operation",
        }
    }
}

#[derive(Debug)]
struct JournalBuffer {
    last: u64,
    events: VecDeque<JournalEvent>,
}

/// An event as it is sent.
#[derive(Debug)]
struct JournalEvent {
    kind: JournalEventKind,
    /// In the format of server-sent events.
    text: Bytes,
    /// Where in it the data are.
    data: Range<usize>,
}

impl JournalEvent {
    fn new(epoch: u64, number: u64, kind: JournalEventKind, data: &str) -> Self {
        let head = format!("id: {epoch}-{number}\nevent: {}\ndata: ", kind.as_str());
        let text = format!("{head}{data}\n\n");
        Self { kind, text: text.into(), data: head.len()..head.len() + data.len() }
    }

    fn data(&self) -> String {
        String::from_utf8_lossy(&self.text[self.data.clone()]).into_owned()
    }
}

impl JournalBuffer {
    /// Adds an event. The oldest is dropped if there are too many.
    fn add(&mut self, event: JournalEvent, number: u64) {
        if self.events.len() >= KEPT_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.last = number;
    }
}

/// The events, as all that publish and follow them share them.
#[derive(Clone, Debug)]
pub struct EventJournal {
    /// Tells this process's numbers from those of an earlier one.
    epoch: u64,
    kept: Arc<Mutex<JournalBuffer>>,
    /// When an operation came further last.
    last_operation: Arc<Mutex<Option<Instant>>>,
    newest: watch::Sender<u64>,
}

impl Default for EventJournal {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::of(u64::try_from(since.as_millis()).unwrap_or_default())
    }
}

impl EventJournal {
    /// A journal whose numbers go with this epoch: the copy of another process's.
    pub fn of(epoch: u64) -> Self {
        let kept = Arc::new(Mutex::new(JournalBuffer { last: 0, events: VecDeque::new() }));
        Self { epoch, kept, last_operation: Arc::default(), newest: watch::Sender::new(0) }
    }

    /// Tells its numbers from those of an earlier process.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Learns of each event, by its number.
    pub fn numbers(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// The events after this number that are kept, [`TAKEN_MAX`] at most, and the number of the first of them.
    pub fn after(&self, last: u64) -> (u64, Vec<(JournalEventKind, String)>) {
        let kept = self.kept();
        let first = kept.last - kept.events.len() as u64 + 1;
        let from = first.max(last.saturating_add(1));
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        let events = kept.events.iter().skip(skipped).take(TAKEN_MAX);
        (from, events.map(|event| (event.kind, event.data())).collect())
    }

    /// Adds events of the journal that this one is a copy of, the first with this number. Those that it has are left
    /// out; a gap counts as missed.
    pub fn copy(&self, first: u64, events: Vec<(JournalEventKind, String)>) {
        let mut kept = self.kept();
        for (number, event) in (first..).zip(events) {
            if number <= kept.last {
                continue;
            }
            if number > kept.last + 1 {
                kept.events.clear();
            }
            let (kind, data) = event;
            kept.add(JournalEvent::new(self.epoch, number, kind, &data), number);
        }
        let last = kept.last;
        drop(kept);
        self.newest.send_replace(last);
    }

    fn kept(&self) -> MutexGuard<'_, JournalBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. The oldest is dropped if there are too many.
    pub fn publish(&self, kind: JournalEventKind, data: &Value) {
        if kind == JournalEventKind::Operation {
            *self.last_operation.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        let mut text = data.to_string();
        if text.len() > EVENT_BYTES_MAX {
            text = "{\"is_too_long\":true}".to_owned();
        }
        let mut kept = self.kept();
        let last = kept.last + 1;
        kept.add(JournalEvent::new(self.epoch, last, kind, &text), last);
        drop(kept);
        self.newest.send_replace(last);
    }

    /// Follows the events after the one with this id, as a client sends it back; without one, those after `before`.
    pub fn follow_after(&self, last_id: Option<&str>, before: u64) -> JournalFollower {
        let newest = self.newest.subscribe();
        let kept = self.kept();
        let after = match last_id.map(|id| self.number_of(id)) {
            None => before,
            Some(Some(number)) if number <= kept.last => number,
            // Of an earlier process: all that is kept is new to the client.
            Some(_) => 0,
        };
        drop(kept);
        JournalFollower { journal: self.clone(), newest, after }
    }

    /// When an operation began, came further or ended last: what the processes said before may be out of date.
    pub fn last_operation(&self) -> Option<Instant> {
        *self.last_operation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody follows the events.
    pub fn is_followed(&self) -> bool {
        self.newest.receiver_count() > 0
    }

    fn number_of(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.split_once('-')?;
        (epoch.parse() == Ok(self.epoch)).then_some(())?;
        number.parse().ok()
    }

    /// The first event after this number, in the format of server-sent events, and its number; `None`: there is none.
    /// If some are not kept any more, it says how many instead, with the number of the last of them.
    fn take(&self, after: u64) -> Option<(Bytes, u64)> {
        let kept = self.kept();
        let first = kept.last - kept.events.len() as u64 + 1;
        let missed = first.saturating_sub(after + 1);
        if missed > 0 {
            return Some((format!("event: missed\ndata: {{\"count\":{missed}}}\n\n").into(), first - 1));
        }
        let event = kept.events.get(usize::try_from(after + 1 - first).ok()?)?;
        Some((event.text.clone(), after + 1))
    }
}

/// A client of the events.
#[derive(Debug)]
pub struct JournalFollower {
    journal: EventJournal,
    newest: watch::Receiver<u64>,
    after: u64,
}

impl JournalFollower {
    /// The next event, as soon as there is one; `None` once there will be none.
    pub async fn next(&mut self) -> Option<Bytes> {
        let after = self.after;
        // The journal keeps a sender, so there is always one.
        self.newest.wait_for(|last| *last > after).await.ok()?;
        let (text, last) = self.journal.take(after)?;
        self.after = last;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    impl EventJournal {
        fn follow(&self, last_id: Option<&str>) -> JournalFollower {
            let last = self.kept().last;
            self.follow_after(last_id, last)
        }
    }

    /// The next so many events of a client.
    fn next(follower: &mut JournalFollower, count: usize) -> String {
        let one = |_| String::from_utf8(block_on(follower.next()).unwrap().to_vec()).unwrap();
        (0..count).map(one).collect()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_client_that_comes_back_gets_what_it_has_missed_and_nothing_twice() {
        let journal = EventJournal::default();
        journal.publish(JournalEventKind::Status, &json!({ "n": 1 }));
        journal.publish(JournalEventKind::Operation, &json!({ "n": 2 }));
        let first = format!("{}-1", journal.epoch);
        let text = next(&mut journal.follow(Some(&first)), 1);
        assert_eq!(text, format!("id: {}-2\nevent: operation\ndata: {{\"n\":2}}\n\n", journal.epoch));
        for foreign in ["7-1", "x", "", "7-", "-1"] {
            let text = next(&mut journal.follow(Some(foreign)), 2);
            assert_eq!(text.matches("event: ").count(), 2, "{foreign}: of an earlier process: everything");
        }
    }

    #[test]
    fn a_copy_has_the_same_numbers_and_counts_what_it_did_not_get() {
        let journal = EventJournal::default();
        let copy = EventJournal::of(journal.epoch());
        let mut follower = copy.follow(None);
        for n in 0..3 {
            journal.publish(JournalEventKind::Status, &json!({ "n": n }));
        }
        let (first, events) = journal.after(1);
        assert_eq!((first, events.len(), journal.after(3).1.len()), (2, 2, 0));
        copy.copy(first, events.clone());
        copy.copy(first, events);
        let text = next(&mut follower, 3);
        assert!(text.starts_with("event: missed\ndata: {\"count\":1}\n\n"), "{text}");
        let third = format!("id: {}-3\nevent: status\ndata: {{\"n\":2}}\n\n", journal.epoch());
        assert!(text.ends_with(&third) && text.matches("id: ").count() == 2, "{text}");
        assert_eq!(copy.kept().last, journal.kept().last);
    }

    #[test]
    fn an_event_is_written_once_and_all_clients_send_the_same_bytes() {
        let journal = EventJournal::default();
        let mut clients: Vec<JournalFollower> = (0..100).map(|_| journal.follow(None)).collect();
        journal.publish(JournalEventKind::Status, &json!({ "text": "x".repeat(1000) }));
        let texts: Vec<Bytes> = clients.iter_mut().map(|client| block_on(client.next()).unwrap()).collect();
        assert!(texts.iter().all(|text| text.as_ptr() == texts[0].as_ptr() && text.len() > 1000));
    }

    #[test]
    fn a_slow_client_learns_how_much_it_has_missed_and_holds_no_memory() {
        let journal = EventJournal::default();
        let mut slow = journal.follow(None);
        for n in 0..2 * KEPT_MAX {
            journal.publish(JournalEventKind::Status, &json!({ "n": n, "text": "x".repeat(EVENT_BYTES_MAX) }));
        }
        let text = next(&mut slow, 1 + TAKEN_MAX);
        assert!(text.starts_with(&format!("event: missed\ndata: {{\"count\":{KEPT_MAX}}}\n\n")), "{text}");
        assert_eq!(text.matches("is_too_long").count(), TAKEN_MAX);
        assert_eq!(journal.kept().events.len(), KEPT_MAX);
        assert!(journal.is_followed());
        drop(slow);
        assert!(!journal.is_followed());
    }
}
