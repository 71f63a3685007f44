//! The claims on one device: who may use it now.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;

use super::bookings::BookingCalendar;
use super::lease::{Lease, LeaseHost};
use super::uses::{
    ClaimHolder, ClaimRefusal, PATIENCE, PastUse, QUEUE_MAX, QueuedHost, RETURN_PATIENCE, TRIES_MIN, UseEnding,
    UseMode, host_of, shortened,
};

/// The claims on one device.
#[derive(Debug, Default)]
pub struct DeviceClaims {
    /// More than one only if their modes coexist; in the order in which they came.
    pub(super) holders: Vec<ClaimHolder>,
    pub(super) queue: Vec<QueuedHost>,
    pub(super) history: VecDeque<PastUse>,
    pub(super) kept_out: Vec<(String, Instant)>,
    remark: Option<String>,
    /// The lease that a host requested, until its end was reported.
    pub(super) lease: Option<Lease>,
    /// When the present use ends without such a lease, because it is being preempted.
    pub(super) use_ends: Option<Instant>,
    /// Whether the end of the lease, or of the use, was announced.
    pub(super) is_warned: bool,
    /// The lease that ended last, until it was recorded.
    pub(super) ended_lease: Option<Lease>,
    /// Leases ahead of time.
    pub(super) bookings: BookingCalendar,
    /// A moment, and what the wall clock showed then, milliseconds of Unix time.
    pub(super) wall: Option<(Instant, u64)>,
}

impl DeviceClaims {
    /// Claims the device for `who` (`HOST:PORT`, or a name).
    ///
    /// # Errors
    /// [`ClaimRefusal`]: another user holds it, it is kept for another host, or this host is kept out.
    pub fn claim(&mut self, who: &str, mode: UseMode, now: Instant) -> Result<(), ClaimRefusal> {
        let host = host_of(who);
        self.queue.retain(|waiting| waiting.is_patient(now));
        if !self.holders.iter().all(|holder| mode.goes_beside(holder.mode)) {
            self.remember(host, now);
            return Err(ClaimRefusal::Held);
        }
        self.kept_out.retain(|(_, until)| now < *until);
        if self.kept_out.iter().any(|(out, _)| out == host) {
            return Err(ClaimRefusal::KeptOut);
        }
        match self.lease(now) {
            Some(lease) if lease.who == LeaseHost::of(who) => {}
            Some(_) => {
                self.remember(host, now);
                return Err(ClaimRefusal::Leased);
            }
            None if self.booking_that_began(now).is_some_and(|booking| booking.who != LeaseHost::of(who)) => {
                self.remember(host, now);
                return Err(ClaimRefusal::Leased);
            }
            None => {
                let mut ahead = self.queue.iter().take_while(|waiting| waiting.host != host);
                if ahead.any(QueuedHost::is_waiting) {
                    self.remember(host, now);
                    return Err(ClaimRefusal::Waited);
                }
            }
        }
        self.queue.retain(|waiting| waiting.host != host);
        self.holders.push(ClaimHolder { who: who.to_owned(), mode, since: now, reason: None });
        Ok(())
    }

    /// For how long the owner still keeps `who` out; `None` if it does not.
    pub fn kept_out_for(&self, who: &str, now: Instant) -> Option<Duration> {
        let mut kept_out = self.kept_out.iter().filter(|(host, until)| host == host_of(who) && now < *until);
        kept_out.next().map(|(_, until)| *until - now)
    }

    /// Records that `who` was refused for a reason other than its claim, as if another user held the device.
    pub fn refuse(&mut self, who: &str, now: Instant) {
        self.remember(host_of(who), now);
    }

    /// Records that `host` was refused.
    fn remember(&mut self, host: &str, now: Instant) {
        self.queue.retain(|waiting| waiting.is_patient(now));
        if let Some(waiting) = self.queue.iter_mut().find(|waiting| waiting.host == host) {
            waiting.asked_at = now;
            waiting.tries = waiting.tries.saturating_add(1);
        } else if self.queue.len() < QUEUE_MAX {
            let (priority, patience) = (0, PATIENCE);
            let host = host.to_owned();
            self.queue.push(QueuedHost { host, since: now, asked_at: now, tries: 1, priority, patience, span: None });
        }
    }

    /// Records what the holder `who` needs the device for. Returns whether `who` is a holder.
    pub fn explain(&mut self, who: &str, reason: &str) -> bool {
        let holder = self.holders.iter_mut().find(|holder| holder.who == who);
        holder.map(|holder| holder.reason = Some(shortened(reason))).is_some()
    }

