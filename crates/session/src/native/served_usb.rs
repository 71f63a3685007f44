//! A USB device of this host, served to an importer.

use farbus_model::urb::take_lost;
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, IsoPacket, OwnerCommand, OwnerCommandError, Payload,
    PayloadAssembler, ReadinessSource, SessionLimits, TransferDirection, TransferType, Urb, UrbCompletion, UrbFlags,
    UrbId, UrbStatus,
};
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::descriptors::NamedDescriptor;
use farbus_wire::native::frame::FrameHeader;
use farbus_wire::native::usb::{self, UsbDescription, UsbRequestPart};
use farbus_wire::native::{ClassPart, FlowId, FrameKind, LaneArray, MessageUrgency, OutboundMessage, ReceivedFrame};
use farbus_wire::usbip::DeviceRecord;

use super::exporter::{DeviceMigration, ServedExport, UnmovableError};
use super::named_descriptors;
use super::served_device::{ArrivingRequest, ServedDevice};
use super::timing::{CountRequest, ReadClock};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The most requests in flight: Linux's usb-storage needs 1, uas 30, testusb 32, a camera about 64; a far importer
/// keeps up to 1024 at each endpoint that it receives ahead ([`crate::far`]).
const REQUESTS_MAX: u16 = 4096;

/// A USB device and the requests of its importer.
pub struct ServedUsb<D> {
    served: ServedDevice<D, UsbRequestPart, UsbRequestState>,
    record: DeviceRecord,
    done: CompletionQueue,
    iso_bytes: usize,
    /// The place of the next request among all requests.
    next_order: u64,
    is_resting: bool,
}

type ServedUsbRequest = super::served_device::ServedRequest<UsbRequestPart, UsbRequestState>;

struct UsbRequestState {
    /// The memory of its packet descriptors, which no credit counts.
    iso_bytes: usize,
    urgency: MessageUrgency,
    flow: FlowId,
    /// Its place among all requests: those that were taken back are sent again in this order.
    order: u64,
    /// The part of the request that an answer does not repeat.
    manner: UrbParameters,
    /// The importer has withdrawn it, perhaps before it began.
    is_withdrawn: bool,
    /// It ends when the device has data, which may never happen.
    may_wait: bool,
    /// It is for an interrupt IN endpoint, whose data may come in quick succession ([`super::reply_spacing`]).
    is_report: bool,
    /// It was taken back from the device before the device had begun it.
    taken_back: Option<Box<Urb>>,
}

/// How to carry out a request.
#[derive(Clone, Copy, Default)]
struct UrbParameters {
    flags: UrbFlags,
    interval: u32,
    stream: u16,
}

impl ServedUsbRequest {
    fn has_device(&self) -> bool {
        self.arriving.is_none() && self.state.taken_back.is_none()
    }
}

impl<D: Device> ServedUsb<D> {
    /// Serves `device`, described by `record`, as `attachment`; `give_back` is called with it at the end, after a
    /// reset.
    pub fn new(
        attachment: u16,
        device: D,
        record: DeviceRecord,
        limits: SessionLimits,
        give_back: impl FnOnce(D, Instant) + Send + 'static,
    ) -> Self {
        let bytes = u32::try_from(limits.payload_bytes_max).unwrap_or(u32::MAX);
        let credit = AttachmentCredit { requests: REQUESTS_MAX, bytes };
        Self {
            served: ServedDevice::new(attachment, device, credit, give_back),
            record,
            done: CompletionQueue::new(BufferPool::new(limits.pool_bytes)),
            iso_bytes: 0,
            next_order: 0,
            is_resting: false,
        }
    }

    /// Permits a handover: `pass_on` is called then in place of `give_back`, and returns whether the device waits for
    /// its successor.
    #[must_use]
    pub fn inheritable(mut self, pass_on: impl FnOnce(D, Instant, DeviceMigration) -> bool + Send + 'static) -> Self {
        self.served.pass_on = Some(Box::new(pass_on));
        self
    }

    /// Measures the device's time with `clock`. Without a clock everything in a turn happens at its beginning, and a
    /// device that answers before its call returns takes no time.
    #[must_use]
    pub fn timed_by(mut self, clock: ReadClock) -> Self {
        self.served.clock = Some(clock);
        self
    }

    /// Reports each answered request to `count`.
    #[must_use]
    pub fn counted_by(mut self, count: CountRequest) -> Self {
        self.served.count = Some(count);
        self
    }

