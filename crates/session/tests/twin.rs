//! Devices that are exchanged for their twins while they are in use: simulated worlds in which a serial line is read,
//! written, configured and cancelled while its adapter is exchanged again and again. Every request must end once, and
//! every byte must arrive once.

#[path = "isochronous/distant.rs"]
#[allow(dead_code, reason = "other tests cut its path, too")]
mod distant;
#[path = "native/random.rs"]
mod random;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distant::{Distant, Way};
use farbus_gadgets::audio::AudioGadget;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_gadgets::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::usb::request;
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceDefinition, DeviceSwapOutcome,
    DeviceSwapReport, EpAddr, Instant, IsoPacket, OwnerCommand, Payload, SetupPacket, SwapCandidate, Urb,
    UrbCompletion, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::isochronous::IsochronousLayer;
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use farbus_session::twin::{DRAIN_TIME_MAX, TwinnedDevice, difference};
use random::Random;

const IN: EpAddr = EpAddr::from_byte(0x81);
const OUT: EpAddr = EpAddr::from_byte(0x01);
const LINE_CODING: u8 = 0x20;

/// The other end of the line, independent of the adapter.
#[derive(Default)]
struct Line {
    incoming: VecDeque<u8>,
    sent: Vec<u8>,
    is_stuck: bool,
}

/// The settings that an adapter got last.
#[derive(Default)]
struct AdapterSettings {
    coding: Vec<u8>,
    vendor: Vec<u16>,
}

struct Adapter {
    line: Arc<Mutex<Line>>,
    settings: Arc<Mutex<AdapterSettings>>,
}

impl Adapter {
    fn definition(serial: &str) -> DeviceDefinition {
        // The data has an interface of its own, from which a layer above receives ahead of its user.
        let device = DeviceDefinition::new(0x0403, 0x6001).speed(UsbSpeed::High).names("farbus", "adapter", serial);
        device.interface(InterfaceDefinition::new(2, 2, 1)).interface(InterfaceDefinition::new(10, 0, 0).bulk_pair(1))
    }
}

impl GadgetFunction for Adapter {
    fn send(&mut self, _endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let mut line = self.line.lock().unwrap();
        let count = line.incoming.len().min(room);
        if count == 0 {
            return InTransferAnswer::Nak;
        }
        InTransferAnswer::Data(line.incoming.drain(..count).collect::<Vec<u8>>().into())
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let mut line = self.line.lock().unwrap();
        if line.is_stuck {
            return OutTransferAnswer::Nak;
        }
        line.sent.extend(&*payload.contiguous());
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let mut settings = self.settings.lock().unwrap();
        match (setup.request_type, setup.request) {
            (0x21, LINE_CODING) => settings.coding = data.to_vec(),
            (0x40, 3) => settings.vendor.push(setup.value),
            _ => return ControlTransferAnswer::Stall,
        }
        ControlTransferAnswer::Ack
    }
}

/// An adapter on a cable that may be unplugged; it answers control requests late.
struct Cable {
    device: EmulatedDevice<Adapter>,
    is_pulled: Arc<AtomicBool>,
    is_gone: bool,
    later: VecDeque<UrbInFlight>,
    inner: CompletionQueue,
}

impl Cable {
    fn step(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.is_pulled.load(Ordering::Relaxed) && !self.is_gone {
            self.is_gone = true;
            for urb in self.later.drain(..) {
                done.push(urb.fail(UrbStatus::Gone));
            }
            self.device.reset(now, &mut self.inner);
            while let Some(answer) = self.inner.pop() {
                done.push(UrbCompletion { status: UrbStatus::Gone, ..answer });
            }
        }
        for urb in self.later.drain(..) {
            self.device.submit(now, urb, done);
        }
        self.device.handle_timeout(now, done);
    }
}

impl Device for Cable {
    fn descriptors(&self) -> &DescriptorSet {
        self.device.descriptors()
    }
    fn speed(&self) -> UsbSpeed {
        self.device.speed()
    }
    fn selection(&self) -> &ConfigurationSelection {
        self.device.selection()
    }
    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.is_gone {
            done.push(urb.fail(UrbStatus::Gone));
        } else if urb.endpoint.is_control() {
            self.later.push_back(urb);
        } else {
            self.device.submit(now, urb, done);
        }
    }
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.later.iter().position(|urb| urb.id == id) {
            return done.push(self.later.remove(at).unwrap().fail(UrbStatus::Cancelled));
        }
        self.device.cancel(now, id, done);
    }
    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        for urb in self.later.drain(..) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        self.device.reset(now, done);
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }
    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.step(now, done);
    }
    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.step(now, done);
    }
    fn is_gone(&self) -> bool {
        self.is_gone
    }
}

