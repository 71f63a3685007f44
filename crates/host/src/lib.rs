//! # A USB host in user space
//!
//! **This crate is** what a kernel's USB stack is to a device, without a kernel: it reads a device's
//! descriptors ([`enumerate`]), selects a configuration, and drives mass storage ([`storage`]) or
//! whatever a client asks ([`TransferTracker`]). Everything in it is a state machine that asks for URBs
//! and is told how they ended ([`DeviceDriver`]); a [`HostPort`] is the way to a device, and [`run`] pumps
//! the one through the other.
//!
//! **It may touch** nothing: requests, completions and moments are handed to it.
//!
//! **It never touches** a socket, a file, a thread or a clock; nor a gadget by name. Whether the
//! device is in this process or across the world is the port's affair.
//!
//! **Start reading at** [`run`], the whole journey in one loop; then [`RemoteDisk`], [`DrivenDisk`] and
//! [`RemoteDevice`], which callers use; then [`storage::bulk_only`], where the races are.
//!
//! **Why** everything a device says is checked here even though a wire has been checked before:
//! the wire's gate sees that a reply fits its request, and only the driver knows what it must mean.
//! Every wait has an end ([`limits`]), so that the most hostile device costs a bounded time.

pub mod driven_disk;
pub mod driver;
pub mod enumerate;
pub mod limits;
pub mod local;
pub mod port;
pub mod remote_device;
pub mod remote_disk;
pub mod serial;
pub mod storage;
pub mod transfers;

pub use driven_disk::DrivenDisk;
pub use driver::{DeviceDriver, IdSource};
pub use enumerate::{ConfigurationSetter, DescriptorEnumerator, EnumerationError};
pub use local::LocalPort;
pub use port::{HostPort, HostPortError, run};
pub use remote_device::{RemoteDevice, RemoteError};
pub use remote_disk::RemoteDisk;
pub use storage::{DiskError, DiskInfo, ScsiDisk, ScsiDiskOptions};
pub use transfers::TransferTracker;
