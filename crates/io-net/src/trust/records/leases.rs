//! What has to outlive the process of a device's leases: the highest number that was reserved, and who has the device.
//!
//! A file for each device, named by the device's id: the many devices of a laboratory do not wait for each other's. A
//! number is stored before it is given, so a number that was given is never given again, whatever the clock of this
//! machine says after a restart. It is stored in a file of its own ([`super::lease_count`]); this one has a number that
//! is far enough ahead to be written rarely, which counts where that file is lost, and for earlier versions.

use std::fs::File;

use farbus_control::identity::DeviceId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lease_count;
use crate::trust::state::folder::{HostFolder, StateError};

/// The largest file that is read: a name, a reason and a dozen numbers, with room for what later versions add.
const LEASE_BYTES_MAX: u64 = 64 << 10;

/// What is stored of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLease {
    /// The highest count that was reserved for a lease of the device.
    #[serde(default)]
    pub reserved: u64,
    /// What this version stored as `reserved`. If an earlier version has counted on since, the exact count is not that
    /// of the latest lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// The lease that a host requested and has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<StoredLease>,
    /// Set if a host moves the device's disk to its own machine, or has moved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retirement: Option<DiskRetirement>,
    /// Leases ahead of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bookings: Vec<StoredBooking>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A disk that a host moves to its own machine, or has moved: its contents here are or will be old.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRetirement {
    /// The host by what it proved: a key, a user, an address.
    pub by: String,
    /// The host, by its name here.
    pub host: String,
    /// When the host said it first: RFC 3339, UTC, by this machine's clock.
    pub since: String,
    /// Whether the host's copy is the device. If not, it is not known yet which of the two is, and the host with the
    /// disk decides it.
    #[serde(default)]
    pub is_done: bool,
}

impl DiskRetirement {
    /// Why a host should not use the disk, and what to type; `None` if `by` may, to decide what becomes of it. The
    /// exporter calls the disk `name`.
    pub fn objection(&self, name: &str, by: &str) -> Option<String> {
        let Self { host, since, .. } = self;
        let next = format!("to use it all the same, type where it is shared: farbus swap --forget {name}");
        match self.is_done {
            true => Some(format!("'{name}' has old data: {host} moved it away ({since})\n  {next}")),
            false if self.by == by => None,
            false => Some(format!(
                "'{name}' may have old data, or a part of a copy: {host} was moving it ({since}) and has not said whether \
                 it did\n  attach it there, which tells; {next}"
            )),
        }
    }
}

/// How far the stored number is ahead of the latest lease's at most. Counts go on from the time of day in milliseconds:
/// this is about a minute of it.
const AHEAD_MAX: u64 = 1 << 16;

