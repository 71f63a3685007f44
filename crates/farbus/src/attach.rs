//! A remote device, for this machine: through its kernel, or as a file.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farbus_io::frontend::fuse::{Cutter, DiskMount, Health, Resting};
use farbus_io::link::{Clock, Interest, Link, Wake, wait, wait_exactly};
use farbus_io::sys::vhci::Port;
use farbus_model::{BlockDevice, Limits};
use farbus_session::native::control::{Cause, End, HANDED_OVER};
use farbus_session::snapshot::{self, Reader, Writer};
use farbus_session::{DeviceRecord, Exporter, Fault, Offers, OnReset, OpStatus, Reject, RemoteDevice};
use tracing::{debug, warn};

use crate::ahead::Ahead;
use crate::broker::Hands;
use crate::client::{Attribute, Client, ClientError, FailureReport, GRACE, Target, local, local_address};
use crate::device_port::Cutter as DiskCutter;
use crate::disk_relay::{self, DiskRelay};
use crate::kernel_side::{Relaying, Stop as Stopped};
use crate::latency::Latency;
use crate::links::LinksStatus;
use crate::meters::{Calls, Meters, Readings};
use crate::opened_disk::{DiskMode, OpenedDisk, Way};
use crate::parting::{Parter, Saved, Verdict};
use crate::reserve::ReservationStatus;
use crate::session_port::{Seen, SessionPort};
use crate::session_relay::SessionRelay;
use crate::standing::Standing;

/// Why an attachment ended.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// This machine let go of it: `usbip detach`, `umount`.
    Released,
    /// The link was lost, or the exporter ended it.
    Lost(String),
    /// A session is over, and why is known.
    Over(FailureReport),
    /// The exporter broke the protocol.
    Broken(Reject),
    /// Another process goes on with it.
    HandedOver,
    /// It waits for another host, or is there.
    Moved,
}

/// Asks an attachment to end, from any thread.
#[derive(Clone, Debug)]
pub struct Ender {
    asked: Arc<AtomicBool>,
    wake: Arc<Wake>,
}

