//! Finds out which user of this machine is at the other end of a TCP connection.
//!
//! A TCP socket has no credentials of its peer. If the peer is a socket of this machine, in this network namespace, the
//! kernel can find that socket by the connection's two addresses and report its user: `NETLINK_SOCK_DIAG`
//! (sock_diag(7)), or `/proc/net/tcp` and `tcp6` (proc_net_tcp.txt) if that is missing. A socket that its program has
//! closed still exists for a while, without an inode and as user 0: it counts as closed and never as root's.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getpeername, getsockname, recv, sendto, socket_with,
};
use serde::{Deserialize, Serialize};

/// The other end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerOwner {
    /// A program of this machine, of the user with this id. A connection that a program forwards is that program's.
    User(u32),
    /// Another machine, or another network namespace of this one.
    Elsewhere,
    /// The address is this machine's, and no open socket has it: its program has closed it.
    Closed,
}

/// The owner of the other end of this connected TCP socket.
///
/// # Errors
/// `socket` is no TCP socket; the kernel cannot be asked.
pub fn peer_owner(socket: impl AsFd) -> io::Result<PeerOwner> {
    let Some((local, peer)) = ends(&socket)? else { return Ok(PeerOwner::Closed) };
    let found = find(peer, local)?;
    // While the connection exists, no other socket can have these two addresses: then this socket was found.
    if ends(&socket)?.is_none() {
        return Ok(PeerOwner::Closed);
    }
    Ok(match found {
        Some(found) if found.state == ESTABLISHED && found.inode != 0 => PeerOwner::User(found.user),
        Some(_) => PeerOwner::Closed,
        None if is_own_address(peer.ip()) => PeerOwner::Closed,
        None => PeerOwner::Elsewhere,
    })
}

/// The user whose socket listens at this address of this machine, if the kernel finds one. It is the user of the
/// process when it began to listen, even if the process has changed its user since.
pub fn listener_owner(at: SocketAddr) -> Option<u32> {
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    // If no socket has exactly these two addresses, the kernel finds the listener that would get the connection.
    let nobody = SocketAddr::new(at.ip(), 0);
    let found = ask_kernel(at, nobody).ok().flatten()?;
    (found.state == LISTENS && found.inode != 0).then_some(found.user)
}

