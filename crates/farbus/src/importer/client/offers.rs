//! What a host offers and what it says about its devices.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_io_net::link::Link;
use farbus_io_net::link::host_address::shown;
use farbus_io_net::trust::LinkProtocol;
use farbus_model::SessionLimits;
use farbus_session::importer::HandshakeAnswer;
use farbus_session::registry::name_of;
use farbus_session::{DeviceRecord, ImportHandshake};

use super::connector::HostConnector;
use super::error::{ClientError, lost};
use super::handshake::converse;
use super::selector::DeviceSelector;
use super::target::DeviceTarget;
use crate::devices::lease::readable_answer;
use crate::devices::offer::ListedDevice;
use crate::hosts::questions::{HostAnswer, HostQuestion, HostStatus, JsonLineChannel, NOT_A_QUESTION};
use crate::hosts::reach::ANSWER_TIME_MAX;

/// How long a host may take to say what became of a device whose link has ended.
const AFTERWARDS_TIME_MAX: Duration = Duration::from_secs(1);

/// The records of the devices that a host offers, as USB/IP has them.
///
/// # Errors
/// [`ClientError`].
pub fn records(connector: &HostConnector, address: &str, time_max: Duration) -> Result<Vec<DeviceRecord>, ClientError> {
    let link = connector.connect(address, time_max)?;
    let mut handshake = ImportHandshake::list(SessionLimits::DEFAULT);
    match converse(&link, &mut handshake)? {
        HandshakeAnswer::Devices(devices) => Ok(devices),
        HandshakeAnswer::Imported(_) | HandshakeAnswer::Refused(_) => unreachable!("a list was asked for"),
    }
}

/// The devices that a host offers, as a list shows them: a paired host says more of them than USB/IP can.
///
/// # Errors
/// [`ClientError`].
pub fn offers(connector: &HostConnector, address: &str, time_max: Duration) -> Result<Vec<ListedDevice>, ClientError> {
    match ask(connector, address, &HostQuestion::List, time_max)? {
        Some(HostAnswer::Devices(devices)) => Ok(devices.into_iter().map(ListedDevice::from).collect()),
        Some(HostAnswer::Refused(what)) => Err(ClientError::Untrusted { address: address.to_owned(), what }),
        Some(
            HostAnswer::Done
            | HostAnswer::Topology(_)
            | HostAnswer::Status(_)
            | HostAnswer::Lease(_)
            | HostAnswer::Failed(_),
        )
        | None => Ok(records(connector, address, time_max)?.iter().map(ListedDevice::from).collect()),
    }
}

/// The status of a paired host, as far as this host may see it.
///
/// # Errors
/// [`ClientError::Untrusted`] if the host is not paired, or its farbus does not know the question; [`ClientError`].
pub fn host_status(connector: &HostConnector, address: &str, time_max: Duration) -> Result<HostStatus, ClientError> {
    let answer = ask(connector, address, &HostQuestion::Status, time_max)?;
    status_of(answer).map_err(|what| ClientError::Untrusted { address: address.to_owned(), what })
}

/// The status that a host told, or why it told none; `None` is a host that is not paired.
fn status_of(answer: Option<HostAnswer>) -> Result<HostStatus, String> {
    match answer {
        Some(HostAnswer::Status(status)) => Ok(status),
        Some(HostAnswer::Refused(what)) if !what.starts_with(NOT_A_QUESTION) => Err(what),
        Some(_) => {
            let what = "its farbus is older than this one, and does not tell its status";
            Err(format!("{what}\n  see what it offers: farbus list HOST"))
        }
        None => {
            let what = "a host tells its status to paired hosts only, and this one is not paired";
            Err(format!("{what}\n  pair with it: farbus pair\n  or see what it offers: farbus list HOST"))
        }
    }
}

/// Tells an exporter what a device is used for: a paired host over its encrypted link, an exporter on this machine as
/// its owner would. `user` is this end of the link that carries the device.
///
/// # Errors
/// [`ClientError`].
pub fn explain(
    connector: &HostConnector,
    target: &DeviceTarget,
    reason: &str,
    user: Option<SocketAddr>,
) -> Result<(), ClientError> {
    let question = HostQuestion::Explain { device: target.device.clone(), reason: reason.to_owned() };
    if ask(connector, &target.address, &question, ANSWER_TIME_MAX)?.is_none()
        && let Some(user) = user
    {
        let explained = connector.system().explain(&user.to_string(), reason);
        explained.map_err(|error| ClientError::Local(error.to_string()))?;
    }
    Ok(())
}

/// Asks a paired host for something about the lease of a device; the inner error is the host's.
///
/// # Errors
/// [`ClientError`]: the host was not reached, or does not lease to this one.
pub fn lease(
    connector: &HostConnector,
    target: &DeviceTarget,
    act: LeaseAct,
    time_max: Duration,
) -> Result<Result<LeaseAnswer, FailureReport>, ClientError> {
    let address = target.address.as_str();
    let untrusted = |what: &str| ClientError::Untrusted { address: address.to_owned(), what: what.to_owned() };
    let question = HostQuestion::Lease { device: target.device.clone(), act };
    match ask(connector, address, &question, time_max)? {
        Some(HostAnswer::Lease(answer)) => Ok(Ok(readable_answer(answer))),
        Some(HostAnswer::Failed(failure)) => Ok(Err(failure)),
        Some(HostAnswer::Refused(what)) if !what.starts_with(NOT_A_QUESTION) => Err(untrusted(&what)),
        Some(_) => Err(untrusted("its farbus is older than this one, and does not know that of a lease")),
        None => Err(untrusted(
            "a host leases to paired hosts only, and this one is not paired\n  pair with it: farbus pair",
        )),
    }
}

