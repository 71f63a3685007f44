//! The rules of receiving ahead, one by one, over a device that the test controls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceDefinition, EpAddr, Instant,
    Payload, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_session::far::{FarLayer, FarLayerConfig, LINGER};

const DATA_IN: EpAddr = EpAddr::from_byte(0x81);

/// The device's open requests, which the test answers.
type SharedUrbQueue = Arc<Mutex<VecDeque<UrbInFlight>>>;

struct ManualDevice {
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    flights: SharedUrbQueue,
}

impl Device for ManualDevice {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        UsbSpeed::High
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        match urb.endpoint.is_control() && urb.direction == TransferDirection::Out {
            true => done.push(urb.accept()),
            false => self.flights.lock().unwrap().push_back(urb),
        }
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        let mut flights = self.flights.lock().unwrap();
        if let Some(at) = flights.iter().position(|urb| urb.id == id) {
            done.push(flights.remove(at).unwrap().fail(UrbStatus::Cancelled));
        }
    }

    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.flights.lock().unwrap().drain(..).for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
    }
}

struct Bench {
    far: FarLayer<ManualDevice>,
    flights: SharedUrbQueue,
    done: CompletionQueue,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        // CDC data at high speed: packets of 512 bytes.
        let definition = DeviceDefinition::new(1, 1).speed(UsbSpeed::High).names("a", "line", "1");
        let descriptors = definition.interface(InterfaceDefinition::new(10, 0, 0).bulk_pair(1)).build();
        let mut selection = ConfigurationSelection::default();
        assert!(selection.select_configuration(&descriptors, 1));
        let flights = SharedUrbQueue::default();
        let far = FarLayer::new(
            ManualDevice { descriptors, selection, flights: Arc::clone(&flights) },
            FarLayerConfig::within(64),
        );
        let done = CompletionQueue::new(BufferPool::new(0));
        Self { far, flights, done, now: Instant::ZERO + Duration::from_secs(1) }
    }

    fn read(&mut self, id: u64, length: u32) {
        self.far.submit(self.now, Urb::data_in(UrbId(id), DATA_IN, length).launch(), &mut self.done);
    }

    fn clear_halt(&mut self, id: u64) {
        let urb = Urb::control(UrbId(id), SetupPacket::clear_halt(DATA_IN), Payload::Empty);
        self.far.submit(self.now, urb.launch(), &mut self.done);
    }

    /// The device answers its oldest request.
    fn answer(&mut self, act: impl FnOnce(UrbInFlight) -> UrbCompletion) {
        let answered = act(self.flights.lock().unwrap().pop_front().expect("it was asked"));
        self.far.act(self.now, &mut self.done, |_, done| done.push(answered));
    }

    fn send(&mut self, bytes: &[u8]) {
        self.answer(|urb| urb.answer(bytes.into()));
    }

    /// What the user got: id, status, bytes.
    fn heard(&mut self) -> Vec<(u64, UrbStatus, Vec<u8>)> {
        std::iter::from_fn(|| self.done.pop()).map(|done| (done.id.0, done.status, done.payload.into_vec())).collect()
    }

    fn in_flight(&self) -> usize {
        self.flights.lock().unwrap().len()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.far.reset(self.now, &mut self.done);
    }
}

#[test]
fn data_without_a_request_is_kept_and_the_queue_is_bounded() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    let ahead = bench.in_flight();
    assert_eq!(ahead, 32, "a line is asked at once, as far as the credit goes");
    for number in 0..ahead as u8 {
        bench.send(&[number]);
    }
    assert_eq!(bench.heard(), [(1, UrbStatus::Ok, vec![0])]);
    assert_eq!(bench.in_flight(), 1, "the queue is full but for the one that was fetched");
    for number in 1..4 {
        bench.read(number, 512);
        assert_eq!(bench.heard(), [(number, UrbStatus::Ok, vec![number as u8])]);
    }
}

