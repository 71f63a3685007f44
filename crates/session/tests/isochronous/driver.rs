//! A driver of a sound card, in simulated time: a fixed number of requests in flight, each submitted again when it
//! completes.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_gadgets::audio::AudioGadget;
use farbus_gadgets::audio::tone::{FRAME_BYTES, FrameSound, ToneGenerator, ToneListener};
use farbus_gadgets::emulated::EmulatedDevice;
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, IsoPacket, NamedCounters, Payload, SetupPacket, Urb,
    UrbCompletion, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::ProtocolViolation;
use farbus_session::isochronous::IsochronousLayer;
use farbus_session::snapshot::{self, SnapshotWriter};

use crate::distant::{Distant, Way};
use crate::random::Random;
use crate::recorded;

pub const SPEAKER: EpAddr = EpAddr::from_byte(0x01);
pub const MICROPHONE: EpAddr = EpAddr::from_byte(0x82);
const PACKET_FRAMES: usize = 48;
const PACKET_BYTES: u32 = (PACKET_FRAMES * FRAME_BYTES) as u32;
/// Interval of packets at full speed.
pub const INTERVAL: Duration = Duration::from_millis(1);

/// Snapshot kind of a card.
pub const KIND: u16 = 99;
const NO_WAY: Way = Way { delay: Duration::ZERO, jitter: Duration::ZERO, drift_ppm: 0 };

pub type Card = IsochronousLayer<Distant<EmulatedDevice<AudioGadget>>>;

pub struct Driver {
    pub card: Card,
    pub now: Instant,
    pub random: Random,
    done: CompletionQueue,
    next: u64,
    endpoint: EpAddr,
    packets: u32,
    tone: ToneGenerator,
    listener: ToneListener,
    /// Open requests, in order.
    open_requests: VecDeque<u64>,
    /// When each was answered; `missed` counts lost packets.
    pub answered: Vec<Instant>,
    frame: Option<u32>,
    pub missed: u64,
    /// Whether frames may be missing: nothing buffers for the card, or the driver itself is late.
    pub may_skip: bool,
    pub breaks: u64,
    pub heard: u64,
    /// Whether the driver has stopped submitting.
    is_done: bool,
    /// How long after its device's answer a driver is woken.
    pub latency: Duration,
    /// Answers for which the driver has not been woken yet.
    owing: VecDeque<Instant>,
}

impl Driver {
    /// A driver that uses one of the card's two directions.
    pub fn new(way: Way, seed: u64, endpoint: EpAddr, packets: u32) -> Self {
        let device = AudioGadget::device(UsbSpeed::Full);
        let mut driver = Self {
            card: IsochronousLayer::new(Distant::new(device, way, seed), true),
            now: Instant::ZERO + Duration::from_secs(5),
            random: Random::new(seed ^ 1),
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            next: 0,
            endpoint,
            packets,
            tone: ToneGenerator::default(),
            listener: ToneListener::default(),
            open_requests: VecDeque::new(),
            answered: Vec::new(),
            frame: None,
            missed: 0,
            may_skip: false,
            breaks: 0,
            heard: 0,
            is_done: false,
            latency: Duration::ZERO,
            owing: VecDeque::new(),
        };
        driver.control(SetupPacket::set_configuration(1));
        driver.set_interface(1);
        driver
    }

    pub fn set_interface(&mut self, setting: u8) {
        let interface = if self.endpoint == SPEAKER { 1 } else { 2 };
        self.control(SetupPacket::set_interface(interface, setting));
    }

    /// Submits a control request and waits for its answer.
    pub fn control(&mut self, setup: SetupPacket) {
        self.next += 1;
        let id = UrbId(self.next);
        self.card.submit(self.now, Urb::control(id, setup, Payload::Empty).launch(), &mut self.done);
        loop {
            while let Some(done) = self.done.pop() {
                if done.id == id {
                    assert_eq!(done.status, UrbStatus::Ok);
                    return;
                }
                self.take(done);
            }
            self.pass();
        }
    }

    /// The card's counters.
    pub fn tally(&self) -> NamedCounters {
        self.card.tally().expect("a sound card counts")
    }

    pub fn count(&self, what: &str) -> u64 {
        self.tally().read().find(|(name, _)| *name == what).expect("it counts that").1
    }

