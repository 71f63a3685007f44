//! A block device for programs, virtual machines and kernels that speak NBD: `qemu`, `nbdcopy`, `fio`, `nbd-client`.
//!
//! [`NbdServer`] is one engine: a thread that owns the devices and all connections to them, and waits on all of them at
//! once. A request is not passed to another thread.

mod attachment;
mod engine;
mod flush_watch;
mod memory;
mod moving;
mod uri;

pub use attachment::{NbdFrontEnd, PROTOCOL, next_for};
pub use engine::{NbdExport, NbdServer};
pub use memory::ClientBudget;
pub use uri::uri;
