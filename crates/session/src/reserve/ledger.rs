//! The reservations of a host: which are admitted, what each takes, and which are suspended for others.
//!
//! There is one entry per device, by its name. All entries are scheduled together: first those of high criticality,
//! then admitted ones of low criticality, then suspended ones, each group in the order of arrival. A request that has a
//! place on its bus keeps it ([`farbus_realtime::schedule::replan`]). The ledger knows no clock, device or link: the
//! caller reports changes, and [`HostReservationLedger`] answers with [`ReservationChange`].

use std::collections::BTreeMap;

use farbus_realtime::pipe::{PathSegment, worst_ns};
use farbus_realtime::schedule::{self, BusSchedule, EndpointRequest, ScheduleOptions, SchedulingMode, plan, replan};
use farbus_realtime::transfer::interval_ps;
use farbus_realtime::vcpu::VcpuReserve;
use farbus_wire::native::reserve::{
    EndpointBandwidth, ReservationCriticality, ReservationMessage, ReservationReport, ReservationState,
    ReservationTerms, ScarceResource,
};

use super::carrier::{DeviceBusProfile, ReservationLoad};
use super::processors::{HostProcessors, missing_ppb};
use super::refusal::ReservationDenial;
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Most work for finding a better schedule while others wait, in visits of bins: about ten milliseconds.
const WORK_MAX: u64 = 1_000_000;
/// Drivers ask for eight packets at a time, one millisecond (U8): data is there when the last packet is.
const URB_PACKETS: u64 = 8;
const URB_NS: u64 = 1_000_000;
/// Overhead of a packet on a link, in eighths of a byte: four bytes in a reply, and an eighth each of a reply's header
/// (20) and of a segment's headers (52).
const PACKET_OVERHEAD_EIGHTHS: u64 = 4 * 8 + 20 + 52;
/// Overhead of data: a segment has 52 bytes of headers and 1448 of data.
const SEGMENT_BYTES: u64 = 1448;
const SEGMENT_HEAD_BYTES: u64 = 52;
/// The share of a path that may be reserved: the rest is for requests, control and unreserved traffic.
const PATH_SHARE_PERCENT: u64 = 90;
/// Wake-ups of a session's thread for each period, until it was seen what it takes: one for a request, one for its
/// data. Where the kernel is asked for the time, each counts twice: a round trip without a device costs less.
const TURNS: u64 = 2;
/// Until then, a reservation of high criticality has this part of its period at least: what it takes is known after
/// some tens of periods, and a device with a small buffer does not wait for so long.
const UNSEEN_PART: u64 = 10;
/// And for its wake-ups every reservation has this part at most.
const UNSEEN_PART_MAX: u64 = 4;
/// Most entries of a snapshot.
const ENTRIES_MAX: usize = 4096;

/// Measured processor time for serving a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingCost {
    /// For one turn of receiving and sending.
    pub turn_ns: u64,
    /// For a KiB of data.
    pub kib_ns: u64,
}

/// The measured path to an importer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredPath {
    /// Rate in bits per second; 0: not measured, regarded as unlimited.
    pub bits_per_s: u64,
    /// The round trip in nanoseconds; half of it counts towards a reservation's delay.
    pub round_trip_ns: u64,
    /// Processor time of a wake-up of the thread that serves this path, with what its link costs (TLS, QUIC or
    /// neither), in nanoseconds; 0: not measured.
    pub wake_up_ns: u64,
}

/// A reservation request for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRequest<'a> {
    /// The name of the device, unique on its host.
    pub device: &'a str,
    /// What the device can carry.
    pub carrier: &'a DeviceBusProfile,
    /// The requested reservation.
    pub reservation: ReservationTerms,
    /// The path to the importer that gets the data; `None`: not known yet.
    pub path: Option<&'a str>,
}

/// A reservation whose state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationChange {
    /// The name of the device, unique on its host.
    pub device: String,
    /// Its new report.
    pub report: ReservationReport,
}

