//! The settings that a device's user has made, as far as a twin must get them, too.
//!
//! | request | what is remembered |
//! |---|---|
//! | SET_CONFIGURATION, SET_INTERFACE | what is active: [`Selection`](farbus_model::ConfigurationSelection) |
//! | CLEAR_FEATURE, SET_FEATURE of the device: remote wake-up | the last |
//! | HID 1.11 §7.2: SET_REPORT, SET_IDLE | the last of each report |
//! | HID: SET_PROTOCOL | the last |
//! | CDC PSTN 1.2 §6.3: SET_LINE_CODING, SET_CONTROL_LINE_STATE, SET_COMM_FEATURE | the last of each |
//! | CDC ECM 1.2 §6.2: multicast filters, packet filter; NCM 1.0 §6.2: formats, sizes, address | the last of each |
//! | Audio and video: SET_CUR | the last of each control of each unit, interface and endpoint |
//! | a vendor OUT request (FTDI's baud rate, …) | each different one, in order, the last [`VENDOR_SETTINGS_MAX`] |
//! | anything else: RNDIS messages, a break, mass storage reset | nothing: it triggers something, or its effect is not known |
//!
//! Only requests that the device accepted count.

use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{DescriptorSet, SetupPacket, TransferDirection};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Vendor requests that are remembered: an adapter's driver makes about a dozen. A driver that loads firmware makes
/// more, and such a device cannot be set up again this way.
pub const VENDOR_SETTINGS_MAX: usize = 128;

/// Least bytes of a saved setting: its setup packet and the length of its data.
const SETTING_BYTES_MIN: usize = 12;

/// An OUT control request that makes a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSetting {
    /// Its setup packet.
    pub setup: SetupPacket,
    /// The bytes of its OUT data stage; empty if it has none.
    pub data: Vec<u8>,
}

/// All settings, in the order in which they were last made.
#[derive(Clone, Debug, Default)]
pub struct DeviceSettings {
    all: Vec<ControlSetting>,
}

/// Class codes (USB-IF "Defined Class Codes").
mod class {
    pub const AUDIO: u8 = 1;
    pub const COMMUNICATIONS: u8 = 2;
    pub const HID: u8 = 3;
    pub const VIDEO: u8 = 14;
}

/// What distinguishes two settings of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingScope {
    /// One for each `wIndex`.
    Index,
    /// Additionally by the low byte of `wValue`: an id.
    LowValue,
    /// Additionally by all of `wValue`: a selector.
    Value,
    /// Each different request counts.
    Each,
}

/// Whether a request makes a setting that can be repeated.
pub fn is_setting(all: &DescriptorSet, configuration: u8, setup: SetupPacket) -> bool {
    scope_of(all, configuration, setup).is_some()
}

fn scope_of(all: &DescriptorSet, configuration: u8, setup: SetupPacket) -> Option<SettingScope> {
    if setup.direction() == TransferDirection::In && setup.length > 0 {
        return None;
    }
    match setup.kind() {
        RequestKind::Vendor => Some(SettingScope::Each),
        RequestKind::Standard => {
            let is_feature = matches!(setup.request, request::SET_FEATURE | request::CLEAR_FEATURE);
            let is_wakeup =
                setup.recipient() == RequestRecipient::Device && setup.value == request::DEVICE_REMOTE_WAKEUP;
            (is_feature && is_wakeup).then_some(SettingScope::Value)
        }
        RequestKind::Class => match (class_of(all, configuration, setup)?, setup.request) {
            (class::HID, 0x09) => Some(SettingScope::Value),
            (class::HID, 0x0a) => Some(SettingScope::LowValue),
            (class::HID, 0x0b) => Some(SettingScope::Index),
            (class::COMMUNICATIONS, 0x02) => Some(SettingScope::Value),
            (class::COMMUNICATIONS, 0x20 | 0x22 | 0x40 | 0x43 | 0x82 | 0x84 | 0x86 | 0x88 | 0x8a) => {
                Some(SettingScope::Index)
            }
            (class::AUDIO | class::VIDEO, 0x01) => Some(SettingScope::Value),
            _ => None,
        },
        RequestKind::Reserved => None,
    }
}

