//! `farbus share`.

pub mod by_daemon;
mod replugged;
pub mod words;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus::broker::confined::{give_rights_away, start_broker};
use farbus::broker::{BrokerClient, BrokerPolicy, SystemAccess};
use farbus::common::listen_words::{everywhere, listen_address, listen_failure, listen_place};
use farbus::common::networks::IpNetwork;
use farbus::common::socket_access::SocketMode;
use farbus::common::socket_place::{SocketListener, SocketLocation};
use farbus::devices::class_words::name_of;
use farbus::devices::follow::{FollowPolicy, FollowWord};
use farbus::devices::identities::naming::DeviceNaming;
use farbus::devices::reservation::{ReservationRequest, together};
use farbus::exporter::access::local_users::{LocalUser, LocalUsers};
use farbus::exporter::owner_answers::{ServedAt, answer};
use farbus::exporter::share::{DEFAULT_PORT, Share};
use farbus::exporter::sources::making::{expect, offer};
use farbus::exporter::sources::usb;
use farbus::exporter::sources::what::DeviceSpec;
use farbus::hosts::mdns::{MdnsProcess, MdnsRegistration};
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::HOLD;
use farbus::importer::discovery::local_shares;
use farbus::link::modules::allowed;
use farbus_control::failure::FailureKind;
use farbus_control::share::{ListeningPlace, ShareReport, SharedNow};
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::usb::{HotplugMonitor, UsbDeviceSelector};
use farbus_io_net::discovery::{AnnouncedProtocol, HostAnnouncement};
use farbus_io_net::link::host_address::SECURE_PORT;
use farbus_io_net::link::{PLAIN_SILENCE, TcpLinkListener};
use farbus_io_net::local::control_socket::ControlSocket;
use farbus_io_net::store::create_output;
use farbus_io_net::trust::{AuditLog, AuditRecorder, HostFolder, host_name};
use farbus_model::budget::MemoryBudget;
use farbus_modules::ModuleSpec;
use farbus_session::DeviceRecord;
use farbus_session::device_class::DeviceClassName;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::warn;

use super::CommandFailure;
use super::link_args::{hold_from, silence_from};
use super::output::print_json;
use by_daemon::{RunningDaemon, ShareLifetime};
use words::{ShareReach, ShareSpec, quoted_all, say_device, say_of_serial_port, say_place, say_what_to_type};

/// The default of `--peer-memory`.
pub const PEER_MEMORY_MIB: u32 = (MemoryBudget::DEFAULT.peer_bytes >> 20) as u32;
/// The default of `--peer-devices`.
const PEER_DEVICES: u32 = MemoryBudget::DEFAULT.devices_max as u32;

