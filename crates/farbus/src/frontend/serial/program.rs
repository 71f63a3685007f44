//! What one program has sent and is to be sent.

use std::collections::VecDeque;
use std::io;

use farbus_host::serial::{LineChange, LineCoding, LineFaults, ModemState, SerialPort};
use farbus_model::{Instant, Payload};
use farbus_session::ProtocolViolation;
use farbus_session::rfc2217::{ComPortReply, ComPortRequest, Rfc2217Conn, Rfc2217Event};
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use tracing::debug;

use super::com_port::{LineSettings, line_state, modem_state};
use super::program_link::{ProgramLink, ProgramReceipt};

/// Bytes for the program that it has not taken before no more are read from the port.
const UNSENT_BYTES_MAX: usize = 64 << 10;
/// The name by which the server answers SIGNATURE.
const SIGNATURE: &str = concat!("farbus ", env!("CARGO_PKG_VERSION"));

/// A program that is connected, or those that have the terminal open.
pub struct SerialProgram {
    pub link: ProgramLink,
    /// RFC 2217, or bare bytes.
    telnet: Option<Rfc2217Conn>,
    /// Bytes for a program that is sent bare bytes.
    unsent: Vec<u8>,
    /// What it sent and the port has not taken.
    waiting: VecDeque<Rfc2217Event>,
    /// Answers that wait until the device has the change of this number.
    replies: VecDeque<(u64, ComPortReply<'static>)>,
    settings: LineSettings,
    modem: ModemState,
    is_modem_told: bool,
    line_mask: u8,
    modem_mask: u8,
    is_suspended: bool,
    /// It sends nothing more.
    has_ended: bool,
}

impl SerialProgram {
    /// A program that has just connected; its line is raised, as opening a serial port raises it.
    pub fn new(link: ProgramLink, speaks_telnet: bool, port: &mut SerialPort) -> Self {
        let coding = link.first_coding(port.coding());
        let settings = LineSettings { coding, dtr: true, rts: true, ..LineSettings::default() };
        port.change(LineChange::Coding(coding));
        port.change(LineChange::ControlLines { dtr: true, rts: true });
        Self::with(link, speaks_telnet.then(Rfc2217Conn::new), settings)
    }

    /// A program that another process served.
    pub fn with(link: ProgramLink, telnet: Option<Rfc2217Conn>, settings: LineSettings) -> Self {
        Self {
            link,
            telnet,
            unsent: Vec::new(),
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            settings,
            modem: ModemState::default(),
            is_modem_told: false,
            line_mask: 0,
            modem_mask: u8::MAX,
            is_suspended: false,
            has_ended: false,
        }
    }

    /// Whether to receive from it: what it sent before has been taken.
    pub fn wants_input(&self) -> bool {
        let has_room = !self.link.is_one_for_both_ways() || self.unsent_bytes() < UNSENT_BYTES_MAX;
        self.waiting.is_empty() && !self.has_ended && has_room
    }

    /// Whether it sends nothing more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether it has left and nothing of it waits for the port.
    pub fn is_over(&self) -> bool {
        self.has_ended && self.waiting.is_empty()
    }

    /// Whether the port has taken all that was received from it.
    pub fn is_passed_on(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether something waits to be sent to it.
    pub fn has_unsent(&self) -> bool {
        self.unsent_bytes() > 0
    }

    fn unsent_bytes(&self) -> usize {
        self.telnet.as_ref().map_or(self.unsent.len(), |telnet| telnet.outgoing().len())
    }

    /// Receives once; `false`: there was nothing.
    ///
    /// # Errors
    /// It broke the protocol.
    pub fn receive(&mut self) -> Result<bool, ProtocolViolation> {
        let telnet = &mut self.telnet;
        let parse = |bytes: &[u8]| match telnet {
            Some(telnet) => telnet.handle_received(bytes),
            None => Ok(vec![Rfc2217Event::Data(bytes.to_vec())]),
        };
        let receipt = self.link.receive(&mut self.waiting, parse)?;
        self.has_ended |= receipt == ProgramReceipt::End;
        Ok(receipt != ProgramReceipt::Nothing)
    }

    /// When [`SerialProgram::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.link.poll_timeout(self.waiting.len()).filter(|_| !self.has_ended)
    }

