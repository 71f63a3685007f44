//! Stores the leases of shared devices for the confined process, and checks what that says of them: a process that was
//! taken over stores no lease that could not have been granted.
//!
//! | of a lease or booking | must hold, or it is stored already |
//! |---|---|
//! | device | identified here: the caller checks it |
//! | host | paired |
//! | time | within the limits of leases and bookings ([`SPAN_MAX`], [`AHEAD_MAX`]) |
//! | number | its count was reserved |
//! | count | at most [`COUNT_AHEAD_MAX`] ahead of the clock: none is used up that this host needs later |

use std::io;
use std::time::Duration;

use farbus_io_net::link::{since_boot, unix_ms};
use farbus_io_net::trust::{DeviceId, HostFolder, KnownLease, PairedHostList, StoredBooking, StoredLease};
use farbus_session::claims::bookings::{AHEAD_MAX, BOOKINGS_MAX};
use farbus_session::claims::lease::SPAN_MAX;
use farbus_session::leases::count_of;

/// How far a count may be ahead of this machine's clock and of the counts before it, milliseconds: counts go on from
/// the time of day in milliseconds.
const COUNT_AHEAD_MAX: u64 = 24 * 3600 * 1000;
/// The longest reason of a lease, bytes.
const REASON_BYTES_MAX: usize = 1024;
/// How much later the broker reads a clock than the process that asks did, at most.
const LATENESS: Duration = Duration::from_secs(60);

fn in_ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// The checks of a broker, and what they need.
pub(super) struct LeaseChecks {
    /// When it began, by the clock at that time: counts go on from there although the clock was set back since.
    began_unix_ms: u64,
}

impl LeaseChecks {
    /// Of a broker that begins now.
    pub fn begin() -> Self {
        Self { began_unix_ms: unix_ms() }
    }

    /// Reserves a count as [`KnownLease::reserve`] does.
    ///
    /// # Errors
    /// `latest` is a count that nobody can have reserved, or the count cannot be stored.
    pub fn reserve(&self, folder: &HostFolder, device: DeviceId, latest: u64, above: u64) -> io::Result<u64> {
        let stored = KnownLease::load(folder, device).map_err(io::Error::other)?.reserved;
        let highest = self.began_unix_ms.max(unix_ms()).max(stored).saturating_add(COUNT_AHEAD_MAX);
        if latest > highest {
            return Err(io::Error::other(format!("no lease of {device} has the number {latest}")));
        }
        KnownLease::reserve(folder, device, latest, above.min(highest)).map_err(io::Error::other)
    }

    /// Stores the lease of a device, or that it has none.
    ///
    /// # Errors
    /// It could not have been granted, or it cannot be stored.
    pub fn keep(&self, folder: &HostFolder, device: DeviceId, lease: Option<StoredLease>) -> io::Result<()> {
        if let Some(lease) = &lease {
            let known = KnownLease::load(folder, device).map_err(io::Error::other)?;
            let is_its_hosts = known.lease.as_ref().is_some_and(|stored| stored.host == lease.host);
            let is_in_time = lease.until_ms <= in_ms(since_boot() + SPAN_MAX + LATENESS)
                && lease.until_unix_ms <= unix_ms().saturating_add(in_ms(SPAN_MAX + LATENESS));
            let is_possible = (is_its_hosts || is_paired(folder, &lease.host)?)
                && is_in_time
                && count_of(lease.number) <= known.reserved
                && is_short(lease.reason.as_deref());
            if !is_possible {
                return Err(io::Error::other(format!("{} cannot have such a lease of {device}", lease.host)));
            }
        }
        KnownLease::keep(folder, device, lease).map_err(io::Error::other)
    }

    /// Stores the leases ahead of time of a device.
    ///
    /// # Errors
    /// One of them could not have been booked, or they cannot be stored.
    pub fn keep_bookings(&self, folder: &HostFolder, device: DeviceId, bookings: Vec<StoredBooking>) -> io::Result<()> {
        let known = KnownLease::load(folder, device).map_err(io::Error::other)?.bookings;
        let latest = unix_ms().saturating_add(in_ms(AHEAD_MAX + LATENESS));
        for booking in bookings.iter().filter(|booking| !known.contains(booking)) {
            let is_possible = is_paired(folder, &booking.host)?
                && booking.from_unix_ms <= latest
                && booking.span_ms <= in_ms(SPAN_MAX)
                && is_short(booking.reason.as_deref());
            if !is_possible {
                return Err(io::Error::other(format!("{} cannot have such a booking of {device}", booking.host)));
            }
        }
        if bookings.len() > BOOKINGS_MAX {
            return Err(io::Error::other(format!("{device} cannot have {} bookings", bookings.len())));
        }
        KnownLease::keep_bookings(folder, device, bookings).map_err(io::Error::other)
    }
}

