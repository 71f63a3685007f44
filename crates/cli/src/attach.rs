//! `farbus attach` and `farbus detach`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farbus::broker::confined::{give_rights_away, report_protection, start_broker};
use farbus::broker::{BrokerPolicy, SystemAccess};
use farbus::common::networks::IpNetwork;
use farbus::common::socket_place::SocketLocation;
use farbus::devices::follow::{FollowPolicy, FollowWord};
use farbus::devices::reservation::{ReservationRequest, together};
use farbus::frontend::drivers::tell_if_no_driver;
use farbus::frontend::hold::check_for_disk;
use farbus::frontend::in_use;
use farbus::frontend::open_users::DiskOwnerAction;
use farbus::frontend::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FRONT_ENDS,
    FrontEnd, FrontEndChoice, FrontEndPreparation, RunningAttachment, explain, steer, tell_reason, undurable,
};
use farbus::frontend::{attachment_status, through};
use farbus::hosts::known_host::moved_to;
use farbus::importer::client::{
    ClientError, DeviceReopener, DeviceTarget, FailureKind, ImporterClient, RememberedDevice,
};
use farbus::importer::discovery::local_shares::{is_same, resolve, target_from};
use farbus::importer::disk::DiskMode;
use farbus::importer::options::ahead::PrefetchMode;
use farbus::importer::options::cache::DiskCacheMode;
use farbus::link::modules::recipe;
use farbus_control::process::ProcessStatus;
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::sys::writeback::protect_writeback_path;
use farbus_io_net::local::asking::{ask_owner, heard};
use farbus_io_net::local::control_socket::{Answer, ControlSocket, Question, ask_all};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_modules::ModuleSpec;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::CommandFailure;
use super::link_args::{LinkArgs, hold_from};
use super::listen::{SocketAccessArgs, place_told};
use super::output::{print_done, print_json, say};
use super::served::say_exports;
use super::waiting::DeviceWait;

