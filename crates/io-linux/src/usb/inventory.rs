//! Which USB devices this machine has, and what prevents each from being shared, from sysfs.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use farbus_model::descriptor::{DeviceDescriptor, UsbConfiguration, kind};
use farbus_model::{DescriptorRepairs, DescriptorSet, UsbSpeed};
use rustix::fs::Access;

/// The class of hubs, which are never shared; devices behind them are.
const CLASS_HUB: u8 = 9;

/// The folders in which this machine lists its devices.
#[derive(Clone, Debug)]
pub struct UsbInventory {
    devices: PathBuf,
    nodes: PathBuf,
    blocks: PathBuf,
    mounts: PathBuf,
    swaps: PathBuf,
}

/// A device that is plugged in.
#[derive(Clone, Debug)]
pub struct PluggedDevice {
    /// Bus and ports on the path to it, such as `1-1.4`; it stays the same while the device stays in its port.
    pub bus_id: String,
    /// Number of its bus.
    pub bus: u32,
    /// Its number on that bus, new each time it is plugged in; 0 while its port is being reset
    /// ([`PluggedDevice::is_being_reset`]).
    pub number: u32,
    /// Its descriptors; strings as far as the kernel could read them.
    pub descriptors: DescriptorSet,
    /// What was repaired in them.
    pub repairs: DescriptorRepairs,
    /// Its serial number.
    pub serial: Option<String>,
    /// The speed it runs at.
    pub speed: UsbSpeed,
    /// The active configuration, 0 if none.
    pub configuration: u8,
    /// Its interfaces in that configuration.
    pub interfaces: Vec<ActiveInterface>,
    /// Whether it is another machine's device, attached here through vhci.
    pub is_imported: bool,
    /// The node to open.
    pub node: PathBuf,
    /// What prevents sharing it, if anything.
    pub obstacle: Option<SharingObstacle>,
}

impl PluggedDevice {
    /// Whether its port is being reset and the device has no address meanwhile: the kernel keeps its number, and shows
    /// 0 (`hub_port_reset`). The device is there, and has its number again in a moment.
    pub fn is_being_reset(&self) -> bool {
        self.number == 0
    }
}

/// An interface of the active configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveInterface {
    /// The interface's number (`bInterfaceNumber`).
    pub number: u8,
    /// Class, subclass, protocol.
    pub class: [u8; 3],
    /// The driver that is bound to it.
    pub driver: Option<String>,
}

/// Why a device cannot be shared at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingObstacle {
    /// It is a hub.
    Hub,
    /// Its descriptors cannot be read.
    Unreadable,
    /// A file system or swap of this machine is on it.
    Mounted {
        /// The block device.
        device: String,
        /// Where it is mounted, or what holds it.
        at: String,
    },
    /// A program uses it, or the kernel's own exporter.
    InUse {
        /// The driver's name.
        by: String,
    },
    /// This user may not open it.
    NoPermission {
        /// The device's node in /dev/bus/usb.
        node: PathBuf,
    },
}

impl SharingObstacle {
    /// One word, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            SharingObstacle::Hub => "hub",
            SharingObstacle::Unreadable => "unreadable",
            SharingObstacle::Mounted { .. } => "mounted",
            SharingObstacle::InUse { .. } => "in-use",
            SharingObstacle::NoPermission { .. } => "no-permission",
        }
    }
}

impl fmt::Display for SharingObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharingObstacle::Hub => f.write_str("a hub; share what is plugged into it"),
            SharingObstacle::Unreadable => f.write_str("its descriptors cannot be read"),
            SharingObstacle::Mounted { device, at } => write!(f, "{device} is in use here ({at}); unmount it first"),
            SharingObstacle::InUse { by } if by == "usbip-host" => {
                f.write_str("shared by usbipd; 'usbip unbind' it first")
            }
            SharingObstacle::InUse { .. } => f.write_str("another program uses it"),
            SharingObstacle::NoPermission { node } => write!(f, "no permission for {}", node.display()),
        }
    }
}

/// Which devices are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsbDeviceSelector {
    /// The device in this port: `1-1.4`.
    BusId(String),
    /// All devices of this vendor and product: `046d:c52b`.
    Ids(u16, u16),
    /// All devices with this serial number: `serial=0123`.
    Serial(String),
}

