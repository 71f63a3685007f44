//! One SCSI command from beginning to end: sense data after a failure, and repetition where it helps.
//!
//! Every command that is issued here may be repeated: it reads, or writes the same bytes to the
//! same place, or changes a state to what it may already be.
//!
//! | what came | what is done | at most |
//! |---|---|---|
//! | transport fault | (the transport resets itself) again | [`FAULT_TRIES`] |
//! | no answer in time | likewise | [`TIMEOUT_TRIES`] |
//! | passed, but not all blocks moved | reset, again | [`FAULT_TRIES`] |
//! | failed: unit attention, aborted | again | [`ATTENTION_TRIES`] |
//! | failed: an earlier command, late (deferred error) | again; the next flush fails with it | [`ATTENTION_TRIES`] |
//! | failed: becoming ready | pause, again | [`READY_TIMEOUT`] |
//! | failed: the medium may have changed | error if one was in use, else again | |
//! | failed: needs to be started | START STOP UNIT, again | once |
//! | failed otherwise | error | |

use std::time::Duration;

use farbus_model::{Instant, Payload, SetupPacket};

use crate::driver::IdSource;
use crate::limits::{ATTENTION_TRIES, FAULT_TRIES, READY_PAUSE, READY_TIMEOUT, TIMEOUT_TRIES};

use super::bulk_only::{BulkOnlyInitiator, CommandPayload, CommandReply};
use super::error::{DiskError, TransportFault};
use super::scsi::{Cdb, SENSE_BYTES};
use super::sense::SenseCode;
use super::target::BulkOnlyInterface;
use super::verdict::RetryVerdict;

/// A command as an operation makes it.
#[derive(Clone, Debug)]
pub(super) struct DiskCommand {
    cdb: Cdb,
    data: CommandPayload,
    /// Whether less than all data is a failure: blocks, rather than an answer of unknown length.
    exact: bool,
    /// How many timeouts it may take: a command that waits for the medium may take two.
    patience: u32,
}

impl DiskCommand {
    /// A command without data.
    pub fn plain(cdb: Cdb) -> Self {
        Self { cdb, data: CommandPayload::None, exact: true, patience: 1 }
    }

    /// A command whose answer has at most `length` bytes.
    pub fn answer(cdb: Cdb, length: u32) -> Self {
        Self { cdb, data: CommandPayload::In(length), exact: false, patience: 1 }
    }

    /// A command that reads `length` bytes of blocks.
    pub fn blocks_in(cdb: Cdb, length: u32) -> Self {
        Self { cdb, data: CommandPayload::In(length), exact: true, patience: 1 }
    }

    /// A command that sends these bytes. A repetition clones them: a window is cheaper than a vector.
    pub fn out(cdb: Cdb, payload: Payload) -> Self {
        Self { cdb, data: CommandPayload::Out(payload), exact: true, patience: 1 }
    }

    /// Marks the command as one that waits for the medium.
    pub fn patient(self) -> Self {
        Self { patience: 2, ..self }
    }

    fn length(&self) -> u32 {
        match &self.data {
            CommandPayload::None => 0,
            CommandPayload::In(length) => *length,
            CommandPayload::Out(payload) => payload.len() as u32,
        }
    }
}

/// Runs commands, one at a time.
#[derive(Debug)]
pub(super) struct CommandExecutor {
    pub transport: BulkOnlyInitiator,
    lun: u8,
    timeout: Duration,
    /// A medium is in use: if it changes, the command must not reach the new one.
    pub guards_medium: bool,
    command: Option<DiskCommand>,
    asking: ExecutorActivity,
    tries: RetryCounts,
    /// Until when the medium has time to become ready.
    ready_until: Instant,
    pause_until: Option<Instant>,
    /// A late failure of an earlier command that had been reported as done.
    deferred: Option<DiskError>,
    result: Option<Result<CommandReply, DiskError>>,
}

/// What the transport is doing for the command.
#[derive(Debug)]
enum ExecutorActivity {
    /// A control request instead of a command.
    Control,
    /// The command itself.
    Command,
    /// Reading the reason of a failure; has the failed command's reply.
    Sense(CommandReply),
    /// Starting the medium.
    Start,
}

#[derive(Debug, Default)]
struct RetryCounts {
    faults: u32,
    timeouts: u32,
    attentions: u32,
    starts: u32,
}

impl CommandExecutor {
    pub fn new(target: BulkOnlyInterface, ids: IdSource, lun: u8, timeout: Duration) -> Self {
        Self {
            transport: BulkOnlyInitiator::new(target, ids),
            lun,
            timeout,
            guards_medium: false,
            command: None,
            asking: ExecutorActivity::Command,
            tries: RetryCounts::default(),
            ready_until: Instant::ZERO,
            pause_until: None,
            deferred: None,
            result: None,
        }
    }

    /// Makes a control request; a refusal is a reply that did not pass.
    pub fn ask(&mut self, now: Instant, setup: SetupPacket) {
        self.asking = ExecutorActivity::Control;
        self.transport.ask(now, setup);
        self.advance(now);
    }

