//! How each chip is asked for a line's properties, and how it reports them.
//!
//! The requests are those of Linux's drivers `cdc-acm` (USB CDC PSTN 1.2 §6.3), `ftdi_sio`, `cp210x` (Silicon Labs
//! AN571), `ch341` and `pl2303`.

use farbus_model::SetupPacket;
use farbus_model::serial_port::{SerialChip, SerialPortInterface};

use crate::limits::SERIAL_STATE_BYTES;

use super::line::{FlowControl, LineChange, LineCoding, LineFaults, ModemState, Parity, StopBits};

/// Request types: of the class to an interface, and of the vendor to the device and to an interface.
const CLASS_OUT: u8 = 0x21;
const VENDOR_OUT: u8 = 0x40;
const VENDOR_IN: u8 = 0xc0;
const VENDOR_INTERFACE_OUT: u8 = 0x41;
const VENDOR_INTERFACE_IN: u8 = 0xc1;
/// How long a break lasts that ends by request, and the end of one.
const BREAK_ON: u16 = 0xffff;
const BREAK_OFF: u16 = 0;
/// How long an FTDI chip waits for more before it sends what it has, or nothing: Linux's choice. Less would fill the
/// network with empty answers.
const LATENCY_MS: u16 = 16;
const XON: u8 = 0x11;
const XOFF: u8 = 0x13;

/// One control request of a chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipRequest {
    /// Its setup packet.
    pub setup: SetupPacket,
    /// Its data to the chip.
    pub data: Vec<u8>,
    /// What its answer is needed for.
    pub answer: ChipAnswer,
}

/// What the answer of a request is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChipAnswer {
    /// Nothing, but it must succeed.
    None,
    /// Nothing, and a chip may refuse the request: not every device has what it sets.
    Optional,
    /// CH34x: its version.
    Version,
    /// CH34x: its registers of break and line control.
    BreakRegister,
    /// PL2303: refused by an HXN, answered by all others.
    IsHxn,
    /// CP210x: the control lines.
    Modem,
}

/// What a driver does with a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChipOrder {
    /// Learns what kind of chip it is.
    Identify,
    /// Makes it ready for use.
    BringUp,
    /// Changes the line.
    Change(LineChange),
    /// Asks for the incoming control lines.
    AskModem,
    /// Clears the halt of the endpoint with this address.
    ClearHalt(u8),
    /// Puts it to rest.
    Close,
}

/// A chip and what is known of it.
#[derive(Clone, Debug)]
pub struct ChipProtocol {
    chip: SerialChip,
    interface: u16,
    /// FTDI: the port's number, from 1; 0 of the chips that have one port and no number (FT232, BM, R and X).
    channel: u16,
    /// `bcdDevice`: the version of an FTDI chip.
    device_version: u16,
    /// The version of a CH34x, and its register that begins and ends breaks.
    version: u8,
    break_register: u8,
    /// Whether a PL2303 is of the type HXN.
    is_hxn: bool,
    coding: LineCoding,
    control: (bool, bool),
    flow: FlowControl,
}

impl ChipProtocol {
    /// The chip of `port`. `device_version` is the device's `bcdDevice`.
    pub fn new(port: &SerialPortInterface, device_version: u16) -> Self {
        let names_port = matches!(device_version, 0x0500 | 0x0700 | 0x0800 | 0x0900);
        Self {
            chip: port.chip,
            interface: port.control_interface.into(),
            channel: if names_port { u16::from(port.interface) + 1 } else { 0 },
            device_version,
            version: 0,
            break_register: 1,
            is_hxn: false,
            coding: LineCoding::default(),
            control: (false, false),
            flow: FlowControl::None,
        }
    }

    /// Bytes of its state in front of the data of each packet.
    pub fn status_bytes(&self) -> usize {
        if self.chip == SerialChip::Ftdi { 2 } else { 0 }
    }

    /// Whether its control lines are known only when asked for.
    pub fn is_asked_for_modem(&self) -> bool {
        self.chip == SerialChip::Cp210x
    }

    /// The control lines before anything was reported.
    pub fn first_modem_state(&self) -> ModemState {
        ModemState { cts: self.chip == SerialChip::CdcAcm, ..ModemState::default() }
    }

    /// The rate and the format that were set last.
    pub fn coding(&self) -> LineCoding {
        self.coding
    }

