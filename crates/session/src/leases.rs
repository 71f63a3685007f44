//! Who has a device next: leases, numbered so that whoever comes late is told so (requirement N9: migration).
//!
//! Every use of a device has a *lease*, a number that is higher than that of any use before, on this exporter and, by
//! the clock, on those that it was before a restart. Whoever hands a device over names an *successor* by its key: the
//! device is not reset, keeps its claim, and waits for the successor, who is known by it (or, without one, by the lease
//! that it inherits); or for its former user, who comes back with his lease if the successor does not come.
//!
//! | who opens with lease *n* | and | gets |
//! |---|---|---|
//! | the successor, or who handed it over | it waits under *n* | the device as it is, a later lease |
//! | the successor by his key | it waits, and he names none | the same |
//! | anybody else | it waits under *n* | *busy* |
//! | anybody | a later lease was given | *stale*: he is fenced off |
//! | anybody | no later one was, and it was a lease of this device | what anybody gets, with a later lease |
//! | anybody | it was a lease of another device, or nothing says of which | *other*: unless he has named the device's identity |
//!
//! Leases are kept by identity, so it does not matter in which order devices are shared after a restart. A lease says
//! itself of which device it is: its low bits are a mark, derived from the device's id. So an importer that names no
//! identities, because it is of an older version, does not get another device after its exporter was started anew (one
//! in a million would).

use std::collections::BTreeMap;

use farbus_model::{Identity, Instant};

/// A key; none for whoever came without one.
pub type Key = Option<[u8; 32]>;

/// Bits of a lease that are its device's mark. Milliseconds of the day have 42 bits until the year 2109, the rest
/// counts leases.
const MARK_BITS: u32 = 20;
const MARK: u64 = (1 << MARK_BITS) - 1;

/// What leases are kept by: which device it is, wherever it is plugged in and whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKey {
    /// The id of its identity.
    Id(u128),
    /// The bus id of a device without identity.
    BusId(String),
}

impl DeviceKey {
    /// The key of the device that has this bus id now, and this identity if it has one.
    pub fn of(bus_id: &str, identity: Option<Identity>) -> Self {
        identity.map_or_else(|| Self::BusId(bus_id.to_owned()), |identity| Self::Id(identity.id))
    }

    /// What the low bits of its leases are: never 0, except for a device without identity.
    fn mark(&self) -> u64 {
        match self {
            // Ids are random: any of their bits will do.
            Self::Id(id) => (*id as u64 ^ (*id >> 64) as u64) % MARK + 1,
            Self::BusId(_) => 0,
        }
    }
}

/// Something that was handed over and waits.
#[derive(Debug)]
struct Waits<T> {
    lease: u64,
    successor: Key,
    from: Key,
    until: Instant,
    what: T,
}

/// The leases of an exporter's devices; `T` is what waits of a device that was handed over.
#[derive(Debug)]
pub struct Leases<T> {
    /// The last one that was given, of anything, without its mark.
    last: u64,
    /// What that was when this process began.
    begun: u64,
    /// The last one of each device.
    given: BTreeMap<DeviceKey, u64>,
    waiting: BTreeMap<DeviceKey, Waits<T>>,
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
    /// It is of another device, or nothing says of which.
    Other,
}

