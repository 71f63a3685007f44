//! What the owner says of the shared devices: in the configuration, and by `farbus label`, which comes first.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use farbus_io_net::trust::{DeviceId, DeviceNotes};
use tracing::warn;

use crate::broker::SystemAccess;
use crate::common::ordered_mutex::{OrderedGuard, OrderedMutex};

/// What a configuration says of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredNotes {
    /// By the device's name.
    pub by_name: BTreeMap<String, DeviceNotes>,
    /// By the name that a rule gives: the first of its devices has it, the others have numbers appended.
    pub by_rule: BTreeMap<String, DeviceNotes>,
}

impl ConfiguredNotes {
    /// What is said of the device of this name.
    pub fn of(&self, name: &str) -> DeviceNotes {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let by_rule = || self.by_rule.get(name).or_else(|| self.by_rule.get(stem));
        self.by_name.get(name).or_else(by_rule).cloned().unwrap_or_default()
    }
}

/// The notes of the devices that are shared here.
#[derive(Debug, Default)]
pub struct NoteBook {
    /// Who reads what `farbus label` stored; `None` in a program of the library, which has no such notes.
    source: OrderedMutex<Option<SystemAccess>, 3>,
    configured: OrderedMutex<ConfiguredNotes, 3>,
    /// By bus id.
    labelled: OrderedMutex<BTreeMap<String, DeviceNotes>, 3>,
}

#[track_caller]
fn lock<T>(mutex: &OrderedMutex<T, 3>) -> OrderedGuard<'_, T, 3> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NoteBook {
    /// Reads what `farbus label` stores through `system` from now on.
    pub fn read_through(&self, system: SystemAccess) {
        *lock(&self.source) = Some(system);
    }

    /// Sets what the configuration says, in place of all that it said before.
    pub fn configure(&self, configured: ConfiguredNotes) {
        *lock(&self.configured) = configured;
    }

    /// Reads what `farbus label` stored of a device. `id` is that of a device with a lasting identity.
    pub fn read(&self, bus_id: &str, id: Option<DeviceId>, name: &str) {
        let source = lock(&self.source).clone();
        let notes = source.map_or(Ok(DeviceNotes::default()), |system| system.notes_of(id, name));
        let notes = notes.unwrap_or_else(|error| {
            warn!(device = name, %error, "its labels are not known");
            DeviceNotes::default()
        });
        self.put(bus_id, notes);
    }

    /// Sets what `farbus label` stored of a device.
    pub fn put(&self, bus_id: &str, notes: DeviceNotes) {
        lock(&self.labelled).insert(bus_id.to_owned(), notes);
    }

    /// What is said of the device with this bus id and name.
    pub fn of(&self, bus_id: &str, name: &str) -> DeviceNotes {
        let configured = lock(&self.configured).of(name);
        lock(&self.labelled).get(bus_id).map_or_else(|| configured.clone(), |notes| configured.overlaid_by(notes))
    }
}