    fn begin(&mut self, now: Instant, arrived: ReceivedFrame, lanes: &mut LaneArray) -> Result<(), ProtocolViolation> {
        let FrameHeader { tag, flags, .. } = arrived.head;
        let mut body = arrived.body;
        let (request, part_bytes) = usb::decode_request(UrbId(tag.into()), &body.contiguous())?;
        body.split_front(part_bytes);
        let (cost, missing, endpoint) = match &request {
            UsbRequestPart::Reset => (0, 0, EpAddr::CONTROL),
            UsbRequestPart::Transfer(urb) => (
                urb.length,
                if urb.direction == TransferDirection::Out { urb.length as usize } else { 0 },
                urb.endpoint,
            ),
        };
        self.enter(now, tag, cost, endpoint, flags.timed)?;
        if !flags.more && body.len() == missing {
            self.act(now, tag, request, body, lanes);
            return Ok(());
        }
        let arriving = ArrivingRequest { request, data: PayloadAssembler::default(), missing };
        if let Some((request, data)) = self.served.take_in(tag, arriving, body, flags.more)? {
            self.act(now, tag, request, data, lanes);
        }
        Ok(())
    }

    fn enter(
        &mut self,
        now: Instant,
        tag: u16,
        cost: u32,
        endpoint: EpAddr,
        is_timed: bool,
    ) -> Result<(), ProtocolViolation> {
        let (kind, urgency, flow) = self.way_of(endpoint);
        let is_report = kind == Some(TransferType::Interrupt) && endpoint.direction() == TransferDirection::In;
        let (order, manner) = (self.next_order, UrbParameters::default());
        self.next_order += 1;
        let (iso_bytes, is_withdrawn, may_wait, taken_back) = (0, false, false, None);
        let state =
            UsbRequestState { iso_bytes, urgency, flow, order, manner, is_withdrawn, may_wait, is_report, taken_back };
        self.served.enter(now, tag, cost, is_timed, state)
    }

    /// Replies of one endpoint keep their order; replies of other endpoints may overtake those of bulk endpoints.
    fn way_of(&self, endpoint: EpAddr) -> (Option<TransferType>, MessageUrgency, FlowId) {
        let kind = self.served.device.selection().endpoint(endpoint).map(|endpoint| endpoint.kind);
        let urgency = if kind == Some(TransferType::Bulk) { MessageUrgency::Low } else { MessageUrgency::High };
        (kind, urgency, FlowId(u32::from(self.served.attachment) << 8 | u32::from(endpoint.as_byte())))
    }

    /// Begins a request of which all data has arrived.
    fn act(&mut self, now: Instant, tag: u16, request: UsbRequestPart, data: Payload, lanes: &mut LaneArray) {
        let is_cancelled = self.served.begin(now, tag).state.is_withdrawn;
        match request {
            UsbRequestPart::Reset => {
                self.served.device.reset(now, &mut self.done);
                self.collect(now, lanes);
                self.reply(now, tag, None, Payload::Empty, lanes);
            }
            UsbRequestPart::Transfer(mut urb) => {
                urb.payload = data;
                self.submit(now, urb, is_cancelled);
            }
        }
        self.collect(now, lanes);
    }

    fn submit(&mut self, now: Instant, urb: Urb, is_cancelled: bool) {
        if let Some(flight) = self.served.flights.get_mut(urb.id.0 as u16) {
            let flight = &mut flight.state;
            flight.iso_bytes = urb.iso.len() * size_of::<IsoPacket>();
            self.iso_bytes += flight.iso_bytes;
            flight.manner = UrbParameters { flags: urb.flags, interval: urb.interval, stream: urb.stream };
            flight.may_wait =
                urb.direction == TransferDirection::In && !urb.endpoint.is_control() && urb.iso.is_empty();
        }
        let makes_sense = match urb.endpoint.is_control() {
            true => urb.setup.length == 0 || urb.setup.direction() == urb.direction,
            false => self.served.device.selection().endpoint(urb.endpoint).is_some(),
        };
        match (is_cancelled, makes_sense) {
            (true, _) => self.done.push(urb.launch().fail(UrbStatus::Cancelled)),
            (_, false) => self.done.push(urb.launch().fail(UrbStatus::Invalid)),
            _ => self.served.device.submit(now, urb.launch(), &mut self.done),
        }
    }

    fn withdraw(&mut self, now: Instant, tag: u16, lanes: &mut LaneArray) {
        // A request that was answered meanwhile is gone: its answer is on its way.
        if let Some(flight) = self.served.flights.get_mut(tag) {
            flight.state.is_withdrawn = true;
            if flight.arriving.is_none() {
                self.served.device.cancel(now, UrbId(tag.into()), &mut self.done);
            }
            self.collect(now, lanes);
        }
        // From here on the tag may mean another request.
        lanes.send(OutboundMessage::control(FrameKind::Cancel, self.served.attachment, tag, ClassPart::empty()));
    }

