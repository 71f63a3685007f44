//! Where the daemon listens, and what it announces of that to hosts nearby.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farbus::broker::BrokerClient;
use farbus::common::listen_words::listen_failure;
use farbus::common::networks::IpNetwork;
use farbus::common::socket_place::{SocketListener, SocketLocation};
use farbus::exporter::access::local_users::LocalUsers;
use farbus::exporter::share::QuicBeside;
use farbus_control::failure::CommandFailure;
use farbus_io_net::discovery::{AnnouncedProtocol, HostAnnouncement};
use farbus_io_net::link::TcpLinkListener;
use tracing::{info, warn};

use super::config::DaemonConfig;
use super::handover::PassedListener;
use super::supervisor::{DaemonListener, Supervisor, SupervisorChanges, SupervisorState};

/// This machine's own addresses, which may always connect to a plain listener.
const OURSELVES: [&str; 2] = ["127.0.0.0/8", "::1"];

/// An address that was opened and is not served yet.
pub(super) struct BoundListener {
    configured: SocketLocation,
    is_secure: bool,
    /// Whether the service manager, or the daemon before this one, passed it.
    is_passed: bool,
    listener: SocketListener,
}

impl SupervisorState {
    /// Addresses of the loopback that were passed: by the service manager, for a unit that an earlier version enabled,
    /// or by the daemon before this one. Served users who connect there continue to be served.
    fn passed_plain(&self) -> Vec<SocketLocation> {
        let fresh = self.passed.iter().filter_map(|listener| listener.address().ok());
        let inherited = self.inherited.iter().filter(|passed| !passed.is_secure).filter_map(|passed| passed.address);
        let served =
            self.listeners.iter().filter(|listens| listens.is_passed).map(|listens| listens.configured.clone());
        let all: BTreeSet<SocketAddr> = fresh.chain(inherited).collect();
        let local = all.into_iter().map(SocketLocation::Address).filter(SocketLocation::is_local);
        local.chain(served).collect()
    }
}

impl Supervisor {
    /// Passed sockets that the configuration does not name. Clients that connect there get no answer.
    pub fn unused(&self) -> Vec<SocketAddr> {
        self.has().passed.iter().filter_map(|listener| listener.address().ok()).collect()
    }

    /// The listening places, and whether each is for paired hosts.
    pub fn locations(&self) -> Vec<(SocketLocation, bool)> {
        self.has().listeners.iter().map(|listens| (listens.location.clone(), listens.is_secure)).collect()
    }

    /// Opens new addresses, and closes those that are no longer wanted. If one cannot be opened, nothing was closed.
    /// [`Supervisor::serve`] serves the new ones.
    ///
    /// # Errors
    /// An address cannot be opened.
    pub(super) fn listen(
        &self,
        has: &mut SupervisorState,
        config: &DaemonConfig,
        changes: &mut SupervisorChanges,
    ) -> Result<Vec<BoundListener>, CommandFailure> {
        if !config.secure.is_empty() && self.trust.is_none() {
            let what = "it began without [secure], and has given away what it needs for that\n  restart it";
            return Err(CommandFailure::local(format!("cannot serve paired hosts: {what}")));
        }
        self.share.allow_reserve_high(config.reserve_high.clone());
        let users = LocalUsers::of(&config.local_users, |name| self.system.user_number(name));
        self.share.serve_local_users(users.map_err(CommandFailure::local)?);
        let passed = if config.is_default_listen { has.passed_plain() } else { Vec::new() };
        let plain = config.listen.iter().map(|location| (location.clone(), false));
        let secure = config.secure.iter().map(|address| (SocketLocation::Address(*address), true));
        let wanted: Vec<(SocketLocation, bool)> =
            plain.chain(secure).chain(passed.iter().map(|location| (location.clone(), false))).collect();
        let mut fresh: Vec<(SocketLocation, bool, SocketListener)> = Vec::new();
        // A process with this configuration that was killed just now may have its addresses until the last of its
        // threads has ended.
        let until = Instant::now() + if has.listeners.is_empty() { START_TIME_MAX } else { Duration::ZERO };
        for (requested, is_secure) in &wanted {
            if !has.listeners.iter().any(|listens| (&listens.configured, &listens.is_secure) == (requested, is_secure))
            {
                fresh.push((requested.clone(), *is_secure, self.listener_at(has, requested, *is_secure, until)?));
            }
        }
        has.listeners.retain(|DaemonListener { configured, location, is_secure, .. }| {
            let stays = wanted.iter().any(|(wanted, secure)| (wanted, secure) == (configured, is_secure));
            match stays {
                true if *is_secure => {}
                true => self.share.addresses().allow(location, allowed_at(location, &config.allow)),
                false => {
                    self.share.addresses().close(location);
                    changes.removed.push(location.as_host());
                }
            }
            stays
        });
        let opened = |(configured, is_secure, listener)| {
            let is_passed = passed.contains(&configured);
            BoundListener { configured, is_secure, is_passed, listener }
        };
        Ok(fresh.into_iter().map(opened).collect())
    }

