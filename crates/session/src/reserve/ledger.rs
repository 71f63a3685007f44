//! Who was admitted, what each has, and who gives way to whom.
//!
//! One entry a device, under its name. What is settled is settled for all of them at once: those of high criticality
//! first, then those of low criticality that run, then those that wait, each in the order of its coming; whoever has a
//! place on his bus keeps it ([`farbus_realtime::schedule::replan`]). Nothing here knows a clock, a device or a link:
//! [`Ledger`] is told, and answers with [`News`].

use std::collections::BTreeMap;

use farbus_realtime::pipe::{Stage, worst_ns};
use farbus_realtime::schedule::{self, Options, Plan, Request, plan, replan};
use farbus_realtime::transfer::interval_ps;
use farbus_realtime::vcpu::Reserve;
use farbus_wire::native::reserve::{Claim, Criticality, Lack, Reservation, ReservationReport, State, Word};

use super::carrier::{Carrier, Load};
use super::processors::{Processors, missing_ppb};
use super::refusal::Refusal;
use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// What looking for a better schedule may cost while others wait, in visits of bins: some ten milliseconds.
const WORK_MAX: u64 = 1_000_000;
/// Drivers ask for eight packets at a time, a millisecond's (U8): data are there when the last is.
const URB_PACKETS: u64 = 8;
const URB_NS: u64 = 1_000_000;
/// What a packet takes of a link beside its data, eighths of a byte: its own four of a reply's, and an eighth of a
/// reply's heads (20) and of a segment's (52).
const PACKET_OVERHEAD_EIGHTHS: u64 = 4 * 8 + 20 + 52;
/// The same of data: a segment has 52 bytes of heads, and 1448 of data.
const SEGMENT_BYTES: u64 = 1448;
const SEGMENT_HEAD_BYTES: u64 = 52;
/// What may be reserved of a path: the rest is for requests, for control, and for what nobody reserved.
const PATH_SHARE_PERCENT: u64 = 90;
/// Entries of a snapshot at most.
const ENTRIES_MAX: usize = 4096;

/// What serving a device costs a processor here, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// A turn: what is received, what is sent.
    pub turn_ns: u64,
    /// A KiB of data.
    pub kib_ns: u64,
}

/// The way to an importer, as it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Bits a second; 0: it was not measured, and takes all.
    pub bits_per_s: u64,
    /// There and back.
    pub round_trip_ns: u64,
}

/// What somebody asks for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Its name.
    pub device: &'a str,
    /// What it can carry.
    pub carrier: &'a Carrier,
    /// What is asked for.
    pub reservation: Reservation,
    /// To whom its data go; none: to whoever comes.
    pub path: Option<&'a str>,
}

/// It stands otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The device.
    pub device: String,
    /// How.
    pub report: ReservationReport,
}

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// The device.
    pub device: &'a str,
    /// Its bus.
    pub bus: &'a str,
    /// What was asked for.
    pub reservation: &'a Reservation,
    /// How it stands.
    pub report: ReservationReport,
    /// To whom its data go.
    pub path: Option<&'a str>,
    /// What it takes of that, or would take, bits a second.
    pub bits_per_s: u64,
    /// Of which processor it has a part, and which.
    pub processor: Option<(usize, Reserve)>,
}

/// Everything that is reserved on this host.
#[derive(Clone, Debug)]
pub struct Ledger {
    entries: Vec<Entry>,
    plans: BTreeMap<String, Plan>,
    paths: BTreeMap<String, Path>,
    processors: Processors,
    cost: Cost,
    next_id: u32,
    next_order: u64,
    /// Of the process before this one, whose devices are yet to come.
    expected: BTreeMap<String, Expected>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    device: String,
    bus: String,
    reservation: Reservation,
    /// None of what is on no bus.
    requests: Vec<Request>,
    loads: Vec<Load>,
    path: Option<String>,
    /// Its place among all.
    order: u64,
    report: ReservationReport,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    order: u64,
    reservation: Reservation,
    is_suspended: bool,
}

/// What comes of settling.
struct Settled {
    plans: BTreeMap<String, Plan>,
    processors: Processors,
    reports: BTreeMap<u64, Result<ReservationReport, Refusal>>,
}

