//! What a device's folder below `/sys/bus/usb/devices` contains, as libudev, libusb, nusb and `usb-devices` read it.
//!
//! The names and forms are those of `drivers/usb/core/sysfs.c`, `endpoint.c` and `usb.c` (uevents) of Linux 6.1.
//! Attributes that only a kernel has (power management, port policies) are left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use farbus_model::descriptor::{AltSetting, UsbConfiguration};
use farbus_model::{
    ConfigurationSelection, DescriptorSet, EndpointDescriptor, TransferDirection, TransferType, UsbSpeed,
};

use super::node::UsbBusLocation;

/// The major number of USB devices' nodes (`USB_DEVICE_MAJOR`).
const MAJOR: u32 = 189;
/// Minor numbers of one bus.
const MINORS_PER_BUS: u32 = 128;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysfsEntry {
    /// A folder: its entries by name.
    Folder(BTreeMap<String, SysfsEntry>),
    /// An attribute, with what reading it gives.
    File(Vec<u8>),
    /// A symbolic link.
    Link(String),
}

impl SysfsEntry {
    /// What is at a path, with `/` between names.
    pub fn find(&self, path: &str) -> Option<&SysfsEntry> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(self, |entry, name| match entry {
            SysfsEntry::Folder(entries) => entries.get(name),
            SysfsEntry::File(_) | SysfsEntry::Link(_) => None,
        })
    }

    /// As [`SysfsEntry::find`], to change it.
    pub fn find_mut(&mut self, path: &str) -> Option<&mut SysfsEntry> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(self, |entry, name| match entry {
            SysfsEntry::Folder(entries) => entries.get_mut(name),
            SysfsEntry::File(_) | SysfsEntry::Link(_) => None,
        })
    }
}

/// The name of a device's folder: `3-1.4`, or `usb3` for the root hub of bus 3.
pub fn folder_name(location: &UsbBusLocation) -> String {
    if location.ports.is_empty() {
        format!("usb{}", location.bus)
    } else {
        format!("{}-{}", location.bus, ports(location))
    }
}

fn ports(location: &UsbBusLocation) -> String {
    location.ports.iter().map(u8::to_string).collect::<Vec<_>>().join(".")
}

/// The minor number of the device's node.
fn minor(location: &UsbBusLocation) -> u32 {
    u32::from(location.bus).saturating_sub(1) * MINORS_PER_BUS + u32::from(location.device).saturating_sub(1)
}

/// A device, as far as its folder shows it.
#[derive(Clone, Copy, Debug)]
pub struct SysfsDevice<'a> {
    /// The descriptors that the attributes show: device, configurations and strings.
    pub descriptors: &'a DescriptorSet,
    /// The configuration and the alternate settings that are selected.
    pub selection: &'a ConfigurationSelection,
    /// The speed at which it is attached, as `speed` shows it in Mb/s.
    pub speed: UsbSpeed,
    /// Its bus, its number there, and the ports that lead to it.
    pub location: &'a UsbBusLocation,
    /// How many ports it has; 0 unless it is a hub.
    pub ports: u8,
}

/// A folder that is being filled.
#[derive(Default)]
struct SysfsFolder(BTreeMap<String, SysfsEntry>);

impl SysfsFolder {
    fn line(&mut self, name: &str, text: impl std::fmt::Display) {
        self.0.insert(name.to_owned(), SysfsEntry::File(format!("{text}\n").into_bytes()));
    }

    fn link(&mut self, name: &str, to: &str) {
        self.0.insert(name.to_owned(), SysfsEntry::Link(to.to_owned()));
    }
}

