//! A USB device of this machine that takes the place of another one.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_io_linux::usb::{PluggedDevice, SharingObstacle, UsbDevice, UsbInventory};
use farbus_session::twin::{DRAIN_TIME_MAX, PREPARE_TIME_MAX};

use crate::devices::swap_run::RUNNING;

/// How long an exchange may take: its stages, and the engine that has the device.
pub const EXCHANGE_TIME_MAX: Duration =
    PREPARE_TIME_MAX.saturating_add(DRAIN_TIME_MAX).saturating_add(Duration::from_secs(5));

/// The status of a swap of `device`, which is `from` now, for `to`, as it begins.
pub fn begun(device: &str, from: String, to: &str) -> SwapStatus {
    SwapStatus {
        device: device.to_owned(),
        from,
        to: to.to_owned(),
        state: RUNNING.to_owned(),
        phase: "switching".to_owned(),
        round: 1,
        ..SwapStatus::default()
    }
}

/// The report of a swap of `device` for `to` that did not begin.
pub fn not_begun(
    device: &str,
    to: &str,
    attribute: FailureKind,
    why: &dyn Display,
    hint: &dyn Display,
) -> FailureReport {
    FailureReport::new(attribute, format!("{device} was not swapped for {to}: {why}\n  {hint}"))
}

/// Opens the device at `to` (`usb:BUSID`), whose `node` is open, to take the place of `device`.
///
/// # Errors
/// [`FailureReport`]: it is not plugged in there, is in use, or is no device that can be shared.
pub fn open(device: &str, to: &str, node: OwnedFd) -> Result<(UsbDevice, PluggedDevice), FailureReport> {
    let not = |attribute, why: &dyn Display, hint: &str| not_begun(device, to, attribute, why, &hint);
    let see = "see: farbus share --list";
    let port = to.strip_prefix("usb:").unwrap_or(to);
    let found = UsbInventory::default().device_at(port).map_err(|error| not(FailureKind::Local, &error, see))?;
    let found = found.ok_or_else(|| not(FailureKind::Gone, &"nothing is plugged in there", see))?;
    match &found.obstacle {
        // The process that opened the node has the permission.
        None | Some(SharingObstacle::NoPermission { .. }) => {}
        Some(obstacle) => return Err(not(FailureKind::Refused, obstacle, "choose another device of the same make")),
    }
    let opened = UsbDevice::open_through(node, &found).map_err(|error| {
        not(FailureKind::Refused, &error, "if it is shared as well: farbus share without it, then this")
    })?;
    Ok((opened, found))
}
