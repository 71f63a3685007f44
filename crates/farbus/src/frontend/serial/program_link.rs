//! How programs reach a serial port: by a connection, or by a pseudo terminal.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farbus_host::serial::LineCoding;
use farbus_io_linux::sys::terminal::{TerminalMaster, TerminalRead, TerminalSettings};
use farbus_io_net::link::Link;
use farbus_model::Instant;
use farbus_session::ProtocolViolation;
use farbus_session::rfc2217::{ComPortRequest, Rfc2217Event};
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use tracing::debug;

use crate::broker::SystemAccess;
use crate::common::socket_place::{ConnectionOrigin, SocketListener, SocketLocation};

/// How often a terminal's settings are read while a program has it open: Linux tells nobody that they have changed.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How much of what was written before a change of settings is read at once: what a terminal holds.
const HELD_BYTES_MAX: usize = 80 << 10;
/// Bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// Events of a terminal's program that wait for the port before no more are read.
const WAITING_EVENTS_MAX: usize = 64;

/// Where programs come.
#[derive(Debug)]
pub enum SerialListener {
    /// At a socket: they connect, and each is one connection.
    Socket(SocketListener),
    /// At a terminal: they open its file, as often as they like.
    Terminal(LinkedTerminal),
}

/// A terminal, and the link that leads to it, which is removed at the end.
#[derive(Debug)]
pub struct LinkedTerminal {
    terminal: Arc<TerminalMaster>,
    place: SocketLocation,
    system: SystemAccess,
    /// Whether another process removes the link.
    is_passed_on: bool,
}

impl LinkedTerminal {
    /// A terminal to which `place` leads.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn open(system: &SystemAccess, place: SocketLocation) -> io::Result<Self> {
        Ok(Self::over(system.open_terminal(&place)?, system, place))
    }

    fn over(terminal: TerminalMaster, system: &SystemAccess, place: SocketLocation) -> Self {
        Self { terminal: Arc::new(terminal), place, system: system.clone(), is_passed_on: false }
    }

    /// The terminal of another process, as [`SerialListener::save`] wrote it.
    ///
    /// # Errors
    /// It did not come along.
    pub fn restore(
        system: &SystemAccess,
        place: SocketLocation,
        descriptors: &mut dyn Iterator<Item = OwnedFd>,
        from: &mut FieldReader<'_>,
    ) -> io::Result<Self> {
        let path = from.bytes("terminal").map_err(|reject| io::Error::other(reject.to_string()))?;
        let path = PathBuf::from(String::from_utf8_lossy(path).into_owned());
        let (Some(master), Some(opens)) = (descriptors.next(), descriptors.next()) else {
            return Err(io::Error::other("the terminal did not come along"));
        };
        let mut linked = Self::over(TerminalMaster::passed([master, opens], path), system, place);
        // The link is the other process's to remove until it is taken.
        linked.is_passed_on = true;
        Ok(linked)
    }
}

impl Drop for LinkedTerminal {
    fn drop(&mut self) {
        if !self.is_passed_on {
            self.system.end_terminal(&self.place, self.terminal.path());
        }
    }
}

impl SerialListener {
    /// Where programs come.
    ///
    /// # Errors
    /// The error of the system.
    pub fn location(&self) -> io::Result<SocketLocation> {
        match self {
            Self::Socket(listener) => listener.location(),
            Self::Terminal(linked) => Ok(linked.place.clone()),
        }
    }

    /// The socket at which programs connect; `None` if they open a terminal.
    pub fn into_socket(self) -> Option<SocketListener> {
        match self {
            Self::Socket(listener) => Some(listener),
            Self::Terminal(_) => None,
        }
    }

    /// Takes over from another process: the link of a restored terminal is this one's to remove now.
    pub fn take_over(&mut self) {
        if let Self::Terminal(linked) = self {
            linked.is_passed_on = false;
        }
    }

    /// Leaves what programs find to another process.
    pub fn pass_on(self) {
        match self {
            // This marks the path as passed on even if no copy can be made.
            Self::Socket(listener) => drop(listener.into_descriptor()),
            Self::Terminal(mut linked) => linked.is_passed_on = true,
        }
    }

    /// Drops what a program that has left did not read, as a serial port does.
    pub fn forget_unread(&self) {
        if let Self::Terminal(linked) = self {
            linked.system.empty_terminal(&linked.place);
            // That has opened it, and no program.
            linked.terminal.take_opens();
        }
    }

