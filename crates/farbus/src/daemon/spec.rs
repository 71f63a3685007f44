//! What a daemon shares: the same for whoever asks for it, a configuration or a plan of links between hosts.

use std::ops::Range;

use farbus_session::reserve::Reservation;

use crate::exporter::sources::what::What;

/// What is wrong, and at which bytes of the text.
pub type Wrong = (Option<Range<usize>>, String);

/// A device that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its name, unique in the file.
    pub name: String,
    /// Whether its owner gave it; otherwise it comes of its place in the file.
    pub is_named: bool,
    /// What it is.
    pub what: What,
    /// What is reserved for whoever uses it.
    pub reservation: Option<Reservation>,
}

impl Shared {
    /// Whether it is the same device under the same name, whoever gave that.
    pub fn is(&self, other: &Self) -> bool {
        (&self.name, &self.what, &self.reservation) == (&other.name, &other.what, &other.reservation)
    }
}
