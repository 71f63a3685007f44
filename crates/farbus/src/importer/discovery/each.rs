//! Tells of every host of which something is known, as soon as it is: for a page, which shows each by itself.
//!
//! A host that does not answer costs nobody else anything: each is asked on a thread of its own, and all of it ends
//! after [`ALL_TIME_MAX`].

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_net::discovery::{self, AnnouncedProtocol, DiscoveredHost};
use serde_json::{Value, json};
use tracing::debug;

use super::everywhere::{is_ours, own};
use crate::common::socket_place::SocketLocation;
use crate::devices::offer::ListedDevice;
use crate::hosts::trust::TrustStore;
use crate::importer::client::{ClientError, ImporterClient};

/// How long announcements are awaited.
const BROWSE_TIME: Duration = Duration::from_millis(1500);
/// How long each host may take for its list.
const LIST_TIME_MAX: Duration = Duration::from_secs(3);
/// How long all of it may take.
const ALL_TIME_MAX: Duration = Duration::from_secs(8);
/// Hosts that are asked at a time.
const ASKED_MAX: usize = 32;
/// Hosts that are told of.
const HOSTS_MAX: usize = 1000;

/// What one of the threads has to say.
enum DiscoveryMessage {
    /// Who announces itself nearby.
    Found(Vec<DiscoveredHost>),
    /// What a host offers, or why that is not known.
    Answered(Value, Result<Vec<ListedDevice>, ClientError>),
}

/// A host to be asked at this address or under this name, and what is told of it in any case.
struct DiscoveryCandidate {
    address: String,
    known: Value,
}

/// Tells of each host, as an object: `own` of this one, else `host`, `key`, `address`, `farbus`, `is_paired`,
/// `is_found` and, of one that was asked, `devices` or `failure`. Ends when `say` returns false.
pub fn tell(mut say: impl FnMut(&Value) -> bool) {
    let until = Instant::now() + ALL_TIME_MAX;
    let trust = TrustStore::is_there().then(TrustStore::open).and_then(Result::ok);
    let own_key = trust.as_ref().map(|trust| trust.fingerprint().to_string());
    let paired = trust.as_ref().map(TrustStore::names_by_key).unwrap_or_default();
    if !say(&json!({ "own": { "key": own_key } })) {
        return;
    }
    let (news, heard) = channel();
    let mut waiting: VecDeque<DiscoveryCandidate> = paired
        .iter()
        .take(HOSTS_MAX)
        .map(|(key, name)| {
            let known = json!({ "host": name, "key": key, "is_paired": true });
            DiscoveryCandidate { address: name.clone(), known }
        })
        .collect();
    let tell_found = news.clone();
    thread::spawn(move || {
        let found =
            discovery::browse(&[AnnouncedProtocol::Plain, AnnouncedProtocol::Secure], BROWSE_TIME, discovery::PORT);
        let found = found.inspect_err(|error| debug!(%error, "nobody is looked for nearby"));
        // The receiving thread may have stopped waiting.
        let _ = tell_found.send(DiscoveryMessage::Found(found.unwrap_or_default()));
    });
    let (mut asking, mut is_looking) = (0, true);
    while is_looking || asking > 0 || !waiting.is_empty() {
        while asking < ASKED_MAX
            && let Some(candidate) = waiting.pop_front()
        {
            ask(candidate, news.clone());
            asking += 1;
        }
        let goes_on = match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(DiscoveryMessage::Found(found)) => {
                is_looking = false;
                told_of(found, &paired, own_key.as_ref(), &mut waiting).iter().all(&mut say)
            }
            Ok(DiscoveryMessage::Answered(mut notice, result)) => {
                asking -= 1;
                match result {
                    Ok(devices) => notice["devices"] = devices.iter().map(told_device).collect(),
                    Err(error) => notice["failure"] = json!(error.to_string()),
                }
                say(&notice)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        };
        if !goes_on {
            return;
        }
    }
}

fn ask(DiscoveryCandidate { address, known }: DiscoveryCandidate, news: Sender<DiscoveryMessage>) {
    thread::spawn(move || {
        let offers = ImporterClient::default().offers(&address, LIST_TIME_MAX);
        let _ = news.send(DiscoveryMessage::Answered(known, offers));
    });
}

fn told_device(device: &ListedDevice) -> Value {
    let mut object = serde_json::to_value(device).unwrap_or_default();
    object["title"] = json!(device.title);
    object
}

/// What is told of hosts nearby; those that serve everybody are asked, too.
fn told_of(
    found: Vec<DiscoveredHost>,
    paired: &BTreeMap<String, String>,
    own_key: Option<&String>,
    waiting: &mut VecDeque<DiscoveryCandidate>,
) -> Vec<Value> {
    let ours = own().locations;
    let is_own = |address: &SocketAddr| {
        let has_port =
            |own: &SocketLocation| matches!(own, SocketLocation::Address(own) if own.port() == address.port());
        ours.iter().any(has_port) && is_ours(*address)
    };
    let mut notices = Vec::new();
    for DiscoveredHost { name, kind, addresses, version, fingerprint } in found.into_iter().take(HOSTS_MAX) {
        let Some(address) = addresses.first() else { continue };
        if fingerprint.is_some() && fingerprint.as_ref() == own_key {
            continue;
        }
        let paired_name = fingerprint.as_ref().and_then(|key| paired.get(key));
        let host = paired_name.unwrap_or(&name);
        let known = json!({
            "host": host, "key": fingerprint, "address": address.to_string(), "farbus": version,
            "is_paired": paired_name.is_some(), "is_found": true,
        });
        // A paired host is asked over its encrypted link alone, and no other goes by its name.
        if kind == AnnouncedProtocol::Plain && paired_name.is_none() && !paired.values().any(|known| *known == name) {
            if !is_own(address) {
                waiting.push_back(DiscoveryCandidate { address: address.to_string(), known });
            }
        } else {
            notices.push(known);
        }
    }
    notices
}
