//! Hides the distance of a far device (requirements U7, U9).
//!
//! [`FarLayer`] is a layer over any [`Device`] whose answers take time: a device of a session or of a plain connection. It
//! needs no messages of its own: to the exporter it is a user that asks early, within its credit. Everything that holds
//! for requests (each is answered once, in order, across lost links, restarts and handovers) holds for its own
//! requests, too.
//!
//! | file | what it does |
//! |---|---|
//! | [`answers`] | requests descriptors once, all at the same time |
//! | [`receiving`] | receives interrupt and bulk data before the user asks |
//! | [`ways`] | which endpoints are received ahead, and how far |
//! | [`actions`] | what these two ask of the device |

mod actions;
mod answers;
mod receiving;
mod ways;

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, Device, DeviceLayer, EpAddr, Instant, SetupPacket,
    TransferDirection, Urb, UrbId, UrbInFlight, UrbStatus,
};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};
use actions::{FarAction, FarActionQueue, OWN_ID_END, OWN_ID_FIRST, is_own};
use answers::DescriptorCache;
use receiving::{EndpointPrefetch, PrefetchBudget};
use ways::{PrefetchPlan, way_of};

pub use receiving::{LINGER, PROMPT, PrefetchCounts};

/// Below this round trip a device is near: endpoints of unknown behaviour are not received ahead.
const NEAR_MAX: Duration = Duration::from_millis(1);

/// What the layer does about the distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarLayerConfig {
    /// Whether it does anything at all.
    pub is_on: bool,
    /// Most own requests that the device may have at a time.
    pub requests_max: usize,
    /// A device with a shorter round trip is near.
    pub near_max: Duration,
}

impl FarLayerConfig {
    /// A layer that passes every request on as it is.
    pub const OFF: FarLayerConfig = FarLayerConfig { is_on: false, requests_max: 0, near_max: NEAR_MAX };

    /// Does everything useful, with half of the requests that `credit` allows: the rest is for the user.
    pub const fn within(credit: u16) -> FarLayerConfig {
        FarLayerConfig { is_on: true, requests_max: credit as usize / 2, near_max: NEAR_MAX }
    }
}

/// A far device with its distance hidden.
#[derive(Debug)]
pub struct FarLayer<D> {
    device: D,
    plan: FarLayerConfig,
    /// What the device completed. While the device works, this holds the pool of the caller's completions.
    done: CompletionQueue,
    actions: FarActionQueue,
    answers: DescriptorCache,
    receiving: EndpointPrefetch,
    /// Endpoints that are not received ahead while their setting is active.
    passed: Vec<EpAddr>,
    /// Control requests that wait until endpoints are at rest, and those behind them.
    held: VecDeque<UrbInFlight>,
    /// The user's control requests that are with the device.
    controls: Vec<UrbId>,
    has_begun: bool,
}

impl<D: Device> FarLayer<D> {
    /// Wraps `device`, which is open. It asks the device nothing before [`FarLayer::begin`] or the user's first
    /// request.
    pub fn new(device: D, plan: FarLayerConfig) -> Self {
        Self::over(device, plan, FarActionQueue::default())
    }