fn is_short(reason: Option<&str>) -> bool {
    reason.is_none_or(|reason| reason.len() <= REASON_BYTES_MAX)
}

fn is_paired(folder: &HostFolder, host: &str) -> io::Result<bool> {
    let peers = PairedHostList::load(folder).map_err(io::Error::other)?;
    Ok(peers.find(host).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_net::store::boot_number;
    use farbus_io_net::trust::random_device_id;
    use farbus_io_net::trust::{Fingerprint, Grant, Peer};

    /// A folder of a host that is paired with `desk`.
    struct Scratch(HostFolder);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farbus-lease-checks-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            let folder = HostFolder::at(path);
            let desk = Peer {
                name: "desk".into(),
                fingerprint: Fingerprint::from_bytes([7; 32]),
                address: None,
                paired: String::new(),
                allow: Grant::default(),
                reserve_high: Grant::default(),
                bound: Default::default(),
            };
            PairedHostList::change(&folder, |peers| peers.add(desk).unwrap()).unwrap();
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.path());
        }
    }

    fn lease(host: &str, number: u64) -> StoredLease {
        let (booted_ms, span_ms) = (in_ms(since_boot()), 600_000);
        StoredLease {
            host: host.into(),
            number,
            boot: boot_number(),
            since_ms: booted_ms,
            until_ms: booted_ms + span_ms,
            until_unix_ms: unix_ms() + span_ms,
            priority: 0,
            reason: None,
        }
    }

    #[test]
    fn a_lease_is_stored_only_if_a_paired_host_could_have_it() {
        let (scratch, device) = (Scratch::new("lease"), random_device_id());
        let (folder, checks) = (&scratch.0, LeaseChecks::begin());
        let count = checks.reserve(folder, device, 0, unix_ms()).unwrap();
        let number = count << 20 | 5;
        let good = lease("desk", number);
        let month = in_ms(SPAN_MAX);
        let forged = [
            lease("rack", number),
            lease("desk", (count + 1) << 20),
            StoredLease { until_ms: good.until_ms + month, ..good.clone() },
            StoredLease { until_unix_ms: good.until_unix_ms + month, ..good.clone() },
            StoredLease { reason: Some("x".repeat(REASON_BYTES_MAX + 1)), ..good.clone() },
        ];
        for forged in forged {
            let why = checks.keep(folder, device, Some(forged.clone())).unwrap_err().to_string();
            assert!(why.contains("cannot have such a lease"), "{forged:?}: {why}");
            assert_eq!(KnownLease::load(folder, device).unwrap().lease, None);
        }
        checks.keep(folder, device, Some(good.clone())).unwrap();
        assert_eq!(KnownLease::load(folder, device).unwrap().lease, Some(good.clone()));
        PairedHostList::change(folder, |peers| peers.remove("desk")).unwrap();
        checks.keep(folder, device, Some(good)).expect("whose host was unpaired meanwhile is what it was");
        checks.keep(folder, device, None).unwrap();
        assert_eq!(KnownLease::load(folder, device).unwrap().lease, None);
    }

    #[test]
    fn a_booking_is_stored_only_if_a_paired_host_could_have_it() {
        let (scratch, device) = (Scratch::new("booking"), random_device_id());
        let (folder, checks) = (&scratch.0, LeaseChecks::begin());
        let good = StoredBooking { host: "desk".into(), from_unix_ms: unix_ms() + 1000, span_ms: 60_000, reason: None };
        let keep = |bookings| checks.keep_bookings(folder, device, bookings);
        let forged = [
            StoredBooking { host: "rack".into(), ..good.clone() },
            StoredBooking { from_unix_ms: good.from_unix_ms + 2 * in_ms(AHEAD_MAX), ..good.clone() },
            StoredBooking { span_ms: in_ms(SPAN_MAX) + 1, ..good.clone() },
        ];
        for forged in forged {
            assert!(keep(vec![good.clone(), forged.clone()]).is_err(), "{forged:?}");
        }
        assert!(keep(vec![good.clone(); BOOKINGS_MAX + 1]).is_err());
        keep(vec![good.clone()]).unwrap();
        assert_eq!(KnownLease::load(folder, device).unwrap().bookings, [good]);
    }

    #[test]
    fn counts_are_not_used_up_by_a_process_that_says_what_it_likes() {
        let (scratch, device) = (Scratch::new("count"), random_device_id());
        let (folder, checks) = (&scratch.0, LeaseChecks::begin());
        assert!(checks.reserve(folder, device, u64::MAX, 0).is_err());
        let count = checks.reserve(folder, device, 0, u64::MAX).unwrap();
        assert!(count <= unix_ms() + COUNT_AHEAD_MAX + 1, "{count}");
        assert_eq!(checks.reserve(folder, device, count, 0).unwrap(), count + 1, "it goes on from there");
    }
}
