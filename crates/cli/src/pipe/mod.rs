//! `farbus pipe`: a device's data by a deadline.

mod function;
pub mod host_pipes;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farbus::broker::confined::{give_rights_away, start_broker};
use farbus::broker::{BrokerPolicy, SystemAccess};
use farbus::exporter::sources::what::DeviceSpec;
use farbus::importer::client::{ClientConfig, DeviceTarget, FailureKind, FailureReport, ImporterClient};
use farbus::importer::discovery::local_shares::resolve;
use farbus_gadgets::can::CanAdapter;
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::zero::SourceSink;
use farbus_host::RemoteDevice;
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_io_linux::sys::cpuset::CpusetEntry;
use farbus_io_net::local::control_socket::ControlSocket;
use farbus_io_net::store::create_output;
use farbus_model::{Device, EpAddr, NamedCounters, TransferDirection};
use farbus_pipe::{
    BlockingPort, EndpointLayout, FarTime, PathDelay, Pipe, PipeEnd, PipeEndpoint, PipeError, PipeInlet, PipeQuality,
    ProcessorPool, ReceiverCounts, ReceiverTerms, Report, SchedulingStrictness, can, claim_of, here, path_delay,
    there_reserving, tpipe,
};
use farbus_session::reserve::EndpointBandwidth;
use serde::Serialize;

use super::CommandFailure;
use super::interruption::InterruptFlag;
use super::output::{print_json, say};
use function::{PipeFunction, run_once};
use host_pipes::{HostPipes, PipeStatusSource};

const NS_PER_S: u64 = 1_000_000_000;
/// How often to look for further processes that promise processor time.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);

