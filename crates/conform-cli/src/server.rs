//! The sockets of `farbus conform importer`: one thread that waits on all of them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farbus_conform::importer::{ProbeConnectionState, ProbeExporter};
use farbus_conform::player::ConnId;
use farbus_model::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::clock::KitClock;

/// Importers connected at a time; the others wait.
const CONNECTIONS_MAX: usize = 64;
/// The longest wait: a signal sets a flag that is looked at afterwards.
const TURN: Duration = Duration::from_millis(100);

struct KitConnection {
    id: ConnId,
    stream: TcpStream,
    /// The kit sends nothing more.
    is_half: bool,
}

/// A listening kit.
pub struct KitServer {
    listener: TcpListener,
    address: SocketAddr,
    stage: ProbeExporter,
    conns: Vec<KitConnection>,
    clock: KitClock,
}

impl KitServer {
    pub fn bind(at: SocketAddr, stage: ProbeExporter) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, stage, conns: Vec::new(), clock: KitClock::start() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stage(&self) -> &ProbeExporter {
        &self.stage
    }

    /// Serves until the stage has seen enough, or for `most`.
    pub fn serve_until(
        &mut self,
        most: Option<Duration>,
        mut is_enough: impl FnMut(&ProbeExporter) -> bool,
    ) -> io::Result<()> {
        let end = most.map(|most| self.clock.now() + most);
        while !is_enough(&self.stage) && end.is_none_or(|end| self.clock.now() < end) {
            self.turn(end)?;
        }
        Ok(())
    }

    /// Serves while this holds, for `most` at most.
    pub fn serve_while(&mut self, most: Duration, mut holds: impl FnMut() -> bool) -> io::Result<()> {
        self.serve_until(Some(most), |_| !holds())
    }

    /// Serves until every importer has left, for `most` at most; then sends them away.
    pub fn serve_until_left(&mut self, most: Duration) -> io::Result<()> {
        let end = self.clock.now() + most;
        while !self.conns.is_empty() && self.clock.now() < end {
            self.turn(Some(end))?;
        }
        for conn in self.conns.drain(..) {
            self.stage.closed(conn.id, self.clock.now());
        }
        Ok(())
    }

    /// Waits once, and does what is due.
    fn turn(&mut self, end: Option<Instant>) -> io::Result<()> {
        let now = self.clock.now();
        let due = self.stage.poll_timeout().into_iter().chain(end).min();
        let wait = due.map_or(TURN, |moment| moment.since(now)).min(TURN);
        self.wait(wait)?;
        let now = self.clock.now();
        self.stage.handle_timeout(now);
        if self.conns.len() < CONNECTIONS_MAX {
            self.accept()?;
        }
        let mut at = 0;
        while at < self.conns.len() {
            match serve(&mut self.stage, &mut self.conns[at], now) {
                true => at += 1,
                false => {
                    let conn = self.conns.swap_remove(at);
                    self.stage.closed(conn.id, now);
                }
            }
        }
        Ok(())
    }

    fn wait(&self, most: Duration) -> io::Result<()> {
        let listening = (self.conns.len() < CONNECTIONS_MAX).then(|| PollFd::new(&self.listener, PollFlags::IN));
        let streams = self.conns.iter().map(|conn| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.stage.wants(conn.id));
            flags.set(PollFlags::OUT, !conn.is_half && !self.stage.transmit(conn.id).is_empty());
            PollFd::new(&conn.stream, flags)
        });
        let mut fds: Vec<PollFd<'_>> = listening.into_iter().chain(streams).collect();
        let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)).map_err(io::Error::from) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                self.conns.push(KitConnection { id: self.stage.connect(), stream, is_half: false });
                Ok(())
            }
            // It was there and has left, or the process is short of descriptors for a moment.
            Err(_) => Ok(()),
        }
    }
}

/// Moves what can be moved; returns whether the connection goes on.
fn serve(stage: &mut ProbeExporter, conn: &mut KitConnection, now: Instant) -> bool {
    let mut bytes = [0; 64 << 10];
    while stage.wants(conn.id) {
        match conn.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => stage.receive(conn.id, &bytes[..count], now),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    while !conn.is_half && !stage.transmit(conn.id).is_empty() {
        match conn.stream.write(stage.transmit(conn.id)) {
            Ok(count) => stage.transmitted(conn.id, count, now),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    }
    match stage.ending(conn.id) {
        ProbeConnectionState::Open => true,
        ProbeConnectionState::Half => {
            if !std::mem::replace(&mut conn.is_half, true) {
                // The importer may have left meanwhile; its end is read then.
                let _ = conn.stream.shutdown(Shutdown::Write);
            }
            true
        }
        ProbeConnectionState::Closed => false,
    }
}

/// The command that attaches an importer, with all that it started. Dropping it kills them.
pub struct ImporterProcess {
    child: Child,
}

impl ImporterProcess {
    /// Starts a command of `--with`.
    pub fn start(command: &str, address: SocketAddr, bus_id: &str) -> io::Result<Self> {
        let filled = command
            .replace("{address}", &address.to_string())
            .replace("{host}", &address.ip().to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{busid}", bus_id);
        // Its output would stand in the midst of the results.
        let shell = ["-c", &filled];
        let child = Command::new("/bin/sh")
            .args(shell)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Asks it to end.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        // It is not reaped yet: its process group keeps its number until it was killed.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), options), Ok(None))
    }
}

impl Drop for ImporterProcess {
    fn drop(&mut self) {
        // What it left behind has its process group, too.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}
