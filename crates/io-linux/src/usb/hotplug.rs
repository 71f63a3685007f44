//! Notifications from the kernel that a USB device came or went: uevents over netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

/// The multicast group that the kernel sends to; udev's own is 2.
const KERNEL_GROUP: u32 = 1;
/// The longest uevent: it has at most 2 KiB of variables behind its path (kernel: `UEVENT_BUFFER_SIZE`).
const UEVENT_BYTES_MAX: usize = 8 << 10;

/// Reports that USB devices came or went since its creation.
#[derive(Debug)]
pub struct HotplugMonitor {
    socket: OwnedFd,
}

impl HotplugMonitor {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system's error; no rights are needed.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self { socket })
    }

    /// Whether any USB device came or went since the last call. Reads all pending events.
    ///
    /// # Errors
    /// The system's error.
    pub fn has_changed(&self) -> io::Result<bool> {
        let mut has_changed = false;
        let mut message = [0; UEVENT_BYTES_MAX];
        loop {
            match recvfrom(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((count, _, from)) => {
                    let is_kernel =
                        from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|a| a.pid() == 0);
                    has_changed |= is_kernel && concerns_us(&message[..count]);
                }
                Err(Errno::AGAIN) => return Ok(has_changed),
                Err(Errno::INTR) => {}
                // Events were lost because the buffer was full.
                Err(Errno::NOBUFS) => has_changed = true,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for HotplugMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a USB device went, came, or was configured, which happens after it came.
fn concerns_us(message: &[u8]) -> bool {
    let mut is_device = false;
    let mut is_news = false;
    for word in message.split(|byte| *byte == 0) {
        is_device |= word == b"DEVTYPE=usb_device";
        is_news |= matches!(word, b"ACTION=add" | b"ACTION=remove" | b"ACTION=bind");
    }
    is_device && is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_only_if_a_device_came_or_went() {
        let counts = |action: &str, kind: &str| {
            let words =
                [&format!("{action}@/devices/usb1/1-1"), &format!("ACTION={action}"), "SUBSYSTEM=usb", kind, ""];
            concerns_us(words.join("\0").as_bytes())
        };
        for action in ["add", "remove", "bind"] {
            assert!(counts(action, "DEVTYPE=usb_device"), "{action}");
            assert!(!counts(action, "DEVTYPE=usb_interface"), "{action}");
        }
        assert!(!counts("change", "DEVTYPE=usb_device"));
        assert!(!concerns_us(b"") && !concerns_us(&[0xff; 64]));
    }

    #[test]
    fn no_event_is_no_change() {
        let hotplug = HotplugMonitor::new().unwrap();
        assert!(!hotplug.has_changed().unwrap());
    }
}