impl Ender {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { asked: Arc::default(), wake: Arc::new(Wake::new()?) })
    }

    /// The same, for who wakes it for another reason.
    pub(crate) fn shared_wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// What whoever is to end waits on.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Ends it, soon.
    pub fn end(&self) {
        self.asked.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Whether it is to end; what woke it until now does so no more, and whatever that may have been for is looked at after this.
    pub(crate) fn hears(&self) -> bool {
        self.wake.clear();
        self.was_asked()
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// Kind of the snapshots of a [`KernelAttachment`].
const SNAPSHOT_KIND: u16 = 1;
/// The same of one that is a disk of ours.
const DISK_SNAPSHOT_KIND: u16 = 12;

/// A device attached to this machine's kernel: the kernel's messages come in on a socket pair and
/// only such answers as the protocol allows go back (field experience: CVE-2026-31607).
pub struct KernelAttachment {
    relay: Between,
    hands: Hands,
    port: Port,
    ender: Ender,
    parter: Parter<Saved>,
    meters: Arc<Meters>,
}

impl KernelAttachment {
    /// Takes `target` and plugs it in.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target) -> Result<Self, ClientError> {
        // First what may be missing here: nothing is taken from anybody before.
        client.hands().may_plug().map_err(local)?;
        let (kernel, theirs) = Link::pair("this kernel").map_err(local)?;
        let hands = client.hands().clone();
        let plug = |device_id, speed| hands.plug(theirs.as_fd(), device_id, speed).map_err(local);
        let (port, relay) = match client.session(target, GRACE)? {
            Some(device) => {
                let said = device.remote().description().expect("what is open was described");
                let (device_id, speed) = (said.bus << 16 | said.device & 0xffff, said.speed);
                let relay = SessionRelay::new(kernel, device, device_id, client.ahead());
                (plug(device_id, speed)?, Between::Session(Box::new(relay)))
            }
            None => {
                let (remote, device) = client.enumerate(target)?;
                let (device_id, speed) = (device.record().device_id(), device.record().speed);
                let port = plug(device_id, speed)?;
                let clock = Clock::start();
                let exporter = Exporter::imported(clock.now(), Limits::DEFAULT, device_id, device, OnReset::PassOn);
                (port, Between::Plain(Box::new(Relay { kernel, remote, exporter, clock, calls: Calls::default() })))
            }
        };
        drop(theirs);
        Self::plugged(relay, hands, port)
    }

    /// Takes `target`, which has to be a disk, and plugs it in as one of ours, that takes many commands at a time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn disk(client: &Client, target: &Target, mode: DiskMode) -> Result<Self, ClientError> {
        client.hands().may_plug().map_err(local)?;
        let (kernel, theirs) = Link::pair("this kernel").map_err(local)?;
        let relay = DiskRelay::new(kernel, OpenedDisk::open(client, target, mode)?, target)?;
        let hands = client.hands().clone();
        let port = hands.plug(theirs.as_fd(), disk_relay::DEVICE_ID, relay.speed()).map_err(local)?;
        drop(theirs);
        Self::plugged(Between::Disk(Box::new(relay)), hands, port)
    }

    /// The same if the kernel has more of `target` as one of ours, and else `target` as it is.
    ///
    /// | `target` is | the kernel has |
    /// |---|---|
    /// | a Bulk-Only disk and nothing else, of a host with sessions, whose host serves it as a block device | a disk of ours: by `uas` it is faster near, and many times so from far |
    /// | anything else, or one whose distance is to be felt (`--ahead off`) | the device itself |
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn quickest(client: &Client, target: &Target) -> Result<Self, ClientError> {
        if client.ahead() == Ahead::Auto && client.is_lone_disk(target)? {
            match Self::disk(client, target, DiskMode::Exclusive) {
                // No medium, several units, none of its host's business: whoever has the device itself sees what it is.
                Err(error @ (ClientError::Device { .. } | ClientError::Untrusted { .. } | ClientError::Local(_))) => {
                    debug!(%error, "not a disk of ours");
                }
                had => return had,
            }
        }
        Self::new(client, target)
    }

    fn plugged(relay: Between, hands: Hands, port: Port) -> Result<Self, ClientError> {
        let ender = Ender::new().map_err(local)?;
        let parter = Parter::new(Arc::clone(&ender.wake));
        Ok(Self { relay, hands, port, ender, parter, meters: Arc::default() })
    }

    /// What another process was attached to, on one of these ports: nothing happens before it runs.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so.
    pub fn restore(client: &Client, target: &Target, ports: &[u32], saved: Saved) -> Result<Self, ClientError> {
        Self::restore_with(client, SNAPSHOT_KIND, ports, saved, |reader, socket| {
            let relay = SessionRelay::restore(reader, socket, client.redial(target)?).map_err(local)?;
            Ok(Between::Session(Box::new(relay)))
        })
    }

    /// The same of a disk of ours.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so.
    pub fn restore_disk(client: &Client, target: &Target, ports: &[u32], saved: Saved) -> Result<Self, ClientError> {
        Self::restore_with(client, DISK_SNAPSHOT_KIND, ports, saved, |reader, socket| {
            let relay = DiskRelay::restore(reader, socket, client.redial(target)?, target).map_err(local)?;
            Ok(Between::Disk(Box::new(relay)))
        })
    }

    /// The same of whichever of the two it was.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so.
    pub fn restore_quickest(
        client: &Client,
        target: &Target,
        ports: &[u32],
        saved: Saved,
    ) -> Result<Self, ClientError> {
        match snapshot::open(&saved.snapshot, DISK_SNAPSHOT_KIND).is_ok() {
            true => Self::restore_disk(client, target, ports, saved),
            false => Self::restore(client, target, ports, saved),
        }
    }

    fn restore_with(
        client: &Client,
        kind: u16,
        ports: &[u32],
        saved: Saved,
        restore: impl FnOnce(Reader<'_>, OwnedFd) -> Result<Between, ClientError>,
    ) -> Result<Self, ClientError> {
        let wrong = |reject: Reject| ClientError::Local(reject.to_string());
        let Saved { snapshot, descriptors } = saved;
        let mut reader = snapshot::open(&snapshot, kind).map_err(wrong)?;
        let port = reader.u32("port").map_err(wrong)?;
        if !ports.contains(&port) {
            return Err(ClientError::Local(format!("port {port} is not known to be its")));
        }
        let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| ClientError::Local("an attachment has its socket, and no other".into()))?;
        let relay = restore(reader, socket)?;
        Self::plugged(relay, client.hands().clone(), Port(port))
    }

    /// It does not run here after all: whoever had it keeps it.
    pub fn leave(self) {
        match self.relay {
            Between::Plain(_) => {}
            Between::Session(relay) => relay.hand_over(),
            Between::Disk(relay) => relay.hand_over(),
        }
    }

    /// What makes it ready for another process; none for a plain connection, which ends with its link.
    pub fn parter(&self) -> Option<Parter<Saved>> {
        let is_movable = match &self.relay {
            Between::Plain(_) => false,
            Between::Session(relay) => relay.is_movable(),
            Between::Disk(relay) => relay.is_movable(),
        };
        is_movable.then(|| self.parter.clone())
    }

    /// The port it is plugged into.
    pub fn port(&self) -> Port {
        self.port
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Our end of the link, as the exporter sees its user.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.relay {
            Between::Plain(relay) => local_address(&relay.remote),
            Between::Session(_) | Between::Disk(_) => None,
        }
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        match &self.relay {
            Between::Plain(_) => None,
            Between::Session(relay) => Some(relay.standing()),
            Between::Disk(relay) => relay.standing(),
        }
    }

    /// How it is attached, in a few words.
    pub fn how(&self) -> &'static str {
        match &self.relay {
            Between::Plain(_) => "over a plain connection",
            Between::Session(_) => "in a session",
            Between::Disk(_) => "via uas",
        }
    }

    /// How a disk is used that is one of ours.
    pub fn mode(&self) -> Option<DiskMode> {
        if let Between::Disk(relay) = &self.relay { Some(relay.mode()) } else { None }
    }

    /// What passes through, for status.
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Relays until it ends, then unplugs.
    pub fn run(self) -> Ended {
        wait_exactly();
        let ended = match self.relay {
            Between::Plain(mut relay) => relay.run(&self.ender, &self.meters),
            Between::Session(relay) => {
                let begin = beginning(SNAPSHOT_KIND, self.port);
                run_relay(*relay, &self.ender, &self.parter, &begin, &self.meters)
            }
            Between::Disk(relay) => {
                let begin = beginning(DISK_SNAPSHOT_KIND, self.port);
                run_relay(*relay, &self.ender, &self.parter, &begin, &self.meters)
            }
        };
        if matches!(ended, Ended::HandedOver) {
            return ended;
        }
        if !matches!(ended, Ended::Released)
            && let Err(error) = self.hands.unplug(self.port)
        {
            warn!(%error, "the kernel did not let go of its port");
        }
        ended
    }
}

