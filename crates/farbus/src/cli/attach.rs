//! `farbus attach` and `farbus detach`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::confined::{give_rights_away, start_broker};
use super::listen::place_told;
use super::output::say;
use super::owner::{ProcessStatus, ask_owner, format_bytes, heard};
use super::served::{Served, say_served};
use crate::ahead::Ahead;
use crate::attach::{AttachmentStatus, Ended, Ender, FileAttachment, KernelAttachment};
use crate::broker::{Hands, Mandate};
use crate::cache::Cache;
use crate::client::{Attribute, Client, ClientError, FailureReport, Target, remember_address};
use crate::control::{Answer, Door, Question, ask_all, folder};
use crate::gate::{Gate, Granted};
use crate::meters::Meters;
use crate::modules::recipe;
use crate::nbd::NbdAttachment;
use crate::opened_disk::{DiskMode, OpenedDisk};
use crate::over::Over;
use crate::place::{Place, Protocol, plain_name};
use crate::redir::{Lent, RedirAttachment};
use crate::reserve::{Wish, together};
use crate::standing::Standing;
use farbus_io::sys::confine::Needs;
use farbus_io::sys::writeback::{Protection, protect_writeback_path};
use farbus_io::trust::Fingerprint;
use farbus_model::limits::LANES_MAX;
use farbus_modules::Asked;
use farbus_session::{OpStatus, Reject};

/// Use a device of another machine here, until detached or interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ways:\n  \
    kernel  the device appears to this machine's kernel as if plugged in (root, module vhci-hcd)\n  \
    uas     a disk appears to it as one that takes many commands at a time: quick over distance (root, module vhci-hcd)\n  \
    fuse    a disk appears as a file, without any kernel USB; for losetup, mkfs, mount, qemu\n  \
    nbd     a disk is served to programs that speak NBD, nothing is mounted; for qemu, nbdcopy, fio, nbd-client\n  \
    redir   any device appears in a virtual machine: QEMU's usb-redir connects to a socket; no kernel USB here, no root\n  \
    auto    with this machine's kernel: a disk in a session as by uas, anything else as by kernel; fuse where there is no such kernel\n\n\
    Examples:\n  farbus attach lab3/disk\n  farbus attach 10.0.0.7/1-1 --via kernel\n  \
    farbus attach lab3/disk --via fuse --at /mnt/disk &\n  losetup --direct-io=on -f --show /mnt/disk/disk.img\n  \
    farbus attach lab3/disk --via nbd &\n  nbdinfo 'nbd+unix:///?socket=/run/farbus/nbd-disk.sock'\n  \
    farbus attach lab3/disk --via redir &\n  \
    qemu-system-x86_64 -device qemu-xhci -chardev socket,id=disk,path=/run/farbus/redir-disk.sock \
    -device usb-redir,chardev=disk\n  \
    farbus attach lab3/disk --wait=600 --reason 'nightly backup'\n  \
    farbus attach lab3/disk --via nbd --mode read &\n  \
    farbus attach lab3/disk --via uas --cache writeback\n  \
    farbus attach lab3/disk --module zstd --module seal:key-file=seal.key\n\n\
    Exit codes: 3 in use or taken back by its owner, 4 the exporter has no such device (any more), 5 the link was lost.")]
