//! The broker: carries out the questions that its policy allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use farbus_control::device::RemoteIdentity;
use farbus_io_linux::frontend::fuse::{FuseMounter, MountKeeper, OwnMounter};
use farbus_io_linux::store::{FileStore, OtherUsers};
use farbus_io_linux::sys::cpuset::ExclusiveProcessor;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::sys::tcp_owner::peer_owner;
use farbus_io_linux::sys::users::user_number;
use farbus_io_linux::sys::vhci::{Vhci, VhciPort};
use farbus_io_linux::usb::{PluggedDevice, UsbInventory};
use farbus_io_net::link::{Link, SegmentSize};
use farbus_io_net::local::control_socket::{Question as OwnerQuestion, ask_all, running};
use farbus_io_net::store::frames;
use farbus_io_net::sys::passing::MessageSocket;
use farbus_io_net::trust::{AttachedDevice, AuditOutcome, DeviceId, Fingerprint, HostFolder};
use farbus_model::UsbSpeed;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::warn;

use super::addresses::TrustedHostAddresses;
use super::broker_policy::{BrokerPolicy, ReadConfig};
use super::identifying::IdentityResolver;
use super::lease_checks::LeaseChecks;
use super::protocol::{BrokerAnswer, BrokerRefusalKind, BrokerRequest, HandoverState, MountedAt, to_json};
use super::recording::{AuditRecording, RecordedUse};
use super::replacement;
use super::schedules::ThreadTimeShares;
use super::system_access::{
    attached_device, drivers, keep_attached_device, may_plug, notes_of, retirement_of, retirements_of, word_of,
};
use super::taken::DetachedUsbDevices;
use crate::common::processor_leases::ask_for;
use crate::common::socket_access::SocketAccess;
use crate::common::socket_place::SocketLocation;
use crate::common::terminal_link;
use crate::devices::identities::ExpectedImage;
use crate::devices::identities::naming::check_name;
use crate::devices::media_journal;
use crate::devices::retirement::RetirementStep;
use crate::hosts::known_host::{self, KnownHost};
use crate::hosts::reach::{self, AddressHints};

/// Lines at once: one for the process, three for each attachment.
const LINES_MAX: usize = 1024;
/// The longest string of a device, bytes: one of USB has 126 characters of UTF-16, of which a text makes 3 bytes each.
const STRING_BYTES_MAX: usize = 126 * 3;
/// Images that were passed and not opened yet: a disk, and the file of its users' changes.
const PASSED_IMAGES_MAX: usize = 2;
/// How long the page may take to end; then it is killed.
const PAGE_END_TIME_MAX: Duration = Duration::from_secs(2);
/// The longest time for connecting to a host.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the broker, `farbus broker`, with the passage as its standard input, until the confined process ends.
///
/// # Errors
/// The passage failed.
pub fn run(read_config: ReadConfig) -> io::Result<()> {
    // Ctrl-C goes to both processes; the broker ends after the confined one.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let passage = MessageSocket::over(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(parcel) = passage.receive()? else { return Ok(()) };
    // The path of this program, before an upgrade replaces the file.
    let program = std::env::current_exe().unwrap_or_default();
    let rights =
        Arc::new(BrokerServer { program, ..BrokerServer::new(serde_json::from_slice(&parcel.bytes)?, read_config) });
    let end = serve(&passage, &rights);
    rights.end();
    end
}

/// The policy of the confined process, and what was opened for it.
struct BrokerServer {
    broker_policy: Mutex<BrokerPolicy>,
    read_config: ReadConfig,
    taken: Mutex<DetachedUsbDevices>,
    mounts: Mutex<BTreeMap<u64, BrokerMount>>,
    mount_numbers: AtomicU64,
    ports: Mutex<BTreeSet<u32>>,
    /// The programs of the confined process. Their process descriptors stay valid even if the numbers are reused.
    programs: Vec<OwnedFd>,
    /// Processors that are isolated from all other programs.
    processors: Mutex<Vec<ExclusiveProcessor>>,
    /// The confined process, which started this one, and what its threads have of the processors.
    confined: Option<Pid>,
    schedules: Mutex<ThreadTimeShares>,
    /// Unix sockets that are listened at, and links to terminals.
    sockets: Mutex<BTreeMap<PathBuf, Option<SocketFile>>>,
    /// Terminals whose second descriptor has not been asked for, by their links.
    terminals: Mutex<BTreeMap<PathBuf, OwnedFd>>,
    lines: AtomicU64,
    addresses: Mutex<TrustedHostAddresses>,
    recording: AuditRecording,
    lease_checks: LeaseChecks,
    identifying: IdentityResolver,
    /// Images that the owner opened and passed, until the confined process opens them.
    passed_images: Mutex<BTreeMap<(PathBuf, bool), FileStore>>,
    program: PathBuf,
    /// The replacement of the confined process, and a duplicate of its passage: the replacement sees the end once the
    /// broker has cleaned up.
    replacement: Mutex<Option<(Child, OwnedFd)>>,
    /// The page's process.
    page: Mutex<Option<Child>>,
}

#[derive(Clone)]
struct BrokerMount {
    at: PathBuf,
    keeper: Arc<dyn MountKeeper>,
}

/// The answer to a question, and the descriptor that goes with it.
type BrokerResult = io::Result<(Value, Option<OwnedFd>)>;

fn serve(passage: &MessageSocket, rights: &Arc<BrokerServer>) -> io::Result<()> {
    while let Some(parcel) = passage.receive()? {
        let result = match serde_json::from_slice(&parcel.bytes) {
            Ok(question) => rights.carry_out(question, parcel.fd),
            Err(error) => Err(io::Error::other(format!("not a question: {error}"))),
        };
        let (answer, fd) = match result {
            Ok((value, fd)) => (BrokerAnswer::Done(value), fd),
            Err(error) => (BrokerAnswer::Refused { why: error.to_string(), kind: BrokerRefusalKind::of(&error) }, None),
        };
        match passage.send(&to_json(&answer)?, fd.as_ref().map(AsFd::as_fd)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent?,
        }
        // The next question may be hours away.
        startup_memory::give_back_soon();
    }
    Ok(())
}

/// Whether a device of another host can be like this.
fn is_attached_device(device: &AttachedDevice) -> bool {
    let texts = [&device.serial, &device.bus_id, &device.name];
    texts.into_iter().flatten().all(|text| text.len() <= STRING_BYTES_MAX)
}

