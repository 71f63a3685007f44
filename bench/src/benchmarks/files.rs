//! Files of growing size written to a disk, as Netbus measured it with Iozone's write test (Figures 3 to 6): a block
//! disk of this machine, the same kind of disk by farbus and by NBD; a USB disk here and remote; with the cache of the
//! guest's kernel, without it, and several files at once.
//!
//! No kernel mounts anything, so that it runs without root: a file is a range of the disk, its records are written in
//! order, and a record of a block disk is many requests in flight together. The guest's cache is a cache in front of
//! every path alike: it takes records until it is full and then writes out the oldest. What reaches a disk is durable
//! before the next record: all disks are files of the file system that has the system's folder for temporary files.

use std::{
    collections::VecDeque,
    fs::File,
    io::{Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farbus::{
    client::DeviceTarget as FarbusTarget,
    gadgets::storage::{StorageGadget, StorageOptions as DiskOptions},
    host::{HostPort, LocalPort, RemoteDevice, RemoteDisk, ScsiDiskOptions},
    model::{BlockStore, StoreError, UsbSpeed},
};

use super::database::ScratchFolder;
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    peers::{
        PeerServer,
        nbdkit::{NbdLoadClient, NbdPeer},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "files";
const MIB: u64 = 1 << 20;
/// A record of a block disk, and of a USB disk (the paper's).
pub const RECORD_BYTES: usize = 8 << 20;
const USB_RECORD_BYTES: usize = 4 << 20;
/// A request that a kernel makes of a record.
const REQUEST_BYTES: usize = 128 << 10;
/// The size of each of several files that are written at once (the paper's).
pub const PARALLEL_BYTES: u64 = 32 * MIB;

/// What the paper's text says of a figure whose values it only draws: `(MB or files, remote as a share of local)`.
struct PaperFigure {
    figure: &'static str,
    message: &'static str,
    points: &'static [(f64, f64)],
}

/// Netbus, section 7.2: alike below 64 MB, where all is in the cache; 60 % of local at 512 MB.
const FIGURE_3: PaperFigure =
    PaperFigure { figure: "Figure 3", message: "0.60 at 512 MB", points: &[(8.0, 1.0), (64.0, 1.0), (512.0, 0.60)] };
/// Netbus, section 7.2: about 65 % of local, for all sizes; NBD alike.
const FIGURE_4: PaperFigure =
    PaperFigure { figure: "Figure 4", message: "0.65 at every size", points: &[(8.0, 0.65), (512.0, 0.65)] };
/// Netbus, section 7.2: 75 % of local at most, as more files are written at once; one alone as in Figure 4.
const FIGURE_5: PaperFigure =
    PaperFigure { figure: "Figure 5", message: "0.65 alone, 0.75 at most", points: &[(1.0, 0.65), (8.0, 0.75)] };
/// Netbus, section 7.3: alike for small files; 48 % of local at 256 MB.
const FIGURE_6: PaperFigure =
    PaperFigure { figure: "Figure 6", message: "0.48 at 256 MB", points: &[(8.0, 1.0), (64.0, 1.0), (256.0, 0.48)] };

/// How much is written.
struct WritePlan {
    /// MiB of each file on a block disk; a USB disk has those up to `usb_max`.
    sizes: &'static [u64],
    usb_max: u64,
    cache_bytes: usize,
    at_once: &'static [usize],
    passes: usize,
    /// A file of which this is over is not written to its end.
    limit: Duration,
}

/// The cache is what the paper's guest, with 256 MB, used.
const THOROUGH: WritePlan = WritePlan {
    sizes: &[8, 16, 32, 64, 128, 256, 512],
    usb_max: 256,
    cache_bytes: 64 << 20,
    at_once: &[1, 2, 4, 8],
    passes: 3,
    limit: Duration::from_secs(4),
};
const QUICK: WritePlan = WritePlan {
    sizes: &[8, 32, 64],
    usb_max: 32,
    cache_bytes: 16 << 20,
    at_once: &[1, 4],
    passes: 1,
    limit: Duration::from_secs(2),
};

/// A disk that is written a record at a time.
pub trait RecordDisk: Send {
    /// Writes a record and makes it durable.
    fn write(&mut self, offset: u64, record: &[u8]) -> Result<()>;
    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<()>;
}

/// A file of this machine, as a disk.
struct DiskImageFile(File, u64);

impl DiskImageFile {
    fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self(file, bytes))
    }
}

impl RecordDisk for DiskImageFile {
    fn write(&mut self, offset: u64, record: &[u8]) -> Result<()> {
        self.0.write_all_at(record, offset)?;
        Ok(self.0.sync_data()?)
    }

    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        Ok(self.0.read_exact_at(to, offset)?)
    }
}

