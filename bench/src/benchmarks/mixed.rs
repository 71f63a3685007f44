//! Streams of mixed criticality over a link that is narrowed and widened again (requirement R2): one is critical, three
//! give way in order.
//!
//! The exporter is a host behind a router and a shaped link. Each stream is a full-speed source's isochronous endpoint,
//! 256 bytes a millisecond; all share one bus. The benchmark counts what each delivers over time, and notes each report
//! to its user.

use std::{
    collections::VecDeque,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use farbus::{
    client::{ClientConfig, DeviceTarget as Exporter, ImporterClient},
    host::HostPort,
    importer::port::session::SessionPort,
    model::{EpAddr, IsoPacket, Payload, SetupPacket, Urb, UrbId, UrbStatus},
    reservation::ReservationRequest,
};

use super::database::{LineProcess, ScratchFolder};
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    net::{HERE, ShapedNetwork, THERE},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "mixed";
const WIDE_KBIT: u32 = 50_000;
/// Two and a half streams of 2 Mb/s, with their overhead.
const NARROW_KBIT: u32 = 6_000;
const ISO_IN: u8 = 0x83;
const PACKET_BYTES: u32 = 256;
/// Packets per request, and requests in flight: two seconds' worth.
const PACKETS: u32 = 8;
const DEPTH: usize = 256;
/// The order of the streams; the last is the critical one.
const STREAMS: [(&str, &str); 4] = [("zero", "low"), ("zero2", "low"), ("zero3", "low"), ("zero4", "high")];
const HIGH: usize = 3;
/// The time over which packets are counted for a point of the plot.
const SLICE_S: f64 = 0.5;
/// The limit for anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a stream has delivered, and the reports to its user, by the second.
#[derive(Default)]
struct StreamDelivery {
    packets: Vec<(f64, u32)>,
    missed: u64,
    reports: Vec<(f64, bool)>,
}

impl StreamDelivery {
    fn between(&self, from: f64, to: f64) -> u64 {
        let inside = self.packets.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, count)| u64::from(*count)).sum()
    }

    fn is_admitted(&self) -> bool {
        self.reports.last().is_some_and(|(_, is_admitted)| *is_admitted)
    }
}

type SharedDelivery = Mutex<StreamDelivery>;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has reservations");
    }
    let net = ShapedNetwork::create(WIDE_KBIT / 1000)?;
    let folder = ScratchFolder::new(NAME)?;
    let run = folder.folder("run")?;
    let mut command: Command = net.on_server(lab.farbus_program()?);
    command.arg("share").args(["zero,speed=full"; 4]).args(["--listen", &format!("{THERE}:0")]);
    command.args(["--reserve-high", &HERE.to_string()]);
    let mut share = LineProcess::start({
        command.env("XDG_RUNTIME_DIR", &run).env("FARBUS_STATE", folder.path_of("state"));
        command
    })?;
    let line = share.wait_for("listening on ")?;
    let address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();

    let brought: [SharedDelivery; 4] = Default::default();
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let moments = thread::scope(|scope| {
        let played = (|| {
            for (at, (device, criticality)) in STREAMS.into_iter().enumerate() {
                let exporter: Exporter = format!("{address}/{device}").parse().map_err(anyhow::Error::msg)?;
                let (shown, is_over) = (&brought[at], &is_over);
                scope.spawn(move || read(&exporter, criticality, shown, is_over, began));
                wait(|| look(shown).is_admitted()).with_context(|| format!("{device} is not admitted"))?;
            }
            play(&net, &brought, began, lab.quick)
        })();
        is_over.store(true, Ordering::Release);
        played
    })?;
    let brought = brought.map(|shown| shown.into_inner().unwrap_or_else(PoisonError::into_inner));
    lab.plot(NAME, &chart(&brought, &moments).render())?;
    findings(&brought, &moments)
}

/// The times of the steps, seconds.
struct NarrowingTimes {
    narrowed: f64,
    suspended: f64,
    widened: f64,
    resumed: f64,
    ended: f64,
}