    /// Serves clients at these addresses. The devices must be on offer already: an importer whose session continues
    /// here after a restart would otherwise learn that its device is gone.
    ///
    /// # Errors
    /// An address cannot be listened at.
    pub(super) fn serve(
        &self,
        opened: Vec<BoundListener>,
        has: &mut SupervisorState,
        config: &DaemonConfig,
        changes: &mut SupervisorChanges,
    ) -> Result<(), CommandFailure> {
        for BoundListener { configured, is_secure, is_passed, listener } in opened {
            let begun = self.begin(listener, &configured, is_secure, &config.allow);
            let location = begun.map_err(|error| listen_failure(&configured, &error))?;
            changes.added.push(location.as_host());
            has.listeners.push(DaemonListener { configured, location, is_secure, is_passed });
        }
        Ok(())
    }

    fn begin(
        &self,
        listener: SocketListener,
        requested: &SocketLocation,
        is_secure: bool,
        allow: &[IpNetwork],
    ) -> std::io::Result<SocketLocation> {
        let location = listener.location()?;
        match (self.trust.as_ref().filter(|_| is_secure), listener) {
            (Some(trust), SocketListener::Tcp(listener)) => {
                let port = listener.address()?.port();
                let beside = self.share.listen_secure_on(listener, trust.clone())?;
                match self.broker.listen_for_datagrams(requested, port) {
                    Ok(socket) => beside.serve(socket)?,
                    // The process that this one replaces has it until it ends.
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {
                        let (broker, location) = (Arc::clone(&self.broker), requested.clone());
                        let wait = move || serve_when_free(&beside, &broker, &location, port);
                        thread::Builder::new().name("quic-port".into()).spawn(wait)?;
                    }
                    Err(error) => warn_of_port(&location, &error),
                }
                Ok(location)
            }
            (_, listener) => {
                listener.never_wait()?;
                self.share.listen_at(listener, allowed_at(&location, allow))
            }
        }
    }

    fn listener_at(
        &self,
        has: &mut SupervisorState,
        location: &SocketLocation,
        is_secure: bool,
        until: Instant,
    ) -> Result<SocketListener, CommandFailure> {
        if let SocketLocation::Address(address) = *location {
            let is_it = |passed: &PassedListener| (passed.address, passed.is_secure) == (Some(address), is_secure);
            if let Some(at) = has.inherited.iter().position(is_it) {
                return Ok(SocketListener::Tcp(has.inherited.swap_remove(at).listener));
            }
            let is_it = |listener: &TcpLinkListener| listener.address().is_ok_and(|passed| passed == address);
            if let Some(at) = has.passed.iter().position(is_it) {
                return Ok(SocketListener::Tcp(has.passed.swap_remove(at)));
            }
        }
        let mut is_logged = false;
        loop {
            match self.broker.listen(location) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                    if !std::mem::replace(&mut is_logged, true) {
                        let seconds = START_TIME_MAX.as_secs();
                        info!(%location, "another process listens there: waiting up to {seconds} s for its end");
                    }
                    thread::sleep(PORT_ASKED_EVERY);
                }
                listens => return listens.map_err(|error| listen_failure(location, &error)),
            }
        }
    }

    /// Announces the listening addresses that other hosts can reach.
    pub(super) fn announce(&self, has: &mut SupervisorState, config: &DaemonConfig) {
        let Some(nearby) = &self.nearby else { return };
        let fingerprint = self.trust.as_ref().map(|trust| trust.fingerprint().to_string());
        let wanted = announcements(&has.listeners, config, fingerprint.as_deref());
        let trouble = nearby.announce(&wanted).err().map(|error| error.to_string());
        // Each trouble is logged once.
        if let Some(error) = trouble.as_ref().filter(|_| trouble != has.unannounced) {
            warn!(error, "not announced");
        }
        has.unannounced = trouble;
    }
}

