//! A device that can be exchanged for its twin while it is in use (requirement N12).
//!
//! Two adapters of one model are the same device to their user, except for the settings that the user has made on one
//! and not on the other. A [`TwinnedDevice`] device remembers these ([`settings`] lists them) and lets another device
//! take its place when its owner asks for it ([`OwnerCommand::Swap`]):
//!
//! | stage | the user's requests | the twin |
//! |---|---|---|
//! | `Preparing` | go to the first device; settings among them are repeated on the twin | gets all settings of the first device, one after the other |
//! | `Draining` | new ones wait; those that wait for data are cancelled, all others are waited for | gets the remaining settings and halts |
//! | the switch | cancelled ones, then waiting ones, are submitted to the twin | is the device |
//!
//! A request that meets the switch ends once:
//!
//! | the request | outcome |
//! |---|---|
//! | waits for data and has none | is submitted to the twin |
//! | waits for data and has some | ends with what it has |
//! | has ended before its cancel | ends as it did |
//! | is cancelled by the user while the first device has it | is cancelled there |
//! | is cancelled by the user while it waits for the twin | ends as cancelled |
//! | sends data that the first device does not take within [`DRAIN_TIME_MAX`] | prevents the switch: everything continues with the first device |
//! | sends data as the first device is unplugged | fails as on a bad cable, because it is not known what was taken |
//!
//! The first device may be unplugged as soon as an exchange has begun; before that, unplugging it ends its user's
//! session. A reset of the port, and the end of a session, switch at once, because there are no settings to transfer
//! then.

mod difference;
pub mod settings;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::descriptor::{endpoint_of_index, kind, string_to_bytes};
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceSwapOutcome, DeviceSwapReport,
    EpAddr, Instant, OwnerCommand, OwnerCommandError, Payload, SetupPacket, SwapCandidate, TransferDirection, Urb,
    UrbCompletion, UrbFlags, UrbId, UrbInFlight, UrbStatus,
};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};
pub use difference::difference;
use settings::{ControlSetting, DeviceSettings, is_setting};

/// How long requests with data may take to complete before the exchange is given up. A serial line at 300 baud empties
/// its buffer of 64 bytes in two seconds.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);
/// How long the twin may take for all settings.
pub const PREPARE_TIME_MAX: Duration = Duration::from_secs(10);
/// How often the twin is polled meanwhile: the caller does not wait on the twin's readiness.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A device that can be exchanged for its twin. Both are of the type `D`; for `dyn Device`, [`OwnerCommand::Swap`] does
/// what [`TwinnedDevice::swap`] does.
pub struct TwinnedDevice<D: Device + ?Sized + 'static = dyn Device> {
    device: Box<D>,
    /// The descriptors of the first device, after an exchange.
    first: Option<DescriptorSet>,
    /// Requests in flight, in the order of their submission. Those that complete are nearly always among the first.
    urbs: VecDeque<RepeatableUrb>,
    asked_so_far: u64,
    settings: DeviceSettings,
    /// Endpoints that are halted, by [`EpAddr::index`].
    halted: u32,
    done: CompletionQueue,
    exchange: Option<Box<TwinExchange<D>>>,
}

/// What must be known of a request to submit it again, and to remember its setting.
struct RepeatableUrb {
    id: UrbId,
    order: u64,
    interval: u32,
    stream: u16,
    flags: UrbFlags,
    is_waiting_for_data: bool,
    is_withdrawn: bool,
    /// The data stage of a request that makes a setting.
    data: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TwinExchangePhase {
    Preparing,
    Draining { has_halts: bool },
}

struct TwinExchange<D: Device + ?Sized + 'static> {
    twin: Box<D>,
    order: SwapCandidate<D>,
    done: CompletionQueue,
    stage: TwinExchangePhase,
    since: Instant,
    /// When the twin is polled again.
    look_at: Instant,
    /// Settings that the twin has not got yet.
    untold: VecDeque<ControlSetting>,
    /// The setting that the twin is getting.
    telling: Option<SetupPacket>,
    replayed: usize,
    held: VecDeque<UrbInFlight>,
    /// Requests cancelled on the first device, in the order of their submission.
    again: BTreeMap<u64, Urb>,
}

