//! A USB device in that world: the data of its endpoints identifies each request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_gadgets::emulated::EmulatedDevice;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, EpAddr, ExportIdentity, Instant,
    Payload, SessionLimits, SetupPacket, TransferDirection, Urb, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_session::DeviceRecord;
use farbus_session::far::LINGER;
use farbus_session::native::{
    AllowedModules, AttachmentState, ExporterServices, ImporterAttachment, PipedAttachment, RemoteUsb, ServedExport,
    ServedUsb, UnservedAttachment,
};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{
    DeviceBusProfile, EndpointBandwidth, HostReservationLedger, LedgerRequest as Claimed, ReservationChange,
    ReservationCriticality, ReservationReport, ReservationState as Reserved, ReservationTerms, ServingCost,
    SuspendableDevice, SuspensionSwitch,
};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};

use crate::far::Near;
use crate::kernel::Kernel;
use crate::random::Random;
use crate::world::{LINKS, World};

const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(0x01);
const INTERRUPT_IN: EpAddr = EpAddr::from_byte(0x82);

/// The state of the physical device, independent of its driver.
#[derive(Default)]
struct Silicon {
    /// What each IN endpoint sends next.
    next: BTreeMap<EpAddr, u64>,
    /// Numbers that arrived at the OUT endpoint.
    arrived: Vec<u64>,
    resets: u32,
    is_taken: bool,
}

/// A source and sink with counting data, which completes late.
struct Counting {
    inner: EmulatedDevice<SourceSink>,
    silicon: Arc<Mutex<Silicon>>,
    queues: BTreeMap<EpAddr, VecDeque<UrbInFlight>>,
    random: Random,
}

impl Device for Counting {
    fn descriptors(&self) -> &DescriptorSet {
        self.inner.descriptors()
    }

    fn speed(&self) -> UsbSpeed {
        self.inner.speed()
    }

    fn selection(&self) -> &ConfigurationSelection {
        self.inner.selection()
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if urb.endpoint.is_control() {
            return self.inner.submit(now, urb, done);
        }
        urb.own_payload();
        self.queues.entry(urb.endpoint).or_default().push_back(urb);
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        for queue in self.queues.values_mut() {
            if let Some(at) = queue.iter().position(|urb| urb.id == id) {
                let urb = queue.remove(at).unwrap();
                done.push(urb.fail(UrbStatus::Cancelled));
            }
        }
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.silicon.lock().unwrap().resets += 1;
        for urb in self.queues.values_mut().flat_map(|queue| queue.drain(..)) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        self.inner.reset(now, done);
    }

    fn save(&self) -> Option<Vec<u8>> {
        assert!(self.queues.values().all(VecDeque::is_empty), "it is at rest");
        self.inner.save()
    }

    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        self.inner.restore(selection, state)
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue) {
        let mut silicon = self.silicon.lock().unwrap();
        for (&endpoint, queue) in &mut self.queues {
            while !queue.is_empty() && !self.random.once_in(3) {
                let urb = queue.pop_front().unwrap();
                if endpoint.direction() == TransferDirection::Out {
                    let bytes = urb.payload.contiguous()[..8].try_into().unwrap();
                    silicon.arrived.push(u64::from_le_bytes(bytes));
                    done.push(urb.accept());
                } else {
                    let next = silicon.next.entry(endpoint).or_default();
                    let mut bytes = next.to_le_bytes().to_vec();
                    *next += 1;
                    // Short, full, or any length between.
                    bytes.resize(8 + self.random.below(u64::from(urb.length) - 7) as usize, *next as u8);
                    done.push(urb.answer(bytes.into()));
                }
            }
        }
    }
}

impl Drop for Counting {
    /// A killed process drops nothing; here its requests end unseen.
    fn drop(&mut self) {
        for urb in self.queues.values_mut().flat_map(|queue| queue.drain(..)) {
            let _ = urb.fail(UrbStatus::Gone);
        }
    }
}

