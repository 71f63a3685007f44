//! A remote device for a virtual machine: QEMU's `usb-redir` connects to it. It needs no USB support in this machine's
//! kernel.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, Link, LockstepSender, PollInterest, wait};
use farbus_io_net::saving::{SaveDecision, SaveRequest, SaveRequester, SavedAttachment};
use farbus_io_net::sys::unread::is_all_read;
use farbus_io_net::trust::LinkTraffic;
use farbus_model::{Device, Instant, SessionLimits};
use farbus_session::native::HOLD;
use farbus_session::native::control::MIGRATION_STATE_BYTES_MAX;
use farbus_session::redir::FrozenRedirStream;
use farbus_session::snapshot::{self, SnapshotWriter};
use farbus_session::{ProtocolViolation, RedirHost};
use tracing::{debug, info, warn};

use crate::broker::SystemAccess;
use crate::common::socket_place::{SocketListener, SocketLocation, SocketProtocol, plain_name};
use crate::frontend::hold::HoldGrant;
use crate::frontend::hold::{
    ArrivalTimer, FOLLOWS_ALREADY, FOLLOWS_NOT, HoldAnswerSender, HoldCommand, HoldHandle, HoldOrder, QUIET_WITHIN,
};
use crate::frontend::open_users::{ConnectedProcesses, OpenClients, OpenUsers};
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::usb_swap::{IS_MOVING, IS_SWAPPING, SwapUsb, UsbSwap, UsbSwapOrder as SwapOrder};
use crate::frontend::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FrontEnd,
    FrontEndPreparation, FrontEndRequirement, RestoredAttachment, StopSignal,
};
use crate::importer::client::{ClientError, DeviceTarget, GRACE, ImporterClient, local};
use crate::importer::session::status::SessionStatus;
use crate::link::meters::{EngineMeters, SyscallCounts};

/// The name of a guest that has none.
const GUEST: &str = "a guest";
/// How long a guest may take to acknowledge that its device is gone, before the connection is closed.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the device may take to answer requests under way, before reads without data are cancelled.
const OWN_PACE: Duration = Duration::from_millis(100);
/// How long requests may take to complete before a snapshot: less than the asking thread waits.
const PART_WITHIN: Duration = Duration::from_secs(4);
/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 6;
/// How often to check whether a guest has read all: there is no event for it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The shortest pause between two such checks during a live migration, while more bytes wait to be sent to the guest.
const LOOK_SOON: Duration = Duration::from_micros(100);
const LOOK_LATE: Duration = Duration::from_millis(10);

/// A guest whose device is held.
struct RedirHold {
    since: Instant,
    /// Where to report that it is held.
    asker: Option<HoldAnswerSender>,
    has_taken_back: bool,
    /// The key of the host that the device migrates to when the guest has left.
    successor: Option<[u8; 32]>,
}

/// A guest that uses its device until it leaves, and then continues on another host.
struct RedirLiveMigration {
    /// The key of that host.
    successor: [u8; 32],
    since: Instant,
    /// Where to report that it follows: when the guest has read what was sent before.
    asker: Option<HoldAnswerSender>,
    lockstep: LockstepSender,
    /// When the last chunk was sent.
    sent_at: Instant,
    /// Whether the guest has stopped for good, which is as if its connection ended once all that it sent is received.
    has_stopped: bool,
}

impl RedirLiveMigration {
    /// Sends what the guest can be sent now.
    fn try_send(&mut self, now: Instant, guest: &Link, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if self.asker.is_some() {
            return Ok(None);
        }
        let sent = self.lockstep.try_send(guest, runs);
        if matches!(sent, Ok(Some(_))) {
            self.sent_at = now;
        }
        sent
    }

    /// When to look whether the guest has read the last chunk: soon at first, because it reads at once if it runs.
    fn look_again(&self, now: Instant) -> Duration {
        ((now - self.sent_at) / 4).clamp(LOOK_SOON, LOOK_LATE)
    }
}

/// Which host has the device, and for which guest.
enum RedirMigrationPhase {
    /// It is here, for a connected guest or the next.
    Here,
    /// Another host has yet to hand it over: a guest that connects waits until then.
    Inheriting,
    /// The guest has left for the host with this key: what it asked of the device comes to its end, or is taken back.
    Resting {
        successor: [u8; 32],
        since: Instant,
        /// What the guest was sent and had not read.
        unread: Vec<u8>,
    },
    /// It migrates to the host with this key, with the guest's stream, as soon as no request is under way.
    Leaving([u8; 32], Option<FrozenRedirStream>),
    /// It waits for its successor. If none comes, it is here again, with the guest's stream.
    Gone(Option<FrozenRedirStream>),
    /// It is reserved for the guest with this stream: the next connection is that guest's.
    Expecting(FrozenRedirStream),
}