impl UsbDeviceSelector {
    /// Whether `found` is meant. Another machine's device is meant only by its bus id: if its kind were enough, a
    /// device that this machine both offers and uses would be shared without end.
    pub fn matches(&self, found: &PluggedDevice) -> bool {
        let device = &found.descriptors.device;
        match self {
            UsbDeviceSelector::BusId(bus_id) => found.bus_id == *bus_id,
            _ if found.is_imported => false,
            UsbDeviceSelector::Ids(vendor, product) => (device.vendor, device.product) == (*vendor, *product),
            UsbDeviceSelector::Serial(serial) => found.serial.as_ref() == Some(serial),
        }
    }
}

impl FromStr for UsbDeviceSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(serial) = text.strip_prefix("serial=").filter(|serial| !serial.is_empty()) {
            return Ok(UsbDeviceSelector::Serial(serial.to_owned()));
        }
        let id = |text: &str| (text.len() == 4).then(|| u16::from_str_radix(text, 16).ok()).flatten();
        if let Some((vendor, product)) = text.split_once(':')
            && let (Some(vendor), Some(product)) = (id(vendor), id(product))
        {
            return Ok(UsbDeviceSelector::Ids(vendor, product));
        }
        if is_bus_id(text) {
            return Ok(UsbDeviceSelector::BusId(text.to_owned()));
        }
        Err(format!("'{text}' names no USB device: try a bus id (1-1.4), VENDOR:PRODUCT (046d:c52b) or serial=TEXT"))
    }
}

impl fmt::Display for UsbDeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsbDeviceSelector::BusId(bus_id) => write!(f, "usb:{bus_id}"),
            UsbDeviceSelector::Ids(vendor, product) => write!(f, "usb:{vendor:04x}:{product:04x}"),
            UsbDeviceSelector::Serial(serial) => write!(f, "usb:serial={serial}"),
        }
    }
}

/// Bus, dash, ports with dots between: not a root hub (`usb1`) and not an interface (`1-1:1.0`).
fn is_bus_id(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('-').is_some_and(|(bus, ports)| is_number(bus) && ports.split('.').all(is_number))
}

impl Default for UsbInventory {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl UsbInventory {
    /// The inventory of the system whose root is `root`, for tests.
    pub fn at(root: &Path) -> Self {
        Self {
            devices: root.join("sys/bus/usb/devices"),
            nodes: root.join("dev/bus/usb"),
            blocks: root.join("sys/class/block"),
            mounts: root.join("proc/self/mounts"),
            swaps: root.join("proc/swaps"),
        }
    }

    /// Every device that is plugged in, except root hubs, in the order of bus ids. Empty if the kernel has no USB.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn devices(&self) -> io::Result<Vec<PluggedDevice>> {
        let entries = match fs::read_dir(&self.devices) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names: BTreeSet<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let held = self.held_blocks();
        // A device that is unplugged while it is read is left out.
        let mut all: Vec<PluggedDevice> =
            names.iter().filter(|name| is_bus_id(name)).filter_map(|name| self.device(name, &names, &held)).collect();
        all.sort_by_key(|found| ports_of(&found.bus_id));
        Ok(all)
    }

