//! A Cortex-M4 without a floating-point unit, as a debugger sees it: memory, identification and debug registers
//! (ARMv7-M Architecture Reference Manual, DDI 0403E, "the manual" below).
//!
//! It executes no instruction. A core that runs stays where it is, as one whose program is a loop of one instruction; a
//! step moves the program counter by one halfword. A breakpoint halts a core that is or arrives there. There is no
//! watchpoint.
//!
//! | addresses | what is there |
//! |---|---|
//! | 0 and [`SRAM`], [`MEMORY_BYTES`] each | memory that can be written |
//! | [`SCS`], DWT, FPB, ROM table | see [`CortexCore::register`] |
//! | the rest of the private peripheral bus | reads as zero, ignores writes |
//! | any other | a bus error |

use crate::saved::{SavedStateReader, SavedStateWriter};

/// Bytes of each of the two memories.
pub const MEMORY_BYTES: usize = 64 << 10;
/// Where the second memory is; the first one is at 0, and the vector table begins it.
pub const SRAM: u32 = 0x2000_0000;
/// System control space (B3.2).
pub const SCS: u32 = 0xe000_e000;
/// Where the debugger begins to look (C1.2): the ROM table.
pub const ROM_TABLE: u32 = 0xe00f_f000;
/// The private peripheral bus (B3.1), and its first address beyond.
const PPB: std::ops::Range<u32> = 0xe000_0000..0xe010_0000;
/// Data watchpoint and trace unit, flash patch and breakpoint unit.
const DWT: u32 = 0xe000_1000;
const FPB: u32 = 0xe000_2000;
/// Each component has registers in so many bytes.
const COMPONENT_BYTES: u32 = 0x1000;

/// Offsets in the system control space (B3.2.2, C1.6).
const CPUID: u32 = 0xd00;
const VTOR: u32 = 0xd08;
const AIRCR: u32 = 0xd0c;
const DFSR: u32 = 0xd30;
const DHCSR: u32 = 0xdf0;
const DCRSR: u32 = 0xdf4;
const DCRDR: u32 = 0xdf8;
const DEMCR: u32 = 0xdfc;
/// Offsets in the flash patch and breakpoint unit (C1.11): its control, and its first and last comparator.
const FP_CTRL: u32 = 0;
const FP_COMP: u32 = 8;
const FP_COMP_LAST: u32 = FP_COMP + 4 * (BREAKPOINTS as u32 - 1);
/// Comparators for instructions.
const BREAKPOINTS: usize = 6;
/// FP_CTRL: ENABLE, KEY and NUM_CODE.
const FP_ENABLE: u32 = 1;
const FP_KEY: u32 = 2;
const FP_NUM_CODE: u32 = (BREAKPOINTS as u32) << 4;
/// FP_COMP: which halfwords of which word, and ENABLE.
const COMP_BITS: u32 = 0xdfff_fffd;
const COMP_ADDRESS: u32 = 0x1fff_fffc;

/// CPUID of a Cortex-M4, revision r0p1 (ARMv7-M B3.2.3).
const CPUID_VALUE: u32 = 0x410f_c241;
/// AIRCR: the key that a write needs, the key that is read, and the requests to reset.
const VECTKEY: u32 = 0x05fa;
const VECTKEYSTAT: u32 = 0xfa05_0000;
const VECTRESET: u32 = 1;
const SYSRESETREQ: u32 = 1 << 2;
/// DHCSR: the key that a write needs, what a debugger sets, and what it reads.
const DBGKEY: u32 = 0xa05f;
const C_DEBUGEN: u32 = 1;
const C_HALT: u32 = 1 << 1;
const C_STEP: u32 = 1 << 2;
const C_MASKINTS: u32 = 1 << 3;
const S_REGRDY: u32 = 1 << 16;
const S_HALT: u32 = 1 << 17;
const S_RESET_ST: u32 = 1 << 25;
/// DCRSR: write, and the register's number.
const REGWNR: u32 = 1 << 16;
const REGSEL: u32 = 0x7f;
/// DFSR: halted by request or step, by a breakpoint, by a vector catch. Writing a one clears.
const DFSR_HALTED: u32 = 1;
const DFSR_BKPT: u32 = 1 << 1;
const DFSR_VCATCH: u32 = 1 << 3;
const DFSR_BITS: u32 = 0x1f;
/// DEMCR: halt after a reset; the bits that can be written.
const VC_CORERESET: u32 = 1;
const DEMCR_BITS: u32 = 0x010f_07f1;
/// xPSR: Thumb state.
const THUMB: u32 = 1 << 24;

