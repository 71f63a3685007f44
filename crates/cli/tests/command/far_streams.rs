//! Isochronous streams over a link of 100 ms round trip, with jitter, in real time: a sound card plays and records, a
//! source sends.
//!
//! These tests hold on a machine that stalls: what a stall takes from a stream is counted, and nothing else is missing.
//! Tests with simulated time check that nothing is missing at all and that the pace is even:
//! `session/tests/isochronous.rs`, and the rig's `far-audio`.
//!
//! `FARBUS_SECONDS` says for how long (default 5).

use std::time::Duration;

use farbus::client::{ClientConfig, ImporterClient};
use farbus::importer::session::connection::LinkedDevice;
use farbus::model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, IsoPacket, Payload, SetupPacket, Urb, UrbCompletion, UrbId,
    UrbStatus,
};
use farbus::modules::recipe;
use farbus_gadgets::audio::tone::{FRAME_BYTES, FrameSound, ToneGenerator, ToneListener};
use farbus_io_net::link::wait_exactly;
use farbus_session::isochronous::IsochronousLayer;
use farbus_session::native::RemoteUsb;

use super::harness::{Harness, PATIENCE, Running, Share, wait_until};

const SPEAKER: EpAddr = EpAddr::from_byte(0x01);
const MICROPHONE: EpAddr = EpAddr::from_byte(0x82);
const SOURCE: EpAddr = EpAddr::from_byte(0x83);
/// There and back 100 ms, and each way up to 10 ms more.
const WAY: &str = "delay:time=50ms,jitter=10ms,seed=5";

fn seconds() -> u64 {
    std::env::var("FARBUS_SECONDS").map_or(5, |text| text.parse().expect("a number"))
}

/// Drives a device as a kernel's driver does, on this thread.
struct Driver {
    device: IsochronousLayer<LinkedDevice<RemoteUsb>>,
    done: CompletionQueue,
    next: u64,
}

impl Driver {
    fn new(share: &Share, name: &str) -> Self {
        wait_exactly();
        let modules = recipe(&[WAY.parse().unwrap()]).unwrap();
        let client = ImporterClient::new(ClientConfig { modules, ..ClientConfig::default() });
        let linked = client.session(&share.library_target(name), Duration::from_secs(20)).unwrap().unwrap();
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut driver = Self { device: IsochronousLayer::new(linked, true), done, next: 0 };
        driver.control(SetupPacket::get_descriptor(1, 0, 0, 18));
        driver.control(SetupPacket::set_configuration(1));
        driver
    }

    fn now(&self) -> Instant {
        self.device.inner().clock().now()
    }

