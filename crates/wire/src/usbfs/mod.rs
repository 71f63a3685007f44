//! usbfs: what programs say to a node below `/dev/bus/usb`, as bytes in their memory.
//!
//! The layout is that of `include/uapi/linux/usbdevice_fs.h` on x86-64 and arm64, and for programs with pointers of 32
//! bits there, that of its `CONFIG_COMPAT` part.
//!
//! [`UsbfsIoctl`] names a command by the number of its ioctl. The structures that a command reads are decoded here and
//! checked against the limits that the kernel has; what they mean to a device is `farbus_session`'s.

mod call;
mod layout;
mod refusal;

pub use call::{PointerWidth, UsbfsIoctl};
pub use layout::{
    ConnectInfo, ConnectInfoEx, DisconnectClaim, DriverIoctl, IsoLength, SetInterface, UrbFlag, UrbHead, UrbKind,
    UrbResult, UsbfsBulkTransfer, UsbfsControlTransfer, UsbfsStreams, driver_name, endpoint_number,
};
pub use refusal::UsbfsError;
