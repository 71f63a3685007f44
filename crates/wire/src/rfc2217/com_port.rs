//! Requests and answers of the COM port control option.

/// What the server's commands are above the client's (RFC 2217 section 3).
pub const ANSWER: u8 = 100;

/// A request of the COM port control option (RFC 2217 section 3). Values are as they stand there; 0 is a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComPortRequest {
    /// The server's name is wanted, or the client says its own.
    Signature(Vec<u8>),
    /// The rate, bits a second.
    Rate(u32),
    /// Data bits, 5 to 8.
    DataSize(u8),
    /// 1 none, 2 odd, 3 even, 4 mark, 5 space.
    Parity(u8),
    /// 1 one, 2 two, 3 one and a half.
    StopSize(u8),
    /// Flow control, break, DTR and RTS.
    Control(u8),
    /// Data to the client are to pause, or to go on.
    Suspend(bool),
    /// Which events of the line the client wants to be told of.
    LineStateMask(u8),
    /// Which changes of the control lines the client wants to be told of.
    ModemStateMask(u8),
    /// 1 what was received, 2 what is to be sent, 3 both.
    Purge(u8),
}

/// A notice or an answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComPortReply<'a> {
    /// What the server is called.
    Signature(&'a str),
    /// The rate in use.
    Rate(u32),
    /// The data bits in use.
    DataSize(u8),
    /// The parity in use.
    Parity(u8),
    /// The stop bits in use.
    StopSize(u8),
    /// The state of what was requested.
    Control(u8),
    /// Events of the line.
    LineState(u8),
    /// The control lines, and in the low bits which of them changed.
    ModemState(u8),
    /// The mask in use.
    LineStateMask(u8),
    /// The mask in use.
    ModemStateMask(u8),
    /// What was dropped.
    Purge(u8),
}
