//! Isochronous streams over a way of 100 ms that shakes: a sound card plays and records, a source sends, in real time.
//!
//! `FARBUS_SECONDS` says how long (default 5).

use std::process::{Command, Stdio};
use std::time::Duration;

use farbus::client::Client;
use farbus::linked::Linked;
use farbus::model::{
    BufferPool, Completions, Device, Done, EpAddr, Instant, IsoPacket, Payload, Setup, Status, Urb, UrbId,
};
use farbus::modules::recipe;
use farbus_gadgets::audio::tone::{FRAME_BYTES, Heard, Listener, Tone};
use farbus_io::link::wait_exactly;
use farbus_session::isochronous::{Counts, Isochronous};
use farbus_session::native::RemoteUsb;

use super::canary::where_processors_are_there;
use super::harness::{House, Running, Share, has};

const SPEAKER: EpAddr = EpAddr::from_byte(0x01);
const MICROPHONE: EpAddr = EpAddr::from_byte(0x82);
const SOURCE: EpAddr = EpAddr::from_byte(0x83);
/// There and back 100 ms, and each way up to 10 ms more.
const WAY: &str = "delay:time=50ms,jitter=10ms,seed=5";

fn seconds() -> u64 {
    std::env::var("FARBUS_SECONDS").map_or(5, |text| text.parse().expect("a number"))
}

/// Whether this thread, and the processes it starts, run before all others from now on: what else the machine does is not measured.
fn runs_first() -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let arguments = ["--fifo", "--pid", "10", &thread];
    let asked = Command::new("chrt").args(arguments).stderr(Stdio::null()).status();
    has("leave to run before others", asked.is_ok_and(|status| status.success()))
}

/// Drives a device as a kernel's driver does, on this thread.
struct Driver {
    device: Isochronous<Linked<RemoteUsb>>,
    done: Completions,
    next: u64,
}

