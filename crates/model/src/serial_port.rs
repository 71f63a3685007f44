//! Serial ports of USB devices: which interfaces and endpoints they are, by class or by the chip's ids.
//!
//! | device | interface |
//! |---|---|
//! | any | CDC data (class 10) that the union or call management descriptor of an ACM function (class 2, subclass 2, protocol 0 to 6) names |
//! | FTDI: 0403:6001, 6010, 6011, 6014, 6015 | vendor-specific, with a bulk IN and a bulk OUT endpoint |
//! | CP210x: 10c4:ea60, ea61, ea63, ea70, ea71 | the same |
//! | CH340 and CH341: 1a86:5523, 7522, 7523 | the same |
//! | PL2303: 067b:2303, 2304, 23a3, 23b3, 23c3, 23d3, 23e3, 23f3 | the same |
//!
//! No other bulk endpoint is a serial port's: no disk's, printer's, smart card reader's or network adapter's (RNDIS is
//! class 2, subclass 2, protocol 255; ECM and NCM have other subclasses).

use crate::descriptor::{AltSetting, DescriptorSet, EndpointDescriptor, UsbConfiguration};
use crate::usb::{TransferDirection, TransferType};

/// Descriptor types (USB 2.0 table 9-5; CDC 1.2 table 12) and subtypes of CDC (table 13; PSTN 1.2 §5.3.1).
const INTERFACE: u8 = 4;
const CS_INTERFACE: u8 = 0x24;
const CALL_MANAGEMENT: u8 = 1;
const UNION: u8 = 6;
/// CDC 1.2 §4: class Communications, subclass Abstract Control Model, its last protocol; class Data.
const COMMUNICATIONS: u8 = 2;
const ACM: u8 = 2;
const ACM_PROTOCOL_MAX: u8 = 6;
const CDC_DATA: u8 = 10;
const VENDOR_SPECIFIC: u8 = 0xff;

/// What drives a serial port, and so how it is controlled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SerialChip {
    /// A CDC-ACM function of any device (USB CDC PSTN 1.2 §3.6).
    CdcAcm,
    /// A chip of FTDI.
    Ftdi,
    /// CP210x of Silicon Labs.
    Cp210x,
    /// CH340 and CH341 of WCH.
    Ch34x,
    /// PL2303 of Prolific.
    Pl2303,
}

/// The chips whose ports are known without a class: vendor, products, chip. The drivers `ftdi_sio`, `cp210x`, `ch341`
/// and `pl2303` of Linux list these, and others' products with the same chips.
const CHIPS: [(u16, &[u16], SerialChip); 4] = [
    (0x0403, &[0x6001, 0x6010, 0x6011, 0x6014, 0x6015], SerialChip::Ftdi),
    (0x10c4, &[0xea60, 0xea61, 0xea63, 0xea70, 0xea71], SerialChip::Cp210x),
    (0x1a86, &[0x5523, 0x7522, 0x7523], SerialChip::Ch34x),
    (0x067b, &[0x2303, 0x2304, 0x23a3, 0x23b3, 0x23c3, 0x23d3, 0x23e3, 0x23f3], SerialChip::Pl2303),
];

impl SerialChip {
    /// The chip of a common serial adapter whose class is the vendor's own, by its vendor and product id.
    pub fn of_ids((vendor, product): (u16, u16)) -> Option<Self> {
        let chip = CHIPS.iter().find(|(of, products, _)| *of == vendor && products.contains(&product));
        chip.map(|(.., chip)| *chip)
    }
}

/// A serial port of a device, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SerialPortInterface {
    /// What drives it.
    pub chip: SerialChip,
    /// The value of its configuration.
    pub configuration: u8,
    /// The number of the interface with its data.
    pub interface: u8,
    /// The alternate setting in which that interface has them.
    pub alternate: u8,
    /// The number of the interface that its control requests name: of an ACM function, the one of class Communications.
    pub control_interface: u8,
    /// Carries what the port received from its line.
    pub data_in: EndpointDescriptor,
    /// Carries what the port is to send on its line; a CDC function may have none.
    pub data_out: Option<EndpointDescriptor>,
    /// Carries the state of line and modem, if the port has such an endpoint.
    pub notification: Option<EndpointDescriptor>,
}

/// An ACM function's interfaces.
struct AcmFunction {
    control: u8,
    data: u8,
}

/// The serial ports of one configuration, in the order of their interfaces and settings.
pub fn serial_ports_of(all: &DescriptorSet, configuration: &UsbConfiguration) -> Vec<SerialPortInterface> {
    let functions = acm_functions(&configuration.bytes);
    let chip = SerialChip::of_ids((all.device.vendor, all.device.product));
    let found = |setting: &AltSetting| port_of(configuration, setting, &functions, chip);
    configuration.settings.iter().filter_map(found).collect()
}

fn port_of(
    configuration: &UsbConfiguration,
    setting: &AltSetting,
    functions: &[AcmFunction],
    chip: Option<SerialChip>,
) -> Option<SerialPortInterface> {
    let data_out = endpoint_of(setting, TransferType::Bulk, TransferDirection::Out);
    let (chip, control_interface) = match setting.class[0] {
        CDC_DATA => {
            let function = functions.iter().find(|function| function.data == setting.interface)?;
            (SerialChip::CdcAcm, function.control)
        }
        VENDOR_SPECIFIC if data_out.is_some() => (chip?, setting.interface),
        _ => return None,
    };
    let data_in = endpoint_of(setting, TransferType::Bulk, TransferDirection::In)?;
    let with_events = configuration.settings.iter().find(|other| other.interface == control_interface);
    (data_in.address.number() > 0).then_some(SerialPortInterface {
        chip,
        configuration: configuration.value,
        interface: setting.interface,
        alternate: setting.alternate,
        control_interface,
        data_in,
        data_out,
        notification: with_events
            .and_then(|setting| endpoint_of(setting, TransferType::Interrupt, TransferDirection::In)),
    })
}

fn endpoint_of(setting: &AltSetting, kind: TransferType, direction: TransferDirection) -> Option<EndpointDescriptor> {
    let mut endpoints = setting.endpoints.iter();
    endpoints.find(|endpoint| endpoint.kind == kind && endpoint.address.direction() == direction).copied()
}

/// The ACM functions: those that union descriptors name; without one, those that call management does.
fn acm_functions(bytes: &[u8]) -> Vec<AcmFunction> {
    let (mut united, mut managed) = (Vec::new(), Vec::new());
    let mut acm = None;
    let mut rest = bytes;
    while let Some(&length) = rest.first() {
        let Some((descriptor, behind)) = rest.split_at_checked(usize::from(length).max(2)) else { break };
        rest = behind;
        match (descriptor, acm) {
            (&[_, INTERFACE, number, _, _, class, subclass, protocol, ..], _) => {
                let is_acm = class == COMMUNICATIONS && subclass == ACM && protocol <= ACM_PROTOCOL_MAX;
                acm = is_acm.then_some(number);
            }
            (&[_, CS_INTERFACE, UNION, _, ref data @ ..], Some(control)) => {
                united.extend(data.iter().map(|&data| AcmFunction { control, data }));
            }
            (&[_, CS_INTERFACE, CALL_MANAGEMENT, _, data, ..], Some(control)) => {
                managed.push(AcmFunction { control, data });
            }
            _ => {}
        }
    }
    if united.is_empty() { managed } else { united }
}
