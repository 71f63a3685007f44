//! Listens for browsers of other machines.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener, UdpSocket};
use std::sync::Arc;

use farbus_control::daemon::Elsewhere;
use farbus_control::failure::CommandFailure;
use farbus_io_net::sys::tcp;
use farbus_io_net::trust::{HostFolder, PageKey, RemotePage, StateError, host_name};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::line::hex;
use crate::line::messages::ConfinedPageTls;
use crate::rights::half::RemoteSite;
use crate::rights::spare::{ACCEPT_PAUSE, LazyConfinedProcess};

/// What the kernel holds of a connection before it was sent, bytes.
const UNSENT_BYTES_MAX: u32 = 16 << 10;
/// Addresses of networks for documentation (RFC 5737, RFC 3849): towards them the usual way out is taken.
const OUT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// Why the page cannot listen at an address, and what to type.
pub fn cannot_listen(address: SocketAddr, error: &io::Error) -> CommandFailure {
    let next = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "\n  another page runs there, or another program: 'farbus status' shows yours; --listen or --tls takes another port"
        }
        _ => "",
    };
    CommandFailure::local(format!("cannot listen on {address}: {error}{next}"))
}

/// Listens at `address`, and reads or makes the page's key. Where the page is it stores for `farbus page invite`.
///
/// # Errors
/// [`CommandFailure`]: it cannot listen there, or the state folder cannot be used.
pub fn listen(address: SocketAddr, mut names: Vec<String>) -> Result<(TcpListener, RemoteSite), CommandFailure> {
    let cannot = |error: io::Error| cannot_listen(address, &error);
    let listener = StdTcpListener::bind(address).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    if names.is_empty() {
        names.push(usual_name(address.ip()));
        let host = host_name();
        names.extend([format!("{host}.local"), host]);
    }
    let folder = HostFolder::of_user()?;
    let key = PageKey::load_or_create(&folder, &names)?;
    let url = match (names.first(), address.port()) {
        (Some(name), 443) => format!("https://{name}"),
        (Some(name), port) => format!("https://{name}:{port}"),
        (None, _) => format!("https://{address}"),
    };
    let fingerprint = key.fingerprint();
    let page = RemotePage { listen: address.to_string(), url: url.clone(), fingerprint: fingerprint.clone() };
    page.store(&folder).map_err(|error: StateError| CommandFailure::from(error))?;
    let tls = ConfinedPageTls { key: hex::encode(&key.key), certificate: hex::encode(&key.certificate), names };
    let site = RemoteSite { port: address.port(), tls, elsewhere: Elsewhere { url, fingerprint } };
    Ok((listener, site))
}

/// The address by which other machines most likely reach a listener.
fn usual_name(address: IpAddr) -> String {
    let towards = |out: IpAddr| {
        let any = if out.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        // Nothing is sent: the kernel chooses the address alone.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((out, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    let address = match address.is_unspecified() {
        true => OUT.into_iter().find_map(towards),
        false => Some(address),
    };
    match address {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        Some(address) => address.to_string(),
        None => host_name(),
    }
}

/// Has the kernel send an event at once, and hold little for a client that does not read. What is on its way to one
/// that reads comes on top, so a long way costs no speed.
pub fn set_options(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| tcp::set_unsent_max(stream, UNSENT_BYTES_MAX)) {
        tracing::debug!(%error, "a client that does not read costs the socket's whole buffer");
    }
}

/// Passes connections to the process for browsers of other machines, which is started with the first.
pub async fn accept(listener: TcpListener, spare: Arc<LazyConfinedProcess>) -> Infallible {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(reached) = stream.local_addr() else { continue };
        set_options(&stream);
        let Ok(stream) = stream.into_std() else { continue };
        if let Some(half) = spare.half().await {
            half.pass_remote(reached, from, &stream.into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_named_by_its_address() {
        assert_eq!(usual_name("192.0.2.7".parse().unwrap()), "192.0.2.7");
        assert_eq!(usual_name("2001:db8::7".parse().unwrap()), "[2001:db8::7]");
        assert!(!usual_name("0.0.0.0".parse().unwrap()).contains("0.0.0.0"), "nobody reaches that");
    }
}