    fn over(device: D, plan: FarLayerConfig, actions: FarActionQueue) -> Self {
        Self {
            device,
            plan,
            done: CompletionQueue::new(BufferPool::new(0)),
            actions,
            answers: DescriptorCache::default(),
            receiving: EndpointPrefetch::default(),
            passed: Vec::new(),
            held: VecDeque::new(),
            controls: Vec::new(),
            has_begun: false,
        }
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the layer does about the distance.
    pub fn plan(&self) -> FarLayerConfig {
        self.plan
    }

    /// Time of the quickest answer, once there is one.
    pub fn round_trip(&self) -> Option<Duration> {
        self.answers.round_trip()
    }

    /// Transfers that have arrived and were not requested by the user yet.
    pub fn arrived(&self) -> usize {
        self.receiving.arrived()
    }

    /// Counts of what arrived before the user asked for it, in this process.
    pub fn received(&self) -> PrefetchCounts {
        self.receiving.counts()
    }

    /// Requests everything that a new user of the device will want.
    pub fn begin(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.plan.is_on && !std::mem::replace(&mut self.has_begun, true) {
            let (all, speed) = (self.device.descriptors(), self.device.speed());
            self.answers.ask_ahead(now, all, speed, &mut self.actions);
        }
        self.act(now, done, |_, _| ());
    }

    /// Runs `act` with the device and handles what it completed.
    pub fn act<T>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut D, &mut CompletionQueue) -> T,
    ) -> T {
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.done);
        self.work(now, done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        result
    }

    fn budget(&self) -> PrefetchBudget {
        PrefetchBudget { requests: self.plan.requests_max }
    }

    /// Handles completions and actions until there are none left.
    fn work(&mut self, now: Instant, done: &mut CompletionQueue) {
        loop {
            while let Some(answer) = self.done.pop() {
                self.route(now, answer, done);
            }
            match self.actions.pop() {
                Some(FarAction::Ask(urb)) => self.device.submit(now, urb.launch(), &mut self.done),
                Some(FarAction::Withdraw(id)) => self.device.cancel(now, id, &mut self.done),
                Some(FarAction::PassOn(urb)) => self.pass_on(now, urb),
                None if self.release(now) => {}
                None => return,
            }
        }
    }

    fn route(&mut self, now: Instant, answer: farbus_model::UrbCompletion, done: &mut CompletionQueue) {
        let budget = self.budget();
        if is_own(answer.id) {
            let answer = self.answers.handle_done(now, answer, &mut self.actions, done);
            let answer =
                answer.and_then(|answer| self.receiving.handle_done(now, answer, budget, &mut self.actions, done));
            debug_assert!(answer.is_none(), "what nobody asked was answered: {answer:?}");
            return;
        }
        if answer.endpoint.is_control() {
            self.controls.retain(|id| *id != answer.id);
            self.answers.note_passed(&answer);
            self.receiving.unbar(answer.id, budget, &mut self.actions);
        }
        done.push(answer);
    }

    /// Submits the user's control request to the device.
    fn pass_on(&mut self, now: Instant, urb: UrbInFlight) {
        let setup = urb.setup;
        self.controls.push(urb.id);
        self.answers.note_passing(&urb);
        if is_clear_halt(setup) {
            self.receiving.forgive(EpAddr::from_byte(setup.index as u8));
        }
        self.device.submit(now, urb, &mut self.done);
        if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) && self.plan.is_on {
            let all = self.device.descriptors();
            self.answers.ask_reports(now, all, setup.value as u8, &mut self.actions);
        }
    }

    /// Continues with the next held control request if nothing blocks it any more. Returns whether there is more to do.
    fn release(&mut self, now: Instant) -> bool {
        let Some(setup) = self.held.front().map(|urb| urb.setup) else { return false };
        if self.answers.waiting().next().is_some() {
            return false;
        }
        let concerns = concerned(&self.device, setup);
        if !self.receiving.rest(&concerns, &mut self.actions) {
            return !self.actions.is_empty();
        }
        if changes_endpoints(setup) && !is_clear_halt(setup) {
            self.receiving.forget(&concerns, &mut self.done);
            self.passed.retain(|endpoint| !concerns(*endpoint));
        }
        let urb = self.held.pop_front().expect("looked at just now");
        self.pass_on(now, urb);
        true
    }

    fn way_of(&mut self, urb: &Urb) -> Option<PrefetchPlan> {
        let endpoint = urb.endpoint;
        let is_out = !self.plan.is_on || urb.direction == TransferDirection::Out || self.passed.contains(&endpoint);
        if is_out || !urb.iso.is_empty() {
            return None;
        }
        let is_near = self.round_trip().is_some_and(|span| span < self.plan.near_max);
        let way = way_of(self.device.descriptors(), self.device.selection(), self.device.speed(), endpoint)
            .filter(|way| urb.stream == 0 && (way.window_first > 0 || !is_near));
        if way.is_none() {
            self.passed.push(endpoint);
        }
        way
    }

    /// The held control requests that will change this endpoint.
    fn held_before(&self, endpoint: EpAddr) -> Vec<UrbId> {
        let changing = self.held.iter().filter(|urb| changes_endpoints(urb.setup));
        changing.filter(|urb| concerned(&self.device, urb.setup)(endpoint)).map(|urb| urb.id).collect()
    }

    /// Control requests are answered in order, by the cache or by the device.
    fn submit_control(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if !self.plan.is_on {
            return self.device.submit(now, urb, &mut self.done);
        }
        let is_behind = !self.held.is_empty() || self.answers.waiting().next().is_some();
        if !is_behind && self.controls.is_empty() {
            match self.answers.meet(self.device.descriptors(), urb, done) {
                Some(left) => urb = left,
                None => return,
            }
        }
        if is_behind || changes_endpoints(urb.setup) {
            if changes_endpoints(urb.setup) {
                self.receiving.bar(concerned(&self.device, urb.setup), urb.id);
            }
            urb.own_payload();
            self.held.push_back(urb);
        } else {
            self.pass_on(now, urb);
        }
    }
}

/// After its user halts an endpoint, the endpoint delivers nothing until the halt is cleared (`testusb` test 13).
fn is_set_halt(setup: SetupPacket) -> bool {
    setup.is_standard(request::SET_FEATURE, RequestRecipient::Endpoint) && setup.value == request::ENDPOINT_HALT
}

