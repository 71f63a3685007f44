//! What is offered here and nearby, without anybody being named: this machine's own shares, and hosts that announce themselves.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use farbus_io::discovery::{self, Kind};
use farbus_session::DeviceRecord;
use tracing::debug;

use crate::client::{Attribute, FailureReport, list_within};
use crate::control::{Answer, Question, ask_all};
use crate::share::DEFAULT_PORT;

/// How long announcements are waited for: a host that has answered somebody else this moment may answer again a second
/// later (RFC 6762 §6).
const BROWSE_TIME: Duration = Duration::from_millis(1500);
/// How long each host may take for its list.
const LIST_TIME_MAX: Duration = Duration::from_secs(2);
/// And all of them together: a host that says a byte now and then is not waited for.
const LISTS_TIME_MAX: Duration = Duration::from_secs(4);

/// A host, and what it offers.
#[derive(Debug)]
pub struct Neighbour {
    /// What stands before the `/` in a target.
    pub name: String,
    /// Where it was asked.
    pub address: SocketAddr,
    /// Its devices, or why they are not known.
    pub devices: Result<Vec<DeviceRecord>, FailureReport>,
}

/// Everybody who is there, this machine first, each asked for what it offers.
pub fn all() -> Vec<Neighbour> {
    let mut hosts = own();
    let ours: BTreeSet<u16> = hosts.iter().map(|(_, address)| address.port()).collect();
    hosts.push((String::new(), SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT))));
    match discovery::browse(&[Kind::Plain], BROWSE_TIME, discovery::PORT) {
        Ok(found) => {
            let addresses = found.into_iter().filter_map(|host| Some((host.name, *host.addresses.first()?)));
            hosts.extend(addresses.filter(|(_, address)| !(ours.contains(&address.port()) && is_ours(*address))));
        }
        Err(error) => debug!(%error, "nobody else is looked for"),
    }
    hosts.dedup_by_key(|(_, address)| *address);
    ask(hosts)
}

/// Asks all at once. The default port of this machine is a guess: it counts only if it answers.
fn ask(hosts: Vec<(String, SocketAddr)>) -> Vec<Neighbour> {
    let (answers, answered) = channel();
    let until = Instant::now() + LISTS_TIME_MAX;
    for (at, (_, address)) in hosts.iter().enumerate() {
        let (answers, address) = (answers.clone(), address.to_string());
        // Who hears the answer may have stopped waiting.
        thread::spawn(move || answers.send((at, list_within(&address, LIST_TIME_MAX))));
    }
    drop(answers);
    let silent = |address: &SocketAddr| FailureReport {
        attribute: Attribute::Network,
        message: format!("{address} did not say in time what it offers"),
    };
    let mut results: Vec<_> = hosts.iter().map(|(_, address)| Err(silent(address))).collect();
    while let Ok((at, result)) = answered.recv_timeout(until.saturating_duration_since(Instant::now())) {
        results[at] =
            result.map_err(|error| FailureReport { attribute: error.attribute(), message: error.to_string() });
    }
    let neighbours = hosts.into_iter().zip(results).map(|((name, address), devices)| {
        let is_guess = name.is_empty();
        let name = if is_guess { own_target(address) } else { name };
        (is_guess, Neighbour { name, address, devices })
    });
    neighbours.filter(|(is_guess, host)| !is_guess || host.devices.is_ok()).map(|(_, host)| host).collect()
}

/// Where this user's own shares listen.
fn own() -> Vec<(String, SocketAddr)> {
    let Ok(answers) = ask_all(&Question::Status) else { return Vec::new() };
    let addresses = answers.into_iter().filter_map(|(_, answer)| match answer {
        Answer::Ok(process) if process["role"] != "attach" => process["address"].as_str()?.parse().ok(),
        _ => None,
    });
    addresses
        .map(|mut address: SocketAddr| {
            if address.ip().is_unspecified() {
                address.set_ip([127, 0, 0, 1].into());
            }
            (own_target(address), address)
        })
        .collect()
}

fn own_target(address: SocketAddr) -> String {
    if address.port() == DEFAULT_PORT { address.ip().to_string() } else { address.to_string() }
}

/// Whether an address is this machine's: then something can be bound to it.
fn is_ours(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}
