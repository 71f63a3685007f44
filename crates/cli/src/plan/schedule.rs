//! `farbus plan schedule`: which endpoint gets which microframes of a bus, or what is missing.

use std::fmt::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use farbus::importer::client::FailureKind;
use farbus_page::bus_drawing::{BusDrawing, EndpointDrawing, SvgPicture};
use farbus_realtime::schedule::{
    BusSchedule, EndpointCriticality, EndpointPlacement, EndpointRequest, EndpointRequestError, ScheduleOptions,
    ScheduleRefusal, SchedulingMode, plan,
};
use farbus_realtime::transfer::{BusDirection, PacketShape, asynchronous_share_ps, interval_ps};
use farbus_realtime::{BusSpeed, TransferKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::output::{CommandFailure, print_json, say};
use super::examples::{ExampleKind, PlanSource};
use super::file;
use super::layout::{percent, thousandths, us_from_ps, write_columns, write_wrapped};

/// Plan a bus: which endpoints are admitted, when each may send, what it is promised.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "car.toml:\n\n  \
        speed = \"super\"             # or low, full, high\n\n  \
        [[endpoint]]\n  name = \"camera\"\n  \
        kind = \"isochronous\"        # or interrupt, bulk, control\n  \
        packet_bytes = 1024\n  \
        burst_packets = 11          # packets a burst; 1 if left out\n  \
        bursts = 3                  # bursts a microframe; 1 if left out\n  \
        budget_bytes = 33792        # each period; what the wire carries if left out\n  \
        period = 2                  # microframes; frames at low and full speed\n  \
        criticality = \"low\"         # suspended when high needs it; else \"high\"\n  \
        direction = \"in\"            # or out; in if left out\n\n\
        Examples:\n  \
        farbus plan schedule car.toml                 admitted or refused; a timetable\n  \
        farbus plan schedule --example table-2-3      Table 2 of the 2023 paper\n\n\
        'farbus plan schedule --help' has more of both.",
    after_long_help = "car.toml:\n\n  \
        speed = \"super\"             # or low, full, high\n  \
        mode = \"controller\"         # as --mode; may be left out\n  \
        reservation = \"least\"       # as --reservation; may be left out\n\n  \
        [[endpoint]]\n  name = \"camera\"\n  \
        kind = \"isochronous\"        # or interrupt, bulk, control\n  \
        packet_bytes = 1024\n  \
        burst_packets = 11          # packets a burst; 1 if left out\n  \
        bursts = 3                  # bursts a microframe; 1 if left out\n  \
        budget_bytes = 33792        # each period; what the wire carries if left out\n  \
        period = 2                  # microframes; frames at low and full speed\n  \
        criticality = \"low\"         # suspended when high needs it; else \"high\"\n  \
        direction = \"in\"            # or out; in if left out\n\n  \
        [[stage]]                   # what delays a message; any number of them\n  name = \"bus\"\n  \
        endpoint = \"camera\"         # what its data take; or 'us = 250'\n  \
        times = 2                   # how often; 1 if left out\n\n\
        Examples:\n  \
        farbus plan schedule car.toml                 admitted or refused; a timetable\n  \
        farbus plan schedule --example table-2-3      Table 2 of the 2023 paper\n  \
        farbus plan schedule car.toml --svg car.svg   the timetable as a drawing\n  \
        farbus plan schedule car.toml --mode printed\n  \
        farbus plan schedule car.toml --mode spread --reservation most"
)]
pub struct Args {
    #[command(flatten)]
    source: PlanSource,
    /// How exactly to compute the bus.
    ///
    /// 'controller' unless the file says another.
    #[arg(long, value_enum)]
    mode: Option<ScheduleModeName>,
    /// What bulk and control keep of each interval.
    ///
    /// 'least': the least with which they have their budgets each period. 'most': all that the periodic endpoints
    /// leave, as in Table 2 of the 2023 paper. 'least' unless the file says otherwise.
    #[arg(long, value_enum)]
    reservation: Option<ReservationName>,
    /// Draw the timetable into FILE.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ScheduleModeName {
    /// Whole packets wherever the controller puts them; what it admits is kept.
    #[default]
    Controller,
    /// Whole packets at the places that are printed, in the paper's times.
    Sound,
    /// A budget divided over its period like a fluid.
    Spread,
    /// The algorithms as the paper prints them.
    Printed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ReservationName {
    /// The least that is enough.
    #[default]
    Least,
    /// All that is left.
    Most,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BusPlanFile {
    speed: SpeedWord,
    mode: Option<ScheduleModeName>,
    reservation: Option<ReservationName>,
    endpoint: Vec<PlannedEndpoint>,
    #[serde(default)]
    stage: Vec<DelayTerm>,
}

/// Something that delays a message on its way from end to end: Equation 10 of the paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DelayTerm {
    name: String,
    us: Option<u64>,
    endpoint: Option<String>,
    #[serde(default = "one")]
    times: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlannedEndpoint {
    name: String,
    kind: TransferTypeWord,
    packet_bytes: u32,
    #[serde(default = "one")]
    burst_packets: u32,
    #[serde(default = "one")]
    bursts: u32,
    budget_bytes: Option<u32>,
    period: u32,
    #[serde(default)]
    criticality: CriticalityWord,
    #[serde(default)]
    direction: DirectionWord,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SpeedWord {
    Low,
    Full,
    High,
    Super,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TransferTypeWord {
    Control,
    Isochronous,
    Interrupt,
    Bulk,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CriticalityWord {
    #[default]
    High,
    Low,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DirectionWord {
    #[default]
    In,
    Out,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Some((name, text)) = args.source.read(ExampleKind::Schedule, args.json)? else { return Ok(()) };
    let bus: BusPlanFile = file::parse(&name, &text)?;
    let mode = args.mode.or(bus.mode).unwrap_or_default();
    let reservation = args.reservation.or(bus.reservation).unwrap_or_default();
    let planned = SchedulePlan::reserving(&bus, mode, reservation)
        .map_err(|(attribute, why)| CommandFailure::new(attribute, format!("{name}: {why}")))?;
    if let Some(path) = &args.svg {
        file::write(path, &planned.to_svg())?;
    }
    if args.json {
        return print_json(&planned.to_json());
    }
    say(planned.to_text().trim_end());
    Ok(())
}

/// A plan, and the names of its endpoints: an endpoint's id is its position in the file.
struct SchedulePlan<'a> {
    endpoints: &'a [PlannedEndpoint],
    mode: ScheduleModeName,
    plan: BusSchedule,
    /// The delay of a message from end to end, if the file has stages: name, times and nanoseconds of each.
    stages: Vec<(&'a str, u32, u64)>,
}

impl ScheduleModeName {
    const fn scheduling(self) -> SchedulingMode {
        match self {
            Self::Controller => SchedulingMode::Controller,
            Self::Sound => SchedulingMode::Sound,
            Self::Spread => SchedulingMode::Spread,
            Self::Printed => SchedulingMode::Printed { step_ps: 0 },
        }
    }
}

/// Why a set is refused that a search finds places for.
const FIRST_FIT: &str = "not admitted: the printed algorithm is first-fit, which finds no such schedule; a search does \
                         ('--mode sound')";

/// Why the printed algorithms refuse a set that other modes may admit; `None` if no two endpoints meet.
fn whole_quanta(requests: &[EndpointRequest]) -> Option<String> {
    let periodic = || requests.iter().filter(|r| r.shape.is_periodic() && r.criticality == EndpointCriticality::High);
    let quanta_ps: u64 = periodic().map(|request| request.shape.quantum_ps()).sum();
    let speed = periodic().next()?.shape.speed();
    let most_ps = interval_ps(speed) - asynchronous_share_ps(speed);
    let unit = unit(speed);
    let mut text = format!(
        ". As printed, an endpoint has its whole quantum in one {unit}: together {} us of at most {}",
        us_from_ps(quanta_ps),
        us_from_ps(most_ps)
    );
    // Section 6.1.1 of the paper: 33 packets of 1024 bytes each microframe, and each other one.
    let is_camera = |request: &EndpointRequest| {
        request.shape.kind() == TransferKind::Isochronous && request.shape.quantum_bytes() == 33 * 1024
    };
    let is_papers = speed == BusSpeed::Super && periodic().all(is_camera) && periodic().map(|r| r.period).eq([1, 2]);
    if is_papers {
        text.push_str(
            "; these are the two cameras that the paper itself runs ('--mode spread' divides them, as it does)",
        );
    }
    Some(text)
}

impl<'a> SchedulePlan<'a> {
    fn reserving(
        bus: &'a BusPlanFile,
        mode: ScheduleModeName,
        reservation: ReservationName,
    ) -> Result<Self, (FailureKind, String)> {
        let mut planned = Self::of(bus, mode)?;
        if reservation == ReservationName::Most {
            planned.plan.reserve_rest();
        }
        let stages = bus.stage.iter().map(|stage| {
            let ns =
                planned.stage_ns(stage).map_err(|why| (FailureKind::Local, format!("stage {}: {why}", stage.name)))?;
            Ok((stage.name.as_str(), stage.times, ns))
        });
        planned.stages = stages.collect::<Result<_, _>>()?;
        Ok(planned)
    }

    fn stage_ns(&self, stage: &DelayTerm) -> Result<u64, String> {
        match (stage.us, &stage.endpoint) {
            (Some(us), None) => Ok(us.saturating_mul(1000)),
            (None, Some(name)) => {
                let request = self.plan.requests().iter().find(|request| self.name(request.id) == name);
                request.and_then(|request| self.latency_ns(request)).ok_or(format!("no endpoint '{name}' is admitted"))
            }
            _ => Err("it has either 'us' or 'endpoint'".to_owned()),
        }
    }

    /// The time until a budget is through at the latest; `None` if it is not admitted.
    fn latency_ns(&self, request: &EndpointRequest) -> Option<u64> {
        let bound = self.plan.asynchronous().iter().find(|bound| bound.id == request.id);
        bound.map(|bound| bound.latency_ns).or(self.plan.periodic_latency_ns(request.id))
    }

    fn end_to_end_ns(&self) -> Option<u64> {
        let sum = self
            .stages
            .iter()
            .fold(0, |sum: u64, (_, times, ns)| sum.saturating_add(ns.saturating_mul((*times).into())));
        (!self.stages.is_empty()).then_some(sum)
    }

    fn of(bus: &'a BusPlanFile, mode: ScheduleModeName) -> Result<Self, (FailureKind, String)> {
        let speed = match bus.speed {
            SpeedWord::Low => BusSpeed::Low,
            SpeedWord::Full => BusSpeed::Full,
            SpeedWord::High => BusSpeed::High,
            SpeedWord::Super => BusSpeed::Super,
        };
        let requests = (0..).zip(&bus.endpoint).map(|(id, endpoint)| {
            request(id, speed, endpoint).map_err(|why| (FailureKind::Local, format!("{}: {why}", endpoint.name)))
        });
        let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
        let options = ScheduleOptions { mode: mode.scheduling(), ..ScheduleOptions::default() };
        // As printed in the paper, the algorithm is plain first-fit.
        let first =
            if mode == ScheduleModeName::Printed { ScheduleOptions { work_max: 0, ..options } } else { options };
        let plan = plan(&requests, first).map_err(|refusal| match plan(&requests, options) {
            Ok(_) => (FailureKind::Refused, FIRST_FIT.to_owned()),
            Err(searched) => {
                let (kind, why) = refused(&searched, &bus.endpoint, speed, mode);
                let is_place = matches!(refusal, ScheduleRefusal::High { .. });
                let meets = (is_place && mode == ScheduleModeName::Printed).then(|| whole_quanta(&requests));
                (kind, why + &meets.flatten().unwrap_or_default())
            }
        })?;
        Ok(Self { endpoints: &bus.endpoint, mode, plan, stages: Vec::new() })
    }

    fn name(&self, id: u32) -> &str {
        &self.endpoints[id as usize].name
    }

    fn to_text(&self) -> String {
        let (plan, mut text) = (&self.plan, String::new());
        let interval = interval_ps(plan.speed());
        let unit = unit(plan.speed());
        let _ = writeln!(
            text,
            "{:?} speed, {unit}s of {} us; everything repeats after {} of them",
            plan.speed(),
            us_from_ps(interval),
            plan.cycle()
        );
        let _ = writeln!(
            text,
            "t_A, kept of each {unit} for bulk and control: {} us ({})\n",
            us_from_ps(plan.reservation_ps()),
            percent(plan.reservation_ps(), interval)
        );
        let heads = [
            ["endpoint", ""],
            ["bytes a", "period"],
            ["period", unit],
            ["rate", "Mb/s"],
            ["share", "of bus"],
            ["first", "in"],
            ["then", "every"],
            ["packets", "each"],
            ["done in", unit],
            ["done in", "us"],
        ];
        let rows: Vec<_> = plan.requests().iter().map(|request| self.row(request)).collect();
        write_columns(&mut text, &heads, &rows);
        self.write_totals(&mut text);
        text.push('\n');
        match self.mode {
            ScheduleModeName::Controller => self.write_meeting(&mut text),
            _ => self.write_timetable(&mut text),
        }
        for rejected in plan.rejected() {
            let missing = us_from_ps(rejected.missing_ps);
            let name = self.name(rejected.id);
            let is_periodic = plan.requests().iter().any(|r| r.id == rejected.id && r.shape.is_periodic());
            let is_placed = is_periodic && self.mode != ScheduleModeName::Controller;
            let (which, room) = if is_placed { ("in the", " with most room") } else { ("of each", "") };
            let lack = format!("{name}: not admitted (low criticality): {missing} us are missing {which} {unit}{room}");
            write_wrapped(&mut text, "", &lack);
        }
        if let Some(ns) = self.end_to_end_ns() {
            let stages = self.stages.iter().map(|(name, times, ns)| format!("{times} x {name} {}", thousandths(*ns)));
            let stages = stages.collect::<Vec<_>>().join(", ");
            write_wrapped(&mut text, "", &format!("end to end: {} us at the worst: {stages}", thousandths(ns)));
        }
        if plan.is_searched() {
            text.push_str("first-fit found no such schedule, a search did\n");
        }
        let note = match self.mode {
            ScheduleModeName::Controller => return text,
            ScheduleModeName::Sound => "a USB controller chooses the places itself, and may miss these",
            _ => "packet boundaries are left out as in the paper: what is admitted here may miss",
        };
        write_wrapped(&mut text, "note: ", &format!("{note}; --mode controller does not"));
        text
    }

    /// Writes the totals of each kind of endpoint, as in Table 5 of the paper.
    fn write_totals(&self, text: &mut String) {
        for (what, is_periodic) in [("isochronous and interrupt", true), ("bulk and control", false)] {
            let all = self.plan.requests().iter().filter(|r| r.shape.is_periodic() == is_periodic);
            let admitted: Vec<_> = all.filter(|request| self.plan.has(request.id)).collect();
            if admitted.len() > 1 {
                let bits: u64 = admitted.iter().map(|request| request.throughput_bits_per_s()).sum();
                let mode = self.mode.scheduling();
                let ppm: u64 = admitted.iter().map(|request| u64::from(request.utilization_ppm(mode))).sum();
                let (rate, share) = (thousandths(bits / 1000), percent(ppm, 1_000_000));
                let _ = writeln!(text, "total of {what}: {rate} Mb/s, {share} of the bus");
            }
        }
    }

    /// Writes what the periodic endpoints take of an interval if all of them meet there.
    fn write_meeting(&self, text: &mut String) {
        let plan = &self.plan;
        let all_ps: u64 = plan.placements().iter().map(|placement| placement.time_ps).sum();
        if all_ps > 0 {
            let unit = unit(plan.speed());
            let meeting = format!(
                "The controller chooses in which {unit}s of its period an endpoint is served. If all meet in one, they take \
                 {} us of it, and {} us are free.",
                us_from_ps(all_ps),
                thousandths(plan.free_ps(0) / 1000)
            );
            write_wrapped(text, "", &meeting);
        }
    }

    fn row(&self, request: &EndpointRequest) -> Vec<String> {
        let plan = &self.plan;
        let mut row = vec![
            self.name(request.id).to_owned(),
            request.budget_bytes.to_string(),
            request.period.to_string(),
            thousandths(request.throughput_bits_per_s() / 1000),
            percent(request.utilization_ppm(self.mode.scheduling()).into(), 1_000_000),
        ];
        let bound = plan.asynchronous().iter().find(|bound| bound.id == request.id);
        let rest = match (plan.placement(request.id), bound) {
            (Some(placement), _) => {
                let latency_ns = plan.periodic_latency_ns(request.id).unwrap_or(0);
                let (start, every) = match self.mode {
                    ScheduleModeName::Controller => ("any".into(), request.period.to_string()),
                    _ => (placement.start.to_string(), placement.every.to_string()),
                };
                [start, every, self.packets(&placement), request.period.to_string(), thousandths(latency_ns)]
            }
            (_, Some(bound)) => {
                let passes = format!("{} passes", bound.passes);
                ["-".into(), "-".into(), passes, bound.intervals.to_string(), thousandths(bound.latency_ns)]
            }
            _ => ["refused".into(), "-".into(), "-".into(), "-".into(), "-".into()],
        };
        row.extend(rest);
        row
    }

    /// The packets of a place in each of its intervals. Where a quantum is divided like a fluid that is no whole
    /// number; it is rounded down, so that no interval shows more than it holds.
    fn packets(&self, placement: &EndpointPlacement) -> String {
        match self.mode {
            ScheduleModeName::Spread => {
                let tenths = placement.time_ps * 10 / self.packet_ps(placement.id).max(1);
                format!("{}.{}", tenths / 10, tenths % 10)
            }
            _ => placement.packets.to_string(),
        }
    }

    fn packet_ps(&self, id: u32) -> u64 {
        let mode = self.mode.scheduling();
        self.plan.requests().iter().find(|request| request.id == id).map_or(0, |request| mode.packet_ps(&request.shape))
    }

    /// Writes a row for each endpoint and a column for each interval: how many packets the endpoint sends in it.
    fn write_timetable(&self, text: &mut String) {
        const COLUMNS_MAX: u32 = 16;
        let (plan, shown) = (&self.plan, self.plan.cycle().min(COLUMNS_MAX));
        let mut heads = vec![["packets in", unit(plan.speed())]];
        let numbers: Vec<_> = (0..shown).map(|interval| interval.to_string()).collect();
        heads.extend(numbers.iter().map(|number| ["", number.as_str()]));
        let mut rows: Vec<Vec<String>> = Vec::new();
        for placement in plan.placements() {
            let cell = |interval| {
                if interval % placement.every == placement.start { self.packets(placement) } else { ".".into() }
            };
            rows.push([self.name(placement.id).to_owned()].into_iter().chain((0..shown).map(cell)).collect());
        }
        let free = (0..shown).map(|interval| (plan.free_ps(interval) / 1_000_000).to_string());
        rows.push(["free us".to_owned()].into_iter().chain(free).collect());
        write_columns(text, &heads, &rows);
        if shown < plan.cycle() {
            let _ = writeln!(text, "(the first {shown} of {})", plan.cycle());
        }
        text.push('\n');
    }

    fn to_json(&self) -> Value {
        let plan = &self.plan;
        let endpoints = plan.requests().iter().map(|request| {
            let answer = plan.placement(request.id).map(|placement| {
                json!({"start": placement.start, "every": placement.every, "packets": placement.packets, "time_ps": placement.time_ps})
            });
            let bound = plan.asynchronous().iter().find(|bound| bound.id == request.id);
            let rejected = plan.rejected().iter().find(|rejected| rejected.id == request.id);
            json!({
                "name": self.name(request.id),
                "is_admitted": rejected.is_none(),
                "budget_bytes": request.budget_bytes,
                "period": request.period,
                "bits_per_s": request.throughput_bits_per_s(),
                "share_ppm": request.utilization_ppm(self.mode.scheduling()),
                "packet_ps": self.mode.scheduling().packet_ps(&request.shape),
                "place": answer,
                "passes": bound.map(|bound| bound.passes),
                "intervals": bound.map(|bound| bound.intervals),
                "latency_ns": self.latency_ns(request),
                "missing_ps": rejected.map(|rejected| rejected.missing_ps),
            })
        });
        json!({
            "mode": self.mode.to_possible_value().map(|mode| mode.get_name().to_owned()),
            "interval_ps": interval_ps(plan.speed()),
            "cycle": plan.cycle(),
            "reservation_ps": plan.reservation_ps(),
            "reservation_max_ps": plan.reservation_max_ps(),
            "is_searched": plan.is_searched(),
            "end_to_end_ns": self.end_to_end_ns(),
            "endpoints": endpoints.collect::<Vec<_>>(),
            "free_ps": (0..plan.cycle()).map(|interval| plan.free_ps(interval)).collect::<Vec<_>>(),
        })
    }

    /// The schedule as a picture.
    fn to_svg(&self) -> String {
        let plan = &self.plan;
        let drawings = plan.placements().iter().map(|placement| EndpointDrawing {
            name_escaped: escaped(self.name(placement.id)),
            start: placement.start,
            every: placement.every,
            time_ps: placement.time_ps,
        });
        let drawing = BusDrawing {
            interval_ps: interval_ps(plan.speed()),
            asynchronous_ps: plan.reservation_ps(),
            cycle: plan.cycle(),
            unit: unit(plan.speed()),
            drawings: drawings.collect(),
        };
        let SvgPicture { elements, width, height } = drawing.draw();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"10\">\n{elements}</svg>\n"
        )
    }
}

fn request(id: u32, speed: BusSpeed, endpoint: &PlannedEndpoint) -> Result<EndpointRequest, String> {
    let kind = match endpoint.kind {
        TransferTypeWord::Control => TransferKind::Control,
        TransferTypeWord::Isochronous => TransferKind::Isochronous,
        TransferTypeWord::Interrupt => TransferKind::Interrupt,
        TransferTypeWord::Bulk => TransferKind::Bulk,
    };
    let direction = match endpoint.direction {
        DirectionWord::In => BusDirection::In,
        DirectionWord::Out => BusDirection::Out,
    };
    // The file counts from one, descriptors from zero.
    let from_zero = |count: u32, what| count.checked_sub(1).ok_or(format!("{what} is at least 1"));
    let burst = from_zero(endpoint.burst_packets, "burst_packets")?;
    let mult = from_zero(endpoint.bursts, "bursts")?;
    let shape =
        PacketShape::new(speed, kind, direction, endpoint.packet_bytes, burst, mult).map_err(|e| e.to_string())?;
    let criticality = match endpoint.criticality {
        CriticalityWord::High => EndpointCriticality::High,
        CriticalityWord::Low => EndpointCriticality::Low,
    };
    let budget_bytes = endpoint.budget_bytes.unwrap_or(shape.quantum_bytes());
    let request = EndpointRequest { id, shape, budget_bytes, period: endpoint.period, criticality };
    request.check().map_err(|why| match why {
        EndpointRequestError::PeriodNotPowerOfTwo { shorter, .. } => format!("{why}; say 'period = {shorter}'"),
        why => why.to_string(),
    })?;
    Ok(request)
}

/// A refusal in the terms of the file: which party has to act, what is missing, what to change.
fn refused(
    refusal: &ScheduleRefusal,
    endpoints: &[PlannedEndpoint],
    speed: BusSpeed,
    mode: ScheduleModeName,
) -> (FailureKind, String) {
    let name = |id: &u32| endpoints.get(*id as usize).map_or("", |endpoint| endpoint.name.as_str());
    let unit = unit(speed);
    match refusal {
        ScheduleRefusal::Asynchronous { id, needed_ps, available_ps } => {
            let missing = us_from_ps(needed_ps.saturating_sub(*available_ps));
            let message = format!(
                "{} is not admitted: bulk and control need {} us of each {unit}, {} us are left, {missing} us are missing; \
                 give it a longer period or a smaller budget",
                name(id),
                us_from_ps(*needed_ps),
                us_from_ps(*available_ps)
            );
            (FailureKind::Refused, message)
        }
        ScheduleRefusal::High { id, missing_ps, .. } if mode == ScheduleModeName::Controller => {
            let message = format!(
                "{} is not admitted: a controller may serve all in one {unit}, in which {} us are missing; \
                 give others 'criticality = \"low\"' or fewer packets",
                name(id),
                us_from_ps(*missing_ps)
            );
            (FailureKind::Refused, message)
        }
        ScheduleRefusal::High { id, missing_ps, is_proven } => {
            let hedge = if *is_proven { "" } else { " (not every arrangement was tried)" };
            let message = format!(
                "{} is not admitted: no {unit} has room for it, {} us are missing in the best{hedge}; \
                 give others 'criticality = \"low\"' or a longer period",
                name(id),
                us_from_ps(*missing_ps)
            );
            (FailureKind::Refused, message)
        }
        ScheduleRefusal::Invalid { id, why } => (FailureKind::Local, format!("{}: {why}", name(id))),
        ScheduleRefusal::Count { .. } => (FailureKind::Local, refusal.to_string()),
    }
}

fn unit(speed: BusSpeed) -> &'static str {
    if matches!(speed, BusSpeed::Low | BusSpeed::Full) { "frame" } else { "microframe" }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 5 of "Real-Time USB Networking and Device I/O" (2023), with bulk endpoints of `budget` each `period`.
    fn table_5(budget: u32, period: u32) -> BusPlanFile {
        let mut text = "speed = \"super\"\n".to_owned();
        for (name, criticality, period) in [("i1", "high", 1), ("i2", "low", 2), ("i3", "low", 4), ("i4", "low", 8)] {
            let _ = writeln!(
                text,
                "[[endpoint]]\nname = \"{name}\"\nkind = \"isochronous\"\npacket_bytes = 1024\nburst_packets = 11\n\
                 bursts = 3\nperiod = {period}\ncriticality = \"{criticality}\""
            );
        }
        for name in ["b1", "b2", "b3", "b4"] {
            let _ = writeln!(
                text,
                "[[endpoint]]\nname = \"{name}\"\nkind = \"bulk\"\npacket_bytes = 1024\nbudget_bytes = {budget}\n\
                 period = {period}"
            );
        }
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn scenario_1_of_the_paper_is_drawn_and_scenario_3_says_what_is_missing() {
        let bus = table_5(4096, 8);
        let text = SchedulePlan::of(&bus, ScheduleModeName::Sound).unwrap().to_text();
        assert!(text.contains("t_A, kept of each microframe for bulk and control: 12.500 us (10.00%)"), "{text}");
        assert!(text.contains("2162.688  45.43%"), "{text}");
        let line = |name: &str| text.lines().filter(|line| line.trim_start().starts_with(name)).nth(1).map(str::trim);
        assert_eq!(
            line("i2").map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).as_deref(),
            Some("i2 17 17 17 17 17 17 17 17")
        );
        let bus = table_5(8192, 1);
        let planned = SchedulePlan::of(&bus, ScheduleModeName::Sound).unwrap();
        let (text, json) = (planned.to_text(), planned.to_json());
        assert!(text.contains("i2: not admitted (low criticality): 17.949 us are missing"), "{text}");
        let admitted = json["endpoints"].as_array().unwrap().iter().map(|e| e["is_admitted"].as_bool().unwrap());
        assert_eq!(admitted.collect::<Vec<_>>(), [true, false, false, true, true, true, true, true]);
        assert_eq!(json["endpoints"][1]["missing_ps"], 17_948_800);
        assert_eq!(json["endpoints"][4]["latency_ns"], 125_000);
        let svg = planned.to_svg();
        assert_eq!(svg.matches("<title>i1</title>").count(), 8);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn spread_timetable_shows_no_more_packets_than_a_microframe_holds() {
        let bus = table_5(4096, 8);
        let planned = SchedulePlan::of(&bus, ScheduleModeName::Spread).unwrap();
        let text = planned.to_text();
        let cells = |name: &str| {
            let line = text.lines().filter(|line| line.trim_start().starts_with(name)).nth(1).unwrap();
            line.split_whitespace().skip(1).map(|cell| cell.parse::<f64>().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((cells("i1")[0], cells("i2")[0]), (33.0, 16.5), "{text}");
        let packets: Vec<f64> =
            (0..8).map(|at| ["i1", "i2", "i3", "i4"].map(|name| cells(name)[at]).iter().sum()).collect();
        assert!(packets.iter().all(|&packets| packets * 1.7208 <= 125.0 - 8.891), "{packets:?} {text}");
    }

    fn example(name: &str) -> Value {
        let example = super::super::examples::find(ExampleKind::Schedule, name, false).unwrap().unwrap();
        let bus: BusPlanFile = file::parse(name, example.text).unwrap();
        let (mode, reservation) = (bus.mode.unwrap_or_default(), bus.reservation.unwrap_or_default());
        let planned = SchedulePlan::reserving(&bus, mode, reservation).unwrap();
        assert!(planned.to_text().lines().all(|line| line.len() <= 100), "{}", planned.to_text());
        planned.to_json()
    }

    /// Section 6.1.1 of the same paper, Tables 2 and 3: c of Equation 6, and the end-to-end latency of Equation 10.
    #[test]
    fn examples_have_the_latencies_of_table_2() {
        for (scenario, intervals, end_to_end_us) in
            [(1, 1, 4000), (2, 2, 4500), (3, 4, 5500), (4, 8, 7500), (5, 16, 11_500)]
        {
            let json = example(&format!("table-2-{scenario}"));
            let bulk: Vec<_> =
                json["endpoints"].as_array().unwrap()[2..].iter().map(|b| b["intervals"].clone()).collect();
            assert_eq!(bulk, [intervals; 4], "scenario {scenario}");
            assert_eq!(json["end_to_end_ns"], end_to_end_us * 1000, "scenario {scenario}");
        }
    }

    /// Section 6.1.2, Table 5: shares in parts per million and rates in b/s (the paper rounds), and which cameras run.
    /// In scenario 2 the paper runs all four, for which the bus has no room (102 %).
    #[test]
    fn examples_have_the_shares_rates_and_cameras_of_table_5() {
        let cameras =
            [(454_291, 2_162_688_000_u64), (227_145, 1_081_344_000), (113_572, 540_672_000), (56_786, 270_336_000)];
        for (scenario, bulk, running) in [
            (1, (7113, 32_768_000), [true; 4]),
            (2, (42_681, 196_608_000), [true, true, true, false]),
            (3, (113_817, 524_288_000), [true, false, false, true]),
        ] {
            let json = example(&format!("table-5-{scenario}"));
            let endpoints = json["endpoints"].as_array().unwrap();
            let seen: Vec<_> = endpoints.iter().map(|e| (e["share_ppm"].clone(), e["bits_per_s"].clone())).collect();
            let paper: Vec<_> =
                cameras.into_iter().chain([bulk; 4]).map(|(ppm, bits)| (json!(ppm), json!(bits))).collect();
            assert_eq!(seen, paper, "scenario {scenario}");
            let admitted: Vec<_> = endpoints.iter().map(|e| e["is_admitted"] == true).collect();
            assert_eq!(admitted, [&running[..], &[true; 4]].concat(), "scenario {scenario}");
        }
    }

    #[test]
    fn low_bulk_endpoint_is_refused_alone_and_a_stage_must_be_possible() {
        let mut bus = table_5(8192, 1);
        bus.endpoint[7].criticality = CriticalityWord::Low;
        bus.endpoint[7].budget_bytes = Some(40_960);
        let text = SchedulePlan::of(&bus, ScheduleModeName::Sound).unwrap().to_text();
        assert!(
            text.contains("b4: not admitted (low criticality): ") && text.contains("us are missing of each"),
            "{text}"
        );
        let stage = |endpoint: Option<&str>, us| DelayTerm {
            name: "way".into(),
            us,
            endpoint: endpoint.map(str::to_owned),
            times: 1,
        };
        for (wrong, why) in [
            (stage(Some("b4"), None), "stage way: no endpoint 'b4' is admitted"),
            (stage(Some("b1"), Some(1)), "stage way: it has either 'us' or 'endpoint'"),
        ] {
            bus.stage = vec![wrong];
            let refusal = SchedulePlan::reserving(&bus, ScheduleModeName::Sound, ReservationName::Least).err().unwrap();
            assert_eq!(refusal, (FailureKind::Local, why.to_owned()));
        }
    }

    /// Table 2 of the same paper: c of Equation 6.
    #[test]
    fn all_that_cameras_leave_gives_the_intervals_of_table_2() {
        for (budget, period, intervals) in
            [(1024, 1, 1), (8192, 8, 2), (20_480, 20, 4), (40_960, 40, 8), (88_064, 86, 16)]
        {
            let mut bus = table_5(budget, period);
            bus.endpoint.drain(2..4);
            bus.endpoint[1].criticality = CriticalityWord::High;
            let planned = SchedulePlan::reserving(&bus, ScheduleModeName::Spread, ReservationName::Most).unwrap();
            assert!(
                planned.plan.asynchronous().iter().all(|bound| bound.intervals == intervals),
                "{}",
                planned.to_text()
            );
            assert_eq!(planned.plan.reservation_ps(), planned.plan.reservation_max_ps());
            assert_eq!(planned.plan.free_ps(0), 0);
        }
    }

    #[test]
    fn invalid_schedules_are_refused_with_what_to_type() {
        let refusal = |bus: &BusPlanFile, mode| SchedulePlan::of(bus, mode).err().unwrap();
        let (attribute, why) = refusal(&table_5(65_536, 1), ScheduleModeName::Sound);
        assert_eq!(attribute, FailureKind::Refused);
        assert!(why.contains("us are missing") && why.contains("longer period"), "{why}");
        let mut bus = table_5(4096, 8);
        bus.endpoint[1].period = 6;
        let (attribute, why) = refusal(&bus, ScheduleModeName::Sound);
        assert_eq!(attribute, FailureKind::Local);
        assert!(why.starts_with("i2: a period of 6 intervals is no power of two") && why.ends_with("say 'period = 4'"));
        bus.endpoint[1].period = 2;
        bus.endpoint[1].budget_bytes = Some(33_793);
        assert!(refusal(&bus, ScheduleModeName::Sound).1.ends_with("for such an endpoint, 1 too few"));
        bus.endpoint[1].budget_bytes = None;
        bus.endpoint[1].criticality = CriticalityWord::High;
        let (_, why) = refusal(&bus, ScheduleModeName::Controller);
        let missing =
            "i2 is not admitted: a controller may serve all in one microframe, in which 27.156 us are missing";
        assert!(why.starts_with(missing), "{why}");
        let (_, why) = refusal(&bus, ScheduleModeName::Printed);
        assert!(why.starts_with("i2 is not admitted: no microframe has room for it"), "{why}");
        // With two endpoints every arrangement was tried.
        assert!(!why.contains("not every arrangement"), "{why}");
        assert!(why.contains("together 113.573 us of at most 112.500"), "{why}");
    }

    #[test]
    fn printed_algorithms_refuse_the_papers_cameras_and_say_so() {
        for scenario in 1..=5 {
            let name = format!("table-2-{scenario}");
            let example = super::super::examples::find(ExampleKind::Schedule, &name, false).unwrap().unwrap();
            let bus: BusPlanFile = file::parse(&name, example.text).unwrap();
            let (kind, why) = SchedulePlan::of(&bus, ScheduleModeName::Printed).err().unwrap();
            assert_eq!(kind, FailureKind::Refused);
            assert!(why.contains("these are the two cameras that the paper itself runs"), "{why}");
            assert!(!why.contains("not every arrangement"), "{why}");
        }
    }

    /// What first-fit misses is not called impossible.
    #[test]
    fn printed_refusal_of_a_set_that_a_search_places_says_so() {
        let mut text = "speed = \"super\"\n".to_owned();
        // Of 65 packets in a microframe: 30 + 20 + 15 and 24 + 24 + 16 fit. First-fit puts 30 and 24 together.
        for (at, (burst, bursts)) in [(10, 3), (8, 3), (8, 3), (10, 2), (16, 1), (15, 1)].into_iter().enumerate() {
            let _ = writeln!(
                text,
                "[[endpoint]]\nname = \"i{at}\"\nkind = \"isochronous\"\npacket_bytes = 1024\n\
                 burst_packets = {burst}\nbursts = {bursts}\nperiod = 2"
            );
        }
        let bus: BusPlanFile = toml::from_str(&text).unwrap();
        assert_eq!(SchedulePlan::of(&bus, ScheduleModeName::Printed).err().unwrap().1, FIRST_FIT);
    }

    #[test]
    fn default_mode_counts_the_wire_and_leaves_places_to_the_controller() {
        let bus = table_5(4096, 8);
        let planned = SchedulePlan::of(&bus, ScheduleModeName::default()).unwrap();
        let (text, json) = (planned.to_text(), planned.to_json());
        assert_eq!(json["mode"], "controller");
        assert!(text.contains("take 69.828 us of it, and 42.672 us are free"), "{text}");
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(words.windows(4).any(|words| words == ["55.86%", "any", "1", "33"]), "{text}");
        assert!(!text.contains("packets in\n"), "{text}");
        // Four bulk endpoints of 16 packets each microframe are 524 MB/s, more than the wire carries in one direction.
        let mut full = table_5(16_384, 1);
        full.endpoint.drain(..4);
        assert!(SchedulePlan::of(&full, ScheduleModeName::Sound).is_ok());
        let (_, why) = SchedulePlan::of(&full, ScheduleModeName::Controller).err().unwrap();
        assert!(why.contains("bulk and control need 137.216 us of each microframe"), "{why}");
    }

    #[test]
    fn totals_are_those_of_table_5() {
        let totals = |budget, period| {
            let bus = table_5(budget, period);
            let text = SchedulePlan::of(&bus, ScheduleModeName::Sound).unwrap().to_text();
            text.lines().filter(|line| line.starts_with("total of ")).map(str::to_owned).collect::<Vec<_>>()
        };
        let first = totals(4096, 8);
        assert_eq!(first[0], "total of isochronous and interrupt: 4055.040 Mb/s, 85.18% of the bus");
        assert_eq!(first[1], "total of bulk and control: 131.072 Mb/s, 2.85% of the bus");
        assert_eq!(totals(8192, 1)[1], "total of bulk and control: 2097.152 Mb/s, 45.53% of the bus");
    }
}
