//! The kit's connections, which its user provides.

use std::fmt;
use std::time::Duration;

use farbus_model::Instant;

/// The way to the peer that is tested.
pub trait PeerNetwork {
    /// Opens a connection.
    ///
    /// # Errors
    /// [`LinkLoss`]: why there is none.
    fn dial(&mut self) -> Result<Box<dyn PeerLink>, LinkLoss>;

    /// Lets time pass: the peer is asked again later.
    fn pause(&mut self, span: Duration);

    /// Now, since a moment that stays the same.
    fn now(&self) -> Instant;
}

/// A connection to the peer. Dropping it closes it.
pub trait PeerLink {
    /// Sends bytes, as long as the peer takes them. Returns how many it took within the time.
    ///
    /// # Errors
    /// [`LinkLoss`]: the peer ended the connection.
    fn send(&mut self, bytes: &[u8], within: Duration) -> Result<usize, LinkLoss>;

    /// Waits for bytes.
    fn receive(&mut self, into: &mut [u8], within: Duration) -> ReceiveOutcome;
}

/// What came within the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// So many bytes, at least one.
    Bytes(usize),
    /// The peer ended the connection.
    Closed,
    /// Nothing came within the time.
    Silence,
}

/// A connection that is not there (any more); holds a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkLoss(pub String);

impl fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LinkLoss {}
