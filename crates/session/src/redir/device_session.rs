//! The device and its open requests, independent of the connection.
//!
//! | what happens | what the guest is told |
//! |---|---|
//! | a transfer ends without a cancel | its packet, with the outcome |
//! | a cancel comes, the device cancels the transfer | its packet, *cancelled*, once |
//! | a cancel comes, the device completes the transfer first | its packet, with its true outcome, once |
//! | a cancel comes after the transfer ended | nothing more |
//! | an id is cancelled, then used again before the device has answered | the old packet, *cancelled*, at once; then the new one's own outcome |
//! | an id is used again without a cancel | the connection ends; except for interrupt OUT, which QEMU regards as done at once |
//! | reset | each stream *stalled*, each transfer *cancelled*, once |
//! | a configuration or setting is selected | interfaces, endpoints, then the answer |
//! | the device is gone | every transfer's packet, then `device_disconnect` |
//! | the guest moves, and the device cancels a read without data | nothing here: the read moves along and is submitted again there |
//! | the guest moves, and the device cancels a read with data | its packet, once the device has sent the rest |
//! | the guest moves, and a stream's URB has data | its packets, here or there |
//! | the guest stays after all | its packets meanwhile are handled once all cancelled requests have come back |
//!
//! **Why an id may be used twice.** QEMU names a packet by the address of its guest's transfer descriptor. The guest's
//! driver may reuse that memory as soon as it has cancelled, before our answer to the cancel arrives; QEMU tells the
//! answers apart by their order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::limits::{INTERRUPTS_AHEAD_MAX, STREAM_PACKETS_PER_URB_MAX, STREAM_URBS_MAX, URB_BYTES_MAX};
use farbus_model::urb::take_lost;
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, Device, EndpointDescriptor, EpAddr, Instant, Payload, SessionLimits, SetupPacket,
    TransferDirection, TransferType, Urb, UrbCompletion, UrbId, UrbStatus,
};
use farbus_wire::usbip::ProtocolViolation;
use farbus_wire::usbredir::message::{ControlPacket, DataPacket};
use farbus_wire::usbredir::{RedirCapability, RedirCapabilitySet, RedirMessage, RedirPacket, RedirStatus};

use super::describe;
use super::stream::{EndpointStream, EndpointStreamKind, StreamUrbResult};
use crate::exporter::ExporterCounters;

/// Interrupt URBs in flight per endpoint, as in `usbredirserver`.
const INTERRUPT_URBS: usize = 5;
/// A device with a shorter round trip is near, and needs no further URBs ahead.
const NEAR_MAX: Duration = Duration::from_millis(2);
/// The longest round trip that is bridged without a gap.
const AHEAD_TIME: Duration = Duration::from_millis(300);
/// On a bulk endpoint, packets kept ahead for each URB in flight.
const BULK_AHEAD: usize = 4;

/// The relation between the device and a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedirPeerState {
    /// No guest is connected, or it has not sent its hello.
    Alone,
    /// The guest has the device.
    Attached,
    /// The device is gone, or the guest refused it; the guest has not acknowledged that yet.
    Leaving,
    /// The guest has acknowledged: nothing more is sent about the device.
    Left,
}

/// A request to the device, and where its outcome goes.
#[derive(Debug)]
enum RedirRequest {
    /// A transfer of the guest, with the data that came before it was cancelled and continued with the rest.
    Transfer { id: u64, head: RedirTransferHead, is_withdrawn: bool, length: u32, begun: Payload },
    /// A read of the guest that is cancelled because the guest moves: it is submitted again there.
    TakenBack { id: u64, head: RedirTransferHead, length: u32 },
    /// The guest selects a configuration.
    Configuration { id: u64 },
    /// The guest selects an interface's setting.
    AltSetting { id: u64, interface: u8 },
    /// A URB of a stream.
    Stream(EpAddr),
    /// Dropped: its guest was answered already, or has disconnected.
    Forgotten,
}

/// The parts of a transfer's packet besides its data.
#[derive(Clone, Copy, Debug)]
enum RedirTransferHead {
    Control { number: u8, setup: SetupPacket },
    Bulk { endpoint: EpAddr, stream: u32 },
    Interrupt { endpoint: EpAddr },
}

/// A device with its open requests.
pub struct DeviceSession<D> {
    device: D,
    done: CompletionQueue,
    limits: SessionLimits,
    state: RedirPeerState,
    /// The capabilities of both sides, while a guest is connected.
    caps: RedirCapabilitySet,
    flights: BTreeMap<UrbId, RedirRequest>,
    /// The guest's transfers, by the guest's ids.
    transfers: BTreeMap<u64, UrbId>,
    streams: BTreeMap<u8, EndpointStream>,
    /// Answers in order; packets of streams come after them.
    outbox: VecDeque<RedirPacket>,
    outbox_bytes: usize,
    /// Bytes of requests in flight: requested for IN, given for OUT.
    bytes_held: usize,
    next_urb: u64,
    /// A timed request, and the shortest round trip so far.
    timed: Option<(UrbId, Instant)>,
    quickest: Option<Duration>,
    is_refused: bool,
    /// The guest is about to move elsewhere.
    is_moving: bool,
    /// The guest stays after all, as soon as all cancelled requests have come back.
    is_to_go_on: bool,
    /// Reads that were cancelled for a move, in the order of their submission.
    taken_back: BTreeMap<UrbId, RedirPacket>,
    /// Packets that the guest sent meanwhile.
    waiting: VecDeque<RedirPacket>,
    waiting_bytes: usize,
    dropped: u64,
    counters: ExporterCounters,
}

