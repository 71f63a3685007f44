//! A device that can be exchanged for its twin while it is in use (requirement N12).
//!
//! Two adapters of one model are the same device to their user, except for the settings that the user has made on one
//! and not on the other. A [`Twinned`] device remembers these ([`settings`] lists them) and lets another device take
//! its place when its owner asks for it ([`Command::Swap`]):
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
use farbus_model::usb::{Recipient, request};
use farbus_model::{
    BufferPool, Command, CommandError, Completions, Descriptors, Device, Direction, Done, EpAddr, Exchange,
    ExchangeReport, InFlight, Instant, Payload, Selection, Setup, Status, Twin, Urb, UrbFlags, UrbId,
};

use crate::Reject;
use crate::snapshot::{Reader, Writer};
pub use difference::difference;
use settings::{Setting, Settings, is_setting};

/// How long requests with data may take to complete before the exchange is given up. A serial line at 300 baud empties
/// its buffer of 64 bytes in two seconds.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);
/// How long the twin may take for all settings.
pub const PREPARE_TIME_MAX: Duration = Duration::from_secs(10);
/// How often the twin is polled meanwhile: the caller does not wait on the twin's readiness.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A device that can be exchanged for its twin. Both are of the type `D`; for `dyn Device`, [`Command::Swap`] does what
/// [`Twinned::swap`] does.
pub struct Twinned<D: Device + ?Sized + 'static = dyn Device> {
    device: Box<D>,
    /// The descriptors of the first device, after an exchange.
    first: Option<Descriptors>,
    /// Requests in flight, in the order of their submission. Those that complete are nearly always among the first.
    asked: VecDeque<Asked>,
    asked_so_far: u64,
    settings: Settings,
    /// Endpoints that are halted, by [`EpAddr::index`].
    halted: u32,
    done: Completions,
    exchange: Option<Box<Exchanging<D>>>,
}

/// What must be known of a request to submit it again, and to remember its setting.
struct Asked {
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
enum Stage {
    Preparing,
    Draining { has_halts: bool },
}

struct Exchanging<D: Device + ?Sized + 'static> {
    twin: Box<D>,
    order: Twin<D>,
    done: Completions,
    stage: Stage,
    since: Instant,
    /// When the twin is polled again.
    look_at: Instant,
    /// Settings that the twin has not got yet.
    untold: VecDeque<Setting>,
    /// The setting that the twin is getting.
    telling: Option<Setup>,
    told: usize,
    held: VecDeque<InFlight>,
    /// Requests cancelled on the first device, in the order of their submission.
    again: BTreeMap<u64, Urb>,
}

