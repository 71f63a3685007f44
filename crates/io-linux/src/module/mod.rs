//! Modules that are not code of farbus: a separate program over pipes or shared memory, or code in a sandbox
//! (requirement I3).
//!
//! All of them exchange the same frames ([`farbus_model::module_abi`]); a [`Channel`](turn::ModuleChannel) carries
//! these.
//!
//! | way | what a turn costs | who keeps it in |
//! |---|---|---|
//! | [`pipes`] | two changes of process, four copies; two if it passes data on | the kernel (`sys::confine_program`), and a supervisor |
//! | [`ring`] | two changes of process, two copies; one if it passes data on | the same |
//! | [`sandbox`] | two copies, and what an interpreter costs | the interpreter: it has nothing but its memory |
//!
//! Every call is a turn: the module is sent a frame, and answers until it says that it is done. Time and size of its
//! answers are limited. A module that crashes, hangs, breaks the protocol or exceeds the limits is cut off: its
//! attachment ends, and nothing else.

mod half;
mod pipes;
mod process;
mod ring;
#[cfg(feature = "wasm")]
mod sandbox;
mod turn;

pub use half::ModuleUse;
pub use process::{MEMORY_FD, ModuleProcess, ModuleTransport, arrange, supervise};
#[cfg(feature = "wasm")]
pub use sandbox::{CODE_BYTES_MAX, WasmSandbox};
