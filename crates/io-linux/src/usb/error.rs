//! Why a real device cannot be taken.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a device cannot be taken.
#[derive(Debug)]
pub enum UsbOpenError {
    /// This user may not open its node.
    NotAllowed {
        /// The device's node in /dev/bus/usb, which a udev rule can open to this user.
        node: PathBuf,
    },
    /// Another program uses it through usbfs.
    Busy {
        /// `bInterfaceNumber` of the interface that the other program has claimed.
        interface: u8,
    },
    /// The device is gone.
    Gone,
    /// Any other error.
    Os {
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for UsbOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsbOpenError::NotAllowed { node } => write!(
                f,
                "no permission for {}: run as root, or let a udev rule give it to you: farbus doctor",
                node.display()
            ),
            UsbOpenError::Busy { interface } => {
                write!(f, "another program uses its interface {interface}: end that program first")
            }
            UsbOpenError::Gone => f.write_str("it was unplugged"),
            UsbOpenError::Os { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for UsbOpenError {}

impl UsbOpenError {
    pub(super) fn of(doing: &'static str, error: io::Error) -> Self {
        use rustix::io::Errno;
        match Errno::from_io_error(&error) {
            Some(Errno::NODEV | Errno::NOENT | Errno::NXIO) => UsbOpenError::Gone,
            _ => UsbOpenError::Os { doing, error },
        }
    }
}
