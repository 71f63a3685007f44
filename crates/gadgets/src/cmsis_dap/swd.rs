//! A target's serial wire debug port with one access port to memory (ARM Debug Interface v5.2, "ADIv5" below), down to
//! single transfers: whether a line is busy or a bit has the wrong parity is the probe's affair.
//!
//! A transfer that fails in the memory is answered with FAULT at once. On the wire the transfer after it has that
//! answer, but a probe passes on what it finds out before it reports.

use super::cortex_m::{AccessWidth, BusError, CortexCore, ROM_TABLE};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Ones in succession that reset the line (ADIv5 B4.3.3).
const LINE_RESET_BITS: u32 = 50;

/// DPIDR of Cortex-M3 and M4: ARM, version 1 (ADIv5 B2.2.5).
const DPIDR: u32 = 0x2ba0_1477;
/// CTRL/STAT (ADIv5 B2.2.2): an access failed; power and reset requests, each acknowledged in the bit above.
const STICKYERR: u32 = 1 << 5;
const CDBGPWRUPREQ: u32 = 1 << 28;
const REQUESTS: u32 = 1 << 26 | CDBGPWRUPREQ | 1 << 30;
/// Bits of CTRL/STAT that can be written: ORUNDETECT, TRNMODE, MASKLANE, TRNCNT and the requests.
const CONTROL_BITS: u32 = 0x003f_ff0d | REQUESTS;
/// ABORT (ADIv5 B2.2.1): clears STICKYERR.
const STKERRCLR: u32 = 1 << 2;

/// Registers of the access port (ADIv5 C2.6), by their address.
const CSW: u8 = 0x00;
const TAR: u8 = 0x04;
const DRW: u8 = 0x0c;
const BD0: u8 = 0x10;
const BD3: u8 = 0x1c;
const BASE: u8 = 0xf8;
const IDR: u8 = 0xfc;
/// IDR of the Cortex-M4's port to its bus.
const IDR_VALUE: u32 = 0x2477_0011;
/// BASE: a ROM table is there, in the format of ADIv5.
const BASE_VALUE: u32 = ROM_TABLE | 0b11;
/// CSW: size and increment can be written, and what the bus is told of the access; transfers are enabled.
const CSW_BITS: u32 = 0x7f00_0037;
const CSW_ENABLED: u32 = 1 << 6;
const CSW_RESET: u32 = 0x2300_0002;
/// The address increments within so many bytes, as the Cortex-M4's does (ADIv5 C2.2.2 asks for 1 KiB).
const INCREMENT_BYTES: u32 = 4096;

/// How the target acknowledges a transfer (ADIv5 table B4-1), as CMSIS-DAP numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SwdAckError {
    /// STICKYERR is set.
    Fault = 4,
    /// The target drives no acknowledgement: all three bits read as ones.
    Silence = 7,
}

/// Whether the target listens (ADIv5 B4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwdLineState {
    /// Since power-up: it waits for a line reset.
    Off,
    /// The line was reset: DPIDR has to be read first.
    Reset,
    Ready,
}

/// A register of one of the ports, as a transfer addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DapRegister {
    /// Of the access port, or of the debug port.
    pub is_access_port: bool,
    /// 0, 4, 8 or 12.
    pub address: u8,
}

/// The debug port, its access port and the core.
#[derive(Debug)]
pub struct SwdTarget {
    line: SwdLineState,
    /// Ones that ended what was sent last.
    ones: u32,
    control: u32,
    select: u32,
    /// What the access port read last.
    buffer: u32,
    csw: u32,
    tar: u32,
    pub core: CortexCore,
}

impl SwdTarget {
    pub fn new() -> Self {
        Self {
            line: SwdLineState::Off,
            ones: 0,
            control: 0,
            select: 0,
            buffer: 0,
            csw: CSW_RESET,
            tar: 0,
            core: CortexCore::new(),
        }
    }

    /// The probe drives the data line with these bits, the lowest of the first byte first.
    pub fn sequence(&mut self, bytes: &[u8], bits: usize) {
        for bit in 0..bits {
            let is_one = bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
            self.ones = if is_one { self.ones.saturating_add(1) } else { 0 };
            if self.ones >= LINE_RESET_BITS {
                self.line = SwdLineState::Reset;
            }
        }
    }

    /// Reads a register.
    pub fn read(&mut self, register: DapRegister) -> Result<u32, SwdAckError> {
        self.begin(register, true)?;
        if register.is_access_port {
            self.buffer = self.access(register, None)?;
            return Ok(self.buffer);
        }
        Ok(match (register.address, self.select & 0xf) {
            (0, _) => DPIDR,
            (4, 0) => self.control | (self.control & REQUESTS) << 1,
            // RESEND and RDBUFF.
            (8 | 12, _) => self.buffer,
            _ => 0,
        })
    }

    /// Writes a register.
    pub fn write(&mut self, register: DapRegister, value: u32) -> Result<(), SwdAckError> {
        self.begin(register, false)?;
        if register.is_access_port {
            return self.access(register, Some(value)).map(|_| ());
        }
        match (register.address, self.select & 0xf) {
            (0, _) if value & STKERRCLR != 0 => self.control &= !STICKYERR,
            (4, 0) => self.control = value & CONTROL_BITS | self.control & STICKYERR,
            (8, _) => self.select = value,
            _ => {}
        }
        Ok(())
    }

