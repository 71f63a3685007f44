//! Bulk-Only transport: one command at a time, its three phases in flight together.
//!
//! (USB Mass Storage Class, Bulk-Only Transport 1.0, "BOT".) Done one after the other, the phases cost
//! three round trips a command. So they are submitted together wherever that is safe:
//!
//! | data phase | submitted together | why it is safe |
//! |---|---|---|
//! | none | command, status | nothing is queued behind the command on its pipe |
//! | IN | command, data, status | likewise; what waits on the IN pipe is only ever read |
//! | OUT, whole packets of 64 bytes and more | command, data, status | were the command lost or refused, the data would be taken for commands; a valid command is a packet of exactly 31 bytes (§6.2.1), and no packet of this data is |
//! | OUT, anything else | command; then data; then status | the last packet could have 31 bytes and be obeyed |
//! | either, after a status behind data did not come | command; then data; then status | see below |
//!
//! | what happens | what is done |
//! |---|---|
//! | STALL in the IN data | withdraw the status request behind it, clear the halt, read the status (§6.7.2) |
//! | STALL in the OUT data | clear the halt; the status is on the other pipe and comes (§6.7.3) |
//! | STALL instead of the status | clear the halt, read it once more (§5.3.3); a second one is a fault |
//! | an empty packet instead of the status | read it once more: the data was ended twice |
//! | 13 bytes of IN data that are this command's status | the device skipped the data: that was the status |
//! | status while OUT data is still queued, not all of it taken | withdraw the data; fault |
//! | status not valid or not meaningful (§6.3), phase error, STALL of the command, babble, bus errors | fault |
//! | the command's time passes | fault |
//! | it passes with all data moved, and only the status did not come | fault; from then on no status is asked for before its data has moved |
//!
//! A **fault** ends in reset recovery (§5.3.4): everything in flight is withdrawn and waited for, then
//! Bulk-Only Mass Storage Reset, clear both halts. A device that refuses any of these may still sit
//! in its data phase and would take the next command for data; so it is reset as a whole, as far as
//! a client can: GET_DESCRIPTOR(DEVICE) of 64 bytes, which an exporter takes for the port reset that a
//! kernel begins with it, then SET_CONFIGURATION, which puts every endpoint and function back to
//! its beginning (USB 2.0 §9.1.1.5). The caller is told of the fault when the transport is fit
//! again; if it did not become fit, the next command begins with another reset.
//!
//! The last line is for devices that lose a request which waits behind another. QEMU's `usb-storage` (7.2 seen) does:
//! it reports the end of its data from within the end of its command, finds the request for the status there, and
//! believes that the command still runs.
//!
//! Completions on different endpoints may be reported in any order, so nothing is decided by order
//! between pipes: each completion is noted, and `proceed` looks at the whole.

use std::sync::Arc;
use std::time::Duration;

use farbus_model::descriptor::kind;
use farbus_model::{EpAddr, Instant, Payload, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus};

use crate::driver::{DeviceDriver, IdSource};
use crate::limits::CONTROL_TIMEOUT;
use crate::transfers::TransferTracker;

use super::error::TransportFault;
use super::scsi::Cdb;
use super::target::BulkOnlyInterface;
use super::wrapper::{COMMAND_BYTES, CommandStatus, STATUS_BYTES, write_command};

/// The smallest packet of which a full one cannot be taken for a command: more than 31 bytes.
const PIPELINED_PACKET_BYTES_MIN: u32 = 64;

/// Bulk-Only Mass Storage Reset (BOT §3.1).
const RESET: u8 = 0xff;

/// A command's data phase.
#[derive(Clone, Debug)]
pub(super) enum CommandPayload {
    /// The command has no data phase.
    None,
    /// Room for this many bytes.
    In(u32),
    /// The host sends these bytes.
    Out(Payload),
}

/// The result of a command whose transport worked.
#[derive(Debug, Default)]
pub(super) struct CommandReply {
    /// The device reports success.
    pub passed: bool,
    /// Valid bytes: moved, and not residue.
    pub moved: u32,
    /// The bytes that the device sent; empty for a command without an IN data phase.
    pub payload: Payload,
}

