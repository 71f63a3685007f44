//! Which device a target stood for when it was opened first: who opens it again gets that device and no other.
//!
//! A name, a bus id or a port says where to look; another device can be there the next time.
//!
//! | the device was | another one is there if |
//! |---|---|
//! | a disk of a session | its identity is another one, or is not told any more ([`compare`]) |
//! | another device of a session, whose exporter finds the identity again after a restart | the same |
//! | any other device, also of an exporter that speaks plain USB/IP alone | vendor, product or serial number is another one |
//! | a device that a program uses by `farbus run` | it stores data, and one of the lines above holds; or vendor and product are the same, and the serial number is another one. A device that became another in its port is followed |
//!
//! A device that became another in its port is followed as its user says ([`FollowPolicy`]), also if its exporter tells
//! another identity; the first one stays the one that the target stands for.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_io_net::trust::{AttachedDevice, DeviceId};
use farbus_model::{DescriptorSet, ExportIdentity};
use farbus_session::native::known_device::compare;
use tracing::{info, warn};

use super::error::ClientError;
use super::target::DeviceTarget;
use crate::broker::SystemAccess;
use crate::devices::follow::{FollowPolicy, in_words};

/// Who opens a device again, and what its owner can do if another one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceReopener {
    /// A daemon with this configuration, which remembers the device over its own restart.
    Daemon(PathBuf),
    /// `farbus attach`, while it waits.
    Attach,
    /// `farbus run`, while its program runs.
    Run,
}

/// The device that a target stands for. Clones share it.
#[derive(Clone, Debug)]
pub struct RememberedDevice {
    target: DeviceTarget,
    by: DeviceReopener,
    /// Which other devices in its port are followed; `None`: a program's, which follows any of another make.
    follow: Option<FollowPolicy>,
    memory: Arc<Mutex<RememberedDeviceInner>>,
}

#[derive(Debug, Default)]
struct RememberedDeviceInner {
    /// Whether what a daemon stored was read.
    is_recalled: bool,
    /// The device that the target means now, by its bus id, if the target does not name that.
    meant: Option<DeviceTarget>,
    device: Option<AttachedDevice>,
}

impl RememberedDevice {
    /// Nothing is known of the device of `target` yet.
    pub fn new(target: &DeviceTarget, by: DeviceReopener) -> Self {
        let follow = (by != DeviceReopener::Run).then(FollowPolicy::default);
        Self { target: target.clone(), by, follow, memory: Arc::default() }
    }

    /// This device, for which the other devices that `follow` names are taken when they are in its port.
    #[must_use]
    pub fn following(self, follow: &FollowPolicy) -> Self {
        Self { follow: Some(follow.clone()), ..self }
    }

    /// Whether a device of this make is followed in the device's port.
    pub fn follows(&self, make: (u16, u16)) -> bool {
        self.follow.as_ref().is_none_or(|follow| follow.takes(make))
    }

    /// Reads what a daemon stored of its attachment before it was started anew.
    ///
    /// # Errors
    /// [`ClientError::Local`]: it is not known which device that was; none may be attached.
    pub fn recall(&self, system: &SystemAccess) -> Result<(), ClientError> {
        let mut memory = self.memory();
        if let DeviceReopener::Daemon(config) = &self.by
            && !memory.is_recalled
        {
            memory.device = system.attached_device(config, &self.target.to_string()).map_err(|error| {
                let what = format!("{}: it is not known which device this was", self.target.shown());
                ClientError::Local(format!("{what}: {error}"))
            })?;
        }
        memory.is_recalled = true;
        Ok(())
    }

    /// Whether this is about `target`.
    pub fn is_of(&self, target: &DeviceTarget) -> bool {
        self.target == *target || self.memory().meant.as_ref() == Some(target)
    }

    /// The target means the device that `meant` names by its bus id.
    pub fn note_meant(&self, meant: &DeviceTarget) {
        self.memory().meant = Some(meant.clone());
    }

    /// The vendor, the product and the bus id of the device, as far as they are known.
    pub fn marks(&self) -> (Option<(u16, u16)>, Option<String>) {
        let memory = self.memory();
        let meant = memory.meant.as_ref().map(|meant| meant.device.clone());
        let device = memory.device.as_ref();
        (device.and_then(|known| known.usb), device.and_then(|known| known.bus_id.clone()).or(meant))
    }