impl<T> Leases<T> {
    /// None was given; the first will be later than `now_ms` of any clock that all exporters of a device share (of the
    /// day).
    pub fn after(now_ms: u64) -> Self {
        let begun = now_ms.min(u64::MAX >> (MARK_BITS + 1));
        Self { last: begun, begun, given: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// A lease of `device` for its next user.
    pub fn give(&mut self, device: &DeviceKey) -> u64 {
        self.last += 1;
        let lease = self.last << MARK_BITS | device.mark();
        self.given.insert(device.clone(), lease);
        lease
    }

    /// `device` is used under a lease that another process gave.
    pub fn keep(&mut self, device: &DeviceKey, lease: u64) {
        self.last = self.last.max(lease >> MARK_BITS);
        self.given.insert(device.clone(), lease);
    }

    /// The user of `device` hands it over, by the lease he has, to `successor`, who has until then to come. What waited
    /// there before is given back: there is none unless somebody has a bug.
    pub fn hand_over(&mut self, device: &DeviceKey, from: Key, successor: Key, until: Instant, what: T) -> Option<T> {
        let lease = self.given.get(device).copied().unwrap_or(self.last);
        let waits = Waits { lease, successor, from, until, what };
        self.waiting.insert(device.clone(), waits).map(|before| before.what)
    }

    /// What the lease `named` (0: none) is worth to `who`, who asks for `device` now. `is_compared`: he has named the
    /// device's identity, and it is that one.
    pub fn worth(&mut self, device: &DeviceKey, who: Key, named: u64, is_compared: bool) -> Worth<T> {
        if self.handed_over_to(device, who, named).is_some() {
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
            Some(&last) if last == named => Worth::Nothing,
            _ if is_compared || self.is_of(device, named) => Worth::Nothing,
            _ => Worth::Other,
        }
    }

    /// Whether the lease is of this device, as far as it says so itself. A device without identity is known while this
    /// process lives.
    fn is_of(&self, device: &DeviceKey, lease: u64) -> bool {
        let mark = device.mark();
        lease & MARK == mark && (mark != 0 || lease >> MARK_BITS > self.begun)
    }

    /// What waits of `device` for `who` with the lease `named` (0: none), for whoever wants to look before he takes it.
    pub fn handed_over_to(&self, device: &DeviceKey, who: Key, named: u64) -> Option<&T> {
        let waits = self.waiting.get(device)?;
        let is_known = who.is_some() && who == waits.successor;
        let has_lease = named == waits.lease;
        let is_his =
            (is_known && (has_lease || named == 0)) || (has_lease && (who == waits.successor || who == waits.from));
        is_his.then_some(&waits.what)
    }

    /// What waited in vain.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        let late: Vec<DeviceKey> =
            self.waiting.iter().filter(|(_, waits)| waits.until <= now).map(|(device, _)| device.clone()).collect();
        late.iter().filter_map(|device| self.waiting.remove(device)).map(|waits| waits.what).collect()
    }

    /// What waits of `device`, for its owner to take back.
    pub fn take_back(&mut self, device: &DeviceKey) -> Option<T> {
        self.waiting.remove(device).map(|waits| waits.what)
    }

    /// What waits of `device` for as long as another process takes to go on: the lease under which it was handed over,
    /// to whom, until when.
    pub fn recall(&mut self, device: &DeviceKey) -> Option<(u64, Key, Instant, T)> {
        self.waiting.remove(device).map(|waits| (waits.lease, waits.successor, waits.until, waits.what))
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

    /// A device by its name, whose identity is the same in each of these tests.
    fn device(name: &str) -> DeviceKey {
        DeviceKey::Id(name.bytes().fold(1, |id, byte| id << 8 | u128::from(byte)))
    }

    fn at_s(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn the_successor_has_it_and_whoever_had_it_before_is_fenced_off() {
        let mut leases = Leases::after(1000);
        let first = leases.give(&device("disk"));
        assert_eq!(
            leases.worth(&device("disk"), A, first, false),
            Worth::Nothing,
            "its user asks again: an exporter may have forgotten"
        );
        assert_eq!(leases.hand_over(&device("disk"), A, B, at_s(30), "it"), None);
        assert_eq!(leases.worth(&device("disk"), C, first, false), Worth::NotHis);
        assert_eq!(leases.worth(&device("disk"), C, 0, false), Worth::NotHis);
        assert_eq!(
            leases.worth(&device("disk"), A, 0, false),
            Worth::NotHis,
            "he has let go of it, unless he says which"
        );
        assert_eq!(leases.worth(&device("disk"), B, first + 1, false), Worth::Other, "no lease of this device");
        assert_eq!(leases.worth(&device("disk"), B, first, false), Worth::Inherits("it"));
        let second = leases.give(&device("disk"));
        assert!(second > first);
        assert_eq!(leases.worth(&device("disk"), A, first, false), Worth::Stale);
        assert_eq!(leases.worth(&device("disk"), A, 0, false), Worth::Nothing, "as anybody");
        assert_eq!(leases.worth(&device("other"), A, first, false), Worth::Other, "the lease is of another device");
        assert_eq!(
            leases.worth(&device("other"), A, first, true),
            Worth::Nothing,
            "he has named the device's identity"
        );
    }

    #[test]
    fn a_successor_is_known_by_his_key() {
        let mut leases = Leases::after(0);
        leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(leases.worth(&device("disk"), None, 0, false), Worth::NotHis);
        assert_eq!(leases.worth(&device("disk"), B, 0, false), Worth::Inherits("it"));
        leases.hand_over(&device("disk"), None, None, at_s(30), "it");
        assert_eq!(
            leases.worth(&device("disk"), None, 0, false),
            Worth::NotHis,
            "without a key the lease is what counts"
        );
    }

    #[test]
    fn it_returns_to_its_source_or_to_everybody() {
        let mut leases = Leases::after(0);
        let lease = leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(leases.worth(&device("disk"), A, lease, false), Worth::Inherits("it"), "the successor did not come");
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        leases.give(&device("tape"));
        leases.hand_over(&device("tape"), None, None, at_s(20), "tape");
        assert_eq!(leases.poll_timeout(), Some(at_s(20)));
        assert_eq!(leases.expire(at_s(20)), ["tape"]);
        assert_eq!((leases.expire(at_s(29)), leases.expire(at_s(30))), (vec![], vec!["it"]));
        assert_eq!(leases.worth(&device("disk"), B, lease, false), Worth::Nothing, "too late: as anybody");
        assert_eq!(leases.poll_timeout(), None);
    }

    #[test]
    fn what_is_recalled_waits_for_the_same_successor_under_the_same_lease() {
        let mut leases = Leases::after(0);
        let lease = leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(leases.recall(&device("disk")), Some((lease, B, at_s(30), "it")));
        assert_eq!((leases.recall(&device("disk")), leases.poll_timeout()), (None, None));
        let mut after = Leases::after(1_000_000);
        after.keep(&device("disk"), lease);
        after.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(
            (after.worth(&device("disk"), C, 0, false), after.worth(&device("disk"), B, lease, false)),
            (Worth::NotHis, Worth::Inherits("it"))
        );
    }

    #[test]
    fn a_lease_from_before_a_restart_is_no_later_than_one_from_after_it() {
        let mut before = Leases::<()>::after(1000);
        let lease = before.give(&device("disk"));
        let mut after = Leases::<()>::after(2000);
        assert_eq!(after.worth(&device("disk"), A, lease, false), Worth::Nothing);
        after.give(&device("disk"));
        assert_eq!(after.worth(&device("disk"), B, lease, false), Worth::Stale);
    }

    #[test]
    fn a_lease_of_another_device_from_before_a_restart_is_worth_nothing_in_whatever_order_devices_are_shared() {
        let mut before = Leases::<()>::after(1000);
        let names: Vec<String> = (0..200).map(|number| format!("disk{number}")).collect();
        let leases: Vec<u64> = names.iter().map(|name| before.give(&device(name))).collect();
        let mut after = Leases::<()>::after(2000);
        for (name, &lease) in names.iter().zip(&leases).rev() {
            assert_eq!(after.worth(&device(name), None, lease, false), Worth::Nothing, "{name}");
            let others = names.iter().filter(|other| *other != name);
            let wrong = others.filter(|other| after.worth(&device(other), None, lease, false) != Worth::Other).count();
            assert_eq!(wrong, 0, "{name} opens another device");
        }
    }

    #[test]
    fn a_device_without_identity_is_known_as_long_as_the_exporter_or_its_successor_lives() {
        let key = DeviceKey::of("1-1", None);
        let mut before = Leases::<()>::after(1000);
        let lease = before.give(&key);
        assert_eq!(before.worth(&key, A, lease, false), Worth::Nothing);
        let mut successor = Leases::<()>::after(2000);
        successor.keep(&key, lease);
        assert_eq!(successor.worth(&key, A, lease, false), Worth::Nothing);
        let mut fresh = Leases::<()>::after(2000);
        assert_eq!(fresh.worth(&key, A, lease, false), Worth::Other);
        assert_eq!(fresh.worth(&key, A, 0, false), Worth::Nothing, "who names no lease asks for the first time");
    }

    #[test]
    fn a_lease_of_an_exporter_without_identities_is_known_to_its_successor_alone() {
        let (key, lease) = (device("disk"), 1_900_000_000_000);
        let mut fresh = Leases::<()>::after(1_900_000_100_000);
        assert_eq!(fresh.worth(&key, A, lease, false), Worth::Other);
        let mut successor = Leases::<()>::after(1_900_000_100_000);
        successor.keep(&key, lease);
        assert_eq!(successor.worth(&key, A, lease, false), Worth::Nothing);
        assert!(successor.give(&key) > lease);
        assert_eq!(successor.worth(&key, A, lease, false), Worth::Stale);
    }
}