/// Both ends' addresses, with mapped IPv4 addresses converted; `None` if it is not connected any more.
fn ends(socket: &impl AsFd) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
    let canonical = |address: rustix::net::SocketAddrAny| {
        let address = SocketAddr::try_from(address)?;
        Ok::<_, Errno>(SocketAddr::new(address.ip().to_canonical(), address.port()))
    };
    let local = canonical(getsockname(socket)?)?;
    match getpeername(socket) {
        Ok(Some(peer)) => Ok(Some((local, canonical(peer)?))),
        Ok(None) | Err(Errno::NOTCONN | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A socket, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KernelTcpSocket {
    state: u8,
    user: u32,
    /// 0 once its program has closed it.
    inode: u64,
}

/// The state of a connected socket (`TCP_ESTABLISHED`, net/tcp_states.h).
const ESTABLISHED: u8 = 1;
/// The state of a listening socket (`TCP_LISTEN`, net/tcp_states.h).
const LISTENS: u8 = 10;

/// The socket at `here` that is connected to `there`.
fn find(here: SocketAddr, there: SocketAddr) -> io::Result<Option<KernelTcpSocket>> {
    match ask_kernel(here, there) {
        Ok(Some(found)) => return Ok(Some(found)),
        // The missing socket means something only if our own end is found.
        Ok(None) if matches!(ask_kernel(there, here), Ok(Some(_))) => return Ok(None),
        Ok(None) | Err(_) => {}
    }
    let files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let mut read = files.iter().map(fs::read_to_string).filter_map(Result::ok).peekable();
    if read.peek().is_none() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the kernel does not say whose TCP connections are"));
    }
    Ok(read.find_map(|table| find_in(&table, here, there)))
}

/// The message type that asks for one socket (`SOCK_DIAG_BY_FAMILY`, linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// The flag of a message that is a request (`NLM_F_REQUEST`, linux/netlink.h).
const REQUEST: u16 = 1;
/// The type of a message that reports an error (`NLMSG_ERROR`, linux/netlink.h).
const ERROR: u16 = 2;
/// Bytes of a message's header (`struct nlmsghdr`, linux/netlink.h).
const HEADER_BYTES: usize = 16;
/// Bytes of a question (`struct inet_diag_req_v2`, linux/inet_diag.h).
const QUESTION_BYTES: usize = 56;
/// Bytes of an answer (`struct inet_diag_msg`, linux/inet_diag.h).
const ANSWER_BYTES: usize = 72;

fn ask_kernel(here: SocketAddr, there: SocketAddr) -> io::Result<Option<KernelTcpSocket>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    sendto(&socket, &question(here, there), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    // The kernel answers before the call above returns.
    let (bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    read_answer(&answer[..bytes])
}

/// The question for one socket, by its own address and its peer's.
fn question(here: SocketAddr, there: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    out.extend(((HEADER_BYTES + QUESTION_BYTES) as u32).to_ne_bytes());
    out.extend(BY_FAMILY.to_ne_bytes());
    out.extend(REQUEST.to_ne_bytes());
    // Sequence number and sender: there is only one question.
    out.extend([0; 8]);
    let family = if here.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tcp = 6;
    out.extend([family.as_raw() as u8, tcp, 0, 0]);
    out.extend(u32::MAX.to_ne_bytes());
    out.extend(here.port().to_be_bytes());
    out.extend(there.port().to_be_bytes());
    out.extend(words(here.ip()));
    out.extend(words(there.ip()));
    // Any interface, any cookie (`INET_DIAG_NOCOOKIE`).
    out.extend(scope(here).to_ne_bytes());
    out.extend([0xff; 8]);
    out
}

/// An address as four words, in network order.
fn words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut words = [0; 16];
            words[..4].copy_from_slice(&address.octets());
            words
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// The interface that a link-local address is on.
fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

fn read_answer(bytes: &[u8]) -> io::Result<Option<KernelTcpSocket>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not an answer of sock_diag");
    let u16_at = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    let u32_at = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    match u16_at(4).ok_or_else(wrong)? {
        ERROR => {
            let code = u32_at(HEADER_BYTES).ok_or_else(wrong)?.cast_signed().wrapping_neg();
            match Errno::from_raw_os_error(code) {
                Errno::NOENT => Ok(None),
                errno => Err(errno.into()),
            }
        }
        BY_FAMILY if bytes.len() >= HEADER_BYTES + ANSWER_BYTES => {
            let user = u32_at(HEADER_BYTES + 64).ok_or_else(wrong)?;
            let inode = u32_at(HEADER_BYTES + 68).ok_or_else(wrong)?.into();
            Ok(Some(KernelTcpSocket { state: bytes[HEADER_BYTES + 1], user, inode }))
        }
        _ => Err(wrong()),
    }
}

/// Finds this socket's line in `/proc/net/tcp` or `tcp6`.
fn find_in(table: &str, here: SocketAddr, there: SocketAddr) -> Option<KernelTcpSocket> {
    let wanted = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (end_from(fields.next()?)?, end_from(fields.next()?)?, fields.next()?);
        if (local, remote) != (wanted(here), wanted(there)) {
            return None;
        }
        // In between: queues, timers, retransmissions; then the timeout.
        let user = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(KernelTcpSocket { state: u8::from_str_radix(state, 16).ok()?, user, inode })
    })
}

