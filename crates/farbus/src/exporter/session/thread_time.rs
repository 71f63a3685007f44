//! Processor time of a session's thread, from the reservations of its devices (requirement R1): what the ledger admits
//! is asked of the kernel, so that other programs of this machine cannot take it.

use std::collections::BTreeMap;

use farbus_io_linux::sys::scheduling::ran_ns;
use farbus_model::Instant;
use farbus_realtime::vcpu::{DemandMeter, VcpuReserve};
use farbus_session::reserve::{ReservationCriticality, ReservationReport, ReservationState, ThreadBudget, ThreadTime};
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
    /// Whether it wants to be told how much that is.
    pub wants_budget: bool,
}

impl SessionReservation {
    /// The time that the thread is to have for it. Reservations of low criticality give way, so they have none.
    fn time(&self) -> Option<VcpuReserve> {
        let is_kept =
            self.report.criticality == ReservationCriticality::High && self.report.state == ReservationState::Admitted;
        self.thread.filter(|_| is_kept)
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
    /// What each device needs, one whose reservation is suspended included. Empty if that is not known, because the
    /// thread serves devices without a reservation, too.
    parts: BTreeMap<String, VcpuReserve>,
    granted: Option<VcpuReserve>,
    /// Why the time was denied when it was asked for last.
    denied: Option<String>,
    /// What the importer knows of it.
    known: Option<KnownTime>,
    /// What the thread takes.
    meter: Option<DemandMeter>,
    /// When its present turn began, and how long it had run by then, nanoseconds; while it is metered.
    turn: Option<(u64, u64)>,
}

/// What the thread has, and how much that is.
type KnownTime = (ThreadTime, Option<ThreadBudget>);

/// A budget follows a need that is above it by more than this, or below it by more than that, in hundredths.
const RAISED_PERCENT: u64 = 110;
const LOWERED_PERCENT: u64 = 50;

impl SessionThread {
    /// Adds a device that is opened next, and asks `schedule` for the time. Returns the report for the importer.
    pub fn add(
        &mut self,
        name: &str,
        reserved: &SessionReservation,
        schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>,
    ) -> ReservationReport {
        match reserved.time() {
            Some(time) => {
                self.devices.insert(name.to_owned(), time);
                self.parts.insert(name.to_owned(), time);
            }
            None => self.has_others = true,
        }
        self.ask(schedule);
        let time = self.now();
        self.known.get_or_insert(time);
        reported(reserved.report, time, reserved)
    }

    /// Sets the devices of the session, `None` for one without a reservation, and asks `schedule` for the time. Returns
    /// whether the importer does not know yet what the thread has.
    pub fn set<'n>(
        &mut self,
        devices: impl Iterator<Item = (&'n str, Option<SessionReservation>)>,
        schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>,
    ) -> bool {
        (self.devices, self.has_others) = (BTreeMap::new(), false);
        let (before, mut is_known) = (std::mem::take(&mut self.parts), true);
        for (name, reserved) in devices {
            let time = reserved.and_then(|reserved| reserved.time());
            match time {
                Some(time) => drop(self.devices.insert(name.to_owned(), time)),
                None => self.has_others = true,
            }
            match time.or(before.get(name).copied()) {
                Some(part) if reserved.is_some() => drop(self.parts.insert(name.to_owned(), part)),
                _ => is_known = false,
            }
        }
        if !is_known {
            self.parts.clear();
        }
        self.ask(schedule);
        let time = self.now();
        self.known.replace(time) != Some(time)
    }

    /// Begins a turn of the thread's loop, and counts what the last one took: while the thread serves devices with
    /// reservations alone, and while the path of a device is measured.
    pub fn note_turn(&mut self, now: Instant, measures_path: bool) {
        if self.parts.is_empty() && !measures_path {
            self.turn = None;
            return;
        }
        let (now_ns, ran_ns) = (now.as_nanos(), ran_ns());
        if let Some((woke_ns, before_ns)) = self.turn.replace((now_ns, ran_ns)) {
            let meter = self.meter.get_or_insert_with(|| DemandMeter::new(UNKNOWN));
            meter.note(woke_ns, ran_ns.saturating_sub(before_ns));
        }
    }

