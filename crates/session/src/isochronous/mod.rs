//! Isochronous streams over a long path: a far device looks near to its driver (U8, N14).
//!
//! A layer over any [`Device`], on the importer. The exporter needs to know nothing of it: the layer's own requests are
//! with the device ahead of time, and the driver's requests are answered at moments of a local clock.
//!
//! | file | what it holds |
//! |---|---|
//! | `pace` | the local clock: when a packet is due, slewed by how early packets arrive |
//! | `inward` | a camera or microphone: requested ahead, kept until due, missed if late |
//! | `outward` | a speaker: the driver is answered at the device's pace, behind a lead-in of our own packets |
//! | `reach` | how far the device is; a near one is left alone |
//! | `frames`, `orders` | frame numbers; requests to the device, and counts |
//! | `saved` | parts of the snapshot, with their limits |
//!
//! How a stream ends or is interrupted:
//!
//! | what happens | the driver's requests | ours |
//! |---|---|---|
//! | its last request is cancelled | end as cancelled | IN: withdrawn; OUT: played to the end |
//! | SET_INTERFACE, SET_CONFIGURATION | the control request waits until everything sent is played; then they end with the device's status | end with it |
//! | a reset, or the device is gone | end with that status | end with that status |
//! | a request of ours fails as a whole | all end with that status | withdrawn |
//! | the link is lost | continue at their pace: IN missed, OUT dropped once 100 ms more are unplayed | wait for the link |
//! | a handover | continue in the replacement | continue there, with the packets that have arrived |

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, Device, DeviceLayer, EpAddr, Instant, TransferDirection,
    TransferType, Urb, UrbCompletion, UrbId, UrbInFlight, UrbStatus,
};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

mod frames;
mod inward;
mod orders;
mod outward;
mod pace;
mod reach;
mod saved;

use frames::IsoFramePosition;
use inward::InwardStream;
pub use orders::IsoPacketCounts;
use orders::{IsoAction, IsoActionQueue, is_own};
use outward::{LeadIn, OutwardStream};
use pace::DEPTH_MAX;
use reach::RoundTripHistory;

/// Smallest initial depth of a stream's buffer. As long as the jitter is not known, the depth is a quarter of the round
/// trip, within this and [`FIRST_DEPTH_MAX`].
const FIRST_DEPTH_MIN: Duration = Duration::from_millis(5);
/// Largest initial depth of a stream's buffer; see [`FIRST_DEPTH_MIN`].
const FIRST_DEPTH_MAX: Duration = Duration::from_millis(60);
/// When a driver ends a stream, how long its control request waits at most until everything sent is played.
const PLAY_OUT_MAX: Duration = Duration::from_secs(1);
/// `bInterfaceClass` of audio (Audio 1.0 §A.1).
const CLASS_AUDIO: u8 = 1;

/// A layer that carries the isochronous streams of a far device.
pub struct IsochronousLayer<D> {
    device: D,
    is_on: bool,
    /// Completions of the device that the layer has not handled yet. While the device works, this holds the caller's
    /// pool.
    below: CompletionQueue,
    orders: IsoActionQueue,
    /// Number of our requests in flight.
    own: usize,
    reach: RoundTripHistory,
    /// When each open control transfer was submitted.
    control_asked_at: BTreeMap<UrbId, Instant>,
    streams: BTreeMap<u8, IsochronousStream>,
    /// Bit n: the endpoint of index n is passed through unchanged until an interface changes.
    near: u32,
    /// The buffer depth that past streams needed, inward and outward.
    depths: [Option<Duration>; 2],
    /// Control transfers that wait until a stream has been played, and until when they wait.
    held: VecDeque<UrbInFlight>,
    held_until: Option<Instant>,
    /// Counts of streams that have ended.
    counts: IsoPacketCounts,
}

#[derive(Debug)]
enum IsochronousStream {
    In(InwardStream),
    Out(OutwardStream),
}

