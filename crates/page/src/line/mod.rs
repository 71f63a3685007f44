//! The line between the two processes of a page.
//!
//! One process has the clients: it reads what they send, and writes HTML, JSON and events. It is confined: it has no
//! files, makes no connections and starts no programs ([`crate::http`]). The other one has the rights of its user
//! ([`crate::rights`]). It accepts each connection, asks the kernel whose it is, and passes it on with a number. For
//! all that needs rights the confined process asks over the line, and names the connection and the token for which it
//! asks. The other one checks both each time. So a confined process that was taken over can do what its clients may do,
//! and no more.
//!
//! The line is a stream of [`frames`] with JSON ([`messages`]).

pub mod asking;
pub mod frames;
pub mod hex;
pub mod messages;
pub mod places;

/// The hidden verb that starts the confined process.
pub const VERB: &str = "page-http";
/// The option with which it keeps its rights.
pub const NO_SANDBOX: &str = "--no-sandbox";
