//! Discovery (U5): hosts announce themselves by mDNS and DNS-SD (RFC 6762, 6763) and are found by name.
//!
//! An announcement carries host, port, version and key fingerprint, but nothing about devices: only hosts that may
//! connect see what is on offer. Received announcements are untrusted; their size is limited here, and a host that
//! connects to an announced address verifies the peer's key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mdns_sd::{DaemonStatus, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo, UnregisterStatus};
use serde::{Deserialize, Serialize};

/// mDNS's own port (RFC 6762 §3).
pub const PORT: u16 = 5353;
/// The most hosts that are remembered in one search.
const HOSTS_MAX: usize = 256;
/// How long withdrawing an announcement may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_millis(500);
/// The most records of other hosts that are kept: any host may send records, and says itself how long they are valid.
/// A large network has a few thousand. 16,384 are about 10 MiB.
const RECORDS_MAX: i64 = 16 << 10;
/// How often to look at how many there are: 100 MiB/s of records make 25 MiB in that time.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A thread for mDNS that does not answer within this time has ended.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// The longest version or fingerprint.
const WORD_BYTES_MAX: usize = 128;

/// The protocol that is spoken at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnouncedProtocol {
    /// Plain USB/IP: `_usbip._tcp`.
    Plain,
    /// Encrypted, for paired hosts: `_farbus._tcp`.
    Secure,
    /// Pairing, while `farbus pair` waits: `_farbus-pair._tcp`.
    Pairing,
}

impl AnnouncedProtocol {
    const fn service(self) -> &'static str {
        match self {
            AnnouncedProtocol::Plain => "_usbip._tcp.local.",
            AnnouncedProtocol::Secure => "_farbus._tcp.local.",
            AnnouncedProtocol::Pairing => "_farbus-pair._tcp.local.",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            AnnouncedProtocol::Plain => "usbip",
            AnnouncedProtocol::Secure => "farbus",
            AnnouncedProtocol::Pairing => "pair",
        }
    }
}

/// What a host announces of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAnnouncement {
    /// The protocol that is spoken at `port`; it decides the mDNS service.
    pub kind: AnnouncedProtocol,
    /// The TCP port at which the host listens.
    pub port: u16,
    /// The addresses; if empty, all of this machine's, as they come and go.
    pub addresses: Vec<IpAddr>,
    /// The version of farbus that the host runs.
    pub version: String,
    /// The fingerprint of its key.
    pub fingerprint: Option<String>,
}

/// A host that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredHost {
    /// The name it goes by: unique on its network, which both ends make sure of (RFC 6762 §9).
    pub name: String,
    /// The protocol that the host speaks at `addresses`.
    pub kind: AnnouncedProtocol,
    /// Its addresses, in the order in which to try them; at least one.
    pub addresses: Vec<SocketAddr>,
    /// farbus's version, if the host announces one.
    pub version: Option<String>,
    /// The fingerprint of its key, as announced.
    pub fingerprint: Option<String>,
}

/// Why hosts can be neither announced nor found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryError(String);

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mDNS: {}", self.0)
    }
}

impl std::error::Error for DiscoveryError {}

impl From<mdns_sd::Error> for DiscoveryError {
    fn from(error: mdns_sd::Error) -> Self {
        Self(error.to_string())
    }
}

/// This machine's announcements. Dropping it withdraws them.
pub struct MdnsAnnouncer {
    daemon: ServiceDaemon,
    name: String,
    announced: Vec<(HostAnnouncement, String)>,
    port: u16,
    networks: BTreeSet<(String, IpAddr)>,
}