impl<D: Device> IsochronousLayer<D> {
    /// Wraps `device`; does nothing unless `is_on`.
    pub fn new(device: D, is_on: bool) -> Self {
        Self {
            device,
            is_on,
            below: CompletionQueue::new(BufferPool::new(0)),
            orders: IsoActionQueue::default(),
            own: 0,
            reach: RoundTripHistory::default(),
            control_asked_at: BTreeMap::new(),
            streams: BTreeMap::new(),
            near: 0,
            depths: [None; 2],
            held: VecDeque::new(),
            held_until: None,
            counts: IsoPacketCounts::default(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.device
    }

    /// The device below.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Takes the device out of the layer; nothing more is asked of it.
    pub fn into_inner(self) -> D {
        self.device
    }

    /// Counts of all streams so far.
    pub fn counts(&self) -> IsoPacketCounts {
        self.streams.values().fold(self.counts, |sum, stream| sum.and(stream.counts()))
    }

    /// Whether the layer has nothing to do: completions go straight to the caller.
    fn is_idle(&self) -> bool {
        self.own == 0 && self.streams.is_empty() && self.control_asked_at.is_empty() && self.held.is_empty()
    }

    /// By how much the clock of a running stream was slewed to keep its buffer at its depth, in nanoseconds, positive
    /// for later: the drift of the device's clock against ours, plus the buffer's growth. `None`: no stream is running.
    pub fn drift_ns(&self) -> Option<i64> {
        self.streams.values().find_map(IsochronousStream::drift_ns)
    }

    /// Runs `act` with the device and handles what it completed.
    pub fn act<T>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut D, &mut CompletionQueue) -> T,
    ) -> T {
        if self.is_idle() {
            return act(&mut self.device, done);
        }
        std::mem::swap(&mut self.below.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.below);
        std::mem::swap(&mut self.below.pool, &mut done.pool);
        self.look(now, done);
        result
    }

    /// Handles completions and orders until there are none left.
    fn look(&mut self, now: Instant, done: &mut CompletionQueue) {
        loop {
            while let Some(finished) = self.below.pop() {
                self.handle_done(now, finished, done);
            }
            self.sweep(now);
            self.let_go(now);
            let Some(order) = self.orders.next() else { break };
            std::mem::swap(&mut self.below.pool, &mut done.pool);
            match order {
                IsoAction::Ask(urb) => {
                    self.own += 1;
                    self.device.submit(now, urb.launch(), &mut self.below);
                }
                IsoAction::Withdraw(id) => self.device.cancel(now, id, &mut self.below),
            }
            std::mem::swap(&mut self.below.pool, &mut done.pool);
        }
    }

    fn handle_done(&mut self, now: Instant, finished: UrbCompletion, done: &mut CompletionQueue) {
        if !is_own(finished.id) {
            if let Some(asked_at) = self.control_asked_at.remove(&finished.id)
                && matches!(finished.status, UrbStatus::Ok | UrbStatus::Stall)
            {
                self.reach.note((now - asked_at).saturating_sub(finished.residence.unwrap_or_default()));
            }
            return done.push(finished);
        }
        self.own = self.own.saturating_sub(1);
        let endpoint = finished.endpoint.as_byte();
        let Some(stream) = self.streams.get_mut(&endpoint) else { return };
        let result = match stream {
            IsochronousStream::In(inward) => {
                let result = inward.handle_done(now, finished, &mut self.reach);
                inward.ask_ahead(now, &self.reach, &mut self.orders);
                result
            }
            IsochronousStream::Out(outward) => outward.handle_done(now, &finished, &mut self.reach, &mut self.orders),
        };
        if let Err(status) = result {
            self.end(endpoint, status, done);
        }
    }

    /// Ends the stream of this endpoint and all the driver's requests on it.
    fn end(&mut self, endpoint: u8, status: UrbStatus, done: &mut CompletionQueue) {
        let Some(mut stream) = self.streams.remove(&endpoint) else { return };
        stream.take_waiting().into_iter().for_each(|urb| done.push(urb.fail(status)));
        stream.stop(&mut self.orders);
        self.note_end(&stream);
    }

    fn note_end(&mut self, stream: &IsochronousStream) {
        self.counts = self.counts.and(stream.counts());
        let (index, depth) = match stream {
            IsochronousStream::In(inward) => (0, inward.depth()),
            IsochronousStream::Out(outward) => (1, outward.depth()),
        };
        self.depths[index] = depth.or(self.depths[index]);
    }

    /// Removes streams that are over.
    fn sweep(&mut self, now: Instant) {
        let is_over = |stream: &IsochronousStream| match stream {
            IsochronousStream::In(inward) => inward.is_over(now),
            IsochronousStream::Out(outward) => outward.is_over(now),
        };
        let over: Vec<u8> = self.streams.iter().filter(|(_, stream)| is_over(stream)).map(|(&at, _)| at).collect();
        for endpoint in over {
            let mut stream = self.streams.remove(&endpoint).expect("found just now");
            stream.stop(&mut self.orders);
            self.note_end(&stream);
        }
    }

