//! The logical unit: a command is begun, its data moved in pieces, and it is finished.
//!
//! The transport calls in this order, and may stop anywhere by beginning the next command:
//!
//! | [`Unit::begin`] says | then |
//! |---|---|
//! | [`Plan::Done`] | nothing: it is carried out |
//! | [`Plan::Send`] | [`Unit::fill`] until all is sent, [`Unit::finish`] |
//! | [`Plan::Take`] | [`Unit::take`] until all has come, [`Unit::finish`] |
//!
//! Nothing changes before the first [`Unit::take`] of a command that brings data, so a transport
//! that does not like the plan (Bulk-Only's cases 2, 3, 7, 8, 10, 13) can leave it.

pub(super) mod command;
pub(super) mod inquiry;
mod limits;
pub(super) mod mode;
pub(super) mod provisioning;
pub(super) mod reports;
mod transfer;

use self::command::{Command, Demand, List, Power, Report};
use self::inquiry::Identity;
pub(super) use self::limits::BUFFER_BYTES;
use self::transfer::{Then, Transfer};
use super::medium::{Extent, Medium};
use super::options::Options;
use super::sense::Sense;
use crate::saved::{Loader, Saver};

/// The data phase that the device wants for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// No data: the command is complete.
    Done,
    /// Send this many bytes, never zero.
    Send(u64),
    /// Receive this many bytes, never zero.
    Take(u64),
}

/// The command failed; REQUEST SENSE returns the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckCondition;

/// Whether the medium can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Stopped,
    Ejected,
}

/// Logical unit 0, the only one.
pub(super) struct Unit {
    identity: Identity,
    medium: Medium,
    state: State,
    /// The host forbids ejecting.
    prevented: bool,
    /// WCE. Off, every write is durable before its status.
    write_cache: bool,
    /// Sense data of the last command.
    sense: Sense,
    /// A failed flush of the owner's: acknowledged data that may not be durable.
    deferred: Option<Sense>,
    /// An event to be reported to the host once.
    attention: Option<Sense>,
    transfer: Transfer,
    /// Allocated once, [`BUFFER_BYTES`].
    buffer: Vec<u8>,
}

impl Unit {
    pub fn new(medium: Medium, options: &Options) -> Self {
        Self {
            identity: Identity::new(options),
            medium,
            state: State::Ready,
            prevented: false,
            write_cache: true,
            sense: Sense::NONE,
            deferred: None,
            attention: Some(Sense::RESET_OCCURRED),
            transfer: Transfer::None,
            buffer: Vec::with_capacity(BUFFER_BYTES),
        }
    }

    /// Begins a command for unit `lun`. An unfinished earlier command is dropped; what it wrote stays written.
    pub fn begin(&mut self, lun: u8, cdb: &[u8]) -> Result<Plan, CheckCondition> {
        self.abandon();
        let plan = self.try_begin(lun, cdb);
        self.remember(plan)
    }

    /// The next bytes of a [`Plan::Send`].
    pub fn fill(&mut self, to: &mut [u8]) -> Result<(), CheckCondition> {
        let result = self.try_fill(to);
        self.remember(result)
    }

    /// The next bytes of a [`Plan::Take`].
    pub fn take(&mut self, from: &[u8]) -> Result<(), CheckCondition> {
        let result = self.try_take(from);
        self.remember(result)
    }

    /// All data has moved.
    pub fn finish(&mut self) -> Result<(), CheckCondition> {
        let result = self.try_finish();
        self.remember(result)
    }

    /// The bus was reset: clears the host's locks, but not what has to be reported to it.
    ///
    /// There is no unit attention for the reset: the host made it itself. Linux takes an unexpected attention from a
    /// removable disk for a changed medium and refuses every access from then on; the kernel's own gadget is silent for
    /// the same reason. Therefore the write cache also stays as it was set, because a host that turned it off relies on
    /// that.
    pub fn reset(&mut self) {
        self.prevented = false;
        self.sense = Sense::NONE;
        if self.state == State::Stopped {
            self.state = State::Ready;
        }
    }