    /// The owner takes the device back, with a remark for the history. Until `keep_out_until`, the hosts of its holders
    /// are kept out. Each use ends when [`DeviceClaims::end`] is called. Returns whether anybody holds the device.
    pub fn take_back(&mut self, remark: Option<&str>, keep_out_until: Option<Instant>) -> bool {
        if self.holders.is_empty() && self.lease.is_none() {
            return false;
        }
        self.remark = remark.map(shortened).filter(|_| !self.holders.is_empty());
        let lessee = self.lease.iter().map(|lease| lease.who.name().to_owned());
        let hosts = self.holders.iter().map(|holder| host_of(&holder.who).to_owned()).chain(lessee);
        self.kept_out = keep_out_until.map(|until| hosts.map(|host| (host, until)).collect()).unwrap_or_default();
        true
    }

    /// Ends the use of `who`. Returns its mode, or `None` if `who` is not a holder.
    pub fn end(&mut self, who: &str, ending: UseEnding, now: Instant) -> Option<UseMode> {
        let at = self.holders.iter().position(|holder| holder.who == who)?;
        let holder = self.holders.remove(at);
        let mode = holder.mode;
        if self.holders.is_empty() {
            self.use_ends = None;
        }
        let remark = if self.holders.is_empty() { self.remark.take() } else { self.remark.clone() };
        let remark = remark.filter(|_| ending == UseEnding::TakenBack);
        self.remember_past(PastUse { holder, until: now, ending, remark });
        Some(mode)
    }

    /// The device has gone: what is left of the claims on it, for when it comes back. Who had it comes first for
    /// [`RETURN_PATIENCE`]: a board that is flashed goes and comes back in the hands of its user. Who waits is not heard
    /// meanwhile, and keeps its place for so long.
    #[must_use]
    pub fn without_device(mut self, now: Instant) -> Self {
        self.queue.retain(|waiting| waiting.is_patient(now));
        for waiting in &mut self.queue {
            (waiting.asked_at, waiting.patience) = (now, waiting.patience.max(RETURN_PATIENCE));
        }
        for holder in std::mem::take(&mut self.holders).into_iter().rev() {
            let (host, since) = (host_of(&holder.who).to_owned(), holder.since);
            self.queue.retain(|waiting| waiting.host != host);
            self.queue.truncate(QUEUE_MAX - 1);
            let (asked_at, tries, priority, patience) = (now, TRIES_MIN, 0, RETURN_PATIENCE);
            self.queue.insert(0, QueuedHost { host, since, asked_at, tries, priority, patience, span: None });
            self.remember_past(PastUse { holder, until: now, ending: UseEnding::Gone, remark: None });
        }
        (self.use_ends, self.remark) = (None, None);
        self
    }

    /// Hands the device over from `from` to `to`, which does not enter the queue.
    pub fn hand_over(&mut self, from: &str, to: &str, now: Instant) {
        if let Some(mode) = self.end(from, UseEnding::HandedOver, now) {
            self.holders.push(ClaimHolder { who: to.to_owned(), mode, since: now, reason: None });
        }
    }

    /// The holder; the first that came, if there are several.
    pub fn holder(&self) -> Option<&ClaimHolder> {
        self.holders.first()
    }

    /// All holders, first comer first; empty if nobody uses the device, more than one if its use is shared.
    pub fn holders(&self) -> &[ClaimHolder] {
        &self.holders
    }

    /// The hosts that wait for it, longest first: those that have asked [`TRIES_MIN`] times and still do.
    pub fn queue(&self, now: Instant) -> impl Iterator<Item = &QueuedHost> {
        self.queue.iter().filter(move |waiting| waiting.is_waiting() && waiting.is_patient(now))
    }

    /// Past uses, latest last.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &PastUse> {
        self.history.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{HISTORY_MAX, REASON_BYTES_MAX};

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    const A: &str = "192.0.2.1:1000";
    const B: &str = "192.0.2.2:1000";
    const C: &str = "[2001:db8::3]:1000";

    fn waiting(claims: &DeviceClaims, now: Instant) -> Vec<&str> {
        claims.queue(now).map(|waiting| waiting.host.as_str()).collect()
    }

