//! What a recording holds, as text for a person: the letters of a keyboard's keys, and other interrupt transfers as
//! bytes.
//!
//! What a device sends is hostile. Nothing of it is passed on as it is: a key becomes one of the characters of a US
//! keyboard or a name in brackets, anything else hexadecimal digits.

use std::collections::VecDeque;
use std::fmt::Write;

use farbus_gadgets::keyboard::character_of;

/// Bytes of the text that are kept, the latest.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// The longest block of a recording that is looked into, bytes; a longer one has no keys in it.
const BLOCK_BYTES_MAX: usize = 4 << 10;
/// Bytes of a transfer that are shown.
const SHOWN_BYTES_MAX: usize = 64;
/// pcapng: an enhanced packet, and what stands in it before its data.
const ENHANCED_PACKET: u32 = 6;
const PACKET_HEAD_BYTES: usize = 28;
/// usbmon (LINKTYPE_USB_LINUX_MMAPPED): the head of a packet, where its transfer type and endpoint are, and the number
/// of interrupt transfers.
const USBMON_HEAD_BYTES: usize = 64;
const USBMON_TYPE_AT: usize = 9;
const USBMON_ENDPOINT_AT: usize = 10;
const USBMON_INTERRUPT: u8 = 1;
/// A boot keyboard's report (HID 1.11, appendix B.1): modifiers, a zero, six keys.
const REPORT_BYTES: usize = 8;
/// The modifiers Control and Alt, left and right; Shift, left and right.
const CONTROL: u8 = 0x11;
const ALT: u8 = 0x44;
const SHIFT: u8 = 0x22;
/// Keys up to this one are errors, not keys (HID Usage Tables, page 7).
const ERROR_MAX: u8 = 3;
/// The last key of a keyboard that is no modifier.
const KEY_MAX: u8 = 0xdd;

/// A recording as text, while it grows.
#[derive(Debug, Default)]
pub struct RecordingTranscript {
    /// The beginning of a block whose end has not arrived, [`BLOCK_BYTES_MAX`] at most.
    begun: Vec<u8>,
    /// Bytes of a long block that are still left out.
    skipped: usize,
    /// Whether it is no recording of farbus's after all.
    is_broken: bool,
    /// The keys that are held, by endpoint.
    held: VecDeque<(u8, [u8; 6])>,
    text: VecDeque<char>,
    bytes: usize,
    /// Whether the text's last line is not ended.
    is_in_line: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(word)).ok()
}

impl RecordingTranscript {
    /// Adds the next bytes of the recording.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_broken {
            if self.skipped > 0 {
                let gone = self.skipped.min(bytes.len());
                self.skipped -= gone;
                bytes = &bytes[gone..];
                continue;
            }
            // Its kind and its length first.
            let wanted = match word(&self.begun, 4) {
                Some(length) if length < 12 || !length.is_multiple_of(4) => {
                    self.is_broken = true;
                    return;
                }
                Some(length) if length > BLOCK_BYTES_MAX => {
                    self.skipped = length - self.begun.len();
                    self.begun.clear();
                    continue;
                }
                Some(length) => length,
                None => 8,
            };
            let taken = (wanted - self.begun.len()).min(bytes.len());
            self.begun.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if wanted > 8 && self.begun.len() == wanted {
                let block = std::mem::take(&mut self.begun);
                self.block(&block);
            }
        }
    }

    /// The text, at most [`TEXT_BYTES_MAX`]: printable ASCII, tabs, and ends of lines.
    pub fn text(&self) -> String {
        self.text.iter().collect()
    }

    fn block(&mut self, block: &[u8]) {
        if word(block, 0) != Some(ENHANCED_PACKET as usize) {
            return;
        }
        let Some(captured) = word(block, 20) else { return };
        let Some(packet) = block.get(PACKET_HEAD_BYTES..).and_then(|rest| rest.get(..captured)) else { return };
        let (Some(&kind), Some(&endpoint)) = (packet.get(USBMON_TYPE_AT), packet.get(USBMON_ENDPOINT_AT)) else {
            return;
        };
        if let Some(data) = packet.get(USBMON_HEAD_BYTES..).filter(|_| kind == USBMON_INTERRUPT) {
            self.transfer(endpoint, data);
        }
    }

    fn transfer(&mut self, endpoint: u8, data: &[u8]) {
        let is_key = |key: &u8| *key == 0 || (ERROR_MAX + 1..=KEY_MAX).contains(key);
        match <[u8; REPORT_BYTES]>::try_from(data) {
            Ok([modifiers, 0, keys @ ..]) if keys.iter().all(is_key) => self.report(endpoint, modifiers, keys),
            _ => self.show_bytes(endpoint, data),
        }
    }

    /// A report tells all keys that are down: those that were not down before have been pressed.
    fn report(&mut self, endpoint: u8, modifiers: u8, keys: [u8; 6]) {
        let before = self.held.iter().position(|(held, _)| *held == endpoint).and_then(|at| self.held.remove(at));
        let before = before.map_or([0; 6], |(_, keys)| keys);
        // An endpoint is one of sixteen; the number of them needs no further limit.
        self.held.push_back((endpoint, keys));
        for key in keys.into_iter().filter(|key| *key > 0 && !before.contains(key)) {
            let text = named(modifiers, key);
            self.push(&text);
        }
    }

    fn show_bytes(&mut self, endpoint: u8, data: &[u8]) {
        let mut line = String::new();
        if self.is_in_line {
            line.push('\n');
        }
        let _ = write!(line, "[{endpoint:02x}]");
        for byte in data.iter().take(SHOWN_BYTES_MAX) {
            let _ = write!(line, " {byte:02x}");
        }
        if let Some(more @ 1..) = data.len().checked_sub(SHOWN_BYTES_MAX) {
            let _ = write!(line, " and {more} bytes");
        }
        line.push('\n');
        self.push(&line);
    }

    fn push(&mut self, text: &str) {
        for character in text.chars() {
            if self.bytes == TEXT_BYTES_MAX {
                self.text.pop_front();
            } else {
                // Every character is ASCII.
                self.bytes += 1;
            }
            self.text.push_back(character);
            self.is_in_line = character != '\n';
        }
    }
}