/// The medium of a USB disk in this process.
impl BlockStore for DiskImageFile {
    fn size_bytes(&self) -> u64 {
        self.1
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_exact_at(to, offset).map_err(|_| StoreError::Medium)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.0.write_all_at(from, offset).map_err(|_| StoreError::Medium)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.sync_data().map_err(|_| StoreError::Medium)
    }

    fn discard(&mut self, _offset: u64, _len: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write_at(offset, &vec![0; len as usize])
    }
}

impl<S: Read + Write + Send> RecordDisk for NbdLoadClient<S> {
    fn write(&mut self, offset: u64, record: &[u8]) -> Result<()> {
        self.write_in_pieces(offset, record, REQUEST_BYTES)?;
        self.flush()
    }

    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.read_at(offset, to)
    }
}

impl<P: HostPort + Send> RecordDisk for RemoteDisk<P> {
    fn write(&mut self, offset: u64, record: &[u8]) -> Result<()> {
        self.write_at(offset, record).and_then(|()| self.flush()).map_err(|error| anyhow!("{error:?}"))
    }

    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.read_at(offset, to).map_err(|error| anyhow!("{error:?}"))
    }
}

/// The cache of a guest's kernel: takes records until it is full, and then writes out the oldest.
struct RecordCache {
    room_bytes: usize,
    records: VecDeque<(u64, Vec<u8>)>,
}

impl RecordCache {
    fn write(&mut self, disk: &mut dyn RecordDisk, offset: u64, record: &[u8]) -> Result<()> {
        while self.records.len() * record.len() + record.len() > self.room_bytes {
            let Some((at, oldest)) = self.records.pop_front() else { return disk.write(offset, record) };
            disk.write(at, &oldest)?;
        }
        self.records.push_back((offset, record.to_vec()));
        Ok(())
    }

    fn write_out(&mut self, disk: &mut dyn RecordDisk) -> Result<()> {
        self.records.drain(..).try_for_each(|(at, record)| disk.write(at, &record))
    }
}

/// A file and how it is written.
#[derive(Clone, Copy)]
pub struct FileWriteLoad {
    pub first: u64,
    pub bytes: u64,
    pub record_bytes: usize,
    pub cache_bytes: usize,
    pub limit: Duration,
}

impl FileWriteLoad {
    /// Writes the file; returns MB/s as Iozone counts them: what is still in the cache at the end costs nothing. What
    /// was written is then read.
    pub fn run(self, disk: &mut dyn RecordDisk) -> Result<f64> {
        let mut record = vec![0xa5; self.record_bytes.min(self.bytes as usize)];
        let mut cache = RecordCache { room_bytes: self.cache_bytes, records: VecDeque::new() };
        let (mut written, began) = (0, Instant::now());
        while written < self.bytes && began.elapsed() < self.limit {
            let offset = self.first + written;
            record[..8].copy_from_slice(&offset.to_le_bytes());
            cache.write(disk, offset, &record)?;
            written += record.len() as u64;
        }
        let rate = written as f64 / began.elapsed().as_secs_f64() / 1e6;
        cache.write_out(disk)?;
        let mut block = [0; 4096];
        for offset in [self.first, self.first + written - record.len() as u64] {
            disk.read(offset, &mut block)?;
            ensure!(block[..8] == offset.to_le_bytes(), "at {offset} the disk does not have what was written");
        }
        Ok(rate)
    }
}

