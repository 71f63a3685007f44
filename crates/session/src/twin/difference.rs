//! Whether two devices are identical to their user.

use std::ops::Range;

use farbus_model::{DescriptorSet, UsbSpeed};

/// `bDevCapabilityType` of a Container ID, a number of its own for each device, and the place of that number in the
/// capability (USB 3.2 §9.6.2.3).
const CONTAINER_ID: u8 = 0x04;
const CONTAINER_ID_AT: Range<usize> = 4..20;
/// `bDescriptorType` of a device capability (USB 3.2 table 9-6).
const DEVICE_CAPABILITY: u8 = 0x10;

/// The first difference that a user would notice if the second device replaced the first; `None` if there is none.
/// Strings and the Container ID are not compared: they tell one device of a make from another, and the user continues
/// to see those of the first device. A binary object store that was not read from one of the devices (a session does
/// not carry it, and a device of this machine is not asked for it) is not compared either.
pub fn difference(one: (&DescriptorSet, UsbSpeed), other: (&DescriptorSet, UsbSpeed)) -> Option<String> {
    let ((one, speed), (other, other_speed)) = (one, other);
    if speed != other_speed {
        return Some(format!("one runs at {speed} speed, the other at {other_speed} speed"));
    }
    let (a, b) = (&one.device, &other.device);
    if (a.vendor, a.product) != (b.vendor, b.product) {
        let ids = format!("one is {:04x}:{:04x}, the other {:04x}:{:04x}", a.vendor, a.product, b.vendor, b.product);
        return Some(ids);
    }
    if a.device_bcd != b.device_bcd {
        return Some(format!("one is release {:04x}, the other {:04x} (bcdDevice)", a.device_bcd, b.device_bcd));
    }
    let at = |one: &[u8], other: &[u8]| {
        let first = one.iter().zip(other).position(|(one, other)| one != other);
        first.or((one.len() != other.len()).then(|| one.len().min(other.len())))
    };
    if let Some(byte) = at(&a.to_bytes(), &b.to_bytes()) {
        return Some(format!("their device descriptors differ at byte {byte}"));
    }
    let are_known = !one.bos.is_empty() && !other.bos.is_empty();
    if let Some(byte) = are_known.then(|| at(&of_make(&one.bos), &of_make(&other.bos))).flatten() {
        return Some(format!("their binary object stores differ at byte {byte}"));
    }
    if one.configurations.len() != other.configurations.len() {
        let (one, other) = (one.configurations.len(), other.configurations.len());
        return Some(format!("one has {one} configurations, the other {other}"));
    }
    one.configurations.iter().zip(&other.configurations).find_map(|(one, other)| {
        let byte = at(&one.bytes, &other.bytes)?;
        Some(format!("their configurations {} differ at byte {byte}", one.value))
    })
}

/// A binary object store without the numbers that belong to one device alone.
fn of_make(bos: &[u8]) -> Vec<u8> {
    let (mut bytes, mut at) = (bos.to_vec(), 0);
    while let Some(&length) = bytes.get(at).filter(|&&length| length >= 3) {
        let Some(one) = bytes.get_mut(at..at + usize::from(length)) else { break };
        if let [_, DEVICE_CAPABILITY, CONTAINER_ID, ..] = one
            && let Some(id) = one.get_mut(CONTAINER_ID_AT)
        {
            id.fill(0);
        }
        at += usize::from(length);
    }
    bytes
}
