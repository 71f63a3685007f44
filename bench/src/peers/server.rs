//! A server in a process of its own, from its start to its end.

use std::{
    io::{BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::{listen::START_MAX, reference, usbip_crate};
use crate::{
    load::UsbipLoadClient,
    net::{LossyNetwork, ShapedNetwork},
    placement::CpuPlacement,
};

/// The limit within which a device is offered again after its user has gone.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// The servers that are part of this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerServerKind {
    /// A bare blocking loop of requests and replies.
    Ping,
    /// One bare TCP stream, sending or receiving.
    Stream,
    /// One bare TLS 1.3 stream, sending or receiving.
    Tls,
    /// A single-threaded, batching USB/IP source/sink: the practical ceiling.
    Ref,
    /// A source/sink device on the `usbip` crate 0.9.0.
    Crate,
    /// Sessions of farbus's own protocol over plain TCP: a disk in memory, a source/sink.
    Session,
    /// farbus's NBD server over such a session's disk.
    Proxy,
    /// UDP without congestion control.
    Flood,
}

impl PeerServerKind {
    fn argument(self) -> String {
        self.to_possible_value().expect("no variant is skipped").get_name().to_owned()
    }
}

/// A running server, killed when dropped.
pub struct PeerServer {
    child: Child,
    pub address: SocketAddr,
    busid: &'static str,
    pub name: &'static str,
}

impl PeerServer {
    pub fn of_this_binary(kind: PeerServerKind, placement: CpuPlacement) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["peer", &kind.argument()]);
        let (name, busid) = match kind {
            PeerServerKind::Ping => ("ping", ""),
            PeerServerKind::Stream => ("stream", ""),
            PeerServerKind::Tls => ("TLS stream", ""),
            PeerServerKind::Ref => ("ref", reference::BUSID),
            PeerServerKind::Crate => ("usbip crate", usbip_crate::BUSID),
            PeerServerKind::Session => ("session", ""),
            PeerServerKind::Proxy | PeerServerKind::Flood => unreachable!("these are told more"),
        };
        Self::start(command, name, busid, placement)
    }

    /// farbus's NBD server over the disk of a [`PeerServerKind::Session`].
    pub fn proxy(behind: SocketAddr, placement: CpuPlacement) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["peer", &PeerServerKind::Proxy.argument(), &behind.to_string()]);
        Self::start(command, "farbus proxy", "", placement)
    }

    /// [`PeerServerKind::Session`] at an address of its own, in a namespace.
    pub fn session_in(net: &ShapedNetwork, address: IpAddr, placement: CpuPlacement) -> Result<Self> {
        let mut command = net.on_server(&std::env::current_exe()?);
        command.args(["peer", &PeerServerKind::Session.argument(), &SocketAddr::new(address, 0).to_string()]);
        Self::start(command, "session", "", placement)
    }

    /// [`PeerServerKind::Flood`] on a host of its own.
    pub fn flood_in(net: &ShapedNetwork, target: &str, placement: CpuPlacement) -> Result<Self> {
        let mut command = net.on_stranger(&std::env::current_exe()?);
        command.args(["peer", &PeerServerKind::Flood.argument(), target]);
        Self::start(command, "flood", "", placement)
    }

    /// `farbus share WHAT`.
    pub fn farbus(program: &Path, what: &str, placement: CpuPlacement) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["share", what, "--listen", "127.0.0.1:0"]);
        Self::start(command, "farbus", "1-1", placement)
    }

    /// `farbus share WHAT` on the other host of a network, at an address of its own there.
    pub fn farbus_in(
        net: &LossyNetwork,
        program: &Path,
        what: &str,
        address: IpAddr,
        placement: CpuPlacement,
    ) -> Result<Self> {
        let mut command = net.on_server(program);
        // No other process uses the port there.
        command.args(["share", what, "--listen", &SocketAddr::new(address, 3240).to_string()]);
        Self::start(command, "farbus", "1-1", placement)
    }

    /// `farbus share WHAT --secure`, as the host whose key is in the folder `state`.
    pub fn farbus_secure(program: &Path, what: &str, state: &Path, placement: CpuPlacement) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["share", what, "--listen", "none", "--secure", "127.0.0.1:0"]).env("FARBUS_STATE", state);
        Self::start(command, "farbus", "1-1", placement)
    }

    /// `farbus nbd WHAT`.
    pub fn farbus_nbd(program: &Path, what: &str, placement: CpuPlacement) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["nbd", what, "--listen", "127.0.0.1:0"]);
        Self::start(command, "farbus nbd", "", placement)
    }

    /// `farbus attach` of a disk that `exporter` shares, served by NBD, with this round trip and this cache.
    pub fn farbus_attached(
        program: &Path,
        exporter: &Self,
        device: &str,
        (round_trip, cache): (Duration, &str),
        placement: CpuPlacement,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["attach", &format!("{}/{device}", exporter.address), "--via", "nbd", "--listen", "127.0.0.1:0"]);
        command.args(["--grace", "20", "--cache", cache]);
        if !round_trip.is_zero() {
            command.args(["--module", &format!("delay:time={}us", round_trip.as_micros() / 2)]);
        }
        Self::start(command, "farbus attach", "", placement)
    }

    fn start(mut command: Command, name: &'static str, busid: &'static str, placement: CpuPlacement) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = placement.start_server(&mut command)?;
        // Both streams are read to their end, long after the expected line: a full pipe stops a server.
        let (lines, heard) = mpsc::channel();
        read_lines(child.stdout.take().expect("piped"), lines.clone());
        read_lines(child.stderr.take().expect("piped"), lines);
        let mut messages = Vec::new();
        loop {
            match heard.recv_timeout(START_MAX) {
                Ok(line) => {
                    if let Some(address) = listening_address(&line) {
                        return Ok(Self { child, address, busid, name });
                    }
                    messages.push(line);
                }
                Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!("{command:?} did not say that it listens; it said:\n{}", messages.join("\n"));
                }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its device's bus id.
    pub fn busid(&self) -> &'static str {
        self.busid
    }

    /// A new connection with the server's device imported and configured.
    ///
    /// A device whose last user has just gone may count as busy until the server has noticed.
    pub fn attach(&self) -> Result<UsbipLoadClient> {
        let began = Instant::now();
        loop {
            match UsbipLoadClient::attach(self.address, self.busid) {
                Err(_) if began.elapsed() < RELEASE_MAX => thread::sleep(Duration::from_millis(1)),
                result => return result.with_context(|| format!("cannot attach to {}", self.name)),
            }
        }
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
}

fn listening_address(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("listening on ").or_else(|| line.split_once("nbd://"))?;
    address.split([' ', '/']).next()?.trim_end_matches([',', '.', ';']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_a_server_says() {
        let expected = "127.0.0.1:4711".parse().ok();
        assert_eq!(listening_address("listening on 127.0.0.1:4711"), expected);
        assert_eq!(listening_address("farbus: zero (1-1), listening on 127.0.0.1:4711, loopback only"), expected);
        assert_eq!(listening_address("serving as nbd://127.0.0.1:4711/ (1 MB)"), expected);
        assert_eq!(listening_address("listening on port 4711"), None);
        assert_eq!(listening_address("ready"), None);
    }
}
