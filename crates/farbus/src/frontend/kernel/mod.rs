//! This machine's kernel as a front end: relays between the kernel and a device of another host. Each relay is one
//! thread that waits on both.

mod attachment;
mod device_relay;
mod relay_loop;
#[cfg(test)]
mod tests;
mod uas;
mod uas_relay;

pub use attachment::KernelFrontEnd;
pub use uas::{FastestKernelFrontEnd, UasFrontEnd};