/// Run a function on a device's data, with a bound on the delay.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "farbus pipe [OPTIONS] <TARGET | --here DEVICE>\n            --rate <NUMBER> --buffer <NUMBER> --execution-us <US>",
    after_help = "Examples:\n  \
        farbus pipe --here can,traffic=paper --channel 4 \\\n      \
        --can 500000,250000,500000,500000,500000 --rate 2752 --buffer 128 \\\n      \
        --execution-us 2000 --seconds 10\n  \
        farbus pipe lab3/can --can 500000 --rate 400 --buffer 16 \\\n      \
        --execution-us 500 --program candump-to-db\n\n\
        'farbus pipe --help' says what is promised, and has more examples.",
    after_long_help = "From --rate, --buffer and --execution-us farbus computes the period in which the buffer fills, whether the endpoint, its transfers, a CAN bus and a processor carry it (see 'farbus plan pipe'), and how late a message is at the worst. It prints that before it starts, and at the end what was kept. It counts what the device sends, unless an option says where that goes.\n\n\
        A pipe gets the processor time that other pipes, shares and the daemon have left, or is refused with what is missing. 'farbus status' shows who has reserved it. Deadlines need CAP_SYS_NICE; without it a pipe runs, and says that nothing is promised. CAP_SYS_NICE and CAP_IPC_LOCK are all that it keeps of the rights it was started with, unless you give --no-sandbox. Programs that it starts have the rights of the user who started the pipe.\n\n\
        Examples:\n  \
        farbus pipe --here can,traffic=paper --channel 4 \\\n      \
        --can 500000,250000,500000,500000,500000 --rate 2752 --buffer 128 \\\n      \
        --execution-us 2000 --seconds 10\n    \
        counts the frames of an adapter's fifth bus\n\n  \
        farbus pipe lab3/can --can 500000 --rate 400 --buffer 16 \\\n      \
        --execution-us 500 --program candump-to-db\n    \
        a program reads frames of 20 bytes, as gs_usb has them\n\n  \
        farbus pipe lab3/serial --message 1 --rate 11520 --buffer 128 \\\n      \
        --execution-us 200 --write log.txt\n\n  \
        farbus pipe lab3/serial --message 1 --rate 960 --buffer 64 \\\n      \
        --execution-us 200 --out --program 'cat greeting.txt'\n    \
        what a program writes goes to the device\n\n  \
        farbus pipe lab3/zero --message 512 --rate 1000 --buffer 16 \\\n      \
        --execution-us 500 --forward lab4/zero\n    \
        from host to host; the bound is that of both\n\n\
        Exit codes: 0 kept, 1 failed here or not kept, 2 usage, 3 refused, 4 gone, 5 network, 6 device."
)]
pub struct Args {
    /// HOST[:PORT]/DEVICE; HOST may be the name of a paired host.
    #[arg(required_unless_present = "here", conflicts_with = "here", value_parser = target)]
    target: Option<DeviceTarget>,
    /// A device of this process: can, zero, serial.
    #[arg(long, value_name = "DEVICE")]
    here: Option<DeviceSpec>,
    /// Channels, counted from 0, with commas.
    ///
    /// Each channel has a pipe of its own.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "0")]
    channel: Vec<usize>,
    /// Send data to the device, not from it.
    #[arg(long)]
    out: bool,
    /// A USB-CAN adapter: bit/s of each channel.
    ///
    /// Separated by commas; 0 for a channel that stays off.
    #[arg(long, value_name = "RATES", value_delimiter = ',', conflicts_with = "message")]
    can: Vec<u32>,
    /// Bytes of a message, other devices.
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    message: u32,
    /// The bulk endpoint to use, as in 0x83.
    ///
    /// With the one of the other direction in the same interface. Without it, the device's first ones.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "can", value_parser = endpoint_address)]
    endpoint: Option<EpAddr>,
    /// Messages a second on each channel, at most.
    #[arg(long, value_name = "NUMBER")]
    rate: u64,
    /// Messages that a pipe's buffer keeps.
    ///
    /// The function has to process them before the buffer is full again.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    buffer: u64,
    /// Time for a full buffer, in microseconds.
    ///
    /// What the function takes at the most to process it.
    #[arg(long, value_name = "US")]
    execution_us: u64,
    /// Write what the device sends to FILE.
    #[arg(long, value_name = "FILE", group = "to", conflicts_with = "out")]
    write: Option<PathBuf>,
    /// Give what the device sends to a program.
    ///
    /// On the program's standard input. With --out, send what the program writes to its standard output.
    #[arg(long, value_name = "COMMAND", group = "to")]
    program: Option<String>,
    /// Send it on to another device.
    ///
    /// HOST/DEVICE of the same kind; its first channel.
    #[arg(long, value_name = "DEVICE", group = "to", conflicts_with = "out")]
    forward: Option<DeviceTarget>,
    /// End after so many seconds.
    #[arg(long, value_name = "NUMBER")]
    seconds: Option<u64>,
    /// What to ask of the scheduler.
    ///
    /// If the system denies a policy, farbus takes the next one and says so.
    #[arg(long, value_name = "POLICY", default_value = "deadline", value_parser = ["deadline", "fifo", "none"])]
    policy: String,
    /// Processors for this pipe alone.
    ///
    /// Numbers, separated by commas. All other processes lose them meanwhile. Without the option, all processors keep
    /// the deadlines together.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Worst delay of the network, microseconds.
    ///
    /// Without it, farbus takes four times the longest of 40 round trips. That bounds the delay; a single long one does
    /// not lower the rate of a device that can wait.
    #[arg(long, value_name = "US")]
    network_us: Option<u64>,
    /// Keep the rights of the user who started it.
    #[arg(long)]
    no_sandbox: bool,
    /// Print JSON at the end, for programs.
    ///
    /// One object on standard output. What --program prints goes to standard error then.
    #[arg(long)]
    pub json: bool,
    /// Write that JSON object to FILE.
    ///
    /// Standard output then belongs to --program.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    report: Option<PathBuf>,
}

/// What was promised, and how well it was kept.
#[derive(Debug, Serialize)]
struct PipeOutcome {
    processors: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_not_locked: Option<String>,
    receiver_period_ns: u64,
    receiver: ReceiverCounts,
    /// The bound of the whole way, if the data is forwarded to another device.
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_bound_ns: Option<u64>,
    pipes: Vec<Report>,
    /// Whether nothing was lost or late, as far as there were messages.
    is_kept: bool,
    /// Whether the devices sent as many messages as `--rate` says. If not, a pipe that lost nothing has not shown that
    /// it carries them.
    is_tried: bool,
    /// What nobody promised; empty if all of the way was.
    not_promised: Vec<String>,
    /// Why it ended early, or which promise was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureReport>,
}

impl PipeOutcome {
    /// Whether the promise was kept. `cut_short`: the signal that ended it, and for how many seconds it was to run.
    fn judged(&self, cut_short: Option<(i32, u64)>) -> Result<(), CommandFailure> {
        match cut_short {
            _ if !self.is_kept => Err(CommandFailure::local(format!(
                "the promise was not kept: {}\n  a larger --buffer, --policy deadline as root, or --cpus gives more",
                self.broken()
            ))),
            Some((signal, seconds)) => {
                Err(CommandFailure::interrupted(signal, format!("the pipe has not run for {seconds} s")))
            }
            None => Ok(()),
        }
    }

