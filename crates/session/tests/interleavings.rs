//! Every possible order of the events in a small world, each played from its beginning. After each event the client may
//! also disconnect.
//!
//! A world has two or three requests on one or two endpoints, each submitted and unlinked up to twice. Its device
//! completes when it is told to and cancels at once or late; its link takes the replies or does not; there is a port
//! reset. The checker (`peer/checker.rs`) states what must hold in each order: every submit and every unlink is
//! answered exactly once, never both ways, in the order of each endpoint, and never too early. The device must come
//! back with nothing in flight.

mod world;

use farbus_model::{Device, EpAddr, SessionLimits};
use world::peer::{self, Submit, setup};
use world::{Loopback, Manners, Relay, Scripted};

/// One waiting reply holds back all further requests, so that the state of the link becomes an event.
const LIMITS: SessionLimits = SessionLimits { receive_bytes: 512, reply_bytes_backlog: 1, ..SessionLimits::DEFAULT };

/// What may happen next, in any order; a path is a sequence of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The client submits request n.
    Submit(usize),
    /// The client unlinks request n, for the first or second time.
    Unlink(usize, u32),
    /// The device completes the first request of an endpoint.
    Complete(EpAddr),
    /// The device completes the request that was cancelled first.
    LetGo,
    /// The client's kernel reads the descriptor as it does after a port reset.
    ResetSign,
    /// The client reads everything that waits.
    Read,
    /// Bytes cross a relay's link, towards the device.
    CarryThere,
    /// Bytes cross it in the other direction.
    CarryBack,
}

/// A world: its possible events, and how they are played.
trait World {
    /// All events that are possible now and change something.
    fn events(&self) -> Vec<Event>;
    /// Plays an event. `false`: it changed nothing, so this order need not be explored.
    fn play(&mut self, event: Event) -> bool;
    /// The client disconnects; checks what must hold then.
    fn disconnect(self);
    /// Plays everything to the end without new requests; checks what must hold then.
    fn settle(self);
}

/// Number of orders explored.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// Orders played to their end.
    whole: u64,
    /// Orders that ended with a disconnect.
    broken_off: u64,
}

/// Plays every order of events in the world that `begin` makes, up to `events_max` events.
fn every_order<W: World>(name: &str, events_max: usize, begin: impl Fn() -> W) -> u64 {
    let mut tried = Tried::default();
    let mut path = Vec::new();
    explore(&mut path, events_max, &begin, &mut tried);
    println!("{name}: {} orders to their end, {} broken off", tried.whole, tried.broken_off);
    tried.whole + tried.broken_off
}

/// Plays `path` and everything that can follow; `false` if its last event changes nothing.
fn explore<W: World>(path: &mut Vec<Event>, events_max: usize, begin: &impl Fn() -> W, tried: &mut Tried) -> bool {
    let (world, has_changed) = replay(path, begin);
    let events = if has_changed && path.len() < events_max { world.events() } else { Vec::new() };
    with_path_printed(path, || world.disconnect());
    if !has_changed {
        return false;
    }
    tried.broken_off += 1;
    let mut is_end = true;
    for event in events {
        path.push(event);
        is_end &= !explore(path, events_max, begin, tried);
        path.pop();
    }
    if is_end {
        let (world, _) = replay(path, begin);
        with_path_printed(path, || world.settle());
        tried.whole += 1;
    }
    true
}

/// A world after these events, and whether the last one changed anything.
fn replay<W: World>(path: &[Event], begin: &impl Fn() -> W) -> (W, bool) {
    with_path_printed(path, || {
        let mut world = begin();
        let mut has_changed = true;
        for &event in path {
            has_changed = world.play(event);
        }
        (world, has_changed)
    })
}

/// Prints the order of events if an assertion fails in it.
fn with_path_printed<T>(path: &[Event], act: impl FnOnce() -> T) -> T {
    let printer = PathPrinter(path);
    let result = act();
    std::mem::forget(printer);
    result
}

