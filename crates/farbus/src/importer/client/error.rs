//! Why a device cannot be used: what happened, to what, and what a person can do about it.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use farbus_control::failure::{CommandFailure, FailureKind};
use farbus_host::HostPortError;
use farbus_io_net::link::LinkError;
use farbus_io_net::link::host_address::{DEFAULT_PORT, LOCAL, SECURE_PORT, port_of, shown};
use farbus_io_net::trust::{HandshakeError, host_name, timestamp};
use farbus_model::ExportIdentity;
use farbus_session::claims::host_of;
use farbus_session::registry::InUse;
use farbus_session::{OpStatus, ProtocolViolation};

use super::target::DeviceTarget;
use crate::hosts::known_host::KnownHostError;
use crate::hosts::reach::is_unknown_name;
use crate::importer::local_error::{LocalDeviceError, hint};
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
    /// A limit of the exporter was reached.
    Limit {
        /// The exporter, or the device that was asked for.
        address: String,
        /// The name of the limit.
        limit: String,
        /// Which limit it is, whose, and what to do about it.
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
        reject: ProtocolViolation,
    },
    /// The exporter refused the device.
    Refused {
        /// The device that was asked for.
        target: DeviceTarget,
        /// The exporter's reason, as USB/IP puts it.
        status: OpStatus,
        /// Who uses the device, if the exporter says so.
        user: Option<InUse>,
    },
    /// The exporter has no device of that name.
    NoDevice {
        /// The device that was asked for.
        target: DeviceTarget,
        /// The devices that it offers.
        offered: Vec<String>,
    },
    /// The device does not do what was asked of it.
    Device {
        /// The host and the device that were asked for.
        target: DeviceTarget,
        /// What is wrong with it.
        what: String,
    },
    /// The disk has old data: 'farbus swap' moved it to this machine.
    Moved {
        /// Where the data is, and what to type.
        what: String,
        /// The disk's identity, if its exporter told it.
        identity: Option<ExportIdentity>,
    },
    /// Another device is at the target than the one that was there before.
    AnotherDevice {
        /// Where it is.
        target: DeviceTarget,
        /// Which device was there, and which one is.
        what: String,
        /// What to do, or to type.
        next: String,
    },
    /// A device was named without a host, and this machine shares none of that name to this user, or several.
    Here(LocalDeviceError),
    /// This machine lacks something, or refuses it.
    Local(String),
}

