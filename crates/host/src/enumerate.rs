//! Reads a device's descriptors, and selects a configuration (USB 2.0 §9.1.2, §9.4.3).
//!
//! | step | asked for | if the device refuses |
//! |---|---|---|
//! | device descriptor | 18 bytes | error |
//! | object store, at SuperSpeed | 5 bytes, then all of it | left out |
//! | each configuration | 9 bytes, then `wTotalLength` | error |
//! | languages | string 0 | no strings; without a language: US English |
//! | each string that a descriptor names | 255 bytes | left out |
//!
//! The device descriptor is asked for as a whole. Kernels first ask for 8 or 64 bytes, before they know the size of
//! endpoint 0, and exporters recognise a port reset by that; the size of endpoint 0 is the exporter's concern.
//!
//! A refused piece may be missing, but a piece that is there must be valid: a false length is an error with its offset.
//! Everything is bounded by [`limits`].

use std::fmt;

use farbus_model::descriptor::{
    Configuration, DescriptorError, Descriptors, DeviceDescriptor, LANGUAGE_EN_US, kind, string_from_bytes,
};
use farbus_model::{Done, Instant, Payload, Setup, Speed, Status, Urb, UrbId};

use crate::driver::{Driver, IdSource};
use crate::limits::{self, BOS_BYTES_MAX, CONFIGURATIONS_MAX, CONTROL_TIMEOUT, STRINGS_MAX};
use crate::transfers::Transfers;

/// Bytes of a binary object store's header (USB 3.2 table 9-12).
const BOS_HEADER_BYTES: usize = 5;
/// Bytes asked for of a string: the most that its length byte can say.
const STRING_BYTES: u16 = 255;

/// Reads all descriptors of one device, one control transfer at a time.
#[derive(Debug)]
pub struct Enumerate {
    transfers: Transfers,
    speed: Speed,
    step: Step,
    found: Descriptors,
    /// Indexes of the strings still to be read, last one first.
    strings: Vec<u8>,
    language: u16,
    asked: usize,
    /// When the last piece has to be there; `None`: each has its own time.
    until: Option<Instant>,
    outcome: Option<Result<Descriptors, EnumerateError>>,
}

/// What the request in flight asks for.
#[derive(Clone, Copy, Debug)]
enum Step {
    Device,
    BosHeader,
    Bos(usize),
    Header(u8),
    Configuration(u8, usize),
    Languages,
    String(u8),
    Finished,
}

impl Enumerate {
    /// Begins to read the descriptors of a device that runs at `speed`.
    pub fn new(now: Instant, ids: IdSource, speed: Speed) -> Self {
        let mut this = Self::of(Descriptors::default(), ids, speed);
        this.ask(now, Step::Device);
        this
    }

    /// Begins to read the strings of a device that runs at `speed` and has these descriptors. They are returned with
    /// the strings that came within [`limits::STRINGS_TIME_MAX`]; it is no error if there is none.
    pub fn strings(now: Instant, ids: IdSource, speed: Speed, descriptors: &Descriptors) -> Self {
        let mut this = Self::of(descriptors.clone(), ids, speed);
        this.until = Some(now + limits::STRINGS_TIME_MAX);
        let first = this.first_string();
        this.ask(now, first);
        this
    }

    fn of(found: Descriptors, ids: IdSource, speed: Speed) -> Self {
        let (transfers, strings) = (Transfers::new(ids), Vec::new());
        let (step, language, asked, until, outcome) = (Step::Finished, LANGUAGE_EN_US, 0, None, None);
        Self { transfers, speed, step, found, strings, language, asked, until, outcome }
    }

