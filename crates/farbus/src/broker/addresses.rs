//! Decides at which addresses the broker connects to a host: which of those that a file or the confined process names
//! it believes.
//!
//! The confined process may write the file that has hosts' last addresses. If an attacker controlled that process, it
//! could make the broker connect to anything within this machine's reach. So the broker believes an address that was
//! not there when the host was first asked for only if it could be another address of the same host: numbers and no
//! name, no address of this machine, and a port at which farbus listens.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use farbus_io_net::link::host_address::SECURE_PORT;
use tracing::warn;

/// Addresses that are remembered for one host.
const DIALLED_MAX: usize = 16;

/// What the broker knows of the hosts that it connects to.
#[derive(Debug, Default)]
pub(super) struct TrustedHostAddresses {
    /// The address of each host when it was asked for first.
    first: BTreeMap<String, String>,
    /// Addresses of each host to which the broker connected.
    dialled: BTreeMap<String, Vec<SocketAddr>>,
}

impl TrustedHostAddresses {
    /// The address at which to look for `host` when a file says `remembered`.
    pub fn believe(&mut self, host: &str, remembered: &str) -> String {
        let first = self.first.entry(host.to_owned()).or_insert_with(|| remembered.to_owned());
        if is_plausible(first, remembered) {
            return remembered.to_owned();
        }
        warn!(host, remembered, "not believed to be that host's address; it is looked for where it was");
        first.clone()
    }

    /// Notes that the broker connected to `host` at this address.
    pub fn note_dialled(&mut self, host: &str, at: SocketAddr) {
        let dialled = self.dialled.entry(host.to_owned()).or_default();
        dialled.retain(|other| *other != at);
        dialled.push(at);
        let surplus = dialled.len().saturating_sub(DIALLED_MAX);
        dialled.drain(..surplus);
    }

    /// Whether the broker connected to `host` at this address.
    pub fn was_dialled(&self, host: &str, at: SocketAddr) -> bool {
        self.dialled.get(host).is_some_and(|dialled| dialled.contains(&at))
    }
}

/// Whether a host that was at `first` may be at `now`.
fn is_plausible(first: &str, now: &str) -> bool {
    if first == now {
        return true;
    }
    let Ok(now) = now.parse::<SocketAddr>() else { return false };
    let was_loopback = first.parse::<SocketAddr>().is_ok_and(|first| first.ip().to_canonical().is_loopback());
    let port = first.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let ip = now.ip().to_canonical();
    let is_elsewhere = !ip.is_unspecified() && !ip.is_multicast() && (was_loopback || !ip.is_loopback());
    is_elsewhere && (now.port() == SECURE_PORT || Some(now.port()) == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_address_is_believed_only_if_it_may_be_the_same_host_s() {
        let believed = |first: &str, now: &str| {
            let mut addresses = TrustedHostAddresses::default();
            assert_eq!(addresses.believe("lab3", first), first, "the first is");
            addresses.believe("lab3", now) == now
        };
        assert!(believed("10.0.0.7:3241", "10.0.0.9:3241"));
        assert!(believed("10.0.0.7:5000", "[2001:db8::9]:5000"));
        assert!(believed("lab3.example:5000", "10.0.0.9:3241"));
        assert!(believed("127.0.0.1:5000", "127.0.0.2:5000"), "a forwarded port may be another's");
        for false_one in [
            "10.0.0.9:22",
            "127.0.0.1:3241",
            "[::1]:3241",
            "[::ffff:127.0.0.1]:3241",
            "0.0.0.0:3241",
            "224.0.0.1:3241",
            "evil.example:3241",
            "10.0.0.9",
            "unix:/run/docker.sock",
            "",
        ] {
            assert!(!believed("10.0.0.7:3241", false_one), "{false_one}");
        }
    }

    #[test]
    fn key_can_be_proved_only_at_the_latest_dialled_addresses() {
        let mut addresses = TrustedHostAddresses::default();
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 7], port));
        assert!(!addresses.was_dialled("lab3", at(1)));
        (1..=100).for_each(|port| addresses.note_dialled("lab3", at(port)));
        assert!(addresses.was_dialled("lab3", at(100)) && !addresses.was_dialled("lab3", at(1)), "the last ones");
        assert!(!addresses.was_dialled("desk", at(100)));
    }
}
