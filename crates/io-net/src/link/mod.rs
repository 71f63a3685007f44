//! Links: connected byte channels, bare or encrypted, and how a thread waits on the descriptors it owns.

mod clock;
mod end;
mod ends;
mod gather;
mod listener;
mod local;
mod lockstep;
mod socket;
mod stream;
mod tls;
mod wait;

pub use crate::sys::tcp::Progress;
pub use clock::{Clock, since_boot, unix_ms};
pub use end::LinkEnd;
pub use ends::wait_for_ends;
pub use farbus_control::host_address;
pub use gather::Gathering;
pub use listener::{Connection, Listener, plain_address};
pub use local::{LocalConnection, LocalError, LocalListener, MODE_BITS, OWNER_ALONE, dial as dial_local};
pub use lockstep::{CHUNK_BYTES_MAX, Lockstep};
pub use stream::{Carrier, Link, LinkError, LinkPriority};
pub use tls::{HandshakeFailure, HandshakeLimits};
pub use wait::{INTERESTS_MAX, Interest, Wake, Watched, wait, wait_exactly};