/// What a virtual machine speaks; its port is where `usbredirserver` listens.
pub const PROTOCOL: SocketProtocol = SocketProtocol { name: "usbredir", word: "redir", port: 4000, is_tcp: false };

/// `--via redir`: a virtual machine, whose QEMU connects by `usb-redir`.
pub struct RedirFrontEnd;

impl FrontEnd for RedirFrontEnd {
    fn name(&self) -> &'static str {
        "redir"
    }

    fn summary(&self) -> &'static str {
        "In a virtual machine"
    }

    fn protocol(&self) -> Option<SocketProtocol> {
        Some(PROTOCOL)
    }

    fn takes_handed_over(&self) -> bool {
        true
    }

    fn takes_twins(&self) -> bool {
        true
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        request.needs_of(PROTOCOL)
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        prepared: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        // Check first what may be missing on this machine, before a device is taken.
        let listener = prepared.listener(client, request, PROTOCOL)?;
        let target = &request.target;
        let device = match request.is_handed_over {
            true => FarDevice::inherit(client, target, GRACE),
            false => FarDevice::open(client, target, GRACE),
        };
        match device {
            Ok(device) => {
                let (stop, swap) = control_of(client, target)?;
                let device = SwapUsb::new(device, swap.clone());
                let attachment = RedirAttachment::over(device, (stop, swap), target, listener, client)?;
                Ok(Box::new(RedirAttachment { is_handed_over: request.is_handed_over, ..attachment }))
            }
            Err(error) => {
                prepared.keep(listener);
                Err(error)
            }
        }
    }

    fn manner(&self, request: &AttachRequest) -> String {
        format!("redir at {}{}", request.place_of(PROTOCOL).as_host(), request.access)
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        let wrong = |reject: ProtocolViolation| ClientError::Local(reject.to_string());
        let SavedAttachment { snapshot, descriptors, .. } = saved;
        let mut from = snapshot::open(&snapshot, SNAPSHOT_KIND).map_err(wrong)?;
        let mut guest = None;
        if from.flag("guest").map_err(wrong)? {
            let peer = String::from_utf8_lossy(from.bytes("guest's name").map_err(wrong)?).into_owned();
            guest = Some((peer, FrozenRedirStream::from_bytes(from.bytes("stream").map_err(wrong)?).map_err(wrong)?));
        }
        let mut descriptors = descriptors.into_iter();
        let (listener, socket) = (descriptors.next(), descriptors.next());
        let (Some(listener), true) = (listener, socket.is_some() == guest.is_some()) else {
            return Err(ClientError::Local("what is open of it does not come with it".into()));
        };
        let (stop, swap) = control_of(client, &request.target)?;
        let mut device =
            SwapUsb::restore(client.redial(&request.target, LinkTraffic::Prompt)?, swap.clone(), &mut from)
                .map_err(local)?;
        if let Err(reject) = from.end("snapshot") {
            device.leave();
            return Err(wrong(reject));
        }
        if !device.in_flight_of().is_empty() {
            device.leave();
            return Err(ClientError::Local("the device has what nobody asked".into()));
        }
        let listener = SocketListener::passed(listener, &request.place_of(PROTOCOL));
        let mut attachment = RedirAttachment::over(device, (stop, swap), &request.target, listener, client)?;
        if let (Some(socket), Some((peer, frozen))) = (socket, guest) {
            let link = match peer.parse() {
                Ok(address) => Link::over_tcp(socket, address).map_err(local)?,
                Err(_) => Link::over_local(socket, &peer),
            };
            (attachment.relay.guest, attachment.restored_guest) = (Some(link), Some(frozen));
        }
        Ok(Box::new(attachment))
    }
}

/// A device that waits for a virtual machine, serves it, and waits for the next.
struct RedirAttachment {
    relay: RedirRelay,
    location: SocketLocation,
    target: DeviceTarget,
    stop: StopSignal,
    hold_handle: HoldHandle,
    local_address: Option<SocketAddr>,
    session: Option<SessionStatus>,
    swap: UsbSwap,
    /// Whether a replacement process can continue with the attachment's own device.
    may_save: bool,
    meters: Arc<EngineMeters>,
    system: SystemAccess,
    save_requester: SaveRequester<SavedAttachment>,
    /// Whether another host has yet to hand it over.
    is_handed_over: bool,
    /// The stream of a guest that another process served, to be continued here.
    restored_guest: Option<FrozenRedirStream>,
}

/// What ends an attachment, and what exchanges its device.
fn control_of(client: &ImporterClient, target: &DeviceTarget) -> Result<(StopSignal, UsbSwap), ClientError> {
    let stop = StopSignal::new().map_err(local)?;
    let swap = UsbSwap::new(client, target, stop.shared_wake());
    Ok((stop, swap))
}