/// The transport to one interface.
#[derive(Debug)]
pub(super) struct BulkOnlyInitiator {
    target: BulkOnlyInterface,
    transfers: TransferTracker,
    tag: u32,
    /// The bytes of the command wrapper; reused for the next command once the port has dropped them.
    wrapper: Arc<[u8]>,
    phase: BulkOnlyInitiatorPhase,
    run: RunningCommand,
    /// When the running command times out.
    deadline: Option<Instant>,
    /// The last command's fault, while the transport is being reset.
    fault: Option<TransportFault>,
    /// The transport is out of step and has to be reset first.
    needs_reset: bool,
    /// The device lost a status that was requested early: from now on the phases are requested one by one.
    loses_early_status: bool,
    /// The device is gone or holds old requests: no further attempt is made.
    dead: Option<TransportFault>,
    result: Option<Result<CommandReply, TransportFault>>,
    spent: Payload,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BulkOnlyInitiatorPhase {
    Idle,
    /// A request to the control pipe is in flight.
    Asking,
    /// A command is running; [`RunningCommand`] has its progress.
    Moving,
    /// After a fault: waiting for everything withdrawn.
    Draining,
    /// Reset recovery, step by step.
    Climbing(ResetRecoveryStep),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ResetRecoveryStep {
    /// Bulk-Only Mass Storage Reset.
    Reset,
    ClearIn,
    ClearOut,
    /// A request that an exporter takes for a port reset.
    Port,
    Configure,
    Setting,
}

/// A running command.
#[derive(Debug, Default)]
struct RunningCommand {
    tag: u32,
    cdb: Option<(u8, Cdb)>,
    direction: Option<TransferDirection>,
    length: u32,
    /// OUT data that was not submitted yet.
    out: Payload,
    command: CommandTransfer,
    data: CommandTransfer,
    status: CommandTransfer,
    clear: CommandTransfer,
    halted_in: bool,
    halted_out: bool,
    /// Bytes of the data phase that moved.
    moved: u32,
    /// The bytes that the device sent so far.
    payload: Payload,
    verdict: Option<CommandStatus>,
    /// The status request in flight was withdrawn.
    status_withdrawn: bool,
    /// The OUT data in flight was withdrawn.
    data_withdrawn: bool,
    status_stalls: u32,
    status_blanks: u32,
}

/// One of a command's transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CommandTransfer {
    /// Not submitted, or not yet.
    #[default]
    Waiting,
    Flying(UrbId),
    Landed,
}

impl CommandTransfer {
    fn is(self, id: UrbId) -> bool {
        self == CommandTransfer::Flying(id)
    }

    fn is_flying(self) -> bool {
        matches!(self, CommandTransfer::Flying(_))
    }
}

impl BulkOnlyInitiator {
    pub fn new(target: BulkOnlyInterface, ids: IdSource) -> Self {
        Self {
            target,
            transfers: TransferTracker::new(ids),
            tag: 0,
            wrapper: Arc::new([0; COMMAND_BYTES]),
            phase: BulkOnlyInitiatorPhase::Idle,
            run: RunningCommand::default(),
            deadline: None,
            fault: None,
            needs_reset: false,
            loses_early_status: false,
            dead: None,
            result: None,
            spent: Payload::Empty,
        }
    }

    pub fn target(&self) -> &BulkOnlyInterface {
        &self.target
    }

    /// The last command passed but is not credible: the next one begins with a reset.
    pub fn distrust(&mut self) {
        self.needs_reset = true;
    }

    /// Makes a control request. A refusal is a reply that did not pass.
    pub fn ask(&mut self, now: Instant, setup: SetupPacket) {
        assert_eq!(self.phase, BulkOnlyInitiatorPhase::Idle, "one thing at a time");
        if let Some(fault) = self.dead {
            return self.finish(Err(fault));
        }
        self.phase = BulkOnlyInitiatorPhase::Asking;
        self.transfers.control_in(now, setup, Some(CONTROL_TIMEOUT));
    }

