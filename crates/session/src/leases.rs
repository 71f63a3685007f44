//! Who has a device next: leases, numbered so that whoever comes late is told so (requirement N9: migration).
//!
//! Every use of a device has a *lease*, a number that is higher than that of any use before, on this exporter and, by the clock, on those
//! that it was before a restart. Whoever hands a device over names an *heir* by its key: the device is not reset, keeps its claim,
//! and waits for the heir, who is known by it (or, without one, by the lease that it inherits); or for its former user, who comes back with his
//! lease if the heir does not come.
//!
//! | who opens with lease *n* | and | gets |
//! |---|---|---|
//! | the heir, or who handed it over | it waits under *n* | the device as it is, a later lease |
//! | the heir by his key | it waits, and he names none | the same |
//! | anybody else | it waits under *n* | *busy* |
//! | anybody | a later lease was given | *stale*: he is fenced off |
//! | anybody | no later one was | what anybody gets, with a later lease |

use std::collections::BTreeMap;

use farbus_model::Instant;

/// A key; none for whoever came without one.
pub type Key = Option<[u8; 32]>;

/// Something that was handed over and waits.
#[derive(Debug)]
struct Waits<T> {
    lease: u64,
    heir: Key,
    from: Key,
    until: Instant,
    what: T,
}

/// The leases of an exporter's devices; `T` is what waits of a device that was handed over.
#[derive(Debug)]
pub struct Leases<T> {
    /// The last one that was given, of anything.
    last: u64,
    /// The last one of each device, by its name.
    given: BTreeMap<String, u64>,
    waiting: BTreeMap<String, Waits<T>>,
}

/// What a lease that somebody names is worth.
#[derive(Debug, PartialEq, Eq)]
pub enum Worth<T> {
    /// What waits is his.
    Inherits(T),
    /// As much as none: it is his to ask.
    Nothing,
    /// It waits for somebody else.
    NotHis,
    /// Somebody has a later one.
    Stale,
}

