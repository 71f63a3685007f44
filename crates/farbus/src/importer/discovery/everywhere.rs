//! Lists what is offered on this machine and elsewhere without being given a host: this machine's own shares, the
//! paired hosts, and hosts nearby that announce themselves.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_net::discovery::{self, AnnouncedProtocol, DiscoveredHost};
use farbus_io_net::link::host_address::DEFAULT_PORT;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use tracing::{debug, warn};

use crate::common::socket_place::SocketLocation;
use crate::devices::offer::ListedDevice;
use crate::hosts::trust::TrustStore;
use crate::importer::client::{ClientError, FailureKind, FailureReport, ImporterClient};
use crate::importer::discovery::local_shares;

/// How long announcements are awaited: a host that has just answered another query may answer again a second later (RFC
/// 6762 §6).
const BROWSE_TIME: Duration = Duration::from_millis(1500);
/// How long each host may take for its list.
const LIST_TIME_MAX: Duration = Duration::from_secs(2);
/// How long all hosts together may take: a host that sends a byte now and then is not waited for.
const LISTS_TIME_MAX: Duration = Duration::from_secs(4);

/// A host, and what it offers.
#[derive(Debug)]
pub struct ListedHost {
    /// The part before the `/` in a target.
    pub name: String,
    /// Its devices, or why they are not known.
    pub devices: Result<Vec<ListedDevice>, FailureReport>,
}

/// A host to be asked.
struct ListedHostCandidate {
    name: String,
    /// `HOST:PORT`, or the name of a paired host.
    address: String,
    /// Whether it is listed only if it answers.
    is_guess: bool,
}

/// What all known hosts offer.
#[derive(Debug)]
pub struct NetworkListing {
    /// This machine first.
    pub hosts: Vec<ListedHost>,
    /// Names of this user's own devices that only paired hosts can use.
    pub for_paired_hosts: Vec<String>,
    /// Hosts nearby that announce that they serve paired hosts, and are not paired with this one: name and address.
    pub unpaired: Vec<(String, SocketAddr)>,
    /// Whether nobody else announces anything; `None` if that could not be found out.
    pub is_alone: Option<bool>,
}

