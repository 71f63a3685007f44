//! The experiments of section 6 of West, Golchin and Njavro (2023), repeated in simulated bus time. R8.
//!
//! [`paper`] has the published figures; each other module is one experiment and returns its own.

pub mod judged;
pub mod paper;
pub mod round_trips;
pub mod storms;
pub mod throughput;
pub mod usb_can;
