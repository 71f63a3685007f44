//! Which device a share by port stands for: the first that was there. Another device in the port is offered under the
//! same name and bus id; the identity of the first one, and so its permissions and its lease, it gets only if its owner
//! said that it is followed ([`FollowPolicy`]).
//!
//! A daemon remembers the device of each port of its configuration over its own restart. What a command shares is
//! remembered until the command ends: its user named the port, and sees what is in it. A daemon that replaces another
//! one is told it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use farbus_control::device::AnotherInPortStatus;
use farbus_io_linux::usb::PluggedDevice;
use farbus_io_net::trust::AttachedDevice;
use tracing::warn;

use crate::broker::SystemAccess;
use crate::devices::follow::{FollowPolicy, InPort, in_words, make_in_words};
use crate::devices::identities::DeviceIdentity;

/// Where a daemon stores the devices of its ports.
#[derive(Debug)]
pub struct PortKeeper {
    /// The path of the daemon's configuration, by which its stored devices are found again.
    pub config: PathBuf,
    /// The rights that it stores them with.
    pub system: SystemAccess,
}

/// The devices that shares by port stand for, by bus id.
#[derive(Debug, Default)]
pub(super) struct PortDevices {
    first: BTreeMap<String, FirstDevice>,
    keeper: Option<PortKeeper>,
}

#[derive(Debug)]
struct FirstDevice {
    device: AttachedDevice,
    /// Whether a command passed it, and not the configuration selects it.
    is_passed: bool,
}

/// As what a device in a port is offered.
pub(super) struct InPortOffer {
    /// The identity that the device is offered under.
    pub known: DeviceIdentity,
    /// What is said if it is another device than the share stands for.
    pub another: Option<AnotherInPortStatus>,
}

/// The word by which the device of a port is stored.
fn target_of(bus_id: &str) -> String {
    format!("usb:{bus_id}")
}

impl PortDevices {
    /// Stores what a configuration selects in this way from now on.
    pub fn keep_by(&mut self, keeper: PortKeeper) {
        self.keeper = Some(keeper);
    }

    /// The name that the device of this port has.
    pub fn name_of(&self, bus_id: &str) -> Option<String> {
        self.first.get(bus_id)?.device.name.clone()
    }

    /// `name`, with a number if the device of another port has it, also while that one is not plugged in.
    pub fn free_name(&self, bus_id: &str, name: String) -> String {
        let others = || self.first.iter().filter(|(other, _)| *other != bus_id);
        let is_free = |name: &str| others().all(|(_, first)| first.device.name.as_deref() != Some(name));
        if is_free(&name) {
            return name;
        }
        let mut numbered = (2..).map(|number| format!("{name}{number}"));
        numbered.find(|name| is_free(name)).expect("numbers do not end")
    }

    /// Reads what is stored of a port that the configuration selects, unless it is known.
    ///
    /// # Errors
    /// It cannot be read, so it is not known which device the share stands for.
    pub fn recall(&mut self, bus_id: &str) -> std::io::Result<()> {
        let Some(keeper) = self.keeper.as_ref().filter(|_| !self.first.contains_key(bus_id)) else { return Ok(()) };
        if let Some(device) = keeper.system.attached_device(&keeper.config, &target_of(bus_id))? {
            self.first.insert(bus_id.to_owned(), FirstDevice { device, is_passed: false });
        }
        Ok(())
    }

    /// As what the device in a port is offered that is identified as `known`.
    pub fn judge(&self, found: &PluggedDevice, known: DeviceIdentity, follow: &FollowPolicy) -> InPortOffer {
        let Some(FirstDevice { device: first, is_passed }) = self.first.get(&found.bus_id) else {
            return InPortOffer { known, another: None };
        };
        let seen = device_of(found, known);
        match (follow.judge(first, &seen), first.id) {
            (InPort::Followed, Some(id)) => {
                let generation = first.generation;
                InPortOffer {
                    known: DeviceIdentity { id, generation, is_lasting: first.is_lasting, ..known },
                    another: None,
                }
            }
            (InPort::Another, _) => {
                let next = self.next(found, *is_passed);
                let another = AnotherInPortStatus { was: in_words(first), is: in_words(&seen), next };
                InPortOffer { known, another: Some(another) }
            }
            (InPort::Same | InPort::Followed, _) => InPortOffer { known, another: None },
        }
    }