/// A reservation, as a listing shows it.
#[derive(Clone, Debug)]
pub struct ListedReservation<'a> {
    /// The name of the device, unique on its host.
    pub device: &'a str,
    /// Its bus; empty if it is on none.
    pub bus: &'a str,
    /// The requested reservation.
    pub reservation: &'a ReservationTerms,
    /// Whether it is admitted or suspended, and what it is missing.
    pub report: ReservationReport,
    /// The path to the importer that gets the data.
    pub path: Option<&'a str>,
    /// What it takes of the path, or would take, bits per second.
    pub bits_per_s: u64,
    /// The processor that serves it and the time reserved there.
    pub processor: Option<(usize, VcpuReserve)>,
}

/// All reservations of this host.
#[derive(Clone, Debug)]
pub struct HostReservationLedger {
    entries: Vec<LedgerEntry>,
    plans: BTreeMap<String, BusSchedule>,
    paths: BTreeMap<String, MeasuredPath>,
    processors: HostProcessors,
    cost: ServingCost,
    next_id: u32,
    next_order: u64,
    /// Reservations of the process before this one, whose devices have not come yet.
    expected: BTreeMap<String, ExpectedReservation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LedgerEntry {
    device: String,
    bus: String,
    reservation: ReservationTerms,
    /// Its bus requests; empty for a device on no bus.
    requests: Vec<EndpointRequest>,
    loads: Vec<ReservationLoad>,
    path: Option<String>,
    /// The budget that its thread needs each period, once that was measured.
    needed_ns: Option<u64>,
    /// Its position in the order of arrival.
    order: u64,
    report: ReservationReport,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ExpectedReservation {
    order: u64,
    reservation: ReservationTerms,
    is_suspended: bool,
}

/// The result of scheduling all entries.
struct LedgerSchedule {
    plans: BTreeMap<String, BusSchedule>,
    processors: HostProcessors,
    reports: BTreeMap<u64, Result<ReservationReport, ReservationDenial>>,
}

impl HostReservationLedger {
    /// An empty ledger for a host with this number of processors, which serves devices at this cost.
    pub fn new(processors: usize, cost: ServingCost) -> Self {
        Self {
            entries: Vec::new(),
            plans: BTreeMap::new(),
            paths: BTreeMap::new(),
            processors: HostProcessors::new(processors),
            cost,
            next_id: 1,
            next_order: 1,
            expected: BTreeMap::new(),
        }
    }

    /// Admits a reservation, which replaces the device's previous one. A reservation of low criticality that was
    /// suspended in the process before this one may be suspended here.
    ///
    /// # Errors
    /// [`ReservationDenial`]: nothing has changed.
    pub fn admit(&mut self, request: LedgerRequest<'_>) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let LedgerRequest { device, carrier, reservation, path } = request;
        let (mut requests, mut loads) = (Vec::new(), Vec::new());
        for claim in &reservation.claims {
            let has_bus = carrier.has_bus();
            let request = has_bus.then(|| carrier.request(self.next_id, claim, reservation.criticality)).transpose()?;
            self.next_id = self.next_id.wrapping_add(1).max(1);
            loads.push(carrier.load(claim, request.as_ref())?);
            requests.extend(request);
        }
        let expected = self.expected.get(device).filter(|expected| expected.reservation == reservation);
        let had = self.entries.iter().find(|entry| entry.device == device);
        let order = expected.map(|expected| expected.order).or(had.map(|entry| entry.order));
        let is_expected = expected.is_some();
        let order = order.unwrap_or(self.next_order);
        let state = match expected {
            Some(ExpectedReservation { is_suspended: true, .. }) => ReservationState::Suspended,
            Some(_) => ReservationState::Admitted,
            None => ReservationState::Refused,
        };
        let criticality = reservation.criticality;
        let report = ReservationReport {
            state,
            lack: ScarceResource::None,
            criticality,
            missing: 0,
            bound_ns: 0,
            path_bits_per_s: 0,
            bus_ppm: 0,
            thread: None,
            budget: None,
        };
        let entry = LedgerEntry {
            device: device.to_owned(),
            bus: carrier.bus().to_owned(),
            reservation,
            requests,
            loads,
            path: path.map(str::to_owned),
            needed_ns: None,
            order,
            report,
        };
        let mut entries: Vec<LedgerEntry> =
            self.entries.iter().filter(|entry| entry.device != device).cloned().collect();
        entries.push(entry);
        entries.sort_by_key(|entry| entry.order);
        let settled = self.settle(&entries, None);
        if let Some(Err(refusal)) = settled.reports.get(&order)
            && !(is_expected && criticality == ReservationCriticality::Low)
        {
            return Err(refusal.clone());
        }
        self.next_order = self.next_order.max(order + 1);
        self.expected.remove(device);
        self.entries = entries;
        Ok(self.adopt(settled))
    }

    /// Releases the reservation of a device.
    pub fn release(&mut self, device: &str) -> Vec<ReservationChange> {
        self.expected.remove(device);
        let before = self.entries.len();
        self.entries.retain(|entry| entry.device != device);
        if self.entries.len() == before {
            return Vec::new();
        }
        self.processors.leave(&owner_of(device));
        self.settle_again()
    }

    /// Records a measurement of the path to an importer.
    pub fn note_path(&mut self, path: &str, measured: MeasuredPath) -> Vec<ReservationChange> {
        if self.paths.get(path) == Some(&measured) {
            return Vec::new();
        }
        if self.paths.len() >= ENTRIES_MAX {
            self.forget_paths();
        }
        self.paths.insert(path.to_owned(), measured);
        self.settle_again()
    }

    /// Moves a device's reservation to the path of another importer. A suspended one may remain suspended there.
    ///
    /// # Errors
    /// [`ReservationDenial`]: that path cannot carry it; nothing has changed.
    pub fn move_to(&mut self, device: &str, path: &str) -> Result<Vec<ReservationChange>, ReservationDenial> {
        let mut entries = self.entries.clone();
        let Some(entry) = entries.iter_mut().find(|entry| entry.device == device) else { return Ok(Vec::new()) };
        entry.path = Some(path.to_owned());
        let (order, was_admitted) = (entry.order, entry.report.state == ReservationState::Admitted);
        let settled = self.settle(&entries, Some(order));
        if let Some(Err(refusal)) = settled.reports.get(&order)
            && was_admitted
        {
            return Err(refusal.clone());
        }
        self.entries = entries;
        Ok(self.adopt(settled))
    }

    /// Sets the path of a reservation that the owner made for any user, when a user comes or (with `None`) goes.
    pub fn lead_to(&mut self, device: &str, path: Option<&str>) -> Vec<ReservationChange> {
        match self.entries.iter_mut().find(|entry| entry.device == device) {
            Some(entry) => entry.path = path.map(str::to_owned),
            None => return Vec::new(),
        }
        self.settle_again()
    }

    /// Records what the thread that serves a device was seen to need each period. The device's budget follows; if no
    /// processor carries it even after those of low criticality gave way, its reservation is suspended.
    pub fn note_need(&mut self, device: &str, needed_ns: u64) -> Vec<ReservationChange> {
        match self.entries.iter_mut().find(|entry| entry.device == device) {
            Some(entry) => entry.needed_ns = Some(needed_ns.max(1)),
            None => return Vec::new(),
        }
        self.settle_again()
    }

    /// The reservation of a device.
    pub fn reservation(&self, device: &str) -> Option<&ReservationTerms> {
        self.entries.iter().find(|entry| entry.device == device).map(|entry| &entry.reservation)
    }

    /// The measured path to an importer.
    pub fn path(&self, path: &str) -> Option<MeasuredPath> {
        self.paths.get(path).copied()
    }

    /// What is reserved of the path to an importer, bits per second.
    pub fn path_bits_per_s(&self, path: &str) -> u64 {
        let its_own = self.entries.iter().filter(|entry| entry.path.as_deref() == Some(path));
        its_own
            .filter(|entry| entry.report.state == ReservationState::Admitted)
            .map(|entry| entry.report.path_bits_per_s)
            .sum()
    }

    fn forget_paths(&mut self) {
        let entries = &self.entries;
        self.paths.retain(|path, _| entries.iter().any(|entry| entry.path.as_ref() == Some(path)));
    }

    /// The processors, for servers that reserve time themselves. Call [`HostReservationLedger::settle_again`]
    /// afterwards.
    pub fn processors_mut(&mut self) -> &mut HostProcessors {
        &mut self.processors
    }

    /// A device's reservation report; `None` if it has no reservation.
    pub fn report(&self, device: &str) -> Option<ReservationReport> {
        self.entries.iter().find(|entry| entry.device == device).map(|entry| entry.report)
    }

    /// All reservations, in the order of arrival.
    pub fn lines(&self) -> impl Iterator<Item = ListedReservation<'_>> {
        self.entries.iter().map(|entry| ListedReservation {
            device: &entry.device,
            bus: &entry.bus,
            reservation: &entry.reservation,
            report: entry.report,
            path: entry.path.as_deref(),
            bits_per_s: path_bits_per_s(entry),
            processor: {
                let owner = owner_of(&entry.device);
                let mut all = self.processors.entries();
                all.find(|(name, ..)| *name == owner).map(|(_, reserve, processor)| (processor, reserve))
            },
        })
    }

    /// The schedule of a bus.
    pub fn plan(&self, bus: &str) -> Option<&BusSchedule> {
        self.plans.get(bus)
    }

    /// The schedules of all buses on which something is reserved.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &BusSchedule)> {
        self.plans.iter().map(|(bus, plan)| (bus.as_str(), plan))
    }