impl RedirAttachment {
    /// Lends an open device to each guest that connects at `listener`.
    fn over(
        device: SwapUsb,
        (stop, swap): (StopSignal, UsbSwap),
        target: &DeviceTarget,
        listener: SocketListener,
        client: &ImporterClient,
    ) -> Result<Self, ClientError> {
        let location = listener.location().map_err(local)?;
        let (clock, local_address, session) = (device.clock(), device.local_address(), device.status());
        let (may_save, system) = (device.may_move().is_ok(), client.system().clone());
        let host = RedirHost::new(device, SessionLimits::RELAYED);
        let hold_handle = HoldHandle::new().map_err(local)?;
        let stay =
            if host.session().device().is_open() { RedirMigrationPhase::Here } else { RedirMigrationPhase::Inheriting };
        let relay = RedirRelay {
            listener,
            guest: None,
            held: None,
            following: None,
            stay,
            host,
            clock,
            calls: SyscallCounts::default(),
            arrival: ArrivalTimer::default(),
            open: OpenClients::default(),
            connected: ConnectedProcesses::default(),
        };
        let (save_requester, meters, target) = (SaveRequester::new(stop.shared_wake()), Arc::default(), target.clone());
        let (is_handed_over, restored_guest) = (false, None);
        Ok(Self {
            relay,
            location,
            target,
            stop,
            hold_handle,
            local_address,
            session,
            swap,
            may_save,
            meters,
            system,
            save_requester,
            is_handed_over,
            restored_guest,
        })
    }

    /// Drops the attachment without ending anything: a replacement process continues it.
    fn leave(mut self) {
        self.relay.host.with_device(|device, _| device.leave());
        // The replacement removes the socket's path. This marks the path as passed on even if no copy can be made.
        let _ = self.relay.listener.into_descriptor();
    }
}

impl Attachment for RedirAttachment {
    fn status(&self) -> AttachmentFacts {
        let (at, options) = (self.location.to_string(), self.location.chardev_options());
        let how = if self.is_handed_over { "waits to be handed over at" } else { "attached at" };
        let id = format!("farbus-{}", plain_name(&self.target.device));
        let next = format!(
            "qemu-system-x86_64 -device qemu-xhci -chardev socket,id={id},{options} -device usb-redir,chardev={id}\n  \
             or, in the monitor of one that runs: chardev-add socket,id={id},{options}\n  \
                                                  device_add usb-redir,id={id},chardev={id}"
        );
        AttachmentFacts {
            introduction: AttachmentIntroduction {
                line: format!("{} {how} {at}", self.target.shown()),
                next: Some(next),
                export: None,
            },
            at,
            how: "over a plain connection",
            mode: None,
            port: None,
            local_address: self.local_address,
        }
    }

    fn handle(&self) -> AttachmentHandle {
        let open = self.relay.open.clone();
        // A guest that is shown a disk would lose what it has not written out.
        let users =
            OpenUsers::new(move || open.count(), "a virtual machine has this disk", "virtual machines have this disk");
        AttachmentHandle::new(self.stop.clone())
            .holding_by(Some(self.hold_handle.clone()))
            .used_by(users.waited_for())
            .connected_to(self.relay.connected.clone())
            .in_session(self.session.clone())
            .saving_by(self.may_save.then(|| self.save_requester.clone()))
            .swapping_usb_by(self.swap.clone())
            .metered_by(Arc::clone(&self.meters))
    }

    /// Serves one guest after the other until it ends.
    fn run(mut self: Box<Self>) -> AttachmentEnd {
        if let Some(frozen) = self.restored_guest.take() {
            self.relay.thaw(frozen);
        }
        let ended = self.relay.run(&self.stop, &self.hold_handle, &self.save_requester, &self.meters);
        self.swap.finish();
        if matches!(ended, AttachmentEnd::HandedOver) {
            self.system.leave_place(&self.location);
            (*self).leave();
        }
        ended
    }
}

