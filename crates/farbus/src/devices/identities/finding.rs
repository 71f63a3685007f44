//! Finds the identity that belongs to evidence, and updates the list after swaps.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use farbus_io_linux::evidence::{DeviceEvidence, ProcessSecret, attachment_number};
use farbus_io_linux::store::FileStore;
use farbus_io_linux::usb::{PluggedDevice, UsbInventory};
use farbus_io_net::store::boot_number;
use farbus_io_net::trust::random_device_id;
use farbus_io_net::trust::{DeviceId, DevicesReader, HostFolder, KnownDevice, KnownDeviceList, StateError, timestamp};
use farbus_model::ExportIdentity;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::plugged::{KnownUsb, PluggedUsbEvidence};
use crate::devices::media_journal::{MovedDevice, SwapJournalFolder, SwapMedium};

/// The most devices that one process, or its broker, may add to the list: more than one host may use of it
/// ([`farbus_model::budget::DEVICES_MAX_DEFAULT`]), and fewer than the list holds, so that those seen last stay.
const NEW_MAX: usize = 1280;
/// The longest view, bytes. A view has a few numbers.
pub const VIEW_BYTES_MAX: usize = 256;
/// The bytes of a timestamp that give the day.
const DAY_BYTES: usize = 10;

/// The identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceIdentity {
    /// The device's id.
    pub id: DeviceId,
    /// The generation: which of the device's media this is.
    pub generation: u64,
    /// Whether the device has this identity after a restart, too.
    pub is_lasting: bool,
    /// Which attachment of its medium to this machine this is ([`attachment_number`]), if that is known.
    #[serde(default)]
    pub attachment: Option<u64>,
}

impl DeviceIdentity {
    /// A new identity, which is never found again.
    pub fn fresh() -> Self {
        Self { id: random_device_id(), generation: 0, is_lasting: false, attachment: None }
    }

    /// A number that changes when data that was written to the medium and not flushed may be lost: this machine was
    /// restarted, or the medium's device was taken away and came back.
    pub fn durability(self) -> u64 {
        durability_of(self.attachment)
    }

    /// The identity in the model's form.
    pub fn identity(self) -> ExportIdentity {
        ExportIdentity { id: self.id.number(), generation: self.generation }
    }

    fn lasting(identity: ExportIdentity) -> Self {
        Self { id: DeviceId::of(identity), generation: identity.generation, is_lasting: true, attachment: None }
    }
}

/// [`DeviceIdentity::durability`] of a medium with this number of its attachment to this machine. Odd multiples of the
/// golden ratio (SplitMix64) keep two numbers of one run of this machine apart.
pub fn durability_of(attachment: Option<u64>) -> u64 {
    boot_number() ^ attachment.unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A device that is going to be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedDevice {
    /// The evidence of its medium.
    pub evidence: DeviceEvidence,
    /// Which part of the medium it is, and how it is used.
    pub view: String,
    /// The name that it is going to have.
    pub name: String,
    /// Whether its owner gave it that name.
    pub is_named: bool,
}

/// A file or block device that is going to be shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedImage {
    /// Its path, as it is going to be opened.
    pub path: PathBuf,
    /// Whether it is going to be opened read-only.
    pub read_only: bool,
    /// Which part of it is shared, and how; empty for the whole of it, read and write.
    pub view: String,
    /// The name that the device is going to have.
    pub name: String,
    /// Whether its owner gave it that name.
    pub is_named: bool,
}

impl ExpectedImage {
    /// What is known of the image now; `None` if it is not there, or has no evidence.
    pub fn evident(self) -> Option<ExpectedDevice> {
        let evidence = evidence_at(&self.path)?;
        Some(ExpectedDevice { evidence, view: self.view, name: self.name, is_named: self.is_named })
    }
}

/// Finds identities, for one process and its replacements.
#[derive(Debug)]
pub struct IdentityFinder {
    secret: ProcessSecret,
    /// The state folder; `None`: identities are not stored.
    folder: Option<HostFolder>,
    reader: DevicesReader,
    /// Identities that this process added to the list, by medium and view.
    added: Mutex<BTreeMap<(String, String), DeviceId>>,
    /// The last error of the list, which is logged once.
    trouble: Mutex<Option<String>>,
    plugged: PluggedUsbEvidence,
}