fn play(net: &ShapedNetwork, brought: &[SharedDelivery; 4], began: Instant, is_quick: bool) -> Result<NarrowingTimes> {
    let now = || began.elapsed().as_secs_f64();
    let pause = Duration::from_secs(if is_quick { 3 } else { 10 });
    thread::sleep(pause);
    let narrowed = now();
    net.narrow(NARROW_KBIT)?;
    wait(|| !look(&brought[1]).is_admitted() && !look(&brought[2]).is_admitted()).with_context(|| {
        let packets = [0, 1, 2, 3].map(|at| look(&brought[at]).between(narrowed, now()));
        format!("the last two of low criticality give way; packets since the link is narrow: {packets:?}")
    })?;
    let suspended = now();
    thread::sleep(pause);
    let widened = now();
    net.narrow(WIDE_KBIT)?;
    wait(|| brought.iter().all(|shown| look(shown).is_admitted())).context("all are admitted again")?;
    let resumed = now();
    thread::sleep(pause);
    Ok(NarrowingTimes { narrowed, suspended, widened, resumed, ended: now() })
}

fn look(shown: &SharedDelivery) -> std::sync::MutexGuard<'_, StreamDelivery> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(is_so: impl Fn() -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < until, "not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reads a stream until `is_over`.
fn read(exporter: &Exporter, criticality: &str, shown: &SharedDelivery, is_over: &AtomicBool, began: Instant) {
    let ReservationRequest(wished) =
        format!("bytes={PACKET_BYTES},period=1,criticality={criticality}").parse().expect("it is one");
    let config =
        ClientConfig { grace: Some(Duration::from_secs(20)), reservation: Some(wished), ..ClientConfig::default() };
    let linked = match ImporterClient::new(config).session(exporter, Duration::ZERO) {
        Ok(linked) => linked.expect("a reservation goes with a session"),
        // The main thread learns that the stream is not admitted.
        Err(error) => return eprintln!("{error}"),
    };
    let status = linked.status();
    let mut port = SessionPort::new(linked);
    port.submit(Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty));
    if !matches!(port.wait(None), Ok(Some(_))) {
        return;
    }
    let (mut id, mut pending, mut expected, mut was_admitted) = (1, VecDeque::new(), None, None);
    while !(is_over.load(Ordering::Acquire) && pending.is_empty()) {
        while pending.len() < DEPTH && !is_over.load(Ordering::Acquire) {
            let mut urb = Urb::data_in(UrbId(id), EpAddr::from_byte(ISO_IN), PACKETS * PACKET_BYTES);
            let packet = |at| IsoPacket { offset: at * PACKET_BYTES, length: PACKET_BYTES, ..IsoPacket::default() };
            urb.iso = (0..PACKETS).map(packet).collect();
            (urb.flags.iso_asap, urb.interval) = (true, 1);
            port.submit(urb);
            pending.push_back(id);
            id += 1;
        }
        let is_admitted = status.reserved().map(|reserved| format!("{:?}", reserved.state) == "Admitted");
        if let Some(now) = is_admitted.filter(|_| is_admitted != was_admitted) {
            look(shown).reports.push((began.elapsed().as_secs_f64(), now));
            was_admitted = is_admitted;
        }
        let done = match port.wait(Some(port.now() + Duration::from_millis(50))) {
            Ok(done) => done,
            Err(error) => return eprintln!("{error}"),
        };
        if is_over.load(Ordering::Acquire) {
            pending.iter().for_each(|&id| port.cancel(UrbId(id)));
        }
        let Some(done) = done else { continue };
        pending.retain(|&id| id != done.id.0);
        if done.iso.is_empty() || done.status != UrbStatus::Ok {
            continue;
        }
        let is_whole = |packet: &&IsoPacket| packet.status == UrbStatus::Ok && packet.actual == PACKET_BYTES;
        let whole = done.iso.iter().filter(is_whole).count() as u32;
        // The device counts its frames: a gap between two requests is data that was not requested in time.
        let gap = expected.map_or(0, |expected: u32| done.start_frame.wrapping_sub(expected));
        expected = Some(done.start_frame.wrapping_add(PACKETS));
        let mut brought = look(shown);
        brought.missed += u64::from(PACKETS - whole) + u64::from(gap);
        brought.packets.push((began.elapsed().as_secs_f64(), whole));
    }
}

