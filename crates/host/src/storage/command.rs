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

use farbus_model::{Instant, Payload, Setup};

use crate::driver::IdSource;
use crate::limits::{ATTENTION_TRIES, FAULT_TRIES, READY_PAUSE, READY_TIMEOUT, TIMEOUT_TRIES};

use super::bulk_only::{BulkOnly, Data, Reply};
use super::error::{DiskError, Fault};
use super::scsi::{Cdb, SENSE_BYTES};
use super::sense::Sense;
use super::target::Target;
use super::verdict::Verdict;

/// A command as an operation makes it.
#[derive(Clone, Debug)]
pub(super) struct Command {
    cdb: Cdb,
    data: Data,
    /// Whether less than all data is a failure: blocks, rather than an answer of unknown length.
    exact: bool,
    /// How many timeouts it may take: a command that waits for the medium may take two.
    patience: u32,
}

impl Command {
    /// A command without data.
    pub fn plain(cdb: Cdb) -> Self {
        Self { cdb, data: Data::None, exact: true, patience: 1 }
    }

    /// A command whose answer has at most `length` bytes.
    pub fn answer(cdb: Cdb, length: u32) -> Self {
        Self { cdb, data: Data::In(length), exact: false, patience: 1 }
    }

    /// A command that reads `length` bytes of blocks.
    pub fn blocks_in(cdb: Cdb, length: u32) -> Self {
        Self { cdb, data: Data::In(length), exact: true, patience: 1 }
    }

    /// A command that sends these bytes. A repetition clones them: a window is cheaper than a vector.
    pub fn out(cdb: Cdb, payload: Payload) -> Self {
        Self { cdb, data: Data::Out(payload), exact: true, patience: 1 }
    }

    /// Marks the command as one that waits for the medium.
    pub fn patient(self) -> Self {
        Self { patience: 2, ..self }
    }

    fn length(&self) -> u32 {
        match &self.data {
            Data::None => 0,
            Data::In(length) => *length,
            Data::Out(payload) => payload.len() as u32,
        }
    }
}

/// Runs commands, one at a time.
#[derive(Debug)]
pub(super) struct Executor {
    pub transport: BulkOnly,
    lun: u8,
    timeout: Duration,
    /// A medium is in use: if it changes, the command must not reach the new one.
    pub guards_medium: bool,
    command: Option<Command>,
    asking: Asking,
    tries: Tries,
    /// Until when the medium has time to become ready.
    ready_until: Instant,
    pause_until: Option<Instant>,
    /// A late failure of an earlier command that had been reported as done.
    deferred: Option<DiskError>,
    result: Option<Result<Reply, DiskError>>,
}

/// What the transport is doing for the command.
#[derive(Debug)]
enum Asking {
    /// A control request instead of a command.
    Control,
    /// The command itself.
    Command,
    /// Reading the reason of a failure; has the failed command's reply.
    Sense(Reply),
    /// Starting the medium.
    Start,
}

#[derive(Debug, Default)]
struct Tries {
    faults: u32,
    timeouts: u32,
    attentions: u32,
    starts: u32,
}

impl Executor {
    pub fn new(target: Target, ids: IdSource, lun: u8, timeout: Duration) -> Self {
        Self {
            transport: BulkOnly::new(target, ids),
            lun,
            timeout,
            guards_medium: false,
            command: None,
            asking: Asking::Command,
            tries: Tries::default(),
            ready_until: Instant::ZERO,
            pause_until: None,
            deferred: None,
            result: None,
        }
    }

    /// Makes a control request; a refusal is a reply that did not pass.
    pub fn ask(&mut self, now: Instant, setup: Setup) {
        self.asking = Asking::Control;
        self.transport.ask(now, setup);
        self.advance(now);
    }

    /// Runs a command.
    pub fn execute(&mut self, now: Instant, command: Command) {
        self.command = Some(command);
        self.tries = Tries::default();
        self.ready_until = now + READY_TIMEOUT;
        self.attempt(now);
        self.advance(now);
    }

    /// The result of the last [`Executor::ask`] or [`Executor::execute`], once.
    pub fn poll_result(&mut self) -> Option<Result<Reply, DiskError>> {
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
        self.asking = Asking::Command;
        let timeout = self.timeout * command.patience;
        self.transport.start(now, self.lun, command.cdb, command.data.clone(), timeout);
    }

    fn step(&mut self, now: Instant, result: Result<Reply, Fault>) {
        let asking = std::mem::replace(&mut self.asking, Asking::Command);
        match (asking, result) {
            (Asking::Control, result) => self.finish(result.map_err(DiskError::from)),
            (_, Err(fault)) => self.failed(now, fault),
            (Asking::Command, Ok(reply)) if reply.passed => self.passed(now, reply),
            (Asking::Command, Ok(reply)) => {
                self.asking = Asking::Sense(reply);
                self.transport.start(now, self.lun, Cdb::request_sense(), Data::In(SENSE_BYTES), self.timeout);
            }
            (Asking::Sense(reply), Ok(answer)) => {
                let sense = Sense::parse(&answer.payload.contiguous());
                self.judge(now, reply, sense);
            }
            (Asking::Start, Ok(_)) => self.attempt(now),
        }
    }

    fn passed(&mut self, now: Instant, reply: Reply) {
        let command = self.command.as_ref().expect("a reply belongs to a command");
        if command.exact && reply.moved != command.length() {
            self.transport.distrust();
            return self.failed(now, Fault::ShortData);
        }
        self.finish(Ok(reply));
    }

    /// Handles a command that failed for this reason.
    fn judge(&mut self, now: Instant, reply: Reply, sense: Sense) {
        match Verdict::of(sense) {
            Verdict::Passed => self.passed(now, reply),
            Verdict::Again => self.again(now, sense),
            Verdict::MediumChanged if self.guards_medium => self.finish(Err(DiskError::MediumChanged)),
            Verdict::MediumChanged => self.again(now, sense),
            Verdict::Later if now + READY_PAUSE <= self.ready_until => self.pause_until = Some(now + READY_PAUSE),
            Verdict::Later => self.finish(Err(DiskError::NotReady(sense))),
            Verdict::Deferred(error) => {
                self.deferred = Some(error);
                self.again(now, sense);
            }
            Verdict::Failed(_) if sense.wants_start() && self.tries.starts == 0 => {
                self.tries.starts += 1;
                self.asking = Asking::Start;
                // The result of the start does not matter: the repeated command shows whether it helped.
                self.transport.start(now, self.lun, Cdb::start(), Data::None, self.timeout * 2);
            }
            Verdict::Failed(error) => self.finish(Err(error)),
        }
    }

    fn again(&mut self, now: Instant, sense: Sense) {
        self.tries.attentions += 1;
        if self.tries.attentions > ATTENTION_TRIES {
            return self.finish(Err(DiskError::Refused(sense)));
        }
        self.attempt(now);
    }

    /// Handles a failed transport, or a command that is not credible.
    fn failed(&mut self, now: Instant, fault: Fault) {
        let tries = &mut self.tries;
        let is_over = match fault {
            Fault::Gone | Fault::Unanswered => true,
            Fault::TimedOut => {
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

    fn finish(&mut self, result: Result<Reply, DiskError>) {
        // Drops the payload before the owner learns of the end, so that the owner can reuse it.
        self.command = None;
        self.result = Some(result);
    }
}