struct PathPrinter<'a>(&'a [Event]);

impl Drop for PathPrinter<'_> {
    fn drop(&mut self) {
        eprintln!("in this order: {:?}", self.0);
    }
}

/// The requests of a world. Request n has sequence number `10 * (n + 1)`; its unlinks follow.
struct Plan {
    submits: Vec<Submit>,
    unlinks_each: u32,
    reset_sign: bool,
    /// Whether the next request may be unlinked before it is submitted, as Linux's vhci sometimes does.
    overtakes: bool,
}

impl Plan {
    fn seqnum(n: usize) -> u32 {
        10 * (n as u32 + 1)
    }

    fn endpoints(&self) -> Vec<EpAddr> {
        let mut all: Vec<EpAddr> = self.submits.iter().map(endpoint).collect();
        all.dedup();
        all
    }
}

fn endpoint(submit: &Submit) -> EpAddr {
    EpAddr::from_byte(submit.ep as u8 | (submit.direction as u8) << 7)
}

fn data_in(n: usize, ep: u32) -> Submit {
    Submit::data_in(Plan::seqnum(n), ep, 8)
}

fn data_out(n: usize, ep: u32) -> Submit {
    Submit::data_out(Plan::seqnum(n), ep, &[n as u8; 8])
}

const RESET_SIGN: u32 = 1000;

/// What the client has requested so far.
#[derive(Default)]
struct ClientProgress {
    submits: usize,
    /// Number of unlinks of each request.
    unlinks: Vec<u32>,
    reset_sign: bool,
}

impl ClientProgress {
    fn new(plan: &Plan) -> Self {
        Self { unlinks: vec![0; plan.submits.len()], ..Self::default() }
    }

    /// The client's possible events. Requests are submitted in order, because other orders are equivalent.
    fn events(&self, plan: &Plan) -> Vec<Event> {
        let mut events = Vec::new();
        if self.submits < plan.submits.len() {
            events.push(Event::Submit(self.submits));
        }
        let known = plan.submits.len().min(self.submits + usize::from(plan.overtakes));
        let may_unlink = (0..known).filter(|&n| self.unlinks[n] < plan.unlinks_each);
        events.extend(may_unlink.map(|n| Event::Unlink(n, self.unlinks[n])));
        if plan.reset_sign && !self.reset_sign {
            events.push(Event::ResetSign);
        }
        events
    }

    /// Submits the requests that were unlinked before: they are certain to come.
    fn submit_overtaken<D: Device + 'static>(&mut self, plan: &Plan, loopback: &mut Loopback<D>) {
        while self.submits < plan.submits.len() && self.unlinks[self.submits] > 0 {
            self.play(Event::Submit(self.submits), plan, loopback);
        }
    }

    /// Plays an event of the client; `false` if it is not the client's.
    fn play<D: Device + 'static>(&mut self, event: Event, plan: &Plan, loopback: &mut Loopback<D>) -> bool {
        match event {
            Event::Submit(n) => {
                loopback.submit(&plan.submits[n]);
                self.submits += 1;
            }
            Event::Unlink(n, time) => {
                loopback.unlink(Plan::seqnum(n) + 1 + time, Plan::seqnum(n));
                self.unlinks[n] += 1;
            }
            Event::ResetSign => {
                loopback.submit(&Submit::control(RESET_SIGN, setup::GET_DEVICE_8));
                self.reset_sign = true;
            }
            _ => return false,
        }
        true
    }
}

/// A client connected directly to an exporter.
struct FaceToFace<'a> {
    plan: &'a Plan,
    loopback: Loopback<Scripted>,
    client: ClientProgress,
}

impl<'a> FaceToFace<'a> {
    fn new(plan: &'a Plan, manners: Manners) -> Self {
        let mut loopback = Loopback::imported(Scripted::new(manners), LIMITS);
        loopback.submit(&Submit::control(u32::MAX, setup::set_configuration(1)));
        loopback.device(|device, done| device.complete(EpAddr::CONTROL, done));
        loopback.read();
        Self { plan, loopback, client: ClientProgress::new(plan) }
    }
}

