//! Limits how often similar events are logged: the first few of a kind are written, the others are counted.
//!
//! Time is an argument. A kind's *window* begins with its first event, and lasts [`WINDOW`]. Within it, as many events
//! are written as the caller says; the rest are counted, and [`EventTally::poll_due`] returns their number when the
//! window is over. The number of kinds is bounded: beyond [`KINDS_MAX`], all further kinds are counted as one.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::Instant;

/// How long similar events are counted together: a person who reads a log thinks in minutes.
pub const WINDOW: Duration = Duration::from_secs(60);
/// The most kinds that are told apart. An attacker may come from any number of addresses; each kind costs some 200
/// bytes.
pub const KINDS_MAX: usize = 1024;

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TallyDecision {
    /// Write the event.
    Write,
    /// Do not write it: it was counted.
    Counted,
}

/// The number of events of a kind that were counted and not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TallySummary<K> {
    /// The kind of event.
    pub kind: K,
    /// How many events of that kind were not written down.
    pub count: u64,
    /// How long the window was.
    pub span: Duration,
}

/// Counts events by kind.
#[derive(Debug)]
pub struct EventTally<K> {
    window: Duration,
    kinds: BTreeMap<K, TallyWindow>,
    /// When the next summary is due.
    due: Option<Instant>,
    /// When expired kinds were last removed to make room.
    swept: Instant,
}

#[derive(Debug)]
struct TallyWindow {
    began: Instant,
    written: u32,
    counted: u64,
}

impl<K> Default for EventTally<K> {
    fn default() -> Self {
        Self::over(WINDOW)
    }
}

impl<K> EventTally<K> {
    /// A tally with windows of this length.
    pub fn over(window: Duration) -> Self {
        Self { window, kinds: BTreeMap::new(), due: None, swept: Instant::ZERO }
    }
}

impl<K: Ord + Clone> EventTally<K> {
    /// Counts an event, of whose kind `written_max` may be written in a window. It counts as `other` if there are too
    /// many kinds.
    pub fn note(&mut self, kind: &K, other: &K, written_max: u32, now: Instant) -> TallyDecision {
        let is_new = !self.kinds.contains_key(kind);
        // Not at each event of a flood.
        if is_new && self.kinds.len() >= KINDS_MAX && now >= self.swept + self.window / 16 {
            let window = self.window;
            self.swept = now;
            self.kinds.retain(|_, of_kind| of_kind.counted > 0 || now < of_kind.began + window);
        }
        let kind = if is_new && self.kinds.len() >= KINDS_MAX { other } else { kind };
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.clone(), TallyWindow { began: now, written: 0, counted: 0 });
        }
        let of_kind = self.kinds.get_mut(kind).expect("it was inserted");
        if of_kind.counted == 0 && now >= of_kind.began + self.window {
            (of_kind.began, of_kind.written) = (now, 0);
        }
        if of_kind.written < written_max && of_kind.counted == 0 {
            of_kind.written += 1;
            return TallyDecision::Write;
        }
        of_kind.counted += 1;
        let due = of_kind.began + self.window;
        self.due = Some(self.due.map_or(due, |other| other.min(due)));
        TallyDecision::Counted
    }

    /// When the next summary is due, if any is.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Takes a summary whose window is over.
    pub fn poll_due(&mut self, now: Instant) -> Option<TallySummary<K>> {
        self.due.filter(|due| now >= *due)?;
        let is_due = |of_kind: &TallyWindow| of_kind.counted > 0 && now >= of_kind.began + self.window;
        let kind = self.kinds.iter().find(|(_, of_kind)| is_due(of_kind)).map(|(kind, _)| kind.clone())?;
        self.take(kind, now)
    }

    /// Takes a summary even if its window is not over: counting ends.
    pub fn poll_last(&mut self, now: Instant) -> Option<TallySummary<K>> {
        let kind = self.kinds.iter().find(|(_, of_kind)| of_kind.counted > 0).map(|(kind, _)| kind.clone())?;
        self.take(kind, now)
    }

    fn take(&mut self, kind: K, now: Instant) -> Option<TallySummary<K>> {
        let TallyWindow { began, counted, .. } = self.kinds.remove(&kind)?;
        let counting = self.kinds.values().filter(|of_kind| of_kind.counted > 0);
        self.due = counting.map(|of_kind| of_kind.began + self.window).min();
        Some(TallySummary { kind, count: counted, span: now - began })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((1_000_000 + ms) * 1_000_000)
    }

    #[test]
    fn every_one_of_a_flood_is_either_written_or_counted() {
        let mut tally = EventTally::default();
        let (mut written, mut counted) = (0, 0);
        // 100,000 events in 200 s.
        for n in 0..100_000 {
            let now = at(2 * n);
            while let Some(TallySummary { kind: "flood", count, span }) = tally.poll_due(now) {
                assert!(span >= WINDOW && span < WINDOW + Duration::from_secs(1), "{span:?}");
                counted += count;
            }
            written += u64::from(tally.note(&"flood", &"others", 10, now) == TallyDecision::Write);
        }
        assert_eq!(tally.poll_due(at(200_000)), None, "the last window is not over");
        counted += tally.poll_last(at(200_000)).unwrap().count;
        assert_eq!((written, counted), (40, 100_000 - 40));
        assert_eq!((tally.poll_last(at(200_000)), tally.poll_timeout()), (None, None));
    }

    #[test]
    fn rare_events_are_always_written_and_no_kind_hides_another() {
        let mut tally = EventTally::default();
        for n in 0..1000 {
            assert_eq!(tally.note(&"seldom", &"others", 10, at(7000 * n)), TallyDecision::Write, "{n}");
            for _ in 0..20 {
                tally.note(&"often", &"others", 10, at(7000 * n));
            }
            while tally.poll_due(at(7000 * n)).is_some() {}
        }
    }

    #[test]
    fn a_number_is_due_when_its_window_is_over_and_not_before() {
        let mut tally = EventTally::default();
        assert_eq!(tally.poll_timeout(), None);
        for n in 0..3 {
            tally.note(&"kind", &"others", 2, at(n));
        }
        assert_eq!(tally.poll_timeout(), Some(at(0) + WINDOW));
        assert_eq!(tally.poll_due(at(59_999)), None);
        // A late event still belongs to this window until the summary is taken.
        assert_eq!(tally.note(&"kind", &"others", 2, at(60_500)), TallyDecision::Counted);
        assert_eq!(tally.poll_due(at(61_000)).map(|summary| summary.count), Some(2));
        assert_eq!(tally.note(&"kind", &"others", 2, at(61_000)), TallyDecision::Write);
    }

    #[test]
    fn number_of_kinds_is_bounded_and_no_event_is_lost() {
        let mut tally = EventTally::default();
        let (mut written, mut counted) = (0, 0);
        for n in 1..=10_000u32 {
            written += u64::from(tally.note(&n, &0, 1, at(1)) == TallyDecision::Write);
        }
        assert_eq!(tally.kinds.len(), KINDS_MAX + 1);
        while let Some(summary) = tally.poll_last(at(2)) {
            assert_eq!(summary.kind, 0);
            counted += summary.count;
        }
        assert_eq!(written + counted, 10_000);
        // Kinds whose windows are over make room.
        assert_eq!(tally.note(&20_000, &0, 1, at(70_000)), TallyDecision::Write);
        assert_eq!(tally.kinds.len(), 1);
    }
}