    fn memory(&self) -> MutexGuard<'_, RememberedDeviceInner> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity that the device has to have: the exporter compares it before it touches the device. `None` if none
    /// is known, or other marks decide.
    pub fn expectation(&self) -> Option<ExportIdentity> {
        let memory = self.memory();
        // An exporter that does not follow, too, tells another identity.
        let follows = self.follow.as_ref().is_some_and(|follow| !follow.is_nothing());
        let is_bound = |known: &&AttachedDevice| self.is_bound(known) && (known.stores_data || !follows);
        let known = memory.device.as_ref().filter(is_bound)?;
        identity_of(known)
    }

    /// Whether the identity of a device decides.
    fn is_bound(&self, known: &AttachedDevice) -> bool {
        known.stores_data || (known.is_lasting && self.by != DeviceReopener::Run)
    }

    /// Checks that `seen`, which was opened, is the device of before, and remembers it.
    ///
    /// # Errors
    /// [`ClientError::AnotherDevice`]; [`ClientError::Local`]: it cannot be remembered.
    pub fn check(&self, seen: AttachedDevice, system: &SystemAccess) -> Result<(), ClientError> {
        let known = self.memory().device.clone();
        let Some(known) = known else { return self.keep(seen, system) };
        if let Some(what) = self.difference(&known, &seen) {
            return Err(self.another(what));
        }
        if is_other_in_port(&known, &seen) && (known.usb != seen.usb || known.serial != seen.serial) {
            let (was, is) = (in_words(&known), in_words(&seen));
            info!(target = %self.target.shown(), was, is, "the device has become another one in its port: it is followed");
            // The target stands for the first one.
            return Ok(());
        }
        // What is not told this time stays known.
        let merged = AttachedDevice {
            usb: seen.usb.or(known.usb),
            serial: seen.serial.clone().or_else(|| known.serial.clone().filter(|_| known.usb == seen.usb)),
            bus_id: seen.bus_id.clone().or_else(|| known.bus_id.clone()),
            is_lasting: seen.is_lasting || (known.is_lasting && known.id == seen.id),
            stores_data: seen.stores_data || (known.stores_data && known.id == seen.id),
            ..seen
        };
        if merged == known { Ok(()) } else { self.keep(merged, system) }
    }

    /// A host that waits for the device was told which one it is: no other one is taken later.
    pub fn note_awaited(&self, identity: ExportIdentity, is_lasting: bool, stores_data: bool) {
        let seen = AttachedDevice { is_lasting, stores_data, ..with_identity(Some(identity)) };
        self.memory().device.get_or_insert(seen);
    }

    /// The medium of the device was exchanged while it was in use: the former ones are not the device any more.
    pub fn note_generation(&self, identity: Option<ExportIdentity>, system: &SystemAccess) {
        let known = self.memory().device.clone();
        let (Some(known), Some(now)) = (known, identity) else { return };
        let is_later = identity_of(&known).is_some_and(|before| now.continues(before) && now != before);
        if is_later && let Err(error) = self.keep(AttachedDevice { generation: now.generation, ..known }, system) {
            warn!(target = %self.target.shown(), %error, "the medium that it has now is not remembered");
        }
    }

    /// Remembers the device of an attachment that another process began, which may not have known how.
    pub fn note_inherited(&self, identity: Option<ExportIdentity>, stores_data: bool, system: &SystemAccess) {
        if self.memory().device.is_some() || identity.is_none() || !stores_data {
            return;
        }
        let seen = AttachedDevice { stores_data, ..with_identity(identity) };
        if let Err(error) = self.keep(seen, system) {
            warn!(target = %self.target.shown(), %error, "after a restart it is not known which device this was");
        }
    }

    fn keep(&self, seen: AttachedDevice, system: &SystemAccess) -> Result<(), ClientError> {
        if let DeviceReopener::Daemon(config) = &self.by {
            let kept = system.keep_attached_device(config, &self.target.to_string(), Some(&seen));
            kept.map_err(|error| {
                let what = format!("{}: which device this is cannot be remembered", self.target.shown());
                ClientError::Local(format!("{what}: {error}\n  make room, or let farbus write there"))
            })?;
        }
        self.memory().device = Some(seen);
        Ok(())
    }

    /// Forgets the device: the next one that is opened is remembered, whichever it is.
    ///
    /// # Errors
    /// It cannot be forgotten durably.
    pub fn forget(&self, system: &SystemAccess) -> std::io::Result<()> {
        if let DeviceReopener::Daemon(config) = &self.by {
            system.keep_attached_device(config, &self.target.to_string(), None)?;
        }
        *self.memory() = RememberedDeviceInner { is_recalled: true, ..RememberedDeviceInner::default() };
        Ok(())
    }

