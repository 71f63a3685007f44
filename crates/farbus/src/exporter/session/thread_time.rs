//! Processor time of a session's thread, from the reservations of its devices (requirement R1): what the ledger admits
//! is asked of the kernel, so that other programs of this machine cannot take it.

use std::collections::BTreeMap;

use farbus_realtime::vcpu::VcpuReserve;
use farbus_session::reserve::{ReservationCriticality, ReservationReport, ReservationState, ThreadTime};
use tracing::{info, warn};

/// A device's reservation, as its session needs it.
#[derive(Clone, Copy, Debug)]
pub struct SessionReservation {
    /// Its report, without [`ReservationReport::thread`].
    pub report: ReservationReport,
    /// The processor time that the ledger has admitted for the thread that serves the device.
    pub thread: Option<VcpuReserve>,
    /// Whether its importer wants to be told what the thread has.
    pub wants_thread: bool,
}

impl SessionReservation {
    /// The time that the thread is to have for it. Reservations of low criticality give way, so they have none.
    fn time(&self) -> Option<VcpuReserve> {
        let is_kept =
            self.report.criticality == ReservationCriticality::High && self.report.state == ReservationState::Admitted;
        self.thread.filter(|_| is_kept)
    }

    /// The report for the importer, where the thread that serves the device has this.
    pub fn report_with(&self, time: ThreadTime) -> ReservationReport {
        ReservationReport { thread: self.wants_thread.then_some(time), ..self.report }
    }
}

/// The processor time of the thread that calls it. It has time only if all of the session's devices have reservations
/// of high criticality: what another device costs would come out of what was promised to these.
#[derive(Debug, Default)]
pub struct SessionThread {
    /// The reserved time of each device, by the name under which it was opened.
    devices: BTreeMap<String, VcpuReserve>,
    /// Whether the session has devices without such a reservation.
    has_others: bool,
    granted: Option<VcpuReserve>,
    /// Why the time was denied when it was asked for last.
    denied: Option<String>,
    /// What the importer knows of it.
    time: Option<ThreadTime>,
}

impl SessionThread {
    /// Adds a device that is opened next, and asks `schedule` for the time. Returns what the thread has, which the
    /// importer is told in the report of this device.
    pub fn add(
        &mut self,
        name: &str,
        reserved: &SessionReservation,
        schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>,
    ) -> ThreadTime {
        match reserved.time() {
            Some(time) => {
                self.devices.insert(name.to_owned(), time);
            }
            None => self.has_others = true,
        }
        let time = self.ask(schedule);
        self.time.get_or_insert(time);
        time
    }

    /// Sets the devices of the session, `None` for one without a reservation, and asks `schedule` for the time. Returns
    /// what the thread has, if the importer does not know it yet.
    pub fn set<'n>(
        &mut self,
        devices: impl Iterator<Item = (&'n str, Option<SessionReservation>)>,
        schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>,
    ) -> Option<ThreadTime> {
        (self.devices, self.has_others) = (BTreeMap::new(), false);
        for (name, reserved) in devices {
            match reserved.and_then(|reserved| reserved.time()) {
                Some(time) => drop(self.devices.insert(name.to_owned(), time)),
                None => self.has_others = true,
            }
        }
        let time = self.ask(schedule);
        (self.time.replace(time) != Some(time)).then_some(time)
    }

    /// Gives the time back.
    pub fn end(&mut self, schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>) {
        self.devices.clear();
        self.ask(schedule);
    }

    /// A device's report with what the thread has, for an importer that wants to be told.
    pub fn in_report(&self, report: ReservationReport, is_told: bool) -> ReservationReport {
        ReservationReport { thread: self.time.filter(|_| is_told), ..report }
    }

    fn ask(&mut self, schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>) -> ThreadTime {
        let wanted = if self.has_others { None } else { together(self.devices.values()) };
        if wanted != self.granted {
            self.granted = match (schedule(wanted), wanted) {
                (Ok(()), Some(VcpuReserve { budget_ns, period_ns })) => {
                    info!(budget_ns, period_ns, "its thread has processor time in each period");
                    wanted
                }
                (Ok(()), None) => None,
                (Err(why), _) => {
                    if self.denied.as_ref() != Some(&why) {
                        warn!(why, "no processor time is reserved for its thread");
                    }
                    self.denied = Some(why);
                    // Half of what is promised would look like all of it.
                    let _ = self.granted.map(|_| schedule(None));
                    None
                }
            };
        }
        if self.granted.is_some() { ThreadTime::Reserved } else { ThreadTime::Ordinary }
    }
}

