//! Leases that outlive this process: the numbers by which late users are refused, and who has which device until when.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{since_boot, unix_ms};
use farbus_io_net::store::boot_number;
use farbus_io_net::trust::{DeviceId, HostFolder, KnownLease, StoredBooking, StoredLease};
use farbus_model::Instant;
use farbus_session::claims::bookings::{Booking, BookingCalendar};
use farbus_session::claims::lease::{Lease, LeaseHost};

use crate::broker::SystemAccess;

/// Where the leases of devices with a lasting identity are kept. Without a folder they end with the process.
#[derive(Debug, Default)]
pub struct LeaseStore {
    folder: OnceLock<HostFolder>,
    /// Who writes in that folder: this process, unless somebody else is named.
    system: OnceLock<SystemAccess>,
    /// Counts that are being reserved for who uses a device next. One that nobody fetches is a number left out.
    ahead: Mutex<BTreeMap<DeviceId, Receiver<io::Result<u64>>>>,
}

/// For how many devices at a time a count is reserved ahead; further ones get theirs when they are used.
const AHEAD_MAX: usize = 1024;

impl LeaseStore {
    /// Keeps leases in this folder from now on. Returns whether they were kept nowhere before.
    pub fn keep_in(&self, folder: HostFolder) -> bool {
        self.folder.set(folder).is_ok()
    }

    /// Has leases written by `system` from now on.
    pub fn write_through(&self, system: SystemAccess) {
        // Only the first call has an effect, as with the folder.
        let _ = self.system.set(system);
    }

    /// Where leases are kept; `None` if nothing is kept.
    pub fn folder(&self) -> Option<&HostFolder> {
        self.folder.get()
    }

    /// Who writes, and where; `None` if nothing is kept.
    fn writer(&self) -> Option<(SystemAccess, HostFolder)> {
        Some((self.system.get().cloned().unwrap_or_default(), self.folder.get()?.clone()))
    }

    /// Begins to reserve a count, as [`KnownLease::reserve`] does, for the next lease of a device, which
    /// [`LeaseStore::reserve`] returns: storing takes as long as the disk, and a device that is handed over waits for
    /// its successor meanwhile anyway (requirement N10: it is missed as shortly as can be).
    pub fn reserve_ahead(&self, device: DeviceId, latest: u64, above: u64) {
        let Some((system, folder)) = self.writer() else { return };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.len() >= AHEAD_MAX || ahead.contains_key(&device) {
            return;
        }
        let (tell, outcome) = sync_channel(1);
        // Nobody may fetch it.
        let reserve = move || drop(tell.send(system.reserve_lease(&folder, device, latest, above)));
        // Without a further thread it is reserved when it is needed.
        if thread::Builder::new().name("lease-ahead".into()).spawn(reserve).is_ok() {
            ahead.insert(device, outcome);
        }
    }

    /// Reserves a count for the next lease of a device, durably, as [`KnownLease::reserve`] does, or returns the one
    /// that was reserved ahead; `None` if nothing is kept.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn reserve(&self, device: DeviceId, latest: u64, above: u64) -> io::Result<Option<u64>> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
        let ahead = ahead.and_then(|reserved| reserved.recv().ok()).and_then(Result::ok);
        if let Some(count) = ahead.filter(|count| *count > latest) {
            return Ok(Some(count));
        }
        let reserve =
            |(system, folder): (SystemAccess, HostFolder)| system.reserve_lease(&folder, device, latest, above);
        self.writer().map(reserve).transpose()
    }

    /// Keeps the lease of a device, or that it has none.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn keep(&self, device: DeviceId, lease: Option<&Lease>, now: Instant) -> io::Result<()> {
        let Some((system, folder)) = self.writer() else { return Ok(()) };
        system.keep_lease(&folder, device, lease.map(|lease| stored(lease, now)))
    }

    /// Keeps the leases ahead of time of a device.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn keep_bookings(&self, device: DeviceId, bookings: &BookingCalendar) -> io::Result<()> {
        let Some((system, folder)) = self.writer() else { return Ok(()) };
        let stored = |booking: &Booking| StoredBooking {
            host: booking.who.name().to_owned(),
            from_unix_ms: booking.from_ms,
            span_ms: booking.span.as_millis() as u64,
            reason: booking.reason.clone(),
        };
        system.keep_bookings(&folder, device, bookings.iter().map(stored).collect())
    }

    /// The highest count that was reserved for a device, the lease that was kept, and those ahead of time.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn load(&self, device: DeviceId, now: Instant) -> io::Result<(u64, Option<Lease>, BookingCalendar)> {
        let Some(folder) = self.folder.get() else { return Ok((0, None, BookingCalendar::default())) };
        let known = KnownLease::load(folder, device).map_err(io::Error::other)?;
        let booking = |stored: StoredBooking| Booking {
            who: LeaseHost::paired(&stored.host),
            from_ms: stored.from_unix_ms,
            span: Duration::from_millis(stored.span_ms),
            reason: stored.reason,
        };
        let bookings = BookingCalendar::restore(known.bookings.into_iter().map(booking).collect());
        Ok((known.reserved, known.lease.map(|lease| restored(lease, now)), bookings))
    }
}