/// Use a device of another machine here, until detached.
///
/// It stays until Ctrl-C, 'farbus detach', or the loss of the device.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        farbus attach lab3/disk                  a disk of a paired host\n  \
        farbus attach disk                       what is shared on this machine\n  \
        farbus attach 10.0.0.7/1-1 --via kernel  a bus id of any USB/IP exporter\n  \
        farbus attach lab3/disk --via nbd --mode read\n  \
        farbus attach lab3/disk --wait=600 --reason 'nightly backup'\n\n\
        'farbus attach --help' says more of each option.",
    after_long_help = "Ways (--via):\n  \
        kernel  the device itself, as if plugged in; root, module vhci-hcd\n  \
        uas     a disk that takes many commands at a time; root, module vhci-hcd\n  \
        fuse    a disk as a file; for losetup, mkfs, mount, qemu\n  \
        nbd     a disk for programs that speak NBD; qemu, nbdcopy, fio, nbd-client\n  \
        redir   any device in a virtual machine, by QEMU's usb-redir\n  \
        rfc2217 a serial port without a kernel driver; pyserial, esptool\n  \
        tcp     a serial port's bytes alone; zigbee2mqtt, nc\n  \
        pty     a serial port as a file, for rate and bytes; picocom, gpsd\n  \
        auto    uas for a disk in a session, kernel for anything else;\n          \
        fuse where the kernel has no vhci-hcd\n\n\
        Examples:\n  \
        farbus attach lab3/disk                  a disk of a paired host\n  \
        farbus attach disk                       what is shared on this machine\n  \
        farbus attach 10.0.0.7/1-1 --via kernel  a bus id of any USB/IP exporter\n\n  \
        farbus attach lab3/disk --via fuse --at /mnt/disk &\n  \
        losetup --direct-io=on -f --show /mnt/disk/disk.img\n\n  \
        farbus attach lab3/disk --via nbd &\n  \
        nbdinfo 'nbd+unix:///?socket=/run/farbus/nbd-disk.sock'\n\n  \
        farbus attach lab3/disk --via redir &\n  \
        qemu-system-x86_64 -device qemu-xhci -device usb-redir,chardev=disk \\\n      \
        -chardev socket,id=disk,path=/run/farbus/redir-disk.sock\n\n  \
        farbus attach lab3/esp32 --via rfc2217 &\n  \
        esptool --port rfc2217://127.0.0.1:2217 flash-id\n\n  \
        farbus attach lab3/disk --wait=600 --reason 'nightly backup'\n  \
        farbus attach lab3/disk --via nbd --mode read &\n  \
        farbus attach lab3/disk --via uas --cache writeback\n  \
        farbus attach lab3/disk --module zstd --module seal:key-file=seal.key\n\n\
        Exit codes: 3 in use, or taken back by its owner; 4 the exporter does not have the device (any more); 5 the link was lost."
)]
pub struct AttachArgs {
    /// What to use: [HOST[:PORT]/]DEVICE.
    ///
    /// HOST is the name of a paired host, or an address. Without HOST, or with 'localhost', farbus takes what 'farbus
    /// share' offers on this machine. DEVICE is a name or bus id that 'farbus list HOST' shows,
    /// VENDOR:PRODUCT (10c4:ea60) or serial=NUMBER.
    #[arg(value_parser = target_from)]
    target: DeviceTarget,
    /// kernel, uas, fuse, nbd, redir, rfc2217, tcp, pty.
    #[arg(long, value_parser = via_parser(), default_value = "auto", hide_possible_values = true)]
    via: FrontEndChoice,
    /// fuse: the folder for the disk's file. pty: the serial port's file.
    ///
    /// fuse makes the folder if it is missing. pty makes a symbolic link to a terminal, which only its owner and root
    /// may open; the default is in the runtime folder. A program sets rate, stop bits and RTS/CTS there. Other formats,
    /// modem lines and breaks do not pass a terminal: --via rfc2217 has these.
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// The Unix socket for programs.
    ///
    /// With nbd, redir, rfc2217 and tcp.
    ///
    /// Only its owner and root may connect, unless --socket-mode or --socket-group says otherwise. Without it, the
    /// socket is in the runtime folder; rfc2217 and tcp listen at 127.0.0.1.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    access: SocketAccessArgs,
    /// A TCP address for programs.
    ///
    /// ADDR[:PORT]; the port is 10809 with nbd, 4000 with redir, 2217 with rfc2217 and 6638 with tcp, unless you name
    /// another. There is no password and no encryption. A serial port serves programs of you and of root on this
    /// machine, and hosts that --allow names.
    #[arg(long, value_name = "ADDR", conflicts_with = "socket")]
    listen: Option<String>,
    /// rfc2217, tcp: other hosts that may connect.
    ///
    /// An address, or a range such as 10.0.0.0/8. May be given several times.
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    allow: Vec<IpNetwork>,
    /// Wait while another host uses the device.
    ///
    /// Without SECONDS there is no limit. The host that has waited longest comes next.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<u64>>,
    /// kernel, redir: another device in its port that is this one, too.
    ///
    /// VENDOR:PRODUCT, or 'port'. For boards that become another device while they are flashed: when the device goes,
    /// farbus waits until it, or one of these, is there, and attaches that in its place; Ctrl-C ends. 'port' is
    /// whatever is there. Disks are never followed. May be given several times.
    #[arg(long, value_name = "WHICH")]
    follow: Vec<FollowWord>,
    /// fuse, nbd, uas: exclusive or read.
    ///
    /// 'exclusive': you alone use the disk, and may write it. 'read': you read it beside other readers, and nobody
    /// writes it.
    #[arg(long, value_name = "MODE", default_value = DiskMode::Exclusive.as_str())]
    mode: DiskMode,
    /// fuse, nbd, uas: none, ahead or writeback.
    ///
    /// What farbus keeps here of a distant disk. 'none': nothing. 'ahead': data that programs read in order is fetched
    /// before they ask for it. 'writeback': as 'ahead', and writes are answered before they have arrived; a program
    /// that wants a write to be durable flushes (fsync), as with any disk that has a write cache. [default: ahead]
    #[arg(long, value_name = "CACHE")]
    cache: Option<DiskCacheMode>,
    /// redir, nbd: take over with a virtual machine.
    ///
    /// 'farbus migrate' on another host hands the device to this one, together with the virtual machine that has it.
    /// A QEMU that connects here waits until then, and continues where the machine was. It may read a disk before.
    #[arg(long)]
    inherit: bool,
    #[command(flatten)]
    link: LinkArgs,
    /// How long it may wait while it moves, in s.
    ///
    /// 'farbus migrate' keeps a device waiting until its user has left, and then until the other host comes: each for
    /// so long, 1 to 120 s, a disk for 25 s at most. If the exporter's limit ('farbus share --hold') is shorter, that
    /// counts.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = hold_from)]
    hold: Duration,
    /// kernel: fetch ahead of the kernel's requests.
    ///
    /// 'auto': descriptors travel once, all together, and farbus fetches what keyboards, serial adapters and the like
    /// send before the kernel asks for it, if the device is far enough away. 'off': farbus asks the device only what
    /// the kernel asks.
    #[arg(long, value_name = "MODE", default_value = PrefetchMode::Auto.as_str(), value_parser = ahead())]
    ahead: PrefetchMode,
    /// Reserve bus, processor and path for it.
    ///
    /// bytes=N,period=N[,criticality=low][,latency=5ms][,endpoint=0x83]: so many bytes each period, in microframes of
    /// 125 µs (frames of 1 ms at low and full speed). The exporter reserves them of the device's bus, of a processor
    /// and of the path to this host; if something is missing it refuses the attachment and says what. Give the option
    /// once for each endpoint. Low criticality is suspended when high criticality needs what it has; high has to be
    /// allowed at the exporter ('farbus allow --reserve-high'). The exporter has to be a farbus.
    #[arg(long, value_name = "WORDS")]
    reserve: Vec<ReservationRequest>,
    /// What you need it for.
    ///
    /// Other users of this machine see it, and the exporter if it is this machine.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON, for programs.
    ///
    /// A failure is an object on standard output, and so is the address with '--via nbd'.
    #[arg(long)]
    pub json: bool,
    /// Keep the rights of the user who started it.
    ///
    /// Without it, the process that reads from the network runs as a user without rights, sees no files and makes no
    /// connections by itself.
    #[arg(long)]
    no_sandbox: bool,
    /// Detach when standard input ends: farbus itself started this.
    #[arg(long, hide = true)]
    end_with_input: bool,
}

