//! The names of USB devices that have no strings of their own, from the USB ID Repository, which the crate `usb-ids`
//! contains (<http://www.linux-usb.org/usb-ids.html>).

use usb_ids::{Device, FromId, Vendor};

/// The ids that pid.codes reserves for tests: any device may have them, farbus's own gadgets among others.
const TEST_VENDOR: u16 = 0x1209;
const TEST_PRODUCTS: std::ops::RangeInclusive<u16> = 0x0001..=0x0010;

/// What is known of a device by its ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsbNames {
    /// Its vendor.
    pub vendor: Option<&'static str>,
    /// Its product; never without its vendor.
    pub product: Option<&'static str>,
}

impl UsbNames {
    /// The names of a device with these ids.
    pub fn of(vendor: u16, product: u16) -> Self {
        if vendor == TEST_VENDOR && TEST_PRODUCTS.contains(&product) {
            return Self::default();
        }
        Self {
            vendor: Vendor::from_id(vendor).map(Vendor::name),
            product: Device::from_vid_pid(vendor, product).map(Device::name),
        }
    }

    /// The names of a device with these ids in hexadecimal digits, as lists show them.
    pub fn of_hex(vendor: &str, product: &str) -> Self {
        let read = |text| u16::from_str_radix(text, 16);
        read(vendor).and_then(|vendor| Ok(Self::of(vendor, read(product)?))).unwrap_or_default()
    }

    /// Vendor and product in a line; `None` if the product is not known. The vendor alone says little of a device.
    pub fn title(self) -> Option<String> {
        Some(format!("{} {}", self.vendor?, self.product?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_of_the_repository_and_test_ids_have_none() {
        let adapter = UsbNames::of(0x0403, 0x6001);
        assert_eq!(adapter.vendor, Some("Future Technology Devices International, Ltd"));
        assert!(adapter.title().is_some_and(|title| title.contains("FT232")), "{adapter:?}");
        assert_eq!(UsbNames::of_hex("0403", "6001"), adapter);
        let unknown = UsbNames::of(0x0403, 0x0001);
        assert!(unknown.vendor.is_some() && unknown.title().is_none(), "{unknown:?}");
        for nobody in [UsbNames::of(0x1209, 0x0001), UsbNames::of(0, 0), UsbNames::of_hex("", "")] {
            assert_eq!(nobody, UsbNames::default());
        }
    }
}