    /// Which device a request of a schedule is for, and the endpoint that was asked for (0: the usual one).
    pub fn asker_of(&self, request: u32) -> Option<(&str, u8)> {
        self.entries.iter().find_map(|entry| {
            let at = entry.requests.iter().position(|known| known.id == request)?;
            Some((entry.device.as_str(), entry.reservation.claims.get(at)?.endpoint))
        })
    }

    /// Schedules everything again, after a change of the processors.
    pub fn settle_again(&mut self) -> Vec<ReservationChange> {
        let settled = self.settle(&self.entries, None);
        self.adopt(settled)
    }

    fn adopt(&mut self, settled: LedgerSchedule) -> Vec<ReservationChange> {
        let LedgerSchedule { plans, processors, reports } = settled;
        (self.plans, self.processors) = (plans, processors);
        let mut news = Vec::new();
        for entry in &mut self.entries {
            let criticality = entry.reservation.criticality;
            let report = match &reports[&entry.order] {
                Ok(report) => *report,
                Err(refusal) => refusal.report(criticality, ReservationState::Suspended),
            };
            // The missing amount changes with every arrival; only the state matters to users.
            let is_news = entry.report.state != report.state;
            entry.report = report;
            if is_news {
                news.push(ReservationChange { device: entry.device.clone(), report });
            }
        }
        news
    }

