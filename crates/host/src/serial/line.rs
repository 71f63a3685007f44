//! What a serial line has: its rate and format, its control lines, and what changes of them.

/// The rate and the format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCoding {
    /// Bits a second.
    pub rate: u32,
    /// Data bits of a character, 5 to 8.
    pub data_bits: u8,
    /// The parity bit.
    pub parity: Parity,
    /// The stop bits.
    pub stop_bits: StopBits,
}

impl Default for LineCoding {
    /// 9600 baud, 8 data bits, no parity, one stop bit: what a serial line has when nobody has set it.
    fn default() -> Self {
        Self { rate: 9600, data_bits: 8, parity: Parity::None, stop_bits: StopBits::One }
    }
}

/// The parity bit of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Parity {
    #[default]
    None,
    Odd,
    Even,
    Mark,
    Space,
}

/// The stop bits of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum StopBits {
    #[default]
    One,
    OneAndAHalf,
    Two,
}

/// Who may stop the other's sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowControl {
    /// Both send whenever they have something.
    #[default]
    None,
    /// Both, by RTS and CTS.
    Hardware,
    /// Both, by XON (0x11) and XOFF (0x13).
    Software,
}

/// A change of the line. Changes reach the device in the order in which they were made, between the bytes that were
/// written before and after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineChange {
    /// The rate and the format.
    Coding(LineCoding),
    /// The outgoing control lines.
    ControlLines {
        /// Data terminal ready.
        dtr: bool,
        /// Request to send.
        rts: bool,
    },
    /// A break begins (`true`) or ends.
    Break(bool),
    /// Who may stop the other's sending from now on.
    Flow(FlowControl),
    /// What the chip holds and has not passed on is dropped.
    Purge {
        /// What it received from the line.
        received: bool,
        /// What it is to send on the line.
        unsent: bool,
    },
}

/// The incoming control lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModemState {
    /// Clear to send. A CDC-ACM function has no such line: it is always clear.
    pub cts: bool,
    /// Data set ready.
    pub dsr: bool,
    /// Ring indicator: the modem is being called.
    pub ri: bool,
    /// Data carrier detect.
    pub dcd: bool,
}

/// What went wrong on the line, or was received there besides characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFaults {
    /// The chip had no room for a character.
    pub overrun: bool,
    /// A character had the wrong parity.
    pub parity: bool,
    /// A character had no stop bit.
    pub framing: bool,
    /// The other end sent a break.
    pub has_break: bool,
}

impl LineFaults {
    /// What is in either of the two.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            overrun: self.overrun || other.overrun,
            parity: self.parity || other.parity,
            framing: self.framing || other.framing,
            has_break: self.has_break || other.has_break,
        }
    }

    /// Whether there is any.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}
