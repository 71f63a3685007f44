//! What is noted in the audit log of each use of a device, whoever the user is: a paired host, or a program that proves
//! no key.

use std::sync::Arc;

use farbus_io::trust::{Audit, Event, Folder};
use tracing::debug;

use crate::broker::Broker;

/// Who writes the audit log of a process that serves users without a key.
#[derive(Debug)]
pub enum Recorder {
    /// The process itself: it may write to the folder.
    Own(Arc<Audit>),
    /// Its other half.
    Through(Broker),
}

impl Recorder {
    /// One for a process that keeps its rights; `None` if there is no folder to keep a log in, because nobody ever made
    /// a key.
    pub fn of_user() -> Option<Self> {
        let folder = Folder::of_user().ok().filter(|folder| folder.path().exists());
        folder.map(|folder| Recorder::Own(Arc::new(Audit::new(folder))))
    }

    /// Writes a line, or has it written.
    pub fn record(&self, event: &Event<'_>) {
        match self {
            Recorder::Own(audit) => audit.record(event),
            Recorder::Through(broker) => {
                if let Err(error) = broker.record(event) {
                    debug!(%error, "the audit log was not written");
                }
            }
        }
    }

    /// Nothing more is recorded: what was counted is written.
    pub fn finish(&self) {
        if let Recorder::Own(audit) = self {
            audit.finish();
        }
    }
}