struct Plugged {
    settings: Arc<Mutex<AdapterSettings>>,
    is_pulled: Arc<AtomicBool>,
}

/// A device as a kernel's front end has it: the layers that hide its distance are above the exchange.
type Layered = FarLayer<IsochronousLayer<TwinnedDevice>>;

fn layered(device: Box<dyn Device>, plan: FarLayerConfig) -> Layered {
    FarLayer::new(IsochronousLayer::new(TwinnedDevice::new(device), plan.is_on), plan)
}

/// The outcomes of exchanges.
type Outcomes = Arc<Mutex<Vec<DeviceSwapOutcome>>>;

struct Play {
    line: Arc<Mutex<Line>>,
    device: Layered,
    now: Instant,
    done: CompletionQueue,
    next_id: u64,
    /// Open requests, with the data that they send.
    owed: BTreeMap<u64, Option<Vec<u8>>>,
    answered: Vec<UrbCompletion>,
    read: Vec<u8>,
    /// The data that was accepted, in the order of its completions.
    written: Vec<u8>,
    outcomes: Outcomes,
    /// Number of outcomes that were checked.
    known: usize,
    current: Plugged,
    /// The twin of the exchange in progress.
    next: Option<Plugged>,
}

fn adapter(line: &Arc<Mutex<Line>>, serial: &str) -> (Box<dyn Device>, Plugged) {
    let plugged = Plugged { settings: Arc::default(), is_pulled: Arc::default() };
    let function = Adapter { line: Arc::clone(line), settings: Arc::clone(&plugged.settings) };
    let device = EmulatedDevice::new(&Adapter::definition(serial), function);
    let inner = CompletionQueue::new(BufferPool::new(0));
    let is_pulled = Arc::clone(&plugged.is_pulled);
    (Box::new(Cable { device, is_pulled, is_gone: false, later: VecDeque::new(), inner }), plugged)
}

impl Play {
    /// A configured adapter, of which nothing is asked ahead.
    fn new() -> Self {
        Self::with(FarLayerConfig::OFF)
    }

    fn with(plan: FarLayerConfig) -> Self {
        let line = Arc::default();
        let (device, current) = adapter(&line, "first");
        let mut play = Self {
            line,
            device: layered(device, plan),
            now: Instant::ZERO + Duration::from_secs(1),
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            next_id: 0,
            owed: BTreeMap::new(),
            answered: Vec::new(),
            read: Vec::new(),
            written: Vec::new(),
            outcomes: Outcomes::default(),
            known: 0,
            current,
            next: None,
        };
        play.control(SetupPacket::set_configuration(1), &[]);
        play.settle();
        play
    }

    fn is_swapping(&self) -> bool {
        self.device.device().inner().is_swapping()
    }

    /// The owner ends an exchange, at whatever stage it is.
    fn give_up(&mut self) {
        let now = self.now;
        self.device.act(now, &mut self.done, |streams, done| {
            streams.act(now, done, |twinned, done| twinned.give_up(now, "given up".into(), done));
        });
        self.collect();
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap()
    }