/// A way to a disk, as many times as files are written at once.
struct ParallelDisks {
    name: &'static str,
    disks: Vec<Box<dyn RecordDisk>>,
}

/// A figure's points: for each size or number, the MB/s of each way, pass by pass.
struct MeasuredFigure {
    paper: PaperFigure,
    title: &'static str,
    across: &'static str,
    /// What is at a point, after its number.
    unit: &'static str,
    is_logarithmic: bool,
    names: Vec<&'static str>,
    points: Vec<(f64, Vec<Vec<f64>>)>,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has all these ways to a disk");
    }
    let figures = measured(lab, if lab.quick { &QUICK } else { &THOROUGH })?;
    for figure in &figures {
        let name = figure.paper.figure.to_lowercase().replace("figure ", "files-figure-");
        lab.plot(&name, &figure.chart().render())?;
    }
    Ok(figures.iter().flat_map(MeasuredFigure::findings).collect())
}

fn measured(lab: &BenchmarkEnvironment, plan: &WritePlan) -> Result<Vec<MeasuredFigure>> {
    let folder = ScratchFolder::new(NAME)?;
    let most = plan.at_once.iter().max().copied().unwrap_or(1);
    let largest = plan.sizes.iter().max().copied().unwrap_or(0) * MIB;
    let image = |name: &str| -> Result<PathBuf> {
        let path = folder.path_of(name);
        File::create(&path)?.set_len(largest.max(most as u64 * PARALLEL_BYTES))?;
        Ok(path)
    };
    // Several files at once are several clients of one disk.
    let way = |name, open: &dyn Fn() -> Result<Box<dyn RecordDisk>>| -> Result<ParallelDisks> {
        Ok(ParallelDisks { name, disks: (0..most).map(|_| open()).collect::<Result<_>>()? })
    };
    let (here, shared, other) = (image("here.img")?, image("shared.img")?, image("nbd.img")?);
    let exporter = lab.farbus(&format!("block:{}", shared.display()))?;
    let how = (Duration::ZERO, "none");
    let importer = PeerServer::farbus_attached(lab.farbus_program()?, &exporter, "block", how, lab.placement)?;
    let mut ways = vec![
        way("local", &|| Ok(Box::new(DiskImageFile::open(&here)?)))?,
        way("farbus", &|| Ok(Box::new(NbdLoadClient::connect(importer.address)?)))?,
    ];
    let nbd = NbdPeer::qemu(&other, lab.placement);
    match &nbd {
        Ok(server) => ways.push(way("NBD", &|| Ok(Box::new(server.connect()?)))?),
        Err(error) => eprintln!("{NAME}: NBD is left out: {error:#}"),
    }
    let stick = |path: &Path| -> Result<Box<dyn RecordDisk>> {
        let options = DiskOptions { speed: UsbSpeed::High, ..DiskOptions::default() };
        let disk =
            StorageGadget::device(Box::new(DiskImageFile::open(path)?), options).map_err(|error| anyhow!("{error}"))?;
        let device = RemoteDevice::open(LocalPort::new(disk), UsbSpeed::High).map_err(|error| anyhow!("{error:?}"))?;
        Ok(Box::new(device.into_disk(ScsiDiskOptions::default()).map_err(|error| anyhow!("{error:?}"))?))
    };
    let usb_server = lab.farbus(&format!("disk:{}", image("usb.img")?.display()))?;
    let target: FarbusTarget = format!("{}/1-1", usb_server.address).parse().map_err(|error: String| anyhow!(error))?;
    let remote = farbus::client::open_disk(&target).context("the USB disk that farbus shares")?;
    let mut sticks = [
        ParallelDisks { name: "local", disks: vec![stick(&image("stick.img")?)?] },
        ParallelDisks { name: "farbus", disks: vec![Box::new(remote)] },
    ];
    let writing = |mib: u64, record_bytes, cache_bytes| FileWriteLoad {
        first: 0,
        bytes: mib * MIB,
        record_bytes,
        cache_bytes,
        limit: plan.limit,
    };
    let by_size = |ways: &mut [ParallelDisks], most: u64, record_bytes: usize, cache_bytes: usize| -> Result<_> {
        let sizes = plan.sizes.iter().filter(|&&size| size <= most);
        let point = |&mib: &u64| Ok((mib as f64, passes(plan, ways, 1, writing(mib, record_bytes, cache_bytes))?));
        sizes.map(point).collect::<Result<Vec<_>>>()
    };
    let cached = by_size(&mut ways, u64::MAX, RECORD_BYTES, plan.cache_bytes)?;
    let uncached = by_size(&mut ways, u64::MAX, RECORD_BYTES, 0)?;
    let one = FileWriteLoad { bytes: PARALLEL_BYTES, ..writing(0, RECORD_BYTES, 0) };
    let at_once = plan.at_once.iter().map(|&files| Ok((files as f64, passes(plan, &mut ways, files, one)?)));
    let at_once = at_once.collect::<Result<Vec<_>>>()?;
    let usb = by_size(&mut sticks, plan.usb_max, USB_RECORD_BYTES, plan.cache_bytes)?;
    let figure = |paper: PaperFigure, title, is_logarithmic, ways: &[ParallelDisks], points| {
        let (across, unit) = if paper.figure == "Figure 5" { ("files at once", "at once") } else { ("MiB", "MiB") };
        let names = ways.iter().map(|way| way.name).collect();
        MeasuredFigure { paper, title, across, unit, is_logarithmic, names, points }
    };
    Ok(vec![
        figure(FIGURE_3, "block disk, with a cache", true, &ways, cached),
        figure(FIGURE_4, "block disk, without a cache", false, &ways, uncached),
        figure(FIGURE_5, "block disk, files of 32 MiB, without a cache", false, &ways, at_once),
        figure(FIGURE_6, "USB disk, with a cache", true, &sticks, usb),
    ])
}