/// Offer devices to other machines until interrupted.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("own").multiple(true),
    group = clap::ArgGroup::new("answered").multiple(true),
    after_help = "Examples:\n  \
        farbus share disk:backup.img               on this machine\n  \
        farbus share disk:backup.img --secure      for paired hosts, too\n  \
        farbus share disk:/dev/sdb,ro zero keyboard\n  \
        farbus share disk:a.img,name=music disk:b.img,name=photos\n  \
        farbus share --list                        USB devices; share one: usb:1-1.4\n  \
        farbus share disk:backup.img --keep        the daemon keeps it\n\n\
        Where a daemon of yours runs, it shares the devices, until this command ends. With an option that says where to listen, whom to serve or how, this command shares them itself.\n\n\
        'farbus share --help' lists what WHAT may be.",
    after_long_help = "WHAT is one of:\n  \
        disk:PATH[,ro][,sector=BYTES]\n      \
        a file or block device: a block device for paired hosts, a USB disk for\n      \
        others; one user who writes, or many who read\n  \
        disk:PATH,offset=BYTES,size=BYTES\n      \
        a part of it\n  \
        disk:PATH,scratch[=BYTES|=/PATH]\n      \
        each user has changes of their own, which go away; PATH stays as it is\n  \
        disk:PATH,force\n      \
        also if this machine uses it: mounted, as swap, in another program\n  \
        block:…, memory:SIZE\n      \
        the same, called 'block'; a disk in memory\n  \
        zero[,speed=SPEED][,fill=FILL][,verify]\n      \
        source and sink; SPEED is full, high or super, FILL is zeros or mod63\n      \
        (usbtest's pattern 1)\n  \
        keyboard\n      \
        types what 'farbus type' tells it\n  \
        serial[,speed=SPEED]\n      \
        a serial adapter that returns what is sent to it\n  \
        dfu\n      \
        a device in DFU mode, for 'dfu-util': 1 MiB of firmware, in memory\n  \
        fastboot\n      \
        a device in fastboot mode, for 'fastboot': partitions boot and data, of\n      \
        16 MiB each, in memory\n  \
        cmsis-dap\n      \
        a debug probe with a Cortex-M4 that executes no instruction, for OpenOCD\n      \
        and pyOCD\n  \
        can[,channels=N][,traffic=SHARES]\n      \
        a USB-CAN adapter with a bus behind each channel; traffic=10/20x: a unit\n      \
        takes 10 % of the first bus, and one 20 % of the second with long\n      \
        identifiers\n  \
        bridge[,speed=SPEED][,id=TEXT]\n      \
        joins two hosts: each attaches one end, bridge-a or bridge-b, and has a\n      \
        network adapter and a raw pair of endpoints; addresses are derived from\n      \
        this host's name, or from TEXT\n  \
        audio[,speed=SPEED]\n      \
        a sound card whose microphone hears a tone; 'farbus status' counts what\n      \
        its speaker is sent\n  \
        stream:pattern[,size=640x480][,format=rgb24][,rate=30]\n      \
        frames of a test picture, for 'farbus stream read'\n  \
        stream:PATH,size=WxH[,format=FORMAT][,rate=FPS]\n  \
        stream:PATH,frame=BYTES\n      \
        frames out of a FIFO, a device or a file; FORMAT is rgb24, grey or yuyv\n  \
        usb:BUSID[,follow=WHICH], usb:VENDOR:PRODUCT, usb:serial=TEXT\n      \
        a USB device of this machine, which its drivers lose meanwhile; which\n      \
        other one in its port is taken for it: WHICH is VENDOR:PRODUCT or port\n\n\
        Each may end in ',name=NAME', which names it. Without that farbus numbers them (disk, disk2) in the order in which they are typed.\n\n\
        Examples:\n  \
        farbus share disk:backup.img\n  \
        farbus share disk:/dev/sdb,ro zero keyboard\n  \
        farbus share --list                     USB devices, and what prevents sharing\n  \
        farbus share usb:1-1.4 usb:046d:c52b\n  \
        farbus share usb:1-1.4 --follow 18d1:9302   a board that becomes another one\n  \
        farbus share disk:a.img,name=music disk:b.img,name=photos\n  \
        farbus share disk:backup.img --secure   paired hosts, see 'farbus pair'\n  \
        farbus share zero --listen loopback     port 3240, for this machine's 'usbip'\n  \
        farbus share zero --listen 0.0.0.0:3240 everybody: see the warning it prints\n  \
        farbus share zero --listen unix:/run/zero.sock --socket-mode 660\n  \
        farbus share disk:backup.img --save     the daemon shares it from now on\n\n\
        Where a daemon of yours runs, it shares the devices, until this command ends. With an option that says where to listen, whom to serve or how, this command shares them itself.\n\n\
        On this machine, type 'farbus attach disk'. On another one, type 'farbus attach HOST/disk', or 'usbip attach -r HOST -b 1-1'."
)]
pub struct Args {
    /// What to offer; several at once.
    #[arg(required_unless_present = "list")]
    what: Vec<ShareSpec>,
    /// Show which USB devices could be shared.
    ///
    /// Each other device is shown with what prevents sharing it.
    #[arg(long, conflicts_with = "what", group = "answered")]
    list: bool,
    /// Print JSON, for programs: what is shared, as soon as it is.
    #[arg(long)]
    json: bool,
    /// Share a disk that this machine uses itself.
    ///
    /// Without it, farbus refuses to let others write an image that is mounted, a loop device, swap, or open in another
    /// program here: two that write it destroy what is on it. As the word 'force' behind its path.
    #[arg(long)]
    force: bool,
    /// Another device in the port that is this one, too.
    ///
    /// VENDOR:PRODUCT, or 'port'. For boards that become another device while they are flashed. It has the
    /// permissions, the lease and the queue of the first device in the port; without this option it has the name and
    /// bus id alone. 'port' follows whatever is there. Disks are never followed. May be given several times; the same
    /// as ',follow=…' behind usb:BUSID.
    #[arg(long, value_name = "WHICH", conflicts_with = "list")]
    follow: Vec<FollowWord>,
    /// Let the running daemon keep it, and end.
    ///
    /// It is shared until 'farbus unshare', or until the daemon ends; 'farbus daemon restart' keeps it. A USB
    /// device of this machine is shared until it is unplugged: with --save, or without either, also when it is plugged
    /// in again.
    #[arg(long, group = "answered", conflicts_with = "own")]
    keep: bool,
    /// Like --keep, and add it to the daemon's configuration.
    ///
    /// An entry [[share]] with its name is appended to the file.
    #[arg(long, group = "answered", conflicts_with = "own")]
    save: bool,
    /// Where to listen without encryption.
    ///
    /// ADDR[:PORT], unix:PATH, 'loopback' (port 3240 of this machine alone) or 'none'. May be given several times.
    /// Without it, farbus listens at a socket of yours in the runtime folder, where 'farbus attach DEVICE' looks.
    #[arg(long, group = "own", value_name = "ADDR")]
    listen: Vec<String>,
    /// Local users served by TCP, besides you, root.
    ///
    /// Names or numbers, separated by commas, or 'all'. The option is about connections of this machine without
    /// encryption. May be given several times.
    #[arg(long, group = "own", value_name = "NAMES", value_delimiter = ',')]
    local_users: Vec<LocalUser>,
    /// Mode of a unix:PATH socket.
    ///
    /// 600: its owner may connect. 660: its group, too. 666: every user of this machine.
    #[arg(long, group = "own", value_name = "MODE", default_value = "600")]
    socket_mode: SocketMode,
    /// Serve paired hosts, encrypted.
    ///
    /// At every address and port 3241, unless ADDR[:PORT] is given. Each host may use what 'farbus allow' says.
    #[arg(long, group = "own", value_name = "ADDR", num_args = 0..=1, default_missing_value = "")]
    secure: Option<String>,
    /// Announce nothing to hosts nearby.
    ///
    /// Without it, mDNS tells hosts of the same network this host's name (FARBUS_NAME, or its host name), address, port
    /// and fingerprint, so that they find it by its name. Devices are not announced.
    #[arg(long, group = "own")]
    no_announce: bool,
    /// Let others observe what devices send.
    ///
    /// Every host that may use a device may then observe it while another uses it ('farbus observe', and of a stream
    /// 'farbus stream read --observe'). That includes what somebody types on a keyboard.
    #[arg(long, group = "own")]
    observable: bool,
    /// Allow importers this module.
    ///
    /// NAME[:KEY=VALUE,…]. Modules that need nothing of this host are always allowed: see 'farbus module list'. May be
    /// given several times.
    #[arg(long, group = "own", value_name = "NAME")]
    allow_module: Vec<ModuleSpec>,
    /// Reserve bus and processor for a device.
    ///
    /// DEVICE:bytes=N,period=N[,criticality=low][,endpoint=0x83]: for every user of the device with this name, so many
    /// bytes each period, in microframes of 125 µs (frames of 1 ms at low and full speed). May be given several times.
    /// An importer may ask for something else ('farbus attach --reserve').
    #[arg(long, group = "own", value_name = "WORDS")]
    reserve: Vec<DeviceReservation>,
    /// Addresses that may reserve as high.
    ///
    /// ADDR[/BITS]: hosts that connect from there without encryption may reserve with high criticality, as programs
    /// of this machine may. For paired hosts use 'farbus allow --reserve-high'. May be given several times.
    #[arg(long, group = "own", value_name = "ADDR")]
    reserve_high: Vec<IpNetwork>,
    /// Memory for each peer, in MiB.
    ///
    /// So much may a peer that uses devices make this process hold, 16 to 65536. A peer that uses none has 64 at most.
    #[arg(long, group = "own", value_name = "MIB", default_value_t = PEER_MEMORY_MIB, value_parser = clap::value_parser!(u32).range(16..=65536))]
    peer_memory: u32,
    /// Devices that one host may use.
    ///
    /// So many devices of this process may one paired host use at a time, or one user of this machine, 1 to 65536. All
    /// of them together may use four times as many.
    #[arg(long, group = "own", value_name = "N", default_value_t = PEER_DEVICES, value_parser = clap::value_parser!(u32).range(1..=65536))]
    peer_devices: u32,
    /// How long a device that moves may wait, in s.
    ///
    /// A device that its user hands over to another host ('farbus migrate') waits for that host for so long, 1 to 120
    /// s, and a disk for 25 s at most. If the user's own limit ('farbus attach --hold') is shorter, that counts.
    #[arg(long, group = "own", value_name = "SECONDS", default_value = "20", value_parser = hold_from)]
    hold: Duration,
    /// How long a plain connection may be silent, in s.
    ///
    /// A host that uses a device without a session and acknowledges nothing for so long, 2 to 3600 s, has lost it. A
    /// connection that is closed or reset ends at once.
    #[arg(long, group = "own", value_name = "SECONDS", default_value = "20", value_parser = silence_from)]
    silence: Duration,
    /// Write requests, stage by stage, to FILE.
    ///
    /// The last requests of each session, as lines of JSON, when the session ends.
    #[arg(long, group = "own", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Keep the rights of the user who started it.
    ///
    /// Without it, the process that reads from the network runs as a user without rights, sees no files and makes no
    /// connections by itself.
    #[arg(long, group = "own")]
    no_sandbox: bool,
}