pub struct AttachArgs {
    /// HOST[:PORT]/DEVICE; HOST may be the name of a paired host; DEVICE is a name or bus id that 'farbus list HOST' shows.
    target: Target,
    /// How it appears here.
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    via: Via,
    /// fuse: the folder in which the disk's file appears (made if missing).
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// nbd, redir: the Unix socket at which programs find it; only its owner and root may connect.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// nbd, redir: the TCP address at which programs find it instead, without password or encryption (port 10809 with nbd, 4000
    /// with redir, unless it says another).
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with = "socket")]
    listen: Option<String>,
    /// Wait for a device that is in use, for ever or so long; who waited longest comes next.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<u64>>,
    /// fuse, nbd, uas: 'exclusive', by you alone, who may change it; 'read', by you and others, none of whom changes it.
    #[arg(long, value_name = "MODE", default_value = DiskMode::Exclusive.as_str())]
    mode: DiskMode,
    /// fuse, nbd, uas: what is kept here of a distant disk. 'none'; 'ahead', what is read in order is fetched before it is asked for;
    /// 'writeback', what is written is answered before it has arrived, too: what is to be durable is flushed (fsync), as on any disk
    /// with a write cache. [default: ahead]
    #[arg(long, value_name = "CACHE")]
    cache: Option<Cache>,
    /// redir, nbd: the device is to be handed over to this host by 'farbus migrate', with the virtual machine that has it: whoever
    /// connects waits until it is, and goes on where the machine was. A disk may be read before that.
    #[arg(long)]
    inherit: bool,
    /// How long the device outlives its link, seconds: it waits, and goes on over the next one. 0: not at all, which is usual with
    /// hosts that are not paired; else 60 with fuse, nbd and uas, and 20 with kernel and redir. Its exporter has to be a farbus.
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Over how many links its session is, 1 to 8: what a bulk endpoint or a disk moves is spread over them, each waits for itself when it is
    /// cut, and control, interrupt and isochronous transfers keep the first. For long or lossy paths, on which one link is slow. Its
    /// exporter has to be a farbus.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(LANES_MAX)))]
    links: u16,
    /// Over what links of its session are made: 'quic' for networks that lose much or change their address; with paired hosts.
    #[arg(long, value_name = "WAY", default_value = Over::Tcp.as_str())]
    over: Over,
    /// kernel: what is done about a device's distance. auto: descriptors travel once, all together, and what keyboards, serial lines and
    /// the like send is fetched before it is asked for; off: the device is asked what the kernel asks, and nothing else.
    #[arg(long, value_name = "MODE", default_value = Ahead::Auto.as_str())]
    ahead: Ahead,
    /// What everything goes through, the device's user first: compression, sealing, faults; see 'farbus module'. May be given more than
    /// once; undone at the exporter in reverse order.
    #[arg(long, value_name = "NAME[:KEY=VALUE,…]")]
    module: Vec<Asked>,
    /// What is to be reserved for it where it is shared: bytes each period (in microframes; in frames at full speed) of its bus if it is
    /// on one, of a processor there and of the path to here, or it is refused with what is missing. May be given more than once, for
    /// several endpoints; low criticality is suspended when high needs what it has. High has to be allowed there ('farbus allow
    /// --reserve-high'), low has not. Its exporter has to be a farbus.
    #[arg(long, value_name = "bytes=N,period=N[,criticality=low][,latency=5ms][,endpoint=0x83]")]
    reserve: Vec<Wish>,
    /// What you need it for: shown to others here, and by the exporter where it is told (on this machine).
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Failures as JSON, too, on standard output; and where it is, with --via nbd.
    #[arg(long)]
    pub json: bool,
    /// Where the paired host is now; remembered.
    #[arg(long, value_name = "HOST[:PORT]")]
    address: Option<String>,
    /// Keep the rights it was started with. Without this, what hears the network runs as nobody, sees no files and makes no
    /// connections by itself.
    #[arg(long)]
    no_sandbox: bool,
}

/// How a device appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// Through vhci-hcd.
    Kernel,
    /// Through vhci-hcd, as a disk of ours.
    Uas,
    /// As a file.
    Fuse,
    /// As an NBD server's export.
    Nbd,
    /// In a virtual machine.
    Redir,
    /// Whichever there is.
    Auto,
}

impl Via {
    /// Whether it is the kernel, here and now.
    pub fn is_kernel(self, hands: &Hands) -> bool {
        match self {
            Via::Kernel | Via::Uas => true,
            Via::Fuse | Via::Nbd | Via::Redir => false,
            Via::Auto => hands.may_plug().is_ok(),
        }
    }