/// The class of the interface that a request addresses.
fn class_of(all: &DescriptorSet, configuration: u8, setup: SetupPacket) -> Option<u8> {
    let settings = &all.configuration(configuration)?.settings;
    let number = setup.index as u8;
    let found = match setup.recipient() {
        RequestRecipient::Interface => settings.iter().find(|setting| setting.interface == number),
        RequestRecipient::Endpoint => {
            settings.iter().find(|setting| setting.endpoints.iter().any(|e| e.address.as_byte() == number))
        }
        RequestRecipient::Device | RequestRecipient::Other => None,
    };
    found.map(|setting| setting.class[0])
}

impl DeviceSettings {
    /// Records a setting that the device has accepted.
    pub fn note(&mut self, all: &DescriptorSet, configuration: u8, setting: ControlSetting) {
        let Some(scope) = scope_of(all, configuration, setting.setup) else { return };
        let new = setting.setup;
        // Setting and clearing a feature replace each other.
        let is_same_request = |old: SetupPacket| match new.kind() {
            RequestKind::Standard => old.kind() == RequestKind::Standard,
            _ => old.request_type == new.request_type && old.request == new.request,
        };
        self.all.retain(|old| {
            let is_replaced = is_same_request(old.setup)
                && old.setup.index == new.index
                && match scope {
                    SettingScope::Index => true,
                    SettingScope::LowValue => old.setup.value as u8 == new.value as u8,
                    SettingScope::Value => old.setup.value == new.value,
                    SettingScope::Each => *old == setting,
                };
            !is_replaced
        });
        self.all.push(setting);
        let is_vendor = |setting: &ControlSetting| setting.setup.kind() == RequestKind::Vendor;
        if self.all.iter().filter(|old| is_vendor(old)).count() > VENDOR_SETTINGS_MAX
            && let Some(oldest) = self.all.iter().position(is_vendor)
        {
            self.all.remove(oldest);
        }
    }

    /// Another configuration was selected: drops the settings of interfaces (USB 2.0 §9.1.1.5).
    pub fn forget_interfaces(&mut self) {
        self.all.retain(|setting| setting.setup.kind() != RequestKind::Class);
    }

