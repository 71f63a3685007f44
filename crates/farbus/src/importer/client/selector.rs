//! How a target names a device of a host: by name or bus id, or by what the device says of itself, which works with
//! every exporter, also one that gives no names.
//!
//! | `HOST/…` | the device |
//! |---|---|
//! | `disk`, `1-1.4` | with this name or bus id there |
//! | `10c4:ea60` | the only one there of this vendor and product |
//! | `serial=zigbee` | with this serial number, in whatever port |

use farbus_session::DeviceRecord;
use farbus_session::registry::name_of;

/// Which device of a host is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSelector<'a> {
    /// The one with this name or bus id.
    Name(&'a str),
    /// The only one of this vendor and product.
    Make(u16, u16),
    /// The one with this serial number.
    Serial(&'a str),
}

impl<'a> DeviceSelector<'a> {
    /// Reads the device of a target. A name of farbus has no ':' and no '='.
    pub fn of(device: &'a str) -> Self {
        let number = |digits: &str| {
            let is_hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
        };
        let make = device.split_once(':').and_then(|(vendor, product)| Some((number(vendor)?, number(product)?)));
        match (make, device.strip_prefix("serial=").filter(|serial| !serial.is_empty())) {
            (Some((vendor, product)), _) => Self::Make(vendor, product),
            (None, Some(serial)) => Self::Serial(serial),
            (None, None) => Self::Name(device),
        }
    }

    /// Whether `record` may be the device: a list has no serial numbers.
    pub fn may_be(self, record: &DeviceRecord) -> bool {
        match self {
            Self::Name(name) => name_of(record) == name || record.bus_id == name,
            Self::Make(vendor, product) => (record.vendor, record.product) == (vendor, product),
            Self::Serial(_) => record.class[0] != HUB,
        }
    }
}

/// The class of hubs (`bDeviceClass`).
const HUB: u8 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_named_by_make_or_serial_number_or_else_by_name() {
        assert_eq!(DeviceSelector::of("10c4:EA60"), DeviceSelector::Make(0x10c4, 0xea60));
        assert_eq!(DeviceSelector::of("serial=0001"), DeviceSelector::Serial("0001"));
        for name in ["disk", "1-1.4", "10c4:ea6", "10c4:ea60:1", "+0c4:ea60", "serial=", "serial"] {
            assert_eq!(DeviceSelector::of(name), DeviceSelector::Name(name));
        }
    }
}
