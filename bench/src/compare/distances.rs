//! The same from far away: a disk, a small URB, and the time to attach.
//!
//! The distance is a relay between both ends that lets every byte wait, for farbus and for its peers alike.

use std::time::Duration;

use anyhow::Result;

use super::{
    page::{PageRow, PageTable},
    rivals::NbdRival,
    run::ComparisonRun,
};
use crate::{
    against::{
        rows::{DeviceLoad, DiskLoad, StartGauge, WayOfUse},
        side::{ComparedProgram, DistantUse},
    },
    benchmarks::database::ScratchFolder,
    late::late,
    load::{LoadLimit, LoadTally, UsbipLoadClient},
    peers::{PeerServer, PeerServerKind, inside::UsbfsWorkload, nbdkit::BlockVerb},
    report::figure,
    svg::{ChartLine, ChartPanel, LineChart},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const ROUND_TRIPS_MS: [u64; 5] = [0, 1, 10, 50, 100];
const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
const REPORT_BYTES: usize = 64;
const READ: DiskLoad = DiskLoad { verb: BlockVerb::Read, bytes: LARGE, depth: 1, is_random: false };
const WRITE: DiskLoad = DiskLoad { verb: BlockVerb::Write, ..READ };
const RANDOM: DiskLoad = DiskLoad { bytes: SMALL, is_random: true, ..READ };
/// What is under way grows first, in so many round trips and this much time.
const LEAD_IN_ROUND_TRIPS: u32 = 10;
const LEAD_IN: Duration = Duration::from_millis(250);

/// What is measured at each distance: the name, the unit, and whether farbus or the peer.
const ROWS: [(&str, &str, &str); 13] = [
    ("disk read 1 MiB × 1 in order", "MB/s", "farbus"),
    ("", "MB/s", "nbdkit TLS"),
    ("disk write 1 MiB × 1 in order", "MB/s", "farbus, --cache writeback"),
    ("", "MB/s", "nbdkit TLS"),
    ("disk read 4 KiB × 1 at random, median", "ms", "farbus"),
    ("", "ms", "nbdkit TLS"),
    ("URB IN 64 B × 1, median", "ms", "farbus run, TLS"),
    ("", "ms", "farbus, plain USB/IP"),
    ("", "ms", "usbip crate"),
    ("a disk attached, from the command on", "ms", "farbus attach"),
    ("", "ms", "nbdkit TLS"),
    ("a program has its device, from the command on", "ms", "farbus run"),
    ("a device imported and configured by a client that runs", "ms", "usbip crate"),
];

pub fn measure(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
) -> Result<(PageTable, String)> {
    let mut columns: Vec<[Option<f64>; ROWS.len()]> = Vec::new();
    for ms in ROUND_TRIPS_MS {
        run.step(&format!("from {ms} ms away"));
        columns.push(column(run, pair, folder, with_nbdkit, Duration::from_millis(ms))?);
    }
    let headings = ["what", "unit", "who"].map(str::to_owned).into_iter();
    let rows = ROWS.iter().enumerate().filter(|(at, _)| columns.iter().any(|column| column[*at].is_some()));
    let rows = rows.map(|(at, (what, unit, who))| {
        let values = columns.iter().map(|column| column[at].map_or("–".to_owned(), figure));
        PageRow::new([*what, *unit, *who].map(str::to_owned).into_iter().chain(values).collect())
    });
    let table = PageTable {
        title: "From far away",
        note: "One request at a time, by the round trip of the way. Through a kernel, which is not measured here, a report of a \
               mouse takes half of it: farbus asks for it before the driver does."
            .to_owned(),
        headings: headings.chain(ROUND_TRIPS_MS.map(|ms| if ms == 0 { "near".into() } else { format!("{ms} ms") })).collect(),
        rows: rows.collect(),
    };
    Ok((table, chart(&columns).render()))
}

/// The values at one distance, in the order of [`ROWS`].
fn column(
    run: &ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
    round_trip: Duration,
) -> Result<[Option<f64>; ROWS.len()]> {
    let span = Duration::from_millis(if run.is_quick { 500 } else { 1500 });
    let each_way = round_trip / 2;
    let lead_in = LEAD_IN + LEAD_IN_ROUND_TRIPS * round_trip;
    let rate = |tally: LoadTally| Some(tally.bytes_per_second() / 1e6);
    let median = |tally: LoadTally| Some(tally.latency_us(50.0) / 1e3);
    let mut values = [None; ROWS.len()];

    let near = DistantUse { each_way, ..DistantUse::default() };
    let mut device = pair.begin_at(WayOfUse::Nbd, near)?;
    device.run(DeviceLoad::Disk(READ), lead_in)?;
    values[0] = rate(device.run(DeviceLoad::Disk(READ), span)?);
    values[4] = median(device.run(DeviceLoad::Disk(RANDOM), span)?);
    values[9] = Some(device.value(StartGauge::AttachTime)?);
    drop(device);
    let mut device = pair.begin_at(WayOfUse::Nbd, DistantUse { words: &["--cache", "writeback"], ..near })?;
    device.run(DeviceLoad::Disk(WRITE), lead_in)?;
    values[2] = rate(device.run(DeviceLoad::Disk(WRITE), span)?);
    drop(device);
    if with_nbdkit {
        let mut rival = NbdRival::encrypted(run.lab, folder, &pair.image.0, each_way)?;
        let mut client = rival.client()?;
        for (at, load) in [(1, READ), (3, WRITE)] {
            values[at] = rate(client.run(load.verb, load.bytes, load.depth, load.is_random, span)?);
        }
        values[5] = median(client.run(RANDOM.verb, RANDOM.bytes, RANDOM.depth, RANDOM.is_random, span)?);
        values[10] = Some(rival.attach_time.as_secs_f64() * 1e3);
    }

    let mut device = pair.begin_at(WayOfUse::Run, near)?;
    let small = UsbfsWorkload::Bulk(UsbipDirection::In, REPORT_BYTES, 1);
    values[6] = median(device.run(DeviceLoad::Program(small), span)?);
    values[11] = Some(device.value(StartGauge::AttachTime)?);
    drop(device);
    (values[7], _) = plain(&run.lab.farbus("zero")?, each_way, span)?;
    (values[8], values[12]) = plain(&run.lab.peer(PeerServerKind::Crate)?, each_way, span)?;
    Ok(values)
}

/// A small URB's median over plain USB/IP, and the time until it can be asked for; both ms.
fn plain(server: &PeerServer, each_way: Duration, span: Duration) -> Result<(Option<f64>, Option<f64>)> {
    let address = if each_way.is_zero() { server.address } else { late(server.address, each_way)? };
    let began = std::time::Instant::now();
    let mut client = UsbipLoadClient::attach(address, server.busid())?;
    let attached = began.elapsed().as_secs_f64() * 1e3;
    let transfer = TransferTemplate::bulk(UsbipDirection::In, REPORT_BYTES);
    let tally = client.run(&transfer, 1, LoadLimit::Elapsed(span))?;
    Ok((Some(tally.latency_us(50.0) / 1e3), Some(attached)))
}

fn chart(columns: &[[Option<f64>; ROWS.len()]]) -> LineChart {
    let line = |(at, name): (usize, &str)| ChartLine {
        name: name.to_owned(),
        points: ROUND_TRIPS_MS.iter().zip(columns).filter_map(|(&ms, column)| Some((ms as f64, column[at]?))).collect(),
    };
    let lines = [(0, "farbus, read"), (2, "farbus, write"), (1, "nbdkit, read"), (3, "nbdkit, write")].map(line);
    LineChart {
        title: "A disk far away, 1 MiB in order, one request at a time".into(),
        across: "round trip, ms".into(),
        panels: vec![ChartPanel {
            up: "MB/s".into(),
            is_logarithmic: true,
            lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
        }],
    }
}