fn is_clear_halt(setup: SetupPacket) -> bool {
    setup.is_standard(request::CLEAR_FEATURE, RequestRecipient::Endpoint) && setup.value == request::ENDPOINT_HALT
}

/// Whether a request changes which endpoints there are, or their halt state.
fn changes_endpoints(setup: SetupPacket) -> bool {
    setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device)
        || setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface)
        || is_clear_halt(setup)
        || is_set_halt(setup)
}

/// The endpoints that a request changes.
fn concerned<D: Device>(device: &D, setup: SetupPacket) -> impl Fn(EpAddr) -> bool + use<D> {
    let mut concerned = [false; 32];
    if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
        concerned = [true; 32];
    } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
        let configuration = device.descriptors().configuration(device.selection().configuration());
        let settings = configuration.into_iter().flat_map(|configuration| &configuration.settings);
        let of_interface = settings.filter(|setting| u16::from(setting.interface) == setup.index);
        of_interface
            .flat_map(|setting| &setting.endpoints)
            .for_each(|endpoint| concerned[endpoint.address.index()] = true);
    } else if is_clear_halt(setup) || is_set_halt(setup) {
        concerned[EpAddr::from_byte(setup.index as u8).index()] = true;
    }
    move |endpoint| concerned[endpoint.index()]
}

impl<D: Device> DeviceLayer for FarLayer<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut D, &mut CompletionQueue) -> R,
    ) -> R {
        self.act(now, done, act)
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        if urb.endpoint.is_control() {
            self.submit_control(now, urb, done);
        } else if self.receiving.has(urb.endpoint) {
            let budget = self.budget();
            self.receiving.submit(now, urb, budget, &mut self.actions, done);
        } else if let Some(way) = self.way_of(&urb) {
            self.receiving.begin(way, self.held_before(urb.endpoint));
            let budget = self.budget();
            self.receiving.submit(now, urb, budget, &mut self.actions, done);
        } else {
            self.device.submit(now, urb, &mut self.done);
        }
        self.work(now, done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            let urb = self.held.remove(at).expect("found just now");
            done.push(urb.fail(UrbStatus::Cancelled));
            let budget = self.budget();
            self.receiving.unbar(id, budget, &mut self.actions);
            self.act(now, done, |_, _| ());
        } else if !self.receiving.cancel(now, id, done) && !self.answers.cancel(id, done) {
            self.act(now, done, |device, done| device.cancel(now, id, done));
        }
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        self.device.reset(now, &mut self.done);
        // The layer's own requests have ended as well; nothing waits for them.
        while let Some(answer) = self.done.pop() {
            if !is_own(answer.id) {
                done.push(answer);
            }
        }
        while self.actions.pop().is_some() {}
        self.answers.handle_reset(done);
        self.receiving.forget(|_| true, done);
        self.held.drain(..).for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
        self.passed.clear();
        self.controls.clear();
        std::mem::swap(&mut self.done.pool, &mut done.pool);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.device.poll_timeout(), self.receiving.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.receiving.handle_timeout(now, &mut self.actions);
        let is_due = self.device.poll_timeout().is_some_and(|at| at <= now);
        self.act(now, done, |device, done| {
            if is_due {
                device.handle_timeout(now, done);
            }
        });
    }

    /// None: [`FarLayer::save`] writes the snapshot.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    fn restore(&mut self, _selection: &ConfigurationSelection, _state: &[u8]) -> bool {
        false
    }
}

impl<D: Device> FarLayer<D> {
    /// All open requests of the user, given those that the device holds: id, direction, length.
    pub fn in_flight_of(
        &self,
        of_device: Vec<(UrbId, TransferDirection, u32)>,
    ) -> Vec<(UrbId, TransferDirection, u32)> {
        let held = self.held.iter().map(|urb| &**urb);
        let here = held.chain(self.receiving.waiting()).chain(self.answers.waiting());
        let here = here.map(|urb| (urb.id, urb.direction, urb.length));
        of_device.into_iter().filter(|(id, ..)| !is_own(*id)).chain(here).collect()
    }

    /// Writes the layer to a snapshot; the caller saves the device.
    pub fn save(&self, to: &mut SnapshotWriter) {
        debug_assert!(self.done.is_empty() && self.actions.is_empty(), "each call sees to what it brought");
        to.flag(self.plan.is_on);
        to.u64(self.actions.next_id());
        to.flag(self.has_begun);
        to.count(self.passed.len());
        self.passed.iter().for_each(|endpoint| to.u8(endpoint.as_byte()));
        to.count(self.controls.len());
        self.controls.iter().for_each(|id| to.u64(id.0));
        to.count(self.held.len());
        self.held.iter().for_each(|urb| to.urb(urb));
        self.answers.save(to);
        self.receiving.save(to);
    }