impl Ledger {
    /// Nothing is reserved yet on a host with these processors, which serves devices at this cost.
    pub fn new(processors: usize, cost: Cost) -> Self {
        Self {
            entries: Vec::new(),
            plans: BTreeMap::new(),
            paths: BTreeMap::new(),
            processors: Processors::new(processors),
            cost,
            next_id: 1,
            next_order: 1,
            expected: BTreeMap::new(),
        }
    }

    /// Reserves what is asked for, in the place of what the device had. One that is of low criticality and was
    /// suspended in the process before this one may be suspended here.
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub fn admit(&mut self, asked: Asked<'_>) -> Result<Vec<News>, Refusal> {
        let Asked { device, carrier, reservation, path } = asked;
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
            Some(Expected { is_suspended: true, .. }) => State::Suspended,
            Some(_) => State::Admitted,
            None => State::Refused,
        };
        let criticality = reservation.criticality;
        let report = ReservationReport {
            state,
            lack: Lack::None,
            criticality,
            missing: 0,
            bound_ns: 0,
            path_bits_per_s: 0,
            bus_ppm: 0,
        };
        let entry = Entry {
            device: device.to_owned(),
            bus: carrier.bus().to_owned(),
            reservation,
            requests,
            loads,
            path: path.map(str::to_owned),
            order,
            report,
        };
        let mut entries: Vec<Entry> = self.entries.iter().filter(|entry| entry.device != device).cloned().collect();
        entries.push(entry);
        entries.sort_by_key(|entry| entry.order);
        let settled = self.settle(&entries, None);
        if let Some(Err(refusal)) = settled.reports.get(&order)
            && !(is_expected && criticality == Criticality::Low)
        {
            return Err(refusal.clone());
        }
        self.next_order = self.next_order.max(order + 1);
        self.expected.remove(device);
        self.entries = entries;
        Ok(self.adopt(settled))
    }

    /// Nothing is reserved for the device any more.
    pub fn release(&mut self, device: &str) -> Vec<News> {
        self.expected.remove(device);
        let before = self.entries.len();
        self.entries.retain(|entry| entry.device != device);
        if self.entries.len() == before { Vec::new() } else { self.settle_again() }
    }

    /// The way to an importer was measured.
    pub fn note_path(&mut self, path: &str, measured: Path) -> Vec<News> {
        if self.paths.get(path) == Some(&measured) {
            return Vec::new();
        }
        if self.paths.len() >= ENTRIES_MAX {
            self.forget_paths();
        }
        self.paths.insert(path.to_owned(), measured);
        self.settle_again()
    }

    /// A device's data go to somebody else from now on, with what is reserved for it. What waited may wait there.
    ///
    /// # Errors
    /// [`Refusal`]: the way to him does not carry that; nothing has changed.
    pub fn move_to(&mut self, device: &str, path: &str) -> Result<Vec<News>, Refusal> {
        let mut entries = self.entries.clone();
        let Some(entry) = entries.iter_mut().find(|entry| entry.device == device) else { return Ok(Vec::new()) };
        entry.path = Some(path.to_owned());
        let (order, was_admitted) = (entry.order, entry.report.state == State::Admitted);
        let settled = self.settle(&entries, Some(order));
        if let Some(Err(refusal)) = settled.reports.get(&order)
            && was_admitted
        {
            return Err(refusal.clone());
        }
        self.entries = entries;
        Ok(self.adopt(settled))
    }

    /// What its owner reserved for whoever uses it: the data go to somebody now, or to nobody in particular again.
    pub fn lead_to(&mut self, device: &str, path: Option<&str>) -> Vec<News> {
        match self.entries.iter_mut().find(|entry| entry.device == device) {
            Some(entry) => entry.path = path.map(str::to_owned),
            None => return Vec::new(),
        }
        self.settle_again()
    }

    /// What is reserved for a device.
    pub fn reservation(&self, device: &str) -> Option<&Reservation> {
        self.entries.iter().find(|entry| entry.device == device).map(|entry| &entry.reservation)
    }

    /// What is known of the way to an importer.
    pub fn path(&self, path: &str) -> Option<Path> {
        self.paths.get(path).copied()
    }

    /// What is reserved of the way to an importer, bits a second.
    pub fn path_bits_per_s(&self, path: &str) -> u64 {
        let its_own = self.entries.iter().filter(|entry| entry.path.as_deref() == Some(path));
        its_own.filter(|entry| entry.report.state == State::Admitted).map(|entry| entry.report.path_bits_per_s).sum()
    }

    fn forget_paths(&mut self) {
        let entries = &self.entries;
        self.paths.retain(|path, _| entries.iter().any(|entry| entry.path.as_ref() == Some(path)));
    }

    /// The processors, for whoever reserves by himself; [`Ledger::settle_again`] afterwards.
    pub fn processors_mut(&mut self) -> &mut Processors {
        &mut self.processors
    }

    /// How a device's reservation stands; none: it has none.
    pub fn report(&self, device: &str) -> Option<ReservationReport> {
        self.entries.iter().find(|entry| entry.device == device).map(|entry| entry.report)
    }

    /// All of them, in the order of their coming.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.entries.iter().map(|entry| Line {
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
    pub fn plan(&self, bus: &str) -> Option<&Plan> {
        self.plans.get(bus)
    }

    /// Settles everything anew: somebody who reserves by himself has come or gone.
    pub fn settle_again(&mut self) -> Vec<News> {
        let settled = self.settle(&self.entries, None);
        self.adopt(settled)
    }

    fn adopt(&mut self, settled: Settled) -> Vec<News> {
        let Settled { plans, processors, reports } = settled;
        (self.plans, self.processors) = (plans, processors);
        let mut news = Vec::new();
        for entry in &mut self.entries {
            let criticality = entry.reservation.criticality;
            let report = match &reports[&entry.order] {
                Ok(report) => *report,
                Err(refusal) => refusal.report(criticality, State::Suspended),
            };
            // How much is missing changes with all that comes and goes; whether it runs is what matters to its user.
            let is_news = entry.report.state != report.state;
            entry.report = report;
            if is_news {
                news.push(News { device: entry.device.clone(), report });
            }
        }
        news
    }

    /// One that `moves` has its place among all, and no right to stay where it goes.
    fn settle(&self, entries: &[Entry], moves: Option<u64>) -> Settled {
        let mut draft = Draft {
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
        let rank = |entry: &&Entry| match (entry.reservation.criticality, entry.report.state) {
            (Criticality::High, _) => 0,
            (Criticality::Low, State::Admitted) => 1,
            // Who comes is behind who waits.
            (Criticality::Low, State::Suspended) => 2,
            (Criticality::Low, State::Refused) => 3,
        };
        let mut all: Vec<&Entry> = entries.iter().collect();
        all.sort_by_key(|entry| (rank(entry), moves == Some(entry.order), entry.order));
        let reports = all.into_iter().map(|entry| (entry.order, draft.take_in(entry))).collect();
        Settled { plans: draft.plans, processors: draft.processors, reports }
    }
}

