//! A serial line with a loopback plug: sent data comes back (CDC PSTN 1.2, abstract control model).
//!
//! The plug joins sent to received data, and DTR to DSR and DCD. The line is as fast as its bus, whatever rate is set;
//! while its data is not fetched it takes no more, so no byte is lost between its two ends.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{DeviceDefinition, EpAddr, Payload, SetupPacket, TransferDirection, UsbSpeed};

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Bytes on the line beyond which no more are taken; a transfer that was begun is taken as a whole.
const LINE_BYTES_MAX: usize = 16 << 10;
/// The number of the data endpoints.
const DATA: u8 = 1;
/// The number of the notification endpoint.
const NOTIFICATION: u8 = 2;
/// CDC PSTN 1.2 §6.3, table 13.
const SET_LINE_CODING: u8 = 0x20;
const GET_LINE_CODING: u8 = 0x21;
const SET_CONTROL_LINE_STATE: u8 = 0x22;
const SEND_BREAK: u8 = 0x23;
/// Data terminal ready, in SET_CONTROL_LINE_STATE.
const DTR: u16 = 1;
/// DCD and DSR, in the notification SERIAL_STATE (§6.5.4).
const CARRIER: u8 = 0b11;
/// 9600 baud, 8 data bits, no parity, one stop bit (§6.3.11): the rate 4, stop bits 1, parity 1, data bits 1.
const CODING: [u8; 7] = [0x80, 0x25, 0, 0, 0, 0, 8];
/// CDC 1.2 §5.2.3 and PSTN 1.2 §5.3: header, call management (none), abstract control (line coding), union of
/// interfaces 0 and 1.
const FUNCTIONAL: [u8; 19] = [5, 0x24, 0, 0x20, 1, 5, 0x24, 1, 0, 1, 4, 0x24, 2, 2, 5, 0x24, 6, 0, 1];

/// A serial line.
#[derive(Debug)]
pub struct SerialGadget {
    line: VecDeque<u8>,
    coding: [u8; 7],
    control: u16,
    /// The host has to be notified of the state of the control lines.
    has_news: bool,
}

impl SerialGadget {
    /// The device, ready to be shared.
    pub fn device(speed: UsbSpeed) -> EmulatedDevice<Self> {
        let control = InterfaceDefinition::new(2, 2, 1).class_descriptors(&FUNCTIONAL).interrupt(
            NOTIFICATION,
            TransferDirection::In,
            16,
            Duration::from_millis(32),
        );
        let definition = DeviceDefinition::new(0x0525, 0xa4a7)
            .speed(speed)
            .class(2, 0, 0)
            .names("farbus", "serial loopback", "0")
            .interface(control)
            .interface(InterfaceDefinition::new(10, 0, 0).bulk_pair(DATA));
        EmulatedDevice::new(&definition, Self::new())
    }

    fn new() -> Self {
        Self { line: VecDeque::new(), coding: CODING, control: 0, has_news: false }
    }

    /// The rate that the host set, bits a second.
    pub fn rate(&self) -> u32 {
        u32::from_le_bytes([self.coding[0], self.coding[1], self.coding[2], self.coding[3]])
    }
}

