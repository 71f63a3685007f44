//! UDP options without a safe wrapper.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use super::tcp::set;

/// Whether the kernel joins datagrams of one size that arrive together, up to 64 KiB, and hands them over as one
/// (`UDP_GRO`, udp(7)). A reader with room for less loses all that does not fit.
///
/// # Errors
/// The system's error; `ENOPROTOOPT` from a kernel before 5.0, which joins none.
pub fn set_joining(socket: impl AsFd, is_on: bool) -> io::Result<()> {
    set(socket, libc::IPPROTO_UDP, libc::UDP_GRO, &c_int::from(is_on))
}

/// Whether the kernel splits what is sent at once into datagrams of one size (`UDP_SEGMENT`, udp(7)), as since 4.18.
pub fn can_split(socket: impl AsFd) -> bool {
    let size = |bytes: c_int| set(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, &bytes).is_ok();
    // None by itself: each message says its size.
    size(1200) && size(0)
}

/// Whether this error of a send may mean that the network adapter cannot split what leaves, which nothing shows before.
pub fn tells_of_splitting(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// How many bytes the kernel keeps for a socket in each direction: so many, or what an administrator allows
/// (`net.core.rmem_max`, `wmem_max`).
///
/// # Errors
/// The system's error.
pub fn set_buffers(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    #[test]
    fn datagrams_of_one_size_are_joined_until_that_is_turned_off() {
        let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        far.connect(near.local_addr().unwrap()).unwrap();
        // What is sent at once leaves as datagrams of this size.
        set(&far, libc::IPPROTO_UDP, libc::UDP_SEGMENT, &100i32).unwrap();
        let received = |is_joining| {
            set_joining(&near, is_joining).unwrap();
            assert_eq!(far.send(&[7; 300]).unwrap(), 300);
            near.recv(&mut [0; 300]).unwrap()
        };
        assert_eq!(received(true), 300);
        assert_eq!([received(false), near.recv(&mut [0; 300]).unwrap()], [100; 2]);
    }
}