    /// The device at `bus_id`, if there is one.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn device_at(&self, bus_id: &str) -> io::Result<Option<PluggedDevice>> {
        Ok(self.devices()?.into_iter().find(|found| found.bus_id == bus_id))
    }

    /// The bus instance whose time a device shares with others. Up to full speed that is the nearest high-speed hub,
    /// which translates for all slower devices below it (USB 2.0 11.14); otherwise the controller's bus of its speed.
    pub fn bus_of(&self, found: &PluggedDevice) -> String {
        let bus = format!("usb{}", found.bus);
        if !matches!(found.speed, UsbSpeed::Low | UsbSpeed::Full) {
            return format!("{bus}, {} speed", found.speed);
        }
        let mut below = found.bus_id.as_str();
        while let Some((hub, _)) = below.rsplit_once('.') {
            let is_high = fs::read_to_string(self.devices.join(hub).join("speed"));
            if is_high.is_ok_and(|text| speed(text.trim_end()) == UsbSpeed::High) {
                return format!("{bus}, below hub {hub}");
            }
            below = hub;
        }
        format!("{bus}, up to full speed")
    }

    /// The port that a device is plugged into: its controller's place in the machine, and the ports of the hubs on the
    /// path. Unlike a bus id it does not depend on the order in which controllers were found.
    pub fn port_of(&self, found: &PluggedDevice) -> Option<String> {
        let folder = fs::canonicalize(self.devices.join(&found.bus_id)).ok()?;
        let (_, ports) = found.bus_id.split_once('-')?;
        let parts: Vec<_> = folder.iter().map(|part| part.to_string_lossy()).collect();
        let is_bus = |part: &str| part.strip_prefix("usb").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
        let bus = parts.iter().rposition(|part| is_bus(part))?;
        let first = parts.iter().position(|part| part == "devices").map_or(0, |at| at + 1);
        Some(format!("{}/{ports}", parts.get(first..bus)?.join("/")))
    }

    fn device(&self, bus_id: &str, names: &BTreeSet<String>, held: &[HeldBlock]) -> Option<PluggedDevice> {
        // A link that leads nowhere belongs to a device that is being unplugged.
        let folder = fs::canonicalize(self.devices.join(bus_id)).ok()?;
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim_end().to_owned());
        let number = |name: &str| text(name)?.trim().parse::<u32>().ok();
        let (bus, device_number) = (number("busnum")?, number("devnum")?);
        let raw = fs::read(folder.join("descriptors")).ok()?;
        let strings = ["manufacturer", "product", "serial"].map(|name| string(&folder.join(name)));
        let configuration = number("bConfigurationValue").and_then(|value| u8::try_from(value).ok()).unwrap_or(0);
        let (speed, mut repairs) = (speed(&text("speed").unwrap_or_default()), DescriptorRepairs::default());
        let mut descriptors = parse(&raw, speed, strings, &mut repairs);
        if let Some(all) = &mut descriptors {
            let own = names.iter().filter(|name| name.strip_prefix(bus_id).is_some_and(|rest| rest.starts_with(':')));
            let interfaces = own.map(|name| self.devices.join(name));
            all.strings.extend(configuration_strings(all, configuration, &folder, interfaces));
            // Linux 6.9 and later show it.
            all.bos = fs::read(folder.join("bos_descriptors")).unwrap_or_default();
        }
        let interfaces: Vec<ActiveInterface> = names
            .iter()
            .filter(|name| name.strip_prefix(bus_id).is_some_and(|rest| rest.starts_with(':')))
            .filter_map(|name| interface(&self.devices.join(name)))
            .collect();
        let mut found = PluggedDevice {
            bus_id: bus_id.to_owned(),
            bus,
            number: device_number,
            serial: text("serial"),
            speed,
            repairs,
            configuration,
            interfaces,
            is_imported: is_below_vhci(&folder),
            node: self.nodes.join(format!("{bus:03}/{device_number:03}")),
            obstacle: None,
            descriptors: descriptors.clone().unwrap_or_default(),
        };
        found.obstacle = match descriptors {
            None => Some(SharingObstacle::Unreadable),
            Some(_) => obstacle(&found, &folder, held),
        };
        Some(found)
    }

    /// Block devices that this machine uses: mounted, used as swap, or part of one that is.
    fn held_blocks(&self) -> Vec<HeldBlock> {
        let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let (mounts, swaps) = (lines(&self.mounts), lines(&self.swaps));
        let in_mounts = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let device = words.next()?.strip_prefix("/dev/")?;
            Some((device.to_owned(), format!("mounted at {}", words.next()?)))
        });
        let in_swaps = swaps.lines().filter_map(|line| {
            let device = line.split_whitespace().next()?.strip_prefix("/dev/")?;
            Some((device.to_owned(), "swap".to_owned()))
        });
        let holder = |name: &str| {
            let holders = fs::read_dir(self.blocks.join(name).join("holders")).ok()?;
            let holder = holders.flatten().next()?.file_name().into_string().ok()?;
            Some((name.to_owned(), format!("part of {holder}")))
        };
        let blocks = fs::read_dir(&self.blocks).into_iter().flatten().flatten();
        let in_holders = blocks.filter_map(|entry| holder(&entry.file_name().into_string().ok()?));
        let all = in_mounts.chain(in_swaps).chain(in_holders.collect::<Vec<_>>());
        all.filter_map(|(name, at)| {
            let folder = fs::canonicalize(self.blocks.join(&name)).ok()?;
            Some(HeldBlock { folder, name, at })
        })
        .collect()
    }
}

/// A block device in use, and its place in sysfs.
struct HeldBlock {
    folder: PathBuf,
    name: String,
    at: String,
}

