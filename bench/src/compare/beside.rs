//! farbus and its peers in turns: URBs and disks, nothing between both ends but this machine.

use std::time::Duration;

use anyhow::Result;

use super::{
    findings::MeasuredPath,
    page::PageRow,
    rivals::{NBD_SERVER, NbdRival, RivalClient},
    roofline::{DATAGRAM_BYTES, PathNeeds},
    run::ComparisonRun,
};
use crate::{
    against::{
        rows::{DeviceLoad, DiskLoad, WayOfUse},
        side::ComparedProgram,
    },
    benchmarks::{database::ScratchFolder, naming::size},
    contest::{ContestResult, ContestServer},
    load::LoadLimit,
    peers::{
        PeerServerKind,
        nbdkit::BlockVerb,
        ping::PingClient,
        stream::StreamClient,
        tls::{self, TlsHostPair},
    },
    probe,
    report::figure,
    stats::SampleSpread,
    usbip::{TransferTemplate, UsbipDirection},
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bytes and URBs in flight.
pub const USB_LOADS: [(usize, usize); 3] = [(64, 1), (4 * KIB, 32), (128 * KIB, 32)];

const fn load(verb: BlockVerb, bytes: usize, depth: usize, is_random: bool) -> DiskLoad {
    DiskLoad { verb, bytes, depth, is_random }
}

pub const DISK_LOADS: [DiskLoad; 8] = [
    load(BlockVerb::Read, 128 * KIB, 1, false),
    load(BlockVerb::Read, MIB, 1, false),
    load(BlockVerb::Write, 128 * KIB, 1, false),
    load(BlockVerb::Write, MIB, 1, false),
    load(BlockVerb::Read, 4 * KIB, 1, true),
    load(BlockVerb::Write, 4 * KIB, 1, true),
    load(BlockVerb::Read, 4 * KIB, 32, true),
    load(BlockVerb::Write, 4 * KIB, 32, true),
];

/// A load that farbus and its peers carry in turns.
struct PeerRow {
    what: String,
    bytes: usize,
    needs: PathNeeds,
}

impl ComparisonRun<'_> {
    /// Holds a row; the first side is farbus.
    fn hold(&mut self, row: PeerRow, names: &[&str], sides: &mut [ContestServer<'_>]) -> Result<()> {
        let PeerRow { what, bytes, needs } = row;
        let is_small = bytes <= 4 * KIB;
        let rules = if is_small { self.rules } else { self.rules.with_long_slices() };
        let contest = ContestResult::hold(&rules, sides)?;
        let unit = if is_small { "k/s" } else { "MB/s" };
        let rates = |side| {
            contest.figures(side, |share| match is_small {
                true => share.tally.urbs_per_second() / 1e3,
                false => share.tally.bytes_per_second() / 1e6,
            })
        };
        let ours = rates(0);
        for (at, name) in names.iter().enumerate() {
            let theirs = rates(at + 1);
            let ratio = SampleSpread::ratio(&ours, &theirs);
            let star = if contest.disturbed { " *" } else { "" };
            let cells = vec![
                what.clone(),
                format!("{} {unit}", figure(ours.median())),
                (*name).to_owned(),
                format!("{} {unit}", figure(theirs.median())),
                format!("{:.2} ({:.2}..{:.2}){star}", ratio.median(), ratio.min(), ratio.max()),
            ];
            self.found.rows.push(PageRow { cells, bar: Some(ratio.median()) });
        }
        self.found.foreign.push(contest.foreign.median());
        let micros = 1e6 / contest.figures(0, |share| share.tally.urbs_per_second()).median();
        self.found.paths.push(MeasuredPath { what, needs, bytes, micros });
        Ok(())
    }
}

fn usb_needs(depth: usize, encrypted: f64) -> PathNeeds {
    match depth {
        1 => PathNeeds { wake_ups: 2.0, messages: 2.0, at_once: 1.0, ..PathNeeds::default() },
        _ => PathNeeds { messages: 2.0 / depth as f64, carried: 1.0, encrypted, at_once: 2.0, ..PathNeeds::default() },
    }
}

/// URBs of the source/sink device beside the `usbip` crate, and beside a loop that moves the same bytes.
pub fn usb(run: &mut ComparisonRun<'_>) -> Result<()> {
    let (ours, peer) = (run.lab.farbus("zero")?, run.lab.peer(PeerServerKind::Crate)?);
    let [ping, batching, bare] =
        [PeerServerKind::Ping, PeerServerKind::Ref, PeerServerKind::Stream].map(|kind| run.lab.peer(kind));
    let (ping, batching, bare) = (ping?, batching?, bare?);
    let (mut client, mut of_peer, mut of_batching) = (ours.attach()?, peer.attach()?, batching.attach()?);
    for (bytes, depth) in USB_LOADS {
        for direction in UsbipDirection::BOTH {
            let what = format!("USB {} {} × {depth}", direction.name(), size(bytes));
            run.step(&what);
            let transfer = TransferTemplate::bulk(direction, bytes);
            let row = PeerRow { what, bytes, needs: usb_needs(depth, 0.0) };
            let mut pings = PingClient::connect(ping.address, &transfer)?;
            let mut stream = StreamClient::connect(bare.address, direction, bytes)?;
            let (name, third) = match (bytes, depth) {
                (_, 1) => ("bare ping-pong", ContestServer::new(ping.pid(), |slice| pings.run(slice))),
                (..=4096, _) => (
                    "bare batching loop",
                    ContestServer::new(batching.pid(), |slice| {
                        of_batching.run(&transfer, depth, LoadLimit::Elapsed(slice))
                    }),
                ),
                _ => ("one bare TCP stream", ContestServer::new(bare.pid(), |slice| stream.run(slice))),
            };
            let mut sides = [
                ContestServer::of_processes(probe::family(ours.pid())?, |slice| {
                    client.run(&transfer, depth, LoadLimit::Elapsed(slice))
                }),
                ContestServer::new(peer.pid(), |slice| of_peer.run(&transfer, depth, LoadLimit::Elapsed(slice))),
                third,
            ];
            run.hold(row, &["usbip crate", name], &mut sides)?;
        }
    }
    Ok(())
}

/// URBs over a paired host's TLS beside one bare stream of rustls.
pub fn encrypted(run: &mut ComparisonRun<'_>) -> Result<()> {
    let hosts = TlsHostPair::pair(run.lab.farbus_program()?)?;
    let (ours, bare) = (hosts.share("zero", run.lab.placement)?, run.lab.peer(PeerServerKind::Tls)?);
    let mut client = hosts.attach(&ours)?;
    let (bytes, depth) = (128 * KIB, 32);
    for direction in UsbipDirection::BOTH {
        let what = format!("USB {} {} × {depth}, TLS 1.3", direction.name(), size(bytes));
        run.step(&what);
        let transfer = TransferTemplate::bulk(direction, bytes);
        let mut stream = StreamClient::over(tls::connect(bare.address)?, direction, bytes);
        let mut sides = [
            ContestServer::of_processes(probe::family(ours.pid())?, |slice| {
                client.run(&transfer, depth, LoadLimit::Elapsed(slice))
            }),
            ContestServer::new(bare.pid(), |slice| stream.run(slice)),
        ];
        run.hold(PeerRow { what, bytes, needs: usb_needs(depth, 1.0) }, &["one bare rustls stream"], &mut sides)?;
    }
    Ok(())
}

pub fn disk_name(load: DiskLoad) -> String {
    let order = if load.is_random { "at random" } else { "in order" };
    format!("disk {} {} × {} {order}", load.verb.name(), size(load.bytes), load.depth)
}

/// What a request to a disk needs that is a file in memory, through both ends and a Unix socket to its program.
fn disk_needs(load: DiskLoad) -> PathNeeds {
    // From the file or to it, and twice in the socket.
    let bytes = PathNeeds { copies: 3.0, carried: 1.0, encrypted: 1.0, at_once: 3.0, ..PathNeeds::default() };
    match load {
        // What is read ahead is here when it is asked for.
        DiskLoad { verb: BlockVerb::Read, is_random: false, .. } => PathNeeds { wake_ups: 2.0, messages: 2.0, ..bytes },
        DiskLoad { depth: 1, is_random: true, .. } => {
            PathNeeds { wake_ups: 4.0, messages: 4.0, calls: 1.0, at_once: 1.0, ..bytes }
        }
        // The parts of a large one overlap.
        DiskLoad { depth: 1, .. } => PathNeeds { wake_ups: 4.0, messages: 4.0, calls: 1.0, ..bytes },
        DiskLoad { depth, .. } => PathNeeds { messages: 4.0 / depth as f64, calls: 1.0, ..bytes },
    }
}

/// A paired host's disk by NBD, its session over TLS, beside other NBD servers over the same image.
pub fn disk(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
    with_nbd_server: bool,
) -> Result<()> {
    let image = &pair.image.0;
    for load in DISK_LOADS {
        run.step(&disk_name(load));
        let mut rivals = Vec::new();
        if with_nbdkit {
            rivals.extend(run.note("nbdkit, plain", NbdRival::plain(run.lab, folder, image)));
            rivals.extend(run.note("nbdkit TLS", NbdRival::encrypted(run.lab, folder, image, Duration::ZERO)));
        }
        if with_nbd_server {
            rivals.extend(run.note(NBD_SERVER, NbdRival::nbd_server(run.lab, image)));
        }
        let row = PeerRow { what: disk_name(load), bytes: load.bytes, needs: disk_needs(load) };
        let done = disk_row(run, pair, WayOfUse::Nbd, row, load, &mut rivals);
        run.note(&disk_name(load), done);
    }
    Ok(())
}

/// A paired host's disk read in order by NBD, its session over QUIC.
pub fn quic(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
) -> Result<()> {
    let mut rivals = Vec::new();
    if with_nbdkit {
        rivals.push(NbdRival::encrypted(run.lab, folder, &pair.image.0, Duration::ZERO)?);
    }
    let load = load(BlockVerb::Read, MIB, 1, false);
    let what = format!("{}, QUIC", disk_name(load));
    run.step(&what);
    let needs = PathNeeds { carried: 0.0, datagrams: load.bytes as f64 / DATAGRAM_BYTES as f64, ..disk_needs(load) };
    disk_row(run, pair, WayOfUse::Quic, PeerRow { what, bytes: load.bytes, needs }, load, &mut rivals)
}

fn disk_row(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    way: WayOfUse,
    row: PeerRow,
    load: DiskLoad,
    rivals: &mut [NbdRival],
) -> Result<()> {
    let DiskLoad { verb, bytes, depth, is_random } = load;
    let mut device = pair.begin(way)?;
    let ours = device.pids().into_iter().map(probe::family).collect::<Result<Vec<_>>>()?.concat();
    let mut clients: Vec<RivalClient> = rivals.iter_mut().map(NbdRival::client).collect::<Result<_>>()?;
    let names: Vec<&str> = rivals.iter().map(|rival| rival.name).collect();
    let mut sides =
        vec![ContestServer::of_processes(ours, |slice| device.run_past_lead_in(DeviceLoad::Disk(load), slice))];
    for (rival, client) in rivals.iter().zip(&mut clients) {
        sides.push(ContestServer::of_processes(rival.pids(), move |slice| {
            client.run(verb, bytes, depth, is_random, slice)
        }));
    }
    run.hold(row, &names, &mut sides)
}
