//! A phone as adb knows one, shared by the test itself: unmodified `adb` finds it in `farbus run`, and runs a command
//! there.

use std::collections::VecDeque;

use farbus::Share;
use farbus::gadgets::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer};
use farbus::model::definition::InterfaceDefinition;
use farbus::model::{DeviceDefinition, EpAddr, Payload};

use super::harness::{Harness, PATIENCE, finish, has, has_program};
use super::run::can_run;

/// Vendor specific, adb (`ADB_CLASS`, `ADB_SUBCLASS`, `ADB_PROTOCOL`).
const ADB: (u8, u8, u8) = (0xff, 0x42, 0x01);
const SERIAL: &str = "farbus4242";
/// Its version of the protocol, the one with sums, and the most data of a message.
const VERSION: u32 = 0x0100_0000;
const DATA_BYTES_MAX: u32 = 4096;
const HEAD_BYTES: usize = 24;
/// The commands of its messages (`protocol.txt` of adb).
const CNXN: u32 = u32::from_le_bytes(*b"CNXN");
const OPEN: u32 = u32::from_le_bytes(*b"OPEN");
const OKAY: u32 = u32::from_le_bytes(*b"OKAY");
const WRTE: u32 = u32::from_le_bytes(*b"WRTE");
const CLSE: u32 = u32::from_le_bytes(*b"CLSE");

/// What a phone does without asking who its host is: it opens one stream at a time, and answers what it was opened for.
#[derive(Default)]
struct Phone {
    received: Vec<u8>,
    answers: VecDeque<Payload>,
}

impl Phone {
    fn device() -> EmulatedDevice<Self> {
        let interface = InterfaceDefinition::new(ADB.0, ADB.1, ADB.2).bulk_pair(1);
        let definition = DeviceDefinition::new(0x18d1, 0x4ee7).names("farbus", "phone", SERIAL).interface(interface);
        EmulatedDevice::new(&definition, Self::default())
    }

    fn say(&mut self, command: u32, first: u32, second: u32, data: &[u8]) {
        let sum = data.iter().map(|byte| u32::from(*byte)).sum();
        let head = [command, first, second, data.len() as u32, sum, !command];
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.answers.push_back(head.as_slice().into());
        if !data.is_empty() {
            self.answers.push_back(data.into());
        }
    }

    fn hear(&mut self, command: u32, stream: u32, data: &[u8]) {
        match command {
            CNXN => self.say(CNXN, VERSION, DATA_BYTES_MAX, b"device::ro.product.model=phone;"),
            OPEN => {
                let wanted = data.strip_suffix(&[0]).unwrap_or(data);
                let answer = [b"phone: ", wanted, b"\n"].concat();
                self.say(OKAY, 1, stream, &[]);
                self.say(WRTE, 1, stream, &answer);
            }
            // What was written has arrived.
            OKAY => self.say(CLSE, 1, stream, &[]),
            _ => {}
        }
    }
}

impl GadgetFunction for Phone {
    fn send(&mut self, _endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let Some(answer) = self.answers.front_mut() else { return InTransferAnswer::Nak };
        let bytes = answer.split_front(room);
        if answer.is_empty() {
            self.answers.pop_front();
        }
        InTransferAnswer::Data(bytes)
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        self.received.extend_from_slice(&payload.contiguous());
        while let Some(head) = self.received.first_chunk::<HEAD_BYTES>() {
            let word = |at: usize| u32::from_le_bytes(head[4 * at..4 * at + 4].try_into().unwrap());
            let (command, stream, end) = (word(0), word(1), HEAD_BYTES + word(3) as usize);
            if self.received.len() < end {
                break;
            }
            let message: Vec<u8> = self.received.drain(..end).collect();
            self.hear(command, stream, &message[HEAD_BYTES..]);
        }
        OutTransferAnswer::Accepted
    }
}

#[test]
fn adb_finds_a_phone_and_runs_a_command_there_in_each_run_anew() {
    if !can_run() || !has("adb", has_program("adb")) {
        return;
    }
    let harness = Harness::new();
    let share = Share::default();
    share.add("phone", Phone::device()).unwrap();
    let target = format!("{}/phone", share.listen(([127, 0, 0, 1], 0).into()).unwrap());
    for _ in 0..2 {
        let script = "adb wait-for-device && adb devices && adb shell what";
        let mut command = harness.command(&["run", &target, "--", "sh", "-c", script]);
        command.env("HOME", harness.path("")).env("TMPDIR", harness.path(""));
        let ended = finish(command, PATIENCE);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains(&format!("{SERIAL}\tdevice")), "{ended:?}");
        assert!(ended.stdout.contains("phone: shell:what"), "{ended:?}");
    }
}