    /// The initial buffer depth of a stream.
    fn depth(&self, direction: TransferDirection) -> Duration {
        let known = self.depths[usize::from(direction == TransferDirection::Out)];
        let first = (self.reach.nearest() / 4).clamp(FIRST_DEPTH_MIN, FIRST_DEPTH_MAX);
        known.unwrap_or(first).clamp(FIRST_DEPTH_MIN, DEPTH_MAX)
    }

    /// Handles an isochronous request of the driver.
    fn stream(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        let address = urb.endpoint;
        let known = self.device.selection().endpoint(address).copied();
        if !self.streams.contains_key(&address.as_byte()) {
            let is_far = self.is_on && self.reach.is_far() && self.near & 1 << address.index() == 0;
            let Some(endpoint) = known.filter(|_| is_far) else {
                self.near |= 1 << address.index();
                return self.act(now, done, |device, done| device.submit(now, urb, done));
            };
            let interval = endpoint.service_interval(self.device.speed());
            let frames = IsoFramePosition::new(now, self.device.speed(), interval);
            let depth = self.depth(urb.direction);
            let stream = match urb.direction {
                TransferDirection::In => IsochronousStream::In(InwardStream::new(&urb, interval, frames, depth)),
                TransferDirection::Out => {
                    let lead_in = if self.class_of(address) == CLASS_AUDIO { LeadIn::Zeros } else { LeadIn::Nothing };
                    IsochronousStream::Out(OutwardStream::new(now, &urb, interval, frames, lead_in, depth))
                }
            };
            self.streams.insert(address.as_byte(), stream);
        }
        match self.streams.get_mut(&address.as_byte()).expect("put there just now") {
            IsochronousStream::In(inward) => {
                inward.submit(now, urb);
                inward.ask_ahead(now, &self.reach, &mut self.orders);
            }
            IsochronousStream::Out(outward) => outward.submit(now, urb, &self.reach, &mut self.orders),
        }
        self.look(now, done);
    }

    /// `bInterfaceClass` of an endpoint's interface; 0 if there is none.
    fn class_of(&self, endpoint: EpAddr) -> u8 {
        let selection = self.device.selection();
        let active = self.device.descriptors().configuration(selection.configuration());
        let settings = active.into_iter().flat_map(|configuration| &configuration.settings);
        let mut ours = settings.filter(|setting| setting.alternate == selection.alternate(setting.interface));
        let setting = ours.find(|setting| setting.endpoints.iter().any(|other| other.address == endpoint));
        setting.map_or(0, |setting| setting.class[0])
    }

    /// Handles a control transfer: one that ends streams waits until they have been played.
    fn control(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        let ends_streams = urb.setup.kind() == RequestKind::Standard
            && matches!(
                (urb.setup.recipient(), urb.setup.request),
                (RequestRecipient::Device, request::SET_CONFIGURATION)
                    | (RequestRecipient::Interface, request::SET_INTERFACE)
            );
        if !self.held.is_empty() || (ends_streams && self.is_playing()) {
            urb.own_payload();
            self.held.push_back(urb);
            self.held_until.get_or_insert(now + PLAY_OUT_MAX);
            return;
        }
        self.pass_control(now, urb, ends_streams);
        self.look(now, done);
    }

    fn pass_control(&mut self, now: Instant, urb: UrbInFlight, ends_streams: bool) {
        if ends_streams {
            self.near = 0;
        }
        self.control_asked_at.insert(urb.id, now);
        self.device.submit(now, urb, &mut self.below);
    }

    /// Whether the device still plays a stream whose driver sends no more.
    fn is_playing(&self) -> bool {
        self.streams.values().any(|stream| match stream {
            IsochronousStream::In(_) => false,
            IsochronousStream::Out(outward) => outward.is_empty() && outward.is_playing(),
        })
    }

    /// Continues the held control transfers once everything has been played.
    fn let_go(&mut self, now: Instant) {
        if self.held.is_empty() || (self.is_playing() && self.held_until.is_some_and(|until| now < until)) {
            return;
        }
        self.held_until = None;
        while let Some(urb) = self.held.pop_front() {
            // Each of them may end a stream, so none of them waits again.
            self.pass_control(now, urb, true);
        }
    }