impl World for FaceToFace<'_> {
    fn events(&self) -> Vec<Event> {
        let mut events = self.client.events(self.plan);
        events.extend(self.plan.endpoints().into_iter().map(Event::Complete));
        events.extend([Event::Complete(EpAddr::CONTROL), Event::LetGo, Event::Read]);
        events
    }

    fn play(&mut self, event: Event) -> bool {
        match event {
            Event::Complete(endpoint) => self.loopback.device(|device, done| device.complete(endpoint, done)),
            Event::LetGo => self.loopback.device(|device, done| device.let_go(done)),
            Event::Read => !self.loopback.read().is_empty(),
            event => self.client.play(event, self.plan, &mut self.loopback),
        }
    }

    fn disconnect(self) {
        let (device, _) = self.loopback.end();
        assert_eq!((device.holds(), device.given), (0, device.taken), "the device comes back with nothing in flight");
        assert_eq!(device.selection().configuration(), 0, "ready for the next client");
    }

    fn settle(mut self) {
        self.client.submit_overtaken(self.plan, &mut self.loopback);
        settle(&mut self.loopback);
        self.loopback.checker.assert_settled();
        self.disconnect();
    }
}

/// Cancelled requests complete first, then all others.
fn settle(loopback: &mut Loopback<Scripted>) {
    loop {
        let moved = !loopback.read().is_empty()
            | loopback.device(|device, done| device.let_go(done))
            | loopback.device(complete_any);
        if !moved {
            return;
        }
    }
}

fn complete_any(device: &mut Scripted, done: &mut farbus_model::CompletionQueue) -> bool {
    let all = [0, 0x81, 0x01, 0x82, 0x02, 0x83, 0x03].map(EpAddr::from_byte);
    all.into_iter().any(|endpoint| device.complete(endpoint, done))
}

/// A kernel, an exporter that passes requests on, a link, and the exporter that has the device.
struct Relayed<'a> {
    plan: &'a Plan,
    relay: Relay,
    client: ClientProgress,
}

impl<'a> Relayed<'a> {
    fn new(plan: &'a Plan, manners: Manners) -> Self {
        Self { plan, relay: Relay::new(manners, LIMITS), client: ClientProgress::new(plan) }
    }
}

impl World for Relayed<'_> {
    fn events(&self) -> Vec<Event> {
        let mut events = self.client.events(self.plan);
        events.extend(self.plan.endpoints().into_iter().map(Event::Complete));
        events.extend([Event::LetGo, Event::CarryThere, Event::CarryBack]);
        events
    }

    fn play(&mut self, event: Event) -> bool {
        let changed = match event {
            Event::Complete(endpoint) => self.relay.far.device(|device, done| device.complete(endpoint, done)),
            Event::LetGo => self.relay.far.device(|device, done| device.let_go(done)),
            Event::CarryThere => self.relay.carry_there(usize::MAX),
            Event::CarryBack => self.relay.carry_back(usize::MAX),
            event => self.client.play(event, self.plan, &mut self.relay.near),
        };
        // The kernel always reads.
        self.relay.near.read();
        changed
    }

    fn disconnect(self) {
        let (remote, device, _) = self.relay.end();
        assert_eq!(remote.in_flight(), 0, "the remote device comes back with nothing in flight");
        assert_eq!((device.holds(), device.given), (0, device.taken));
    }

    fn settle(mut self) {
        self.client.submit_overtaken(self.plan, &mut self.relay.near);
        loop {
            self.relay.settle();
            let far = &mut self.relay.far;
            if !far.device(|device, done| device.let_go(done)) && !far.device(complete_any) {
                break;
            }
        }
        self.relay.near.checker.assert_settled();
        assert_eq!(self.relay.far.device(|device, _| device.holds()), 0, "nothing is left over there either");
        self.disconnect();
    }
}

