//! A USB device of another host, used in a session.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::descriptor::{DeviceDescriptor, UsbConfiguration};
use farbus_model::{
    CompletionQueue, ConfigurationSelection, DescriptorRepairs, DescriptorSet, Device, EpAddr, Instant, Payload,
    PayloadAssembler, SetupPacket, TransferDirection, TransferType, Urb, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_wire::native::control::{
    AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, MIGRATION_STATE_BYTES_MAX, MIGRATION_STATE_NAME_BYTES,
    OpenReply, OpenRequest,
};
use farbus_wire::native::descriptors;
use farbus_wire::native::frame::{FrameHeader, ResidenceTimes};
use farbus_wire::native::lanes::{split_tag, tag_of};
use farbus_wire::native::reserve::ReservationTerms;
use farbus_wire::native::usb::{self, UsbDescription, UsbReplyPart};
use farbus_wire::native::{ClassPart, FlowId, FrameKind, LaneSet, MessageUrgency, OutboundMessage, ReceivedFrame};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::attachment::{AttachmentBase, AttachmentState, FrameMeaning};
use super::importer::{ImporterAttachment, MovableAttachment};
use super::named_descriptors;
use super::slots::TagSlots;
use super::spread::{EndpointLanes, REQUESTS_MAX};
use super::timing::{RequestTiming, TimingSampler, split_residence};
use crate::ProtocolViolation;
use crate::importer::note_selection;

/// Bytes of an [`OpenReply`]: 16 configurations as long as a configuration may be.
const OPENED_BYTES_MAX: usize = 16 << 16;
/// Tags of farbus's own requests begin here; those of users are below (a kernel's have 32 bits).
const OWN_ID_FIRST: u64 = 1 << 63;

/// A USB device on another host. Creating it opens it; requests wait until the exporter has answered.
#[derive(Debug)]
pub struct RemoteUsb {
    attachment: AttachmentBase,
    description: Option<UsbDescription>,
    descriptors: DescriptorSet,
    /// Its strings were told or asked for: they are known as far as there are any.
    has_strings: bool,
    selection: ConfigurationSelection,
    slots: TagSlots<RemoteUsbRequest>,
    bytes: u64,
    held: VecDeque<UrbInFlight>,
    /// Whether no new request is sent.
    is_still: bool,
    /// The migration state that came with it, if it was handed over to this host.
    migration_state: PayloadAssembler,
    settling: UsbRecoveryPhase,
    next_own_id: u64,
    timing: TimingSampler,
    endpoints: EndpointLanes,
    /// The time of the current call; requests that it sends are timed from then on.
    now: Instant,
}

/// What has to end before a user's requests continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsbRecoveryPhase {
    No,
    /// A reset: requests that were withdrawn have to end before the reset is sent.
    Withdrawing,
    /// The reset is under way.
    Resetting,
    /// The device is set up as it was before the exporter lost its state; so many requests are under way.
    Restoring(usize),
}

#[derive(Debug)]
struct RemoteUsbRequest {
    /// `None` once its sender has an answer; then only its end at the exporter is expected.
    urb: Option<UrbInFlight>,
    /// The lane that it uses, and its endpoint.
    lane: u8,
    endpoint: EpAddr,
    cost: u64,
    head: Option<UsbReplyPart>,
    data: PayloadAssembler,
    missing: usize,
    has_begun: bool,
    /// A cancel was sent and not answered: until then the cancel could mean another request with this tag.
    is_withdrawing: bool,
    /// Whether it was answered.
    is_answered: bool,
    /// farbus withdraws it for reasons of its own: if it has no data by then, it waits here without an answer.
    is_taken_back: bool,
    /// When it was sent, if it is timed. This is not saved: another process does not time it.
    timed: Option<Instant>,
    /// The beginning of its reply, whose data may be in further frames.
    residence: Option<ResidenceTimes>,
}

impl RemoteUsbRequest {
    fn new(urb: Option<UrbInFlight>, lane: u8) -> Self {
        let endpoint = urb.as_ref().map_or(EpAddr::CONTROL, |urb| urb.endpoint);
        let cost = urb.as_ref().map_or(0, |urb| urb.length.into());
        let (head, data, missing) = (None, PayloadAssembler::default(), 0);
        Self {
            urb,
            lane,
            endpoint,
            cost,
            head,
            data,
            missing,
            has_begun: false,
            is_withdrawing: false,
            is_answered: false,
            is_taken_back: false,
            timed: None,
            residence: None,
        }
    }
}