impl Args {
    /// Whether an option was given that a process of its own has to heed.
    fn is_own_process(&self) -> bool {
        let listens = !self.listen.is_empty() || self.secure.is_some() || self.socket_mode != SocketMode::default();
        let admits = !self.local_users.is_empty() || self.observable || !self.reserve_high.is_empty();
        let serves = !self.allow_module.is_empty() || !self.reserve.is_empty();
        let limits = self.peer_memory != PEER_MEMORY_MIB || self.peer_devices != PEER_DEVICES;
        let waits = self.hold != HOLD || self.silence != PLAIN_SILENCE;
        listens || admits || serves || limits || waits || self.trace.is_some() || self.no_sandbox
    }

    /// Whether `--json` was given.
    pub fn is_for_programs(&self) -> bool {
        self.json
    }
}

pub fn run(mut args: Args) -> Result<(), CommandFailure> {
    if args.list {
        return super::inventory::run(args.json);
    }
    args.what = as_followed(args.what, &args.follow, args.force)?;
    if shared_by_daemon(&args)? {
        return Ok(());
    }
    let share = Arc::new(Share::default());
    share.show_labels(SystemAccess::Own);
    let (control_socket, control_listener) = ControlSocket::bind().map_err(CommandFailure::local)?;
    let users =
        LocalUsers::of(&args.local_users, |name| SystemAccess::Own.user_number(name)).map_err(CommandFailure::local)?;
    share.serve_local_users(users);
    // Report first that a device is not plugged in, whether or not the port is free.
    usb::check_present(args.what.iter().filter_map(|called| called.what.usb()))
        .map_err(|error| CommandFailure::new(error.attribute(), error))?;
    // For the same reason open what needs no broker first. The broker has to know the sockets' paths when it starts.
    let has_usb = args.what.iter().any(|called| called.what.usb().is_some());
    fn naming<'a>(ShareSpec { what, name, .. }: &'a ShareSpec) -> DeviceNaming<'a> {
        name.as_deref().map_or(DeviceNaming::Automatic(what.kind()), DeviceNaming::Given)
    }
    let offer_all = |real: &mut Option<usb::SharedUsbDevices>| {
        expect(&SystemAccess::Own, args.what.iter().map(|called| (naming(called), &called.what)));
        let offer_one = |called: &ShareSpec| offer(&share, real, &SystemAccess::Own, naming(called), &called.what);
        args.what.iter().map(offer_one).collect::<Result<Vec<Vec<DeviceRecord>>, _>>()
    };
    if has_usb {
        check_images(&args.what)?;
    }
    let offered_first = if has_usb { None } else { Some(offer_all(&mut None)?) };
    warn_of_partial_sectors(&args.what);
    let plain = bind_all_plain(&args.listen, args.socket_mode)?;
    let paths = plain.iter().filter_map(|(_, location)| location.path().cloned());
    let remove = paths.chain([control_socket.path().to_owned()]).collect();
    let usb: Vec<String> =
        args.what.iter().filter_map(|called| called.what.usb()).map(UsbDeviceSelector::to_string).collect();
    let broker_policy = BrokerPolicy { remove, usb, schedules: true, ..BrokerPolicy::default() };
    let broker = if has_usb || !args.no_sandbox { Some(Arc::new(start_broker(&broker_policy)?)) } else { None };
    let mut real = broker.clone().filter(|_| has_usb).map(usb::SharedUsbDevices::new);
    let offered = offered_first.map_or_else(|| offer_all(&mut real), Ok)?;
    tell_devices(&share, &args, &offered);
    configure(&share, &args)?;
    // Catch signals before any program can know where this one listens.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
    let mut secure = args.secure.as_deref().map(bind_secure).transpose()?;
    let trust = secure.as_ref().map(|secure| secure.trust.clone());
    let served = first_address(&plain, secure.as_ref())?;
    let confining = broker.as_ref().filter(|_| !args.no_sandbox);
    if let Some(recorder) = recorder(confining)? {
        share.record_by(Arc::clone(&recorder));
        secure = secure.map(|secure| PairedHostListener { trust: secure.trust.recorded_by(recorder), ..secure });
    }
    let wanted = if args.no_announce { Vec::new() } else { announcements(&plain, secure.as_ref()) };
    let started = (!wanted.is_empty()).then(MdnsProcess::start).transpose();
    let nearby = started.inspect_err(|error| warn!(%error, "nothing will be announced")).ok().flatten();
    // Everything that needs rights is open: drop them before the first thread starts that may read input from the
    // network.
    let deaf = |error| CommandFailure::local(format!("cannot hear what is plugged in: {error}"));
    let hotplug = has_usb.then(HotplugMonitor::new).transpose().map_err(deaf)?;
    share.keep_retirements(kept_through(&share, confining)?);
    if !args.no_sandbox {
        // With real devices the process reads sysfs; with paired hosts it reads the list of peers.
        let readable = if has_usb { vec!["/sys".into()] } else { Vec::new() };
        let state = secure
            .as_ref()
            .map(|secure| secure.trust.folder().hand_over())
            .transpose()
            .map_err(CommandFailure::local)?;
        give_rights_away(&ConfinementNeeds { readable, state, ..ConfinementNeeds::default() })?;
    }
    if let Some(broker) = confining {
        share.ask_through(SystemAccess::Through(Arc::new(broker.line().map_err(CommandFailure::local)?)));
    }
    let for_control_socket = Arc::clone(&share);
    control_socket
        .open(control_listener, move |question, files| answer(&for_control_socket, &served, question, files))
        .map_err(CommandFailure::local)?;
    let listening = listen(&share, plain, secure)?;
    startup_memory::give_back();
    // And what the last steps of the start need.
    startup_memory::give_back_soon();
    tell_places(&share, &args, &offered, &listening)?;
    let announced = nearby.map(|nearby| MdnsRegistration::keep(nearby, wanted)).transpose();
    let announced = announced.map_err(CommandFailure::local)?;
    if !args.json {
        tell_next(&share, &args, &offered, trust.as_ref());
    }
    let follower = real.map(|real| usb::HotplugFollower::start(Arc::clone(&share), real, hotplug)).transpose();
    let mut follower = follower.map_err(deaf)?;
    signals.forever().next();
    drop(announced);
    follower.iter_mut().for_each(usb::HotplugFollower::stop);
    let is_durable = share.stop();
    // Each device went back to its drivers when it was dropped.
    follower.into_iter().for_each(usb::HotplugFollower::dismiss);
    drop(broker);
    let lost = || CommandFailure::local("a device did not become durable in time; its last writes may be lost");
    if is_durable { Ok(()) } else { Err(lost()) }
}

