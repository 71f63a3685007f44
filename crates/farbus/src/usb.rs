//! This machine's own USB devices, shared.

use std::fmt;
use std::io;

use farbus_io::usb::{Found, Inventory, Obstacle, OpenError, Selector, UsbDevice};
use farbus_session::DeviceRecord;

use crate::share::{Share, ShareError};

/// Why real devices are not shared.
#[derive(Debug)]
pub enum UsbError {
    /// Nothing that is plugged in is meant.
    NoneFound(Selector),
    /// Something stands against it.
    Obstacle {
        /// Its bus id.
        bus_id: String,
        /// What.
        obstacle: Obstacle,
    },
    /// It could not be taken.
    Open {
        /// Its bus id.
        bus_id: String,
        /// Why.
        error: OpenError,
    },
    /// It could not be offered.
    Share(ShareError),
    /// sysfs could not be read.
    System(io::Error),
}

impl fmt::Display for UsbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsbError::NoneFound(selector) => {
                write!(f, "no USB device is {selector}\n  'farbus share --list' shows what there is")
            }
            UsbError::Obstacle { bus_id, obstacle: obstacle @ Obstacle::NoPermission { .. } } => write!(
                f,
                "usb:{bus_id}: {obstacle}\n  run as root, or let a udev rule give it to you (guide, \"Real devices\")"
            ),
            UsbError::Obstacle { bus_id, obstacle } => write!(f, "usb:{bus_id}: {obstacle}"),
            UsbError::Open { bus_id, error } => write!(f, "usb:{bus_id}: {error}"),
            UsbError::Share(error) => error.fmt(f),
            UsbError::System(error) => write!(f, "cannot read what USB devices there are: {error}"),
        }
    }
}

impl std::error::Error for UsbError {}

/// Shares every device that `selector` means. All or none: the first that cannot be had ends it.
///
/// # Errors
/// [`UsbError`].
pub fn share(share: &Share, selector: &Selector) -> Result<Vec<DeviceRecord>, UsbError> {
    let all = Inventory::default().devices().map_err(UsbError::System)?;
    let meant: Vec<Found> = all.into_iter().filter(|found| selector.matches(found)).collect();
    if meant.is_empty() {
        return Err(UsbError::NoneFound(selector.clone()));
    }
    let opened: Vec<(String, UsbDevice)> =
        meant.iter().map(|found| Ok((name(found), open(found)?))).collect::<Result<_, UsbError>>()?;
    opened.into_iter().map(|(name, device)| share.add(&name, device).map_err(UsbError::Share)).collect()
}

/// Opens one, if nothing stands against it.
///
/// # Errors
/// [`UsbError`].
pub fn open(found: &Found) -> Result<UsbDevice, UsbError> {
    let bus_id = found.bus_id.clone();
    match &found.obstacle {
        Some(obstacle) => Err(UsbError::Obstacle { bus_id, obstacle: obstacle.clone() }),
        None => UsbDevice::open(found).map_err(|error| UsbError::Open { bus_id, error }),
    }
}

/// A name to type: the product's own words, or else its numbers.
pub fn name(found: &Found) -> String {
    let device = &found.descriptors.device;
    let product = found.descriptors.string(device.product_string).unwrap_or_default();
    let mut name = String::new();
    for word in product.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= NAME_BYTES_MAX {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&word.to_ascii_lowercase());
    }
    // A name that looks like a bus id would be one.
    if name.bytes().any(|b| b.is_ascii_alphabetic()) {
        name
    } else {
        format!("usb-{:04x}-{:04x}", device.vendor, device.product)
    }
}

/// What is still typed and fits a table.
const NAME_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::descriptor::DeviceDescriptor;
    use farbus_model::{Descriptors, Speed};

    fn found(product: &str) -> Found {
        let device =
            DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..DeviceDescriptor::default() };
        let strings = [(2, product.to_owned())].into();
        Found {
            bus_id: "1-1".into(),
            bus: 1,
            number: 2,
            descriptors: Descriptors { device, strings, ..Descriptors::default() },
            serial: None,
            speed: Speed::High,
            configuration: 1,
            interfaces: Vec::new(),
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    #[test]
    fn a_device_is_called_what_it_calls_itself() {
        assert_eq!(name(&found("QEMU USB HARDDRIVE")), "qemu-usb-harddrive");
        assert_eq!(name(&found("  HD Webcam (C270), v2.1\u{fffd}")), "hd-webcam-c270-v2-1");
        assert_eq!(
            name(&found("a very long name that somebody in marketing made up")),
            "a-very-long-name-that-somebody"
        );
        for nothing in ["", "---", "1-1", "2000"] {
            assert_eq!(name(&found(nothing)), "usb-046d-c52b", "{nothing}");
        }
    }

    #[test]
    fn what_stands_against_it_is_said_with_what_to_do() {
        let obstacle = Obstacle::NoPermission { node: "/dev/bus/usb/001/002".into() };
        let hindered = Found { obstacle: Some(obstacle), ..found("Stick") };
        let said = open(&hindered).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("usb:1-1: no permission for /dev/bus/usb/001/002\n  run as root"), "{said}");
        let error = UsbError::NoneFound("046d:c52b".parse().unwrap());
        assert!(error.to_string().contains("usb:046d:c52b\n  'farbus share --list'"), "{error}");
    }
}