    fn collect(&mut self, now: Instant, lanes: &mut LaneArray) {
        for lost in take_lost() {
            self.done.push(lost.launch().fail(UrbStatus::Cancelled));
        }
        while let Some(mut done) = self.done.pop() {
            if self.is_resting && self.take_back(&mut done) {
                continue;
            }
            match done.direction {
                TransferDirection::In => self.served.count(done.actual.into(), 0),
                TransferDirection::Out => self.served.count(0, done.actual.into()),
            }
            let part = usb::reply_part(&done);
            let UrbCompletion { id, payload, .. } = done;
            self.reply(now, id.0 as u16, part, payload, lanes);
        }
    }

    /// Whether this request has had no effect yet, so that another process can send it again.
    fn take_back(&mut self, done: &mut UrbCompletion) -> bool {
        let Some(flight) = self.served.flights.get_mut(done.id.0 as u16) else { return false };
        let flight = &mut flight.state;
        if done.status != UrbStatus::Cancelled || flight.is_withdrawn {
            return false;
        }
        if done.actual > 0 || done.direction == TransferDirection::Out {
            // A part of it is done: to send it again would do that twice.
            done.status = UrbStatus::Protocol;
            return false;
        }
        let UrbParameters { flags, interval, stream } = flight.manner;
        let mut urb = Urb::data_in(done.id, done.endpoint, done.length);
        (urb.flags, urb.interval, urb.stream) = (flags, interval, stream);
        flight.taken_back = Some(Box::new(urb));
        true
    }

    fn reply(&mut self, now: Instant, tag: u16, outcome: Option<ClassPart>, payload: Payload, lanes: &mut LaneArray) {
        let (ServedUsbRequest { state, .. }, head, part, done_at) = self.served.answer(now, tag, outcome);
        self.iso_bytes -= state.iso_bytes;
        let message = OutboundMessage { head, part, payload, urgency: state.urgency, flow: state.flow, done_at };
        match state.is_report && !message.payload.is_empty() {
            true => lanes.send_deferrable(message),
            false => lanes.send(message),
        }
    }
}

impl<D: Device> ServedExport for ServedUsb<D> {
    fn credit(&self) -> AttachmentCredit {
        self.served.credit
    }

    fn asked_bytes(&self) -> usize {
        self.served.bytes as usize + self.iso_bytes
    }

    fn description(&self) -> Vec<u8> {
        let all = self.served.device.descriptors();
        let selection = self.served.device.selection();
        UsbDescription {
            bus_id: self.record.bus_id.clone(),
            bus: self.record.bus,
            device: self.record.device,
            speed: self.served.device.speed(),
            descriptor: all.device.to_bytes(),
            configuration: selection.configuration(),
            alternates: selection.alternates().to_vec(),
            configurations: all.configurations.iter().map(|configuration| configuration.bytes.clone()).collect(),
        }
        .encode()
    }

