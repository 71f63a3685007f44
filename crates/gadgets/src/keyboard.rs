//! A keyboard that types the text of its owner's command (HID 1.11, boot protocol).

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{
    DeviceDefinition, EpAddr, OwnerCommand, OwnerCommandError, Payload, SetupPacket, TransferDirection, UsbSpeed,
};

use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Key events that may wait for a host: two a character, so 8,192 characters.
const EVENTS_MAX: usize = 16384;
/// HID class descriptor type (HID 1.11 §7.1).
const DESCRIPTOR_HID: u8 = 0x21;
/// HID report descriptor type.
const DESCRIPTOR_REPORT: u8 = 0x22;
/// HID class requests (HID 1.11 §7.2).
const GET_REPORT: u8 = 1;
const GET_IDLE: u8 = 2;
const GET_PROTOCOL: u8 = 3;
const SET_REPORT: u8 = 9;
const SET_IDLE: u8 = 10;
const SET_PROTOCOL: u8 = 11;

/// Left shift in a report's modifier byte.
const SHIFT: u8 = 0x02;

/// The boot keyboard's report descriptor (HID 1.11 appendix B.1): modifiers, a reserved byte, five
/// LEDs, six keys.
const REPORT_DESCRIPTOR: [u8; 63] = [
    0x05, 0x01, 0x09, 0x06, 0xa1, 0x01, 0x05, 0x07, 0x19, 0xe0, 0x29, 0xe7, 0x15, 0x00, 0x25, 0x01, 0x75, 0x01, 0x95,
    0x08, 0x81, 0x02, 0x95, 0x01, 0x75, 0x08, 0x81, 0x01, 0x95, 0x05, 0x75, 0x01, 0x05, 0x08, 0x19, 0x01, 0x29, 0x05,
    0x91, 0x02, 0x95, 0x01, 0x75, 0x03, 0x91, 0x01, 0x95, 0x06, 0x75, 0x08, 0x15, 0x00, 0x25, 0x65, 0x05, 0x07, 0x19,
    0x00, 0x29, 0x65, 0x81, 0x00, 0xc0,
];

type KeyboardReport = [u8; 8];

/// A boot-protocol keyboard (HID 1.11) that types the text of its owner's commands.
#[derive(Debug, Default)]
pub struct KeyboardGadget {
    events: VecDeque<KeyboardReport>,
    held: KeyboardReport,
    leds: u8,
    idle: u8,
    protocol: u8,
}

impl KeyboardGadget {
    /// The device, ready to be shared.
    pub fn device() -> EmulatedDevice<Self> {
        let [low, high] = (REPORT_DESCRIPTOR.len() as u16).to_le_bytes();
        let hid = [9, DESCRIPTOR_HID, 0x11, 0x01, 0, 1, DESCRIPTOR_REPORT, low, high];
        // Class 3, boot interface, keyboard.
        let interface = InterfaceDefinition::new(3, 1, 1).class_descriptors(&hid).interrupt(
            1,
            TransferDirection::In,
            8,
            Duration::from_millis(2),
        );
        let definition = DeviceDefinition::new(0x0525, 0xa4ac)
            .speed(UsbSpeed::Full)
            .names("farbus", "keyboard", "0")
            .interface(interface);
        EmulatedDevice::new(&definition, Self { protocol: 1, ..Self::default() })
    }

    /// The LEDs that the host lit (bit 0 Num, 1 Caps, 2 Scroll).
    pub fn leds(&self) -> u8 {
        self.leds
    }

    fn type_text(&mut self, text: &str) -> Result<(), OwnerCommandError> {
        let mut events = Vec::new();
        for character in text.chars() {
            let (modifiers, key) = key_of(character)
                .ok_or_else(|| OwnerCommandError(format!("there is no key for {character:?} on a US keyboard")))?;
            events.push([modifiers, 0, key, 0, 0, 0, 0, 0]);
            events.push(KeyboardReport::default());
        }
        if self.events.len() + events.len() > EVENTS_MAX {
            let free = (EVENTS_MAX - self.events.len()) / 2;
            return Err(OwnerCommandError(format!("the host has not read what was typed: room for {free} characters")));
        }
        self.events.extend(events);
        Ok(())
    }
}