    /// Flushes for the owner. A failure is also reported to the host, which had got good status for its writes.
    pub fn sync(&mut self) -> Result<(), Sense> {
        self.medium.flush().inspect_err(|sense| self.deferred = Some(sense.deferred()))
    }

    /// Ejects the medium for the owner.
    pub fn eject(&mut self) -> Result<(), Sense> {
        self.may_eject()?;
        self.sync()?;
        self.state = State::Ejected;
        Ok(())
    }

    /// Inserts the medium, for the owner or the host.
    pub fn insert(&mut self) {
        if self.state == State::Ejected {
            self.attention = Some(Sense::MEDIUM_CHANGED);
        }
        self.state = State::Ready;
    }

    pub fn has_medium(&self) -> bool {
        self.state != State::Ejected
    }

    /// Drops the command that was begun.
    fn abandon(&mut self) {
        self.transfer = Transfer::None;
        self.buffer.clear();
    }

    /// Keeps the sense data of a failure for REQUEST SENSE (SPC-4: until the next command).
    fn remember<T>(&mut self, result: Result<T, Sense>) -> Result<T, CheckCondition> {
        result.map_err(|sense| {
            self.abandon();
            self.sense = sense;
            CheckCondition
        })
    }

    fn try_begin(&mut self, lun: u8, cdb: &[u8]) -> Result<Plan, Sense> {
        let command = command::decode(cdb)?;
        // Sense data belongs to the command before this one; REQUEST SENSE works for any unit.
        if let Command::Report(Report::Sense { descriptors }, allocation) = command {
            return self.reply(Report::Sense { descriptors }, allocation);
        }
        self.sense = Sense::NONE;
        if lun != 0 {
            return Err(Sense::UNIT_NOT_SUPPORTED);
        }
        self.admit(command.demand())?;
        self.execute(command)
    }

    /// Whether a command with this demand may run now.
    fn admit(&mut self, demand: Demand) -> Result<(), Sense> {
        if demand >= Demand::Attention
            && let Some(news) = self.take_news()
        {
            return Err(news);
        }
        if demand >= Demand::Ready {
            self.check_ready()?;
        }
        if demand >= Demand::Writable && self.medium.geometry.is_read_only {
            return Err(Sense::WRITE_PROTECTED);
        }
        Ok(())
    }

    /// An event that the host does not know yet; reported once. A deferred error goes first (SPC-4, deferred errors).
    fn take_news(&mut self) -> Option<Sense> {
        self.deferred.take().or_else(|| self.attention.take())
    }

    fn check_ready(&self) -> Result<(), Sense> {
        match self.state {
            State::Ready => Ok(()),
            State::Stopped => Err(Sense::STOPPED),
            State::Ejected => Err(Sense::MEDIUM_NOT_PRESENT),
        }
    }

    fn execute(&mut self, command: Command) -> Result<Plan, Sense> {
        match command {
            Command::TestUnitReady => Ok(Plan::Done),
            Command::Report(report, allocation) => self.reply(report, allocation),
            Command::Read { extent, fua } => self.read(extent, fua),
            Command::Write { extent, fua } => self.write(extent, fua),
            Command::Verify { extent, compare } => self.verify(extent, compare),
            Command::SynchronizeCache(extent) => {
                self.medium.geometry.span(extent)?;
                self.medium.flush().map(|()| Plan::Done)
            }
            Command::Parameters(_, 0) => Ok(Plan::Done),
            Command::Parameters(list, bytes) => {
                self.transfer = Transfer::Gather(Then::Apply(list));
                Ok(Plan::Take(bytes as u64))
            }
            Command::WriteSame { extent, unmap, has_data } => self.write_same(extent, unmap, has_data),
            Command::Power(power) => self.power(power).map(|()| Plan::Done),
            Command::PreventRemoval(prevented) => {
                self.prevented = prevented;
                Ok(Plan::Done)
            }
        }
    }