#[test]
fn cancelled_request_takes_no_data_and_after_the_last_one_asking_stops() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    bench.far.cancel(bench.now, UrbId(1), &mut bench.done);
    assert_eq!(bench.heard(), [(1, UrbStatus::Cancelled, vec![])]);
    bench.send(b"kept");
    bench.read(2, 512);
    assert_eq!(bench.heard(), [(2, UrbStatus::Ok, b"kept".to_vec())]);
    bench.read(3, 512);
    bench.far.cancel(bench.now, UrbId(3), &mut bench.done);
    bench.send(b"late");
    let at = bench.far.poll_timeout().expect("it is asked no more, some time");
    assert_eq!(at, bench.now + LINGER);
    bench.now = at;
    bench.far.handle_timeout(at, &mut bench.done);
    assert_eq!((bench.in_flight(), bench.far.arrived()), (0, 1));
    bench.heard();
    bench.read(4, 512);
    assert_eq!(bench.heard(), [(4, UrbStatus::Ok, b"late".to_vec())]);
    assert_eq!(bench.in_flight(), 0, "nobody waits");
    bench.read(5, 512);
    assert!(bench.in_flight() > 0);
}

#[test]
fn failure_is_reported_once_behind_earlier_data_and_waiting_requests_continue() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    bench.send(b"one");
    bench.send(b"two");
    bench.answer(|urb| urb.fail(UrbStatus::Stall));
    assert_eq!(bench.heard(), [(1, UrbStatus::Ok, b"one".to_vec())]);
    assert_eq!(bench.in_flight(), 0, "what is behind a failure is withdrawn");
    bench.read(2, 512);
    bench.read(3, 512);
    assert_eq!(bench.heard(), [(2, UrbStatus::Ok, b"two".to_vec()), (3, UrbStatus::Stall, vec![])]);
    assert_eq!(bench.in_flight(), 0, "nobody asks for more");
    bench.read(4, 512);
    assert!(bench.in_flight() > 0);
}

#[test]
fn clear_halt_withdraws_our_requests_first_and_drops_an_undelivered_stall() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    bench.send(b"one");
    bench.send(b"two");
    bench.answer(|urb| urb.fail(UrbStatus::Stall));
    bench.heard();
    bench.clear_halt(2);
    assert_eq!(bench.heard(), [(2, UrbStatus::Ok, vec![])]);
    bench.read(3, 512);
    bench.read(4, 512);
    assert_eq!(bench.heard(), [(3, UrbStatus::Ok, b"two".to_vec())], "data stays, the stall does not");
    assert!(bench.in_flight() > 0);
    bench.clear_halt(5);
    // Our requests were withdrawn first and are submitted again afterwards, because a request waits.
    assert_eq!(bench.heard(), [(5, UrbStatus::Ok, vec![])]);
    assert!(bench.in_flight() > 0);
    bench.send(b"three");
    assert_eq!(bench.heard(), [(4, UrbStatus::Ok, b"three".to_vec())]);
}

#[test]
fn set_halt_drops_data_that_arrived_before_it() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    bench.send(b"one");
    bench.send(b"two");
    bench.heard();
    let setup = SetupPacket { request: 3, ..SetupPacket::clear_halt(DATA_IN) };
    bench.far.submit(bench.now, Urb::control(UrbId(2), setup, Payload::Empty).launch(), &mut bench.done);
    assert_eq!((bench.heard(), bench.in_flight()), (vec![(2, UrbStatus::Ok, vec![])], 0));
    bench.read(3, 512);
    bench.answer(|urb| urb.fail(UrbStatus::Stall));
    assert_eq!(bench.heard(), [(3, UrbStatus::Stall, vec![])]);
}

#[test]
fn changed_request_lengths_give_what_a_device_would_have_sent() {
    let mut bench = Bench::new();
    bench.read(1, 512);
    bench.send(&[1; 512]);
    bench.send(&[2; 512]);
    bench.send(&[3; 10]);
    bench.heard();
    // Longer: the request takes following full transfers, up to the short packet.
    bench.read(2, 2048);
    assert_eq!(bench.heard(), [(2, UrbStatus::Ok, [vec![2; 512], vec![3; 10]].concat())]);
    // Shorter, by whole packets: the rest goes to the next request.
    bench.send(&[4; 512]);
    bench.send(&[5; 100]);
    bench.read(3, 1024);
    assert_eq!(bench.heard(), [(3, UrbStatus::Ok, [vec![4; 512], vec![5; 100]].concat())]);
    while bench.flights.lock().unwrap().front().is_some_and(|urb| urb.length < 1024) {
        bench.send(b"");
    }
    bench.send(&[6; 1000]);
    while bench.far.arrived() > 1 {
        bench.read(9, 1024);
    }
    bench.heard();
    bench.read(4, 512);
    bench.read(5, 100);
    let heard = bench.heard();
    assert_eq!(heard[0], (4, UrbStatus::Ok, vec![6; 512]));
    // Within a packet: the device sends more than the request has room for.
    assert_eq!(heard[1], (5, UrbStatus::Overflow, vec![6; 100]));
    assert_eq!(bench.far.arrived(), 0, "and the rest of that packet is gone");
}

