//! A device that becomes another one in its port: a board that is flashed, a modem that switches its mode. Which of
//! them are taken for the device that was there first.
//!
//! | the device in the port now | is |
//! |---|---|
//! | has the identity, or the make and serial number, of the first one | the same |
//! | stores data, or the first one does | another one |
//! | is of the same make, and has another serial number | followed by `port`, otherwise another one |
//! | anything else | followed by `port` or its `VENDOR:PRODUCT`, otherwise another one |

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use farbus_io_linux::usb::UsbDeviceSelector;
use farbus_io_net::trust::AttachedDevice;

/// What is said of `port` when somebody types it.
pub const FOLLOWS_ANY: &str = "whatever is plugged into the port next is taken for the device, also one that nobody \
                               expects; only disks are not";

/// A word of `--follow` and `follow = `.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FollowWord {
    /// `port`: whatever is in the port.
    Port,
    /// `VENDOR:PRODUCT`: a device of this make.
    Make(u16, u16),
}

impl FromStr for FollowWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("port", _) => Ok(Self::Port),
            (_, Ok(UsbDeviceSelector::Ids(vendor, product))) => Ok(Self::Make(vendor, product)),
            _ => Err(format!("'{text}' is nothing to follow: name a make (VENDOR:PRODUCT, 18d1:9302), or say 'port'")),
        }
    }
}

impl fmt::Display for FollowWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port => f.write_str("port"),
            Self::Make(vendor, product) => write!(f, "{vendor:04x}:{product:04x}"),
        }
    }
}

/// The state of a device that is shared by its port and is another one than the share stands for.
pub const ANOTHER_IN_PORT: &str = "another device in this port";

/// Which other devices in a port are taken for the first one; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowPolicy(BTreeSet<FollowWord>);

impl FromIterator<FollowWord> for FollowPolicy {
    fn from_iter<I: IntoIterator<Item = FollowWord>>(words: I) -> Self {
        Self(words.into_iter().collect())
    }
}

/// What the device in a port is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPort {
    /// The device that was there first.
    Same,
    /// Another one, which is taken for it.
    Followed,
    /// Another one, which is not followed: it must not be offered or used in place of the first.
    Another,
}

impl FollowPolicy {
    /// Whatever is in the port.
    pub fn any() -> Self {
        [FollowWord::Port].into_iter().collect()
    }

    /// The words, in order.
    pub fn words(&self) -> impl Iterator<Item = &FollowWord> {
        self.0.iter()
    }

    /// A policy with the words of both.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self
    }

    /// Whether no other device is followed.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether whatever is in the port is followed.
    pub fn is_any(&self) -> bool {
        self.0.contains(&FollowWord::Port)
    }

    /// Tells somebody who typed `port` what that means.
    pub fn warn_if_any(&self) {
        if self.is_any() {
            eprintln!("farbus: warning: --follow port: {FOLLOWS_ANY}.");
        }
    }

    /// Whether devices of this make are followed.
    pub fn takes(&self, (vendor, product): (u16, u16)) -> bool {
        self.is_any() || self.0.contains(&FollowWord::Make(vendor, product))
    }

    /// What `seen` is, where `first` was before. Both have told what they are.
    pub fn judge(&self, first: &AttachedDevice, seen: &AttachedDevice) -> InPort {
        let is_same_make = first.usb == seen.usb;
        let is_same_one = match (first.id, seen.id) {
            (Some(first_id), Some(id)) if first_id == id => true,
            // The identities last, and are different ones.
            (Some(_), Some(_)) if first.is_lasting && seen.is_lasting => false,
            _ => is_same_make && first.serial == seen.serial,
        };
        let has_other_serial = first.serial.is_some() && seen.serial.is_some() && first.serial != seen.serial;
        match seen.usb {
            _ if is_same_one && is_same_make => InPort::Same,
            _ if first.stores_data || seen.stores_data => InPort::Another,
            _ if is_same_make && has_other_serial && !self.is_any() => InPort::Another,
            Some(make) if self.takes(make) => InPort::Followed,
            _ => InPort::Another,
        }
    }
}