impl<D: Device> DeviceSession<D> {
    /// A session of a device without a guest.
    pub fn new(device: D, limits: SessionLimits) -> Self {
        Self {
            device,
            done: CompletionQueue::new(BufferPool::new(limits.pool_bytes)),
            limits,
            state: RedirPeerState::Alone,
            caps: RedirCapabilitySet::NONE,
            flights: BTreeMap::new(),
            transfers: BTreeMap::new(),
            streams: BTreeMap::new(),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            bytes_held: 0,
            next_urb: 1,
            timed: None,
            quickest: None,
            is_refused: false,
            is_moving: false,
            is_to_go_on: false,
            taken_back: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            dropped: 0,
            counters: ExporterCounters::default(),
        }
    }

    /// The device that the guest uses, for reading its state.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Runs `act` with the device and its completions.
    pub fn with_device<T>(&mut self, act: impl FnOnce(&mut D, &mut CompletionQueue) -> T) -> T {
        act(&mut self.device, &mut self.done)
    }

    /// What the session has counted since it began; a restored session starts at 0.
    pub fn counters(&self) -> ExporterCounters {
        self.counters
    }

    /// Isochronous packets that were dropped because the guest or the device was too slow.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Requests in flight on the device.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether the guest's filter refused the device.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether a guest has the device.
    pub fn is_shown(&self) -> bool {
        self.state == RedirPeerState::Attached
    }

    /// Whether everything about the device has been said and taken.
    pub fn has_left(&self) -> bool {
        self.state == RedirPeerState::Left && self.outbox.is_empty()
    }

    /// Number of answers that wait.
    pub fn backlog_packets(&self) -> usize {
        self.outbox.len()
    }

    /// A guest has sent its hello; `caps` are the capabilities of both sides.
    pub fn handle_hello(&mut self, caps: RedirCapabilitySet) {
        if self.state != RedirPeerState::Alone {
            return;
        }
        self.caps = caps;
        self.state = RedirPeerState::Attached;
        self.say_parts();
        self.say(0, RedirMessage::DeviceConnect(describe::device_connect(&self.device)));
    }

    /// The guest has disconnected: cancels everything and resets the device for the next guest.
    pub fn handle_disconnected(&mut self, now: Instant) {
        self.state = match self.state {
            RedirPeerState::Alone | RedirPeerState::Attached => RedirPeerState::Alone,
            RedirPeerState::Leaving | RedirPeerState::Left => RedirPeerState::Left,
        };
        self.caps = RedirCapabilitySet::NONE;
        self.streams.clear();
        self.transfers.clear();
        (self.outbox_bytes, self.waiting_bytes) = (0, 0);
        (self.is_refused, self.is_moving, self.is_to_go_on) = (false, false, false);
        self.outbox.clear();
        self.waiting.clear();
        self.taken_back.clear();
        let ids: Vec<UrbId> = self.flights.keys().copied().collect();
        self.flights.values_mut().for_each(|flight| *flight = RedirRequest::Forgotten);
        ids.into_iter().for_each(|id| self.device.cancel(now, id, &mut self.done));
        self.device.reset(now, &mut self.done);
        if !self.device.is_gone() && self.state == RedirPeerState::Alone {
            // The exporter of a far device detects a reset by this request, which only a host sends that has just reset
            // the device (Linux's hub_port_init).
            let setup = SetupPacket::get_descriptor(farbus_model::descriptor::kind::DEVICE, 0, 0, 64);
            let urb = Urb::control(self.take_id(), setup, Payload::Empty);
            self.launch(now, urb, RedirRequest::Forgotten);
        }
        self.collect(now);
    }

    /// The device is gone: answers what it completed, and tells the guest.
    pub fn handle_gone(&mut self, now: Instant) {
        self.collect(now);
        self.streams.clear();
        self.leave();
    }

    fn leave(&mut self) {
        self.state = match self.state {
            RedirPeerState::Attached => {
                self.say(0, RedirMessage::DeviceDisconnect);
                if self.caps.has(RedirCapability::DeviceDisconnectAck) {
                    RedirPeerState::Leaving
                } else {
                    RedirPeerState::Left
                }
            }
            RedirPeerState::Alone => RedirPeerState::Left,
            state => state,
        };
    }

    /// The guest is about to move: nothing new is submitted for it, streams stop, and its packets wait.
    pub fn quiesce(&mut self, now: Instant) {
        (self.is_moving, self.is_to_go_on) = (true, false);
        self.streams.values_mut().for_each(|stream| stream.pause(true));
        let urbs: Vec<UrbId> = self.streams.values().flat_map(EndpointStream::in_flight).collect();
        urbs.into_iter().for_each(|urb| self.device.cancel(now, urb, &mut self.done));
        self.collect(now);
    }

    /// Cancels reads without data, which may wait for ever; writes and begun reads are waited for.
    pub fn take_back_reads(&mut self, now: Instant) {
        let mut urbs = Vec::new();
        for (urb, flight) in &mut self.flights {
            if let RedirRequest::Transfer { id, head: wanted, is_withdrawn: false, length, begun } = &*flight
                && matches!(wanted, RedirTransferHead::Bulk { endpoint, .. } if endpoint.direction() == TransferDirection::In)
                && begun.is_empty()
            {
                *flight = RedirRequest::TakenBack { id: *id, head: *wanted, length: *length };
                urbs.push(*urb);
            }
        }
        // Newest first: data that comes meanwhile then belongs to the oldest.
        urbs.into_iter().rev().for_each(|urb| self.device.cancel(now, urb, &mut self.done));
        self.collect(now);
    }

