//! The exporter's end of a session.
//!
//! | file | what it holds |
//! |---|---|
//! | `session` | its lanes and links, what is attached, and how it goes on in another process |
//! | `opening` | how a device is opened |
//! | `handover` | how it goes from one importer to its successor |
//! | `comparing` | what is compared, and told, of the devices that attachments use |
//! | `handovers` | what is on its way so, and who waits |
//! | `identities` | which devices those are |
//! | `untaken`, `backlog` | what waits because answers are not taken, and how much that may be |

mod backlog;
mod comparing;
mod handover;
mod handovers;
mod identities;
mod opening;
mod session;
mod untaken;

pub use session::{
    Allowed, ExporterSession, Inherited, Left, Migration, Recalled, Served, Services, Unmovable, refusal,
};