/// The address that the control socket tells: the first one for all, else the one for paired hosts.
fn first_address(
    plain: &[(SocketListener, SocketLocation)],
    secure: Option<&PairedHostListener>,
) -> Result<ServedAt, CommandFailure> {
    let for_all = plain.iter().map(|(_, location)| (location.as_host(), false));
    let for_paired_hosts = secure.map(|secure| (secure.address.to_string(), true));
    let first = for_all.chain(for_paired_hosts).next();
    let (address, is_for_paired_hosts) = first.ok_or_else(|| {
        CommandFailure::local("nobody could reach these devices: give --secure, or another --listen than 'none'")
    })?;
    Ok(ServedAt { address, is_for_paired_hosts })
}

/// The devices, as the options say what follows another one in their port.
fn as_followed(what: Vec<ShareSpec>, follow: &[FollowWord], is_forced: bool) -> Result<Vec<ShareSpec>, CommandFailure> {
    let follow = FollowPolicy::from_iter(follow.iter().copied());
    let followed = what.into_iter().map(|called| {
        let called = if is_forced { called.forced() } else { called };
        called.following(&follow)
    });
    let what: Vec<ShareSpec> = followed.collect::<Result<_, _>>().map_err(CommandFailure::local)?;
    let all = what.iter().map(|called| called.what.follow());
    all.reduce(|all, follow| all.and(&follow)).iter().for_each(FollowPolicy::warn_if_any);
    Ok(what)
}

