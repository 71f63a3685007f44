//! The experiments of section 6 of West, Golchin and Njavro (2023), run again in bus time. R8.
//!
//! [`paper`] has the figures that they published; each other module is one experiment and answers with its own.

pub mod paper;
pub mod round_trips;
pub mod throughput;
pub mod usb_can;