/// A parser for how far ahead a device is asked, with the words for the help.
fn ahead() -> impl TypedValueParser<Value = PrefetchMode> {
    let help = |ahead: &PrefetchMode| match ahead {
        PrefetchMode::Auto => "As far as its class allows, and its distance makes it worth while",
        PrefetchMode::Off => "Never: all that is asked of it is what its user asks",
    };
    let values = PrefetchMode::ALL.iter().map(|ahead| PossibleValue::new(ahead.as_str()).help(help(ahead)));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<PrefetchMode>())
}

/// A parser for the names of front ends, with their summaries for the help.
fn via_parser() -> impl TypedValueParser<Value = FrontEndChoice> {
    let values = FRONT_ENDS.iter().map(|front_end| PossibleValue::new(front_end.name()).help(front_end.summary()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<FrontEndChoice>())
}

/// A device that 'farbus hold' and 'farbus resume' are about.
#[derive(Debug, clap::Args)]
pub struct MovingArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached.
    device: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// Let go of an attached device.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "farbus does not detach a disk that programs have open: close them, or unmount its file systems.\n\n\
    Examples:\n  farbus detach                      the only one\n  farbus detach lab3/disk\n  farbus detach lab3/disk --unmount\n  farbus detach --all"
)]
pub struct DetachArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached; not needed if there is only one.
    device: Option<String>,
    /// Detach everything that is attached here.
    #[arg(long, conflicts_with = "device")]
    all: bool,
    /// First write out and unmount its file systems, and release its loop devices.
    #[arg(long)]
    unmount: bool,
    /// Detach it while programs have it open: what they have not written out is lost.
    #[arg(long, conflicts_with = "unmount")]
    force: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn attach(mut args: AttachArgs) -> Result<(), CommandFailure> {
    // Before any thread starts: threads inherit what is granted here.
    report_protection(&protect_writeback_path());
    args.target = resolve(args.target)?;
    // Catch signals before there is anything to give back.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
    let (request, front_end) = request_from(&args)?;
    let lacks = request.via.lacks(&request, &SystemAccess::Own);
    let target = &request.target;
    let recipe = recipe(&request.modules).map_err(CommandFailure::local)?;
    let (control_socket, control_listener) = ControlSocket::bind().map_err(CommandFailure::local)?;
    // From here on, input from the network is read without rights.
    let mut broker_policy = BrokerPolicy {
        remove: vec![control_socket.path().to_owned()],
        hosts: vec![target.address.clone()],
        moved: args.link.address.iter().map(|moved| (target.address.clone(), moved_to(moved))).collect(),
        ..BrokerPolicy::default()
    };
    broker_policy.allow_for(front_end.needs(&request));
    let system = if args.no_sandbox {
        SystemAccess::Own
    } else {
        SystemAccess::Through(Arc::new(start_broker(&broker_policy)?))
    };
    let config = request.client_config(recipe);
    let client = args.link.client(&target.address, system, config)?;
    // What it waits for is the device that somebody uses now.
    let remembers = args.wait.is_some() || !request.follow.is_nothing();
    let client = match remembers {
        true => client.remembering(RememberedDevice::new(target, DeviceReopener::Attach).following(&request.follow)),
        false => client,
    };
    if !args.no_sandbox {
        // A USB device of this machine that takes the place of the other host's is looked up in sysfs.
        let readable = if front_end.takes_twins() { vec!["/sys".into()] } else { Vec::new() };
        give_rights_away(&ConfinementNeeds { readable, ..ConfinementNeeds::default() })?;
    }
    let shown = Arc::new(AttachStatusSource::new(&request));
    if args.end_with_input {
        thread::spawn(end_with_input);
    }
    let for_control_socket = Arc::clone(&shown);
    control_socket
        .open(control_listener, move |question, files| for_control_socket.answer(question, files))
        .map_err(CommandFailure::local)?;
    // Prepare before a device is taken. Programs that connect while the device is waited for wait, too.
    let mut prepared = front_end.prepare(&client, &request)?;
    let mut patience = AttachWait::new(args.wait, signals, &shown, !args.json);
    let take = |prepared: &mut FrontEndPreparation| {
        let taken = front_end.take(&client, &request, prepared);
        taken.map_err(|error| explain(error, &client, &request, lacks.as_deref()))
    };
    let attachment = patience.have(target, || take(&mut prepared))?;
    if let Some(signal) = patience.signal() {
        // It came while the device was taken: nobody was told of it.
        RunningAttachment::of(&*attachment).handle.end();
        attachment.run();
        return Err(not_attached(signal, target));
    }
    end_on(patience.take_signals(), Arc::clone(&shown));
    let mut ended = show(attachment, &client, &request, &shown, args.json)?;
    while !request.follow.is_nothing() && is_gone(&ended, &client, target) && !shown.is_ending() {
        if !args.json {
            say(format!("{} is gone, and is waited for   (Ctrl-C ends)", target.shown()));
        }
        let Some(attachment) = patience.have_again(|| take(&mut prepared))? else {
            ended = AttachmentEnd::Requested;
            break;
        };
        ended = show(attachment, &client, &request, &shown, args.json)?;
    }
    match &ended {
        AttachmentEnd::Undurable(why) => {
            return Err(CommandFailure::new(FailureKind::Device, undurable(&target.shown(), why)));
        }
        _ if args.json => {}
        AttachmentEnd::Requested | AttachmentEnd::Released | AttachmentEnd::HandedOver => {
            say(format!("{} detached", target.shown()))
        }
        AttachmentEnd::Moved => say(format!("{} handed over", target.shown())),
        AttachmentEnd::Lost(_) | AttachmentEnd::Over(_) | AttachmentEnd::Broken(_) => {}
    }
    ended.failure(&client, target).map_or(Ok(()), Err)
}

