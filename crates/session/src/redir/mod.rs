//! A device for a usbredir guest: requests of QEMU's `usb-redir` become requests to a [`Device`](farbus_model::Device).
//!
//! There are two state machines, because they live for different times. [`DeviceSession`] is the device with its open
//! requests (by the guest's ids), streams and packets received ahead. [`RedirHost`] adds a connection. When a
//! connection ends, the device has no user, but it is not gone. A session can continue on another connection with
//! everything in flight, which a guest's live migration needs.
//!
//! | file | what it holds |
//! |---|---|
//! | `describe.rs` | the device in the protocol's three tables |
//! | `device_session.rs` | requests, answers, cancels; configuration; reset; leaving |
//! | `stream.rs` | one endpoint's stream: URBs in flight, packets ahead |
//! | `frozen.rs` | a stream while its guest migrates |
//! | `host.rs` | session and connection joined |

mod describe;
mod device_session;
mod frozen;
mod host;
mod stream;

pub use device_session::DeviceSession;
pub use farbus_wire::usbredir;
pub use frozen::{FrozenRedirStream, MAGIC as FROZEN_MAGIC};
pub use host::{CAPS, RedirHost};