    fn submit(&mut self, make: impl FnOnce(UrbId) -> Urb) -> UrbId {
        let id = UrbId(self.next_id);
        self.next_id += 1;
        let urb = make(id);
        let sends = (urb.endpoint == OUT).then(|| urb.payload.contiguous().into_owned());
        self.owed.insert(id.0, sends);
        self.device.submit(self.now, urb.launch(), &mut self.done);
        self.collect();
        id
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8]) -> UrbId {
        let payload = if data.is_empty() { Payload::Empty } else { data.to_vec().into() };
        self.submit(|id| Urb::control(id, setup, payload))
    }

    fn coding(&mut self, bauds: u8) -> UrbId {
        let setup = SetupPacket { request_type: 0x21, request: LINE_CODING, value: 0, index: 0, length: 7 };
        self.control(setup, &[bauds; 7])
    }

    fn vendor(&mut self, value: u16) -> UrbId {
        self.control(SetupPacket { request_type: 0x40, request: 3, value, index: 0, length: 0 }, &[])
    }

    fn ask(&mut self) -> UrbId {
        self.submit(|id| Urb::data_in(id, IN, 64))
    }

    fn send(&mut self, bytes: &[u8]) -> UrbId {
        let payload: Payload = bytes.to_vec().into();
        self.submit(|id| Urb::data_out(id, OUT, payload))
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.now, id, &mut self.done);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(answer) = self.done.pop() {
            let sent = self.owed.remove(&answer.id.0).expect("a request ends once");
            if answer.endpoint == IN {
                self.read.extend(&*answer.payload.contiguous());
            }
            if let Some(bytes) = sent.filter(|_| answer.status == UrbStatus::Ok) {
                self.written.extend(bytes);
            }
            self.answered.push(answer);
        }
        let outcomes = self.outcomes.lock().unwrap();
        if outcomes.len() > self.known
            && let Some(next) = self.next.take()
        {
            self.known = outcomes.len();
            if matches!(outcomes.last(), Some(DeviceSwapOutcome::Done { .. })) {
                self.current = next;
            }
        }
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.device.handle_ready(self.now, &mut self.done);
        if self.device.poll_timeout().is_some_and(|at| at <= self.now) {
            self.device.handle_timeout(self.now, &mut self.done);
        }
        self.device.end_turn(self.now, &mut self.done);
        self.collect();
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            self.pass(Duration::from_millis(2));
        }
    }

    fn swap(&mut self) -> Result<(), String> {
        let (twin, plugged) = adapter(&self.line, "second");
        let result = self.swap_for(twin);
        if result.is_ok() {
            self.next = Some(plugged);
            self.collect();
        }
        result
    }

    fn swap_for(&mut self, twin: Box<dyn Device>) -> Result<(), String> {
        let outcomes = Arc::clone(&self.outcomes);
        let order = SwapCandidate::new(twin, move |outcome| outcomes.lock().unwrap().push(outcome));
        let result = self.device.command(self.now, &OwnerCommand::Swap(order), &mut self.done);
        result.map_err(|error| error.0)
    }

    fn report(&self) -> DeviceSwapReport {
        match self.outcomes.lock().unwrap().last() {
            Some(DeviceSwapOutcome::Done { report, .. }) => *report,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn why_not(&self) -> String {
        match self.outcomes.lock().unwrap().last() {
            Some(DeviceSwapOutcome::Failed { twin: Some(_), why }) => why.clone(),
            outcome => panic!("{outcome:?}"),
        }
    }

    fn status_of(&self, id: UrbId) -> Option<UrbStatus> {
        self.answered.iter().find(|answer| answer.id == id).map(|answer| answer.status)
    }
}

#[test]
fn twin_gets_all_settings_and_the_waiting_requests() {
    let mut play = Play::new();
    play.coding(96);
    play.coding(115);
    play.vendor(7);
    play.settle();
    let waiting = [play.ask(), play.ask()];
    play.swap().unwrap();
    play.settle();
    // The configuration, the last line coding, the vendor request.
    let report = play.report();
    assert_eq!((report.replayed, report.asked_again, report.held), (3, 2, 0));
    {
        let settings = play.current.settings.lock().unwrap();
        assert_eq!((settings.coding.as_slice(), settings.vendor.as_slice()), (&[115; 7][..], &[7][..]));
    }
    assert_eq!(waiting.map(|id| play.status_of(id)), [None, None]);
    play.line().incoming.extend(b"hello");
    play.settle();
    assert_eq!((play.status_of(waiting[0]), play.read.as_slice()), (Some(UrbStatus::Ok), b"hello".as_slice()));
    play.cancel(waiting[1]);
    assert_eq!(play.status_of(waiting[1]), Some(UrbStatus::Cancelled));
    // The serial number of the first device remains.
    assert_eq!(play.device.descriptors().string(3), Some("first"));
    let text = play.control(SetupPacket::get_descriptor(3, 3, 0x0409, 255), &[]);
    play.settle();
    let answer = play.answered.iter().find(|answer| answer.id == text).unwrap();
    assert_eq!(farbus_model::descriptor::string_from_bytes(&answer.payload.contiguous()), "first");
}

#[test]
fn halted_endpoint_is_halted_on_the_twin_too() {
    let mut play = Play::new();
    let halt = SetupPacket { request: request::SET_FEATURE, ..SetupPacket::clear_halt(IN) };
    play.control(halt, &[]);
    play.settle();
    play.swap().unwrap();
    play.settle();
    assert_eq!(play.report().replayed, 2);
    play.line().incoming.extend(b"x");
    let urb_id = play.ask();
    assert_eq!(play.status_of(urb_id), Some(UrbStatus::Stall));
    play.control(SetupPacket::clear_halt(IN), &[]);
    play.settle();
    let urb_id = play.ask();
    assert_eq!((play.status_of(urb_id), play.read.as_slice()), (Some(UrbStatus::Ok), b"x".as_slice()));
}

#[test]
fn different_device_is_refused_with_its_first_difference() {
    let mut play = Play::new();
    let other = Box::new(KeyboardGadget::device());
    let why = play.swap_for(other).unwrap_err();
    assert!(why.contains("one runs at high speed, the other at full speed"), "{why}");
    let zero = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
    let why = play.swap_for(Box::new(zero)).unwrap_err();
    assert!(why.contains("one is 0403:6001, the other 0525:a4a0"), "{why}");
    assert_eq!(play.outcomes.lock().unwrap().len(), 2, "both are given back");
    let one = Adapter::definition("a").build();
    let mut other = Adapter::definition("b").build();
    assert_eq!(difference((&one, UsbSpeed::High), (&other, UsbSpeed::High)), None);
    let mut bytes = other.configurations[0].bytes.clone();
    *bytes.last_mut().unwrap() ^= 1;
    other.configurations[0].bytes = bytes;
    let message = difference((&one, UsbSpeed::High), (&other, UsbSpeed::High)).unwrap();
    assert!(message.starts_with("their configurations 1 differ at byte"), "{message}");
    other.device.device_bcd += 1;
    assert!(difference((&one, UsbSpeed::High), (&other, UsbSpeed::High)).unwrap().contains("bcdDevice"));
    // The device continues as before.
    let urb_id = play.ask();
    play.line().incoming.extend(b"ok");
    play.settle();
    assert_eq!(play.status_of(urb_id), Some(UrbStatus::Ok));
}

#[test]
fn data_that_is_not_accepted_in_time_prevents_the_switch() {
    let mut play = Play::new();
    play.line().is_stuck = true;
    let urb_id = play.ask();
    let stuck = play.send(b"stuck");
    play.swap().unwrap();
    assert_eq!(play.swap().unwrap_err(), "it is being swapped already");
    play.settle();
    let held = play.send(b" and held");
    let withdrawn = play.ask();
    play.cancel(withdrawn);
    assert_eq!(play.status_of(withdrawn), Some(UrbStatus::Cancelled));
    play.pass(DRAIN_TIME_MAX);
    assert!(play.why_not().contains("does not take what was sent"), "{}", play.why_not());
    assert_eq!([stuck, held, urb_id].map(|id| play.status_of(id)), [None; 3]);
    play.line().is_stuck = false;
    play.line().incoming.extend(b"in");
    play.settle();
    assert_eq!([stuck, held, urb_id].map(|id| play.status_of(id)), [Some(UrbStatus::Ok); 3]);
    assert_eq!((play.line().sent.as_slice(), play.read.as_slice()), (&b"stuck and held"[..], &b"in"[..]));
    // The next attempt succeeds.
    play.swap().unwrap();
    play.settle();
    assert_eq!(play.report().asked_again, 0);
}

#[test]
fn first_device_may_be_unplugged_during_an_exchange_and_the_twin_may_not() {
    let mut play = Play::new();
    let urb_id = play.ask();
    play.swap().unwrap();
    play.current.is_pulled.store(true, Ordering::Relaxed);
    play.settle();
    assert!(!play.device.is_gone());
    play.line().incoming.extend(b"twin");
    play.settle();
    assert_eq!((play.status_of(urb_id), play.read.as_slice()), (Some(UrbStatus::Ok), b"twin".as_slice()));
    play.swap().unwrap();
    let urb_id = play.ask();
    play.next.as_ref().unwrap().is_pulled.store(true, Ordering::Relaxed);
    play.settle();
    assert!(play.why_not().contains("the other device"), "{}", play.why_not());
    play.line().incoming.extend(b" stays");
    play.settle();
    assert_eq!((play.status_of(urb_id), play.read.as_slice()), (Some(UrbStatus::Ok), b"twin stays".as_slice()));
    // Unplugged without an exchange, the device is gone, and no exchange begins.
    play.current.is_pulled.store(true, Ordering::Relaxed);
    play.settle();
    assert!(play.device.is_gone());
    assert_eq!(play.swap().unwrap_err(), "it was unplugged");
}

#[test]
fn reset_switches_at_once_and_answers_everything() {
    let mut play = Play::new();
    play.coding(1);
    play.settle();
    play.line().is_stuck = true;
    let pending = [play.ask(), play.send(b"x")];
    play.swap().unwrap();
    play.settle();
    let held = play.send(b"y");
    play.device.reset(play.now, &mut play.done);
    play.collect();
    assert!(play.owed.is_empty(), "{:?}", play.owed);
    assert_eq!([pending[0], pending[1], held].map(|id| play.status_of(id)), [Some(UrbStatus::Shutdown); 3]);
    assert_eq!(play.report().replayed, 2);
    play.line().is_stuck = false;
    play.control(SetupPacket::set_configuration(1), &[]);
    play.settle();
    let urb_id = play.ask();
    play.line().incoming.extend(b"z");
    play.settle();
    assert_eq!(play.status_of(urb_id), Some(UrbStatus::Ok));
}

/// Worlds from seeds: with random events around an exchange, each byte arrives once and in order, and all settings are
/// made.
#[test]
fn every_request_ends_once_and_every_byte_arrives_once_around_exchanges() {
    worlds_of_exchanges(FarLayerConfig::OFF);
}

/// What the first device sent ahead of its user is not lost, and what it was asked ahead is asked of the twin.
#[test]
fn every_byte_that_came_ahead_of_its_user_arrives_once_around_exchanges() {
    let ahead = worlds_of_exchanges(FarLayerConfig::within(16));
    assert!(ahead > 1000, "{ahead} transfers came ahead of their user");
}

/// Returns how many transfers came before the user asked.
fn worlds_of_exchanges(plan: FarLayerConfig) -> u64 {
    let mut ahead = 0;
    let seeds = std::env::var("FARBUS_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300);
    let (mut done, mut again, mut held, mut given_up) = (0_u64, 0_u64, 0_u64, 0_u64);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut play = Play::with(plan);
        let (mut came, mut coding) = (Vec::new(), None);
        for _ in 0..400 {
            match random.below(12) {
                0..2 if play.owed.len() < 8 => drop(play.ask()),
                2..4 if play.owed.len() < 8 => {
                    let bytes: Vec<u8> = (0..1 + random.below(100)).map(|_| random.next() as u8).collect();
                    play.send(&bytes);
                }
                4 => {
                    let bytes: Vec<u8> = (0..1 + random.below(100)).map(|_| random.next() as u8).collect();
                    play.line().incoming.extend(&bytes);
                    came.extend(bytes);
                }
                5 => {
                    let ids: Vec<u64> = play.owed.keys().copied().collect();
                    if !ids.is_empty() {
                        play.cancel(UrbId(random.pick(&ids)));
                    }
                }
                6 if random.once_in(3) => {
                    let bauds = random.next() as u8;
                    coding = Some((play.coding(bauds), bauds));
                    play.settle();
                }
                7 if random.once_in(4) => {
                    let is_stuck = play.line().is_stuck;
                    play.line().is_stuck = !is_stuck;
                }
                8 if random.once_in(4) => {
                    let began = play.swap();
                    assert!(began.is_ok() || began == Err("it is being swapped already".into()), "{began:?}");
                }
                // The owner ends the exchange, at whatever stage it is.
                9 if random.once_in(8) => {
                    let was_swapping = play.is_swapping();
                    play.give_up();
                    let outcomes = play.outcomes.lock().unwrap();
                    let is_told = matches!(outcomes.last(), Some(DeviceSwapOutcome::Failed { twin: Some(_), why }) if why == "given up");
                    assert!(!play.is_swapping() && (is_told || !was_swapping), "seed {seed}: {outcomes:?}");
                    given_up += u64::from(was_swapping);
                }
                _ => play.pass(Duration::from_micros(random.below(3000))),
            }
            assert!(play.written.len() <= play.line().sent.len());
        }
        play.line().is_stuck = false;
        play.settle();
        while !play.line().incoming.is_empty() || play.device.arrived() > 0 {
            play.ask();
            play.settle();
        }
        let waiting: Vec<u64> = play.owed.keys().copied().collect();
        waiting.into_iter().for_each(|id| play.cancel(UrbId(id)));
        play.settle();
        assert!(play.owed.is_empty(), "seed {seed}: {:?}", play.owed);
        assert!(play.read == came, "seed {seed}: what came is read, once and in order");
        assert!(play.written == play.line().sent, "seed {seed}: what was sent is taken, once and in order");
        if let Some((id, bauds)) = coding.filter(|(id, _)| play.status_of(*id) == Some(UrbStatus::Ok)) {
            let settings = play.current.settings.lock().unwrap();
            assert_eq!(settings.coding, [bauds; 7], "seed {seed}: {id:?}");
        }
        ahead += play.device.received().ahead;
        // What the layers asked ends with the device.
        play.device.reset(play.now, &mut play.done);
        play.collect();
        for outcome in play.outcomes.lock().unwrap().iter() {
            if let DeviceSwapOutcome::Done { report, .. } = outcome {
                (done, again, held) = (done + 1, again + report.asked_again as u64, held + report.held as u64);
            }
        }
    }
    eprintln!("{seeds} worlds: {done} exchanges, {again} requests asked again, {held} held, {given_up} given up");
    eprintln!("{ahead} transfers came ahead of their user");
    assert!(done > seeds / 2 && again > seeds / 2, "{done} exchanges, {again} asked again, {held} held");
    assert!(given_up > seeds / 10, "{given_up} of {seeds} were given up under way");
    ahead
}

/// A binary object store with a Container ID, and a capability of the make.
fn store(container: u8, capability: u8) -> Vec<u8> {
    let mut bytes = vec![5, 0x0f, 32, 0, 2, 20, 0x10, 0x04, 0];
    bytes.extend([container; 16]);
    bytes.extend([7, 0x10, 0x02, capability, 0, 0, 0]);
    bytes
}

#[test]
fn binary_object_stores_differ_in_what_belongs_to_the_make_and_only_if_both_are_known() {
    let with = |bos: Vec<u8>| DescriptorSet { bos, ..Adapter::definition("a").build() };
    let difference_of_stores =
        |one: Vec<u8>, other: Vec<u8>| difference((&with(one), UsbSpeed::Super), (&with(other), UsbSpeed::Super));
    assert_eq!(difference_of_stores(store(1, 2), store(3, 2)), None, "each device has a Container ID of its own");
    assert_eq!(
        (difference_of_stores(store(1, 2), Vec::new()), difference_of_stores(Vec::new(), store(1, 2))),
        (None, None),
        "nobody asked for it"
    );
    let what = difference_of_stores(store(1, 2), store(1, 6)).expect("another capability");
    assert!(what.contains("binary object stores differ at byte 28"), "{what}");
    // Stores that end too early are compared as they are.
    assert!(difference_of_stores(store(1, 2)[..12].to_vec(), store(3, 2)[..12].to_vec()).is_some());
    assert!(difference_of_stores(vec![0; 5], vec![1; 5]).is_some());
}

#[test]
fn twin_shows_the_binary_object_store_of_the_first_device() {
    let mut play = Play::new();
    let adapter = |container: u8| {
        let mut all = Adapter::definition("first").build();
        all.bos = store(container, 2);
        let function = Adapter { line: Arc::default(), settings: Arc::default() };
        Expected {
            device: EmulatedDevice::new(&Adapter::definition("first"), function),
            nothing: all,
            is_here: Arc::new(AtomicBool::new(false)),
        }
    };
    play.device = layered(Box::new(adapter(1)), FarLayerConfig::OFF);
    play.swap_for(Box::new(adapter(9))).unwrap();
    play.settle();
    let urb_id = play.control(SetupPacket::get_descriptor(0x0f, 0, 0, 20), &[]);
    play.settle();
    let answer = play.answered.iter().find(|answer| answer.id == urb_id).unwrap();
    assert_eq!((answer.status, &*answer.payload.contiguous()), (UrbStatus::Ok, &store(1, 2)[..20]));
}

#[test]
fn requests_of_an_earlier_process_are_asked_of_the_twin_and_its_settings_are_told() {
    let line: Arc<Mutex<Line>> = Arc::default();
    let (mut device, _) = adapter(&line, "first");
    let mut done = CompletionQueue::new(BufferPool::new(1 << 16));
    let mut now = Instant::ZERO + Duration::from_secs(1);
    // What the first process knows: a request of its maker's was made.
    let mut first = <TwinnedDevice>::new(adapter(&line, "first").0);
    let vendor = SetupPacket { request_type: 0x40, request: 3, value: 5, index: 0, length: 0 };
    for (id, setup) in [SetupPacket::set_configuration(1), vendor].into_iter().enumerate() {
        first.submit(now, Urb::control(UrbId(id as u64), setup, Payload::Empty).launch(), &mut done);
        first.handle_ready(now, &mut done);
        assert_eq!(done.pop().map(|done| done.status), Some(UrbStatus::Ok));
    }
    let mut saved = SnapshotWriter::part();
    first.save_settings(&mut saved);
    let saved = saved.into_bytes();
    // The device in the second process: it is asked for data, and told a setting whose data is not known any more.
    device.submit(now, Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty).launch(), &mut done);
    device.handle_ready(now, &mut done);
    assert_eq!(done.pop().map(|done| done.status), Some(UrbStatus::Ok));
    let coding = SetupPacket { request_type: 0x21, request: LINE_CODING, value: 0, index: 0, length: 7 };
    let requests = [Urb::data_in(UrbId(9), IN, 64), Urb::control(UrbId(10), coding, vec![1; 7].into())];
    requests.iter().for_each(|urb| device.submit(now, urb.clone().launch(), &mut done));
    let mut second = <TwinnedDevice>::new(device);
    for urb in requests {
        let payload = Payload::Empty;
        second.adopt(&Urb { payload, ..urb });
    }
    assert!(second.restore_settings(&mut FieldReader::new(&saved[..saved.len() - 1])).is_err());
    second.restore_settings(&mut FieldReader::new(&saved)).unwrap();
    second.handle_ready(now, &mut done);
    assert_eq!(done.pop().map(|done| (done.id, done.status)), Some((UrbId(10), UrbStatus::Ok)));
    let (twin, plugged) = adapter(&line, "second");
    second.swap(now, &SwapCandidate::new(twin, |_| ()), &mut done).unwrap();
    for _ in 0..50 {
        now = now + Duration::from_millis(2);
        second.handle_timeout(now, &mut done);
        second.handle_ready(now, &mut done);
    }
    assert!(!second.is_swapping() && done.is_empty());
    line.lock().unwrap().incoming.extend(b"x");
    second.handle_ready(now, &mut done);
    let answer = done.pop().expect("it was asked of the twin");
    assert_eq!((answer.id, answer.status, &*answer.payload.contiguous()), (UrbId(9), UrbStatus::Ok, &b"x"[..]));
    let settings = plugged.settings.lock().unwrap();
    assert_eq!((settings.vendor.as_slice(), settings.coding.as_slice()), (&[5][..], &[][..]));
}