/// Shows a device on this machine until that ends.
fn show(
    attachment: Box<dyn Attachment>,
    client: &ImporterClient,
    request: &AttachRequest,
    shown: &AttachStatusSource,
    as_json: bool,
) -> Result<AttachmentEnd, CommandFailure> {
    let (running, target) = (RunningAttachment::of(&*attachment), &request.target);
    let RunningAttachment { status, handle, .. } = &running;
    if status.port.is_some() {
        tracing::debug!(how = status.how, "attached to the kernel");
    }
    shown.attached(&running);
    publish(Event::of(EventKind::Attached, target.to_string()).how(status.at.as_str()));
    tell_reason(client, request, status.local_address);
    introduce(target, status, as_json)?;
    startup_memory::give_back_soon();
    tell_if_no_driver(target, handle.drivers(), |what| eprintln!("farbus: warning: {what}"));
    let ended = attachment.run();
    publish(ended.event(target));
    shown.state().running = None;
    Ok(ended)
}

/// Whether an attachment ended because its device has left its exporter, or has become another one there.
fn is_gone(ended: &AttachmentEnd, client: &ImporterClient, target: &DeviceTarget) -> bool {
    match ended {
        AttachmentEnd::Over(report) => report.attribute == FailureKind::Gone,
        // A plain exporter ends the connection alone. What is there now may be another device.
        AttachmentEnd::Lost(_) => matches!(client.why_lost(target), FailureKind::Gone | FailureKind::Refused),
        _ => false,
    }
}