/// The announcements: each port once, with its addresses.
fn announcements(
    listeners: &[DaemonListener],
    config: &DaemonConfig,
    fingerprint: Option<&str>,
) -> Vec<HostAnnouncement> {
    let mut wanted: Vec<HostAnnouncement> = Vec::new();
    for DaemonListener { location, is_secure, .. } in listeners {
        let SocketLocation::Address(address) = location else { continue };
        if location.is_local() {
            continue;
        }
        let (kind, is_wished) = match is_secure {
            true => (AnnouncedProtocol::Secure, config.announce_secure),
            false => (AnnouncedProtocol::Plain, config.announce),
        };
        if !is_wished {
            continue;
        }
        let port = address.port();
        let known = wanted.iter().position(|other| (other.kind, other.port) == (kind, port));
        let at = known.unwrap_or_else(|| {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let fingerprint = fingerprint.filter(|_| *is_secure).map(str::to_owned);
            wanted.push(HostAnnouncement { kind, port, addresses: Vec::new(), version, fingerprint });
            wanted.len() - 1
        });
        // An empty list of addresses means all of them.
        let is_all = address.ip().is_unspecified() || (known.is_some() && wanted[at].addresses.is_empty());
        match is_all {
            true => wanted[at].addresses.clear(),
            false => wanted[at].addresses.push(address.ip()),
        }
    }
    wanted
}

/// How long an address may be another process's when the daemon starts. A process with a thousand attachments needed
/// more than a second to end, killed on a machine with a load of 80.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the port for QUIC may be another process's, and how often it is asked for.
const PORT_TIME_MAX: Duration = Duration::from_secs(30);
const PORT_ASKED_EVERY: Duration = Duration::from_millis(50);

/// Serves paired hosts by QUIC once the port is free.
fn serve_when_free(beside: &QuicBeside, broker: &BrokerClient, requested: &SocketLocation, port: u16) {
    let until = Instant::now() + PORT_TIME_MAX;
    while !beside.is_closed() {
        thread::sleep(PORT_ASKED_EVERY);
        match broker.listen_for_datagrams(requested, port).and_then(|socket| beside.serve(socket)) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {}
            Err(error) => return warn_of_port(requested, &error),
        }
    }
}

fn warn_of_port(location: &SocketLocation, error: &std::io::Error) {
    warn!(%location, %error, "no QUIC: its port is not to be had");
}

/// The networks that may connect at a place. The loopback is open to all, because only this machine reaches it.
fn allowed_at(location: &SocketLocation, allow: &[IpNetwork]) -> Option<Vec<IpNetwork>> {
    let ourselves = OURSELVES.iter().map(|text| text.parse().expect("a constant that a test reads"));
    (!location.is_local()).then(|| ourselves.chain(allow.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_off_the_loopback_are_announced_with_their_kind() {
        let listens = |address: &str, is_secure| {
            let location: SocketLocation = address.parse().unwrap();
            DaemonListener { configured: location.clone(), location, is_secure, is_passed: false }
        };
        let all = [
            listens("127.0.0.1:3240", false),
            listens("unix:/run/farbus/share.sock", false),
            listens("10.0.0.1:3240", false),
            listens("[::]:3241", true),
        ];
        let config = DaemonConfig { announce: true, announce_secure: true, ..DaemonConfig::default() };
        let host_announcements = announcements(&all, &config, Some("sha256:ab"));
        assert_eq!(
            host_announcements.iter().map(|announcement| (announcement.kind, announcement.port)).collect::<Vec<_>>(),
            [(AnnouncedProtocol::Plain, 3240), (AnnouncedProtocol::Secure, 3241)]
        );
        assert_eq!(
            (&host_announcements[0].addresses, &host_announcements[0].fingerprint),
            (&vec!["10.0.0.1".parse().unwrap()], &None)
        );
        assert_eq!(
            (host_announcements[1].addresses.len(), host_announcements[1].fingerprint.as_deref()),
            (0, Some("sha256:ab"))
        );
        let quiet = DaemonConfig { announce: true, ..DaemonConfig::default() };
        assert_eq!(announcements(&all, &quiet, Some("sha256:ab")).len(), 1);
    }

    #[test]
    fn address_off_the_loopback_admits_its_list_and_this_machine_only() {
        let allow = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(allowed_at(&"127.0.0.1:3240".parse().unwrap(), &allow), None);
        let allowed = allowed_at(&"0.0.0.0:3240".parse().unwrap(), &allow).unwrap();
        let admits = |address: &str| allowed.iter().any(|network| network.contains(address.parse().unwrap()));
        assert!(admits("127.0.0.1") && admits("::1") && admits("10.1.1.1") && !admits("192.0.2.1"));
    }
}
