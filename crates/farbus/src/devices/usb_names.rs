//! The names of USB devices that have no strings of their own, from the USB ID Repository
//! (<http://www.linux-usb.org/usb-ids.html>), which the crate `usb-ids` contains and `build.rs` makes tables of.

/// Ids that any device may have, farbus's own gadgets among others: those that pid.codes reserves for tests, and those
/// of gadgets under Linux. What such a device is, its own strings alone say.
const ANYBODYS: [(u16, std::ops::RangeInclusive<u16>); 2] = [(0x1209, 0x0001..=0x0010), (0x0525, 0xa4a0..=0xa4af)];

/// What is known of a device by its ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsbNames {
    /// The name that the USB ID list has for the vendor id; `None` if it has none.
    pub vendor: Option<&'static str>,
    /// Its product; never without its vendor.
    pub product: Option<&'static str>,
}

impl UsbNames {
    /// The names of a device with these ids.
    pub fn of(vendor: u16, product: u16) -> Self {
        if ANYBODYS.iter().any(|(of, products)| *of == vendor && products.contains(&product)) {
            return Self::default();
        }
        let vendor_key = u32::from(vendor);
        let product_key = vendor_key << 16 | u32::from(product);
        Self { vendor: VENDORS.name(vendor_key), product: PRODUCTS.name(product_key) }
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

/// Names in the order of their keys, as `build.rs` writes them. It has no pointers, which each process would have to
/// adjust.
struct UsbNameTable {
    /// For each name, its key and where it begins in the text, both as four bytes, the lowest first.
    index: &'static [u8],
    text: &'static str,
}

/// By vendor id.
static VENDORS: UsbNameTable = UsbNameTable {
    index: include_bytes!(concat!(env!("OUT_DIR"), "/usb_vendors.index")),
    text: include_str!(concat!(env!("OUT_DIR"), "/usb_vendors.txt")),
};

/// By vendor id and product id, the vendor's in the upper half.
static PRODUCTS: UsbNameTable = UsbNameTable {
    index: include_bytes!(concat!(env!("OUT_DIR"), "/usb_products.index")),
    text: include_str!(concat!(env!("OUT_DIR"), "/usb_products.txt")),
};

impl UsbNameTable {
    fn entries(&self) -> &'static [[[u8; 4]; 2]] {
        self.index.as_chunks().0.as_chunks().0
    }

    fn name(&self, key: u32) -> Option<&'static str> {
        let entries = self.entries();
        let at = entries.binary_search_by_key(&key, |[of, _]| u32::from_le_bytes(*of)).ok()?;
        let begin = |[_, begin]: &[[u8; 4]; 2]| u32::from_le_bytes(*begin) as usize;
        let end = entries.get(at + 1).map_or(self.text.len(), begin);
        self.text.get(begin(&entries[at])..end)
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
        for nobody in
            [UsbNames::of(0x1209, 0x0001), UsbNames::of(0x0525, 0xa4a5), UsbNames::of(0, 0), UsbNames::of_hex("", "")]
        {
            assert_eq!(nobody, UsbNames::default());
        }
    }

    #[test]
    fn the_tables_name_what_the_repository_names() {
        let vendors = usb_ids::Vendors::iter().count();
        let products: usize = usb_ids::Vendors::iter().map(|vendor| vendor.devices().count()).sum();
        assert_eq!((VENDORS.entries().len(), PRODUCTS.entries().len()), (vendors, products));
        for vendor in usb_ids::Vendors::iter() {
            assert_eq!(VENDORS.name(vendor.id().into()), Some(vendor.name()));
            for device in vendor.devices() {
                let key = u32::from(vendor.id()) << 16 | u32::from(device.id());
                assert_eq!(PRODUCTS.name(key), Some(device.name()));
            }
        }
    }
}