    /// Runs a command on logical unit `lun`.
    pub fn start(&mut self, now: Instant, lun: u8, cdb: Cdb, data: CommandPayload, timeout: Duration) {
        assert_eq!(
            self.phase,
            BulkOnlyInitiatorPhase::Idle,
            "Bulk-Only transport has one command outstanding (BOT §5.1)"
        );
        if let Some(fault) = self.dead {
            return self.finish(Err(fault));
        }
        let (direction, length, out) = match data {
            CommandPayload::None => (None, 0, Payload::Empty),
            CommandPayload::In(length) => (Some(TransferDirection::In), length, Payload::Empty),
            CommandPayload::Out(payload) => (Some(TransferDirection::Out), payload.len() as u32, payload),
        };
        let direction = direction.filter(|_| length > 0);
        self.tag = self.tag.wrapping_add(1);
        self.run = RunningCommand {
            tag: self.tag,
            cdb: Some((lun, cdb)),
            direction,
            length,
            out,
            ..RunningCommand::default()
        };
        // Time spent on a reset is part of the command's.
        self.deadline = Some(now + timeout);
        if self.needs_reset { self.climb(now, ResetRecoveryStep::Reset) } else { self.launch(now) }
    }

    /// The result of the last [`BulkOnlyInitiator::ask`] or [`BulkOnlyInitiator::start`], once.
    pub fn poll_result(&mut self) -> Option<Result<CommandReply, TransportFault>> {
        self.result.take()
    }

    pub fn poll_submit(&mut self) -> Option<Urb> {
        self.transfers.poll_submit()
    }

    pub fn poll_cancel(&mut self) -> Option<UrbId> {
        self.transfers.poll_cancel()
    }

    pub fn poll_spent(&mut self) -> Payload {
        std::mem::take(&mut self.spent)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadline.filter(|_| self.phase == BulkOnlyInitiatorPhase::Moving);
        match (deadline, self.transfers.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub fn handle_done(&mut self, now: Instant, done: UrbCompletion) {
        self.transfers.handle_done(now, done);
        self.advance(now);
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now);
        self.advance(now);
        if self.phase == BulkOnlyInitiatorPhase::Moving && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.loses_early_status |= self.run.misses_only_status();
            self.fail(now, TransportFault::TimedOut);
            self.advance(now);
        }
    }

    /// Submits what may be submitted together: the first table of the module.
    fn launch(&mut self, now: Instant) {
        self.phase = BulkOnlyInitiatorPhase::Moving;
        let payload = self.wrap_command();
        self.run.command = CommandTransfer::Flying(self.transfers.data_out(now, self.target.bulk_out, payload, None));
        match self.run.direction {
            None => self.run.data = CommandTransfer::Landed,
            Some(_) if self.loses_early_status => return,
            Some(TransferDirection::Out) if !self.may_pipeline_out() => return,
            Some(_) => self.launch_data(now),
        }
        self.launch_status(now);
    }

    fn may_pipeline_out(&self) -> bool {
        let packet = self.target.out_packet_bytes;
        packet >= PIPELINED_PACKET_BYTES_MIN && self.run.length.is_multiple_of(packet)
    }

    fn wrap_command(&mut self) -> Payload {
        let (lun, cdb) = self.run.cdb.expect("a command that runs has one");
        if Arc::get_mut(&mut self.wrapper).is_none() {
            self.wrapper = Arc::new([0; COMMAND_BYTES]);
        }
        let bytes = Arc::get_mut(&mut self.wrapper).expect("it is ours alone now");
        let direction = self.run.direction.unwrap_or(TransferDirection::Out);
        write_command(bytes, self.run.tag, direction, self.run.length, lun, &cdb);
        Payload::shared(&self.wrapper, 0..COMMAND_BYTES)
    }

    fn launch_data(&mut self, now: Instant) {
        let id = match self.run.direction {
            Some(TransferDirection::Out) => {
                let payload = std::mem::take(&mut self.run.out);
                self.transfers.data_out(now, self.target.bulk_out, payload, None)
            }
            _ => self.transfers.data_in(now, self.target.bulk_in, self.run.length, None),
        };
        self.run.data = CommandTransfer::Flying(id);
    }

    fn launch_status(&mut self, now: Instant) {
        let id = self.transfers.data_in(now, self.target.bulk_in, STATUS_BYTES as u32, None);
        self.run.status = CommandTransfer::Flying(id);
        self.run.status_withdrawn = false;
    }

    fn clear_halt(&mut self, now: Instant, endpoint: EpAddr) -> UrbId {
        self.transfers.control_in(now, SetupPacket::clear_halt(endpoint), Some(CONTROL_TIMEOUT))
    }