impl RemoteUsb {
    /// Opens a device as `number`, a number that the session does not use.
    pub fn new(number: u16, open: OpenRequest) -> Self {
        Self::over(AttachmentBase::new(number, open, OPENED_BYTES_MAX))
    }

    /// Waits for a device that another host hands over to this one, with migration state that begins with this.
    pub fn successor(number: u16, open: OpenRequest, migration_state: [u8; MIGRATION_STATE_NAME_BYTES]) -> Self {
        Self::over(AttachmentBase::inheriting(number, open, OPENED_BYTES_MAX, migration_state))
    }

    /// As [`RemoteUsb::new`]; the exporter reserves this first, or does not open the device.
    pub fn reserving(number: u16, open: OpenRequest, reservation: ReservationTerms) -> Self {
        Self::over(AttachmentBase::reserving(number, open, OPENED_BYTES_MAX, reservation))
    }

    fn over(attachment: AttachmentBase) -> Self {
        Self {
            attachment,
            description: None,
            descriptors: DescriptorSet::default(),
            has_strings: false,
            selection: ConfigurationSelection::default(),
            slots: TagSlots::default(),
            bytes: 0,
            held: VecDeque::new(),
            is_still: false,
            migration_state: PayloadAssembler::default(),
            settling: UsbRecoveryPhase::No,
            next_own_id: OWN_ID_FIRST,
            timing: TimingSampler::default(),
            endpoints: EndpointLanes::default(),
            now: Instant::ZERO,
        }
    }

    /// The exporter's description of it; `None` before it is open.
    pub fn description(&self) -> Option<&UsbDescription> {
        self.description.as_ref()
    }

    /// Whether its strings are known, as far as there are any: an exporter of an earlier version does not tell them.
    pub fn has_strings(&self) -> bool {
        self.has_strings
    }

    /// Its strings by index, as the device says them. For a device whose exporter did not tell them.
    pub fn set_strings(&mut self, strings: BTreeMap<u8, String>) {
        (self.descriptors.strings, self.has_strings) = (strings, true);
    }

    /// What may be in flight; nothing before it is open.
    pub fn credit(&self) -> AttachmentCredit {
        self.attachment.credit
    }

    /// The number of requests in flight, including those that wait.
    pub fn in_flight(&self) -> usize {
        self.slots.len() + self.held.len()
    }