    fn submit(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbId {
        self.next += 1;
        let (id, now) = (UrbId(self.next), self.now());
        self.device.submit(now, urb(id).launch(), &mut self.done);
        id
    }

    fn control(&mut self, setup: SetupPacket) {
        let id = self.submit(|id| Urb::control(id, setup, Payload::Empty));
        let done = self.wait();
        assert_eq!((done.id, done.status), (id, UrbStatus::Ok));
    }

    fn set_interface(&mut self, interface: u8, setting: u8) {
        self.control(SetupPacket::set_interface(interface, setting));
    }

    fn wait(&mut self) -> UrbCompletion {
        loop {
            if let Some(done) = self.done.pop() {
                return done;
            }
            let at = self.device.poll_timeout();
            self.device.inner_mut().wait(at).unwrap();
            let now = self.now();
            if self.device.poll_timeout().is_some_and(|at| at <= now) {
                self.device.handle_timeout(now, &mut self.done);
            } else {
                self.device.handle_ready(now, &mut self.done);
            }
        }
    }

    /// Unlinks these requests and waits for their completions.
    fn withdraw(&mut self, ids: std::ops::RangeInclusive<u64>) {
        let count = ids.clone().count();
        for id in ids {
            let now = self.now();
            self.device.cancel(now, UrbId(id), &mut self.done);
        }
        (0..count).for_each(|_| drop(self.wait()));
    }

    /// Waits for an answer; it has to be for this request, the oldest unanswered one.
    fn wait_for(&mut self, id: u64) -> UrbCompletion {
        let done = self.wait();
        assert_eq!((done.id, done.status), (UrbId(id), UrbStatus::Ok), "{:?}", self.device.counts());
        done
    }

    fn end(mut self) {
        let now = self.now();
        self.device.act(now, &mut self.done, |linked, done| linked.close(done));
    }
}

fn share(harness: &Harness, what: &str) -> Share {
    let arguments = ["share", what, "--listen", "127.0.0.1:0", "--allow-module", "delay"];
    Share::follow(Running::start(harness.command(&arguments)))
}

fn packets(mut urb: Urb, count: u32, bytes: u32) -> Urb {
    urb.iso = (0..count).map(|n| IsoPacket { offset: n * bytes, length: bytes, ..IsoPacket::default() }).collect();
    urb
}

/// Packets of a request, and bytes of a packet: 4 ms at full speed.
const PACKETS: u32 = 4;
const BYTES: u32 = 192;
const DEPTH: u64 = 4;

#[test]
fn far_sound_card_plays_every_sample_that_is_not_counted_as_dropped() {
    let harness = Harness::new();
    let share = share(&harness, "audio");
    let mut card = Driver::new(&share, "audio");
    card.set_interface(1, 1);
    let mut tone = ToneGenerator::default();
    let mut play = |card: &mut Driver| {
        let frames = (PACKETS * BYTES) as usize / FRAME_BYTES;
        let sound: Vec<u8> = (0..frames).flat_map(|_| tone.next_frame()).flat_map(i16::to_le_bytes).collect();
        card.submit(|id| packets(Urb::data_out(id, SPEAKER, sound.into()), PACKETS, BYTES));
    };
    let first = card.next + 1;
    (0..DEPTH).for_each(|_| play(&mut card));
    let urbs = seconds() * 1000 / u64::from(PACKETS);
    for urb in 0..urbs {
        let done = card.wait_for(first + urb);
        assert_eq!((done.error_count, done.actual), (0, PACKETS * BYTES));
        if urb + DEPTH < urbs {
            play(&mut card);
        }
    }
    let counts = card.device.counts();
    let count = |what: &str| harness.json(&["status", "--json"])[0]["devices"][0]["counts"][what].as_u64().unwrap();
    assert_eq!(counts.packets, urbs * u64::from(PACKETS));
    let frames = (counts.packets - counts.dropped) * u64::from(BYTES) / FRAME_BYTES as u64;
    // Closing the interface waits for one second at most; a stall may use that up.
    wait_until(PATIENCE, "all that was sent is played", || {
        // The session only runs while it has requests to carry.
        card.control(SetupPacket::get_descriptor(1, 0, 0, 18));
        count("speaker_tone_frames") >= frames
    });
    card.set_interface(1, 0);
    let breaks = count("speaker_tone_breaks");
    println!("played: {counts:?}, late {}, {breaks} breaks", count("speaker_late"));
    assert_eq!(count("speaker_tone_frames"), frames, "{counts:?}");
    assert!(breaks == 0 || counts.dropped > 0, "{breaks} breaks: {counts:?}");
    card.end();
}

#[test]
fn every_sample_of_a_far_microphone_arrives_or_is_counted_as_missing() {
    let harness = Harness::new();
    let share = share(&harness, "audio");
    let mut card = Driver::new(&share, "audio");
    card.set_interface(2, 1);
    let record = |id: UrbId| packets(Urb::data_in(id, MICROPHONE, PACKETS * BYTES), PACKETS, BYTES);
    let first = card.next + 1;
    (0..DEPTH).for_each(|_| _ = card.submit(record));
    let (mut listener, mut breaks, mut missed) = (ToneListener::default(), 0, 0);
    for urb in 0..seconds() * 1000 / u64::from(PACKETS) {
        let done = card.wait_for(first + urb);
        let whole = done.iso.iter().filter(|packet| packet.status == UrbStatus::Ok && packet.actual == BYTES).count();
        let lost = done.iso.iter().filter(|packet| packet.status == UrbStatus::IsoMissed && packet.actual == 0).count();
        assert_eq!(whole + lost, PACKETS as usize, "a packet is whole or missed: {:?}", done.iso);
        assert_eq!(done.actual, whole as u32 * BYTES);
        missed += lost as u64;
        for &[a, b, c, d] in done.payload.into_vec().as_chunks::<FRAME_BYTES>().0 {
            match listener.hear([i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]) {
                FrameSound::Tone => {}
                FrameSound::Break => breaks += 1,
                other => panic!("no sample is changed: {other:?}"),
            }
        }
        card.submit(record);
    }
    let last = card.next;
    card.withdraw(last - DEPTH + 1..=last);
    let counts = card.device.counts();
    card.set_interface(2, 0);
    let status = harness.json(&["status", "--json"]);
    let unasked = status[0]["devices"][0]["counts"]["microphone_late"].as_u64().unwrap();
    println!("recorded: {counts:?}, {breaks} breaks, {unasked} not asked for in time");
    assert_eq!(counts.missed, missed, "the driver is told each");
    assert!(listener.last.is_some(), "something was heard: {counts:?}");
    let is_counted = counts.missed + counts.late + counts.unclaimed + unasked > 0;
    assert!(breaks == 0 || is_counted, "{breaks} breaks: {counts:?}");
    card.end();
}

#[test]
fn a_far_source_answers_every_request_once_and_in_order() {
    let harness = Harness::new();
    let share = share(&harness, "zero,speed=full");
    let mut device = Driver::new(&share, "zero");
    let ask = |id: UrbId| packets(Urb::data_in(id, SOURCE, 256), 1, 256);
    let first = device.next + 1;
    (0..8).for_each(|_| _ = device.submit(ask));
    let began = device.now();
    let answers = seconds() * 1000;
    for answer in 0..answers {
        device.wait_for(first + answer);
        device.submit(ask);
    }
    let span = device.now() - began;
    println!("a source: {answers} answers in {span:?}, {:?}", device.device.counts());
    // The device has one packet a millisecond: a stream may be late, but never early.
    assert!(span > Duration::from_millis(answers * 99 / 100), "{span:?}");
    let last = device.next;
    device.withdraw(last - 7..=last);
    device.end();
}
