//! farbus's own tongue: a session joins two hosts, outlives its links, and carries any number of devices (requirements
//! N1 to N6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`hello`] | the first bytes of a link: which session, and where it stands |
//! | [`frame`] | the eight bytes before everything else |
//! | [`message`] | what is to be said, before it is cut into frames |
//! | `queue` | who may send the next frame |
//! | [`lane`] | an ordered stream of frames that outlives its links |
//! | [`lanes`] | all lanes of a session, and on which of them what goes |
//! | [`control`] | what opens and closes an attachment |
//! | [`modules`] | how two ends agree on modules, and what goes through them |
//! | [`reserve`] | what is reserved for a device, and how the path to its user is measured |
//! | [`identity`] | which device an attachment uses |
//! | [`usb`], [`block`], [`stream`] | what is asked of devices of these classes, and answered |
//!
//! `docs/protocol.md` says it byte by byte.

pub mod block;
pub mod control;
pub mod frame;
pub mod hello;
pub mod identity;
pub mod lane;
pub mod lanes;
pub mod message;
pub mod modules;
mod queue;
pub mod reserve;
pub mod stream;
pub mod usb;

use crate::reader;

pub use frame::{Head, Kind};
pub use hello::{Hello, LanePosition, Options, Outcome, SessionId, Welcome};
pub use lane::{Arrived, Lane, LaneLimits};
pub use lanes::{LaneSet, Lanes};
pub use message::{Flow, Message, Part, Urgency};