/// Numbers of core registers (C1.6.3): 13 is the stack pointer in use, 15 the return address.
const SP: usize = 13;
const LR: usize = 14;
const PC: usize = 15;
const XPSR: usize = 16;
const MSP: usize = 17;
const PSP: usize = 18;
/// CONTROL in the highest byte, then FAULTMASK, BASEPRI, PRIMASK.
const SPECIAL: usize = 20;
const REGISTERS: usize = 21;
/// CONTROL.SPSEL, in [`SPECIAL`].
const SPSEL: u32 = 1 << 25;

/// Width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessWidth {
    Byte,
    Half,
    Word,
}

impl AccessWidth {
    /// Bytes of an access.
    pub const fn bytes(self) -> u32 {
        match self {
            AccessWidth::Byte => 1,
            AccessWidth::Half => 2,
            AccessWidth::Word => 4,
        }
    }
}

/// The access was answered with a bus error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError;

/// The core with its memories.
#[derive(Debug)]
pub struct CortexCore {
    code: Vec<u8>,
    sram: Vec<u8>,
    registers: [u32; REGISTERS],
    /// C_DEBUGEN, C_HALT, C_STEP and C_MASKINTS as they were set.
    control: u32,
    is_halted: bool,
    /// Since DHCSR was read last.
    was_reset: bool,
    /// nRESET is low.
    is_held: bool,
    transfer: u32,
    demcr: u32,
    dfsr: u32,
    vtor: u32,
    /// Whether breakpoints take effect (FP_CTRL.ENABLE).
    has_breakpoints: bool,
    comparators: [u32; BREAKPOINTS],
}

impl CortexCore {
    /// A core that was just powered up, with empty memories.
    pub fn new() -> Self {
        let mut core = Self {
            code: vec![0; MEMORY_BYTES],
            sram: vec![0; MEMORY_BYTES],
            registers: [0; REGISTERS],
            control: 0,
            is_halted: false,
            was_reset: false,
            is_held: false,
            transfer: 0,
            demcr: 0,
            dfsr: 0,
            vtor: 0,
            has_breakpoints: false,
            comparators: [0; BREAKPOINTS],
        };
        core.reset();
        core
    }

    /// Whether a debugger has halted it.
    pub fn is_halted(&self) -> bool {
        self.is_halted
    }