    /// Whether a program waits that no readiness of the descriptor tells of any more.
    pub fn has_waiting(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Terminal(linked) => linked.terminal.is_in_use().unwrap_or(false),
        }
    }

    /// The next program; `None` if there is none.
    ///
    /// # Errors
    /// The error of the system.
    pub fn accept(&self) -> io::Result<Option<(ProgramLink, ConnectionOrigin)>> {
        match self {
            Self::Socket(listener) => {
                let arrived = listener.accept()?;
                Ok(arrived.map(|(link, origin)| (ProgramLink::Connection(link), origin)))
            }
            Self::Terminal(linked) => {
                // One that has closed it again raised and drops DTR: some boards are reset by that.
                let was_opened = linked.terminal.take_opens();
                let link = || ProgramLink::Terminal(ProgramTerminal::over(Arc::clone(&linked.terminal)));
                // Its mode has admitted it.
                let origin = ConnectionOrigin::User(rustix::process::geteuid().as_raw());
                Ok((linked.terminal.is_in_use()? || was_opened).then(|| (link(), origin)))
            }
        }
    }

    /// Writes what another process needs besides the descriptors, which are returned.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn save(&self, to: &mut SnapshotWriter) -> io::Result<Vec<OwnedFd>> {
        match self {
            Self::Socket(listener) => Ok(vec![listener.as_fd().try_clone_to_owned()?]),
            Self::Terminal(linked) => {
                to.bytes(linked.terminal.path().as_os_str().as_encoded_bytes());
                Ok(linked.terminal.descriptors()?.into())
            }
        }
    }
}

impl AsFd for SerialListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(listener) => listener.as_fd(),
            Self::Terminal(linked) => linked.terminal.opens(),
        }
    }
}

/// What one program, or those that have a terminal open at the same time, exchange bytes by.
#[derive(Debug)]
pub enum ProgramLink {
    /// One program's, which ends with it.
    Connection(Link),
    /// That of all programs that have the terminal open; it ends when the last one closes it.
    Terminal(ProgramTerminal),
}

/// A terminal that programs have open.
#[derive(Debug)]
pub struct ProgramTerminal {
    terminal: Arc<TerminalMaster>,
    /// The settings that were passed on last.
    settings: Option<TerminalSettings>,
    /// When they are read next.
    look_at: Instant,
}

impl ProgramTerminal {
    fn over(terminal: Arc<TerminalMaster>) -> Self {
        Self { terminal, settings: None, look_at: Instant::ZERO }
    }

    /// The settings, if they are not those that were passed on last.
    fn changed_settings(&mut self) -> io::Result<Option<TerminalSettings>> {
        let settings = self.terminal.settings()?;
        Ok((self.settings.replace(settings) != Some(settings)).then_some(settings))
    }

    /// Reads once what programs wrote; 0: nothing is there now. `None`: no program has it open any more.
    fn read(&self, buffer: &mut [u8], events: &mut impl Extend<Rfc2217Event>) -> io::Result<Option<usize>> {
        match self.terminal.read(buffer)? {
            TerminalRead::Nothing => Ok(Some(0)),
            TerminalRead::Closed => Ok(None),
            TerminalRead::Flushed { input, output } => {
                let purge = u8::from(input) | u8::from(output) << 1;
                events.extend((purge > 0).then_some(Rfc2217Event::Request(ComPortRequest::Purge(purge))));
                Ok(Some(1))
            }
            TerminalRead::Data(count) => {
                events.extend([Rfc2217Event::Data(buffer[1..=count].to_vec())]);
                Ok(Some(count + 1))
            }
        }
    }
}

/// What was received of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramReceipt {
    /// It has sent nothing since.
    Nothing,
    /// Bytes, or changes of the line.
    Something,
    /// It has left, and sends nothing more.
    End,
}

impl ProgramLink {
    /// The terminal of `listener`, for a program that another process served; `None` if it has none.
    pub fn of_terminal(listener: &SerialListener) -> Option<Self> {
        match listener {
            SerialListener::Socket(_) => None,
            SerialListener::Terminal(linked) => {
                Some(Self::Terminal(ProgramTerminal::over(Arc::clone(&linked.terminal))))
            }
        }
    }