/// A signal came before the device was attached.
fn not_attached(signal: i32, target: &DeviceTarget) -> CommandFailure {
    CommandFailure::interrupted(signal, format!("{} is not attached", target.shown()))
}

/// The request that the arguments describe, and the front end that shows it on this machine now.
fn request_from(args: &AttachArgs) -> Result<(AttachRequest, &'static dyn FrontEnd), CommandFailure> {
    let mut request = AttachRequest {
        at: args.at.clone(),
        access: args.access.access()?,
        is_handed_over: args.inherit,
        mode: args.mode,
        cache: args.cache.unwrap_or_default(),
        grace: args.link.grace(),
        hold: args.hold,
        links: args.link.links,
        over: args.link.over,
        ahead: args.ahead,
        reservation: together(&args.reserve).map_err(CommandFailure::local)?,
        modules: args.link.module.clone(),
        reason: args.reason.clone(),
        follow: FollowPolicy::from_iter(args.follow.iter().copied()),
        ..AttachRequest::new(args.target.clone(), args.via)
    };
    let front_end = request.via.front_end(&request, &SystemAccess::Own);
    request.location = place_from(args, front_end)?;
    request.allowed = args.allow.clone();
    request.check_allowed(front_end).map_err(CommandFailure::local)?;
    request.follow.warn_if_any();
    if front_end.is_for_disks() {
        if !request.follow.is_nothing() {
            return Err(CommandFailure::local(
                "--follow goes with --via kernel and --via redir: disks are never followed",
            ));
        }
        check_for_disk(request.hold).map_err(|why| CommandFailure::local(format!("--hold: {why}")))?;
    }
    match args.mode {
        _ if args.inherit && !front_end.takes_handed_over() => Err(CommandFailure::local(
            "--inherit goes with --via redir and --via nbd: a virtual machine comes along\n  try: --wait=20",
        )),
        DiskMode::Read if args.inherit => {
            Err(CommandFailure::local("--inherit takes over from the one who writes: --mode read needs nobody's leave"))
        }
        DiskMode::Read if !front_end.is_for_disks() => Err(CommandFailure::local(format!(
            "--mode read goes with --via {}: a USB device has one user\n  try: --via nbd --mode read",
            FrontEndChoice::for_disks(str::to_owned)
        ))),
        DiskMode::Read if !args.reserve.is_empty() => {
            Err(CommandFailure::local("--reserve is for a device's only user: leave --mode read out"))
        }
        _ if !args.reserve.is_empty() && args.inherit => {
            Err(CommandFailure::local("what is reserved comes along with --inherit: leave --reserve out"))
        }
        _ if args.cache.is_some() && !front_end.is_for_disks() => Err(CommandFailure::local(format!(
            "--cache goes with --via {}: of a USB device nothing is kept\n  try: --via nbd",
            FrontEndChoice::for_disks(str::to_owned)
        ))),
        _ => Ok((request, front_end)),
    }
}