/// A sound card 10 ms away.
fn card(seed: u64) -> Box<dyn Device> {
    let way = Way { delay: Duration::from_millis(10), jitter: Duration::from_millis(2), drift_ppm: 0 };
    Box::new(Distant::new(AudioGadget::device(UsbSpeed::Full), way, seed))
}

/// A driver of its microphone, which keeps four requests of 8 ms each in flight.
struct Recording {
    device: IsochronousLayer<TwinnedDevice>,
    now: Instant,
    done: CompletionQueue,
    next_id: u64,
    /// When each request was answered, and the bytes that came with it.
    answered: Vec<(Instant, u32)>,
}

impl Recording {
    fn submit(&mut self, urb: Urb) {
        self.device.submit(self.now, Urb { id: UrbId(self.next_id), ..urb }.launch(), &mut self.done);
        self.next_id += 1;
    }

    fn ask(&mut self) {
        let mut urb = Urb::data_in(UrbId(0), EpAddr::from_byte(0x82), 8 * 192);
        urb.iso = (0..8).map(|at| IsoPacket { offset: at * 192, length: 192, ..IsoPacket::default() }).collect();
        self.submit(urb);
    }

    /// Lets time pass; each answer to the driver is followed by its next request.
    fn run_for(&mut self, span: Duration, is_recording: bool) {
        let until = self.now + span;
        while self.now < until {
            let next = self.device.poll_timeout().unwrap_or(until);
            self.now = next.max(self.now + Duration::from_micros(10)).min(until);
            if self.device.poll_timeout().is_some_and(|at| at <= self.now) {
                self.device.handle_timeout(self.now, &mut self.done);
            }
            while let Some(answer) = self.done.pop() {
                if answer.endpoint.is_control() || is_recording {
                    assert_eq!(answer.status, UrbStatus::Ok, "{answer:?}");
                }
                if is_recording && !answer.endpoint.is_control() {
                    self.answered.push((self.now, answer.actual));
                    self.ask();
                }
            }
        }
    }
}