    /// Processes every completion, then decides what comes next.
    fn advance(&mut self, now: Instant) {
        loop {
            while let Some(done) = self.transfers.poll_outcome() {
                self.note(now, done);
            }
            if self.phase == BulkOnlyInitiatorPhase::Moving {
                self.proceed(now);
            }
            if self.phase == BulkOnlyInitiatorPhase::Draining && self.transfers.is_idle() {
                self.drained(now);
            }
            // A withdrawn request that had not left yet is back already.
            if !self.transfers.has_outcome() {
                return;
            }
        }
    }

    fn note(&mut self, now: Instant, done: UrbCompletion) {
        match self.phase {
            BulkOnlyInitiatorPhase::Moving => {
                if let Err(fault) = self.landed(done) {
                    self.fail(now, fault);
                }
            }
            BulkOnlyInitiatorPhase::Asking => self.control_landed(done),
            BulkOnlyInitiatorPhase::Climbing(rung) => self.climbed(now, rung, &done),
            BulkOnlyInitiatorPhase::Draining if done.status == UrbStatus::Gone => {
                self.fault = Some(TransportFault::Gone)
            }
            BulkOnlyInitiatorPhase::Idle | BulkOnlyInitiatorPhase::Draining => {}
        }
    }

    fn control_landed(&mut self, done: UrbCompletion) {
        self.look_for_death(done.status);
        let passed = matches!(done.status, UrbStatus::Ok | UrbStatus::Short);
        let result = match done.status {
            UrbStatus::Gone => Err(TransportFault::Gone),
            _ => Ok(CommandReply { passed, moved: done.payload.len() as u32, payload: done.payload }),
        };
        self.finish(result);
    }

    /// Records one transfer of the command: the second table of the module, left column.
    fn landed(&mut self, done: UrbCompletion) -> Result<(), TransportFault> {
        let run = &mut self.run;
        if run.command.is(done.id) {
            run.command = CommandTransfer::Landed;
            run.command_landed(&done)
        } else if run.data.is(done.id) {
            run.data = CommandTransfer::Landed;
            run.data_landed(done)
        } else if run.status.is(done.id) {
            run.status = CommandTransfer::Landed;
            let result = run.status_landed(&done);
            self.spent = done.payload;
            result
        } else if run.clear.is(done.id) {
            run.clear = CommandTransfer::Landed;
            match (done.status, done.setup == SetupPacket::clear_halt(self.target.bulk_in)) {
                (UrbStatus::Ok, true) => run.halted_in = false,
                (UrbStatus::Ok, false) => run.halted_out = false,
                (status, _) => return Err(bus_fault(status)),
            }
            Ok(())
        } else {
            Ok(())
        }
    }

    /// Decides what the running command needs next: the second table, right column.
    fn proceed(&mut self, now: Instant) {
        // Serial OUT: the command has gone through.
        if self.run.command == CommandTransfer::Landed && self.run.data == CommandTransfer::Waiting {
            return self.launch_data(now);
        }
        self.withdraw_what_is_over(now);
        self.clear_halts(now);
        let run = &self.run;
        let is_quiet = [run.command, run.data, run.status, run.clear].iter().all(|leg| !leg.is_flying());
        let phases_are_over = run.command == CommandTransfer::Landed && run.data == CommandTransfer::Landed;
        match run.verdict {
            Some(verdict) if is_quiet => self.conclude(now, verdict),
            // Not asked for yet, or to be asked for again.
            None if phases_are_over && !run.status.is_flying() && !run.halted_in => self.launch_status(now),
            _ => {}
        }
    }

    /// Cancels a status request that is stuck behind a halt or has its answer already, and OUT data that the device
    /// does not want any more.
    fn withdraw_what_is_over(&mut self, now: Instant) {
        let run = &mut self.run;
        if let CommandTransfer::Flying(id) = run.status
            && (run.halted_in || run.verdict.is_some())
            && !run.status_withdrawn
        {
            run.status_withdrawn = true;
            self.transfers.withdraw(now, id);
        }
        if let CommandTransfer::Flying(id) = run.data
            && run.verdict.is_some_and(|verdict| verdict.residue > 0)
            && !run.data_withdrawn
        {
            run.data_withdrawn = true;
            self.transfers.withdraw(now, id);
        }
    }

