//! A device's descriptors for people and programs, with the rates of its endpoints.

use std::borrow::Cow;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A device's descriptors (USB 2.0 §9.6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct DescriptorTree {
    /// The speed, in words.
    pub speed: String,
    /// `bcdUSB`, such as `2.00`.
    pub usb: String,
    /// `bcdDevice`, the device's own release.
    pub release: String,
    /// Class, subclass and protocol, hexadecimal: `00/00/00`.
    pub class: String,
    /// `idVendor` and `idProduct`, hexadecimal: `0525:a4a0`.
    pub ids: String,
    /// `bMaxPacketSize0`: the most bytes of one packet of the control pipe.
    pub packet_bytes_max: u32,
    /// `iManufacturer`, if the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// `iProduct`, if the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// `iSerialNumber`, if the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Its configurations, in the order of their descriptors.
    pub configurations: Vec<ConfigurationTree>,
}

/// A configuration descriptor with all its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct ConfigurationTree {
    /// `bConfigurationValue`: the number that SET_CONFIGURATION takes.
    pub value: u8,
    /// What it draws from the bus at most, mA.
    pub current_ma: u32,
    /// Whether it has a supply of its own.
    pub is_self_powered: bool,
    /// Every setting of every interface, in the order of the descriptor.
    pub interfaces: Vec<InterfaceTree>,
}

/// A setting of an interface. Every setting of every interface is an entry of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct InterfaceTree {
    /// `bInterfaceNumber`, from 0 in each configuration.
    pub number: u8,
    /// `bAlternateSetting`, from 0 in each interface: the number that SET_INTERFACE takes.
    pub alternate: u8,
    /// Class, subclass and protocol, hexadecimal: `08/06/50`.
    pub class: String,
    /// The class in words: `storage`.
    pub words: String,
    /// Its endpoints, without the control pipe.
    pub endpoints: Vec<EndpointTree>,
}

/// An endpoint of an alternate setting, with what its descriptor says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct EndpointTree {
    /// `bEndpointAddress`, hexadecimal: `0x81`.
    pub address: String,
    /// `in` (to the host) or `out`.
    pub direction: Cow<'static, str>,
    /// `control`, `isochronous`, `bulk` or `interrupt`.
    pub kind: Cow<'static, str>,
    /// Largest packet, bytes.
    pub packet_bytes_max: u16,
    /// Packets of a service interval.
    pub packets: u16,
    /// The service interval, µs; 0 for control and bulk.
    pub interval_us: u64,
    /// What it carries at most, bytes a second: a periodic endpoint by its descriptor, a bulk endpoint on a bus that
    /// carries nothing else. Absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s_max: Option<u64>,
}