    fn ask(&mut self, now: Instant, step: Step) {
        let (kind, index, language, length) = match step {
            Step::Device => (kind::DEVICE, 0, 0, DeviceDescriptor::BYTES as u16),
            Step::BosHeader => (kind::BOS, 0, 0, BOS_HEADER_BYTES as u16),
            Step::Bos(total) => (kind::BOS, 0, 0, total as u16),
            Step::Header(index) => (kind::CONFIGURATION, index, 0, Configuration::HEADER_BYTES as u16),
            Step::Configuration(index, total) => (kind::CONFIGURATION, index, 0, total as u16),
            Step::Languages => (kind::STRING, 0, 0, STRING_BYTES),
            Step::String(index) => (kind::STRING, index, self.language, STRING_BYTES),
            Step::Finished => return self.finish(),
        };
        let left = self.until.map_or(CONTROL_TIMEOUT, |until| (until - now).min(CONTROL_TIMEOUT));
        if left.is_zero() {
            return self.finish();
        }
        self.step = step;
        self.asked += 1;
        assert!(self.asked <= limits::ENUMERATION_TRANSFERS_MAX, "each step is bounded, so is their sum");
        let setup = Setup::get_descriptor(kind, index, language, length);
        self.transfers.control_in(now, setup, Some(left));
    }

    fn finish(&mut self) {
        self.step = Step::Finished;
        self.outcome = Some(Ok(std::mem::take(&mut self.found)));
    }

    fn answered(&mut self, now: Instant, done: Done) {
        match self.understand(&done) {
            Ok(next) => self.ask(now, next),
            Err(reason) => {
                let piece = self.step.piece();
                self.step = Step::Finished;
                self.outcome = Some(Err(EnumerateError { piece, reason }));
            }
        }
    }

    /// Processes one answer and returns what to ask next.
    fn understand(&mut self, done: &Done) -> Result<Step, Reason> {
        if matches!(done.status, Status::Gone | Status::Shutdown) {
            return Err(Reason::Gone);
        }
        let refused = !matches!(done.status, Status::Ok | Status::Short);
        let bytes = done.payload.contiguous();
        match self.step {
            Step::BosHeader | Step::Bos(_) if refused => Ok(Step::Header(0)),
            Step::Languages if refused => Ok(Step::Finished),
            // A device that refuses one string may have the next; one that is silent has had its chance.
            Step::String(_) if done.status == Status::TimedOut => Ok(Step::Finished),
            Step::String(_) if refused => Ok(self.next_string()),
            _ if done.status == Status::TimedOut => Err(Reason::TimedOut),
            _ if refused => Err(Reason::Refused(done.status)),
            Step::Device => self.understand_device(&bytes),
            Step::BosHeader => Self::bos_total(&bytes).map(Step::Bos),
            Step::Bos(total) => self.understand_bos(&bytes, total),
            Step::Header(index) => {
                Self::room(&bytes, Configuration::HEADER_BYTES)?;
                Ok(Step::Configuration(index, Configuration::total_length(&bytes)?))
            }
            Step::Configuration(index, total) => self.understand_configuration(&bytes, index, total),
            Step::Languages => Ok(self.understand_languages(&bytes)),
            Step::String(index) => {
                if bytes.get(1) == Some(&kind::STRING) {
                    self.found.strings.insert(index, string_from_bytes(&bytes));
                }
                Ok(self.next_string())
            }
            Step::Finished => Ok(Step::Finished),
        }
    }

    fn understand_device(&mut self, bytes: &[u8]) -> Result<Step, Reason> {
        self.found.device = DeviceDescriptor::parse(bytes)?;
        match self.found.device.configurations {
            0 => Err(Reason::Malformed(DescriptorError { offset: 17, rule: "a device has a configuration" })),
            n if n > CONFIGURATIONS_MAX => Err(Reason::TooMany { count: n.into(), max: CONFIGURATIONS_MAX.into() }),
            _ if self.speed >= Speed::Super => Ok(Step::BosHeader),
            _ => Ok(Step::Header(0)),
        }
    }

