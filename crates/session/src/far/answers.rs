//! Caches a device's constant answers: they are requested once, all at the same time, and repeated to any later
//! request.
//!
//! | descriptor | requested ahead | dropped |
//! |---|---|---|
//! | device and configuration | never: they were read when the device was opened | never |
//! | strings in US English and their language table; BOS from USB 2.01 on; at full speed the device qualifier | when the device is there | strings after a vendor OUT request, which may have changed them |
//! | HID report | after SET_CONFIGURATION | after SET_CONFIGURATION, SET_INTERFACE, a reset |
//! | any other of these kinds | no, but remembered once the user asked | by the same rules |
//!
//! GET_STATUS, GET_CONFIGURATION, GET_INTERFACE and all class requests go to the device. So does every request made
//! while the user's previous control request is unanswered, because control requests are answered in order.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::descriptor::{LANGUAGE_EN_US, kind};
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{
    CompletionQueue, DescriptorSet, Instant, Payload, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId,
    UrbInFlight, UrbStatus, UsbSpeed,
};

use super::actions::FarActionQueue;
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Answers that are remembered, mostly strings. Further requests go to the device.
const ANSWERS_MAX: usize = 256;
/// Most strings that are requested ahead.
const STRINGS_MAX: usize = 32;
/// Length asked for a string: the longest possible (USB 2.0 §9.6.7), and what Linux asks for.
const STRING_BYTES: u16 = 255;
/// Length asked for a BOS: those of docks have 100 bytes.
const BOS_BYTES: u16 = 1024;
/// First `bcdUSB` of devices that have a BOS (USB 2.0 LPM ECN).
const BOS_BCD: u16 = 0x0201;

/// HID 1.11 §7.1.
mod hid {
    pub const CLASS: u8 = 3;
    pub const DESCRIPTOR: u8 = 0x21;
    pub const REPORT: u8 = 0x22;
}

/// Identifies a descriptor: `bmRequestType`, `wValue`, `wIndex`.
type DescriptorKey = (u8, u16, u16);

/// The known answers, and the requests for further ones.
#[derive(Debug, Default)]
pub struct DescriptorCache {
    known: BTreeMap<DescriptorKey, CachedDescriptor>,
    descriptor_fetches: Vec<DescriptorFetch>,
    /// The user's requests that are with the device and whose answers are to be remembered.
    passing: Vec<(UrbId, DescriptorKey)>,
    round_trip: Option<Duration>,
}

#[derive(Clone, Debug)]
enum CachedDescriptor {
    Bytes(Vec<u8>),
    /// The device does not have this descriptor.
    Stall,
}

#[derive(Debug)]
struct DescriptorFetch {
    id: UrbId,
    key: DescriptorKey,
    since: Instant,
    /// The user's request for the same descriptor, which waits for this answer.
    joined: Option<UrbInFlight>,
}

/// The descriptor type in a `wValue`.
fn kind_of(value: u16) -> u8 {
    (value >> 8) as u8
}

/// The descriptor that is requested, if it is of a kind that does not change.
fn key_of(setup: SetupPacket) -> Option<DescriptorKey> {
    let is_asked = setup.kind() == RequestKind::Standard
        && setup.request == request::GET_DESCRIPTOR
        && setup.direction() == TransferDirection::In
        && setup.length > 0;
    let lasts = match setup.recipient() {
        RequestRecipient::Device => {
            [kind::DEVICE, kind::CONFIGURATION, kind::STRING, kind::DEVICE_QUALIFIER, kind::OTHER_SPEED, kind::BOS]
                .contains(&kind_of(setup.value))
        }
        RequestRecipient::Interface => [hid::DESCRIPTOR, hid::REPORT].contains(&kind_of(setup.value)),
        RequestRecipient::Endpoint | RequestRecipient::Other => false,
    };
    (is_asked && lasts).then_some((setup.request_type, setup.value, setup.index))
}