impl<T> Leases<T> {
    /// None was given; the first will be later than `now_ms` of any clock that all exporters of a device share (of the day).
    pub fn after(now_ms: u64) -> Self {
        Self { last: now_ms, given: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// A lease of `device` for its next user.
    pub fn give(&mut self, device: &str) -> u64 {
        self.last += 1;
        self.given.insert(device.to_owned(), self.last);
        self.last
    }

    /// `device` is used under a lease that another process gave.
    pub fn keep(&mut self, device: &str, lease: u64) {
        self.last = self.last.max(lease);
        self.given.insert(device.to_owned(), lease);
    }

    /// The user of `device` hands it over, by the lease he has, to `heir`, who has until then to come. What waited there
    /// before is given back: there is none unless somebody has a bug.
    pub fn hand_over(&mut self, device: &str, from: Key, heir: Key, until: Instant, what: T) -> Option<T> {
        let lease = self.given.get(device).copied().unwrap_or(self.last);
        let waits = Waits { lease, heir, from, until, what };
        self.waiting.insert(device.to_owned(), waits).map(|before| before.what)
    }

    /// What the lease `named` (0: none) is worth to `who`, who asks for `device` now.
    pub fn worth(&mut self, device: &str, who: Key, named: u64) -> Worth<T> {
        if self.legacy_of(device, who, named).is_some() {
            let waits = self.waiting.remove(device).expect("looked at just now");
            return Worth::Inherits(waits.what);
        }
        if self.waiting.get(device).is_some_and(|waits| named == waits.lease || named == 0) {
            return Worth::NotHis;
        }
        if named == 0 {
            return Worth::Nothing;
        }
        match self.given.get(device) {
            Some(&last) if last > named => Worth::Stale,
            _ => Worth::Nothing,
        }
    }

    /// What waits of `device` for `who` with the lease `named` (0: none), for whoever wants to look before he takes it.
    pub fn legacy_of(&self, device: &str, who: Key, named: u64) -> Option<&T> {
        let waits = self.waiting.get(device)?;
        let is_known = who.is_some() && who == waits.heir;
        let has_lease = named == waits.lease;
        let is_his = (is_known && (has_lease || named == 0)) || (has_lease && (who == waits.heir || who == waits.from));
        is_his.then_some(&waits.what)
    }

    /// What waited in vain.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        let late: Vec<String> =
            self.waiting.iter().filter(|(_, waits)| waits.until <= now).map(|(device, _)| device.clone()).collect();
        late.iter().filter_map(|device| self.waiting.remove(device)).map(|waits| waits.what).collect()
    }

    /// What waits of `device`, for its owner to take back.
    pub fn take_back(&mut self, device: &str) -> Option<T> {
        self.waiting.remove(device).map(|waits| waits.what)
    }

    /// What waits of `device` for as long as another process takes to go on: the lease under which it was handed over, to whom, until when.
    pub fn recall(&mut self, device: &str) -> Option<(u64, Key, Instant, T)> {
        self.waiting.remove(device).map(|waits| (waits.lease, waits.heir, waits.until, waits.what))
    }

    /// Everything that waits: sharing ends.
    pub fn clear(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().map(|waits| waits.what).collect()
    }

    /// When [`Leases::expire`] has something next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().map(|waits| waits.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = Some([1; 32]);
    const B: Key = Some([2; 32]);
    const C: Key = Some([3; 32]);

    fn at_s(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn the_heir_has_it_and_whoever_had_it_before_is_fenced_off() {
        let mut leases = Leases::after(1000);
        let first = leases.give("disk");
        assert_eq!(
            leases.worth("disk", A, first),
            Worth::Nothing,
            "its user asks again: an exporter may have forgotten"
        );
        assert_eq!(leases.hand_over("disk", A, B, at_s(30), "it"), None);
        assert_eq!(leases.worth("disk", C, first), Worth::NotHis);
        assert_eq!(leases.worth("disk", C, 0), Worth::NotHis);
        assert_eq!(leases.worth("disk", A, 0), Worth::NotHis, "he has let go of it, unless he says which");
        assert_eq!(leases.worth("disk", B, first + 1), Worth::Nothing, "another lease");
        assert_eq!(leases.worth("disk", B, first), Worth::Inherits("it"));
        let second = leases.give("disk");
        assert!(second > first);
        assert_eq!(leases.worth("disk", A, first), Worth::Stale);
        assert_eq!(leases.worth("disk", A, 0), Worth::Nothing, "as anybody");
        assert_eq!(leases.worth("other", A, first), Worth::Nothing);
    }

    #[test]
    fn an_heir_is_known_by_his_key() {
        let mut leases = Leases::after(0);
        leases.give("disk");
        leases.hand_over("disk", A, B, at_s(30), "it");
        assert_eq!(leases.worth("disk", None, 0), Worth::NotHis);
        assert_eq!(leases.worth("disk", B, 0), Worth::Inherits("it"));
        leases.hand_over("disk", None, None, at_s(30), "it");
        assert_eq!(leases.worth("disk", None, 0), Worth::NotHis, "without a key the lease is what counts");
    }

    #[test]
    fn it_returns_to_its_source_or_to_everybody() {
        let mut leases = Leases::after(0);
        let lease = leases.give("disk");
        leases.hand_over("disk", A, B, at_s(30), "it");
        assert_eq!(leases.worth("disk", A, lease), Worth::Inherits("it"), "the heir did not come");
        leases.hand_over("disk", A, B, at_s(30), "it");
        leases.give("tape");
        leases.hand_over("tape", None, None, at_s(20), "tape");
        assert_eq!(leases.poll_timeout(), Some(at_s(20)));
        assert_eq!(leases.expire(at_s(20)), ["tape"]);
        assert_eq!((leases.expire(at_s(29)), leases.expire(at_s(30))), (vec![], vec!["it"]));
        assert_eq!(leases.worth("disk", B, lease), Worth::Nothing, "too late: as anybody");
        assert_eq!(leases.poll_timeout(), None);
    }

    #[test]
    fn what_is_recalled_waits_for_the_same_heir_under_the_same_lease() {
        let mut leases = Leases::after(0);
        let lease = leases.give("disk");
        leases.hand_over("disk", A, B, at_s(30), "it");
        assert_eq!(leases.recall("disk"), Some((lease, B, at_s(30), "it")));
        assert_eq!((leases.recall("disk"), leases.poll_timeout()), (None, None));
        let mut after = Leases::after(1_000_000);
        after.keep("disk", lease);
        after.hand_over("disk", A, B, at_s(30), "it");
        assert_eq!((after.worth("disk", C, 0), after.worth("disk", B, lease)), (Worth::NotHis, Worth::Inherits("it")));
    }

    #[test]
    fn a_lease_from_before_a_restart_is_no_later_than_one_from_after_it() {
        let mut before = Leases::<()>::after(1000);
        let lease = before.give("disk");
        let mut after = Leases::<()>::after(2000);
        assert_eq!(after.worth("disk", A, lease), Worth::Nothing);
        after.give("disk");
        assert_eq!(after.worth("disk", B, lease), Worth::Stale);
    }
}
