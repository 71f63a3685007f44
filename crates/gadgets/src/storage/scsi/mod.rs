//! The logical unit: a command is begun, its data moved in pieces, and it is finished.
//!
//! The transport calls in this order, and may stop anywhere by beginning the next command:
//!
//! | [`ScsiLogicalUnit::begin`] says | then |
//! |---|---|
//! | [`TransferPlan::Done`] | nothing: it is carried out |
//! | [`TransferPlan::Send`] | [`ScsiLogicalUnit::fill`] until all is sent, [`ScsiLogicalUnit::finish`] |
//! | [`TransferPlan::Take`] | [`ScsiLogicalUnit::take`] until all has come, [`ScsiLogicalUnit::finish`] |
//!
//! Nothing changes before the first [`ScsiLogicalUnit::take`] of a command that brings data, so a transport
//! that does not like the plan (Bulk-Only's cases 2, 3, 7, 8, 10, 13) can leave it.

pub(super) mod command;
pub(super) mod inquiry;
mod limits;
pub(super) mod mode;
pub(super) mod provisioning;
pub(super) mod reports;
mod transfer;

use self::command::{CommandPrecondition, ParameterList, ScsiCommand, ScsiReport, StartStopAction};
use self::inquiry::InquiryIdentity;
pub(super) use self::limits::BUFFER_BYTES;
use self::transfer::{GatherAction, ScsiTransfer};
use super::medium::{GadgetMedium, LbaRange};
use super::options::StorageOptions;
use super::sense::SenseReport;
use crate::saved::{SavedStateReader, SavedStateWriter};

/// The data phase that the device wants for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferPlan {
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
enum MediumState {
    Ready,
    Stopped,
    Ejected,
}

/// Logical unit 0, the only one.
pub(super) struct ScsiLogicalUnit {
    identity: InquiryIdentity,
    medium: GadgetMedium,
    state: MediumState,
    /// The host forbids ejecting.
    prevented: bool,
    /// WCE. Off, every write is durable before its status.
    write_cache: bool,
    /// Sense data of the last command.
    sense: SenseReport,
    /// A failed flush of the owner's: acknowledged data that may not be durable.
    deferred: Option<SenseReport>,
    /// An event to be reported to the host once.
    attention: Option<SenseReport>,
    transfer: ScsiTransfer,
    /// Allocated once, [`BUFFER_BYTES`].
    buffer: Vec<u8>,
}

impl ScsiLogicalUnit {
    pub fn new(medium: GadgetMedium, options: &StorageOptions) -> Self {
        Self {
            identity: InquiryIdentity::new(options),
            medium,
            state: MediumState::Ready,
            prevented: false,
            write_cache: true,
            sense: SenseReport::NONE,
            deferred: None,
            attention: Some(SenseReport::RESET_OCCURRED),
            transfer: ScsiTransfer::None,
            buffer: Vec::with_capacity(BUFFER_BYTES),
        }
    }

    /// Begins a command for unit `lun`. An unfinished earlier command is dropped; what it wrote stays written.
    pub fn begin(&mut self, lun: u8, cdb: &[u8]) -> Result<TransferPlan, CheckCondition> {
        self.abandon();
        let plan = self.try_begin(lun, cdb);
        self.remember(plan)
    }

    /// The next bytes of a [`TransferPlan::Send`].
    pub fn fill(&mut self, to: &mut [u8]) -> Result<(), CheckCondition> {
        let result = self.try_fill(to);
        self.remember(result)
    }

