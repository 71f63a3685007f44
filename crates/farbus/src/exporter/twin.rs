//! Replaces a real USB device by its twin while it is in use.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_model::{DeviceSwapOutcome, OwnerCommand, SwapCandidate};
use tracing::{info, warn};

use crate::devices::local_twin::{self, EXCHANGE_TIME_MAX, not_begun};
use crate::devices::swap_run::{DONE, FAILED, SwapRun};
use crate::exporter::share::{Share, ShareError};
use crate::exporter::swap::PlugLocation;

/// Begins to replace a shared device by the one at `to` (`usb:BUSID`), whose `node` is open.
///
/// # Errors
/// [`FailureReport`]: nothing has changed.
pub fn begin(share: &Share, device: &str, bus_id: &str, to: &str, node: OwnedFd) -> Result<(), FailureReport> {
    let not = |attribute, why: &dyn Display, hint: &str| not_begun(device, to, attribute, why, &hint);
    let (opened, found) = local_twin::open(device, to, node)?;
    let run = Arc::new(SwapRun::new(status(share, device, bus_id, to)));
    if !share.swaps().enter(bus_id, &run) {
        return Err(not(
            FailureKind::Refused,
            &"it is being swapped already",
            &format!("watch it: farbus swap {device}"),
        ));
    }
    let (tell, outcomes) = mpsc::sync_channel(1);
    let twin = <SwapCandidate>::new(Box::new(opened), move |outcome| {
        // The waiting thread may have given up; then the device is dropped here and returns to its drivers.
        let _ = tell.try_send(outcome);
    });
    let began = Instant::now();
    if let Err(error) = share.command(device, OwnerCommand::Swap(twin.clone())) {
        share.swaps().withdraw(bus_id);
        // Dropping the last reference returns the device to its drivers.
        drop((twin, outcomes));
        let attribute = if matches!(error, ShareError::Silent) { FailureKind::Device } else { FailureKind::Refused };
        return Err(not(attribute, &error, "it takes a USB device of the same make, at the same speed"));
    }
    drop(twin);
    let (device, to, plugs, bus_id) =
        (device.to_owned(), to.to_owned(), share.swaps().plugs().clone(), bus_id.to_owned());
    let (plug, on_moved) = (PlugLocation::of(&found), share.on_moved(&bus_id));
    let wait = move || {
        let outcome = outcomes.recv_timeout(EXCHANGE_TIME_MAX);
        let failure = match outcome {
            Ok(DeviceSwapOutcome::Done { left, report }) => {
                info!(
                    device,
                    to,
                    quiet_ms = report.quiet.as_millis() as u64,
                    replayed = report.replayed,
                    asked_again = report.asked_again,
                    "swapped for its twin"
                );
                plugs.put(&bus_id, plug);
                on_moved();
                run.end(DONE, |status| {
                    status.quiet_ms = report.quiet.as_secs_f64() * 1e3;
                    (status.replayed, status.asked_again) = (report.replayed, report.asked_again);
                    status.elapsed_s = began.elapsed().as_secs_f64();
                });
                // Dropping the old device returns it to its drivers.
                drop(left);
                return;
            }
            Ok(DeviceSwapOutcome::Failed { twin, why }) => {
                drop(twin);
                why
            }
            Err(_) => "its user has gone, and the device with its user".to_owned(),
        };
        warn!(device, to, why = failure, "not swapped: it stays what it was");
        let message = format!("{device} was not swapped for {to}: {failure}\n  {device} stays what it was");
        run.end(FAILED, |status| {
            status.failure = Some(FailureReport::new(FailureKind::Device, message));
        });
    };
    let spawned = thread::Builder::new().name("twin".into()).spawn(wait);
    spawned
        .map(drop)
        .map_err(|error| FailureReport::new(FailureKind::Local, format!("no thread to wait for it: {error}")))
}

fn status(share: &Share, device: &str, bus_id: &str, to: &str) -> SwapStatus {
    let from = share.swaps().plugs().get(bus_id).map(|plug| format!("usb:{}", plug.bus_id)).unwrap_or_default();
    local_twin::begun(device, from, to)
}