    /// Called when the moment of [`SerialProgram::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let bytes = |event: &Rfc2217Event| if let Rfc2217Event::Data(data) = event { data.len() } else { 0 };
        let waiting = self.waiting.iter().map(bytes).sum();
        if let Err(error) = self.link.look(now, waiting, &mut self.waiting) {
            debug!(%error, "the settings of a terminal cannot be read");
        }
    }

    /// Passes on to the port what it takes; returns how many bytes that were.
    pub fn pass_on(&mut self, now: Instant, port: &mut SerialPort) -> usize {
        let mut count = 0;
        // A device far away, or one that does not answer, takes few changes; a program may send many.
        while !port.is_full_of_changes()
            && let Some(event) = self.waiting.pop_front()
        {
            match event {
                Rfc2217Event::Data(mut data) => {
                    let taken = port.write(&data);
                    count += taken;
                    if taken < data.len() {
                        data.drain(..taken);
                        self.waiting.push_front(Rfc2217Event::Data(data));
                        break;
                    }
                }
                Rfc2217Event::Break => {
                    port.change(LineChange::Break(true));
                    port.change(LineChange::Break(false));
                }
                Rfc2217Event::Agreed => port.watch_modem(now, self.modem_mask > 0),
                Rfc2217Event::Request(request) => self.carry_out(now, request, port),
            }
        }
        count
    }

    fn carry_out(&mut self, now: Instant, request: ComPortRequest, port: &mut SerialPort) {
        let before = self.settings;
        let (settings, reply): (LineSettings, fn(&LineSettings) -> ComPortReply<'static>) = match request {
            ComPortRequest::Rate(rate) => (before.with_rate(rate), |settings| ComPortReply::Rate(settings.coding.rate)),
            ComPortRequest::DataSize(bits) => {
                (before.with_data_bits(bits), |settings| ComPortReply::DataSize(settings.coding.data_bits))
            }
            ComPortRequest::Parity(number) => {
                (before.with_parity(number), |settings| ComPortReply::Parity(settings.parity_number()))
            }
            ComPortRequest::StopSize(number) => {
                (before.with_stop_bits(number), |settings| ComPortReply::StopSize(settings.stop_number()))
            }
            ComPortRequest::Control(number) => {
                self.settings = before.with_control(number);
                let change = self.change(before, port);
                let reply = self.settings.control_number(number).map(ComPortReply::Control);
                self.replies.extend(reply.map(|reply| (change, reply)));
                return;
            }
            ComPortRequest::Signature(name) => {
                if name.is_empty() {
                    self.replies.push_back((0, ComPortReply::Signature(SIGNATURE)));
                }
                return;
            }
            ComPortRequest::Suspend(is_suspended) => {
                self.is_suspended = is_suspended;
                return;
            }
            ComPortRequest::LineStateMask(mask) => {
                self.line_mask = mask;
                self.replies.push_back((0, ComPortReply::LineStateMask(mask)));
                return;
            }
            ComPortRequest::ModemStateMask(mask) => {
                (self.modem_mask, self.is_modem_told) = (mask, false);
                port.watch_modem(now, mask > 0);
                self.replies.push_back((0, ComPortReply::ModemStateMask(mask)));
                return;
            }
            ComPortRequest::Purge(what) => {
                if what & 1 != 0 {
                    self.unsent.clear();
                }
                let purge = LineChange::Purge { received: what & 1 != 0, unsent: what & 2 != 0 };
                let change = port.change(purge);
                self.replies.push_back((change, ComPortReply::Purge(what)));
                return;
            }
        };
        self.settings = settings;
        let change = self.change(before, port);
        self.replies.push_back((change, reply(&self.settings)));
    }

    /// Changes the line to what the settings are now; returns the number of the change to wait for, 0 if there is none.
    fn change(&mut self, before: LineSettings, port: &mut SerialPort) -> u64 {
        let LineSettings { coding, dtr, rts, has_break, flow } = self.settings;
        let changes = [
            (coding != before.coding).then_some(LineChange::Coding(coding)),
            ((dtr, rts) != (before.dtr, before.rts)).then_some(LineChange::ControlLines { dtr, rts }),
            (has_break != before.has_break).then_some(LineChange::Break(has_break)),
            (flow != before.flow).then_some(LineChange::Flow(flow)),
        ];
        changes.into_iter().flatten().map(|change| port.change(change)).last().unwrap_or(0)
    }

