//! Accepts connections, enters them in the table of sessions and serves each on a thread of its own.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, Link};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::{Fingerprint, LinkProtocol};
use farbus_model::Instant;
use farbus_model::budget::{ConnectionAllowance, MemoryAccount};
use farbus_session::native::hello;
use farbus_session::{Exporter, UseEnding};
use tracing::{debug, error, info, warn};

use crate::common::socket_place::ConnectionOrigin;
use crate::exporter::access::encrypted::ConnectionHandler;
use crate::exporter::access::listener::ExporterListener;
use crate::exporter::access::local_users::NotServed;
use crate::exporter::access::memory::QUESTIONS_BYTES;
use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::opening::claim::PeerOffers;
use crate::exporter::questions;
use crate::exporter::session::engine::{UsbipEngine, UsbipEngineEnd};
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::state::shared::{ExporterState, STACK_BYTES};
use crate::hosts::trust::{AuditedUse, TrustStore};
use crate::link::greeting;
use crate::link::meters::SyscallCounts;

/// How long a peer may take to send its first byte.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// How soon a session ends whose host was unpaired or whose device is no longer allowed.
const RECHECK_EVERY: Duration = Duration::from_secs(1);

/// Accepts connections without encryption until the listener closes.
pub fn accept_all(shared: &Arc<ExporterState>, listening: &ExporterListener) {
    while !shared.sessions.is_stopping() && !listening.is_closed() {
        match listening.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok((_, from)) if !listening.admits(from) => {
                warn!(%from, at = %listening.location(), "not on the list of those allowed here");
            }
            Ok((link, from)) => {
                let known = shared.permissions.local_peers.recognize(&link, from);
                if let Err(why @ NotServed::Closed) = &known {
                    // Nobody is turned away: one's own programs close connections as soon as they know enough.
                    if shared.sessions.complaint.is_due(shared.serving.clock.now()) {
                        info!(%from, %why, "the connection is over");
                    }
                    continue;
                }
                let known = known.map_err(io::Error::other);
                if let Err(error) = known.and_then(|from| begin(shared, link, from))
                    && shared.sessions.complaint.is_due(shared.serving.clock.now())
                {
                    warn!(%from, %error, "the connection was turned away; others for 10 s are not mentioned");
                }
            }
            Err(_) if shared.sessions.is_stopping() || listening.is_closed() => return,
            Err(error) => {
                // Most likely the process has no more descriptors: open connections continue, new ones wait.
                warn!(%error, "cannot accept a connection");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn begin(shared: &Arc<ExporterState>, link: Link, from: ConnectionOrigin) -> io::Result<()> {
    let (of_its_own, peer) = (Some(link.try_clone()?), link.peer().to_owned());
    let (number, session) = shared.sessions.enter(of_its_own, peer, None, PeerIdentity::without_key(from))?;
    let for_thread = Arc::clone(shared);
    let spawned = thread::Builder::new()
        .name(format!("session-{number}"))
        .stack_size(STACK_BYTES)
        .spawn(move || serve_either(&for_thread, number, &session, link));
    if let Err(error) = spawned {
        shared.sessions.end(number);
        return Err(error);
    }
    Ok(())
}

/// Serves a connection without encryption on its own thread. Its first byte says which protocol it speaks.
fn serve_either(shared: &Arc<ExporterState>, number: u64, session: &Arc<SessionEntry>, link: Link) {
    let since = shared.serving.clock.now();
    let has_begun = greeting::await_first_byte(&link, GREETING_TIME_MAX);
    if matches!(has_begun, Ok(Some(first)) if first == hello::MAGIC[0]) {
        serve_session(shared, number, session, link);
    } else {
        // USB/IP reports a link that sent nothing or failed.
        serve_usbip(shared, number, session, &link, since);
    }
}

fn serve_session(shared: &Arc<ExporterState>, number: u64, session: &Arc<SessionEntry>, link: Link) {
    session.outlive_link();
    if let Err(error) = shared.native.serve(shared, link, session) {
        info!(peer = session.peer, %error, "a link of a session was lost in its greeting");
    }
    shared.sessions.end(number);
}

/// Serves a connection that speaks USB/IP, on its own thread, until it ends.
fn serve_usbip(shared: &ExporterState, number: u64, session: &SessionEntry, link: &Link, since: Instant) {
    let ExporterState { registry, permissions, serving, .. } = shared;
    if let Err(error) = link.limit_silence(serving.plain_silence()) {
        debug!(peer = session.peer, %error, "its silence is limited as a session's");
    }
    let mut exporter = Exporter::new(since, serving.limits);
    if !exporter.draw_on(ConnectionAllowance::of(Arc::clone(&session.account))) {
        warn!(peer = session.peer, "the connection was turned away: its peer holds as much memory as it may");
        link.shut_down();
        return shared.sessions.end(number);
    }
    if serving.trace.is_on() {
        let clock = serving.clock;
        exporter.trace_with_clock(move || clock.now());
    }
    let mut engine = UsbipEngine {
        link,
        exporter,
        offers: PeerOffers { shared, session },
        clock: serving.clock,
        mailbox: &session.mailbox,
        meters: &session.meters,
        calls: SyscallCounts::default(),
    };
    // A bug of farbus in one session must not harm the others: the device is released if it can be reset, and withdrawn
    // if not.
    let end = panic::catch_unwind(AssertUnwindSafe(|| engine.run())).unwrap_or(UsbipEngineEnd::Bug);
    let (exporter, now) = (engine.exporter, serving.clock.now());
    serving.trace.write(&session.peer, &exporter);
    let device = panic::catch_unwind(AssertUnwindSafe(|| exporter.finish(now))).unwrap_or(None);
    let device = device.map(|device| session.without_gate(device));
    let bus_id = session.take_device();
    // A peer that ended its side waits for the end of ours: then its device is free. All others are cut off at once.
    if !matches!(end, UsbipEngineEnd::Closed) {
        link.shut_down();
    }
    let ending = session.forced_ending().unwrap_or_else(|| ending_of(&end));
    report_end(&end, ending, &session.peer, bus_id.as_deref());
    if let Some(bus_id) = &bus_id {
        permissions.record(session, AuditedUse::Detach, bus_id, Ok(()));
        let name = registry.device_name(bus_id).unwrap_or_else(|| bus_id.clone());
        publish(Event::of(EventKind::Released, name).host(session.peer.as_str()).how(ending.as_str()));
    }
    match (bus_id, device) {
        (Some(bus_id), Some(device)) if !device.is_gone() => {
            registry.lock().release(&bus_id, &session.peer, Some(device), ending, now);
        }
        (Some(bus_id), _) => registry.lock().withdraw_gone(&bus_id, now),
        (None, _) => {}
    }
    link.shut_down();
    shared.sessions.end(number);
}

impl ConnectionHandler for ExporterState {
    fn clock(&self) -> BoottimeClock {
        self.serving.clock
    }

    fn is_closing(&self) -> bool {
        self.sessions.is_stopping()
    }

    fn account(&self, host: &Fingerprint) -> Arc<MemoryAccount> {
        self.sessions.accounts.of(PeerIdentity::Host(*host))
    }

    fn receive(self: Arc<Self>, link: Link, paired_peer: PairedPeer, protocol: LinkProtocol) -> io::Result<()> {
        let of_its_own = match protocol {
            LinkProtocol::Session => None,
            _ => Some(link.try_clone()?),
        };
        let (peer, peer_identity) = (link.peer().to_owned(), PeerIdentity::Host(paired_peer.fingerprint()));
        let entered = match protocol {
            LinkProtocol::Control => self.sessions.enter_questions(of_its_own, peer, Some(paired_peer), peer_identity),
            _ => self.sessions.enter(of_its_own, peer, Some(paired_peer), peer_identity),
        };
        let (number, session) = entered.inspect_err(|error| tell_why(&self, protocol, &link, error))?;
        match protocol {
            LinkProtocol::UsbIp => {
                let since = self.serving.clock.now();
                serve_usbip(&self, number, &session, &link, since);
            }
            LinkProtocol::Control => {
                let _taken = session
                    .account
                    .take(QUESTIONS_BYTES)
                    .map_err(io::Error::other)
                    .inspect_err(|_| self.sessions.end(number))?;
                if let Err(error) = questions::answer(&self, &session, &link) {
                    info!(peer = session.peer, %error, "its questions ended");
                }
                link.shut_down();
                self.sessions.end(number);
            }
            LinkProtocol::Session => serve_session(&self, number, &session, link),
            // ALPN never negotiates pairing here.
            LinkProtocol::Pairing => self.sessions.end(number),
        }
        Ok(())
    }
}

/// Tells a paired host that its connection has no place, as its protocol can.
fn tell_why(shared: &ExporterState, protocol: LinkProtocol, link: &Link, error: &io::Error) {
    let answered = match protocol {
        LinkProtocol::Control => questions::refuse(link, &error.to_string()),
        LinkProtocol::Session => shared.native.refuse(link),
        LinkProtocol::UsbIp | LinkProtocol::Pairing => Ok(()),
    };
    if let Err(error) = answered {
        debug!(peer = link.peer(), %error, "it was not told why it was turned away");
    }
    link.shut_down();
}

/// Once a second, ends sessions of hosts that are no longer paired or hold a device that they may no longer use,
/// however the list of peers was changed.
pub fn recheck(shared: &ExporterState, trust: &TrustStore) {
    let ExporterState { registry, permissions, .. } = shared;
    while !shared.sessions.is_stopping() {
        thread::sleep(RECHECK_EVERY);
        // While the list cannot be read, no host is trusted.
        let peers = trust.peers().inspect_err(|error| error!(%error, "who is paired cannot be read")).ok();
        let names = registry.names();
        for session in shared.sessions.all() {
            let Some(paired_peer) = &session.paired_peer else { continue };
            let held = session.device().or_else(|| session.observes.get().cloned());
            let device = held.and_then(|bus_id| names.get(&bus_id));
            let is_lent =
                device.is_some_and(|(name, _)| permissions.lent_to(session.peer_identity, name) == Some(true));
            let needed = device.filter(|_| !is_lent).map(|(name, id)| (registry.permitted_as(name), *id));
            let device = device.map(|(name, _)| name.as_str());
            if !peers.as_ref().is_some_and(|peers| paired_peer.may_stay(peers, needed)) {
                warn!(peer = session.peer, device, "cut off: its permission was taken back");
                session.forbid();
            }
        }
    }
}

fn ending_of(end: &UsbipEngineEnd) -> UseEnding {
    match end {
        UsbipEngineEnd::Finished | UsbipEngineEnd::Closed => UseEnding::Detached,
        UsbipEngineEnd::Lost(_) => UseEnding::Lost,
        UsbipEngineEnd::Bug => UseEnding::Bug,
        UsbipEngineEnd::Gone => UseEnding::Gone,
        UsbipEngineEnd::Fault(_) => UseEnding::CutOff,
    }
}

fn report_end(end: &UsbipEngineEnd, ending: UseEnding, peer: &str, device: Option<&str>) {
    let device = device.unwrap_or("none");
    match end {
        _ if matches!(ending, UseEnding::Expired | UseEnding::Preempted | UseEnding::Released) => {
            info!(device, peer, how = ending.as_str(), "the lease of the peer has ended, and with it the connection");
        }
        _ if ending == UseEnding::TakenBack => info!(device, peer, "taken back by its owner"),
        UsbipEngineEnd::Finished | UsbipEngineEnd::Closed => info!(device, peer, "the peer ended the connection"),
        UsbipEngineEnd::Gone => warn!(device, peer, "the device was unplugged"),
        UsbipEngineEnd::Lost(error) => warn!(device, peer, %error, "the link was lost; the device is offered again"),
        UsbipEngineEnd::Bug => {
            error!(device, peer, "a bug in farbus ended the connection; please report the message above")
        }
        UsbipEngineEnd::Fault(fault) => warn!(device, peer, %fault, "the connection was cut off"),
    }
}