fn stored(lease: &Lease, now: Instant) -> StoredLease {
    let ms = |span: Duration| span.as_millis() as u64;
    let booted_ms = ms(since_boot());
    StoredLease {
        host: lease.who.name().to_owned(),
        number: lease.number,
        boot: boot_number(),
        since_ms: booted_ms.saturating_sub(ms(now - lease.since)),
        until_ms: booted_ms + ms(lease.until - now),
        until_unix_ms: unix_ms() + ms(lease.until - now),
        priority: lease.priority,
        reason: lease.reason.clone(),
    }
}

/// A lease of the process before this one, or from before this machine was started: then the time of day says what is
/// left of it, and never more than there was.
fn restored(stored: StoredLease, now: Instant) -> Lease {
    let booted_ms = since_boot().as_millis() as u64;
    let span_ms = stored.until_ms.saturating_sub(stored.since_ms);
    let left_ms = match stored.boot == boot_number() {
        true => stored.until_ms.saturating_sub(booted_ms),
        false => stored.until_unix_ms.saturating_sub(unix_ms()),
    };
    let left_ms = left_ms.min(span_ms);
    let used_ns = (span_ms - left_ms).saturating_mul(1_000_000);
    Lease {
        who: LeaseHost::paired(&stored.host),
        // The clock of this process began with the process; a moment before that is its beginning.
        since: Instant::from_nanos(now.as_nanos().saturating_sub(used_ns)),
        until: now + Duration::from_millis(left_ms),
        priority: stored.priority,
        reason: stored.reason,
        number: stored.number,
        is_preempted: false,
        to_confirm: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_net::trust::random_device_id;

    fn at_s(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    fn lease() -> Lease {
        Lease {
            who: LeaseHost::paired("desk"),
            since: at_s(100),
            until: at_s(700),
            priority: 2,
            reason: Some("a test".into()),
            number: 9,
            is_preempted: false,
            to_confirm: None,
        }
    }

    fn left_s(stored: StoredLease) -> u64 {
        let now = at_s(1000);
        (restored(stored, now).until - now).as_secs_f64().round() as u64
    }

    #[test]
    fn count_that_was_reserved_ahead_is_stored_before_it_is_given_and_given_once() {
        let folder = HostFolder::at(std::env::temp_dir().join(format!("farbus-ahead-{}", std::process::id())));
        let (store, device) = (LeaseStore::default(), random_device_id());
        store.reserve_ahead(device, 0, 5);
        assert_eq!(store.reserve(device, 0, 5).unwrap(), None, "nothing is kept, ahead or not");
        assert!(store.keep_in(folder.clone()));
        store.reserve_ahead(device, 0, 100);
        store.reserve_ahead(device, 0, 200);
        let count = store.reserve(device, 0, 100).unwrap();
        assert_eq!(count, Some(101));
        assert_eq!(store.load(device, at_s(0)).unwrap().0, 101);
        assert_eq!(store.reserve(device, 0, 100).unwrap(), Some(102), "the next is another");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn restored_lease_ends_when_it_was_to_end() {
        let now = at_s(400);
        let mut again = restored(stored(&lease(), now), now);
        let drift = again.until - lease().until.min(again.until) + (lease().until - again.until.min(lease().until));
        assert!(drift < Duration::from_secs(5), "{drift:?}");
        (again.until, again.since) = (lease().until, lease().since);
        assert_eq!(again, lease());
    }

    #[test]
    fn after_a_start_of_the_machine_a_lease_is_not_longer_than_it_was() {
        let kept = stored(&lease(), at_s(400));
        let other_boot = StoredLease { boot: kept.boot ^ 1, ..kept.clone() };
        assert_eq!(left_s(other_boot.clone()), 300, "the time of day counts");
        let set_back = StoredLease { until_unix_ms: kept.until_unix_ms + 86_400_000, ..other_boot.clone() };
        assert_eq!(left_s(set_back), 600, "a clock that was set back by a day");
        let set_ahead = StoredLease { until_unix_ms: kept.until_unix_ms - 86_400_000, ..other_boot };
        assert_eq!(left_s(set_ahead), 0);
        let same_boot = StoredLease { until_unix_ms: 0, ..kept };
        assert_eq!(left_s(same_boot), 300, "while the machine runs, the clock does not matter");
    }
}
