//! Other hosts: which keys are trusted, how two hosts are paired, how a host is found and reached, and the questions
//! that paired hosts ask each other.

pub mod known_host;
pub mod mdns;
pub mod pairing;
pub mod questions;
pub mod reach;
pub mod trust;
