//! The exporter's end of a session.
//!
//! | file | what it holds |
//! |---|---|
//! | `session` | lanes, links, attachments, and the snapshot |
//! | `opening` | how a device is opened |
//! | `handover` | how a device goes from one importer to its successor |
//! | `handovers` | devices on their way, and successors that wait |
//! | `comparing` | comparing identities of devices, and telling importers |
//! | `identities` | the identities of a session's devices |
//! | `module_request`, `modules` | the modules that attachments go through, and what they cost |
//! | `untaken`, `backlog` | requests that wait because answers are not taken, and their limits |

mod backlog;
mod comparing;
mod handover;
mod handovers;
mod identities;
mod module_request;
mod modules;
mod opening;
mod session;
mod untaken;

pub use session::{
    AllowedModules, DeviceMigration, ExporterServices, ExporterSession, InheritedDevice, RecalledDevice, ServedExport,
    UnmovableError, UnservedAttachment, refusal,
};