impl ClientError {
    /// Which party has to act: the network, the exporter, the device or this machine.
    pub fn attribute(&self) -> FailureKind {
        match self {
            ClientError::Link(_) | ClientError::Lost { .. } | ClientError::Closed { .. } => FailureKind::Network,
            ClientError::Refused { status: OpStatus::NoDevice, .. } | ClientError::NoDevice { .. } => FailureKind::Gone,
            ClientError::AnotherDevice { .. } => FailureKind::Gone,
            ClientError::Refused { status: OpStatus::DeviceError, .. } => FailureKind::Device,
            ClientError::Refused { .. }
            | ClientError::Limit { .. }
            | ClientError::Untrusted { .. }
            | ClientError::Elsewhere { .. }
            | ClientError::Moved { .. } => FailureKind::Refused,
            ClientError::Protocol { .. } | ClientError::Device { .. } => FailureKind::Device,
            ClientError::Here(error) => error.attribute(),
            ClientError::Local(_) => FailureKind::Local,
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
                let text = format!("{error}\n  is 'farbus share' (or usbipd) running there?");
                with_hint(f, &text, &error.address)
            }
            ClientError::Link(error) if is_unknown_name(error) => write!(
                f,
                "{error}\n  no name service knows that name, and nobody nearby announces it: see 'farbus list', or type an address"
            ),
            ClientError::Link(error) => {
                let port = port_of(&error.address).unwrap_or(DEFAULT_PORT);
                let (what, next) = if port == SECURE_PORT {
                    ("'farbus share … --secure', or a daemon that serves paired hosts,", "")
                } else {
                    ("'farbus share' (or usbipd)", PAIRED_INSTEAD)
                };
                write!(f, "{error}\n  is {what} running there, and does a firewall let {port} through?{next}")
            }
            ClientError::Lost { address, source } => {
                with_hint(f, &format_args!("the link to {} was lost: {source}", shown(address)), address)
            }
            ClientError::Untrusted { address, what }
            | ClientError::Elsewhere { address, what }
            | ClientError::Limit { address, what, .. } => {
                write!(f, "{}: {what}", shown(address))
            }
            ClientError::Closed { address } => {
                with_hint(f, &format_args!("{} closed the connection", shown(address)), address)
            }
            ClientError::Protocol { address, reject } => {
                let what = format!("{} does not speak USB/IP as it should: {reject}", shown(address));
                match at_secure_port(address) {
                    Some(hint) => write!(f, "{what}\n  {hint}"),
                    None => f.write_str(&what),
                }
            }
            ClientError::Refused { target, status: OpStatus::Busy, user } => {
                let shown = target.shown();
                if let Some(InUse { user, lease_left_s: None, .. }) = user
                    && host_of(user) == host_name()
                {
                    return write!(
                        f,
                        "{shown} is in use by this host, {user}\n  'farbus status' shows where; 'farbus detach {shown}' ends that"
                    );
                }
                if let Some(InUse { user, lease_left_s: Some(left_s), .. }) = user {
                    let left = Duration::from_secs(*left_s);
                    let until = timestamp(SystemTime::now() + left);
                    let left =
                        if *left_s < 120 { format!("{left_s} s") } else { format!("{} min", left_s.div_ceil(60)) };
                    return write!(
                        f,
                        "{shown} is leased to {user} for another {left} (until {until})\n  \
                         get in line: farbus lease {shown} --for 1h"
                    );
                }
                match user {
                    Some(InUse { user, used_s, .. }) => write!(f, "{shown} is in use by {user} since {used_s} s")?,
                    None => write!(f, "{shown} is in use")?,
                }
                write!(
                    f,
                    "\n  one user at a time: 'farbus attach {shown} --wait' waits for it, \
                     'farbus release {}' where it is shared takes it back",
                    target.device
                )
            }
            ClientError::Refused { target, status: OpStatus::NoDevice, .. } => {
                write!(f, "{} shares no '{}' any more", shown(&target.address), target.device)
            }
            ClientError::Refused { target, status, .. } => write!(f, "{} was refused: {status}", target.shown()),
            ClientError::NoDevice { target, offered } if offered.is_empty() => {
                write!(
                    f,
                    "{} shares no '{}': it offers no device at all to this host\n  \
                     there, 'farbus share' ('usbip bind' for usbipd) offers it, and 'farbus allow' lets a paired host use it",
                    shown(&target.address),
                    target.device
                )
            }
            ClientError::NoDevice { target, offered } => {
                let host = shown(&target.address);
                write!(f, "{host} shares no '{}'; it shares: {}", target.device, offered.join(", "))
            }
            ClientError::Device { target, what } => write!(f, "{}: {what}", target.shown()),
            ClientError::AnotherDevice { target, what, next } => write!(f, "{}: {what}\n  {next}", target.shown()),
            ClientError::Here(error) => error.fmt(f),
            ClientError::Moved { what, .. } | ClientError::Local(what) => f.write_str(what),
        }
    }
}

/// The name of the exporter's limits of connections and sessions, where it does not say which was reached.
const SESSIONS: &str = "sessions";

/// What to type if nothing answers at the port of plain USB/IP.
const PAIRED_INSTEAD: &str = "\n  for other machines: 'farbus share … --secure' and 'farbus pair' there, \
                              'farbus pair HOST CODE' here, and then the name that it has here";

/// What is wrong if a host that is not paired is asked at the port for paired hosts. A message about a paired host
/// names the host before its address.
fn at_secure_port(address: &str) -> Option<&'static str> {
    (port_of(address) == Some(SECURE_PORT)).then_some(
        "that port is for paired hosts: 'farbus pair' there, 'farbus pair HOST CODE' here, \
         and then the name that it has here",
    )
}

/// What went wrong, and what may be behind it.
fn with_hint(f: &mut fmt::Formatter<'_>, what: &dyn fmt::Display, address: &str) -> fmt::Result {
    write!(f, "{what}")?;
    at_secure_port(address).or_else(|| hint(address)).map_or(Ok(()), |hint| write!(f, "\n  {hint}"))
}

impl std::error::Error for ClientError {}