impl<D: Device + ?Sized + 'static> Twinned<D> {
    /// Wraps `device`, the first of the two.
    pub fn new(device: Box<D>) -> Self {
        Self {
            device,
            first: None,
            asked: VecDeque::new(),
            asked_so_far: 0,
            settings: Settings::default(),
            halted: 0,
            // While the device works, this holds the caller's pool.
            done: Completions::new(BufferPool::new(0)),
            exchange: None,
        }
    }

    fn with<R>(&mut self, done: &mut Completions, act: impl FnOnce(&mut D, &mut Completions) -> R) -> R {
        if self.exchange.is_none() {
            // Completions are inspected on their way.
            let before = done.len();
            let result = act(&mut *self.device, done);
            for answer in done.after(before) {
                let asked = self.asked.iter().position(|asked| asked.id == answer.id);
                if let Some(asked) = asked.and_then(|at| self.asked.remove(at)) {
                    self.learn(answer, asked.data);
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

    fn ask(&mut self, now: Instant, urb: InFlight, done: &mut Completions) {
        let tells = urb.endpoint.is_control() && is_setting(self.shown(), self.selection().configuration(), urb.setup);
        self.note(&urb, tells);
        self.with(done, |device, done| device.submit(now, urb, done));
    }

    fn handle_answer(&mut self, mut answer: Done, done: &mut Completions) {
        let asked = self.asked.iter().position(|asked| asked.id == answer.id);
        let Some(mut asked) = asked.and_then(|at| self.asked.remove(at)) else { return done.push(answer) };
        self.learn(&answer, asked.data.take());
        let Some(exchange) = &mut self.exchange else { return done.push(answer) };
        let is_lost = answer.status == Status::Gone;
        let was_taken = is_lost || (answer.status == Status::Cancelled && exchange.stage != Stage::Preparing);
        if was_taken && !asked.is_withdrawn {
            if asked.is_waiting_for_data {
                if answer.actual == 0 {
                    exchange.again.insert(asked.order, asked_again(answer, &asked));
                    return;
                }
                answer.status = if asked.flags.short_not_ok { Status::Short } else { Status::Ok };
            } else if is_lost {
                answer.status = Status::Protocol;
            }
        }
        done.push(answer);
    }

    /// Remembers settings and halts from a completed request, and queues settings for the twin.
    fn learn(&mut self, answer: &Done, data: Option<Vec<u8>>) {
        let (setup, endpoint) = (answer.setup, answer.endpoint);
        if !endpoint.is_control() {
            if answer.status == Status::Stall {
                self.halted |= bit(endpoint);
            }
            return;
        }
        if answer.status != Status::Ok {
            return;
        }
        let is_halt = setup.value == request::ENDPOINT_HALT;
        let setting = Setting { setup, data: data.unwrap_or_default() };
        let is_told = if setup.is_standard(request::SET_CONFIGURATION, Recipient::Device) {
            self.halted = 0;
            self.settings.forget_interfaces();
            true
        } else if setup.is_standard(request::SET_INTERFACE, Recipient::Interface) {
            let configuration = self.shown().configuration(self.device.selection().configuration());
            let settings = configuration.into_iter().flat_map(|c| &c.settings);
            let theirs = settings.filter(|setting| u16::from(setting.interface) == setup.index);
            self.halted &= !theirs.flat_map(|setting| &setting.endpoints).fold(0, |all, e| all | bit(e.address));
            true
        } else if setup.is_standard(request::CLEAR_FEATURE, Recipient::Endpoint) && is_halt {
            self.halted &= !bit(endpoint_of_index(setup.index));
            false
        } else if setup.is_standard(request::SET_FEATURE, Recipient::Endpoint) && is_halt {
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
    fn shown(&self) -> &Descriptors {
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
        let is_known = urb.direction == Direction::In || urb.payload.len() == urb.length as usize;
        let tells = urb.endpoint.is_control()
            && is_known
            && is_setting(self.shown(), self.selection().configuration(), urb.setup);
        self.note(urb, tells);
    }

    fn note(&mut self, urb: &Urb, tells: bool) {
        self.asked.push_back(Asked {
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
    pub fn save_settings(&self, to: &mut Writer) {
        to.u32(self.halted);
        self.settings.save(to);
    }

    /// Restores what [`Twinned::save_settings`] wrote.
    ///
    /// # Errors
    /// [`Reject`]: the snapshot ends too early.
    pub fn restore_settings(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        let (halted, settings) = (from.u32("halted")?, Settings::restore(from)?);
        (self.halted, self.settings) = (halted, settings);
        Ok(())
    }

    // The exchange.

    /// Begins to replace the device by the twin. The outcome is reported by [`Twin::tell`].
    ///
    /// # Errors
    /// Why it did not begin; the twin of a refused order is told or dropped.
    pub fn swap(&mut self, now: Instant, order: &Twin<D>, done: &mut Completions) -> Result<(), CommandError> {
        if self.exchange.is_some() {
            return Err(CommandError("it is being swapped already".into()));
        }
        if self.device.is_gone() {
            return Err(CommandError("it was unplugged".into()));
        }
        let twin = order.take().ok_or_else(|| CommandError("the other device was taken already".into()))?;
        if let Some(difference) = self.difference(&twin) {
            let why = format!("it is not like the other device: {difference}");
            order.tell(Exchange::Failed { twin: Some(twin), why: why.clone() });
            return Err(CommandError(why));
        }
        let selection = self.device.selection();
        let selected = (selection.configuration() != 0).then(|| Setup::set_configuration(selection.configuration()));
        let alternates = selection.alternates().iter();
        let alternates = alternates.map(|&(interface, alternate)| Setup::set_interface(interface, alternate));
        let selected = selected.into_iter().chain(alternates).map(|setup| Setting { setup, data: Vec::new() });
        self.exchange = Some(Box::new(Exchanging {
            twin,
            order: order.clone(),
            done: Completions::new(BufferPool::new(0)),
            stage: Stage::Preparing,
            since: now,
            look_at: now + LOOK_EVERY,
            untold: selected.chain(self.settings.iter().cloned()).collect(),
            telling: None,
            told: 0,
            held: VecDeque::new(),
            again: BTreeMap::new(),
        }));
        self.go_on(now, done);
        Ok(())
    }

    /// Continues the exchange as far as possible now.
    fn go_on(&mut self, now: Instant, done: &mut Completions) {
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
                Stage::Preparing => {
                    (exchange.stage, exchange.since) = (Stage::Draining { has_halts: false }, now);
                    self.take_back(now, done);
                }
                Stage::Draining { .. } if !self.asked.is_empty() => {
                    if now - exchange.since > DRAIN_TIME_MAX {
                        let why = "it does not take what was sent to it; try again when less is under way";
                        self.give_up(now, why.into(), done);
                    }
                    return;
                }
                Stage::Draining { has_halts: false } => {
                    exchange.stage = Stage::Draining { has_halts: true };
                    let endpoints = self.device.selection().endpoints().map(|endpoint| endpoint.address);
                    let halted = endpoints.filter(|endpoint| self.halted & bit(*endpoint) != 0);
                    exchange.untold.extend(halted.map(|endpoint| Setting { setup: halt(endpoint), data: Vec::new() }));
                }
                Stage::Draining { has_halts: true } => return self.switch(now, done),
            }
        }
    }

    /// Cancels requests that wait for data; the others are waited for.
    fn take_back(&mut self, now: Instant, done: &mut Completions) {
        // Newest first, because an endpoint continues with the next request in its queue.
        let waiting: Vec<UrbId> =
            self.asked.iter().rev().filter(|asked| asked.is_repeatable()).map(|asked| asked.id).collect();
        for id in waiting {
            self.with(done, |device, done| device.cancel(now, id, done));
        }
    }

    /// Replaces the device by the twin.
    fn switch(&mut self, now: Instant, done: &mut Completions) {
        let Some(exchange) = self.exchange.take() else { return };
        let Exchanging { twin, order, since, told, again, held, .. } = *exchange;
        let left = std::mem::replace(&mut self.device, twin);
        self.first.get_or_insert_with(|| left.descriptors().clone());
        let quiet = if told == 0 && again.is_empty() && held.is_empty() { Duration::ZERO } else { now - since };
        let report = ExchangeReport { replayed: told, asked_again: again.len(), held: held.len(), quiet };
        self.resume(now, again, held, done);
        order.tell(Exchange::Done { left, report });
    }

    /// Ends the exchange, if there is one, with the first device.
    pub fn give_up(&mut self, now: Instant, why: String, done: &mut Completions) {
        let Some(exchange) = self.exchange.take() else { return };
        let Exchanging { mut twin, order, done: mut ended, again, held, .. } = *exchange;
        // Ends the transfer of settings.
        twin.reset(now, &mut ended);
        while ended.pop().is_some() {}
        self.resume(now, again, held, done);
        order.tell(Exchange::Failed { twin: Some(twin), why });
    }

    fn resume(&mut self, now: Instant, again: BTreeMap<u64, Urb>, held: VecDeque<InFlight>, done: &mut Completions) {
        for urb in again.into_values().map(Urb::launch).chain(held) {
            self.ask(now, urb, done);
        }
    }

    /// After an exchange, what differs between devices of one make is answered from the first device's descriptors:
    /// strings, and the binary object store if it was read.
    fn first_asked_for(&self, urb: &InFlight) -> Option<Vec<u8>> {
        let first = self.first.as_ref()?;
        let setup = urb.setup;
        if !urb.endpoint.is_control() || !setup.is_standard(request::GET_DESCRIPTOR, Recipient::Device) {
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

impl Asked {
    /// Whether it waits for data and can wait for it on the twin.
    fn is_repeatable(&self) -> bool {
        self.is_waiting_for_data && !self.is_withdrawn
    }
}

impl<D: Device + ?Sized + 'static> Exchanging<D> {
    /// Continues the transfer of settings to the twin; returns whether it is complete.
    fn tell(&mut self, now: Instant) -> Result<bool, String> {
        loop {
            while let Some(answer) = self.done.pop() {
                self.telling = None;
                self.told += 1;
                if answer.status != Status::Ok {
                    let Setup { request_type, request, value, index, .. } = answer.setup;
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
            let Some(Setting { setup, data }) = self.untold.pop_front() else { return Ok(true) };
            self.telling = Some(setup);
            let payload = if data.is_empty() { Payload::Empty } else { data.into() };
            self.twin.submit(now, Urb::control(UrbId(0), setup, payload).launch(), &mut self.done);
            self.twin.end_turn(now, &mut self.done);
        }
    }

    /// Whether new requests wait for the end of the exchange.
    fn holds(&self) -> bool {
        self.stage != Stage::Preparing
    }
}

/// Whether a transfer can be submitted to the twin as long as it has no data.
fn is_repeatable(endpoint: EpAddr, direction: Direction) -> bool {
    direction == Direction::In && !endpoint.is_control()
}

fn asked_again(answer: Done, asked: &Asked) -> Urb {
    let mut urb = Urb::data_in(answer.id, answer.endpoint, answer.length);
    (urb.interval, urb.stream, urb.flags, urb.start_frame) =
        (asked.interval, asked.stream, asked.flags, answer.start_frame);
    urb.iso = answer.iso;
    for packet in &mut urb.iso {
        (packet.actual, packet.status) = (0, Status::Ok);
    }
    urb
}

fn halt(endpoint: EpAddr) -> Setup {
    Setup { request: request::SET_FEATURE, ..Setup::clear_halt(endpoint) }
}

fn bit(endpoint: EpAddr) -> u32 {
    1 << endpoint.index()
}

/// Dropped during an exchange, it ends the transfer of settings.
impl<D: Device + ?Sized + 'static> Drop for Twinned<D> {
    fn drop(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.twin.reset(exchange.look_at, &mut exchange.done);
        }
    }
}

impl<D: Device + ?Sized + 'static> farbus_model::DeviceLayer for Twinned<D> {
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
        done: &mut Completions,
        act: impl FnOnce(&mut D, &mut Completions) -> R,
    ) -> R {
        self.with(done, act)
    }

    fn descriptors(&self) -> &Descriptors {
        self.shown()
    }

    fn submit(&mut self, now: Instant, mut urb: InFlight, done: &mut Completions) {
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

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut Completions) {
        if let Some(exchange) = &mut self.exchange {
            if let Some(at) = exchange.held.iter().position(|urb| urb.id == id)
                && let Some(urb) = exchange.held.remove(at)
            {
                return done.push(urb.fail(Status::Cancelled));
            }
            let again = exchange.again.iter().find(|(_, urb)| urb.id == id).map(|(order, _)| *order);
            if let Some(urb) = again.and_then(|order| exchange.again.remove(&order)) {
                return done.push(urb.launch().fail(Status::Cancelled));
            }
        }
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.id == id) {
            asked.is_withdrawn = true;
        }
        self.with(done, |device, done| device.cancel(now, id, done));
        self.go_on(now, done);
    }

    fn reset(&mut self, now: Instant, done: &mut Completions) {
        self.with(done, |device, done| device.reset(now, done));
        (self.halted, self.settings) = (0, Settings::default());
        if let Some(exchange) = &mut self.exchange {
            let again = std::mem::take(&mut exchange.again).into_values().map(Urb::launch);
            for urb in again.chain(std::mem::take(&mut exchange.held)) {
                done.push(urb.fail(Status::Shutdown));
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

    fn handle_timeout(&mut self, now: Instant, done: &mut Completions) {
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

    fn handle_ready(&mut self, now: Instant, done: &mut Completions) {
        self.with(done, |device, done| device.handle_ready(now, done));
        self.go_on(now, done);
    }

    fn is_gone(&self) -> bool {
        self.exchange.is_none() && self.inner().is_gone()
    }

    fn command(&mut self, now: Instant, command: &Command, done: &mut Completions) -> Result<(), CommandError> {
        if let Command::Swap(twin) = command {
            let order = (twin as &dyn Any).downcast_ref().ok_or_else(|| CommandError::unknown(command))?;
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
        let mut to = Writer::part();
        to.bytes(&self.inner().save()?);
        self.save_settings(&mut to);
        Some(to.into_bytes())
    }

    fn restore(&mut self, selection: &Selection, state: &[u8]) -> bool {
        let read = || -> Result<_, Reject> {
            let mut from = Reader::new(state);
            let (device, halted) = (from.bytes("device")?, from.u32("halted")?);
            let settings = Settings::restore(&mut from)?;
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
