//! `farbus stream`.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use farbus_io::sys::confine::Needs;
use farbus_modules::Asked;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::output::print_json;
use crate::broker::confined::{give_rights_away, start_broker};
use crate::broker::{BrokerPolicy, SystemAccess};
use crate::devices::reservation::ReservationRequest;
use crate::frontend::stream::{Frame, Wanted, open_stream};
use crate::importer::client::{Client, ClientConfig, Target};
use crate::importer::discovery::local_shares::resolve;
use crate::link::modules::recipe;

/// Read frames of another host's camera, screen or other source.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Read(ReadArgs),
}

/// Write a stream's frames to standard output, one behind the other.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All frames arrive, in order, and the source waits for a reader that is slow. There is one such reader at a time. With --latest there may be many: each gets the newest frame, and misses the frames that it is too slow for. The format, and at the end the number of frames, goes to standard error.\n\n\
        Examples:\n  \
        farbus stream read lab3/cam > frames.rgb\n  \
        farbus stream read lab3/cam --latest | \\\n      \
        ffplay -f rawvideo -pixel_format rgb24 -video_size 640x480 -\n  \
        mkfifo /run/cam; farbus stream read lab3/cam > /run/cam\n  \
        farbus stream read lab3/cam --module stale --module zstd > now.rgb\n  \
        farbus stream read lab3/cam --count 300 --json | jq .per_second"
)]
struct ReadArgs {
    /// HOST[:PORT]/DEVICE; HOST may be the name of a paired host.
    target: Target,
    /// Only the newest frames, beside other readers.
    #[arg(long)]
    latest: bool,
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
    module: Vec<Asked>,
    /// Reserve processor and path for it.
    ///
    /// bytes=N,period=N[,criticality=low][,latency=5ms]: so many bytes each period, in microframes of 125 µs, of a
    /// processor of the exporter and of the path to this host. If something is missing, the exporter refuses and says
    /// what. Low criticality waits when high criticality needs what it has.
    #[arg(long, value_name = "WORDS", conflicts_with = "latest")]
    reserve: Option<ReservationRequest>,
    /// Keep the rights of the user who started it.
    #[arg(long)]
    no_sandbox: bool,
}

impl Args {
    /// Whether a failure is to be reported as JSON.
    pub fn is_for_programs(&self) -> bool {
        let What::Read(args) = &self.what;
        args.json
    }
}

/// What was received, for people and programs.
#[derive(Debug, Default, Serialize)]
struct Report {
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
}

impl Report {
    fn count(&mut self, frame: &Frame, since_s: f64) {
        // A source that was restarted counts from zero again.
        let gap = self.last.and_then(|last| frame.sequence.checked_sub(last + 1));
        self.missed += gap.unwrap_or(0);
        self.last = Some(frame.sequence);
        self.frames += 1;
        self.bytes += frame.data.len() as u64;
        self.seconds = since_s;
        self.per_second = if since_s > 0.0 { (self.frames - 1) as f64 / since_s } else { 0.0 };
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    let What::Read(args) = args.what;
    read(&args)
}

fn read(args: &ReadArgs) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let target = &resolve(args.target.clone())?;
    let recipe = recipe(&args.module).map_err(Failure::local)?;
    let broker_policy = BrokerPolicy { hosts: vec![target.address.clone()], ..BrokerPolicy::default() };
    let system = if args.no_sandbox {
        SystemAccess::Own
    } else {
        SystemAccess::Through(Arc::new(start_broker(&broker_policy)?))
    };
    let reservation = args.reserve.clone().map(|ReservationRequest(reservation)| reservation);
    let config = ClientConfig { modules: recipe, reservation, ..ClientConfig::default() };
    let client = Client::for_host(&target.address, system, config)?;
    if !args.no_sandbox {
        give_rights_away(&Needs::default())?;
    }
    let wanted = if args.latest { Wanted::Latest } else { Wanted::All };
    let mut frames = open_stream(&client, target, wanted)?;
    let stop_signal = frames.stop_signal();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop_signal.end();
        }
    });
    let mut report = Report { format: frames.description().format.to_string(), ..Report::default() };
    eprintln!("{target}: {}   (Ctrl-C ends)", report.format);
    let mut first = None;
    let mut ended = Ok(());
    while args.count.is_none_or(|count| report.frames < count) {
        match frames.next_frame() {
            Ok(Some(frame)) => {
                let since = *first.get_or_insert_with(Instant::now);
                report.count(&frame, since.elapsed().as_secs_f64());
                // The reader has closed the pipe: end, too.
                if !args.json && write(&frame).is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(failure) => {
                ended = Err(Failure::new(failure.attribute, format!("{target}: {}", failure.message)));
                break;
            }
        }
    }
    drop(frames);
    if args.json {
        print_json(&report)?;
    } else {
        let Report { frames, missed, bytes, per_second, .. } = report;
        eprintln!("{frames} frames of {bytes} bytes, {per_second:.1}/s; {missed} were missed");
    }
    ended
}

fn write(frame: &Frame) -> io::Result<()> {
    let mut out = io::stdout().lock();
    frame.data.runs().try_for_each(|run| out.write_all(run))?;
    out.flush()
}