impl GadgetFunction for SerialGadget {
    fn send(&mut self, endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        if endpoint.number() == NOTIFICATION {
            if !std::mem::take(&mut self.has_news) {
                return InTransferAnswer::Nak;
            }
            let state = if self.control & DTR != 0 { CARRIER } else { 0 };
            return InTransferAnswer::Data([0xa1, 0x20, 0, 0, 0, 0, 2, 0, state, 0][..room.min(10)].into());
        }
        if self.line.is_empty() {
            return InTransferAnswer::Nak;
        }
        let count = room.min(self.line.len());
        let mut bytes = cx.pool.take(count);
        bytes.clear();
        bytes.extend(self.line.drain(..count));
        InTransferAnswer::Data(bytes.into())
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if self.line.len() >= LINE_BYTES_MAX {
            return OutTransferAnswer::Nak;
        }
        payload.runs().for_each(|run| self.line.extend(run));
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if (setup.kind(), setup.recipient()) != (RequestKind::Class, RequestRecipient::Interface) {
            return ControlTransferAnswer::Stall;
        }
        match setup.request {
            SET_LINE_CODING => match data.try_into() {
                Ok(coding) => {
                    self.coding = coding;
                    ControlTransferAnswer::Ack
                }
                Err(_) => ControlTransferAnswer::Stall,
            },
            GET_LINE_CODING => ControlTransferAnswer::Data(self.coding.as_slice().into()),
            SET_CONTROL_LINE_STATE => {
                self.has_news |= (self.control ^ setup.value) & DTR != 0;
                self.control = setup.value;
                ControlTransferAnswer::Ack
            }
            SEND_BREAK => ControlTransferAnswer::Ack,
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        *self = Self::new();
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut to = SavedStateWriter::default();
        let (front, back) = self.line.as_slices();
        to.bytes(&[front, back].concat());
        to.bytes(&self.coding);
        to.u32(self.control.into());
        to.flag(self.has_news);
        Some(to.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let line: VecDeque<u8> = from.bytes()?.to_vec().into();
        let coding = from.bytes()?.try_into().ok()?;
        let control = u16::try_from(from.u32()?).ok()?;
        let has_news = from.flag()?;
        from.end()?;
        *self = Self { line, coding, control, has_news };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Urb, UrbId, UrbStatus};

    #[test]
    fn serial_loopback_returns_data_and_stops_when_it_is_not_fetched() {
        let mut serial = SerialGadget::device(UsbSpeed::High);
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let now = Instant::ZERO;
        let control = |setup, data: &[u8]| Urb::control(UrbId(0), setup, data.to_vec().into()).launch();
        serial.submit(now, control(SetupPacket::set_configuration(1), &[]), &mut done);
        let coding = [0xc0, 0xc6, 0x2d, 0, 0, 0, 8];
        let setup = SetupPacket { request_type: 0x21, request: SET_LINE_CODING, value: 0, index: 0, length: 7 };
        serial.submit(now, control(setup, &coding), &mut done);
        let setup = SetupPacket { request_type: 0x21, request: SET_CONTROL_LINE_STATE, value: 3, index: 0, length: 0 };
        serial.submit(now, control(setup, &[]), &mut done);
        assert!((0..3).all(|_| done.pop().unwrap().status == UrbStatus::Ok));
        assert_eq!(serial.function().rate(), 3_000_000);
        serial.submit(now, Urb::data_in(UrbId(1), EpAddr::from_byte(0x82), 16).launch(), &mut done);
        assert_eq!(done.pop().unwrap().payload.into_vec()[8], CARRIER, "the plug tells of its other end");

        let out = |id, bytes: Vec<u8>| Urb::data_out(UrbId(id), EpAddr::from_byte(1), bytes.into()).launch();
        serial.submit(now, out(2, vec![7; LINE_BYTES_MAX]), &mut done);
        serial.submit(now, out(3, vec![8; 100]), &mut done);
        assert_eq!(done.pop().unwrap().id, UrbId(2));
        assert!(done.is_empty(), "the line is full");
        for (id, first) in [(4, 7), (5, 8)] {
            serial.submit(
                now,
                Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), LINE_BYTES_MAX as u32).launch(),
                &mut done,
            );
            let mut came: Vec<_> = std::iter::from_fn(|| done.pop()).collect();
            came.retain(|done| done.direction == TransferDirection::In);
            assert_eq!(came[0].payload.clone().into_vec()[0], first);
        }
    }

    #[test]
    fn another_process_goes_on_with_the_same_line() {
        let mut serial = SerialGadget::new();
        serial.line.extend(b"held");
        (serial.control, serial.has_news) = (DTR, true);
        let state = serial.save().unwrap();
        let mut again = SerialGadget::new();
        again.restore(&state).unwrap();
        assert_eq!((again.line, again.control, again.has_news), (serial.line, DTR, true));
        assert!((0..state.len()).all(|end| SerialGadget::new().restore(&state[..end]).is_none()));
    }
}
