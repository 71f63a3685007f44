//! The description of a case.

use crate::lab::CaseEnvironment;
use crate::{Result, RigError};
use std::net::TcpListener;

/// One proof. If it succeeds, it returns a short note for the reader (a measured time, a count).
pub struct RigCase {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it proves, in one line.
    pub purpose: &'static str,
    /// Runs it. Returns what it found, in a line; an error if the claim does not hold.
    pub run: fn(&CaseEnvironment) -> Result<String>,
}

/// Fails the case if a condition does not hold.
pub(super) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(RigError::Expectation(otherwise())) }
}

/// A port of the host's loopback at which nothing listens now.
pub(super) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(RigError::io("find a free port"))?;
    Ok(listener.local_addr().map_err(RigError::io("find a free port"))?.port())
}
