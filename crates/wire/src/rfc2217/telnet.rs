//! Telnet's bytes, which both ends of RFC 2217 take apart the same way (RFC 854, RFC 855).

use farbus_model::limits::TELNET_OPTION_BYTES_MAX;

use crate::reject::ProtocolViolation;

/// Telnet's commands (RFC 854).
pub const IAC: u8 = 255;
pub const DONT: u8 = 254;
pub const DO: u8 = 253;
pub const WONT: u8 = 252;
pub const WILL: u8 = 251;
pub const SUBNEGOTIATION: u8 = 250;
pub const BREAK: u8 = 243;
pub const SUBNEGOTIATION_END: u8 = 240;
/// Options: RFC 856, 857, 858, 2217.
pub const BINARY: u8 = 0;
pub const ECHO: u8 = 1;
pub const SUPPRESS_GO_AHEAD: u8 = 3;
pub const COM_PORT: u8 = 44;

/// Where the decoder is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TelnetState {
    #[default]
    Data,
    Command,
    /// An option follows this verb.
    Option(u8),
    Subnegotiation,
    SubnegotiationCommand,
}

impl TelnetState {
    /// Its number in a snapshot, and the verb.
    pub fn numbers(self) -> (u8, u8) {
        match self {
            TelnetState::Data => (0, 0),
            TelnetState::Command => (1, 0),
            TelnetState::Option(verb) => (2, verb),
            TelnetState::Subnegotiation => (3, 0),
            TelnetState::SubnegotiationCommand => (4, 0),
        }
    }

    /// The state of a number and a verb.
    pub fn of_numbers(number: u8, verb: u8) -> Option<Self> {
        Some(match number {
            0 => TelnetState::Data,
            1 => TelnetState::Command,
            2 => TelnetState::Option(verb),
            3 => TelnetState::Subnegotiation,
            4 => TelnetState::SubnegotiationCommand,
            _ => return None,
        })
    }
}

/// What a byte completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelnetItem {
    Data(u8),
    /// WILL, WONT, DO or DONT, and the option.
    Option(u8, u8),
    /// It stands in [`TelnetDecoder::subnegotiation`].
    Subnegotiation,
    Break,
}

/// Takes what the other end sends apart.
#[derive(Debug, Default)]
pub struct TelnetDecoder {
    state: TelnetState,
    subnegotiation: Vec<u8>,
}

impl TelnetDecoder {
    /// One that another process has begun with.
    pub fn with(state: TelnetState, subnegotiation: Vec<u8>) -> Self {
        Self { state, subnegotiation }
    }

    pub fn state(&self) -> TelnetState {
        self.state
    }

    /// The last sub-negotiation, or as much of it as has come.
    pub fn subnegotiation(&self) -> &[u8] {
        &self.subnegotiation
    }

    /// How many of these bytes are data as they stand.
    pub fn data_before_command(&self, bytes: &[u8]) -> usize {
        let is_data = self.state == TelnetState::Data;
        if is_data { bytes.iter().position(|byte| *byte == IAC).unwrap_or(bytes.len()) } else { 0 }
    }

    /// Takes the next byte.
    ///
    /// # Errors
    /// A sub-negotiation is longer than any that there is.
    pub fn take(&mut self, byte: u8) -> Result<Option<TelnetItem>, ProtocolViolation> {
        let (state, item) = match (self.state, byte) {
            (TelnetState::Data, IAC) => (TelnetState::Command, None),
            (TelnetState::Data, _) | (TelnetState::Command, IAC) => (TelnetState::Data, Some(TelnetItem::Data(byte))),
            (TelnetState::Command, WILL | WONT | DO | DONT) => (TelnetState::Option(byte), None),
            (TelnetState::Command, SUBNEGOTIATION) => {
                self.subnegotiation.clear();
                (TelnetState::Subnegotiation, None)
            }
            (TelnetState::Command, BREAK) => (TelnetState::Data, Some(TelnetItem::Break)),
            // No operation, are you there, and the like: nothing that a serial port has.
            (TelnetState::Command, _) => (TelnetState::Data, None),
            (TelnetState::Option(verb), option) => (TelnetState::Data, Some(TelnetItem::Option(verb, option))),
            (TelnetState::Subnegotiation, IAC) => (TelnetState::SubnegotiationCommand, None),
            (TelnetState::Subnegotiation, _) | (TelnetState::SubnegotiationCommand, IAC) => {
                if self.subnegotiation.len() >= TELNET_OPTION_BYTES_MAX {
                    let length = self.subnegotiation.len() as u64 + 1;
                    return Err(ProtocolViolation::new("sub-negotiation", length, "no option has as many bytes"));
                }
                self.subnegotiation.push(byte);
                (TelnetState::Subnegotiation, None)
            }
            (TelnetState::SubnegotiationCommand, SUBNEGOTIATION_END) => {
                (TelnetState::Data, Some(TelnetItem::Subnegotiation))
            }
            (TelnetState::SubnegotiationCommand, _) => (TelnetState::Data, None),
        };
        self.state = state;
        Ok(item)
    }
}

/// Adds data to what is sent.
pub fn add_data(to: &mut Vec<u8>, data: &[u8]) {
    for piece in data.split_inclusive(|byte| *byte == IAC) {
        to.extend_from_slice(piece);
        if piece.last() == Some(&IAC) {
            to.push(IAC);
        }
    }
}