    fn broken(&self) -> String {
        let of = |report: &Report| {
            let named = |what: String| format!("pipe {} {}: {what}", report.channel, report.direction);
            report.broken().into_iter().map(named).collect::<Vec<_>>()
        };
        let broken: Vec<String> = self.pipes.iter().flat_map(of).collect();
        if broken.is_empty() {
            "messages were lost or late on the way to the other device".to_owned()
        } else {
            broken.join("; ")
        }
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let interruption = InterruptFlag::new()?;
    let is_over = interruption.flag();
    let report = args.report.as_ref().map(|path| created(path)).transpose()?;
    // Start programs before any thread has a deadline or has lost its rights: such a thread may not.
    let functions = args.functions()?;
    let (control_socket, control_listener) = ControlSocket::bind().map_err(CommandFailure::local)?;
    let there = |target: &Option<DeviceTarget>| target.clone().map(resolve).transpose();
    let (from, to) = (there(&args.target)?, there(&args.forward)?);
    let remove = vec![control_socket.path().to_owned()];
    let system = system_for(args, remove, [&from, &to], &functions)?;
    let target = from.as_ref().map(|target| client_for(target, &system)).transpose()?;
    let forward = to.as_ref().map(|target| client_for(target, &system)).transpose()?;
    let processors = processors_of(args, &system)?;
    // From here on, input from the network is read without rights, except those for deadlines.
    if !args.no_sandbox {
        give_rights_away(&ConfinementNeeds { deadlines: true, ..ConfinementNeeds::default() })?;
    }
    let host_pipes = HostPipes::new(system);
    let processors = processors.beside(host_pipes.clone()).map_err(refused)?;
    let (name, host) = args.names();
    let shown = Arc::new(PipeStatusSource::new(name, host, &host_pipes, Arc::clone(&is_over)));
    let for_control_socket = Arc::clone(&shown);
    control_socket
        .open(control_listener, move |question, files| for_control_socket.answer(question, files))
        .map_err(CommandFailure::local)?;
    let mut unreserved = Vec::new();
    let (endpoint, tally) = match (&args.here, &target) {
        (Some(what), _) => args.open_here(what, &processors)?,
        (None, Some(target)) => {
            let direction = if args.out { TransferDirection::Out } else { TransferDirection::In };
            (args.open_there(target, &processors, args.endpoint, direction, &mut unreserved)?, None)
        }
        (None, None) => unreachable!("clap asks for one of both"),
    };
    let to = |target| args.open_there(target, &processors, None, TransferDirection::Out, &mut unreserved);
    let forward = forward.as_ref().map(to).transpose()?;
    let quality = args.quality(&endpoint);
    let inlet =
        forward.as_ref().map(|to| PipeInlet::open(to, 0, &quality).map(Arc::new)).transpose().map_err(refused)?;
    let direction = if args.out { TransferDirection::Out } else { TransferDirection::In };
    for (&channel, mut function) in args.channel.iter().zip(functions) {
        if let Some(inlet) = &inlet {
            function = PipeFunction::Forward(Arc::clone(inlet));
        }
        let pipe = tpipe(&endpoint, PipeEnd { channel, direction }, quality, run_once, function).map_err(refused)?;
        shown.pipes().push(pipe);
    }
    let forward_bound_ns = inlet.as_ref().zip(shown.pipes().first()).map(|(inlet, pipe)| whole_way_ns(pipe, inlet));
    if !args.json {
        args.describe(&processors, &endpoint, &unreserved, &shown.pipes(), forward_bound_ns);
    }
    if let Some(signal) = interruption.signal() {
        return Err(CommandFailure::interrupted(signal, "the pipe had not begun"));
    }
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let is_over = || is_over.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
    wait_while_greeting(&host_pipes, || {
        is_over() || endpoint.end().is_some() || shown.pipes().iter().all(Pipe::is_ended)
    });
    let mut reports: Vec<Report> = shown.pipes().iter().map(Pipe::report).collect();
    if let Some(tally) = tally {
        reports.iter_mut().for_each(|report| counted_by_device(report, &tally));
    }
    let receiver = endpoint.counts();
    let is_tried = reports.iter().all(|report| report.fewer_per_s().is_none());
    let not_promised = not_promised(&processors, &endpoint, &unreserved, &reports);
    let is_kept = reports.iter().all(Report::is_kept) && inlet.as_ref().is_none_or(|inlet| inlet.is_kept());
    let mut outcome = PipeOutcome {
        processors: processors.described(),
        memory_not_locked: processors.unlocked().map(str::to_owned),
        receiver_period_ns: endpoint.period_ns(),
        receiver,
        forward_bound_ns,
        pipes: reports,
        is_kept,
        is_tried,
        not_promised,
        failure: None,
    };
    let finished = finish(std::mem::take(&mut *shown.pipes()));
    let lost = endpoint.end().map(|error| CommandFailure::new(PipeError::Lost(error.clone()).attribute(), error));
    let was_cut_short =
        interruption.signal().zip(args.seconds).filter(|_| until.is_some_and(|until| Instant::now() < until));
    let result = match (finished, lost) {
        (Err(failure), _) | (Ok(()), Some(failure)) => Err(failure),
        (Ok(()), None) => outcome.judged(was_cut_short),
    };
    outcome.failure = result.as_ref().err().map(CommandFailure::report);
    if let Some(file) = report {
        serde_json::to_writer_pretty(file, &outcome).map_err(CommandFailure::local)?;
    }
    if args.json {
        print_json(&outcome)?;
        return result.map_err(CommandFailure::already_printed);
    }
    outcome.pipes.iter().for_each(|report| args.tell(conclusion(report)));
    result
}

/// Stops all pipes, and lets each function write what it has left; the first failure is returned.
fn finish(pipes: Vec<Pipe<PipeFunction>>) -> Result<(), CommandFailure> {
    let functions: Vec<PipeFunction> = pipes.into_iter().filter_map(|pipe| pipe.stop().0).collect();
    functions.into_iter().map(PipeFunction::finish).fold(Ok(()), Result::and).map_err(CommandFailure::local)
}

/// The process that keeps the rights, and what it may be asked for; or this one, without a sandbox.
fn system_for(
    args: &Args,
    remove: Vec<PathBuf>,
    targets: [&Option<DeviceTarget>; 2],
    functions: &[PipeFunction],
) -> Result<SystemAccess, CommandFailure> {
    if args.no_sandbox {
        return Ok(SystemAccess::Own);
    }
    let policy = BrokerPolicy {
        remove,
        hosts: targets.into_iter().flatten().map(|target| target.address.clone()).collect(),
        promises: Some(host_pipes::owner()),
        processors: args.cpus.clone(),
        programs: functions.iter().filter_map(PipeFunction::program).collect(),
        ..BrokerPolicy::default()
    };
    Ok(SystemAccess::Through(Arc::new(start_broker(&policy)?)))
}

/// Says once in a while to others of this host what is promised here, until it is over.
fn wait_while_greeting(host_pipes: &HostPipes, is_over: impl Fn() -> bool) {
    let mut greeted = Instant::now();
    while !is_over() {
        thread::sleep(Duration::from_millis(20));
        if greeted.elapsed() > GREETING_INTERVAL {
            host_pipes.greet().iter().for_each(|refused| eprintln!("farbus: warning: promised twice: {refused}"));
            greeted = Instant::now();
        }
    }
}

/// The worst delay of the way through a pipe and on to another device, ns.
fn whole_way_ns(pipe: &Pipe<PipeFunction>, inlet: &PipeInlet) -> u64 {
    farbus_pipe::worst_ns(&[pipe.stages().as_slice(), &inlet.stages()].concat())
}

/// The processors that the options name, or all of them together.
fn processors_of(args: &Args, system: &SystemAccess) -> Result<ProcessorPool, CommandFailure> {
    let strictness = match args.policy.as_str() {
        "fifo" => SchedulingStrictness::Fifo,
        "none" => SchedulingStrictness::None,
        _ => SchedulingStrictness::Deadline,
    };
    match args.cpus.as_slice() {
        [] => Ok(ProcessorPool::anywhere(strictness)),
        cpus => taken(cpus, system, strictness).map_err(|error| {
            CommandFailure::local(format!("{error}\n  without --cpus all processors are used together"))
        }),
    }
}

/// Takes processors exclusively, through the process that has the rights.
fn taken(cpus: &[usize], system: &SystemAccess, strictness: SchedulingStrictness) -> io::Result<ProcessorPool> {
    match system {
        SystemAccess::Own => ProcessorPool::exclusive(cpus, strictness).map_err(io::Error::other),
        SystemAccess::Through(broker) => {
            let take = |&cpu: &usize| Ok(CpusetEntry::passed(cpu, broker.processor(cpu)?));
            let entries = cpus.iter().map(take).collect::<io::Result<_>>()?;
            Ok(ProcessorPool::kept_elsewhere(entries, strictness))
        }
    }
}

fn client_for<'a>(
    target: &'a DeviceTarget,
    system: &SystemAccess,
) -> Result<(ImporterClient, &'a DeviceTarget), CommandFailure> {
    Ok((ImporterClient::for_host(&target.address, system.clone(), ClientConfig::default())?, target))
}

