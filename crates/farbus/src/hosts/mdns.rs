//! A process of its own for multicast DNS. It has no rights at all, because any host may send what it reads.
//!
//! It receives one line of JSON at a time and answers each. It keeps announcing until it is told otherwise, or the
//! process that started it ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farbus_io_linux::sys::confine::{ConfinementNeeds, confine};
use farbus_io_net::discovery::{self, AnnouncedProtocol, HostAnnouncement, MdnsAnnouncer};
use farbus_io_net::sys::passing::MessageSocket;
use farbus_io_net::trust::host_name;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{debug, warn};

use crate::hosts::reach::{self, NearbyHostQuery};

/// The hidden verb that starts the process.
const VERB: &str = "nearby";
/// How often an announcement is made again: its network may come up later.
const REPEATED_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MdnsRequest {
    /// Announce these, and stop all others.
    Announce(Vec<MdnsAnnouncement>),
    /// Find the address of this host.
    Find(NearbyHostQuery),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MdnsReply {
    Done,
    Failed(String),
    Found(Option<SocketAddr>),
}

/// An announcement, as it is sent between the two processes.
#[derive(Debug, Serialize, Deserialize)]
struct MdnsAnnouncement {
    kind: AnnouncedProtocol,
    port: u16,
    addresses: Vec<IpAddr>,
    fingerprint: Option<String>,
}

impl From<&HostAnnouncement> for MdnsAnnouncement {
    fn from(announcement: &HostAnnouncement) -> Self {
        Self {
            kind: announcement.kind,
            port: announcement.port,
            addresses: announcement.addresses.clone(),
            fingerprint: announcement.fingerprint.clone(),
        }
    }
}

impl From<MdnsAnnouncement> for HostAnnouncement {
    fn from(announcement: MdnsAnnouncement) -> Self {
        Self {
            kind: announcement.kind,
            port: announcement.port,
            addresses: announcement.addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fingerprint: announcement.fingerprint,
        }
    }
}

/// The passage to the process.
#[derive(Debug)]
pub struct MdnsProcess {
    passage: MessageSocket,
}

impl MdnsProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// The system cannot start another process.
    pub fn start() -> io::Result<Self> {
        let (passage, theirs) = MessageSocket::pair()?;
        // The child is not waited for: it ends after this process.
        Command::new("/proc/self/exe").arg(VERB).stdin(theirs).stdout(Stdio::null()).current_dir("/").spawn()?;
        Ok(Self { passage })
    }

    /// Announces these, and stops all others.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn announce(&self, wanted: &[HostAnnouncement]) -> io::Result<()> {
        match self.ask(&MdnsRequest::Announce(wanted.iter().map(MdnsAnnouncement::from).collect()))? {
            MdnsReply::Failed(why) => Err(io::Error::other(why)),
            MdnsReply::Done | MdnsReply::Found(_) => Ok(()),
        }
    }

    fn ask(&self, question: &MdnsRequest) -> io::Result<MdnsReply> {
        self.passage.send(&serde_json::to_vec(question)?, None)?;
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the process that announces has ended");
        let parcel = self.passage.receive()?.ok_or_else(ended)?;
        Ok(serde_json::from_slice(&parcel.bytes)?)
    }
}

/// An announcement that stays until it is dropped.
#[derive(Debug)]
pub struct MdnsRegistration {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MdnsRegistration {
    /// Announces `wanted` from now on, on a thread of its own. Failures are logged, each once.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn keep(nearby: MdnsProcess, wanted: Vec<HostAnnouncement>) -> io::Result<Self> {
        let (end, ended) = channel();
        let keep = move || {
            let mut trouble = None;
            loop {
                let now = nearby.announce(&wanted).err().map(|error| error.to_string());
                if let Some(error) = now.as_ref().filter(|_| now != trouble) {
                    warn!(error, "not announced");
                }
                trouble = now;
                if ended.recv_timeout(REPEATED_EVERY) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            if let Err(error) = nearby.announce(&[]) {
                debug!(%error, "no farewell was said");
            }
        };
        let thread = thread::Builder::new().name("announce".into()).spawn(keep)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for MdnsRegistration {
    fn drop(&mut self) {
        drop(self.end.take());
        // Other hosts hear the farewell before this process ends.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Finds a host that announces itself, by a process without rights.
pub fn find(sought: &NearbyHostQuery) -> Option<SocketAddr> {
    let answer = MdnsProcess::start().and_then(|nearby| nearby.ask(&MdnsRequest::Find(sought.clone())));
    match answer {
        Ok(MdnsReply::Found(at)) => at,
        Ok(other) => {
            debug!(?other, ?sought, "not looked for nearby");
            None
        }
        Err(error) => {
            debug!(%error, ?sought, "not looked for nearby");
            None
        }
    }
}

/// Runs the process, with the passage as its standard input, until its parent ends.
///
/// # Errors
/// The passage failed.
pub fn run() -> io::Result<()> {
    // Ctrl-C goes to all processes of the terminal. This one ends after its parent, and withdraws its announcements
    // then.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // The name by which paired hosts know this one, too.
    let name = host_name();
    let confinement =
        confine(&ConfinementNeeds { datagrams: true, ..ConfinementNeeds::default() }).map_err(io::Error::other)?;
    debug!("{confinement}");
    let passage = MessageSocket::over(io::stdin().as_fd().try_clone_to_owned()?);
    let mut announcer = None;
    loop {
        while announcer.is_some() && !passage.is_ready_within(discovery::LOOK_INTERVAL)? {
            tend(announcer.as_mut());
        }
        let Some(parcel) = passage.receive()? else { return Ok(()) };
        let answer = match serde_json::from_slice(&parcel.bytes) {
            Ok(MdnsRequest::Announce(announcements)) => announce(&mut announcer, &name, announcements),
            Ok(MdnsRequest::Find(host)) => MdnsReply::Found(reach::ask_around(&host)),
            Err(error) => MdnsReply::Failed(format!("not a question: {error}")),
        };
        match passage.send(&serde_json::to_vec(&answer)?, None) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent?,
        }
    }
}

/// Limits what the announcer keeps of what strangers send.
fn tend(announcer: Option<&mut MdnsAnnouncer>) {
    match announcer.map(MdnsAnnouncer::tend) {
        Some(Ok(true)) => warn!("a host nearby sends more by mDNS than there is room for: announced anew"),
        Some(Err(error)) => warn!(%error, "not announced"),
        Some(Ok(false)) | None => {}
    }
}

fn announce(announcer: &mut Option<MdnsAnnouncer>, name: &str, announcements: Vec<MdnsAnnouncement>) -> MdnsReply {
    if announcements.is_empty() {
        *announcer = None;
        return MdnsReply::Done;
    }
    let wanted: Vec<HostAnnouncement> = announcements.into_iter().map(HostAnnouncement::from).collect();
    let result = match announcer {
        Some(announcer) => announcer.announce(&wanted),
        none => {
            MdnsAnnouncer::new(name, discovery::PORT).and_then(|announcer| none.insert(announcer).announce(&wanted))
        }
    };
    result.map_or_else(|error| MdnsReply::Failed(error.to_string()), |()| MdnsReply::Done)
}
