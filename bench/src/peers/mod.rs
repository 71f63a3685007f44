//! The comparisons for farbus: other servers, and the limits of the machine.
//!
//! Every server runs in a process of its own (this binary again, under a hidden subcommand), so that its costs can be
//! read from outside in the same way for all. A server announces itself with a line that contains `listening on
//! ADDRESS` and serves until it is killed.

mod flood;
pub mod inside;
mod listen;
pub mod local;
pub mod nbdkit;
pub mod ping;
mod reference;
mod server;
pub mod session;
pub mod stream;
pub mod tls;
mod usbip_crate;

use anyhow::{Context, Result};

pub use self::server::{PeerServer, PeerServerKind};

/// Serves as `kind` until the process that started this one is gone.
pub fn serve(kind: PeerServerKind, argument: Option<&str>) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match kind {
        PeerServerKind::Ping => ping::serve(listen::announce()?),
        PeerServerKind::Stream => stream::serve(listen::announce()?),
        PeerServerKind::Tls => tls::serve(listen::announce()?),
        PeerServerKind::Ref => reference::serve(listen::announce()?),
        PeerServerKind::Crate => usbip_crate::serve(),
        PeerServerKind::Session => session::serve(&listen::announce_at(argument)?),
        PeerServerKind::Proxy => session::serve_proxy(argument.context("a proxy is told what it is in front of")?),
        PeerServerKind::Flood => flood::serve(argument.context("a flood is told where to and how fast")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load generator is tried on every peer that speaks USB/IP before it judges farbus.
    #[test]
    fn the_load_generator_and_the_reference_server_understand_each_other() {
        use crate::{
            load::{LoadLimit, UsbipLoadClient},
            usbip::{TransferTemplate, UsbipDirection},
        };
        let listener = std::net::TcpListener::bind(listen::ANY_LOOPBACK_PORT).expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || reference::serve(listener));
        let mut client = UsbipLoadClient::attach(address, reference::BUSID).expect("attached");
        for direction in UsbipDirection::BOTH {
            for bytes in [0, 1, 64, 4096, 1_000_003] {
                for depth in [1, 2, 32] {
                    let tally = client
                        .run(&TransferTemplate::bulk(direction, bytes), depth, LoadLimit::Urbs(100))
                        .unwrap_or_else(|error| panic!("{direction:?} {bytes} x {depth}: {error:#}"));
                    assert_eq!((tally.urbs, tally.bytes), (100, 100 * bytes as u64));
                    assert_eq!(tally.latency_ns.len(), 100);
                }
            }
        }
    }
}
