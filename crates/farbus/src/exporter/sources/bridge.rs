//! Opens a bridge for sharing: each end has its own thread, and each can wake the other.

use std::io;
use std::sync::Arc;

use farbus_gadgets::bridge::{self, End, Settings};
use farbus_gadgets::{Bell, Emulated};
use farbus_io_net::discovery::own_name;
use farbus_io_net::link::{Wake, Watched};

/// Opens both ends of the bridge `name`. Returns each with the suffix of its name.
///
/// # Errors
/// The system has no more descriptors.
pub fn open(settings: &Settings, name: &str) -> io::Result<[(&'static str, Emulated<End>); 2]> {
    let of_this_host = || format!("{}/{name}", own_name());
    let identity = settings.identity.clone().unwrap_or_else(of_this_host);
    let [a, b] = bridge::pair(settings.speed, &identity, [hang()?, hang()?]);
    Ok([("-a", a), ("-b", b)])
}

fn hang() -> io::Result<Bell> {
    let wake = Arc::new(Wake::new()?);
    let (ring, hush) = (Arc::clone(&wake), Arc::clone(&wake));
    Ok(Bell {
        readiness: Watched::woken(wake),
        ring: Box::new(move || ring.wake()),
        hush: Box::new(move || hush.clear()),
    })
}
