//! Devices whose descriptors break the specification, each made of a number. The rig plugs the same ones into a guest.

use super::rng::Rng;

/// How many of them a kernel was shown.
pub const ODD_DEVICES: u64 = 1000;

/// The speeds that such a device may have, as USB/IP numbers them (`enum usb_device_speed`): low, full, high, super.
const SPEEDS: [u32; 5] = [1, 2, 3, 3, 5];

/// The speed of a device, as USB/IP numbers it, and its configurations.
pub fn odd_device(seed: u64) -> (u32, Vec<Vec<u8>>) {
    let mut rng = Rng(seed);
    let speed = SPEEDS[rng.below(5) as usize];
    let count = 1 + rng.below(2);
    let configurations = (0..count).map(|_| {
        let mut bytes = if rng.one_in(2) { plain() } else { rich() };
        for _ in 0..=rng.below(4) {
            mutate(&mut bytes, &mut rng);
        }
        bytes
    });
    let configurations = configurations.collect();
    (speed, configurations)
}

/// A high-speed device: an interface with two bulk endpoints, one with an interrupt endpoint and a second setting.
pub fn plain() -> Vec<u8> {
    let mut bytes = vec![9, 2, 0, 0, 2, 1, 0, 0x80, 50];
    bytes.extend([9, 4, 0, 0, 2, 255, 1, 2, 0, 7, 5, 0x81, 2, 0, 2, 0, 7, 5, 0x02, 2, 0, 2, 0]);
    bytes.extend([9, 4, 1, 0, 1, 3, 0, 0, 0, 9, 0x21, 0x11, 1, 0, 1, 0x22, 63, 0, 7, 5, 0x83, 3, 8, 0, 4]);
    bytes.extend([9, 4, 1, 1, 1, 3, 0, 0, 0, 7, 5, 0x83, 3, 64, 0, 4]);
    with_total(bytes)
}

/// A device at SuperSpeed: an association, companions, isochronous settings.
pub fn rich() -> Vec<u8> {
    let mut bytes = vec![9, 2, 0, 0, 3, 1, 0, 0x80, 50, 8, 11, 0, 2, 14, 3, 0, 0];
    bytes.extend([9, 4, 0, 0, 1, 14, 1, 0, 0, 5, 0x24, 1, 0, 1, 7, 5, 0x86, 3, 16, 0, 8, 6, 48, 0, 0, 16, 0]);
    bytes.extend([9, 4, 1, 0, 0, 14, 2, 0, 0, 9, 4, 1, 1, 1, 14, 2, 0, 0]);
    bytes.extend([7, 5, 0x81, 1, 0, 4, 1, 6, 48, 3, 1, 0, 16]);
    bytes.extend([9, 4, 2, 0, 3, 8, 6, 0x62, 0, 7, 5, 0x83, 2, 0, 4, 0, 6, 48, 15, 0, 0, 0]);
    bytes.extend([7, 5, 0x04, 2, 0, 4, 0, 6, 48, 15, 5, 0, 0, 7, 5, 0x05, 0, 64, 0, 0, 6, 48, 0, 0, 0, 0]);
    with_total(bytes)
}

pub fn with_total(mut bytes: Vec<u8>) -> Vec<u8> {
    let total = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total.to_le_bytes());
    bytes
}

/// Changes a configuration in a way that devices do, or in any.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    // The places where descriptors begin, as far as their lengths lead.
    let mut places = vec![0];
    while let Some(&length @ 2..) = bytes.get(places[places.len() - 1]) {
        places.push(places[places.len() - 1] + usize::from(length));
    }
    places.retain(|place| *place < bytes.len());
    let at = if places.is_empty() { 0 } else { places[rng.below(places.len() as u64) as usize] };
    let length = bytes.get(at).map_or(0, |length| usize::from(*length)).min(bytes.len() - at);
    match rng.below(9) {
        // A length, a type, or a field of a descriptor.
        0 if at < bytes.len() => bytes[at] = [0, 1, 2, 5, 6, 8, 10, 255][rng.below(8) as usize],
        1 if at + 1 < bytes.len() => bytes[at + 1] = [2, 4, 5, 11, 48, 0x24][rng.below(6) as usize],
        2 | 3 if length > 2 => bytes[at + 2 + rng.below(length as u64 - 2) as usize] = rng.next() as u8,
        // A descriptor twice, or not at all.
        4 => {
            let copy = bytes[at..at + length].to_vec();
            let to = places.last().copied().filter(|_| rng.one_in(2)).unwrap_or(at);
            bytes.splice(to..to, copy);
        }
        5 if at > 0 => drop(bytes.drain(at..at + length)),
        // Too few bytes, or too many.
        6 => bytes.truncate(bytes.len() - rng.below(1 + bytes.len() as u64 / 4) as usize),
        7 => bytes.extend(rng.bytes(3)),
        // What is there is announced.
        8 if bytes.len() > 4 => *bytes = with_total(std::mem::take(bytes)),
        _ => {
            if let Some(byte) = bytes.get_mut(2 + rng.below(2) as usize) {
                *byte = byte.wrapping_add(rng.next() as u8 % 16);
            }
        }
    }
}