/// Parses the target of a shared device; if none is named, says how to share one.
fn target(text: &str) -> Result<DeviceTarget, String> {
    text.parse::<DeviceTarget>().map_err(|error| match text.parse::<DeviceSpec>() {
        Ok(DeviceSpec::Can(_) | DeviceSpec::Zero { .. } | DeviceSpec::Serial { .. }) => {
            format!("'{text}' is not shared anywhere yet: --here {text} makes it for this pipe alone")
        }
        Ok(what) => format!(
            "'{text}' is not shared anywhere yet: 'farbus share {text}' offers it, and 'farbus pipe localhost/{}' takes it from there",
            what.kind()
        ),
        Err(_) => error,
    })
}

/// Parses the address of an endpoint, as `lsusb -v` prints it or in decimal digits.
fn endpoint_address(text: &str) -> Result<EpAddr, String> {
    let address = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let is_valid = |address: &u8| address & 0x70 == 0 && address & 0x0f != 0;
    let address = address.filter(is_valid).ok_or("an endpoint is 0x81 to 0x8f (in) or 0x01 to 0x0f (out)")?;
    Ok(EpAddr::from_byte(address))
}

fn created(path: &std::path::Path) -> Result<File, CommandFailure> {
    create_output(path, 0o666)
        .map_err(|error| CommandFailure::local(format!("cannot write {}: {error}", path.display())))
}

