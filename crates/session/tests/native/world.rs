//! Two ends of a session and what is between them.

use std::sync::Arc;
use std::time::Duration;

use farbus_model::Instant;
use farbus_session::native::{
    AllowedModules, ExporterServices, ExporterSession, GreetingOutcome, ImporterAttachment, ImporterSession,
    MovableAttachment, ServedExport, UnservedAttachment,
};
use farbus_wire::native::control::{AttachmentClass, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::{ExporterWelcome, Lane, LaneLimits, SessionId, WelcomeOutcome};

use farbus_wire::snapshot::{self, SnapshotWriter};

use crate::kernel::KIND;
use crate::random::Random;
use crate::recorded;

pub const GRACE: Duration = Duration::from_secs(20);
pub const LIMITS: LaneLimits =
    LaneLimits { receive_bytes: 8 << 10, first_receive_bytes: 2 << 10, unacknowledged_bytes_max: 4 << 20 };

/// Number of links in the sessions of a disk or a USB device.
pub const LINKS: [u16; 6] = [1, 1, 1, 2, 2, 3];

/// The two ends, the bytes between them, and the exporter's process, which can crash.
pub struct World<A: ImporterAttachment> {
    pub now: Instant,
    pub importer: ImporterSession,
    pub remote: A,
    pub exporter: Option<ExporterSession>,
    /// The exporter's incarnation; changes when it crashes.
    pub incarnation: u64,
    /// Bytes on their way, by lane.
    to_exporter: Vec<Vec<u8>>,
    to_importer: Vec<Vec<u8>>,
    /// Whether the exporter has lost the links and the importer does not know it.
    is_unnoticed: bool,
    /// Number of links made.
    pub links: u32,
    pub renewals: u32,
    /// The modules that the exporter allows.
    pub allowed: Option<Arc<AllowedModules>>,
}

impl<A: ImporterAttachment> World<A> {
    pub fn new(remote: A) -> Self {
        Self::over_links(remote, 1)
    }

    /// A world whose session has this many links.
    pub fn over_links(remote: A, links: u16) -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        Self {
            now,
            importer: ImporterSession::new(now, 77, GRACE, LIMITS).over_links(links),
            remote,
            exporter: None,
            incarnation: 1,
            to_exporter: vec![Vec::new(); links.into()],
            to_importer: vec![Vec::new(); links.into()],
            is_unnoticed: false,
            links: 0,
            renewals: 0,
            allowed: None,
        }
    }

    pub fn is_linked(&self) -> bool {
        self.importer.is_linked() && !self.is_unnoticed
    }

    /// Whether every lane has a link.
    pub fn is_all_linked(&self) -> bool {
        self.is_linked() && self.importer.wanting_links().next().is_none()
    }

    fn lanes(&self) -> u16 {
        self.to_exporter.len() as u16
    }

    /// Makes a link for each lane that has none.
    pub fn link(&mut self, random: &mut Random, done: &mut A::Done) {
        if !self.is_linked() || self.lanes() == 1 {
            self.link_first(random, done);
        }
        for number in self.importer.wanting_links().collect::<Vec<_>>() {
            if !random.once_in(3) {
                self.link_further(number, random);
            }
        }
        self.remote.use_lanes(self.importer.usable_lanes());
    }

    fn link_further(&mut self, number: u16, random: &mut Random) {
        self.cut_lane(number);
        let hello = self.importer.hello(number);
        self.links += 1;
        let welcome = self.greet(&hello, random);
        assert_eq!(welcome.outcome, WelcomeOutcome::Resumed, "the first lane is there");
        if random.once_in(4) {
            return self.cut_lane(number);
        }
        assert_eq!(self.importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    }

    /// Exchanges the complete greetings.
    fn link_first(&mut self, random: &mut Random, done: &mut A::Done) {
        self.cut_lane(0);
        for _ in 0..2 {
            let hello = self.importer.hello(0);
            self.links += 1;
            let welcome = self.greet(&hello, random);
            if welcome.outcome == WelcomeOutcome::Resumed && random.once_in(4) {
                // The greeting is lost with its link, but the exporter has released the old link already.
                return self.cut_lane(0);
            }
            match self.importer.handle_welcome(&welcome).expect("an honest exporter") {
                GreetingOutcome::Linked => return self.note_exporter(),
                GreetingOutcome::Renewed => {
                    self.renewals += 1;
                    self.remote.use_lanes(self.importer.usable_lanes());
                    self.remote.handle_renewed(self.now, done);
                    return self.note_exporter();
                }
                GreetingOutcome::Again => {}
                other @ (GreetingOutcome::Refused(_) | GreetingOutcome::Without) => panic!("refused: {other:?}"),
            }
        }
        panic!("an exporter that knows no session begins one");
    }

    fn note_exporter(&mut self) {
        self.remote.note_exporter(self.importer.their_incarnation().expect("it took part just now"));
    }

    fn greet(&mut self, hello: &farbus_wire::native::ImporterHello, random: &mut Random) -> ExporterWelcome {
        if let Some(session) = &mut self.exporter
            && session.id() == hello.position.session
        {
            let welcome = session.resume(hello);
            assert_eq!(welcome.outcome, WelcomeOutcome::Resumed);
            let straggler = session.resume(hello);
            assert_eq!(straggler.outcome, WelcomeOutcome::Refused, "a link is used once");
            return welcome;
        }
        let id = SessionId(std::array::from_fn(|_| random.next() as u8 | 1));
        match ExporterSession::begin(hello, id, self.incarnation, GRACE, LIMITS) {
            Ok((mut session, welcome)) => {
                if let Some(allowed) = &self.allowed {
                    session.allow(Arc::clone(allowed));
                }
                if let Some(old) = self.exporter.replace(session) {
                    old.finish(self.now);
                }
                welcome
            }
            Err(welcome) => {
                assert_eq!(welcome.outcome, WelcomeOutcome::Unknown);
                welcome
            }
        }
    }

    /// Cuts all links; bytes on their way are lost.
    pub fn cut(&mut self) {
        (0..self.lanes()).for_each(|number| self.cut_lane(number));
    }

    /// Cuts all links, but the importer learns of it later. Bytes on their way to it still arrive.
    pub fn cut_unnoticed(&mut self) {
        for number in 0..self.lanes() {
            if let Some(session) = &mut self.exporter {
                session.handle_lost(number, self.now);
            }
        }
        self.is_unnoticed = true;
    }

    /// Cuts one of several links, or all of them.
    pub fn cut_some(&mut self, random: &mut Random) {
        match self.lanes() {
            1 => self.cut(),
            _ if random.once_in(4) => self.cut(),
            lanes => self.cut_lane(random.below(lanes.into()) as u16),
        }
    }

    /// Cuts the link of one lane.
    fn cut_lane(&mut self, number: u16) {
        self.is_unnoticed &= number != 0;
        self.importer.handle_lost(number, self.now);
        if let Some(session) = &mut self.exporter {
            session.handle_lost(number, self.now);
        }
        self.to_exporter[usize::from(number)].clear();
        self.to_importer[usize::from(number)].clear();
        self.remote.use_lanes(self.importer.usable_lanes());
    }

    /// Kills the exporter's process: it forgets everything. The caller decides what happens to its devices.
    pub fn crash(&mut self) {
        self.cut();
        self.exporter = None;
        self.incarnation += 1;
    }

    /// Replaces the exporter's process by another, which serves what `serve` returns; if not `is_meant`, only saves and
    /// restores. Returns whether there was a session.
    pub fn exporter_moves_on(
        &mut self,
        is_meant: bool,
        mut serve: impl FnMut(Instant, &UnservedAttachment) -> Result<Box<dyn ServedExport>, AttachmentEndNotice>,
    ) -> bool {
        let Some(mut session) = self.exporter.take() else { return false };
        session.come_to_rest(self.now);
        for _ in 0..1000 {
            session.handle_ready(self.now);
        }
        assert!(session.is_at_rest(), "whatever a device has ends");
        let mut writer = SnapshotWriter::new(KIND);
        session.save(self.now, |_, name| name.to_owned(), &mut writer);
        if !is_meant {
            session.go_on(self.now);
            self.exporter = Some(session);
            return true;
        }
        session.leave(self.now);
        let bytes = writer.into_bytes();
        note_exporter(&bytes, self.now);
        let mut reader = snapshot::open(&bytes, KIND).unwrap();
        let (mut session, left) = ExporterSession::restore(self.now, LIMITS, &mut reader).unwrap();
        reader.end("snapshot").unwrap();
        if let Some(allowed) = &self.allowed {
            session.allow(Arc::clone(allowed));
        }
        for left in left {
            match serve(self.now, &left) {
                Ok(served) => session.serve(self.now, left, served),
                Err(end) => session.give_up(left.number, &end),
            }
        }
        self.exporter = Some(session);
        // The old process's link ends with it.
        self.cut();
        true
    }

    /// Up to `most` bytes leave the importer on this lane.
    pub fn importer_sends(&mut self, number: u16, most: usize) {
        while let Some(message) = self.remote.poll_message() {
            self.importer.send(message);
        }
        let Some(lane) = self.importer.lanes_mut().get_mut(number) else { return };
        transmit(lane, self.now, most, &mut self.to_exporter[usize::from(number)]);
    }

    pub fn exporter_sends(&mut self, number: u16, most: usize) {
        let Some(session) = self.exporter.as_mut().filter(|_| !self.is_unnoticed) else { return };
        let Some(lane) = session.lanes_mut().get_mut(number) else { return };
        transmit(lane, self.now, most, &mut self.to_importer[usize::from(number)]);
    }

    pub fn exporter_hears(&mut self, number: u16, most: usize, services: &mut impl ExporterServices) {
        let Some(session) = &mut self.exporter else { return };
        let way = &mut self.to_exporter[usize::from(number)];
        if self.is_unnoticed {
            return way.clear();
        }
        let count = most.min(way.len());
        let mut rest: &[u8] = &way.drain(..count).collect::<Vec<_>>();
        while !rest.is_empty() {
            receive(session.lanes_mut().get_mut(number).expect("it has a link"), &mut rest);
            while session.advance(self.now, services).expect("an honest importer, within its credit") {}
        }
    }

    pub fn importer_hears(&mut self, number: u16, most: usize, done: &mut A::Done) {
        let way = &mut self.to_importer[usize::from(number)];
        let count = most.min(way.len());
        let mut rest: &[u8] = &way.drain(..count).collect::<Vec<_>>();
        while !rest.is_empty() {
            receive(self.importer.lanes_mut().get_mut(number).expect("it has a link"), &mut rest);
            while let Some(arrived) = self.importer.poll_arrived(number).expect("an honest exporter") {
                self.remote.handle_arrived(self.now, arrived, done).expect("an honest exporter");
                if let Some(timed) = self.remote.poll_timed() {
                    assert!(timed.total_ns >= timed.bus_ns() + timed.device_ns(), "no stage is longer than the whole");
                }
            }
        }
    }

    /// Moves some bytes at random.
    pub fn shuffle(&mut self, random: &mut Random, services: &mut impl ExporterServices, done: &mut A::Done) {
        let most = random.pick(&[1, 7, 8, 100, 5000, 70_000, usize::MAX, usize::MAX]);
        let number = if self.lanes() == 1 { 0 } else { random.below(self.lanes().into()) as u16 };
        self.remote.handle_timeout(self.now, done);
        match random.below(4) {
            0 => self.importer_sends(number, most),
            1 => self.exporter_sends(number, most),
            2 => self.exporter_hears(number, most, services),
            _ => self.importer_hears(number, most, done),
        }
    }

    /// Delivers everything on its way, and what follows from it.
    pub fn exchange(&mut self, services: &mut impl ExporterServices, done: &mut A::Done) {
        for _ in 0..64 {
            if self.remote.poll_timeout().is_some() || self.allowed.is_some() {
                self.now = self.now + Duration::from_micros(200);
                self.remote.handle_timeout(self.now, done);
            }
            for number in 0..self.lanes() {
                self.importer_sends(number, usize::MAX);
                self.exporter_hears(number, usize::MAX, services);
            }
            if let Some(session) = &mut self.exporter {
                session.handle_ready(self.now);
            }
            for number in 0..self.lanes() {
                self.exporter_sends(number, usize::MAX);
                self.importer_hears(number, usize::MAX, done);
            }
        }
    }

    /// The grace period ends without a link.
    pub fn give_up(&mut self, done: &mut A::Done) {
        self.cut();
        self.now = self.now + GRACE;
        assert!(self.importer.is_over(self.now));
        self.remote.handle_over(AttachmentEndCause::Network, "no link for 20 s", done);
        if let Some(session) = self.exporter.take() {
            assert!(session.is_over(self.now));
            session.finish(self.now);
        }
    }
}

impl<A: MovableAttachment> World<A> {
    /// Damages a snapshot: it must be refused, or its restored user must keep working. Returns whether it was refused.
    pub fn spoil(&mut self, random: &mut Random, live: impl FnOnce(A)) -> bool {
        let mut writer = SnapshotWriter::new(KIND);
        self.importer.save(self.now, &mut self.remote, &mut writer);
        let mut bytes = writer.into_bytes();
        for _ in 0..1 + random.below(3) {
            spoil(&mut bytes, random);
        }
        let Ok(mut reader) = snapshot::open(&bytes, KIND) else { return true };
        match ImporterSession::restore::<A>(self.now, LIMITS, &mut reader) {
            Ok((mut importer, remote)) => {
                assert_eq!(importer.hello(0).position.lane, 0);
                live(remote);
                false
            }
            Err(_) => true,
        }
    }

    /// The importer's snapshot for another process.
    pub fn importer_as_saved(&mut self) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(KIND);
        self.importer.save(self.now, &mut self.remote, &mut writer);
        writer.into_bytes()
    }

    /// Replaces the importer's process by another, which restores its snapshot; if not `is_meant`, only saves and
    /// restores.
    pub fn move_on(&mut self, is_meant: bool) {
        self.move_on_with(is_meant, |_, _| ());
    }

    /// As [`World::move_on`]; `resume` prepares what the other process has restored.
    pub fn move_on_with(&mut self, is_meant: bool, resume: impl FnOnce(&A, &mut A)) {
        let mut writer = SnapshotWriter::new(KIND);
        self.importer.save(self.now, &mut self.remote, &mut writer);
        if !is_meant {
            return;
        }
        let bytes = writer.into_bytes();
        note_importer::<A>(&bytes);
        let mut reader = snapshot::open(&bytes, KIND).unwrap();
        let (importer, mut remote) = ImporterSession::restore(self.now, LIMITS, &mut reader).unwrap();
        reader.end("snapshot").unwrap();
        resume(&self.remote, &mut remote);
        self.remote.hand_over();
        (self.importer, self.remote) = (importer, remote);
        // The old process's link ends with it.
        self.cut();
    }
}