    /// The bus was reset: drops all settings.
    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// Writes it to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.all.len());
        for ControlSetting { setup, data } in &self.all {
            to.raw(&setup.to_bytes());
            to.bytes(data);
        }
    }

    /// Restores it from a snapshot.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot ends too early.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut all = Vec::new();
        for _ in 0..from.count("settings", SETTING_BYTES_MIN)? {
            let setup = from.take(8, "setup")?.try_into().expect("eight bytes");
            all.push(ControlSetting { setup: SetupPacket::from_bytes(setup), data: from.bytes("data")?.to_vec() });
        }
        Ok(Self { all })
    }

    /// All settings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &ControlSetting> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::descriptor::UsbConfiguration;

    use super::*;

    /// A configuration with one interface of each class, numbered by the class.
    fn device() -> DescriptorSet {
        let interfaces = [class::AUDIO, class::COMMUNICATIONS, class::HID, 8, class::VIDEO];
        let mut bytes = vec![9, 2, 0, 0, interfaces.len() as u8, 1, 0, 0x80, 50];
        for class in interfaces {
            bytes.extend([9, 4, class, 0, 0, class, 0, 0, 0]);
        }
        let total = (bytes.len() as u16).to_le_bytes();
        bytes[2..4].copy_from_slice(&total);
        DescriptorSet { configurations: vec![UsbConfiguration::parse(&bytes).unwrap()], ..DescriptorSet::default() }
    }

    fn setting(request_type: u8, request: u8, value: u16, index: u16, data: &[u8]) -> ControlSetting {
        let setup = SetupPacket { request_type, request, value, index, length: data.len() as u16 };
        ControlSetting { setup, data: data.to_vec() }
    }

    #[test]
    fn last_setting_of_each_kind_is_remembered() {
        let (line, dtr, idle) = ((0x21, 0x20), (0x21, 0x22), (0x21, 0x0a));
        let control_settings = [
            setting(line.0, line.1, 0, 2, &[0x80, 0x25, 0, 0, 0, 0, 8]),
            setting(dtr.0, dtr.1, 3, 2, &[]),
            setting(idle.0, idle.1, 0x0401, 3, &[]),
            setting(idle.0, idle.1, 0x0402, 3, &[]),
            setting(line.0, line.1, 0, 2, &[0, 0xc2, 1, 0, 0, 0, 8]),
            setting(idle.0, idle.1, 0x0801, 3, &[]),
            setting(0x40, 3, 0x001a, 0, &[]),
            setting(0x40, 3, 0x4138, 0, &[]),
            setting(0x40, 3, 0x001a, 0, &[]),
        ];
        let mut settings = DeviceSettings::default();
        for one in &control_settings {
            assert!(is_setting(&device(), 1, one.setup), "{one:?}");
            settings.note(&device(), 1, one.clone());
        }
        let left: Vec<_> = settings.iter().cloned().collect();
        assert_eq!(left, [1, 3, 4, 5, 7, 8].map(|at| control_settings[at].clone()));
        settings.forget_interfaces();
        assert_eq!(settings.iter().count(), 2);
        settings.clear();
        assert_eq!(settings.iter().count(), 0);
    }

    #[test]
    fn requests_that_trigger_something_are_not_repeated() {
        let not = [
            // SEND_ENCAPSULATED_COMMAND and a break, mass storage's reset, an unknown interface, what is read.
            setting(0x21, 0x00, 0, 2, &[1]),
            setting(0x21, 0x23, 100, 2, &[]),
            setting(0x21, 0xff, 0, 8, &[]),
            setting(0x21, 0x20, 0, 77, &[]),
            setting(0xa1, 0x21, 0, 2, &[0; 7]),
            setting(0xc0, 0x05, 0, 0, &[0; 2]),
            setting(0, request::SET_FEATURE, 48, 0, &[]),
        ];
        for one in not {
            assert!(!is_setting(&device(), 1, one.setup), "{one:?}");
        }
        let mut settings = DeviceSettings::default();
        settings.note(&device(), 1, setting(0, request::SET_FEATURE, request::DEVICE_REMOTE_WAKEUP, 0, &[]));
        settings.note(&device(), 1, setting(0, request::CLEAR_FEATURE, request::DEVICE_REMOTE_WAKEUP, 0, &[]));
        assert_eq!(settings.iter().map(|one| one.setup.request).collect::<Vec<_>>(), [request::CLEAR_FEATURE]);
    }

    #[test]
    fn number_of_remembered_vendor_requests_is_bounded() {
        let mut settings = DeviceSettings::default();
        for value in 0..1000 {
            settings.note(&device(), 1, setting(0x40, 1, value, 0, &[]));
        }
        assert_eq!(settings.iter().count(), VENDOR_SETTINGS_MAX);
        assert_eq!(settings.iter().last().map(|one| one.setup.value), Some(999));
    }

    #[test]
    fn settings_survive_a_snapshot_and_a_truncated_one_is_refused() {
        let device = device();
        let mut settings = DeviceSettings::default();
        for (request, data) in [(0x20, vec![1; 7]), (0x22, Vec::new())] {
            settings.note(&device, 1, setting(0x21, request, 3, 2, &data));
        }
        let mut to = SnapshotWriter::part();
        settings.save(&mut to);
        let bytes = to.into_bytes();
        let read = DeviceSettings::restore(&mut FieldReader::new(&bytes)).unwrap();
        assert_eq!(read.all.len(), 2);
        assert!(read.iter().eq(settings.iter()));
        assert!((0..bytes.len()).all(|end| DeviceSettings::restore(&mut FieldReader::new(&bytes[..end])).is_err()));
    }
}