#[test]
fn far_isochronous_stream_goes_on_from_its_devices_twin_and_back_at_its_pace() {
    let mut recording = Recording {
        device: IsochronousLayer::new(TwinnedDevice::new(card(1)), true),
        now: Instant::ZERO + Duration::from_secs(5),
        done: CompletionQueue::new(BufferPool::new(1 << 20)),
        next_id: 0,
        answered: Vec::new(),
    };
    for setup in [SetupPacket::set_configuration(1), SetupPacket::set_interface(2, 1)] {
        recording.submit(Urb::control(UrbId(0), setup, Payload::Empty));
        recording.run_for(Duration::from_millis(50), false);
    }
    (0..4).for_each(|_| recording.ask());
    recording.run_for(Duration::from_secs(1), true);
    for seed in [2, 3] {
        let outcomes = Outcomes::default();
        let tell = Arc::clone(&outcomes);
        let order = SwapCandidate::new(card(seed), move |outcome| tell.lock().unwrap().push(outcome));
        let now = recording.now;
        let begun = recording.device.act(now, &mut recording.done, |twinned, done| twinned.swap(now, &order, done));
        assert_eq!(begun, Ok(()));
        recording.run_for(Duration::from_secs(2), true);
        let outcomes = outcomes.lock().unwrap();
        let [DeviceSwapOutcome::Done { report, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
        // What the layer asked ahead of the driver goes to the twin.
        assert!(report.asked_again > 0 && report.replayed == 2, "{report:?}");
        assert!(report.quiet < Duration::from_millis(100), "{report:?}");
    }
    let pauses = recording.answered.windows(2).map(|two| two[1].0 - two[0].0);
    let longest = pauses.max().expect("it was answered");
    assert!(longest < Duration::from_millis(100), "the driver waited {longest:?}");
    // 5 s in requests of 8 ms.
    let count = recording.answered.len();
    assert!((560..=640).contains(&count), "{count} answers");
    let (_, last) = recording.answered.split_at(count - 50);
    assert!(last.iter().all(|(_, bytes)| *bytes > 7 * 192), "and all of it is sound again");
    recording.device.reset(recording.now, &mut recording.done);
    while recording.done.pop().is_some() {}
}

/// A device that another host has yet to hand over shows nothing before.
struct Expected {
    device: EmulatedDevice<Adapter>,
    nothing: DescriptorSet,
    is_here: Arc<AtomicBool>,
}

impl Device for Expected {
    fn descriptors(&self) -> &DescriptorSet {
        if self.is_here.load(Ordering::Relaxed) { self.device.descriptors() } else { &self.nothing }
    }
    fn speed(&self) -> UsbSpeed {
        self.device.speed()
    }
    fn selection(&self) -> &ConfigurationSelection {
        self.device.selection()
    }
    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.device.submit(now, urb, done);
    }
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.device.cancel(now, id, done);
    }
    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.device.reset(now, done);
    }
}