    /// The connection of a program that another process served, whose other end has this name.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn passed(socket: OwnedFd, peer: &str) -> io::Result<Self> {
        Ok(Self::Connection(match peer.parse() {
            Ok(address) => Link::over_tcp(socket, address)?,
            Err(_) => Link::over_local(socket, peer),
        }))
    }

    /// The connection, if it is one.
    pub fn connection(&self) -> Option<&Link> {
        match self {
            Self::Connection(link) => Some(link),
            Self::Terminal(_) => None,
        }
    }

    /// The name of the other end, for messages.
    pub fn peer(&self) -> &str {
        match self {
            Self::Connection(link) => link.peer(),
            Self::Terminal(_) => "terminal",
        }
    }

    /// What the line has first, of a port that has `coding`: a terminal keeps what a program set.
    pub fn first_coding(&self, coding: LineCoding) -> LineCoding {
        match self {
            Self::Connection(_) => coding,
            Self::Terminal(program) => match program.terminal.settings() {
                Ok(settings) if settings.rate > 0 => LineCoding { rate: settings.rate, ..coding },
                _ => coding,
            },
        }
    }

    /// Whether the line hangs up when the program leaves.
    pub fn hangs_up(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Terminal(program) => program.terminal.settings().is_ok_and(|settings| settings.hangs_up),
        }
    }

    /// Whether a program that does not read may be kept from writing: one at a terminal may not, as at any serial port.
    pub fn is_one_for_both_ways(&self) -> bool {
        matches!(self, Self::Connection(_))
    }

    /// When [`ProgramLink::look`] wants to be called, if it does not wait for what was received before.
    pub fn poll_timeout(&self, waiting: usize) -> Option<Instant> {
        match self {
            Self::Connection(_) => None,
            Self::Terminal(program) => (waiting < WAITING_EVENTS_MAX).then_some(program.look_at),
        }
    }

    /// Reads a terminal's settings. If they have changed, and `waiting` bytes wait for the port, what the terminal
    /// holds was written before the change, and is read first.
    ///
    /// # Errors
    /// The system's.
    pub fn look(&mut self, now: Instant, waiting: usize, events: &mut impl Extend<Rfc2217Event>) -> io::Result<()> {
        let Self::Terminal(program) = self else { return Ok(()) };
        program.look_at = now + LOOK_PAUSE;
        let Some(settings) = program.changed_settings()? else { return Ok(()) };
        let mut held = waiting;
        let mut buffer = vec![0; READ_BYTES];
        while (1..HELD_BYTES_MAX).contains(&held)
            && let Some(count @ 1..) = program.read(&mut buffer, events)?
        {
            held += count;
        }
        events.extend(requests_of(settings));
        Ok(())
    }

    /// Receives once. `parse` makes events of what a connection brought.
    ///
    /// # Errors
    /// It broke the protocol.
    pub fn receive(
        &mut self,
        events: &mut impl Extend<Rfc2217Event>,
        parse: impl FnOnce(&[u8]) -> Result<Vec<Rfc2217Event>, ProtocolViolation>,
    ) -> Result<ProgramReceipt, ProtocolViolation> {
        let mut buffer = [0; READ_BYTES];
        match self {
            Self::Connection(link) => match link.try_receive(&mut buffer) {
                Ok(None) => Ok(ProgramReceipt::Nothing),
                // A connection that breaks off is one that ends.
                Ok(Some(0)) | Err(_) => Ok(ProgramReceipt::End),
                Ok(Some(count)) => {
                    events.extend(parse(&buffer[..count])?);
                    Ok(ProgramReceipt::Something)
                }
            },
            Self::Terminal(program) => {
                let mut read = || {
                    // A program that opens a port sets it and then writes; one that changes it has written before.
                    events.extend(program.changed_settings()?.into_iter().flat_map(requests_of));
                    let count = program.read(&mut buffer, events)?;
                    events.extend(program.changed_settings()?.into_iter().flat_map(requests_of));
                    Ok::<_, io::Error>(count)
                };
                Ok(match read() {
                    Ok(Some(0)) => ProgramReceipt::Nothing,
                    Ok(Some(_)) => ProgramReceipt::Something,
                    Ok(None) => ProgramReceipt::End,
                    Err(error) => {
                        debug!(%error, "a terminal cannot be read");
                        ProgramReceipt::End
                    }
                })
            }
        }
    }

    /// Sends what there is room for; returns how much, `None` if there is no room.
    ///
    /// # Errors
    /// The system's: the program is gone.
    pub fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Connection(link) => link.try_send(&[IoSlice::new(bytes)]),
            Self::Terminal(program) => program.terminal.write(bytes),
        }
    }
}

impl AsFd for ProgramLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connection(link) => link.as_fd(),
            Self::Terminal(program) => program.terminal.as_fd(),
        }
    }
}

/// What sets a line as a terminal is set, in the numbers of RFC 2217.
fn requests_of(settings: TerminalSettings) -> impl Iterator<Item = Rfc2217Event> {
    let is_up = settings.rate > 0;
    let requests = [
        Some(ComPortRequest::Control(if is_up { 8 } else { 9 })),
        Some(ComPortRequest::Control(if is_up { 11 } else { 12 })),
        is_up.then_some(ComPortRequest::Rate(settings.rate)),
        Some(ComPortRequest::StopSize(if settings.has_two_stop_bits { 2 } else { 1 })),
        Some(ComPortRequest::Control(if settings.has_hardware_flow { 3 } else { 1 })),
    ];
    requests.into_iter().flatten().map(Rfc2217Event::Request)
}
