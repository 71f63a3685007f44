//! Finds what is shared on this machine without being given a place: the sockets at which the owner's shares listen.
//!
//! `localhost`, or no host at all, means in this order:
//!
//! 1. this user's own shares, at `share-*.sock` in the runtime folder, whichever of them offers the device;
//! 2. for root by way of `sudo`, those of the user who called it;
//! 3. port 3240 of the loopback, if this user or root listens there.
//!
//! Other users' shares are not searched: to use one, name its socket (`unix:PATH/DEVICE`) or a port.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farbus_io_linux::sys::tcp_owner::listener_owner;
use farbus_io_net::link::host_address::{LOCAL, address_of};
use farbus_io_net::link::{Link, SegmentSize};
use farbus_io_net::local::runtime_folder::{self, RuntimeFolder};
use tracing::debug;

use crate::common::socket_place::SocketLocation;
use crate::devices::offer::ListedDevice;
use crate::hosts::known_host::KnownHost;
use crate::importer::client::{ClientError, DeviceSelector, DeviceTarget, ImporterClient};
use crate::importer::local_error::LocalDeviceError;

/// Prefix and suffix of the name of a share's socket.
const NAME: (&str, &str) = ("share-", ".sock");
/// How long each share may take for its list.
const LIST_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the loopback may take to show that no program listens.
const DIAL_TIME_MAX: Duration = Duration::from_secs(1);

/// Where a share of this process listens by default.
pub fn place_of_process() -> SocketLocation {
    socket_of(&std::process::id().to_string())
}

/// Where a daemon's plain listener is by default.
pub fn place_of_daemon() -> SocketLocation {
    socket_of("daemon")
}

fn socket_of(word: &str) -> SocketLocation {
    let (before, after) = NAME;
    SocketLocation::Socket(runtime_folder::path().join(format!("{before}{word}{after}")))
}

/// Parses a target. `DEVICE` alone means this machine.
///
/// # Errors
/// A message for a person.
pub fn target_from(text: &str) -> Result<DeviceTarget, String> {
    let is_name = !text.is_empty() && !text.contains(['/', ':']);
    match is_name {
        true => Ok(DeviceTarget { address: address_of("localhost"), device: text.to_owned() }),
        false => text.parse(),
    }
}

/// Whether this address (`HOST:PORT`) means this machine.
fn is_here(address: &str) -> bool {
    address == address_of("localhost")
}

/// Whether `target` means `attached`, which may be the result of a search of this machine.
pub fn is_same(target: &DeviceTarget, attached: &DeviceTarget) -> bool {
    let was_found = || is_ours(&attached.address) && is_here(&target.address);
    target == attached || (target.device == attached.device && was_found())
}

/// Whether an address is a socket at which a share of this machine listens by default.
pub fn is_ours(address: &str) -> bool {
    let path = address.strip_prefix(LOCAL).map(PathBuf::from);
    path.is_some_and(|path| is_share(&path) && runtime_folder::is_among(&path))
}

fn is_share(path: &std::path::Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_name)
}

fn is_name(name: &str) -> bool {
    name.strip_prefix(NAME.0).is_some_and(|rest| rest.ends_with(NAME.1))
}

/// The sockets of this user's shares, and of the user who became root by `sudo`. A process that was killed may have
/// left its socket.
///
/// # Errors
/// If the runtime folder is not safe, or cannot be read.
fn sockets() -> io::Result<Vec<SocketLocation>> {
    let of_sudo_user: Vec<RuntimeFolder> = runtime_folder::of_sudo_user().into_iter().collect();
    let mut sockets = Vec::new();
    for folder in runtime_folder::all()?.iter().chain(&of_sudo_user) {
        let mut names: Vec<String> = folder.names()?.into_iter().filter(|name| is_name(name)).collect();
        names.sort();
        sockets.extend(names.into_iter().map(|name| SocketLocation::Socket(folder.path().join(name))));
    }
    Ok(sockets)
}

/// If the target means this machine, replaces its address by the socket of the share that has the device.
///
/// # Errors
/// [`ClientError`]: no share has it, or several; the folder of the sockets is not safe.
pub fn resolve(target: DeviceTarget) -> Result<DeviceTarget, ClientError> {
    if !is_here(&target.address) || KnownHost::find(&target.address)?.is_some() {
        return Ok(target);
    }
    let (mut offered, mut found) = (Vec::new(), Vec::new());
    for (socket, devices) in offers_of_all()? {
        let selector = DeviceSelector::of(&target.device);
        let is_meant = |device: &ListedDevice| match selector {
            DeviceSelector::Name(name) => device.name == name || device.bus_id == name,
            DeviceSelector::Make(..) => {
                format!("{}:{}", device.vendor, device.product).eq_ignore_ascii_case(&target.device)
            }
            // A list has no serial numbers.
            DeviceSelector::Serial(_) => false,
        };
        if devices.iter().any(is_meant) {
            found.push(socket);
        }
        offered.extend(devices.into_iter().map(|device| device.name));
    }
    let device = target.device.clone();
    match found.as_slice() {
        [socket] => Ok(DeviceTarget { address: socket.as_host(), device }),
        [] => match Link::dial(&target.address, DIAL_TIME_MAX, SegmentSize::OfNetworks) {
            // A usbipd, or a share that serves a port.
            Ok((_, at)) => match listener_owner(at).filter(|user| ![0, runtime_folder::owner()].contains(user)) {
                None => Ok(DeviceTarget { address: at.to_string(), device }),
                Some(user) => {
                    Err(ClientError::Here(LocalDeviceError::Stranger { target: format!("{at}/{device}"), user }))
                }
            },
            Err(_) if KnownHost::find(&device)?.is_some() => Err(ClientError::Here(LocalDeviceError::IsHost(device))),
            Err(_) => Err(ClientError::Here(LocalDeviceError::Nowhere { device, offered })),
        },
        _ => Err(ClientError::Here(LocalDeviceError::Several { device, locations: found })),
    }
}

/// The offers of this machine's shares if `address` means this machine; empty if it does not, or no share has a socket
/// of its own.
///
/// # Errors
/// [`ClientError`]: the folder of the sockets is not safe.
pub fn offers(address: &str) -> Result<Vec<(SocketLocation, Vec<ListedDevice>)>, ClientError> {
    if !is_here(address) || KnownHost::find(address)?.is_some() {
        return Ok(Vec::new());
    }
    offers_of_all()
}

fn offers_of_all() -> Result<Vec<(SocketLocation, Vec<ListedDevice>)>, ClientError> {
    let sockets = sockets().map_err(|error| ClientError::Local(error.to_string()))?;
    let answer = |location: SocketLocation| match ImporterClient::default().offers(&location.as_host(), LIST_TIME_MAX) {
        Ok(devices) => Some((location, devices)),
        Err(error) => {
            debug!(%location, %error, "does not say what it offers");
            None
        }
    };
    Ok(sockets.into_iter().filter_map(answer).collect())
}

/// The names that occur more than once.
pub fn repeated<'a>(names: impl IntoIterator<Item = &'a str>) -> std::collections::BTreeSet<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().filter(|name| !seen.insert(*name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_a_host_means_this_machine() {
        let read = |text: &str| target_from(text).map(|target| target.to_string());
        assert_eq!(read("disk"), Ok("localhost:3240/disk".into()));
        assert_eq!(read("1-1.4"), Ok("localhost:3240/1-1.4".into()));
        assert_eq!(read("lab3/disk"), Ok("lab3:3240/disk".into()));
        assert!(read("").is_err() && read("lab3:3240").is_err() && read("unix:x").is_err() && read("lab3/").is_err());
    }
}