/// The longest text of a retirement, bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// A lease, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLease {
    /// The host, by its name here.
    pub host: String,
    /// Its fencing number.
    pub number: u64,
    /// The run of this machine in which the times since its start count ([`crate::store::boot_number`]).
    pub boot: u64,
    /// When it began, milliseconds since the machine was started.
    pub since_ms: u64,
    /// When it ends, milliseconds since the machine was started.
    pub until_ms: u64,
    /// When it ends, milliseconds of Unix time: counts if the machine was started again.
    pub until_unix_ms: u64,
    /// The priority of the request.
    #[serde(default)]
    pub priority: u8,
    /// Why the host leases the device, in its user's words; shown to others. `None` if it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A lease ahead of time, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBooking {
    /// The host, by its name here.
    pub host: String,
    /// When it begins, milliseconds of Unix time.
    pub from_unix_ms: u64,
    /// For how long, milliseconds.
    pub span_ms: u64,
    /// Why the host booked the device, in its user's words; shown to others. `None` if it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl KnownLease {
    /// What is stored of a device; nothing if it was never used.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, or is damaged. No number may be given then.
    pub fn load(folder: &HostFolder, device: DeviceId) -> Result<Self, StateError> {
        let known = Self::load_file(folder, device)?;
        Ok(Self { reserved: known.latest(folder, device)?, ..known })
    }

    /// The host that has moved the device's disk to its own machine, or is moving it.
    ///
    /// # Errors
    /// As [`KnownLease::load`].
    pub fn retirement(folder: &HostFolder, device: DeviceId) -> Result<Option<DiskRetirement>, StateError> {
        Ok(Self::load_file(folder, device)?.retirement)
    }

    fn load_file(folder: &HostFolder, device: DeviceId) -> Result<Self, StateError> {
        let name = file_of(device);
        let Some(bytes) = folder.read(&name, LEASE_BYTES_MAX, false)? else { return Ok(Self::default()) };
        serde_json::from_slice(&bytes).map_err(|error| {
            let next = "detach the device wherever it is attached, and type: rm";
            folder.trouble(&name, &format!("it is damaged: {error}\n  {next} {}", folder.file(&name).display()))
        })
    }

    /// Reserves a count that is higher than `latest` and than every count that was reserved before, durably. It is
    /// higher than `above`, too, unless there is no room to store how far ahead that is, as on a full disk: then it is
    /// one of those for which there was room before.
    ///
    /// # Errors
    /// [`StateError`]; nothing is reserved then.
    pub fn reserve(folder: &HostFolder, device: DeviceId, latest: u64, above: u64) -> Result<u64, StateError> {
        let next = |known: &Self| Ok::<u64, StateError>(known.latest(folder, device)?.max(latest).saturating_add(1));
        {
            // Mostly the lock of this device's count is enough: nobody who changes another file is waited for.
            let lock = lease_count::lock(folder, device)?;
            let known = Self::load_file(folder, device)?;
            let count = next(&known)?.max(above.saturating_add(1));
            if !known.is_behind(count) {
                lease_count::write(folder, device, &lock, count)?;
                return Ok(count);
            }
        }
        let lock = LeaseFileLock::of(folder, device)?;
        let before = Self::load_file(folder, device)?;
        let next = next(&before)?;
        let count = next.max(above.saturating_add(1));
        let write = |count: u64| lease_count::write(folder, device, &lock.device, count).map(|()| count);
        if !before.is_behind(count) {
            return write(count);
        }
        let reserved = before.reserved.max(count.saturating_add(AHEAD_MAX));
        let after = Self { reserved, ahead: Some(reserved), ..before.clone() };
        if before.ahead != Some(before.reserved) {
            // Before what makes it count: a number that was stored and not given is left out.
            write(count)?;
            return after.store(folder, device).map(|()| count);
        }
        match after.store(folder, device) {
            Ok(()) => write(count),
            Err(_) if !before.is_behind(next) => write(next),
            Err(error) => Err(error),
        }
    }

    /// Whether the number that is far enough ahead has to be stored anew before this count is given.
    fn is_behind(&self, count: u64) -> bool {
        count > self.reserved || self.ahead != Some(self.reserved)
    }

    /// The count of the latest lease.
    fn latest(&self, folder: &HostFolder, device: DeviceId) -> Result<u64, StateError> {
        let exact = lease_count::read(folder, device)?;
        // If this file was lost, or an earlier version counted on in it, the exact count is one of an earlier lease.
        let is_latest = self.ahead == Some(self.reserved);
        Ok(exact.map_or(self.reserved, |exact| if is_latest { exact } else { exact.max(self.reserved) }))
    }

    /// Stores the lease of a device, or that it has none.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn keep(folder: &HostFolder, device: DeviceId, lease: Option<StoredLease>) -> Result<(), StateError> {
        Self::change(folder, device, |known| known.lease = lease)
    }

    /// Stores that `host`, known by `by`, moves the device's disk to its own machine.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn note_moving(
        folder: &HostFolder,
        device: DeviceId,
        by: &str,
        host: &str,
        since: &str,
    ) -> Result<(), StateError> {
        let [by, host, since] = [by, host, since].map(shortened);
        Self::change(folder, device, |known| match &known.retirement {
            // What is done stays done; and what is said again began when it was said first.
            Some(before) if before.is_done || before.by == by => {}
            _ => known.retirement = Some(DiskRetirement { by, host, since, is_done: false }),
        })
    }

    /// Stores that the host which has moved the device's disk overwrites it: as [`KnownLease::note_moving`], from now
    /// on.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn note_overwritten(
        folder: &HostFolder,
        device: DeviceId,
        by: &str,
        host: &str,
        since: &str,
    ) -> Result<(), StateError> {
        let [by, host, since] = [by, host, since].map(shortened);
        Self::change(folder, device, |known| {
            if known.retirement.as_ref().is_none_or(|before| before.by == by) {
                known.retirement = Some(DiskRetirement { by, host, since, is_done: false });
            }
        })
    }

    /// Stores that `host` has moved the device's disk: from now on nobody uses it.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn note_moved(
        folder: &HostFolder,
        device: DeviceId,
        by: &str,
        host: &str,
        since: &str,
    ) -> Result<(), StateError> {
        let [by, host, since] = [by, host, since].map(shortened);
        Self::change(folder, device, |known| match &mut known.retirement {
            Some(before) if before.is_done || before.by == by => before.is_done = true,
            other => *other = Some(DiskRetirement { by, host, since, is_done: true }),
        })
    }

    /// Stores that the device's disk was not moved. Returns whether that holds: a disk that has moved has moved.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn note_stays(folder: &HostFolder, device: DeviceId) -> Result<bool, StateError> {
        Self::change(folder, device, |known| {
            known.retirement.take_if(|before| !before.is_done);
            known.retirement.is_none()
        })
    }

    /// Forgets on its owner's word that the device's disk was moved. Returns whether it was.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn forget_retirement(folder: &HostFolder, device: DeviceId) -> Result<bool, StateError> {
        Self::change(folder, device, |known| known.retirement.take().is_some())
    }

    /// Stores the leases ahead of time of a device.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn keep_bookings(
        folder: &HostFolder,
        device: DeviceId,
        bookings: Vec<StoredBooking>,
    ) -> Result<(), StateError> {
        Self::change(folder, device, |known| known.bookings = bookings)
    }

    fn change<T>(folder: &HostFolder, device: DeviceId, change: impl FnOnce(&mut Self) -> T) -> Result<T, StateError> {
        let _lock = LeaseFileLock::of(folder, device)?;
        let before = Self::load_file(folder, device)?;
        let mut after = before.clone();
        let result = change(&mut after);
        if after != before {
            after.store(folder, device)?;
        }
        Ok(result)
    }

    fn store(&self, folder: &HostFolder, device: DeviceId) -> Result<(), StateError> {
        let name = file_of(device);
        let mut text = serde_json::to_vec(self).map_err(|error| folder.trouble(&name, &error))?;
        text.push(b'\n');
        folder.write(&name, &text)
    }
}