    /// What is known of the chip and was set, with its incoming control lines.
    pub fn state(&self, modem: ModemState) -> [u8; SERIAL_STATE_BYTES] {
        let ModemState { cts, dsr, ri, dcd } = modem;
        let flags = [self.control.0, self.control.1, self.is_hxn, cts, dsr, ri, dcd];
        let bits = flags.into_iter().enumerate().fold(0, |bits, (at, flag)| bits | u8::from(flag) << at);
        let mut state = [0; SERIAL_STATE_BYTES];
        state[..4].copy_from_slice(&self.coding.rate.to_le_bytes());
        let parity = parity_number(self.coding.parity) as u8;
        let stop = stop_number(self.coding.stop_bits) as u8;
        state[4..].copy_from_slice(&[
            self.coding.data_bits,
            parity,
            stop,
            self.flow as u8,
            self.version,
            self.break_register,
            bits,
        ]);
        state
    }

    /// Takes over what [`ChipProtocol::state`] returned; `None`: it returned something else.
    pub fn restore(&mut self, state: &[u8]) -> Option<ModemState> {
        let state: [u8; SERIAL_STATE_BYTES] = state.try_into().ok()?;
        let [a, b, c, d, data_bits, parity, stop, flow, version, break_register, bits] = state;
        let parities = [Parity::None, Parity::Odd, Parity::Even, Parity::Mark, Parity::Space];
        let stops = [StopBits::One, StopBits::OneAndAHalf, StopBits::Two];
        let flows = [FlowControl::None, FlowControl::Hardware, FlowControl::Software];
        self.coding = LineCoding {
            rate: u32::from_le_bytes([a, b, c, d]),
            data_bits: Some(data_bits).filter(|bits| (5..=8).contains(bits))?,
            parity: *parities.get(usize::from(parity))?,
            stop_bits: *stops.get(usize::from(stop))?,
        };
        self.flow = *flows.get(usize::from(flow))?;
        (self.version, self.break_register) = (version, break_register);
        let flag = |at: u8| bits >> at & 1 != 0;
        (self.control, self.is_hxn) = ((flag(0), flag(1)), flag(2));
        Some(ModemState { cts: flag(3), dsr: flag(4), ri: flag(5), dcd: flag(6) })
    }

    /// The requests that carry out `order`, and remembers what it sets.
    pub fn requests(&mut self, order: ChipOrder) -> Vec<ChipRequest> {
        match order {
            ChipOrder::Change(LineChange::Coding(coding)) => self.coding = coding,
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => self.control = (dtr, rts),
            ChipOrder::Change(LineChange::Flow(flow)) => self.flow = flow,
            ChipOrder::ClearHalt(endpoint) => {
                let setup = SetupPacket::clear_halt(farbus_model::EpAddr::from_byte(endpoint));
                return vec![ChipRequest { setup, data: Vec::new(), answer: ChipAnswer::Optional }];
            }
            _ => {}
        }
        match self.chip {
            SerialChip::CdcAcm => self.cdc_acm(order),
            SerialChip::Ftdi => self.ftdi(order),
            SerialChip::Cp210x => self.cp210x(order),
            SerialChip::Ch34x => self.ch34x(order),
            SerialChip::Pl2303 => self.pl2303(order),
        }
    }

    /// Takes an answer in, `None` if the chip refused; returns its control lines if it says them.
    pub fn handle_answer(&mut self, answer: ChipAnswer, data: Option<&[u8]>) -> Option<ModemState> {
        match (answer, data) {
            (ChipAnswer::Version, Some([version, ..])) => self.version = *version,
            (ChipAnswer::BreakRegister, Some([register, ..])) => self.break_register = *register,
            (ChipAnswer::IsHxn, None) => self.is_hxn = true,
            (ChipAnswer::Modem, Some([lines, ..])) => return Some(high_nibble_state(*lines)),
            _ => {}
        }
        None
    }

    /// The state in front of a packet's data.
    pub fn packet_state(&self, status: &[u8]) -> Option<(ModemState, LineFaults)> {
        let [modem, line, ..] = *status else { return None };
        let faults = LineFaults {
            overrun: line & 0x02 != 0,
            parity: line & 0x04 != 0,
            framing: line & 0x08 != 0,
            has_break: line & 0x10 != 0,
        };
        Some((high_nibble_state(modem), faults))
    }

