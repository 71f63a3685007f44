//! Offers a device under its name. The device gets its identity before any importer can see it.

use std::sync::Arc;

use farbus_control::share::SharedNow;
use farbus_io_linux::evidence::derive_from;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::DeviceId;
use farbus_model::{Device, ExportIdentity};
use farbus_session::DeviceRecord;
use farbus_session::registry::{ExportEntry, StreamClass, name_of};

use crate::broker::SystemAccess;
use crate::devices::identities::DeviceIdentity;
use crate::devices::identities::labels::{DeviceClass, OfferIdentity, OfferTraits};
use crate::devices::identities::naming::DeviceNaming;
use crate::exporter::error::ShareError;
use crate::exporter::leasing;
use crate::exporter::share::Share;

impl Share {
    /// Offers a device under the name that `naming` gives, with the identity that `which` gives.
    ///
    /// # Errors
    /// [`ShareError::BusFull`], [`ShareError::NameTaken`].
    pub(crate) fn offer(
        &self,
        naming: DeviceNaming<'_>,
        device: Box<dyn Device>,
        class: DeviceClass,
        which: OfferIdentity,
    ) -> Result<DeviceRecord, ShareError> {
        let name = naming.text();
        let mut registry = self.shared.registry.lock();
        if matches!(naming, DeviceNaming::Given(_)) && registry.entries().any(|entry| entry.name == name) {
            return Err(ShareError::NameTaken(name.to_owned()));
        }
        let record = match class {
            DeviceClass::Usb => registry.add(name, device),
            DeviceClass::Block(block) => registry.add_block(name, device, block),
            DeviceClass::Stream(stage) => registry.add_stream(name, device, StreamClass(stage)),
        };
        let record = record.cloned().ok_or(ShareError::BusFull)?;
        let called = name_of(&record);
        let is_by_port = matches!(which, OfferIdentity::InPort(..));
        let (identity, is_lasting, another) = match which {
            OfferIdentity::Known(known) => (known.identity(), known.is_lasting, None),
            OfferIdentity::InPort(known, another) => (known.identity(), known.is_lasting, another),
            OfferIdentity::Made(base) => {
                (ExportIdentity { id: derive_from(base.number(), called), generation: 0 }, false, None)
            }
        };
        registry.identify(&record.bus_id, identity);
        if is_by_port {
            registry.keep_claims(&record.bus_id);
        }
        let is_named = !matches!(naming, DeviceNaming::Automatic(_)) && called == name;
        self.shared.registry.labels.put(&record.bus_id, OfferTraits { is_named, is_lasting, another });
        drop(registry);
        // The device that had this name and bus id before may have been another one.
        self.shared.reservations.forget_bus(&record.bus_id);
        self.shared.swaps.forget(&record.bus_id);
        self.shared.registry.read_notes(&record.bus_id);
        leasing::restore(&self.shared, &record.bus_id);
        publish(Event::of(EventKind::Shared, name_of(&record)));
        Ok(record)
    }

    /// Offers a device whose identity is known. If the identity is lasting, `note_name` stores the name beside it.
    ///
    /// # Errors
    /// [`ShareError::BusFull`], [`ShareError::NameTaken`].
    pub(crate) fn offer_known(
        &self,
        naming: DeviceNaming<'_>,
        device: Box<dyn Device>,
        class: DeviceClass,
        known: DeviceIdentity,
        note_name: impl FnOnce(DeviceId, &str, bool),
    ) -> Result<DeviceRecord, ShareError> {
        let record = self.offer(naming, device, class, OfferIdentity::Known(known))?;
        if known.is_lasting {
            note_name(known.id, name_of(&record), self.is_named(&record));
        }
        Ok(record)
    }

    /// Keeps in this way what becomes of disks that hosts move to their own machines.
    pub fn keep_retirements(&self, system: SystemAccess) {
        self.shared.registry.retirements.ask_through(system);
    }

    /// The ids of all devices.
    pub fn identified(&self) -> Vec<DeviceId> {
        self.shared.registry.lock().entries().filter_map(|entry| entry.identity).map(DeviceId::of).collect()
    }

    /// The id of the device with this name.
    pub fn id_of(&self, name: &str) -> Option<DeviceId> {
        self.shared.registry.id_of(name)
    }

    /// What is told of a device that was just offered.
    pub fn shared_now(&self, record: &DeviceRecord) -> SharedNow {
        SharedNow {
            name: name_of(record).to_owned(),
            bus_id: record.bus_id.clone(),
            ids: format!("{:04x}:{:04x}", record.vendor, record.product),
            speed: record.speed.to_string(),
            id: self.id_of(name_of(record)),
        }
    }

    /// Whether the owner gave the device its name.
    pub(crate) fn is_named(&self, record: &DeviceRecord) -> bool {
        self.shared.registry.labels.of(&record.bus_id).is_named
    }

    /// Sets whether the owner chose the name that the device has now.
    pub fn set_named(&self, name: &str, is_named: bool) {
        if let Ok(bus_id) = self.shared.registry.bus_id_of(name) {
            self.shared
                .registry
                .labels
                .put(&bus_id, OfferTraits { is_named, ..self.shared.registry.labels.of(&bus_id) });
        }
    }

    /// Returns a function to call when the device has moved to another medium: it raises the device's generation.
    pub(crate) fn on_moved(&self, bus_id: &str) -> impl FnOnce() + Send + use<> {
        let (shared, bus_id) = (Arc::downgrade(&self.shared), bus_id.to_owned());
        move || {
            let Some(shared) = shared.upgrade() else { return };
            let identity = shared.registry.lock().identity(&bus_id);
            if let Some(ExportIdentity { id, generation }) = identity {
                shared.registry.identify(&bus_id, ExportIdentity { id, generation: generation + 1 });
                shared.sessions.wake_all();
            }
        }
    }

    /// Sets the device's identity, on the owner's order. A device in use keeps its identity.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::InUse`].
    pub(crate) fn adopt(&self, device: &str, identity: ExportIdentity) -> Result<(), ShareError> {
        let bus_id = self.shared.registry.bus_id_of(device)?;
        let mut registry = self.shared.registry.lock();
        let is_it = |entry: &ExportEntry<'_>| entry.record.bus_id == bus_id;
        let user = registry.entries().find(is_it).and_then(|entry| Some(entry.holder?.who.clone()));
        if let Some(user) = user {
            return Err(ShareError::InUse { device: device.to_owned(), user });
        }
        registry.identify(&bus_id, identity);
        self.shared
            .registry
            .labels
            .put(&bus_id, OfferTraits { is_lasting: true, ..self.shared.registry.labels.of(&bus_id) });
        Ok(())
    }
}
