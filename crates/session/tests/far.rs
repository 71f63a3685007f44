//! A far device in simulated time: what its driver notices of the distance.

#[path = "far/road.rs"]
mod road;
#[path = "far/rules.rs"]
mod rules;
#[path = "far/window.rs"]
mod window;

use std::time::Duration;

use farbus_gadgets::emulated::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer};
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_model::block::MemoryStore;
use farbus_model::definition::InterfaceDefinition;
use farbus_model::{
    Device, DeviceDefinition, EpAddr, Instant, Payload, SetupPacket, TransferDirection, Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::snapshot::{self, SnapshotWriter};
use road::Road;
use window::{SEGMENTS_FIRST, WindowPlan};

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// What Linux requests from a high-speed device before binding a driver (6.12, `hub_port_init` to
/// `usb_set_configuration`).
fn enumerate(road: &mut Road) -> u64 {
    let mut id = 0;
    let mut ask = |road: &mut Road, setup: SetupPacket| {
        id += 1;
        road.ask(Urb::control(UrbId(id), setup, Payload::Empty))
    };
    let all = road.far.descriptors().clone();
    let get = SetupPacket::get_descriptor;
    assert_eq!(ask(road, get(1, 0, 0, 64)).payload.len(), 18);
    assert_eq!(ask(road, get(1, 0, 0, 18)).actual, 18);
    if road.far.speed() == UsbSpeed::Full && all.device.usb_bcd >= 0x0200 {
        // check_highspeed(): five tries.
        for _ in 0..5 {
            assert_eq!(ask(road, get(6, 0, 0, 10)).status, UrbStatus::Stall);
        }
    }
    if all.device.usb_bcd >= 0x0201 {
        let first = ask(road, get(15, 0, 0, 5)).payload.into_vec();
        let total = u16::from_le_bytes([first[2], first[3]]);
        assert_eq!(ask(road, get(15, 0, 0, total)).actual, total.into());
    }
    let first = ask(road, get(2, 0, 0, 9)).payload.into_vec();
    let total = u16::from_le_bytes([first[2], first[3]]);
    assert_eq!(ask(road, get(2, 0, 0, total)).actual, total.into());
    assert_eq!(ask(road, get(3, 0, 0, 255)).payload.into_vec(), [4, 3, 9, 4]);
    for index in [all.device.product_string, all.device.manufacturer_string, all.device.serial_string] {
        let string = ask(road, get(3, index, 0x0409, 255)).payload.into_vec();
        assert_eq!(string.len(), usize::from(string[0]));
    }
    assert_eq!(ask(road, SetupPacket::set_configuration(1)).status, UrbStatus::Ok);
    id
}

/// Number of round trips from opening the device until a driver is bound.
fn round_trips(device: impl Device + 'static, is_on: bool, bind: impl FnOnce(&mut Road, u64)) -> f64 {
    let mut road = Road::to(device, ROUND_TRIP, is_on);
    let begun = road.now;
    road.open();
    let last_id = enumerate(&mut road);
    bind(&mut road, last_id + 1);
    (road.now - begun).as_secs_f64() / ROUND_TRIP.as_secs_f64()
}

#[test]
fn disabled_plan_stays_disabled_after_a_handover() {
    const KIND: u16 = 1;
    for plan in [FarLayerConfig::OFF, FarLayerConfig::within(256)] {
        let mut saved = SnapshotWriter::new(KIND);
        let far = FarLayer::new(KeyboardGadget::device(), plan);
        far.save(&mut saved);
        let saved = saved.into_bytes();
        let mut reader = snapshot::open(&saved, KIND).unwrap();
        // The restoring process does not know whether the plan was on.
        let again =
            FarLayer::restore(Instant::ZERO, far.hand_over(), FarLayerConfig::within(256), Vec::new(), &mut reader);
        let again = again.map_err(|(_, reject)| reject).unwrap();
        reader.end("snapshot").unwrap();
        assert_eq!(again.plan().is_on, plan.is_on);
    }
}

/// usbhid: SET_IDLE, the report descriptor.
fn bind_hid(road: &mut Road, id: u64) {
    let idle = SetupPacket { request_type: 0x21, request: 0x0a, value: 0, index: 0, length: 0 };
    assert_eq!(road.ask(Urb::control(UrbId(id), idle, Payload::Empty)).status, UrbStatus::Ok);
    let report = SetupPacket { request_type: 0x81, request: 6, value: 0x2200, index: 0, length: 63 };
    assert_eq!(road.ask(Urb::control(UrbId(id + 1), report, Payload::Empty)).actual, 63);
}

/// What cdc-acm asks when it binds: SET_LINE_CODING, 9600 8N1 (PSTN 1.2 §6.3.10).
fn bind_acm(road: &mut Road, id: u64) {
    let coding = SetupPacket { request_type: 0x21, request: 0x20, value: 0, index: 0, length: 7 };
    let urb = Urb::control(UrbId(id), coding, vec![0x80, 0x25, 0, 0, 0, 0, 8].into());
    assert_eq!(road.ask(urb).status, UrbStatus::Ok);
}

/// Does nothing: usb-storage binds without a request, and scans for disks later.
fn bind_storage(_: &mut Road, _: u64) {}

#[test]
fn driver_is_bound_after_four_round_trips() {
    let disk = || {
        StorageGadget::device(Box::new(MemoryStore::new(vec![0; 1 << 20])), StorageOptions::default()).expect("a disk")
    };
    for is_on in [false, true] {
        let hid = round_trips(KeyboardGadget::device(), is_on, bind_hid);
        let acm = round_trips(SerialGadget::device(UsbSpeed::High), is_on, bind_acm);
        let storage = round_trips(disk(), is_on, bind_storage);
        println!("ahead {is_on}: to a bound driver HID {hid:.2}, ACM {acm:.2}, storage {storage:.2} round trips");
        if is_on {
            assert!(hid <= 4.01 && acm <= 4.01 && storage <= 4.01, "{hid} {acm} {storage}");
        } else {
            assert!(hid > 9.0 && acm > 9.0 && storage > 9.0, "{hid} {acm} {storage}: nothing would be gained");
        }
    }
}

/// A mouse that is polled a thousand times a second, and reports at an interval of its own while it is moved; it
/// buffers two reports.
struct Mouse {
    interval: Duration,
    next: u64,
    due: Instant,
    /// It is moved during the first of these spans, rests during the second, and so on.
    moved_and_rests: (Duration, Duration),
    reports: Vec<[u8; 16]>,
}

const TICK: Duration = Duration::from_millis(1);

impl Mouse {
    fn device(interval: Duration, moved_and_rests: (Duration, Duration)) -> EmulatedDevice<Self> {
        let interface = InterfaceDefinition::new(3, 0, 2).interrupt(1, TransferDirection::In, 16, TICK);
        let definition =
            DeviceDefinition::new(1, 1).speed(UsbSpeed::High).names("a", "mouse", "1").interface(interface);
        let mouse = Self { interval, next: 0, due: Instant::ZERO, moved_and_rests, reports: Vec::new() };
        EmulatedDevice::new(&definition, mouse)
    }
}

impl GadgetFunction for Mouse {
    fn send(&mut self, _endpoint: EpAddr, _room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        match self.reports.is_empty() {
            true => InTransferAnswer::Nak,
            false => InTransferAnswer::Data(self.reports.remove(0).as_slice().into()),
        }
    }

    fn receive(&mut self, _: EpAddr, _: &Payload, _: &mut FunctionContext<'_>) -> OutTransferAnswer {
        OutTransferAnswer::Stall
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        self.due = cx.now + self.interval;
        let (moved, rests) = self.moved_and_rests;
        if u128::from(cx.now.as_nanos()) % (moved + rests).as_nanos() >= moved.as_nanos() {
            return;
        }
        let mut report = [0; 16];
        report[..8].copy_from_slice(&self.next.to_le_bytes());
        report[8..].copy_from_slice(&cx.now.as_nanos().to_le_bytes());
        self.next += 1;
        if self.reports.len() == 2 {
            self.reports.remove(0);
        }
        self.reports.push(report);
    }
}

/// What a driver with one request at a time gets in ten seconds.
#[derive(Debug, Default)]
struct MouseReports {
    /// When each report was made, after the driver's first request, and how long it took to the driver.
    delays: Vec<(Duration, Duration)>,
    missing: u64,
}

impl MouseReports {
    /// The longest delay of a report that was made after the driver's first request had reached the device.
    fn longest(&self) -> Duration {
        let requested = self.delays.iter().filter(|(made, _)| *made >= ROUND_TRIP / 2);
        requested.map(|(_, delay)| *delay).max().unwrap_or_default()
    }
}

fn watch_mouse(mut road: Road, plan: Option<WindowPlan>) -> MouseReports {
    road.open();
    let id = enumerate(&mut road) + 1;
    plan.into_iter().for_each(|plan| road.limit_exporter(plan));
    let (begun, until) = (road.now, road.now + Duration::from_secs(10));
    let ask = |road: &mut Road| road.submit(Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), 16));
    ask(&mut road);
    let (mut heard, mut last) = (MouseReports::default(), None);
    while road.now < until {
        while let Some(done) = road.pop() {
            assert_eq!(done.status, UrbStatus::Ok);
            let bytes = done.payload.into_vec();
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let (number, made) = (word(0), Instant::from_nanos(word(8)));
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}: in order, and once");
            heard.missing += number - last.map_or(number, |last| last + 1);
            last = Some(number);
            heard.delays.push((made - begun, road.now - made));
            ask(&mut road);
        }
        road.step(None);
    }
    heard
}