    fn named_descriptors(&self) -> Option<Vec<NamedDescriptor>> {
        Some(named_descriptors::of(self.served.device.descriptors()))
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, tag, flags, .. } = arrived.head;
        match kind {
            FrameKind::Request => self.begin(now, arrived, lanes),
            FrameKind::Data => {
                if let Some((request, data)) = self.served.go_on(tag, arrived.body, flags.more)? {
                    self.act(now, tag, request, data, lanes);
                }
                Ok(())
            }
            FrameKind::Cancel => {
                self.withdraw(now, tag, lanes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.served.device.handle_ready(now, &mut self.done);
        if self.served.device.poll_timeout().is_some_and(|at| at <= now) {
            self.served.device.handle_timeout(now, &mut self.done);
        }
        self.collect(now, lanes);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.served.device.poll_timeout()
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.served.device.readiness()
    }

    fn is_idle(&self) -> bool {
        self.is_at_rest() && self.served.device.readiness().is_none()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        lanes: &mut LaneArray,
    ) -> Result<(), OwnerCommandError> {
        let result = self.served.device.command(now, command, &mut self.done);
        self.collect(now, lanes);
        result
    }

    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        Some(&mut self.done.pool)
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        let message = "the device was unplugged".to_owned();
        self.served.device.is_gone().then_some(AttachmentEndNotice { cause: AttachmentEndCause::Gone, message })
    }

    fn hand_over(mut self: Box<Self>, now: Instant, migration: DeviceMigration) -> bool {
        if self.served.pass_on.is_none() {
            self.finish(now);
            return false;
        }
        let left: Vec<u16> = self.served.flights.iter().map(|(tag, _)| tag).collect();
        for tag in left {
            self.served.device.cancel(now, UrbId(tag.into()), &mut self.done);
        }
        while let Some(done) = self.done.pop() {
            self.served.flights.remove(done.id.0 as u16);
        }
        // Requests that are still under way would be answered to the successor: a real device takes time to cancel.
        if !self.served.flights.is_empty() {
            self.finish(now);
            return false;
        }
        self.served.hand_over(now, migration)
    }

    /// Whether a transfer may wait for ever: it waits for data of the device.
    fn come_to_rest(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = true;
        let may_wait = |flight: &ServedUsbRequest| flight.has_device() && flight.state.may_wait;
        let mut waiting: Vec<(u64, u16)> = self
            .served
            .flights
            .iter()
            .filter(|(_, flight)| may_wait(flight))
            .map(|(tag, flight)| (flight.state.order, tag))
            .collect();
        // The last one first: data that arrives meanwhile belongs to the first.
        waiting.sort_unstable();
        for (_, tag) in waiting.into_iter().rev() {
            self.served.device.cancel(now, UrbId(tag.into()), &mut self.done);
        }
        self.collect(now, lanes);
    }

    fn is_at_rest(&self) -> bool {
        !self.served.flights.iter().any(|(_, flight)| flight.has_device())
    }

    fn restore(&mut self, now: Instant, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let selection = from.selection(self.served.device.descriptors())?;
        let state = from.bytes("device")?;
        if !self.served.device.restore(&selection, state) {
            return Err(ProtocolViolation::new("device", state.len() as u64, "it is one that can have stood so"));
        }
        for _ in 0..from.count("requests", 4)? {
            let (tag, is_timed, is_arriving) = (from.u16("tag")?, from.flag("timed")?, from.flag("arriving")?);
            let urb = Urb { id: UrbId(tag.into()), ..from.urb()? };
            self.enter(now, tag, urb.length, urb.endpoint, is_timed)?;
            let flight = self.served.flights.get_mut(tag).expect("put there just now");
            if !is_arriving {
                let is_plain =
                    urb.direction == TransferDirection::In && urb.iso.is_empty() && !urb.endpoint.is_control();
                if !is_plain {
                    return Err(ProtocolViolation::new(
                        "request",
                        tag.into(),
                        "what is taken back is IN, bulk or interrupt",
                    ));
                }
                flight.state.taken_back = Some(Box::new(urb));
                continue;
            }
            let (is_cancelled, data) = (from.flag("cancelled")?, from.payload("data")?);
            let missing = (urb.length as usize).checked_sub(data.len()).filter(|missing| *missing > 0);
            let missing = missing.filter(|_| urb.direction == TransferDirection::Out);
            let wrong = ProtocolViolation::new("data", data.len() as u64, "a transfer that arrives is not all there");
            let missing = missing.ok_or(wrong)?;
            let data = data.into();
            let request = UsbRequestPart::Transfer(urb);
            flight.arriving = Some(Box::new(ArrivingRequest { request, data, missing }));
            flight.state.is_withdrawn = is_cancelled;
        }
        from.end("state")
    }

    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        let state = self.served.device.save().ok_or(UnmovableError)?;
        to.selection(self.served.device.selection());
        to.bytes(&state);
        to.count(self.served.flights.len());
        let mut flights: Vec<(u16, &ServedUsbRequest)> = self.served.flights.iter().collect();
        flights.sort_unstable_by_key(|(_, flight)| flight.state.order);
        for (tag, flight) in flights {
            to.u16(tag);
            to.flag(flight.times.is_timed);
            to.flag(flight.arriving.is_some());
            match (&flight.arriving, &flight.state.taken_back) {
                (Some(arriving), _) => {
                    let ArrivingRequest { request: UsbRequestPart::Transfer(urb), data, .. } = &**arriving else {
                        unreachable!("a reset arrives in one piece")
                    };
                    to.urb(urb);
                    to.flag(flight.state.is_withdrawn);
                    to.runs(data.len(), data.runs());
                }
                (None, Some(urb)) => to.urb(urb),
                (None, None) => unreachable!("it is at rest"),
            }
        }
        Ok(())
    }

    fn go_on(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = false;
        let mut taken: Vec<(u64, Urb)> = Vec::new();
        for (_, flight) in self.served.flights.iter_mut() {
            if let Some(urb) = flight.state.taken_back.take() {
                flight.times.begun = now;
                taken.push((flight.state.order, *urb));
            }
        }
        taken.sort_unstable_by_key(|(order, _)| *order);
        for (_, urb) in taken {
            self.submit(now, urb, false);
        }
        self.collect(now, lanes);
    }

    fn leave(mut self: Box<Self>, now: Instant) {
        self.served.device.leave();
        self.served.give_back(now);
    }

    fn finish(mut self: Box<Self>, now: Instant) {
        self.served.device.reset(now, &mut self.done);
        // A device that cannot be made durable reports that at the next command.
        let _ = self.served.device.command(now, &OwnerCommand::Sync, &mut self.done);
        while self.done.pop().is_some() {}
        self.served.give_back(now);
    }
}