    /// Takes what the line brought, and what is to be said of it; returns how many bytes that were.
    pub fn take_from(&mut self, port: &mut SerialPort) -> usize {
        self.answer(port);
        self.tell_lines(port.modem(), port.take_faults());
        let mut count = 0;
        while !self.is_suspended
            && self.unsent_bytes() < UNSENT_BYTES_MAX
            && let Some(data) = port.read()
        {
            count += data.len();
            self.add(&data);
        }
        count
    }

    /// Answers what the device has carried out.
    pub fn answer(&mut self, port: &SerialPort) {
        let done = port.changes_done();
        while let Some((_, reply)) = self.replies.pop_front_if(|(change, _)| *change <= done) {
            if let Some(telnet) = &mut self.telnet {
                telnet.reply(reply);
            }
        }
    }

    fn add(&mut self, data: &Payload) {
        for run in data.runs() {
            match &mut self.telnet {
                Some(telnet) => telnet.send(run),
                None => self.unsent.extend_from_slice(run),
            }
        }
    }

    fn tell_lines(&mut self, modem: ModemState, faults: LineFaults) {
        let Some(telnet) = self.telnet.as_mut().filter(|telnet| telnet.is_agreed()) else { return };
        let before = if self.is_modem_told { self.modem } else { modem };
        let state = modem_state(modem, before);
        let is_wanted = state & self.modem_mask & 0x0f != 0 || !self.is_modem_told;
        if is_wanted && self.modem_mask > 0 {
            telnet.reply(ComPortReply::ModemState(state & self.modem_mask));
        }
        (self.modem, self.is_modem_told) = (modem, true);
        let state = line_state(faults) & self.line_mask;
        if state > 0 {
            telnet.reply(ComPortReply::LineState(state));
        }
    }

    /// Sends what its socket takes.
    ///
    /// # Errors
    /// The system's: it is gone.
    pub fn send(&mut self) -> io::Result<()> {
        while self.has_unsent() {
            let bytes = self.telnet.as_ref().map_or(&*self.unsent, Rfc2217Conn::outgoing);
            let Some(count) = self.link.send(bytes)? else { break };
            match &mut self.telnet {
                Some(telnet) => telnet.handle_transmitted(count),
                None => drop(self.unsent.drain(..count)),
            }
        }
        Ok(())
    }

    /// Writes its state for another process.
    pub fn save(&self, to: &mut SnapshotWriter) {
        let Self { settings, .. } = self;
        to.bytes(self.link.peer().as_bytes());
        for flag in [settings.dtr, settings.rts, settings.has_break, self.is_suspended, self.has_ended] {
            to.flag(flag);
        }
        to.u8(settings.control_number(0).unwrap_or(1));
        to.u8(self.line_mask);
        to.u8(self.modem_mask);
        to.bytes(&self.unsent);
        to.flag(self.telnet.is_some());
        if let Some(telnet) = &self.telnet {
            telnet.save(to);
        }
    }

    /// A program that another process served, whose port has this rate and format. `link` makes its link of its name.
    ///
    /// # Errors
    /// The snapshot is invalid.
    pub fn restore(
        link: impl FnOnce(&str) -> io::Result<ProgramLink>,
        coding: LineCoding,
        from: &mut FieldReader<'_>,
    ) -> io::Result<Self> {
        let wrong = |reject: ProtocolViolation| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let peer = String::from_utf8_lossy(from.bytes("program's name").map_err(wrong)?).into_owned();
        let link = link(&peer)?;
        let mut flag = |field| from.flag(field).map_err(wrong);
        let (dtr, rts, has_break) = (flag("DTR")?, flag("RTS")?, flag("break")?);
        let (is_suspended, has_ended) = (flag("suspended")?, flag("ended")?);
        let mut number = |field| from.u8(field).map_err(wrong);
        let (flow, line_mask, modem_mask) = (number("flow control")?, number("line mask")?, number("modem mask")?);
        let settings = LineSettings { coding, dtr, rts, has_break, ..LineSettings::default() }.with_control(flow);
        let unsent = from.bytes("unsent").map_err(wrong)?.to_vec();
        let telnet = match from.flag("telnet").map_err(wrong)? {
            true => Some(Rfc2217Conn::restore(from).map_err(wrong)?),
            false => None,
        };
        let program = Self::with(link, telnet, settings);
        Ok(Self { unsent, line_mask, modem_mask, is_suspended, has_ended, ..program })
    }
}