    /// Whether no request is in flight on the device during a move.
    pub fn is_quiet(&self) -> bool {
        self.is_moving && self.flights.is_empty()
    }

    /// The guest's open requests as packets that it would send: streams, cancelled reads, waiting packets.
    pub fn take_requests(&mut self) -> Vec<RedirPacket> {
        let plain = |message| RedirPacket { id: 0, message };
        let mut requests = Vec::new();
        for stream in self.streams.values_mut() {
            requests.push(plain(stream.beginning()));
            requests.extend(stream.take_unsent().into_iter().map(plain));
        }
        requests.extend(std::mem::take(&mut self.taken_back).into_values());
        requests.extend(self.waiting.drain(..));
        self.waiting_bytes = 0;
        requests
    }

    /// The guest stays after all: streams and reads continue once everything cancelled has come back.
    pub fn stay(&mut self) {
        self.is_to_go_on = self.is_moving;
    }

    /// Continues for a guest that stays, if that is possible now.
    ///
    /// # Errors
    /// [`ProtocolViolation`], as [`DeviceSession::handle_packet`]: a waiting packet is invalid.
    pub fn go_on(&mut self, now: Instant) -> Result<(), ProtocolViolation> {
        let is_withdrawing =
            |flight: &RedirRequest| matches!(flight, RedirRequest::Stream(_) | RedirRequest::TakenBack { .. });
        if !self.is_to_go_on || self.flights.values().any(is_withdrawing) {
            return Ok(());
        }
        (self.is_moving, self.is_to_go_on) = (false, false);
        self.streams.values_mut().for_each(|stream| stream.pause(false));
        let taken_back = std::mem::take(&mut self.taken_back).into_values();
        let packets: Vec<RedirPacket> = taken_back.chain(self.waiting.drain(..)).collect();
        self.waiting_bytes = 0;
        packets.into_iter().try_for_each(|packet| self.handle_packet(now, packet))
    }

    /// A guest moved here together with its device.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the device is not configured as the guest has configured it.
    pub fn handle_moved_here(
        &mut self,
        caps: RedirCapabilitySet,
        configuration: u8,
        alternates: &[(u8, u8)],
    ) -> Result<(), ProtocolViolation> {
        let selection = self.device.selection();
        if (selection.configuration(), selection.alternates()) != (configuration, alternates) {
            let is = selection.configuration();
            return Err(ProtocolViolation::new(
                "configuration",
                is.into(),
                "a device that moves stays as its guest has set it",
            ));
        }
        self.caps = caps;
        self.state = RedirPeerState::Attached;
        Ok(())
    }

    /// What the guest that moved here had asked is there: its streams go on at once.
    pub fn go_on_here(&mut self) {
        self.streams.values_mut().for_each(EndpointStream::go_on);
    }

    fn keep(&mut self, mut packet: RedirPacket) -> Result<(), ProtocolViolation> {
        let mut payload = packet.message.take_payload();
        payload.own();
        self.waiting_bytes += payload.len();
        packet.message.set_payload(payload);
        self.waiting.push_back(packet);
        let is_too_much = self.waiting_bytes > self.limits.payload_bytes_max
            || self.waiting.len() > 2 * self.limits.urbs_in_flight_max;
        match is_too_much {
            true => Err(ProtocolViolation::new(
                "length",
                self.waiting_bytes as u64,
                "a guest that moves says no more than fits",
            )),
            false => Ok(()),
        }
    }

