//! A block device for programs, virtual machines and kernels that speak NBD: `qemu`, `nbdcopy`, `fio`, `nbd-client`.
//!
//! [`NbdServer`] is one engine: a thread that owns the devices and all connections to them, and waits on all of it at once. Nothing is
//! handed to another thread on a request's way.

mod attachment;
mod engine;
mod memory;
mod moving;
mod uri;

pub use attachment::{Nbd, PROTOCOL, next_for};
pub use engine::{NbdServer, Offer};
pub use memory::ClientBudget;
pub use uri::uri;