    /// The error of an attempt to open the target, where another device is.
    pub fn another(&self, what: String) -> ClientError {
        let shown = self.target.shown();
        let next = match self.by {
            DeviceReopener::Daemon(_) => {
                format!(
                    "it is attached when the former one is back; to attach what is there now: farbus daemon reload --adopt {shown}"
                )
            }
            DeviceReopener::Attach => format!("to attach what is there now: farbus attach {shown}"),
            DeviceReopener::Run => "it is waited for; to use what is there now, start the program anew".to_owned(),
        };
        ClientError::AnotherDevice { target: self.target.clone(), what, next }
    }

    /// How `seen` is another device than the known one; `None` if it is the same, as far as can be told.
    fn difference(&self, known: &AttachedDevice, seen: &AttachedDevice) -> Option<String> {
        let is_bound = self.is_bound(known);
        let name = &self.target.device;
        if is_other_in_port(known, seen)
            && let Some(make) = seen.usb
        {
            let has_other_serial = seen.serial.is_some() && known.serial.is_some() && seen.serial != known.serial;
            let takes = match &self.follow {
                None => known.usb != seen.usb,
                Some(follow) => follow.takes(make) && (known.usb != seen.usb || !has_other_serial || follow.is_any()),
            };
            if takes || known.usb != seen.usb {
                return (!takes).then(|| unlike(name, known, seen));
            }
        }
        match (identity_of(known), identity_of(seen)) {
            (Some(expected), actual) if is_bound => compare(name, expected, actual).err().map(|end| end.message),
            _ if self.by == DeviceReopener::Run && !known.stores_data && !seen.stores_data => {
                let is_same_make = known.usb == seen.usb;
                let has_other = seen.serial.is_some() && known.serial.is_some() && seen.serial != known.serial;
                (is_same_make && has_other).then(|| unlike(name, known, seen))
            }
            _ => {
                let is_other_make = known.usb.is_some() && seen.usb.is_some() && known.usb != seen.usb;
                let is_other_one = known.serial.is_some() && known.serial != seen.serial;
                (is_other_make || is_other_one).then(|| unlike(name, known, seen))
            }
        }
    }
}

/// What is known of a USB device from its descriptors.
pub fn device_of(identity: Option<ExportIdentity>, descriptors: &DescriptorSet) -> AttachedDevice {
    let device = &descriptors.device;
    AttachedDevice {
        usb: Some((device.vendor, device.product)),
        serial: descriptors.string(device.serial_string).map(str::to_owned).filter(|serial| !serial.is_empty()),
        stores_data: descriptors.stores_data(),
        ..with_identity(identity)
    }
}

/// A device of which this identity is known.
pub fn with_identity(identity: Option<ExportIdentity>) -> AttachedDevice {
    AttachedDevice {
        id: identity.map(DeviceId::of),
        generation: identity.map_or(0, |identity| identity.generation),
        ..AttachedDevice::default()
    }
}

fn identity_of(device: &AttachedDevice) -> Option<ExportIdentity> {
    device.id.map(|id| ExportIdentity { id: id.number(), generation: device.generation })
}

/// Whether what a device is decides, and not its identity: both are USB devices, and none stores data.
fn is_other_in_port(known: &AttachedDevice, seen: &AttachedDevice) -> bool {
    known.usb.is_some() && seen.usb.is_some() && !known.stores_data && !seen.stores_data
}