    /// Takes the migration state that the previous importer sent with the device; it is complete once the device is
    /// open.
    pub fn take_migration_state(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.migration_state).into_payload().into_vec()
    }

    /// As [`ImporterAttachment::migrate`], with data for the successor.
    pub fn migrate_with(&mut self, successor: [u8; 32], migration_state: Vec<u8>) {
        self.attachment.migrate(successor, migration_state);
        self.is_still = true;
    }

    fn handle_migration_state(&mut self, body: Payload) -> Result<(), ProtocolViolation> {
        self.migration_state.push(body);
        match self.migration_state.len() > MIGRATION_STATE_BYTES_MAX {
            true => Err(ProtocolViolation::new(
                "migration state",
                MIGRATION_STATE_BYTES_MAX as u64,
                "migration state has 16 MiB at most",
            )),
            false => Ok(()),
        }
    }

    fn has_credit(&self, cost: u64) -> bool {
        let credit = self.attachment.credit;
        self.slots.len() < credit.requests.min(REQUESTS_MAX).into()
            && (self.bytes == 0 || self.bytes + cost <= u64::from(credit.bytes))
    }

    fn kind_of(&self, endpoint: EpAddr) -> Option<TransferType> {
        match endpoint.is_control() {
            true => Some(TransferType::Control),
            false => self.selection.endpoint(endpoint).map(|endpoint| endpoint.kind),
        }
    }

    fn way_of(&self, endpoint: EpAddr, kind: TransferType) -> (MessageUrgency, FlowId) {
        let urgency = if kind == TransferType::Bulk { MessageUrgency::Low } else { MessageUrgency::High };
        (urgency, FlowId(u32::from(self.attachment.number()) << 8 | u32::from(endpoint.as_byte())))
    }

    /// Sends waiting requests, as far as there is credit and nothing has to end first.
    fn release(&mut self, done: &mut CompletionQueue) {
        while self.attachment.is_open()
            && !self.is_still
            && self.settling == UsbRecoveryPhase::No
            && let Some(urb) = self.held.front()
            && self.has_credit(urb.length.into())
        {
            let urb = self.held.pop_front().expect("looked at just now");
            self.start(urb, done);
        }
    }

    fn start(&mut self, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        let Some(kind) = self.kind_of(urb.endpoint) else { return done.push(urb.fail(UrbStatus::Invalid)) };
        let payload = urb.take_payload();
        let (urgency, flow) = self.way_of(urb.endpoint, kind);
        let part = usb::request_part(&urb, kind);
        self.bytes += u64::from(urb.length);
        let timed = self.timing.is_due_of(kind, self.now).then_some(self.now);
        let lane = self.endpoints.enter(urb.endpoint, kind == TransferType::Bulk);
        let tag = self.slots.put(RemoteUsbRequest { timed, ..RemoteUsbRequest::new(Some(urb), lane) });
        let mut head = FrameHeader::new(FrameKind::Request, self.attachment.number(), tag_of(lane, tag));
        head.flags.timed = timed.is_some();
        self.attachment.say(OutboundMessage { head, part, payload, urgency, flow, done_at: None });
    }

    /// Withdraws the request with this tag. The cancel is sent behind the request.
    fn say_cancel(&mut self, tag: u16, endpoint: EpAddr) {
        let flight = self.slots.get_mut(tag).expect("it is in flight");
        if std::mem::replace(&mut flight.is_withdrawing, true) {
            return;
        }
        let on_wire = tag_of(flight.lane, tag);
        let kind = self.kind_of(endpoint).unwrap_or(TransferType::Bulk);
        let (urgency, flow) = self.way_of(endpoint, kind);
        let head = FrameHeader::new(FrameKind::Cancel, self.attachment.number(), on_wire);
        let (part, payload) = (ClassPart::empty(), Payload::Empty);
        self.attachment.say(OutboundMessage { head, part, payload, urgency, flow, done_at: None });
    }

    /// Puts a request that was taken back at its place among those that wait: senders rely on their order.
    fn hold_again(&mut self, urb: UrbInFlight) {
        let at = self.held.partition_point(|held| held.id < urb.id);
        self.held.insert(at, urb);
    }

    /// The next step of a reset or a restoration, if the last one is complete.
    fn settle(&mut self, done: &mut CompletionQueue) {
        if self.settling == UsbRecoveryPhase::Withdrawing && self.slots.is_empty() {
            let lane = self.endpoints.enter(EpAddr::CONTROL, false);
            let tag = self.slots.put(RemoteUsbRequest::new(None, lane));
            self.settling = UsbRecoveryPhase::Resetting;
            let head = FrameHeader::new(FrameKind::Request, self.attachment.number(), tag_of(lane, tag));
            let (part, payload) = (usb::reset_part(), Payload::Empty);
            let flow = FlowId(u32::from(self.attachment.number()) << 8);
            self.attachment.say(OutboundMessage {
                head,
                part,
                payload,
                urgency: MessageUrgency::High,
                flow,
                done_at: None,
            });
        } else if self.settling == UsbRecoveryPhase::Resetting && self.slots.is_empty() {
            self.settling = UsbRecoveryPhase::No;
        }
        self.release(done);
    }

    /// Handles what is the same for all classes.
    fn hear(&mut self, arrived: ReceivedFrame, done: &mut CompletionQueue) -> Result<(), ProtocolViolation> {
        if matches!(arrived.head.kind, FrameKind::Refused | FrameKind::Closed) {
            // The queued frames have no receiver any more.
            self.attachment.unsay();
        }
        let was_open = self.attachment.is_open();
        match self.attachment.handle_arrived(self.now, arrived)? {
            FrameMeaning::Opened(opened) => self.handle_opened(&opened, was_open, done),
            FrameMeaning::Ended(end) => {
                self.fail_all(status_of(end.cause), done);
                Ok(())
            }
            FrameMeaning::Own(_) | FrameMeaning::Part => Ok(()),
        }
    }

    /// The device is open. `has_come_back`: it was handed over, and its successor did not come.
    fn handle_opened(
        &mut self,
        opened: &OpenReply,
        has_come_back: bool,
        done: &mut CompletionQueue,
    ) -> Result<(), ProtocolViolation> {
        let description = UsbDescription::decode(&opened.info)?;
        let mut descriptors = descriptors_of(&description)?;
        let named = self.attachment.take_named_descriptors();
        // An exporter that was replaced by an earlier one tells nothing; the device is the same.
        (descriptors.strings, descriptors.bos) = match &named {
            Some(named) => named_descriptors::read(named),
            None => (self.descriptors.strings.clone(), self.descriptors.bos.clone()),
        };
        self.has_strings |= named.is_some();
        (self.is_still, self.attachment.inherits) = (false, None);
        let before = self.description.replace(description);
        if before.is_some_and(|before| self.description.as_ref().is_some_and(|now| is_another(&before, now))) {
            let message = "the device is another one: its descriptors differ".to_owned();
            self.end(AttachmentEndNotice { cause: AttachmentEndCause::Gone, message }, done);
            return Ok(());
        }
        let had = std::mem::replace(&mut self.descriptors, descriptors);
        if has_come_back {
            self.release(done);
        } else if had.configurations.is_empty() {
            let description = self.description.as_ref().expect("put there just now");
            self.selection.select_configuration(&self.descriptors, description.configuration);
            for &(interface, setting) in &description.alternates {
                self.selection.select_interface(&self.descriptors, interface, setting);
            }
            self.release(done);
        } else {
            self.restore(done);
        }
        Ok(())
    }

    /// The exporter had lost the session: sets its device up as the user here left it.
    fn restore(&mut self, done: &mut CompletionQueue) {
        let configuration = self.selection.configuration();
        let alternates = self.selection.alternates().to_vec();
        let setups = std::iter::once(SetupPacket::set_configuration(configuration))
            .chain(alternates.into_iter().map(|(interface, setting)| SetupPacket::set_interface(interface, setting)));
        let mut count = 0;
        for setup in setups.filter(|_| configuration != 0) {
            let urb = Urb::control(UrbId(self.next_own_id), setup, Payload::Empty);
            self.next_own_id += 1;
            count += 1;
            self.start(urb.launch(), done);
        }
        self.settling = if count > 0 { UsbRecoveryPhase::Restoring(count) } else { UsbRecoveryPhase::No };
        self.release(done);
    }

    fn handle_reply(&mut self, arrived: ReceivedFrame, done: &mut CompletionQueue) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, flags, .. } = arrived.head;
        let (lane, tag) = split_tag(arrived.head.tag);
        let unknown = ProtocolViolation::new("tag", tag.into(), "a reply answers a request, once");
        let Some(flight) = self.slots.get_mut(tag).filter(|flight| flight.lane == lane) else { return Err(unknown) };
        if flight.has_begun != (kind == FrameKind::Data) || flight.is_answered {
            return Err(unknown);
        }
        flight.has_begun = true;
        let mut body = arrived.body;
        if kind == FrameKind::Reply && flags.timed {
            flight.residence = Some(split_residence(&mut body)?);
        }
        if let Some(urb) = &flight.urb {
            if kind == FrameKind::Reply && !flags.plain {
                let (reply, count) = usb::decode_reply(urb, &body.contiguous())?;
                body.split_front(count);
                flight.missing = if urb.direction == TransferDirection::In { reply.actual as usize } else { 0 };
                flight.head = Some(reply);
            } else if kind == FrameKind::Reply {
                // At most as much as was requested; the last frame says how much it was.
                flight.missing = if urb.direction == TransferDirection::In { urb.length as usize } else { 0 };
            }
            let wrong =
                || ProtocolViolation::new("data", body.len() as u64, "no more comes in than was asked for or said");
            flight.missing = flight.missing.checked_sub(body.len()).ok_or_else(wrong)?;
            if !flags.more && flight.head.is_some() && flight.missing > 0 {
                return Err(wrong());
            }
            flight.data.push(body);
        }
        if !flags.more {
            self.finish(tag, done);
        }
        Ok(())
    }

    /// A cancel was answered: in either case nothing of the request is on its way any more.
    fn handle_cancelled(&mut self, tag: u16, done: &mut CompletionQueue) -> Result<(), ProtocolViolation> {
        let (lane, tag) = split_tag(tag);
        let withdrawing = self.slots.get_mut(tag).filter(|flight| flight.is_withdrawing && flight.lane == lane);
        let Some(flight) = withdrawing else {
            return Err(ProtocolViolation::new("tag", tag.into(), "an answered withdrawal was asked for"));
        };
        flight.is_withdrawing = false;
        if flight.is_answered {
            self.endpoints.leave(flight.endpoint);
            self.slots.forget(tag);
            self.settle(done);
        }
        Ok(())
    }

    fn finish(&mut self, tag: u16, done: &mut CompletionQueue) {
        let flight = self.slots.get_mut(tag).expect("it is in flight");
        flight.is_answered = true;
        if let (Some(left), Some(residence)) = (flight.timed, flight.residence) {
            self.timing.note(self.now - left, residence);
        }
        let residence = flight.residence.map(|residence| Duration::from_nanos(residence.device_ns.into()));
        let is_taken_back = flight.is_taken_back && self.is_still && flight.urb.is_some();
        self.bytes -= flight.cost;
        let (urb, head, data) = (flight.urb.take(), flight.head.take(), std::mem::take(&mut flight.data));
        if !flight.is_withdrawing {
            self.endpoints.leave(flight.endpoint);
            self.slots.forget(tag);
        }
        let has_nothing = head.as_ref().is_some_and(|head| head.status == UrbStatus::Cancelled && head.actual == 0);
        if is_taken_back && has_nothing {
            self.hold_again(urb.expect("what is taken back has its asker"));
        } else if let Some(urb) = urb {
            let mut finished = match head {
                None if urb.direction == TransferDirection::Out => urb.accept(),
                None => urb.answer(data.into_payload()),
                Some(reply) if reply.status == UrbStatus::Ok && !reply.iso.is_empty() => {
                    let mut finished = urb.done_iso(reply.iso, data.into_payload());
                    finished.start_frame = reply.start_frame;
                    finished
                }
                Some(reply) => {
                    let mut finished = urb.done(reply.status, reply.actual, data.into_payload());
                    finished.error_count =
                        reply.iso.iter().filter(|packet| packet.status != UrbStatus::Ok).count() as u32;
                    if !reply.iso.is_empty() {
                        finished.iso = reply.iso;
                    }
                    finished
                }
            };
            finished.residence = residence;
            note_selection(&mut self.selection, &self.descriptors, &finished);
            match &mut self.settling {
                UsbRecoveryPhase::Restoring(left) if finished.id.0 >= OWN_ID_FIRST => {
                    *left -= 1;
                    if *left == 0 {
                        self.settling = UsbRecoveryPhase::No;
                    }
                }
                _ if finished.id.0 >= OWN_ID_FIRST => {}
                _ => done.push(finished),
            }
        }
        self.settle(done);
    }

    /// Ends the attachment and all requests, also those that are still made.
    fn end(&mut self, end: AttachmentEndNotice, done: &mut CompletionQueue) {
        let status = status_of(end.cause);
        self.attachment.unsay();
        self.attachment.end(end);
        self.fail_all(status, done);
    }

    fn fail_all(&mut self, status: UrbStatus, done: &mut CompletionQueue) {
        self.bytes = 0;
        self.endpoints.clear();
        self.settling = UsbRecoveryPhase::No;
        let flights: Vec<UrbInFlight> = self.slots.take_all().filter_map(|(_, flight)| flight.urb).collect();
        for urb in flights.into_iter().chain(self.held.drain(..)) {
            let finished = urb.fail(status);
            if finished.id.0 < OWN_ID_FIRST {
                done.push(finished);
            }
        }
    }
}