#[test]
fn descriptors_that_become_known_later_are_those_that_are_compared_and_shown() {
    let mut play = Play::new();
    let is_here = Arc::new(AtomicBool::new(false));
    let function = Adapter { line: Arc::clone(&play.line), settings: Arc::default() };
    let device = EmulatedDevice::new(&Adapter::definition("expected"), function);
    let expected = Expected { device, nothing: DescriptorSet::default(), is_here: Arc::clone(&is_here) };
    play.device = layered(Box::new(expected), FarLayerConfig::OFF);
    assert_eq!(play.device.descriptors().device.vendor, 0);
    is_here.store(true, Ordering::Relaxed);
    play.control(SetupPacket::set_configuration(1), &[]);
    play.coding(9);
    play.settle();
    play.swap().unwrap();
    play.settle();
    assert_eq!((play.report().replayed, play.current.settings.lock().unwrap().coding.clone()), (2, vec![9; 7]));
    let serial = play.device.descriptors().device.serial_string;
    assert_eq!(play.device.descriptors().string(serial), Some("expected"));
}

#[test]
fn another_process_restores_its_settings_and_no_interrupted_exchange() {
    let zero = || <TwinnedDevice>::new(Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)));
    let mut first = zero();
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let setups =
        [SetupPacket::set_configuration(1), SetupPacket { request: 3, value: 1, ..SetupPacket::set_configuration(0) }];
    for (id, setup) in setups.into_iter().enumerate() {
        first.submit(Instant::ZERO, Urb::control(UrbId(id as u64), setup, Payload::Empty).launch(), &mut done);
        while done.pop().is_some() {}
    }
    let state = first.save().expect("it is at rest");
    let mut second = zero();
    assert!(second.restore(&first.selection().clone(), &state));
    assert_eq!(second.selection().configuration(), 1);
    assert_eq!(second.save().as_ref(), Some(&state), "and could go on to a third");
    assert!((0..state.len()).all(|end| !zero().restore(first.selection(), &state[..end])));
}
