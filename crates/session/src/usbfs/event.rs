//! Events about devices, as Linux and udev send them to programs by netlink.
//!
//! | who sends | group | form |
//! |---|---|---|
//! | the kernel | 1 | `ACTION@DEVPATH`, then properties (`lib/kobject_uevent.c` of Linux 6.1) |
//! | udev | 2 | a header by which sockets filter, then properties (systemd 252, `sd-device/device-monitor.c`) |

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UeventAction {
    /// It is there from now on.
    Add,
    /// It is there no longer.
    Remove,
}

impl UeventAction {
    fn as_str(self) -> &'static str {
        match self {
            UeventAction::Add => "add",
            UeventAction::Remove => "remove",
        }
    }
}

/// An event about a device or an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUevent {
    /// What has happened.
    pub action: UeventAction,
    /// Its folder, below `/sys`.
    pub path: String,
    /// What its attribute `uevent` shows.
    pub lines: String,
    /// What udev adds, a line each.
    pub udev: String,
}

/// The group of netlink in which udev's events are heard.
pub const UDEV_GROUP: u32 = 2;

const SUBSYSTEM: &str = "usb";
/// `UDEV_MONITOR_MAGIC` of libudev: marks an event that udev sent, not the kernel. Big-endian in the header.
const MAGIC: u32 = 0xfeed_cafe;
const HEADER_BYTES: u32 = 40;
/// A message to the kernel with an event that it is to send (`uevent_net_rcv_skb`): the first type that netlink itself
/// does not use, and `NLM_F_REQUEST`.
const MESSAGE_TYPE: u16 = 16;
const MESSAGE_FLAGS: u16 = 1;
const MESSAGE_HEADER_BYTES: usize = 16;

impl DeviceUevent {
    /// A message to the kernel, by which it sends the event as its own. `number` counts events.
    pub fn to_kernel(&self, number: u64) -> Vec<u8> {
        let head = format!("{}@{}\0", self.action.as_str(), self.path);
        let properties = self.properties(number, "", "");
        let length = (MESSAGE_HEADER_BYTES + head.len() + properties.len()) as u32;
        let mut bytes = Vec::with_capacity(length as usize);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(MESSAGE_TYPE.to_ne_bytes());
        bytes.extend(MESSAGE_FLAGS.to_ne_bytes());
        bytes.resize(MESSAGE_HEADER_BYTES, 0);
        bytes.extend(head.into_bytes());
        bytes.extend(properties);
        bytes
    }

    /// The message that udev sends of it.
    pub fn of_udev(&self, number: u64) -> Vec<u8> {
        let mut properties = self.properties(number, "/dev/", &self.udev);
        properties.extend(format!("USEC_INITIALIZED={}\0", number.max(1)).into_bytes());
        let kind = self.lines.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).unwrap_or("");
        let mut bytes = b"libudev\0".to_vec();
        // Numbers that a filter of the kernel compares are in network byte order, the others are the machine's own.
        bytes.extend(MAGIC.to_be_bytes());
        for word in [HEADER_BYTES, HEADER_BYTES, properties.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(hash(SUBSYSTEM.as_bytes()).to_be_bytes());
        bytes.extend(hash(kind.as_bytes()).to_be_bytes());
        // No tags.
        bytes.extend([0; 8]);
        bytes.extend(properties);
        bytes
    }

    /// The properties, each with a NUL, `more` lines among them; `root` is put in front of the node's name.
    fn properties(&self, number: u64, root: &str, more: &str) -> Vec<u8> {
        let first = [
            format!("ACTION={}", self.action.as_str()),
            format!("DEVPATH={}", self.path),
            format!("SUBSYSTEM={SUBSYSTEM}"),
        ];
        let lines = self.lines.lines().map(|line| match line.strip_prefix("DEVNAME=") {
            Some(name) => format!("DEVNAME={root}{name}"),
            None => line.to_owned(),
        });
        let more = more.lines().map(str::to_owned);
        let all = first.into_iter().chain(lines).chain(more).chain([format!("SEQNUM={number}")]);
        all.flat_map(|property| (property + "\0").into_bytes()).collect()
    }
}

/// MurmurHash2 of 32 bits with the seed 0, as `string_hash32` of systemd.
fn hash(bytes: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = bytes.len() as u32;
    let mut chunks = bytes.chunks_exact(4);
    for chunk in &mut chunks {
        let mut word = u32::from_ne_bytes(chunk.try_into().expect("four bytes")).wrapping_mul(FACTOR);
        word = (word ^ (word >> 24)).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ word;
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> DeviceUevent {
        let lines = "DEVNAME=bus/usb/001/002\nDEVTYPE=usb_device\nBUSNUM=001\n".to_owned();
        let udev = "ID_BUS=usb\n".to_owned();
        DeviceUevent { action: UeventAction::Add, path: "/devices/farbus/usb1/1-1".to_owned(), lines, udev }
    }

    #[test]
    fn the_kernel_is_told_what_it_would_say_itself() {
        let bytes = event().to_kernel(7);
        assert_eq!(bytes.len(), u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize);
        assert_eq!(
            String::from_utf8_lossy(&bytes[MESSAGE_HEADER_BYTES..]),
            "add@/devices/farbus/usb1/1-1\0ACTION=add\0DEVPATH=/devices/farbus/usb1/1-1\0SUBSYSTEM=usb\0\
             DEVNAME=bus/usb/001/002\0DEVTYPE=usb_device\0BUSNUM=001\0SEQNUM=7\0"
        );
    }

    #[test]
    fn udevs_message_has_the_header_by_which_sockets_filter() {
        let bytes = event().of_udev(7);
        assert_eq!(&bytes[..12], b"libudev\0\xfe\xed\xca\xfe");
        let words: Vec<u32> =
            bytes[12..24].chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [40, 40, bytes.len() as u32 - 40]);
        let properties = String::from_utf8_lossy(&bytes[40..]).into_owned();
        assert!(properties.contains("\0DEVNAME=/dev/bus/usb/001/002\0"), "{properties}");
        assert!(properties.contains("\0ID_BUS=usb\0"), "{properties}");
        assert!(properties.ends_with("SEQNUM=7\0USEC_INITIALIZED=7\0"), "{properties}");
    }

    #[test]
    fn the_hash_is_murmurs() {
        // Lengths that leave 0, 3, 2 and 1 bytes over; computed by a second program. A real udevadm filters by them in
        // the tests of `farbus run`.
        let expected = [("", 0), ("usb", 0x0577_c5e5), ("usb_device", 0x27f8_f50c), ("usb_interface", 0xb102_4765)];
        for (text, expected) in expected {
            assert_eq!(hash(text.as_bytes()), expected, "{text}");
        }
    }
}