    /// What programs speak that use it, if it appears to programs alone.
    pub fn protocol(self) -> Option<Protocol> {
        match self {
            Via::Nbd => Some(Protocol::Nbd),
            Via::Redir => Some(Protocol::Usbredir),
            Via::Kernel | Via::Uas | Via::Fuse | Via::Auto => None,
        }
    }
}

/// Hold a virtual machine's device still before the machine is migrated, or go on if it was not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A machine that has a device by '--via redir' may migrate between two QEMUs of this host; the\n\
    destination has the same options and '-incoming', and is connected to the same socket:\n  \
    farbus hold lab3/disk        returns when nothing is under way: now migrate\n  \
    farbus resume lab3/disk      only if the migration failed; else it goes on by itself\n\n\
    Between two hosts: 'farbus migrate lab3/disk --to HOST' instead of 'hold'.\n\
    While it is held its guest waits for the device, and nothing is lost."
)]
pub struct MovingArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached.
    device: String,
}

/// Let go of an attached device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus detach            the only one\n  farbus detach lab3/disk")]
pub struct DetachArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached; not needed where there is only one.
    device: Option<String>,
}

pub fn attach(args: AttachArgs) -> Result<(), Failure> {
    // Before any thread: what is granted here is inherited.
    report_protection(&protect_writeback_path());
    if let Some(moved) = &args.address {
        remember_address(&args.target.address, moved)?;
    }
    // Signals are caught before anything has to be taken back.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let target = &args.target;
    let way = Way::of(&args)?;
    let recipe = recipe(&args.module).map_err(Failure::local)?;
    let (door, knocks) = Door::hang().map_err(Failure::local)?;
    // From here on whatever a stranger says is read without rights.
    let mandate = Mandate {
        remove: vec![door.path().to_owned()],
        hosts: vec![target.address.clone()],
        plugs: matches!(way, Way::Kernel(_)),
        mounts: way.folder().into_iter().cloned().collect(),
        places: way.place().into_iter().cloned().collect(),
        ..Mandate::default()
    };
    let hands = if args.no_sandbox { Hands::Own } else { Hands::Through(Arc::new(start_broker(&mandate)?)) };
    let mut client = Client::for_host(&target.address, hands)?;
    client.travel(args.over);
    client.take_links(args.links);
    client.ask_ahead(args.ahead);
    client.go_through(recipe);
    client.keep(args.cache.unwrap_or_default());
    client.reserve(together(&args.reserve).map_err(Failure::local)?);
    if let Some(seconds) = args.grace {
        client.outlive(Duration::from_secs(seconds));
    }
    if !args.no_sandbox {
        give_rights_away(&Needs::default())?;
    }
    let shown = Arc::new(Shown::new(&args));
    let for_door = Arc::clone(&shown);
    door.open(knocks, move |question| for_door.answer(question)).map_err(Failure::local)?;
    let mut patience = Patience::new(args.wait, signals, &shown);
    let ended = match &way {
        Way::Kernel(shape) => attach_to_kernel(&args, *shape, &client, &shown, &mut patience)?,
        Way::File(at) => attach_as_file(&args, &client, &shown, at, &mut patience)?,
        Way::Programs(Protocol::Nbd, place) => attach_as_nbd(&args, &client, &shown, place, &mut patience)?,
        Way::Programs(Protocol::Usbredir, place) => lend_to_guests(&args, &client, &shown, place, &mut patience)?,
    };
    match ended {
        None => {
            say(format!("{target}: waiting ended"));
            Ok(())
        }
        Some(Ended::Asked | Ended::Released | Ended::HandedOver) => {
            say(format!("{target} detached"));
            Ok(())
        }
        Some(Ended::Lost(why)) => Err(loss(&client, target, &why)),
        Some(Ended::Moved) => {
            say(format!("{target} handed over"));
            Ok(())
        }
        Some(Ended::Over(report)) => Err(over(target, &report)),
        Some(Ended::Broken(reject)) => Err(cut_off(target, &reject)),
    }
}

/// How and where a device appears, as its user said it.
enum Way {
    Kernel(Shape),
    File(PathBuf),
    Programs(Protocol, Place),
}

