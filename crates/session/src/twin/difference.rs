//! Whether two devices are identical to their user.

use farbus_model::{Descriptors, Speed};

/// The first difference that a user would notice if the second device replaced the first; `None` if there is none.
/// Strings are not compared: serial numbers differ, and the user continues to see those of the first device.
pub fn difference(one: (&Descriptors, Speed), other: (&Descriptors, Speed)) -> Option<String> {
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
    if let Some(byte) = at(&one.bos, &other.bos) {
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