/// Keeps other processes and threads from changing what is stored of one device, and earlier versions, which lock the
/// whole folder, from changing anything in it. The folder's comes first, as with them.
struct LeaseFileLock {
    /// The file of the device's count.
    device: File,
    _folder: File,
}

impl LeaseFileLock {
    fn of(folder: &HostFolder, device: DeviceId) -> Result<Self, StateError> {
        let _folder = folder.lock_shared()?;
        Ok(Self { device: lease_count::lock(folder, device)?, _folder })
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

fn file_of(device: DeviceId) -> String {
    format!("lease-{device}.json")
}

/// The device whose file is called so; `None` for other files.
pub(in crate::trust) fn device_of_file(name: &str) -> Option<DeviceId> {
    name.strip_prefix("lease-")?.strip_suffix(".json")?.parse().ok()
}

#[cfg(test)]
pub(in crate::trust) mod tests {
    use super::*;
    use crate::trust::random_device_id;
    use std::fs;

    pub struct LeaseScratchFolder(pub HostFolder);

    impl LeaseScratchFolder {
        pub fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farbus-leases-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(HostFolder::at(path))
        }
    }

    impl Drop for LeaseScratchFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn reserved_count_is_higher_than_every_earlier_one_even_if_the_clock_was_set_back() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("mark");
        let (one, other) = (random_device_id(), random_device_id());
        assert_eq!(KnownLease::reserve(folder, one, 0, 1_900_000).unwrap(), 1_900_001);
        assert_eq!(
            KnownLease::reserve(folder, one, 0, 5).unwrap(),
            1_900_002,
            "another process, whose clock is behind"
        );
        assert_eq!(KnownLease::reserve(folder, other, 0, 5).unwrap(), 6, "each device has its own");
        assert_eq!(KnownLease::load(folder, one).unwrap().reserved, 1_900_002);
    }