    /// Runs a command.
    pub fn execute(&mut self, now: Instant, command: DiskCommand) {
        self.command = Some(command);
        self.tries = RetryCounts::default();
        self.ready_until = now + READY_TIMEOUT;
        self.attempt(now);
        self.advance(now);
    }

    /// The result of the last [`CommandExecutor::ask`] or [`CommandExecutor::execute`], once.
    pub fn poll_result(&mut self) -> Option<Result<CommandReply, DiskError>> {
        self.result.take()
    }

    /// A late failure of an earlier command that had been reported as done, once.
    pub fn take_deferred(&mut self) -> Option<DiskError> {
        self.deferred.take()
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pause_until.or_else(|| self.transport.poll_timeout())
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.pause_until.is_some_and(|until| until <= now) {
            self.pause_until = None;
            self.attempt(now);
        }
        self.transport.handle_timeout(now);
        self.advance(now);
    }

    /// Continues when the transport may have finished something.
    pub fn advance(&mut self, now: Instant) {
        while let Some(result) = self.transport.poll_result() {
            self.step(now, result);
        }
    }

    fn attempt(&mut self, now: Instant) {
        let command = self.command.as_ref().expect("an attempt is made at a command");
        self.asking = ExecutorActivity::Command;
        let timeout = self.timeout * command.patience;
        self.transport.start(now, self.lun, command.cdb, command.data.clone(), timeout);
    }

    fn step(&mut self, now: Instant, result: Result<CommandReply, TransportFault>) {
        let asking = std::mem::replace(&mut self.asking, ExecutorActivity::Command);
        match (asking, result) {
            (ExecutorActivity::Control, result) => self.finish(result.map_err(DiskError::from)),
            (_, Err(fault)) => self.failed(now, fault),
            (ExecutorActivity::Command, Ok(reply)) if reply.passed => self.passed(now, reply),
            (ExecutorActivity::Command, Ok(reply)) => {
                self.asking = ExecutorActivity::Sense(reply);
                self.transport.start(
                    now,
                    self.lun,
                    Cdb::request_sense(),
                    CommandPayload::In(SENSE_BYTES),
                    self.timeout,
                );
            }
            (ExecutorActivity::Sense(reply), Ok(answer)) => {
                let sense = SenseCode::parse(&answer.payload.contiguous());
                self.judge(now, reply, sense);
            }
            (ExecutorActivity::Start, Ok(_)) => self.attempt(now),
        }
    }

    fn passed(&mut self, now: Instant, reply: CommandReply) {
        let command = self.command.as_ref().expect("a reply belongs to a command");
        if command.exact && reply.moved != command.length() {
            self.transport.distrust();
            return self.failed(now, TransportFault::ShortData);
        }
        self.finish(Ok(reply));
    }

    /// Handles a command that failed for this reason.
    fn judge(&mut self, now: Instant, reply: CommandReply, sense: SenseCode) {
        match RetryVerdict::of(sense) {
            RetryVerdict::Passed => self.passed(now, reply),
            RetryVerdict::Again => self.again(now, sense),
            RetryVerdict::MediumChanged if self.guards_medium => self.finish(Err(DiskError::MediumChanged)),
            RetryVerdict::MediumChanged => self.again(now, sense),
            RetryVerdict::Later if now + READY_PAUSE <= self.ready_until => self.pause_until = Some(now + READY_PAUSE),
            RetryVerdict::Later => self.finish(Err(DiskError::NotReady(sense))),
            RetryVerdict::Deferred(error) => {
                self.deferred = Some(error);
                self.again(now, sense);
            }
            RetryVerdict::Failed(_) if sense.wants_start() && self.tries.starts == 0 => {
                self.tries.starts += 1;
                self.asking = ExecutorActivity::Start;
                // The result of the start does not matter: the repeated command shows whether it helped.
                self.transport.start(now, self.lun, Cdb::start(), CommandPayload::None, self.timeout * 2);
            }
            RetryVerdict::Failed(error) => self.finish(Err(error)),
        }
    }

    fn again(&mut self, now: Instant, sense: SenseCode) {
        self.tries.attentions += 1;
        if self.tries.attentions > ATTENTION_TRIES {
            return self.finish(Err(DiskError::Refused(sense)));
        }
        self.attempt(now);
    }

    /// Handles a failed transport, or a command that is not credible.
    fn failed(&mut self, now: Instant, fault: TransportFault) {
        let tries = &mut self.tries;
        let is_over = match fault {
            TransportFault::Gone | TransportFault::Unanswered => true,
            TransportFault::TimedOut => {
                tries.timeouts += 1;
                tries.timeouts >= TIMEOUT_TRIES
            }
            _ => {
                tries.faults += 1;
                tries.faults >= FAULT_TRIES
            }
        };
        if is_over { self.finish(Err(fault.into())) } else { self.attempt(now) }
    }

    fn finish(&mut self, result: Result<CommandReply, DiskError>) {
        // Drops the payload before the owner learns of the end, so that the owner can reuse it.
        self.command = None;
        self.result = Some(result);
    }
}