    pub fn begin(&mut self, depth: usize) {
        (0..depth).for_each(|_| self.ask());
    }

    fn ask(&mut self) {
        self.next += 1;
        let (id, length) = (UrbId(self.next), self.packets * PACKET_BYTES);
        let mut urb = if self.endpoint == SPEAKER {
            let frames = length as usize / FRAME_BYTES;
            let sound = (0..frames).flat_map(|_| self.tone.next_frame()).flat_map(i16::to_le_bytes);
            Urb::data_out(id, self.endpoint, sound.collect::<Vec<u8>>().into())
        } else {
            Urb::data_in(id, self.endpoint, length)
        };
        urb.iso = (0..self.packets)
            .map(|n| IsoPacket { offset: n * PACKET_BYTES, length: PACKET_BYTES, ..IsoPacket::default() })
            .collect();
        self.open_requests.push_back(id.0);
        self.card.submit(self.now, urb.launch(), &mut self.done);
    }

    /// Advances to the next event and plays it.
    pub fn pass(&mut self) {
        let moments = [self.card.poll_timeout(), self.owing.front().copied()];
        // Time passes even if nothing is pending.
        let next = moments.into_iter().flatten().min().unwrap_or(self.now + INTERVAL);
        self.now = next.max(self.now);
        if self.card.poll_timeout().is_some_and(|at| at <= self.now) {
            self.card.handle_timeout(self.now, &mut self.done);
        }
        while self.owing.front().is_some_and(|at| *at <= self.now) {
            self.owing.pop_front();
            if !self.is_done {
                self.ask();
            }
        }
    }