/// As what a kernel has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Itself,
    /// As a disk of ours.
    Disk,
    /// As whichever of the two is quicker.
    Quickest,
}

impl Way {
    fn of(args: &AttachArgs) -> Result<Self, Failure> {
        let way = Self::said(args)?;
        let is_disk = matches!(way, Way::File(_) | Way::Programs(Protocol::Nbd, _) | Way::Kernel(Shape::Disk));
        match args.mode {
            _ if args.inherit && !matches!(way, Way::Programs(..)) => Err(Failure::local(
                "--inherit goes with --via redir and --via nbd: a virtual machine comes along\n  try: --wait=20",
            )),
            DiskMode::Read if args.inherit => {
                Err(Failure::local("--inherit takes over from the one who writes: --mode read needs nobody's leave"))
            }
            DiskMode::Read if !is_disk => Err(Failure::local(
                "--mode read goes with --via fuse, nbd and uas: a USB device has one user\n  try: --via nbd --mode read",
            )),
            DiskMode::Read if !args.reserve.is_empty() => {
                Err(Failure::local("--reserve is for a device's only user: leave --mode read out"))
            }
            _ if !args.reserve.is_empty() && args.inherit => {
                Err(Failure::local("what is reserved comes along with --inherit: leave --reserve out"))
            }
            _ if args.cache.is_some() && !is_disk => Err(Failure::local(
                "--cache goes with --via fuse, nbd and uas: of a USB device nothing is kept\n  try: --via nbd",
            )),
            _ => Ok(way),
        }
    }

    fn said(args: &AttachArgs) -> Result<Self, Failure> {
        if let Some(protocol) = args.via.protocol() {
            if args.at.is_some() {
                return Err(Failure::local(
                    "--at goes with --via fuse; with --via nbd and --via redir say --socket PATH",
                ));
            }
            let place = place_told(protocol, args.socket.as_deref(), args.listen.as_deref(), &args.target.device)?;
            return Ok(Way::Programs(protocol, place));
        }
        if args.socket.is_some() || args.listen.is_some() {
            return Err(Failure::local(
                "--socket and --listen go with --via nbd and --via redir: there programs connect",
            ));
        }
        if args.via.is_kernel(&Hands::Own) {
            return match args.at {
                Some(_) => Err(Failure::local("--at goes with --via fuse: the kernel names its devices itself")),
                None => Ok(Way::Kernel(match args.via {
                    Via::Uas => Shape::Disk,
                    Via::Auto => Shape::Quickest,
                    _ => Shape::Itself,
                })),
            };
        }
        Ok(Way::File(args.at.clone().unwrap_or_else(|| default_folder(&args.target))))
    }

    fn folder(&self) -> Option<&PathBuf> {
        if let Way::File(at) = self { Some(at) } else { None }
    }

    fn place(&self) -> Option<&Place> {
        if let Way::Programs(_, place) = self { Some(place) } else { None }
    }
}

/// A link that ended, and what its exporter says of it now.
pub fn loss(client: &Client, target: &Target, why: &str) -> Failure {
    let attribute = client.why_lost(target);
    let what = match attribute {
        Attribute::Gone => "the device has left its exporter",
        Attribute::Refused => "its exporter ended the session: its owner took it back, or it failed",
        _ => "the link was lost",
    };
    Failure::new(attribute, format!("{target}: {what}: {why}\n  the device was unplugged here"))
}

/// A session that is over.
pub fn over(target: &Target, report: &FailureReport) -> Failure {
    let message = format!("{target}: {}\n  the device was unplugged here", report.message);
    Failure::new(report.attribute, message)
}

/// An exporter that broke the protocol.
pub fn cut_off(target: &Target, reject: &Reject) -> Failure {
    Failure::new(Attribute::Device, format!("{target}: cut off, its exporter broke the protocol: {reject}"))
}

/// Signals, and how long a device that is in use is waited for.
struct Patience<'a> {
    signals: Option<Signals>,
    shown: &'a Shown,
    /// `None`: not at all.
    until: Option<Instant>,
}

