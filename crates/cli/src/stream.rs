//! `farbus stream`.

use std::io::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farbus::broker::confined::{give_rights_away, start_broker};
use farbus::broker::{BrokerPolicy, SystemAccess};
use farbus::devices::reservation::ReservationRequest;
use farbus::frontend::stream::{FrameSelection, StreamFrame, open_stream};
use farbus::importer::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::importer::discovery::local_shares::resolve;
use farbus::link::modules::recipe;
use farbus_control::failure::FailureKind;
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_modules::ModuleSpec;
use farbus_page::pictures::PictureEncoder;
use serde::Serialize;

use super::CommandFailure;
use super::ending::EndCondition;
use super::output::print_json;

/// Read frames of another host's camera, screen or other source.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: StreamVerb,
}

#[derive(Debug, clap::Subcommand)]
enum StreamVerb {
    Read(ReadArgs),
}

/// Write a stream's frames to standard output, one behind the other.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All frames arrive, in order, and the source waits for a reader that is slow. There is one such reader at a time. With --latest there may be many: each gets the newest frame, and misses the frames that it is too slow for. With --observe it is the same beside a reader of all frames, if the owner permits that: 'farbus share … --observable'. The format, and at the end the number of frames, goes to standard error.\n\n\
        Examples:\n  \
        farbus stream read lab3/cam > frames.rgb\n  \
        farbus stream read lab3/cam --latest | \\\n      \
        ffplay -f rawvideo -pixel_format rgb24 -video_size 640x480 -\n  \
        mkfifo /run/cam; farbus stream read lab3/cam > /run/cam\n  \
        farbus stream read lab3/cam --module stale --module zstd > now.rgb\n  \
        farbus stream read lab3/cam --observe --pictures --count 1 > now.png\n  \
        farbus stream read lab3/cam --count 300 --json | jq .per_second"
)]
struct ReadArgs {
    /// HOST[:PORT]/DEVICE; HOST may be the name of a paired host.
    target: DeviceTarget,
    /// Only the newest frames, beside other readers.
    #[arg(long, group = "newest")]
    latest: bool,
    /// Only the newest frames, as an observer.
    ///
    /// The owner has to permit it (share --observable). Nobody is kept out or waits.
    #[arg(long, group = "newest")]
    observe: bool,
    /// Leave out frames that come faster than this.
    ///
    /// NUMBER of frames a second at most, such as 4 or 0.5.
    #[arg(long, value_name = "NUMBER", requires = "newest")]
    rate: Option<FramePeriod>,
    /// Write pictures that an image viewer takes.
    ///
    /// PNG of frames in rgb24, grey and yuyv; JPEG as it comes. A frame that is none is left out.
    #[arg(long, conflicts_with = "json")]
    pictures: bool,
    /// End after so many frames.
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Write no frames, but JSON at the end.
    ///
    /// An object that says how many frames arrived, and how fast.
    #[arg(long)]
    json: bool,
    /// Pass the frames through a module.
    ///
    /// NAME[:KEY=VALUE,…]; see 'farbus module list'. May be given several times: the first is next to the reader.
    #[arg(long, value_name = "NAME")]
    module: Vec<ModuleSpec>,
    /// Reserve processor and path for it.
    ///
    /// bytes=N,period=N[,criticality=low][,latency=5ms]: so many bytes each period, in microframes of 125 µs, of a
    /// processor of the exporter and of the path to this host. If something is missing, the exporter refuses and says
    /// what. Low criticality waits when high criticality needs what it has.
    #[arg(long, value_name = "WORDS", conflicts_with = "newest")]
    reserve: Option<ReservationRequest>,
    /// Keep the rights of the user who started it.
    #[arg(long)]
    no_sandbox: bool,
}

impl Args {
    /// Whether a failure is to be reported as JSON.
    pub fn is_for_programs(&self) -> bool {
        let StreamVerb::Read(args) = &self.what;
        args.json
    }
}

/// The time from frame to frame, as frames a second were given.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FramePeriod(Duration);

/// The lowest and the highest rate that can be asked for, frames a second.
const RATES: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

impl FromStr for FramePeriod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = text.parse().ok().filter(|rate| RATES.contains(rate));
        let rate: f64 = rate.ok_or_else(|| format!("'{text}' is no rate: 0.001 to 1000 frames a second"))?;
        Ok(Self(Duration::from_secs_f64(1.0 / rate)))
    }
}

/// What was received, for people and programs.
#[derive(Debug, Default, Serialize)]
struct StreamReport {
    /// The format of the frames.
    format: String,
    frames: u64,
    bytes: u64,
    /// How many frames were lost between those that arrived.
    missed: u64,
    /// The time from the first frame to the last.
    seconds: f64,
    per_second: f64,
    #[serde(skip)]
    last: Option<u64>,
    /// How many frames were no pictures, with `--pictures`.
    #[serde(skip)]
    spoiled: u64,
}