    /// Schedules `entries`. The entry of order `moves` goes to another path and has no right to stay there.
    fn settle(&self, entries: &[LedgerEntry], moves: Option<u64>) -> LedgerSchedule {
        let mut draft = ScheduleDraft {
            ledger: self,
            moves,
            plans: BTreeMap::new(),
            requests: BTreeMap::new(),
            paths: BTreeMap::new(),
            processors: self.processors.clone(),
        };
        for entry in &self.entries {
            draft.processors.leave(&owner_of(&entry.device));
        }
        let rank = |entry: &&LedgerEntry| match (entry.reservation.criticality, entry.report.state) {
            (ReservationCriticality::High, _) => 0,
            (ReservationCriticality::Low, ReservationState::Admitted) => 1,
            // A new reservation comes after the suspended ones.
            (ReservationCriticality::Low, ReservationState::Suspended) => 2,
            (ReservationCriticality::Low, ReservationState::Refused) => 3,
        };
        let mut all: Vec<&LedgerEntry> = entries.iter().collect();
        all.sort_by_key(|entry| (rank(entry), moves == Some(entry.order), entry.order));
        let reports = all.into_iter().map(|entry| (entry.order, draft.take_in(entry))).collect();
        LedgerSchedule { plans: draft.plans, processors: draft.processors, reports }
    }
}

