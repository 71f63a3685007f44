//! An importer without a link: for how long it is waited for, and what it may not know meanwhile.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::limits::FETCHED_TIME_MAX;

use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// How long an importer is waited for that ended its link itself.
const CLOSED_GRACE_MAX: Duration = Duration::from_secs(4);

/// Whether an importer is absent, and what follows from that.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    /// How long it is waited for.
    grace: Duration,
    /// Without a link: until when it is.
    until: Option<Instant>,
    /// The same: until when it may show what it has fetched, and hear of nothing.
    unheard_until: Option<Instant>,
}

impl Absence {
    /// It is here, and would be waited for so long.
    pub fn none(grace: Duration) -> Self {
        Self { grace, until: None, unheard_until: None }
    }

    /// How long it is waited for.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Its link is lost. It may not know.
    pub fn begin(&mut self, now: Instant) {
        self.until.get_or_insert(now + self.grace.max(FETCHED_TIME_MAX));
        self.unheard_until.get_or_insert(now + FETCHED_TIME_MAX);
    }

    /// It has ended its link.
    pub fn begin_by_itself(&mut self, now: Instant) {
        self.until.get_or_insert(now + self.grace.min(CLOSED_GRACE_MAX));
    }

    /// It has a link again.
    pub fn end(&mut self) {
        (self.until, self.unheard_until) = (None, None);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.unheard_until = self.unheard_until.filter(|until| *until > now);
    }

    /// When something follows from it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.until, self.unheard_until].into_iter().flatten().min()
    }

    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it is waited for no more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Whether it hears of what is said, or shows nothing any more that it has fetched.
    pub fn is_harmless(&self, now: Instant) -> bool {
        self.unheard_until.is_none_or(|until| until <= now)
    }

    /// Writes down how it stands for another process, to which whoever is linked now is absent.
    pub fn save(&self, now: Instant, to: &mut Writer) {
        to.u64(ms(self.grace));
        to.u64(ms(self.until.map_or(self.grace, |until| until - now)));
    }

    /// What another process wrote down.
    ///
    /// # Errors
    /// [`Reject`]: none can have stood so.
    pub fn restore(now: Instant, from: &mut Reader<'_>) -> Result<Self, Reject> {
        let (grace, left) = (from.u64("grace")?, from.u64("time left")?);
        if left > grace.max(ms(FETCHED_TIME_MAX)) || grace > u32::MAX.into() {
            return Err(Reject::new("time left", left, "no more than the grace"));
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
    fn who_was_lost_has_what_was_granted_and_never_less_than_what_it_fetched_is_true() {
        for (grace_s, waited_s) in [(20, 20), (0, 4)] {
            let mut absence = Absence::none(SECOND * grace_s);
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
    fn who_left_by_itself_knows_and_is_waited_for_briefly() {
        let mut absence = Absence::none(SECOND * 20);
        absence.begin_by_itself(NOW);
        assert!(absence.is_harmless(NOW));
        assert_eq!(absence.poll_timeout(), Some(NOW + CLOSED_GRACE_MAX));
        absence.begin(NOW + SECOND);
        assert!(absence.is_over(NOW + CLOSED_GRACE_MAX), "the first word counts");
    }

    #[test]
    fn what_is_due_is_due_once() {
        let mut absence = Absence::none(SECOND * 20);
        absence.begin(NOW);
        assert_eq!(absence.poll_timeout(), Some(NOW + FETCHED_TIME_MAX));
        absence.handle_timeout(NOW + FETCHED_TIME_MAX);
        assert_eq!(absence.poll_timeout(), Some(NOW + SECOND * 20));
    }
}