    /// `wTotalLength` of an object store whose header these bytes are.
    fn bos_total(bytes: &[u8]) -> Result<usize, Reason> {
        Self::room(bytes, BOS_HEADER_BYTES)?;
        let total = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        if bytes[1] != kind::BOS || total < BOS_HEADER_BYTES {
            let rule = "an object store begins with 5, 15 and covers itself";
            return Err(DescriptorError { offset: 0, rule }.into());
        }
        if total > BOS_BYTES_MAX {
            return Err(Reason::TooMany { count: total, max: BOS_BYTES_MAX });
        }
        Ok(total)
    }

    fn understand_bos(&mut self, bytes: &[u8], total: usize) -> Result<Step, Reason> {
        Self::room(bytes, total)?;
        if Self::bos_total(bytes)? != total {
            return Err(DescriptorError { offset: 2, rule: "wTotalLength stays what it was" }.into());
        }
        self.found.bos = bytes[..total].to_vec();
        Ok(Step::Header(0))
    }

    fn understand_configuration(&mut self, bytes: &[u8], index: u8, total: usize) -> Result<Step, Reason> {
        Self::room(bytes, total)?;
        let configuration = Configuration::parse(bytes)?;
        if configuration.bytes.len() != total {
            return Err(DescriptorError { offset: 2, rule: "wTotalLength stays what it was" }.into());
        }
        self.found.configurations.push(configuration);
        let next = index + 1;
        if next < self.found.device.configurations {
            return Ok(Step::Header(next));
        }
        Ok(self.first_string())
    }

    fn first_string(&mut self) -> Step {
        self.strings = self.found.string_indexes().take(STRINGS_MAX).collect();
        self.strings.reverse();
        if self.strings.is_empty() { Step::Finished } else { Step::Languages }
    }

    /// English if there is any, else the first language (USB 2.0 §9.6.7). Some devices answer, and name no language:
    /// they have strings in English (`usb_get_langid` of Linux).
    fn understand_languages(&mut self, bytes: &[u8]) -> Step {
        let length = bytes.first().map_or(0, |&length| usize::from(length).min(bytes.len()));
        let codes = bytes.get(2..length).unwrap_or(&[]).chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
        let is_string = bytes.get(1) == Some(&kind::STRING);
        if bytes.len() < 2 {
            return Step::Finished;
        }
        let first = codes.clone().next().filter(|_| is_string && !codes.clone().any(|code| code == LANGUAGE_EN_US));
        self.language = first.unwrap_or(LANGUAGE_EN_US);
        self.next_string()
    }

    fn next_string(&mut self) -> Step {
        self.strings.pop().map_or(Step::Finished, Step::String)
    }

    fn room(bytes: &[u8], wanted: usize) -> Result<(), Reason> {
        if bytes.len() < wanted { Err(Reason::Cut { got: bytes.len(), wanted }) } else { Ok(()) }
    }
}

impl Driver for Enumerate {
    type Outcome = Result<Descriptors, EnumerateError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.transfers.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.transfers.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: Done) {
        self.transfers.handle_done(now, done);
        if let Some(done) = self.transfers.poll_outcome() {
            self.answered(now, done);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transfers.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now);
        if let Some(done) = self.transfers.poll_outcome() {
            self.answered(now, done);
        }
    }

    fn poll_outcome(&mut self) -> Option<Self::Outcome> {
        self.outcome.take()
    }
}

/// Why a device's descriptors could not be read, or a configuration not selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumerateError {
    /// Which piece.
    pub piece: Piece,
    /// What was wrong with it.
    pub reason: Reason,
}

/// A part of a device's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The device descriptor.
    Device,
    /// The binary object store.
    Bos,
    /// The configuration of this index.
    Configuration(u8),
    /// The string of this index; 0 is the languages.
    String(u8),
    /// SET_CONFIGURATION with this value.
    Selection(u8),
}