/// A mouse that is moved without a pause, at a link that takes everything at once.
fn watch_moved_mouse(is_on: bool, interval: Duration) -> MouseReports {
    watch_mouse(Road::to(Mouse::device(interval, (TICK, Duration::ZERO)), ROUND_TRIP, is_on), None)
}

#[test]
fn every_report_from_the_first_request_on_arrives_half_a_round_trip_later() {
    let near = watch_moved_mouse(false, TICK);
    let (count, lost) = (near.delays.len(), near.missing);
    assert!(count <= 101 && lost > 9000, "{count} came, {lost} did not: nothing would be gained");
    for (interval, most) in [(TICK, 9900), (8 * TICK, 1237)] {
        let heard = watch_moved_mouse(true, interval);
        let (count, longest) = (heard.delays.len(), heard.longest());
        println!("{count} reports in 10 s at {ROUND_TRIP:?}, {} missing, {longest:?} late at most", heard.missing);
        assert_eq!(heard.missing, 0);
        assert!(count >= most, "{count}");
        assert!(longest <= ROUND_TRIP / 2 + 2 * TICK, "{longest:?}");
    }
}

/// A mouse that is moved for a second, rests for two, and so on, over TCP: the longest delay of a report.
fn longest_over_tcp(interval: Duration, plan: WindowPlan) -> Duration {
    let (moved, rests) = (Duration::from_secs(1), Duration::from_secs(2));
    let heard = watch_mouse(Road::to(Mouse::device(interval, (moved, rests)), ROUND_TRIP, true), Some(plan));
    assert_eq!(heard.missing, 0);
    let longest = heard.longest();
    println!("a report each {interval:?}, {} of them, {longest:?} late at most: {plan:?}", heard.delays.len());
    longest
}