/// The MB/s of each way in each pass; the ways take turns. Several files are at places of their own.
fn passes(plan: &WritePlan, ways: &mut [ParallelDisks], files: usize, writing: FileWriteLoad) -> Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..plan.passes {
        for (way, rates) in ways.iter_mut().zip(&mut rates) {
            let written: Vec<Result<f64>> = thread::scope(|scope| {
                let all = way.disks.iter_mut().take(files).enumerate();
                let all = all.map(|(at, disk)| {
                    let writing = FileWriteLoad { first: at as u64 * writing.bytes, ..writing };
                    scope.spawn(move || writing.run(&mut **disk))
                });
                let all: Vec<_> = all.collect();
                all.into_iter().map(|thread| thread.join().expect("a writer does not panic")).collect()
            });
            let sum = written.into_iter().sum::<Result<f64>>().with_context(|| format!("by {}", way.name))?;
            rates.push(sum);
        }
    }
    Ok(rates)
}

impl MeasuredFigure {
    /// Each remote way against the local one.
    fn findings(&self) -> Vec<BenchmarkFinding> {
        let rate = |samples: &Vec<f64>| MeasuredQuantity::new(SampleSpread::new(samples.clone()), "MB/s");
        let mut found = Vec::new();
        for (at, rates) in &self.points {
            for (name, samples) in self.names.iter().zip(rates).skip(1) {
                let what = format!("{}, {at} {}: {name}", self.title, self.unit);
                let message = format!("the paper, {}: {}", self.paper.figure, self.paper.message);
                let finding = BenchmarkFinding::ratio(
                    NAME,
                    what,
                    rate(samples),
                    ("local", rate(&rates[0])),
                    SpeedTarget::Context,
                );
                found.push(finding.with_detail(message));
            }
        }
        found
    }

