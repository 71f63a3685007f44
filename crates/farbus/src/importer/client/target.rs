//! Which device on which host.

use std::fmt;
use std::str::FromStr;

use farbus_io_net::link::host_address::{LOCAL, address_of, check_host, shown};

/// A device on a host, written `HOST[:PORT]/DEVICE`, or at a socket of this machine, written `unix:PATH/DEVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTarget {
    /// `HOST:PORT` or `unix:PATH`.
    pub address: String,
    /// The device's name or its bus id there.
    pub device: String,
}

impl FromStr for DeviceTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with(LOCAL) && text.contains("://") {
            check_host(text)?;
        }
        // A path has slashes of its own, a device's name has none.
        let parts = if text.starts_with(LOCAL) { text.rsplit_once('/') } else { text.split_once('/') };
        match parts {
            Some((host, device)) if !host.is_empty() && host != LOCAL && !device.is_empty() => {
                Ok(Self { address: address_of(&check_host(host)?), device: device.to_owned() })
            }
            _ => Err(format!(
                "'{text}' is not HOST[:PORT]/DEVICE, such as lab3/disk or 10.0.0.7:3240/1-1, nor unix:PATH/DEVICE"
            )),
        }
    }
}

impl DeviceTarget {
    /// The target as messages show it, and as it can be typed: a host's name has no port if that is the default one.
    pub fn shown(&self) -> String {
        format!("{}/{}", shown(&self.address), self.device)
    }
}

impl fmt::Display for DeviceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_with_and_without_port_and_socket() {
        let read = |text: &str| text.parse::<DeviceTarget>().map(|t| (t.address, t.device));
        assert!(read("http://lab3/disk").is_err_and(|error| error.contains("type 'lab3/disk' without 'http://'")));
        assert!(read("lab3:70000/disk").is_err_and(|error| error.contains("'70000' in 'lab3:70000' is no port")));
        assert_eq!(read("lab3/disk"), Ok(("lab3:3240".into(), "disk".into())));
        assert_eq!(read("10.0.0.7:99/1-1"), Ok(("10.0.0.7:99".into(), "1-1".into())));
        assert_eq!(read("::1/zero"), Ok(("[::1]:3240".into(), "zero".into())));
        assert_eq!(read("[::1]:5/zero"), Ok(("[::1]:5".into(), "zero".into())));
        assert_eq!(read("unix:/run/x.sock/disk"), Ok(("unix:/run/x.sock".into(), "disk".into())));
        assert!(read("lab3").is_err() && read("unix:/disk").is_err() && read("unix:disk").is_err());
    }
}