    /// Reads an aligned value.
    pub fn read(&mut self, address: u32, width: AccessWidth) -> Result<u32, BusError> {
        if let Some(bytes) = self.memory(address, width) {
            return Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)));
        }
        let word = self.register(address & !3).ok_or(BusError)?;
        let value = word >> (8 * (address & 3));
        Ok(if width == AccessWidth::Word { value } else { value & ((1 << (8 * width.bytes())) - 1) })
    }

    /// Writes an aligned value. Registers take whole words alone.
    pub fn write(&mut self, address: u32, width: AccessWidth, value: u32) -> Result<(), BusError> {
        if let Some(bytes) = self.memory(address, width) {
            let count = bytes.len();
            bytes.copy_from_slice(&value.to_le_bytes()[..count]);
            return Ok(());
        }
        if !PPB.contains(&address) || width != AccessWidth::Word {
            return Err(BusError);
        }
        self.set_register(address, value);
        Ok(())
    }

    /// Drives nRESET: while it is low the core is held, and it starts when it is high again.
    pub fn drive_reset(&mut self, is_low: bool) {
        if self.is_held && !is_low {
            self.reset();
        }
        self.was_reset |= is_low;
        self.is_held = is_low;
    }

    /// Whether nRESET is low.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    fn memory(&mut self, address: u32, width: AccessWidth) -> Option<&mut [u8]> {
        let (memory, first) = if address >= SRAM { (&mut self.sram, SRAM) } else { (&mut self.code, 0) };
        let at = (address - first) as usize;
        memory.get_mut(at..at + width.bytes() as usize)
    }

    /// A local reset (B1.5.5): the stack pointer and the first instruction come from the vector table.
    fn reset(&mut self) {
        let vector = |core: &mut Self, at| core.read(at, AccessWidth::Word).unwrap_or_default();
        let (stack, start) = (vector(self, 0), vector(self, 4));
        self.registers = [0; REGISTERS];
        (self.registers[MSP], self.registers[PC]) = (stack & !3, start & !1);
        (self.registers[LR], self.registers[XPSR]) = (u32::MAX, THUMB);
        (self.vtor, self.was_reset) = (0, true);
        self.control &= !(C_HALT | C_STEP);
        self.is_halted = self.demcr & VC_CORERESET != 0 && self.control & C_DEBUGEN != 0;
        if self.is_halted {
            self.control |= C_HALT;
            self.dfsr |= DFSR_VCATCH;
        }
    }

    /// The register at an aligned address; `None` outside the private peripheral bus.
    fn register(&mut self, address: u32) -> Option<u32> {
        if !PPB.contains(&address) {
            return None;
        }
        let (component, offset) = (address & !(COMPONENT_BYTES - 1), address % COMPONENT_BYTES);
        if let Some(word) = identification(component, offset) {
            return Some(word);
        }
        Some(match (component, offset) {
            (SCS, CPUID) => CPUID_VALUE,
            (SCS, VTOR) => self.vtor,
            (SCS, AIRCR) => VECTKEYSTAT,
            (SCS, DFSR) => self.dfsr,
            (SCS, DHCSR) => self.debug_status(),
            (SCS, DCRDR) => self.transfer,
            (SCS, DEMCR) => self.demcr,
            (FPB, FP_CTRL) => FP_NUM_CODE | u32::from(self.has_breakpoints),
            (FPB, FP_COMP..=FP_COMP_LAST) => self.comparators[(offset - FP_COMP) as usize / 4],
            (ROM_TABLE, ..0x10) => ROM_ENTRIES[offset as usize / 4],
            _ => 0,
        })
    }

    fn set_register(&mut self, address: u32, value: u32) {
        let (component, offset) = (address & !(COMPONENT_BYTES - 1), (address % COMPONENT_BYTES) & !3);
        match (component, offset) {
            (SCS, VTOR) => self.vtor = value & !0x7f,
            (SCS, AIRCR) if value >> 16 == VECTKEY && value & (VECTRESET | SYSRESETREQ) != 0 => self.reset(),
            (SCS, DFSR) => self.dfsr &= !(value & DFSR_BITS),
            (SCS, DHCSR) if value >> 16 == DBGKEY => self.set_debug_control(value),
            (SCS, DCRSR) => self.transfer_register(value),
            (SCS, DCRDR) => self.transfer = value,
            (SCS, DEMCR) => self.demcr = value & DEMCR_BITS,
            // A write without KEY is ignored.
            (FPB, FP_CTRL) if value & FP_KEY != 0 => self.has_breakpoints = value & FP_ENABLE != 0,
            (FPB, FP_COMP..=FP_COMP_LAST) => self.comparators[(offset - FP_COMP) as usize / 4] = value & COMP_BITS,
            _ => {}
        }
        if !self.is_halted && self.control & C_DEBUGEN != 0 && self.is_at_breakpoint() {
            (self.is_halted, self.control, self.dfsr) = (true, self.control | C_HALT, self.dfsr | DFSR_BKPT);
        }
    }

    /// Whether a comparator matches the instruction that is executed next. They compare in the code region alone.
    fn is_at_breakpoint(&self) -> bool {
        let pc = self.registers[PC];
        let halfword = if pc & 2 == 0 { 1 << 30 } else { 1 << 31 };
        let matches = |comparator: &u32| {
            comparator & 1 != 0 && comparator & halfword != 0 && comparator & COMP_ADDRESS == pc & !3
        };
        self.has_breakpoints && pc < SRAM && self.comparators.iter().any(matches)
    }

    /// DHCSR as it is read (C1.6.2); S_RESET_ST is cleared by that.
    fn debug_status(&mut self) -> u32 {
        let mut status = self.control | S_REGRDY;
        if self.is_halted {
            status |= S_HALT;
        }
        if self.was_reset {
            status |= S_RESET_ST;
        }
        self.was_reset = self.is_held;
        status
    }

    fn set_debug_control(&mut self, value: u32) {
        self.control = value & C_DEBUGEN;
        if self.control == 0 {
            self.is_halted = false;
            return;
        }
        self.control |= value & (C_HALT | C_STEP | C_MASKINTS);
        let steps = self.is_halted && self.control & (C_HALT | C_STEP) == C_STEP;
        if steps {
            self.registers[PC] = self.registers[PC].wrapping_add(2);
            // The core halted again.
            self.control |= C_HALT;
        }
        let halts = self.control & C_HALT != 0;
        if steps || halts && !self.is_halted {
            self.dfsr |= DFSR_HALTED;
        }
        self.is_halted = halts;
    }

    /// DCRSR (C1.6.3). A core that runs has no registers to transfer.
    fn transfer_register(&mut self, value: u32) {
        if !self.is_halted {
            return;
        }
        let number = (value & REGSEL) as usize;
        let is_process_stack = self.registers[SPECIAL] & SPSEL != 0;
        let index = if number == SP { if is_process_stack { PSP } else { MSP } } else { number };
        match self.registers.get_mut(index) {
            Some(register) if value & REGWNR != 0 => {
                *register = match index {
                    MSP | PSP => self.transfer & !3,
                    PC => self.transfer & !1,
                    _ => self.transfer,
                };
            }
            Some(register) => self.transfer = *register,
            None if value & REGWNR == 0 => self.transfer = 0,
            None => {}
        }
    }

    pub fn save(&self, to: &mut SavedStateWriter) {
        to.bytes(&self.code);
        to.bytes(&self.sram);
        self.registers.iter().for_each(|register| to.u32(*register));
        [self.control, self.transfer, self.demcr, self.dfsr, self.vtor].into_iter().for_each(|word| to.u32(word));
        self.comparators.iter().for_each(|comparator| to.u32(*comparator));
        [self.is_halted, self.was_reset, self.is_held, self.has_breakpoints]
            .into_iter()
            .for_each(|is_so| to.flag(is_so));
    }

    pub fn restore(from: &mut SavedStateReader<'_>) -> Option<Self> {
        let within = |bytes: &&[u8]| bytes.len() == MEMORY_BYTES;
        let code = from.bytes().filter(within)?.to_vec();
        let sram = from.bytes().filter(within)?.to_vec();
        let mut registers = [0; REGISTERS];
        for register in &mut registers {
            *register = from.u32()?;
        }
        let (control, transfer, demcr) = (from.u32()?, from.u32()?, from.u32()?);
        let (dfsr, vtor) = (from.u32()?, from.u32()?);
        let mut comparators = [0; BREAKPOINTS];
        for comparator in &mut comparators {
            *comparator = from.u32()? & COMP_BITS;
        }
        let (is_halted, was_reset, is_held, has_breakpoints) = (from.flag()?, from.flag()?, from.flag()?, from.flag()?);
        let is_possible = control & !(C_DEBUGEN | C_HALT | C_STEP | C_MASKINTS) == 0
            && (is_halted == (control & C_HALT != 0))
            && (control == 0 || control & C_DEBUGEN != 0);
        let core = Self {
            code,
            sram,
            registers,
            control,
            is_halted,
            was_reset,
            is_held,
            transfer,
            demcr: demcr & DEMCR_BITS,
            dfsr: dfsr & DFSR_BITS,
            vtor,
            has_breakpoints,
            comparators,
        };
        is_possible.then_some(core)
    }
}