impl<D: Device + ?Sized + 'static> TwinnedDevice<D> {
    /// Wraps `device`, the first of the two.
    pub fn new(device: Box<D>) -> Self {
        Self {
            device,
            first: None,
            urbs: VecDeque::new(),
            asked_so_far: 0,
            settings: DeviceSettings::default(),
            halted: 0,
            // While the device works, this holds the caller's pool.
            done: CompletionQueue::new(BufferPool::new(0)),
            exchange: None,
        }
    }

    fn with<R>(&mut self, done: &mut CompletionQueue, act: impl FnOnce(&mut D, &mut CompletionQueue) -> R) -> R {
        if self.exchange.is_none() {
            // Completions are inspected on their way.
            let before = done.len();
            let result = act(&mut *self.device, done);
            for answer in done.after(before) {
                let found = self.urbs.iter().position(|urb| urb.id == answer.id);
                if let Some(urb) = found.and_then(|at| self.urbs.remove(at)) {
                    self.learn(answer, urb.data);
                }
            }
            return result;
        }
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        let result = act(&mut *self.device, &mut self.done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        while let Some(answer) = self.done.pop() {
            self.handle_answer(answer, done);
        }
        result
    }

    fn ask(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        let tells = urb.endpoint.is_control() && is_setting(self.shown(), self.selection().configuration(), urb.setup);
        self.note(&urb, tells);
        self.with(done, |device, done| device.submit(now, urb, done));
    }

    fn handle_answer(&mut self, mut answer: UrbCompletion, done: &mut CompletionQueue) {
        let found = self.urbs.iter().position(|urb| urb.id == answer.id);
        let Some(mut urb) = found.and_then(|at| self.urbs.remove(at)) else { return done.push(answer) };
        self.learn(&answer, urb.data.take());
        let Some(exchange) = &mut self.exchange else { return done.push(answer) };
        let is_lost = answer.status == UrbStatus::Gone;
        let was_taken =
            is_lost || (answer.status == UrbStatus::Cancelled && exchange.stage != TwinExchangePhase::Preparing);
        if was_taken && !urb.is_withdrawn {
            if urb.is_waiting_for_data {
                if answer.actual == 0 {
                    exchange.again.insert(urb.order, asked_again(answer, &urb));
                    return;
                }
                answer.status = if urb.flags.short_not_ok { UrbStatus::Short } else { UrbStatus::Ok };
            } else if is_lost {
                answer.status = UrbStatus::Protocol;
            }
        }
        done.push(answer);
    }

    /// Remembers settings and halts from a completed request, and queues settings for the twin.
    fn learn(&mut self, answer: &UrbCompletion, data: Option<Vec<u8>>) {
        let (setup, endpoint) = (answer.setup, answer.endpoint);
        if !endpoint.is_control() {
            if answer.status == UrbStatus::Stall {
                self.halted |= bit(endpoint);
            }
            return;
        }
        if answer.status != UrbStatus::Ok {
            return;
        }
        let is_halt = setup.value == request::ENDPOINT_HALT;
        let setting = ControlSetting { setup, data: data.unwrap_or_default() };
        let is_told = if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
            self.halted = 0;
            self.settings.forget_interfaces();
            true
        } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
            let configuration = self.shown().configuration(self.device.selection().configuration());
            let settings = configuration.into_iter().flat_map(|c| &c.settings);
            let theirs = settings.filter(|setting| u16::from(setting.interface) == setup.index);
            self.halted &= !theirs.flat_map(|setting| &setting.endpoints).fold(0, |all, e| all | bit(e.address));
            true
        } else if setup.is_standard(request::CLEAR_FEATURE, RequestRecipient::Endpoint) && is_halt {
            self.halted &= !bit(endpoint_of_index(setup.index));
            false
        } else if setup.is_standard(request::SET_FEATURE, RequestRecipient::Endpoint) && is_halt {
            self.halted |= bit(endpoint_of_index(setup.index));
            false
        } else {
            let configuration = self.device.selection().configuration();
            let shown = self.first.as_ref().unwrap_or_else(|| self.device.descriptors());
            let is_told =
                is_setting(shown, configuration, setup) && setting.data.len() == usize::from(setting.setup.length);
            if is_told {
                self.settings.note(shown, configuration, setting.clone());
            }
            is_told
        };
        if let Some(exchange) = self.exchange.as_mut().filter(|_| is_told) {
            exchange.untold.push_back(setting);
        }
    }

    /// What the user sees: the descriptors of the first device.
    fn shown(&self) -> &DescriptorSet {
        self.first.as_ref().unwrap_or_else(|| self.device.descriptors())
    }

    /// The first difference that the user would notice if `twin` replaced the device.
    pub fn difference(&self, twin: &D) -> Option<String> {
        difference((self.shown(), self.device.speed()), (twin.descriptors(), twin.speed()))
    }

    /// Whether the device is being exchanged.
    pub fn is_swapping(&self) -> bool {
        self.exchange.is_some()
    }

    /// Notes a request that the device has already: another process submitted it, and this one continues. Data that
    /// was sent with it and is not known any more is not told to a twin.
    pub fn adopt(&mut self, urb: &Urb) {
        let is_known = urb.direction == TransferDirection::In || urb.payload.len() == urb.length as usize;
        let tells = urb.endpoint.is_control()
            && is_known
            && is_setting(self.shown(), self.selection().configuration(), urb.setup);
        self.note(urb, tells);
    }

    fn note(&mut self, urb: &Urb, tells: bool) {
        self.urbs.push_back(RepeatableUrb {
            id: urb.id,
            order: self.asked_so_far,
            interval: urb.interval,
            stream: urb.stream,
            flags: urb.flags,
            is_waiting_for_data: is_repeatable(urb.endpoint, urb.direction),
            is_withdrawn: false,
            data: tells.then(|| urb.payload.contiguous().into_owned()),
        });
        self.asked_so_far += 1;
    }

    /// Writes what the user has told the device to a snapshot, for a process that continues with the same device.
    pub fn save_settings(&self, to: &mut SnapshotWriter) {
        to.u32(self.halted);
        self.settings.save(to);
    }

    /// Restores what [`TwinnedDevice::save_settings`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot ends too early.
    pub fn restore_settings(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let (halted, settings) = (from.u32("halted")?, DeviceSettings::restore(from)?);
        (self.halted, self.settings) = (halted, settings);
        Ok(())
    }

    // The exchange.

    /// Begins to replace the device by the twin. The outcome is reported by [`SwapCandidate::tell`].
    ///
    /// # Errors
    /// Why it did not begin; the twin of a refused order is told or dropped.
    pub fn swap(
        &mut self,
        now: Instant,
        order: &SwapCandidate<D>,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        if self.exchange.is_some() {
            return Err(OwnerCommandError("it is being swapped already".into()));
        }
        if self.device.is_gone() {
            return Err(OwnerCommandError("it was unplugged".into()));
        }
        let twin = order.take().ok_or_else(|| OwnerCommandError("the other device was taken already".into()))?;
        if let Some(difference) = self.difference(&twin) {
            let why = format!("it is not like the other device: {difference}");
            order.tell(DeviceSwapOutcome::Failed { twin: Some(twin), why: why.clone() });
            return Err(OwnerCommandError(why));
        }
        let selection = self.device.selection();
        let selected =
            (selection.configuration() != 0).then(|| SetupPacket::set_configuration(selection.configuration()));
        let alternates = selection.alternates().iter();
        let alternates = alternates.map(|&(interface, alternate)| SetupPacket::set_interface(interface, alternate));
        let selected = selected.into_iter().chain(alternates).map(|setup| ControlSetting { setup, data: Vec::new() });
        self.exchange = Some(Box::new(TwinExchange {
            twin,
            order: order.clone(),
            done: CompletionQueue::new(BufferPool::new(0)),
            stage: TwinExchangePhase::Preparing,
            since: now,
            look_at: now + LOOK_EVERY,
            untold: selected.chain(self.settings.iter().cloned()).collect(),
            telling: None,
            replayed: 0,
            held: VecDeque::new(),
            again: BTreeMap::new(),
        }));
        self.go_on(now, done);
        Ok(())
    }

    /// Continues the exchange as far as possible now.
    fn go_on(&mut self, now: Instant, done: &mut CompletionQueue) {
        while let Some(exchange) = &mut self.exchange {
            match exchange.tell(now) {
                Ok(true) => {}
                Ok(false) if now - exchange.since > PREPARE_TIME_MAX => {
                    return self.give_up(now, "the other device does not answer".into(), done);
                }
                Ok(false) => return,
                Err(why) => return self.give_up(now, why, done),
            }
            match exchange.stage {
                TwinExchangePhase::Preparing => {
                    (exchange.stage, exchange.since) = (TwinExchangePhase::Draining { has_halts: false }, now);
                    self.take_back(now, done);
                }
                TwinExchangePhase::Draining { .. } if !self.urbs.is_empty() => {
                    if now - exchange.since > DRAIN_TIME_MAX {
                        let why = "it does not take what was sent to it; try again when less is under way";
                        self.give_up(now, why.into(), done);
                    }
                    return;
                }
                TwinExchangePhase::Draining { has_halts: false } => {
                    exchange.stage = TwinExchangePhase::Draining { has_halts: true };
                    let endpoints = self.device.selection().endpoints().map(|endpoint| endpoint.address);
                    let halted = endpoints.filter(|endpoint| self.halted & bit(*endpoint) != 0);
                    exchange
                        .untold
                        .extend(halted.map(|endpoint| ControlSetting { setup: halt(endpoint), data: Vec::new() }));
                }
                TwinExchangePhase::Draining { has_halts: true } => return self.switch(now, done),
            }
        }
    }

    /// Cancels requests that wait for data; the others are waited for.
    fn take_back(&mut self, now: Instant, done: &mut CompletionQueue) {
        // Newest first, because an endpoint continues with the next request in its queue.
        let waiting: Vec<UrbId> = self.urbs.iter().rev().filter(|urb| urb.is_repeatable()).map(|urb| urb.id).collect();
        for id in waiting {
            self.with(done, |device, done| device.cancel(now, id, done));
        }
    }

    /// Replaces the device by the twin.
    fn switch(&mut self, now: Instant, done: &mut CompletionQueue) {
        let Some(exchange) = self.exchange.take() else { return };
        let TwinExchange { twin, order, since, replayed, again, held, .. } = *exchange;
        let left = std::mem::replace(&mut self.device, twin);
        self.first.get_or_insert_with(|| left.descriptors().clone());
        let quiet = if replayed == 0 && again.is_empty() && held.is_empty() { Duration::ZERO } else { now - since };
        let report = DeviceSwapReport { replayed, asked_again: again.len(), held: held.len(), quiet };
        self.resume(now, again, held, done);
        order.tell(DeviceSwapOutcome::Done { left, report });
    }

    /// Ends the exchange, if there is one, with the first device.
    pub fn give_up(&mut self, now: Instant, why: String, done: &mut CompletionQueue) {
        let Some(exchange) = self.exchange.take() else { return };
        let TwinExchange { mut twin, order, done: mut ended, again, held, .. } = *exchange;
        // Ends the transfer of settings.
        twin.reset(now, &mut ended);
        while ended.pop().is_some() {}
        self.resume(now, again, held, done);
        order.tell(DeviceSwapOutcome::Failed { twin: Some(twin), why });
    }

    fn resume(
        &mut self,
        now: Instant,
        again: BTreeMap<u64, Urb>,
        held: VecDeque<UrbInFlight>,
        done: &mut CompletionQueue,
    ) {
        for urb in again.into_values().map(Urb::launch).chain(held) {
            self.ask(now, urb, done);
        }
    }

    /// After an exchange, what differs between devices of one make is answered from the first device's descriptors:
    /// strings, and the binary object store if it was read.
    fn first_asked_for(&self, urb: &UrbInFlight) -> Option<Vec<u8>> {
        let first = self.first.as_ref()?;
        let setup = urb.setup;
        if !urb.endpoint.is_control() || !setup.is_standard(request::GET_DESCRIPTOR, RequestRecipient::Device) {
            return None;
        }
        let mut bytes = match setup.value.to_le_bytes() {
            [index, kind::STRING] if index != 0 => string_to_bytes(first.string(index)?),
            [0, kind::BOS] if !first.bos.is_empty() => first.bos.clone(),
            _ => return None,
        };
        bytes.truncate(urb.length as usize);
        Some(bytes)
    }
}