fn refused(error: PipeError) -> CommandFailure {
    CommandFailure::new(error.attribute(), error)
}

impl Args {
    fn message_bytes(&self) -> usize {
        if self.can.is_empty() { self.message as usize } else { can::MESSAGE_BYTES }
    }

    fn quality(&self, endpoint: &PipeEndpoint) -> PipeQuality {
        let bytes = endpoint.message_bytes() as u64;
        PipeQuality {
            latency_ns: NS_PER_S,
            throughput_bits: self.rate.saturating_mul(8 * bytes),
            buffer_bytes: self.buffer.saturating_mul(bytes),
            execution_ns: self.execution_us.saturating_mul(1000),
        }
    }

    /// The device's name, and where it is.
    fn names(&self) -> (String, String) {
        match (&self.here, &self.target) {
            (Some(what), _) => (what.kind().to_owned(), "here".to_owned()),
            (None, Some(target)) => (target.device.clone(), target.address.clone()),
            (None, None) => Default::default(),
        }
    }

    /// Prints for people, on standard error if standard output is the program's.
    fn tell(&self, line: impl std::fmt::Display) {
        if self.program.is_some() { eprintln!("{line}") } else { say(line) }
    }

    fn describe(
        &self,
        processors: &ProcessorPool,
        endpoint: &PipeEndpoint,
        unreserved: &[String],
        pipes: &[Pipe<PipeFunction>],
        forward_bound_ns: Option<u64>,
    ) {
        self.tell(format_args!("processors  {}", processors.described()));
        let granted = endpoint.granted();
        self.tell(format_args!("receiver    each {}, {}", ms(endpoint.period_ns()), granted.policy));
        let reports: Vec<Report> = pipes.iter().map(Pipe::report).collect();
        for report in &reports {
            let Report { channel, direction, budget_ns, period_ns, bound_ns, equation_9_ns, granted, .. } = report;
            let (budget_ns, period_ns, bound_ns, equation_9_ns) = (*budget_ns, *period_ns, *bound_ns, *equation_9_ns);
            let (budget, period, bound) = (ms(budget_ns), ms(period_ns), ms(bound_ns));
            self.tell(format_args!(
                "pipe {channel} {direction:<3}  {budget} each {period}, {bound} late at the worst, {}",
                granted.policy
            ));
            let equation_9 = ms(equation_9_ns);
            self.tell(format_args!(
                "            {equation_9} by Equation 9 ('farbus plan pipe'), where a message wakes the function; here it looks each {period}"
            ));
        }
        if let Some(bound_ns) = forward_bound_ns {
            self.tell(format_args!("forwarded   {} late at the worst, over both devices", ms(bound_ns)));
        }
        let warnings = not_promised(processors, endpoint, unreserved, &reports);
        warnings.iter().for_each(|warning| eprintln!("farbus: warning: {warning}"));
    }

    fn functions(&self) -> Result<Vec<PipeFunction>, CommandFailure> {
        let one = |_: &usize| match (&self.write, &self.program, self.out) {
            (Some(path), _, _) => PipeFunction::write(path),
            (_, Some(command), false) => PipeFunction::feed(command, self.json),
            (_, Some(command), true) => PipeFunction::fed_by(command, self.message_bytes()),
            (None, None, false) => Ok(PipeFunction::Count),
            (None, None, true) => Ok(PipeFunction::Numbers { next: 0, message: vec![0; self.message_bytes()] }),
        };
        self.channel.iter().map(one).collect::<Result<_, _>>().map_err(CommandFailure::local)
    }

