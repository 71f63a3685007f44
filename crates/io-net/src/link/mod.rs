//! Links: connected byte channels, bare or encrypted, and how a thread waits on the descriptors it owns.

mod clock;
mod end;
mod ends;
mod gather;
mod listener;
mod local;
mod lockstep;
mod resolve;
mod silence;
mod socket;
mod stream;
mod tick;
mod tls;
mod wait;

pub use crate::sys::tcp::{TcpSendProgress, TcpSendWindow};
pub use clock::{BoottimeClock, since_boot, unix_ms};
pub use end::LinkEnd;
pub use ends::wait_for_ends;
pub use farbus_control::host_address;
pub use gather::EpollSet;
pub use listener::{AcceptedConnection, TcpLinkListener, plain_address};
pub use local::{LocalConnection, LocalError, LocalListener, MODE_BITS, OWNER_ALONE, dial as dial_local};
pub use lockstep::{CHUNK_BYTES_MAX, LockstepSender};
pub use resolve::resolve;
pub use silence::{PLAIN_SILENCE, silence_limit_of};
pub use stream::{Link, LinkCarrier, LinkError, LinkPriority, SEGMENT_BYTES_MIN, SegmentSize};
pub use tick::TickTimer;
pub use tls::{HandshakeFailure, HandshakeLimits};
pub use wait::{DeviceWaitSource, INTERESTS_MAX, PollInterest, ThreadWaker, wait, wait_exactly};