const AT_ONCE: Manners = Manners { cancels_late: false, answers_control_late: false };
const LATE: Manners = Manners { cancels_late: true, answers_control_late: false };
const ALL_LATE: Manners = Manners { cancels_late: true, answers_control_late: true };

#[test]
fn two_requests_each_unlinked_twice_are_answered_once_in_every_order() {
    let one_endpoint =
        Plan { submits: vec![data_in(0, 1), data_in(1, 1)], unlinks_each: 2, reset_sign: false, overtakes: false };
    let two_endpoints =
        Plan { submits: vec![data_in(0, 1), data_out(1, 1)], unlinks_each: 1, reset_sign: false, overtakes: false };
    let mut tried = 0;
    for (name, manners) in [("at once", AT_ONCE), ("late", LATE)] {
        tried += every_order(&format!("one endpoint, {name}"), 8, || FaceToFace::new(&one_endpoint, manners));
        tried += every_order(&format!("two endpoints, {name}"), 9, || FaceToFace::new(&two_endpoints, manners));
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn three_requests_on_two_endpoints_are_answered_once_in_every_order() {
    let plan = Plan {
        submits: vec![data_in(0, 1), data_in(1, 1), data_out(2, 2)],
        unlinks_each: 1,
        reset_sign: false,
        overtakes: false,
    };
    let mut tried = 0;
    for (name, manners) in [("at once", AT_ONCE), ("late", LATE)] {
        tried += every_order(&format!("three requests, {name}"), 8, || FaceToFace::new(&plan, manners));
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn port_reset_at_any_moment_leaves_every_request_answered_once() {
    let plan =
        Plan { submits: vec![data_in(0, 1), data_out(1, 2)], unlinks_each: 1, reset_sign: true, overtakes: false };
    let mut tried = 0;
    for (name, manners) in [("at once", AT_ONCE), ("late", LATE), ("control late too", ALL_LATE)] {
        tried += every_order(&format!("a reset, {name}"), 8, || FaceToFace::new(&plan, manners));
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn unlink_that_overtakes_its_submit_is_answered_once() {
    let submits = vec![data_in(0, 1), data_in(1, 1), data_out(2, 2)];
    let plan = Plan { submits, unlinks_each: 1, reset_sign: false, overtakes: true };
    let mut tried = 0;
    for (name, manners) in [("at once", AT_ONCE), ("late", LATE)] {
        tried += every_order(&format!("overtaking, {name}"), 7, || FaceToFace::new(&plan, manners));
        tried += every_order(&format!("overtaking, relayed, {name}"), 6, || Relayed::new(&plan, manners));
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn isochronous_requests_are_answered_once_in_every_order() {
    let iso = |n: usize| Submit::iso_in(Plan::seqnum(n), 3, &[8, 0, 8]);
    let plan = Plan { submits: vec![iso(0), iso(1)], unlinks_each: 1, reset_sign: true, overtakes: false };
    let tried = every_order("isochronous", 7, || FaceToFace::new(&plan, LATE));
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn relayed_requests_are_answered_once_in_every_order() {
    let one = Plan { submits: vec![data_in(0, 1)], unlinks_each: 2, reset_sign: true, overtakes: false };
    let two =
        Plan { submits: vec![data_in(0, 1), data_out(1, 2)], unlinks_each: 1, reset_sign: false, overtakes: false };
    let mut tried = 0;
    for (name, manners) in [("at once", AT_ONCE), ("late", LATE)] {
        tried += every_order(&format!("relayed, a reset, {name}"), 9, || Relayed::new(&one, manners));
        tried += every_order(&format!("relayed, two, {name}"), 8, || Relayed::new(&two, manners));
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn checker_detects_a_duplicate_answer() {
    // A checker that never fails would prove nothing.
    let mut checker = peer::Checker::default();
    checker.requested(&data_in(0, 1), false);
    let answer = peer::RetSubmit::data_in(Plan::seqnum(0), &[1; 8]).bytes();
    checker.read(&answer);
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| checker.read(&answer)));
    assert!(again.is_err());
}