/// The schedule as far as it is made.
struct ScheduleDraft<'a> {
    ledger: &'a HostReservationLedger,
    moves: Option<u64>,
    plans: BTreeMap<String, BusSchedule>,
    requests: BTreeMap<String, Vec<EndpointRequest>>,
    paths: BTreeMap<String, u64>,
    processors: HostProcessors,
}

fn owner_of(device: &str) -> String {
    format!("session of {device}")
}

impl ScheduleDraft<'_> {
    /// Takes an entry in completely, or not at all.
    fn take_in(&mut self, entry: &LedgerEntry) -> Result<ReservationReport, ReservationDenial> {
        // An admitted reservation of high criticality stays: if the path has become slower, others give way.
        let is_high = entry.reservation.criticality == ReservationCriticality::High;
        let stays = is_high && entry.report.state == ReservationState::Admitted && self.moves != Some(entry.order);
        let mut requests = self.requests.get(&entry.bus).cloned().unwrap_or_default();
        requests.extend_from_slice(&entry.requests);
        let plan = if entry.requests.is_empty() { None } else { Some(self.plan(entry, &requests)?) };
        let bits = path_bits_per_s(entry);
        let (reserved, delay_ns) = self.fit_path(entry, bits, stays)?;
        let thread = self.thread(entry);
        let bound_ns = bound_ns(entry, plan.as_ref(), thread, delay_ns);
        let latency_ns = entry.reservation.latency_ns;
        if latency_ns > 0 && bound_ns > latency_ns && !stays {
            return Err(ReservationDenial::Delay { missing_ns: bound_ns - latency_ns, bound_ns });
        }
        // The processor comes last, because it would have to be undone. A thread without the time that it was seen to
        // need keeps no promise, so no reservation stays without that.
        let entered = self.processors.enter(&owner_of(&entry.device), thread);
        if let Err(overload) = entered
            && (!stays || entry.needed_ns.is_some())
        {
            return Err(ReservationDenial::Processor { missing_ppb: missing_ppb(&overload) });
        }
        let bus_ppm = entry.requests.iter().map(|request| request.utilization_ppm(SchedulingMode::Controller)).sum();
        if let Some(plan) = plan {
            self.plans.insert(entry.bus.clone(), plan);
            self.requests.insert(entry.bus.clone(), requests);
        }
        if let Some(path) = &entry.path {
            self.paths.insert(path.clone(), reserved);
        }
        Ok(ReservationReport {
            state: ReservationState::Admitted,
            lack: ScarceResource::None,
            criticality: entry.reservation.criticality,
            missing: 0,
            bound_ns,
            path_bits_per_s: bits,
            bus_ppm,
            thread: None,
            budget: None,
        })
    }

    fn plan(&self, entry: &LedgerEntry, requests: &[EndpointRequest]) -> Result<BusSchedule, ReservationDenial> {
        let options = ScheduleOptions { mode: SchedulingMode::Controller, work_max: WORK_MAX };
        let planned = match self.ledger.plans.get(&entry.bus) {
            Some(before) => replan(before, requests, options).map(|(plan, _)| plan),
            None => plan(requests, options),
        };
        let missing = |missing_ps| ReservationDenial::Bus { bus: entry.bus.clone(), missing_ps };
        match planned {
            Ok(plan) => match plan.rejected().first() {
                // No admitted request gives way to this one.
                Some(rejected) => Err(missing(rejected.missing_ps)),
                None => Ok(plan),
            },
            Err(schedule::ScheduleRefusal::High { missing_ps, .. }) => Err(missing(missing_ps)),
            Err(schedule::ScheduleRefusal::Asynchronous { needed_ps, available_ps, .. }) => {
                Err(missing(needed_ps.saturating_sub(available_ps)))
            }
            Err(schedule::ScheduleRefusal::Invalid { id, why }) => {
                let at = entry.requests.iter().position(|request| request.id == id).unwrap_or_default();
                let endpoint = entry.reservation.claims.get(at).map_or(0, |claim| claim.endpoint);
                Err(ReservationDenial::Invalid { endpoint, why })
            }
            Err(schedule::ScheduleRefusal::Count { .. }) => Err(ReservationDenial::Kind),
        }
    }

    /// What is then reserved of its path, and how long data takes there.
    fn fit_path(&self, entry: &LedgerEntry, bits: u64, stays: bool) -> Result<(u64, u64), ReservationDenial> {
        let Some(name) = &entry.path else { return Ok((0, 0)) };
        let path = self.ledger.paths.get(name).copied().unwrap_or_default();
        let reserved = self.paths.get(name).copied().unwrap_or_default().saturating_add(bits);
        let may = path.bits_per_s / 100 * PATH_SHARE_PERCENT;
        if path.bits_per_s > 0 && reserved > may && !stays {
            return Err(ReservationDenial::Rate { missing_bits_per_s: reserved - may, path_bits_per_s: may });
        }
        let at_a_time = if entry.requests.is_empty() { 1 } else { URB_PACKETS };
        let bytes: u64 = entry.loads.iter().map(|load| u64::from(load.bytes) * at_a_time).sum();
        let sending_ns = match path.bits_per_s {
            0 => 0,
            rate => u64::try_from(u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        Ok((reserved, (path.round_trip_ns / 2).saturating_add(sending_ns)))
    }

    /// The processor time that its session's thread needs.
    fn thread(&self, entry: &LedgerEntry) -> VcpuReserve {
        let period_ns = entry.loads.iter().map(|load| load.period_ns).min().unwrap_or(URB_NS).max(URB_NS);
        if let Some(budget_ns) = entry.needed_ns {
            return VcpuReserve { budget_ns, period_ns };
        }
        let bytes = entry.loads.iter().map(|load| u64::from(load.bytes) * period_ns.div_ceil(load.period_ns));
        let ServingCost { turn_ns, kib_ns } = self.ledger.cost;
        let path = entry.path.as_ref().and_then(|path| self.ledger.paths.get(path)).copied().unwrap_or_default();
        let turn_ns = if path.wake_up_ns > 0 { path.wake_up_ns } else { turn_ns };
        let is_high = entry.reservation.criticality == ReservationCriticality::High;
        let turns = if is_high { 2 * TURNS } else { TURNS };
        // A few cold round trips refuse nothing that fits: what it takes is soon seen.
        let turns_ns = (turns * turn_ns).min(period_ns / UNSEEN_PART_MAX);
        let budget_ns = turns_ns + bytes.sum::<u64>().div_ceil(1024) * kib_ns;
        let least_ns = if is_high { period_ns / UNSEEN_PART } else { 1 };
        VcpuReserve { budget_ns: budget_ns.max(least_ns), period_ns }
    }
}

/// Equation 9 as far as the importer: the transfers of one request, the session's thread, the path.
fn bound_ns(entry: &LedgerEntry, plan: Option<&BusSchedule>, thread: VcpuReserve, delay_ns: u64) -> u64 {
    let of_bus = plan.into_iter().flat_map(|plan| entry.requests.iter().map(move |request| (plan, request)));
    let of_bus = of_bus.map(|(plan, request)| {
        let interval_ns = interval_ps(plan.speed()) / 1000;
        let asynchronous = plan.asynchronous().iter().find(|bound| bound.id == request.id);
        // Others of low criticality may come between, as long as each has its budget in its period.
        let is_high = request.criticality == schedule::EndpointCriticality::High;
        let intervals = asynchronous.filter(|_| is_high).map_or(request.period.into(), |bound| bound.intervals);
        // A request that arrives within an interval waits for the next.
        PathSegment::Transfer { intervals: intervals + 1, interval_ns, interrupt_every_ns: URB_NS }
    });
    let slowest = of_bus.max_by_key(PathSegment::worst_ns);
    let others = [PathSegment::Server { period_ns: thread.period_ns }, PathSegment::Network { delay_ns }];
    worst_ns(&others).saturating_add(slowest.map_or(0, |stage| stage.worst_ns()))
}

/// What its data takes of a link, with overhead.
fn path_bits_per_s(entry: &LedgerEntry) -> u64 {
    let of_one = |load: &ReservationLoad| {
        let eighths = u64::from(load.bytes) * 8 + u64::from(load.packets) * PACKET_OVERHEAD_EIGHTHS;
        let on_link = eighths * (SEGMENT_BYTES + SEGMENT_HEAD_BYTES) / SEGMENT_BYTES;
        u64::try_from(u128::from(on_link) * 1_000_000_000 / u128::from(load.period_ns)).unwrap_or(u64::MAX)
    };
    entry.loads.iter().map(of_one).fold(0, u64::saturating_add)
}

impl HostReservationLedger {
    /// Writes the reservations to a snapshot, for sessions that continue with the same device names.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.entries.len() + self.expected.len());
        let entries = self.entries.iter().map(|entry| {
            (&entry.device, entry.order, &entry.reservation, entry.report.state == ReservationState::Suspended)
        });
        let expected = self.expected.iter();
        let expected = expected.map(|(device, it)| (device, it.order, &it.reservation, it.is_suspended));
        for (device, order, reservation, is_suspended) in entries.chain(expected) {
            to.bytes(device.as_bytes());
            to.u64(order);
            to.bytes(&ReservationMessage::Ask(reservation.clone()).encode());
            to.flag(is_suspended);
        }
        to.count(self.paths.len());
        for (path, MeasuredPath { bits_per_s, round_trip_ns, .. }) in &self.paths {
            to.bytes(path.as_bytes());
            to.u64(*bits_per_s);
            to.u64(*round_trip_ns);
        }
    }

    /// Reads the reservations of a snapshot: a device that comes with its reservation again keeps its position.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let text = |from: &mut FieldReader<'_>, field| {
            let bytes = from.bytes(field)?;
            String::from_utf8(bytes.to_vec())
                .map_err(|_| ProtocolViolation::new(field, bytes.len() as u64, "it is text"))
        };
        let mut expected = BTreeMap::new();
        for _ in 0..from.count("reservations", 17)? {
            let (device, order) = (text(from, "device")?, from.u64("order")?);
            let ReservationMessage::Ask(reservation) = ReservationMessage::decode(from.bytes("reservation")?)? else {
                return Err(ProtocolViolation::new("reservation", 0, "it is one"));
            };
            let is_suspended = from.flag("suspended")?;
            let is_new = expected.values().all(|known: &ExpectedReservation| known.order != order);
            let known = expected.insert(device, ExpectedReservation { order, reservation, is_suspended });
            if !is_new || known.is_some() || order == 0 || order > u64::MAX / 2 || expected.len() > ENTRIES_MAX {
                return Err(ProtocolViolation::new("order", order, "each has a place of its own, from 1"));
            }
        }
        let mut paths = BTreeMap::new();
        for _ in 0..from.count("paths", 20)? {
            let path = text(from, "path")?;
            paths.insert(
                path,
                MeasuredPath {
                    bits_per_s: from.u64("bits a second")?,
                    round_trip_ns: from.u64("round trip")?,
                    wake_up_ns: 0,
                },
            );
        }
        let last = expected.values().map(|expected| expected.order).max().unwrap_or_default();
        self.next_order = self.next_order.max(last + 1);
        // Reservations that are here already replace the expected ones.
        expected.retain(|device, _| self.entries.iter().all(|entry| entry.device != *device));
        self.expected.extend(expected);
        for (path, measured) in paths {
            self.paths.entry(path).or_insert(measured);
        }
        Ok(())
    }

    /// The reservation of the process before this one for a device that has not come here yet.
    pub fn expected(&self, device: &str) -> Option<&ReservationTerms> {
        self.expected.get(device).map(|expected| &expected.reservation)
    }

    /// The claims of a device's reservation.
    pub fn claims(&self, device: &str) -> &[EndpointBandwidth] {
        let entry = self.entries.iter().find(|entry| entry.device == device);
        entry.map_or(&[], |entry| &entry.reservation.claims)
    }
}
