//! A keyboard gadget types into an unmodified kernel.

use super::case::{RigCase, expect};
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use std::collections::BTreeSet;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "keyboard-stock",
        purpose: "what `farbus type` types arrives at /dev/input, key by key, and no key stays down",
        run: |lab| typing(lab, AttachClient::Stock),
    },
    RigCase {
        name: "keyboard-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| typing(lab, AttachClient::Farbus),
    },
];

/// Every character that a plain US keyboard has, doubled letters included: a repeated key needs a release.
pub(super) const TEXT: &str =
    r##"Sphinx of black quartz, judge my vow! 0123456789 `-=[]\;',./ ~!@#$%^&*()_+{}|:"<>? bookkeeper AABB"##;

fn typing(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let share = lab.share(&["keyboard".into()])?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/keyboard.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usbhid", "hid_generic", "evdev"],
        client,
        port: Some(share.port()),
        ..MachineBoot::default()
    })?;
    guest.await_word("ready")?;
    // Any client can name the device by its bus id; the name it was shared by has to work as well.
    let (first, second) = TEXT.split_at(TEXT.len() / 2);
    share.type_text("keyboard", first)?;
    share.type_text("1-1", second)?;
    guest.tell("typed")?;
    judge(&guest.finish()?.output)
}

/// Checks that the typed text has arrived.
pub(super) fn judge(output: &str) -> Result<String> {
    judge_text(output, TEXT)
}

/// Checks that this text has arrived, and nothing else.
pub(super) fn judge_text(output: &str, text: &str) -> Result<String> {
    let events: Vec<InputEvent> = output.lines().filter_map(InputEvent::parse).collect();
    let (typed, still_down) = read_back(&events);
    expect(typed == text, || format!("typed  {text}\narrived {typed}\nfrom {} events", events.len()))?;
    expect(still_down.is_empty(), || format!("keys {still_down:?} were never released"))?;
    Ok(format!("{} characters in {} events", text.len(), events.len()))
}

/// `struct input_event` of a 64-bit kernel, without its time.
pub(super) struct InputEvent {
    pub(super) kind: u16,
    pub(super) code: u16,
    pub(super) value: i32,
}

impl InputEvent {
    /// Reads a line `event HEX`; 16 bytes of time, then kind, code and value, little endian.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let hex = line.strip_prefix("event ")?;
        let bytes: Vec<u8> =
            (0..24).map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()).collect::<Option<_>>()?;
        Some(Self {
            kind: u16::from_le_bytes([bytes[16], bytes[17]]),
            code: u16::from_le_bytes([bytes[18], bytes[19]]),
            value: i32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]),
        })
    }
}

/// The text that the events type, and the keys that were not released.
pub(super) fn read_back(events: &[InputEvent]) -> (String, BTreeSet<u16>) {
    const EV_KEY: u16 = 1;
    const SHIFTS: [u16; 2] = [42, 54];
    let mut text = String::new();
    let mut down = BTreeSet::new();
    for event in events.iter().filter(|event| event.kind == EV_KEY) {
        match event.value {
            0 => drop(down.remove(&event.code)),
            1 => {
                down.insert(event.code);
                let shifted = SHIFTS.iter().any(|shift| down.contains(shift));
                text.extend(character(event.code, shifted));
            }
            // 2: the kernel repeats a key that is held, as the guest is slower than a typist.
            _ => {}
        }
    }
    (text, down)
}

/// The US layout by Linux key codes, row by row from the first code of each row.
fn character(code: u16, shifted: bool) -> Option<char> {
    const ROWS: [(u16, &str, &str); 5] = [
        (2, "1234567890-=", "!@#$%^&*()_+"),
        (16, "qwertyuiop[]", "QWERTYUIOP{}"),
        (30, "asdfghjkl;'`", "ASDFGHJKL:\"~"),
        (43, "\\zxcvbnm,./", "|ZXCVBNM<>?"),
        (57, " ", " "),
    ];
    ROWS.iter().find_map(|(start, plain, with_shift)| {
        let position = usize::from(code.checked_sub(*start)?);
        (if shifted { with_shift } else { plain }).chars().nth(position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: u16, value: i32) -> InputEvent {
        InputEvent { kind: 1, code, value }
    }

    #[test]
    fn reads_a_line_of_hex() {
        let line = format!("event {}01002a0001000000", "00".repeat(16));
        let event = InputEvent::parse(&line).expect("24 bytes");
        assert_eq!((event.kind, event.code, event.value), (1, 42, 1));
        assert!(InputEvent::parse("event 0011").is_none());
        assert!(InputEvent::parse("note: x").is_none());
    }

    #[test]
    fn shift_and_rollover_are_read_as_a_person_would() {
        let events = [key(42, 1), key(35, 1), key(35, 0), key(42, 0), key(23, 1), key(57, 1), key(23, 0)];
        assert_eq!(read_back(&events), ("Hi ".into(), BTreeSet::from([57])));
    }

    #[test]
    fn the_layout_has_every_character_of_the_text() {
        for wanted in TEXT.chars() {
            let found = (2..58).any(|code| [false, true].iter().any(|shift| character(code, *shift) == Some(wanted)));
            assert!(found, "{wanted}");
        }
    }
}
