//! Describes a device's classes in words.

use farbus_model::DescriptorSet;
use farbus_session::DeviceRecord;
use farbus_session::device_class::description;
pub use farbus_session::registry::name_of;

/// How many interfaces of another host's device are described. What a configuration may have is limited by its length
/// alone, which leaves room for thousands.
const CLASSES_MAX: usize = 32;

/// The classes of a record's interfaces, in words (usb.org's defined class codes).
pub fn classes(record: &DeviceRecord) -> Vec<String> {
    class_words(record.class, record.interfaces.iter().copied())
}

/// The classes of the interfaces of a device's first configuration, in words, [`CLASSES_MAX`] at most.
pub fn classes_of(descriptors: &DescriptorSet) -> Vec<String> {
    let first = descriptors.configurations.first();
    let interfaces = first.into_iter().flat_map(|configuration| configuration.interfaces().map(|each| each.class));
    class_words(descriptors.device.class, interfaces.take(CLASSES_MAX))
}

/// The classes of the interfaces, or of the device if it has none.
pub fn class_words(device: [u8; 3], interfaces: impl Iterator<Item = [u8; 3]>) -> Vec<String> {
    let mut words: Vec<String> = interfaces.map(description).collect();
    if words.is_empty() {
        words.push(description(device));
    }
    words.dedup();
    words
}