    /// What a notification says.
    pub fn notified(&self, data: &[u8], before: ModemState) -> Option<(ModemState, LineFaults)> {
        match (self.chip, data) {
            // SERIAL_STATE (PSTN 1.2 §6.5.4).
            (SerialChip::CdcAcm, [0xa1, 0x20, _, _, _, _, _, _, state, ..]) => Some((
                ModemState { dcd: state & 1 != 0, dsr: state & 2 != 0, ri: state & 8 != 0, ..before },
                LineFaults {
                    has_break: state & 4 != 0,
                    framing: state & 0x10 != 0,
                    parity: state & 0x20 != 0,
                    overrun: state & 0x40 != 0,
                },
            )),
            (SerialChip::Ch34x, [_, _, lines, ..]) => {
                let lines = !lines;
                let state =
                    ModemState { cts: lines & 1 != 0, dsr: lines & 2 != 0, ri: lines & 4 != 0, dcd: lines & 8 != 0 };
                Some((state, LineFaults::default()))
            }
            (SerialChip::Pl2303, [.., _, _]) if data.len() >= 9 => {
                let state = data[8];
                Some((
                    ModemState { dcd: state & 1 != 0, dsr: state & 2 != 0, ri: state & 8 != 0, cts: state & 0x80 != 0 },
                    LineFaults {
                        has_break: state & 4 != 0,
                        framing: state & 0x10 != 0,
                        parity: state & 0x20 != 0,
                        overrun: state & 0x40 != 0,
                    },
                ))
            }
            _ => None,
        }
    }

    fn cdc_acm(&self, order: ChipOrder) -> Vec<ChipRequest> {
        let class = |request, value, data: Vec<u8>| {
            // A function says in its descriptors what of these it takes; Linux sends them all the same.
            ChipRequest { answer: ChipAnswer::Optional, ..out(CLASS_OUT, request, value, self.interface, data) }
        };
        match order {
            ChipOrder::Change(LineChange::Coding(coding)) => vec![class(0x20, 0, coding_bytes(coding))],
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => {
                vec![class(0x22, u16::from(dtr) | u16::from(rts) << 1, Vec::new())]
            }
            ChipOrder::Change(LineChange::Break(is_on)) => {
                vec![class(0x23, if is_on { BREAK_ON } else { BREAK_OFF }, Vec::new())]
            }
            ChipOrder::Close => vec![class(0x22, 0, Vec::new())],
            _ => Vec::new(),
        }
    }

    fn ftdi(&self, order: ChipOrder) -> Vec<ChipRequest> {
        const RESET: u8 = 0;
        const MODEM: u8 = 1;
        const FLOW: u8 = 2;
        const RATE: u8 = 3;
        const DATA: u8 = 4;
        const LATENCY: u8 = 9;
        let vendor = |request, value, index| out(VENDOR_OUT, request, value, index, Vec::new());
        let format = |coding: LineCoding, has_break: bool| {
            let parity = parity_number(coding.parity) << 8;
            let stop = stop_number(coding.stop_bits) << 11;
            vendor(DATA, u16::from(coding.data_bits) | parity | stop | u16::from(has_break) << 14, self.channel)
        };
        let flow = |flow| match flow {
            FlowControl::None => vendor(FLOW, 0, self.channel),
            FlowControl::Hardware => vendor(FLOW, 0, 1 << 8 | self.channel),
            FlowControl::Software => vendor(FLOW, u16::from(XOFF) << 8 | u16::from(XON), 4 << 8 | self.channel),
        };
        match order {
            ChipOrder::BringUp => vec![
                vendor(RESET, 0, self.channel),
                ChipRequest { answer: ChipAnswer::Optional, ..vendor(LATENCY, LATENCY_MS, self.channel) },
                flow(FlowControl::None),
            ],
            ChipOrder::Change(LineChange::Coding(coding)) => {
                let divisor = self.ftdi_divisor(coding.rate);
                let high = (divisor >> 16) as u16;
                let index = if self.channel > 0 { high << 8 | self.channel } else { high };
                vec![vendor(RATE, divisor as u16, index), format(coding, false)]
            }
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => {
                vec![vendor(MODEM, 0x0300 | u16::from(dtr) | u16::from(rts) << 1, self.channel)]
            }
            ChipOrder::Change(LineChange::Break(is_on)) => vec![format(self.coding, is_on)],
            ChipOrder::Change(LineChange::Flow(to)) => vec![flow(to)],
            ChipOrder::Change(LineChange::Purge { received, unsent }) => {
                let purge = |kind| vendor(RESET, kind, self.channel);
                [(received, 1), (unsent, 2)]
                    .into_iter()
                    .filter(|(is_meant, _)| *is_meant)
                    .map(|(_, k)| purge(k))
                    .collect()
            }
            ChipOrder::Close => vec![vendor(MODEM, 0x0300, self.channel)],
            _ => Vec::new(),
        }
    }

