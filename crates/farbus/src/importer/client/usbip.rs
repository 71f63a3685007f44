//! Importing a device by plain USB/IP: one link carries it, and it is lost with that link.

use std::time::Duration;

use farbus_host::{DescriptorEnumerator, HostPort, IdSource, run};
use farbus_model::{Device, SessionLimits};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::registry::in_use;
use farbus_session::{DeviceRecord, ImportHandshake, OpStatus, RemoteDevice};
use tracing::{debug, warn};

use super::connector::HostConnector;
use super::error::{ClientError, local, unreachable};
use super::handshake::converse;
use super::offers::resolve;
use super::target::DeviceTarget;
use crate::hosts::reach::ANSWER_TIME_MAX;
use crate::importer::port::usbip::{HoldingLink, RemotePort};

/// How long an exporter may take to hand over a device: usbipd-win restarts it and claims it for up to 10 s more.
const IMPORT_TIME_MAX: Duration = Duration::from_secs(30);

/// Imports a device: its link, and what speaks USB/IP on it.
///
/// # Errors
/// [`ClientError`].
pub fn import(connector: &HostConnector, target: &DeviceTarget) -> Result<(HoldingLink, RemoteDevice), ClientError> {
    // Linux's usbipd leaves a device that is in use out of its list, and reports it only if it is asked for by its bus
    // id.
    let (bus_id, unlisted) = match resolve(connector, target) {
        Ok(record) => (record.bus_id, None),
        Err(error @ ClientError::NoDevice { .. }) if may_be_bus_id(&target.device) => {
            (target.device.clone(), Some(error))
        }
        Err(error) => return Err(error),
    };
    let link = connector.connect(&target.address, ANSWER_TIME_MAX)?;
    link.set_receive_timeout(Some(IMPORT_TIME_MAX)).map_err(local)?;
    let mut handshake = ImportHandshake::import(SessionLimits::DEFAULT, &bus_id);
    match (converse(&link, &mut handshake)?, unlisted) {
        (HandshakeAnswer::Imported(record), _) => Ok((HoldingLink::new(link), handshake.into_device(record))),
        // A list of the devices there are helps more than the refusal.
        (HandshakeAnswer::Refused(status), Some(unlisted))
            if status != OpStatus::Busy && status != OpStatus::DeviceError =>
        {
            Err(unlisted)
        }
        (HandshakeAnswer::Refused(status), _) => {
            // USB/IP says that a device is in use, and a farbus's list says by whom.
            let is_busy = status == OpStatus::Busy;
            let user = is_busy.then(|| resolve(connector, target).ok().as_ref().and_then(in_use)).flatten();
            Err(ClientError::Refused { target: target.clone(), status, user })
        }
        (HandshakeAnswer::Devices(_), _) => unreachable!("an import was asked for"),
    }
}

/// Imports a device and reads its descriptors. It stays unconfigured, for another host to configure.
///
/// # Errors
/// [`ClientError`].
pub fn enumerate(connector: &HostConnector, target: &DeviceTarget) -> Result<(HoldingLink, RemoteDevice), ClientError> {
    let (link, device) = import(connector, target)?;
    let speed = device.speed();
    let mut port = RemotePort::new(link, device).map_err(local)?;
    let mut driver = DescriptorEnumerator::new(port.now(), IdSource::new(), speed);
    let descriptors = run(&mut driver, &mut port).map_err(|error| unreachable(target, error))?;
    for repair in driver.repairs().iter() {
        warn!(device = target.shown(), %repair, "its descriptors were repaired, as Linux does");
    }
    let descriptors =
        descriptors.map_err(|error| ClientError::Device { target: target.clone(), what: error.to_string() })?;
    let (link, mut device) = port.into_parts();
    device.set_descriptors(descriptors);
    link.set_receive_timeout(None).map_err(local)?;
    Ok((link, device))
}

/// The first of `candidates` that says that it has this serial number. Each is taken for the moment in which it is
/// asked; one that somebody uses is left alone.
///
/// # Errors
/// [`ClientError::NoDevice`]: none has it; [`ClientError`]: the host is not reached.
pub fn with_serial(
    connector: &HostConnector,
    target: &DeviceTarget,
    candidates: Vec<DeviceRecord>,
    serial: &str,
) -> Result<DeviceRecord, ClientError> {
    let offered = candidates.iter().map(|record| record.bus_id.clone()).collect();
    for record in candidates {
        let candidate = DeviceTarget { address: target.address.clone(), device: record.bus_id.clone() };
        match enumerate(connector, &candidate) {
            Ok((_link, device)) => {
                let descriptors = device.descriptors();
                if descriptors.string(descriptors.device.serial_string) == Some(serial) {
                    return Ok(record);
                }
            }
            Err(error @ (ClientError::Link(_) | ClientError::Untrusted { .. } | ClientError::Local(_))) => {
                return Err(error);
            }
            Err(error) => debug!(%error, device = candidate.shown(), "it does not tell its serial number"),
        }
    }
    Err(ClientError::NoDevice { target: target.clone(), offered })
}

/// Whether an exporter other than farbus may use this as a bus id: `1-1.4`, `usbip-vudc.0`, but not a name like `disk`.
fn may_be_bus_id(device: &str) -> bool {
    device.len() < 32 && device.contains('-') && device.ends_with(|last: char| last.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_device_is_asked_for_only_if_its_name_is_like_a_bus_id() {
        for bus_id in ["1-1", "1-1.4", "usbip-vudc.0", "0-0-0"] {
            assert!(may_be_bus_id(bus_id), "{bus_id}");
        }
        for name in ["disk", "disk2", "my-disk", "a-name-that-is-far-longer-than-31-1"] {
            assert!(!may_be_bus_id(name), "{name}");
        }
    }
}
