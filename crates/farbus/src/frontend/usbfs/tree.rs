//! The tree of files: which devices are in it, and how its nodes are numbered.

use std::collections::{BTreeMap, HashMap};

use farbus_io_linux::frontend::tree::{TreeNodeAttributes, TreeNodeKind};
use farbus_session::usbfs::{DeviceUevent, SysfsDevice, SysfsEntry, UeventAction, UsbBusLocation, folder_name};

/// What a program sees as the length of an attribute (`sysfs_add_file_mode_ns`).
const ATTRIBUTE_BYTES: u64 = 4096;

/// Where the machine's own devices are, and the folder of ours.
pub const LOCAL: &str = "/sys/bus/usb/devices";
const NAMES: &str = ".bus/devices";

/// Where udev keeps what it knows of the machine's own devices, the folder of ours, and how that one's links lead to
/// the machine's (`inside.rs` mounts both).
const LOCAL_RECORDS: &str = "/run/udev/data";
const RECORDS: &str = ".udev";
const TO_LOCAL_RECORDS: &str = "../.machine/data/";

/// A name in [`LOCAL`] and where it leads; in a tree of ours it leads to the same place.
fn local_links() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(LOCAL).into_iter().flatten().flatten();
    let link = |entry: std::fs::DirEntry| {
        let to = std::fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().into_string().ok()?, to.into_os_string().into_string().ok()?))
    };
    entries.filter_map(link).collect()
}

/// The bus of a root hub of this name.
pub fn bus_of(name: &str) -> Option<u16> {
    name.strip_prefix("usb")?.parse().ok()
}

/// The tree. A path has a number from when it was first found; the number is never used for another path.
pub struct SysfsTree {
    /// Its name in `/sys/devices`.
    name: String,
    /// It has the machine's own devices, too.
    with_local: bool,
    root: SysfsEntry,
    paths: Vec<String>,
    numbers: HashMap<String, u64>,
    /// The devices' nodes: which device it is.
    devices: HashMap<String, usize>,
    /// What programs were told that it is there, by its folder.
    texts: BTreeMap<String, UeventText>,
}

/// What programs were told of a device or an interface: the lines of its `uevent`, and those that udev adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct UeventText {
    lines: String,
    udev: String,
}

impl SysfsTree {
    /// An empty tree, by its name in `/sys/devices`; if it is to be so, with the machine's own devices.
    pub fn new(name: String, with_local: bool) -> Self {
        let numbers = HashMap::from([(String::new(), 1)]);
        let root = SysfsEntry::Folder(BTreeMap::new());
        Self {
            name,
            with_local,
            root,
            paths: vec![String::new()],
            numbers,
            devices: HashMap::new(),
            texts: BTreeMap::new(),
        }
    }

