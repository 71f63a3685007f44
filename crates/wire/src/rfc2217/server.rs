//! The server's end of RFC 2217.

use farbus_model::limits::TELNET_OPTION_BYTES_MAX;

use super::com_port::{ANSWER, ComPortReply, ComPortRequest};
use super::telnet::{
    BINARY, COM_PORT, DO, DONT, ECHO, IAC, SUBNEGOTIATION, SUBNEGOTIATION_END, SUPPRESS_GO_AHEAD, TelnetDecoder,
    TelnetItem, TelnetState, WILL, WONT, add_data,
};
use crate::reject::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// What a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rfc2217Event {
    /// Bytes for the line.
    Data(Vec<u8>),
    /// A request of the COM port control option.
    Request(ComPortRequest),
    /// Telnet's own break.
    Break,
    /// The client has agreed on the COM port control option.
    Agreed,
}

/// The state of one option.
#[derive(Clone, Copy, Debug, Default)]
struct TelnetOption {
    /// What this end does, and whether it offered it and has no answer yet.
    ours: bool,
    is_offered: bool,
    /// What the client does, and whether it was requested and is not answered yet.
    theirs: bool,
    is_wanted: bool,
}

/// The server's end of a connection.
#[derive(Debug)]
pub struct Rfc2217Conn {
    decoder: TelnetDecoder,
    has_cr: bool,
    options: [TelnetOption; 4],
    data: Vec<u8>,
    outgoing: Vec<u8>,
}

const OPTIONS: [u8; 4] = [BINARY, ECHO, SUPPRESS_GO_AHEAD, COM_PORT];

impl Rfc2217Conn {
    /// A connection that has just been made: the server's offers are its first bytes.
    pub fn new() -> Self {
        let mut conn = Self {
            decoder: TelnetDecoder::default(),
            has_cr: false,
            options: Default::default(),
            data: Vec::new(),
            outgoing: Vec::new(),
        };
        for (option, state) in OPTIONS.into_iter().zip(&mut conn.options) {
            state.is_offered = true;
            conn.outgoing.extend([IAC, WILL, option]);
            if option != ECHO {
                state.is_wanted = true;
                conn.outgoing.extend([IAC, DO, option]);
            }
        }
        conn
    }

    /// Whether the client uses the COM port control option.
    pub fn is_agreed(&self) -> bool {
        let [.., com_port] = self.options;
        com_port.ours || com_port.theirs
    }

