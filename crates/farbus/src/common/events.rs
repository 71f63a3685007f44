//! What happens in this process, as `farbus events` shows it: the latest events, numbered, for clients of the control
//! socket.
//!
//! An event is published where it happens ([`publish`]), and kept until 256 later ones have pushed it out. A client
//! asks for what came after the last number that it knows, and learns how many it has missed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use farbus_io::trust::timestamp;
use serde::{Deserialize, Serialize};

/// How many events are kept.
const EVENTS_MAX: usize = 256;
/// The longest text of an event, bytes; a longer one is cut off. Other hosts write some of these texts.
const TEXT_BYTES_MAX: usize = 512;
/// How many refusals are published in [`FLOOD_WINDOW`]; further ones are counted, so that a host that is refused over
/// and over does not push out what happened.
const REFUSALS_MAX: u64 = 10;
/// The time over which refusals are counted.
const FLOOD_WINDOW: Duration = Duration::from_secs(10);

/// The kind of an event. The words are part of the control protocol (docs/control.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A device is offered to others.
    Shared,
    /// A device is offered no more.
    Unshared,
    /// A host uses a device of this one.
    Used,
    /// A host observes a device of this one that another host uses.
    Observed,
    /// A host does not use a device of this one any more.
    Released,
    /// A host was refused a device of this one.
    Refused,
    /// A device of another host is attached here.
    Attached,
    /// A device of another host is not attached here any more.
    Detached,
    /// A device of another host cannot be attached; it is tried again.
    Failed,
    /// A session has no link; it waits for a new one.
    LinkLost,
    /// A session has a link again.
    LinkBack,
    /// A reservation is kept again.
    Admitted,
    /// A reservation is not kept for the time being.
    Suspended,
    /// A disk begins to move to another medium.
    SwapBegun,
    /// The move has ended.
    SwapEnded,
    /// A host has a lease of a device of this one.
    Leased,
    /// The lease of the user of a device of this one ends soon.
    LeaseEnding,
    /// A lease of a device of this one has ended.
    LeaseEnded,
    /// What was written to a device is lost, or may be: it did not arrive at its exporter, or is not durable there.
    Unwritten,
    /// A process has ended. No process publishes this of itself: `farbus events` sees it.
    Ended,
    /// A kind that this release does not know.
    #[serde(other)]
    Other,
}

impl Kind {
    /// The word in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Shared => "shared",
            Kind::Unshared => "unshared",
            Kind::Used => "used",
            Kind::Observed => "observed",
            Kind::Released => "released",
            Kind::Refused => "refused",
            Kind::Attached => "attached",
            Kind::Detached => "detached",
            Kind::Failed => "failed",
            Kind::LinkLost => "link-lost",
            Kind::LinkBack => "link-back",
            Kind::Admitted => "admitted",
            Kind::Suspended => "suspended",
            Kind::SwapBegun => "swap-begun",
            Kind::SwapEnded => "swap-ended",
            Kind::Leased => "leased",
            Kind::LeaseEnding => "lease-ending",
            Kind::LeaseEnded => "lease-ended",
            Kind::Unwritten => "unwritten",
            Kind::Ended => "ended",
            Kind::Other => "other",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number in its process; the first is 1.
    #[serde(default)]
    pub number: u64,
    /// When it happened: RFC 3339, UTC, milliseconds.
    #[serde(default)]
    pub at: String,
    /// What happened.
    pub event: Kind,
    /// The device: its name on this host, or `HOST:PORT/DEVICE` on another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The other host, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How: for example how a use ended, or where a device appears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// The reason, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many events of this kind before it were counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Event {
    /// An event without details.
    pub fn new(event: Kind) -> Self {
        Self { number: 0, at: String::new(), event, device: None, host: None, how: None, why: None, count: 0 }
    }

    /// An event of a device.
    pub fn of(event: Kind, device: impl Into<String>) -> Self {
        Self { device: Some(short(device)), ..Self::new(event) }
    }

    /// Adds the other host.
    #[must_use]
    pub fn host(self, host: impl Into<String>) -> Self {
        Self { host: Some(short(host)), ..self }
    }

    /// Adds how it happened.
    #[must_use]
    pub fn how(self, how: impl Into<String>) -> Self {
        Self { how: Some(short(how)), ..self }
    }

    /// Adds the reason.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(short(why)), ..self }
    }
}

fn short(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// What a process answers about its events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latest {
    /// The number of the latest event; 0 if there was none.
    pub last: u64,
    /// How many events that were asked for are not kept any more.
    #[serde(default)]
    pub missed: u64,
    /// The events that were asked for, the earliest first.
    pub events: Vec<Event>,
}