/// A make as `VENDOR:PRODUCT`, four hexadecimal digits each; `unknown` without one.
pub fn make_in_words(usb: Option<(u16, u16)>) -> String {
    usb.map_or_else(|| "unknown".to_owned(), |(vendor, product)| FollowWord::Make(vendor, product).to_string())
}

/// A device by its make and serial number.
pub fn in_words(device: &AttachedDevice) -> String {
    let make = make_in_words(device.usb);
    match &device.serial {
        Some(serial) => format!("{make} with the serial number '{}'", serial.escape_debug()),
        None => format!("{make} without a serial number"),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use farbus_io_net::trust::random_device_id;

    fn device(product: u16, serial: Option<&str>) -> AttachedDevice {
        AttachedDevice { usb: Some((0x1209, product)), serial: serial.map(str::to_owned), ..AttachedDevice::default() }
    }

    fn follow(words: &[&str]) -> FollowPolicy {
        words.iter().map(|word| word.parse::<FollowWord>().unwrap()).collect()
    }

    #[test]
    fn words_are_makes_or_port() {
        let words = follow(&["1209:000a", "port"]);
        assert_eq!(words.words().map(ToString::to_string).collect::<Vec<_>>(), ["port", "1209:000a"]);
        for wrong in ["", "all", "1-1", "1209", "1209:", "serial=1", "12:34"] {
            assert!(wrong.parse::<FollowWord>().unwrap_err().contains("VENDOR:PRODUCT"), "{wrong}");
        }
    }

    #[test]
    fn another_make_is_followed_if_it_is_named_or_everything_is() {
        let (a, b) = (device(1, Some("s")), device(2, None));
        assert_eq!(follow(&[]).judge(&a, &b), InPort::Another);
        assert_eq!(follow(&["1209:0003"]).judge(&a, &b), InPort::Another);
        assert_eq!(follow(&["1209:0002"]).judge(&a, &b), InPort::Followed);
        assert_eq!(follow(&["port"]).judge(&a, &b), InPort::Followed);
        assert_eq!(follow(&[]).judge(&a, &a), InPort::Same);
    }

    #[test]
    fn disks_are_never_followed() {
        let disk = AttachedDevice { stores_data: true, ..device(2, None) };
        assert_eq!(follow(&["port"]).judge(&device(1, None), &disk), InPort::Another);
        assert_eq!(follow(&["port"]).judge(&disk, &device(1, None)), InPort::Another);
        assert_eq!(follow(&["port"]).judge(&disk, &disk), InPort::Same);
    }

    #[test]
    fn another_one_of_the_same_make_is_followed_by_port_alone() {
        let (a, b) = (device(1, Some("a")), device(1, Some("b")));
        assert_eq!(follow(&["1209:0001"]).judge(&a, &b), InPort::Another);
        assert_eq!(follow(&["port"]).judge(&a, &b), InPort::Followed);
        // The same board with another firmware, which tells it by its descriptors.
        let with_id = || AttachedDevice { id: Some(random_device_id()), is_lasting: true, ..device(1, None) };
        assert_eq!(follow(&[]).judge(&with_id(), &with_id()), InPort::Another);
        assert_eq!(follow(&["1209:0001"]).judge(&with_id(), &with_id()), InPort::Followed);
    }

    #[test]
    fn identity_decides_where_it_lasts_and_make_and_serial_number_where_not() {
        let with_id = |device, is_lasting| AttachedDevice { id: Some(random_device_id()), is_lasting, ..device };
        let (a, b) = (with_id(device(1, None), false), with_id(device(1, None), false));
        assert_eq!(follow(&[]).judge(&a, &b), InPort::Same);
        let followed = AttachedDevice { usb: Some((0x1209, 2)), ..a.clone() };
        assert_eq!(follow(&[]).judge(&a, &followed), InPort::Another, "its exporter follows it, this host does not");
    }
}