    #[test]
    fn device_has_one_exclusive_holder_and_single_tries_do_not_queue() {
        let mut claims = DeviceClaims::default();
        assert_eq!(claims.claim(A, UseMode::Exclusive, at_ms(0)), Ok(()));
        assert_eq!(claims.claim(B, UseMode::Exclusive, at_ms(1)), Err(ClaimRefusal::Held));
        assert_eq!(claims.claim(A, UseMode::Exclusive, at_ms(2)), Err(ClaimRefusal::Held), "not even by the same host");
        assert_eq!(
            claims.claim(B, UseMode::Exclusive, at_ms(1500)),
            Err(ClaimRefusal::Held),
            "it tries once more, by hand"
        );
        assert_eq!(waiting(&claims, at_ms(1500)), [""; 0]);
        claims.end(A, UseEnding::Detached, at_ms(1600));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(1700)), Ok(()), "B does not wait: nothing is kept for it");
    }

    #[test]
    fn host_that_waited_longest_gets_the_device_whichever_asks_first() {
        let mut claims = DeviceClaims::default();
        claims.claim(A, UseMode::Exclusive, at_ms(0)).unwrap();
        for ms in [10, 500, 1000] {
            assert_eq!(
                claims.claim(&B.replace("1000", &ms.to_string()), UseMode::Exclusive, at_ms(ms)),
                Err(ClaimRefusal::Held)
            );
            assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(ms + 1)), Err(ClaimRefusal::Held));
        }
        assert_eq!(waiting(&claims, at_ms(1001)), ["192.0.2.2", "[2001:db8::3]"]);
        claims.end(A, UseEnding::Detached, at_ms(1100));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(1101)), Err(ClaimRefusal::Waited));
        assert_eq!(
            claims.claim(A, UseMode::Exclusive, at_ms(1102)),
            Err(ClaimRefusal::Waited),
            "who had it goes to the end"
        );
        assert_eq!(claims.claim(B, UseMode::Exclusive, at_ms(1200)), Ok(()));
        assert_eq!(waiting(&claims, at_ms(1200)), ["[2001:db8::3]"]);
        claims.end(B, UseEnding::Detached, at_ms(1300));
        assert_eq!(claims.claim(A, UseMode::Exclusive, at_ms(1301)), Err(ClaimRefusal::Waited));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(1302)), Ok(()));
    }

    #[test]
    fn readers_coexist_and_exclude_a_writer() {
        let mut claims = DeviceClaims::default();
        assert_eq!(claims.claim(A, UseMode::Read, at_ms(0)), Ok(()));
        assert_eq!(claims.claim(B, UseMode::Scratch, at_ms(1)), Ok(()));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(2)), Err(ClaimRefusal::Held));
        assert_eq!(claims.holders().len(), 2);
        for ms in [3, 3] {
            assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(ms)), Err(ClaimRefusal::Held));
        }
        assert_eq!(
            claims.claim("d", UseMode::Read, at_ms(4)),
            Err(ClaimRefusal::Waited),
            "the writer has waited longer"
        );
        assert_eq!(claims.end(A, UseEnding::Detached, at_ms(5)), Some(UseMode::Read));
        assert_eq!(claims.end(A, UseEnding::Detached, at_ms(5)), None, "it ends once");
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(6)), Err(ClaimRefusal::Held));
        assert_eq!(claims.end(B, UseEnding::Detached, at_ms(7)), Some(UseMode::Scratch));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(8)), Ok(()));
        assert_eq!(claims.claim("d", UseMode::Read, at_ms(9)), Err(ClaimRefusal::Held));
        claims.claim(A, UseMode::Read, at_ms(10)).unwrap_err();
    }

    #[test]
    fn take_back_keeps_out_all_readers() {
        let mut claims = DeviceClaims::default();
        for who in [A, B] {
            claims.claim(who, UseMode::Read, at_ms(0)).unwrap();
        }
        assert!(claims.take_back(Some("repair"), Some(at_ms(1000))));
        for who in [A, B] {
            claims.end(who, UseEnding::TakenBack, at_ms(1));
            assert_eq!(claims.claim(who, UseMode::Read, at_ms(2)), Err(ClaimRefusal::KeptOut), "{who}");
        }
        let remarks: Vec<_> = claims.history().map(|past| past.remark.as_deref()).collect();
        assert_eq!(remarks, [Some("repair"); 2]);
    }

    #[test]
    fn user_of_a_device_that_goes_and_comes_back_comes_before_those_who_wait() {
        let mut claims = DeviceClaims::default();
        claims.claim(A, UseMode::Exclusive, at_ms(0)).unwrap();
        for ms in [1, 2, 3] {
            claims.claim(B, UseMode::Exclusive, at_ms(ms)).unwrap_err();
        }
        let mut claims = claims.without_device(at_ms(10));
        assert_eq!(claims.history().last().map(|past| past.ending), Some(UseEnding::Gone));
        assert_eq!(claims.claim(B, UseMode::Exclusive, at_ms(1000)), Err(ClaimRefusal::Waited));
        assert_eq!(claims.claim(A, UseMode::Exclusive, at_ms(3500)), Ok(()), "as often as it is flashed");
        let mut claims = claims.without_device(at_ms(4000));
        for ms in [4000, 6000, 8000, 10_000, 12_000, 14_000] {
            assert_eq!(claims.claim(B, UseMode::Exclusive, at_ms(ms)), Err(ClaimRefusal::Waited));
        }
        assert_eq!(claims.claim(B, UseMode::Exclusive, at_ms(14_001)), Ok(()), "A has not come back");
    }

    #[test]
    fn host_that_stops_asking_leaves_the_queue() {
        let mut claims = DeviceClaims::default();
        claims.claim(A, UseMode::Exclusive, at_ms(0)).unwrap();
        for ms in [0, 1, 2] {
            claims.claim(B, UseMode::Exclusive, at_ms(ms)).unwrap_err();
        }
        claims.end(A, UseEnding::Lost, at_ms(3));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(3002)), Err(ClaimRefusal::Waited));
        assert_eq!(claims.claim(C, UseMode::Exclusive, at_ms(3003)), Ok(()), "3 s without a word");
        assert_eq!(waiting(&claims, at_ms(3003)), [""; 0]);
    }

    #[test]
    fn full_queue_refuses_new_hosts_and_keeps_those_in_it() {
        let mut claims = DeviceClaims::default();
        claims.claim(A, UseMode::Exclusive, at_ms(0)).unwrap();
        for turn in 0..u64::from(TRIES_MIN) {
            for host in 0..10 * QUEUE_MAX {
                claims.claim(&format!("10.0.0.{host}:1"), UseMode::Exclusive, at_ms(turn)).unwrap_err();
            }
        }
        let names = waiting(&claims, at_ms(2));
        assert_eq!((names.len(), names[0]), (QUEUE_MAX, "10.0.0.0"));
    }

    #[test]
    fn taken_back_use_is_in_the_history_and_its_host_is_kept_out() {
        let mut claims = DeviceClaims::default();
        assert!(!claims.take_back(Some("mine"), None), "nobody holds it");
        claims.claim(A, UseMode::Exclusive, at_ms(0)).unwrap();
        assert!(claims.explain(A, "a\nbackup") && !claims.explain(B, "no"));
        assert!(claims.take_back(Some("needed here"), Some(at_ms(5000))));
        claims.end(A, UseEnding::TakenBack, at_ms(100));
        let past = claims.history().last().unwrap();
        assert_eq!((past.holder.who.as_str(), past.until, past.ending), (A, at_ms(100), UseEnding::TakenBack));
        assert_eq!((past.holder.reason.as_deref(), past.remark.as_deref()), (Some("a backup"), Some("needed here")));
        assert_eq!(claims.claim("192.0.2.1:7", UseMode::Exclusive, at_ms(4999)), Err(ClaimRefusal::KeptOut));
        assert_eq!(claims.claim(A, UseMode::Exclusive, at_ms(5000)), Ok(()));
        claims.end(A, UseEnding::Detached, at_ms(5001));
        assert_eq!(claims.history().last().unwrap().remark, None, "a remark is of one use");
    }

    #[test]
    fn history_keeps_the_latest_uses() {
        let mut claims = DeviceClaims::default();
        for use_ in 0..40 {
            claims.claim(&format!("h{use_}"), UseMode::Exclusive, at_ms(use_)).unwrap();
            claims.end(&format!("h{use_}"), UseEnding::Detached, at_ms(use_));
        }
        assert_eq!(claims.history().count(), HISTORY_MAX);
        assert_eq!(claims.history().last().unwrap().holder.who, "h39");
    }

    #[test]
    fn host_of_an_address_is_the_part_before_the_port() {
        let cases = [
            ("10.0.0.1:9", "10.0.0.1"),
            ("[::1]:9", "[::1]"),
            ("lab3", "lab3"),
            ("a:b", "a:b"),
            ("::1:99999", "::1:99999"),
        ];
        for (who, host) in cases {
            assert_eq!(host_of(who), host);
        }
        assert_eq!(shortened(&"é".repeat(REASON_BYTES_MAX)).len(), REASON_BYTES_MAX);
    }
}