    /// Whether the port answers such a transfer now.
    fn begin(&mut self, register: DapRegister, is_read: bool) -> Result<(), SwdAckError> {
        self.ones = 0;
        let is_debug_port = !register.is_access_port;
        match self.line {
            SwdLineState::Off => return Err(SwdAckError::Silence),
            SwdLineState::Reset if !(is_debug_port && is_read && register.address == 0) => {
                return Err(SwdAckError::Silence);
            }
            SwdLineState::Reset | SwdLineState::Ready => self.line = SwdLineState::Ready,
        }
        // ADIv5 B4.2.5: these are answered even then.
        let is_always_answered =
            is_debug_port && (register.address == 0 || is_read && register.address == 4 && self.select & 0xf == 0);
        if self.control & STICKYERR != 0 && !is_always_answered {
            return Err(SwdAckError::Fault);
        }
        if register.is_access_port && self.control & CDBGPWRUPREQ == 0 {
            return Err(self.fail());
        }
        Ok(())
    }

    fn fail(&mut self) -> SwdAckError {
        self.control |= STICKYERR;
        SwdAckError::Fault
    }

    /// Reads or writes (`value`) a register of the access port. No other port exists: reads as zero.
    fn access(&mut self, register: DapRegister, value: Option<u32>) -> Result<u32, SwdAckError> {
        if self.select >> 24 != 0 {
            return Ok(0);
        }
        let address = (self.select & 0xf0) as u8 | register.address;
        match (address, value) {
            (CSW, None) => Ok(self.csw | CSW_ENABLED),
            (CSW, Some(value)) => {
                self.csw = csw_of(value, self.csw);
                Ok(0)
            }
            (TAR, None) => Ok(self.tar),
            (TAR, Some(value)) => {
                self.tar = value;
                Ok(0)
            }
            (DRW, _) => self.data(value).map_err(|BusError| self.fail()),
            (BD0..=BD3, _) => {
                let at = self.tar & !0xf | u32::from(address - BD0);
                self.word(at, value).map_err(|BusError| self.fail())
            }
            (BASE, None) => Ok(BASE_VALUE),
            (IDR, None) => Ok(IDR_VALUE),
            _ => Ok(0),
        }
    }

    fn word(&mut self, at: u32, value: Option<u32>) -> Result<u32, BusError> {
        match value {
            Some(value) => self.core.write(at, AccessWidth::Word, value).map(|()| 0),
            None => self.core.read(at, AccessWidth::Word),
        }
    }

    /// An access through DRW. A value narrower than a word is in the lanes of its address; a packed transfer has as
    /// many as fill a word (ADIv5 C2.2.5, C2.2.6).
    fn data(&mut self, value: Option<u32>) -> Result<u32, BusError> {
        let width = match self.csw & 7 {
            0 => AccessWidth::Byte,
            1 => AccessWidth::Half,
            _ => AccessWidth::Word,
        };
        let (increments, is_packed) = match self.csw >> 4 & 3 {
            0 => (false, false),
            2 => (true, true),
            _ => (true, false),
        };
        let accesses = if is_packed { 4 / width.bytes() } else { 1 };
        let mut read = 0;
        for _ in 0..accesses {
            let at = self.tar & !(width.bytes() - 1);
            let lane = 8 * (at & 3);
            match value {
                Some(value) => self.core.write(at, width, value >> lane)?,
                None => read |= self.core.read(at, width)? << lane,
            }
            if increments {
                let next = self.tar.wrapping_add(width.bytes());
                self.tar = self.tar & !(INCREMENT_BYTES - 1) | next & (INCREMENT_BYTES - 1);
            }
        }
        Ok(read)
    }

    pub fn save(&self, to: &mut SavedStateWriter) {
        to.u8(match self.line {
            SwdLineState::Off => 0,
            SwdLineState::Reset => 1,
            SwdLineState::Ready => 2,
        });
        [self.ones, self.control, self.select, self.buffer, self.csw, self.tar]
            .into_iter()
            .for_each(|word| to.u32(word));
        self.core.save(to);
    }

    pub fn restore(from: &mut SavedStateReader<'_>) -> Option<Self> {
        let line = match from.u8()? {
            0 => SwdLineState::Off,
            1 => SwdLineState::Reset,
            2 => SwdLineState::Ready,
            _ => return None,
        };
        let (ones, control, select) = (from.u32()?, from.u32()?, from.u32()?);
        let (buffer, csw, tar) = (from.u32()?, from.u32()?, from.u32()?);
        let core = CortexCore::restore(from)?;
        let is_possible = control & !(CONTROL_BITS | STICKYERR) == 0 && csw == csw_of(csw, CSW_RESET);
        is_possible.then_some(Self { line, ones, control, select, buffer, csw, tar, core })
    }
}

/// CSW after a write. A size that the bus does not have leaves the size; the reserved increment means none.
fn csw_of(value: u32, before: u32) -> u32 {
    let mut csw = value & CSW_BITS;
    if csw & 7 > 2 {
        csw = csw & !7 | before & 7;
    }
    if csw >> 4 & 3 == 3 {
        csw &= !(3 << 4);
    }
    csw
}