/// Asks a paired host one question; `None` if `address` names no paired host.
fn ask(
    connector: &HostConnector,
    address: &str,
    question: &HostQuestion,
    time_max: Duration,
) -> Result<Option<HostAnswer>, ClientError> {
    let Some(known) = connector.known(address)? else { return Ok(None) };
    let link = connector.connect_encrypted(&known, LinkProtocol::Control, time_max)?;
    let lost = |source| lost(link.peer(), source);
    let mut lines = JsonLineChannel::asking(&link, time_max).map_err(lost)?;
    lines.send(question).map_err(lost)?;
    let line = lines.receive().map_err(lost)?.ok_or_else(|| ClientError::Closed { address: known.described() })?;
    let answer = serde_json::from_slice(&line);
    answer.map(Some).map_err(|error| lost(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// A link on which a paired host answers many questions ([`JsonLineChannel`]); `None` if `address` names no paired
/// host.
///
/// # Errors
/// [`ClientError`].
pub fn question_link(
    connector: &HostConnector,
    address: &str,
    time_max: Duration,
) -> Result<Option<Link>, ClientError> {
    let Some(known) = connector.known(address)? else { return Ok(None) };
    connector.connect_encrypted(&known, LinkProtocol::Control, time_max).map(Some)
}

/// The record of the device that a target names by its name, its bus id, or its vendor and product.
///
/// # Errors
/// [`ClientError::NoDevice`], which lists what there is; [`ClientError::Device`] if several are meant; [`ClientError`].
pub fn resolve(connector: &HostConnector, target: &DeviceTarget) -> Result<DeviceRecord, ClientError> {
    let devices = records(connector, &target.address, ANSWER_TIME_MAX)?;
    let selector = DeviceSelector::of(&target.device);
    let is_meant = |record: &&DeviceRecord| !matches!(selector, DeviceSelector::Serial(_)) && selector.may_be(record);
    let meant: Vec<&DeviceRecord> = devices.iter().filter(is_meant).collect();
    match (meant.as_slice(), selector) {
        ([], _) => Err(ClientError::NoDevice { target: target.clone(), offered: names(&devices) }),
        ([first, _, ..], DeviceSelector::Make(..)) => {
            let ids: Vec<&str> = meant.iter().map(|record| record.bus_id.as_str()).collect();
            let next = format!("name one: {}/{}, or HOST/serial=NUMBER", shown(&target.address), first.bus_id);
            let what = format!("several devices there are of this make: {}\n  {next}", ids.join(", "));
            Err(ClientError::Device { target: target.clone(), what })
        }
        ([first, ..], _) => Ok((*first).clone()),
    }
}

/// The devices of which one may have the serial number that `target` names, those with the bus id `last` first.
///
/// # Errors
/// [`ClientError`].
pub fn candidates(
    connector: &HostConnector,
    target: &DeviceTarget,
    last: Option<&str>,
) -> Result<Vec<DeviceRecord>, ClientError> {
    let mut devices = records(connector, &target.address, ANSWER_TIME_MAX)?;
    devices.retain(|record| DeviceSelector::of(&target.device).may_be(record));
    devices.sort_by_key(|record| Some(record.bus_id.as_str()) != last);
    Ok(devices)
}

/// The names of the devices that a host offers; none if it does not say.
pub fn names_offered(connector: &HostConnector, address: &str) -> Vec<String> {
    names(&records(connector, address, ANSWER_TIME_MAX).unwrap_or_default())
}

/// Why the link of a device ended, as far as its host says: it is asked once more, briefly.
pub fn why_lost(connector: &HostConnector, target: &DeviceTarget) -> FailureKind {
    match records(connector, &target.address, AFTERWARDS_TIME_MAX) {
        Ok(devices) if devices.iter().any(|record| DeviceSelector::of(&target.device).may_be(record)) => {
            FailureKind::Refused
        }
        Ok(_) => FailureKind::Gone,
        Err(_) => FailureKind::Network,
    }
}

fn names(devices: &[DeviceRecord]) -> Vec<String> {
    devices.iter().map(|record| name_of(record).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_an_earlier_release_is_said_not_to_tell_its_status() {
        // As release 0.1.0 refuses it.
        let refused = "not a question: unknown variant `status`, expected one of `list`, `topology`, `explain`";
        let why = |answer| status_of(answer).unwrap_err();
        assert!(why(Some(HostAnswer::Refused(refused.into()))).starts_with("its farbus is older than this one"));
        assert_eq!(why(Some(HostAnswer::Refused("too many connections".into()))), "too many connections");
        assert!(why(None).contains("not paired"));
    }
}