    pub fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        while self.now < until {
            self.pass();
            while let Some(done) = self.done.pop() {
                self.take(done);
            }
        }
    }

    /// Stops submitting, and waits for the open requests.
    pub fn finish(&mut self) {
        self.is_done = true;
        while !self.open_requests.is_empty() || !self.owing.is_empty() {
            self.run_for(INTERVAL);
        }
    }

    /// Cancels all requests, as a driver that stops.
    pub fn withdraw(&mut self) {
        self.is_done = true;
        for id in self.open_requests.clone() {
            self.card.cancel(self.now, UrbId(id), &mut self.done);
        }
        self.run_for(INTERVAL);
        assert!(self.open_requests.is_empty(), "what is withdrawn ends");
    }

    /// The port is reset, and the driver sets up the card again.
    pub fn reset(&mut self) {
        self.is_done = true;
        self.card.reset(self.now, &mut self.done);
        while let Some(done) = self.done.pop() {
            assert_eq!(done.status, UrbStatus::Shutdown);
            self.take(done);
        }
        assert!(self.open_requests.is_empty(), "a reset ends everything");
        self.owing.clear();
        self.control(SetupPacket::set_configuration(1));
    }

    /// Another process continues with the card, over the same path.
    pub fn move_on(&mut self) {
        let bytes = self.saved();
        recorded::note_sound(if self.endpoint == SPEAKER { "speaker" } else { "microphone" }, &bytes);
        let nothing = IsochronousLayer::new(Distant::new(AudioGadget::device(UsbSpeed::Full), NO_WAY, 0), true);
        let device = std::mem::replace(&mut self.card, nothing).hand_over();
        let mut reader = snapshot::open(&bytes, KIND).unwrap();
        self.card = IsochronousLayer::restore(self.now, device, &mut reader).map_err(|(_, reject)| reject).unwrap();
        reader.end("snapshot").unwrap();
        let mut left: Vec<u64> = self.card.in_flight_of(Vec::new()).iter().map(|(id, ..)| id.0).collect();
        left.sort_unstable();
        assert_eq!(left, Vec::from(self.open_requests.clone()), "what is not answered goes along");
    }

    /// A snapshot of the card.
    pub fn saved(&self) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(KIND);
        self.card.save(&mut writer);
        writer.into_bytes()
    }

    /// Whether these bytes are accepted as a snapshot; if so, the card is used for a while.
    pub fn could_be(&self, bytes: &[u8]) -> bool {
        let Ok(mut reader) = snapshot::open(bytes, KIND) else { return false };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let mut device = AudioGadget::device(UsbSpeed::Full);
        let interface = if self.endpoint == SPEAKER { 1 } else { 2 };
        for setup in [SetupPacket::set_configuration(1), SetupPacket::set_interface(interface, 1)] {
            device.submit(self.now, Urb::control(UrbId(1), setup, Payload::Empty).launch(), &mut done);
        }
        let device = Distant::new(device, NO_WAY, 0);
        let Ok(mut card) = IsochronousLayer::restore(self.now, device, &mut reader) else { return false };
        for ms in 0..50 {
            card.handle_timeout(self.now + INTERVAL * ms, &mut done);
        }
        card.reset(self.now + INTERVAL * 50, &mut done);
        true
    }

    /// Checks that a snapshot of an earlier release is read completely.
    pub fn is_read(bytes: &[u8], endpoint: EpAddr) -> Result<(), ProtocolViolation> {
        let (mut device, mut done) = (AudioGadget::device(UsbSpeed::Full), CompletionQueue::new(BufferPool::new(0)));
        let interface = if endpoint == SPEAKER { 1 } else { 2 };
        for setup in [SetupPacket::set_configuration(1), SetupPacket::set_interface(interface, 1)] {
            device.submit(Instant::ZERO, Urb::control(UrbId(1), setup, Payload::Empty).launch(), &mut done);
        }
        let device = Distant::new(device, NO_WAY, 0);
        let mut reader = snapshot::open(bytes, KIND)?;
        let card = IsochronousLayer::restore(Instant::ZERO, device, &mut reader).map_err(|(_, reject)| reject)?;
        reader.end("snapshot")?;
        card.hand_over();
        Ok(())
    }

    pub fn begin_again(&mut self, depth: usize) {
        self.is_done = false;
        self.frame = None;
        self.begin(depth);
    }

    fn take(&mut self, done: UrbCompletion) {
        assert_eq!(self.open_requests.pop_front(), Some(done.id.0), "each is answered once, in order");
        if done.status != UrbStatus::Ok {
            assert!(self.is_done, "{:?}", done.status);
            return;
        }
        let expected = self.frame.replace(done.start_frame + self.packets);
        let follows =
            expected.is_none_or(|frame| frame == done.start_frame || (self.may_skip && frame < done.start_frame));
        assert!(follows, "frames are numbered as they come: {} and not {expected:?}", done.start_frame);
        self.answered.push(self.now);
        let mut data = done.payload;
        for packet in &done.iso {
            match packet.status {
                UrbStatus::Ok if done.endpoint == MICROPHONE => {
                    assert_eq!(packet.actual, PACKET_BYTES);
                    let frames = data.split_front(PACKET_BYTES as usize).into_vec();
                    for frame in frames.as_chunks::<FRAME_BYTES>().0 {
                        let &[a, b, c, d] = frame;
                        match self.listener.hear([i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]) {
                            FrameSound::Tone => self.heard += 1,
                            FrameSound::Break => self.breaks += 1,
                            other => panic!("the microphone says {other:?}"),
                        }
                    }
                }
                UrbStatus::Ok => assert_eq!(packet.actual, PACKET_BYTES),
                UrbStatus::IsoMissed => {
                    assert_eq!(packet.actual, 0);
                    self.missed += 1;
                }
                status => panic!("{status:?}"),
            }
        }
        let latency = self.latency.as_nanos() as u64;
        let later = if latency == 0 { 0 } else { self.random.below(latency) };
        let woken = self.now + Duration::from_nanos(later);
        self.owing.push_back(woken.max(self.owing.back().copied().unwrap_or_default()));
    }

    /// Intervals between answers: mean, standard deviation, and largest deviation from the mean, ns.
    pub fn intervals(&self) -> (f64, f64, f64) {
        let spans: Vec<f64> = self.answered.windows(2).map(|two| (two[1] - two[0]).as_nanos() as f64).collect();
        let mean = spans.iter().sum::<f64>() / spans.len() as f64;
        let variance = spans.iter().map(|span| (span - mean).powi(2)).sum::<f64>() / spans.len() as f64;
        let most = spans.iter().map(|span| (span - mean).abs()).fold(0.0, f64::max);
        (mean, variance.sqrt(), most)
    }
}

impl Drop for Driver {
    /// Requests in flight end with the device.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.card.reset(self.now, &mut self.done);
        }
    }
}
