//! What Linux 6.1 makes of a device's configuration: a second, independent writing-down of the rules of
//! `drivers/usb/core/config.c`, in its own order of buffers and sizes. What a kernel has shown is in
//! `linux-6.1-descriptors.txt`.

use farbus_model::UsbSpeed;

const INTERFACE: u8 = 4;
const ENDPOINT: u8 = 5;
const COMPANION: u8 = 0x30;

/// An endpoint as `lsusb` of a guest would show it after the kernel's repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelEndpoint {
    pub address: u8,
    /// Bits 1..0 of `bmAttributes`.
    pub kind: u8,
    pub packet_bytes: u16,
    /// Packets in one interval.
    pub packets: u16,
    pub interval: u8,
}

/// An alternate setting: interface, alternate, class triple, endpoints.
pub type KernelSetting = (u8, u8, [u8; 3], Vec<KernelEndpoint>);

/// The settings in the order in which their descriptors stand; `None`: the kernel refuses the device.
pub fn settings(bytes: &[u8], speed: UsbSpeed) -> Option<Vec<KernelSetting>> {
    if bytes.len() < 9 || bytes[1] != 2 || bytes[0] < 9 || usize::from(bytes[0]) > bytes.len() {
        return None;
    }
    let mut size = usize::from(bytes[0]);
    let begin = size;
    let mut alternates = [0u32; 256];
    let mut known = Vec::new();
    while size < bytes.len() {
        let left = bytes.len() - size;
        if left < 2 || usize::from(bytes[size]) > left || bytes[size] < 2 {
            break;
        }
        if bytes[size + 1] == INTERFACE && bytes[size] >= 9 {
            let number = bytes[size + 2];
            if known.contains(&number) {
                alternates[usize::from(number)] += 1;
            } else if known.len() < 32 {
                known.push(number);
                alternates[usize::from(number)] = 1;
            }
        }
        size += usize::from(bytes[size]);
    }
    let bytes = &bytes[..size];
    let mut all: Vec<KernelSetting> = Vec::new();
    let mut at = next(bytes, begin, &[INTERFACE]);
    while at < bytes.len() {
        let d = at;
        at += usize::from(bytes[d]);
        let is_read = bytes[d] >= 9 && {
            let (number, alternate) = (bytes[d + 2], bytes[d + 3]);
            let read = all.iter().filter(|setting| setting.0 == number).count() as u32;
            read < alternates[usize::from(number)].min(128)
                && !all.iter().any(|setting| (setting.0, setting.1) == (number, alternate))
        };
        if !is_read {
            at = next(bytes, at, &[INTERFACE]);
            continue;
        }
        all.push((bytes[d + 2], bytes[d + 3], [bytes[d + 5], bytes[d + 6], bytes[d + 7]], Vec::new()));
        let most = usize::from(bytes[d + 4]).min(30);
        at = next(bytes, at, &[ENDPOINT, INTERFACE]);
        while at < bytes.len() && bytes[at + 1] != INTERFACE {
            if let Some(endpoint) = endpoint(bytes, at, most, &all, speed) {
                all.last_mut().unwrap().3.push(endpoint);
            }
            at = next(bytes, at + usize::from(bytes[at]), &[ENDPOINT, INTERFACE]);
        }
    }
    Some(all)
}

/// The place of the next descriptor of one of these types, or the end.
fn next(bytes: &[u8], mut at: usize, types: &[u8]) -> usize {
    while at < bytes.len() && !types.contains(&bytes[at + 1]) {
        at += usize::from(bytes[at]);
    }
    at
}

/// The endpoint at `d` in the last of `all`, if it counts.
fn endpoint(bytes: &[u8], d: usize, most: usize, all: &[KernelSetting], speed: UsbSpeed) -> Option<KernelEndpoint> {
    let own = all.last().unwrap();
    // 6.1.192 leaves out what has reserved bits; versions in between cleared them.
    if bytes[d] < 7 || bytes[d + 2] & 0x0f == 0 || bytes[d + 2] & 0x70 != 0 || own.3.len() >= most {
        return None;
    }
    let (address, mut kind, mut interval) = (bytes[d + 2], bytes[d + 3] & 3, bytes[d + 6]);
    for other in all.iter().filter(|other| other.0 != own.0 || other.1 == own.1).flat_map(|other| &other.3) {
        let is_same_number = other.address & 0x0f == address & 0x0f;
        if other.address == address || (is_same_number && (kind == 0 || other.kind == 0)) {
            return None;
        }
    }
    let (min, max, usual): (u8, u8, u8) = match (kind, speed) {
        (3, UsbSpeed::Low | UsbSpeed::Full) => (1, 255, 10),
        (3, _) => {
            // fls(bInterval * 8)
            let fls = 32 - (u32::from(interval) * 8).leading_zeros();
            (1, 16, if fls == 0 { 7 } else { fls as u8 })
        }
        (1, UsbSpeed::High) => (1, 16, 7),
        (1, _) => (1, 16, 4),
        _ => (0, 255, 0),
    };
    if interval < min || interval > max {
        interval = usual;
    }
    let mut maxp = u32::from(bytes[d + 4]) | u32::from(bytes[d + 5]) << 8;
    let was = kind;
    if speed == UsbSpeed::Low && kind == 2 {
        (kind, interval) = (3, 1);
        if maxp & 0x7ff > 8 {
            maxp = 8;
        }
    }
    let mut multiple = 0;
    if speed == UsbSpeed::High && (was == 1 || was == 3) {
        multiple = maxp & 0x1800;
        maxp &= !multiple;
    }
    let limits: [u32; 4] = match speed {
        UsbSpeed::Low => [8, 0, 0, 8],
        UsbSpeed::Full => [64, 1023, 64, 64],
        UsbSpeed::High => [64, 1024, 1024, 1024],
        _ => [512, 1024, 1024, 1024],
    };
    let packet_bytes = maxp.min(limits[usize::from(kind)]) as u16;
    let mut packets = (multiple >> 11) as u16 + 1;
    if speed >= UsbSpeed::Super {
        packets = companion(bytes, d + usize::from(bytes[d]), kind);
    }
    Some(KernelEndpoint { address, kind, packet_bytes, packets, interval })
}

/// Packets in an interval, as the companion at `c` says.
fn companion(bytes: &[u8], c: usize, kind: u8) -> u16 {
    if bytes.len() < c + 6 || bytes[c + 1] != COMPANION {
        return 1;
    }
    let burst = if kind == 0 { 0 } else { u16::from(bytes[c + 2].min(15)) };
    let mult = if kind == 1 { (u16::from(bytes[c + 3] & 3) + 1).min(3) } else { 1 };
    (burst + 1) * mult
}