    /// A device of this process, and its own counters if it has some.
    fn open_here(
        &self,
        what: &DeviceSpec,
        processors: &ProcessorPool,
    ) -> Result<(Arc<PipeEndpoint>, Option<NamedCounters>), CommandFailure> {
        let mut tally = None;
        let opened = match what {
            DeviceSpec::Can(settings) => {
                let adapter = CanAdapter::device(settings);
                tally = adapter.tally();
                here(adapter).map(|device| (device, farbus_model::UsbSpeed::High))
            }
            DeviceSpec::Zero { speed, fill, verify } => {
                here(SourceSink::device(*speed, *fill, *verify)).map(|device| (device, *speed))
            }
            DeviceSpec::Serial { speed } => {
                let device = SerialGadget::device(*speed);
                let speed = device.speed();
                here(device).map(|device| (device, speed))
            }
            _ => {
                let what = "--here takes can, zero or serial: 'farbus share' offers all others, and 'farbus pipe HOST/DEVICE' takes them";
                return Err(CommandFailure::new(FailureKind::Refused, what));
            }
        };
        let (device, speed) = opened.map_err(CommandFailure::local)?;
        Ok((self.open(device, speed, processors, ReceiverTerms::HERE, self.endpoint)?, tally))
    }

    fn open_there(
        &self,
        (client, target): &(ImporterClient, &DeviceTarget),
        processors: &ProcessorPool,
        endpoint: Option<EpAddr>,
        direction: TransferDirection,
        unreserved: &mut Vec<String>,
    ) -> Result<Arc<PipeEndpoint>, CommandFailure> {
        let claims = |device: &RemoteDevice<BlockingPort>, speed| self.claims(device, speed, endpoint, direction);
        let (mut device, speed, time) = there_reserving(client, target, claims)?;
        let delay = match self.network_us {
            Some(us) => PathDelay::at_worst(us.saturating_mul(1000)),
            None => path_delay(&mut device).map_err(|error| CommandFailure::new(FailureKind::Device, error))?,
        };
        let terms = match time {
            FarTime::Reserved => ReceiverTerms::there(delay).reserved(),
            FarTime::Unreserved(why) => {
                unreserved.push(format!("{FAR_UNRESERVED}: {why}"));
                ReceiverTerms::there(delay)
            }
        };
        self.open(device, speed, processors, terms, endpoint)
    }

    /// What the pipes take of a device of another host; nothing if it has no endpoint for them, which is said when they
    /// are opened.
    fn claims(
        &self,
        device: &RemoteDevice<BlockingPort>,
        speed: farbus_model::UsbSpeed,
        endpoint: Option<EpAddr>,
        direction: TransferDirection,
    ) -> Vec<EndpointBandwidth> {
        let bytes = self.message_bytes();
        let shape = match endpoint {
            Some(address) => EndpointLayout::bulk_at(device, speed, bytes, address).ok(),
            None => EndpointLayout::bulk(device, speed, bytes),
        };
        let found = shape.and_then(|shape| if direction == TransferDirection::In { shape.input } else { shape.output });
        let messages_per_s = self.rate.saturating_mul(self.channel.len() as u64);
        found.into_iter().map(|endpoint| claim_of(endpoint, speed, bytes, messages_per_s)).collect()
    }

    fn open(
        &self,
        mut device: RemoteDevice<BlockingPort>,
        speed: farbus_model::UsbSpeed,
        processors: &ProcessorPool,
        terms: ReceiverTerms,
        endpoint: Option<EpAddr>,
    ) -> Result<Arc<PipeEndpoint>, CommandFailure> {
        let shape = if let Some(address) = endpoint {
            EndpointLayout::bulk_at(&device, speed, self.message_bytes(), address)
                .map_err(|error| refused(PipeError::Device(error)))?
        } else if self.can.is_empty() {
            let none = "it has no bulk endpoints: 'farbus attach' makes it this machine's, whatever it is";
            let shape = EndpointLayout::bulk(&device, speed, self.message_bytes());
            shape.ok_or_else(|| CommandFailure::new(FailureKind::Refused, none))?
        } else {
            let rates: Vec<_> = self.can.iter().map(|&rate| (rate > 0).then_some(rate)).collect();
            can::set_up(&mut device, &rates, can::ROOM).map_err(|error| refused(PipeError::Device(error)))?
        };
        PipeEndpoint::open(device.into_port().into_way(), shape, processors, terms).map(Arc::new).map_err(refused)
    }
}