impl IdentityFinder {
    /// Uses this user's state folder. `secret` is that of the process before this one, if there was one.
    pub fn new(secret: Option<ProcessSecret>) -> Self {
        let folder = HostFolder::of_user();
        let folder = folder.inspect_err(|error| debug!(%error, "identities are good for this process alone")).ok();
        Self::at(folder, secret.unwrap_or_else(ProcessSecret::random))
    }

    fn at(folder: Option<HostFolder>, secret: ProcessSecret) -> Self {
        Self {
            secret,
            folder,
            reader: DevicesReader::default(),
            added: Mutex::default(),
            trouble: Mutex::default(),
            plugged: PluggedUsbEvidence::default(),
        }
    }

    /// Adds the USB devices that the process before this one had identified.
    #[must_use]
    pub fn inheriting(self, known: &[KnownUsb]) -> Self {
        Self { plugged: PluggedUsbEvidence::inherited(known), ..self }
    }

    /// The USB devices that were identified, for this process's replacement.
    pub fn known_usb(&self) -> Vec<KnownUsb> {
        self.plugged.known()
    }

    /// The identities of a process that has its rights.
    pub fn own() -> &'static Self {
        static OWN: OnceLock<IdentityFinder> = OnceLock::new();
        OWN.get_or_init(|| Self::new(None))
    }

    /// The secret, for this process's replacement.
    pub fn secret(&self) -> &ProcessSecret {
        &self.secret
    }

    /// Identifies a view of an open file or block device. `view` is empty for the whole of it, read and write.
    pub fn of_store(&self, store: &FileStore, view: &str) -> DeviceIdentity {
        match DeviceEvidence::of_open(store.as_fd()) {
            Ok(evidence) => DeviceIdentity { attachment: attachment_number(store.as_fd()), ..self.of(&evidence, view) },
            Err(error) => {
                warn!(path = %store.path().display(), %error, "it cannot be known again: it has an identity for now");
                DeviceIdentity::fresh()
            }
        }
    }

    /// Identifies a USB device that is plugged in.
    pub fn of_usb(&self, found: &PluggedDevice) -> DeviceIdentity {
        let inventory = UsbInventory::default();
        let all = inventory.devices().unwrap_or_default();
        self.of(&self.plugged.evidence_of(found, &all, &inventory), "")
    }

    /// The common id of all devices made of code that are described by `words`.
    pub fn of_made(&self, words: &str) -> DeviceId {
        let identity = ExportIdentity { id: self.secret.derive(&format!("made {words}")), generation: 0 };
        DeviceId::of(identity)
    }

    /// Identifies the device with this evidence and view.
    pub fn of(&self, evidence: &DeviceEvidence, view: &str) -> DeviceIdentity {
        let folder = self.folder.as_ref().filter(|_| evidence.is_stable && view.len() <= VIEW_BYTES_MAX);
        let kept = folder.map(|folder| {
            self.settle_swaps(folder);
            self.kept(folder, &evidence.text, view)
        });
        match kept {
            Some(Ok(identity)) => {
                self.note_trouble(None);
                DeviceIdentity::lasting(identity)
            }
            Some(Err(error)) => {
                self.note_trouble(Some(error.to_string()));
                self.passing(evidence, view)
            }
            None => self.passing(evidence, view),
        }
    }

    fn passing(&self, evidence: &DeviceEvidence, view: &str) -> DeviceIdentity {
        let id = self.secret.derive(&format!("{} view={view}", evidence.text));
        DeviceIdentity {
            id: DeviceId::of(ExportIdentity { id, generation: 0 }),
            generation: 0,
            is_lasting: false,
            attachment: None,
        }
    }

    fn kept(&self, folder: &HostFolder, medium: &str, view: &str) -> Result<ExportIdentity, StateError> {
        let now = timestamp(SystemTime::now());
        let is_today = |known: &KnownDevice| known.seen.get(..DAY_BYTES) == now.get(..DAY_BYTES);
        let known = self.reader.load(folder)?.find(medium, view).map(|known| (known.identity(), is_today(known)));
        if let Some((identity, true)) = known {
            return Ok(identity);
        }
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() && added.len() >= NEW_MAX {
            return Err(StateError {
                path: folder.file("devices.json"),
                what: format!("{NEW_MAX} devices were new since this process began: no more are kept"),
            });
        }
        let changed = KnownDeviceList::change(folder, |all| {
            let id = all.find(medium, view).map(|known| known.id);
            match id.and_then(|id| all.of_id_mut(id)) {
                Some(known) => {
                    known.seen.clone_from(&now);
                    (known.identity(), false)
                }
                None => (all.add(KnownDevice::new(medium, view, now.clone())), true),
            }
        });
        match (changed, known) {
            (Ok((identity, is_new)), _) => {
                if is_new {
                    added.insert((medium.to_owned(), view.to_owned()), DeviceId::of(identity));
                }
                Ok(identity)
            }
            // The device is known. Only the day on which it was seen could not be written.
            (Err(_), Some((identity, _))) => Ok(identity),
            (Err(error), None) => Err(error),
        }
    }

    /// Adds the devices of `all` that are not on the list yet, as many as may be added, and notes that the others are
    /// offered today: in one write. [`IdentityFinder::of`] finds them then; a list that cannot be written is its
    /// trouble.
    pub fn expect(&self, all: &[ExpectedDevice]) {
        let fits = |expected: &&ExpectedDevice| expected.evidence.is_stable && expected.view.len() <= VIEW_BYTES_MAX;
        let (Some(folder), all) = (&self.folder, all.iter().filter(fits).collect::<Vec<_>>()) else { return };
        self.settle_swaps(folder);
        let now = timestamp(SystemTime::now());
        let is_today = |known: &KnownDevice| known.seen.get(..DAY_BYTES) == now.get(..DAY_BYTES);
        let is_settled = self
            .reader
            .load(folder)
            .is_ok_and(|list| all.iter().all(|it| list.find(&it.evidence.text, &it.view).is_some_and(is_today)));
        if is_settled {
            return;
        }
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = KnownDeviceList::change(folder, |list| {
            let mut new = Vec::new();
            for ExpectedDevice { evidence, view, name, is_named } in all {
                let id = list.find(&evidence.text, view).map(|known| known.id);
                if let Some(known) = id.and_then(|id| list.of_id_mut(id)) {
                    known.seen.clone_from(&now);
                } else if added.len() + new.len() < NEW_MAX {
                    let mut device = KnownDevice::new(&evidence.text, view, now.clone());
                    (device.name, device.is_named) = (name.clone(), *is_named);
                    new.push(((evidence.text.clone(), view.clone()), DeviceId::of(list.add(device))));
                }
            }
            new
        });
        match changed {
            Ok(new) => added.extend(new),
            Err(error) => debug!(%error, "devices are added to the list one by one"),
        }
    }

    /// Stores the name of a device, and whether its owner gave it that name.
    pub fn note_name(&self, id: DeviceId, name: &str, is_named: bool) {
        let Some(folder) = &self.folder else { return };
        let is_news = |known: &KnownDevice| (known.name.as_str(), known.is_named) != (name, is_named);
        let noted = self.reader.load(folder).and_then(|all| match all.of_id(id).is_some_and(is_news) {
            false => Ok(()),
            true => KnownDeviceList::change(folder, |all| {
                if let Some(known) = all.of_id_mut(id) {
                    name.clone_into(&mut known.name);
                    known.is_named = is_named;
                }
            }),
        });
        if let Err(error) = noted {
            debug!(%error, name, "what a device is called is not noted");
        }
    }

    /// Logs an error of the list once.
    fn note_trouble(&self, what: Option<String>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = what.as_ref().filter(|what| trouble.as_ref() != Some(what)) {
            warn!("devices have identities for this process alone: {error}");
        }
        *trouble = what;
    }

    /// Applies the outcome of swaps to the list, in case the process that swapped could not: a moved device belongs to
    /// its new medium.
    pub fn settle_swaps(&self, folder: &HostFolder) {
        if let Err(error) = settle(folder) {
            self.note_trouble(Some(error.to_string()));
        }
    }
}