impl RestoredAttachment for RedirAttachment {
    fn go_on(self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError> {
        match system.take_place(&self.location) {
            Ok(()) => Ok(self),
            Err(error) => {
                (*self).leave();
                Err(local(error))
            }
        }
    }

    fn leave(self: Box<Self>) {
        (*self).leave();
    }
}

/// The engine between a guest and a remote exporter: one thread, the device, and the guest's socket or the listener at
/// which the next guest arrives.
struct RedirRelay {
    listener: SocketListener,
    guest: Option<Link>,
    held: Option<RedirHold>,
    following: Option<RedirLiveMigration>,
    stay: RedirMigrationPhase,
    host: RedirHost<SwapUsb>,
    clock: BoottimeClock,
    calls: SyscallCounts,
    arrival: ArrivalTimer,
    /// How many guests have a disk of this attachment, for its owner.
    open: OpenClients,
    /// The guest's process, for its owner.
    connected: ConnectedProcesses,
}

impl RedirRelay {
    fn run(
        &mut self,
        stop: &StopSignal,
        hold_handle: &HoldHandle,
        save_requester: &SaveRequester<SavedAttachment>,
        meters: &EngineMeters,
    ) -> AttachmentEnd {
        self.connected.show(&self.guest);
        let ended = loop {
            if stop.hears() {
                break AttachmentEnd::Requested;
            }
            if let Some(asker) = save_requester.requested()
                && self.part_with(asker) == SaveDecision::Go
            {
                return AttachmentEnd::HandedOver;
            }
            if let Some(order) = self.host.session().device().take_order() {
                self.exchange(order);
            }
            if let Err(error) = self.turn(stop, hold_handle) {
                break AttachmentEnd::Lost(error.to_string());
            }
            meters.publish(self.host.counters(), self.calls);
            self.open.show(usize::from(self.is_disk_in_use()));
            if let Err(reject) = self.look_after_stay() {
                break AttachmentEnd::Broken(reject);
            }
            let is_following = self.following.is_some();
            hold_handle.shut(self.held.is_some() || is_following || !matches!(self.stay, RedirMigrationPhase::Here));
            hold_handle.note_following(is_following);
            if let Some(ended) = self.host.session().device().ended() {
                self.say_farewell();
                break ended;
            }
        };
        let now = self.clock.now();
        self.host.with_device(|device, done| device.close(now, done));
        ended
    }

    /// Begins to exchange the device for its twin.
    fn exchange(&mut self, order: SwapOrder) {
        let is_here = self.held.is_none() && self.following.is_none() && matches!(self.stay, RedirMigrationPhase::Here);
        let refusal = (!is_here).then_some(IS_MOVING);
        let now = self.clock.now();
        self.host.with_device(|device, done| device.exchange(now, order, refusal, done));
    }

    /// Whether it is a disk that a guest is shown.
    fn is_disk_in_use(&self) -> bool {
        let session = self.host.session();
        let is_in_use = self.guest.is_some() && session.is_shown() && !session.is_refused();
        is_in_use && session.device().descriptors().stores_data()
    }

    /// Answers a request for a snapshot: lets requests under way complete, and saves the guest's stream as for a
    /// migration.
    fn part_with(&mut self, asker: SaveRequest<SavedAttachment>) -> SaveDecision {
        // If the device is migrating or does not come to rest, no answer tells the asking thread that it cannot be
        // saved.
        let is_own = self.host.session().device().is_own();
        let is_here =
            is_own && self.held.is_none() && self.following.is_none() && matches!(self.stay, RedirMigrationPhase::Here);
        if !is_here || !self.comes_to_rest() {
            return SaveDecision::Stay;
        }
        let frozen = self.guest.is_some().then(|| self.host.freeze());
        let verdict = match self.save(frozen.as_ref()) {
            Ok(saved) => asker.part(saved),
            Err(error) => {
                warn!(%error, "the device cannot be passed on");
                SaveDecision::Stay
            }
        };
        match (verdict, frozen) {
            (SaveDecision::Go, _) => {}
            (SaveDecision::Stay, Some(frozen)) => self.thaw(frozen),
            (SaveDecision::Stay, None) => self.host.resume(),
        }
        verdict
    }

    /// Waits until the device has no request open, and returns `true`. If that takes too long, the guest continues.
    fn comes_to_rest(&mut self) -> bool {
        let since = self.clock.now();
        self.host.quiesce(since);
        let mut has_taken_back = false;
        loop {
            let now = self.clock.now();
            if !has_taken_back && now - since >= OWN_PACE {
                has_taken_back = true;
                self.host.take_back_reads(now);
            }
            let is_served = self.host.advance(now).is_ok();
            self.host.with_device(|device, done| device.end_turn(now, done));
            let is_still = self.host.session().device().is_still();
            if is_served && is_still && (self.guest.is_none() || self.host.is_quiet()) {
                return true;
            }
            let readiness = self.host.session().device().readiness();
            let on_device =
                readiness.and_then(DeviceWaitSource::interest).map(|interest| wait(&mut [interest], Some(LOOK_AGAIN)));
            let can_wait = on_device.is_some_and(|waited| waited.is_ok());
            if !is_served || !can_wait || now - since >= PART_WITHIN {
                self.host.resume();
                return false;
            }
            self.host.with_device(|device, done| device.handle_ready(now, done));
        }
    }

    fn save(&mut self, frozen: Option<&FrozenRedirStream>) -> io::Result<SavedAttachment> {
        let mut to = SnapshotWriter::new(SNAPSHOT_KIND);
        let mut descriptors = vec![self.listener.as_fd().try_clone_to_owned()?];
        let guest = self.guest.as_ref().zip(frozen);
        to.flag(guest.is_some());
        if let Some((link, frozen)) = guest {
            to.bytes(link.peer().as_bytes());
            to.bytes(&frozen.to_bytes());
            descriptors.push(link.as_fd().try_clone_to_owned()?);
        }
        let is_saved = self.host.with_device(|device, _| device.save_to(&mut to));
        if !is_saved {
            return Err(io::Error::other("it has no session, or that is over"));
        }
        Ok(SavedAttachment { snapshot: to.into_bytes(), descriptors, medium: None })
    }