/// What the ROM table lists, relative to itself: present, and 32 bits wide (ADIv5.2 table D3-2). Then the end.
const ROM_ENTRIES: [u32; 4] = [entry(SCS), entry(DWT), entry(FPB), 0];

const fn entry(component: u32) -> u32 {
    component.wrapping_sub(ROM_TABLE) | 0b11
}

/// A component's identification registers (ADIv5.2 D1.2): those of ARM's Cortex-M4.
fn identification(component: u32, offset: u32) -> Option<u32> {
    // Part number, and class of the component: generic, or a ROM table.
    let (part, class) = match component {
        SCS => (0x00c, 0xe),
        DWT => (0x002, 0xe),
        FPB => (0x003, 0xe),
        ROM_TABLE => (0x4c4, 0x1),
        _ => return None,
    };
    Some(match offset {
        // MEMTYPE: the bus of the table is that of the system.
        0xfcc if component == ROM_TABLE => 1,
        // PIDR4 to PIDR7: continuation code 4, that of ARM.
        0xfd0 => 4,
        0xfd4..0xfe0 => 0,
        // PIDR0 to PIDR3: part, identity code 0x3b in JEP106, revision 0.
        0xfe0 => part & 0xff,
        0xfe4 => 0xb0 | part >> 8,
        0xfe8 => 0x0b,
        0xfec => 0,
        // CIDR0 to CIDR3.
        0xff0 => 0x0d,
        0xff4 => class << 4,
        0xff8 => 0x05,
        0xffc => 0xb1,
        _ => return None,
    })
}