const LINUX: WindowPlan = WindowPlan { segments_first: SEGMENTS_FIRST, restarts: true, is_spaced: true };

#[test]
fn reports_wait_for_acknowledgements_without_spacing() {
    let plan = WindowPlan { is_spaced: false, ..LINUX };
    let (mouse, slow) = (longest_over_tcp(TICK, plan), longest_over_tcp(8 * TICK, plan));
    assert!(mouse >= ROUND_TRIP * 135 / 100 && slow >= ROUND_TRIP * 65 / 100, "{mouse:?} {slow:?}");
}

/// Ten segments for a round trip: one each tenth of it. No sender can do better with one TCP connection.
#[test]
fn no_report_is_later_than_half_a_round_trip_and_a_tenth_after_any_rest() {
    for interval in [TICK, 8 * TICK] {
        let longest = longest_over_tcp(interval, LINUX);
        assert!(longest <= ROUND_TRIP / 2 + ROUND_TRIP / 10 + 2 * TICK, "{longest:?}");
    }
}

/// With `net.ipv4.tcp_slow_start_after_idle=0`, or a route with `initcwnd 25`.
#[test]
fn no_report_is_later_than_55_ms_where_the_window_begins_with_25_segments() {
    for interval in [TICK, 8 * TICK] {
        let longest = longest_over_tcp(interval, WindowPlan { segments_first: 25, restarts: false, is_spaced: true });
        assert!(longest <= Duration::from_millis(55), "{longest:?}");
    }
}

