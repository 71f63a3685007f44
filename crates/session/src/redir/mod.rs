//! A device for a usbredir guest: what QEMU's `usb-redir` asks becomes requests to a [`Device`](farbus_model::Device).
//!
//! Two state machines, because two things live for different times. [`DeviceSession`] is the device and what is under
//! way with it: requests by the guest's ids, streams and what was received ahead. [`RedirHost`] lends it a connection.
//! A connection that ends is *nobody uses the device now*, not *the device is gone*; and a session may go on on another
//! connection, with everything that is under way, which is what a guest's live migration is.
//!
//! | file | what it holds |
//! |---|---|
//! | `describe.rs` | the device as the protocol's three tables |
//! | `device_session.rs` | requests, their answers, cancels; configuration; reset; leaving |
//! | `stream.rs` | one endpoint's stream: URBs in flight, packets ahead |
//! | `frozen.rs` | a stream that is between two homes |
//! | `host.rs` | session and connection joined |

mod describe;
mod device_session;
mod frozen;
mod host;
mod stream;

pub use device_session::DeviceSession;
pub use farbus_wire::usbredir;
pub use frozen::{Frozen, MAGIC as FROZEN_MAGIC};
pub use host::{CAPS, RedirHost};