/// What of a pipe nobody promises, in sentences.
fn not_promised(
    processors: &ProcessorPool,
    endpoint: &PipeEndpoint,
    unreserved: &[String],
    reports: &[Report],
) -> Vec<String> {
    let mut all = endpoint.granted().warnings;
    all.extend(reports.iter().flat_map(|report| report.granted.warnings.clone()));
    all.extend(processors.unlocked().map(|why| format!("memory may be paged out: {why}")));
    all.extend_from_slice(unreserved);
    all.extend(endpoint.far().withdrawn().map(|why| format!("{FAR_UNRESERVED}: {why}")));
    all.sort();
    all.dedup();
    all
}

/// What holds for a device whose host has reserved nothing. The reason follows.
const FAR_UNRESERVED: &str = "only this end is promised: the host that shares the device has no processor time reserved \
    for it. While that host is busy, messages may be late there, and a device that buffers few may lose some: that is \
    counted as not kept. The reason";

/// Replaces what the device has reported of its losses by what it has counted, which is all of them.
fn counted_by_device(report: &mut Report, tally: &NamedCounters) {
    let name = format!("can{}_overruns", report.channel);
    let counted = tally.read().find(|(counter, _)| *counter == name).map(|(_, count)| count);
    report.device_lost = counted.filter(|_| report.direction == "in").unwrap_or(0).max(report.device_lost);
}

fn ms(ns: u64) -> String {
    format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000)
}