    /// Clears one halt at a time, once nothing is queued on its pipe.
    fn clear_halts(&mut self, now: Instant) {
        let run = &self.run;
        let is_in = run.direction == Some(TransferDirection::In);
        let in_is_busy = run.status.is_flying() || is_in && run.data.is_flying();
        let out_is_busy = run.command.is_flying() || !is_in && run.data.is_flying();
        let endpoint = match (run.clear.is_flying(), run.halted_in && !in_is_busy, run.halted_out && !out_is_busy) {
            (false, true, _) => self.target.bulk_in,
            (false, false, true) => self.target.bulk_out,
            _ => return,
        };
        let id = self.clear_halt(now, endpoint);
        self.run.clear = CommandTransfer::Flying(id);
    }

    fn conclude(&mut self, now: Instant, verdict: CommandStatus) {
        if verdict.status > 1 {
            return self.fail(now, TransportFault::PhaseError);
        }
        let run = &mut self.run;
        let meant = run.length - verdict.residue;
        let moved = if run.direction == Some(TransferDirection::Out) { meant } else { meant.min(run.moved) };
        let payload = std::mem::take(&mut run.payload);
        self.finish(Ok(CommandReply { passed: verdict.status == 0, moved, payload }));
    }

    fn finish(&mut self, result: Result<CommandReply, TransportFault>) {
        self.phase = BulkOnlyInitiatorPhase::Idle;
        self.deadline = None;
        self.run.out = Payload::Empty;
        self.result = Some(result);
    }

    /// Handles a fault: cancels everything, then begins recovery.
    fn fail(&mut self, now: Instant, fault: TransportFault) {
        self.fault = Some(fault);
        self.needs_reset = true;
        self.phase = BulkOnlyInitiatorPhase::Draining;
        self.transfers.withdraw_all(now);
    }

    fn drained(&mut self, now: Instant) {
        let is_gone = self.fault == Some(TransportFault::Gone);
        self.look_for_death(if is_gone { UrbStatus::Gone } else { UrbStatus::Ok });
        match self.dead {
            Some(fault) => self.finish(Err(fault)),
            None => self.climb(now, ResetRecoveryStep::Reset),
        }
    }

    /// Checks whether any further attempt is useless.
    fn look_for_death(&mut self, status: UrbStatus) {
        if status == UrbStatus::Gone {
            self.dead = Some(TransportFault::Gone);
        } else if self.transfers.unanswered() > 0 {
            self.dead = Some(TransportFault::Unanswered);
        }
    }

    /// Reset recovery (BOT §5.3.4): reset, clear IN, clear OUT, in this order; if that fails, the whole device.
    fn climb(&mut self, now: Instant, rung: ResetRecoveryStep) {
        self.phase = BulkOnlyInitiatorPhase::Climbing(rung);
        let BulkOnlyInterface { configuration, interface, alternate, bulk_in, bulk_out, .. } = self.target;
        let setup = match rung {
            ResetRecoveryStep::Reset => {
                SetupPacket { request_type: 0x21, request: RESET, value: 0, index: interface.into(), length: 0 }
            }
            ResetRecoveryStep::ClearIn => SetupPacket::clear_halt(bulk_in),
            ResetRecoveryStep::ClearOut => SetupPacket::clear_halt(bulk_out),
            ResetRecoveryStep::Port => SetupPacket::get_descriptor(kind::DEVICE, 0, 0, 64),
            ResetRecoveryStep::Configure => SetupPacket::set_configuration(configuration),
            ResetRecoveryStep::Setting => SetupPacket::set_interface(interface, alternate),
        };
        self.transfers.control_in(now, setup, Some(CONTROL_TIMEOUT));
    }

