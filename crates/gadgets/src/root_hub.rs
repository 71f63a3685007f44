//! A hub to which devices are shown to be attached (USB 2.0 §11.24, USB 3.2 §10.16). Programs that draw the tree of a
//! bus ask it what is at its ports. It moves no data: the devices are reached without it.

use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{DeviceDefinition, SetupPacket, TransferDirection, UsbSpeed};

use crate::emulated::{ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction};

/// The class of a hub.
const CLASS: u8 = 9;
/// Most ports: a device's number has 7 bits, of a SuperSpeed hub 4.
pub const PORTS_MAX: usize = 126;
/// Most ports of a hub for SuperSpeed.
pub const SUPER_PORTS_MAX: usize = 15;

/// wHubCharacteristics: power is never switched, overcurrent not reported.
const CHARACTERISTICS: [u8; 2] = [0x12, 0];
/// wPortStatus: connected, enabled.
const ATTACHED: u16 = 0x0003;
/// The port has power (wPortStatus of a USB 2 hub, USB 2.0 §11.24.2.7.1).
const POWERED: u16 = 0x0100;
/// The port has power (wPortStatus of a SuperSpeed hub, USB 3.2 §10.16.2.6.1).
const SUPER_POWERED: u16 = 0x0200;
const LOW_SPEED: u16 = 0x0200;
const HIGH_SPEED: u16 = 0x0400;

/// A root hub.
#[derive(Debug)]
pub struct RootHub {
    is_super: bool,
    /// What is at each port.
    ports: Vec<Option<UsbSpeed>>,
}

impl RootHub {
    /// A hub with these devices at its ports, from port 1 on. One for SuperSpeed has SuperSpeed devices alone, at most
    /// [`SUPER_PORTS_MAX`]; the other has at most [`PORTS_MAX`] devices, none of them SuperSpeed.
    pub fn device(is_super: bool, ports: Vec<Option<UsbSpeed>>) -> EmulatedDevice<Self> {
        let (product, speed, protocol) =
            if is_super { (0x0003, UsbSpeed::Super, 3) } else { (0x0002, UsbSpeed::High, 1) };
        // A bit for each port, and one for the hub (USB 2.0 §11.12.4); a SuperSpeed hub has 15 ports at most.
        let bytes = if is_super { 2 } else { (ports.len() / 8 + 1) as u16 };
        let interface = InterfaceDefinition::new(CLASS, 0, 0).interrupt(
            1,
            TransferDirection::In,
            bytes,
            Duration::from_millis(256),
        );
        let definition = DeviceDefinition::new(0x1d6b, product)
            .speed(speed)
            .names("farbus", "bus of remote devices", "farbus")
            .class(CLASS, 0, protocol)
            .interface(interface);
        EmulatedDevice::new(&definition, Self { is_super, ports })
    }

    /// What is at a port from now on; ports are counted from 1.
    pub fn set_port(&mut self, port: u8, device: Option<UsbSpeed>) {
        if let Some(at) = usize::from(port).checked_sub(1).and_then(|index| self.ports.get_mut(index)) {
            *at = device;
        }
    }

    /// How many ports it has.
    pub fn ports(&self) -> u8 {
        self.ports.len() as u8
    }

    fn descriptor(&self) -> Vec<u8> {
        let mut bytes = vec![0, 0x29, self.ports.len() as u8, CHARACTERISTICS[0], CHARACTERISTICS[1], 0, 0];
        if self.is_super {
            bytes[1] = 0x2a;
            // bHubHdrDecLat, wHubDelay, DeviceRemovable.
            bytes.extend([0; 5]);
        } else {
            // DeviceRemovable, all of them; PortPwrCtrlMask, all ones (USB 2.0 table 11-13).
            let mask = self.ports.len() / 8 + 1;
            bytes.resize(bytes.len() + mask, 0);
            bytes.resize(bytes.len() + mask, 0xff);
        }
        bytes[0] = bytes.len() as u8;
        bytes
    }

    /// wPortStatus (USB 2.0 table 11-21, USB 3.2 table 10-13); `None` if there is no such port.
    fn port_status(&self, port: u16) -> Option<u16> {
        let device = self.ports.get(usize::from(port).checked_sub(1)?)?;
        let power = if self.is_super { SUPER_POWERED } else { POWERED };
        Some(match device {
            None => power,
            Some(UsbSpeed::Low) => power | ATTACHED | LOW_SPEED,
            Some(UsbSpeed::High) => power | ATTACHED | HIGH_SPEED,
            Some(_) => power | ATTACHED,
        })
    }
}

impl GadgetFunction for RootHub {
    fn control(&mut self, setup: SetupPacket, _data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if setup.kind() != RequestKind::Class {
            return ControlTransferAnswer::Stall;
        }
        match (setup.recipient(), setup.request) {
            (RequestRecipient::Device, request::GET_DESCRIPTOR) => {
                ControlTransferAnswer::Data(self.descriptor().into())
            }
            (RequestRecipient::Device, request::GET_STATUS) => ControlTransferAnswer::Data([0; 4].as_slice().into()),
            (RequestRecipient::Other, request::GET_STATUS) => match self.port_status(setup.index & 0xff) {
                Some(status) => ControlTransferAnswer::Data([status.to_le_bytes(), [0; 2]].concat().into()),
                None => ControlTransferAnswer::Stall,
            },
            // Its ports are not switched.
            _ => ControlTransferAnswer::Stall,
        }
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::{BufferPool, CompletionQueue, Device, Payload, Urb, UrbId};

    use super::*;

    fn ask(hub: &mut EmulatedDevice<RootHub>, request_type: u8, request: u8, index: u16) -> Option<Vec<u8>> {
        let setup = SetupPacket { request_type, request, value: 0x2900, index, length: 64 };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let now = farbus_model::Instant::ZERO;
        hub.submit(now, Urb::control(UrbId(1), setup, Payload::Empty).launch(), &mut done);
        let done = done.pop().expect("a hub answers at once");
        (done.status == farbus_model::UrbStatus::Ok).then(|| done.payload.into_vec())
    }

    #[test]
    fn its_descriptor_and_ports_are_as_the_specifications_say() {
        let mut hub = RootHub::device(false, vec![Some(UsbSpeed::High), Some(UsbSpeed::Low), None]);
        assert_eq!(ask(&mut hub, 0xa0, 6, 0).unwrap(), [9, 0x29, 3, 0x12, 0, 0, 0, 0, 0xff]);
        assert_eq!(ask(&mut hub, 0xa0, 0, 0).unwrap(), [0; 4]);
        assert_eq!(ask(&mut hub, 0xa3, 0, 1).unwrap(), [0x03, 0x05, 0, 0]);
        assert_eq!(ask(&mut hub, 0xa3, 0, 2).unwrap(), [0x03, 0x03, 0, 0]);
        assert_eq!(ask(&mut hub, 0xa3, 0, 3).unwrap(), [0x00, 0x01, 0, 0]);
        for port in [0, 4] {
            assert_eq!(ask(&mut hub, 0xa3, 0, port), None, "there is no port {port}");
        }
        hub.function_mut().set_port(3, Some(UsbSpeed::Full));
        assert_eq!(ask(&mut hub, 0xa3, 0, 3).unwrap(), [0x03, 0x01, 0, 0]);
        let mut hub = RootHub::device(true, vec![Some(UsbSpeed::Super)]);
        assert_eq!(ask(&mut hub, 0xa0, 6, 0).unwrap(), [12, 0x2a, 1, 0x12, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ask(&mut hub, 0xa3, 0, 1).unwrap(), [0x03, 0x02, 0, 0]);
    }
}