    /// From now on, these devices are in it; a root hub comes before the devices of its bus. Returns what programs are
    /// to be told.
    pub fn show<'a>(&mut self, devices: impl Iterator<Item = (usize, SysfsDevice<'a>)>) -> Vec<DeviceUevent> {
        let mut there = BTreeMap::new();
        let (mut hubs, mut names, mut buses) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut records = BTreeMap::new();
        self.devices.clear();
        for (index, shown) in devices {
            let UsbBusLocation { bus, device, ports } = shown.location;
            let (name, folder) = (folder_name(shown.location), shown.folder());
            let hub = format!("usb{bus}");
            let path = if ports.is_empty() { name.clone() } else { format!("{hub}/{name}") };
            let link = format!("../../../devices/{}/{path}", self.name);
            if let SysfsEntry::Folder(entries) = &folder {
                let (record, bytes) = shown.udev_record();
                records.insert(record, SysfsEntry::File(bytes));
                there.insert(path.clone(), UeventText { lines: lines(&folder), udev: shown.udev_properties() });
                for (interface, entry) in entries.iter().filter(|(entry, _)| entry.contains(':')) {
                    names.insert(interface.clone(), SysfsEntry::Link(format!("{link}/{interface}")));
                    let (record, bytes) = SysfsDevice::udev_record_of_interface(interface);
                    records.insert(record, SysfsEntry::File(bytes));
                    there
                        .insert(format!("{path}/{interface}"), UeventText { lines: lines(entry), udev: String::new() });
                }
            }
            match hubs.get_mut(&hub) {
                Some(SysfsEntry::Folder(of_hub)) => of_hub.insert(name.clone(), folder),
                _ => hubs.insert(name.clone(), folder),
            };
            names.insert(name, SysfsEntry::Link(link));
            let nodes = buses.entry(format!("{bus:03}")).or_insert_with(BTreeMap::new);
            nodes.insert(format!("{device:03}"), SysfsEntry::File(Vec::new()));
            self.devices.insert(format!(".dev/{bus:03}/{device:03}"), index);
        }
        if self.with_local {
            // Their nodes are mounted in these.
            for bus in local_links().keys().filter_map(|name| bus_of(name)) {
                buses.entry(format!("{bus:03}")).or_insert_with(BTreeMap::new);
            }
        }
        let folder = |entries| SysfsEntry::Folder(entries);
        let bus = [("devices", folder(names)), ("drivers", folder(BTreeMap::new()))];
        let mut root = hubs;
        root.insert(".bus".to_owned(), folder(bus.map(|(name, entry)| (name.to_owned(), entry)).into()));
        let buses = buses.into_iter().map(|(name, nodes)| (name, SysfsEntry::Folder(nodes)));
        root.insert(".dev".to_owned(), folder(buses.collect()));
        root.insert(RECORDS.to_owned(), folder(records));
        root.insert("uevent".to_owned(), SysfsEntry::File(Vec::new()));
        self.root = SysfsEntry::Folder(root);
        self.link_local();
        self.tell(there)
    }

    /// The names of the machine's own devices are those of now.
    fn link_local(&mut self) {
        if self.with_local
            && let Some(SysfsEntry::Folder(names)) = self.root.find_mut(NAMES)
        {
            let own = format!("../../../devices/{}/", self.name);
            names.retain(|_, entry| matches!(entry, SysfsEntry::Link(to) if to.starts_with(&own)));
            for (name, to) in local_links() {
                names.entry(name).or_insert(SysfsEntry::Link(to));
            }
        }
    }

    /// What udev keeps of the machine's own devices is what it keeps now.
    fn link_local_records(&mut self) {
        let Some(SysfsEntry::Folder(records)) = self.root.find_mut(RECORDS) else { return };
        records.retain(|_, entry| matches!(entry, SysfsEntry::File(_)));
        let there = std::fs::read_dir(LOCAL_RECORDS).into_iter().flatten().flatten();
        for name in there.filter_map(|entry| entry.file_name().into_string().ok()) {
            let link = SysfsEntry::Link(format!("{TO_LOCAL_RECORDS}{name}"));
            records.entry(name).or_insert(link);
        }
    }

    /// What is another one than before went and came. What is inside goes first, and comes last.
    fn tell(&mut self, there: BTreeMap<String, UeventText>) -> Vec<DeviceUevent> {
        let name = &self.name;
        let event = |action, path: &str, text: &UeventText| {
            let path = format!("/devices/{name}/{path}");
            DeviceUevent { action, path, lines: text.lines.clone(), udev: text.udev.clone() }
        };
        let texts = std::mem::take(&mut self.texts);
        let went = texts.iter().rev().filter(|(path, of_it)| there.get(*path) != Some(of_it));
        let came = there.iter().filter(|(path, of_it)| texts.get(*path) != Some(of_it));
        let events = went
            .map(|(path, of_it)| event(UeventAction::Remove, path, of_it))
            .chain(came.map(|(path, of_it)| event(UeventAction::Add, path, of_it)))
            .collect();
        self.texts = there;
        events
    }

    /// What a number stands for; `None` if it is not there any more.
    pub fn entry(&self, number: u64) -> Option<&SysfsEntry> {
        self.root.find(self.path(number)?)
    }

    /// The device whose node has this number.
    pub fn device(&self, number: u64) -> Option<usize> {
        self.devices.get(self.path(number)?).copied()
    }

    fn path(&self, number: u64) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.paths.get(index).map(String::as_str)
    }

    /// What a number stands for, as the kernel is told.
    pub fn attributes(&self, number: u64) -> Option<TreeNodeAttributes> {
        let (kind, size) = match self.entry(number)? {
            SysfsEntry::Folder(_) => (TreeNodeKind::Folder, 0),
            SysfsEntry::Link(to) => (TreeNodeKind::Link, to.len() as u64),
            SysfsEntry::File(_) if self.device(number).is_some() => (TreeNodeKind::Device, 0),
            SysfsEntry::File(bytes) => (TreeNodeKind::File, ATTRIBUTE_BYTES.max(bytes.len() as u64)),
        };
        Some(TreeNodeAttributes { node: number, kind, size })
    }

    /// What is called `name` in a folder.
    pub fn look_up(&mut self, folder: u64, name: &str) -> Option<TreeNodeAttributes> {
        let path = match self.path(folder)? {
            "" => name.to_owned(),
            parent => format!("{parent}/{name}"),
        };
        if path.starts_with(NAMES) && self.root.find(&path).is_none() {
            self.link_local();
        }
        if path.starts_with(RECORDS) && self.root.find(&path).is_none() {
            self.link_local_records();
        }
        self.root.find(&path).filter(|_| !name.is_empty() && !name.contains('/'))?;
        let number = self.number(path);
        self.attributes(number)
    }

    fn number(&mut self, path: String) -> u64 {
        if let Some(number) = self.numbers.get(&path) {
            return *number;
        }
        self.paths.push(path.clone());
        let number = self.paths.len() as u64;
        self.numbers.insert(path, number);
        number
    }

    /// What is in a folder, with `.` and `..`.
    pub fn list(&mut self, folder: u64) -> Option<Vec<(String, TreeNodeAttributes)>> {
        match self.path(folder) {
            Some(NAMES) => self.link_local(),
            Some(RECORDS) => self.link_local_records(),
            _ => {}
        }
        let Some(SysfsEntry::Folder(entries)) = self.entry(folder) else { return None };
        let names: Vec<String> = entries.keys().cloned().collect();
        let of_folder = self.attributes(folder)?;
        let mut list = vec![(".".to_owned(), of_folder), ("..".to_owned(), of_folder)];
        for name in names {
            if let Some(attributes) = self.look_up(folder, &name) {
                list.push((name, attributes));
            }
        }
        Some(list)
    }
}

/// The lines of a folder's `uevent`.
fn lines(folder: &SysfsEntry) -> String {
    match folder.find("uevent") {
        Some(SysfsEntry::File(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}