/// Whether `bytes` are the whole descriptor, given that `length` bytes were requested.
fn is_whole((_, value, _): DescriptorKey, bytes: &[u8], length: u32) -> bool {
    let total = match (kind_of(value), bytes) {
        (kind::BOS | kind::OTHER_SPEED, [_, _, low, high, ..]) => usize::from(u16::from_le_bytes([*low, *high])),
        // A report descriptor does not contain its length: it is whole if it is shorter than the request.
        (hid::REPORT, _) => return bytes.len() < length as usize,
        (kind::BOS | kind::OTHER_SPEED, _) => return false,
        (_, [length, ..]) => usize::from(*length),
        (_, []) => return false,
    };
    bytes.len() == total && total >= 2
}

impl DescriptorCache {
    /// Requests all descriptors that the user of a device will want.
    pub fn ask_ahead(&mut self, now: Instant, all: &DescriptorSet, speed: UsbSpeed, actions: &mut FarActionQueue) {
        let device = all.device;
        if device.usb_bcd >= BOS_BCD {
            self.ask(now, SetupPacket::get_descriptor(kind::BOS, 0, 0, BOS_BYTES), actions);
        }
        if speed == UsbSpeed::Full && device.usb_bcd >= 0x0200 {
            self.ask(now, SetupPacket::get_descriptor(kind::DEVICE_QUALIFIER, 0, 0, 10), actions);
        }
        let strings: Vec<u8> = all.string_indexes().take(STRINGS_MAX).collect();
        if !strings.is_empty() {
            self.ask(now, SetupPacket::get_descriptor(kind::STRING, 0, 0, STRING_BYTES), actions);
        }
        for index in strings {
            let setup = SetupPacket::get_descriptor(kind::STRING, index, LANGUAGE_EN_US, STRING_BYTES);
            self.ask(now, setup, actions);
        }
    }