    /// The next bytes of a [`TransferPlan::Take`].
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
        self.sense = SenseReport::NONE;
        if self.state == MediumState::Stopped {
            self.state = MediumState::Ready;
        }
    }

    /// Flushes for the owner. A failure is also reported to the host, which had got good status for its writes.
    pub fn sync(&mut self) -> Result<(), SenseReport> {
        self.medium.flush().inspect_err(|sense| self.deferred = Some(sense.deferred()))
    }

    /// Ejects the medium for the owner.
    pub fn eject(&mut self) -> Result<(), SenseReport> {
        self.may_eject()?;
        self.sync()?;
        self.state = MediumState::Ejected;
        Ok(())
    }

    /// Inserts the medium, for the owner or the host.
    pub fn insert(&mut self) {
        if self.state == MediumState::Ejected {
            self.attention = Some(SenseReport::MEDIUM_CHANGED);
        }
        self.state = MediumState::Ready;
    }

    pub fn has_medium(&self) -> bool {
        self.state != MediumState::Ejected
    }

    /// Drops the command that was begun.
    fn abandon(&mut self) {
        self.transfer = ScsiTransfer::None;
        self.buffer.clear();
    }

    /// Keeps the sense data of a failure for REQUEST SENSE (SPC-4: until the next command).
    fn remember<T>(&mut self, result: Result<T, SenseReport>) -> Result<T, CheckCondition> {
        result.map_err(|sense| {
            self.abandon();
            self.sense = sense;
            CheckCondition
        })
    }

    fn try_begin(&mut self, lun: u8, cdb: &[u8]) -> Result<TransferPlan, SenseReport> {
        let command = command::decode(cdb)?;
        // Sense data belongs to the command before this one; REQUEST SENSE works for any unit.
        if let ScsiCommand::Report(ScsiReport::Sense { descriptors }, allocation) = command {
            return self.reply(ScsiReport::Sense { descriptors }, allocation);
        }
        self.sense = SenseReport::NONE;
        if lun != 0 {
            return Err(SenseReport::UNIT_NOT_SUPPORTED);
        }
        self.admit(command.demand())?;
        self.execute(command)
    }

    /// Whether a command with this demand may run now.
    fn admit(&mut self, demand: CommandPrecondition) -> Result<(), SenseReport> {
        if demand >= CommandPrecondition::Attention
            && let Some(news) = self.take_news()
        {
            return Err(news);
        }
        if demand >= CommandPrecondition::Ready {
            self.check_ready()?;
        }
        if demand >= CommandPrecondition::Writable && self.medium.geometry.is_read_only {
            return Err(SenseReport::WRITE_PROTECTED);
        }
        Ok(())
    }

    /// An event that the host does not know yet; reported once. A deferred error goes first (SPC-4, deferred errors).
    fn take_news(&mut self) -> Option<SenseReport> {
        self.deferred.take().or_else(|| self.attention.take())
    }

    fn check_ready(&self) -> Result<(), SenseReport> {
        match self.state {
            MediumState::Ready => Ok(()),
            MediumState::Stopped => Err(SenseReport::STOPPED),
            MediumState::Ejected => Err(SenseReport::MEDIUM_NOT_PRESENT),
        }
    }

    fn execute(&mut self, command: ScsiCommand) -> Result<TransferPlan, SenseReport> {
        match command {
            ScsiCommand::TestUnitReady => Ok(TransferPlan::Done),
            ScsiCommand::Report(report, allocation) => self.reply(report, allocation),
            ScsiCommand::Read { extent, fua } => self.read(extent, fua),
            ScsiCommand::Write { extent, fua } => self.write(extent, fua),
            ScsiCommand::Verify { extent, compare } => self.verify(extent, compare),
            ScsiCommand::SynchronizeCache(extent) => {
                self.medium.geometry.span(extent)?;
                self.medium.flush().map(|()| TransferPlan::Done)
            }
            ScsiCommand::Parameters(_, 0) => Ok(TransferPlan::Done),
            ScsiCommand::Parameters(list, bytes) => {
                self.transfer = ScsiTransfer::Gather(GatherAction::Apply(list));
                Ok(TransferPlan::Take(bytes as u64))
            }
            ScsiCommand::WriteSame { extent, unmap, has_data } => self.write_same(extent, unmap, has_data),
            ScsiCommand::Power(power) => self.power(power).map(|()| TransferPlan::Done),
            ScsiCommand::PreventRemoval(prevented) => {
                self.prevented = prevented;
                Ok(TransferPlan::Done)
            }
        }
    }

    fn reply(&mut self, report: ScsiReport, allocation: usize) -> Result<TransferPlan, SenseReport> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_report(report, &mut buffer);
        self.buffer = buffer;
        written?;
        // A host with less space gets the front of it (SPC-4, allocation length).
        self.buffer.truncate(allocation);
        self.transfer = ScsiTransfer::Reply { at: 0 };
        Ok(match self.buffer.len() {
            0 => TransferPlan::Done,
            bytes => TransferPlan::Send(bytes as u64),
        })
    }

    fn write_report(&mut self, report: ScsiReport, to: &mut Vec<u8>) -> Result<(), SenseReport> {
        match report {
            ScsiReport::Sense { descriptors: true } => self.take_sense().write_descriptors(to),
            ScsiReport::Sense { descriptors: false } => self.take_sense().write_fixed(to),
            ScsiReport::Inquiry => self.identity.write_standard(to),
            ScsiReport::VitalProductData { page } => {
                self.identity.write_page(page, self.medium.geometry.is_thin, to)?
            }
            ScsiReport::Modes(ask) => self.mode_state().write(ask, to),
            ScsiReport::Capacity10 => reports::write_capacity_10(self.medium.geometry, to),
            ScsiReport::Capacity16 => reports::write_capacity_16(self.medium.geometry, to),
            ScsiReport::FormatCapacities => {
                reports::write_format_capacities(self.medium.geometry, self.has_medium(), to)
            }
            ScsiReport::Luns { select } => reports::write_luns(select, to),
        }
        Ok(())
    }

    /// The answer of REQUEST SENSE: about the last command, or an event that the host does not know yet, or why the
    /// next command would fail (SPC-4, REQUEST SENSE).
    fn take_sense(&mut self) -> SenseReport {
        let last = std::mem::replace(&mut self.sense, SenseReport::NONE);
        if last != SenseReport::NONE {
            return last;
        }
        self.take_news().or_else(|| self.check_ready().err()).unwrap_or(SenseReport::NONE)
    }

    fn mode_state(&self) -> mode::ModePageValues {
        mode::ModePageValues {
            write_cache: self.write_cache,
            read_only: self.medium.geometry.is_read_only,
            sectors: if self.has_medium() { self.medium.geometry.sectors } else { 0 },
            sector_bytes: self.medium.geometry.sector_bytes,
        }
    }

    fn read(&mut self, extent: LbaRange, fua: bool) -> Result<TransferPlan, SenseReport> {
        let span = self.medium.geometry.span(extent)?;
        if fua {
            // The host must read what the medium holds (SBC-3): newer data is flushed first.
            self.medium.flush()?;
        }
        self.transfer = ScsiTransfer::Read { offset: span.offset };
        Ok(if span.len == 0 { TransferPlan::Done } else { TransferPlan::Send(span.len) })
    }

    fn write(&mut self, extent: LbaRange, fua: bool) -> Result<TransferPlan, SenseReport> {
        let span = self.medium.geometry.span(extent)?;
        self.transfer = ScsiTransfer::Write { offset: span.offset, durable: fua };
        Ok(if span.len == 0 { TransferPlan::Done } else { TransferPlan::Take(span.len) })
    }

    fn verify(&mut self, extent: LbaRange, compare: bool) -> Result<TransferPlan, SenseReport> {
        let span = self.medium.geometry.span(extent)?;
        if span.len == 0 {
            return Ok(TransferPlan::Done);
        }
        if compare {
            self.transfer = ScsiTransfer::Compare { offset: span.offset };
            return Ok(TransferPlan::Take(span.len));
        }
        let mut done = 0;
        while done < span.len {
            let n = (BUFFER_BYTES as u64).min(span.len - done);
            self.buffer.resize(n as usize, 0);
            self.medium.read(span.offset + done, &mut self.buffer)?;
            done += n;
        }
        Ok(TransferPlan::Done)
    }

    fn write_same(&mut self, extent: LbaRange, unmap: bool, has_data: bool) -> Result<TransferPlan, SenseReport> {
        let span = self.medium.geometry.span(extent)?;
        if has_data {
            self.transfer = ScsiTransfer::Gather(GatherAction::WriteSame { span, unmap });
            return Ok(TransferPlan::Take(self.medium.geometry.sector_bytes.into()));
        }
        provisioning::write_zeros(&mut self.medium, span, unmap)?;
        self.settle(false).map(|()| TransferPlan::Done)
    }

    /// START STOP UNIT: flushes before the medium rests (SBC-3).
    fn power(&mut self, power: StartStopAction) -> Result<(), SenseReport> {
        match power {
            StartStopAction::Start => {
                if self.state == MediumState::Ejected {
                    return Err(SenseReport::MEDIUM_NOT_PRESENT);
                }
                self.state = MediumState::Ready;
            }
            StartStopAction::Stop => {
                self.medium.flush()?;
                if self.state == MediumState::Ready {
                    self.state = MediumState::Stopped;
                }
            }
            StartStopAction::Rest => self.medium.flush()?,
            StartStopAction::Load | StartStopAction::Eject if !self.identity.is_removable() => {
                return Err(SenseReport::INVALID_FIELD_IN_CDB);
            }
            StartStopAction::Load => self.insert(),
            StartStopAction::Eject => {
                self.may_eject()?;
                self.medium.flush()?;
                self.state = MediumState::Ejected;
            }
        }
        Ok(())
    }

    fn may_eject(&self) -> Result<(), SenseReport> {
        match (self.identity.is_removable(), self.prevented) {
            (false, _) => Err(SenseReport::INVALID_FIELD_IN_CDB),
            (true, true) => Err(SenseReport::REMOVAL_PREVENTED),
            (true, false) => Ok(()),
        }
    }

    fn try_fill(&mut self, to: &mut [u8]) -> Result<(), SenseReport> {
        match &mut self.transfer {
            ScsiTransfer::Reply { at } => {
                to.copy_from_slice(&self.buffer[*at..*at + to.len()]);
                *at += to.len();
                Ok(())
            }
            &mut ScsiTransfer::Read { offset } => {
                // The owner may have taken the medium out in between.
                self.check_ready()?;
                self.medium.read(offset, to)?;
                self.transfer = ScsiTransfer::Read { offset: offset + to.len() as u64 };
                Ok(())
            }
            other => unreachable!("a transport asked {other:?} for data"),
        }
    }

    fn try_take(&mut self, from: &[u8]) -> Result<(), SenseReport> {
        match self.transfer {
            ScsiTransfer::Gather(_) => {
                self.buffer.extend_from_slice(from);
                Ok(())
            }
            ScsiTransfer::Write { offset, durable } => {
                self.check_ready()?;
                self.medium.write(offset, from)?;
                self.transfer = ScsiTransfer::Write { offset: offset + from.len() as u64, durable };
                Ok(())
            }
            ScsiTransfer::Compare { offset } => {
                self.check_ready()?;
                self.compare(offset, from)?;
                self.transfer = ScsiTransfer::Compare { offset: offset + from.len() as u64 };
                Ok(())
            }
            other => unreachable!("a transport gave {other:?} data"),
        }
    }

    fn compare(&mut self, offset: u64, with: &[u8]) -> Result<(), SenseReport> {
        let mut at = offset;
        for piece in with.chunks(BUFFER_BYTES) {
            self.buffer.resize(piece.len(), 0);
            self.medium.read(at, &mut self.buffer)?;
            if let Some(differs) = piece.iter().zip(&self.buffer).position(|(a, b)| a != b) {
                let lba = (at + differs as u64) / u64::from(self.medium.geometry.sector_bytes);
                return Err(SenseReport::MISCOMPARE.at(lba));
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn try_finish(&mut self) -> Result<(), SenseReport> {
        match std::mem::replace(&mut self.transfer, ScsiTransfer::None) {
            ScsiTransfer::Write { durable, .. } => self.settle(durable),
            ScsiTransfer::Gather(then) => {
                self.check_ready_for(then)?;
                let mut buffer = std::mem::take(&mut self.buffer);
                let result = self.carry_out(then, &mut buffer);
                self.buffer = buffer;
                result
            }
            ScsiTransfer::None
            | ScsiTransfer::Reply { .. }
            | ScsiTransfer::Read { .. }
            | ScsiTransfer::Compare { .. } => Ok(()),
        }
    }

    fn check_ready_for(&self, then: GatherAction) -> Result<(), SenseReport> {
        match then {
            GatherAction::Apply(ParameterList::ModeSelect { .. }) => Ok(()),
            GatherAction::Apply(ParameterList::Unmap) | GatherAction::WriteSame { .. } => self.check_ready(),
        }
    }

    fn carry_out(&mut self, then: GatherAction, buffer: &mut Vec<u8>) -> Result<(), SenseReport> {
        match then {
            GatherAction::Apply(ParameterList::ModeSelect { long }) => {
                let write_cache = self.mode_state().parse(long, buffer)?;
                if !write_cache {
                    // Once the cache is off, the host would not ask to flush what it holds.
                    self.medium.flush()?;
                }
                self.write_cache = write_cache;
                Ok(())
            }
            GatherAction::Apply(ParameterList::Unmap) => {
                for span in provisioning::unmapped(self.medium.geometry, buffer)? {
                    self.medium.trim(span)?;
                }
                self.settle(false)
            }
            GatherAction::WriteSame { span, unmap } => {
                provisioning::write_same(&mut self.medium, span, unmap, buffer)?;
                self.settle(false)
            }
        }
    }

    /// Called before good status for a write: flushes if the host wants it or there is no cache.
    fn settle(&mut self, durable: bool) -> Result<(), SenseReport> {
        if durable || !self.write_cache { self.medium.flush() } else { Ok(()) }
    }

    pub fn save(&self, to: &mut SavedStateWriter) {
        to.u8(match self.state {
            MediumState::Ready => 0,
            MediumState::Stopped => 1,
            MediumState::Ejected => 2,
        });
        to.flag(self.prevented);
        to.flag(self.write_cache);
        self.sense.save(to);
        for news in [self.deferred, self.attention] {
            to.flag(news.is_some());
            news.unwrap_or(SenseReport::NONE).save(to);
        }
        self.transfer.save(to);
        // Compared data is not needed any more.
        to.bytes(if self.transfer.uses_buffer() { &self.buffer } else { &[] });
    }

    pub fn restore(&mut self, from: &mut SavedStateReader<'_>) -> Option<()> {
        self.state = match from.u8()? {
            0 => MediumState::Ready,
            1 => MediumState::Stopped,
            2 => MediumState::Ejected,
            _ => return None,
        };
        (self.prevented, self.write_cache) = (from.flag()?, from.flag()?);
        self.sense = SenseReport::restore(from)?;
        for news in [&mut self.deferred, &mut self.attention] {
            let (is_there, sense) = (from.flag()?, SenseReport::restore(from)?);
            *news = is_there.then_some(sense);
        }
        self.transfer = ScsiTransfer::restore(from)?;
        self.buffer.clear();
        self.buffer.extend_from_slice(from.bytes().filter(|bytes| bytes.len() <= BUFFER_BYTES)?);
        self.medium.assume_written();
        Some(())
    }

    /// Whether a command was begun that still has to move this.
    pub fn has_begun(&self, plan: TransferPlan) -> bool {
        let lies_inside = |offset: u64, len: u64| {
            let end = offset.checked_add(len);
            end.is_some_and(|end| end <= self.medium.geometry.sectors * u64::from(self.medium.geometry.sector_bytes))
        };
        let left = self.buffer.len() as u64;
        match (plan, self.transfer) {
            (TransferPlan::Done, _) => true,
            (TransferPlan::Send(bytes), ScsiTransfer::Reply { at }) => left.checked_sub(at as u64) == Some(bytes),
            (TransferPlan::Send(bytes), ScsiTransfer::Read { offset }) => lies_inside(offset, bytes),
            (TransferPlan::Take(bytes), ScsiTransfer::Write { offset, .. } | ScsiTransfer::Compare { offset }) => {
                lies_inside(offset, bytes)
            }
            (TransferPlan::Take(bytes), ScsiTransfer::Gather(then)) => {
                let is_inside = match then {
                    GatherAction::WriteSame { span, .. } => lies_inside(span.offset, span.len),
                    GatherAction::Apply(_) => true,
                };
                is_inside && left.saturating_add(bytes) <= BUFFER_BYTES as u64
            }
            (TransferPlan::Send(_) | TransferPlan::Take(_), _) => false,
        }
    }

    /// Bytes that the unit holds, for tests of the bound.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}