fn conclusion(report: &Report) -> String {
    let Report { channel, direction, messages, lost, device_overruns, device_lost, worst_ns, jobs, .. } = report;
    let fewer = report.fewer_per_s().map_or_else(String::new, |per_s| {
        format!("; the device sent {per_s}/s of the {}/s asked: that rate was not tried", report.asked_per_s)
    });
    let by_host = match report.far_overruns {
        0 => String::new(),
        overruns => format!("; its host's thread ran over its time in {overruns} periods"),
    };
    let by_device = match device_lost {
        0 => "0 lost by the device".to_owned(),
        _ if device_lost == device_overruns => format!("at least {device_lost} lost by the device"),
        _ => format!("{device_lost} lost by the device"),
    };
    format!(
        "pipe {channel} {direction:<3}  {messages} messages, {lost} lost here, {by_device}, {} at the worst; {} jobs, \
         {} missed, {} late, {} too long, {} jumps of the clock{by_host}{fewer}",
        ms(*worst_ns),
        jobs.ran,
        jobs.missed,
        jobs.late,
        jobs.overruns,
        jobs.jumps
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> Result<Args, String> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.args).map_err(|error| error.to_string())
    }

    // The tests' own process runs the command and must keep its rights.
    const USUAL: &str = "--rate 400 --buffer 16 --execution-us 500 --no-sandbox";

    #[test]
    fn pipe_has_one_device_and_at_most_one_destination() {
        let args = read(&format!("pipe lab3/can {USUAL} --can 500000,0 --channel 0,1")).unwrap();
        assert_eq!((args.channel.len(), args.message_bytes()), (2, can::MESSAGE_BYTES));
        assert!(read(&format!("pipe {USUAL}")).unwrap_err().contains("required"));
        assert!(read(&format!("pipe lab3/can --here zero {USUAL}")).unwrap_err().contains("cannot be used with"));
        for both in ["--write a --program b", "--write a --out", "--forward lab4/can --out", "--can 1 --message 2"] {
            assert!(
                read(&format!("pipe lab3/can {USUAL} {both}")).unwrap_err().contains("cannot be used with"),
                "{both}"
            );
        }
        assert!(read("pipe lab3/can --rate 1 --buffer 0 --execution-us 1").is_err());
    }

    #[test]
    fn invalid_pipe_arguments_are_refused_with_what_to_type() {
        let refusal = |line: &str| {
            let failure = run(&read(line).unwrap()).unwrap_err();
            (failure.report().attribute, failure.to_string())
        };
        let (attribute, message) = refusal(&format!("pipe --here keyboard {USUAL} --policy none"));
        assert_eq!(attribute, FailureKind::Refused);
        assert!(message.contains("'farbus pipe HOST/DEVICE'"), "{message}");
        let line = "pipe --here can --can 500000 --rate 1000 --buffer 1 --execution-us 2000 --policy none --no-sandbox";
        let (attribute, message) = refusal(line);
        assert_eq!(attribute, FailureKind::Refused);
        assert!(message.contains("larger buffer"), "{message}");
        for (line, advice) in [
            ("--here zero --rate 20000 --buffer 1000 --execution-us 100", "--rate 6153"),
            ("--here can --can 500000 --rate 15000 --buffer 1000 --execution-us 100", "--rate 9803"),
        ] {
            let (attribute, message) = refusal(&format!("pipe {line} --policy none --no-sandbox"));
            assert_eq!(attribute, FailureKind::Refused);
            assert!(message.contains(advice) && message.contains("are missing"), "{message}");
        }
        for (way, is_so) in [("", "transfers from the device"), ("--out", "transfers to the device")] {
            let line = format!("pipe --here zero --rate 250000 --buffer 1000 --execution-us 100 {way}");
            let message = refusal(&format!("{line} --message 64 --policy none --no-sandbox")).1;
            assert!(message.contains(is_so), "{message}");
        }
        let message = refusal(&format!("pipe --here zero --endpoint 0x84 {USUAL} --policy none")).1;
        assert!(message.contains("no bulk endpoint 0x84: there are 0x81, 0x01"), "{message}");
        assert!(read(&format!("pipe --here zero --endpoint 0x90 {USUAL}")).unwrap_err().contains("0x81 to 0x8f"));
        assert!(refusal(&format!("pipe --here zero {USUAL} --can 500000 --policy none")).1.contains("gs_usb"));
    }

    #[test]
    fn what_was_not_kept_is_named_and_no_success() {
        let refusal =
            |line: &str| run(&read(&format!("{line} --policy none --no-sandbox")).unwrap()).unwrap_err().to_string();
        // Frames of 8 bytes have 126 bits: 3,968 a second, where the shortest are 9,803.
        let line = "pipe --here can --can 500000 --rate 9800 --buffer 128 --execution-us 500 --out --seconds 2";
        let why = refusal(line);
        assert!(why.contains("behind 9800 messages/s"), "{why}");
        // Reads of 512 bytes are one message of 500.
        let line = "pipe --here zero --message 500 --rate 100 --buffer 10 --execution-us 500 --seconds 1";
        assert!(refusal(line).contains("no whole message"));
        let full = refusal("pipe --here zero --rate 100 --buffer 10 --execution-us 500 --seconds 5 --write /dev/full");
        assert!(full.contains("the file is not whole"), "{full}");
    }

    #[test]
    fn a_device_that_counts_its_losses_is_believed() {
        let losses = NamedCounters::new(&["can0_overruns"]);
        losses.count(0, 1371);
        let mut report = Report { direction: "in".into(), device_overruns: 15, device_lost: 15, ..Report::default() };
        assert!(conclusion(&report).contains("at least 15 lost by the device"), "{}", conclusion(&report));
        counted_by_device(&mut report, &losses);
        assert!(conclusion(&report).contains(" 1371 lost by the device"), "{}", conclusion(&report));
        assert!(!report.is_kept());
    }

    #[test]
    fn device_that_sends_less_than_the_rate_is_named_and_neither_kept_nor_lost() {
        let few = Report {
            direction: "in".into(),
            messages: 1200,
            asked_per_s: 2000,
            ran_ns: 3_000_000_000,
            bound_ns: 100_000_000,
            ..Report::default()
        };
        assert_eq!((few.fewer_per_s(), few.is_kept()), (Some(400), true));
        let message = conclusion(&few);
        assert!(message.ends_with("; the device sent 400/s of the 2000/s asked: that rate was not tried"), "{message}");
        for enough in [
            Report { messages: 5400, ..few.clone() },
            // What was lost was sent.
            Report { device_lost: 4200, ..few.clone() },
            Report { direction: "out".into(), ..few.clone() },
            Report { ran_ns: 900_000_000, ..few.clone() },
        ] {
            assert_eq!(enough.fewer_per_s(), None, "{enough:?}");
            assert!(!conclusion(&enough).contains("asked"));
        }
    }

    #[test]
    fn loss_behind_a_network_names_the_end_without_a_reservation() {
        let report = Report { direction: "in".into(), device_lost: 3, is_far_unreserved: true, ..Report::default() };
        assert_eq!(
            report.broken(),
            ["the device lost at least 3 messages, whose host has no processor time reserved for it"]
        );
    }

    #[test]
    fn a_bus_is_counted_for_a_second() {
        let line = "pipe --here can,traffic=10 --can 500000 --rate 400 --buffer 40 --execution-us 2000 --seconds 1 --no-sandbox";
        // Whether it was in time depends on the machine; either result is reported.
        if let Err(failure) = run(&read(line).unwrap()) {
            assert!(failure.to_string().starts_with("the promise was not kept"), "{failure}");
        }
    }
}