#[derive(Debug)]
struct Kept {
    last: u64,
    events: VecDeque<Event>,
    /// Since when refusals are counted, and how many there were.
    refusals: Option<(Instant, u64)>,
    /// Refusals that were counted only.
    suppressed: u64,
}

impl Kept {
    const fn new() -> Self {
        Self { last: 0, events: VecDeque::new(), refusals: None, suppressed: 0 }
    }

    fn push(&mut self, event: Event, now: Instant, at: String) {
        let mut event = event;
        if event.event == Kind::Refused {
            let (since, count) = self.refusals.filter(|(since, _)| now - *since < FLOOD_WINDOW).unwrap_or((now, 0));
            self.refusals = Some((since, count + 1));
            if count >= REFUSALS_MAX {
                self.suppressed += 1;
                return;
            }
            event.count = std::mem::take(&mut self.suppressed);
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.last += 1;
        (event.number, event.at) = (self.last, at);
        self.events.push_back(event);
    }

    fn after(&self, number: u64) -> Latest {
        // A number that was never given belongs to a process before this one: it knows nothing of this one.
        let number = if number > self.last { 0 } else { number };
        let first = self.events.front().map_or(self.last + 1, |event| event.number);
        Latest {
            last: self.last,
            missed: first.saturating_sub(number + 1),
            events: self.events.iter().filter(|event| event.number > number).cloned().collect(),
        }
    }
}

static KEPT: Mutex<Kept> = Mutex::new(Kept::new());

/// Publishes an event of this process.
pub fn publish(event: Event) {
    let at = timestamp(SystemTime::now());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(event, Instant::now(), at);
}

/// The events of this process after the one with this number.
pub fn after(number: u64) -> Latest {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).after(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(kept: &mut Kept, event: Event, now: Instant) {
        kept.push(event, now, "2026-11-24T00:00:00.000Z".into());
    }

    #[test]
    fn client_gets_what_came_after_the_number_it_knows_and_learns_what_it_missed() {
        let (mut kept, now) = (Kept::new(), Instant::now());
        assert_eq!(kept.after(0), Latest::default());
        for number in 1..=300 {
            pushed(&mut kept, Event::of(Kind::Used, format!("disk{number}")).host("lab3"), now);
        }
        let all = kept.after(0);
        assert_eq!((all.last, all.missed, all.events.len()), (300, 44, EVENTS_MAX));
        let latest = kept.after(298);
        assert_eq!((latest.missed, latest.events.len()), (0, 2));
        assert_eq!(latest.events[0].device.as_deref(), Some("disk299"));
        assert_eq!(kept.after(300).events, []);
        let anew = kept.after(4711);
        assert_eq!((anew.last, anew.events.len()), (300, EVENTS_MAX), "the number is of a former process");
    }

    #[test]
    fn flood_of_refusals_is_counted_and_pushes_nothing_out() {
        let (mut kept, now) = (Kept::new(), Instant::now());
        pushed(&mut kept, Event::of(Kind::Attached, "lab3:3241/disk"), now);
        for _ in 0..10_000 {
            pushed(&mut kept, Event::of(Kind::Refused, "disk").host("10.0.0.9"), now);
        }
        assert_eq!(kept.after(0).events.len(), 1 + REFUSALS_MAX as usize);
        pushed(&mut kept, Event::of(Kind::Refused, "disk"), now + FLOOD_WINDOW);
        let latest = kept.after(11);
        assert_eq!((latest.events.len(), latest.events[0].count), (1, 10_000 - REFUSALS_MAX));
    }

    #[test]
    fn long_text_of_another_host_is_cut_off_at_a_character() {
        let event = Event::of(Kind::Refused, "ä".repeat(400));
        assert_eq!(event.device.map(|device| (device.len(), device.chars().count())), Some((512, 256)));
    }

    #[test]
    fn event_of_a_later_release_is_understood_as_far_as_it_is_known() {
        let told = r#"{"number":7,"at":"2026-11-24T00:00:00.000Z","event":"exploded","device":"disk","colour":"red"}"#;
        let event: Event = serde_json::from_str(told).unwrap();
        assert_eq!((event.event, event.number, event.device.as_deref()), (Kind::Other, 7, Some("disk")));
        let ours = Event { number: 1, ..Event::of(Kind::LinkLost, "disk").host("lab3").why("reset") };
        let text = serde_json::to_string(&ours).unwrap();
        assert_eq!(text, r#"{"number":1,"at":"","event":"link-lost","device":"disk","host":"lab3","why":"reset"}"#);
    }
}