/// Where programs connect to the device, if `front_end` has a protocol. Refuses options that do not fit the front end.
fn place_from(args: &AttachArgs, front_end: &dyn FrontEnd) -> Result<Option<SocketLocation>, CommandFailure> {
    match front_end.protocol() {
        Some(_) if args.at.is_some() => {
            Err(CommandFailure::local("--at goes with --via fuse and pty; where programs connect say --socket PATH"))
        }
        Some(protocol) => {
            place_told(protocol, args.socket.as_deref(), args.listen.as_deref(), &args.target.device).map(Some)
        }
        None if args.socket.is_some() || args.listen.is_some() => Err(CommandFailure::local(
            "--socket and --listen go with --via nbd, redir, rfc2217 and tcp: there programs connect",
        )),
        None if args.at.is_some() && !front_end.has_path() => {
            Err(CommandFailure::local("--at goes with --via fuse and pty: the kernel names its devices itself"))
        }
        None => Ok(None),
    }
}

/// Prints where a device is and what to type next. As JSON it is one object: an NBD export, or where the device is.
fn introduce(target: &DeviceTarget, status: &AttachmentFacts, as_json: bool) -> Result<(), CommandFailure> {
    let AttachmentIntroduction { line, next, export } = &status.introduction;
    match export {
        Some(export) if as_json => return say_exports(std::slice::from_ref(export)),
        None if as_json => return print_json(&json!({ "target": target.to_string(), "at": status.at })),
        _ => {}
    }
    say(format!("{line}   (Ctrl-C or 'farbus detach' ends)"));
    if let Some(next) = next {
        say(format!("  next: {next}"));
    }
    Ok(())
}

/// Signals, and how long to wait for a device that is in use.
struct AttachWait<'a> {
    signals: Option<Signals>,
    shown: &'a AttachStatusSource,
    waiting: DeviceWait,
    /// Whether to say for whom it waits.
    tells: bool,
}

impl<'a> AttachWait<'a> {
    fn new(wait: Option<Option<u64>>, signals: Signals, shown: &'a AttachStatusSource, tells: bool) -> Self {
        Self { signals: Some(signals), shown, waiting: DeviceWait::new(wait), tells }
    }

    /// Hands over the signals, for the thread that ends the attachment.
    fn take_signals(&mut self) -> Signals {
        self.signals.take().expect("signals are taken once, when a device was had")
    }

    /// The signal that has come, if one has.
    fn signal(&mut self) -> Option<i32> {
        self.signals.as_mut()?.pending().next()
    }

