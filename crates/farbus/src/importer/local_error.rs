//! Why a device is not found on this machine, and what to type then.

use std::fmt;
use std::net::IpAddr;

use farbus_control::failure::FailureKind;
use farbus_io_net::local::runtime_folder;

use crate::common::socket_place::SocketLocation;

/// Why a device is not found on this machine.
#[derive(Debug)]
pub enum LocalDeviceError {
    /// No share of this user has it.
    Nowhere {
        /// The device that was asked for.
        device: String,
        /// The devices there are instead.
        offered: Vec<String>,
    },
    /// What was named is another machine.
    IsHost(String),
    /// No share of this user has it, and another user listens at the loopback's port.
    Stranger {
        /// How to ask that user's exporter for it all the same.
        target: String,
        /// The user's id.
        user: u32,
    },
    /// Several shares have a device of this name.
    Several {
        /// The device that was asked for.
        device: String,
        /// Where they are.
        locations: Vec<SocketLocation>,
    },
}

impl LocalDeviceError {
    /// Which party has to act.
    pub fn attribute(&self) -> FailureKind {
        match self {
            Self::Nowhere { .. } | Self::IsHost(_) => FailureKind::Gone,
            Self::Stranger { .. } => FailureKind::Refused,
            Self::Several { .. } => FailureKind::Local,
        }
    }
}

impl fmt::Display for LocalDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere { device, offered } => {
                write!(f, "no share of yours on this machine offers '{device}'")?;
                if !offered.is_empty() {
                    write!(f, ", but {}", offered.join(", "))?;
                }
                write!(f, "\n  {}", next(device))
            }
            Self::IsHost(host) => write!(
                f,
                "'{host}' is a host, and no device: a device of it is {host}/DEVICE\n  what it has: farbus list {host}"
            ),
            Self::Stranger { target, user } => write!(
                f,
                "no share of yours on this machine offers it, and at the loopback's port user {user} listens\n  \
                 if that one is meant: farbus attach {target}"
            ),
            Self::Several { device, locations } => {
                write!(f, "several shares on this machine offer '{device}': say which")?;
                locations.iter().try_for_each(|location| write!(f, "\n  farbus attach {}/{device}", location.as_host()))
            }
        }
    }
}

impl std::error::Error for LocalDeviceError {}

/// What to type if no share on this machine has the device.
fn next(device: &str) -> String {
    let root = match runtime_folder::owner() {
        0 => "another user's is at 'unix:PATH/DEVICE', which 'farbus share' shows where it runs".to_owned(),
        _ => format!(
            "root's are root's alone: 'sudo farbus attach {device}', or root shares with --listen loopback --local-users NAME"
        ),
    };
    format!("of another machine it is HOST/{device}; here 'farbus share' offers devices\n  {root}")
}

/// What helps if no program answers at this address, or the one that does closes the connection: if the address is the
/// loopback.
pub fn hint(address: &str) -> Option<&'static str> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_loopback = host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
    is_loopback.then_some(
        "a share is at a socket of its owner's unless it says --listen loopback: 'farbus list localhost' looks there;\n  \
         at a port of the loopback its owner and root are served, and others if it says --local-users NAME",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_is_given_for_loopback_addresses_only() {
        for own in ["localhost:3240", "127.0.0.1:99", "[::1]:3240"] {
            assert!(hint(own).is_some(), "{own}");
        }
        for other in ["lab3:3240", "10.0.0.7:3240", "unix:/run/x.sock"] {
            assert!(hint(other).is_none(), "{other}");
        }
    }

    #[test]
    fn errors_say_what_to_type() {
        let nowhere = LocalDeviceError::Nowhere { device: "disk".into(), offered: vec!["zero".into()] };
        let text = nowhere.to_string();
        assert!(text.contains("offers 'disk', but zero") && text.contains("HOST/disk"), "{text}");
        let locations = vec![SocketLocation::Socket("/a.sock".into()), SocketLocation::Socket("/b.sock".into())];
        let several = LocalDeviceError::Several { device: "disk".into(), locations };
        assert!(several.to_string().contains("farbus attach unix:/b.sock/disk"), "{several}");
    }
}