    /// Ends all streams and held requests with this status.
    fn end_all(&mut self, status: UrbStatus, done: &mut CompletionQueue) {
        let all: Vec<u8> = self.streams.keys().copied().collect();
        all.into_iter().for_each(|endpoint| self.end(endpoint, status, done));
        self.held.drain(..).for_each(|urb| done.push(urb.fail(status)));
        self.held_until = None;
        self.near = 0;
    }

    /// Does what is due now.
    fn keep_pace(&mut self, now: Instant, done: &mut CompletionQueue) {
        for stream in self.streams.values_mut() {
            match stream {
                IsochronousStream::In(inward) => inward.hand_over(now, done),
                IsochronousStream::Out(outward) => outward.answer(now, done),
            }
        }
        self.look(now, done);
    }
}

/// Snapshots. The caller saves the device first.
impl<D: Device> IsochronousLayer<D> {
    /// All open requests of the user, given those that the device has.
    pub fn in_flight_of(
        &self,
        of_device: Vec<(UrbId, TransferDirection, u32)>,
    ) -> Vec<(UrbId, TransferDirection, u32)> {
        let mut all: Vec<_> = of_device.into_iter().filter(|(id, ..)| !is_own(*id)).collect();
        let of = |urb: &UrbInFlight| (urb.id, urb.direction, urb.length);
        self.streams.values().for_each(|stream| match stream {
            IsochronousStream::In(inward) => all.extend(inward.waiting().map(of)),
            IsochronousStream::Out(outward) => all.extend(outward.waiting().map(of)),
        });
        all.extend(self.held.iter().map(of));
        all
    }

    /// Writes the layer to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.flag(self.is_on);
        to.u64(self.orders.named());
        self.reach.save(to);
        to.u32(self.near);
        to.count(self.own);
        to.count(self.held.len());
        self.held.iter().for_each(|urb| to.urb(urb));
        to.count(self.streams.len());
        for (&endpoint, stream) in &self.streams {
            to.u8(endpoint);
            match stream {
                IsochronousStream::In(inward) => inward.save(to),
                IsochronousStream::Out(outward) => outward.save(to),
            }
        }
    }

    /// Restores the layer from a snapshot, over a device in the same state. On an error, returns the device as well.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(now: Instant, device: D, from: &mut FieldReader<'_>) -> Result<Self, (D, ProtocolViolation)> {
        let mut restored = Self::new(device, false);
        match restored.read(now, from) {
            // Nothing is launched before the whole snapshot is known to be valid: a launched request must be answered.
            Ok((held, waiting)) => {
                restored.held = held.into_iter().map(Urb::launch).collect();
                restored.held_until = (!restored.held.is_empty()).then(|| now + PLAY_OUT_MAX);
                for (endpoint, urbs) in waiting {
                    match restored.streams.get_mut(&endpoint) {
                        Some(IsochronousStream::In(inward)) => inward.take_up(urbs),
                        Some(IsochronousStream::Out(outward)) => outward.take_up(urbs),
                        None => unreachable!("each was read with its stream"),
                    }
                }
                Ok(restored)
            }
            Err(reject) => Err((restored.device, reject)),
        }
    }

    fn read(
        &mut self,
        now: Instant,
        from: &mut FieldReader<'_>,
    ) -> Result<(Vec<Urb>, DriverRequests), ProtocolViolation> {
        self.is_on = from.flag("streams")?;
        self.orders.name_after(from.u64("names")?);
        self.reach = RoundTripHistory::restore(from)?;
        self.near = from.u32("near endpoints")?;
        self.own = from.u32("requests of ours")? as usize;
        let mut held = Vec::new();
        for _ in 0..from.count("requests held", 8)? {
            let urb = from.urb()?;
            if !urb.endpoint.is_control() || is_own(urb.id) {
                return Err(ProtocolViolation::new("request held", urb.id.0, "control transfers wait, and no others"));
            }
            held.push(urb);
        }
        let mut waiting = Vec::new();
        for _ in 0..from.count("streams", 8)? {
            let address = EpAddr::from_byte(from.u8("endpoint")?);
            let known = self.device.selection().endpoint(address).copied();
            let is_first = !self.streams.contains_key(&address.as_byte());
            let known = known.filter(|endpoint| endpoint.kind == TransferType::Isochronous && is_first);
            let wrong =
                || ProtocolViolation::new("endpoint", address.as_byte().into(), "an isochronous one has one stream");
            let endpoint = known.ok_or_else(wrong)?;
            let interval = endpoint.service_interval(self.device.speed());
            let frames = IsoFramePosition::new(now, self.device.speed(), interval);
            let (stream, urbs) = match address.direction() {
                TransferDirection::In => {
                    let (inward, urbs) = InwardStream::restore(now, &endpoint, interval, frames, from)?;
                    (IsochronousStream::In(inward), urbs)
                }
                TransferDirection::Out => {
                    let (outward, urbs) = OutwardStream::restore(now, &endpoint, interval, frames, from)?;
                    (IsochronousStream::Out(outward), urbs)
                }
            };
            self.streams.insert(address.as_byte(), stream);
            waiting.push((address.as_byte(), urbs));
        }
        Ok((held, waiting))
    }

    /// Lets go of all requests because another process continues them. Returns the device, which its owner lets go of.
    pub fn hand_over(mut self) -> D {
        let streams = std::mem::take(&mut self.streams);
        let waiting = streams.into_values().flat_map(|mut stream| stream.take_waiting());
        waiting.chain(self.held.drain(..)).for_each(|urb| drop(urb.recall()));
        self.device
    }
}

