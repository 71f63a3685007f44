//! The commands of CMSIS-DAP 2.1, one after another: bytes in, bytes out.
//!
//! | command | here |
//! |---|---|
//! | DAP_Info, DAP_HostStatus, DAP_Connect, DAP_Disconnect, DAP_WriteABORT, DAP_ResetTarget | as specified; SWD alone |
//! | DAP_Delay, DAP_SWJ_Clock, DAP_SWD_Configure | accepted; this target needs no time |
//! | DAP_SWJ_Pins, DAP_SWJ_Sequence | as specified |
//! | DAP_TransferConfigure, DAP_Transfer, DAP_TransferBlock | as specified, without timestamps |
//! | DAP_TransferAbort | nothing: no transfer is ever under way |
//! | DAP_QueueCommands, DAP_ExecuteCommands | as specified |
//! | any other, or one that is too short | 0xff, as for a command that is not implemented |
//!
//! An answer is never longer than a packet. A host asks for no more; if it does, transfers that have no room in the
//! answer are not made, and the count says so.

use super::swd::{DapRegister, SwdAckError, SwdTarget};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Packets that a host may have under way.
pub const PACKETS_MAX: usize = 4;

/// The first byte of a command, which its answer repeats (CMSIS-DAP 2.1, "Commands").
const INFO: u8 = 0x00;
const HOST_STATUS: u8 = 0x01;
const CONNECT: u8 = 0x02;
const DISCONNECT: u8 = 0x03;
const TRANSFER_CONFIGURE: u8 = 0x04;
const TRANSFER: u8 = 0x05;
const TRANSFER_BLOCK: u8 = 0x06;
const TRANSFER_ABORT: u8 = 0x07;
const WRITE_ABORT: u8 = 0x08;
const DELAY: u8 = 0x09;
const RESET_TARGET: u8 = 0x0a;
const SWJ_PINS: u8 = 0x10;
const SWJ_CLOCK: u8 = 0x11;
const SWJ_SEQUENCE: u8 = 0x12;
const SWD_CONFIGURE: u8 = 0x13;
const QUEUE_COMMANDS: u8 = 0x7e;
const EXECUTE_COMMANDS: u8 = 0x7f;
/// The answer to a command that is not implemented.
const INVALID: u8 = 0xff;
/// How most answers end: carried out, or not.
const OK: u8 = 0;
const ERROR: u8 = 0xff;
/// DAP_Connect: serial wire.
const SWD: u8 = 1;
/// Capabilities: serial wire, and commands executed together.
const CAPABILITIES: u8 = 1 | 1 << 4;

/// DAP_Transfer: bits of a request.
const TO_ACCESS_PORT: u8 = 1;
const IS_READ: u8 = 1 << 1;
const ADDRESS: u8 = 3 << 2;
const MATCHES: u8 = 1 << 4;
const SETS_MASK: u8 = 1 << 5;
/// Acknowledgements: done, and a value that never matched.
const ACK_OK: u8 = 1;
const MISMATCH: u8 = 1 << 4;

/// DAP_SWJ_Pins: the pins that the probe drives.
const PIN_CLOCK: u8 = 1;
const PIN_DATA: u8 = 1 << 1;
const PIN_RESET: u8 = 1 << 7;

/// What a probe says of itself.
pub const VENDOR: &str = "farbus";
pub const PRODUCT: &str = "CMSIS-DAP probe";
pub const SERIAL: &str = "0";
const PROTOCOL: &str = "2.1.0";

/// Reads a command; `None` if it is too short.
struct DapCommandReader<'a>(&'a [u8]);

impl<'a> DapCommandReader<'a> {
    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// An answer with its limit.
struct DapResponse {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl DapResponse {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= self.bytes_max
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

/// A probe: its settings and its target.
#[derive(Debug)]
pub struct SwdProbe {
    is_connected: bool,
    /// How often a value is read until it matches, besides the first time.
    match_retries: u16,
    match_mask: u32,
    /// The pins as they were driven last.
    pins: u8,
    pub target: SwdTarget,
}

impl SwdProbe {
    pub fn new() -> Self {
        Self {
            is_connected: false,
            match_retries: 0,
            match_mask: 0,
            pins: PIN_CLOCK | PIN_DATA | PIN_RESET,
            target: SwdTarget::new(),
        }
    }

    /// Forgets what a host has set. The target stays as it is.
    pub fn disconnect(&mut self) {
        (self.is_connected, self.match_retries, self.match_mask) = (false, 0, 0);
    }

    /// Whether a packet waits for those that follow it.
    pub fn is_queued(packet: &[u8]) -> bool {
        packet.first() == Some(&QUEUE_COMMANDS)
    }