/// Parses `0100007F:0CA8`: each word in native byte order, the port as a hexadecimal number.
fn end_from(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[4 * at..4 * at + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some((address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

/// Whether an address is this machine's: then it would also be the source address of packets to it. Nothing is sent.
fn is_own_address(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let discard = 9;
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, discard))?;
        socket.local_addr()
    });
    routed.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(listen: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((listen, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn us() -> PeerOwner {
        PeerOwner::User(rustix::process::geteuid().as_raw())
    }

    #[test]
    fn an_open_connection_of_this_machine_has_a_user() {
        let (_client, server) = connected("127.0.0.1");
        assert_eq!(peer_owner(&server).unwrap(), us());
        // A listener for both families sees IPv4 as mapped addresses.
        if let Ok(listener) = TcpListener::bind("[::]:0") {
            let port = listener.local_addr().unwrap().port();
            for from in ["127.0.0.1", "::1"] {
                let Ok(_client) = TcpStream::connect((from, port)) else { continue };
                assert_eq!(peer_owner(&listener.accept().unwrap().0).unwrap(), us(), "{from}");
            }
        }
    }

    #[test]
    fn closed_client_counts_as_closed_and_not_as_root() {
        let (client, server) = connected("127.0.0.1");
        drop(client);
        assert_eq!(peer_owner(&server).unwrap(), PeerOwner::Closed);
        // The same with both sources in the kernel.
        let (client, server) = connected("127.0.0.1");
        let (here, there) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        let table = || fs::read_to_string("/proc/self/net/tcp").unwrap();
        let open = find_in(&table(), here, there).unwrap();
        assert!(open.state == ESTABLISHED && open.inode != 0, "{open:?}");
        if let Ok(socket) = ask_kernel(here, there) {
            assert_eq!(socket, Some(open), "both say the same");
        }
        drop(client);
        let closed = find_in(&table(), here, there);
        assert!(closed.is_none_or(|closed| closed.state != ESTABLISHED && closed.inode == 0), "{closed:?}");
    }

    #[test]
    fn a_listener_has_a_user_and_a_free_port_has_none() {
        for at in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let port = listener.local_addr().unwrap().port();
            let here = SocketAddr::from(([127, 0, 0, 1], port));
            if ask_kernel(here, here).is_ok() {
                assert_eq!(listener_owner(here), Some(rustix::process::geteuid().as_raw()), "{at}");
            }
            drop(listener);
            assert_eq!(listener_owner(here), None);
        }
    }

    #[test]
    fn reset_connection_counts_as_closed() {
        let (client, server) = connected("127.0.0.1");
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(peer_owner(&server).unwrap(), PeerOwner::Closed);
    }

    #[test]
    fn tables_of_both_families_are_read() {
        let v4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                  0: 0100007F:0CA8 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 x\n";
        let (here, there) = ("127.0.0.1:3240".parse().unwrap(), "127.0.0.1:54321".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(find_in(v4, here, there), Some(KernelTcpSocket { state: 1, user: 1000, inode: 4711 }));
            assert_eq!(find_in(v4, there, here), None);
            let v6 = "sl\n 0: 0000000000000000FFFF00000100007F:0CA8 0000000000000000FFFF00000100007F:D431 01 \
                      00000000:00000000 00:00000000 00000000 0 0 0 1 x\n";
            assert_eq!(
                find_in(v6, here, there),
                Some(KernelTcpSocket { state: 1, user: 0, inode: 0 }),
                "a mapped address"
            );
        }
        for wrong in ["", "x\n0: 1:2 3", "x\n0: 0100007F:0CA8 zz:1 01", "x\n0: 0100007F0:0CA8 0100007F:D431 01"] {
            assert_eq!(find_in(wrong, here, there), None);
        }
    }

    #[test]
    fn invalid_answers_of_the_kernel_are_refused() {
        for wrong in [&[][..], &[0; 5], &[0; 16], &[20, 0, 0, 0, 20, 0, 0, 0]] {
            assert!(read_answer(wrong).is_err(), "{wrong:?}");
        }
        let mut missing = vec![0; 36];
        missing[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        missing[16..20].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(read_answer(&missing).unwrap(), None);
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        assert!(is_own_address("127.0.0.1".parse().unwrap()) && is_own_address("127.9.9.9".parse().unwrap()));
        assert!(!is_own_address("192.0.2.1".parse().unwrap()));
    }
}