    fn climbed(&mut self, now: Instant, rung: ResetRecoveryStep, done: &UrbCompletion) {
        self.look_for_death(done.status);
        if let Some(fault) = self.dead {
            return self.finish(Err(fault));
        }
        match (rung, done.status == UrbStatus::Ok) {
            (ResetRecoveryStep::Reset, true) => self.climb(now, ResetRecoveryStep::ClearIn),
            (ResetRecoveryStep::ClearIn, true) => self.climb(now, ResetRecoveryStep::ClearOut),
            (ResetRecoveryStep::Reset | ResetRecoveryStep::ClearIn | ResetRecoveryStep::ClearOut, false) => {
                self.climb(now, ResetRecoveryStep::Port)
            }
            // Whatever the answer: to most devices it is only a request for a descriptor.
            (ResetRecoveryStep::Port, _) => self.climb(now, ResetRecoveryStep::Configure),
            (ResetRecoveryStep::Configure, true) if self.target.alternate != 0 => {
                self.climb(now, ResetRecoveryStep::Setting)
            }
            (ResetRecoveryStep::ClearOut | ResetRecoveryStep::Configure | ResetRecoveryStep::Setting, true) => {
                self.needs_reset = false;
                match self.fault.take() {
                    Some(fault) => self.finish(Err(fault)),
                    None => self.launch(now),
                }
            }
            (ResetRecoveryStep::Configure | ResetRecoveryStep::Setting, false) => {
                let fault = self.fault.take().unwrap_or(TransportFault::ResetFailed);
                self.finish(Err(fault));
            }
        }
    }
}

impl RunningCommand {
    fn command_landed(&mut self, done: &UrbCompletion) -> Result<(), TransportFault> {
        match done.status {
            // An OUT transfer that succeeded was taken whole, whatever count a peer gives; some
            // USB/IP servers give none.
            UrbStatus::Ok => Ok(()),
            UrbStatus::Stall => Err(TransportFault::CommandRefused),
            status => Err(bus_fault(status)),
        }
    }

    /// Whether only the status is missing, which was requested.
    fn misses_only_status(&self) -> bool {
        let all_moved = self.direction.is_some() && self.moved == self.length;
        self.command == CommandTransfer::Landed
            && self.data == CommandTransfer::Landed
            && all_moved
            && self.status.is_flying()
    }

    fn data_landed(&mut self, done: UrbCompletion) -> Result<(), TransportFault> {
        let is_in = self.direction == Some(TransferDirection::In);
        let moved = if is_in { done.payload.len() as u32 } else { done.actual };
        if moved > self.length {
            return Err(TransportFault::Babble);
        }
        match done.status {
            UrbStatus::Ok | UrbStatus::Short if is_in && self.is_status(&done.payload) => return Ok(()),
            UrbStatus::Ok | UrbStatus::Short => {}
            UrbStatus::Stall if is_in => self.halted_in = true,
            UrbStatus::Stall => self.halted_out = true,
            UrbStatus::Cancelled if self.data_withdrawn => return Err(TransportFault::EarlyStatus),
            status => return Err(bus_fault(status)),
        }
        self.moved = moved;
        self.payload = done.payload;
        Ok(())
    }

    /// Whether a device skipped the data phase and these bytes are its status. Linux knows such
    /// devices ("Device skipped data phase").
    fn is_status(&mut self, payload: &Payload) -> bool {
        if payload.len() != STATUS_BYTES || self.length as usize == STATUS_BYTES {
            return false;
        }
        self.verdict = CommandStatus::parse(&payload.contiguous(), self.tag, self.length);
        self.verdict.is_some()
    }

    fn status_landed(&mut self, done: &UrbCompletion) -> Result<(), TransportFault> {
        let was_withdrawn = self.status_withdrawn;
        match done.status {
            // A cancellation that came too late has not lost the status.
            UrbStatus::Ok | UrbStatus::Short | UrbStatus::Cancelled if done.payload.len() == STATUS_BYTES => {
                let verdict = CommandStatus::parse(&done.payload.contiguous(), self.tag, self.length);
                self.verdict = Some(verdict.ok_or(TransportFault::BadStatus)?);
                Ok(())
            }
            UrbStatus::Ok if done.payload.is_empty() && self.status_blanks == 0 => {
                self.status_blanks += 1;
                Ok(())
            }
            UrbStatus::Ok | UrbStatus::Short => Err(TransportFault::BadStatus),
            // It shares the halt of the data before it, or was withdrawn for that.
            UrbStatus::Stall | UrbStatus::Cancelled if self.halted_in || was_withdrawn => Ok(()),
            UrbStatus::Stall if self.status_stalls == 0 => {
                self.status_stalls += 1;
                self.halted_in = true;
                Ok(())
            }
            UrbStatus::Stall => Err(TransportFault::StatusRefused),
            status => Err(bus_fault(status)),
        }
    }
}

/// A transfer that failed in a way that only a new attempt can cure.
fn bus_fault(status: UrbStatus) -> TransportFault {
    match status {
        UrbStatus::Gone => TransportFault::Gone,
        UrbStatus::Overflow => TransportFault::Babble,
        UrbStatus::TimedOut => TransportFault::TimedOut,
        status => TransportFault::Bus(status),
    }
}