    #[test]
    fn latest_count_is_exact_while_the_file_is_there_and_never_too_low_without_it() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("exact");
        let device = random_device_id();
        let (reserve, latest) = (
            |above| KnownLease::reserve(folder, device, 0, above).unwrap(),
            || KnownLease::load(folder, device).unwrap().reserved,
        );
        let file = folder.file(&file_of(device));
        assert_eq!((reserve(1000), latest()), (1001, 1001));
        let stored = fs::read(&file).unwrap();
        assert_eq!((reserve(5), reserve(5), latest()), (1002, 1003, 1003));
        assert_eq!(fs::read(&file).unwrap(), stored, "it is replaced rarely");
        assert_eq!((reserve(1_000_000), latest()), (1_000_001, 1_000_001), "another device's leases went ahead");

        // An earlier version reads the one file, counts on in it, and keeps what it does not know.
        let text = fs::read_to_string(&file).unwrap();
        let its: Value = serde_json::from_str(&text).unwrap();
        let ahead = its["reserved"].as_u64().unwrap();
        assert!(ahead > 1_000_001, "{text}");
        fs::write(&file, text.replacen(&ahead.to_string(), &(ahead + 1).to_string(), 1)).unwrap();
        assert_eq!((latest(), reserve(5), latest()), (ahead + 1, ahead + 2, ahead + 2));

