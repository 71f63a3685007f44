//! The ledger of reservations: what is reserved for each device, which devices are suspended, and what the paths to
//! importers carry.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use farbus_control::reservation::{BusStatus, ReservationStatus};
use farbus_io_linux::sys::scheduling::ran_ns;
use farbus_io_net::link::{Link, TcpSendProgress};
use farbus_model::{EpAddr, Instant};
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve};
use farbus_session::reserve::congestion::{LinkSample, PathConclusion, PathCongestion};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{
    DeviceBusProfile, HostReservationLedger, LedgerRequest, ReservationChange, ReservationCriticality,
    ReservationDenial, ReservationReport, ReservationState, ReservationTerms, ScarceResource, ServingCost,
    SuspensionSwitch,
};
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};

use crate::common::ordered_mutex::{OrderedGuard, OrderedMutex};
use crate::devices::bus_status::bus_statuses;
use crate::devices::reservation::reservation_status;
use crate::exporter::session::thread_time::SessionReservation;

/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 13;
/// The most that a path counts as carrying. On a loopback the measured train arrives at once, which shows that the path
/// is fast and not how fast. 10 Gb/s is twice the signalling rate of a SuperSpeed bus (USB 3.2 Gen 1).
const PATH_BITS_PER_S_MAX: u64 = 10_000_000_000;
/// Payload of a full TCP segment and the bytes of its headers, to convert payload into bytes on the link.
const SEGMENT_BYTES: u64 = 1448;
const SEGMENT_HEAD_BYTES: u64 = 52;

/// All reservations of this exporter. Methods that change one return [`ReservationChange`] for the devices that it
/// concerns.
pub struct ExporterReservations {
    inner: OrderedMutex<ExporterReservationsInner, 3>,
}

struct ExporterReservationsInner {
    ledger: HostReservationLedger,
    /// The owner's reservations by device, which hold while no importer has made another.
    owned: BTreeMap<String, ReservationTerms>,
    suspensions: BTreeMap<String, SuspensionSwitch>,
    paths: BTreeMap<String, PathCongestion>,
    /// The known rate of each path before a higher one was tried, bits a second.
    proved: BTreeMap<String, u64>,
    /// The highest rate of each path that was measured before a device was opened, bits a second.
    measured: BTreeMap<String, u64>,
}

impl Default for ExporterReservations {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let ledger = HostReservationLedger::new(processors, measured_cost());
        let (owned, suspensions) = (BTreeMap::new(), BTreeMap::new());
        let (paths, proved, measured) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            inner: OrderedMutex::new(ExporterReservationsInner { ledger, owned, suspensions, paths, proved, measured }),
        }
    }
}

/// Measures what a turn and a KiB cost this machine, with a pair of sockets: for paths on which no wake-up was measured
/// yet. Seven of eight tries take no longer; the shortest would be exceeded nearly each time.
fn measured_cost() -> ServingCost {
    const TRIES: usize = 32;
    const KIB: usize = 32;
    let try_all = || -> std::io::Result<ServingCost> {
        let (link, other) = Link::pair("ourselves")?;
        let other = std::os::unix::net::UnixStream::from(other);
        // Bytes that do not fit the socket's buffer never arrive.
        other.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut bytes = vec![0; KIB << 10];
        let mut cost_of = |size: usize| -> std::io::Result<u64> {
            let mut took_ns = Vec::new();
            for _ in 0..TRIES {
                let began_ns = ran_ns();
                link.try_send(&[std::io::IoSlice::new(&bytes[..size])])?;
                std::io::Read::read_exact(&mut &other, &mut bytes[..size])?;
                took_ns.push(ran_ns().saturating_sub(began_ns));
            }
            took_ns.sort_unstable();
            Ok(took_ns[TRIES * 7 / 8])
        };
        let (turn_ns, large_ns) = (cost_of(64)?, cost_of(KIB << 10)?);
        Ok(ServingCost { turn_ns, kib_ns: (large_ns.saturating_sub(turn_ns) / KIB as u64).max(1) })
    };
    try_all().unwrap_or(ServingCost { turn_ns: 50_000, kib_ns: 2_000 })
}