impl GadgetFunction for KeyboardGadget {
    fn send(&mut self, _endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        match self.events.pop_front() {
            Some(report) => {
                self.held = report;
                InTransferAnswer::Data(report[..room.min(8)].into())
            }
            None => InTransferAnswer::Nak,
        }
    }

    fn receive(&mut self, _endpoint: EpAddr, _payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        OutTransferAnswer::Stall
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let [_, high] = setup.value.to_le_bytes();
        match (setup.kind(), setup.recipient(), setup.request) {
            (RequestKind::Standard, RequestRecipient::Interface, request::GET_DESCRIPTOR)
                if high == DESCRIPTOR_REPORT =>
            {
                ControlTransferAnswer::Data(REPORT_DESCRIPTOR.as_slice().into())
            }
            (RequestKind::Class, RequestRecipient::Interface, GET_REPORT) => {
                ControlTransferAnswer::Data(self.held.as_slice().into())
            }
            (RequestKind::Class, RequestRecipient::Interface, GET_IDLE) => {
                ControlTransferAnswer::Data([self.idle].as_slice().into())
            }
            (RequestKind::Class, RequestRecipient::Interface, GET_PROTOCOL) => {
                ControlTransferAnswer::Data([self.protocol].as_slice().into())
            }
            (RequestKind::Class, RequestRecipient::Interface, SET_REPORT) => {
                self.leds = data.first().copied().unwrap_or(self.leds);
                ControlTransferAnswer::Ack
            }
            (RequestKind::Class, RequestRecipient::Interface, SET_IDLE) => {
                self.idle = high;
                ControlTransferAnswer::Ack
            }
            (RequestKind::Class, RequestRecipient::Interface, SET_PROTOCOL) => {
                self.protocol = setup.value as u8;
                ControlTransferAnswer::Ack
            }
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        // Typed keys that were not read stay: the owner who typed them did not see the bus reset.
        *self = Self { events: std::mem::take(&mut self.events), protocol: 1, ..Self::default() };
    }

    fn verbs(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn command(&mut self, command: &OwnerCommand, _cx: &mut FunctionContext<'_>) -> Result<(), OwnerCommandError> {
        match command {
            OwnerCommand::Type(text) => self.type_text(text),
            OwnerCommand::Sync => Ok(()),
            other => Err(OwnerCommandError::unknown(other)),
        }
    }

    /// The state includes keys that the host has not fetched yet.
    fn save(&self) -> Option<Vec<u8>> {
        let mut state = SavedStateWriter::default();
        [self.leds, self.idle, self.protocol].into_iter().for_each(|byte| state.u8(byte));
        state.bytes(&self.held);
        state.bytes(&self.events.iter().flatten().copied().collect::<Vec<u8>>());
        Some(state.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let (leds, idle, protocol) = (from.u8()?, from.u8()?, from.u8()?);
        let held: KeyboardReport = from.bytes()?.try_into().ok()?;
        let (events, rest) = from.bytes()?.as_chunks::<{ size_of::<KeyboardReport>() }>();
        from.end().filter(|()| rest.is_empty())?;
        *self = Self { events: events.iter().copied().collect(), held, leds, idle, protocol };
        Some(())
    }
}

/// The character of a key (usage id, HID Usage Tables, page 7) on a US keyboard, with or without Shift: printable
/// ASCII, `\n` of Enter, `\t` of Tab. `None`: it has none.
pub fn character_of(is_shifted: bool, key: u8) -> Option<char> {
    // Enter, Tab and the space bar are the same with Shift.
    let is_same = matches!(key, 0x28 | 0x2b | 0x2c);
    let wanted = Some((if is_shifted && !is_same { SHIFT } else { 0 }, key));
    (' '..='~').chain(['\n', '\t']).find(|character| key_of(*character) == wanted)
}

/// Modifiers and usage id (HID Usage Tables, page 7) of a character on a US keyboard.
fn key_of(character: char) -> Option<(u8, u8)> {
    const PLAIN: &str = "-=[]\\\0;'`,./";
    const SHIFTED: &str = "_+{}|\0:\"~<>?";
    const DIGITS: &str = "1234567890";
    const OVER_DIGITS: &str = "!@#$%^&*()";
    let at = |row: &str, first: u8| row.find(character).map(|position| first + position as u8);
    Some(match character {
        'a'..='z' => (0, 0x04 + (character as u8 - b'a')),
        'A'..='Z' => (SHIFT, 0x04 + (character as u8 - b'A')),
        '\n' | '\r' => (0, 0x28),
        '\u{1b}' => (0, 0x29),
        '\u{8}' => (0, 0x2a),
        '\t' => (0, 0x2b),
        ' ' => (0, 0x2c),
        '\0' => return None,
        _ => {
            let plain = at(DIGITS, 0x1e).or_else(|| at(PLAIN, 0x2d)).map(|key| (0, key));
            let shifted = || at(OVER_DIGITS, 0x1e).or_else(|| at(SHIFTED, 0x2d)).map(|key| (SHIFT, key));
            return plain.or_else(shifted);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Urb, UrbId};

    #[test]
    fn every_printable_ascii_character_has_a_key_of_its_own() {
        let mut keys: Vec<_> = (' '..='~').map(|c| key_of(c).unwrap_or_else(|| panic!("no key for {c:?}"))).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 95);
        for character in (' '..='~').chain(['\n', '\t']) {
            let (modifiers, key) = key_of(character).unwrap_or_default();
            assert_eq!(character_of(modifiers == SHIFT, key), Some(character), "it is that of its key");
        }
        assert_eq!(character_of(true, 0x28), Some('\n'));
        assert_eq!([0, 0x29, 0x3a, 0xff].map(|key| character_of(false, key)), [None; 4]);
        assert_eq!(key_of('?'), Some((SHIFT, 0x38)));
        assert_eq!(key_of('é'), None);
    }

    #[test]
    fn a_waiting_host_gets_the_keys_at_the_polling_interval() {
        let mut keyboard = KeyboardGadget::device();
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let setup = SetupPacket::set_configuration(1);
        keyboard.submit(Instant::ZERO, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut done);
        done.pop();
        let mut now = Instant::from_nanos(1);
        let submit = |keyboard: &mut EmulatedDevice<KeyboardGadget>, now, id, done: &mut CompletionQueue| {
            keyboard.submit(now, Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), 8).launch(), done);
        };
        submit(&mut keyboard, now, 1, &mut done);
        assert!(done.is_empty() && keyboard.poll_timeout().is_none(), "an idle keyboard waits for its typist alone");
        keyboard.command(now, &OwnerCommand::Type("aB".into()), &mut done).unwrap();
        let mut reports = vec![done.pop().unwrap().payload.into_vec()];
        for id in 2..=4 {
            submit(&mut keyboard, now, id, &mut done);
            assert!(done.is_empty());
            now = keyboard.poll_timeout().unwrap();
            keyboard.handle_timeout(now, &mut done);
            reports.push(done.pop().unwrap().payload.into_vec());
        }
        let keys: Vec<_> = reports.iter().map(|r| (r[0], r[2])).collect();
        assert_eq!(keys, [(0, 4), (0, 0), (SHIFT, 5), (0, 0)]);
        assert!(keyboard.command(now, &OwnerCommand::Type("é".into()), &mut done).is_err());
        assert!(keyboard.command(now, &OwnerCommand::Type("x".repeat(9000)), &mut done).is_err());
    }
}
