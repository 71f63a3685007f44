//! Sockets for the kernel's events about devices, which a program gets from a network namespace in which others speak.
//!
//! Such a socket hears its own network namespace alone, and only its owner may send events there (netlink(7),
//! `NETLINK_KOBJECT_UEVENT`). A program stays in its user's network; when it makes such a socket, the kernel asks the
//! holder of a listener, who makes one elsewhere and has the kernel give it to the program (seccomp_unotify(2)). The
//! program's other calls are not concerned.

#![allow(unsafe_code, reason = "rustix has neither seccomp nor its notifications")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use farbus_io_net::sys::passing::receive_on_stream;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use rustix::thread::UnshareFlags;

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` (`linux/audit.h`): the machine, 64 bits, little endian.
const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
/// Offsets in `struct seccomp_data`: the call, the machine, the low halves of the first and third argument.
const CALL: u32 = 0;
const MACHINE: u32 = 4;
const FAMILY: u32 = 16;
const PROTOCOL: u32 = 32;

/// From now on, the listener that is returned is asked for each socket for the kernel's events that this thread makes,
/// or a program that it becomes or starts. The caller may administer its user namespace, or can get no rights any more.
///
/// # Errors
/// The system's error: `EBUSY` if another listener is asked already; this kernel has none (before Linux 5.14).
pub fn listen() -> io::Result<OwnedFd> {
    let statement = |code: u32, value: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: value };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    // If it is another one, the call is made as it is.
    let is = |value, otherwise| libc::sock_filter {
        jf: otherwise,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    };
    let end = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    let mut filter = [
        load(MACHINE),
        is(ARCH, 7),
        load(CALL),
        is(libc::SYS_socket as u32, 5),
        load(FAMILY),
        is(libc::AF_NETLINK as u32, 3),
        load(PROTOCOL),
        is(libc::NETLINK_KOBJECT_UEVENT as u32, 1),
        end(libc::SECCOMP_RET_USER_NOTIF),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is valid for this call.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let listener =
        i32::try_from(listener).ok().filter(|&listener| listener >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel made it for this call; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Puts this process, which has one thread, into a network namespace of its own, in which it may send events; without
/// root also into a user namespace, where it is root.
///
/// # Errors
/// The system's error.
pub fn enter() -> io::Result<()> {
    let user = rustix::process::geteuid();
    let flags = if user.is_root() { UnshareFlags::NEWNET } else { UnshareFlags::NEWNET | UnshareFlags::NEWUSER };
    // SAFETY: users and the network are unshared; memory, descriptors and threads stay as they are.
    unsafe { rustix::thread::unshare_unsafe(flags)? };
    if !user.is_root() {
        std::fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    }
    Ok(())
}

/// A socket for the kernel's events in this process's network namespace.
///
/// # Errors
/// The system's error.
pub fn make(kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::KOBJECT_UEVENT))?)
}

/// Sends events in the network namespace in which its socket was made.
#[derive(Debug)]
pub struct UeventSender(OwnedFd);

impl UeventSender {
    /// Sends by a socket that [`make`] has made, also in another process.
    pub fn over(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends to all that listen to a group, counted from 1; `None` is the kernel itself, which passes events on as its
    /// own. Nobody need listen, and who does not read loses events as it would lose the kernel's.
    ///
    /// # Errors
    /// The system's error.
    pub fn send(&self, group: Option<u32>, message: &[u8]) -> io::Result<()> {
        let to = SocketAddrNetlink::new(0, group.map_or(0, |group| 1 << (group - 1)));
        match sendto(&self.0, message, SendFlags::DONTWAIT, &to) {
            Ok(_) | Err(Errno::CONNREFUSED | Errno::SRCH | Errno::NOBUFS | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Gives a socket of this process's network namespace to each program for which a listener is asked. The listeners come
/// by a Unix socket; returns when its other end is closed.
///
/// # Errors
/// The system's error.
pub fn serve(listeners: BorrowedFd<'_>) -> io::Result<()> {
    let mut watched: Vec<OwnedFd> = Vec::new();
    loop {
        let fds = watched.iter().map(OwnedFd::as_fd).chain([listeners]);
        let mut ready: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let ready: Vec<PollFlags> = ready.iter().map(PollFd::revents).collect();
        let mut states = ready.iter();
        // One whose programs have all ended is hung up.
        watched.retain(|listener| {
            let state = states.next().copied().unwrap_or(PollFlags::empty());
            if state.contains(PollFlags::IN) {
                // ENOENT, for example: the program was killed, or went on because of a signal.
                let _ = answer(listener.as_fd());
            }
            state.difference(PollFlags::IN).is_empty()
        });
        if ready.last().is_some_and(|state| !state.is_empty()) {
            let mut came = Vec::new();
            if receive_on_stream(listeners, &mut [0], &mut came)? == 0 {
                return Ok(());
            }
            watched.extend(came);
        }
    }
}

fn answer(listener: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure, which this kernel has at least in this length.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) })?;
    // socket(2): flags are bits of the type, and those of open(2).
    let socket_type = notification.data.args[1] as i32;
    let kind = if socket_type & 0xf == libc::SOCK_DGRAM { SocketType::DGRAM } else { SocketType::RAW };
    let flags = if socket_type & libc::SOCK_NONBLOCK != 0 { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    match make(kind, flags | SocketFlags::CLOEXEC) {
        Ok(socket) => {
            let give = libc::seccomp_notif_addfd {
                id: notification.id,
                flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
                srcfd: socket.as_fd().as_raw_fd() as u32,
                newfd: 0,
                newfd_flags: (socket_type & libc::SOCK_CLOEXEC) as u32,
            };
            // SAFETY: the kernel reads the structure.
            check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const give) })
        }
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(libc::EAFNOSUPPORT);
            let refuse = libc::seccomp_notif_resp { id: notification.id, val: 0, error: -number, flags: 0 };
            // SAFETY: the kernel reads the structure.
            check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const refuse) })
        }
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