/// Between two tries: short at first, and well below [`farbus_session::claims::PATIENCE`].
const TRY_AGAIN: [Duration; 3] = [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];
/// For ever, as far as an [`Instant`] reaches everywhere.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl<'a> Patience<'a> {
    fn new(wait: Option<Option<u64>>, signals: Signals, shown: &'a Shown) -> Self {
        let until = wait.map(|seconds| {
            let span = seconds.map_or(FOR_EVER, Duration::from_secs).min(FOR_EVER);
            Instant::now() + span
        });
        Self { signals: Some(signals), shown, until }
    }

    /// The signals, for whoever ends what was had.
    fn take_signals(&mut self) -> Signals {
        self.signals.take().expect("signals are taken once, when a device was had")
    }

    /// Tries until the device is had, or something but *busy* is in the way. `None`: a signal came first.
    fn have<T>(&mut self, mut attempt: impl FnMut() -> Result<T, ClientError>) -> Result<Option<T>, Failure> {
        let mut pauses = TRY_AGAIN.iter().copied().chain(std::iter::repeat(TRY_AGAIN[2]));
        let mut said = None;
        loop {
            match attempt() {
                Ok(had) => return Ok(Some(had)),
                Err(error @ ClientError::Refused { status: OpStatus::Busy, .. }) => {
                    let Some(until) = self.until.filter(|until| Instant::now() < *until) else {
                        return Err(error.into());
                    };
                    let ClientError::Refused { target, user, .. } = &error else { return Err(error.into()) };
                    let user = user.as_ref().map(|user| user.user.clone());
                    if said.as_ref() != Some(&user) {
                        let by = user.as_ref().map(|user| format!(" (in use by {user})")).unwrap_or_default();
                        say(format!("waiting for {target}{by}   (Ctrl-C ends)"));
                        said = Some(user);
                    }
                    let pause = pauses.next().unwrap_or(TRY_AGAIN[2]);
                    if self.sleep_until(until.min(Instant::now() + pause)) {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sleeps; says whether a signal came, or its owner's word.
    fn sleep_until(&mut self, until: Instant) -> bool {
        let signals = self.signals.as_mut().expect("signals are taken once, when a device was had");
        loop {
            if signals.pending().next().is_some() || self.shown.is_ending() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

fn attach_to_kernel(
    args: &AttachArgs,
    shape: Shape,
    client: &Client,
    shown: &Shown,
    patience: &mut Patience<'_>,
) -> Result<Option<Ended>, Failure> {
    let target = &args.target;
    let take = || match shape {
        Shape::Disk => KernelAttachment::disk(client, target, args.mode),
        Shape::Quickest => KernelAttachment::quickest(client, target),
        Shape::Itself => KernelAttachment::new(client, target),
    };
    let Some(attachment) = patience.have(take)? else { return Ok(None) };
    let at = format!("vhci port {}", attachment.port().0);
    tracing::info!(how = attachment.how(), "attached to the kernel");
    shown.stands(attachment.standing(), attachment.mode());
    shown.attached(&at, attachment.ender(), Some(attachment.meters()));
    explain(client, target, args.reason.as_ref(), attachment.local_address());
    end_on(patience.take_signals(), attachment.ender(), || {});
    say(format!("{target} attached at {at}   (Ctrl-C or 'farbus detach' ends)"));
    Ok(Some(attachment.run()))
}

fn attach_as_file(
    args: &AttachArgs,
    client: &Client,
    shown: &Shown,
    at: &Path,
    patience: &mut Patience<'_>,
) -> Result<Option<Ended>, Failure> {
    let target = &args.target;
    let Some(attachment) = patience.have(|| FileAttachment::new(client, target, args.mode, at))? else {
        return Ok(None);
    };
    let file = attachment.file();
    shown.stands(attachment.standing(), Some(attachment.mode()));
    shown.attached(&file.display().to_string(), attachment.ender(), None);
    explain(client, target, args.reason.as_ref(), attachment.local_address());
    let cutter = attachment.cutter();
    end_on(patience.take_signals(), attachment.ender(), move || cutter.cut());
    let size = format_bytes(attachment.size_bytes());
    let mode = words_of(attachment.mode());
    say(format!("{target} attached as {} ({size}{mode})   (Ctrl-C or 'farbus detach' ends)", file.display()));
    say(format!(
        "  next: losetup --direct-io=on -f --show {0}, or qemu-system-x86_64 -drive file={0},format=raw",
        file.display()
    ));
    Ok(Some(attachment.run()))
}

fn attach_as_nbd(
    args: &AttachArgs,
    client: &Client,
    shown: &Shown,
    place: &Place,
    patience: &mut Patience<'_>,
) -> Result<Option<Ended>, Failure> {
    let target = &args.target;
    // Nothing is taken from anybody before; and whoever connects while the device is waited for waits, too.
    let entrance = client.hands().listen_at(place).map_err(Failure::local)?;
    let take = || match args.inherit {
        true => OpenedDisk::inherit(client, target),
        false => OpenedDisk::open(client, target, args.mode),
    };
    let Some(disk) = patience.have(take)? else { return Ok(None) };
    let attachment = NbdAttachment::over(disk, target, entrance)?;
    shown.stands(attachment.standing(), Some(attachment.mode()));
    shown.attached(attachment.uri(), attachment.ender(), Some(attachment.meters()));
    shown.state().gate = attachment.gate();
    explain(client, target, args.reason.as_ref(), attachment.local_address());
    let cutter = attachment.cutter();
    end_on(patience.take_signals(), attachment.ender(), move || cutter.cut());
    let served = Served { uri: attachment.uri().to_owned(), name: String::new(), size_bytes: attachment.size_bytes() };
    let how = if args.inherit { " to be handed over, and read meanwhile," } else { " attached" };
    say_served(&format!("{target}{how}{}", words_of(attachment.mode())), &[served], args.json)?;
    Ok(Some(attachment.run()))
}

fn lend_to_guests(
    args: &AttachArgs,
    client: &Client,
    shown: &Shown,
    place: &Place,
    patience: &mut Patience<'_>,
) -> Result<Option<Ended>, Failure> {
    let target = &args.target;
    let entrance = client.hands().listen_at(place).map_err(Failure::local)?;
    let take = if args.inherit { Lent::inherit } else { Lent::take };
    let Some(lent) = patience.have(|| take(client, target))? else { return Ok(None) };
    let attachment = RedirAttachment::over(lent, entrance)?;
    let place = attachment.place().clone();
    shown.stands(attachment.standing(), None);
    shown.attached(&place.to_string(), attachment.ender(), Some(attachment.meters()));
    shown.state().gate = Some(attachment.gate());
    explain(client, target, args.reason.as_ref(), attachment.local_address());
    end_on(patience.take_signals(), attachment.ender(), || ());
    let how = if args.inherit { "waits to be handed over at" } else { "attached at" };
    say(format!("{target} {how} {place}   (Ctrl-C or 'farbus detach' ends)"));
    let (id, options) = (format!("farbus-{}", plain_name(&target.device)), place.chardev_options());
    say(format!(
        "  next: qemu-system-x86_64 -device qemu-xhci -chardev socket,id={id},{options} -device usb-redir,chardev={id}\n  \
         or, in the monitor of one that runs: chardev-add socket,id={id},{options}\n  \
                                              device_add usb-redir,id={id},chardev={id}"
    ));
    Ok(Some(attachment.run()))
}

/// What is worth saying of how a disk is used.
const fn words_of(mode: DiskMode) -> &'static str {
    match mode {
        DiskMode::Exclusive => "",
        DiskMode::Read => ", to be read",
    }
}

/// Where a disk's file appears unless somebody says otherwise.
pub fn default_folder(target: &Target) -> PathBuf {
    folder().join(target.device.replace('/', "_"))
}

/// Tells an exporter what its device is needed for, as far as it can be told.
pub fn explain(client: &Client, target: &Target, reason: Option<&String>, user: Option<SocketAddr>) {
    if let Some(reason) = reason
        && let Err(error) = client.explain(target, reason, user)
    {
        tracing::info!(%error, "nobody was told the reason");
    }
}

/// What the system refused is said once: a disk under memory pressure may then wait for itself.
pub fn report_protection(protection: &Protection) {
    if !protection.is_complete() {
        tracing::info!("{protection}");
    }
}

/// The first signal ends the attachment in good order; a second one does not wait for a disk to be durable.
fn end_on(mut signals: Signals, ender: Ender, cut: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            ender.end();
        }
        if signals.next().is_some() {
            cut();
        }
    });
}

/// What a status shows, from the first try on.
struct Shown {
    target: Target,
    reason: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    at: String,
    since: Option<Instant>,
    ender: Option<Ender>,
    meters: Option<Arc<Meters>>,
    gate: Option<Gate>,
    standing: Option<Standing>,
    mode: Option<DiskMode>,
    is_ending: bool,
}

impl Shown {
    fn new(args: &AttachArgs) -> Self {
        Self { target: args.target.clone(), reason: args.reason.clone(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attached(&self, at: &str, ender: Ender, meters: Option<Arc<Meters>>) {
        let mut state = self.state();
        if state.is_ending {
            ender.end();
        }
        (state.at, state.since) = (at.to_owned(), Some(Instant::now()));
        (state.ender, state.meters) = (Some(ender), meters);
    }

    fn stands(&self, standing: Option<Standing>, mode: Option<DiskMode>) {
        let mut state = self.state();
        (state.standing, state.mode) = (standing, mode);
    }

    fn gate(&self) -> Option<Gate> {
        self.state().gate.clone()
    }

    /// Whether its owner wants it to end, attached or not.
    fn is_ending(&self) -> bool {
        self.state().is_ending
    }

    fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Status => self.status(),
            Question::Detach { device } if device.as_deref().is_none_or(|asked| self.is_meant(asked)) => {
                let mut state = self.state();
                state.is_ending = true;
                if let Some(ender) = &state.ender {
                    ender.end();
                }
                Answer::Ok(serde_json::Value::Null)
            }
            Question::Migrate { device, heir } if self.is_meant(&device) => {
                let (gate, standing) = (self.gate(), self.state().standing.clone());
                answer_of_heir(gate.as_ref(), standing.as_ref(), &heir)
            }
            Question::Hold { device } if self.is_meant(&device) => answer_of_gate(self.gate().as_ref(), Gate::hold),
            Question::Resume { device } if self.is_meant(&device) => answer_of_gate(self.gate().as_ref(), Gate::go_on),
            Question::Pause { device, is_paused } if self.is_meant(&device) => {
                let standing = self.state().standing.clone();
                answer_of_pause(standing.as_ref(), is_paused)
            }
            Question::Version
            | Question::Hold { .. }
            | Question::Resume { .. }
            | Question::Pause { .. }
            | Question::Migrate { .. }
            | Question::Detach { .. }
            | Question::Type { .. }
            | Question::Eject { .. }
            | Question::Insert { .. }
            | Question::Release { .. }
            | Question::Explain { .. }
            | Question::Swap { .. }
            | Question::SwapStatus { .. }
            | Question::SwapCancel { .. }
            | Question::Promise { .. }
            | Question::Reload
            | Question::Restart { .. }
            | Question::Sleep { .. }
            | Question::Topology { .. }
            | Question::Wake => Answer::Unknown,
        }
    }

    fn is_meant(&self, asked: &str) -> bool {
        asked == self.target.device
            || asked == self.target.to_string()
            || asked.parse::<Target>().is_ok_and(|asked| asked == self.target)
    }

    fn status(&self) -> Answer {
        let state = self.state();
        let device = AttachmentStatus {
            name: self.target.device.clone(),
            title: self.target.to_string(),
            state: if state.since.is_some() { "attached" } else { "waiting" },
            user: self.target.address.clone(),
            at: state.at.clone(),
            reason: self.reason.clone(),
            used_s: state.since.map(|since| since.elapsed().as_secs_f64()).unwrap_or_default(),
            mode: state.mode.map(DiskMode::as_str),
            link_lost_s: None,
            latency: None,
            reservation: None,
            counts: BTreeMap::new(),
            drift_us: None,
            links: None,
            meters: state.meters.as_ref().map(|meters| meters.read()),
        };
        let device = device.with_standing(state.standing.as_ref());
        let address = self.target.address.clone();
        ProcessStatus { pid: std::process::id(), role: "attach", address, devices: vec![device] }.answer()
    }
}

/// Hands a session's device over, behind its virtual machine if one may have it; says so where there is none.
pub fn answer_of_heir(gate: Option<&Gate>, standing: Option<&Standing>, heir: &str) -> Answer {
    let refused = |why: &str| Answer::Refused(why.to_owned());
    let Ok(heir) = heir.parse::<Fingerprint>() else { return refused("that is no key") };
    if let Some(gate) = gate {
        return match gate.hand_over(*heir.as_bytes()) {
            Ok(granted) => Answer::Ok(serde_json::json!({ "machine": granted == Granted::ToUser })),
            Err(why) => Answer::Refused(why.to_owned()),
        };
    }
    match standing {
        Some(standing) => match standing.bequeath(*heir.as_bytes()) {
            Ok(()) => Answer::Ok(serde_json::Value::Null),
            Err(why) => refused(why),
        },
        None => refused("it has no session that could be handed over (a paired host, or --grace SECONDS)"),
    }
}

/// Lets nothing pass a device's modules, or all again; says so where there are none.
pub fn answer_of_pause(standing: Option<&Standing>, is_paused: bool) -> Answer {
    let no_session = Err("it has no session, and so no modules (farbus attach --module pause)");
    match standing.map_or(no_session, |standing| standing.pause(is_paused)) {
        Ok(()) => Answer::Ok(serde_json::Value::Null),
        Err(why) => Answer::Refused(why.to_owned()),
    }
}

/// Does something with what holds a virtual machine's device still; says so where there is none.
pub fn answer_of_gate(gate: Option<&Gate>, act: impl FnOnce(&Gate) -> Result<Granted, &'static str>) -> Answer {
    match gate.map(act) {
        Some(Ok(_)) => Answer::Ok(serde_json::Value::Null),
        Some(Err(why)) => Answer::Refused(why.to_owned()),
        None => Answer::Refused("no virtual machine is lent this device (--via redir or nbd)".to_owned()),
    }
}

pub fn hold(args: MovingArgs) -> Result<(), Failure> {
    ask_owner(&args.device, Question::Hold { device: args.device.clone() })
}

pub fn resume(args: MovingArgs) -> Result<(), Failure> {
    ask_owner(&args.device, Question::Resume { device: args.device.clone() })
}

pub fn detach(args: DetachArgs) -> Result<(), Failure> {
    let name = args.device.map_or_else(only_one_attached, Ok)?;
    // Whoever has it under that name: they may be several.
    let answers = ask_all(&Question::Detach { device: Some(name.clone()) }).map_err(Failure::local)?;
    heard(&name, answers.into_iter().map(|(_, answer)| answer)).map(drop)
}

/// What is meant when nothing is named.
fn only_one_attached() -> Result<String, Failure> {
    let mut attached = Vec::new();
    for (_, answer) in ask_all(&Question::Status).map_err(Failure::local)? {
        let Answer::Ok(process) = answer else { continue };
        let devices = process["devices"].as_array().into_iter().flatten();
        // A daemon lists what it shares, too: that has a bus id.
        let here = devices.filter(|device| device["bus_id"].is_null() && device["state"] != "detached");
        attached.extend(here.filter_map(|device| device["title"].as_str().map(str::to_owned)));
    }
    match attached.len() {
        0 => Err(Failure::new(Attribute::Gone, "nothing is attached here")),
        1 => Ok(attached.remove(0)),
        _ => Err(Failure::local(format!("which one? farbus detach {}", attached.join(" | ")))),
    }
}