/// Names both devices.
fn unlike(name: &str, known: &AttachedDevice, seen: &AttachedDevice) -> String {
    format!("'{name}' is another device now: it was {} and is {}", in_words(known), in_words(seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::follow::FollowWord;

    const A: ExportIdentity = ExportIdentity { id: 1, generation: 3 };
    const B: ExportIdentity = ExportIdentity { id: 2, generation: 0 };

    fn usb(product: u16, serial: Option<&str>) -> AttachedDevice {
        AttachedDevice { usb: Some((0x10c4, product)), serial: serial.map(str::to_owned), ..AttachedDevice::default() }
    }

    fn disk(identity: Option<ExportIdentity>) -> AttachedDevice {
        AttachedDevice { stores_data: true, ..with_identity(identity) }
    }

    /// Whether `then` is taken for the device that was `first`.
    fn is_taken(by: DeviceReopener, first: AttachedDevice, then: AttachedDevice) -> bool {
        let target: DeviceTarget = "lab3/1-1".parse().unwrap();
        let remembered = RememberedDevice::new(&target, by);
        remembered.check(first, &SystemAccess::Own).unwrap();
        let checked = remembered.check(then, &SystemAccess::Own);
        assert!(matches!(checked, Ok(()) | Err(ClientError::AnotherDevice { .. })), "{checked:?}");
        checked.is_ok()
    }

    #[test]
    fn disk_is_known_by_its_identity_alone() {
        for by in [DeviceReopener::Attach, DeviceReopener::Run] {
            let is_taken = |first, then| is_taken(by.clone(), disk(first), disk(then));
            assert!(is_taken(Some(A), Some(A)) && is_taken(Some(A), Some(ExportIdentity { generation: 4, ..A })));
            assert!(!is_taken(Some(A), Some(B)) && !is_taken(Some(A), None));
            assert!(!is_taken(Some(A), Some(A.adopted())), "its owner gave the identity to another medium");
            assert!(!is_taken(Some(A), Some(ExportIdentity { generation: 2, ..A })), "a swap has retired that medium");
        }
    }

    #[test]
    fn identity_that_lasts_decides_and_one_that_does_not_leaves_it_to_the_marks() {
        let seen = |identity, is_lasting| AttachedDevice {
            is_lasting,
            ..AttachedDevice { id: with_identity(Some(identity)).id, ..usb(1, None) }
        };
        assert!(!is_taken(DeviceReopener::Attach, seen(A, true), seen(B, true)));
        assert!(is_taken(DeviceReopener::Attach, seen(A, false), seen(B, false)), "its exporter was started anew");
    }

    #[test]
    fn device_of_a_plain_exporter_is_known_by_vendor_product_and_serial_number() {
        let is_taken = |first, then| is_taken(DeviceReopener::Attach, first, then);
        assert!(is_taken(usb(1, Some("zigbee")), usb(1, Some("zigbee"))) && is_taken(usb(1, None), usb(1, None)));
        assert!(!is_taken(usb(1, Some("zigbee")), usb(1, Some("zwave"))));
        assert!(!is_taken(usb(1, Some("zigbee")), usb(1, None)), "it did not tell its serial number this time");
        assert!(!is_taken(usb(1, None), usb(2, None)));
    }

    #[test]
    fn program_follows_a_device_that_becomes_another_but_gets_no_other_one_of_its_make() {
        let is_taken = |first, then| is_taken(DeviceReopener::Run, first, then);
        assert!(is_taken(usb(1, Some("a")), usb(2, None)), "it was flashed");
        assert!(!is_taken(usb(1, Some("a")), usb(1, Some("b"))));
        assert!(!is_taken(usb(1, None), AttachedDevice { stores_data: true, ..usb(2, None) }), "no disk is followed");
    }

    #[test]
    fn device_that_becomes_another_is_followed_as_its_user_says_and_the_first_one_stays_the_one() {
        let identified =
            |identity, device| AttachedDevice { id: with_identity(Some(identity)).id, is_lasting: true, ..device };
        let target: DeviceTarget = "lab3/board".parse().unwrap();
        let remembered = |words: &[&str]| {
            let follow: FollowPolicy = words.iter().map(|word| word.parse::<FollowWord>().unwrap()).collect();
            RememberedDevice::new(&target, DeviceReopener::Attach).following(&follow)
        };
        let own = SystemAccess::Own;
        let (first, other) = (identified(A, usb(1, Some("a"))), identified(B, usb(2, None)));
        let follows = remembered(&["10c4:0002"]);
        follows.check(first.clone(), &own).unwrap();
        assert_eq!(follows.expectation(), None, "its exporter may not follow, and tell another identity");
        follows.check(other.clone(), &own).unwrap();
        follows.check(first.clone(), &own).unwrap();
        follows.check(usb(3, None), &own).unwrap_err();
        follows.check(AttachedDevice { stores_data: true, ..other.clone() }, &own).unwrap_err();
        follows.check(usb(1, Some("b")), &own).unwrap_err();
        let any = remembered(&["port"]);
        any.check(first.clone(), &own).unwrap();
        any.check(usb(1, Some("b")), &own).unwrap();
        let nothing = remembered(&[]);
        nothing.check(first.clone(), &own).unwrap();
        nothing.check(identified(A, usb(2, None)), &own).unwrap_err();
        nothing.check(first, &own).unwrap();
    }

    #[test]
    fn what_is_awaited_is_what_is_taken() {
        let target: DeviceTarget = "lab3/disk".parse().unwrap();
        let remembered = RememberedDevice::new(&target, DeviceReopener::Attach);
        remembered.note_awaited(A, true, true);
        assert_eq!(remembered.expectation(), Some(A));
        assert!(remembered.check(disk(Some(B)), &SystemAccess::Own).is_err());
        assert!(remembered.check(disk(Some(A)), &SystemAccess::Own).is_ok());
    }
}
