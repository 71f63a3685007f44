//! Leases: each use of a device has a number, so that a late importer can be refused (requirement N9: migration).
//!
//! A lease is a number higher than that of any earlier use, on this exporter and, because it starts from the clock, on
//! this exporter before a restart. An importer that hands a device over names a *successor* by its key. The device is
//! not reset, keeps its claim and waits for the successor, which is identified by its key (or, without one, by the
//! lease that it inherits). The former user can also come back with its lease, if the successor does not come.
//!
//! | who opens with lease *n* | state of the device | gets |
//! |---|---|---|
//! | the successor, or the former user | waits under *n* | the device as it is, with a later lease |
//! | the successor by its key, naming no lease | waits | the device as it is, with a later lease |
//! | another host | waits under *n* | *busy* |
//! | any host | a later lease was given | *stale*: it is fenced off |
//! | any host | no later lease was given, and *n* was a lease of this device | a normal open, with a later lease |
//! | any host | *n* was a lease of another device, or of an unknown one | *other*, unless the host has named the device's identity |
//!
//! Leases are kept by identity, so the order in which devices are shared after a restart does not matter. A lease
//! itself shows its device: its low bits are a mark derived from the device's id. So an importer of an older version,
//! which names no identities, does not get another device after the exporter was restarted (except for one in a
//! million).

use std::collections::BTreeMap;

use farbus_model::{ExportIdentity, Instant};

/// A host's key; `None` for a host without one.
pub type LeaseHostKey = Option<[u8; 32]>;

/// Bits of a lease that are its device's mark. The other bits count leases and start at the time of day in
/// milliseconds, which fits into 42 bits until the year 2109.
const MARK_BITS: u32 = 20;
const MARK: u64 = (1 << MARK_BITS) - 1;

/// The count in a lease's number.
pub const fn count_of(number: u64) -> u64 {
    number >> MARK_BITS
}

/// What leases are kept by: the device, independent of its port and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKey {
    /// The id of its identity.
    Id(u128),
    /// The bus id of a device without identity.
    BusId(String),
}

impl DeviceKey {
    /// The key of the device that has this bus id now, and this identity if it has one.
    pub fn of(bus_id: &str, identity: Option<ExportIdentity>) -> Self {
        identity.map_or_else(|| Self::BusId(bus_id.to_owned()), |identity| Self::Id(identity.id))
    }

    /// The low bits of the device's leases; 0 only for a device without identity.
    fn mark(&self) -> u64 {
        match self {
            // Ids are random, so any of their bits will do.
            Self::Id(id) => (*id as u64 ^ (*id >> 64) as u64) % MARK + 1,
            Self::BusId(_) => 0,
        }
    }
}

/// A device that was handed over and waits.
#[derive(Debug)]
struct MigratingDevice<T> {
    lease: u64,
    successor: LeaseHostKey,
    from: LeaseHostKey,
    until: Instant,
    what: T,
}

/// The leases of an exporter's devices. `T` is what is kept of a device that was handed over.
#[derive(Debug)]
pub struct DeviceLeases<T> {
    /// The latest lease of any device, without its mark.
    last: u64,
    /// The value of `last` when this process began.
    begun: u64,
    /// The latest lease of each device.
    given: BTreeMap<DeviceKey, u64>,
    waiting: BTreeMap<DeviceKey, MigratingDevice<T>>,
}

/// What a lease that an importer names entitles to.
#[derive(Debug, PartialEq, Eq)]
pub enum LeaseEntitlement<T> {
    /// The importer gets what waits.
    Inherits(T),
    /// Nothing in particular: a normal open.
    Nothing,
    /// The device waits for another host.
    NotHis,
    /// A later lease was given to another use.
    Stale,
    /// It is a lease of another device, or of an unknown one.
    Other,
}