    /// Carries out the commands of a packet. `None`: there is no answer.
    pub fn execute(&mut self, packet: &[u8], answer_bytes_max: usize) -> Option<Vec<u8>> {
        let mut output = DapResponse { bytes: Vec::new(), bytes_max: answer_bytes_max };
        match packet {
            [TRANSFER_ABORT, ..] => return None,
            [QUEUE_COMMANDS | EXECUTE_COMMANDS, count, commands @ ..] => {
                self.execute_all(*count, DapCommandReader(commands), &mut output);
            }
            _ => {
                if self.command(&mut DapCommandReader(packet), &mut output).is_none() {
                    output.bytes = vec![INVALID];
                }
            }
        }
        Some(output.bytes)
    }

    /// Carries out `count` commands. The first that is refused or has no room ends them.
    fn execute_all(&mut self, count: u8, mut commands: DapCommandReader<'_>, output: &mut DapResponse) {
        output.put(&[EXECUTE_COMMANDS, 0]);
        for done in 1..=count {
            let before = output.bytes.len();
            let is_done = self.command(&mut commands, output).is_some() && output.has_room(0);
            if !is_done {
                output.bytes.truncate(before);
                if output.has_room(1) {
                    output.put(&[INVALID]);
                    output.bytes[1] = done;
                }
                return;
            }
            output.bytes[1] = done;
        }
    }

    /// One command. `None`: it is not implemented, or too short.
    fn command(&mut self, input: &mut DapCommandReader<'_>, output: &mut DapResponse) -> Option<()> {
        let command = input.u8()?;
        match command {
            INFO => {
                let info = self.info(input.u8()?, output.bytes_max);
                output.put(&[INFO, info.len() as u8]);
                output.put(&info);
            }
            HOST_STATUS => {
                input.bytes(2)?;
                output.put(&[HOST_STATUS, OK]);
            }
            CONNECT => {
                // 0 is the probe's choice.
                self.is_connected = input.u8()? <= SWD;
                output.put(&[CONNECT, if self.is_connected { SWD } else { 0 }]);
            }
            DISCONNECT => {
                self.is_connected = false;
                output.put(&[DISCONNECT, OK]);
            }
            TRANSFER_CONFIGURE => {
                let (_idle_cycles, _wait_retries) = (input.u8()?, input.u16()?);
                self.match_retries = input.u16()?;
                output.put(&[TRANSFER_CONFIGURE, OK]);
            }
            TRANSFER => self.transfers(input, output)?,
            TRANSFER_BLOCK => self.block(input, output)?,
            WRITE_ABORT => {
                let _index = input.u8()?;
                let value = input.u32()?;
                let is_done = self.is_connected && self.target.write(ABORT, value).is_ok();
                output.put(&[WRITE_ABORT, if is_done { OK } else { ERROR }]);
            }
            DELAY => {
                input.u16()?;
                output.put(&[DELAY, OK]);
            }
            // No sequence of its own resets this target: nRESET does.
            RESET_TARGET => output.put(&[RESET_TARGET, OK, 0]),
            SWJ_PINS => {
                let (value, selected, _wait_us) = (input.u8()?, input.u8()?, input.u32()?);
                output.put(&[SWJ_PINS, self.drive(value, selected)]);
            }
            SWJ_CLOCK => {
                let hertz = input.u32()?;
                output.put(&[SWJ_CLOCK, if hertz > 0 { OK } else { ERROR }]);
            }
            SWJ_SEQUENCE => {
                // 0 means 256.
                let bits = match input.u8()? {
                    0 => 256,
                    bits => usize::from(bits),
                };
                self.target.sequence(input.bytes(bits.div_ceil(8))?, bits);
                output.put(&[SWJ_SEQUENCE, OK]);
            }
            SWD_CONFIGURE => {
                input.u8()?;
                output.put(&[SWD_CONFIGURE, OK]);
            }
            _ => return None,
        }
        Some(())
    }

