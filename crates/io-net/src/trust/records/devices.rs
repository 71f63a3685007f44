//! The devices that this host has offered: each one's id, and the evidence by which it is recognised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use farbus_control::identity::DeviceId;
use farbus_model::ExportIdentity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::trust::keys::random::fill_random;
use crate::trust::limits;
use crate::trust::state::folder::{FileStamp, HostFolder, ReadFile, StateError};

const DEVICES_FILE: &str = "devices.json";

/// A random id, which no other device has.
pub fn random_device_id() -> DeviceId {
    let mut bytes = [0; 16];
    fill_random(&mut bytes);
    DeviceId::from_random(bytes)
}
/// A device that was offered. Fields that a later version has added are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDevice {
    /// The device's id.
    pub id: DeviceId,
    /// How many media it has had before this one.
    pub generation: u64,
    /// The evidence of its medium; `None` if the medium was retired: no medium is this device until its owner assigns
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// Which part of the medium it is, and how it is used; if empty, the whole medium, for reading and writing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub view: String,
    /// Its last name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whether the owner gave it that name; otherwise farbus did.
    #[serde(default)]
    pub is_named: bool,
    /// When it was last offered, RFC 3339.
    pub seen: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl KnownDevice {
    /// A device that is offered for the first time.
    pub fn new(medium: &str, view: &str, seen: String) -> Self {
        Self {
            id: random_device_id(),
            generation: 0,
            medium: Some(medium.to_owned()),
            view: view.to_owned(),
            name: String::new(),
            is_named: false,
            seen,
            rest: Map::new(),
        }
    }

    /// Returns the id and generation as one.
    pub fn identity(&self) -> ExportIdentity {
        ExportIdentity { id: self.id.number(), generation: self.generation }
    }
}

/// The list of all known devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDeviceList {
    #[serde(default)]
    devices: Vec<KnownDevice>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl KnownDeviceList {
    /// Reads the list in `folder`; it is empty if no device was ever offered.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, other users may change it, or it is damaged. The caller must not
    /// recognise any device then.
    pub fn load(folder: &HostFolder) -> Result<Self, StateError> {
        let Some(bytes) = folder.read(DEVICES_FILE, limits::DEVICES_BYTES_MAX, true)? else {
            return Ok(Self::default());
        };
        Self::parse(folder, &bytes)
    }

    fn parse(folder: &HostFolder, bytes: &[u8]) -> Result<Self, StateError> {
        let all: Self = serde_json::from_slice(bytes)
            .map_err(|error| folder.trouble(DEVICES_FILE, &DeviceListDamage(error.to_string())))?;
        match all.has_doubles() {
            true => {
                Err(folder.trouble(DEVICES_FILE, &DeviceListDamage("two devices have one id, or one medium".into())))
            }
            false => Ok(all),
        }
    }

    /// Changes the list in `folder`, with a lock against other processes.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn change<T>(folder: &HostFolder, change: impl FnOnce(&mut Self) -> T) -> Result<T, StateError> {
        let _lock = folder.lock()?;
        let before = Self::load(folder)?;
        let mut after = before.clone();
        let result = change(&mut after);
        if after != before {
            let mut text = serde_json::to_vec_pretty(&after).map_err(|error| folder.trouble(DEVICES_FILE, &error))?;
            text.push(b'\n');
            folder.write(DEVICES_FILE, &text)?;
        }
        Ok(result)
    }

    fn has_doubles(&self) -> bool {
        let (mut ids, mut media) = (BTreeSet::new(), BTreeSet::new());
        let is_double = |device: &KnownDevice| {
            let medium = device.medium.as_ref().map(|medium| (medium.clone(), device.view.clone()));
            !ids.insert(device.id) || medium.is_some_and(|medium| !media.insert(medium))
        };
        self.devices.iter().any(is_double)
    }

    /// Finds a device by its evidence.
    pub fn find(&self, medium: &str, view: &str) -> Option<&KnownDevice> {
        self.devices.iter().find(|device| device.medium.as_deref() == Some(medium) && device.view == view)
    }

    /// Finds a device by its id.
    pub fn of_id(&self, id: DeviceId) -> Option<&KnownDevice> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// Finds a device by its id, to change it.
    pub fn of_id_mut(&mut self, id: DeviceId) -> Option<&mut KnownDevice> {
        self.devices.iter_mut().find(|device| device.id == id)
    }

    /// All devices in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &KnownDevice> {
        self.devices.iter()
    }

    /// Adds a device. If there are [`limits::DEVICES_MAX`], forgets one without a medium, or the one that was last
    /// offered longest ago.
    pub fn add(&mut self, device: KnownDevice) -> ExportIdentity {
        let identity = device.identity();
        if self.devices.len() >= limits::DEVICES_MAX {
            let oldest = |device: &(usize, &KnownDevice)| (device.1.medium.is_some(), device.1.seen.clone());
            if let Some((at, _)) = self.devices.iter().enumerate().min_by_key(oldest) {
                self.devices.remove(at);
            }
        }
        self.devices.push(device);
        identity
    }

    /// Assigns `medium` to the device with this id and removes it from any other device; sets the device's generation.
    /// Returns whether there is such a device.
    pub fn give(&mut self, id: DeviceId, generation: u64, medium: &str, view: &str) -> bool {
        if self.of_id(id).is_none() {
            return false;
        }
        for device in &mut self.devices {
            if device.id == id {
                device.generation = generation;
                (device.medium, device.view) = (Some(medium.to_owned()), view.to_owned());
            } else if device.medium.as_deref() == Some(medium) && device.view == view {
                device.medium = None;
            }
        }
        true
    }

    /// Removes `medium` from all devices, whatever part of it they are.
    pub fn retire(&mut self, medium: &str) {
        let on_it = self.devices.iter_mut().filter(|device| device.medium.as_deref() == Some(medium));
        on_it.for_each(|device| device.medium = None);
    }
}