/// Makes `devices.json` agree with the journals of swaps. Repeating it changes nothing.
///
/// # Errors
/// A journal or the list cannot be read, or the list cannot be changed. Nothing has changed for that swap then.
pub fn settle(folder: &HostFolder) -> io::Result<()> {
    for moved in SwapJournalFolder::of(folder.path()).moved()? {
        let all = KnownDeviceList::load(folder).map_err(io::Error::other)?;
        let is_due =
            |device: &&MovedDevice| all.of_id(device.id).is_some_and(|known| known.generation < device.generation);
        let due: Vec<&MovedDevice> = moved.devices.iter().filter(is_due).collect();
        let evidence = evidence_of(&moved.to).filter(|evidence| evidence.is_stable);
        let is_retired = |device: &&MovedDevice| all.of_id(device.id).is_none_or(|known| known.medium.is_none());
        if due.is_empty() || (evidence.is_none() && due.iter().all(is_retired)) {
            continue;
        }
        let change = |all: &mut KnownDeviceList| {
            let media = due.iter().filter_map(|device| all.of_id(device.id)?.medium.clone()).collect::<Vec<_>>();
            media.iter().for_each(|medium| all.retire(medium));
            // The medium is not there now: its device is found again when it is.
            let Some(evidence) = &evidence else { return };
            all.retire(&evidence.text);
            for device in &due {
                let view = all.of_id(device.id).map(|known| known.view.clone()).unwrap_or_default();
                all.give(device.id, device.generation, &evidence.text, &view);
            }
        };
        KnownDeviceList::change(folder, change).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The devices on the medium `of`, with the generations that they have once the medium has moved.
///
/// # Errors
/// The list cannot be read.
pub fn moving_with(folder: &HostFolder, of: &OnMedium<'_>) -> Result<Vec<MovedDevice>, StateError> {
    let all = KnownDeviceList::load(folder)?;
    let medium = match of {
        OnMedium::Device(id) => all.of_id(*id).and_then(|known| known.medium.clone()),
        OnMedium::Path(path) => evidence_at(path).filter(|evidence| evidence.is_stable).map(|evidence| evidence.text),
    };
    let on_it = all.iter().filter(|known| medium.is_some() && known.medium == medium);
    Ok(on_it.map(|known| MovedDevice { id: known.id, generation: known.generation + 1 }).collect())
}

/// How a medium is named.
#[derive(Clone, Copy, Debug)]
pub enum OnMedium<'a> {
    /// The medium of this device.
    Device(DeviceId),
    /// The medium at this path.
    Path(&'a Path),
}

/// The evidence of the file or block device at a path.
pub fn evidence_at(path: &Path) -> Option<DeviceEvidence> {
    let about = std::fs::metadata(path).ok()?;
    use std::os::unix::fs::FileTypeExt;
    // Opening a FIFO would block.
    let is_disk = about.is_file() || about.file_type().is_block_device();
    let file = is_disk.then(|| std::fs::File::open(path).ok()).flatten()?;
    DeviceEvidence::of_open(file.as_fd()).ok()
}

/// The evidence of a medium that a journal names, if that medium is still at its path.
fn evidence_of(medium: &SwapMedium) -> Option<DeviceEvidence> {
    (SwapMedium::at(&medium.at) == *medium).then(|| evidence_at(&medium.at)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use farbus_session::block::swap::{MilestoneJournal, SwapMilestone};

    use crate::devices::media_journal::SwapJournalWriter;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-identities-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn folder(&self) -> HostFolder {
            HostFolder::at(self.0.join("state"))
        }

        fn identities(&self) -> IdentityFinder {
            IdentityFinder::at(Some(self.folder()), ProcessSecret::random())
        }

        fn disk(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            File::create_new(&path).unwrap().set_len(4096).unwrap();
            path
        }

        fn store(&self, name: &str) -> FileStore {
            FileStore::open(self.0.join(name), true).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Whether files have lasting evidence here. They do not in every container.
    fn lasts(scratch: &Scratch) -> bool {
        scratch.disk("probe");
        let lasts = scratch.identities().of_store(&scratch.store("probe"), "").is_lasting;
        if !lasts {
            eprintln!("skipped: no lasting evidence of files here");
        }
        lasts
    }

    #[test]
    fn renamed_file_keeps_its_identity_and_views_and_copies_have_others() {
        let scratch = Scratch::new();
        if !lasts(&scratch) {
            return;
        }
        let path = scratch.disk("a");
        let whole = scratch.identities().of_store(&scratch.store("a"), "");
        let part = scratch.identities().of_store(&scratch.store("a"), "ro");
        fs::copy(&path, scratch.0.join("copy")).unwrap();
        fs::rename(&path, scratch.0.join("b")).unwrap();
        assert_eq!(scratch.identities().of_store(&scratch.store("b"), ""), whole);
        assert_eq!(scratch.identities().of_store(&scratch.store("b"), "ro"), part);
        let copy = scratch.identities().of_store(&scratch.store("copy"), "");
        assert!(copy.id != whole.id && part.id != whole.id && copy.is_lasting);
    }

    #[test]
    fn damaged_list_leaves_identities_to_this_process_and_its_replacement() {
        let scratch = Scratch::new();
        scratch.disk("a");
        let before = scratch.identities().of_store(&scratch.store("a"), "");
        fs::write(scratch.folder().file("devices.json"), "{").unwrap();
        let identities = scratch.identities();
        let now = identities.of_store(&scratch.store("a"), "");
        assert!(!now.is_lasting && now.id != before.id);
        assert_eq!(identities.of_store(&scratch.store("a"), ""), now);
        let successor = IdentityFinder::at(Some(scratch.folder()), identities.secret().clone());
        assert_eq!(successor.of_store(&scratch.store("a"), ""), now);
        assert_ne!(scratch.identities().of_store(&scratch.store("a"), ""), now, "another process");
        assert_eq!(
            fs::read_to_string(scratch.folder().file("devices.json")).unwrap(),
            "{",
            "it is left to be repaired"
        );
    }

    #[test]
    fn identities_without_a_folder_belong_to_the_process() {
        let scratch = Scratch::new();
        scratch.disk("a");
        let identities = IdentityFinder::at(None, ProcessSecret::random());
        let first = identities.of_store(&scratch.store("a"), "");
        assert!(!first.is_lasting && identities.of_store(&scratch.store("a"), "") == first);
        identities.note_name(first.id, "disk", false);
        assert_eq!(identities.of_made("keyboard"), identities.of_made("keyboard"));
        assert_ne!(identities.of_made("keyboard"), identities.of_made("serial"));
    }

    #[test]
    fn devices_that_are_expected_are_stored_with_their_names_in_one_write() {
        use std::os::unix::fs::MetadataExt;

        let scratch = Scratch::new();
        let identities = scratch.identities();
        let evidence = |at: usize, is_stable| DeviceEvidence { text: format!("file {at}"), is_stable };
        let expected = |at: usize, is_stable| ExpectedDevice {
            evidence: evidence(at, is_stable),
            view: String::new(),
            name: format!("d{at}"),
            is_named: true,
        };
        let known = identities.of(&evidence(0, true), "");
        identities.note_name(known.id, "other", false);
        identities.expect(&[expected(0, true), expected(1, true), expected(2, true), expected(3, false)]);
        let file = scratch.folder().file("devices.json");
        let number = || fs::metadata(&file).unwrap().ino();
        let written = number();
        let all: Vec<DeviceIdentity> = (0..3).map(|at| identities.of(&evidence(at, true), "")).collect();
        all[1..].iter().zip(["d1", "d2"]).for_each(|(known, name)| identities.note_name(known.id, name, true));
        identities.expect(&[expected(2, true), expected(1, true)]);
        assert_eq!(number(), written, "nothing is written again");
        assert_eq!(all[0].id, known.id);
        let list = KnownDeviceList::load(&scratch.folder()).unwrap();
        let names: Vec<_> = list.iter().map(|known| (known.name.as_str(), known.is_named)).collect();
        assert_eq!(names, [("other", false), ("d1", true), ("d2", true)]);
        assert!(!identities.of(&evidence(3, false), "").is_lasting);
    }

    #[test]
    fn expected_devices_beyond_the_limit_are_not_stored() {
        let scratch = Scratch::new();
        let identities = scratch.identities();
        for at in 1..NEW_MAX {
            identities.added.lock().unwrap().insert((format!("{at}"), String::new()), random_device_id());
        }
        let expected = |at: usize| ExpectedDevice {
            evidence: DeviceEvidence { text: format!("file {at}"), is_stable: true },
            view: String::new(),
            name: "disk".into(),
            is_named: false,
        };
        identities.expect(&[expected(0), expected(1), expected(2)]);
        assert_eq!(KnownDeviceList::load(&scratch.folder()).unwrap().iter().count(), 1);
    }

    #[test]
    fn number_of_devices_that_a_process_adds_is_limited() {
        let scratch = Scratch::new();
        let identities = scratch.identities();
        let evidence = |at: usize| DeviceEvidence { text: format!("file {at}"), is_stable: true };
        for at in 0..NEW_MAX {
            identities.added.lock().unwrap().insert((format!("{at}"), String::new()), random_device_id());
        }
        assert!(!identities.of(&evidence(NEW_MAX), "").is_lasting);
        let other = scratch.identities();
        assert!(other.of(&evidence(1), "").is_lasting && identities.of(&evidence(1), "").is_lasting, "it is known");
        assert!(!other.of(&evidence(2), &"x".repeat(VIEW_BYTES_MAX + 1)).is_lasting);
    }

    #[test]
    fn decided_swap_moves_the_identity_even_if_its_process_was_killed() {
        let scratch = Scratch::new();
        if !lasts(&scratch) {
            return;
        }
        let (old, new) = (scratch.disk("old"), scratch.disk("new"));
        let identities = scratch.identities();
        let device = identities.of_store(&scratch.store("old"), "");
        let part = identities.of_store(&scratch.store("old"), "ro");
        let overwritten = identities.of_store(&scratch.store("new"), "");
        let devices = moving_with(&scratch.folder(), &OnMedium::Device(device.id)).unwrap();
        assert_eq!(devices, moving_with(&scratch.folder(), &OnMedium::Path(&old)).unwrap());
        assert_eq!(devices.len(), 2);
        let journals = SwapJournalFolder::of(scratch.folder().path());
        let begun = journals.begin_of(&SwapMedium::at(&old), &SwapMedium::at(&new), &devices).unwrap();
        let mut notes = SwapJournalWriter::to(begun.file);
        notes.note(SwapMilestone::Copying).unwrap();
        assert_eq!(scratch.identities().of_store(&scratch.store("old"), ""), device, "nothing is decided yet");
        notes.note(SwapMilestone::Switched).unwrap();
        // Here the process was killed.
        fs::rename(&new, scratch.0.join("elsewhere")).unwrap();
        let stale = scratch.identities().of_store(&scratch.store("old"), "");
        assert!(stale.id != device.id, "the old medium is another device, also while the new one is not there");
        fs::rename(scratch.0.join("elsewhere"), &new).unwrap();
        let moved = scratch.identities().of_store(&scratch.store("new"), "");
        assert_eq!((moved.id, moved.generation), (device.id, device.generation + 1));
        assert_eq!(scratch.identities().of_store(&scratch.store("new"), "ro").id, part.id);
        assert_eq!(scratch.identities().of_store(&scratch.store("new"), ""), moved, "once");
        assert_ne!(overwritten.id, moved.id);
        let all = KnownDeviceList::load(&scratch.folder()).unwrap();
        assert_eq!(all.of_id(overwritten.id).unwrap().medium, None, "what it held is gone");
    }
}