/// Who writes the audit log: the process with the rights, or this one.
fn recorder(confining: Option<&Arc<BrokerClient>>) -> Result<Option<Arc<dyn AuditRecorder>>, CommandFailure> {
    Ok(match confining {
        Some(broker) => Some(Arc::new(broker.line().map_err(CommandFailure::local)?)),
        None => own_audit(),
    })
}

/// Who stores what outlives this process: the process with the rights, which is told what is shared, or this one.
fn kept_through(share: &Share, confining: Option<&Arc<BrokerClient>>) -> Result<SystemAccess, CommandFailure> {
    let Some(broker) = confining else { return Ok(SystemAccess::Own) };
    broker.note_shared(share.identified()).map_err(CommandFailure::local)?;
    share.write_leases_through(broker).map_err(CommandFailure::local)?;
    Ok(SystemAccess::Through(Arc::new(broker.line().map_err(CommandFailure::local)?)))
}

/// Serves importers at these places from now on.
fn listen(
    share: &Arc<Share>,
    plain: Vec<(SocketListener, SocketLocation)>,
    secure: Option<PairedHostListener>,
) -> Result<Vec<ListeningPlace>, CommandFailure> {
    let mut listening = Vec::new();
    for (listener, location) in plain {
        share.listen_at(listener, None).map_err(CommandFailure::local)?;
        listening.push(ListeningPlace { at: location.as_host(), is_secure: false });
    }
    if let Some(PairedHostListener { listener, datagrams, address, trust }) = secure {
        let beside = share.listen_secure_on(listener, trust).map_err(CommandFailure::local)?;
        datagrams.map_or(Ok(()), |socket| beside.serve(socket)).map_err(CommandFailure::local)?;
        listening.push(ListeningPlace { at: address.to_string(), is_secure: true });
    }
    Ok(listening)
}