/// Everything settled anew, so far.
struct Draft<'a> {
    ledger: &'a Ledger,
    moves: Option<u64>,
    plans: BTreeMap<String, Plan>,
    requests: BTreeMap<String, Vec<Request>>,
    paths: BTreeMap<String, u64>,
    processors: Processors,
}

fn owner_of(device: &str) -> String {
    format!("session of {device}")
}

impl Draft<'_> {
    /// All of what it asks for, or nothing.
    fn take_in(&mut self, entry: &Entry) -> Result<ReservationReport, Refusal> {
        // Who was admitted and is of high criticality stays: what the path lacks now others have to give.
        let is_high = entry.reservation.criticality == Criticality::High;
        let stays = is_high && entry.report.state == State::Admitted && self.moves != Some(entry.order);
        let mut requests = self.requests.get(&entry.bus).cloned().unwrap_or_default();
        requests.extend_from_slice(&entry.requests);
        let plan = if entry.requests.is_empty() { None } else { Some(self.plan(entry, &requests)?) };
        let bits = path_bits_per_s(entry);
        let (reserved, delay_ns) = self.fit_path(entry, bits, stays)?;
        let thread = self.thread(entry);
        let bound_ns = bound_ns(entry, plan.as_ref(), thread, delay_ns);
        let latency_ns = entry.reservation.latency_ns;
        if latency_ns > 0 && bound_ns > latency_ns && !stays {
            return Err(Refusal::Delay { missing_ns: bound_ns - latency_ns, bound_ns });
        }
        // Last, because it is what would have to be undone.
        let entered = self.processors.enter(&owner_of(&entry.device), thread);
        if let Err(overload) = entered
            && !stays
        {
            return Err(Refusal::Processor { missing_ppb: missing_ppb(&overload) });
        }
        let bus_ppm = entry.requests.iter().map(Request::utilization_ppm).sum();
        if let Some(plan) = plan {
            self.plans.insert(entry.bus.clone(), plan);
            self.requests.insert(entry.bus.clone(), requests);
        }
        if let Some(path) = &entry.path {
            self.paths.insert(path.clone(), reserved);
        }
        Ok(ReservationReport {
            state: State::Admitted,
            lack: Lack::None,
            criticality: entry.reservation.criticality,
            missing: 0,
            bound_ns,
            path_bits_per_s: bits,
            bus_ppm,
        })
    }

    fn plan(&self, entry: &Entry, requests: &[Request]) -> Result<Plan, Refusal> {
        let options = Options { work_max: WORK_MAX, ..Options::default() };
        let planned = match self.ledger.plans.get(&entry.bus) {
            Some(before) => replan(before, requests, options).map(|(plan, _)| plan),
            None => plan(requests, options),
        };
        let missing = |missing_ps| Refusal::Bus { bus: entry.bus.clone(), missing_ps };
        match planned {
            Ok(plan) => match plan.rejected().first() {
                // Of those that are there already none gives way to this one.
                Some(rejected) => Err(missing(rejected.missing_ps)),
                None => Ok(plan),
            },
            Err(schedule::Refusal::High { missing_ps, .. }) => Err(missing(missing_ps)),
            Err(schedule::Refusal::Asynchronous { needed_ps, available_ps, .. }) => {
                Err(missing(needed_ps.saturating_sub(available_ps)))
            }
            Err(schedule::Refusal::Invalid { id, why }) => {
                let at = entry.requests.iter().position(|request| request.id == id).unwrap_or_default();
                let endpoint = entry.reservation.claims.get(at).map_or(0, |claim| claim.endpoint);
                Err(Refusal::Invalid { endpoint, why })
            }
            Err(schedule::Refusal::Count { .. }) => Err(Refusal::Kind),
        }
    }

    /// What is reserved of its path with it, and how long data take there.
    fn fit_path(&self, entry: &Entry, bits: u64, stays: bool) -> Result<(u64, u64), Refusal> {
        let Some(name) = &entry.path else { return Ok((0, 0)) };
        let path = self.ledger.paths.get(name).copied().unwrap_or_default();
        let reserved = self.paths.get(name).copied().unwrap_or_default().saturating_add(bits);
        let may = path.bits_per_s / 100 * PATH_SHARE_PERCENT;
        if path.bits_per_s > 0 && reserved > may && !stays {
            return Err(Refusal::Rate { missing_bits_per_s: reserved - may, path_bits_per_s: may });
        }
        let at_a_time = if entry.requests.is_empty() { 1 } else { URB_PACKETS };
        let bytes: u64 = entry.loads.iter().map(|load| u64::from(load.bytes) * at_a_time).sum();
        let sending_ns = match path.bits_per_s {
            0 => 0,
            rate => u64::try_from(u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        Ok((reserved, (path.round_trip_ns / 2).saturating_add(sending_ns)))
    }

    /// What its session's thread needs.
    fn thread(&self, entry: &Entry) -> Reserve {
        let period_ns = entry.loads.iter().map(|load| load.period_ns).min().unwrap_or(URB_NS).max(URB_NS);
        let bytes = entry.loads.iter().map(|load| u64::from(load.bytes) * period_ns.div_ceil(load.period_ns));
        let Cost { turn_ns, kib_ns } = self.ledger.cost;
        // What is asked comes in one turn, what is there goes out in another.
        let budget_ns = 2 * turn_ns + bytes.sum::<u64>().div_ceil(1024) * kib_ns;
        Reserve { budget_ns: budget_ns.max(1), period_ns }
    }
}

/// Equation 9 as far as the importer: the transfers of one request, the session's thread, the path.
fn bound_ns(entry: &Entry, plan: Option<&Plan>, thread: Reserve, delay_ns: u64) -> u64 {
    let of_bus = plan.into_iter().flat_map(|plan| entry.requests.iter().map(move |request| (plan, request)));
    let of_bus = of_bus.map(|(plan, request)| {
        let interval_ns = interval_ps(plan.speed()) / 1000;
        let asynchronous = plan.asynchronous().iter().find(|bound| bound.id == request.id);
        let intervals = asynchronous.map_or(request.period.into(), |bound| bound.intervals);
        // One that comes in the middle of an interval waits for the next.
        Stage::Transfer { intervals: intervals + 1, interval_ns, interrupt_every_ns: URB_NS }
    });
    let slowest = of_bus.max_by_key(Stage::worst_ns);
    let others = [Stage::Server { period_ns: thread.period_ns }, Stage::Network { delay_ns }];
    worst_ns(&others).saturating_add(slowest.map_or(0, |stage| stage.worst_ns()))
}

/// What its data take of a link.
fn path_bits_per_s(entry: &Entry) -> u64 {
    let of_one = |load: &Load| {
        let eighths = u64::from(load.bytes) * 8 + u64::from(load.packets) * PACKET_OVERHEAD_EIGHTHS;
        let on_link = eighths * (SEGMENT_BYTES + SEGMENT_HEAD_BYTES) / SEGMENT_BYTES;
        u64::try_from(u128::from(on_link) * 1_000_000_000 / u128::from(load.period_ns)).unwrap_or(u64::MAX)
    };
    entry.loads.iter().map(of_one).fold(0, u64::saturating_add)
}

impl Ledger {
    /// Writes down what sessions of another process go on with: its devices come there under the same names.
    pub fn save(&self, to: &mut Writer) {
        to.count(self.entries.len() + self.expected.len());
        let entries = self
            .entries
            .iter()
            .map(|entry| (&entry.device, entry.order, &entry.reservation, entry.report.state == State::Suspended));
        let expected = self.expected.iter();
        let expected = expected.map(|(device, it)| (device, it.order, &it.reservation, it.is_suspended));
        for (device, order, reservation, is_suspended) in entries.chain(expected) {
            to.bytes(device.as_bytes());
            to.u64(order);
            to.bytes(&Word::Ask(reservation.clone()).encode());
            to.flag(is_suspended);
        }
        to.count(self.paths.len());
        for (path, Path { bits_per_s, round_trip_ns }) in &self.paths {
            to.bytes(path.as_bytes());
            to.u64(*bits_per_s);
            to.u64(*round_trip_ns);
        }
    }

    /// What another process wrote down is expected here: who comes with it again has his place among all.
    ///
    /// # Errors
    /// [`Reject`]: nothing such was ever reserved.
    pub fn restore(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        let text = |from: &mut Reader<'_>, field| {
            let bytes = from.bytes(field)?;
            String::from_utf8(bytes.to_vec()).map_err(|_| Reject::new(field, bytes.len() as u64, "it is text"))
        };
        let mut expected = BTreeMap::new();
        for _ in 0..from.count("reservations", 17)? {
            let (device, order) = (text(from, "device")?, from.u64("order")?);
            let Word::Ask(reservation) = Word::decode(from.bytes("reservation")?)? else {
                return Err(Reject::new("reservation", 0, "it is one"));
            };
            let is_suspended = from.flag("suspended")?;
            let is_new = expected.values().all(|known: &Expected| known.order != order);
            let known = expected.insert(device, Expected { order, reservation, is_suspended });
            if !is_new || known.is_some() || order == 0 || order > u64::MAX / 2 || expected.len() > ENTRIES_MAX {
                return Err(Reject::new("order", order, "each has a place of its own, from 1"));
            }
        }
        let mut paths = BTreeMap::new();
        for _ in 0..from.count("paths", 20)? {
            let path = text(from, "path")?;
            paths.insert(path, Path { bits_per_s: from.u64("bits a second")?, round_trip_ns: from.u64("round trip")? });
        }
        let last = expected.values().map(|expected| expected.order).max().unwrap_or_default();
        self.next_order = self.next_order.max(last + 1);
        // What is here already has come before anything was expected.
        expected.retain(|device, _| self.entries.iter().all(|entry| entry.device != *device));
        self.expected.extend(expected);
        for (path, measured) in paths {
            self.paths.entry(path).or_insert(measured);
        }
        Ok(())
    }

    /// What the process before this one had reserved for a device that is yet to be used here.
    pub fn expected(&self, device: &str) -> Option<&Reservation> {
        self.expected.get(device).map(|expected| &expected.reservation)
    }

    /// The claims of a device's reservation.
    pub fn claims(&self, device: &str) -> &[Claim] {
        let entry = self.entries.iter().find(|entry| entry.device == device);
        entry.map_or(&[], |entry| &entry.reservation.claims)
    }
}