impl SysfsDevice<'_> {
    /// The device's folder, those of its interfaces in it.
    pub fn folder(&self) -> SysfsEntry {
        let mut folder = SysfsFolder::default();
        self.put_device(&mut folder);
        let active = self.descriptors.configuration(self.selection.configuration());
        self.put_configuration(&mut folder, active);
        folder.0.insert("ep_00".to_owned(), endpoint_folder(&self.control_endpoint(), 0, self.speed));
        let settings = active.iter().flat_map(|active| &active.settings);
        for setting in settings.filter(|setting| setting.alternate == self.selection.alternate(setting.interface)) {
            folder.0.insert(self.interface_name(setting.interface), self.interface_folder(setting));
        }
        SysfsEntry::Folder(folder.0)
    }

    /// The name of an interface's folder: `3-1.4:1.0`, of a root hub `3-0:1.0` (`usb_set_configuration`).
    pub fn interface_name(&self, interface: u8) -> String {
        let UsbBusLocation { bus, ports: path, .. } = self.location;
        let path = if path.is_empty() { "0".to_owned() } else { ports(self.location) };
        format!("{bus}-{path}:{}.{interface}", self.selection.configuration())
    }

    /// The bytes of the attribute `descriptors`: as reading the node.
    fn descriptor_bytes(&self) -> Vec<u8> {
        let configurations = self.descriptors.configurations.iter().flat_map(|configuration| &configuration.bytes);
        self.descriptors.device.to_bytes().iter().chain(configurations).copied().collect()
    }

    fn put_device(&self, folder: &mut SysfsFolder) {
        let device = &self.descriptors.device;
        let [class, subclass, protocol] = device.class;
        for (name, byte) in [("bDeviceClass", class), ("bDeviceSubClass", subclass), ("bDeviceProtocol", protocol)] {
            folder.line(name, format_args!("{byte:02x}"));
        }
        let numbers = [("idVendor", device.vendor), ("idProduct", device.product), ("bcdDevice", device.device_bcd)];
        numbers.into_iter().for_each(|(name, number)| folder.line(name, format_args!("{number:04x}")));
        folder.line("version", format_args!("{:2x}.{:02x}", device.usb_bcd >> 8, device.usb_bcd & 0xff));
        // As the descriptor has it (`bMaxPacketSize0`), also where SuperSpeed means a power of two.
        folder.line("bMaxPacketSize0", device.to_bytes()[7]);
        folder.line("bNumConfigurations", device.configurations);
        let strings = [
            ("manufacturer", device.manufacturer_string),
            ("product", device.product_string),
            ("serial", device.serial_string),
        ];
        for (name, index) in strings {
            if let Some(text) = self.descriptors.string(index).filter(|_| index != 0) {
                folder.line(name, text);
            }
        }
        folder.line("busnum", self.location.bus);
        folder.line("devnum", self.location.device);
        folder.line("devpath", if self.location.ports.is_empty() { "0".to_owned() } else { ports(self.location) });
        folder.line("dev", self.number());
        folder.line("speed", megabits(self.speed));
        folder.line("rx_lanes", 1);
        folder.line("tx_lanes", 1);
        folder.line("maxchild", self.ports);
        folder.line("urbnum", 0);
        folder.line("quirks", "0x0");
        folder.line("authorized", 1);
        folder.line("ltm_capable", "no");
        folder.line("removable", "unknown");
        folder.0.insert("descriptors".to_owned(), SysfsEntry::File(self.descriptor_bytes()));
        folder.link("subsystem", "/sys/bus/usb");
        folder.0.insert("uevent".to_owned(), SysfsEntry::File(self.device_uevent().into_bytes()));
    }

    fn put_configuration(&self, folder: &mut SysfsFolder, active: Option<&UsbConfiguration>) {
        // Empty, as in a kernel, while nothing is configured (`usb_actconfig_show`).
        let Some(active) = active else {
            for name in ["bConfigurationValue", "bmAttributes", "bMaxPower", "bNumInterfaces", "configuration"] {
                folder.0.insert(name.to_owned(), SysfsEntry::File(Vec::new()));
            }
            return;
        };
        // USB 2.0 table 9-10: offsets 7 and 8; a unit is 2 mA, or 8 mA from SuperSpeed on (USB 3.2 table 9-22).
        let [attributes, power] = [7, 8].map(|at| active.bytes.get(at).copied().unwrap_or(0));
        let name = active.name_string();
        let unit_ma = if self.speed >= UsbSpeed::Super { 8 } else { 2 };
        folder.line("bConfigurationValue", active.value);
        folder.line("bmAttributes", format_args!("{attributes:02x}"));
        folder.line("bMaxPower", format_args!("{}mA", u32::from(power) * unit_ma));
        folder.line("bNumInterfaces", format_args!("{:2}", active.interfaces().count()));
        let text = self.descriptors.string(name).filter(|_| name != 0);
        folder.0.insert(
            "configuration".to_owned(),
            SysfsEntry::File(text.map(|text| format!("{text}\n").into_bytes()).unwrap_or_default()),
        );
    }

    fn control_endpoint(&self) -> EndpointDescriptor {
        EndpointDescriptor {
            address: farbus_model::EpAddr::CONTROL,
            kind: TransferType::Control,
            packet_bytes_max: if self.speed >= UsbSpeed::Super {
                512
            } else {
                self.descriptors.device.to_bytes()[7].into()
            },
            packets_per_interval: 1,
            interval: 0,
        }
    }

    /// The number of the device's node, `MAJOR:MINOR`.
    pub(super) fn number(&self) -> String {
        format!("{MAJOR}:{}", minor(self.location))
    }

    fn product(&self) -> String {
        let device = &self.descriptors.device;
        format!("{:x}/{:x}/{:x}", device.vendor, device.product, device.device_bcd)
    }

    fn device_type(&self) -> String {
        let [class, subclass, protocol] = self.descriptors.device.class;
        format!("{class}/{subclass}/{protocol}")
    }

    /// What the attribute `uevent` shows; an event has the same lines.
    pub fn device_uevent(&self) -> String {
        let UsbBusLocation { bus, device, .. } = self.location;
        format!(
            "MAJOR={MAJOR}\nMINOR={}\nDEVNAME=bus/usb/{bus:03}/{device:03}\nDEVTYPE=usb_device\nDRIVER=usb\nPRODUCT={}\nTYPE={}\nBUSNUM={bus:03}\nDEVNUM={device:03}\n",
            minor(self.location),
            self.product(),
            self.device_type(),
        )
    }

    /// What the attribute `uevent` of an interface shows; an event of the interface has the same lines.
    pub fn interface_uevent(&self, setting: &AltSetting) -> String {
        let [class, subclass, protocol] = setting.class;
        format!(
            "DEVTYPE=usb_interface\nPRODUCT={}\nTYPE={}\nINTERFACE={class}/{subclass}/{protocol}\nMODALIAS={}\n",
            self.product(),
            self.device_type(),
            self.modalias(setting)
        )
    }

    fn modalias(&self, setting: &AltSetting) -> String {
        let device = &self.descriptors.device;
        let mut alias = format!("usb:v{:04X}p{:04X}d{:04X}", device.vendor, device.product, device.device_bcd);
        let names = ["dc", "dsc", "dp", "ic", "isc", "ip"];
        for (name, byte) in names.into_iter().zip(device.class.into_iter().chain(setting.class)) {
            let _ = write!(alias, "{name}{byte:02X}");
        }
        let _ = write!(alias, "in{:02X}", setting.interface);
        alias
    }

    fn interface_folder(&self, setting: &AltSetting) -> SysfsEntry {
        let mut folder = SysfsFolder::default();
        let [class, subclass, protocol] = setting.class;
        folder.line("bInterfaceNumber", format_args!("{:02x}", setting.interface));
        folder.line("bAlternateSetting", format_args!("{:2}", setting.alternate));
        folder.line("bNumEndpoints", format_args!("{:02x}", setting.endpoints.len()));
        for (name, byte) in
            [("bInterfaceClass", class), ("bInterfaceSubClass", subclass), ("bInterfaceProtocol", protocol)]
        {
            folder.line(name, format_args!("{byte:02x}"));
        }
        if let Some(text) = self.descriptors.string(setting.name_string).filter(|_| setting.name_string != 0) {
            folder.line("interface", text);
        }
        folder.line("modalias", self.modalias(setting));
        folder.line("authorized", 1);
        folder.line("supports_autosuspend", 0);
        folder.link("subsystem", "/sys/bus/usb");
        folder.0.insert("uevent".to_owned(), SysfsEntry::File(self.interface_uevent(setting).into_bytes()));
        for endpoint in &setting.endpoints {
            let name = format!("ep_{:02x}", endpoint.address.as_byte());
            folder.0.insert(name, endpoint_folder(endpoint, endpoint.interval, self.speed));
        }
        SysfsEntry::Folder(folder.0)
    }
}

