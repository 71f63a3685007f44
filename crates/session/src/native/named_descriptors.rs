//! Strings and the binary object store of a USB device, as a session carries them besides the device's description.

use std::collections::BTreeMap;

use farbus_model::DescriptorSet;
use farbus_model::descriptor::{LANGUAGE_EN_US, kind, string_from_bytes, string_to_bytes};
use farbus_wire::native::descriptors::NamedDescriptor;

/// What an exporter knows of a device besides its description: the device's own strings first, so that a limit cuts off
/// others.
pub fn of(all: &DescriptorSet) -> Vec<NamedDescriptor> {
    let named: Vec<u8> = all.string_indexes().collect();
    let others = all.strings.keys().copied().filter(|index| !named.contains(index));
    let strings = named.iter().copied().chain(others).filter_map(|index| {
        let bytes = string_to_bytes(all.string(index)?);
        Some(NamedDescriptor { kind: kind::STRING, index, language: LANGUAGE_EN_US, bytes })
    });
    let bos = (!all.bos.is_empty()).then(|| all.bos.clone());
    let bos = bos.map(|bytes| NamedDescriptor { kind: kind::BOS, index: 0, language: 0, bytes });
    strings.chain(bos).collect()
}

/// Strings by index, and the object store (empty: none), of what an exporter told.
pub fn read(descriptors: &[NamedDescriptor]) -> (BTreeMap<u8, String>, Vec<u8>) {
    let (mut strings, mut bos) = (BTreeMap::new(), Vec::new());
    let is_english = |descriptor: &&NamedDescriptor| descriptor.language == LANGUAGE_EN_US;
    // String 0 is the table of languages.
    let texts = || descriptors.iter().filter(|descriptor| descriptor.kind == kind::STRING && descriptor.index != 0);
    for one in texts().filter(is_english).chain(texts()) {
        strings.entry(one.index).or_insert_with(|| string_from_bytes(&one.bytes));
    }
    if let Some(one) = descriptors.iter().find(|descriptor| descriptor.kind == kind::BOS) {
        bos.clone_from(&one.bytes);
    }
    (strings, bos)
}

#[cfg(test)]
mod tests {
    use farbus_model::DeviceDefinition;

    use super::*;

    fn sample() -> DescriptorSet {
        let mut all = DeviceDefinition::new(0x1209, 1).names("farbus", "a thing", "42").build();
        all.strings.extend([(9, "an interface".to_owned()), (200, "\u{1f50c}".to_owned())]);
        all.bos = vec![5, kind::BOS, 5, 0, 0];
        all
    }

    #[test]
    fn strings_and_object_store_survive_the_way_and_the_devices_own_come_first() {
        let mut all = sample();
        assert_eq!(read(&of(&all)), (all.strings.clone(), all.bos.clone()));
        // The serial number has the highest index.
        all.device.serial_string = 200;
        let device = &all.device;
        let indexes: Vec<u8> = of(&all).iter().map(|one| one.index).collect();
        let own = [device.manufacturer_string, device.product_string, device.serial_string];
        assert_eq!(indexes[..3], own);
        assert_eq!(of(&DescriptorSet::default()), []);
    }

    #[test]
    fn english_counts_before_other_languages_and_unknown_types_are_passed_over() {
        let string = |index, language, text: &str| NamedDescriptor {
            kind: kind::STRING,
            index,
            language,
            bytes: string_to_bytes(text),
        };
        let later = NamedDescriptor { kind: 0x41, index: 1, language: 0, bytes: vec![2, 0x41] };
        let descriptors = [
            string(0, 0, "\u{0409}"),
            string(1, 0x0407, "Gerät"),
            string(1, LANGUAGE_EN_US, "device"),
            string(2, 0, "first"),
            string(2, 0x0407, "zweites"),
            later,
        ];
        let texts = [(1, "device".to_owned()), (2, "first".to_owned())];
        assert_eq!(read(&descriptors), (texts.into(), Vec::new()));
    }
}