/// Whether `other` is not the device of before (requirement N7: a name survives only for the same device).
fn is_another(before: &UsbDescription, now: &UsbDescription) -> bool {
    (before.speed, &before.descriptor, &before.configurations) != (now.speed, &now.descriptor, &now.configurations)
}

fn descriptors_of(description: &UsbDescription) -> Result<DescriptorSet, ProtocolViolation> {
    let wrong = |_| ProtocolViolation::new("descriptors", 0, "a device's descriptors are well formed");
    let device = DeviceDescriptor::parse(&description.descriptor).map_err(wrong)?;
    let mut configurations = Vec::new();
    for bytes in &description.configurations {
        let mut repairs = DescriptorRepairs::default();
        configurations.push(UsbConfiguration::read(bytes, description.speed, &mut repairs).map_err(wrong)?);
    }
    Ok(DescriptorSet { device, configurations, ..DescriptorSet::default() })
}

fn status_of(cause: AttachmentEndCause) -> UrbStatus {
    match cause {
        AttachmentEndCause::Device | AttachmentEndCause::Module => UrbStatus::Protocol,
        AttachmentEndCause::Requested
        | AttachmentEndCause::Network
        | AttachmentEndCause::Refused
        | AttachmentEndCause::Gone
        | AttachmentEndCause::Busy
        | AttachmentEndCause::Stale
        | AttachmentEndCause::Class
        | AttachmentEndCause::Reservation => UrbStatus::Gone,
    }
}

