//! Identifies the devices that the confined process shares, because the broker has the evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farbus_io_linux::evidence::{DeviceEvidence, ProcessSecret, attachment_number};
use farbus_io_linux::store::FileStore;
use farbus_io_net::trust::DeviceId;

use crate::devices::identities::naming::check_name;
use crate::devices::identities::{DeviceIdentity, ExpectedImage, IdentityFinder, KnownUsb, VIEW_BYTES_MAX};

/// How many identities of USB devices a replacement is told.
const PASSED_USB_MAX: usize = 1024;

/// The longest description of a device made of code, bytes.
const WORDS_BYTES_MAX: usize = 1024;

/// An image at the time it was opened: its evidence, and the number of its medium's attachment to this machine.
type ImageEvidence = (DeviceEvidence, Option<u64>);

/// The images that were opened for the confined process, and the identities that it was given.
pub(super) struct IdentityResolver {
    all: IdentityFinder,
    /// The images, by path and whether they were opened to be read alone.
    images: Mutex<BTreeMap<(PathBuf, bool), ImageEvidence>>,
    /// The devices that the confined process shares. It may name no others.
    identified: Mutex<BTreeSet<DeviceId>>,
    /// Those of them that are USB devices of this machine and were identified last.
    usb: Mutex<Vec<DeviceId>>,
    /// Whether the process said what it had identified itself.
    is_told: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_view(text: &str) -> bool {
    text.len() <= VIEW_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl IdentityResolver {
    /// Uses what the process before this one knew, if there was one: its secret, the USB devices that are plugged in,
    /// and those that it had identified.
    pub fn new(secret: Option<ProcessSecret>, plugged: &[KnownUsb], usb: &[DeviceId]) -> Self {
        Self {
            all: IdentityFinder::new(secret).inheriting(plugged),
            images: Mutex::default(),
            identified: Mutex::new(usb.iter().copied().collect()),
            usb: Mutex::new(usb.to_vec()),
            is_told: AtomicBool::new(false),
        }
    }

    /// The source of identities.
    pub fn all(&self) -> &IdentityFinder {
        &self.all
    }

    /// Notes the evidence of an image that was opened. An image without evidence cannot be recognized again.
    pub fn note_opened(&self, path: &Path, read_only: bool, store: &FileStore) {
        let key = (path.to_owned(), read_only);
        match DeviceEvidence::of_open(store.as_fd()) {
            Ok(evidence) => {
                let attachment = attachment_number(store.as_fd());
                lock(&self.images).insert(key, (evidence, attachment));
            }
            Err(_) => drop(lock(&self.images).remove(&key)),
        }
    }

    /// Stores the devices on these images that are new, all at once: they are going to be identified.
    pub fn expect(&self, images: Vec<ExpectedImage>) {
        let is_valid = |image: &ExpectedImage| is_view(&image.view) && check_name(&image.name).is_ok();
        let expected = images.into_iter().filter(is_valid).filter_map(ExpectedImage::evident);
        self.all.expect(&expected.collect::<Vec<_>>());
    }

    /// The identity of a view of an image; `None` if the image was not opened.
    pub fn image(&self, path: &Path, read_only: bool, view: &str) -> Option<DeviceIdentity> {
        let (evidence, attachment) = lock(&self.images).get(&(path.to_owned(), read_only)).cloned()?;
        let known = is_view(view).then(|| DeviceIdentity { attachment, ..self.all.of(&evidence, view) })?;
        lock(&self.identified).insert(known.id);
        Some(known)
    }

    /// The common id of all devices made of code that are described by `words`.
    pub fn made(&self, words: &str) -> DeviceIdentity {
        let words = &words[..words.floor_char_boundary(WORDS_BYTES_MAX)];
        DeviceIdentity { id: self.all.of_made(words), ..DeviceIdentity::fresh() }
    }

    /// Stores the name of a device. Returns whether the device was identified here.
    pub fn name(&self, device: DeviceId, name: &str, is_named: bool) -> bool {
        let is_known = lock(&self.identified).contains(&device) && check_name(name).is_ok();
        if is_known {
            self.all.note_name(device, name, is_named);
        }
        is_known
    }

    /// Takes the devices that the process identified itself, while it had its rights. Returns whether it had not said
    /// so before: later it may be somebody else who asks.
    pub fn note_shared(&self, devices: &[DeviceId]) -> bool {
        let is_first = !self.is_told.swap(true, Ordering::AcqRel);
        lock(&self.identified).extend(devices.iter().filter(|_| is_first));
        is_first
    }

    /// Whether a device was identified here.
    pub fn has(&self, device: DeviceId) -> bool {
        lock(&self.identified).contains(&device)
    }

    /// Notes a device that the process before this one shared.
    pub fn note_known(&self, device: DeviceId) {
        lock(&self.identified).insert(device);
    }

    /// Notes a USB device of this machine that the confined process shares.
    pub fn note_usb(&self, known: DeviceIdentity) -> DeviceIdentity {
        lock(&self.identified).insert(known.id);
        let mut usb = lock(&self.usb);
        usb.retain(|id| *id != known.id);
        if usb.len() == PASSED_USB_MAX {
            usb.remove(0);
        }
        usb.push(known.id);
        known
    }

    /// The USB devices of this machine that were identified last, for this process's replacement.
    pub fn usb(&self) -> Vec<DeviceId> {
        lock(&self.usb).clone()
    }
}