    /// Tries until a device that has gone is there again; `None` if its owner asked for the end.
    ///
    /// # Errors
    /// Its exporter cannot be reached, or something here fails.
    fn have_again<T>(&self, mut attempt: impl FnMut() -> Result<T, ClientError>) -> Result<Option<T>, CommandFailure> {
        let (mut message, mut pause) = (None, AGAIN_MIN);
        while !self.shown.is_ending() {
            let error = match attempt() {
                Ok(had) => return Ok(Some(had)),
                // What has just come may not be ready, and what has just gone may be listed still.
                Err(error)
                    if matches!(error.attribute(), FailureKind::Gone | FailureKind::Refused | FailureKind::Device) =>
                {
                    error
                }
                Err(error) => return Err(error.into()),
            };
            let another = Some(error.to_string()).filter(|_| matches!(error, ClientError::AnotherDevice { .. }));
            if let Some(what) = another.as_ref().filter(|_| self.tells && message != another) {
                say(what.clone());
            }
            message = another;
            thread::sleep(pause);
            pause = (2 * pause).min(AGAIN_MAX);
        }
        Ok(None)
    }

    /// Tries until the device is taken.
    ///
    /// # Errors
    /// An error other than *busy*; the time is over; a signal came, or the owner asked for the end.
    fn have<T>(
        &mut self,
        target: &DeviceTarget,
        mut attempt: impl FnMut() -> Result<T, ClientError>,
    ) -> Result<T, CommandFailure> {
        let tells = self.tells;
        loop {
            let error = match attempt() {
                Ok(had) => return Ok(had),
                Err(error) => error,
            };
            let again_at = self.waiting.again_at(&error, |line| {
                if tells {
                    say(line)
                }
            });
            let Some(again_at) = again_at else { return Err(error.into()) };
            self.sleep_until(again_at, target)?;
        }
    }

