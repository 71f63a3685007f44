//! What happens in this process, as `farbus events` shows it: the latest events, numbered, for clients of the control
//! socket.
//!
//! An event is published where it happens ([`publish`]), and kept until 256 later ones have pushed it out. A client
//! asks for what came after the last number that it knows, and learns how many it has missed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

pub use farbus_control::event::{Event, EventKind, LatestEvents};

use crate::trust::timestamp;

/// How many events are kept.
const EVENTS_MAX: usize = 256;
/// How many refusals are published in [`FLOOD_WINDOW`]; further ones are counted, so that a host that is refused over
/// and over does not push out what happened.
const REFUSALS_MAX: u64 = 10;
/// The time over which refusals are counted.
const FLOOD_WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct EventBacklog {
    last: u64,
    events: VecDeque<Event>,
    /// Since when refusals are counted, and how many there were.
    refusals: Option<(Instant, u64)>,
    /// Refusals that were counted only.
    suppressed: u64,
}

impl EventBacklog {
    const fn new() -> Self {
        Self { last: 0, events: VecDeque::new(), refusals: None, suppressed: 0 }
    }

    fn push(&mut self, event: Event, now: Instant, at: String) {
        let mut event = event;
        if event.event == EventKind::Refused {
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

    fn after(&self, number: u64) -> LatestEvents {
        // A number that was never given belongs to a process before this one: it knows nothing of this one.
        let number = if number > self.last { 0 } else { number };
        let first = self.events.front().map_or(self.last + 1, |event| event.number);
        LatestEvents {
            last: self.last,
            missed: first.saturating_sub(number + 1),
            events: self.events.iter().filter(|event| event.number > number).cloned().collect(),
        }
    }
}

static KEPT: Mutex<EventBacklog> = Mutex::new(EventBacklog::new());

/// Publishes an event of this process.
pub fn publish(event: Event) {
    let at = timestamp(SystemTime::now());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(event, Instant::now(), at);
}

/// The events of this process after the one with this number.
pub fn after(number: u64) -> LatestEvents {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).after(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(kept: &mut EventBacklog, event: Event, now: Instant) {
        kept.push(event, now, "2026-11-24T00:00:00.000Z".into());
    }

    #[test]
    fn client_gets_what_came_after_the_number_it_knows_and_learns_what_it_missed() {
        let (mut kept, now) = (EventBacklog::new(), Instant::now());
        assert_eq!(kept.after(0), LatestEvents::default());
        for number in 1..=300 {
            pushed(&mut kept, Event::of(EventKind::Used, format!("disk{number}")).host("lab3"), now);
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
        let (mut kept, now) = (EventBacklog::new(), Instant::now());
        pushed(&mut kept, Event::of(EventKind::Attached, "lab3:3241/disk"), now);
        for _ in 0..10_000 {
            pushed(&mut kept, Event::of(EventKind::Refused, "disk").host("10.0.0.9"), now);
        }
        assert_eq!(kept.after(0).events.len(), 1 + REFUSALS_MAX as usize);
        pushed(&mut kept, Event::of(EventKind::Refused, "disk"), now + FLOOD_WINDOW);
        let latest = kept.after(11);
        assert_eq!((latest.events.len(), latest.events[0].count), (1, 10_000 - REFUSALS_MAX));
    }

    #[test]
    fn long_text_of_another_host_is_cut_off_at_a_character() {
        let event = Event::of(EventKind::Refused, "ä".repeat(400));
        assert_eq!(event.device.map(|device| (device.len(), device.chars().count())), Some((512, 256)));
    }

    #[test]
    fn event_of_a_later_release_is_understood_as_far_as_it_is_known() {
        let json = r#"{"number":7,"at":"2026-11-24T00:00:00.000Z","event":"exploded","device":"disk","colour":"red"}"#;
        let event: Event = serde_json::from_str(json).unwrap();
        assert_eq!((event.event, event.number, event.device.as_deref()), (EventKind::Other, 7, Some("disk")));
        let ours = Event { number: 1, ..Event::of(EventKind::LinkLost, "disk").host("lab3").why("reset") };
        let text = serde_json::to_string(&ours).unwrap();
        assert_eq!(text, r#"{"number":1,"at":"","event":"link-lost","device":"disk","host":"lab3","why":"reset"}"#);
    }
}