/// The reservations of the exporter's host, which are lost with its process; and reports for the session.
struct Reservations {
    ledger: HostReservationLedger,
    suspension: SuspensionSwitch,
    /// Whether a competing reservation of high criticality exists.
    has_rival: bool,
    news: Option<ReservationReport>,
}

impl Default for Reservations {
    fn default() -> Self {
        let ledger = HostReservationLedger::new(2, ServingCost { turn_ns: 20_000, kib_ns: 1000 });
        Self { ledger, suspension: SuspensionSwitch::default(), has_rival: false, news: None }
    }
}

impl Reservations {
    fn carrier() -> DeviceBusProfile {
        let device = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
        DeviceBusProfile::new("bus", device.descriptors(), UsbSpeed::High)
    }

    fn hear(&mut self, news: Vec<ReservationChange>) {
        for ReservationChange { device, report } in news {
            assert!(device == "zero" || report.state == Reserved::Admitted, "high criticality is never displaced");
            if device == "zero" {
                self.suspension.close(report.state == Reserved::Suspended);
                self.news = Some(report);
            }
        }
    }

    /// Adds or removes another device of high criticality, whose claim leaves no room for ours.
    fn rival(&mut self) {
        self.has_rival = !self.has_rival;
        if !self.has_rival {
            let news = self.ledger.release("rival");
            return self.hear(news);
        }
        let claims = [0x82, 0x02, 0x83, 0x03].map(|endpoint| EndpointBandwidth { endpoint, bytes: 64, period: 1 });
        let claims = claims
            .map(|claim| if claim.endpoint & 1 == 1 { EndpointBandwidth { bytes: 1024, ..claim } } else { claim });
        let reservation = ReservationTerms { claims: claims.into(), ..ReservationTerms::default() };
        let carrier = Self::carrier();
        let fits = |ledger: &mut HostReservationLedger, device: &str| {
            ledger.admit(Claimed { device, carrier: &carrier, reservation: reservation.clone(), path: None })
        };
        let news = fits(&mut self.ledger, "rival").expect("it has room once ours gives way");
        self.hear(news);
    }
}

struct TestExporter {
    silicon: Arc<Mutex<Silicon>>,
    seed: u64,
    reservations: Reservations,
}

impl TestExporter {
    fn serve(&mut self, number: u16) -> ServedUsb<Box<dyn Device>> {
        assert!(!std::mem::replace(&mut self.silicon.lock().unwrap().is_taken, true), "it has one user");
        self.seed += 1;
        let inner = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
        let (silicon, random) = (Arc::clone(&self.silicon), Random::new(self.seed));
        let device = Box::new(Counting { inner, silicon, queues: BTreeMap::new(), random });
        let silicon = Arc::clone(&self.silicon);
        let (suspendable, _) = SuspendableDevice::new(device, self.reservations.suspension.clone(), vec![INTERRUPT_IN]);
        let give_back = move |device: Box<dyn Device>, _| {
            drop(device);
            silicon.lock().unwrap().is_taken = false;
        };
        ServedUsb::new(number, Box::new(suspendable) as Box<dyn Device>, record(), SessionLimits::DEFAULT, give_back)
    }

    fn serve_again(&mut self, now: Instant, left: &UnservedAttachment) -> Box<dyn ServedExport> {
        let state = left.state.as_ref().expect("a device can go on");
        let mut served = self.serve(left.number);
        served.restore(now, &mut state.reader()).unwrap();
        Box::new(served)
    }
}

/// A device without requests, served anew.
pub fn served(random: &mut Random, number: u16) -> Box<dyn ServedExport> {
    let mut world = UsbWorld::new(random, None, |remote| remote);
    world.exporter_services.silicon.lock().unwrap().is_taken = false;
    Box::new(world.exporter_services.serve(number))
}