    /// What a wake-up of the thread takes, in nanoseconds; 0 if it was not measured.
    pub fn wake_up_ns(&self) -> u64 {
        self.meter.as_ref().map_or(0, DemandMeter::wake_up_ns)
    }

    /// What each device needs each of its periods, in nanoseconds, if that is more than was known, or far less.
    pub fn needs(&mut self) -> Vec<(String, u64)> {
        let Some((known, meter)) = together(self.parts.values()).zip(self.meter.as_ref()) else { return Vec::new() };
        let Some(needed_ns) = meter.needed_ns().filter(|_| self.denied.is_none()) else { return Vec::new() };
        let kept = known.budget_ns / 100 * LOWERED_PERCENT..=known.budget_ns / 100 * RAISED_PERCENT;
        if kept.contains(&needed_ns) {
            return Vec::new();
        }
        info!(
            needed_ns,
            budget_ns = known.budget_ns,
            period_ns = known.period_ns,
            overruns = meter.overruns(),
            "its thread needs another budget in each period"
        );
        // Each device has the part of it that it had.
        for part in self.parts.values_mut() {
            let budget_ns = u128::from(part.budget_ns) * u128::from(needed_ns) / u128::from(known.budget_ns.max(1));
            part.budget_ns = u64::try_from(budget_ns).unwrap_or(u64::MAX).max(1);
        }
        self.parts.iter().map(|(name, part)| (name.clone(), part.budget_ns)).collect()
    }

    /// Whether the thread ran for longer than its budget since the importer was told.
    pub fn has_overrun(&self) -> bool {
        let known = self.known.and_then(|(_, budget)| budget).map_or(0, |budget| budget.overruns);
        self.granted.is_some() && self.meter.as_ref().is_some_and(|meter| meter.overruns() > known)
    }

    /// Gives the time back.
    pub fn end(&mut self, schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>) {
        self.devices.clear();
        self.parts.clear();
        self.ask(schedule);
    }

    /// A device's report with what the thread has, for an importer that wants to be told.
    pub fn in_report(&self, report: ReservationReport, reserved: Option<&SessionReservation>) -> ReservationReport {
        match (self.known, reserved) {
            (Some(time), Some(reserved)) => reported(report, time, reserved),
            _ => report,
        }
    }

    /// What the thread has now.
    fn now(&self) -> KnownTime {
        let overruns = self.meter.as_ref().map_or(0, DemandMeter::overruns);
        let budget =
            self.granted.map(|VcpuReserve { budget_ns, period_ns }| ThreadBudget { budget_ns, period_ns, overruns });
        (if budget.is_some() { ThreadTime::Reserved } else { ThreadTime::Ordinary }, budget)
    }

