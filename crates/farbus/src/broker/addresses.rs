//! Where the half with rights connects on behalf of the other: which of the addresses that a file or the other half
//! says it believes.
//!
//! The confined half may write the file in which hosts' last addresses are. Taken over, it could have this half connect
//! to anything that is within this machine's reach. So an address that was not there when the host was first asked for
//! is only believed if it could be another address of the same host: numbers and no name, no address of this machine,
//! and a port at which farbus listens.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tracing::warn;

use crate::common::host_address::SECURE_PORT;

/// Addresses of one host that are kept in mind.
const DIALLED_MAX: usize = 16;

/// What is known of the hosts that are connected to.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Where each was when it was asked for first.
    first: BTreeMap<String, String>,
    /// Where connections to each were made.
    dialled: BTreeMap<String, Vec<SocketAddr>>,
}

impl Addresses {
    /// Where `host` is to be looked for, if a file says `remembered` now.
    pub fn believe(&mut self, host: &str, remembered: &str) -> String {
        let first = self.first.entry(host.to_owned()).or_insert_with(|| remembered.to_owned());
        if is_plausible(first, remembered) {
            return remembered.to_owned();
        }
        warn!(host, remembered, "not believed to be that host's address; it is looked for where it was");
        first.clone()
    }

    /// A connection was made there.
    pub fn note_dialled(&mut self, host: &str, at: SocketAddr) {
        let dialled = self.dialled.entry(host.to_owned()).or_default();
        dialled.retain(|other| *other != at);
        dialled.push(at);
        let surplus = dialled.len().saturating_sub(DIALLED_MAX);
        dialled.drain(..surplus);
    }

    /// Whether one was.
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
    fn an_address_that_appears_later_is_believed_if_it_may_be_that_hosts() {
        let believed = |first: &str, now: &str| {
            let mut addresses = Addresses::default();
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
    fn only_where_a_connection_was_made_can_a_key_have_been_proved() {
        let mut addresses = Addresses::default();
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 7], port));
        assert!(!addresses.was_dialled("lab3", at(1)));
        (1..=100).for_each(|port| addresses.note_dialled("lab3", at(port)));
        assert!(addresses.was_dialled("lab3", at(100)) && !addresses.was_dialled("lab3", at(1)), "the last ones");
        assert!(!addresses.was_dialled("desk", at(100)));
    }
}