/// What was wrong with a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The device did not give it.
    Refused(Status),
    /// The device did not answer.
    TimedOut,
    /// The device is gone, or was reset meanwhile.
    Gone,
    /// Fewer bytes came than the piece says it has.
    Cut {
        /// Bytes that came.
        got: usize,
        /// Bytes that should have.
        wanted: usize,
    },
    /// A byte is not what the specification wants there.
    Malformed(DescriptorError),
    /// More than this crate's limit.
    TooMany {
        /// The device's number.
        count: usize,
        /// The limit.
        max: usize,
    },
}

impl From<DescriptorError> for Reason {
    fn from(error: DescriptorError) -> Self {
        Reason::Malformed(error)
    }
}

impl Step {
    fn piece(self) -> Piece {
        match self {
            Step::Device | Step::Finished => Piece::Device,
            Step::BosHeader | Step::Bos(_) => Piece::Bos,
            Step::Header(index) | Step::Configuration(index, _) => Piece::Configuration(index),
            Step::Languages => Piece::String(0),
            Step::String(index) => Piece::String(index),
        }
    }
}

impl fmt::Display for EnumerateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.piece, self.reason)
    }
}

impl std::error::Error for EnumerateError {}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Piece::Device => f.write_str("device descriptor"),
            Piece::Bos => f.write_str("binary object store"),
            Piece::Configuration(index) => write!(f, "configuration descriptor {index}"),
            Piece::String(index) => write!(f, "string {index}"),
            Piece::Selection(value) => write!(f, "selecting configuration {value}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Refused(status) => write!(f, "the device refused it ({status:?})"),
            Reason::TimedOut => f.write_str("the device did not answer in time"),
            Reason::Gone => f.write_str("the device is gone or was reset"),
            Reason::Cut { got, wanted } => write!(f, "{got} of {wanted} bytes came"),
            Reason::Malformed(error) => error.fmt(f),
            Reason::TooMany { count, max } => write!(f, "{count} is more than the {max} that are allowed"),
        }
    }
}

/// Selects a configuration.
#[derive(Debug)]
pub struct Configure {
    transfers: Transfers,
    value: u8,
}

impl Configure {
    /// Selects the configuration of this value.
    pub fn new(now: Instant, ids: IdSource, value: u8) -> Self {
        let mut transfers = Transfers::new(ids);
        let setup = Setup::set_configuration(value);
        transfers.control_out(now, setup, Payload::Empty, Some(CONTROL_TIMEOUT));
        Self { transfers, value }
    }

    /// Selects a device's first configuration, as hosts do without a reason for another.
    ///
    /// # Errors
    /// If it has none that can be selected: value 0 means "not configured" (USB 2.0 §9.4.7).
    pub fn first(now: Instant, ids: IdSource, descriptors: &Descriptors) -> Result<Self, EnumerateError> {
        let selectable = descriptors.configurations.iter().find(|configuration| configuration.value != 0);
        let Some(configuration) = selectable else {
            let error = DescriptorError { offset: 5, rule: "some configuration has a value other than 0" };
            return Err(EnumerateError { piece: Piece::Configuration(0), reason: error.into() });
        };
        Ok(Self::new(now, ids, configuration.value))
    }

    /// The value that is being selected.
    pub fn value(&self) -> u8 {
        self.value
    }
}

impl Driver for Configure {
    type Outcome = Result<u8, EnumerateError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.transfers.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.transfers.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: Done) {
        self.transfers.handle_done(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transfers.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now);
    }

    fn poll_outcome(&mut self) -> Option<Self::Outcome> {
        let done = self.transfers.poll_outcome()?;
        let reason = match done.status {
            Status::Ok => return Some(Ok(self.value)),
            Status::TimedOut => Reason::TimedOut,
            Status::Gone | Status::Shutdown => Reason::Gone,
            status => Reason::Refused(status),
        };
        Some(Err(EnumerateError { piece: Piece::Selection(self.value), reason }))
    }
}