    /// Handles a packet of the guest.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the packet is not allowed now; the connection must end.
    pub fn handle_packet(&mut self, now: Instant, packet: RedirPacket) -> Result<(), ProtocolViolation> {
        if self.is_moving {
            return self.keep(packet);
        }
        let RedirPacket { id, message } = packet;
        match message {
            RedirMessage::Reset => self.reset(now),
            RedirMessage::SetConfiguration(value) => self.set_configuration(now, id, value),
            RedirMessage::GetConfiguration => self.say_configuration(id, RedirStatus::Success),
            RedirMessage::SetAltSetting { interface, alternate } => self.set_alt_setting(now, id, interface, alternate),
            RedirMessage::GetAltSetting { interface } => {
                let all = self.device.descriptors();
                let configuration = all.configuration(self.device.selection().configuration());
                let is_known = configuration.is_some_and(|c| c.settings.iter().any(|s| s.interface == interface));
                self.say_alt_setting(id, interface, if is_known { RedirStatus::Success } else { RedirStatus::Invalid });
            }
            RedirMessage::StartIsoStream { endpoint, packets_per_urb, urbs } => {
                let is_fine = (1..=STREAM_PACKETS_PER_URB_MAX).contains(&packets_per_urb) && is_count(urbs);
                let kind = EndpointStreamKind::Iso { packets_per_urb: packets_per_urb.into() };
                let made = is_fine.then(|| self.iso_stream(endpoint, packets_per_urb.into(), urbs.into())).flatten();
                self.start(id, endpoint, kind, made);
            }
            RedirMessage::StartInterruptReceiving(endpoint) => {
                let found = self.find(endpoint, TransferType::Interrupt).map(describe::interval_bytes_max);
                let urbs = self.interrupt_urbs(endpoint);
                let made = found.map(|bytes| {
                    EndpointStream::new(
                        endpoint,
                        EndpointStreamKind::Interrupt,
                        bytes.into(),
                        urbs,
                        INTERRUPTS_AHEAD_MAX,
                    )
                });
                self.start(id, endpoint, EndpointStreamKind::Interrupt, made);
            }
            RedirMessage::StartBulkReceiving { stream, bytes_per_transfer, endpoint, transfers } => {
                let made = self.bulk_stream(endpoint, stream, bytes_per_transfer, transfers);
                self.start(id, endpoint, EndpointStreamKind::Bulk { stream }, made);
            }
            RedirMessage::StopIsoStream(endpoint)
            | RedirMessage::StopInterruptReceiving(endpoint)
            | RedirMessage::StopBulkReceiving { endpoint, .. } => self.stop(now, id, endpoint, &message),
            RedirMessage::AllocBulkStreams { endpoints, streams } => {
                self.say(id, RedirMessage::BulkStreamsStatus { endpoints, streams, outcome: RedirStatus::Invalid });
            }
            RedirMessage::FreeBulkStreams { endpoints } => {
                self.say(id, RedirMessage::BulkStreamsStatus { endpoints, streams: 0, outcome: RedirStatus::Success });
            }
            RedirMessage::CancelDataPacket => self.cancel(now, id),
            RedirMessage::FilterReject => {
                self.is_refused = true;
                self.withdraw_all(now, |_| true);
            }
            RedirMessage::DeviceDisconnectAck => {
                if self.state == RedirPeerState::Leaving {
                    self.state = RedirPeerState::Left;
                }
            }
            RedirMessage::Control(packet) => self.control(now, id, packet)?,
            RedirMessage::Bulk(packet) => self.bulk(now, id, packet)?,
            RedirMessage::Interrupt(packet) => self.interrupt_out(now, id, packet)?,
            RedirMessage::Iso(packet) => self.iso_out(packet),
            // The filter is applied by the guest itself, which then accepts or rejects the device.
            RedirMessage::FilterFilter(_) => {}
            RedirMessage::Hello { .. }
            | RedirMessage::DeviceConnect(_)
            | RedirMessage::DeviceDisconnect
            | RedirMessage::InterfaceInfo(_)
            | RedirMessage::EpInfo(_)
            | RedirMessage::ConfigurationStatus { .. }
            | RedirMessage::AltSettingStatus { .. }
            | RedirMessage::IsoStreamStatus { .. }
            | RedirMessage::InterruptReceivingStatus { .. }
            | RedirMessage::BulkStreamsStatus { .. }
            | RedirMessage::BulkReceivingStatus { .. }
            | RedirMessage::BufferedBulk(_) => unreachable!("the connection lets nothing through that a host says"),
        }
        self.collect(now);
        Ok(())
    }

    fn say(&mut self, id: u64, message: RedirMessage) {
        self.queue(RedirPacket { id, message });
    }

    fn queue(&mut self, packet: RedirPacket) {
        self.outbox_bytes += payload_bytes(&packet);
        self.outbox.push_back(packet);
    }

    /// Interfaces first, because QEMU looks them up when it gets the endpoints.
    fn say_parts(&mut self) {
        let (interfaces, endpoints) = describe::parts(&self.device);
        self.say(0, RedirMessage::InterfaceInfo(Box::new(interfaces)));
        self.say(0, RedirMessage::EpInfo(Box::new(endpoints)));
    }

    fn say_configuration(&mut self, id: u64, outcome: RedirStatus) {
        let configuration = self.device.selection().configuration();
        self.say(id, RedirMessage::ConfigurationStatus { outcome, configuration });
    }

    fn say_alt_setting(&mut self, id: u64, interface: u8, outcome: RedirStatus) {
        let alternate = self.device.selection().alternate(interface);
        self.say(id, RedirMessage::AltSettingStatus { outcome, interface, alternate });
    }

    /// Whether [`DeviceSession::poll_packet`] has a packet.
    pub fn has_packets(&self) -> bool {
        !self.outbox.is_empty() || self.streams.values().any(EndpointStream::has_packets)
    }

    /// The next packet for the guest: answers first, then packets of streams.
    pub fn poll_packet(&mut self) -> Option<RedirPacket> {
        if let Some(packet) = self.outbox.pop_front() {
            self.outbox_bytes -= payload_bytes(&packet);
            return Some(packet);
        }
        self.streams.values_mut().find_map(EndpointStream::poll_packet)
    }

    fn take_id(&mut self) -> UrbId {
        let id = UrbId(self.next_urb);
        self.next_urb += 1;
        id
    }

    fn launch(&mut self, now: Instant, urb: Urb, flight: RedirRequest) {
        self.bytes_held += urb.length as usize;
        // Control requests are answered at once; a guest that moved here may send none, so an interrupt must do.
        let tells = match flight {
            RedirRequest::Configuration { .. } | RedirRequest::AltSetting { .. } => true,
            RedirRequest::Transfer { head: RedirTransferHead::Control { .. }, .. } => true,
            RedirRequest::Stream(endpoint) if self.quickest.is_none() && self.timed.is_none() => {
                self.find(endpoint, TransferType::Interrupt).is_some()
            }
            _ => false,
        };
        if tells {
            self.timed = Some((urb.id, now));
        }
        self.flights.insert(urb.id, flight);
        self.device.submit(now, urb.launch(), &mut self.done);
    }