impl RepeatableUrb {
    /// Whether it waits for data and can wait for it on the twin.
    fn is_repeatable(&self) -> bool {
        self.is_waiting_for_data && !self.is_withdrawn
    }
}

impl<D: Device + ?Sized + 'static> TwinExchange<D> {
    /// Continues the transfer of settings to the twin; returns whether it is complete.
    fn tell(&mut self, now: Instant) -> Result<bool, String> {
        loop {
            while let Some(answer) = self.done.pop() {
                self.telling = None;
                self.replayed += 1;
                if answer.status != UrbStatus::Ok {
                    let SetupPacket { request_type, request, value, index, .. } = answer.setup;
                    return Err(format!(
                        "the other device does not take what this one was told ({request_type:02x} {request:02x} \
                         {value:04x} {index:04x}: {:?})",
                        answer.status
                    ));
                }
            }
            if self.twin.is_gone() {
                return Err("the other device was unplugged".into());
            }
            if self.telling.is_some() {
                return Ok(false);
            }
            let Some(ControlSetting { setup, data }) = self.untold.pop_front() else { return Ok(true) };
            self.telling = Some(setup);
            let payload = if data.is_empty() { Payload::Empty } else { data.into() };
            self.twin.submit(now, Urb::control(UrbId(0), setup, payload).launch(), &mut self.done);
            self.twin.end_turn(now, &mut self.done);
        }
    }

    /// Whether new requests wait for the end of the exchange.
    fn holds(&self) -> bool {
        self.stage != TwinExchangePhase::Preparing
    }
}