    fn turn(&mut self, stop: &StopSignal, hold_handle: &HoldHandle) -> io::Result<()> {
        let guest_full = self.serve_guest();
        // Before the wait: a guest that has its answer may send nothing for a long time.
        self.arrival.see(self.clock.now(), self.host.counters().urbs);
        self.look_after_held();
        self.look_after_following();
        let now = self.clock.now();
        self.host.with_device(|device, done| device.end_turn(now, done));
        let is_coming_to_rest = self.held.as_ref().is_some_and(|held| held.asker.is_some());
        let timeout = self.host.poll_timeout().map(|at| at - self.clock.now());
        let again = match (&self.held, &self.following, &self.stay) {
            _ if is_coming_to_rest => Some(LOOK_AGAIN),
            // What came with the last event has been handled just now.
            (.., RedirMigrationPhase::Resting { .. }) if self.host.is_quiet() => Some(Duration::ZERO),
            (Some(RedirHold { since, successor: Some(_), .. }), ..)
            | (.., RedirMigrationPhase::Resting { since, .. }) => Some(*since + self.longest_hold() - now),
            (_, Some(RedirLiveMigration { asker: Some(_), .. }), _) => Some(LOOK_AGAIN),
            (_, Some(RedirLiveMigration { has_stopped: true, .. }), _) => Some(Duration::ZERO),
            (_, Some(following), _) if guest_full => Some(following.look_again(now)),
            _ => None,
        };
        // A socket that is followed has room; what is waited for is that its end has read.
        let guest_full = guest_full && self.following.is_none();
        let timeout = [timeout, again].into_iter().flatten().min();
        self.calls.wait += 1;
        let on_guest = match &self.guest {
            Some(guest) => PollInterest::new(guest.as_fd(), guest_full),
            None => PollInterest::new(self.listener.as_fd(), false),
        };
        let readiness = self.host.session().device().readiness();
        let on_device =
            readiness.and_then(DeviceWaitSource::interest).expect("a remote device is waited for on a descriptor");
        let (on_stop, on_gate) = (PollInterest::new(stop.wake().as_fd(), false), hold_handle.interest());
        let mut interests = [on_device, on_stop, on_gate, on_guest];
        // A guest that connects while the device is elsewhere waits.
        let is_open =
            self.guest.is_some() || matches!(self.stay, RedirMigrationPhase::Here | RedirMigrationPhase::Expecting(_));
        wait(&mut interests[..if is_open { 4 } else { 3 }], timeout)?;
        let on_device = interests[0].is_ready();
        let [_, _, on_gate, on_guest] = interests.map(|interest| interest.readable);
        if on_gate {
            hold_handle.take().into_iter().for_each(|order| self.carry_out(order));
        }
        if on_guest || self.following.as_ref().is_some_and(|following| following.has_stopped) {
            match self.guest {
                Some(_) => self.receive_from_guest(),
                None => self.welcome(),
            }
        }
        let now = self.clock.now();
        if on_device {
            self.calls.receive += 1;
            self.host.with_device(|device, done| device.handle_ready(now, done));
        }
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        Ok(())
    }

