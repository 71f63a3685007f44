//! The engine between a remote serial port and programs: one thread, one program at a time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_host::driver::IdSource;
use farbus_host::serial::port::first_port;
use farbus_host::serial::{LineChange, SerialError, SerialPort};
use farbus_io_linux::sys::tcp_owner::PeerOwner;
use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, PollInterest, wait};
use farbus_io_net::saving::{SaveDecision, SaveRequest, SaveRequester, SavedAttachment};
use farbus_model::{BufferPool, CompletionQueue, Device, Instant, SessionLimits};
use farbus_session::ExporterCounters;
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use tracing::{debug, info, warn};

use super::program::SerialProgram;
use super::program_link::{ProgramLink, SerialListener};
use crate::broker::SystemAccess;
use crate::common::networks::IpNetwork;
use crate::common::socket_place::ConnectionOrigin;
use crate::frontend::open_users::{ConnectedProcesses, OpenClients};
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::{AttachmentEnd, StopSignal};
use crate::importer::client::{ClientError, local};
use crate::link::meters::{EngineMeters, SyscallCounts};

/// Kind of its snapshots.
pub const SNAPSHOT_KIND: u16 = 17;
/// How long the port may take to release its line when the attachment ends.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long what is under way may take to end before a snapshot: less than the asking thread waits.
const REST_TIME_MAX: Duration = Duration::from_secs(4);
/// How long a device that is gone may take to end its session.
const GONE_TIME_MAX: Duration = Duration::from_secs(5);
/// Receives from a program, when another one comes, to learn whether it has left: a mebibyte.
const LAST_RECEIVES_MAX: u32 = 64;
/// What a program that comes second is sent before its connection ends, as ser2net has it.
const BUSY: &[u8] = b"Port already in use\r\n";

/// The device, its port, and the program that uses it.
pub struct SerialRelay {
    pub device: FarDevice,
    pub listener: SerialListener,
    pub speaks_telnet: bool,
    /// Networks whose hosts may connect besides this machine's owner and root.
    pub allowed: Vec<IpNetwork>,
    pub system: SystemAccess,
    port: SerialPort,
    /// When the port had failed first.
    failed_at: Option<Instant>,
    program: Option<SerialProgram>,
    done: CompletionQueue,
    clock: BoottimeClock,
    counters: ExporterCounters,
    calls: SyscallCounts,
    /// How many programs are connected, for its owner.
    pub open: OpenClients,
    /// The program's process, for its owner.
    pub connected: ConnectedProcesses,
}

impl SerialRelay {
    /// A relay to `device`, which is not configured yet.
    ///
    /// # Errors
    /// The device has no serial port that farbus can drive.
    pub fn new(
        device: FarDevice,
        listener: SerialListener,
        speaks_telnet: bool,
        allowed: Vec<IpNetwork>,
        system: SystemAccess,
    ) -> Result<Self, (SerialError, SerialListener)> {
        match first_port(device.descriptors()) {
            Ok(at) => {
                let port = SerialPort::new(IdSource::new(), device.descriptors(), at);
                Ok(Self::over(device, listener, port, (speaks_telnet, allowed, system)))
            }
            Err(error) => Err((error, listener)),
        }
    }

    fn over(
        device: FarDevice,
        listener: SerialListener,
        mut port: SerialPort,
        (speaks_telnet, allowed, system): (bool, Vec<IpNetwork>, SystemAccess),
    ) -> Self {
        let clock = device.clock();
        // Nothing is fetched from the line before a program is there, as from a port that nobody has opened.
        port.rest(clock.now());
        Self {
            device,
            listener,
            speaks_telnet,
            allowed,
            system,
            port,
            failed_at: None,
            program: None,
            done: CompletionQueue::new(BufferPool::new(SessionLimits::RELAYED.pool_bytes)),
            clock,
            counters: ExporterCounters::default(),
            calls: SyscallCounts::default(),
            open: OpenClients::default(),
            connected: ConnectedProcesses::default(),
        }
    }

