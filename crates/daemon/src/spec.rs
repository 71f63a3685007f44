//! A share of the daemon, from its configuration or from a plan of links between hosts.

use std::ops::Range;

use farbus::exporter::sources::what::DeviceSpec;
use farbus_session::reserve::ReservationTerms;

/// An error message, and the bytes of the text that it concerns.
pub type SpannedError = (Option<Range<usize>>, String);

/// A device that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonShare {
    /// Its name, unique in the file.
    pub name: String,
    /// Whether the owner gave the name; otherwise it is derived from the share's place in the file.
    pub is_named: bool,
    /// The device to share.
    pub what: DeviceSpec,
    /// The owner's reservation for every user of the device.
    pub reservation: Option<ReservationTerms>,
}

impl DaemonShare {
    /// Whether it is the same device under the same name, regardless of who gave the name.
    pub fn is(&self, other: &Self) -> bool {
        (&self.name, &self.what, &self.reservation) == (&other.name, &other.what, &other.reservation)
    }
}
