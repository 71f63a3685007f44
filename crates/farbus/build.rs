//! Writes the USB ID Repository as four files without pointers, which `src/devices/usb_names.rs` searches.
//!
//! The tables of the crate `usb-ids` are full of pointers: of a program that may lie at any address, each process
//! would write and keep a megabyte of them, and farbus runs as two processes.

use std::{env, error::Error, fs, path::Path};
use usb_ids::Vendors;

/// Names in the order of their keys. The index has, for each, its key and where it begins, both as four bytes.
#[derive(Default)]
struct NameTable {
    index: Vec<u8>,
    names: String,
}

impl NameTable {
    fn of(mut named: Vec<(u32, &str)>) -> Result<Self, Box<dyn Error>> {
        named.sort_unstable();
        let mut table = Self::default();
        for (key, name) in named {
            table.index.extend(key.to_le_bytes());
            table.index.extend(u32::try_from(table.names.len())?.to_le_bytes());
            table.names.push_str(name);
        }
        Ok(table)
    }

    fn write(&self, folder: &Path, what: &str) -> Result<(), Box<dyn Error>> {
        fs::write(folder.join(format!("usb_{what}.index")), &self.index)?;
        Ok(fs::write(folder.join(format!("usb_{what}.txt")), &self.names)?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = env::var_os("OUT_DIR").ok_or("cargo names no folder for what is made")?;
    let vendors = Vendors::iter().map(|vendor| (u32::from(vendor.id()), vendor.name())).collect();
    let of_vendor = |vendor: &'static usb_ids::Vendor| {
        let key = move |product: u16| u32::from(vendor.id()) << 16 | u32::from(product);
        vendor.devices().map(move |device| (key(device.id()), device.name()))
    };
    let products = Vendors::iter().flat_map(of_vendor).collect();
    NameTable::of(vendors)?.write(folder.as_ref(), "vendors")?;
    NameTable::of(products)?.write(folder.as_ref(), "products")
}