/// Sets what the options say of all devices and their users.
fn configure(share: &Share, args: &Args) -> Result<(), CommandFailure> {
    reserve(share, &args.reserve)?;
    share.allow_reserve_high(args.reserve_high.clone());
    share.show(args.observable);
    share.limit_plain_silence(args.silence);
    let budget = MemoryBudget::DEFAULT.with_peer_bytes((args.peer_memory as usize) << 20);
    share.set_budget(budget.with_devices(args.peer_devices as usize));
    share.wait_for_successors(args.hold);
    share.allow_modules(allowed(&args.allow_module).map_err(CommandFailure::local)?);
    if let Some(path) = &args.trace {
        let file = create_output(path, 0o666);
        share.trace_to(
            file.map_err(|error| CommandFailure::local(format!("cannot write {}: {error}", path.display())))?,
        );
    }
    Ok(())
}

/// Prints the devices, unless a program reads.
fn tell_devices(share: &Share, args: &Args, offered: &[Vec<DeviceRecord>]) {
    for record in offered.iter().flatten().filter(|_| !args.json) {
        let SharedNow { name, bus_id, ids, speed, .. } = share.shared_now(record);
        say_device(&name, &bus_id, &ids, &speed);
    }
}

/// Prints where this process listens; for a program, with what it shares.
fn tell_places(
    share: &Share,
    args: &Args,
    offered: &[Vec<DeviceRecord>],
    listening: &[ListeningPlace],
) -> Result<(), CommandFailure> {
    if !args.json {
        listening.iter().for_each(|location| say_place(location, "Ctrl-C ends"));
        return Ok(());
    }
    let devices = offered.iter().flatten().map(|record| share.shared_now(record)).collect();
    let (pid, listening) = (std::process::id(), listening.to_vec());
    print_json(&ShareReport { pid, devices, listening, ..ShareReport::default() })
}