impl Device for RemoteUsb {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        self.description.as_ref().map_or(UsbSpeed::High, |description| description.speed)
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        self.now = now;
        if let AttachmentState::Ended(end) = self.attachment.state() {
            return done.push(urb.fail(status_of(end.cause)));
        }
        let may_go = self.attachment.is_open()
            && !self.is_still
            && self.settling == UsbRecoveryPhase::No
            && self.held.is_empty();
        if may_go && self.has_credit(urb.length.into()) {
            self.start(urb, done);
        } else {
            urb.own_payload();
            self.held.push_back(urb);
        }
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            let urb = self.held.remove(at).expect("found just now");
            return done.push(urb.fail(UrbStatus::Cancelled));
        }
        let found = self.slots.iter_mut().find_map(|(tag, flight)| {
            let endpoint = flight.urb.as_ref().filter(|urb| urb.id == id)?.endpoint;
            flight.is_taken_back = false;
            Some((tag, endpoint))
        });
        if let Some((tag, endpoint)) = found {
            self.say_cancel(tag, endpoint);
        }
    }

    /// Requests in flight end here at once. The exporter's device is reset when all of them have ended there, too;
    /// requests that are submitted meanwhile wait.
    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        let mut withdrawn = Vec::new();
        for (tag, flight) in self.slots.iter_mut() {
            if let Some(urb) = flight.urb.take() {
                // A request that was answered and waits for the answer to its cancel has no sender any more.
                withdrawn.push((tag, urb.endpoint));
                let finished = urb.fail(UrbStatus::Shutdown);
                if finished.id.0 < OWN_ID_FIRST {
                    done.push(finished);
                }
            }
        }
        for urb in self.held.drain(..) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        for (tag, endpoint) in withdrawn {
            self.say_cancel(tag, endpoint);
        }
        self.selection.clear();
        if self.attachment.is_open() {
            self.settling = UsbRecoveryPhase::Withdrawing;
            self.settle(done);
        }
    }

    fn is_gone(&self) -> bool {
        self.attachment.is_over()
    }
}