    fn reply(&mut self, report: Report, allocation: usize) -> Result<Plan, Sense> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_report(report, &mut buffer);
        self.buffer = buffer;
        written?;
        // A host with less space gets the front of it (SPC-4, allocation length).
        self.buffer.truncate(allocation);
        self.transfer = Transfer::Reply { at: 0 };
        Ok(match self.buffer.len() {
            0 => Plan::Done,
            bytes => Plan::Send(bytes as u64),
        })
    }

    fn write_report(&mut self, report: Report, to: &mut Vec<u8>) -> Result<(), Sense> {
        match report {
            Report::Sense { descriptors: true } => self.take_sense().write_descriptors(to),
            Report::Sense { descriptors: false } => self.take_sense().write_fixed(to),
            Report::Inquiry => self.identity.write_standard(to),
            Report::VitalProductData { page } => self.identity.write_page(page, self.medium.geometry.is_thin, to)?,
            Report::Modes(ask) => self.mode_state().write(ask, to),
            Report::Capacity10 => reports::write_capacity_10(self.medium.geometry, to),
            Report::Capacity16 => reports::write_capacity_16(self.medium.geometry, to),
            Report::FormatCapacities => reports::write_format_capacities(self.medium.geometry, self.has_medium(), to),
            Report::Luns { select } => reports::write_luns(select, to),
        }
        Ok(())
    }

    /// The answer of REQUEST SENSE: about the last command, or an event that the host does not know yet, or why the
    /// next command would fail (SPC-4, REQUEST SENSE).
    fn take_sense(&mut self) -> Sense {
        let last = std::mem::replace(&mut self.sense, Sense::NONE);
        if last != Sense::NONE {
            return last;
        }
        self.take_news().or_else(|| self.check_ready().err()).unwrap_or(Sense::NONE)
    }

    fn mode_state(&self) -> mode::State {
        mode::State {
            write_cache: self.write_cache,
            read_only: self.medium.geometry.is_read_only,
            sectors: if self.has_medium() { self.medium.geometry.sectors } else { 0 },
            sector_bytes: self.medium.geometry.sector_bytes,
        }
    }

    fn read(&mut self, extent: Extent, fua: bool) -> Result<Plan, Sense> {
        let span = self.medium.geometry.span(extent)?;
        if fua {
            // The host must read what the medium holds (SBC-3): newer data is flushed first.
            self.medium.flush()?;
        }
        self.transfer = Transfer::Read { offset: span.offset };
        Ok(if span.len == 0 { Plan::Done } else { Plan::Send(span.len) })
    }

    fn write(&mut self, extent: Extent, fua: bool) -> Result<Plan, Sense> {
        let span = self.medium.geometry.span(extent)?;
        self.transfer = Transfer::Write { offset: span.offset, durable: fua };
        Ok(if span.len == 0 { Plan::Done } else { Plan::Take(span.len) })
    }

    fn verify(&mut self, extent: Extent, compare: bool) -> Result<Plan, Sense> {
        let span = self.medium.geometry.span(extent)?;
        if span.len == 0 {
            return Ok(Plan::Done);
        }
        if compare {
            self.transfer = Transfer::Compare { offset: span.offset };
            return Ok(Plan::Take(span.len));
        }
        let mut done = 0;
        while done < span.len {
            let n = (BUFFER_BYTES as u64).min(span.len - done);
            self.buffer.resize(n as usize, 0);
            self.medium.read(span.offset + done, &mut self.buffer)?;
            done += n;
        }
        Ok(Plan::Done)
    }

    fn write_same(&mut self, extent: Extent, unmap: bool, has_data: bool) -> Result<Plan, Sense> {
        let span = self.medium.geometry.span(extent)?;
        if has_data {
            self.transfer = Transfer::Gather(Then::WriteSame { span, unmap });
            return Ok(Plan::Take(self.medium.geometry.sector_bytes.into()));
        }
        provisioning::write_zeros(&mut self.medium, span, unmap)?;
        self.settle(false).map(|()| Plan::Done)
    }

    /// START STOP UNIT: flushes before the medium rests (SBC-3).
    fn power(&mut self, power: Power) -> Result<(), Sense> {
        match power {
            Power::Start => {
                if self.state == State::Ejected {
                    return Err(Sense::MEDIUM_NOT_PRESENT);
                }
                self.state = State::Ready;
            }
            Power::Stop => {
                self.medium.flush()?;
                if self.state == State::Ready {
                    self.state = State::Stopped;
                }
            }
            Power::Rest => self.medium.flush()?,
            Power::Load | Power::Eject if !self.identity.is_removable() => return Err(Sense::INVALID_FIELD_IN_CDB),
            Power::Load => self.insert(),
            Power::Eject => {
                self.may_eject()?;
                self.medium.flush()?;
                self.state = State::Ejected;
            }
        }
        Ok(())
    }

    fn may_eject(&self) -> Result<(), Sense> {
        match (self.identity.is_removable(), self.prevented) {
            (false, _) => Err(Sense::INVALID_FIELD_IN_CDB),
            (true, true) => Err(Sense::REMOVAL_PREVENTED),
            (true, false) => Ok(()),
        }
    }

    fn try_fill(&mut self, to: &mut [u8]) -> Result<(), Sense> {
        match &mut self.transfer {
            Transfer::Reply { at } => {
                to.copy_from_slice(&self.buffer[*at..*at + to.len()]);
                *at += to.len();
                Ok(())
            }
            &mut Transfer::Read { offset } => {
                // The owner may have taken the medium out in between.
                self.check_ready()?;
                self.medium.read(offset, to)?;
                self.transfer = Transfer::Read { offset: offset + to.len() as u64 };
                Ok(())
            }
            other => unreachable!("a transport asked {other:?} for data"),
        }
    }

    fn try_take(&mut self, from: &[u8]) -> Result<(), Sense> {
        match self.transfer {
            Transfer::Gather(_) => {
                self.buffer.extend_from_slice(from);
                Ok(())
            }
            Transfer::Write { offset, durable } => {
                self.check_ready()?;
                self.medium.write(offset, from)?;
                self.transfer = Transfer::Write { offset: offset + from.len() as u64, durable };
                Ok(())
            }
            Transfer::Compare { offset } => {
                self.check_ready()?;
                self.compare(offset, from)?;
                self.transfer = Transfer::Compare { offset: offset + from.len() as u64 };
                Ok(())
            }
            other => unreachable!("a transport gave {other:?} data"),
        }
    }

    fn compare(&mut self, offset: u64, with: &[u8]) -> Result<(), Sense> {
        let mut at = offset;
        for piece in with.chunks(BUFFER_BYTES) {
            self.buffer.resize(piece.len(), 0);
            self.medium.read(at, &mut self.buffer)?;
            if let Some(differs) = piece.iter().zip(&self.buffer).position(|(a, b)| a != b) {
                let lba = (at + differs as u64) / u64::from(self.medium.geometry.sector_bytes);
                return Err(Sense::MISCOMPARE.at(lba));
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn try_finish(&mut self) -> Result<(), Sense> {
        match std::mem::replace(&mut self.transfer, Transfer::None) {
            Transfer::Write { durable, .. } => self.settle(durable),
            Transfer::Gather(then) => {
                self.check_ready_for(then)?;
                let mut buffer = std::mem::take(&mut self.buffer);
                let result = self.carry_out(then, &mut buffer);
                self.buffer = buffer;
                result
            }
            Transfer::None | Transfer::Reply { .. } | Transfer::Read { .. } | Transfer::Compare { .. } => Ok(()),
        }
    }

    fn check_ready_for(&self, then: Then) -> Result<(), Sense> {
        match then {
            Then::Apply(List::ModeSelect { .. }) => Ok(()),
            Then::Apply(List::Unmap) | Then::WriteSame { .. } => self.check_ready(),
        }
    }

    fn carry_out(&mut self, then: Then, buffer: &mut Vec<u8>) -> Result<(), Sense> {
        match then {
            Then::Apply(List::ModeSelect { long }) => {
                let write_cache = self.mode_state().parse(long, buffer)?;
                if !write_cache {
                    // Once the cache is off, the host would not ask to flush what it holds.
                    self.medium.flush()?;
                }
                self.write_cache = write_cache;
                Ok(())
            }
            Then::Apply(List::Unmap) => {
                for span in provisioning::unmapped(self.medium.geometry, buffer)? {
                    self.medium.trim(span)?;
                }
                self.settle(false)
            }
            Then::WriteSame { span, unmap } => {
                provisioning::write_same(&mut self.medium, span, unmap, buffer)?;
                self.settle(false)
            }
        }
    }

    /// Called before good status for a write: flushes if the host wants it or there is no cache.
    fn settle(&mut self, durable: bool) -> Result<(), Sense> {
        if durable || !self.write_cache { self.medium.flush() } else { Ok(()) }
    }

    pub fn save(&self, to: &mut Saver) {
        to.u8(match self.state {
            State::Ready => 0,
            State::Stopped => 1,
            State::Ejected => 2,
        });
        to.flag(self.prevented);
        to.flag(self.write_cache);
        self.sense.save(to);
        for news in [self.deferred, self.attention] {
            to.flag(news.is_some());
            news.unwrap_or(Sense::NONE).save(to);
        }
        self.transfer.save(to);
        // Compared data is not needed any more.
        to.bytes(if self.transfer.uses_buffer() { &self.buffer } else { &[] });
    }

    pub fn restore(&mut self, from: &mut Loader<'_>) -> Option<()> {
        self.state = match from.u8()? {
            0 => State::Ready,
            1 => State::Stopped,
            2 => State::Ejected,
            _ => return None,
        };
        (self.prevented, self.write_cache) = (from.flag()?, from.flag()?);
        self.sense = Sense::restore(from)?;
        for news in [&mut self.deferred, &mut self.attention] {
            let (is_there, sense) = (from.flag()?, Sense::restore(from)?);
            *news = is_there.then_some(sense);
        }
        self.transfer = Transfer::restore(from)?;
        self.buffer.clear();
        self.buffer.extend_from_slice(from.bytes().filter(|bytes| bytes.len() <= BUFFER_BYTES)?);
        self.medium.assume_written();
        Some(())
    }

    /// Whether a command was begun that still has to move this.
    pub fn has_begun(&self, plan: Plan) -> bool {
        let lies_inside = |offset: u64, len: u64| {
            let end = offset.checked_add(len);
            end.is_some_and(|end| end <= self.medium.geometry.sectors * u64::from(self.medium.geometry.sector_bytes))
        };
        let left = self.buffer.len() as u64;
        match (plan, self.transfer) {
            (Plan::Done, _) => true,
            (Plan::Send(bytes), Transfer::Reply { at }) => left.checked_sub(at as u64) == Some(bytes),
            (Plan::Send(bytes), Transfer::Read { offset }) => lies_inside(offset, bytes),
            (Plan::Take(bytes), Transfer::Write { offset, .. } | Transfer::Compare { offset }) => {
                lies_inside(offset, bytes)
            }
            (Plan::Take(bytes), Transfer::Gather(then)) => {
                let is_inside = match then {
                    Then::WriteSame { span, .. } => lies_inside(span.offset, span.len),
                    Then::Apply(_) => true,
                };
                is_inside && left.saturating_add(bytes) <= BUFFER_BYTES as u64
            }
            (Plan::Send(_) | Plan::Take(_), _) => false,
        }
    }

    /// Bytes that the unit holds, for tests of the bound.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}