    /// The divisor of FTDI's clock for a rate, with its fraction in the highest bits (FTDI AN120; AN232B-05).
    fn ftdi_divisor(&self, rate: u32) -> u32 {
        const FRACTIONS: [u32; 8] = [0, 3, 2, 4, 1, 5, 6, 7];
        let rate = rate.max(1);
        let rounded = |clock: u32, by: u32| (clock + by / 2) / by;
        let has_fast_clock = matches!(self.device_version, 0x0700 | 0x0800 | 0x0900);
        let (eighths, flag) = if has_fast_clock && (1200..=12_000_000).contains(&rate) {
            (rounded(96_000_000, rate), 1 << 17)
        } else {
            (rounded(24_000_000, rate), 0)
        };
        if self.device_version <= 0x0200 {
            // The first chips have three fractions only.
            let eighths = if eighths & 7 == 7 { eighths + 1 } else { eighths };
            let whole = eighths >> 3;
            let fraction = match eighths & 7 {
                0 => 0,
                1 => 0xc000,
                2 | 3 => 0x8000,
                _ => 0x4000,
            };
            return if whole == 1 && fraction == 0 { 0 } else { whole | fraction };
        }
        let divisor = match eighths >> 3 | FRACTIONS[(eighths & 7) as usize] << 14 {
            1 => 0,
            0x4001 => 1,
            divisor => divisor,
        };
        divisor | flag
    }

    fn cp210x(&self, order: ChipOrder) -> Vec<ChipRequest> {
        let vendor = |request, value, data: Vec<u8>| out(VENDOR_INTERFACE_OUT, request, value, self.interface, data);
        match order {
            ChipOrder::BringUp => vec![vendor(0x00, 1, Vec::new()), vendor(0x13, 0, self.cp210x_flow())],
            ChipOrder::Change(LineChange::Coding(coding)) => {
                let stop = match coding.stop_bits {
                    StopBits::One => 0,
                    StopBits::OneAndAHalf => 1,
                    StopBits::Two => 2,
                };
                let format = u16::from(coding.data_bits) << 8 | parity_number(coding.parity) << 4 | stop;
                vec![vendor(0x1e, 0, coding.rate.to_le_bytes().into()), vendor(0x03, format, Vec::new())]
            }
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => {
                vec![vendor(0x07, 0x0300 | u16::from(dtr) | u16::from(rts) << 1, Vec::new())]
            }
            ChipOrder::Change(LineChange::Break(is_on)) => vec![vendor(0x05, is_on.into(), Vec::new())],
            ChipOrder::Change(LineChange::Flow(_)) => vec![vendor(0x13, 0, self.cp210x_flow())],
            ChipOrder::Change(LineChange::Purge { received, unsent }) => {
                let queues = if received { 0x0a } else { 0 } | if unsent { 0x05 } else { 0 };
                vec![vendor(0x12, queues, Vec::new())]
            }
            ChipOrder::AskModem => vec![read(VENDOR_INTERFACE_IN, 0x08, 0, self.interface, 1, ChipAnswer::Modem)],
            ChipOrder::Close => vec![vendor(0x07, 0x0300, Vec::new()), vendor(0x00, 0, Vec::new())],
            ChipOrder::Identify | ChipOrder::ClearHalt(_) => Vec::new(),
        }
    }