/// A key with its modifiers: its character, or its name in brackets.
fn named(modifiers: u8, key: u8) -> String {
    let name = match key {
        0x29 => "Esc",
        0x2a => "Backspace",
        0x39 => "CapsLock",
        0x49 => "Insert",
        0x4a => "Home",
        0x4b => "PageUp",
        0x4c => "Delete",
        0x4d => "End",
        0x4e => "PageDown",
        0x4f => "Right",
        0x50 => "Left",
        0x51 => "Down",
        0x52 => "Up",
        _ => "",
    };
    let character = character_of(modifiers & SHIFT != 0, key).filter(|_| name.is_empty());
    let is_plain = modifiers & (CONTROL | ALT) == 0;
    if let (Some(character), true) = (character, is_plain) {
        return character.to_string();
    }
    let name = match (character, key) {
        (Some('\n'), _) => "Enter".to_owned(),
        (Some('\t'), _) => "Tab".to_owned(),
        (Some(' '), _) => "Space".to_owned(),
        (Some(character), _) => character.to_string(),
        (None, 0x3a..=0x45) => format!("F{}", key - 0x39),
        (None, _) if name.is_empty() => format!("key {key:02x}"),
        (None, _) => name.to_owned(),
    };
    let control = if modifiers & CONTROL != 0 { "Control+" } else { "" };
    let alt = if modifiers & ALT != 0 { "Alt+" } else { "" };
    format!("[{control}{alt}{name}]")
}

#[cfg(test)]
mod tests {
    use farbus_modules::{SeenTransfer, usb_section};

    use super::*;

    fn seen(kind: u8, data: &[u8]) -> Vec<u8> {
        SeenTransfer { id: 1, endpoint: 0x81, kind, status: 0, missed: 0, unix_ns: 7, packets: &[], data }.recorded()
    }

    fn read(transfers: &[Vec<u8>], piece: usize) -> String {
        let mut transcript = RecordingTranscript::default();
        let recording = [usb_section(), transfers.concat()].concat();
        recording.chunks(piece).for_each(|bytes| transcript.add(bytes));
        transcript.text()
    }

    #[test]
    fn keys_are_letters_however_the_recording_is_cut() {
        let down = |modifiers: u8, keys: &[u8]| {
            let mut report = [0; 8];
            report[0] = modifiers;
            report[2..2 + keys.len()].copy_from_slice(keys);
            seen(3, &report)
        };
        let up = || down(0, &[]);
        let typed = [
            down(2, &[0x0b]),
            up(),
            down(0, &[0x0c]),
            down(0, &[0x0c, 0x0d]),
            down(0, &[0x0d]),
            up(),
            down(0, &[0x28]),
            up(),
            down(1, &[0x06]),
            up(),
            down(0, &[0x3a]),
            up(),
            down(0, &[0x29]),
            up(),
        ];
        for piece in [1, 3, 7, 64, 1 << 20] {
            assert_eq!(read(&typed, piece), "Hij\n[Control+c][F1][Esc]", "pieces of {piece}");
        }
    }

    #[test]
    fn other_transfers_are_bytes_and_long_ones_are_left_out() {
        let mouse = seen(3, &[0, 5, 0xfb]);
        let sound = seen(1, &[0; 64]);
        let long = seen(3, &vec![0x1b; BLOCK_BYTES_MAX]);
        let report = seen(3, &[0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(read(&[report, mouse.clone(), sound, long, mouse], 100), "a\n[81] 00 05 fb\n[81] 00 05 fb\n");
    }

    #[test]
    fn text_is_printable_and_bounded_whatever_a_device_sends() {
        let mut transfers = Vec::new();
        for n in 0..6000_u32 {
            let data = n.wrapping_mul(0x9e37_79b9).to_le_bytes();
            transfers.push(seen(3, &[data, data].concat()));
            transfers.push(seen(3, b"\x1b]0;evil\x07\x1b[2J\xe2\x80\xae"));
        }
        let text = read(&transfers, 999);
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        assert!(text.chars().all(|c| c == '\n' || c == '\t' || (' '..='~').contains(&c)), "{text:?}");
    }

    #[test]
    fn fuzz_transcript_of_a_recording() {
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_transcript_of_a_recording", |input| {
            let mut transcript = RecordingTranscript::default();
            let mut bytes = usb_section();
            bytes.extend(seen(3, &[0, 0, 4, 0, 0, 0, 0, 0]));
            bytes.extend(input.bytes(512));
            bytes.chunks(37).for_each(|piece| transcript.add(piece));
            assert!(transcript.begun.len() <= BLOCK_BYTES_MAX && transcript.text().len() <= TEXT_BYTES_MAX);
            assert!(transcript.text().starts_with('a'));
        });
    }
}