impl StreamReport {
    /// Notes that a frame has come, whatever becomes of it.
    fn note(&mut self, frame: &StreamFrame) {
        // A source that was restarted counts from zero again.
        let gap = self.last.and_then(|last| frame.sequence.checked_sub(last.saturating_add(1)));
        self.missed += gap.unwrap_or(0);
        self.last = Some(frame.sequence);
    }

    fn count(&mut self, frame: &StreamFrame, since_s: f64) {
        self.frames += 1;
        self.bytes += frame.data.len() as u64;
        self.seconds = since_s;
        self.per_second = if since_s > 0.0 { (self.frames - 1) as f64 / since_s } else { 0.0 };
    }
}

pub fn run(args: Args) -> Result<(), CommandFailure> {
    let StreamVerb::Read(args) = args.what;
    read(&args)
}

fn read(args: &ReadArgs) -> Result<(), CommandFailure> {
    let mut ending = EndCondition::new()?;
    let target = &resolve(args.target.clone())?;
    let recipe = recipe(&args.module).map_err(CommandFailure::local)?;
    let broker_policy = BrokerPolicy { hosts: vec![target.address.clone()], ..BrokerPolicy::default() };
    let system = if args.no_sandbox {
        SystemAccess::Own
    } else {
        SystemAccess::Through(Arc::new(start_broker(&broker_policy)?))
    };
    let reservation = args.reserve.clone().map(|ReservationRequest(reservation)| reservation);
    let config = ClientConfig { modules: recipe, reservation, ..ClientConfig::default() };
    let client = ImporterClient::for_host(&target.address, system, config)?;
    if !args.no_sandbox {
        give_rights_away(&ConfinementNeeds::default())?;
    }
    let wanted = match (args.latest, args.observe) {
        (_, true) => FrameSelection::Observed,
        (true, false) => FrameSelection::Latest,
        (false, false) => FrameSelection::All,
    };
    let mut frames = open_stream(&client, target, wanted)?;
    let painter = args.pictures.then(|| PictureEncoder::of(frames.description())).transpose();
    let painter = painter.map_err(|why| CommandFailure::new(FailureKind::Device, format!("{target}: {why}")))?;
    let stop_signal = frames.stop_signal();
    if let Some(signal) = ending.signal() {
        return Err(CommandFailure::interrupted(signal, format!("{target} is not read")));
    }
    let ended_by = ending.tell(move || stop_signal.end());
    let mut report = StreamReport { format: frames.description().format.to_string(), ..StreamReport::default() };
    eprintln!("{target}: {}   (Ctrl-C ends)", report.format);
    let mut first = None;
    let mut due = Instant::now();
    let mut ended = Ok(());
    while args.count.is_none_or(|count| report.frames < count) {
        match frames.next_frame() {
            Ok(Some(frame)) => {
                report.note(&frame);
                let now = Instant::now();
                if let Some(FramePeriod(period)) = args.rate {
                    if now < due {
                        continue;
                    }
                    due = (due + period).max(now);
                }
                let bytes = frame.data.contiguous();
                let picture = painter.map(|painter| painter.paint(&bytes));
                if let Some(None) = picture {
                    report.spoiled += 1;
                    continue;
                }
                let since = *first.get_or_insert(now);
                report.count(&frame, since.elapsed().as_secs_f64());
                let written = match picture.flatten() {
                    _ if args.json => Ok(()),
                    Some(picture) => write_out([&*picture]),
                    None => write_out(frame.data.runs()),
                };
                // The reader has closed the pipe: end, too.
                if written.is_err() {
                    break;
                }
            }
            Ok(None) => {
                ended = ended_by.check(report.frames, args.count);
                break;
            }
            Err(failure) => {
                ended = Err(CommandFailure::new(failure.attribute, format!("{target}: {}", failure.message)));
                break;
            }
        }
    }
    drop(frames);
    if args.json {
        print_json(&report)?;
    } else {
        let StreamReport { frames, missed, bytes, per_second, .. } = report;
        let spoiled = match report.spoiled {
            0 => String::new(),
            spoiled => format!("; {spoiled} were no pictures"),
        };
        eprintln!("{frames} frames of {bytes} bytes, {per_second:.1}/s; {missed} were missed{spoiled}");
    }
    ended
}

fn write_out<'b>(runs: impl IntoIterator<Item = &'b [u8]>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    runs.into_iter().try_for_each(|run| out.write_all(run))?;
    out.flush()
}