        fs::remove_file(folder.file(&format!("count-{device}"))).unwrap();
        assert!(latest() >= ahead + 2, "{}", latest());
        let next = latest() + 1;
        assert_eq!((reserve(5), latest()), (next, next));
    }

    #[test]
    fn without_room_counts_go_on_as_far_as_there_was_room_for_and_are_then_refused() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("room");
        let device = random_device_id();
        let reserve = |latest, above| KnownLease::reserve(folder, device, latest, above);
        // As on a full disk: a file that would replace another cannot be made.
        let in_the_way = folder.file(&format!("{}.new", file_of(device)));
        folder.make().unwrap();
        fs::create_dir(&in_the_way).unwrap();
        assert!(reserve(0, 1000).is_err() && reserve(0, 1000).is_err(), "there never was room");
        fs::remove_dir(&in_the_way).unwrap();
        let first = reserve(0, 1000).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        assert_eq!(reserve(0, 1_000_000).unwrap(), first + 1, "further than there was room for is not possible");
        assert_eq!(reserve(first + 5, 1_000_000).unwrap(), first + 6, "later than its latest is");
        assert_eq!(KnownLease::load(folder, device).unwrap().reserved, first + 6);
        let last = first + AHEAD_MAX;
        assert_eq!(reserve(last - 1, 5).unwrap(), last);
        assert!(reserve(0, 5).is_err(), "all that were reserved are used");
        assert_eq!(KnownLease::load(folder, device).unwrap().reserved, last);
        fs::remove_dir(&in_the_way).unwrap();
        assert_eq!(reserve(0, 5).unwrap(), last + 1, "there is room again");
    }

    #[test]
    fn lease_is_kept_beside_what_a_later_version_stored() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("kept");
        let device = random_device_id();
        KnownLease::reserve(folder, device, 0, 1).unwrap();
        let file = folder.file(&file_of(device));
        fs::write(&file, r#"{"reserved":7,"of_later":[1]}"#).unwrap();
        let lease = StoredLease {
            host: "desk".into(),
            number: 8,
            boot: 1,
            since_ms: 2,
            until_ms: 3,
            until_unix_ms: 4,
            priority: 0,
            reason: None,
        };
        KnownLease::keep(folder, device, Some(lease.clone())).unwrap();
        let known = KnownLease::load(folder, device).unwrap();
        assert_eq!((known.reserved, known.lease), (7, Some(lease)));
        assert!(fs::read_to_string(&file).unwrap().contains(r#""of_later":[1]"#));
        KnownLease::keep(folder, device, None).unwrap();
        assert_eq!(KnownLease::load(folder, device).unwrap().lease, None);
    }

    #[test]
    fn a_disk_that_moves_is_kept_from_others_until_its_host_or_its_owner_decides() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("moved");
        let device = random_device_id();
        let why = |by: &str| {
            let known = KnownLease::load(folder, device).unwrap();
            known.retirement.and_then(|retirement| retirement.objection("disk", by))
        };
        let moving = |by: &str| KnownLease::note_moving(folder, device, by, "desk", "today").unwrap();
        moving("key 1");
        assert_eq!(why("key 1"), None, "who moves it decides");
        assert!(why("key 2").unwrap().contains("has not said whether it did"));
        assert!(KnownLease::note_stays(folder, device).unwrap());
        assert_eq!(why("key 2"), None);
        moving("key 1");
        for _ in 0..2 {
            KnownLease::note_moved(folder, device, "key 1", "desk", "later").unwrap();
            assert!(!KnownLease::note_stays(folder, device).unwrap(), "it cannot be undone by a late word");
            moving("key 2");
            for by in ["key 1", "key 2"] {
                let why = why(by).unwrap();
                assert!(why.contains("desk moved it") && why.contains("today"), "{why}");
                assert!(why.contains("farbus swap --forget disk"), "{why}");
            }
        }
        assert_eq!(KnownLease::reserve(folder, device, 0, 1).unwrap(), 2, "leases go on beside it");
        assert!(KnownLease::forget_retirement(folder, device).unwrap());
        assert!(!KnownLease::forget_retirement(folder, device).unwrap());
        assert_eq!(why("key 2"), None);
    }

    #[test]
    fn texts_of_a_retirement_are_bounded() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("bounded");
        let device = random_device_id();
        let long = "ä".repeat(100_000);
        KnownLease::note_moving(folder, device, &long, &long, &long).unwrap();
        let kept = KnownLease::load(folder, device).unwrap().retirement.unwrap();
        assert_eq!([kept.by.len(), kept.host.len(), kept.since.len()], [TEXT_BYTES_MAX; 3]);
    }

    #[test]
    fn first_counts_of_many_devices_are_stored_beside_each_other() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("first");
        let devices: Vec<_> = (0..400).map(|_| random_device_id()).collect();
        std::thread::scope(|scope| {
            for part in devices.chunks(25) {
                scope.spawn(move || {
                    part.iter().for_each(|&device| {
                        assert_eq!(KnownLease::reserve(folder, device, 0, 7).unwrap(), 8);
                        KnownLease::note_moving(folder, device, "key", "desk", "today").unwrap();
                    })
                });
            }
        });
        for device in devices {
            let known = KnownLease::load(folder, device).unwrap();
            assert!(known.reserved == 8 && known.retirement.is_some(), "{known:?}");
        }
    }

    #[test]
    fn damaged_or_huge_file_gives_no_number() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("damaged");
        let device = random_device_id();
        KnownLease::reserve(folder, device, 0, 1).unwrap();
        let file = folder.file(&file_of(device));
        for content in ["{".to_owned(), " ".repeat(70_000), r#"{"reserved":-1}"#.to_owned()] {
            fs::write(&file, &content).unwrap();
            assert!(KnownLease::reserve(folder, device, 0, 1).is_err(), "{}", content.len());
            assert_eq!(fs::read_to_string(&file).unwrap(), content, "and is not overwritten");
        }
    }
}