/// What is between the kernel and the exporter.
enum Between {
    Plain(Box<Relay>),
    Session(Box<SessionRelay>),
    Disk(Box<DiskRelay>),
}

/// What its snapshot begins with.
fn beginning(kind: u16, Port(port): Port) -> Writer {
    let mut to = Writer::new(kind);
    to.u32(port);
    to
}

/// How an attachment ended that did so by itself.
fn stopped(end: Stopped) -> Ended {
    match end {
        Stopped::Released => Ended::Released,
        Stopped::Fault(fault) => Ended::Lost(format!("the kernel said what it should not: {fault}")),
        Stopped::Ended(end) => ended_by(&end),
        Stopped::Gone => Ended::Lost("the device is gone".into()),
    }
}

/// Relays until it ends, or another process has it.
fn run_relay(
    mut relay: impl Relaying,
    ender: &Ender,
    parter: &Parter<Saved>,
    begin: &Writer,
    meters: &Meters,
) -> Ended {
    let end = loop {
        if ender.hears() {
            break None;
        }
        if let Some(asker) = parter.asked() {
            let mut to = begin.clone();
            match relay.save(&mut to) {
                Ok(Some(socket)) => {
                    let saved = Saved { snapshot: to.into_bytes(), descriptors: vec![socket] };
                    if asker.part(saved) == Verdict::Go {
                        relay.hand_over();
                        return Ended::HandedOver;
                    }
                }
                // Whoever asked hears that from its silence.
                Ok(None) => {}
                Err(end) => break Some(end),
            }
        }
        if let Err(end) = relay.turn(Interest::new(ender.wake.as_fd(), false), meters) {
            break Some(end);
        }
    };
    relay.close();
    end.map_or(Ended::Asked, stopped)
}