    /// Restores the layer from a snapshot, over its device, which has `requests` in flight. Whether the plan is on
    /// comes from the snapshot. On an error, returns the device as well.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(
        now: Instant,
        device: D,
        plan: FarLayerConfig,
        requests: Vec<(UrbId, TransferDirection, u32)>,
        from: &mut FieldReader<'_>,
    ) -> Result<Self, (D, ProtocolViolation)> {
        let read =
            from.flag("plan").and_then(|is_on| Ok((is_on, FarLayerSnapshot::read(now, &device, requests, from)?)));
        match read {
            Ok((is_on, parts)) => {
                let FarLayerSnapshot {
                    actions,
                    has_begun,
                    mut answers,
                    asking,
                    mut receiving,
                    waiting,
                    passed,
                    controls,
                    held,
                } = parts;
                answers.launch(asking);
                receiving.launch(waiting);
                let held = held.into_iter().map(Urb::launch).collect();
                let new = Self::over(device, FarLayerConfig { is_on, ..plan }, actions);
                Ok(Self { has_begun, answers, receiving, passed, controls, held, ..new })
            }
            Err(reject) => Err((device, reject)),
        }
    }

    /// Lets go of all requests because another process continues them. Returns the device, which the caller must let go
    /// of in the same way.
    pub fn hand_over(mut self) -> D {
        self.held.drain(..).for_each(|urb| drop(urb.recall()));
        self.answers.hand_over();
        self.receiving.hand_over();
        self.device
    }
}

/// The content of a snapshot before any request is launched: a launched request must be answered.
struct FarLayerSnapshot {
    actions: FarActionQueue,
    has_begun: bool,
    answers: DescriptorCache,
    asking: Vec<(UrbId, Urb)>,
    receiving: EndpointPrefetch,
    waiting: Vec<Urb>,
    passed: Vec<EpAddr>,
    controls: Vec<UrbId>,
    held: Vec<Urb>,
}

impl FarLayerSnapshot {
    fn read<D: Device>(
        now: Instant,
        device: &D,
        requests: Vec<(UrbId, TransferDirection, u32)>,
        from: &mut FieldReader<'_>,
    ) -> Result<Self, ProtocolViolation> {
        let next_id = from.u64("next id")?;
        if !(OWN_ID_FIRST..OWN_ID_END - OWN_ID_FIRST / 2).contains(&next_id) {
            return Err(ProtocolViolation::new("next id", next_id, "our own ids are beyond a user's"));
        }
        let has_begun = from.flag("begun")?;
        let mut passed = Vec::new();
        for _ in 0..from.count("endpoints", 1)? {
            passed.push(EpAddr::from_byte(from.u8("endpoint")? & 0x8f));
        }
        let mut controls = Vec::new();
        for _ in 0..from.count("control requests", 8)? {
            let id = UrbId(from.u64("control request")?);
            if !requests.iter().any(|(of, ..)| *of == id) {
                return Err(ProtocolViolation::new("control request", id.0, "the device has it"));
            }
            controls.push(id);
        }
        let mut held: Vec<Urb> = Vec::new();
        for _ in 0..from.count("requests held", 8)? {
            let urb = from.urb()?;
            let is_whole = urb.direction == TransferDirection::In || urb.payload.len() == urb.length as usize;
            if !urb.endpoint.is_control() || !is_whole {
                return Err(ProtocolViolation::new("held", urb.id.0, "a control request is held whole"));
            }
            held.push(urb);
        }
        let mut ours: Vec<_> = requests.iter().copied().filter(|(id, ..)| is_own(*id)).collect();
        let mut take = |id: UrbId, length: Option<u32>| {
            let is_it = |&(of, direction, bytes): &(UrbId, TransferDirection, u32)| {
                of == id
                    && id.0 < next_id
                    && direction == TransferDirection::In
                    && length.is_none_or(|length| length == bytes)
            };
            ours.iter().position(is_it).map(|at| ours.swap_remove(at)).is_some()
        };
        let (answers, asking) = DescriptorCache::restore(now, from, |id| take(id, None))?;
        let way = |endpoint| way_of(device.descriptors(), device.selection(), device.speed(), endpoint);
        let bars = |id| controls.contains(&id) || held.iter().any(|urb| urb.id == id);
        let (receiving, waiting) =
            EndpointPrefetch::restore(now, from, way, bars, |id, length| take(id, Some(length)))?;
        if let Some(&(id, ..)) = ours.first() {
            return Err(ProtocolViolation::new("request", id.0, "what we asked is waited for"));
        }
        let actions = FarActionQueue::going_on_at(next_id);
        Ok(Self { actions, has_begun, answers, asking, receiving, waiting, passed, controls, held })
    }
}
