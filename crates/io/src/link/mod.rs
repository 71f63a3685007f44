//! Links: connected byte channels, and how a thread waits on the descriptors it owns.

mod clock;
mod listener;
mod stream;
mod wait;

pub use clock::Clock;
pub use listener::{Connection, Listener};
pub use stream::{Link, LinkError};
pub use wait::{Interest, Wake, Watched, wait, wait_exactly};