fn obstacle(found: &PluggedDevice, folder: &Path, held: &[HeldBlock]) -> Option<SharingObstacle> {
    if found.descriptors.device.class[0] == CLASS_HUB {
        return Some(SharingObstacle::Hub);
    }
    if let Some(block) = held.iter().find(|block| block.folder.starts_with(folder)) {
        return Some(SharingObstacle::Mounted { device: block.name.clone(), at: block.at.clone() });
    }
    let taken = |driver: &&String| matches!(driver.as_str(), "usbfs" | "usbip-host");
    if let Some(by) = found.interfaces.iter().filter_map(|interface| interface.driver.as_ref()).find(taken) {
        return Some(SharingObstacle::InUse { by: by.clone() });
    }
    let may_open = rustix::fs::access(&found.node, Access::READ_OK | Access::WRITE_OK).is_ok();
    (!may_open).then(|| SharingObstacle::NoPermission { node: found.node.clone() })
}

fn is_below_vhci(path: &Path) -> bool {
    path.iter().any(|part| part.to_str().is_some_and(|part| part.starts_with("vhci_hcd")))
}

fn interface(folder: &Path) -> Option<ActiveInterface> {
    let byte = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        u8::from_str_radix(text.trim(), 16).ok()
    };
    let driver = fs::read_link(folder.join("driver")).ok();
    Some(ActiveInterface {
        number: byte("bInterfaceNumber")?,
        class: [byte("bInterfaceClass")?, byte("bInterfaceSubClass")?, byte("bInterfaceProtocol")?],
        driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
    })
}

