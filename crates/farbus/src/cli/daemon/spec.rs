//! What a daemon shares, and what it keeps attached: one of each, whoever asks for it.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use farbus_modules::Asked;
use farbus_session::reserve::Reservation;

use super::super::attach::{Via, default_folder};
use super::super::share::What;
use crate::ahead::Ahead;
use crate::broker::Hands;
use crate::cache::Cache;
use crate::client::Target;
use crate::opened_disk::DiskMode;
use crate::over::Over;
use crate::place::{Place, Protocol};

/// What is wrong, and at which bytes of the text.
pub type Wrong = (Option<Range<usize>>, String);

/// A device that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its name, unique in the file.
    pub name: String,
    /// What it is.
    pub what: What,
    /// What is reserved for whoever uses it.
    pub reservation: Option<Reservation>,
}

/// A device that is kept attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Which.
    pub target: Target,
    /// How it appears.
    pub via: Via,
    /// In which folder, for a file.
    pub at: Option<PathBuf>,
    /// Where programs find it, and what they speak, if they alone use it.
    pub place: Option<(Protocol, Place)>,
    /// How it is used, if it is a disk.
    pub mode: DiskMode,
    /// What is kept here of it, if it is a disk.
    pub cache: Cache,
    /// How long it outlives its link, if somebody says so.
    pub grace: Option<Duration>,
    /// Over how many links it comes.
    pub links: u16,
    /// Over what its links are made.
    pub over: Over,
    /// What is done about its distance.
    pub ahead: Ahead,
    /// What is reserved for it at its exporter.
    pub reservation: Option<Reservation>,
    /// What it goes through.
    pub modules: Vec<Asked>,
    /// What for.
    pub reason: Option<String>,
}

impl Attach {
    /// In which folder it appears, as a file.
    pub fn folder(&self) -> PathBuf {
        self.at.clone().unwrap_or_else(|| default_folder(&self.target))
    }

    /// How it is attached, in words that another process understands: it goes on with what is attached so here too.
    pub fn manner(&self, hands: &Hands) -> String {
        if self.via.is_kernel(hands) {
            return match self.via {
                Via::Uas => format!("uas, {}", self.mode.as_str()),
                _ => "kernel".to_owned(),
            };
        }
        match &self.place {
            Some((Protocol::Nbd, place)) => format!("nbd at {}, {}", place.as_host(), self.mode.as_str()),
            Some((Protocol::Usbredir, place)) => format!("redir at {}", place.as_host()),
            None => format!("fuse at {}, {}", self.folder().display(), self.mode.as_str()),
        }
    }

    /// Where programs find it, if they alone use it.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref().map(|(_, place)| place)
    }
}