    fn carry_out(&mut self, HoldOrder { command, answer, .. }: HoldOrder) {
        let now = self.clock.now();
        let device = self.host.session().device();
        let (may_move, is_swapping) = (device.may_move(), device.is_swapping());
        let result = match (command, &mut self.held) {
            (HoldCommand::GoOn, _) if self.following.is_some() => {
                self.follow_nobody("it is to go on");
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::Depart(process), _) => match &mut self.following {
                Some(following) if following.asker.is_none() && self.connected.processes() == [process] => {
                    following.has_stopped = true;
                    Ok(HoldGrant::ToUser)
                }
                _ => Err(FOLLOWS_NOT),
            },
            _ if self.following.is_some() => Err(FOLLOWS_ALREADY),
            (HoldCommand::Follow(successor), _) => return self.follow(successor, answer),
            (HoldCommand::Hold | HoldCommand::Move(_), _) if !matches!(self.stay, RedirMigrationPhase::Here) => {
                Err("it is being handed over already")
            }
            (HoldCommand::Hold, _) if is_swapping => Err(IS_SWAPPING),
            (HoldCommand::Move(_), _) if may_move.is_err() => may_move.map(|()| HoldGrant::AtOnce),
            (HoldCommand::Move(_), Some(RedirHold { successor: Some(_), .. })) => {
                Err("it is being handed over already")
            }
            (HoldCommand::Move(successor), Some(held)) if held.asker.is_none() => {
                (held.successor, held.since) = (Some(successor), now);
                if self.guest.is_none() {
                    self.part();
                }
                Ok(HoldGrant::ToUser)
            }
            (HoldCommand::Hold | HoldCommand::Move(_), Some(_)) => Err("it is held already"),
            (HoldCommand::Hold, None) if self.guest.is_none() => Err("no virtual machine has it"),
            (HoldCommand::Move(successor), None) if self.guest.is_none() => {
                self.stay = RedirMigrationPhase::Leaving(successor, None);
                Ok(HoldGrant::AtOnce)
            }
            (HoldCommand::Hold | HoldCommand::Move(_), None) => {
                self.host.quiesce(now);
                let successor = if let HoldCommand::Move(successor) = command { Some(successor) } else { None };
                self.held = Some(RedirHold { since: now, asker: Some(answer), has_taken_back: false, successor });
                return;
            }
            // The guest that was to continue does not come.
            (HoldCommand::GoOn, None) if matches!(self.stay, RedirMigrationPhase::Expecting(_)) => {
                self.dismiss();
                Ok(HoldGrant::AtOnce)
            }
            (HoldCommand::GoOn, None) => Err("it is not held"),
            // The guest ended and did not connect again: the next connection is another guest.
            (HoldCommand::GoOn, Some(_)) if self.guest.is_none() => {
                self.dismiss();
                Ok(HoldGrant::AtOnce)
            }
            (HoldCommand::GoOn, Some(_)) => {
                self.go_on();
                Ok(HoldGrant::ToUser)
            }
        };
        answer.give(result);
    }

    /// Follows the guest to the host with this key, as soon as the guest has read what it was sent so far.
    fn follow(&mut self, successor: [u8; 32], answer: HoldAnswerSender) {
        let lockstep = match (&self.guest, self.host.session().device().may_move()) {
            _ if !matches!(self.stay, RedirMigrationPhase::Here) => Err("it is being handed over already"),
            _ if self.held.is_some() => Err("it is held already"),
            (_, Err(why)) => Err(why),
            (None, _) => Err("no virtual machine has it"),
            (Some(guest), _) => LockstepSender::on(guest).ok_or(
                "its virtual machine is connected over TCP, which does not tell what the machine has read: \
                 attach it with --socket",
            ),
        };
        match lockstep {
            Ok(lockstep) => {
                let now = self.clock.now();
                let (asker, since) = (Some(answer), now);
                let following =
                    RedirLiveMigration { successor, since, asker, lockstep, sent_at: now, has_stopped: false };
                self.following = Some(following);
            }
            Err(why) => answer.give(Err(why)),
        }
    }

    /// The guest stays: its device serves it as before.
    fn follow_nobody(&mut self, why: &'static str) {
        if let Some(asker) = self.following.take().and_then(|following| following.asker) {
            asker.give(Err(why));
        }
    }

    /// Answers an order to follow when the guest has read all that was sent before it, or gives up.
    fn look_after_following(&mut self) {
        let now = self.clock.now();
        let (Some(following), Some(guest)) = (&mut self.following, &self.guest) else { return };
        if following.asker.is_none() {
            return;
        }
        let is_shown = self.host.session().is_shown();
        if is_shown && is_all_read(guest).unwrap_or(false) {
            info!("the device goes to its successor when its virtual machine leaves");
            if let Some(asker) = following.asker.take() {
                asker.give(Ok(HoldGrant::ToUser));
            }
        } else if now - following.since >= QUIET_WITHIN {
            self.follow_nobody("its virtual machine does not read what it is sent: is it stopped?");
        }
    }

    /// How long the device may be held while it migrates.
    fn longest_hold(&self) -> Duration {
        self.host.session().device().status().map_or(HOLD, |session| session.hold())
    }

    /// Continues a hold: answers it when the device is at rest, or gives up.
    fn look_after_held(&mut self) {
        let (now, longest) = (self.clock.now(), self.longest_hold());
        let Some(held) = &mut self.held else { return };
        if held.asker.is_none() {
            if held.successor.is_some() && now - held.since >= longest {
                warn!("the virtual machine has not left: its device stays here");
                self.go_on();
            }
            return;
        }
        if !held.has_taken_back && now - held.since >= OWN_PACE {
            held.has_taken_back = true;
            self.host.take_back_reads(now);
        }
        let all_read = self.guest.as_ref().is_some_and(|guest| is_all_read(guest).unwrap_or(false));
        let is_at_rest = self.host.is_quiet() && !self.host.has_transmit() && all_read;
        let result = match is_at_rest {
            true => Ok(HoldGrant::ToUser),
            false if now - held.since < QUIET_WITHIN.min(longest) => return,
            false => Err("what is under way does not come to its end"),
        };
        info!(
            held_us = (now - held.since).as_micros() as u64,
            is_held = result.is_ok(),
            "the virtual machine's device was held still"
        );
        if let Some(asker) = held.asker.take() {
            asker.give(result);
        }
        if result.is_err() {
            self.go_on();
        }
    }

