//! This crate is a made-up world from a seed: host controllers that move packets microframe by microframe, processors
//! that run virtual CPUs and the bottom halves of interrupts as Quest does and as Linux does, CAN channels behind a
//! device with a small buffer, and hosts that reach each other through a router. On them the experiments of West,
//! Golchin and Njavro, "Real-Time USB Networking and Device I/O" (2023), are run again.
//!
//! It may touch a seed, and `farbus-realtime`: what that crate admits is what is run here, its servers are the ones
//! that run.
//!
//! It never touches clocks, threads, sockets, or text for people: a world is a function of its settings and its seed,
//! and answers with figures; `bench` puts them beside the paper's.
//!
//! Start reading at [`bus::SimulatedController`] for a bus that serves a plan's places, at [`xhci::XhciController`] for
//! one that knows of no plan and judges it, [`processor::SimulatedProcessor`] for a processor, [`experiments`] for the
//! paper's.
//!
//! Why so: a promise of the planner can be held against a bus only if there is one to break it, and an hour of a real
//! one takes an hour. Here packets may be as short, requests as ill-timed and interrupts as many as the seed wants, and
//! a failure comes back when its seed does.
//!
//! # What is assumed
//!
//! - The controller of [`bus`] serves the periodic endpoints of an interval first, up to the share that the
//!   specification gives them, then the asynchronous ones in turns, a burst each; a packet that might not end within
//!   the interval waits for the next one, where the burst continues.
//! - A request that is submitted during an interval is seen at the start of the next.
//! - A packet takes its worst time, or less at random.
//! - Switching between threads costs nothing; the time of an interrupt's top half is taken from the running thread.

#![forbid(unsafe_code)]

pub mod bus;
pub mod can;
pub mod experiments;
pub mod histogram;
pub mod links;
pub mod processor;
pub mod random;
pub mod xhci;

pub use histogram::Histogram;
pub use random::SimulationRng;