#[test]
fn single_report_is_not_held() {
    let longest = longest_over_tcp(ROUND_TRIP / 5, LINUX);
    assert!(longest <= ROUND_TRIP / 2 + 2 * TICK, "{longest:?}");
}

/// cdc-acm: reads of two packets and writes of a terminal's size, sixteen of each (`ACM_NR`, `ACM_NW`).
const READS: u64 = 16;
const READ_BYTES: u32 = 1024;
const WRITES: u64 = 16;
const WRITE_BYTES: usize = 2048;
const READ: EpAddr = EpAddr::from_byte(0x81);
const WRITE: EpAddr = EpAddr::from_byte(0x01);
/// 8 data bits, a start and a stop bit.
const BYTES_PER_SECOND: f64 = 3_000_000.0 / 10.0;

/// Both directions of a terminal: what is written counts up, and is echoed.
struct Terminal {
    road: Road,
    written: u64,
    read: u64,
    reading: Vec<u64>,
    writing: u64,
    next: u64,
}

impl Terminal {
    fn open() -> Self {
        let mut road = Road::to(SerialGadget::device(UsbSpeed::High), ROUND_TRIP, true);
        road.open();
        let next = enumerate(&mut road) + 1;
        Self { road, written: 0, read: 0, reading: Vec::new(), writing: 0, next }
    }

    fn id(&mut self) -> UrbId {
        self.next += 1;
        UrbId(self.next)
    }

    fn read_on(&mut self) {
        while (self.reading.len() as u64) < READS {
            let id = self.id();
            self.reading.push(id.0);
            self.road.submit(Urb::data_in(id, READ, READ_BYTES));
        }
    }

    fn write_on(&mut self) {
        while self.writing < WRITES {
            let bytes: Vec<u8> = (self.written..).take(WRITE_BYTES).map(byte).collect();
            self.written += bytes.len() as u64;
            self.writing += 1;
            let id = self.id();
            self.road.submit(Urb::data_out(id, WRITE, bytes.into()));
        }
    }

    fn step(&mut self, until: Instant, is_reading: bool) {
        while let Some(done) = self.road.pop() {
            if done.direction == TransferDirection::Out {
                assert_eq!(done.status, UrbStatus::Ok);
                self.writing -= 1;
                continue;
            }
            let at = self.reading.iter().position(|id| *id == done.id.0).expect("it was asked");
            assert!(at == 0 || done.status == UrbStatus::Cancelled, "in order");
            self.reading.remove(at);
            for byte_read in done.payload.into_vec() {
                assert_eq!(byte_read, byte(self.read), "byte {}", self.read);
                self.read += 1;
            }
        }
        self.write_on();
        if is_reading {
            self.read_on();
        }
        self.road.step(Some(until));
    }
}

fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

#[test]
fn serial_line_runs_at_full_rate_in_both_directions() {
    let mut terminal = Terminal::open();
    let span = Duration::from_secs(10);
    let until = terminal.road.now + span;
    while terminal.road.now < until {
        terminal.step(until, true);
    }
    let rate = |bytes: u64| bytes as f64 / span.as_secs_f64();
    let (out, back) = (rate(terminal.written), rate(terminal.read));
    println!("{:.0} bytes/s out, {:.0} back at {ROUND_TRIP:?}; the line has {BYTES_PER_SECOND:.0}", out, back);
    assert!(out >= BYTES_PER_SECOND && back >= BYTES_PER_SECOND, "{out} {back}");
}

#[test]
fn stalled_or_cancelled_reads_lose_no_bytes() {
    let mut terminal = Terminal::open();
    for round in 0..40 {
        let until = terminal.road.now + Duration::from_millis(37 * (round % 9) + 5);
        let is_reading = round % 3 != 2;
        while terminal.road.now < until {
            terminal.step(until, is_reading);
        }
        if round % 4 == 1 {
            terminal.reading.clone().into_iter().for_each(|id| terminal.road.cancel(UrbId(id)));
        }
    }
    println!("{} of {} bytes came back", terminal.read, terminal.written);
    assert!(terminal.read > 500_000 && terminal.written - terminal.read < 2 << 20);
}