    /// Releases the device: the guest continues, on the same connection or from the host that it has moved to.
    fn go_on(&mut self) {
        if self.held.take().is_some() {
            self.host.resume();
        }
    }

    /// Carries out the guest's requests and sends its answers. Returns whether its socket takes no more. A guest that
    /// breaks the protocol loses the connection; others are not affected.
    fn serve_guest(&mut self) -> bool {
        loop {
            if let Err(fault) = self.host.advance(self.clock.now()) {
                warn!("{GUEST} was hung up on: {fault}");
                self.dismiss();
                return false;
            }
            match self.flush_guest() {
                Ok(true) if self.host.is_hungry() => {}
                Ok(is_flushed) => return !is_flushed,
                // What the guest sent before it left is still to be received: that ends with the end of its socket.
                Err(error) if self.is_followed() => {
                    self.note_end(&error);
                    return false;
                }
                Err(error) => {
                    debug!(%error, "the guest's socket ended");
                    self.dismiss();
                }
            }
        }
    }

    /// Whether the guest continues elsewhere, with its device, when it leaves.
    fn is_followed(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.asker.is_none())
    }

    fn note_end(&mut self, error: &io::Error) {
        if let Some(following) = &mut self.following {
            following.lockstep.note(error);
        }
    }

    /// The guest that is followed has left or stopped for good, and all that it sent was received.
    fn part_followed(&mut self) {
        let now = self.clock.now();
        let (Some(guest), Some(following)) = (self.guest.take(), self.following.take()) else { return };
        self.connected.show(&self.guest);
        let (successor, unread) = (following.successor, following.lockstep.into_unread(&guest));
        info!(unread = unread.len(), "the virtual machine has left: its device goes to its successor");
        self.host.quiesce(now);
        // The guest waits elsewhere: what has no data yet is asked for again there.
        self.host.take_back_reads(now);
        self.stay = RedirMigrationPhase::Resting { successor, since: now, unread };
    }

    /// The guest has left: the device migrates after it, with all its open requests.
    fn part(&mut self) {
        self.guest = None;
        self.connected.show(&self.guest);
        if let Some(successor) = self.held.as_ref().and_then(|held| held.successor) {
            info!("the virtual machine has left: its device goes to its successor");
            self.held = None;
            self.stay = RedirMigrationPhase::Leaving(successor, Some(self.host.freeze()));
        }
    }

    /// Freezes the stream of a guest that was followed, once its device has come to rest.
    fn look_after_rest(&mut self) {
        let now = self.clock.now();
        self.stay = match std::mem::replace(&mut self.stay, RedirMigrationPhase::Here) {
            RedirMigrationPhase::Resting { successor, since, unread } if self.host.is_quiet() => {
                let rest_us = (now - since).as_micros() as u64;
                info!(rest_us, "no request of the virtual machine is under way");
                let mut frozen = self.host.freeze();
                frozen.to_guest.splice(..0, unread);
                RedirMigrationPhase::Leaving(successor, Some(frozen))
            }
            RedirMigrationPhase::Resting { since, .. } if now - since >= self.longest_hold() => {
                warn!("what is under way does not come to its end: the device stays here, and is reset");
                self.host.disconnect(now);
                RedirMigrationPhase::Here
            }
            stay => stay,
        };
    }

    /// The next step of a device that migrates from here or to here.
    fn look_after_stay(&mut self) -> Result<(), ProtocolViolation> {
        if self.host.session().device().is_gone() {
            return Ok(());
        }
        self.look_after_rest();
        let device = self.host.session().device();
        let (is_open, is_still, is_moving) = (device.is_open(), device.is_still(), device.is_moving());
        let stay = std::mem::replace(&mut self.stay, RedirMigrationPhase::Here);
        self.stay = match stay {
            RedirMigrationPhase::Inheriting if is_open => {
                let migration_state = self.host.with_device(|device, _| device.take_migration_state());
                info!(migration_state = migration_state.len(), "a virtual machine's stream came with it");
                let frozen = if migration_state.is_empty() {
                    None
                } else {
                    Some(FrozenRedirStream::from_bytes(&migration_state)?)
                };
                let is_awaited = frozen.as_ref().is_some_and(|frozen| !frozen.from_guest.is_empty());
                self.arrival.note(self.clock.now(), self.host.counters().urbs, is_awaited);
                frozen.map_or(RedirMigrationPhase::Here, RedirMigrationPhase::Expecting)
            }
            RedirMigrationPhase::Leaving(successor, frozen) if is_still => {
                let migration_state = frozen.as_ref().map(FrozenRedirStream::to_bytes).unwrap_or_default();
                match (migration_state.len() <= MIGRATION_STATE_BYTES_MAX, frozen) {
                    (false, Some(frozen)) => {
                        warn!(
                            bytes = migration_state.len(),
                            "the virtual machine had asked too much to be handed over: its device stays here"
                        );
                        RedirMigrationPhase::Expecting(frozen)
                    }
                    (_, frozen) => {
                        let now = self.clock.now();
                        self.host.with_device(|device, done| {
                            device.migrate(successor, migration_state);
                            device.end_turn(now, done);
                        });
                        RedirMigrationPhase::Gone(frozen)
                    }
                }
            }
            RedirMigrationPhase::Gone(frozen) if !is_moving => {
                warn!("nobody came for the device: it is here again");
                frozen.map_or(RedirMigrationPhase::Here, RedirMigrationPhase::Expecting)
            }
            stay => stay,
        };
        Ok(())
    }

