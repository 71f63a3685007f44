//! The client's end of RFC 2217: a program that uses a serial port over TCP, whatever the server is.

use super::com_port::{ANSWER, ComPortRequest};
use super::telnet::{
    BINARY, COM_PORT, DO, DONT, ECHO, IAC, SUBNEGOTIATION, SUBNEGOTIATION_END, SUPPRESS_GO_AHEAD, TelnetDecoder,
    TelnetItem, WILL, WONT, add_data,
};
use crate::reject::ProtocolViolation;

/// What the server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rfc2217ClientEvent {
    /// Bytes from the line.
    Data(Vec<u8>),
    /// The rate in use, bits a second.
    Rate(u32),
    /// The incoming lines: DCD, RI, DSR, CTS from the highest bit on, and in the low bits which of them changed.
    ModemState(u8),
    /// The server does not speak RFC 2217: bytes alone pass.
    Declined,
}

/// The client's end of a connection.
#[derive(Debug)]
pub struct Rfc2217Client {
    decoder: TelnetDecoder,
    /// Which of [`OPTIONS`] the server was let or asked to do.
    theirs: [bool; OPTIONS.len()],
    outgoing: Vec<u8>,
}

/// What a client has the server do, and does itself but for the echo, which is the device's.
const OPTIONS: [u8; 4] = [BINARY, SUPPRESS_GO_AHEAD, COM_PORT, ECHO];

impl Default for Rfc2217Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Rfc2217Client {
    /// A connection that has just been made: the client's offers are its first bytes.
    pub fn new() -> Self {
        let offers = [[IAC, WILL, BINARY], [IAC, DO, BINARY], [IAC, WILL, SUPPRESS_GO_AHEAD]];
        let others = [[IAC, DO, SUPPRESS_GO_AHEAD], [IAC, WILL, COM_PORT]];
        let outgoing = [offers.concat(), others.concat()].concat();
        Self { decoder: TelnetDecoder::default(), theirs: [true, true, false, false], outgoing }
    }

    /// Takes the server's next bytes apart; the events are in their order.
    ///
    /// # Errors
    /// A sub-negotiation is longer than any that there is: the connection has to end.
    pub fn handle_received(&mut self, bytes: &[u8]) -> Result<Vec<Rfc2217ClientEvent>, ProtocolViolation> {
        let (mut events, mut data) = (Vec::new(), Vec::new());
        for byte in bytes {
            let event = match self.decoder.take(*byte)? {
                Some(TelnetItem::Data(byte)) => {
                    data.push(byte);
                    None
                }
                Some(TelnetItem::Option(verb, option)) => self.negotiate(verb, option),
                Some(TelnetItem::Subnegotiation) => answer(self.decoder.subnegotiation()),
                Some(TelnetItem::Break) | None => None,
            };
            if let Some(event) = event {
                end_data(&mut data, &mut events);
                events.push(event);
            }
        }
        end_data(&mut data, &mut events);
        Ok(events)
    }

    /// What is to be sent to the server.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// This many bytes of it were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.outgoing.drain(..count);
    }

    /// Sends bytes to the line.
    pub fn send(&mut self, data: &[u8]) {
        add_data(&mut self.outgoing, data);
    }

    /// Sends a request; it takes effect behind the bytes that were sent before.
    pub fn request(&mut self, request: &ComPortRequest) {
        let (command, value) = match request {
            ComPortRequest::Signature(name) => (0, name.clone()),
            ComPortRequest::Rate(rate) => (1, rate.to_be_bytes().to_vec()),
            ComPortRequest::DataSize(value) => (2, vec![*value]),
            ComPortRequest::Parity(value) => (3, vec![*value]),
            ComPortRequest::StopSize(value) => (4, vec![*value]),
            ComPortRequest::Control(value) => (5, vec![*value]),
            ComPortRequest::Suspend(is_suspended) => (if *is_suspended { 8 } else { 9 }, Vec::new()),
            ComPortRequest::LineStateMask(value) => (10, vec![*value]),
            ComPortRequest::ModemStateMask(value) => (11, vec![*value]),
            ComPortRequest::Purge(value) => (12, vec![*value]),
        };
        self.outgoing.extend([IAC, SUBNEGOTIATION, COM_PORT, command]);
        add_data(&mut self.outgoing, &value);
        self.outgoing.extend([IAC, SUBNEGOTIATION_END]);
    }

    /// Answers offers and requests of options that it has not made itself, once each (RFC 1143).
    fn negotiate(&mut self, verb: u8, option: u8) -> Option<Rfc2217ClientEvent> {
        match (verb, OPTIONS.iter().position(|known| *known == option)) {
            (WILL, Some(at)) => {
                if !std::mem::replace(&mut self.theirs[at], true) {
                    self.outgoing.extend([IAC, DO, option]);
                }
                None
            }
            (DONT, Some(_)) if option == COM_PORT => Some(Rfc2217ClientEvent::Declined),
            (WILL, None) => {
                self.outgoing.extend([IAC, DONT, option]);
                None
            }
            (DO, None) => {
                self.outgoing.extend([IAC, WONT, option]);
                None
            }
            // A client that echoes would send the line what came from it.
            (DO, Some(_)) if option == ECHO => {
                self.outgoing.extend([IAC, WONT, option]);
                None
            }
            _ => None,
        }
    }
}

fn end_data(data: &mut Vec<u8>, events: &mut Vec<Rfc2217ClientEvent>) {
    if !data.is_empty() {
        events.push(Rfc2217ClientEvent::Data(std::mem::take(data)));
    }
}

/// What a sub-negotiation of the server says, if it is of use.
fn answer(bytes: &[u8]) -> Option<Rfc2217ClientEvent> {
    const RATE: u8 = ANSWER + 1;
    const MODEM_STATE: u8 = ANSWER + 7;
    Some(match *bytes {
        [COM_PORT, RATE, a, b, c, d, ..] => Rfc2217ClientEvent::Rate(u32::from_be_bytes([a, b, c, d])),
        [COM_PORT, MODEM_STATE, value, ..] => Rfc2217ClientEvent::ModemState(value),
        _ => return None,
    })
}