    fn ask(&mut self, schedule: impl Fn(Option<VcpuReserve>) -> Result<(), String>) {
        let wanted = if self.has_others { None } else { together(self.devices.values()) };
        if wanted != self.granted {
            self.granted = match (schedule(wanted), wanted) {
                (Ok(()), Some(VcpuReserve { budget_ns, period_ns })) => {
                    info!(budget_ns, period_ns, "its thread has processor time in each period");
                    self.denied = None;
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
        if let Some((meter, reserve)) = self.meter.as_mut().zip(self.granted) {
            meter.change(reserve);
        }
    }
}

/// The period in which a thread is metered before it has a reservation.
const UNKNOWN: VcpuReserve = VcpuReserve { budget_ns: u64::MAX, period_ns: 1_000_000 };

/// A report with what the thread has, as far as the importer wants to be told.
fn reported(report: ReservationReport, time: KnownTime, reserved: &SessionReservation) -> ReservationReport {
    let (thread, budget) = time;
    ReservationReport {
        thread: reserved.wants_thread.then_some(thread),
        budget: budget.filter(|_| reserved.wants_thread && reserved.wants_budget),
        ..report
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
        let (thread, budget) = (None, None);
        let report =
            ReservationReport { state, lack, criticality, missing, bound_ns, path_bits_per_s, bus_ppm, thread, budget };
        let thread = Some(VcpuReserve { budget_ns, period_ns });
        SessionReservation { report, thread, wants_thread: true, wants_budget: true }
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
        assert_eq!(thread.add("can", &can, schedule).thread, Some(ThreadTime::Reserved));
        let report = thread.add("camera", &camera, schedule);
        assert_eq!(report.budget, Some(ThreadBudget { budget_ns: 302, period_ns: 1000, overruns: 0 }));
        let both = Some(VcpuReserve { budget_ns: 302, period_ns: 1000 });
        assert_eq!(vcpu_reserves.borrow().as_slice(), [Some(VcpuReserve { budget_ns: 101, period_ns: 1000 }), both]);
        let all = [("can", Some(can)), ("camera", Some(camera))];
        assert!(thread.set(all.into_iter(), schedule), "the first report had another budget");
        assert!(!thread.set(all.into_iter(), schedule));
        assert_eq!(vcpu_reserves.borrow().len(), 2, "the kernel is asked for changes only");
        for other in [None, Some(reserved(ReservationCriticality::Low, 1, 1000))] {
            let with_other = all.into_iter().chain([("disk", other)]);
            assert!(thread.set(with_other, schedule));
            let report = thread.in_report(can.report, Some(&can));
            assert_eq!((report.thread, report.budget), (Some(ThreadTime::Ordinary), None));
            assert_eq!(vcpu_reserves.borrow().last(), Some(&None));
            assert!(thread.set(all.into_iter(), schedule));
            assert_eq!(thread.in_report(can.report, Some(&can)).thread, Some(ThreadTime::Reserved));
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
        assert_eq!(thread.add("can", &high(100), schedule).thread, Some(ThreadTime::Reserved));
        assert_eq!(thread.add("camera", &high(100), schedule).thread, Some(ThreadTime::Ordinary));
        assert_eq!(budgets.borrow().as_slice(), [Some(101), Some(202), None]);
        let both = [("can", Some(high(100))), ("camera", Some(high(100)))];
        assert!(thread.set(both.into_iter(), schedule), "which the first did not know");
        let old = SessionReservation { wants_thread: false, ..high(1) };
        assert_eq!(thread.in_report(old.report, Some(&old)), old.report);
    }

    #[test]
    fn thread_that_takes_more_than_its_budget_says_what_each_device_needs_and_that_it_overran() {
        let mut thread = SessionThread::default();
        let granted = |_| Ok(());
        let high = |budget_ns| reserved(ReservationCriticality::High, budget_ns, 1_000_000);
        thread.add("can", &high(3_000), granted);
        thread.add("camera", &high(6_000), granted);
        assert_eq!((thread.needs(), thread.has_overrun()), (Vec::new(), false));
        let meter = thread.meter.insert(DemandMeter::new(thread.granted.unwrap()));
        (0..100).for_each(|at| meter.note(at * 1_000_000, 50_000));
        let needs = thread.needs();
        let sum: u64 = needs.iter().map(|(_, needed_ns)| needed_ns).sum();
        assert!((60_000..75_000).contains(&sum) && needs[0].0 == "camera" && needs[0].1 > needs[1].1, "{needs:?}");
        assert!(thread.has_overrun());
        let both = needs.iter().map(|(name, needed_ns)| (name.as_str(), Some(high(*needed_ns))));
        assert!(thread.set(both, granted));
        assert_eq!((thread.needs(), thread.has_overrun()), (Vec::new(), false), "the importer knows of it");
        let report = thread.in_report(high(1).report, Some(&high(1))).budget.unwrap();
        assert!(report.overruns == 99 && report.budget_ns > 60_000, "{report:?}");
        // A reservation that is suspended because of its need is asked for again once it needs less than half.
        let suspended = |budget_ns| {
            let mut reserved = high(budget_ns);
            (reserved.report.state, reserved.thread) = (ReservationState::Suspended, None);
            reserved
        };
        assert!(thread.set(["can", "camera"].into_iter().map(|name| (name, Some(suspended(1)))), granted));
        assert_eq!(thread.granted, None);
        let meter = thread.meter.as_mut().unwrap();
        (100..20_000).for_each(|at| meter.note(at * 1_000_000, 5_000));
        let needs = thread.needs();
        assert!(needs.len() == 2 && needs.iter().all(|(_, needed_ns)| *needed_ns < 6_000), "{needs:?}");
        // Beside a device without a reservation, nobody knows what is whose.
        thread.set([("can", Some(high(3_000))), ("disk", None)].into_iter(), granted);
        assert_eq!(thread.needs(), Vec::new());
    }
}