/// Whether a transfer can be submitted to the twin as long as it has no data.
fn is_repeatable(endpoint: EpAddr, direction: TransferDirection) -> bool {
    direction == TransferDirection::In && !endpoint.is_control()
}

fn asked_again(answer: UrbCompletion, original: &RepeatableUrb) -> Urb {
    let mut urb = Urb::data_in(answer.id, answer.endpoint, answer.length);
    (urb.interval, urb.stream, urb.flags, urb.start_frame) =
        (original.interval, original.stream, original.flags, answer.start_frame);
    urb.iso = answer.iso;
    for packet in &mut urb.iso {
        (packet.actual, packet.status) = (0, UrbStatus::Ok);
    }
    urb
}

fn halt(endpoint: EpAddr) -> SetupPacket {
    SetupPacket { request: request::SET_FEATURE, ..SetupPacket::clear_halt(endpoint) }
}

fn bit(endpoint: EpAddr) -> u32 {
    1 << endpoint.index()
}

/// Dropped during an exchange, it ends the transfer of settings.
impl<D: Device + ?Sized + 'static> Drop for TwinnedDevice<D> {
    fn drop(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.twin.reset(exchange.look_at, &mut exchange.done);
        }
    }
}

impl<D: Device + ?Sized + 'static> farbus_model::DeviceLayer for TwinnedDevice<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn with_inner<R>(
        &mut self,
        _now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut D, &mut CompletionQueue) -> R,
    ) -> R {
        self.with(done, act)
    }

    fn descriptors(&self) -> &DescriptorSet {
        self.shown()
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if let Some(bytes) = self.first_asked_for(&urb) {
            return done.push(urb.answer(bytes.into()));
        }
        let is_gone = self.inner().is_gone();
        match &mut self.exchange {
            Some(exchange) if exchange.holds() || is_gone => {
                urb.own_payload();
                exchange.held.push_back(urb);
            }
            _ => self.ask(now, urb, done),
        }
        if self.exchange.is_some() {
            self.go_on(now, done);
        }
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(exchange) = &mut self.exchange {
            if let Some(at) = exchange.held.iter().position(|urb| urb.id == id)
                && let Some(urb) = exchange.held.remove(at)
            {
                return done.push(urb.fail(UrbStatus::Cancelled));
            }
            let again = exchange.again.iter().find(|(_, urb)| urb.id == id).map(|(order, _)| *order);
            if let Some(urb) = again.and_then(|order| exchange.again.remove(&order)) {
                return done.push(urb.launch().fail(UrbStatus::Cancelled));
            }
        }
        if let Some(repeatable_urb) = self.urbs.iter_mut().find(|repeatable_urb| repeatable_urb.id == id) {
            repeatable_urb.is_withdrawn = true;
        }
        self.with(done, |device, done| device.cancel(now, id, done));
        self.go_on(now, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with(done, |device, done| device.reset(now, done));
        (self.halted, self.settings) = (0, DeviceSettings::default());
        if let Some(exchange) = &mut self.exchange {
            let again = std::mem::take(&mut exchange.again).into_values().map(Urb::launch);
            for urb in again.chain(std::mem::take(&mut exchange.held)) {
                done.push(urb.fail(UrbStatus::Shutdown));
            }
            exchange.twin.as_mut().reset(now, &mut exchange.done);
            while exchange.done.pop().is_some() {}
            if exchange.twin.as_ref().is_gone() {
                self.give_up(now, "the other device was unplugged".into(), done);
            } else {
                self.switch(now, done);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ours = self.exchange.as_ref().map(|exchange| exchange.look_at);
        ours.into_iter().chain(self.inner().poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.inner().poll_timeout().is_some_and(|at| at <= now) {
            self.with(done, |device, done| device.handle_timeout(now, done));
        }
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.look_at <= now) {
            exchange.look_at = now + LOOK_EVERY;
            exchange.twin.as_mut().handle_ready(now, &mut exchange.done);
            if exchange.twin.as_ref().poll_timeout().is_some_and(|at| at <= now) {
                exchange.twin.as_mut().handle_timeout(now, &mut exchange.done);
            }
            self.go_on(now, done);
        }
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with(done, |device, done| device.handle_ready(now, done));
        self.go_on(now, done);
    }

    fn is_gone(&self) -> bool {
        self.exchange.is_none() && self.inner().is_gone()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        if let OwnerCommand::Swap(twin) = command {
            let order = (twin as &dyn Any).downcast_ref().ok_or_else(|| OwnerCommandError::unknown(command))?;
            return self.swap(now, order, done);
        }
        let mut result = Ok(());
        self.with(done, |device, done| result = device.command(now, command, done));
        result
    }

    /// The state of the device and its settings. `None` after an exchange: the replacement would open the first device
    /// under that name.
    fn save(&self) -> Option<Vec<u8>> {
        if self.exchange.is_some() || self.first.is_some() {
            return None;
        }
        let mut to = SnapshotWriter::part();
        to.bytes(&self.inner().save()?);
        self.save_settings(&mut to);
        Some(to.into_bytes())
    }

    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        let read = || -> Result<_, ProtocolViolation> {
            let mut from = FieldReader::new(state);
            let (device, halted) = (from.bytes("device")?, from.u32("halted")?);
            let settings = DeviceSettings::restore(&mut from)?;
            from.end("state").map(|()| (device, halted, settings))
        };
        let Ok((device, halted, settings)) = read() else { return false };
        let is_restored = self.inner_mut().restore(selection, device);
        if is_restored {
            (self.halted, self.settings) = (halted, settings);
        }
        is_restored
    }
}