impl MdnsAnnouncer {
    /// An announcer without announcements. `name` is this machine's name; `port` is [`PORT`] except in tests.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    pub fn new(name: &str, port: u16) -> Result<Self, DiscoveryError> {
        let label = name.split('.').next().unwrap_or_default();
        if !is_name(label) {
            return Err(DiscoveryError(format!("'{name}' is no host name to announce")));
        }
        let daemon = ServiceDaemon::new_with_port(port)?;
        Ok(Self { daemon, name: label.to_owned(), announced: Vec::new(), port, networks: networks() })
    }

    /// Begins anew if hosts sent more records than there is room for, or if its thread has ended. Call it each
    /// [`LOOK_INTERVAL`]. Returns whether it began anew.
    ///
    /// # Errors
    /// As [`MdnsAnnouncer::announce`].
    pub fn tend(&mut self) -> Result<bool, DiscoveryError> {
        if records(&self.daemon).is_some_and(|records| records <= RECORDS_MAX) {
            return Ok(false);
        }
        let wanted: Vec<_> = self.announced.iter().map(|(announcement, _)| announcement.clone()).collect();
        self.begin_anew()?;
        self.announce(&wanted)?;
        Ok(true)
    }

    fn begin_anew(&mut self) -> Result<(), DiscoveryError> {
        self.announced.clear();
        // Its farewell must not follow the next announcement, nor its answers look like those of a host of this name.
        if let Ok(ended) = self.daemon.shutdown() {
            let _: Result<DaemonStatus, _> = ended.recv_timeout(ANSWER_TIME_MAX);
        }
        self.daemon = ServiceDaemon::new_with_port(self.port)?;
        Ok(())
    }

    /// Announces `wanted` and withdraws everything else. An announcement that stays is not repeated, unless a network
    /// came or went. Call it from time to time: an announcement that begins before its network is up is heard by no
    /// host (seen with mdns-sd 0.21.7).
    ///
    /// # Errors
    /// [`DiscoveryError`]; announcements before the failed one are made.
    pub fn announce(&mut self, wanted: &[HostAnnouncement]) -> Result<(), DiscoveryError> {
        let networks = networks();
        if networks != self.networks {
            self.begin_anew()?;
            self.networks = networks;
        }
        for (_, name) in self.announced.extract_if(.., |(announcement, _)| !wanted.contains(announcement)) {
            take_leave(&self.daemon, &name);
        }
        for announcement in wanted {
            if !self.announced.iter().any(|(known, _)| known == announcement) {
                let info = self.info(announcement, wanted)?;
                let name = info.get_fullname().to_owned();
                self.daemon.register(info)?;
                self.announced.push((announcement.clone(), name));
            }
        }
        Ok(())
    }

    fn info(
        &self,
        announcement: &HostAnnouncement,
        wanted: &[HostAnnouncement],
    ) -> Result<ServiceInfo, DiscoveryError> {
        let mut words = vec![("v", announcement.version.as_str())];
        words.extend(announcement.fingerprint.as_deref().map(|fingerprint| ("fp", fingerprint)));
        let HostAnnouncement { kind, port, .. } = *announcement;
        // The first announcement of a protocol has the host's plain name.
        let is_first = wanted.iter().find(|other| other.kind == kind) == Some(announcement);
        let name = if is_first { self.name.clone() } else { format!("{}-{port}", self.name) };
        // Withdrawing an announcement withdraws its host's addresses, too, so each has a host name of its own.
        let host = format!("{name}-{}.local.", kind.word());
        let ips: Vec<String> = announcement.addresses.iter().map(IpAddr::to_string).collect();
        let info = ServiceInfo::new(kind.service(), &name, &host, &ips[..], port, &words[..])?;
        Ok(if ips.is_empty() { info.enable_addr_auto() } else { info })
    }
}

impl Drop for MdnsAnnouncer {
    fn drop(&mut self) {
        for (_, name) in &self.announced {
            take_leave(&self.daemon, name);
        }
        let _ = self.daemon.shutdown();
    }
}

/// How many records of other hosts are kept; `None` if the thread that keeps them has ended. For each there is a timer,
/// which stays until the time that its sender named.
fn records(daemon: &ServiceDaemon) -> Option<i64> {
    let metrics = daemon.get_metrics().ok()?.recv_timeout(ANSWER_TIME_MAX).ok()?;
    let is_record = |name: &str| name.starts_with("cached-") || name == "timer";
    Some(metrics.iter().filter(|(name, _)| is_record(name)).map(|(_, count)| count).sum())
}

/// The interfaces that are up, with their addresses.
fn networks() -> BTreeSet<(String, IpAddr)> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    all.into_iter().filter(|network| network.is_oper_up()).map(|network| (network.name.clone(), network.ip())).collect()
}

/// A host that misses the withdrawal notices when the announcement has expired.
fn take_leave(daemon: &ServiceDaemon, name: &str) {
    if let Ok(done) = daemon.unregister(name) {
        let _: Result<UnregisterStatus, _> = done.recv_timeout(FAREWELL_TIME_MAX);
    }
}

/// The hosts that answer within `span`, by name. `port` is [`PORT`] except in tests.
///
/// # Errors
/// [`DiscoveryError`].
pub fn browse(kinds: &[AnnouncedProtocol], span: Duration, port: u16) -> Result<Vec<DiscoveredHost>, DiscoveryError> {
    search(kinds, span, port, |_| false)
}

