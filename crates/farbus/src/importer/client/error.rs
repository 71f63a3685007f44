//! Why a device cannot be used: what happened, to what, and what a person can do about it.

use std::fmt;
use std::io;

use farbus_host::PortError;
use farbus_io::link::LinkError;
use farbus_io::trust::HandshakeError;
use farbus_session::registry::InUse;
use farbus_session::{OpStatus, Reject};

use super::target::Target;
use crate::common::failure::{Attribute, Failure};
use crate::common::host_address::LOCAL;
use crate::hosts::known_host::KnownHostError;
use crate::importer::local_error::{HereError, hint};
use crate::importer::port::usbip::LOST;

/// Why a device cannot be used.
#[derive(Debug)]
pub enum ClientError {
    /// No link to the exporter was made.
    Link(LinkError),
    /// The link broke, or the exporter was silent for too long.
    Lost {
        /// The address of the exporter, as it was named.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// Where a paired host was looked for, a host with another key answered, or one without a key.
    Elsewhere {
        /// Where it answered (`HOST:PORT`).
        address: String,
        /// What differs, and what to do about it.
        what: String,
    },
    /// One of the two hosts does not trust the other.
    Untrusted {
        /// The exporter, or the device if the exporter refused that alone.
        address: String,
        /// Who does not trust whom, and what to do about it.
        what: String,
    },
    /// The exporter closed the connection in the middle of a message.
    Closed {
        /// The address of the exporter, as it was named.
        address: String,
    },
    /// The exporter broke the rules of the protocol.
    Protocol {
        /// The address of the exporter, as it was named.
        address: String,
        /// Which rule, and where in the message.
        reject: Reject,
    },
    /// The exporter refused the device.
    Refused {
        /// The device that was asked for.
        target: Target,
        /// The exporter's reason, as USB/IP puts it.
        status: OpStatus,
        /// Who uses the device, if the exporter says so.
        user: Option<InUse>,
    },
    /// The exporter has no device of that name.
    NoDevice {
        /// The device that was asked for.
        target: Target,
        /// The devices that it offers.
        offered: Vec<String>,
    },
    /// The device does not do what was asked of it.
    Device {
        /// The device.
        target: Target,
        /// What is wrong with it.
        what: String,
    },
    /// A device was named without a host, and this machine shares none of that name to this user, or several.
    Here(HereError),
    /// This machine lacks something, or refuses it.
    Local(String),
}

impl ClientError {
    /// Which party has to act: the network, the exporter, the device or this machine.
    pub fn attribute(&self) -> Attribute {
        match self {
            ClientError::Link(_) | ClientError::Lost { .. } | ClientError::Closed { .. } => Attribute::Network,
            ClientError::Refused { status: OpStatus::NoDevice, .. } | ClientError::NoDevice { .. } => Attribute::Gone,
            ClientError::Refused { status: OpStatus::DeviceError, .. } => Attribute::Device,
            ClientError::Refused { .. } | ClientError::Untrusted { .. } | ClientError::Elsewhere { .. } => {
                Attribute::Refused
            }
            ClientError::Protocol { .. } | ClientError::Device { .. } => Attribute::Device,
            ClientError::Here(error) => error.attribute(),
            ClientError::Local(_) => Attribute::Local,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Link(error) if error.address.starts_with(LOCAL) => {
                let why = match error.source.kind() {
                    io::ErrorKind::PermissionDenied => "it is for others: its owner says to whom it is open",
                    _ => "nobody shares there: 'farbus share … --listen unix:PATH' does",
                };
                write!(f, "{error}\n  {why}")
            }
            ClientError::Link(error) if hint(&error.address).is_some() => {
                let asked = format!("{error}\n  is 'farbus share' (or usbipd) running there?");
                with_hint(f, &asked, &error.address)
            }
            ClientError::Link(error) => {
                write!(
                    f,
                    "{error}\n  is 'farbus share' (or usbipd) running there, and does a firewall let {} through?",
                    { error.address.rsplit(':').next().unwrap_or_default() }
                )
            }
            ClientError::Lost { address, source } => {
                with_hint(f, &format_args!("the link to {address} was lost: {source}"), address)
            }
            ClientError::Untrusted { address, what } | ClientError::Elsewhere { address, what } => {
                write!(f, "{address}: {what}")
            }
            ClientError::Closed { address } => with_hint(f, &format_args!("{address} closed the connection"), address),
            ClientError::Protocol { address, reject } => {
                write!(f, "{address} does not speak USB/IP as it should: {reject}")
            }
            ClientError::Refused { target, status: OpStatus::Busy, user } => {
                match user {
                    Some(InUse { user, used_s }) => write!(f, "{target} is in use by {user} since {used_s} s")?,
                    None => write!(f, "{target} is in use")?,
                }
                write!(
                    f,
                    "\n  one user at a time: 'farbus attach {target} --wait' waits for it, \
                     'farbus release {}' where it is shared takes it back",
                    target.device
                )
            }
            ClientError::Refused { target, status, .. } => write!(f, "{target} was refused: {status}"),
            ClientError::NoDevice { target, offered } if offered.is_empty() => {
                write!(
                    f,
                    "{} offers no device at all\n  where the device is, 'farbus share' ('usbip bind' for usbipd) offers it",
                    target.address
                )
            }
            ClientError::NoDevice { target, offered } => {
                write!(f, "{} shares no '{}'; it shares: {}", target.address, target.device, offered.join(", "))
            }
            ClientError::Device { target, what } => write!(f, "{target}: {what}"),
            ClientError::Here(error) => error.fmt(f),
            ClientError::Local(what) => f.write_str(what),
        }
    }
}

/// What went wrong, and on this machine what may be behind it.
fn with_hint(f: &mut fmt::Formatter<'_>, what: &dyn fmt::Display, address: &str) -> fmt::Result {
    write!(f, "{what}")?;
    hint(address).map_or(Ok(()), |hint| write!(f, "\n  {hint}"))
}

impl std::error::Error for ClientError {}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(error.attribute(), error)
    }
}