impl Driver {
    fn new(share: &Share, name: &str) -> Self {
        wait_exactly();
        let mut client = Client::default();
        client.go_through(recipe(&[WAY.parse().unwrap()]).unwrap());
        let linked = client.session(&share.library_target(name), Duration::from_secs(20)).unwrap().unwrap();
        let done = Completions::new(BufferPool::new(1 << 20));
        let mut driver = Self { device: Isochronous::new(linked, true), done, next: 0 };
        driver.control(Setup::get_descriptor(1, 0, 0, 18));
        driver.control(Setup::set_configuration(1));
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

    fn control(&mut self, setup: Setup) {
        let id = self.submit(|id| Urb::control(id, setup, Payload::Empty));
        let done = self.wait();
        assert_eq!((done.id, done.status), (id, Status::Ok));
    }

    fn set_interface(&mut self, interface: u8, setting: u8) {
        self.control(Setup::set_interface(interface, setting));
    }

    fn wait(&mut self) -> Done {
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

    /// Withdraws what was asked, and hears the end of it.
    fn withdraw(&mut self, asked: std::ops::RangeInclusive<u64>) {
        let count = asked.clone().count();
        for id in asked {
            let now = self.now();
            self.device.cancel(now, UrbId(id), &mut self.done);
        }
        (0..count).for_each(|_| drop(self.wait()));
    }

    fn end(mut self) {
        let now = self.now();
        self.device.act(now, &mut self.done, |linked, done| linked.close(done));
    }
}

fn share(house: &House, what: &str) -> Share {
    let arguments = ["share", what, "--listen", "127.0.0.1:0", "--allow-module", "delay"];
    Share::follow(Running::start(house.command(&arguments)))
}

fn packets(mut urb: Urb, count: u32, bytes: u32) -> Urb {
    urb.iso = (0..count).map(|n| IsoPacket { offset: n * bytes, length: bytes, ..IsoPacket::default() }).collect();
    urb
}

/// Mean and standard deviation of what lies between moments, ns.
fn intervals(moments: &[Instant]) -> (f64, f64) {
    let spans: Vec<f64> = moments.windows(2).map(|two| (two[1] - two[0]).as_nanos() as f64).collect();
    let mean = spans.iter().sum::<f64>() / spans.len() as f64;
    let variance = spans.iter().map(|span| (span - mean).powi(2)).sum::<f64>() / spans.len() as f64;
    (mean, variance.sqrt())
}

/// Packets of a request, and bytes of a packet: 4 ms at full speed.
const PACKETS: u32 = 4;
const BYTES: u32 = 192;
const DEPTH: u64 = 4;

#[test]
fn a_sound_card_plays_over_a_hundred_milliseconds_without_a_gap() {
    let house = House::alone();
    if runs_first() {
        where_processors_are_there(|| play(&house));
    }
}

fn play(house: &House) {
    let share = share(house, "audio");
    let mut card = Driver::new(&share, "audio");
    card.set_interface(1, 1);
    let mut tone = Tone::default();
    let mut play = |card: &mut Driver| {
        let frames = (PACKETS * BYTES) as usize / FRAME_BYTES;
        let sound: Vec<u8> = (0..frames).flat_map(|_| tone.next_frame()).flat_map(i16::to_le_bytes).collect();
        card.submit(|id| packets(Urb::data_out(id, SPEAKER, sound.into()), PACKETS, BYTES));
    };
    (0..DEPTH).for_each(|_| play(&mut card));
    let urbs = seconds() * 1000 / u64::from(PACKETS);
    let mut ended = Vec::new();
    for urb in 0..urbs {
        let done = card.wait();
        assert_eq!((done.status, done.error_count, done.actual), (Status::Ok, 0, PACKETS * BYTES));
        ended.push(card.now());
        if urb + DEPTH < urbs {
            play(&mut card);
        }
    }
    card.set_interface(1, 0);
    let (mean, deviation) = intervals(&ended);
    println!(
        "played: an answer each {:.1} us, deviation {:.1} us, {:?}",
        mean / 1e3,
        deviation / 1e3,
        card.device.counts()
    );
    let status = house.json(&["status", "--json"]);
    let count = |what: &str| status[0]["devices"][0]["counts"][what].as_u64();
    let sent = urbs * u64::from(PACKETS * BYTES) / FRAME_BYTES as u64;
    assert_eq!(count("speaker_tone_frames"), Some(sent), "every sample: {status}");
    assert_eq!((count("speaker_tone_breaks"), count("speaker_late")), (Some(0), Some(0)), "{status}");
    let packets = urbs * u64::from(PACKETS);
    assert_eq!(card.device.counts(), Counts { packets, ..Counts::default() });
    card.end();
}

#[test]
fn a_microphone_is_heard_over_a_hundred_milliseconds_without_a_gap() {
    let house = House::alone();
    if runs_first() {
        where_processors_are_there(|| record(&house));
    }
}

fn record(house: &House) {
    let share = share(house, "audio");
    let mut card = Driver::new(&share, "audio");
    card.set_interface(2, 1);
    let record = |id: UrbId| packets(Urb::data_in(id, MICROPHONE, PACKETS * BYTES), PACKETS, BYTES);
    (0..DEPTH).for_each(|_| _ = card.submit(record));
    let mut listener = Listener::default();
    let urbs = seconds() * 1000 / u64::from(PACKETS);
    for _ in 0..urbs {
        let done = card.wait();
        assert_eq!(
            (done.status, done.error_count, done.actual),
            (Status::Ok, 0, PACKETS * BYTES),
            "{:?}",
            card.device.counts()
        );
        for &[a, b, c, d] in done.payload.into_vec().as_chunks::<FRAME_BYTES>().0 {
            let heard = listener.hear([i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]);
            assert_eq!(heard, Heard::Tone);
        }
        card.submit(record);
    }
    let last = card.next;
    card.withdraw(last - DEPTH + 1..=last);
    println!("recorded: {:?}", card.device.counts());
    card.set_interface(2, 0);
    card.end();
}

#[test]
fn a_source_answers_each_millisecond_whatever_the_way_does() {
    let house = House::alone();
    if runs_first() {
        where_processors_are_there(|| hear(&house));
    }
}

fn hear(house: &House) {
    let share = share(house, "zero,speed=full");
    let mut device = Driver::new(&share, "zero");
    let ask = |id: UrbId| packets(Urb::data_in(id, SOURCE, 256), 1, 256);
    (0..8).for_each(|_| _ = device.submit(ask));
    let mut moments = Vec::new();
    for _ in 0..seconds() * 1000 {
        let done = device.wait();
        assert_eq!(done.status, Status::Ok);
        moments.push(device.now());
        device.submit(ask);
    }
    let (mean, deviation) = intervals(&moments);
    println!(
        "a source: an answer each {:.2} us, deviation {:.1} us, {:?}",
        mean / 1e3,
        deviation / 1e3,
        device.device.counts()
    );
    // How evenly a thread is woken is the machine's; in the long run it is the device.
    assert!((mean / 1e6 - 1.0).abs() < 0.005, "{mean}");
    let last = device.next;
    device.withdraw(last - 7..=last);
    device.end();
}
