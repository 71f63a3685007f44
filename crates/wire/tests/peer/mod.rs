//! The other end of the wire, written a second time: from the kernel's document
//! (`Documentation/usb/usbip_protocol.rst`), field by field, and not from farbus's encoder, so that one mistake cannot
//! hide in both. [`checker`] compares an exporter's answers with what was asked.

#![allow(dead_code, unused_imports, reason = "every test takes what it needs")]

pub mod checker;
mod frames;

pub use checker::{Checker, Reply};
pub use frames::*;
