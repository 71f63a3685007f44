//! Opens a bridge for sharing: each end has its own thread, and each can wake the other.

use std::io;
use std::sync::Arc;

use farbus_gadgets::bridge::{self, BridgeEnd, BridgeSettings};
use farbus_gadgets::{EmulatedDevice, GadgetWaker};
use farbus_io_net::discovery::own_name;
use farbus_io_net::link::{DeviceWaitSource, ThreadWaker};

/// Opens both ends of the bridge `name`. Returns each with the suffix of its name.
///
/// # Errors
/// The system has no more descriptors.
pub fn open(settings: &BridgeSettings, name: &str) -> io::Result<[(&'static str, EmulatedDevice<BridgeEnd>); 2]> {
    let of_this_host = || format!("{}/{name}", own_name());
    let identity = settings.identity.clone().unwrap_or_else(of_this_host);
    let [a, b] = bridge::pair(settings.speed, &identity, [hang()?, hang()?]);
    Ok([("-a", a), ("-b", b)])
}

fn hang() -> io::Result<GadgetWaker> {
    let wake = Arc::new(ThreadWaker::new()?);
    let (ring, hush) = (Arc::clone(&wake), Arc::clone(&wake));
    Ok(GadgetWaker {
        readiness: DeviceWaitSource::woken(wake),
        ring: Box::new(move || ring.wake()),
        hush: Box::new(move || hush.clear()),
    })
}