/// What one thread needs to serve all: the shortest of the periods, and in it the part of each.
fn together<'r>(all: impl Iterator<Item = &'r VcpuReserve> + Clone) -> Option<VcpuReserve> {
    let period_ns = all.clone().map(|reserve| reserve.period_ns).min()?;
    let part = |reserve: &VcpuReserve| {
        u128::from(reserve.budget_ns) * u128::from(period_ns) / u128::from(reserve.period_ns.max(1)) + 1
    };
    let budget_ns = u64::try_from(all.map(part).sum::<u128>()).unwrap_or(u64::MAX);
    Some(VcpuReserve { budget_ns, period_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::reserve::ScarceResource;
    use std::cell::RefCell;

    fn reserved(criticality: ReservationCriticality, budget_ns: u64, period_ns: u64) -> SessionReservation {
        let (state, lack) = (ReservationState::Admitted, ScarceResource::None);
        let (missing, bound_ns, path_bits_per_s, bus_ppm) = (0, 1, 2, 3);
        let thread = None;
        let report =
            ReservationReport { state, lack, criticality, missing, bound_ns, path_bits_per_s, bus_ppm, thread };
        SessionReservation { report, thread: Some(VcpuReserve { budget_ns, period_ns }), wants_thread: true }
    }

    #[test]
    fn thread_has_the_sum_of_all_parts_and_nothing_beside_a_device_without_reservation() {
        let (vcpu_reserves, mut thread) = (RefCell::new(Vec::new()), SessionThread::default());
        let schedule = |time| {
            vcpu_reserves.borrow_mut().push(time);
            Ok(())
        };
        let high = |budget_ns, period_ns| reserved(ReservationCriticality::High, budget_ns, period_ns);
        let (can, camera) = (high(100, 1000), high(400, 2000));
        assert_eq!(thread.add("can", &can, schedule), ThreadTime::Reserved);
        assert_eq!(thread.add("camera", &camera, schedule), ThreadTime::Reserved);
        let both = Some(VcpuReserve { budget_ns: 302, period_ns: 1000 });
        assert_eq!(vcpu_reserves.borrow().as_slice(), [Some(VcpuReserve { budget_ns: 101, period_ns: 1000 }), both]);
        let all = [("can", Some(can)), ("camera", Some(camera))];
        assert_eq!(thread.set(all.into_iter(), schedule), None);
        assert_eq!(vcpu_reserves.borrow().len(), 2, "the kernel is asked for changes only");
        for other in [None, Some(reserved(ReservationCriticality::Low, 1, 1000))] {
            let with_other = all.into_iter().chain([("disk", other)]);
            assert_eq!(thread.set(with_other, schedule), Some(ThreadTime::Ordinary));
            assert_eq!(vcpu_reserves.borrow().last(), Some(&None));
            assert_eq!(thread.set(all.into_iter(), schedule), Some(ThreadTime::Reserved));
        }
        thread.end(schedule);
        assert_eq!(vcpu_reserves.borrow().last(), Some(&None));
    }

    #[test]
    fn thread_that_is_denied_more_keeps_nothing_that_looks_like_it() {
        let (budgets, mut thread) = (RefCell::new(Vec::new()), SessionThread::default());
        let schedule = |time: Option<VcpuReserve>| {
            budgets.borrow_mut().push(time.map(|time| time.budget_ns));
            match time {
                Some(VcpuReserve { budget_ns: 200.., .. }) => Err("the rest is promised".to_owned()),
                _ => Ok(()),
            }
        };
        let high = |budget_ns| reserved(ReservationCriticality::High, budget_ns, 1000);
        assert_eq!(thread.add("can", &high(100), schedule), ThreadTime::Reserved);
        assert_eq!(thread.add("camera", &high(100), schedule), ThreadTime::Ordinary);
        assert_eq!(budgets.borrow().as_slice(), [Some(101), Some(202), None]);
        let both = [("can", Some(high(100))), ("camera", Some(high(100)))];
        assert_eq!(thread.set(both.into_iter(), schedule), Some(ThreadTime::Ordinary), "which the first did not know");
        assert_eq!(high(1).report_with(ThreadTime::Ordinary).thread, Some(ThreadTime::Ordinary));
        let old = SessionReservation { wants_thread: false, ..high(1) };
        assert_eq!(old.report_with(ThreadTime::Reserved), old.report);
    }
}