/// Asks all known hosts what they offer. A paired host is asked only over its encrypted link.
pub fn all() -> NetworkListing {
    let OwnShares { locations: ours, for_paired_hosts } = own();
    let paired = paired();
    let mut hosts: Vec<ListedHostCandidate> =
        ours.iter().map(|at| candidate(own_target(at), &at.as_host(), false)).collect();
    let default = SocketLocation::Address(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
    if !ours.contains(&default) {
        hosts.push(candidate(own_target(&default), &default, true));
    }
    let found = discovery::browse(&[AnnouncedProtocol::Plain, AnnouncedProtocol::Secure], BROWSE_TIME, discovery::PORT);
    let found = found.inspect_err(|error| debug!(%error, "nobody else is looked for"));
    hosts.extend(paired.values().map(|name| candidate(name.clone(), name, false)));
    let is_known = found.is_ok();
    let AnnouncedHosts { plain, unpaired } = sorted(found.unwrap_or_default(), &paired, own_key().as_ref());
    let mut others = unpaired.len();
    for (name, address) in plain {
        let has_port =
            |own: &SocketLocation| matches!(own, SocketLocation::Address(own) if own.port() == address.port());
        if !(ours.iter().any(has_port) && is_ours(address)) {
            hosts.push(candidate(name, &address, false));
            others += 1;
        }
    }
    let is_alone = is_known.then_some(others == 0 && paired.is_empty());
    NetworkListing { hosts: ask(hosts, LIST_TIME_MAX, LISTS_TIME_MAX), for_paired_hosts, unpaired, is_alone }
}

/// What announcements say of hosts that are not paired with this one.
#[derive(Debug, Default, PartialEq, Eq)]
struct AnnouncedHosts {
    /// Those that serve everybody.
    plain: Vec<(String, SocketAddr)>,
    /// Those that serve paired hosts.
    unpaired: Vec<(String, SocketAddr)>,
}

/// Leaves out this host and the paired ones. A paired host is known by its key, whatever it is called now; so what is
/// announced under its present name, or at its address, is its own, too.
fn sorted(found: Vec<DiscoveredHost>, paired: &BTreeMap<String, String>, own_key: Option<&String>) -> AnnouncedHosts {
    let is_known = |host: &&DiscoveredHost| {
        host.fingerprint.as_ref().is_some_and(|key| paired.contains_key(key) || Some(key) == own_key)
    };
    let known: Vec<&DiscoveredHost> = found.iter().filter(is_known).collect();
    let is_one_of_them = |host: &DiscoveredHost| {
        let has_its_address = |known: &&DiscoveredHost| {
            known.addresses.iter().any(|known| host.addresses.iter().any(|at| at.ip() == known.ip()))
        };
        known.iter().any(|known| known.name == host.name || has_its_address(known))
    };
    let mut all = AnnouncedHosts::default();
    for host in &found {
        let Some(&address) = host.addresses.first() else { continue };
        let entry = (host.name.clone(), address);
        match host.kind {
            _ if is_known(&host) => {}
            AnnouncedProtocol::Secure => all.unpaired.push(entry),
            AnnouncedProtocol::Plain if !paired.values().any(|name| *name == host.name) && !is_one_of_them(host) => {
                all.plain.push(entry);
            }
            AnnouncedProtocol::Plain | AnnouncedProtocol::Pairing => {}
        }
    }
    all
}

fn own_key() -> Option<String> {
    let trust = TrustStore::is_there().then(TrustStore::open)?.ok()?;
    Some(trust.fingerprint().to_string())
}

/// Asks these paired hosts what they offer. Each may take as long as all together.
pub fn of_paired(names: impl IntoIterator<Item = String>) -> Vec<ListedHost> {
    let hosts = names.into_iter().map(|name| candidate(name.clone(), &name, false)).collect();
    ask(hosts, LISTS_TIME_MAX, LISTS_TIME_MAX)
}

fn candidate(name: String, address: &dyn ToString, is_guess: bool) -> ListedHostCandidate {
    ListedHostCandidate { name, address: address.to_string(), is_guess }
}

/// The names of the paired hosts, by their keys.
fn paired() -> BTreeMap<String, String> {
    if !TrustStore::is_there() {
        return BTreeMap::new();
    }
    let peers = TrustStore::open().and_then(|trust| trust.peers());
    match peers {
        Ok(peers) => peers.iter().map(|peer| (peer.fingerprint.to_string(), peer.name.clone())).collect(),
        Err(error) => {
            warn!(%error, "paired hosts are not asked");
            BTreeMap::new()
        }
    }
}

/// Asks all hosts at once, each for `each` and all for `all` at most.
fn ask(hosts: Vec<ListedHostCandidate>, each: Duration, all: Duration) -> Vec<ListedHost> {
    let (answers, answered) = channel();
    let until = Instant::now() + all;
    for (at, host) in hosts.iter().enumerate() {
        let (answers, address) = (answers.clone(), host.address.clone());
        thread::spawn(move || {
            let offers = ImporterClient::default().offers(&address, each);
            let report = offers.map_err(|error| error_report(&error));
            // The receiving thread may have stopped waiting.
            let _ = answers.send((at, report));
        });
    }
    drop(answers);
    let silent = |host: &ListedHostCandidate| {
        FailureReport::new(FailureKind::Network, format!("{} did not say in time what it offers", host.address))
    };
    let mut results: Vec<_> = hosts.iter().map(|host| Err(silent(host))).collect();
    while let Ok((at, result)) = answered.recv_timeout(until.saturating_duration_since(Instant::now())) {
        results[at] = result;
    }
    let all = hosts.into_iter().zip(results).filter(|(host, result)| !host.is_guess || result.is_ok());
    named_here(all.map(|(host, devices)| ListedHost { name: host.name, devices }).collect())
}

fn error_report(error: &ClientError) -> FailureReport {
    FailureReport::new(error.attribute(), error.to_string())
}

/// Names this machine's shares as `attach` takes them, unless two of them have a device of the same name.
fn named_here(mut all: Vec<ListedHost>) -> Vec<ListedHost> {
    let ours = |host: &&ListedHost| local_shares::is_ours(&host.name);
    let devices = all.iter().filter(ours).filter_map(|host| host.devices.as_ref().ok()).flatten();
    let repeated = local_shares::repeated(devices.map(|device| device.name.as_str()));
    let has_own_names = |host: &ListedHost| {
        host.devices.as_ref().is_ok_and(|devices| devices.iter().all(|device| !repeated.contains(&device.name)))
    };
    for host in all.iter_mut().filter(|host| local_shares::is_ours(&host.name)) {
        if has_own_names(host) {
            "localhost".clone_into(&mut host.name);
        }
    }
    all
}

/// This user's own shares.
#[derive(Debug, Default)]
pub(super) struct OwnShares {
    /// Where programs of this machine can ask for them.
    pub locations: Vec<SocketLocation>,
    /// Names of the devices that only paired hosts can use.
    pub for_paired_hosts: Vec<String>,
}

pub(super) fn own() -> OwnShares {
    let Ok(answers) = ask_all(&Question::Status) else { return OwnShares::default() };
    let processes = answers.into_iter().filter_map(|(_, answer)| match answer {
        Answer::Ok(process) if process["role"] != "attach" && process["role"] != "run" => Some(process),
        _ => None,
    });
    let (for_paired, for_all): (Vec<_>, Vec<_>) =
        processes.partition(|process| process["is_for_paired_hosts"].as_bool() == Some(true));
    let devices = for_paired.iter().filter_map(|process| process["devices"].as_array()).flatten();
    // What a daemon has attached is listed beside what it shares.
    let shared = devices.filter(|device| device["bus_id"].is_string());
    let for_paired_hosts = shared.filter_map(|device| Some(device["name"].as_str()?.to_owned())).collect();
    let addresses = for_all.iter().filter_map(|process| process["address"].as_str()?.parse().ok());
    let reachable = |mut location: SocketLocation| {
        if let SocketLocation::Address(address) = &mut location
            && address.ip().is_unspecified()
        {
            address.set_ip([127, 0, 0, 1].into());
        }
        location
    };
    OwnShares { locations: addresses.map(reachable).collect(), for_paired_hosts }
}

fn own_target(location: &SocketLocation) -> String {
    match location {
        SocketLocation::Address(address) if address.port() == DEFAULT_PORT => address.ip().to_string(),
        location => location.as_host(),
    }
}

/// Whether an address is this machine's: a socket can be bound to it.
pub(super) fn is_ours(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, kind: AnnouncedProtocol, address: &str, key: Option<&str>) -> DiscoveredHost {
        let addresses = vec![address.parse().unwrap()];
        DiscoveredHost { name: name.into(), kind, addresses, version: None, fingerprint: key.map(str::to_owned) }
    }

    #[test]
    fn paired_host_is_one_host_whatever_it_is_called_now() {
        let paired = BTreeMap::from([("key-lab3".to_owned(), "lab3".to_owned())]);
        let own = "key-own".to_owned();
        let (plain, secure) = (AnnouncedProtocol::Plain, AnnouncedProtocol::Secure);
        let found = vec![
            // It was renamed to b2 after pairing.
            host("b2", secure, "10.0.0.2:3241", Some("key-lab3")),
            host("b2", plain, "10.0.0.2:3240", None),
            host("b2-3249", plain, "10.0.0.2:3249", None),
            host("desk", secure, "10.0.0.1:3241", Some("key-own")),
            host("rack", secure, "10.0.0.3:3241", Some("key-rack")),
            host("bench", plain, "10.0.0.4:3240", None),
            // No other host goes by the name of a paired one.
            host("lab3", plain, "10.0.0.9:3240", None),
        ];
        let entry = |name: &str, address: &str| (name.to_owned(), address.parse().unwrap());
        let expected = AnnouncedHosts {
            plain: vec![entry("bench", "10.0.0.4:3240")],
            unpaired: vec![entry("rack", "10.0.0.3:3241")],
        };
        assert_eq!(sorted(found, &paired, Some(&own)), expected);
    }
}