/// The text of the attribute `speed` in Mb/s, as `speed_show` of the kernel writes it.
fn megabits(speed: UsbSpeed) -> &'static str {
    match speed {
        UsbSpeed::Low => "1.5",
        UsbSpeed::Full => "12",
        UsbSpeed::High => "480",
        UsbSpeed::Super => "5000",
        UsbSpeed::SuperPlus => "10000",
    }
}

fn endpoint_folder(endpoint: &EndpointDescriptor, interval: u8, speed: UsbSpeed) -> SysfsEntry {
    let mut folder = SysfsFolder::default();
    let (kind, direction) = match (endpoint.kind, endpoint.address.direction()) {
        (TransferType::Control, _) => ("Control", "both"),
        (kind, direction) => {
            let kind = match kind {
                TransferType::Isochronous => "Isoc",
                TransferType::Interrupt => "Interrupt",
                _ => "Bulk",
            };
            (kind, if direction == TransferDirection::In { "in" } else { "out" })
        }
    };
    // USB 2.0 table 9-13: bits 11 and 12 say how many more packets a microframe has.
    let more = if speed == UsbSpeed::High { endpoint.packets_per_interval.saturating_sub(1).min(2) << 11 } else { 0 };
    folder.line("bLength", "07");
    folder.line("bEndpointAddress", format_args!("{:02x}", endpoint.address.as_byte()));
    folder.line("bmAttributes", format_args!("{:02x}", endpoint.kind.as_attributes()));
    folder.line("bInterval", format_args!("{interval:02x}"));
    folder.line("wMaxPacketSize", format_args!("{:04x}", endpoint.packet_bytes_max | more));
    folder.line("type", kind);
    folder.line("direction", direction);
    folder.line("interval", shown_interval(endpoint, speed));
    SysfsEntry::Folder(folder.0)
}