impl ExporterServices for TestExporter {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 8, generation: 0 })
    }

    fn reserve(
        &mut self,
        _open: &OpenRequest,
        reservation: &ReservationTerms,
        path: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, AttachmentEndNotice)> {
        assert!(path.bits_per_s > 0, "it was measured");
        let carrier = Reservations::carrier();
        let request =
            Claimed { device: "zero", carrier: &carrier, reservation: reservation.clone(), path: Some("desk") };
        match self.reservations.ledger.admit(request) {
            Ok(news) => {
                self.reservations.hear(news);
                Ok(self.reservations.ledger.report("zero").unwrap())
            }
            Err(refusal) => {
                let end = AttachmentEndNotice { cause: AttachmentEndCause::Reservation, message: refusal.to_string() };
                Err((refusal.report(reservation.criticality, Reserved::Refused), end))
            }
        }
    }

    fn unreserve(&mut self, _open: &OpenRequest) {
        self.reservations.ledger.release("zero");
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        assert_eq!((open.class, open.name.as_str()), (AttachmentClass::USB, "zero"));
        if self.silicon.lock().unwrap().is_taken {
            return Err(AttachmentEndNotice { cause: AttachmentEndCause::Busy, message: "somebody has it".into() });
        }
        let served = self.serve(number);
        Ok((self.seed, Box::new(served)))
    }
}

pub fn record() -> DeviceRecord {
    DeviceRecord {
        path: "/farbus/zero".into(),
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::High,
        vendor: 0x0525,
        product: 0xa4a0,
        device_bcd: 0,
        class: [0; 3],
        configuration: 1,
        configurations: 1,
        interfaces: vec![[0xff, 0, 0]],
        interface_count: 1,
    }
}

/// What drives the session's device.
pub trait Driver: ImporterAttachment<Done = CompletionQueue> {
    /// Whether a reset is explicit, and ends everything at once.
    const RESETS_AT_ONCE: bool;
    /// Whether the requests of an endpoint all have one length, and its data is lost only when the exporter loses its
    /// memory or after a reset.
    const HAS_ONE_LENGTH: bool = false;

    /// Number of open requests.
    fn owes(&self) -> usize {
        self.remote().in_flight()
    }

    fn remote(&self) -> &RemoteUsb;
    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue);
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue);
    fn reset(&mut self, now: Instant, done: &mut CompletionQueue);
    /// Moves what is between the driver and the device, all of it or some.
    fn pump(&mut self, now: Instant, is_all: bool, done: &mut CompletionQueue);
    /// Moves to another process; if not `is_meant`, only saves and restores.
    fn move_on(world: &mut World<Self>, is_meant: bool)
    where
        Self: Sized;
}

impl Driver for RemoteUsb {
    const RESETS_AT_ONCE: bool = true;