fn done(value: Value) -> BrokerResult {
    Ok((value, None))
}

fn passed(fd: impl Into<OwnedFd>) -> BrokerResult {
    Ok((Value::Null, Some(fd.into())))
}

fn opened<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs and returns a refusal. A correct confined process never causes one.
fn refused(what: String) -> io::Error {
    warn!("refused to the confined half: {what}");
    io::Error::other(what)
}

impl BrokerServer {
    fn new(broker_policy: BrokerPolicy, read_config: ReadConfig) -> Self {
        let ports = broker_policy.ports.iter().copied().collect();
        let pid_of = |&pid: &u32| Pid::from_raw(i32::try_from(pid).ok()?);
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).ok();
        let programs = broker_policy.programs.iter().filter_map(pid_of).filter_map(open).collect();
        let secret = broker_policy.identity_secret.clone();
        let identifying = IdentityResolver::new(secret, &broker_policy.known_usb, &broker_policy.identified_usb);
        Self {
            identifying,
            broker_policy: Mutex::new(broker_policy),
            read_config,
            taken: Mutex::default(),
            mounts: Mutex::default(),
            mount_numbers: AtomicU64::new(0),
            ports: Mutex::new(ports),
            programs,
            processors: Mutex::default(),
            confined: getppid(),
            schedules: Mutex::default(),
            sockets: Mutex::default(),
            terminals: Mutex::default(),
            lines: AtomicU64::new(0),
            addresses: Mutex::default(),
            recording: AuditRecording::default(),
            lease_checks: LeaseChecks::begin(),
            passed_images: Mutex::default(),
            program: PathBuf::new(),
            replacement: Mutex::default(),
            page: Mutex::default(),
        }
    }

    fn carry_out(self: &Arc<Self>, question: BrokerRequest, fd: Option<OwnedFd>) -> BrokerResult {
        match question {
            BrokerRequest::Line => self.line(),
            BrokerRequest::Config => self.config(),
            BrokerRequest::Listen { place: location } => self.listen(location),
            BrokerRequest::ListenAt { place: location } => self.listen_at_meant_place(location),
            BrokerRequest::TakePlace { place: location } => self.take_place(location),
            BrokerRequest::LeavePlace { place: location } => self.leave_place(location),
            BrokerRequest::OpenTerminal { place: location } => self.open_terminal(location),
            BrokerRequest::WatchTerminal { place: location } => self.watch_terminal(&location),
            BrokerRequest::EmptyTerminal { place: location } => self.empty_terminal(&location),
            BrokerRequest::EndTerminal { place: location } => self.end_terminal(&location),
            BrokerRequest::PassImage { path, read_only, is_forced } => self.pass_image(path, read_only, is_forced, fd),
            BrokerRequest::ForgetImages => self.forget_images(),
            BrokerRequest::OpenImage { path, read_only } => self.open_image(path, read_only),
            BrokerRequest::ExpectImages { images } => self.expect_images(images),
            BrokerRequest::IdentifyImage { path, read_only, view } => self.identify_image(path, read_only, view),
            BrokerRequest::IdentifyUsb { bus, device } => self.identify_usb(bus, device),
            BrokerRequest::IdentifyMade { words } => done(json!(self.identifying.made(&words))),
            BrokerRequest::NoteName { device, name, is_named } => self.note_name(device, name, is_named),
            BrokerRequest::NotesOf { device, name } => self.notes_of(device, name),
            BrokerRequest::ObjectionToAttaching { title, identity } => self.objection_to_attaching(title, identity),
            BrokerRequest::AttachedDevice { target } => self.attached_device(target),
            BrokerRequest::KeepAttachedDevice { target, device } => self.keep_attached_device(target, device),
            BrokerRequest::Shared { devices } => self.shared(devices),
            BrokerRequest::Retirement { device, step } => self.retirement(device, step),
            BrokerRequest::Retirements { devices } => self.retirements(&devices),
            BrokerRequest::ReserveLease { device, latest, above } => {
                done(json!(self.lease_checks.reserve(&self.folder_with(device)?, device, latest, above)?))
            }
            BrokerRequest::KeepLease { device, lease } => {
                done(json!(self.lease_checks.keep(&self.folder_with(device)?, device, lease)?))
            }
            BrokerRequest::KeepBookings { device, bookings } => {
                done(json!(self.lease_checks.keep_bookings(&self.folder_with(device)?, device, bookings)?))
            }
            BrokerRequest::OpenFrames { path } => self.open_frames(path),
            BrokerRequest::OpenUsb { bus, device } => self.open_usb(bus, device),
            BrokerRequest::InheritUsb { bus, device } => self.inherit_usb(bus, device, fd),
            BrokerRequest::PassUsb { bus, device } => self.pass_usb(bus, device, fd),
            BrokerRequest::GivenBack { bus, device } => self.given_back(bus, device),
            // No paired host, and not looked for nearby.
            BrokerRequest::Connect { host, time_max_ms, .. }
                if opened(&self.broker_policy).directory.contains(&host) =>
            {
                self.connect_to_directory(host, time_max_ms)
            }
            BrokerRequest::Connect { host, time_max_ms, hints } => self.connect(host, time_max_ms, hints),
            BrokerRequest::Datagrams { host, hints } => self.datagrams(host, hints),
            BrokerRequest::Proved { host, at } => self.proved(host, at),
            BrokerRequest::ListenDatagrams { place: location, port } => self.listen_datagrams(location, port),
            BrokerRequest::PeerOwner => self.peer_owner(fd),
            BrokerRequest::UserNumber { name } => self.user_number(name),
            BrokerRequest::Explain { user, reason } => self.explain(user, reason),
            BrokerRequest::Record { used, outcome, key, who, device, why } => {
                self.record(used, outcome, key, who, device, why)
            }
            BrokerRequest::Running => self.running(),
            BrokerRequest::Promise { whom, reserves } => self.promise(whom, reserves, fd),
            BrokerRequest::Processor { cpu } => self.processor(cpu),
            BrokerRequest::Schedule { thread, budget_ns, period_ns } => self.schedule(thread, budget_ns, period_ns),
            BrokerRequest::MayPlug => self.may_plug(),
            BrokerRequest::Plug { device_id, speed } => self.plug(device_id, &speed, fd),
            BrokerRequest::Unplug { port } => self.unplug(port),
            BrokerRequest::Drivers { port } => self.drivers(port),
            BrokerRequest::Mount { at, read_only } => self.mount(&at, read_only),
            BrokerRequest::KeepMount { at } => self.keep_mount(&at),
            BrokerRequest::ReadAhead { mount, bytes } => self.read_ahead(mount, bytes),
            BrokerRequest::Leave { mount } => done(json!(word_of(self.mount_of(mount)?.keeper.leave()?))),
            BrokerRequest::Abort { mount } => self.abort(mount),
            BrokerRequest::Forget { mount } => self.forget(mount),
            BrokerRequest::Replacement => self.start_replacement(),
            BrokerRequest::Page => self.start_page(),
        }
    }

    fn listen(&self, location: SocketLocation) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).listen.contains(&location);
        self.hold(is_meant, || format!("{location} is not listened at"))?;
        let SocketLocation::Address(address) = location else {
            let mode = opened(&self.broker_policy).socket_mode;
            return self.listen_at(location, &mode.into());
        };
        // On a machine without IPv6, all addresses means all of IPv4.
        let old = |_| match address.ip() == Ipv6Addr::UNSPECIFIED {
            true => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())),
            false => TcpListener::bind(address),
        };
        passed(TcpListener::bind(address).or_else(old)?)
    }

    fn listen_at_meant_place(&self, location: SocketLocation) -> BrokerResult {
        let access = opened(&self.broker_policy).access_to(&location);
        self.hold(access.is_some(), || format!("{location} is not listened at"))?;
        self.listen_at(location, &access.unwrap_or_default())
    }

    fn take_place(&self, location: SocketLocation) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).access_to(&location).is_some();
        self.hold(is_meant, || format!("{location} is not listened at"))?;
        opened(&self.sockets).extend(location.path().map(|path| (path.clone(), file_at(path))));
        done(Value::Null)
    }

    fn leave_place(&self, location: SocketLocation) -> BrokerResult {
        if let SocketLocation::Socket(path) = location {
            opened(&self.sockets).remove(&path);
        }
        done(Value::Null)
    }

    fn open_terminal(&self, location: SocketLocation) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).access_to(&location).is_some();
        self.hold(is_meant, || format!("{location} is not linked to a terminal"))?;
        let SocketLocation::Socket(link) = location else { return Err(refused("a terminal has a path".into())) };
        let terminal = terminal_link::open(&link)?;
        let file = file_at(&link);
        opened(&self.sockets).insert(link.clone(), file);
        let [master, opens] = terminal.descriptors()?;
        opened(&self.terminals).insert(link, opens);
        Ok((json!(terminal.path()), Some(master)))
    }

    fn watch_terminal(&self, location: &SocketLocation) -> BrokerResult {
        let opens = location.path().and_then(|link| opened(&self.terminals).remove(link));
        passed(opens.ok_or_else(|| refused(format!("{location} was not linked to a terminal")))?)
    }

    fn empty_terminal(&self, location: &SocketLocation) -> BrokerResult {
        let link = location.path().ok_or_else(|| refused("a terminal has a path".into()))?;
        // A link that somebody else has put there since is not followed.
        let is_own = opened(&self.sockets).get(link).is_some_and(|file| file.is_some() && file_at(link) == *file);
        self.hold(is_own, || format!("{location} does not lead to a terminal any more"))?;
        terminal_link::empty(link)?;
        done(Value::Null)
    }

    fn end_terminal(&self, location: &SocketLocation) -> BrokerResult {
        let Some(link) = location.path() else { return done(Value::Null) };
        opened(&self.terminals).remove(link);
        if let Some(file @ Some(_)) = opened(&self.sockets).remove(link)
            && file_at(link) == file
        {
            fs::remove_file(link)?;
        }
        done(Value::Null)
    }

    fn pass_image(&self, path: PathBuf, read_only: bool, is_forced: bool, fd: Option<OwnedFd>) -> BrokerResult {
        let image = fd.ok_or_else(|| refused("no open file came along".into()))?;
        let store = FileStore::received(image, &path, read_only, OtherUsers::permitted_if(is_forced))
            .map_err(io::Error::other)?;
        let mut passed_images = opened(&self.passed_images);
        self.hold(passed_images.len() < PASSED_IMAGES_MAX, || "no device has so many images".to_owned())?;
        passed_images.insert((path, read_only), store);
        done(Value::Null)
    }

    fn forget_images(&self) -> BrokerResult {
        opened(&self.passed_images).clear();
        done(Value::Null)
    }

    fn open_image(&self, path: PathBuf, read_only: bool) -> BrokerResult {
        let passed_image = opened(&self.passed_images).remove(&(path.clone(), read_only));
        if let Some(store) = passed_image {
            self.identifying.note_opened(&path, read_only, &store);
            return passed(store.into_descriptor());
        }
        let is_meant = opened(&self.broker_policy).images.contains(&(path.clone(), read_only));
        self.hold(is_meant, || format!("{} is not to be shared", path.display()))?;
        media_journal::check(&path)?;
        let is_forced = opened(&self.broker_policy).forced_images.contains(&path);
        let store =
            FileStore::open_beside(&path, read_only, OtherUsers::permitted_if(is_forced)).map_err(io::Error::other)?;
        self.identifying.note_opened(&path, read_only, &store);
        passed(store.into_descriptor())
    }

    fn expect_images(&self, images: Vec<ExpectedImage>) -> BrokerResult {
        let meant = opened(&self.broker_policy).images.iter().cloned().collect::<BTreeSet<_>>();
        let stranger = images.iter().find(|image| !meant.contains(&(image.path.clone(), image.read_only)));
        self.hold(stranger.is_none(), || "an image is not to be shared".to_owned())?;
        self.identifying.expect(images);
        done(Value::Null)
    }

    fn identify_image(&self, path: PathBuf, read_only: bool, view: String) -> BrokerResult {
        let known = self.identifying.image(&path, read_only, &view);
        done(json!(known.ok_or_else(|| refused(format!("{} was not opened", path.display())))?))
    }

    fn identify_usb(&self, bus: u32, device: u32) -> BrokerResult {
        let known = self.identifying.all().of_usb(&self.meant_usb(bus, device)?);
        done(json!(self.identifying.note_usb(known)))
    }

    fn note_name(&self, device: DeviceId, name: String, is_named: bool) -> BrokerResult {
        let is_known = self.identifying.name(device, &name, is_named);
        self.hold(is_known, || format!("{device} is not shared here"))?;
        done(Value::Null)
    }

    fn notes_of(&self, device: Option<DeviceId>, name: String) -> BrokerResult {
        let shares = {
            let policy = opened(&self.broker_policy);
            !policy.listen.is_empty() || !policy.usb.is_empty() || !policy.wanted.is_empty()
        };
        let is_known = device.is_none_or(|device| self.identifying.has(device));
        let is_shared = shares && is_known && check_name(&name).is_ok();
        self.hold(is_shared, || format!("{name} is not shared here"))?;
        done(json!(notes_of(device, &name)?))
    }

    fn objection_to_attaching(&self, title: String, identity: Option<RemoteIdentity>) -> BrokerResult {
        self.hold(!opened(&self.broker_policy).hosts.is_empty(), || "nothing is attached".to_owned())?;
        done(json!(media_journal::objection_to_attaching(&title, identity)))
    }

    fn attached_device(&self, target: String) -> BrokerResult {
        let device = attached_device(&self.config_with(&target)?, &target)?;
        if let Some(id) = device.as_ref().and_then(|device| device.id).filter(|_| target.starts_with("usb:")) {
            // Another device in that port may be offered with its identity.
            self.identifying.note_known(id);
        }
        done(json!(device))
    }

    fn keep_attached_device(&self, target: String, device: Option<AttachedDevice>) -> BrokerResult {
        // A port of this machine stands for a device that was identified here, and for no other one's identity.
        let is_known = |device: &AttachedDevice| device.id.is_none_or(|id| self.identifying.has(id));
        let is_possible = |device: &AttachedDevice| !target.starts_with("usb:") || is_known(device);
        let is_sane = device.as_ref().is_none_or(|device| is_attached_device(device) && is_possible(device));
        self.hold(is_sane, || format!("no device is like that of {target}"))?;
        done(json!(keep_attached_device(&self.config_with(&target)?, &target, device.as_ref())?))
    }

    fn shared(&self, devices: Vec<DeviceId>) -> BrokerResult {
        self.hold(self.identifying.note_shared(&devices), || "it was said before".to_owned())?;
        done(Value::Null)
    }

    fn retirement(&self, device: DeviceId, step: Option<RetirementStep>) -> BrokerResult {
        self.hold(self.identifying.has(device), || format!("{device} is not shared here"))?;
        done(json!(retirement_of(device, step.as_ref())?))
    }

    fn retirements(&self, devices: &[DeviceId]) -> BrokerResult {
        let other = devices.iter().find(|device| !self.identifying.has(**device));
        self.hold(other.is_none(), || other.map_or_else(String::new, |device| format!("{device} is not shared here")))?;
        done(json!(retirements_of(devices)?))
    }

    fn open_frames(&self, path: PathBuf) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).frames.contains(&path);
        self.hold(is_meant, || format!("{} is not to be shared", path.display()))?;
        passed(frames::open(&path)?)
    }

    fn inherit_usb(&self, bus: u32, device: u32, fd: Option<OwnedFd>) -> BrokerResult {
        let node = fd.ok_or_else(|| refused("no open file came along".into()))?;
        let has_room = opened(&self.taken).inherit(bus, device, node);
        self.hold(has_room, || "nobody has so many devices".to_owned())?;
        done(Value::Null)
    }

    fn pass_usb(&self, bus: u32, device: u32, fd: Option<OwnedFd>) -> BrokerResult {
        let node = fd.ok_or_else(|| refused("no open file came along".into()))?;
        check_node(&node, &usb_node(bus, device))?;
        let has_room = opened(&self.taken).pass(bus, device, node);
        self.hold(has_room, || "nobody has so many devices".to_owned())?;
        done(Value::Null)
    }

    fn given_back(&self, bus: u32, device: u32) -> BrokerResult {
        opened(&self.taken).give_back(bus, device);
        done(Value::Null)
    }

    fn connect_to_directory(&self, host: String, time_max_ms: u64) -> BrokerResult {
        let time_max = Duration::from_millis(time_max_ms).min(CONNECT_TIME_MAX);
        let (connection, at) = Link::dial(&host, time_max, SegmentSize::OfNetworks).map_err(|error| error.source)?;
        Ok((json!(reach::ReachedAddress { place: SocketLocation::Address(at), is_new: false }), Some(connection)))
    }

    fn connect(&self, host: String, time_max_ms: u64, hints: AddressHints) -> BrokerResult {
        self.hold(opened(&self.broker_policy).hosts.contains(&host), || format!("{host} is nobody to connect to"))?;
        let time_max = Duration::from_millis(time_max_ms).min(CONNECT_TIME_MAX);
        let connected = match self.known(&host) {
            Some(known) => reach::dial_known(&known, time_max, &self.checked(&host, hints), crate::hosts::mdns::find),
            None => reach::dial(&host, time_max, hints.segments, crate::hosts::mdns::find),
        };
        let (connection, found) = connected.map_err(|error| error.source)?;
        if let SocketLocation::Address(at) = found.place {
            opened(&self.addresses).note_dialled(&host, at);
        }
        Ok((json!(found), Some(connection)))
    }

    fn datagrams(&self, host: String, hints: AddressHints) -> BrokerResult {
        self.hold(opened(&self.broker_policy).hosts.contains(&host), || format!("{host} is nobody to connect to"))?;
        let known = self.known(&host).ok_or_else(|| io::Error::other("it is not a paired host"))?;
        let hints = self.checked(&host, hints);
        let datagrams = reach::datagrams(&known, &hints, crate::hosts::mdns::find);
        let (socket, to, is_new) = datagrams.map_err(|error| error.source)?;
        opened(&self.addresses).note_dialled(&host, to);
        Ok((json!((to, is_new)), Some(socket.into())))
    }

    fn proved(&self, host: String, at: SocketAddr) -> BrokerResult {
        let was_dialled = opened(&self.addresses).was_dialled(&host, at);
        self.hold(was_dialled, || format!("{host} was not connected to at {at}"))?;
        known_host::remember(&host, at)?;
        // The address that a person gave is confirmed.
        opened(&self.broker_policy).moved.remove(&host);
        done(Value::Null)
    }

    fn listen_datagrams(&self, location: SocketLocation, port: u16) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).listen.contains(&location);
        self.hold(is_meant, || format!("{location} is not listened at"))?;
        let SocketLocation::Address(address) = location else { return Err(refused("a path has no datagrams".into())) };
        let is_its_port = [0, port].contains(&address.port());
        self.hold(is_its_port, || format!("port {port} is not listened at"))?;
        passed(UdpSocket::bind((address.ip(), port))?)
    }

    fn peer_owner(&self, fd: Option<OwnedFd>) -> BrokerResult {
        // The process that has the connection may know which user made it.
        let connection = fd.ok_or_else(|| refused("no connection came along".into()))?;
        done(json!(peer_owner(&connection)?))
    }

    fn user_number(&self, name: String) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).local_users.contains(&name);
        self.hold(is_meant, || format!("'{name}' is nobody's business"))?;
        done(json!(user_number(&name)?))
    }

    fn explain(&self, user: String, reason: String) -> BrokerResult {
        self.hold(!opened(&self.broker_policy).hosts.is_empty(), || "nothing is attached".to_owned())?;
        ask_all(&OwnerQuestion::Explain { user, reason })?;
        done(Value::Null)
    }

    fn record(
        &self,
        used: String,
        outcome: AuditOutcome,
        key: Option<Fingerprint>,
        who: String,
        device: String,
        why: Option<String>,
    ) -> BrokerResult {
        let recorded = RecordedUse { used: &used, outcome, key, who: &who, device: &device, why: why.as_deref() };
        self.hold(recorded.is_use(), || format!("'{used}' is no use of a device"))?;
        self.recording.record(&recorded);
        done(Value::Null)
    }

    fn running(&self) -> BrokerResult {
        self.hold(opened(&self.broker_policy).promises.is_some(), || "nobody is to be promised anything".to_owned())?;
        done(json!(running()?))
    }

    fn promise(&self, whom: BTreeSet<u32>, reserves: Vec<(u64, u64)>, fd: Option<OwnedFd>) -> BrokerResult {
        let owner = opened(&self.broker_policy).promises.clone();
        let owner = owner.ok_or_else(|| refused("nobody is to be promised anything".into()))?;
        let lease = fd.ok_or_else(|| refused("no lease came along".into()))?;
        done(json!(ask_for(&owner, &whom, &reserves, lease.as_fd())))
    }

    fn processor(&self, cpu: usize) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).processors.contains(&cpu);
        self.hold(is_meant, || format!("processor {cpu} is not to be taken"))?;
        let own = ExclusiveProcessor::take(cpu).map_err(io::Error::other)?;
        let cpuset_entry = own.cpuset_entry().map_err(io::Error::other)?;
        opened(&self.processors).push(own);
        passed(cpuset_entry.into_descriptor())
    }

    fn schedule(&self, thread: u32, budget_ns: u64, period_ns: u64) -> BrokerResult {
        self.hold(opened(&self.broker_policy).schedules, || "no thread has processor time".to_owned())?;
        let process = self.confined.ok_or_else(|| refused("its process has ended".into()))?;
        let [budget, period] = [budget_ns, period_ns].map(Duration::from_nanos);
        let process = process.as_raw_nonzero().get().cast_unsigned();
        opened(&self.schedules).set(process, thread, budget, period)?;
        done(Value::Null)
    }

    fn may_plug(&self) -> BrokerResult {
        self.hold(opened(&self.broker_policy).plugs, || "nothing is to be plugged in".to_owned())?;
        may_plug()?;
        done(Value::Null)
    }

    fn unplug(&self, port: u32) -> BrokerResult {
        self.hold(opened(&self.ports).contains(&port), || format!("port {port} is not yours"))?;
        Vhci::open().and_then(|vhci| vhci.detach(VhciPort(port))).map_err(io::Error::other)?;
        opened(&self.ports).remove(&port);
        done(Value::Null)
    }

    fn drivers(&self, port: u32) -> BrokerResult {
        self.hold(opened(&self.ports).contains(&port), || format!("port {port} is not yours"))?;
        done(json!(drivers(VhciPort(port))?))
    }

    fn read_ahead(&self, mount: u64, bytes: usize) -> BrokerResult {
        self.mount_of(mount)?.keeper.set_read_ahead(bytes);
        done(Value::Null)
    }

    fn abort(&self, mount: u64) -> BrokerResult {
        self.mount_of(mount)?.keeper.abort();
        done(Value::Null)
    }

    fn forget(&self, mount: u64) -> BrokerResult {
        let mount = opened(&self.mounts).remove(&mount);
        drop(mount);
        done(Value::Null)
    }

    /// The path of the configuration, if it has this attachment (`HOST:PORT/DEVICE`): its device is stored.
    fn config_with(&self, target: &str) -> io::Result<PathBuf> {
        let policy = opened(&self.broker_policy);
        let is_port = || target.strip_prefix("usb:").is_some_and(|port| policy.wanted.selects_port(port));
        let config = policy.config.clone().filter(|_| policy.attached.contains(target) || is_port());
        config.ok_or_else(|| refused(format!("{target} is not attached")))
    }

    fn hold(&self, is_meant: bool, what: impl FnOnce() -> String) -> io::Result<()> {
        if is_meant { Ok(()) } else { Err(refused(what())) }
    }

    /// The paired host of this name, at the address that the broker believes to be its own.
    fn known(&self, host: &str) -> Option<KnownHost> {
        // An unreadable list of paired hosts is reported where it is needed for trust.
        let known = KnownHost::find(host).ok().flatten()?;
        let moved = opened(&self.broker_policy).moved.get(host).cloned();
        let at = moved.unwrap_or_else(|| opened(&self.addresses).believe(host, known.address()));
        Some(known.looked_for_at(at))
    }

    /// The hints of the confined process, without an address to which the broker never connected.
    fn checked(&self, host: &str, hints: AddressHints) -> AddressHints {
        let addresses = opened(&self.addresses);
        AddressHints { proved: hints.proved.filter(|at| addresses.was_dialled(host, *at)), ..hints }
    }

    fn listen_at(&self, location: SocketLocation, access: &SocketAccess) -> BrokerResult {
        let listener = location.listen_for(access)?.into_descriptor()?;
        if let SocketLocation::Socket(path) = location {
            let file = file_at(&path);
            opened(&self.sockets).insert(path, file);
        }
        passed(listener)
    }

    fn line(self: &Arc<Self>) -> BrokerResult {
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = MessageSocket::pair()?;
        let rights = Arc::clone(self);
        let spawned = match lines < LINES_MAX as u64 {
            false => Err(refused(format!("there are {LINES_MAX} lines already"))),
            true => thread::Builder::new().name("line".into()).spawn(move || {
                if let Err(error) = serve(&ours, &rights) {
                    warn!(%error, "a line of the confined half ended");
                }
                rights.lines.fetch_sub(1, Ordering::Relaxed);
            }),
        };
        match spawned {
            Ok(_) => passed(theirs),
            Err(error) => {
                self.lines.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn start_replacement(&self) -> BrokerResult {
        let arguments = opened(&self.broker_policy).replacement.clone();
        self.hold(!arguments.is_empty(), || "nobody goes on in its place".to_owned())?;
        let mut replacement = opened(&self.replacement);
        if let Some((child, _)) = &mut *replacement
            && child.try_wait()?.is_none()
        {
            return Err(io::Error::other("one is being started already"));
        }
        let taken = opened(&self.taken);
        let (devices, nodes): (Vec<_>, Vec<_>) = taken.open().unzip();
        let mounts = opened(&self.mounts).values().filter_map(|mount| mount.keeper.mark()).collect();
        let identity_secret = Some(self.identifying.all().secret().clone());
        let ports = opened(&self.ports).iter().copied().collect();
        let known_usb = self.identifying.all().known_usb();
        let identified_usb = self.identifying.usb();
        let handover_state = HandoverState { ports, mounts, devices, identity_secret, known_usb, identified_usb };
        let (child, passage) = replacement::start(&self.program, &arguments, &handover_state, &nodes)?;
        drop(nodes);
        drop(taken);
        let pid = child.id();
        *replacement = Some((child, passage.try_clone()?));
        Ok((json!(pid), Some(passage)))
    }

    /// Starts the page, after the end of one that was started before.
    fn start_page(&self) -> BrokerResult {
        let arguments = opened(&self.broker_policy).page.clone();
        self.hold(!arguments.is_empty(), || "the configuration has no page".to_owned())?;
        let mut page = opened(&self.page);
        page.take().map(end_page).transpose()?;
        let (child, passage) = replacement::start_page(&arguments)?;
        *page = Some(child);
        passed(passage)
    }

    fn config(&self) -> BrokerResult {
        let path = opened(&self.broker_policy).config.clone();
        let path = path.ok_or_else(|| refused("there is no configuration".into()))?;
        let (text, granted) = (self.read_config)(&path)?;
        let mut file = fs::File::from(memfd_create("configuration", MemfdFlags::CLOEXEC)?);
        file.write_all(text.as_bytes())?;
        let mut broker_policy = opened(&self.broker_policy);
        // Who takes an attachment out of the configuration and puts it in again later may mean another device.
        for target in broker_policy.attached.difference(&granted.attached) {
            if let Err(error) = keep_attached_device(&path, target, None) {
                warn!(target, %error, "the device that it had is still remembered");
            }
        }
        *broker_policy = broker_policy.with_config(granted);
        passed(file)
    }

    fn open_usb(&self, bus: u32, device: u32) -> BrokerResult {
        let found = self.meant_usb(bus, device)?;
        let is_meant = opened(&self.broker_policy).devices().selected(&found).is_some();
        let open = || {
            // Of a device that was passed, only the node that the owner opened may be used.
            self.hold(is_meant, || format!("usb:{} is not to be opened again", found.bus_id))?;
            open_node(&usb_node(bus, device))
        };
        passed(opened(&self.taken).take(&found, open)?)
    }

    /// The state folder, if the device is shared here.
    fn folder_with(&self, device: DeviceId) -> io::Result<HostFolder> {
        self.hold(self.identifying.has(device), || format!("{device} is not shared here"))?;
        HostFolder::of_user().and_then(|folder| folder.opened_once()).map_err(io::Error::other)
    }

    /// The USB device with this bus and number, if the policy allows it or the owner has passed it.
    fn meant_usb(&self, bus: u32, device: u32) -> io::Result<PluggedDevice> {
        let devices = opened(&self.broker_policy).devices();
        let is_passed = opened(&self.taken).is_passed(bus, device);
        self.hold(is_passed || !devices.is_empty(), || "no USB device is shared here".to_owned())?;
        let all = UsbInventory::default().devices()?;
        let found = all.into_iter().find(|found| (found.bus, found.number) == (bus, device));
        let found = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such device"))?;
        let is_meant = is_passed || devices.selected(&found).is_some();
        self.hold(is_meant, || format!("usb:{} is not to be shared", found.bus_id))?;
        Ok(found)
    }

    fn plug(&self, device_id: u32, speed: &str, socket: Option<OwnedFd>) -> BrokerResult {
        self.hold(opened(&self.broker_policy).plugs, || "nothing is to be plugged in".to_owned())?;
        let speeds = [UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super, UsbSpeed::SuperPlus];
        let speed = speeds.into_iter().find(|known| known.name() == speed);
        let speed = speed.ok_or_else(|| refused("that is no speed".into()))?;
        let socket = socket.ok_or_else(|| refused("no socket came along".into()))?;
        let vhci = Vhci::open().map_err(io::Error::other)?;
        let VhciPort(port) = vhci.attach(socket.as_fd(), device_id, speed).map_err(io::Error::other)?;
        opened(&self.ports).insert(port);
        done(json!(port))
    }

    fn mount(&self, at: &Path, read_only: bool) -> BrokerResult {
        let is_meant = opened(&self.broker_policy).mounts.iter().any(|meant| meant == at);
        self.hold(is_meant, || format!("nothing is to be mounted at {}", at.display()))?;
        let mounted = OwnMounter.mount(at, read_only).map_err(io::Error::other)?;
        Ok((json!(self.note_mount(mounted.at, mounted.keeper)), Some(mounted.device)))
    }

    fn note_mount(&self, at: PathBuf, keeper: Arc<dyn MountKeeper>) -> MountedAt {
        let mount = self.mount_numbers.fetch_add(1, Ordering::Relaxed);
        opened(&self.mounts).insert(mount, BrokerMount { at: at.clone(), keeper });
        MountedAt { mount, at }
    }

    fn keep_mount(&self, at: &Path) -> BrokerResult {
        let mut broker_policy = opened(&self.broker_policy);
        let marked = broker_policy.mounted.iter().position(|mark| mark.at == at);
        let mark = marked.map(|number| broker_policy.mounted.swap_remove(number));
        let mark = mark.ok_or_else(|| refused(format!("nothing was mounted at {}", at.display())))?;
        drop(broker_policy);
        done(json!(self.note_mount(at.to_owned(), OwnMounter::keep(mark)?)))
    }

    fn mount_of(&self, mount: u64) -> io::Result<BrokerMount> {
        let mounts = opened(&self.mounts);
        mounts.get(&mount).cloned().ok_or_else(|| refused(format!("there is no mount {mount}")))
    }

    /// Cleans up after the confined process has ended.
    fn end(&self) {
        // A process that was started since, after this one's was killed, may listen there at a socket of its own.
        let sockets = std::mem::take(&mut *opened(&self.sockets)).into_iter();
        let own = sockets.filter(|(path, file)| file.is_some() && file_at(path) == *file).map(|(path, _)| path);
        for path in opened(&self.broker_policy).remove.iter().cloned().chain(own) {
            // The confined process has removed them if it could.
            let _ = fs::remove_file(path);
        }
        for mount in std::mem::take(&mut *opened(&self.mounts)).into_values() {
            if let Err(error) = mount.keeper.leave() {
                warn!(at = %mount.at.display(), %error, "left mounted");
            }
        }
        std::mem::take(&mut *opened(&self.taken)).end();
        opened(&self.processors).clear();
        self.recording.finish();
        if let Some(page) = opened(&self.page).take() {
            // It has seen the end of the confined process, too.
            let _ = end_page(page);
        }
        for program in &self.programs {
            // A program that has ended is fine.
            let _ = pidfd_send_signal(program, Signal::KILL);
        }
    }
}

/// Ends the page's process in good order.
fn end_page(mut page: Child) -> io::Result<()> {
    if page.try_wait()?.is_none()
        && let Err(errno) = kill_process(Pid::from_child(&page), Signal::TERM)
    {
        return Err(errno.into());
    }
    let until = Instant::now() + PAGE_END_TIME_MAX;
    while page.try_wait()?.is_none() {
        if Instant::now() >= until {
            page.kill()?;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A file by its number on its file system, which a later file may get again, and by when it was made.
type SocketFile = (u64, Option<SystemTime>);

/// The file at a path; `None` if there is none.
fn file_at(path: &Path) -> Option<SocketFile> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.ino(), metadata.created().ok()))
}

fn usb_node(bus: u32, device: u32) -> PathBuf {
    format!("/dev/bus/usb/{bus:03}/{device:03}").into()
}

fn open_node(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| io::Error::new(errno.kind(), format!("cannot open {}: {errno}", path.display())))
}

/// Checks that an open file is the node at `path`, and may be used as [`open_node`] opens it.
fn check_node(node: &OwnedFd, path: &Path) -> io::Result<()> {
    let (passed, there) = (rustix::fs::fstat(node)?, rustix::fs::lstat(path)?);
    if (passed.st_dev, passed.st_ino, passed.st_rdev) != (there.st_dev, there.st_ino, there.st_rdev) {
        return Err(io::Error::other(format!("what was passed is not {}", path.display())));
    }
    let flags = rustix::fs::fcntl_getfl(node)?;
    if flags & OFlags::RWMODE != OFlags::RDWR || flags.contains(OFlags::PATH) {
        return Err(io::Error::other(format!("{} was not opened for reading and writing", path.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::AuditOutcome;

    use super::*;
    use crate::devices::retirement::RetirementStep;
    use farbus_io_net::trust::random_device_id;

    fn no_config(_: &Path) -> io::Result<(String, BrokerPolicy)> {
        Err(io::Error::other("there is none"))
    }

    fn answer_to(broker_policy: BrokerPolicy, bytes: &[u8]) -> (BrokerAnswer, bool) {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        ours.send(bytes, None).unwrap();
        let rights = Arc::new(BrokerServer::new(broker_policy, no_config));
        let server = thread::spawn(move || serve(&MessageSocket::over(theirs), &rights));
        let parcel = ours.receive().unwrap().unwrap();
        drop(ours);
        server.join().unwrap().unwrap();
        (serde_json::from_slice(&parcel.bytes).unwrap(), parcel.fd.is_some())
    }

    #[test]
    fn empty_policy_refuses_every_question() {
        let everything = [
            BrokerRequest::Config,
            BrokerRequest::Listen { place: "127.0.0.1:0".parse().unwrap() },
            BrokerRequest::ListenDatagrams { place: "127.0.0.1:0".parse().unwrap(), port: 53 },
            BrokerRequest::Datagrams { host: "lab3:3240".into(), hints: AddressHints::default() },
            BrokerRequest::Proved { host: "lab3:3240".into(), at: "127.0.0.1:22".parse().unwrap() },
            BrokerRequest::Record {
                used: "pair".into(),
                outcome: AuditOutcome::Ok,
                key: None,
                who: "lab3".into(),
                device: String::new(),
                why: None,
            },
            BrokerRequest::Listen { place: "unix:/run/docker.sock".parse().unwrap() },
            BrokerRequest::ListenAt { place: SocketLocation::Socket("/run/docker.sock".into()) },
            BrokerRequest::TakePlace { place: SocketLocation::Socket("/run/docker.sock".into()) },
            BrokerRequest::ListenAt { place: SocketLocation::Address("0.0.0.0:0".parse().unwrap()) },
            BrokerRequest::OpenImage { path: "/etc/shadow".into(), read_only: true },
            BrokerRequest::OpenFrames { path: "/etc/shadow".into() },
            BrokerRequest::IdentifyImage { path: "/etc/shadow".into(), read_only: true, view: String::new() },
            BrokerRequest::IdentifyUsb { bus: 1, device: 2 },
            BrokerRequest::NotesOf { device: None, name: "disk".into() },
            BrokerRequest::NotesOf { device: Some(random_device_id()), name: "disk".into() },
            BrokerRequest::NoteName { device: random_device_id(), name: "disk".into(), is_named: true },
            BrokerRequest::Retirement { device: random_device_id(), step: Some(RetirementStep::Stays) },
            BrokerRequest::Retirements { devices: vec![random_device_id()] },
            BrokerRequest::ReserveLease { device: random_device_id(), latest: 0, above: 0 },
            BrokerRequest::KeepLease { device: random_device_id(), lease: None },
            BrokerRequest::KeepBookings { device: random_device_id(), bookings: Vec::new() },
            BrokerRequest::AttachedDevice { target: "lab3:3240/disk".into() },
            BrokerRequest::KeepAttachedDevice { target: "lab3:3240/disk".into(), device: None },
            BrokerRequest::OpenUsb { bus: 1, device: 2 },
            BrokerRequest::PassUsb { bus: 1, device: 2 },
            BrokerRequest::Connect { host: "127.0.0.1:22".into(), time_max_ms: 1, hints: AddressHints::default() },
            BrokerRequest::PeerOwner,
            BrokerRequest::UserNumber { name: "root".into() },
            BrokerRequest::Explain { user: "127.0.0.1:1".into(), reason: "because".into() },
            BrokerRequest::Running,
            BrokerRequest::Promise { whom: BTreeSet::new(), reserves: Vec::new() },
            BrokerRequest::Processor { cpu: 0 },
            BrokerRequest::Schedule { thread: std::process::id(), budget_ns: 1_000_000, period_ns: 10_000_000 },
            BrokerRequest::MayPlug,
            BrokerRequest::Plug { device_id: 1, speed: "high".into() },
            BrokerRequest::Unplug { port: 0 },
            BrokerRequest::Drivers { port: 0 },
            BrokerRequest::Mount { at: "/".into(), read_only: false },
            BrokerRequest::KeepMount { at: "/".into() },
            BrokerRequest::ReadAhead { mount: 0, bytes: 1 },
            BrokerRequest::Leave { mount: 0 },
            BrokerRequest::Abort { mount: 0 },
            BrokerRequest::Replacement,
            BrokerRequest::Page,
        ];
        for question in everything {
            let (answer, has_fd) = answer_to(BrokerPolicy::default(), &to_json(&question).unwrap());
            assert!(matches!(answer, BrokerAnswer::Refused { .. }) && !has_fd, "{question:?}: {answer:?}");
        }
        let broker_policy = BrokerPolicy { usb: vec!["usb:1-1".into()], ..BrokerPolicy::default() };
        let (answer, has_fd) = answer_to(broker_policy, b"{\"ask\":\"open\",\"path\":\"/etc/shadow\"}");
        assert!(matches!(answer, BrokerAnswer::Refused { why, .. } if why.starts_with("not a question")) && !has_fd);
    }

    #[test]
    fn image_allowed_for_reading_is_not_opened_for_writing() {
        let path = std::env::temp_dir().join(format!("farbus-rights-{}", std::process::id()));
        fs::write(&path, [0; 512]).unwrap();
        let broker_policy = BrokerPolicy { images: vec![(path.clone(), true)], ..BrokerPolicy::default() };
        let ask = |read_only| to_json(&BrokerRequest::OpenImage { path: path.clone(), read_only }).unwrap();
        assert_eq!(answer_to(broker_policy.clone(), &ask(true)), (BrokerAnswer::Done(Value::Null), true));
        assert!(
            matches!(answer_to(broker_policy, &ask(false)), (BrokerAnswer::Refused { .. }, false)),
            "it may be read, not written"
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn only_allowed_places_are_listened_at_and_their_sockets_are_removed_at_the_end() {
        let path = std::env::temp_dir().join(format!("farbus-place-{}.sock", std::process::id()));
        let locations =
            vec![SocketLocation::Socket(path.clone()), SocketLocation::Address("127.0.0.1:0".parse().unwrap())];
        let rights = |locations: Vec<SocketLocation>| {
            let locations = locations.into_iter().map(|location| (location, SocketAccess::default())).collect();
            Arc::new(BrokerServer::new(BrokerPolicy { places: locations, ..BrokerPolicy::default() }, no_config))
        };
        let listen_at = |rights: &Arc<BrokerServer>, location: &SocketLocation| {
            rights
                .carry_out(BrokerRequest::ListenAt { place: location.clone() }, None)
                .map(|(_, fd)| fd.expect("a socket"))
        };
        let (first, second) = (rights(locations.clone()), rights(locations.clone()));
        let _sockets: Vec<OwnedFd> = locations.iter().map(|location| listen_at(&first, location).unwrap()).collect();
        let in_use = listen_at(&second, &locations[0]).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse, "{in_use}");
        second.end();
        assert!(path.exists(), "what was refused is somebody else's");
        first.end();
        assert!(!path.exists());
        let (killed, next) = (rights(locations.clone()), rights(locations.clone()));
        drop(listen_at(&killed, &locations[0]).unwrap());
        let _socket = listen_at(&next, &locations[0]).unwrap();
        killed.end();
        assert!(path.exists(), "a broker that ends late leaves the socket of the process that was started since");
        next.end();
        assert!(!path.exists());
        assert!(listen_at(&rights(vec![]), &locations[0]).is_err() && !path.exists());
    }

    #[test]
    fn passed_node_has_to_be_the_device_that_is_named_and_open_for_writing() {
        let path = std::env::temp_dir().join(format!("farbus-node-{}", std::process::id()));
        fs::write(&path, []).unwrap();
        let open = |options: &mut fs::OpenOptions| OwnedFd::from(options.open(&path).unwrap());
        let both = open(fs::File::options().read(true).write(true));
        assert!(check_node(&both, &path).is_ok());
        let why = |node: &OwnedFd| check_node(node, &path).unwrap_err().to_string();
        assert!(why(&open(fs::File::options().read(true))).contains("not opened for reading and writing"));
        assert!(why(&fs::File::open("/dev/null").unwrap().into()).contains("what was passed is not"));
        // A link to it is not it: what it points to may change.
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(check_node(&both, &link).is_err());
        [path, link].iter().for_each(|path| fs::remove_file(path).unwrap());
    }

    #[test]
    fn path_of_a_usb_node_has_its_numbers_with_three_digits() {
        assert_eq!(usb_node(1, 2), Path::new("/dev/bus/usb/001/002"));
        assert_eq!(usb_node(255, 127), Path::new("/dev/bus/usb/255/127"));
    }

    #[test]
    fn second_line_is_answered_while_the_first_is_idle() {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let rights = Arc::new(BrokerServer::new(BrokerPolicy::default(), no_config));
        let for_server = Arc::clone(&rights);
        let server = thread::spawn(move || serve(&MessageSocket::over(theirs), &for_server));
        ours.send(&to_json(&BrokerRequest::Line).unwrap(), None).unwrap();
        let second = MessageSocket::over(ours.receive().unwrap().unwrap().fd.unwrap());
        second.send(&to_json(&BrokerRequest::Unplug { port: 1 }).unwrap(), None).unwrap();
        let answer: BrokerAnswer = serde_json::from_slice(&second.receive().unwrap().unwrap().bytes).unwrap();
        assert_eq!(answer, BrokerAnswer::Refused { why: "port 1 is not yours".into(), kind: BrokerRefusalKind::Other });
        drop((ours, second));
        server.join().unwrap().unwrap();
    }
}
