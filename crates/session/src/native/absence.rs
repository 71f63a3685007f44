//! An importer without a link: how long the exporter waits for it, and what it may not know meanwhile.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::limits::FETCHED_TIME_MAX;

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// How long the exporter waits for an importer that ended its link itself.
const CLOSED_GRACE_MAX: Duration = Duration::from_secs(4);

/// Whether an importer is absent, and what follows from that.
#[derive(Clone, Copy, Debug)]
pub struct ImporterAbsence {
    /// The grace period.
    grace: Duration,
    /// End of the grace period, while the importer has no link.
    until: Option<Instant>,
    /// Until when an importer without a link may still show data that it fetched, without hearing of changes.
    unheard_until: Option<Instant>,
}

impl ImporterAbsence {
    /// An importer that is present, with this grace period.
    pub fn none(grace: Duration) -> Self {
        Self { grace, until: None, unheard_until: None }
    }

    /// The grace period.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// The link is lost; the importer may not know it yet.
    pub fn begin(&mut self, now: Instant) {
        self.until.get_or_insert(now + self.grace.max(FETCHED_TIME_MAX));
        self.unheard_until.get_or_insert(now + FETCHED_TIME_MAX);
    }

    /// The importer ended its link itself.
    pub fn begin_by_itself(&mut self, now: Instant) {
        self.until.get_or_insert(now + self.grace.min(CLOSED_GRACE_MAX));
    }

    /// The importer has a link again.
    pub fn end(&mut self) {
        (self.until, self.unheard_until) = (None, None);
    }

    /// Ends what [`ImporterAbsence::poll_timeout`] announced, if `now` is that late.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.unheard_until = self.unheard_until.filter(|until| *until > now);
    }

    /// When something changes by time alone.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.until, self.unheard_until].into_iter().flatten().min()
    }

    /// Whether the importer has no link.
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Whether the grace period has ended.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Whether the importer hears of changes, or can no longer show data that it fetched.
    pub fn is_harmless(&self, now: Instant) -> bool {
        self.unheard_until.is_none_or(|until| until <= now)
    }

    /// Writes it to a snapshot. In the replacement, an importer that is linked now is absent at first.
    pub fn save(&self, now: Instant, to: &mut SnapshotWriter) {
        to.u64(ms(self.grace));
        to.u64(ms(self.until.map_or(self.grace, |until| until - now)));
    }

    /// Restores it from a snapshot.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the times are inconsistent.
    pub fn restore(now: Instant, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (grace, left) = (from.u64("grace")?, from.u64("time left")?);
        if left > grace.max(ms(FETCHED_TIME_MAX)) || grace > u32::MAX.into() {
            return Err(ProtocolViolation::new("time left", left, "no more than the grace"));
        }
        let until = Some(now + Duration::from_millis(left));
        Ok(Self { grace: Duration::from_millis(grace), until, unheard_until: Some(now + FETCHED_TIME_MAX) })
    }
}

fn ms(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lost_importer_has_its_grace_and_at_least_the_time_its_data_counts_as_true() {
        for (grace_s, waited_s) in [(20, 20), (0, 4)] {
            let mut absence = ImporterAbsence::none(SECOND * grace_s);
            absence.begin(NOW);
            assert!(absence.is_on() && !absence.is_harmless(NOW + SECOND * 3));
            assert!(absence.is_harmless(NOW + SECOND * 4));
            assert!(!absence.is_over(NOW + (SECOND * waited_s - Duration::from_nanos(1))));
            assert!(absence.is_over(NOW + SECOND * waited_s));
            absence.end();
            assert_eq!((absence.is_on(), absence.poll_timeout()), (false, None));
        }
    }

    #[test]
    fn importer_that_left_by_itself_is_waited_for_briefly() {
        let mut absence = ImporterAbsence::none(SECOND * 20);
        absence.begin_by_itself(NOW);
        assert!(absence.is_harmless(NOW));
        assert_eq!(absence.poll_timeout(), Some(NOW + CLOSED_GRACE_MAX));
        absence.begin(NOW + SECOND);
        assert!(absence.is_over(NOW + CLOSED_GRACE_MAX), "the first word counts");
    }

    #[test]
    fn each_deadline_is_due_once() {
        let mut absence = ImporterAbsence::none(SECOND * 20);
        absence.begin(NOW);
        assert_eq!(absence.poll_timeout(), Some(NOW + FETCHED_TIME_MAX));
        absence.handle_timeout(NOW + FETCHED_TIME_MAX);
        assert_eq!(absence.poll_timeout(), Some(NOW + SECOND * 20));
    }
}