/// Reads the list, and reads it again only when its file has changed: one who asks for each of a thousand devices does
/// not parse a thousand lists.
#[derive(Debug, Default)]
pub struct DevicesReader(Mutex<Option<(FileStamp, Arc<KnownDeviceList>)>>);

impl DevicesReader {
    /// The list in `folder`, which is the same at each call.
    ///
    /// # Errors
    /// As [`KnownDeviceList::load`].
    pub fn load(&self, folder: &HostFolder) -> Result<Arc<KnownDeviceList>, StateError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = known.as_ref().map(|(stamp, _)| *stamp);
        match folder.read_unless(DEVICES_FILE, limits::DEVICES_BYTES_MAX, true, stamp)? {
            ReadFile::Missing => Ok(Arc::default()),
            ReadFile::Same => Ok(known.as_ref().map(|(_, all)| Arc::clone(all)).unwrap_or_default()),
            ReadFile::Read(bytes, stamp) => {
                let all = Arc::new(KnownDeviceList::parse(folder, &bytes)?);
                *known = stamp.map(|stamp| (stamp, Arc::clone(&all)));
                Ok(all)
            }
        }
    }
}

/// The file is not what farbus wrote: what is wrong, and what to type.
struct DeviceListDamage(String);

impl fmt::Display for DeviceListDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = "put a backup of it in its place, or move it away: then every device has a new identity";
        write!(f, "it is damaged: {}\n  {next} (farbus identity adopt)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Scratch(HostFolder);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-devices-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            Self(HostFolder::at(std::env::temp_dir().join(name)))
        }

        fn write(&self, text: &str) {
            self.0.make().unwrap();
            let path = self.0.file(DEVICES_FILE);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }

        fn add(&self, medium: &str, view: &str) -> DeviceId {
            let device = KnownDevice::new(medium, view, "2026".into());
            DeviceId::of(KnownDeviceList::change(&self.0, |all| all.add(device)).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn device_is_recognised_by_medium_and_part_only() {
        let scratch = Scratch::new();
        assert_eq!(KnownDeviceList::load(&scratch.0).unwrap(), KnownDeviceList::default());
        let (whole, part) = (scratch.add("file a", ""), scratch.add("file a", "ro"));
        let all = KnownDeviceList::load(&scratch.0).unwrap();
        let found = |medium: &str, view: &str| all.find(medium, view).map(|device| device.id);
        assert_eq!((found("file a", ""), found("file a", "ro"), found("file b", "")), (Some(whole), Some(part), None));
        assert_eq!(all.of_id(whole).unwrap().identity().generation, 0);
        let mode = fs::metadata(scratch.0.file(DEVICES_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn medium_belongs_to_the_device_it_was_given_to_last_until_retired() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.add("file a", ""), scratch.add("file b", ""));
        let part = scratch.add("file a", "ro");
        KnownDeviceList::change(&scratch.0, |all| {
            assert!(all.give(a, 1, "file b", ""));
            all.retire("file a");
            assert!(!all.give(random_device_id(), 1, "file c", ""));
        })
        .unwrap();
        let all = KnownDeviceList::load(&scratch.0).unwrap();
        let known = all.find("file b", "").unwrap();
        assert_eq!((known.id, known.generation), (a, 1));
        assert_eq!((all.find("file a", ""), all.find("file a", "ro")), (None, None));
        assert_eq!((&all.of_id(b).unwrap().medium, &all.of_id(part).unwrap().medium), (&None, &None));
    }

    #[test]
    fn fields_of_a_later_version_are_kept() {
        let scratch = Scratch::new();
        let id = random_device_id();
        scratch.write(&format!(
            "{{\"devices\":[{{\"id\":\"{id}\",\"generation\":3,\"seen\":\"2026\",\"later\":[1]}}],\"also\":{{}}}}"
        ));
        scratch.add("file a", "");
        let text = fs::read_to_string(scratch.0.file(DEVICES_FILE)).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["devices"][0]["later"], &value["also"]), (&serde_json::json!([1]), &serde_json::json!({})));
        assert_eq!(value["devices"][0]["generation"], 3);
    }

    #[test]
    fn a_damaged_file_is_refused_and_left_as_it_is() {
        let scratch = Scratch::new();
        let id = random_device_id();
        let entry = |id: &str, medium: &str| {
            format!("{{\"id\":\"{id}\",\"generation\":0,\"seen\":\"2026\",\"medium\":\"{medium}\"}}")
        };
        let (one, other) = (id.to_string(), random_device_id().to_string());
        for text in [
            "",
            "{",
            "[]",
            "{\"devices\":[{\"id\":\"0\"}]}",
            &format!("{{\"devices\":[{}]}}", entry(&"0".repeat(32), "a")),
            &format!("{{\"devices\":[{},{}]}}", entry(&one, "a"), entry(&one, "b")),
            &format!("{{\"devices\":[{},{}]}}", entry(&one, "a"), entry(&other, "a")),
        ] {
            scratch.write(text);
            let error = KnownDeviceList::change(&scratch.0, |all| all.retire("a")).unwrap_err();
            assert!(error.what.contains("damaged"), "{error}");
            assert_eq!(fs::read_to_string(scratch.0.file(DEVICES_FILE)).unwrap(), text);
        }
        scratch.write(&format!("{{\"devices\":[{}]}}", entry(&one, "a")));
        fs::set_permissions(scratch.0.file(DEVICES_FILE), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(KnownDeviceList::load(&scratch.0).unwrap_err().what.contains("chmod 600"));
    }

    #[test]
    fn list_is_parsed_again_only_after_its_file_has_changed() {
        let (scratch, reader) = (Scratch::new(), DevicesReader::default());
        assert_eq!(*reader.load(&scratch.0).unwrap(), KnownDeviceList::default());
        let id = scratch.add("file a", "");
        let fresh = [reader.load(&scratch.0).unwrap(), reader.load(&scratch.0).unwrap()];
        assert!(!Arc::ptr_eq(&fresh[0], &fresh[1]), "a file that has just changed is read again");
        let path = scratch.0.file(DEVICES_FILE);
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let settled = [reader.load(&scratch.0).unwrap(), reader.load(&scratch.0).unwrap()];
        assert!(Arc::ptr_eq(&settled[0], &settled[1]) && settled[0].of_id(id).is_some());
        let later = scratch.add("file b", "");
        assert!(reader.load(&scratch.0).unwrap().of_id(later).is_some());
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(reader.load(&scratch.0).unwrap().iter().count(), 2);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(reader.load(&scratch.0).is_err(), "what others may change is refused, parsed or not");
    }

    #[test]
    fn device_list_is_bounded_and_drops_the_longest_unoffered_first() {
        let mut all = KnownDeviceList::default();
        let device = |at: usize| KnownDevice::new(&format!("file {at}"), "", format!("{at:08}"));
        (0..limits::DEVICES_MAX).for_each(|at| {
            let _ = all.add(device(at + 1));
        });
        all.retire("file 7");
        all.add(device(10_000));
        assert_eq!(all.iter().count(), limits::DEVICES_MAX);
        assert!(all.iter().all(|device| device.medium.is_some()) && all.find("file 1", "").is_some());
        all.add(device(10_001));
        assert_eq!((all.find("file 1", ""), all.iter().count()), (None, limits::DEVICES_MAX));
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_a_beginning_stands_for_it() {
        let id: DeviceId = "0123456789abcdef0011223344556677".parse().unwrap();
        assert_eq!(
            (id.to_string().as_str(), id.short().as_str()),
            ("0123456789abcdef0011223344556677", "0123456789ab")
        );
        assert!(id.begins_with("012345") && id.begins_with("0123456789ABCDEF0011223344556677"));
        assert!(!id.begins_with("01234") && !id.begins_with("012346") && !id.begins_with(""));
        for wrong in ["", "0123", &"0".repeat(32), &"g".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert!(wrong.parse::<DeviceId>().is_err(), "{wrong}");
        }
    }
}