fn findings(brought: &[StreamDelivery; 4], moments: &NarrowingTimes) -> Result<Vec<BenchmarkFinding>> {
    let NarrowingTimes { narrowed, suspended, widened, resumed, .. } = *moments;
    let span = widened - narrowed;
    let absolute = |what: &str, value: f64, unit, target| {
        BenchmarkFinding::absolute(
            NAME,
            what.to_owned(),
            MeasuredQuantity::new(SampleSpread::once(value), unit),
            target,
        )
    };
    let rate = |at: usize| brought[at].between(narrowed, widened) as f64 / span;
    let passed = STREAMS.iter().enumerate().map(|(at, (name, criticality))| {
        let count = brought[at].between(narrowed, widened);
        format!("{name} ({criticality}): {count} packets, {} missed", brought[at].missed)
    });
    let detail = format!("of {span:.1} s of {NARROW_KBIT} kbit/s: {}", passed.collect::<Vec<_>>().join("; "));
    let is_in_order = rate(0) > rate(1).max(rate(2));
    Ok(vec![
        absolute(
            "packets missed by the stream that matters",
            brought[HIGH].missed as f64,
            "",
            SpeedTarget::AtMost(0.0),
        )
        .with_detail(detail),
        // When the narrow phase ends, the link's queue holds a fifth of a second that has not arrived.
        absolute("what it brings while the link is narrow", rate(HIGH), "packets/s", SpeedTarget::AtLeast(950.0)),
        absolute("the first of low criticality there", rate(0), "packets/s", SpeedTarget::Context),
        absolute("the second", rate(1), "packets/s", SpeedTarget::Context),
        absolute("the third", rate(2), "packets/s", SpeedTarget::Context),
        absolute("out of their order", f64::from(u8::from(!is_in_order)), "", SpeedTarget::AtMost(0.0)),
        absolute("until two have given way", suspended - narrowed, "s", SpeedTarget::Context),
        absolute("until all run again on the wide link", resumed - widened, "s", SpeedTarget::Context),
    ])
}

fn chart(brought: &[StreamDelivery; 4], moments: &NarrowingTimes) -> LineChart {
    let slices = (moments.ended / SLICE_S) as usize;
    let mut lines: Vec<ChartLine> = STREAMS
        .iter()
        .zip(brought)
        .map(|((name, criticality), brought)| {
            let rate = |slice: usize| {
                let from = slice as f64 * SLICE_S;
                (from + SLICE_S / 2.0, brought.between(from, from + SLICE_S) as f64 / SLICE_S)
            };
            ChartLine { name: format!("{name}, {criticality}"), points: (0..slices).map(rate).collect() }
        })
        .collect();
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate).fold(1.0, f64::max);
    let NarrowingTimes { narrowed, widened, ended, .. } = *moments;
    let points = vec![(narrowed, 0.0), (narrowed, most), (widened, most), (widened, 0.0)];
    lines.push(ChartLine { name: format!("link of {} Mbit/s", NARROW_KBIT / 1000), points });
    // One step per stream: admitted is up.
    let stood = STREAMS.iter().zip(brought).enumerate().map(|(at, ((name, _), brought))| {
        let height = |is_admitted: bool| at as f64 + if is_admitted { 0.8 } else { 0.1 };
        let mut points: Vec<(f64, f64)> = Vec::new();
        for &(when, is_admitted) in &brought.reports {
            points.extend(points.last().map(|&(_, before)| (when, before)));
            points.push((when, height(is_admitted)));
        }
        points.extend(points.last().map(|&(_, last)| (ended, last)));
        ChartLine { name: (*name).to_owned(), points }
    });
    LineChart {
        title: "Four streams on one bus and one link; the link is narrowed, and widened again".into(),
        across: "seconds".into(),
        panels: vec![
            ChartPanel { up: "packets/s".into(), is_logarithmic: false, lines },
            ChartPanel { up: "suspended (low), admitted (high)".into(), is_logarithmic: false, lines: stood.collect() },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_time_and_in_order_are_no_miss() {
        let brought = [1000.0, 300.0, 300.0, 1000.0].map(|rate: f64| {
            let packets = (0..300).map(|tenth| (f64::from(tenth) / 10.0, (rate / 10.0) as u32)).collect();
            StreamDelivery { packets, missed: 0, reports: vec![(0.0, true), (12.0, rate > 500.0), (22.0, true)] }
        });
        let moments = NarrowingTimes { narrowed: 10.0, suspended: 12.0, widened: 20.0, resumed: 25.0, ended: 30.0 };
        let found = findings(&brought, &moments).unwrap();
        assert!(!found.iter().any(BenchmarkFinding::missed));
        let plot = chart(&brought, &moments).render();
        assert!(plot.contains("zero4, high") && plot.contains("link of 6 Mbit/s"));
    }
}