impl ImporterAttachment for RemoteUsb {
    type Done = CompletionQueue;

    fn attachment(&self) -> &AttachmentBase {
        &self.attachment
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        &mut self.attachment
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut CompletionQueue,
    ) -> Result<(), ProtocolViolation> {
        self.now = now;
        match arrived.head.kind {
            // An answer on another lane may arrive after the end.
            FrameKind::MigrationState | FrameKind::Reply | FrameKind::Data | FrameKind::Cancel if self.is_gone() => {
                Ok(())
            }
            // The description's further frames have no request of their own.
            FrameKind::Data if self.attachment.is_arriving() => self.hear(arrived, done),
            FrameKind::MigrationState | FrameKind::Data if self.attachment.is_expected() => {
                self.handle_migration_state(arrived.body)
            }
            FrameKind::Reply | FrameKind::Data => self.handle_reply(arrived, done),
            FrameKind::Cancel => self.handle_cancelled(arrived.head.tag, done),
            _ => self.hear(arrived, done),
        }
    }

    /// Ends requests whose outcome is unknown as errors of the device; they are not repeated.
    fn handle_renewed(&mut self, _now: Instant, done: &mut CompletionQueue) {
        let held = std::mem::take(&mut self.held);
        self.fail_all(UrbStatus::Protocol, done);
        self.held = held;
        self.migration_state = PayloadAssembler::default();
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut CompletionQueue) {
        self.end(AttachmentEndNotice { cause, message: message.to_owned() }, done);
    }

    fn poll_timed(&mut self) -> Option<RequestTiming> {
        self.timing.take()
    }

    fn use_lanes(&mut self, usable: LaneSet) {
        self.endpoints.set_usable(usable);
    }

    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        self.is_still = true;
        // Each may wait for something that its user has not done yet.
        let in_flight = self.slots.iter_mut().filter_map(|(tag, flight)| {
            let urb = flight.urb.as_ref()?;
            // Once is enough; and a request that its sender has withdrawn is not withdrawn here.
            let is_taken_back = flight.is_taken_back || !flight.is_withdrawing;
            Some((tag, urb.id, urb.direction == TransferDirection::In && is_taken_back))
        });
        let mut in_flight: Vec<(u16, UrbId, bool)> = in_flight.collect();
        // The last one first: data that arrives meanwhile belongs to the first.
        in_flight.sort_unstable_by_key(|(_, id, _)| std::cmp::Reverse(*id));
        for (tag, id, is_taken_back) in in_flight {
            self.cancel(now, id, done);
            if let Some(flight) = self.slots.get_mut(tag) {
                flight.is_taken_back = is_taken_back;
            }
        }
    }

    fn discard(&mut self, now: Instant, done: &mut Self::Done) -> usize {
        let thrown_away = self.in_flight_of().len();
        self.reset(now, done);
        thrown_away
    }

    fn is_still(&self) -> bool {
        self.slots.is_empty()
    }

    fn stores_data(&self) -> bool {
        self.descriptors().stores_data()
    }

    fn migrate(&mut self, successor: [u8; 32]) {
        self.migrate_with(successor, Vec::new());
    }
}