/// Prints what to type in order to use the devices.
fn tell_next(share: &Share, args: &Args, offered: &[Vec<DeviceRecord>], trust: Option<&TrustStore>) {
    if let (true, Some(record)) = (args.listen.is_empty(), offered.iter().flatten().next()) {
        let device = name_of(record);
        let reach = ShareReach::of(trust, device, share.id_of(device), None);
        say_what_to_type(device, device, &quoted_all(&args.what), &host_name(), &reach);
    }
    let is_serial = |record: &&DeviceRecord| {
        DeviceClassName::SERIAL.is_of((record.vendor, record.product), record.interfaces.iter().copied())
    };
    offered.iter().flatten().filter(is_serial).for_each(|it| say_of_serial_port(name_of(it)));
}

/// Lets the daemon of this user share the devices, if there is one and nothing speaks against it. Returns whether it
/// did.
fn shared_by_daemon(args: &Args) -> Result<bool, CommandFailure> {
    let until = match (args.save, args.keep) {
        (true, _) => ShareLifetime::Saved,
        (false, true) => ShareLifetime::Unshared,
        (false, false) => ShareLifetime::Interrupted,
    };
    let has_to = until != ShareLifetime::Interrupted;
    if args.is_own_process() {
        return Ok(false);
    }
    let Some(daemon) = RunningDaemon::find()? else {
        return match has_to {
            true => Err(CommandFailure::new(
                FailureKind::Gone,
                "no daemon of yours runs here that could keep it\n  start one: farbus daemon --config FILE",
            )),
            false => Ok(false),
        };
    };
    warn_of_partial_sectors(&args.what);
    let is_shared =
        args.what.iter().all(|called| daemon.takes(&called.what)) && daemon.share(&args.what, until, args.json)?;
    match is_shared || !has_to {
        true => Ok(is_shared),
        false => Err(CommandFailure::new(
            FailureKind::Refused,
            "the daemon is of an earlier release, which does not share this for others\n  farbus daemon restart",
        )),
    }
}

/// Fails if a disk image is missing. Only this much can be checked before a share with USB devices listens.
fn check_images(what: &[ShareSpec]) -> Result<(), CommandFailure> {
    let disks = what.iter().filter_map(|called| match &called.what {
        DeviceSpec::Disk { spec, .. } => Some(spec),
        _ => None,
    });
    // The medium comes first; farbus makes a file for scratch.
    for (image, _) in disks.filter_map(|spec| spec.images().next()) {
        std::fs::metadata(image).map_err(|error| match error.kind() {
            ErrorKind::NotFound => CommandFailure::local(format!("{}: there is no such file", image.display())),
            _ => CommandFailure::local(format!("{}: {error}", image.display())),
        })?;
    }
    Ok(())
}

/// Warns of images whose last bytes are no whole sector: a USB disk ends before them.
fn warn_of_partial_sectors(what: &[ShareSpec]) {
    for called in what {
        let DeviceSpec::Disk { spec, sector_bytes, .. } = &called.what else { continue };
        let beyond = spec.bytes_beyond_sectors(*sector_bytes);
        if beyond > 0 {
            eprintln!(
                "farbus: warning: the size of {} is no multiple of {sector_bytes} bytes, a sector:\n  \
                 users of the USB disk cannot reach its last {beyond} bytes.",
                called.text
            );
        }
    }
}

/// A reservation for a device that this command shares.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceReservation {
    device: String,
    request: ReservationRequest,
}

impl FromStr for DeviceReservation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, request) = text
            .split_once(':')
            .ok_or_else(|| format!("'{text}' does not say for which device: zero:bytes=1024,period=8"))?;
        Ok(Self { device: device.to_owned(), request: request.parse()? })
    }
}

fn reserve(share: &Share, all: &[DeviceReservation]) -> Result<(), CommandFailure> {
    let mut devices: Vec<&str> = all.iter().map(|own| own.device.as_str()).collect();
    devices.dedup();
    for device in devices {
        let requests: Vec<ReservationRequest> =
            all.iter().filter(|own| own.device == device).map(|own| own.request.clone()).collect();
        if let Some(reservation) = together(&requests).map_err(CommandFailure::local)? {
            share.reserve(device, reservation).map_err(|error| CommandFailure::new(FailureKind::Refused, error))?;
        }
    }
    Ok(())
}