impl From<ClientError> for CommandFailure {
    fn from(error: ClientError) -> Self {
        let limit = match &error {
            ClientError::Limit { limit, .. } => Some(limit.clone()),
            _ => None,
        };
        Self::new(error.attribute(), error).at_limit(limit)
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
pub(super) fn unreachable(target: &DeviceTarget, error: HostPortError) -> ClientError {
    let address = target.address.clone();
    match error {
        HostPortError::Gone => ClientError::Closed { address },
        HostPortError::World(what) => {
            let what = what.strip_prefix(LOST).unwrap_or(&what).to_owned();
            ClientError::Lost { address, source: io::Error::other(what) }
        }
        error @ (HostPortError::Peer(_) | HostPortError::Idle) => {
            ClientError::Device { target: target.clone(), what: error.to_string() }
        }
    }
}

/// The error of a link that failed before the device was open. On an encrypted link that may be the exporter's refusal.
pub(super) fn lost(address: &str, source: io::Error) -> ClientError {
    let address = address.to_owned();
    let source = match source.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time"),
        _ => source,
    };
    match HandshakeError::of_link(&source) {
        Some(HandshakeError::Refused) => ClientError::Untrusted {
            address,
            what: "it does not know this host's key (any more)\n  pair again: 'farbus pair' there, 'farbus pair HOST CODE' here"
                .into(),
        },
        Some(error) => ClientError::Untrusted { address, what: error.to_string() },
        None if source.kind() == io::ErrorKind::QuotaExceeded => {
            ClientError::Limit { address, limit: SESSIONS.to_owned(), what: source.to_string() }
        }
        None => ClientError::Lost { address, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_at(address: &str) -> String {
        let source = io::ErrorKind::ConnectionRefused.into();
        ClientError::Link(LinkError { address: address.into(), source }).to_string()
    }

    #[test]
    fn message_names_no_port_at_which_a_paired_host_is_not_reached() {
        let target: DeviceTarget = "lab3/disk".parse().unwrap();
        let address = target.address.clone();
        let client_errors = [
            ClientError::Refused { target: target.clone(), status: OpStatus::Busy, user: None },
            ClientError::Refused { target: target.clone(), status: OpStatus::NoDevice, user: None },
            ClientError::NoDevice { target: target.clone(), offered: Vec::new() },
            ClientError::NoDevice { target: target.clone(), offered: vec!["zero".into()] },
            ClientError::Device { target, what: "it hangs".into() },
            ClientError::Closed { address: address.clone() },
            ClientError::Lost { address: address.clone(), source: io::ErrorKind::TimedOut.into() },
            ClientError::Untrusted { address, what: "who are you".into() },
        ];
        for error in client_errors {
            let text = error.to_string();
            assert!(text.contains("lab3") && !text.contains("3240"), "{text}");
        }
    }

    #[test]
    fn device_that_is_not_shared_is_named_with_its_host_and_has_exit_code_4() {
        let target = || "lab3/tape".parse::<DeviceTarget>().unwrap();
        for error in [
            ClientError::Refused { target: target(), status: OpStatus::NoDevice, user: None },
            ClientError::NoDevice { target: target(), offered: Vec::new() },
            ClientError::NoDevice { target: target(), offered: vec!["zero".into()] },
        ] {
            assert!(error.to_string().starts_with("lab3 shares no 'tape'"), "{error}");
            assert_eq!(error.attribute().exit_code(), 4, "{error}");
        }
    }

    #[test]
    fn port_for_paired_hosts_says_so_to_a_host_that_is_not_paired() {
        let reject = ProtocolViolation::new("version", 0, "it is 0x0111");
        for error in [
            ClientError::Closed { address: "10.0.0.7:3241".into() },
            ClientError::Protocol { address: "10.0.0.7:3241".into(), reject },
        ] {
            assert!(error.to_string().contains("that port is for paired hosts: 'farbus pair' there"), "{error}");
        }
        let paired = ClientError::Closed { address: "lab3 (10.0.0.7:3241)".into() };
        assert!(!paired.to_string().contains("for paired hosts"), "{paired}");
    }

    #[test]
    fn refused_connection_names_pairing_or_the_option_that_serves_paired_hosts() {
        let plain = refused_at("10.0.0.7:3240");
        assert!(plain.contains("let 3240 through") && plain.contains("--secure' and 'farbus pair' there"), "{plain}");
        let paired = refused_at("10.0.0.7:3241");
        assert!(paired.contains("let 3241 through") && paired.contains("farbus share … --secure"), "{paired}");
    }

    #[test]
    fn status_of_a_refusal_determines_its_attribute() {
        let attribute = |status| {
            let target = "lab3/1-1".parse().unwrap();
            ClientError::Refused { target, status, user: None }.attribute()
        };
        assert_eq!(attribute(OpStatus::Busy), FailureKind::Refused);
        assert_eq!(attribute(OpStatus::NotAvailable), FailureKind::Refused);
        assert_eq!(attribute(OpStatus::NoDevice), FailureKind::Gone);
        assert_eq!(attribute(OpStatus::DeviceError), FailureKind::Device);
        assert_eq!(attribute(OpStatus::Error), FailureKind::Refused);
    }
}
