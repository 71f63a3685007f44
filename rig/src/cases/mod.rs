//! What the rig proves, one named case each.
//!
//! Nearly every proof exists twice, once for each client: the distribution's `usbip attach` shows that farbus
//! is a good exporter to anybody, `farbus attach --via kernel` that it is a good importer too.

mod capture;
mod kernel;
mod keyboard;
mod link;
mod list;
mod reset;
mod storage;
mod testusb;

use crate::lab::Lab;
use crate::{Error, Result};

/// One proof. It returns a short note for the reader (a measured time, a count) when it holds.
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it proves, in one line.
    pub purpose: &'static str,
    /// The proof.
    pub run: fn(&Lab) -> Result<String>,
}

/// All cases, in the order in which a failure is best understood.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        kernel::CASES,
        list::CASES,
        storage::CASES,
        keyboard::CASES,
        testusb::CASES,
        reset::CASES,
        link::CASES,
        capture::CASES,
    ]
    .into_iter()
    .flatten()
}

/// Turns a condition that does not hold into the case's failure.
fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Expectation(otherwise())) }
}