    /// What to type for another device in a port.
    fn next(&self, found: &PluggedDevice, is_passed: bool) -> String {
        let device = &found.descriptors.device;
        let make = make_in_words(Some((device.vendor, device.product)));
        let port = target_of(&found.bus_id);
        let keeper = self.keeper.as_ref().filter(|_| !is_passed);
        let (config, follow) = match keeper {
            Some(keeper) => (Some(keeper.config.display()), format!("follow = [\"{make}\"]")),
            None => (None, format!("farbus share {port} --follow {make}")),
        };
        if found.descriptors.stores_data() {
            return match config {
                Some(_) => {
                    format!("a disk is never followed; if it is to be shared here: farbus daemon reload --adopt {port}")
                }
                None => format!("a disk is never followed; if it is to be shared here: farbus share {port}"),
            };
        }
        match config {
            Some(config) => format!(
                "if it is the same device in another mode, add {follow} to its entry in {config}, and type: farbus \
                 daemon reload; if it is to take the place of the former one: farbus daemon reload --adopt {port}"
            ),
            None => format!("if it is the same device in another mode: {follow}"),
        }
    }

    /// A device in a port was offered under this name: it is the first one, unless there was one.
    pub fn note(&mut self, found: &PluggedDevice, known: DeviceIdentity, name: &str, is_passed: bool) {
        let bus_id = found.bus_id.as_str();
        let first = self.first.get(bus_id).map(|first| first.device.clone());
        let device = first.clone().unwrap_or_else(|| device_of(found, known));
        let device = AttachedDevice { name: Some(name.to_owned()), ..device };
        if first.as_ref() == Some(&device) {
            return;
        }
        let is_passed = self.first.get(bus_id).map_or(is_passed, |first| first.is_passed);
        if let Some(PortKeeper { config, system }) = self.keeper.as_ref().filter(|_| !is_passed)
            && let Err(error) = system.keep_attached_device(config, &target_of(bus_id), Some(&device))
        {
            warn!(usb = bus_id, %error, "which device is in this port is not known after a restart");
        }
        self.first.insert(bus_id.to_owned(), FirstDevice { device, is_passed });
    }

    /// The device for which the share of a port stands that a command passed.
    pub fn passed(&self, bus_id: &str) -> Option<&AttachedDevice> {
        self.first.get(bus_id).filter(|first| first.is_passed).map(|first| &first.device)
    }

    /// A share of a port that a command passed stands for this device, which was the first one.
    pub fn recall_passed(&mut self, bus_id: &str, device: AttachedDevice) {
        self.first.insert(bus_id.to_owned(), FirstDevice { device, is_passed: true });
    }

    /// Forgets the device of a port that a command passed: the next one is the first.
    pub fn forget_passed(&mut self, bus_id: &str) {
        if self.first.get(bus_id).is_some_and(|first| first.is_passed) {
            self.first.remove(bus_id);
        }
    }

    /// Forgets the device of a port that the configuration selects: the one that is there is the first.
    ///
    /// # Errors
    /// That is not stored, and nothing is forgotten.
    pub fn adopt(&mut self, bus_id: &str) -> std::io::Result<()> {
        if let Some(keeper) = &self.keeper {
            keeper.system.keep_attached_device(&keeper.config, &target_of(bus_id), None)?;
        }
        self.first.remove(bus_id);
        Ok(())
    }

    /// Forgets the devices of ports for which this is false, and that no command passed.
    pub fn retain(&mut self, is_selected: impl Fn(&str) -> bool) {
        // What is stored of one stays for an entry that comes back.
        self.first.retain(|bus_id, first| first.is_passed || is_selected(bus_id));
    }
}

/// What is known of a device in a port.
fn device_of(found: &PluggedDevice, known: DeviceIdentity) -> AttachedDevice {
    let device = &found.descriptors.device;
    AttachedDevice {
        id: Some(known.id),
        generation: known.generation,
        is_lasting: known.is_lasting,
        stores_data: found.descriptors.stores_data(),
        usb: Some((device.vendor, device.product)),
        serial: found.serial.clone().filter(|serial| !serial.is_empty()),
        ..AttachedDevice::default()
    }
}