    /// Serves one program after the other until it ends.
    pub fn run(
        &mut self,
        stop: &StopSignal,
        save_requester: &SaveRequester<SavedAttachment>,
        meters: &EngineMeters,
    ) -> AttachmentEnd {
        self.show_program();
        let ended = loop {
            if stop.hears() {
                break AttachmentEnd::Requested;
            }
            if let Some(request) = save_requester.requested()
                && self.part(request) == SaveDecision::Go
            {
                return AttachmentEnd::HandedOver;
            }
            self.serve();
            meters.publish(self.counters, self.calls);
            if let Some(ended) = self.device.ended() {
                break ended;
            }
            if let Some(error) = self.failure() {
                break AttachmentEnd::Lost(format!("the serial port cannot be used: {error}"));
            }
            if let Err(error) = self.wait(stop) {
                break AttachmentEnd::Lost(error.to_string());
            }
        };
        self.program = None;
        self.close();
        let now = self.clock.now();
        self.device.close(&mut self.done);
        self.device.end_turn(now, &mut self.done);
        while self.done.pop().is_some() {}
        ended
    }

    /// Why the port cannot be used. What becomes of a device that is gone, its session says soon.
    fn failure(&mut self) -> Option<&SerialError> {
        let error = self.port.failure()?;
        let now = self.clock.now();
        let since = *self.failed_at.get_or_insert(now);
        (*error != SerialError::Gone || now - since >= GONE_TIME_MAX).then_some(error)
    }

    /// Does everything that can be done without waiting.
    fn serve(&mut self) {
        let now = self.clock.now();
        loop {
            let mut moved = 0;
            if let Some(program) = &mut self.program {
                let count = program.pass_on(now, &mut self.port);
                self.counters.bytes_out += count as u64;
                moved += count;
            }
            self.port.pump(now, &mut self.device, &mut self.done);
            if let Some(program) = &mut self.program {
                let count = program.take_from(&mut self.port);
                self.counters.bytes_in += count as u64;
                moved += count;
                self.calls.send += 1;
                if let Err(error) = program.send() {
                    debug!(%error, "a program that uses the serial port is gone");
                    self.dismiss(now);
                }
            }
            if self.program.as_ref().is_some_and(SerialProgram::is_over) {
                info!("the program that used the serial port has left");
                self.dismiss(now);
                continue;
            }
            if moved == 0 {
                return;
            }
        }
    }

    /// The program has left: the line hangs up after what it sent.
    fn dismiss(&mut self, now: Instant) {
        let hangs_up = self.program.take().is_none_or(|program| program.link.hangs_up());
        self.show_program();
        self.port.change(LineChange::Break(false));
        if hangs_up {
            self.port.change(LineChange::ControlLines { dtr: false, rts: false });
        }
        self.port.watch_modem(now, false);
        self.port.rest(now);
        while self.port.read().is_some() {}
        self.listener.forget_unread();
    }

    fn show_program(&self) {
        self.connected.show(self.program.as_ref().and_then(|program| program.link.connection()));
        self.open.show(usize::from(self.program.is_some()));
    }

    fn wait(&mut self, stop: &StopSignal) -> io::Result<()> {
        self.calls.wait += 1;
        let failed = self.failed_at.map(|at| at + GONE_TIME_MAX);
        if self.program.is_none() && self.listener.has_waiting() {
            self.welcome(self.clock.now());
        }
        let on_program = self.program.as_ref().and_then(SerialProgram::poll_timeout);
        let due = self.device.poll_timeout().into_iter().chain(self.port.poll_timeout());
        let due = due.chain(failed).chain(on_program).min();
        let timeout = due.map(|due| due - self.clock.now());
        let readiness = self.device.readiness().and_then(DeviceWaitSource::interest);
        let on_device = readiness.expect("a remote device is waited for on a descriptor");
        let mut interests = Vec::with_capacity(4);
        interests.extend([
            on_device,
            PollInterest::new(stop.wake().as_fd(), false),
            PollInterest::new(self.listener.as_fd(), false),
        ]);
        // One that has left would be ready for ever, while what it sent waits for the port. So would a terminal.
        interests.extend(self.program.as_ref().filter(|program| !program.has_ended()).and_then(|program| {
            let fd = program.link.as_fd();
            match (program.wants_input(), program.has_unsent()) {
                (true, is_full) => Some(PollInterest::new(fd, is_full)),
                (false, true) => Some(PollInterest::room(fd)),
                (false, false) => program.link.connection().map(|link| PollInterest::end(link.as_fd())),
            }
        }));
        wait(&mut interests, timeout)?;
        let [on_device, _, on_listener] = [0, 1, 2].map(|at| interests[at].is_ready());
        let on_program = interests.get(3).is_some_and(|interest| interest.readable);
        drop(interests);
        let now = self.clock.now();
        if on_device {
            self.calls.receive += 1;
            self.device.handle_ready(now, &mut self.done);
        }
        if self.device.poll_timeout().is_some_and(|due| due <= now) {
            self.device.handle_timeout(now, &mut self.done);
        }
        if self.port.poll_timeout().is_some_and(|due| due <= now) {
            self.port.handle_timeout(now);
        }
        let is_due = |program: &&mut SerialProgram| program.poll_timeout().is_some_and(|due| due <= now);
        if let Some(program) = self.program.as_mut().filter(is_due) {
            program.handle_timeout(now);
        }
        if on_program {
            self.receive(now);
        }
        if on_listener {
            self.welcome(now);
        }
        Ok(())
    }