/// The engine between a kernel and a remote exporter: one thread, two sockets.
struct Relay {
    kernel: Link,
    remote: Link,
    exporter: Exporter<RemoteDevice>,
    clock: Clock,
    calls: Calls,
}

/// Why a turn of the relay was the last.
enum Stop {
    Kernel(io::Error),
    Remote(io::Error),
    Fault(Fault),
    Reject(Reject),
    KernelClosed,
    RemoteClosed,
}

impl Relay {
    fn run(&mut self, ender: &Ender, meters: &Meters) -> Ended {
        loop {
            match self.turn(ender) {
                Ok(()) if ender.was_asked() => return Ended::Asked,
                Ok(()) => meters.publish(self.exporter.counters(), self.calls),
                Err(stop) => return self.end(stop),
            }
        }
    }

    fn end(&mut self, stop: Stop) -> Ended {
        let now = self.clock.now();
        // What the kernel still waits for ends as gone, as far as its socket takes it: what waited unsent for room too.
        self.exporter.with_device(now, RemoteDevice::handle_lost);
        while let Ok(true) = self.flush_kernel()
            && self.exporter.has_held()
            && self.exporter.advance(now, &mut Nothing).is_ok()
        {}
        match stop {
            Stop::KernelClosed => Ended::Released,
            Stop::Kernel(error) => {
                debug!(%error, "the kernel's socket ended");
                Ended::Released
            }
            Stop::Fault(fault) => Ended::Lost(format!("the kernel said what it should not: {fault}")),
            Stop::Remote(error) => Ended::Lost(error.to_string()),
            Stop::RemoteClosed => Ended::Lost("the exporter closed the connection".into()),
            Stop::Reject(reject) => Ended::Broken(reject),
        }
    }

    fn turn(&mut self, ender: &Ender) -> Result<(), Stop> {
        self.exporter.advance(self.clock.now(), &mut Nothing).map_err(Stop::Fault)?;
        let remote_full = !self.flush_remote().map_err(Stop::Remote)?;
        let kernel_full = !self.flush_kernel().map_err(Stop::Kernel)?;
        if self.exporter.has_held() && !kernel_full {
            return Ok(());
        }
        self.calls.wait += 1;
        let mut interests = [
            Interest::new(self.kernel.as_fd(), kernel_full),
            Interest::new(self.remote.as_fd(), remote_full),
            Interest::new(ender.wake.as_fd(), false),
        ];
        // What an encrypted link has decrypted already makes no socket readable.
        let has_received = self.remote.has_received();
        wait(&mut interests, has_received.then_some(Duration::ZERO)).map_err(Stop::Kernel)?;
        let [on_kernel, on_remote, _] = interests.map(|interest| interest.readable);
        if on_kernel {
            self.receive_from_kernel()?;
        }
        if on_remote || has_received {
            self.receive_from_remote()?;
        }
        Ok(())
    }

