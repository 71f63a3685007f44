//! Writes the audit log of each use of a device, whether the user is a paired host or a program without a key.

use std::sync::Arc;

use farbus_io::trust::{Audit, Event, Folder};
use tracing::debug;

use crate::broker::Broker;

/// Writes the audit log for users that prove no key.
#[derive(Debug)]
pub enum Recorder {
    /// This process writes the log itself: it has access to the folder.
    Own(Arc<Audit>),
    /// The broker writes the log, because this process has no rights.
    Through(Broker),
}

impl Recorder {
    /// Returns the recorder of a process that keeps its rights. Returns `None` if the user's folder does not exist,
    /// because no key was ever made.
    pub fn of_user() -> Option<Self> {
        let folder = Folder::of_user().ok().filter(|folder| folder.path().exists());
        folder.map(|folder| Recorder::Own(Arc::new(Audit::new(folder))))
    }

    /// Writes an event to the log, directly or through the broker.
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

    /// Flushes the counted events. The recorder records nothing after this call.
    pub fn finish(&self) {
        if let Recorder::Own(audit) = self {
            audit.finish();
        }
    }
}