/// Records an exporter's snapshot for later releases, under the name of what it serves.
fn note_exporter(bytes: &[u8], now: Instant) {
    let Ok((_, left)) =
        snapshot::open(bytes, KIND).and_then(|mut from| ExporterSession::restore(now, LIMITS, &mut from))
    else {
        return;
    };
    let Some(left) = left.first().filter(|left| left.state.is_some()) else { return };
    let name = match left.open.class {
        _ if !left.modules.is_empty() => "exporter-modules",
        AttachmentClass::USB => "exporter-usb",
        AttachmentClass::BLOCK => "exporter-block",
        _ => "exporter-stream",
    };
    recorded::note(name, &[bytes]);
}

/// Records an importer's snapshot.
fn note_importer<A>(bytes: &[u8]) {
    let whose = std::any::type_name::<A>();
    let name = match (whose.contains("RemoteBlock"), whose.contains("Piped")) {
        (true, _) => "importer-block",
        (false, true) => "importer-usb-modules",
        (false, false) if whose.ends_with("RemoteUsb") => "importer-usb",
        _ => return,
    };
    recorded::note(name, &[bytes]);
}

/// Puts up to `most` bytes of what a lane has to send on their way.
fn transmit(lane: &mut Lane, now: Instant, most: usize, way: &mut Vec<u8>) {
    if lane.has_transmit() {
        let runs: Vec<u8> = lane.poll_transmit(now).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        let count = runs.len().min(most);
        lane.handle_transmitted(count);
        way.extend(&runs[..count]);
    }
}

/// Delivers as much as there is space for.
fn receive(lane: &mut Lane, rest: &mut &[u8]) {
    let space = lane.receive_space();
    let count = space.len().min(rest.len());
    space[..count].copy_from_slice(&rest[..count]);
    lane.handle_received(count);
    *rest = &rest[count..];
}

/// Changes one bit or byte, cuts the end off or appends to it, at random. Does nothing to an empty vector.
pub fn spoil(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(4) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
        2 => bytes.truncate(at),
        _ => bytes.insert(at, random.next() as u8),
    }
}