impl ExporterReservations {
    #[track_caller]
    fn inner(&self) -> OrderedGuard<'_, ExporterReservationsInner, 3> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the owner's reservation for every user of a device.
    ///
    /// # Errors
    /// [`ReservationDenial`].
    pub fn own(
        &self,
        device: &str,
        carrier: &DeviceBusProfile,
        reservation: ReservationTerms,
    ) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let mut inner = self.inner();
        let news = inner.admit(device, carrier, reservation.clone(), None)?;
        inner.owned.insert(device.to_owned(), reservation);
        Ok(news)
    }

    /// Makes an importer's reservation for a device that it is about to use, over a path that was measured.
    ///
    /// # Errors
    /// [`ReservationDenial`].
    pub fn admit(
        &self,
        device: &str,
        carrier: &DeviceBusProfile,
        reservation: ReservationTerms,
        (path, measured): (&str, MeasuredPath),
    ) -> Result<(ReservationReport, Vec<ReservationChange>), ReservationDenial> {
        let mut inner = self.inner();
        let known = inner.ledger.path(path).unwrap_or_default();
        let measured = credible(measured);
        // The measurement did not see the share that other devices used meanwhile.
        let bits_per_s = known.bits_per_s.max(measured.bits_per_s);
        let round_trip_ns = match (known.round_trip_ns, measured.round_trip_ns) {
            (0, ns) | (ns, 0) => ns,
            (one, other) => one.min(other),
        };
        let most = inner.measured.entry(path.to_owned()).or_default();
        *most = (*most).max(measured.bits_per_s);
        let wake_up_ns = if measured.wake_up_ns > 0 { measured.wake_up_ns } else { known.wake_up_ns };
        let mut news = inner.ledger.note_path(path, MeasuredPath { bits_per_s, round_trip_ns, wake_up_ns });
        news.extend(inner.admit(device, carrier, reservation, Some(path))?);
        let report = inner.ledger.report(device).expect("it was admitted just now");
        inner.close_gates(&news);
        Ok((report, news))
    }

    /// Makes the reservation again that the process before this one had for a device.
    pub fn admit_again(
        &self,
        device: &str,
        carrier: &DeviceBusProfile,
        path: &str,
    ) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let mut inner = self.inner();
        let Some(reservation) = inner.ledger.expected(device).cloned() else { return Ok(Vec::new()) };
        inner.admit(device, carrier, reservation, Some(path))
    }

    /// Moves a device's reservation to the path of its successor.
    ///
    /// # Errors
    /// [`ReservationDenial`]: the path does not carry the reservation, which stays where it was.
    pub fn move_to(&self, device: &str, path: &str) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let mut inner = self.inner();
        let news = inner.ledger.move_to(device, path)?;
        inner.forget_link(device);
        inner.close_gates(&news);
        Ok(news)
    }

    /// Extends the owner's reservation to the path of a user that made none.
    pub fn cover(&self, device: &str, carrier: Option<&DeviceBusProfile>, path: &str) -> Vec<ReservationChange> {
        let mut inner = self.inner();
        let Some(owned) = inner.owned.get(device).cloned() else { return Vec::new() };
        let is_his = inner.ledger.lines().any(|line| line.device == device && line.path.is_none());
        if !is_his || inner.ledger.reservation(device) != Some(&owned) {
            return Vec::new();
        }
        // The device may be used on another bus than the owner assumed, or on none.
        let known = carrier.and_then(|carrier| inner.admit(device, carrier, owned, Some(path)).ok());
        let news = known.unwrap_or_else(|| inner.ledger.lead_to(device, Some(path)));
        inner.close_gates(&news);
        news
    }

    /// The reservation of a device, if it has one.
    pub fn reservation(&self, device: &str) -> Option<ReservationTerms> {
        self.inner().ledger.reservation(device).cloned()
    }

    /// The suspension of a device; `None` if the device is never suspended.
    pub fn gate_of(&self, device: &str) -> Option<SuspensionSwitch> {
        self.inner().suspensions.get(device).cloned()
    }

    /// Ends the use of a device by its importer. The owner's reservation holds again.
    pub fn release(&self, device: &str, carrier: Option<&DeviceBusProfile>) -> Vec<ReservationChange> {
        let mut inner = self.inner();
        inner.forget_link(device);
        inner.suspensions.remove(device);
        let owned = inner.owned.get(device).cloned();
        let is_his = owned.is_some() && inner.ledger.reservation(device) == owned.as_ref();
        let mut news = match is_his {
            true => inner.ledger.lead_to(device, None),
            false => inner.ledger.release(device),
        };
        if let (Some(owned), Some(carrier)) = (owned, carrier) {
            // If there is no capacity now, the ledger tries again when another reservation is released.
            news.extend(inner.admit(device, carrier, owned, None).unwrap_or_default());
        }
        inner.close_gates(&news);
        news
    }

    /// Removes all reservations of a device that is no longer shared.
    pub fn disown(&self, device: &str) -> Vec<ReservationChange> {
        self.inner().owned.remove(device);
        self.release(device, None)
    }

    /// The suspension of a device and the endpoints that it stops; `None` if the device is never suspended.
    pub fn suspension(&self, device: &str, carrier: &DeviceBusProfile) -> Option<(SuspensionSwitch, Vec<EpAddr>)> {
        let inner = self.inner();
        let suspension = inner.suspensions.get(device)?.clone();
        let endpoints = inner.ledger.claims(device).iter().map(|claim| carrier.address(claim)).collect();
        Some((suspension, endpoints))
    }

    /// Whether the reservation of a device was made for its user, over that user's path.
    pub fn is_a_users(&self, device: &str) -> bool {
        self.inner().ledger.lines().any(|line| line.device == device && line.path.is_some())
    }

    /// The reservation report of a device.
    pub fn report(&self, device: &str) -> Option<ReservationReport> {
        self.inner().ledger.report(device)
    }

    /// The reservation of a device, as the session that serves it needs it.
    pub fn reserved(&self, device: &str) -> Option<SessionReservation> {
        let inner = self.inner();
        let mut lines = inner.ledger.lines();
        lines.find(|line| line.device == device).map(|line| SessionReservation {
            report: line.report,
            thread: line.processor.map(|(_, reserve)| reserve),
            wants_thread: line.reservation.wants_thread,
            wants_budget: line.reservation.wants_budget,
        })
    }

    /// The reservation of a device, for people and programs.
    pub fn status(&self, device: &str) -> Option<ReservationStatus> {
        let inner = self.inner();
        let mut lines = inner.ledger.lines();
        lines.find(|line| line.device == device).map(|line| reservation_status(&line))
    }

    /// What is reserved on each bus.
    pub fn buses(&self) -> Vec<BusStatus> {
        bus_statuses(&self.inner().ledger)
    }

    /// Reserves processor time for the threads of `owner`, which replaces what the owner had. All reservations are
    /// checked against what is left. Returns the processors.
    ///
    /// # Errors
    /// [`VcpuOverload`]: nothing has changed.
    pub fn enter_threads(
        &self,
        owner: &str,
        reserves: &[VcpuReserve],
    ) -> Result<(Vec<usize>, Vec<ReservationChange>), VcpuOverload> {
        let mut inner = self.inner();
        let processors = inner.ledger.processors_mut().enter_all(owner, reserves)?;
        let news = inner.ledger.settle_again();
        inner.close_gates(&news);
        Ok((processors, news))
    }

    /// Releases the processor time of `owner`.
    pub fn leave_threads(&self, owner: &str) -> Vec<ReservationChange> {
        let mut inner = self.inner();
        inner.ledger.processors_mut().leave(owner);
        let news = inner.ledger.settle_again();
        inner.close_gates(&news);
        news
    }

    /// Takes what the thread that serves a device needs each period, nanoseconds.
    pub fn note_need(&self, device: &str, needed_ns: u64) -> Vec<ReservationChange> {
        let mut inner = self.inner();
        let news = inner.ledger.note_need(device, needed_ns);
        inner.close_gates(&news);
        news
    }

    /// Takes the progress of a device's link and adapts what its path is assumed to carry.
    pub fn note_progress(&self, now: Instant, device: &str, progress: TcpSendProgress) -> Vec<ReservationChange> {
        let mut inner = self.inner();
        let Some(path) = inner.ledger.lines().find(|line| line.device == device).and_then(|line| line.path) else {
            return Vec::new();
        };
        let path = path.to_owned();
        let report = inner.ledger.report(device).filter(|report| report.state == ReservationState::Admitted);
        let Some(report) = report else {
            inner.forget_link(device);
            return Vec::new();
        };
        let on_link = |bytes: u64| bytes / SEGMENT_BYTES * (SEGMENT_BYTES + SEGMENT_HEAD_BYTES);
        let sample = LinkSample {
            arrived_bytes: on_link(progress.acknowledged_bytes),
            queued_bytes: on_link(progress.queued_bytes),
        };
        let congestion = inner.paths.entry(path.clone()).or_default();
        let concluded = congestion.note(now, device, report.path_bits_per_s, sample);
        let known = inner.ledger.path(&path).unwrap_or_default();
        let bits_per_s = match concluded {
            None => return Vec::new(),
            Some(PathConclusion::Carries(rate)) if known.bits_per_s == 0 || rate < known.bits_per_s => rate,
            Some(PathConclusion::Carries(_)) => return Vec::new(),
            Some(PathConclusion::CarriesNoMore) => match inner.proved.remove(&path) {
                Some(rate) => rate,
                None => return Vec::new(),
            },
            Some(PathConclusion::MayCarryMore { is_used }) => match inner.room_for_one_more(&path) {
                Some(rate) if rate > known.bits_per_s && (is_used || inner.was_measured(&path, rate)) => {
                    inner.proved.insert(path.clone(), known.bits_per_s);
                    rate
                }
                _ => {
                    inner.paths.entry(path).or_default().leave();
                    return Vec::new();
                }
            },
        };
        let news = inner.ledger.note_path(&path, MeasuredPath { bits_per_s, ..known });
        tracing::info!(path, bits_per_s, changes = news.len(), "the path to an importer carries something else");
        inner.close_gates(&news);
        for ReservationChange { device, report } in &news {
            if report.state != ReservationState::Admitted {
                inner.forget_link(device);
            }
        }
        news
    }

    /// Saves all reservations for another process.
    pub fn save(&self) -> Vec<u8> {
        let mut to = SnapshotWriter::new(SNAPSHOT_KIND);
        self.inner().ledger.save(&mut to);
        to.into_bytes()
    }

    /// Restores the reservations that another process saved. They hold once [`ExporterReservations::admit_again`] is
    /// called.
    ///
    /// # Errors
    /// The bytes describe no possible reservations.
    pub fn expect(&self, saved: &[u8]) -> Result<(), farbus_session::ProtocolViolation> {
        let mut from: FieldReader<'_> = snapshot::open(saved, SNAPSHOT_KIND)?;
        self.inner().ledger.restore(&mut from)?;
        from.end("reservations")
    }
}

