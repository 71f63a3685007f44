//! Answers questions of paired hosts over `farbus-control/1`: one line of JSON in each direction, until the host ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use farbus_control::device::DeviceStatus;
use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_io_net::link::Link;
use farbus_io_net::trust::host_name;
use farbus_session::claims::lease::LeaseHost;
use farbus_session::claims::shortened;

use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::leasing::{self, LeaseRequester};
use crate::exporter::owner;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::state::shared::ExporterState;
use crate::hosts::questions::{HostAnswer, HostQuestion, HostStatus, JsonLineChannel, NOT_A_QUESTION};

/// How long a paired host may stay silent.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a host may take to be told that its question has no place.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

/// Answers the questions of the session's paired host until it closes the link.
///
/// # Errors
/// The link was lost, or the host was silent for too long.
pub fn answer(shared: &Arc<ExporterState>, session: &SessionEntry, link: &Link) -> io::Result<()> {
    let Some(paired_peer) = &session.paired_peer else { return Ok(()) };
    let mut lines = JsonLineChannel::over(link, QUESTION_TIME_MAX)?;
    while let Some(line) = lines.receive()? {
        let answer = match serde_json::from_slice(&line) {
            Ok(question) => answer_to(question, shared, session, paired_peer),
            Err(error) => HostAnswer::Refused(format!("{NOT_A_QUESTION}{error}")),
        };
        lines.send(&answer)?;
    }
    Ok(())
}

/// Refuses the first question on a link that has no place.
///
/// # Errors
/// The link was lost, or the host is silent.
pub fn refuse(link: &Link, why: &str) -> io::Result<()> {
    let mut lines = JsonLineChannel::over(link, REFUSAL_TIME_MAX)?;
    match lines.receive()? {
        Some(_) => lines.send(&HostAnswer::Refused(why.to_owned())),
        None => Ok(()),
    }
}

fn answer_to(
    question: HostQuestion,
    shared: &Arc<ExporterState>,
    session: &SessionEntry,
    paired_peer: &PairedPeer,
) -> HostAnswer {
    match question {
        HostQuestion::List => {
            let mut devices = visible_to(shared, session, paired_peer);
            // The links of a session are not shown to other hosts.
            devices.iter_mut().for_each(|device| device.links = None);
            HostAnswer::Devices(devices)
        }
        HostQuestion::Status => {
            let mut devices = visible_to(shared, session, paired_peer);
            for device in &mut devices {
                if !is_user(shared, paired_peer, &device.bus_id) {
                    (device.links, device.meters) = (None, None);
                }
            }
            let up_s = Duration::from_nanos(shared.serving.clock.now().as_nanos()).as_secs();
            HostAnswer::Status(HostStatus {
                name: host_name(),
                farbus: env!("CARGO_PKG_VERSION").into(),
                up_s,
                devices,
            })
        }
        HostQuestion::Topology { message } => match shared.serving.neighbourhood.get() {
            Some(neighbourhood) => match neighbourhood.hear(paired_peer.fingerprint(), &message) {
                Ok(answer) => HostAnswer::Topology(answer),
                Err(why) => HostAnswer::Refused(why),
            },
            None => HostAnswer::Refused("no links between hosts are brought up here: that is a daemon's".to_owned()),
        },
        HostQuestion::Lease { device, act } => match lease(shared, session, paired_peer, &device, act) {
            Ok(answer) => HostAnswer::Lease(answer),
            Err(failure) => HostAnswer::Failed(failure),
        },
        HostQuestion::Explain { device, reason } => match explain(shared, paired_peer, &device, &reason) {
            true => HostAnswer::Done,
            false => HostAnswer::Refused(format!("you do not use '{device}'")),
        },
    }
}

/// Does what the paired peer asks for about the lease of a device, if it may use the device.
fn lease(
    shared: &Arc<ExporterState>,
    session: &SessionEntry,
    paired_peer: &PairedPeer,
    device: &str,
    act: LeaseAct,
) -> Result<LeaseAnswer, FailureReport> {
    let ExporterState { registry, permissions, .. } = &**shared;
    // A device that the paired peer may not use does not exist for it.
    let gone = || match permissions.forbids(paired_peer, device) {
        Some(why) => FailureReport::new(FailureKind::Refused, why),
        None => {
            let message = format!("no device called '{}' is shared with this host", shortened(device));
            FailureReport::new(FailureKind::Gone, message)
        }
    };
    let bus_id = registry.bus_id_of(device).map_err(|_| gone())?;
    let name = registry.device_name(&bus_id).ok_or_else(gone)?;
    let peer = paired_peer.peer();
    if !permissions.may_use(session.peer_identity, peer.as_ref(), &name) {
        return Err(gone());
    }
    let to = match &act {
        LeaseAct::Give { to } => {
            let key = to.parse().ok();
            let host = key.and_then(|key| permissions.peer(&key));
            host.filter(|host| permissions.may_use(PeerIdentity::Host(host.fingerprint), Some(host), &name))
        }
        _ => None,
    };
    let may_prefer =
        peer.is_some_and(|peer| peer.may_reserve_high(registry.permitted_as(&name), registry.id_of(&name)));
    let asking =
        LeaseRequester { who: LeaseHost::paired(paired_peer.identity().0), key: paired_peer.fingerprint(), may_prefer };
    leasing::act(shared, &bus_id, &asking, act, to.map(|host| (LeaseHost::paired(&host.name), host.fingerprint)))
}

/// The status of the devices that the paired peer may use.
fn visible_to(shared: &ExporterState, session: &SessionEntry, paired_peer: &PairedPeer) -> Vec<DeviceStatus> {
    let mut devices = owner::status(shared);
    let usable = shared.permissions.usable_by(session.peer_identity, paired_peer.peer().as_ref());
    devices.retain(|device| usable.contains(&device.bus_id));
    // Where its owner moves it, why that failed, and what to type here is the owner's.
    devices.iter_mut().for_each(|device| device.swap = None);
    devices.iter_mut().filter_map(|device| device.another_in_port.as_mut()).for_each(|another| another.next.clear());
    for lease in devices.iter_mut().filter_map(|device| device.lease.as_mut()) {
        lease.is_yours = lease.host == paired_peer.identity().0;
    }
    devices
}

/// Whether the paired peer itself uses the device with this bus id, and nobody else does.
fn is_user(shared: &ExporterState, paired_peer: &PairedPeer, bus_id: &str) -> bool {
    let holders = shared.sessions.holders_of(bus_id);
    let is_its_own = |session: &Arc<SessionEntry>| {
        session.paired_peer.as_ref().is_some_and(|holder| holder.is_same_host(paired_peer))
    };
    !holders.is_empty() && holders.iter().all(is_its_own)
}

/// Stores the reason why the paired peer needs a device, if one of its sessions holds it. Returns whether one does.
fn explain(shared: &ExporterState, paired_peer: &PairedPeer, device: &str, reason: &str) -> bool {
    let Ok(bus_id) = shared.registry.bus_id_of(device) else { return false };
    let mut holders = shared.sessions.holders_of(&bus_id).into_iter();
    let is_its_own = |session: &Arc<SessionEntry>| {
        session.paired_peer.as_ref().is_some_and(|holder| holder.is_same_host(paired_peer))
    };
    holders.find(is_its_own).is_some_and(|session| shared.registry.lock().explain(&session.peer, reason))
}