    /// Sleeps, unless a signal comes or the owner asks for the end.
    fn sleep_until(&mut self, until: Instant, target: &DeviceTarget) -> Result<(), CommandFailure> {
        loop {
            if let Some(signal) = self.signal() {
                return Err(not_attached(signal, target));
            }
            if self.shown.is_ending() {
                let what = format!("{} is not attached: 'farbus detach' ended the wait for it", target.shown());
                return Err(CommandFailure::new(FailureKind::Refused, what));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// The pause after the first try for a device that is to be there again, and after many.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// The first signal ends the attachment in good order; the second does not wait until a disk is durable.
fn end_on(mut signals: Signals, shown: Arc<AttachStatusSource>) {
    thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            let mut state = shown.state();
            state.is_ending = true;
            state.running.iter().for_each(|running| running.handle.end());
        }
        if signals.next().is_some() {
            shown.handle().iter().for_each(AttachmentHandle::cut);
        }
    });
}

/// Ends this command, as a signal does, when the process has gone that has the other end of standard input.
fn end_with_input() {
    // Nothing is sent; an error is an end, too.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    let _ = low_level::raise(SIGTERM);
}

/// What the status shows, from the first try on.
struct AttachStatusSource {
    target: DeviceTarget,
    reason: Option<String>,
    modules: Vec<ModuleSpec>,
    state: Mutex<AttachState>,
}

#[derive(Default)]
struct AttachState {
    running: Option<RunningAttachment>,
    is_ending: bool,
}

impl AttachStatusSource {
    fn new(request: &AttachRequest) -> Self {
        let (target, reason) = (request.target.clone(), request.reason.clone());
        Self { target, reason, modules: request.modules.clone(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, AttachState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attached(&self, running: &RunningAttachment) {
        let mut state = self.state();
        if state.is_ending {
            running.handle.end();
        }
        state.running = Some(running.clone());
    }

    fn handle(&self) -> Option<AttachmentHandle> {
        self.state().running.as_ref().map(|running| running.handle.clone())
    }

    /// Whether the owner asked for the end, attached or not.
    fn is_ending(&self) -> bool {
        self.state().is_ending
    }

    fn answer(&self, question: Question, files: &PassedFiles) -> Answer {
        match question {
            Question::Status => self.status(),
            Question::Detach { device, force } if device.as_deref().is_none_or(|wanted| self.is_meant(wanted)) => {
                self.detach(force)
            }
            question => {
                let steered = steer(question, files, |device| self.is_meant(device).then(|| self.handle()));
                steered.unwrap_or(Answer::Unknown)
            }
        }
    }

    fn detach(&self, force: bool) -> Answer {
        let mut state = self.state();
        let handle = state.running.as_ref().map(|running| running.handle.clone());
        if let Some(Err(why)) = handle.as_ref().filter(|_| !force).map(|handle| handle.may(DiskOwnerAction::Detach)) {
            return Answer::Refused(why.to_string());
        }
        state.is_ending = true;
        handle.iter().for_each(AttachmentHandle::end);
        Answer::Ok(serde_json::Value::Null)
    }

    fn is_meant(&self, wanted: &str) -> bool {
        wanted == self.target.device
            || wanted == self.target.to_string()
            || wanted.parse::<DeviceTarget>().is_ok_and(|target| is_same(&target, &self.target))
    }

    fn status(&self) -> Answer {
        let state = self.state();
        let word = if state.running.is_some() { "attached" } else { "waiting" };
        let device = attachment_status(&self.target, word, self.reason.as_ref(), state.running.as_ref());
        let device = through(device, &self.modules);
        let address = self.target.address.clone();
        Answer::of(&ProcessStatus::new(std::process::id(), "attach", address, vec![device.into()]))
    }
}

pub fn hold(args: MovingArgs) -> Result<(), CommandFailure> {
    ask_owner(&args.device, Question::Hold { device: args.device.clone() })?;
    print_done(args.json, "hold", &args.device)
}

pub fn resume(args: MovingArgs) -> Result<(), CommandFailure> {
    ask_owner(&args.device, Question::Resume { device: args.device.clone() })?;
    print_done(args.json, "resume", &args.device)
}

pub fn detach(args: DetachArgs) -> Result<(), CommandFailure> {
    if args.all {
        let names = all_attached()?;
        if names.is_empty() {
            return Err(nothing_attached());
        }
        // One that cannot be detached keeps none of the others.
        let end = |name: &String| {
            detach_one(name, args.unmount, args.force)?;
            print_done(args.json, "detach", name)
        };
        let ended: Vec<_> = names.iter().map(end).collect();
        return ended.into_iter().collect();
    }
    let name = args.device.map_or_else(only_one_attached, Ok)?;
    detach_one(&name, args.unmount, args.force)?;
    print_done(args.json, "detach", &name)
}

fn detach_one(name: &str, is_unmounted: bool, is_forced: bool) -> Result<(), CommandFailure> {
    if !is_forced {
        in_use::make_free(name, is_unmounted)?;
    }
    // Several processes may have it under that name: ask all.
    let question = Question::Detach { device: Some(name.to_owned()), force: is_forced };
    let answers = ask_all(&question).map_err(CommandFailure::local)?;
    let next = "or 'farbus detach --force', which loses that";
    let heard = heard(name, answers.into_iter().map(|(_, answer)| answer));
    heard.map(drop).map_err(|failure| in_use::explain(name, failure, next))
}

fn nothing_attached() -> CommandFailure {
    CommandFailure::new(FailureKind::Gone, "nothing is attached here")
}

/// The names of all devices that are attached here, as attached.
fn all_attached() -> Result<Vec<String>, CommandFailure> {
    let mut attached = Vec::new();
    for (_, answer) in ask_all(&Question::Status).map_err(CommandFailure::local)? {
        let Answer::Ok(process) = answer else { continue };
        // What a program has ends with the program.
        if process["role"] == "run" {
            continue;
        }
        let devices = process["devices"].as_array().into_iter().flatten();
        // A daemon lists its shares, too: those have a bus id.
        let here = devices.filter(|device| device["bus_id"].is_null() && device["state"] != "detached");
        attached.extend(here.filter_map(|device| device["title"].as_str().map(str::to_owned)));
    }
    Ok(attached)
}

/// The name of the only attached device, if the command names none.
fn only_one_attached() -> Result<String, CommandFailure> {
    let mut attached = all_attached()?;
    match attached.len() {
        0 => Err(nothing_attached()),
        1 => Ok(attached.remove(0)),
        _ => Err(CommandFailure::local(format!("which one? farbus detach {}", attached.join(" | ")))),
    }
}