    fn receive_from_kernel(&mut self) -> Result<(), Stop> {
        self.calls.receive += 1;
        match self.kernel.try_receive(self.exporter.receive_space()).map_err(Stop::Kernel)? {
            Some(0) => Err(Stop::KernelClosed),
            Some(count) => {
                self.exporter.handle_received(count);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn receive_from_remote(&mut self) -> Result<(), Stop> {
        self.calls.receive += 1;
        let remote = &self.remote;
        let received = self.exporter.with_device(self.clock.now(), |device, done| {
            match remote.try_receive(device.receive_space()).map_err(Stop::Remote)? {
                Some(0) => Err(Stop::RemoteClosed),
                Some(count) => device.handle_received(count, done).map_err(Stop::Reject),
                None => Ok(()),
            }
        });
        received.expect("a relay has its device from the start")
    }

    fn flush_kernel(&mut self) -> io::Result<bool> {
        while self.exporter.has_transmit() {
            self.calls.send += 1;
            let sent = self.kernel.try_send(&self.exporter.poll_transmit())?;
            match sent {
                Some(count) => self.exporter.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn flush_remote(&mut self) -> io::Result<bool> {
        while let Some(device) = self.exporter.device().filter(|device| device.has_transmit()) {
            self.calls.send += 1;
            let sent = self.remote.try_send(&device.poll_transmit())?;
            match sent {
                Some(count) => {
                    let sent = |device: &mut RemoteDevice, done: &mut _| device.handle_transmitted(count, done);
                    self.exporter.with_device(self.clock.now(), sent);
                }
                None => return Ok(false),
            }
        }
        self.remote.try_flush()
    }
}

/// How an attachment ended whose session did.
pub fn ended_by(end: &End) -> Ended {
    match (end.cause, end.message.as_str()) {
        (Cause::Asked, HANDED_OVER) => Ended::Moved,
        _ => Ended::Over(report_of(end)),
    }
}

/// A session's end as a failure.
pub fn report_of(end: &End) -> FailureReport {
    let attribute = match end.cause {
        Cause::Device => Attribute::Device,
        Cause::Network => Attribute::Network,
        Cause::Gone => Attribute::Gone,
        Cause::Refused
        | Cause::Busy
        | Cause::Stale
        | Cause::Asked
        | Cause::Class
        | Cause::Module
        | Cause::Reservation => Attribute::Refused,
    };
    FailureReport { attribute, message: end.message.clone() }
}

/// A kernel asks for no list and no import.
struct Nothing;

impl Offers<RemoteDevice> for Nothing {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, RemoteDevice), OpStatus> {
        Err(OpStatus::NotAvailable)
    }
}

/// A remote disk as a file: no kernel USB at all.
pub struct FileAttachment {
    mount: DiskMount,
    way: Way,
    cutter: DiskCutter,
    standing: Option<Standing>,
    local_address: Option<SocketAddr>,
    ender: Ender,
    size_bytes: u64,
    mode: DiskMode,
    is_movable: bool,
}

/// What another process showed as a file, and nobody shows now.
pub struct RestingFile {
    resting: Resting,
    disk: Shown,
}

/// What is known of a disk besides its device.
struct Shown {
    way: Way,
    cutter: DiskCutter,
    standing: Option<Standing>,
    local_address: Option<SocketAddr>,
    size_bytes: u64,
    mode: DiskMode,
    is_movable: bool,
}

/// Takes a disk from the users of its file without waiting for anything.
#[derive(Clone)]
pub struct FileCutter {
    mount: Cutter,
    disk: DiskCutter,
}

impl FileCutter {
    /// Whatever is asked of it fails, now and from now on.
    pub fn cut(&self) {
        self.mount.cut();
        // What is under way ends, too: nobody waits for a link any more.
        self.disk.cut();
    }
}

/// The name of the file in the mounted folder.
const DISK_FILE: &str = "disk.img";
/// How soon a session is looked at again that has no link, or whose user is at it.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long programs that use the file may take to let go of it when the attachment ends.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);

impl FileAttachment {
    /// Takes `target`, which has to be a disk, and shows it in the folder `at`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, mode: DiskMode, at: &Path) -> Result<Self, ClientError> {
        Self::over(OpenedDisk::open(client, target, mode)?, client.hands(), at)
    }

    /// Shows a disk that was opened before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(disk: OpenedDisk, hands: &Hands, at: &Path) -> Result<Self, ClientError> {
        let (shown, device, clock) = Shown::of(disk.with_any_byte());
        shown.at(DiskMount::mount_by(hands, at, DISK_FILE, device, clock).map_err(local)?)
    }

    /// What makes it ready for another process, if it can be.
    pub fn parter(&self) -> Option<Parter<Saved>> {
        self.is_movable.then(|| self.mount.parter())
    }

    /// The disk's file.
    pub fn file(&self) -> PathBuf {
        self.mount.file().to_owned()
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How it is used.
    pub fn mode(&self) -> DiskMode {
        self.mode
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        self.standing.clone()
    }

    /// Our end of the link, as the exporter sees its user.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// What takes the disk from its users without waiting for anything: a second Ctrl-C.
    pub fn cutter(&self) -> FileCutter {
        FileCutter { mount: self.mount.cutter(), disk: self.cutter.clone() }
    }

    /// Watches until it ends, then takes the file away. The disk is served by its own thread.
    pub fn run(mut self) -> Ended {
        let ended = match &self.way {
            Way::Link(link) => self.watch(Some(link)),
            Way::Device { .. } => self.watch(None),
            Way::Port(port) => self.watch_session(port),
        };
        let has_ended = matches!(ended, Ended::Lost(_) | Ended::Over(_) | Ended::Moved);
        if has_ended && !self.mount.is_handed_over() {
            self.mount.cutter().cut();
        }
        match self.mount.unmount() {
            Ok(result) => {
                if let Err(error) = result.flushed {
                    warn!(%error, "the last writes may not be durable");
                }
                if result.in_use && self.mount.wait_for(Health::Ended, Some(RELEASE_TIME_MAX)) != Health::Ended {
                    warn!("programs still have the disk open; they get errors from now on");
                }
            }
            Err(error) => warn!(%error, "the folder stays mounted"),
        }
        if self.mount.is_handed_over() {
            return Ended::HandedOver;
        }
        if let (Way::Port(port), Ended::Asked | Ended::Released) = (&self.way, &ended) {
            port.close();
        }
        // Whoever may still cut it off holds its link, too: to its exporter it ends here.
        self.cutter.cut();
        ended
    }

    /// A session sees to its links itself while somebody asks something of the disk, and here while nobody does.
    fn watch_session(&self, port: &SessionPort) -> Ended {
        loop {
            let seen = port.look();
            if let Seen::Ended(end) = seen {
                return ended_by(&end);
            }
            let pause = match &seen {
                Seen::Linked(_) => None,
                Seen::Busy | Seen::Unlinked | Seen::Ended(_) => Some(LOOK_AGAIN),
            };
            let mut interests =
                vec![Interest::new(self.mount.event(), false), Interest::new(self.ender.wake.as_fd(), false)];
            if let Seen::Linked(link) = &seen {
                interests.push(Interest::hangup(link.as_fd()));
            }
            if let Err(error) = wait(&mut interests, pause) {
                return Ended::Lost(error.to_string());
            }
            if interests[1].readable && self.ender.was_asked() {
                return Ended::Asked;
            }
            if interests[0].readable {
                return self.end_of_mount("the disk failed, or the way to it broke");
            }
        }
    }

    /// Waits for the end of the mount, and of the link if that is the device's, too.
    fn watch(&self, link: Option<&Link>) -> Ended {
        loop {
            let mut interests =
                vec![Interest::new(self.mount.event(), false), Interest::new(self.ender.wake.as_fd(), false)];
            interests.extend(link.map(|link| Interest::hangup(link.as_fd())));
            if let Err(error) = wait(&mut interests, None) {
                return Ended::Lost(error.to_string());
            }
            if interests[1].readable && self.ender.was_asked() {
                return Ended::Asked;
            }
            let is_link_over = interests.get(2).is_some_and(|on_link| on_link.readable);
            if is_link_over || interests[0].readable {
                return self.end_of_mount("the exporter ended the connection, or the way to it broke");
            }
        }
    }

    fn end_of_mount(&self, why: &str) -> Ended {
        match (self.mount.health(), self.standing.as_ref().and_then(Standing::end)) {
            (Health::Ended, None) => Ended::Released,
            (_, Some(end)) => ended_by(&end),
            (_, None) => Ended::Lost(why.into()),
        }
    }
}

impl Shown {
    /// With it the device, and whose moments it is told.
    fn of(disk: OpenedDisk) -> (Self, Box<dyn BlockDevice>, Clock) {
        let (size_bytes, mode, local_address) = (disk.device.info().size_bytes, disk.mode(), disk.local_address());
        let is_movable = disk.is_movable();
        let OpenedDisk { device, clock, way, cutter, standing } = disk;
        (Self { way, cutter, standing, local_address, size_bytes, mode, is_movable }, device, clock)
    }

    fn at(self, mount: DiskMount) -> Result<FileAttachment, ClientError> {
        let Self { way, cutter, standing, local_address, size_bytes, mode, is_movable } = self;
        let ender = Ender::new().map_err(local)?;
        let all = FileAttachment { mount, way, cutter, standing, local_address, ender, size_bytes, mode, is_movable };
        Ok(all)
    }
}

impl RestingFile {
    /// As another process saved it.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so.
    pub fn restore(client: &Client, target: &Target, saved: Saved) -> Result<Self, ClientError> {
        let dial = client.redial(target)?;
        let mut known = None;
        let resting = Resting::restore(saved, |device| {
            let (disk, pending) = OpenedDisk::restore(dial, device)?;
            let (shown, device, clock) = Shown::of(disk);
            known = Some(shown);
            Ok((device, pending, clock))
        });
        Ok(Self { resting: resting.map_err(local)?, disk: known.expect("its device was restored") })
    }

    /// The other process has let go.
    ///
    /// # Errors
    /// [`ClientError::Local`]: its mount is not there any more.
    pub fn go_on(self, hands: &Hands) -> Result<FileAttachment, ClientError> {
        match hands.keep_mount(self.resting.at()) {
            Ok(keeper) => self.disk.at(self.resting.go_on(keeper).map_err(local)?),
            Err(error) => {
                self.resting.leave();
                Err(local(error))
            }
        }
    }

    /// It is not gone on with here: whoever had it keeps it.
    pub fn leave(self) {
        self.resting.leave();
    }
}

/// What an attachment tells `farbus status`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AttachmentStatus {
    /// The device's name at its exporter.
    pub name: String,
    /// `HOST:PORT/DEVICE`.
    pub title: String,
    /// `attached`, or `link lost` while it waits for another; before that, `waiting`.
    pub state: &'static str,
    /// The exporter.
    pub user: String,
    /// Where it is here.
    pub at: String,
    /// For how long, seconds.
    pub used_s: f64,
    /// What for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How a disk is used: `exclusive` or `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// For how long it has been waiting for a link, seconds; while it has one it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_lost_s: Option<f64>,
    /// Where the time of its requests goes, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What was done about its distance, by name: transfers received ahead, packets that were late.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<&'static str, u64>,
    /// By how much the clock of a stream was moved to follow the device's, microseconds, while one goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_us: Option<i64>,
    /// Its session's links, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// What is reserved for it at its exporter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// What passed through, where it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
}

impl AttachmentStatus {
    /// The same, as its session stands: a device without a link is attached, and waits.
    #[must_use]
    pub fn with_standing(mut self, standing: Option<&Standing>) -> Self {
        self.latency = standing.and_then(Standing::latency);
        self.links = standing.and_then(Standing::links);
        self.reservation = standing.and_then(Standing::reserved).map(|reserved| ReservationStatus::told(&reserved));
        if let Some(distance) = standing.map(Standing::distance) {
            (self.counts, self.drift_us) = (distance.counts(), distance.drift_us());
        }
        match standing.and_then(Standing::unlinked) {
            Some(span) if self.state == "attached" => {
                Self { state: "link lost", link_lost_s: Some(span.as_secs_f64()), ..self }
            }
            _ => self,
        }
    }
}