/// The driver's requests, by the endpoint of their stream.
type DriverRequests = Vec<(u8, Vec<Urb>)>;

impl IsochronousStream {
    fn drift_ns(&self) -> Option<i64> {
        match self {
            IsochronousStream::In(inward) => inward.drift_ns(),
            IsochronousStream::Out(outward) => Some(outward.drift_ns()),
        }
    }

    fn counts(&self) -> IsoPacketCounts {
        match self {
            IsochronousStream::In(inward) => inward.counts(),
            IsochronousStream::Out(outward) => outward.counts(),
        }
    }

    fn stop(&mut self, orders: &mut IsoActionQueue) {
        match self {
            IsochronousStream::In(inward) => inward.stop(orders),
            IsochronousStream::Out(outward) => outward.stop(orders),
        }
    }

    fn take_waiting(&mut self) -> Vec<UrbInFlight> {
        match self {
            IsochronousStream::In(inward) => inward.take_waiting().collect(),
            IsochronousStream::Out(outward) => outward.take_waiting().collect(),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            IsochronousStream::In(inward) => inward.poll_timeout(),
            IsochronousStream::Out(outward) => outward.poll_timeout(),
        }
    }
}

impl<D: Device> DeviceLayer for IsochronousLayer<D> {
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
        if urb.endpoint.is_control() {
            self.control(now, urb, done);
        } else if urb.iso.is_empty() {
            self.act(now, done, |device, done| device.submit(now, urb, done));
        } else {
            self.stream(now, urb, done);
        }
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            let urb = self.held.remove(at).expect("found just now");
            return done.push(urb.fail(UrbStatus::Cancelled));
        }
        let before = done.len();
        for stream in self.streams.values_mut() {
            match stream {
                IsochronousStream::In(inward) => {
                    inward.cancel(id, done);
                    if inward.is_empty() {
                        inward.stop(&mut self.orders);
                    }
                }
                IsochronousStream::Out(outward) => outward.cancel(id, &mut self.orders, done),
            }
        }
        if done.len() > before {
            self.look(now, done);
        } else {
            self.act(now, done, |device, done| device.cancel(now, id, done));
        }
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.end_all(UrbStatus::Shutdown, done);
        // The device's reset withdraws all requests at once.
        self.orders.clear();
        self.control_asked_at.clear();
        self.act(now, done, |device, done| device.reset(now, done));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let streams = self.streams.values().filter_map(IsochronousStream::poll_timeout);
        streams.chain(self.held_until).chain(self.device.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        // First the packets that are due, because the device's timeout may take time.
        self.keep_pace(now, done);
        if self.device.poll_timeout().is_some_and(|at| at <= now) {
            self.act(now, done, |device, done| device.handle_timeout(now, done));
        }
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.act(now, done, |device, done| device.handle_ready(now, done));
        if self.device.is_gone() {
            self.end_all(UrbStatus::Gone, done);
        }
    }

    /// None: [`IsochronousLayer::save`] writes the snapshot.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    fn restore(&mut self, _selection: &ConfigurationSelection, _state: &[u8]) -> bool {
        false
    }
}