    /// DAP_Info. Empty: nothing is known.
    fn info(&self, about: u8, packet_bytes_max: usize) -> Vec<u8> {
        let text = |text: &str| [text.as_bytes(), &[0]].concat();
        match about {
            0x01 => text(VENDOR),
            0x02 => text(PRODUCT),
            0x03 => text(SERIAL),
            0x04 => text(PROTOCOL),
            0xf0 => vec![CAPABILITIES],
            0xfe => vec![PACKETS_MAX as u8],
            0xff => (packet_bytes_max as u16).to_le_bytes().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Drives the selected pins; returns all that there are.
    fn drive(&mut self, value: u8, selected: u8) -> u8 {
        let selected = selected & (PIN_CLOCK | PIN_DATA | PIN_RESET);
        self.pins = self.pins & !selected | value & selected;
        self.target.core.drive_reset(self.pins & PIN_RESET == 0);
        self.pins
    }

    /// DAP_Transfer: single accesses to registers, each a read or a write of its own.
    fn transfers(&mut self, input: &mut DapCommandReader<'_>, output: &mut DapResponse) -> Option<()> {
        let (_index, count) = (input.u8()?, input.u8()?);
        let at = output.bytes.len();
        output.put(&[TRANSFER, 0, 0]);
        // Those that are not made are read all the same: other commands may follow.
        let mut is_stopped = !self.is_connected;
        for _ in 0..count {
            let request = input.u8()?;
            let has_value = request & IS_READ == 0 || request & MATCHES != 0;
            let value = if has_value { input.u32()? } else { 0 };
            let is_answered = request & (IS_READ | MATCHES) == IS_READ;
            is_stopped |= is_answered && !output.has_room(4);
            if is_stopped {
                continue;
            }
            let acknowledged = match self.transfer(request, value) {
                Ok(read) => {
                    output.bytes[at + 1] += 1;
                    if is_answered {
                        output.put(&read.to_le_bytes());
                    }
                    ACK_OK
                }
                Err(acknowledged) => acknowledged,
            };
            output.bytes[at + 2] = acknowledged;
            is_stopped = acknowledged != ACK_OK;
        }
        Some(())
    }

    /// One transfer; if it fails, how it was acknowledged.
    fn transfer(&mut self, request: u8, value: u32) -> Result<u32, u8> {
        let register = register_of(request);
        let acknowledged = |refusal: SwdAckError| refusal as u8;
        match (request & IS_READ != 0, request & MATCHES != 0) {
            (true, false) => self.target.read(register).map_err(acknowledged),
            (true, true) => {
                for _ in 0..=self.match_retries {
                    let read = self.target.read(register).map_err(acknowledged)?;
                    if read & self.match_mask == value {
                        return Ok(read);
                    }
                }
                Err(ACK_OK | MISMATCH)
            }
            (false, _) if request & SETS_MASK != 0 => {
                self.match_mask = value;
                Ok(0)
            }
            (false, _) => self.target.write(register, value).map(|()| 0).map_err(acknowledged),
        }
    }

    /// DAP_TransferBlock: one register again and again, all reads or all writes.
    fn block(&mut self, input: &mut DapCommandReader<'_>, output: &mut DapResponse) -> Option<()> {
        let (_index, count, request) = (input.u8()?, input.u16()?, input.u8()?);
        let is_read = request & IS_READ != 0;
        let mut values =
            if is_read { DapCommandReader(&[]) } else { DapCommandReader(input.bytes(4 * usize::from(count))?) };
        let register = register_of(request);
        let at = output.bytes.len();
        output.put(&[TRANSFER_BLOCK, 0, 0, 0]);
        let (mut done, mut acknowledged) = (0_u16, 0);
        while self.is_connected && done < count && (!is_read || output.has_room(4)) {
            let result = match is_read {
                true => self.target.read(register).map(|value| output.put(&value.to_le_bytes())),
                false => self.target.write(register, values.u32()?),
            };
            if let Err(refusal) = result {
                acknowledged = refusal as u8;
                break;
            }
            (done, acknowledged) = (done + 1, ACK_OK);
        }
        output.bytes[at + 1..at + 3].copy_from_slice(&done.to_le_bytes());
        output.bytes[at + 3] = acknowledged;
        Some(())
    }

    pub fn save(&self, to: &mut SavedStateWriter) {
        to.flag(self.is_connected);
        to.u32(self.match_retries.into());
        to.u32(self.match_mask);
        to.u8(self.pins);
        self.target.save(to);
    }

    pub fn restore(from: &mut SavedStateReader<'_>) -> Option<Self> {
        let is_connected = from.flag()?;
        let match_retries = u16::try_from(from.u32()?).ok()?;
        let match_mask = from.u32()?;
        let pins = from.u8().filter(|pins| pins & !(PIN_CLOCK | PIN_DATA | PIN_RESET) == 0)?;
        let target = SwdTarget::restore(from)?;
        let is_possible = target.core.is_held() == (pins & PIN_RESET == 0);
        is_possible.then_some(Self { is_connected, match_retries, match_mask, pins, target })
    }
}

/// The debug port's register that ends errors.
const ABORT: DapRegister = DapRegister { is_access_port: false, address: 0 };

fn register_of(request: u8) -> DapRegister {
    DapRegister { is_access_port: request & TO_ACCESS_PORT != 0, address: request & ADDRESS }
}