    /// Whether the limits allow one more payload.
    fn has_credit(&self) -> bool {
        let ahead: usize = self.streams.values().map(EndpointStream::ahead_bytes).sum();
        self.flights.len() <= self.limits.urbs_in_flight_max
            && self.bytes_held + self.outbox_bytes + ahead <= self.limits.payload_bytes_max
    }

    fn find(&self, endpoint: EpAddr, kind: TransferType) -> Option<&EndpointDescriptor> {
        self.device.selection().endpoint(endpoint).filter(|found| found.kind == kind)
    }

    /// Submits a transfer of the guest, or answers it at once with an error.
    fn transfer(
        &mut self,
        now: Instant,
        id: u64,
        head: RedirTransferHead,
        mut urb: Urb,
    ) -> Result<(), ProtocolViolation> {
        if let Some(&old) = self.transfers.get(&id) {
            self.make_way(id, old)?;
        }
        let makes_sense = match head {
            RedirTransferHead::Control { number, .. } => number == 0,
            RedirTransferHead::Bulk { endpoint, .. } => {
                self.find(endpoint, TransferType::Bulk).is_some() && !self.streams.contains_key(&endpoint.as_byte())
            }
            RedirTransferHead::Interrupt { endpoint } => self.find(endpoint, TransferType::Interrupt).is_some(),
        };
        let refusal = match () {
            () if self.state != RedirPeerState::Attached || self.is_refused => Some(UrbStatus::Gone),
            () if !makes_sense => Some(UrbStatus::Invalid),
            () if !self.has_credit() => {
                self.counters.no_credit += 1;
                Some(UrbStatus::NoCredit)
            }
            () => None,
        };
        if let Some(status) = refusal {
            self.answer(id, head, urb.launch().fail(status));
            return Ok(());
        }
        urb.id = self.take_id();
        self.transfers.insert(id, urb.id);
        let length = urb.length;
        self.launch(now, urb, RedirRequest::Transfer { id, head, is_withdrawn: false, length, begun: Payload::Empty });
        Ok(())
    }

    /// Handles an id that is used while it is in flight: see the module's table.
    fn make_way(&mut self, id: u64, old: UrbId) -> Result<(), ProtocolViolation> {
        let Some(flight) = self.flights.get_mut(&old) else { return Ok(()) };
        match flight {
            RedirRequest::Transfer { head, is_withdrawn: true, .. } => {
                let head = *head;
                *flight = RedirRequest::Forgotten;
                self.transfers.remove(&id);
                let urb = match head {
                    RedirTransferHead::Control { setup, .. } => Urb::control(old, setup, Payload::Empty),
                    RedirTransferHead::Bulk { endpoint, .. } | RedirTransferHead::Interrupt { endpoint } => {
                        Urb { endpoint, direction: endpoint.direction(), ..Urb::data_in(old, endpoint, 0) }
                    }
                };
                self.answer(id, head, urb.launch().fail(UrbStatus::Cancelled));
                Ok(())
            }
            RedirRequest::Transfer { head: RedirTransferHead::Interrupt { .. }, .. } => Ok(()),
            _ => Err(ProtocolViolation::new("id", id, "an id in flight is used again only once it was cancelled")),
        }
    }

    fn control(&mut self, now: Instant, id: u64, packet: ControlPacket) -> Result<(), ProtocolViolation> {
        let ControlPacket { number, setup, payload, .. } = packet;
        self.transfer(now, id, RedirTransferHead::Control { number, setup }, Urb::control(UrbId(0), setup, payload))
    }

    fn bulk(&mut self, now: Instant, id: u64, packet: DataPacket) -> Result<(), ProtocolViolation> {
        let DataPacket { endpoint, length, stream, payload, .. } = packet;
        let urb = match endpoint.direction() {
            TransferDirection::In => Urb::data_in(UrbId(0), endpoint, length),
            TransferDirection::Out => Urb::data_out(UrbId(0), endpoint, payload),
        };
        self.transfer(now, id, RedirTransferHead::Bulk { endpoint, stream }, Urb { stream: stream as u16, ..urb })
    }

    fn interrupt_out(&mut self, now: Instant, id: u64, packet: DataPacket) -> Result<(), ProtocolViolation> {
        let DataPacket { endpoint, payload, .. } = packet;
        self.transfer(now, id, RedirTransferHead::Interrupt { endpoint }, Urb::data_out(UrbId(0), endpoint, payload))
    }

    fn cancel(&mut self, now: Instant, id: u64) {
        let Some(urb) = self.transfers.get(&id) else { return };
        if let Some(RedirRequest::Transfer { is_withdrawn, .. }) = self.flights.get_mut(urb)
            && !std::mem::replace(is_withdrawn, true)
        {
            self.counters.unlinked += 1;
            self.device.cancel(now, *urb, &mut self.done);
        }
    }