    fn receive(&mut self, now: Instant) {
        let Some(program) = &mut self.program else { return };
        self.calls.receive += 1;
        if let Err(violation) = program.receive() {
            warn!("a program that uses the serial port was cut off: {violation}");
            self.dismiss(now);
        }
    }

    fn welcome(&mut self, now: Instant) {
        let (link, origin) = match self.listener.accept() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => return,
            Err(error) => return warn!(%error, "a program could not connect"),
        };
        if let Err(why) = self.admit(&link, origin) {
            return warn!(peer = link.peer(), "a connection to the serial port was refused: {why}");
        }
        self.see_off();
        if self.program.is_some() {
            // A terminal may be opened several times.
            let Some(link) = link.connection() else { return };
            info!(peer = link.peer(), "a second program was refused: the serial port has one user");
            // It may not read; then it is told nothing.
            let _ = link.try_send(&[io::IoSlice::new(BUSY)]);
            return;
        }
        info!(peer = link.peer(), "a program uses the serial port");
        self.port.resume();
        self.program = Some(SerialProgram::new(link, self.speaks_telnet, &mut self.port));
        self.port.watch_modem(now, self.speaks_telnet);
        self.show_program();
    }

    /// Lets the program go that has left just now: it may have done so before the next one came.
    fn see_off(&mut self) {
        for _ in 0..LAST_RECEIVES_MAX {
            self.serve();
            let program = self.program.as_mut().filter(|program| program.wants_input());
            let Some(Ok(true)) = program.map(SerialProgram::receive) else { break };
        }
        self.serve();
    }

    /// Whether a program from there may use the port: of this machine its owner's and root's, of others those of the
    /// allowed networks. The rights of a Unix socket or a terminal have admitted its programs already.
    fn admit(&self, link: &ProgramLink, origin: ConnectionOrigin) -> Result<(), String> {
        let (ConnectionOrigin::Address(address), Some(link)) = (origin, link.connection()) else { return Ok(()) };
        let is_allowed = || self.allowed.iter().any(|network| network.contains(address.ip()));
        let own = rustix::process::geteuid().as_raw();
        match self.system.peer_owner(link) {
            Ok(PeerOwner::User(user)) if user == own || user == 0 => Ok(()),
            Ok(PeerOwner::User(user)) => Err(format!("user {user} of this machine is neither its owner nor root")),
            Ok(PeerOwner::Closed) => Err("its program has closed it".to_owned()),
            Err(error) if address.ip().to_canonical().is_loopback() => {
                Err(format!("which user of this machine it is cannot be known: {error}"))
            }
            Ok(PeerOwner::Elsewhere) | Err(_) if is_allowed() => Ok(()),
            Ok(PeerOwner::Elsewhere) | Err(_) => {
                Err(format!("{} is not allowed: farbus attach … --allow {}", address.ip(), address.ip()))
            }
        }
    }

    /// Releases the line, as far as the device answers.
    fn close(&mut self) {
        let until = self.clock.now() + CLOSE_TIME_MAX;
        self.port.close(self.clock.now());
        self.pump_until(until, |relay| relay.port.is_closed());
    }

    /// Exchanges with the device, and passes on what was received before, until this is so; returns whether it was in
    /// time.
    fn pump_until(&mut self, until: Instant, is_so: impl Fn(&Self) -> bool) -> bool {
        loop {
            let now = self.clock.now();
            if let Some(program) = &mut self.program {
                program.pass_on(now, &mut self.port);
            }
            self.port.pump(now, &mut self.device, &mut self.done);
            if is_so(self) {
                return true;
            }
            if now >= until || self.device.ended().is_some() || self.port.failure().is_some() {
                return false;
            }
            let due = self.device.poll_timeout().into_iter().chain(self.port.poll_timeout()).chain([until]).min();
            let Some(interest) = self.device.readiness().and_then(DeviceWaitSource::interest) else { return false };
            if wait(&mut [interest], due.map(|due| due - now)).is_err() {
                return false;
            }
            let now = self.clock.now();
            self.device.handle_ready(now, &mut self.done);
            if self.device.poll_timeout().is_some_and(|due| due <= now) {
                self.device.handle_timeout(now, &mut self.done);
            }
            if self.port.poll_timeout().is_some_and(|due| due <= now) {
                self.port.handle_timeout(now);
            }
        }
    }

    /// Answers a request for a snapshot: what is under way comes to its end first.
    fn part(&mut self, request: SaveRequest<SavedAttachment>) -> SaveDecision {
        let now = self.clock.now();
        self.port.rest(now);
        let is_at_rest = self.pump_until(now + REST_TIME_MAX, |relay| {
            relay.port.is_at_rest() && relay.program.as_ref().is_none_or(SerialProgram::is_passed_on)
        });
        let verdict = match is_at_rest.then(|| self.save()) {
            Some(Ok(saved)) => request.part(saved),
            Some(Err(error)) => {
                warn!(%error, "the serial port cannot be passed on");
                SaveDecision::Stay
            }
            // No answer tells the asking thread that it cannot be saved.
            None => SaveDecision::Stay,
        };
        if verdict == SaveDecision::Stay && self.program.is_some() {
            self.port.resume();
        }
        verdict
    }

    fn save(&mut self) -> io::Result<SavedAttachment> {
        let mut to = SnapshotWriter::new(SNAPSHOT_KIND);
        if !self.device.save_to(&mut to) {
            return Err(io::Error::other("it has no session, or that is over"));
        }
        let mut unread = Vec::new();
        // Nothing is lost if it stays here: what was read goes back.
        while let Some(data) = self.port.read() {
            data.runs().for_each(|run| unread.extend_from_slice(run));
        }
        self.port.put_back(&unread);
        to.bytes(&self.port.state());
        to.bytes(&unread);
        let mut descriptors = self.listener.save(&mut to)?;
        to.flag(self.program.is_some());
        if let Some(program) = &mut self.program {
            program.answer(&self.port);
            program.save(&mut to);
            if let Some(link) = program.link.connection() {
                descriptors.push(link.as_fd().try_clone_to_owned()?);
            }
        }
        Ok(SavedAttachment { snapshot: to.into_bytes(), descriptors, medium: None })
    }

    /// Restores what [`SerialRelay::save`] wrote behind the device. `listener` takes its descriptors first.
    ///
    /// # Errors
    /// The snapshot is invalid; the device is left.
    pub fn restore<'a>(
        mut device: FarDevice,
        mut descriptors: impl Iterator<Item = OwnedFd>,
        listener: impl FnOnce(&mut dyn Iterator<Item = OwnedFd>, &mut FieldReader<'a>) -> io::Result<SerialListener>,
        options: (bool, Vec<IpNetwork>, SystemAccess),
        from: &mut FieldReader<'a>,
    ) -> Result<Self, ClientError> {
        let restored = (|| {
            let wrong = |reject: farbus_session::ProtocolViolation| ClientError::Local(reject.to_string());
            let at = first_port(device.descriptors()).map_err(|error| ClientError::Local(error.to_string()))?;
            let (state, unread) = (from.bytes("port").map_err(wrong)?, from.bytes("unread").map_err(wrong)?);
            let port = SerialPort::restored(IdSource::new(), device.descriptors(), at, state, unread);
            let port = port.ok_or_else(|| ClientError::Local("the port's state is none".into()))?;
            let listener = listener(&mut descriptors, from).map_err(local)?;
            let link = |peer: &str| match ProgramLink::of_terminal(&listener) {
                Some(link) => Ok(link),
                None => {
                    let socket =
                        descriptors.next().ok_or_else(|| io::Error::other("its connection did not come along"))?;
                    ProgramLink::passed(socket, peer)
                }
            };
            let program = match from.flag("program").map_err(wrong)? {
                true => Some(SerialProgram::restore(link, port.coding(), from).map_err(local)?),
                false => None,
            };
            from.end("snapshot").map_err(wrong)?;
            Ok((port, listener, program))
        })();
        match restored {
            Ok((port, listener, program)) => {
                let mut relay = Self::over(device, listener, port, options);
                if program.is_some() {
                    relay.port.resume();
                    relay.port.watch_modem(relay.clock.now(), relay.speaks_telnet);
                }
                relay.program = program;
                Ok(relay)
            }
            Err(error) => {
                device.leave();
                Err(error)
            }
        }
    }
}
