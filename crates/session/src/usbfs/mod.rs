//! A device as a program sees it through usbfs: opens, claims and URBs of one node below `/dev/bus/usb`, without a
//! kernel behind it.
//!
//! [`UsbfsNode`] carries out the commands of [`farbus_wire::usbfs`] on any [`Device`](farbus_model::Device). It behaves as
//! `drivers/usb/core/devio.c` of Linux 6.1 does, error numbers included; where it differs, the place says so. What
//! brings the commands (a FUSE file system, a seccomp listener, a library) is not known here.
//!
//! The program's memory is read while its command is being handled, and written only by an [`UsbfsAnswer`] to a command
//! that it still waits for. Data of a finished URB are written when the URB is reaped, into the memory of the process
//! that reaps it.
//!
//! | the race | what the program sees |
//! |---|---|
//! | discarded before it finished | the discard succeeds; the URB is reaped with ENOENT |
//! | finished before the discard came | the discard fails with EINVAL; the URB is reaped with its true status |
//! | finished after the discard came, before the device cancelled it | the discard succeeds; the URB has its true status |
//! | discarded twice | the second one fails with EINVAL |
//! | a signal while it waits in REAPURB | EINTR; the URB is reaped later |
//! | a signal while it waits in CONTROL or BULK | the transfer is cancelled; EINTR if it was in time |
//! | the device goes | URBs are reaped with ESHUTDOWN; then every command fails with ENODEV |
//! | the open is closed | its URBs are cancelled, and nobody hears of them again |
//!
//! | file | what it holds |
//! |---|---|
//! | `command.rs` | what a program asks, and what it is answered |
//! | `node.rs` | the commands, one function each |
//! | `claims.rs` | which open has which interface |
//! | `opened.rs` | one open of the node: finished URBs, who waits for them, rights |
//! | `tree.rs` | the device's folder below `/sys/bus/usb/devices` |
//! | `event.rs` | what programs are told when a device comes or goes |
//! | `udev.rs` | what udev's database has of a device |
//! | `transfer.rs` | one transfer: how it becomes a request, and how its result is told |

mod claims;
mod command;
mod event;
mod node;
mod opened;
mod transfer;
mod tree;
mod udev;

pub use command::{CallId, OpenId, ProgramMemory, UsbfsAnswer, UsbfsCommand};
pub use event::{DeviceUevent, UDEV_GROUP, UeventAction};
pub use farbus_wire::usbfs::{PointerWidth, UsbfsError, UsbfsIoctl};
pub use node::{UsbBusLocation, UsbfsNode};
pub use opened::UsbfsPollEvents;
pub use tree::{SysfsDevice, SysfsEntry, folder_name};