impl RemoteUsb {
    /// Requests that were not answered, without farbus's own, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &Urb> {
        let in_flight = self.slots.iter().filter_map(|(_, flight)| flight.urb.as_deref());
        in_flight.chain(self.held.iter().map(|urb| &**urb)).filter(|urb| urb.id.0 < OWN_ID_FIRST)
    }

    /// Requests that were not answered, without farbus's own: id, direction, length.
    pub fn in_flight_of(&self) -> Vec<(UrbId, TransferDirection, u32)> {
        self.requests().map(|urb| (urb.id, urb.direction, urb.length)).collect()
    }
}

impl MovableAttachment for RemoteUsb {
    /// # Panics
    /// If it was never open, or is over: then there is nothing to save.
    fn save(&self, to: &mut SnapshotWriter) {
        let description = self.description.as_ref().expect("what goes on was open");
        self.attachment.save(to);
        to.flag(self.attachment.is_moving);
        to.bytes(&description.encode());
        to.selection(&self.selection);
        self.attachment.save_credit(to);
        let (settling, count) = match self.settling {
            UsbRecoveryPhase::No => (0, 0),
            UsbRecoveryPhase::Withdrawing => (1, 0),
            UsbRecoveryPhase::Resetting => (2, 0),
            UsbRecoveryPhase::Restoring(count) => (3, count),
        };
        to.u8(settling);
        to.count(count);
        to.u64(self.next_own_id);
        self.attachment.save_opening(to);
        to.count(self.slots.len());
        for (tag, flight) in self.slots.iter() {
            to.u16(tag_of(flight.lane, tag));
            flight.save(to);
        }
        to.count(self.held.len());
        self.held.iter().for_each(|urb| to.urb(urb));
        self.attachment.save_known(to);
        to.flag(self.has_strings);
        to.bytes(&descriptors::encode(&named_descriptors::of(&self.descriptors), usize::MAX));
    }

    fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut remote = Self::over(AttachmentBase::restore(OPENED_BYTES_MAX, from)?);
        remote.is_still = from.flag("moving")?;
        remote.attachment.is_moving = remote.is_still;
        let description = UsbDescription::decode(from.bytes("description")?)?;
        remote.descriptors = descriptors_of(&description)?;
        remote.description = Some(description);
        remote.selection = from.selection(&remote.descriptors)?;
        remote.attachment.restore_credit(from)?;
        let (settling, count) = (from.u8("settling")?, from.u32("settling")?);
        remote.next_own_id = from.u64("next id")?;
        remote.attachment.restore_opening(from)?;
        // No request is begun before everything is valid: a request that is begun has to be answered.
        let (mut flights, mut urbs) = (Vec::new(), Vec::new());
        for _ in 0..from.count("requests in flight", 2)? {
            let (lane, tag) = split_tag(from.u16("tag")?);
            let (flight, urb) = RemoteUsbRequest::restore(lane, from)?;
            remote.endpoints.enter_again(flight.endpoint, lane)?;
            flights.push((tag, flight));
            urbs.extend(urb.map(|urb| (tag, urb)));
        }
        let held = read_held(from)?;
        remote.attachment.restore_known(from)?;
        // A snapshot of version 12 has no strings, as its exporter told none.
        if from.version() >= 13 {
            remote.has_strings = from.flag("strings")?;
            let named = descriptors::decode(from.bytes("descriptors")?)?;
            (remote.descriptors.strings, remote.descriptors.bos) = named_descriptors::read(&named);
        }
        remote.bytes = flights.iter().filter(|(_, flight)| !flight.is_answered).map(|(_, flight)| flight.cost).sum();
        let count_in_flight = flights.len() as u64;
        let twice = |_| ProtocolViolation::new("tag", count_in_flight, "a tag names one request");
        remote.slots = TagSlots::of(flights).map_err(twice)?;
        if remote.next_own_id < OWN_ID_FIRST {
            return Err(ProtocolViolation::new("next id", remote.next_own_id, "our own ids are beyond a user's"));
        }
        let own = urbs.iter().filter(|(_, urb)| urb.id.0 >= OWN_ID_FIRST).count();
        let is_waiting = !remote.slots.is_empty();
        remote.settling = match (settling, count as usize) {
            (0, 0) => UsbRecoveryPhase::No,
            (1, 0) if is_waiting => UsbRecoveryPhase::Withdrawing,
            (2, 0) if is_waiting => UsbRecoveryPhase::Resetting,
            (3, count @ 1..) if count == own => UsbRecoveryPhase::Restoring(count),
            _ => return Err(ProtocolViolation::new("settling", settling.into(), "what is waited for is in flight")),
        };
        for (tag, urb) in urbs {
            let flight = remote.slots.get_mut(tag).expect("put there just now");
            flight.urb = Some(urb.launch());
        }
        remote.held = held.into_iter().map(Urb::launch).collect();
        Ok(remote)
    }

    fn hand_over(&mut self) {
        self.slots.take_all().for_each(|(_, mut flight)| flight.hand_over());
        self.held.drain(..).for_each(|urb| drop(urb.recall()));
    }
}

