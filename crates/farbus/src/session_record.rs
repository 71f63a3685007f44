//! A device record in words.

use farbus_session::DeviceRecord;
use farbus_session::registry::PATH_PREFIX;

/// The name of a device: what its exporter calls it if that is a farbus, else its bus id.
pub fn name_of(record: &DeviceRecord) -> &str {
    record.path.strip_prefix(PATH_PREFIX).unwrap_or(&record.bus_id)
}

/// What a device's interfaces are for, in words (usb.org's defined class codes).
pub fn classes(record: &DeviceRecord) -> Vec<String> {
    let mut words: Vec<String> = record.interfaces.iter().map(|&class| class_name(class)).collect();
    if words.is_empty() {
        words.push(class_name(record.class));
    }
    words.dedup();
    words
}

fn class_name([class, subclass, protocol]: [u8; 3]) -> String {
    let name = match (class, subclass, protocol) {
        (1, ..) => "audio",
        (2, ..) => "communications",
        (3, 1, 1) => "keyboard",
        (3, 1, 2) => "mouse",
        (3, ..) => "input",
        (6, ..) => "camera (still)",
        (7, ..) => "printer",
        (8, _, 0x50) => "storage",
        (8, _, 0x62) => "storage (UAS)",
        (8, ..) => "storage (other)",
        (9, ..) => "hub",
        (10, ..) => "communications data",
        (11, ..) => "smart card",
        (14, ..) => "video",
        (0xe0, ..) => "wireless",
        (0xfe, ..) => "application specific",
        (0xff, ..) => "vendor specific",
        _ => return format!("class {class:02x}/{subclass:02x}/{protocol:02x}"),
    };
    name.to_owned()
}