impl<T> DeviceLeases<T> {
    /// No leases yet. The first one will be later than `now_ms`, the time of day by a clock that all exporters of a
    /// device share.
    pub fn after(now_ms: u64) -> Self {
        let begun = now_ms.min(u64::MAX >> (MARK_BITS + 1));
        Self { last: begun, begun, given: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Gives a new lease of `device` for its next user.
    pub fn give(&mut self, device: &DeviceKey) -> u64 {
        self.give_reserved(device, 0)
    }

    /// The latest count of any device, which the next lease exceeds: its exporter reserves a count above it, stores
    /// that, and then calls [`DeviceLeases::give_reserved`].
    pub fn last_count(&self) -> u64 {
        self.last
    }

    /// The latest lease of `device`; `None` if none is known.
    pub fn latest(&self, device: &DeviceKey) -> Option<u64> {
        self.given.get(device).copied()
    }

    /// The count of the latest lease of `device`; 0 if none is known.
    pub fn latest_count(&self, device: &DeviceKey) -> u64 {
        self.latest(device).map_or(0, |lease| lease >> MARK_BITS)
    }

    /// Every lease of `device` that was given is [`LeaseEntitlement::Stale`] from now on; the next one is later by two.
    pub fn fence_off(&mut self, device: &DeviceKey) {
        if let Some(latest) = self.given.get_mut(device) {
            *latest += 1 << MARK_BITS;
            self.last = self.last.max(*latest >> MARK_BITS);
        }
    }

    /// Gives a new lease of `device` with the count that was reserved for it, or a later one if a lease of `device`
    /// with that count was given already. Another device's later count does not matter: a higher one than was stored
    /// would be forgotten with the process.
    pub fn give_reserved(&mut self, device: &DeviceKey, count: u64) -> u64 {
        let latest = self.latest_count(device);
        let count = if count > latest { count } else { self.last + 1 };
        self.last = self.last.max(count);
        let lease = count << MARK_BITS | device.mark();
        self.given.insert(device.clone(), lease);
        lease
    }

    /// Records the highest count that was ever reserved for `device`: no lease of a lower count is its latest.
    pub fn note_reserved(&mut self, device: &DeviceKey, count: u64) {
        self.last = self.last.max(count);
        let lease = count << MARK_BITS | device.mark();
        let latest = self.given.entry(device.clone()).or_default();
        *latest = (*latest).max(lease);
    }

    /// Records that `device` is used under a lease that another process gave.
    pub fn keep(&mut self, device: &DeviceKey, lease: u64) {
        self.last = self.last.max(lease >> MARK_BITS);
        self.given.insert(device.clone(), lease);
    }

    /// The user of `device` hands it over under its lease to `successor`, which must come by `until`. Returns what
    /// waited before; there is something only after a bug.
    pub fn hand_over(
        &mut self,
        device: &DeviceKey,
        from: LeaseHostKey,
        successor: LeaseHostKey,
        until: Instant,
        what: T,
    ) -> Option<T> {
        let lease = self.given.get(device).copied().unwrap_or(self.last);
        let waits = MigratingDevice { lease, successor, from, until, what };
        self.waiting.insert(device.clone(), waits).map(|before| before.what)
    }

    /// What the lease `named` (0: none) entitles `who` to, who asks for `device` now. `is_compared`: the importer has
    /// named the device's identity, and it matched.
    pub fn worth(
        &mut self,
        device: &DeviceKey,
        who: LeaseHostKey,
        named: u64,
        is_compared: bool,
    ) -> LeaseEntitlement<T> {
        if self.handed_over_to(device, who, named).is_some() {
            let waits = self.waiting.remove(device).expect("looked at just now");
            return LeaseEntitlement::Inherits(waits.what);
        }
        if self.waiting.get(device).is_some_and(|waits| named == waits.lease || named == 0) {
            return LeaseEntitlement::NotHis;
        }
        if named == 0 {
            return LeaseEntitlement::Nothing;
        }
        match self.given.get(device) {
            Some(&last) if last > named => LeaseEntitlement::Stale,
            Some(&last) if last == named => LeaseEntitlement::Nothing,
            _ if is_compared || self.is_of(device, named) => LeaseEntitlement::Nothing,
            _ => LeaseEntitlement::Other,
        }
    }

    /// Whether the mark of the lease is this device's. A device without identity is only known while this process
    /// lives.
    fn is_of(&self, device: &DeviceKey, lease: u64) -> bool {
        let mark = device.mark();
        lease & MARK == mark && (mark != 0 || lease >> MARK_BITS > self.begun)
    }

    /// What waits of `device` for `who` with the lease `named` (0: none), without taking it.
    pub fn handed_over_to(&self, device: &DeviceKey, who: LeaseHostKey, named: u64) -> Option<&T> {
        let waits = self.waiting.get(device)?;
        let is_known = who.is_some() && who == waits.successor;
        let has_lease = named == waits.lease;
        let is_his =
            (is_known && (has_lease || named == 0)) || (has_lease && (who == waits.successor || who == waits.from));
        is_his.then_some(&waits.what)
    }

    /// The key of the successor that `device` waits for (`None`: that host has no key), and until when; `None` if it
    /// does not wait.
    pub fn successor(&self, device: &DeviceKey) -> Option<(LeaseHostKey, Instant)> {
        self.waiting.get(device).map(|waits| (waits.successor, waits.until))
    }

    /// Takes what waited too long.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        let late: Vec<DeviceKey> =
            self.waiting.iter().filter(|(_, waits)| waits.until <= now).map(|(device, _)| device.clone()).collect();
        late.iter().filter_map(|device| self.waiting.remove(device)).map(|waits| waits.what).collect()
    }

    /// Takes what waits of `device`, because the owner takes it back.
    pub fn take_back(&mut self, device: &DeviceKey) -> Option<T> {
        self.waiting.remove(device).map(|waits| waits.what)
    }

    /// Takes what waits of `device` for a handover to the replacement: with the lease under which it was handed over,
    /// its successor and its deadline.
    pub fn recall(&mut self, device: &DeviceKey) -> Option<(u64, LeaseHostKey, Instant, T)> {
        self.waiting.remove(device).map(|waits| (waits.lease, waits.successor, waits.until, waits.what))
    }

    /// Takes everything that waits, because sharing ends.
    pub fn clear(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().map(|waits| waits.what).collect()
    }

    /// When [`DeviceLeases::expire`] has something next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().map(|waits| waits.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseHostKey = Some([1; 32]);
    const B: LeaseHostKey = Some([2; 32]);
    const C: LeaseHostKey = Some([3; 32]);

    /// A device whose identity depends only on its name.
    fn device(name: &str) -> DeviceKey {
        DeviceKey::Id(name.bytes().fold(1, |id, byte| id << 8 | u128::from(byte)))
    }

    fn at_s(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn a_lease_has_the_count_that_was_stored_for_it_whatever_other_devices_got() {
        let mut leases: DeviceLeases<()> = DeviceLeases::after(1000);
        let count = |lease: u64| lease >> MARK_BITS;
        // Both counts were reserved above the same one.
        assert_eq!(count(leases.give_reserved(&device("disk"), 1001)), 1001);
        assert_eq!(count(leases.give_reserved(&device("keyboard"), 1001)), 1001);
        assert_eq!(count(leases.give_reserved(&device("disk"), 1001)), 1002, "that was given already");
        assert_eq!(leases.last_count(), 1002);
    }

    #[test]
    fn successor_gets_the_device_and_the_former_user_is_fenced_off() {
        let mut leases = DeviceLeases::after(1000);
        let first = leases.give(&device("disk"));
        assert_eq!(
            leases.worth(&device("disk"), A, first, false),
            LeaseEntitlement::Nothing,
            "its user asks again: an exporter may have forgotten"
        );
        assert_eq!(leases.hand_over(&device("disk"), A, B, at_s(30), "it"), None);
        assert_eq!(leases.worth(&device("disk"), C, first, false), LeaseEntitlement::NotHis);
        assert_eq!(leases.worth(&device("disk"), C, 0, false), LeaseEntitlement::NotHis);
        assert_eq!(
            leases.worth(&device("disk"), A, 0, false),
            LeaseEntitlement::NotHis,
            "he has let go of it, unless he says which"
        );
        assert_eq!(
            leases.worth(&device("disk"), B, first + 1, false),
            LeaseEntitlement::Other,
            "no lease of this device"
        );
        assert_eq!(leases.worth(&device("disk"), B, first, false), LeaseEntitlement::Inherits("it"));
        let second = leases.give(&device("disk"));
        assert!(second > first);
        assert_eq!(leases.worth(&device("disk"), A, first, false), LeaseEntitlement::Stale);
        assert_eq!(leases.worth(&device("disk"), A, 0, false), LeaseEntitlement::Nothing, "as anybody");
        assert_eq!(
            leases.worth(&device("other"), A, first, false),
            LeaseEntitlement::Other,
            "the lease is of another device"
        );
        assert_eq!(
            leases.worth(&device("other"), A, first, true),
            LeaseEntitlement::Nothing,
            "he has named the device's identity"
        );
    }

    #[test]
    fn successor_is_identified_by_its_key() {
        let mut leases = DeviceLeases::after(0);
        leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(leases.worth(&device("disk"), None, 0, false), LeaseEntitlement::NotHis);
        assert_eq!(leases.worth(&device("disk"), B, 0, false), LeaseEntitlement::Inherits("it"));
        leases.hand_over(&device("disk"), None, None, at_s(30), "it");
        assert_eq!(
            leases.worth(&device("disk"), None, 0, false),
            LeaseEntitlement::NotHis,
            "without a key the lease is what counts"
        );
    }

    #[test]
    fn device_returns_to_its_former_user_or_to_everybody() {
        let mut leases = DeviceLeases::after(0);
        let lease = leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(
            leases.worth(&device("disk"), A, lease, false),
            LeaseEntitlement::Inherits("it"),
            "the successor did not come"
        );
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        leases.give(&device("tape"));
        leases.hand_over(&device("tape"), None, None, at_s(20), "tape");
        assert_eq!(leases.poll_timeout(), Some(at_s(20)));
        assert_eq!(leases.successor(&device("disk")), Some((B, at_s(30))));
        assert_eq!(leases.expire(at_s(20)), ["tape"]);
        assert_eq!((leases.expire(at_s(29)), leases.expire(at_s(30))), (vec![], vec!["it"]));
        assert_eq!(leases.worth(&device("disk"), B, lease, false), LeaseEntitlement::Nothing, "too late: as anybody");
        assert_eq!(leases.poll_timeout(), None);
    }

    #[test]
    fn recalled_device_waits_for_the_same_successor_under_the_same_lease() {
        let mut leases = DeviceLeases::after(0);
        let lease = leases.give(&device("disk"));
        leases.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(leases.recall(&device("disk")), Some((lease, B, at_s(30), "it")));
        assert_eq!((leases.recall(&device("disk")), leases.poll_timeout()), (None, None));
        let mut after = DeviceLeases::after(1_000_000);
        after.keep(&device("disk"), lease);
        after.hand_over(&device("disk"), A, B, at_s(30), "it");
        assert_eq!(
            (after.worth(&device("disk"), C, 0, false), after.worth(&device("disk"), B, lease, false)),
            (LeaseEntitlement::NotHis, LeaseEntitlement::Inherits("it"))
        );
    }

    #[test]
    fn lease_from_before_a_restart_is_never_later_than_one_from_after_it() {
        let mut before = DeviceLeases::<()>::after(1000);
        let lease = before.give(&device("disk"));
        let mut after = DeviceLeases::<()>::after(2000);
        assert_eq!(after.worth(&device("disk"), A, lease, false), LeaseEntitlement::Nothing);
        after.give(&device("disk"));
        assert_eq!(after.worth(&device("disk"), B, lease, false), LeaseEntitlement::Stale);
    }

    #[test]
    fn lease_of_another_device_is_refused_after_a_restart_in_any_sharing_order() {
        let mut before = DeviceLeases::<()>::after(1000);
        let names: Vec<String> = (0..200).map(|number| format!("disk{number}")).collect();
        let leases: Vec<u64> = names.iter().map(|name| before.give(&device(name))).collect();
        let mut after = DeviceLeases::<()>::after(2000);
        for (name, &lease) in names.iter().zip(&leases).rev() {
            assert_eq!(after.worth(&device(name), None, lease, false), LeaseEntitlement::Nothing, "{name}");
            let others = names.iter().filter(|other| *other != name);
            let wrong = others
                .filter(|other| after.worth(&device(other), None, lease, false) != LeaseEntitlement::Other)
                .count();
            assert_eq!(wrong, 0, "{name} opens another device");
        }
    }

    #[test]
    fn device_without_identity_is_known_while_the_exporter_or_its_replacement_lives() {
        let key = DeviceKey::of("1-1", None);
        let mut before = DeviceLeases::<()>::after(1000);
        let lease = before.give(&key);
        assert_eq!(before.worth(&key, A, lease, false), LeaseEntitlement::Nothing);
        let mut successor = DeviceLeases::<()>::after(2000);
        successor.keep(&key, lease);
        assert_eq!(successor.worth(&key, A, lease, false), LeaseEntitlement::Nothing);
        let mut fresh = DeviceLeases::<()>::after(2000);
        assert_eq!(fresh.worth(&key, A, lease, false), LeaseEntitlement::Other);
        assert_eq!(
            fresh.worth(&key, A, 0, false),
            LeaseEntitlement::Nothing,
            "who names no lease asks for the first time"
        );
    }

    #[test]
    fn old_lease_without_identity_is_known_to_the_replacement_only() {
        let (key, lease) = (device("disk"), 1_900_000_000_000);
        let mut fresh = DeviceLeases::<()>::after(1_900_000_100_000);
        assert_eq!(fresh.worth(&key, A, lease, false), LeaseEntitlement::Other);
        let mut successor = DeviceLeases::<()>::after(1_900_000_100_000);
        successor.keep(&key, lease);
        assert_eq!(successor.worth(&key, A, lease, false), LeaseEntitlement::Nothing);
        assert!(successor.give(&key) > lease);
        assert_eq!(successor.worth(&key, A, lease, false), LeaseEntitlement::Stale);
    }
}