    fn chart(&self) -> LineChart {
        let line = |name: String, of: &dyn Fn(&Vec<Vec<f64>>) -> f64| ChartLine {
            name,
            points: self.points.iter().map(|(at, rates)| (*at, of(rates))).collect(),
        };
        let median = |samples: &Vec<f64>| SampleSpread::new(samples.clone()).median();
        let rates = self.names.iter().enumerate();
        let rates = rates.map(|(at, name)| line((*name).to_owned(), &|rates| median(&rates[at]))).collect();
        let shares = self.names.iter().enumerate().skip(1);
        let shares = shares.map(|(at, name)| {
            line((*name).to_owned(), &|rates| {
                SampleSpread::ratio(&SampleSpread::new(rates[at].clone()), &SampleSpread::new(rates[0].clone()))
                    .median()
            })
        });
        let paper = ChartLine { name: "the paper's text".into(), points: self.paper.points.to_vec() };
        LineChart {
            title: format!("Files written: {} (Netbus, {})", self.title, self.paper.figure),
            across: self.across.into(),
            panels: vec![
                ChartPanel { up: "MB/s".into(), is_logarithmic: self.is_logarithmic, lines: rates },
                ChartPanel {
                    up: "share of local".into(),
                    is_logarithmic: false,
                    lines: shares.chain([paper]).collect(),
                },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembers what was written out.
    #[derive(Default)]
    struct Seen(Vec<u64>);

    impl RecordDisk for Seen {
        fn write(&mut self, offset: u64, _record: &[u8]) -> Result<()> {
            self.0.push(offset);
            Ok(())
        }

        fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
            ensure!(self.0.contains(&offset), "nothing is at {offset}");
            to[..8].copy_from_slice(&offset.to_le_bytes());
            Ok(())
        }
    }

    #[test]
    fn cache_writes_out_the_oldest_record_when_it_is_full_and_the_rest_at_the_end() {
        let (mut disk, mut cache) = (Seen::default(), RecordCache { room_bytes: 20, records: VecDeque::new() });
        for offset in 0..4 {
            cache.write(&mut disk, offset, &[0; 10]).expect("written");
        }
        assert_eq!(disk.0, [0, 1]);
        cache.write_out(&mut disk).expect("written");
        assert_eq!(disk.0, [0, 1, 2, 3]);
        let mut without = RecordCache { room_bytes: 0, records: VecDeque::new() };
        without.write(&mut disk, 9, &[0; 10]).expect("written");
        assert_eq!(disk.0.last(), Some(&9));
    }

    #[test]
    fn every_file_of_the_papers_figures_is_on_its_disk_by_every_way() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        let limit = Duration::from_secs(60);
        let plan = WritePlan { sizes: &[8, 16], usb_max: 8, cache_bytes: 8 << 20, at_once: &[1, 2], passes: 1, limit };
        let figures = measured(&lab, &plan).expect("all is written and read");
        let shown: Vec<_> = figures.iter().map(|figure| (figure.paper.figure, figure.points.len())).collect();
        assert_eq!(shown, [("Figure 3", 2), ("Figure 4", 2), ("Figure 5", 2), ("Figure 6", 1)]);
        for figure in &figures {
            let remote = figure.names.len() - 1;
            assert!(figure.names[..2] == ["local", "farbus"] && remote <= 2, "{:?}", figure.names);
            assert_eq!(figure.findings().len(), figure.points.len() * remote);
            assert!(figure.findings().iter().all(|finding| finding.detail.starts_with("the paper, Figure ")));
            let svg = figure.chart().render();
            assert!(
                svg.matches("<polyline").count() == 2 * remote + 2
                    && svg.contains("the paper&#39;s text") | svg.contains("the paper's text")
            );
        }
    }
}