/// How often an endpoint is polled, in us or in ms where that is whole (`interval_show`).
fn shown_interval(endpoint: &EndpointDescriptor, speed: UsbSpeed) -> String {
    let is_periodic = matches!(endpoint.kind, TransferType::Interrupt | TransferType::Isochronous);
    let us = if is_periodic { endpoint.service_interval(speed).as_micros() } else { 0 };
    if us % 1000 == 0 { format!("{}ms", us / 1000) } else { format!("{us}us") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farbus_model::DeviceDefinition;
    use farbus_model::definition::InterfaceDefinition;

    use super::*;

    fn text<'a>(folder: &'a SysfsEntry, path: &str) -> &'a str {
        match folder.find(path) {
            Some(SysfsEntry::File(bytes)) => std::str::from_utf8(bytes).expect("an attribute is text"),
            other => panic!("{path}: {other:?}"),
        }
    }

    fn keyboard() -> DescriptorSet {
        DeviceDefinition::new(0x1209, 0x00a1)
            .names("farbus", "a keyboard", "FB01")
            .interface(InterfaceDefinition::vendor().interrupt(1, TransferDirection::In, 8, Duration::from_micros(500)))
            .build()
    }

    #[test]
    fn a_configured_device_has_the_attributes_that_a_kernel_shows() {
        let descriptors = keyboard();
        let mut selection = ConfigurationSelection::default();
        assert!(selection.select_configuration(&descriptors, 1));
        let location = UsbBusLocation { bus: 3, device: 7, ports: vec![1, 4] };
        let shown = SysfsDevice {
            descriptors: &descriptors,
            selection: &selection,
            speed: UsbSpeed::High,
            location: &location,
            ports: 0,
        };
        let folder = shown.folder();
        for (path, expected) in [
            ("idVendor", "1209\n"),
            ("idProduct", "00a1\n"),
            ("product", "a keyboard\n"),
            ("serial", "FB01\n"),
            ("version", " 2.00\n"),
            ("speed", "480\n"),
            ("devpath", "1.4\n"),
            ("dev", "189:262\n"),
            ("bConfigurationValue", "1\n"),
            ("bNumInterfaces", " 1\n"),
            ("ep_00/type", "Control\n"),
            ("3-1.4:1.0/bInterfaceNumber", "00\n"),
            ("3-1.4:1.0/bAlternateSetting", " 0\n"),
            ("3-1.4:1.0/bInterfaceClass", "ff\n"),
            ("3-1.4:1.0/ep_81/type", "Interrupt\n"),
            ("3-1.4:1.0/ep_81/interval", "500us\n"),
            ("3-1.4:1.0/ep_81/wMaxPacketSize", "0008\n"),
        ] {
            assert_eq!(text(&folder, path), expected, "{path}");
        }
        assert!(
            text(&folder, "uevent").starts_with("MAJOR=189\nMINOR=262\nDEVNAME=bus/usb/003/007\nDEVTYPE=usb_device\n")
        );
        assert!(text(&folder, "3-1.4:1.0/uevent").contains("\nMODALIAS=usb:v1209p00A1d"));
        assert_eq!(folder.find("descriptors"), Some(&SysfsEntry::File(shown.descriptor_bytes())));
        assert_eq!(folder_name(&location), "3-1.4");
    }

    #[test]
    fn a_device_without_a_configuration_has_no_interfaces_and_empty_attributes() {
        let descriptors = keyboard();
        let location = UsbBusLocation { bus: 2, device: 1, ports: Vec::new() };
        let selection = ConfigurationSelection::default();
        let shown = SysfsDevice {
            descriptors: &descriptors,
            selection: &selection,
            speed: UsbSpeed::Full,
            location: &location,
            ports: 0,
        };
        let folder = shown.folder();
        assert_eq!(text(&folder, "bConfigurationValue"), "");
        assert_eq!(text(&folder, "devpath"), "0\n");
        let SysfsEntry::Folder(entries) = &folder else { panic!("a folder") };
        assert!(entries.keys().all(|name| !name.contains(':')), "{:?}", entries.keys());
        assert_eq!(folder_name(&location), "usb2");
    }
}