    /// Requests the HID report descriptors of a configuration that was just selected.
    pub fn ask_reports(&mut self, now: Instant, all: &DescriptorSet, configuration: u8, actions: &mut FarActionQueue) {
        let Some(configuration) = all.configuration(configuration) else { return };
        let (mut interface, mut class) = (0, 0);
        for descriptor in descriptors_in(&configuration.bytes) {
            match *descriptor {
                [_, kind::INTERFACE, number, 0, _, of, ..] => (interface, class) = (number, of),
                // The reports of alternate settings come after SET_INTERFACE.
                [_, kind::INTERFACE, ..] => class = 0,
                [_, hid::DESCRIPTOR, _, _, _, _, hid::REPORT, low, high, ..] if class == hid::CLASS => {
                    let length = u16::from_le_bytes([low, high]);
                    let mut setup = SetupPacket::get_descriptor(hid::REPORT, 0, interface.into(), length);
                    setup.request_type = 0x81;
                    if length > 0 {
                        self.ask(now, setup, actions);
                    }
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, now: Instant, setup: SetupPacket, actions: &mut FarActionQueue) {
        let key = key_of(setup).expect("only what lasts is asked ahead");
        if self.known.contains_key(&key) || self.descriptor_fetches.iter().any(|fetch| fetch.key == key) {
            return;
        }
        let id = actions.ask(Urb::control(UrbId(0), setup, Payload::Empty));
        self.descriptor_fetches.push(DescriptorFetch { id, key, since: now, joined: None });
    }

    /// Time of the quickest answer: the round trip and the device's own time.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Answers the user's request, now or when the answer arrives; returns it if the device must answer it. Call it
    /// only if no other control request of the user is open.
    pub fn meet(&mut self, all: &DescriptorSet, urb: UrbInFlight, done: &mut CompletionQueue) -> Option<UrbInFlight> {
        let Some(key) = key_of(urb.setup) else { return Some(urb) };
        let index = usize::from(urb.setup.value & 0xff);
        let own = match kind_of(urb.setup.value) {
            kind::DEVICE if index == 0 => Some(all.device.to_bytes().to_vec()),
            kind::CONFIGURATION => all.configurations.get(index).map(|configuration| configuration.bytes.clone()),
            _ => None,
        };
        match own.map(CachedDescriptor::Bytes).as_ref().or(self.known.get(&key)) {
            Some(known) => done.push(answer(urb, known)),
            None => match self.descriptor_fetches.iter_mut().find(|fetch| fetch.key == key && fetch.joined.is_none()) {
                Some(fetch) => fetch.joined = Some(urb),
                None => return Some(urb),
            },
        }
        None
    }

    /// A request goes to the device: drops the answers that it may change.
    pub fn note_passing(&mut self, urb: &Urb) {
        let setup = urb.setup;
        if let Some(key) = key_of(setup) {
            self.passing.push((urb.id, key));
        }
        if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
            self.known.retain(|key, _| key.0 != 0x81);
        } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
            self.known.retain(|key, _| key.0 != 0x81 || key.2 != setup.index);
        } else if setup.request == request::SET_DESCRIPTOR && setup.kind() == RequestKind::Standard {
            self.known.clear();
        } else if setup.kind() == RequestKind::Vendor && setup.direction() == TransferDirection::Out {
            self.known.retain(|key, _| kind_of(key.1) != kind::STRING);
        }
    }

    /// A request of the user that went to the device has completed: remembers the answer.
    pub fn note_passed(&mut self, answer: &UrbCompletion) {
        let Some(at) = self.passing.iter().position(|(id, _)| *id == answer.id) else { return };
        let (_, key) = self.passing.swap_remove(at);
        self.learn(key, answer);
    }

    fn learn(&mut self, key: DescriptorKey, answer: &UrbCompletion) {
        let known = match answer.status {
            UrbStatus::Ok => {
                let bytes = answer.payload.contiguous().into_owned();
                CachedDescriptor::Bytes(bytes).whole(key, answer.length)
            }
            // A stalled string is not remembered: a slow device may have it later.
            UrbStatus::Stall if kind_of(key.1) == kind::DEVICE_QUALIFIER => Some(CachedDescriptor::Stall),
            _ => None,
        };
        if let Some(known) = known
            && self.known.len() < ANSWERS_MAX
        {
            self.known.insert(key, known);
        }
    }

    /// A request of the layer's own has completed; returns it if it is not one of these.
    pub fn handle_done(
        &mut self,
        now: Instant,
        done_own: UrbCompletion,
        actions: &mut FarActionQueue,
        done: &mut CompletionQueue,
    ) -> Option<UrbCompletion> {
        let Some(at) = self.descriptor_fetches.iter().position(|fetch| fetch.id == done_own.id) else {
            return Some(done_own);
        };
        let DescriptorFetch { key, since, joined, .. } = self.descriptor_fetches.remove(at);
        if matches!(done_own.status, UrbStatus::Ok | UrbStatus::Stall) {
            let took = now - since;
            self.round_trip = Some(self.round_trip.map_or(took, |least| least.min(took)));
        }
        // A report descriptor is requested in its exact length, so a full answer is whole.
        let is_report = kind_of(key.1) == hid::REPORT;
        let is_all = is_report && done_own.status == UrbStatus::Ok && done_own.actual == done_own.length;
        match is_all {
            true => {
                let bytes = done_own.payload.contiguous().into_owned();
                self.known.insert(key, CachedDescriptor::Bytes(bytes));
            }
            false => self.learn(key, &done_own),
        }
        match (joined, self.known.get(&key)) {
            (Some(urb), Some(known)) => done.push(answer(urb, known)),
            (Some(urb), None) => actions.pass_on(urb),
            (None, _) => {}
        }
        None
    }

    /// Cancels a request of the user that waits for an answer; returns whether it is one of these.
    pub fn cancel(&mut self, id: UrbId, done: &mut CompletionQueue) -> bool {
        let is_it = |fetch: &mut DescriptorFetch| fetch.joined.as_ref().is_some_and(|urb| urb.id == id);
        let Some(fetch) = self.descriptor_fetches.iter_mut().find_map(|fetch| is_it(fetch).then_some(fetch)) else {
            return false;
        };
        done.push(fetch.joined.take().expect("looked at just now").fail(UrbStatus::Cancelled));
        true
    }

    /// The device was reset: drops what is being requested, and ends the requests that wait for it.
    pub fn handle_reset(&mut self, done: &mut CompletionQueue) {
        self.known.retain(|key, _| key.0 != 0x81);
        self.passing.clear();
        let joined = self.descriptor_fetches.drain(..).filter_map(|fetch| fetch.joined);
        joined.for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
    }

    /// The user's requests that wait for an answer.
    pub fn waiting(&self) -> impl Iterator<Item = &Urb> {
        self.descriptor_fetches.iter().filter_map(|fetch| fetch.joined.as_deref())
    }

    /// Lets go of the waiting requests: another process answers them.
    pub fn hand_over(&mut self) {
        self.descriptor_fetches.drain(..).filter_map(|fetch| fetch.joined).for_each(|urb| drop(urb.recall()));
    }
}

impl CachedDescriptor {
    fn whole(self, key: DescriptorKey, length: u32) -> Option<Self> {
        match &self {
            CachedDescriptor::Bytes(bytes) => is_whole(key, bytes, length).then_some(self),
            CachedDescriptor::Stall => Some(self),
        }
    }
}

fn answer(urb: UrbInFlight, known: &CachedDescriptor) -> UrbCompletion {
    match known {
        CachedDescriptor::Stall => urb.fail(UrbStatus::Stall),
        CachedDescriptor::Bytes(bytes) => {
            let count = bytes.len().min(urb.length as usize);
            let status =
                if count < urb.length as usize && urb.flags.short_not_ok { UrbStatus::Short } else { UrbStatus::Ok };
            urb.done(status, count as u32, bytes[..count].into())
        }
    }
}

/// The descriptors of a configuration that was parsed before.
fn descriptors_in(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(*rest.first()?);
        let (one, behind) = rest.split_at_checked(length).filter(|_| length >= 2)?;
        rest = behind;
        Some(one)
    })
}