    /// Continues the stream that was handed over, for the guest that has connected.
    fn thaw(&mut self, frozen: FrozenRedirStream) {
        info!("the virtual machine goes on here");
        if let Err(fault) = self.host.thaw(self.clock.now(), frozen) {
            warn!("{GUEST} was hung up on: {fault}");
            self.dismiss();
        }
    }

    fn welcome(&mut self) {
        match self.listener.try_accept() {
            Ok(Some(link)) => {
                self.guest = Some(link);
                self.connected.show(&self.guest);
                if let RedirMigrationPhase::Expecting(frozen) =
                    std::mem::replace(&mut self.stay, RedirMigrationPhase::Here)
                {
                    self.thaw(frozen);
                } else if self.held.is_some() {
                    info!("the virtual machine goes on where it has moved to");
                    self.go_on();
                } else {
                    info!("a virtual machine has connected");
                    self.host.connect();
                }
            }
            Ok(None) => {}
            Err(error) => warn!(%error, "a virtual machine could not connect"),
        }
    }

    /// The guest is gone or has to go: resets the device, which waits for the next guest.
    fn dismiss(&mut self) {
        self.held = None;
        self.follow_nobody("its virtual machine has left");
        if matches!(self.stay, RedirMigrationPhase::Expecting(_)) {
            self.stay = RedirMigrationPhase::Here;
        }
        if self.guest.take().is_some() {
            self.connected.show(&self.guest);
            let dropped = self.host.session().dropped();
            info!(dropped, "the virtual machine has disconnected; the device waits for the next");
        }
        self.host.disconnect(self.clock.now());
    }

    fn receive_from_guest(&mut self) {
        let Some(guest) = &self.guest else { return };
        self.calls.receive += 1;
        let was_refused = self.host.session().is_refused();
        match guest.try_receive(self.host.receive_space()) {
            Ok(Some(0)) if self.is_on_its_way() => self.part(),
            Ok(Some(0)) if self.is_followed() => self.part_followed(),
            Ok(Some(0)) => self.dismiss(),
            Ok(Some(count)) => self.host.handle_received(count),
            Ok(None) if self.following.as_ref().is_some_and(|following| following.has_stopped) => self.part_followed(),
            Ok(None) => {}
            Err(error) if self.is_followed() => {
                self.note_end(&error);
                self.part_followed();
            }
            Err(error) => {
                debug!(%error, "the guest's socket ended");
                self.dismiss();
            }
        }
        if !was_refused && self.host.session().is_refused() {
            warn!("the virtual machine refuses this device: its own filter (filter= of usb-redir) takes none like it");
        }
    }

    /// Whether a guest that ends its connection now has moved to another host.
    fn is_on_its_way(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.asker.is_none())
    }

    fn flush_guest(&mut self) -> io::Result<bool> {
        let Some(guest) = &self.guest else { return Ok(true) };
        while self.host.has_transmit() {
            self.calls.send += 1;
            let sent = match &mut self.following {
                Some(following) => following.try_send(self.clock.now(), guest, &self.host.poll_transmit()),
                None => guest.try_send(&self.host.poll_transmit()),
            };
            match sent? {
                Some(count) => self.host.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The device is gone: tells the guest, which has a moment to acknowledge it.
    fn say_farewell(&mut self) {
        self.go_on();
        self.follow_nobody("the device is gone");
        self.host.handle_gone(self.clock.now());
        let until = self.clock.now() + FAREWELL_TIME_MAX;
        while self.guest.is_some() {
            let is_full = self.serve_guest();
            let left = until - self.clock.now();
            let Some(guest) = self.guest.as_ref().filter(|_| !self.host.is_finished() && !left.is_zero()) else {
                return;
            };
            let mut interests = [PollInterest::new(guest.as_fd(), is_full)];
            if wait(&mut interests, Some(left)).is_err() {
                return;
            }
            if interests[0].readable {
                self.receive_from_guest();
            }
        }
    }
}