/// A string of a device, as the kernel shows it: all of it, and the end of the line.
fn string(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// The strings of the active configuration and its interfaces, by index, as far as the kernel has read them: those of
/// the active alternate settings.
fn configuration_strings(
    all: &DescriptorSet,
    active: u8,
    folder: &Path,
    interfaces: impl Iterator<Item = PathBuf>,
) -> Vec<(u8, String)> {
    let Some(configuration) = all.configuration(active) else { return Vec::new() };
    let byte = |path: PathBuf| u8::from_str_radix(fs::read_to_string(path).ok()?.trim(), 16).ok();
    let own = string(&folder.join("configuration")).map(|text| (configuration.name_string(), text));
    let of_interface = |folder: PathBuf| {
        let (number, alternate) = (byte(folder.join("bInterfaceNumber"))?, byte(folder.join("bAlternateSetting"))?);
        Some((configuration.setting(number, alternate)?.name_string, string(&folder.join("interface"))?))
    };
    let named = own.into_iter().chain(interfaces.filter_map(of_interface));
    named.filter(|(index, text)| *index != 0 && !text.is_empty()).collect()
}

/// Parses a speed as the kernel writes it, in megabits a second.
fn speed(text: &str) -> UsbSpeed {
    match text {
        "1.5" => UsbSpeed::Low,
        "12" => UsbSpeed::Full,
        "480" => UsbSpeed::High,
        "5000" => UsbSpeed::Super,
        "10000" | "20000" => UsbSpeed::SuperPlus,
        // Wireless, or not known yet.
        _ => UsbSpeed::High,
    }
}

/// The port numbers, for comparison: `1-2` comes before `1-10`.
fn ports_of(bus_id: &str) -> Vec<u32> {
    bus_id.split(['-', '.']).filter_map(|part| part.parse().ok()).collect()
}

/// Reads the device descriptor and all configurations behind it, as far as the kernel has kept them.
fn parse(
    raw: &[u8],
    speed: UsbSpeed,
    strings: [Option<String>; 3],
    repairs: &mut DescriptorRepairs,
) -> Option<DescriptorSet> {
    let device = DeviceDescriptor::read(raw, repairs).ok()?;
    let mut configurations = Vec::new();
    let mut rest = &raw[DeviceDescriptor::BYTES..];
    while is_configuration(rest) {
        let (own, others) = rest.split_at(end_of_configuration(rest));
        configurations.extend(UsbConfiguration::read(own, speed, repairs));
        rest = others;
    }
    let indexes = [device.manufacturer_string, device.product_string, device.serial_string];
    let known = indexes.into_iter().zip(strings).filter_map(|(index, text)| Some((index, text?)));
    let strings = known.filter(|(index, _)| *index != 0).collect();
    Some(DescriptorSet { device, configurations, strings, ..DescriptorSet::default() })
}

/// Whether a configuration begins with these bytes.
fn is_configuration(bytes: &[u8]) -> bool {
    matches!(bytes, [length, kind::CONFIGURATION, ..] if usize::from(*length) >= UsbConfiguration::HEADER_BYTES)
}

/// Where the first configuration of these bytes ends. The kernel keeps what `wTotalLength` says, or less: what is
/// before the first broken descriptor. Then the next configuration begins earlier, where libusb looks for it, too.
fn end_of_configuration(bytes: &[u8]) -> usize {
    let total = UsbConfiguration::total_length(bytes).unwrap_or(usize::MAX);
    if bytes.len() == total || bytes.get(total..).is_some_and(is_configuration) {
        return total;
    }
    let mut at = 0;
    while let Some(&length @ 2..) = bytes.get(at) {
        at += usize::from(length);
        if bytes.get(at..).is_some_and(is_configuration) {
            return at;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A fake system root: a hub, a mounted stick behind it, a keyboard.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("farbus-inventory-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("sys/bus/usb/devices")).unwrap();
            Self(root)
        }

        fn put(&self, path: &str, contents: impl AsRef<[u8]>) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }

        fn device(&self, bus_id: &str, number: u32, class: u8, speed: &str) {
            let mut raw = DeviceDescriptor {
                class: [class, 0, 0],
                vendor: 0x46f4,
                product: number as u16,
                product_string: 2,
                serial_string: 3,
                configurations: 1,
                ..DeviceDescriptor::default()
            }
            .to_bytes()
            .to_vec();
            raw.extend([9, 2, 25, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 1, 8, 6, 0x50, 0, 7, 5, 0x81, 2, 0, 2, 0]);
            for (name, text) in [
                ("busnum", "1"),
                ("devnum", &number.to_string()),
                ("speed", speed),
                ("bConfigurationValue", "1"),
                ("product", "Stick"),
                ("serial", &format!("S{number}")),
            ] {
                self.put(&format!("sys/bus/usb/devices/{bus_id}/{name}"), format!("{text}\n"));
            }
            self.put(&format!("sys/bus/usb/devices/{bus_id}/descriptors"), raw);
            self.put(&format!("dev/bus/usb/001/{number:03}"), "");
            let interface = format!("sys/bus/usb/devices/{bus_id}:1.0");
            for (name, text) in [
                ("bInterfaceNumber", "00"),
                ("bInterfaceClass", "08"),
                ("bInterfaceSubClass", "06"),
                ("bInterfaceProtocol", "50"),
            ] {
                self.put(&format!("{interface}/{name}"), text);
            }
        }

        fn drive(&self, bus_id: &str, driver: &str) {
            let folder = self.0.join(format!("sys/bus/usb/devices/{bus_id}:1.0/driver"));
            symlink(format!("../drivers/{driver}"), folder).unwrap();
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn devices_are_listed_in_order_with_their_obstacles() {
        let root = Root::new("all");
        root.put("sys/bus/usb/devices/usb1/busnum", "1");
        for (bus_id, number, class) in [("1-10", 5, 0), ("1-2", 2, 9), ("1-2.1", 3, 0), ("1-2.4", 4, 0)] {
            root.device(bus_id, number, class, "480");
        }
        root.drive("1-2.4", "usbip-host");
        root.drive("1-2.1", "usb-storage");
        root.put("sys/bus/usb/devices/1-2.1/host0/block/sda/sda1/partition", "1");
        fs::create_dir_all(root.0.join("sys/class/block")).unwrap();
        let block = root.0.join("sys/bus/usb/devices/1-2.1/host0/block/sda/sda1");
        symlink(block, root.0.join("sys/class/block/sda1")).unwrap();
        root.put("proc/self/mounts", "proc /proc proc rw 0 0\n/dev/sda1 /media/stick vfat rw 0 0\n");
        let found = UsbInventory::at(&root.0).devices().unwrap();
        let obstacles: Vec<_> = found.iter().map(|f| (f.bus_id.as_str(), f.obstacle.clone())).collect();
        let mounted = SharingObstacle::Mounted { device: "sda1".into(), at: "mounted at /media/stick".into() };
        let exported = SharingObstacle::InUse { by: "usbip-host".into() };
        assert_eq!(
            obstacles,
            [("1-2", Some(SharingObstacle::Hub)), ("1-2.1", Some(mounted)), ("1-2.4", Some(exported)), ("1-10", None)]
        );
        let stick = &found[1];
        assert_eq!((stick.serial.as_deref(), stick.descriptors.title().as_str()), (Some("S3"), "Stick"));
        assert_eq!((stick.speed, stick.configuration, stick.number), (UsbSpeed::High, 1, 3));
        assert_eq!(stick.interfaces[0].driver.as_deref(), Some("usb-storage"));
        assert_eq!(stick.descriptors.configurations[0].settings[0].endpoints.len(), 1);
        fs::remove_file(root.0.join("dev/bus/usb/001/005")).unwrap();
        let keyboard = UsbInventory::at(&root.0).device_at("1-10").unwrap().unwrap();
        assert_eq!(keyboard.obstacle.unwrap().word(), "no-permission");
        // While a port is reset its device has no number.
        root.put("sys/bus/usb/devices/1-2.1/devnum", "0\n");
        let found = UsbInventory::at(&root.0).devices().unwrap();
        assert!(found[1].bus_id == "1-2.1" && found[1].is_being_reset() && !found[0].is_being_reset());
    }

    #[test]
    fn a_device_shares_the_time_of_the_controller_or_of_the_hub_that_translates_for_it() {
        let root = Root::new("bus");
        // A high-speed hub, behind it a full-speed one, behind that another high-speed hub, which then runs at full
        // speed, too.
        let all = [
            ("1-1", 9, "480", "usb1, high speed"),
            ("1-1.1", 0, "480", "usb1, high speed"),
            ("1-1.2", 0, "12", "usb1, below hub 1-1"),
            ("1-1.3", 9, "12", "usb1, below hub 1-1"),
            ("1-1.3.1", 0, "1.5", "usb1, below hub 1-1"),
            ("1-1.3.2", 9, "12", "usb1, below hub 1-1"),
            ("1-1.3.2.1", 0, "12", "usb1, below hub 1-1"),
            ("1-1.4", 9, "480", "usb1, high speed"),
            ("1-1.4.1", 0, "12", "usb1, below hub 1-1.4"),
            ("1-2", 0, "12", "usb1, up to full speed"),
            ("1-3", 9, "12", "usb1, up to full speed"),
            ("1-3.1", 0, "1.5", "usb1, up to full speed"),
            ("1-4", 0, "5000", "usb1, super speed"),
        ];
        for (number, (bus_id, class, speed, _)) in all.iter().enumerate() {
            root.device(bus_id, number as u32 + 2, *class, speed);
        }
        let inventory = UsbInventory::at(&root.0);
        for (bus_id, _, _, bus) in all {
            let found = inventory.device_at(bus_id).unwrap().expect(bus_id);
            assert_eq!(inventory.bus_of(&found), bus, "{bus_id}");
        }
        // Another controller's bus is a different one.
        root.device("2-2", 60, 0, "12");
        root.put("sys/bus/usb/devices/2-2/busnum", "2\n");
        assert_eq!(inventory.bus_of(&inventory.device_at("2-2").unwrap().unwrap()), "usb2, up to full speed");
    }

    #[test]
    fn strings_and_object_store_are_those_that_the_kernel_shows() {
        let root = Root::new("strings");
        let raw = DeviceDescriptor {
            manufacturer_string: 1,
            product_string: 2,
            serial_string: 3,
            configurations: 1,
            ..DeviceDescriptor::default()
        };
        root.device("1-1", 2, 0, "5000");
        let mut raw = raw.to_bytes().to_vec();
        // The second setting of the interface is active; each has a name, and so has the configuration.
        raw.extend([9, 2, 27, 0, 1, 1, 4, 0x80, 50, 9, 4, 0, 0, 0, 8, 6, 0x50, 5, 9, 4, 0, 1, 0, 8, 6, 0x62, 6]);
        root.put("sys/bus/usb/devices/1-1/descriptors", raw);
        for (name, text) in [
            ("1-1/product", "Stick  \n"),
            ("1-1/serial", "4711 \n"),
            ("1-1/configuration", "both\n"),
            ("1-1/bos_descriptors", "\u{5}\u{f}\u{5}\0\0"),
            ("1-1:1.0/bAlternateSetting", " 1\n"),
            ("1-1:1.0/interface", "UAS\n"),
        ] {
            root.put(&format!("sys/bus/usb/devices/{name}"), text);
        }
        let found = UsbInventory::at(&root.0).device_at("1-1").unwrap().unwrap();
        let texts = [(2, "Stick  "), (3, "4711 "), (4, "both"), (6, "UAS")];
        assert_eq!(found.descriptors.strings, texts.map(|(index, text)| (index, text.to_owned())).into());
        assert_eq!((found.descriptors.bos, found.serial.as_deref()), (vec![5, 15, 5, 0, 0], Some("4711")));
        // While it is not configured, the kernel shows an empty name.
        root.put("sys/bus/usb/devices/1-1/configuration", "");
        let found = UsbInventory::at(&root.0).device_at("1-1").unwrap().unwrap();
        assert_eq!(found.descriptors.string(4), None);
    }

    #[test]
    fn a_machine_without_usb_has_no_devices() {
        let found = UsbInventory::at(Path::new("/nonexistent")).devices().unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn selectors_are_read_and_mean_what_they_say() {
        let read = |text: &str| text.parse::<UsbDeviceSelector>();
        assert_eq!(read("1-1.4"), Ok(UsbDeviceSelector::BusId("1-1.4".into())));
        assert_eq!(read("046D:c52b"), Ok(UsbDeviceSelector::Ids(0x046d, 0xc52b)));
        assert_eq!(read("serial=1-1"), Ok(UsbDeviceSelector::Serial("1-1".into())));
        for wrong in ["", "usb1", "1-1:1.0", "1-", "-1", "1-1.", "46d:c52b", "serial=", "046d:c52b:1", "1-99999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let root = Root::new("select");
        root.device("3-1", 7, 0, "5000");
        let found = UsbInventory::at(&root.0).devices().unwrap();
        for (text, expected) in
            [("3-1", true), ("3-2", false), ("46f4:0007", true), ("46f4:0008", false), ("serial=S7", true)]
        {
            assert_eq!(read(text).unwrap().matches(&found[0]), expected, "{text}");
        }
        let imported = PluggedDevice { is_imported: true, ..found[0].clone() };
        assert!(read("3-1").unwrap().matches(&imported) && !read("serial=S7").unwrap().matches(&imported));
        assert!(is_below_vhci(Path::new("/sys/devices/platform/vhci_hcd.0/usb3/3-1")));
    }

    #[test]
    fn a_broken_tail_costs_only_the_tail() {
        let device = DeviceDescriptor { configurations: 1, ..DeviceDescriptor::default() }.to_bytes();
        let read = |raw: &[u8]| {
            let mut repairs = DescriptorRepairs::default();
            (parse(raw, UsbSpeed::High, [None, None, None], &mut repairs), repairs)
        };
        let tail = [9, 2, 16, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 0, 3, 1];
        let (found, repairs) = read(&[&device[..], &tail].concat());
        let configuration = &found.unwrap().configurations[0];
        assert_eq!((configuration.value, configuration.settings.len(), repairs.is_empty()), (1, 0, false));
        assert!(read(&[&device[..], &tail[..5]].concat()).0.unwrap().configurations.is_empty());
        assert!(read(&[18, 1]).0.is_none());
    }

    #[test]
    fn a_second_configuration_behind_a_broken_first_is_found() {
        let device = DeviceDescriptor { configurations: 2, ..DeviceDescriptor::default() }.to_bytes();
        // The device says 41 bytes, and the kernel keeps the 32 before the break.
        let first: [u8; 32] = [
            9, 2, 41, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 2, 255, 0, 0, 0, 7, 5, 0x81, 2, 0, 2, 0, 7, 5, 0x02, 2, 0, 2, 0,
        ];
        let second: [u8; 25] = [9, 2, 25, 0, 1, 2, 0, 0x80, 50, 9, 4, 0, 0, 1, 3, 0, 0, 0, 7, 5, 0x83, 3, 8, 0, 4];
        for first_total in [41, 32, 9, 0] {
            let mut first = first;
            first[2] = first_total;
            let mut repairs = DescriptorRepairs::default();
            let raw = [&device[..], &first, &second].concat();
            let all = parse(&raw, UsbSpeed::High, [None, None, None], &mut repairs).unwrap();
            let counts: Vec<_> = all
                .configurations
                .iter()
                .map(|each| (each.value, each.bytes.len(), each.settings[0].endpoints.len()))
                .collect();
            assert_eq!(counts, [(1, 32, 2), (2, 25, 1)], "wTotalLength {first_total}");
            assert_eq!(UsbConfiguration::parse(&all.configurations[0].bytes).as_ref(), Ok(&all.configurations[0]));
        }
    }
}