impl From<KnownHostError> for ClientError {
    fn from(error: KnownHostError) -> Self {
        match error {
            KnownHostError::Lost { address, source } => ClientError::Lost { address, source },
            KnownHostError::Untrusted { address, what } => ClientError::Untrusted { address, what },
            KnownHostError::Elsewhere { address, what } => ClientError::Elsewhere { address, what },
            KnownHostError::Local(what) => ClientError::Local(what),
        }
    }
}

/// An error of this machine.
pub(crate) fn local(error: impl fmt::Display) -> ClientError {
    ClientError::Local(error.to_string())
}

/// The error of a device that was open already.
pub(super) fn unreachable(target: &Target, error: PortError) -> ClientError {
    let address = target.address.clone();
    match error {
        PortError::Gone => ClientError::Closed { address },
        PortError::World(what) => {
            let what = what.strip_prefix(LOST).unwrap_or(&what).to_owned();
            ClientError::Lost { address, source: io::Error::other(what) }
        }
        error @ (PortError::Peer(_) | PortError::Idle) => {
            ClientError::Device { target: target.clone(), what: error.to_string() }
        }
    }
}

/// The error of a link that failed before the device was open. On an encrypted link that may be the exporter's refusal.
pub(super) fn lost(address: &str, source: io::Error) -> ClientError {
    let address = address.to_owned();
    match HandshakeError::of_link(&source) {
        Some(HandshakeError::Refused) => ClientError::Untrusted {
            address,
            what: "it does not know this host's key (any more)\n  pair again: 'farbus pair' there, 'farbus pair HOST CODE' here"
                .into(),
        },
        Some(error) => ClientError::Untrusted { address, what: error.to_string() },
        None => ClientError::Lost { address, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_refusal_determines_its_attribute() {
        let attribute = |status| {
            let target = "lab3/1-1".parse().unwrap();
            ClientError::Refused { target, status, user: None }.attribute()
        };
        assert_eq!(attribute(OpStatus::Busy), Attribute::Refused);
        assert_eq!(attribute(OpStatus::NotAvailable), Attribute::Refused);
        assert_eq!(attribute(OpStatus::NoDevice), Attribute::Gone);
        assert_eq!(attribute(OpStatus::DeviceError), Attribute::Device);
        assert_eq!(attribute(OpStatus::Error), Attribute::Refused);
    }
}