#[test]
fn short_packet_is_an_error_if_the_request_says_so_and_reset_ends_everything() {
    let mut bench = Bench::new();
    let mut urb = Urb::data_in(UrbId(1), DATA_IN, 512);
    urb.flags.short_not_ok = true;
    bench.far.submit(bench.now, urb.launch(), &mut bench.done);
    bench.send(b"short");
    assert_eq!(bench.heard(), [(1, UrbStatus::Short, b"short".to_vec())]);
    bench.send(b"stays");
    bench.send(b"not");
    bench.read(2, 512);
    bench.read(3, 512);
    bench.read(4, 512);
    bench.heard();
    bench.far.reset(bench.now, &mut bench.done);
    assert_eq!(bench.heard(), [(4, UrbStatus::Shutdown, vec![])]);
    assert_eq!((bench.in_flight(), bench.far.arrived()), (0, 0));
}

#[test]
fn control_requests_are_answered_in_order_from_cache_or_device() {
    let mut bench = Bench::new();
    bench.far.begin(bench.now, &mut bench.done);
    let fetched = bench.in_flight();
    assert!(fetched >= 4, "strings and their languages");
    let get = |id, kind, index, language| {
        Urb::control(UrbId(id), SetupPacket::get_descriptor(kind, index, language, 255), Payload::Empty).launch()
    };
    // The first is known, the second joins an open request; the third is known, but must wait for the second.
    bench.far.submit(bench.now, get(1, 1, 0, 0), &mut bench.done);
    bench.far.submit(bench.now, get(2, 3, 0, 0), &mut bench.done);
    bench.far.submit(bench.now, get(3, 1, 0, 0), &mut bench.done);
    assert_eq!(bench.heard().len(), 1);
    assert_eq!(bench.in_flight(), fetched);
    bench.send(&[4, 3, 9, 4]);
    let heard = bench.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0].2, [4, 3, 9, 4]);
    // The device itself answers the third, after everything requested before.
    for _ in 1..fetched {
        bench.answer(|urb| urb.fail(UrbStatus::Stall));
    }
    bench.answer(|urb| urb.answer(vec![18; 18].into()));
    assert_eq!(bench.heard(), [(3, UrbStatus::Ok, vec![18; 18])]);
}

#[test]
fn first_request_of_an_endpoint_waits_for_a_held_control_request_that_changes_it() {
    let mut bench = Bench::new();
    bench.far.begin(bench.now, &mut bench.done);
    let fetched = bench.in_flight();
    let languages = Urb::control(UrbId(1), SetupPacket::get_descriptor(3, 0, 0, 255), Payload::Empty).launch();
    bench.far.submit(bench.now, languages, &mut bench.done);
    bench.clear_halt(2);
    bench.read(3, 512);
    assert_eq!(bench.in_flight(), fetched, "the halt is not cleared yet, for the languages were asked for before");
    bench.send(&[4, 3, 9, 4]);
    assert_eq!(bench.heard(), [(1, UrbStatus::Ok, vec![4, 3, 9, 4]), (2, UrbStatus::Ok, vec![])]);
    for _ in 1..fetched {
        bench.answer(|urb| urb.fail(UrbStatus::Stall));
    }
    assert!(bench.in_flight() > 0, "and now it is asked");
    bench.send(b"first");
    assert_eq!(bench.heard(), [(3, UrbStatus::Ok, b"first".to_vec())]);
}

#[test]
fn disabled_plan_asks_nothing_early() {
    let mut bench = Bench::new();
    let (flights, descriptors) = (SharedUrbQueue::default(), bench.far.descriptors().clone());
    let mut selection = ConfigurationSelection::default();
    selection.select_configuration(&descriptors, 1);
    bench.far.reset(bench.now, &mut bench.done);
    bench.far =
        FarLayer::new(ManualDevice { descriptors, selection, flights: Arc::clone(&flights) }, FarLayerConfig::OFF);
    bench.flights = flights;
    bench.far.begin(bench.now, &mut bench.done);
    assert_eq!(bench.in_flight(), 0);
    bench.read(1, 512);
    assert_eq!(bench.in_flight(), 1);
    bench.send(b"one");
    assert_eq!((bench.heard(), bench.in_flight()), (vec![(1, UrbStatus::Ok, b"one".to_vec())], 0));
}
