//! The devices of a session for which something is reserved, and how its link stands because of that.

use std::time::Duration;

use farbus_io::link::LinkPriority;
use farbus_model::Instant;
use farbus_session::native::control::Open;
use farbus_session::reserve::{Criticality, ReservationReport, State};

/// A paced link may catch up by so much, %.
const PACE_PERCENT: u64 = 150;
/// A link whose device waits sends what it still has at this part of what was reserved.
const WAITING_PART: u64 = 8;
/// How often such a link is asked how far it has come.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// None, most of the time: then nothing is looked at.
#[derive(Default)]
pub struct PrioritizedDevices {
    /// They, and how what is reserved for them stands.
    pub devices: Vec<(Open, ReservationReport)>,
    /// Whether they may be others now, or stand otherwise.
    pub has_news: bool,
    /// When the link is asked next.
    pub next_at: Option<Instant>,
    /// What was asked of the link last.
    last: LinkPriority,
    /// What the path gave them while it did, bits a second.
    bits_per_s: u64,
}

impl PrioritizedDevices {
    /// They may be others now, or stand otherwise.
    pub fn note_news(&mut self) {
        self.has_news = true;
    }

    /// There is another link: nothing was asked of it.
    pub fn note_link(&mut self) {
        (self.last, self.has_news) = (LinkPriority::None, true);
    }

    /// When the link is to be asked how far it has come, if at all.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.devices.is_empty()).then(|| self.next_at.unwrap_or(Instant::ZERO))
    }

    /// How the link is to stand: as the most critical of them wants it.
    pub fn priority(&self) -> LinkPriority {
        self.last
    }

    /// Whether that is not how it stands.
    pub fn has_changed(&mut self) -> bool {
        let admitted: u64 = self.devices.iter().map(|(_, report)| report.path_bits_per_s).sum();
        self.bits_per_s = self.bits_per_s.max(admitted);
        let critical = self.devices.iter().max_by_key(|(_, report)| (report.criticality, report.path_bits_per_s));
        let wanted = priority(critical.map(|(_, report)| report), self.bits_per_s);
        std::mem::replace(&mut self.last, wanted) != wanted
    }
}

/// How the link of a device stands, whose reservation stands so.
fn priority(report: Option<&ReservationReport>, asked_bits_per_s: u64) -> LinkPriority {
    match report {
        None => LinkPriority::None,
        Some(ReservationReport { criticality: Criticality::High, .. }) => LinkPriority::First,
        Some(ReservationReport { state: State::Admitted, path_bits_per_s, .. }) => {
            LinkPriority::Last { bytes_per_s: (path_bits_per_s * PACE_PERCENT / 100 / 8).max(1) }
        }
        Some(_) => LinkPriority::Last { bytes_per_s: (asked_bits_per_s / WAITING_PART / 8).max(1500) },
    }
}