impl ExporterReservationsInner {
    fn admit(
        &mut self,
        device: &str,
        carrier: &DeviceBusProfile,
        reservation: ReservationTerms,
        path: Option<&str>,
    ) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let is_low = reservation.criticality == ReservationCriticality::Low;
        let news = self.ledger.admit(LedgerRequest { device, carrier, reservation, path })?;
        if is_low {
            self.suspensions.entry(device.to_owned()).or_default();
        } else if let Some(suspension) = self.suspensions.remove(device) {
            suspension.close(false);
        }
        let state = self.ledger.report(device).map(|report| report.state);
        if let Some(suspension) = self.suspensions.get(device) {
            suspension.close(state == Some(ReservationState::Suspended));
        }
        self.close_gates(&news);
        Ok(news)
    }

    fn close_gates(&self, news: &[ReservationChange]) {
        for ReservationChange { device, report } in news {
            if let Some(suspension) = self.suspensions.get(device) {
                suspension.close(report.state != ReservationState::Admitted);
            }
        }
    }

    fn forget_link(&mut self, device: &str) {
        self.paths.values_mut().for_each(|congestion| congestion.forget(device));
        self.paths.retain(|_, congestion| !congestion.is_empty());
        let paths = &self.paths;
        self.proved.retain(|path, _| paths.contains_key(path));
        let ledger = &self.ledger;
        self.measured.retain(|path, _| ledger.lines().any(|line| line.path == Some(path.as_str())));
    }

    /// Whether a path was measured to carry as much.
    fn was_measured(&self, path: &str, bits_per_s: u64) -> bool {
        self.measured.get(path).is_some_and(|most| bits_per_s <= *most)
    }

    /// The rate that a path must carry so that the device suspended longest is admitted, bits a second.
    fn room_for_one_more(&self, path: &str) -> Option<u64> {
        let mut its_own = self.ledger.lines().filter(|line| line.path == Some(path));
        let waiting = its_own.find(|line| {
            line.report.state == ReservationState::Suspended && line.report.lack == ScarceResource::Rate
        })?;
        Some((self.ledger.path_bits_per_s(path) + waiting.bits_per_s) / 90 * 100 + 1000)
    }
}

/// A measurement of a path without what it cannot show.
fn credible(measured: MeasuredPath) -> MeasuredPath {
    MeasuredPath { bits_per_s: measured.bits_per_s.min(PATH_BITS_PER_S_MAX), ..measured }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn train_that_arrives_at_once_shows_10_gigabits_and_no_more() {
        let path = |bits_per_s| MeasuredPath { bits_per_s, round_trip_ns: 20_000, wake_up_ns: 0 };
        assert_eq!(credible(path(524_288_000_000)), path(10_000_000_000));
        assert_eq!(credible(path(98_674_834)), path(98_674_834));
    }

    #[test]
    fn measured_cost_of_a_turn_is_between_0_and_1_ms() {
        let ServingCost { turn_ns, kib_ns } = measured_cost();
        assert!((1..1_000_000).contains(&turn_ns) && (1..1_000_000).contains(&kib_ns), "{turn_ns} {kib_ns}");
    }
}