/// The host called `name`, as soon as it answers; `None` if it does not within `span`.
///
/// # Errors
/// [`DiscoveryError`].
pub fn find(
    kind: AnnouncedProtocol,
    name: &str,
    span: Duration,
    port: u16,
) -> Result<Option<DiscoveredHost>, DiscoveryError> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let name = name.strip_suffix(".local").unwrap_or(name);
    if !is_name(name) {
        return Ok(None);
    }
    let is_it = |host: &DiscoveredHost| host.name.eq_ignore_ascii_case(name);
    Ok(search(&[kind], span, port, is_it)?.into_iter().find(is_it))
}

/// The paired host that announces a key with this fingerprint; `None` if it does not within `span`.
///
/// # Errors
/// [`DiscoveryError`].
pub fn find_key(fingerprint: &str, span: Duration, port: u16) -> Result<Option<DiscoveredHost>, DiscoveryError> {
    let is_it = |host: &DiscoveredHost| host.fingerprint.as_deref() == Some(fingerprint);
    Ok(search(&[AnnouncedProtocol::Secure], span, port, is_it)?.into_iter().find(is_it))
}

fn search(
    kinds: &[AnnouncedProtocol],
    span: Duration,
    port: u16,
    is_enough: impl Fn(&DiscoveredHost) -> bool,
) -> Result<Vec<DiscoveredHost>, DiscoveryError> {
    let daemon = ServiceDaemon::new_with_port(port)?;
    let until = Instant::now() + span;
    let events = kinds.iter().map(|&kind| Ok((kind, daemon.browse(kind.service())?)));
    let events = events.collect::<Result<Vec<_>, DiscoveryError>>()?;
    let mut found = BTreeMap::new();
    let mut looked = Instant::now();
    'all: while Instant::now() < until {
        if looked.elapsed() > LOOK_INTERVAL {
            if records(&daemon).is_none_or(|records| records > RECORDS_MAX) {
                break;
            }
            looked = Instant::now();
        }
        for (kind, events) in &events {
            // Listens to the kinds in turn: answers for the others wait in their queues.
            let slice = Instant::now() + SLICE;
            while let Ok(event) = events.recv_deadline(slice.min(until)) {
                let ServiceEvent::ServiceResolved(service) = event else { continue };
                let Some(host) = host_of(*kind, &service) else { continue };
                let is_enough = is_enough(&host);
                if found.len() < HOSTS_MAX || found.contains_key(&(host.name.clone(), *kind)) {
                    found.insert((host.name.clone(), *kind), host);
                }
                if is_enough {
                    break 'all;
                }
            }
        }
    }
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

/// How long to listen to one kind before the next.
const SLICE: Duration = Duration::from_millis(20);

/// Reads an announcement; `None` if it is invalid.
fn host_of(kind: AnnouncedProtocol, service: &ResolvedService) -> Option<DiscoveredHost> {
    let label = service.get_fullname().strip_suffix(kind.service())?.strip_suffix('.')?;
    let is_reachable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        // A link-local address needs the name of its network interface, which an address here cannot contain.
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_unicast_link_local(),
    };
    let mut ips: Vec<IpAddr> = service.get_addresses().iter().map(|ip| ip.to_ip_addr()).filter(is_reachable).collect();
    ips.sort_unstable();
    let addresses: Vec<_> = ips.into_iter().map(|ip| SocketAddr::new(ip, service.get_port())).collect();
    let first = *addresses.first()?;
    let word = |key: &str| {
        let value = service.get_property_val_str(key)?;
        let is_word = value.bytes().all(|byte| byte.is_ascii_graphic()) && (1..=WORD_BYTES_MAX).contains(&value.len());
        is_word.then(|| value.to_owned())
    };
    // A host whose name cannot be typed or printed is called by its address.
    let name = if is_name(label) { label.to_owned() } else { first.ip().to_string() };
    Some(DiscoveredHost { name, kind, addresses, version: word("v"), fingerprint: word("fp") })
}

/// Whether this is one label that can be typed: letters, digits, `-` and `_` (RFC 1123 §2.1, and common use).
fn is_name(label: &str) -> bool {
    (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The addresses at which other hosts reach this machine, those of IPv4 first.
pub fn own_addresses() -> Vec<IpAddr> {
    let is_reachable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let mut all: Vec<IpAddr> = networks().into_iter().map(|(_, ip)| ip).filter(is_reachable).collect();
    all.sort_unstable();
    all
}

/// This machine's name.
pub fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
