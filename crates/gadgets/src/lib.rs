//! # Devices made of code
//!
//! **This crate is** where gadgets live: each a short declarative [`Definition`](farbus_model::DeviceDefinition)
//! and a [`GadgetFunction`] that says what its endpoints do. [`EmulatedDevice`] turns the two into a
//! [`Device`](farbus_model::Device): standard requests, halts, queues and the bus's pace are its work.
//!
//! **It may touch** the stores and the moments that it is handed.
//!
//! **It never touches** a file, a socket, a thread or a clock; nor the host that drives it.
//!
//! **Start reading at** [`zero`], the smallest real one, then [`storage`]; then [`emulated`], which serves them.
//!
//! **Why** a function never sees a queue: whether three URBs wait or none is the bus's affair. It is
//! asked for data when the host wants some, and says so when it has none.

pub mod audio;
pub mod bridge;
pub mod can;
pub mod cmsis_dap;
pub mod debug_port;
pub mod dfu;
pub mod emulated;
pub mod fastboot;
#[cfg(test)]
mod fuzzing;
pub mod keyboard;
mod lane;
pub mod picture;
pub mod root_hub;
mod saved;
pub mod serial;
pub mod storage;
pub mod zero;

pub use emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
pub use lane::GadgetWaker;