fn read_held(from: &mut FieldReader<'_>) -> Result<Vec<Urb>, ProtocolViolation> {
    let mut held = Vec::new();
    for _ in 0..from.count("requests held", 8)? {
        let urb = from.urb()?;
        if urb.direction == TransferDirection::Out && urb.payload.len() != urb.length as usize {
            return Err(ProtocolViolation::new("data", urb.payload.len() as u64, "what is to be sent is held whole"));
        }
        held.push(urb);
    }
    Ok(held)
}

impl RemoteUsbRequest {
    fn save(&self, to: &mut SnapshotWriter) {
        to.u32(self.cost.try_into().expect("a transfer's length has 32 bits"));
        to.u8(self.endpoint.as_byte());
        for flag in [self.has_begun, self.is_withdrawing, self.is_answered, self.urb.is_some()] {
            to.flag(flag);
        }
        let Some(urb) = &self.urb else { return };
        to.urb(urb);
        to.flag(self.head.is_some());
        if let Some(reply) = &self.head {
            to.bytes(&reply.encode());
        }
        to.runs(self.data.len(), self.data.runs());
    }

    /// What the request was, and whose: the sender's request is not begun yet.
    fn restore(lane: u8, from: &mut FieldReader<'_>) -> Result<(Self, Option<Urb>), ProtocolViolation> {
        let mut flight = Self::new(None, lane);
        flight.cost = from.u32("bytes in flight")?.into();
        flight.endpoint = EpAddr::from_byte(from.u8("endpoint")?);
        flight.has_begun = from.flag("begun")?;
        flight.is_withdrawing = from.flag("withdrawing")?;
        flight.is_answered = from.flag("answered")?;
        let has_asker = from.flag("asker")?;
        if flight.is_answered && (has_asker || !flight.is_withdrawing) {
            return Err(ProtocolViolation::new(
                "answered",
                1,
                "what was answered stays for its withdrawal's sake alone",
            ));
        }
        if !has_asker {
            return Ok((flight, None));
        }
        let mut urb = from.urb()?;
        if urb.endpoint != flight.endpoint {
            return Err(ProtocolViolation::new(
                "endpoint",
                urb.endpoint.as_byte().into(),
                "a request is at its endpoint",
            ));
        }
        urb.payload = Payload::Empty;
        if from.flag("reply")? {
            let bytes = from.bytes("reply")?;
            flight.head = Some(usb::decode_reply(&urb, bytes)?.0);
        }
        let data = from.payload("data")?;
        let expected = match (&flight.head, urb.direction, flight.has_begun) {
            (_, TransferDirection::In, false) | (_, TransferDirection::Out, _) => 0,
            (Some(reply), TransferDirection::In, true) => reply.actual as usize,
            (None, TransferDirection::In, true) => urb.length as usize,
        };
        let wrong = ProtocolViolation::new("data", data.len() as u64, "no more came in than was asked for or said");
        flight.missing = expected.checked_sub(data.len()).ok_or(wrong)?;
        if flight.head.as_ref().is_some_and(|_| !flight.has_begun) || flight.cost != u64::from(urb.length) {
            return Err(ProtocolViolation::new("bytes in flight", flight.cost, "a request's length is what it costs"));
        }
        flight.data = data.into();
        Ok((flight, Some(urb)))
    }

    fn hand_over(&mut self) {
        if let Some(urb) = self.urb.take() {
            drop(urb.recall());
        }
    }
}
