//! Priorities of a session's link, derived from the reservations of its devices.

use std::time::Duration;

use farbus_io_net::link::LinkPriority;
use farbus_model::Instant;
use farbus_session::native::control::OpenRequest;
use farbus_session::reserve::{ReservationCriticality, ReservationReport, ReservationState};

/// How far a paced link may exceed the admitted rate to catch up, %.
const PACE_PERCENT: u64 = 150;
/// A link whose device is suspended drains its queue at this fraction of the reserved rate.
const WAITING_PART: u64 = 8;
/// How often the progress of a prioritized link is read.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The devices of a session with a reservation. Most sessions have none and do no work here.
#[derive(Default)]
pub struct PrioritizedDevices {
    /// The devices and their reservation reports.
    pub devices: Vec<(OpenRequest, ReservationReport)>,
    /// Whether the devices or their reports may have changed.
    pub has_news: bool,
    /// When the link's progress is read next.
    pub next_at: Option<Instant>,
    /// The priority that was set on the link last.
    last: LinkPriority,
    /// The highest rate that was admitted for them, bits a second.
    bits_per_s: u64,
}

impl PrioritizedDevices {
    /// Notes that the devices or their reports may have changed.
    pub fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Notes a new link, which has no priority yet.
    pub fn note_link(&mut self) {
        (self.last, self.has_news) = (LinkPriority::None, true);
    }

    /// When to read the link's progress; `None` if no device has a reservation.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.devices.is_empty()).then(|| self.next_at.unwrap_or(Instant::ZERO))
    }

    /// The priority of the link: that of its most critical device.
    pub fn priority(&self) -> LinkPriority {
        self.last
    }

    /// Computes the link's priority. Returns whether it differs from the last one.
    pub fn has_changed(&mut self) -> bool {
        let admitted: u64 = self.devices.iter().map(|(_, report)| report.path_bits_per_s).sum();
        self.bits_per_s = self.bits_per_s.max(admitted);
        let critical = self.devices.iter().max_by_key(|(_, report)| (report.criticality, report.path_bits_per_s));
        let wanted = priority(critical.map(|(_, report)| report), self.bits_per_s);
        std::mem::replace(&mut self.last, wanted) != wanted
    }
}

/// The priority of a link whose most critical device has this report.
fn priority(report: Option<&ReservationReport>, asked_bits_per_s: u64) -> LinkPriority {
    match report {
        None => LinkPriority::None,
        Some(ReservationReport { criticality: ReservationCriticality::High, .. }) => LinkPriority::First,
        Some(ReservationReport { state: ReservationState::Admitted, path_bits_per_s, .. }) => {
            LinkPriority::Last { bytes_per_s: (path_bits_per_s * PACE_PERCENT / 100 / 8).max(1) }
        }
        Some(_) => LinkPriority::Last { bytes_per_s: (asked_bits_per_s / WAITING_PART / 8).max(1500) },
    }
}