    fn remote(&self) -> &RemoteUsb {
        self
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        Device::submit(self, now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        Device::cancel(self, now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        Device::reset(self, now, done);
    }

    fn pump(&mut self, _now: Instant, _is_all: bool, _done: &mut CompletionQueue) {}

    fn move_on(world: &mut World<Self>, is_meant: bool) {
        world.move_on(is_meant);
    }
}

impl Driver for PipedAttachment<RemoteUsb> {
    const RESETS_AT_ONCE: bool = true;

    fn remote(&self) -> &RemoteUsb {
        self.inner()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        Device::submit(self.inner_mut(), now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        Device::cancel(self.inner_mut(), now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        Device::reset(self.inner_mut(), now, done);
    }

    fn pump(&mut self, _now: Instant, _is_all: bool, _done: &mut CompletionQueue) {}

    fn move_on(world: &mut World<Self>, is_meant: bool) {
        // Multi-frame messages and messages that wait must arrive first: the test tries again later.
        if crate::modules::is_movable_now(&mut world.remote) {
            world.move_on_with(is_meant, crate::modules::resume);
        }
    }
}

struct UnansweredUrb {
    endpoint: EpAddr,
    /// Whether it sets a configuration.
    configures: bool,
    /// Bytes that a control request asks for.
    brings: usize,
    is_withdrawn: bool,
}

pub struct UsbWorld<S: Driver = RemoteUsb> {
    world: World<S>,
    exporter_services: TestExporter,
    done: CompletionQueue,
    unanswered: BTreeMap<u64, UnansweredUrb>,
    next_id: u64,
    /// The last number from each IN endpoint, and the last id that each endpoint answered successfully.
    brought: BTreeMap<EpAddr, u64>,
    /// How often data of each endpoint may still be missing.
    gaps: BTreeMap<EpAddr, u32>,
    answered: BTreeMap<EpAddr, u64>,
    accepted: Vec<u64>,
    is_configured: bool,
    crashes: u32,
    count: u32,
    /// Whether it reserves for its device, with low criticality.
    reserves: bool,
}

impl UsbWorld<Kernel> {
    pub fn spoil(&mut self, random: &mut Random) -> bool {
        Kernel::spoil(&mut self.world, random)
    }
}

impl UsbWorld<Near> {
    pub fn spoil(&mut self, random: &mut Random) -> bool {
        Near::spoil(&mut self.world, random)
    }
}

impl<S: Driver> UsbWorld<S> {
    pub fn new(
        random: &mut Random,
        allowed: Option<Arc<AllowedModules>>,
        observer: impl FnOnce(RemoteUsb) -> S,
    ) -> Self {
        let open = OpenRequest {
            class: AttachmentClass::USB,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "zero".into(),
            reason: "".into(),
        };
        let reserves = random.once_in(3);
        let claims = vec![EndpointBandwidth { endpoint: INTERRUPT_IN.as_byte(), bytes: 64, period: 1 }];
        let reservation = ReservationTerms {
            criticality: ReservationCriticality::Low,
            latency_ns: 0,
            claims,
            ..ReservationTerms::default()
        };
        let remote = if reserves { RemoteUsb::reserving(1, open, reservation) } else { RemoteUsb::new(1, open) };
        let mut world = World::over_links(observer(remote), random.pick(&LINKS));
        world.allowed = allowed;
        let mut this = Self {
            world,
            exporter_services: TestExporter {
                silicon: Arc::default(),
                seed: random.next() >> 1,
                reservations: Reservations::default(),
            },
            reserves,
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            unanswered: BTreeMap::new(),
            next_id: 0,
            brought: BTreeMap::new(),
            gaps: BTreeMap::new(),
            answered: BTreeMap::new(),
            accepted: Vec::new(),
            is_configured: false,
            crashes: 0,
            count: 0,
        };
        while !this.world.is_linked() {
            this.world.link(random, &mut this.done);
        }
        this.world.exchange(&mut this.exporter_services, &mut this.done);
        assert_eq!(*this.world.remote.state(), AttachmentState::Open);
        assert_eq!(this.world.remote.remote().descriptors().configurations.len(), 1);
        this.check_strings();
        this
    }

    pub fn step(&mut self, random: &mut Random) {
        self.world.now = self.world.now + Duration::from_micros(random.below(1000));
        match random.below(40) {
            0..=9 => self.ask(random),
            10 if random.once_in(4) => self.world.cut_some(random),
            24 if self.reserves && self.world.is_linked() && self.is_in_office() => {
                self.exporter_services.reservations.rival();
            }
            11 if random.once_in(16) => {
                self.world.crash();
                self.crashes += 1;
                self.note_gap();
                self.exporter_services.silicon.lock().unwrap().is_taken = false;
                self.exporter_services.reservations = Reservations::default();
            }
            12 | 13 if !self.world.is_all_linked() => self.world.link(random, &mut self.done),
            14..=18 => {
                if let Some(session) = &mut self.world.exporter {
                    session.handle_ready(self.world.now);
                }
            }
            19 => {
                let withdrawn = self.unanswered.iter_mut().find(|(_, urb)| !urb.is_withdrawn && !urb.configures);
                if let Some((&id, urb)) = withdrawn {
                    urb.is_withdrawn = true;
                    self.world.remote.cancel(self.world.now, UrbId(id), &mut self.done);
                }
            }
            20 if random.once_in(8) && S::RESETS_AT_ONCE => {
                self.world.remote.reset(self.world.now, &mut self.done);
                self.is_configured = false;
                self.note_gap();
                self.check();
                assert!(self.unanswered.is_empty(), "a reset ends everything");
            }
            21 => {
                // Sometimes the other process does not come up, and this one continues.
                S::move_on(&mut self.world, !random.once_in(4));
            }
            // Long enough to stop receiving ahead.
            23 if S::HAS_ONE_LENGTH && random.once_in(2) => self.world.now = self.world.now + LINGER,
            22 if random.once_in(4) => {
                let resets = self.exporter_services.silicon.lock().unwrap().resets;
                let exporter_services = &mut self.exporter_services;
                self.world
                    .exporter_moves_on(!random.once_in(4), |now, left| Ok(exporter_services.serve_again(now, left)));
                assert_eq!(
                    self.exporter_services.silicon.lock().unwrap().resets,
                    resets,
                    "the device knows nothing of it"
                );
            }
            _ => self.world.shuffle(random, &mut self.exporter_services, &mut self.done),
        }
        self.world.remote.pump(self.world.now, false, &mut self.done);
        self.tell();
        self.check();
    }

    /// Whether the exporter has reserved what it asked for, and has its device.
    fn is_in_office(&self) -> bool {
        let session = self.world.exporter.as_ref();
        session.is_some_and(|session| session.is_attached(1))
            && self.exporter_services.reservations.ledger.report("zero").is_some()
    }

    /// Does what the session's thread does when it is woken.
    fn tell(&mut self) {
        if let Some(session) = &mut self.world.exporter
            && session.is_attached(1)
            && let Some(report) = self.exporter_services.reservations.news.take()
        {
            session.say_report(1, report);
        }
    }

    fn note_gap(&mut self) {
        for endpoint in [BULK_IN, INTERRUPT_IN] {
            *self.gaps.entry(endpoint).or_default() += 1;
        }
    }

    fn ask(&mut self, random: &mut Random) {
        let id = UrbId(self.next_id);
        self.next_id += 1;
        let urb = if !self.is_configured {
            if self.unanswered.values().any(|urb| urb.configures) {
                return;
            }
            Urb::control(id, SetupPacket::set_configuration(1), Payload::Empty)
        } else {
            let length = random.pick(&[8, 64, 512, 4096, 100_000]);
            let length = if S::HAS_ONE_LENGTH { 4096 } else { length };
            match random.below(4) {
                0 => Urb::data_in(id, BULK_IN, length),
                1 => Urb::data_in(id, INTERRUPT_IN, 64),
                2 => {
                    let mut bytes = id.0.to_le_bytes().to_vec();
                    bytes.resize(length as usize, 7);
                    Urb::data_out(id, BULK_OUT, bytes.into())
                }
                // The user restarts the endpoint; data that it has sent stays.
                _ if S::HAS_ONE_LENGTH && random.once_in(4) => {
                    Urb::control(id, SetupPacket::clear_halt(random.pick(&[BULK_IN, INTERRUPT_IN])), Payload::Empty)
                }
                // As a kernel does that has reset its port.
                _ if !S::RESETS_AT_ONCE && random.once_in(8) => {
                    Urb::control(id, SetupPacket::get_descriptor(1, 0, 0, 64), Payload::Empty)
                }
                _ => Urb::control(id, SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty),
            }
        };
        let configures = !self.is_configured;
        let brings = usize::from(urb.setup.length);
        self.unanswered.insert(id.0, UnansweredUrb { endpoint: urb.endpoint, configures, brings, is_withdrawn: false });
        self.world.remote.submit(self.world.now, urb.launch(), &mut self.done);
    }

    /// The importer knows the device's strings, whatever happens to links and processes.
    fn check_strings(&self) {
        let strings = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false).descriptors().strings.clone();
        assert!(strings.len() >= 3, "{strings:?}");
        assert_eq!(self.world.remote.remote().descriptors().strings, strings);
        assert!(self.world.remote.remote().has_strings());
    }

    fn check(&mut self) {
        self.check_strings();
        let is_over = matches!(self.world.remote.state(), AttachmentState::Ended(_));
        while let Some(done) = self.done.pop() {
            let request = self.unanswered.remove(&done.id.0).expect("answered once");
            assert_eq!(request.endpoint, done.endpoint);
            self.count += 1;
            match done.status {
                UrbStatus::Ok => {}
                UrbStatus::Cancelled => {
                    assert!(request.is_withdrawn);
                    continue;
                }
                UrbStatus::Shutdown => continue,
                UrbStatus::Protocol => {
                    assert!(self.crashes > 0, "nothing is a device's trouble here but an exporter's that forgot");
                    continue;
                }
                UrbStatus::Gone => continue,
                // The exporter forgot the session or was given up while a port reset was being undone: a kernel
                // configures its device next.
                UrbStatus::Invalid if (self.crashes > 0 || is_over) && !S::RESETS_AT_ONCE => {
                    self.is_configured = false;
                    continue;
                }
                status => panic!("{:?}: {status:?}", done.endpoint),
            }
            if request.configures {
                self.is_configured = true;
            }
            let last = self.answered.insert(done.endpoint, done.id.0);
            assert!(last.is_none_or(|last| last < done.id.0), "an endpoint answers in order");
            if done.endpoint == BULK_OUT {
                self.accepted.push(done.id.0);
            } else if !done.endpoint.is_control() {
                let bytes = done.payload.into_vec();
                let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let last = self.brought.insert(done.endpoint, number);
                assert!(last.is_none_or(|last| last < number), "what a device sent once arrives once, in order");
                if S::HAS_ONE_LENGTH && number > last.map_or(0, |last| last + 1) {
                    let gaps = self.gaps.entry(done.endpoint).or_default();
                    *gaps = gaps.checked_sub(1).expect("nothing is lost that a device sent");
                }
                assert!(bytes[8..].iter().all(|&byte| byte == (number + 1) as u8));
            } else if !request.configures {
                assert_eq!(done.payload.len(), request.brings.min(18));
            }
        }
    }

    /// Returns the number of requests answered in this world.
    pub fn settle(mut self, random: &mut Random) -> u32 {
        if random.once_in(8) {
            self.world.give_up(&mut self.done);
            self.world.remote.pump(self.world.now, true, &mut self.done);
            self.check();
            assert!(self.unanswered.is_empty(), "nothing hangs");
            assert!(!self.exporter_services.silicon.lock().unwrap().is_taken, "the claim is free");
            return self.count;
        }
        while !self.world.is_all_linked() {
            self.world.link(random, &mut self.done);
        }
        self.world.exchange(&mut self.exporter_services, &mut self.done);
        if self.exporter_services.reservations.has_rival {
            self.exporter_services.reservations.rival();
            self.tell();
        }
        for _ in 0..20 {
            self.world.exchange(&mut self.exporter_services, &mut self.done);
            self.world.remote.pump(self.world.now, true, &mut self.done);
            self.check();
        }
        assert!(self.unanswered.is_empty(), "nothing hangs");
        assert_eq!(self.world.remote.owes(), 0);
        if self.reserves && *self.world.remote.state() == AttachmentState::Open {
            let reservation_state = self.world.remote.remote().reserved().map(|report| report.state);
            assert_eq!(reservation_state, Some(Reserved::Admitted), "and the suspended device continues");
        }
        let silicon = self.exporter_services.silicon.lock().unwrap();
        let mut arrived = silicon.arrived.iter();
        for accepted in &self.accepted {
            assert!(arrived.any(|arrived| arrived == accepted), "what was accepted arrived, in order");
        }
        let mut all = silicon.arrived.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), silicon.arrived.len(), "nothing arrived twice");
        self.count
    }
}
