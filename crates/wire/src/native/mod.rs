//! farbus's own protocol: a session joins two hosts, survives the loss of its links, and carries any number of devices
//! (requirements N1 to N6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`hello`] | the first bytes of a link: which session, and its state |
//! | [`frame`] | the eight bytes before everything else |
//! | [`message`] | a message before it is cut into frames |
//! | `queue` | which message sends the next frame |
//! | [`lane`] | an ordered stream of frames that survives the loss of its links |
//! | [`lanes`] | all lanes of a session, and which lane a message uses |
//! | [`control`] | what opens and closes an attachment |
//! | [`modules`] | how two ends agree on modules, and what passes through them |
//! | [`reserve`] | reservations, and how the path to the importer is measured |
//! | [`identity`] | which device an attachment uses |
//! | [`lease`] | when the lease of an attachment ends |
//! | [`retire`] | what becomes of a disk that its importer moves |
//! | [`descriptors`] | strings and other descriptors that a description does not have |
//! | [`usb`], [`block`], [`stream`], [`console`] | requests, answers and events of these device classes |
//!
//! `docs/protocol.md` describes it byte by byte.

pub mod block;
pub mod console;
pub mod control;
pub mod descriptors;
pub mod frame;
pub mod hello;
pub mod identity;
pub mod lane;
pub mod lanes;
pub mod lease;
pub mod message;
pub mod modules;
mod queue;
pub mod reserve;
pub mod retire;
pub mod stream;
pub mod usb;

use crate::reader;

pub use frame::{FrameHeader, FrameKind};
pub use hello::{ExporterWelcome, HelloOptions, ImporterHello, LanePosition, SessionId, WelcomeOutcome};
pub use lane::{Lane, LaneLimits, ReceivedFrame};
pub use lanes::{LaneArray, LaneSet, SessionLane};
pub use message::{ClassPart, FlowId, MessageUrgency, OutboundMessage};