    /// Cancels the guest's transfers on these endpoints, and ends their streams without a message.
    fn withdraw_all(&mut self, now: Instant, is_meant: impl Fn(EpAddr) -> bool) {
        let streams: Vec<u8> = self.streams.keys().copied().filter(|&at| is_meant(EpAddr::from_byte(at))).collect();
        streams.into_iter().for_each(|at| self.end_stream(now, EpAddr::from_byte(at)));
        let transfers = self.flights.iter_mut().filter_map(|(urb, flight)| match flight {
            RedirRequest::Transfer { head, is_withdrawn, .. } => {
                let endpoint = match head {
                    RedirTransferHead::Control { .. } => EpAddr::CONTROL,
                    RedirTransferHead::Bulk { endpoint, .. } | RedirTransferHead::Interrupt { endpoint } => *endpoint,
                };
                (is_meant(endpoint) && !std::mem::replace(is_withdrawn, true)).then_some(*urb)
            }
            _ => None,
        });
        let transfers: Vec<UrbId> = transfers.collect();
        transfers.into_iter().for_each(|urb| self.device.cancel(now, urb, &mut self.done));
    }

    fn reset(&mut self, now: Instant) {
        self.counters.resets += 1;
        let streams: Vec<u8> = self.streams.keys().copied().collect();
        for at in streams {
            self.stop_with(now, EpAddr::from_byte(at), RedirStatus::Stall);
        }
        self.device.reset(now, &mut self.done);
    }

    fn set_configuration(&mut self, now: Instant, id: u64, value: u8) {
        if self.state != RedirPeerState::Attached || !self.has_credit() {
            return self.say_configuration(id, RedirStatus::IoError);
        }
        self.withdraw_all(now, |endpoint| !endpoint.is_control());
        let urb = Urb::control(self.take_id(), SetupPacket::set_configuration(value), Payload::Empty);
        self.launch(now, urb, RedirRequest::Configuration { id });
    }

    fn set_alt_setting(&mut self, now: Instant, id: u64, interface: u8, alternate: u8) {
        if self.state != RedirPeerState::Attached || !self.has_credit() {
            return self.say_alt_setting(id, interface, RedirStatus::IoError);
        }
        let all = self.device.descriptors();
        let selection = self.device.selection();
        let setting = all
            .configuration(selection.configuration())
            .and_then(|configuration| configuration.setting(interface, selection.alternate(interface)));
        let endpoints: Vec<EpAddr> = setting
            .map(|setting| setting.endpoints.iter().map(|endpoint| endpoint.address).collect())
            .unwrap_or_default();
        self.withdraw_all(now, |endpoint| endpoints.contains(&endpoint));
        let urb = Urb::control(self.take_id(), SetupPacket::set_interface(interface, alternate), Payload::Empty);
        self.launch(now, urb, RedirRequest::AltSetting { id, interface });
    }

    fn iso_stream(&self, endpoint: EpAddr, packets_per_urb: usize, urbs: usize) -> Option<EndpointStream> {
        let packet_bytes = u32::from(describe::interval_bytes_max(self.find(endpoint, TransferType::Isochronous)?));
        if packet_bytes == 0 {
            return None;
        }
        let kind = EndpointStreamKind::Iso { packets_per_urb };
        // Half of the OUT URBs are in flight while the other half are filled (the protocol's start_iso_stream).
        let in_flight = if endpoint.direction() == TransferDirection::In { urbs } else { urbs.div_ceil(2) };
        Some(EndpointStream::new(endpoint, kind, packet_bytes, in_flight, packets_per_urb * urbs))
    }