    /// SET_FLOW (AN571, *ulControlHandshake* and *ulFlowReplace*), with the control lines as they are.
    fn cp210x_flow(&self) -> Vec<u8> {
        let (dtr, rts) = self.control;
        let is_hardware = self.flow == FlowControl::Hardware;
        let handshake = u32::from(dtr) | if is_hardware { 0x08 } else { 0 };
        let lines = if is_hardware { 0x80 } else { u32::from(rts) << 6 };
        let replace = lines | if self.flow == FlowControl::Software { 0x03 } else { 0 };
        [handshake, replace, 128, 128].into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn ch34x(&self, order: ChipOrder) -> Vec<ChipRequest> {
        const WRITE: u8 = 0x9a;
        let vendor = |request, value, index| out(VENDOR_OUT, request, value, index, Vec::new());
        let control = |dtr: bool, rts: bool| vendor(0xa4, !(u16::from(dtr) << 5 | u16::from(rts) << 6), 0);
        match order {
            ChipOrder::Identify => vec![read(VENDOR_IN, 0x5f, 0, 0, 2, ChipAnswer::Version)],
            ChipOrder::BringUp => {
                vec![vendor(0xa1, 0, 0), read(VENDOR_IN, 0x95, 0x1805, 0, 2, ChipAnswer::BreakRegister)]
            }
            ChipOrder::Change(LineChange::Coding(coding)) => {
                // Bit 7: characters are passed on as they come, not 32 at a time.
                let at_once = if self.version > 0x27 { 0x80 } else { 0 };
                let mut requests = vec![vendor(WRITE, 0x1312, ch34x_divisor(coding.rate) | at_once)];
                // Earlier versions keep the format elsewhere, and have no other than this one.
                if self.version >= 0x30 {
                    requests.push(vendor(WRITE, 0x2518, ch34x_format(coding).into()));
                }
                requests
            }
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => vec![control(dtr, rts)],
            ChipOrder::Change(LineChange::Break(is_on)) => {
                let format = ch34x_format(self.coding);
                let (register, format) = match is_on {
                    true => (self.break_register & !1, format & !0x40),
                    false => (self.break_register | 1, format),
                };
                vec![vendor(WRITE, 0x1805, u16::from_le_bytes([register, format]))]
            }
            ChipOrder::Close => vec![control(false, false)],
            _ => Vec::new(),
        }
    }

    fn pl2303(&self, order: ChipOrder) -> Vec<ChipRequest> {
        let write = |value, index| out(VENDOR_OUT, if self.is_hxn { 0x80 } else { 0x01 }, value, index, Vec::new());
        let class = |request, value, data: Vec<u8>| out(CLASS_OUT, request, value, self.interface, data);
        let probe = |value| read(VENDOR_IN, 0x01, value, 0, 1, ChipAnswer::Optional);
        let control = |dtr, rts| class(0x22, u16::from(dtr) | u16::from(rts) << 1, Vec::new());
        match order {
            ChipOrder::Identify => vec![read(VENDOR_IN, 0x01, 0x8080, 0, 1, ChipAnswer::IsHxn)],
            ChipOrder::BringUp if self.is_hxn => Vec::new(),
            ChipOrder::BringUp => vec![
                probe(0x8484),
                write(0x0404, 0),
                probe(0x8484),
                probe(0x8383),
                probe(0x8484),
                write(0x0404, 1),
                probe(0x8484),
                probe(0x8383),
                write(0, 1),
                write(1, 0),
                write(2, 0x44),
            ],
            ChipOrder::Change(LineChange::Coding(coding)) => vec![class(0x20, 0, pl2303_coding(coding))],
            ChipOrder::Change(LineChange::ControlLines { dtr, rts }) => vec![control(dtr, rts)],
            ChipOrder::Change(LineChange::Break(is_on)) => {
                vec![class(0x23, if is_on { BREAK_ON } else { BREAK_OFF }, Vec::new())]
            }
            ChipOrder::Change(LineChange::Flow(flow)) => vec![match (flow, self.is_hxn) {
                (FlowControl::None, true) => write(0x0a, 0xff),
                (FlowControl::Hardware, true) => write(0x0a, 0xfa),
                (FlowControl::Software, true) => write(0x0a, 0xee),
                (FlowControl::None, false) => write(0, 0),
                (FlowControl::Hardware, false) => write(0, 0x61),
                (FlowControl::Software, false) => write(0, 0xc0),
            }],
            ChipOrder::Change(LineChange::Purge { .. }) if self.is_hxn => vec![write(7, 0x03)],
            ChipOrder::Change(LineChange::Purge { .. }) => vec![write(8, 0), write(9, 0)],
            ChipOrder::Close => vec![control(false, false)],
            ChipOrder::AskModem | ChipOrder::ClearHalt(_) => Vec::new(),
        }
    }
}

fn out(request_type: u8, request: u8, value: u16, index: u16, data: Vec<u8>) -> ChipRequest {
    let length = u16::try_from(data.len()).expect("a chip takes a few bytes");
    let setup = SetupPacket { request_type, request, value, index, length };
    ChipRequest { setup, data, answer: ChipAnswer::None }
}

fn read(request_type: u8, request: u8, value: u16, index: u16, length: u16, answer: ChipAnswer) -> ChipRequest {
    ChipRequest { setup: SetupPacket { request_type, request, value, index, length }, data: Vec::new(), answer }
}

/// The control lines in the high four bits: FTDI's modem status and CP210x's.
fn high_nibble_state(lines: u8) -> ModemState {
    ModemState { cts: lines & 0x10 != 0, dsr: lines & 0x20 != 0, ri: lines & 0x40 != 0, dcd: lines & 0x80 != 0 }
}

fn parity_number(parity: Parity) -> u16 {
    match parity {
        Parity::None => 0,
        Parity::Odd => 1,
        Parity::Even => 2,
        Parity::Mark => 3,
        Parity::Space => 4,
    }
}

fn stop_number(stop_bits: StopBits) -> u16 {
    match stop_bits {
        StopBits::One => 0,
        StopBits::OneAndAHalf => 1,
        StopBits::Two => 2,
    }
}

/// The line coding of PSTN 1.2 §6.3.11.
fn coding_bytes(coding: LineCoding) -> Vec<u8> {
    let mut bytes = coding.rate.to_le_bytes().to_vec();
    let (stop, parity) = (stop_number(coding.stop_bits) as u8, parity_number(coding.parity) as u8);
    bytes.extend([stop, parity, coding.data_bits]);
    bytes
}

/// The rates that PL2303 takes as numbers; any other as a divisor of its clock.
const PL2303_RATES: [u32; 25] = [
    75, 150, 300, 600, 1200, 1800, 2400, 3600, 4800, 7200, 9600, 14_400, 19_200, 28_800, 38_400, 57_600, 115_200,
    230_400, 460_800, 614_400, 921_600, 1_228_800, 2_457_600, 3_000_000, 6_000_000,
];

fn pl2303_coding(coding: LineCoding) -> Vec<u8> {
    let mut bytes = coding_bytes(coding);
    if !PL2303_RATES.contains(&coding.rate) {
        // 12 MHz * 32 = rate * mantissa * 4^exponent.
        let (mut mantissa, mut exponent) = ((12_000_000 * 32 / coding.rate.max(1)).max(1), 0);
        while mantissa >= 512 && exponent < 7 {
            (mantissa, exponent) = (mantissa >> 2, exponent + 1);
        }
        let mantissa = mantissa.min(511);
        bytes[..4].copy_from_slice(&[mantissa as u8, exponent << 1 | (mantissa >> 8) as u8, 0, 0x80]);
    }
    bytes
}

/// CH34x's register of the format: receiver and transmitter on, parity, stop bits, data bits.
fn ch34x_format(coding: LineCoding) -> u8 {
    let parity = match coding.parity {
        Parity::None => 0,
        Parity::Odd => 0x08,
        Parity::Even => 0x18,
        Parity::Mark => 0x28,
        Parity::Space => 0x38,
    };
    let stop = if coding.stop_bits == StopBits::One { 0 } else { 0x04 };
    0xc0 | parity | stop | coding.data_bits.saturating_sub(5).min(3)
}

/// CH34x's divisor (high byte), factor and prescaler for a rate: 48 MHz by 2^(12 - 3 prescaler - factor) by 256 less
/// the high byte.
fn ch34x_divisor(rate: u32) -> u16 {
    const CLOCK: u32 = 48_000_000;
    let rate = rate.clamp(46, 2_000_000);
    let by = |prescaler: u32, factor: u32| 1 << (12 - 3 * prescaler - factor);
    // The largest prescaler whose lowest rate is below this one.
    let prescaler = (0..4).rev().find(|&prescaler| rate > CLOCK / (by(prescaler, 1) * 512)).unwrap_or(0);
    let (mut factor, mut clock_by) = (1, by(prescaler, 1));
    let mut divisor = CLOCK / (clock_by * rate);
    if !(9..=255).contains(&divisor) {
        (divisor, clock_by, factor) = (divisor / 2, clock_by * 2, 0);
    }
    let divisor_min = divisor.max(2);
    // The nearer of this divisor and the next.
    let sixteenth = |divisor: u32| 16 * CLOCK / (clock_by * divisor);
    let is_next_nearer = sixteenth(divisor_min).abs_diff(16 * rate) >= (16 * rate).abs_diff(sixteenth(divisor_min + 1));
    let mut divisor = divisor_min + u32::from(is_next_nearer);
    if factor == 1 && divisor.is_multiple_of(2) {
        (divisor, factor) = (divisor / 2, 0);
    }
    ((0x100 - divisor) << 8 | factor << 2 | prescaler) as u16
}
