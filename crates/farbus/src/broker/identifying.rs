//! Which devices the other half shares: the evidence is here.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farbus_io::evidence::{Evidence, ProcessSecret};
use farbus_io::store::FileStore;
use farbus_io::trust::DeviceId;

use crate::devices::identities::naming::check_name;
use crate::devices::identities::{Identified, Identities, KnownUsb, VIEW_BYTES_MAX};

/// The longest words that say what a device made of code is, bytes.
const WORDS_BYTES_MAX: usize = 1024;

/// What was opened for the other half, and which devices that is.
pub(super) struct Identifying {
    all: Identities,
    /// The evidence of images, as they were when they were opened.
    images: Mutex<BTreeMap<(PathBuf, bool), Evidence>>,
    /// The devices that the other half shares: it names no others.
    identified: Mutex<BTreeSet<DeviceId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Identifying {
    /// `secret` and `usb` are those of the process before this one.
    pub fn new(secret: Option<ProcessSecret>, usb: &[KnownUsb]) -> Self {
        Self { all: Identities::new(secret).inheriting(usb), images: Mutex::default(), identified: Mutex::default() }
    }

    /// Where identities are found.
    pub fn all(&self) -> &Identities {
        &self.all
    }

    /// An image was opened; one that says nothing of itself cannot be known again.
    pub fn note_opened(&self, path: &Path, read_only: bool, store: &FileStore) {
        let key = (path.to_owned(), read_only);
        match Evidence::of_open(store.as_fd()) {
            Ok(evidence) => drop(lock(&self.images).insert(key, evidence)),
            Err(_) => drop(lock(&self.images).remove(&key)),
        }
    }

    /// Which device a view of an image is, if that was opened.
    pub fn image(&self, path: &Path, read_only: bool, view: &str) -> Option<Identified> {
        let evidence = lock(&self.images).get(&(path.to_owned(), read_only)).cloned()?;
        let is_view = view.len() <= VIEW_BYTES_MAX && view.bytes().all(|byte| byte.is_ascii_graphic());
        let known = is_view.then(|| self.all.of(&evidence, view))?;
        lock(&self.identified).insert(known.id);
        Some(known)
    }

    /// What devices made of code have in common which are what `words` say.
    pub fn made(&self, words: &str) -> Identified {
        let words = &words[..words.floor_char_boundary(WORDS_BYTES_MAX)];
        Identified { id: self.all.of_made(words), ..Identified::fresh() }
    }

    /// Notes what a device is called. Says whether it is one that was identified here.
    pub fn name(&self, device: DeviceId, name: &str, is_named: bool) -> bool {
        let is_known = lock(&self.identified).contains(&device) && check_name(name).is_ok();
        if is_known {
            self.all.note_name(device, name, is_named);
        }
        is_known
    }

    /// A device that the other half shares.
    pub fn note_identified(&self, known: Identified) -> Identified {
        lock(&self.identified).insert(known.id);
        known
    }
}