    /// Takes the client's next bytes apart; the events are in their order.
    ///
    /// # Errors
    /// A sub-negotiation is longer than any that there is: the connection has to end.
    pub fn handle_received(&mut self, bytes: &[u8]) -> Result<Vec<Rfc2217Event>, ProtocolViolation> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            let plain = if self.is_plain() { self.decoder.data_before_command(rest) } else { 0 };
            if plain > 0 {
                self.data.extend_from_slice(&rest[..plain]);
                rest = &rest[plain..];
                continue;
            }
            rest = behind;
            if let Some(item) = self.decoder.take(byte)? {
                self.handle(item, &mut events);
            }
        }
        self.end_data(&mut events);
        Ok(events)
    }

    /// What is to be sent to the client.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// This many bytes of it were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.outgoing.drain(..count);
    }

    /// Sends what the line brought.
    pub fn send(&mut self, data: &[u8]) {
        add_data(&mut self.outgoing, data);
    }

    /// Sends an answer or a notice; a client that does not use the option is sent none.
    pub fn reply(&mut self, reply: ComPortReply<'_>) {
        if !self.is_agreed() {
            return;
        }
        let (command, value) = match reply {
            ComPortReply::Signature(name) => (0, name.as_bytes().to_vec()),
            ComPortReply::Rate(rate) => (1, rate.to_be_bytes().to_vec()),
            ComPortReply::DataSize(value) => (2, vec![value]),
            ComPortReply::Parity(value) => (3, vec![value]),
            ComPortReply::StopSize(value) => (4, vec![value]),
            ComPortReply::Control(value) => (5, vec![value]),
            ComPortReply::LineState(value) => (6, vec![value]),
            ComPortReply::ModemState(value) => (7, vec![value]),
            ComPortReply::LineStateMask(value) => (10, vec![value]),
            ComPortReply::ModemStateMask(value) => (11, vec![value]),
            ComPortReply::Purge(value) => (12, vec![value]),
        };
        self.outgoing.extend([IAC, SUBNEGOTIATION, COM_PORT, ANSWER + command]);
        self.send(&value);
        self.outgoing.extend([IAC, SUBNEGOTIATION_END]);
    }

    /// Writes its state for another process.
    pub fn save(&self, to: &mut SnapshotWriter) {
        let (state, verb) = self.decoder.state().numbers();
        to.u8(state);
        to.u8(verb);
        to.flag(self.has_cr);
        to.bytes(self.decoder.subnegotiation());
        for option in &self.options {
            [option.ours, option.is_offered, option.theirs, option.is_wanted]
                .into_iter()
                .for_each(|flag| to.flag(flag));
        }
        to.bytes(&self.outgoing);
    }

    /// Restores what [`Rfc2217Conn::save`] wrote.
    ///
    /// # Errors
    /// The snapshot is invalid.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (state, verb) = (from.u8("telnet")?, from.u8("verb")?);
        let state = TelnetState::of_numbers(state, verb)
            .ok_or_else(|| ProtocolViolation::new("telnet", state.into(), "there are states 0 to 4"))?;
        let (has_cr, subnegotiation) = (from.flag("carriage return")?, from.bytes("sub-negotiation")?.to_vec());
        if subnegotiation.len() > TELNET_OPTION_BYTES_MAX {
            let length = subnegotiation.len() as u64;
            return Err(ProtocolViolation::new("sub-negotiation", length, "no option has as many bytes"));
        }
        let mut options = [TelnetOption::default(); 4];
        for option in &mut options {
            let mut flag = || from.flag("option");
            *option = TelnetOption { ours: flag()?, is_offered: flag()?, theirs: flag()?, is_wanted: flag()? };
        }
        let outgoing = from.bytes("outgoing")?.to_vec();
        let decoder = TelnetDecoder::with(state, subnegotiation);
        Ok(Self { decoder, has_cr, options, data: Vec::new(), outgoing })
    }

    /// Whether a CR stands for itself whatever follows it.
    fn is_plain(&self) -> bool {
        let [binary, ..] = self.options;
        binary.theirs || self.is_agreed()
    }

    fn handle(&mut self, item: TelnetItem, events: &mut Vec<Rfc2217Event>) {
        if let TelnetItem::Data(byte) = item {
            let is_padding = std::mem::replace(&mut self.has_cr, byte == b'\r') && byte == 0 && !self.is_plain();
            if !is_padding {
                self.data.push(byte);
            }
            return;
        }
        self.end_data(events);
        match item {
            TelnetItem::Option(verb, option) => self.negotiate(verb, option, events),
            TelnetItem::Subnegotiation => self.end_subnegotiation(events),
            TelnetItem::Break => events.push(Rfc2217Event::Break),
            TelnetItem::Data(_) => {}
        }
    }

    /// A client that makes a request uses the option: pyserial answers an offer that comes before its own with nothing.
    fn end_subnegotiation(&mut self, events: &mut Vec<Rfc2217Event>) {
        let Some(request) = request(self.decoder.subnegotiation()) else { return };
        let was_agreed = self.is_agreed();
        let [.., com_port] = &mut self.options;
        com_port.theirs = true;
        if !was_agreed {
            events.push(Rfc2217Event::Agreed);
        }
        events.push(Rfc2217Event::Request(request));
    }

    fn end_data(&mut self, events: &mut Vec<Rfc2217Event>) {
        if !self.data.is_empty() {
            events.push(Rfc2217Event::Data(std::mem::take(&mut self.data)));
        }
    }

    /// Answers what changes something; what only confirms is not answered, so that two ends never confirm each other
    /// for ever (RFC 1143).
    fn negotiate(&mut self, verb: u8, option: u8, events: &mut Vec<Rfc2217Event>) {
        let was_agreed = self.is_agreed();
        let Some(at) = OPTIONS.iter().position(|known| *known == option) else {
            match verb {
                WILL => self.outgoing.extend([IAC, DONT, option]),
                DO => self.outgoing.extend([IAC, WONT, option]),
                _ => {}
            }
            return;
        };
        let state = &mut self.options[at];
        let answer = match verb {
            DO | DONT => {
                let (was, is_answer) = (state.ours, std::mem::take(&mut state.is_offered));
                state.ours = verb == DO;
                (was != state.ours && !is_answer).then_some(if verb == DO { WILL } else { WONT })
            }
            // The client's echo of a port's output would go back to the port.
            _ if option == ECHO => (verb == WILL).then_some(DONT),
            _ => {
                let (was, is_answer) = (state.theirs, std::mem::take(&mut state.is_wanted));
                state.theirs = verb == WILL;
                (was != state.theirs && !is_answer).then_some(if verb == WILL { DO } else { DONT })
            }
        };
        if let Some(answer) = answer {
            self.outgoing.extend([IAC, answer, option]);
        }
        if !was_agreed && self.is_agreed() {
            events.push(Rfc2217Event::Agreed);
        }
    }
}

impl Default for Rfc2217Conn {
    fn default() -> Self {
        Self::new()
    }
}

/// The request in a sub-negotiation, if it is one.
fn request(bytes: &[u8]) -> Option<ComPortRequest> {
    Some(match *bytes {
        [COM_PORT, 0, ref name @ ..] => ComPortRequest::Signature(name.to_vec()),
        [COM_PORT, 1, a, b, c, d, ..] => ComPortRequest::Rate(u32::from_be_bytes([a, b, c, d])),
        [COM_PORT, 2, value, ..] => ComPortRequest::DataSize(value),
        [COM_PORT, 3, value, ..] => ComPortRequest::Parity(value),
        [COM_PORT, 4, value, ..] => ComPortRequest::StopSize(value),
        [COM_PORT, 5, value, ..] => ComPortRequest::Control(value),
        [COM_PORT, 8, ..] => ComPortRequest::Suspend(true),
        [COM_PORT, 9, ..] => ComPortRequest::Suspend(false),
        [COM_PORT, 10, value, ..] => ComPortRequest::LineStateMask(value),
        [COM_PORT, 11, value, ..] => ComPortRequest::ModemStateMask(value),
        [COM_PORT, 12, value, ..] => ComPortRequest::Purge(value),
        _ => return None,
    })
}