impl DescriptorCache {
    /// Writes what is being requested to a snapshot. Known answers are left out, because the device has them.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.descriptor_fetches.len());
        for DescriptorFetch { id, key, joined, .. } in &self.descriptor_fetches {
            to.u64(id.0);
            to.u8(key.0);
            to.u16(key.1);
            to.u16(key.2);
            to.flag(joined.is_some());
            if let Some(urb) = joined {
                to.urb(urb);
            }
        }
    }

    /// Restores it from a snapshot, together with the user's waiting requests, which [`DescriptorCache::launch`] takes.
    /// `take` says whether the device has a control request with this id.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(
        now: Instant,
        from: &mut FieldReader<'_>,
        mut take: impl FnMut(UrbId) -> bool,
    ) -> Result<(Self, Vec<(UrbId, Urb)>), ProtocolViolation> {
        let (mut answers, mut waiting) = (Self::default(), Vec::new());
        for _ in 0..from.count("descriptors asked for", 14)? {
            let id = UrbId(from.u64("asked")?);
            let key = (from.u8("recipient")?, from.u16("value")?, from.u16("index")?);
            if !take(id) {
                return Err(ProtocolViolation::new("asked", id.0, "what was asked is with the device, once"));
            }
            if from.flag("joined")? {
                let urb = from.urb()?;
                if key_of(urb.setup) != Some(key)
                    || !urb.endpoint.is_control()
                    || urb.direction != TransferDirection::In
                {
                    return Err(ProtocolViolation::new("joined", urb.id.0, "it asks for the same"));
                }
                waiting.push((id, urb));
            }
            answers.descriptor_fetches.push(DescriptorFetch { id, key, since: now, joined: None });
        }
        Ok((answers, waiting))
    }

    /// Takes over the user's waiting requests.
    pub fn launch(&mut self, waiting: Vec<(UrbId, Urb)>) {
        for (id, urb) in waiting {
            let fetch = self.descriptor_fetches.iter_mut().find(|fetch| fetch.id == id);
            fetch.expect("it was read with what it waits for").joined = Some(urb.launch());
        }
    }
}