    fn bulk_stream(&self, endpoint: EpAddr, stream: u32, bytes: u32, transfers: u8) -> Option<EndpointStream> {
        let packet_bytes = u32::from(self.find(endpoint, TransferType::Bulk)?.packet_bytes_max.max(1));
        let is_fine = is_count(transfers) && (1..=URB_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(packet_bytes);
        let urbs = usize::from(transfers);
        is_fine
            .then(|| EndpointStream::new(endpoint, EndpointStreamKind::Bulk { stream }, bytes, urbs, BULK_AHEAD * urbs))
    }

    /// Begins the stream `made`, or refuses if there is none, and tells the guest.
    fn start(&mut self, id: u64, endpoint: EpAddr, kind: EndpointStreamKind, made: Option<EndpointStream>) {
        let outcome = match made {
            Some(_) if self.streams.contains_key(&endpoint.as_byte()) => RedirStatus::Invalid,
            Some(stream) if self.state == RedirPeerState::Attached && self.has_credit() => {
                self.streams.insert(endpoint.as_byte(), stream);
                RedirStatus::Success
            }
            _ => RedirStatus::Stall,
        };
        self.say_stream(id, endpoint, kind, outcome);
    }

    fn say_stream(&mut self, id: u64, endpoint: EpAddr, kind: EndpointStreamKind, outcome: RedirStatus) {
        self.say(
            id,
            match kind {
                EndpointStreamKind::Iso { .. } => RedirMessage::IsoStreamStatus { outcome, endpoint },
                EndpointStreamKind::Interrupt => RedirMessage::InterruptReceivingStatus { outcome, endpoint },
                EndpointStreamKind::Bulk { stream } => RedirMessage::BulkReceivingStatus { stream, endpoint, outcome },
            },
        );
    }

    /// Stops a stream on the guest's request. The kind comes from the request, because the stream may be gone already.
    fn stop(&mut self, now: Instant, id: u64, endpoint: EpAddr, question: &RedirMessage) {
        self.end_stream(now, endpoint);
        let kind = match question {
            RedirMessage::StopIsoStream(_) => EndpointStreamKind::Iso { packets_per_urb: 1 },
            RedirMessage::StopBulkReceiving { stream, .. } => EndpointStreamKind::Bulk { stream: *stream },
            _ => EndpointStreamKind::Interrupt,
        };
        self.say_stream(id, endpoint, kind, RedirStatus::Success);
    }

    /// Ends a stream that failed: sends its remaining packets, then the reason.
    fn stop_with(&mut self, now: Instant, endpoint: EpAddr, outcome: RedirStatus) {
        let Some(stream) = self.streams.get_mut(&endpoint.as_byte()) else { return };
        let kind = stream.kind();
        let ahead: Vec<RedirPacket> = std::iter::from_fn(|| stream.poll_packet()).collect();
        ahead.into_iter().for_each(|packet| self.queue(packet));
        self.end_stream(now, endpoint);
        self.say_stream(0, endpoint, kind, outcome);
    }

    fn end_stream(&mut self, now: Instant, endpoint: EpAddr) {
        let Some(mut stream) = self.streams.remove(&endpoint.as_byte()) else { return };
        self.dropped += stream.take_dropped();
        stream.in_flight().for_each(|urb| self.device.cancel(now, urb, &mut self.done));
    }

    fn iso_out(&mut self, packet: DataPacket) {
        let DataPacket { endpoint, payload, .. } = packet;
        let has_credit = self.has_credit();
        let stream = self.streams.get_mut(&endpoint.as_byte());
        match stream.filter(|stream| matches!(stream.kind(), EndpointStreamKind::Iso { .. })) {
            Some(stream) if payload.len() <= stream.packet_bytes() as usize => {
                if !has_credit {
                    stream.drop_oldest();
                }
                stream.push(payload);
            }
            Some(_) => self.say(0, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Invalid, endpoint }),
            None if self.state == RedirPeerState::Attached => {
                self.say(0, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Stall, endpoint });
            }
            None => {}
        }
    }

    /// Answers completions and refills streams, after any event; `is_due` is false if only room was made since.
    pub fn advance(&mut self, now: Instant, mut is_due: bool) {
        self.collect(now);
        while self.refill(now, is_due) {
            is_due = false;
            self.collect(now);
        }
        self.answer_lost(now);
    }

    /// Submits URBs of streams; returns whether any completed at once.
    fn refill(&mut self, now: Instant, is_due: bool) -> bool {
        let endpoints: Vec<u8> = self.streams.keys().copied().collect();
        for at in endpoints {
            let stream = self.streams.get_mut(&at).expect("listed just now");
            self.dropped += stream.take_dropped();
            for _ in 0..stream.urbs_wanted(is_due) {
                if !self.has_credit() {
                    break;
                }
                let id = self.take_id();
                let Some(stream) = self.streams.get_mut(&at) else { break };
                let urb = stream.urb(id, &mut self.done.pool);
                self.launch(now, urb, RedirRequest::Stream(EpAddr::from_byte(at)));
            }
        }
        !self.done.is_empty()
    }

    /// Records a round trip: interrupt streams are asked as far ahead as it takes (q > RTT/x + 1).
    fn note_way(&mut self, way: Duration) {
        if self.quickest.is_none_or(|quickest| way < quickest) {
            self.quickest = Some(way);
            let endpoints: Vec<u8> = self.streams.keys().copied().collect();
            for at in endpoints {
                let urbs = self.interrupt_urbs(EpAddr::from_byte(at));
                self.streams.get_mut(&at).expect("listed just now").reach(urbs);
            }
        }
    }

    fn interrupt_urbs(&self, endpoint: EpAddr) -> usize {
        let way = self.quickest.filter(|way| *way > NEAR_MAX).map_or(Duration::ZERO, |way| way.min(AHEAD_TIME));
        let interval = self
            .find(endpoint, TransferType::Interrupt)
            .map_or(AHEAD_TIME, |found| found.service_interval(self.device.speed()).max(Duration::from_micros(125)));
        (INTERRUPT_URBS + way.as_nanos().div_ceil(interval.as_nanos()) as usize).min(INTERRUPTS_AHEAD_MAX)
    }

    /// Turns the device's completions into answers.
    fn collect(&mut self, now: Instant) {
        while let Some(done) = self.done.pop() {
            self.bytes_held -= done.length as usize;
            self.counters.urbs += 1;
            if let Some((_, begun)) = self.timed.take_if(|(id, _)| *id == done.id) {
                self.note_way(now - begun);
            }
            match self.flights.remove(&done.id) {
                Some(RedirRequest::Transfer { id, head, begun, .. }) => {
                    if self.transfers.get(&id) == Some(&done.id) {
                        self.transfers.remove(&id);
                    }
                    self.bytes_held -= begun.len();
                    self.answer(id, head, behind(begun, done));
                }
                Some(RedirRequest::TakenBack {
                    id,
                    head: head @ RedirTransferHead::Bulk { endpoint, stream },
                    length,
                }) if done.status == UrbStatus::Cancelled => {
                    if done.actual > 0 {
                        self.read_on(now, id, head, length, done.payload);
                        continue;
                    }
                    self.transfers.remove(&id);
                    let (outcome, payload) = (RedirStatus::Success, Payload::Empty);
                    let packet = DataPacket { endpoint, outcome, length, stream, payload };
                    self.taken_back.insert(done.id, RedirPacket { id, message: RedirMessage::Bulk(packet) });
                }
                // It completed before the cancel.
                Some(RedirRequest::TakenBack { id, head, .. }) => {
                    self.transfers.remove(&id);
                    self.answer(id, head, done);
                }
                Some(RedirRequest::Configuration { id }) => {
                    if done.status == UrbStatus::Ok {
                        self.say_parts();
                    }
                    self.say_configuration(id, done.status.into());
                }
                Some(RedirRequest::AltSetting { id, interface }) => {
                    if done.status == UrbStatus::Ok {
                        self.say_parts();
                    }
                    self.say_alt_setting(id, interface, done.status.into());
                }
                Some(RedirRequest::Stream(endpoint)) => self.stream_done(now, endpoint, done),
                Some(RedirRequest::Forgotten) => self.done.pool.recycle(done.payload),
                None => unreachable!("a device answers what it was asked, once"),
            }
        }
    }

    /// A cancelled read has data: requests the rest from the device and waits for it.
    fn read_on(&mut self, now: Instant, id: u64, head: RedirTransferHead, length: u32, mut begun: Payload) {
        let RedirTransferHead::Bulk { endpoint, stream } = head else { unreachable!("only such are taken back") };
        begun.own();
        self.bytes_held += begun.len();
        let urb = Urb::data_in(self.take_id(), endpoint, length - begun.len() as u32);
        self.transfers.insert(id, urb.id);
        let flight = RedirRequest::Transfer { id, head, is_withdrawn: false, length, begun };
        self.launch(now, Urb { stream: stream as u16, ..urb }, flight);
    }

    fn stream_done(&mut self, now: Instant, endpoint: EpAddr, done: UrbCompletion) {
        self.count(&done);
        let Some(stream) = self.streams.get_mut(&endpoint.as_byte()) else { return };
        let kind = stream.kind();
        match stream.handle_done(done) {
            None | Some(StreamUrbResult::GoesOn) => {}
            Some(StreamUrbResult::Failed(outcome)) => self.say_stream(0, endpoint, kind, outcome),
            Some(StreamUrbResult::Stopped) => self.stop_with(now, endpoint, RedirStatus::Stall),
        }
    }

    fn count(&mut self, done: &UrbCompletion) {
        match done.direction {
            TransferDirection::In => self.counters.bytes_in += u64::from(done.actual),
            TransferDirection::Out => self.counters.bytes_out += u64::from(done.actual),
        }
    }

    fn answer(&mut self, id: u64, head: RedirTransferHead, done: UrbCompletion) {
        self.count(&done);
        let UrbCompletion { status, actual, payload, .. } = done;
        let outcome = RedirStatus::from(status);
        let message = match head {
            RedirTransferHead::Control { number, setup } => {
                if status == UrbStatus::Ok && changes_parts(setup) {
                    self.say_parts();
                }
                let setup = SetupPacket { length: actual as u16, ..setup };
                RedirMessage::Control(ControlPacket { number, setup, outcome, payload })
            }
            RedirTransferHead::Bulk { endpoint, stream } => {
                RedirMessage::Bulk(DataPacket { endpoint, outcome, length: actual, stream, payload })
            }
            RedirTransferHead::Interrupt { endpoint } => {
                RedirMessage::Interrupt(DataPacket { endpoint, outcome, length: actual, stream: 0, payload })
            }
        };
        self.say(id, message);
    }

    /// Answers requests that a device dropped as cancelled, and counts them.
    fn answer_lost(&mut self, now: Instant) {
        for urb in take_lost() {
            if self.flights.contains_key(&urb.id) {
                self.counters.lost += 1;
                self.done.push(urb.launch().fail(UrbStatus::Cancelled));
            }
        }
        self.collect(now);
    }

    /// The guest has moved away with its open requests: the device keeps its state.
    ///
    /// # Panics
    /// If a request is in flight.
    pub fn handle_moved_away(&mut self) {
        assert!(self.flights.is_empty(), "a device that moves owes nothing");
        self.state = RedirPeerState::Alone;
        self.caps = RedirCapabilitySet::NONE;
        self.streams.clear();
        self.transfers.clear();
        (self.is_moving, self.is_to_go_on) = (false, false);
    }

    /// Takes the device in its current state, for another user.
    ///
    /// # Panics
    /// If a request is in flight.
    pub fn into_device(self) -> D {
        assert!(self.flights.is_empty(), "a device that moves owes nothing");
        self.device
    }

    /// Cancels everything, resets the device and returns it.
    pub fn finish(mut self, now: Instant) -> D {
        self.flights.keys().for_each(|id| self.device.cancel(now, *id, &mut self.done));
        self.device.reset(now, &mut self.done);
        while self.done.pop().is_some() {}
        self.device
    }
}

/// The completion of a continued read, with the earlier data in front.
fn behind(begun: Payload, rest: UrbCompletion) -> UrbCompletion {
    if begun.is_empty() {
        return rest;
    }
    let actual = begun.len() as u32 + rest.actual;
    UrbCompletion { actual, payload: Payload::joined([begun, rest.payload]), ..rest }
}

fn payload_bytes(packet: &RedirPacket) -> usize {
    match &packet.message {
        RedirMessage::Control(packet) => packet.payload.len(),
        RedirMessage::Bulk(packet)
        | RedirMessage::Iso(packet)
        | RedirMessage::Interrupt(packet)
        | RedirMessage::BufferedBulk(packet) => packet.payload.len(),
        _ => 0,
    }
}

fn is_count(urbs: u8) -> bool {
    (1..=STREAM_URBS_MAX).contains(&urbs)
}

/// A guest may also select a configuration or setting by a plain control transfer.
fn changes_parts(setup: SetupPacket) -> bool {
    setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device)
        || setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface)
}