fn bind_all_plain(
    addresses: &[String],
    mode: SocketMode,
) -> Result<Vec<(SocketListener, SocketLocation)>, CommandFailure> {
    match addresses {
        // Always the owner's: `--socket-mode` applies to sockets that are named.
        [] => Ok(vec![bind_plain(&local_shares::place_of_process(), SocketMode::default())?]),
        addresses => {
            let address = addresses.iter().filter(|address| *address != "none");
            address.map(|address| bind_plain(&listen_place(address, DEFAULT_PORT)?, mode)).collect()
        }
    }
}

fn bind_plain(
    requested: &SocketLocation,
    mode: SocketMode,
) -> Result<(SocketListener, SocketLocation), CommandFailure> {
    let listener = requested.listen_for(&mode.into()).map_err(|error| listen_failure(requested, &error))?;
    let location = listener.location().map_err(CommandFailure::local)?;
    if let SocketLocation::Address(address) = location
        && !location.is_local()
    {
        eprintln!(
            "farbus: warning: {address} is not this machine alone. USB/IP has no password and no encryption:\n  \
             every program that reaches this address can use these devices and read what they say."
        );
    }
    Ok((listener, location))
}

/// The audit log of this user, written by this process itself; `None` if the user's folder does not exist, because no
/// key was ever made.
fn own_audit() -> Option<Arc<dyn AuditRecorder>> {
    let folder = HostFolder::of_user().ok().filter(|folder| folder.path().exists())?;
    Some(Arc::new(AuditLog::new(folder)))
}

/// The listener for paired hosts.
struct PairedHostListener {
    listener: TcpLinkListener,
    datagrams: Option<UdpSocket>,
    address: SocketAddr,
    trust: TrustStore,
}

/// What hosts nearby are told: each address that other machines reach, with what is spoken there.
fn announcements(
    plain: &[(SocketListener, SocketLocation)],
    secure: Option<&PairedHostListener>,
) -> Vec<HostAnnouncement> {
    let for_all = plain.iter().map(|(_, location)| (location.clone(), AnnouncedProtocol::Plain, None));
    let for_paired_hosts = secure.map(|secure| {
        let location = SocketLocation::Address(secure.address);
        (location, AnnouncedProtocol::Secure, Some(secure.trust.fingerprint().to_string()))
    });
    let announcement = |(location, kind, fingerprint): (SocketLocation, _, _)| match location {
        SocketLocation::Address(address) if !location.is_local() => {
            // Without addresses all of this machine's are announced.
            let addresses = Some(address.ip()).filter(|ip| !ip.is_unspecified()).into_iter().collect();
            let version = env!("CARGO_PKG_VERSION").to_owned();
            Some(HostAnnouncement { kind, port: address.port(), addresses, version, fingerprint })
        }
        _ => None,
    };
    let mut all: Vec<HostAnnouncement> = Vec::new();
    for wanted in for_all.chain(for_paired_hosts).filter_map(announcement) {
        // The addresses of both versions of IP, at one port, are one service.
        match all.iter_mut().find(|other| (other.kind, other.port) == (wanted.kind, wanted.port)) {
            Some(other) if wanted.addresses.is_empty() || other.addresses.is_empty() => other.addresses.clear(),
            Some(other) => other.addresses.extend(wanted.addresses),
            None => all.push(wanted),
        }
    }
    all
}

fn bind_secure(address: &str) -> Result<PairedHostListener, CommandFailure> {
    let trust = TrustStore::open()?;
    let addresses =
        if address.is_empty() { everywhere(SECURE_PORT) } else { vec![listen_address(address, SECURE_PORT)?] };
    let mut result = Err(CommandFailure::local("no address to listen at"));
    for address in addresses {
        result = bind(address);
        if result.is_ok() {
            break;
        }
    }
    let (listener, address) = result?;
    let datagrams = UdpSocket::bind(address);
    let datagrams = datagrams.inspect_err(|error| warn!(%address, %error, "no QUIC: its port is not to be had")).ok();
    Ok(PairedHostListener { listener, datagrams, address, trust })
}

fn bind(address: SocketAddr) -> Result<(TcpLinkListener, SocketAddr), CommandFailure> {
    let listener =
        TcpLinkListener::bind(address).map_err(|error| listen_failure(&SocketLocation::Address(address), &error))?;
    let address = listener.address().map_err(CommandFailure::local)?;
    Ok((listener, address))
}
