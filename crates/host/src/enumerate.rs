//! Reads a device's descriptors, and selects a configuration (USB 2.0 §9.1.2, §9.4.3).
//!
//! | step | asked for | if the device refuses |
//! |---|---|---|
//! | device descriptor | 18 bytes | error |
//! | object store, at SuperSpeed | 5 bytes, then all of it | left out |
//! | first configuration | 9 bytes, then `wTotalLength` | error |
//! | each further one | the same | it and those behind it are left out |
//! | languages | string 0 | no strings; without a language: US English |
//! | each string that a descriptor names | 255 bytes | left out |
//!
//! The device descriptor is asked for as a whole. Kernels first ask for 8 or 64 bytes, before they know the size of
//! endpoint 0, and exporters recognise a port reset by that; the size of endpoint 0 is the exporter's concern.
//!
//! What is broken is repaired as Linux does ([`farbus_model::repair`]), so that a device that works at a kernel works
//! here; [`DescriptorEnumerator::repairs`] says what was. Everything is bounded by [`limits`].

use std::fmt;

use farbus_model::descriptor::{
    DescriptorError, DescriptorSet, DeviceDescriptor, LANGUAGE_EN_US, UsbConfiguration, kind, string_from_bytes,
};
use farbus_model::{DescriptorRepairs, Instant, Payload, SetupPacket, Urb, UrbCompletion, UrbId, UrbStatus, UsbSpeed};

use crate::driver::{DeviceDriver, IdSource};
use crate::limits::{self, BOS_BYTES_MAX, CONFIGURATIONS_MAX, CONTROL_TIMEOUT, STRINGS_MAX};
use crate::transfers::TransferTracker;

/// Bytes of a binary object store's header (USB 3.2 table 9-12).
const BOS_HEADER_BYTES: usize = 5;
/// Bytes asked for of a string: the most that its length byte can say.
const STRING_BYTES: u16 = 255;

/// Reads all descriptors of one device, one control transfer at a time.
#[derive(Debug)]
pub struct DescriptorEnumerator {
    transfers: TransferTracker,
    speed: UsbSpeed,
    step: EnumerationStep,
    found: DescriptorSet,
    /// Indexes of the strings still to be read, last one first.
    strings: Vec<u8>,
    repairs: DescriptorRepairs,
    language: u16,
    request_count: usize,
    /// When the last piece has to be there; `None`: each has its own time.
    until: Option<Instant>,
    outcome: Option<Result<DescriptorSet, EnumerationError>>,
}

/// What the request in flight asks for.
#[derive(Clone, Copy, Debug)]
enum EnumerationStep {
    Device,
    BosHeader,
    Bos(usize),
    Header(u8),
    Configuration(u8, usize),
    Languages,
    String(u8),
    Finished,
}

impl DescriptorEnumerator {
    /// Begins to read the descriptors of a device that runs at `speed`.
    pub fn new(now: Instant, ids: IdSource, speed: UsbSpeed) -> Self {
        let mut this = Self::of(DescriptorSet::default(), ids, speed);
        this.ask(now, EnumerationStep::Device);
        this
    }

    /// Begins to read the strings of a device that runs at `speed` and has these descriptors. They are returned with
    /// the strings that came within [`limits::STRINGS_TIME_MAX`]; it is no error if there is none.
    pub fn strings(now: Instant, ids: IdSource, speed: UsbSpeed, descriptors: &DescriptorSet) -> Self {
        let mut this = Self::of(descriptors.clone(), ids, speed);
        this.until = Some(now + limits::STRINGS_TIME_MAX);
        let first = this.first_string();
        this.ask(now, first);
        this
    }

    fn of(found: DescriptorSet, ids: IdSource, speed: UsbSpeed) -> Self {
        let (transfers, strings) = (TransferTracker::new(ids), Vec::new());
        let (step, language, request_count, until, outcome) =
            (EnumerationStep::Finished, LANGUAGE_EN_US, 0, None, None);
        let repairs = DescriptorRepairs::default();
        Self { transfers, speed, step, found, strings, repairs, language, request_count, until, outcome }
    }

    /// What was repaired in the descriptors that were read.
    pub fn repairs(&self) -> &DescriptorRepairs {
        &self.repairs
    }

    fn ask(&mut self, now: Instant, step: EnumerationStep) {
        let (kind, index, language, length) = match step {
            EnumerationStep::Device => (kind::DEVICE, 0, 0, DeviceDescriptor::BYTES as u16),
            EnumerationStep::BosHeader => (kind::BOS, 0, 0, BOS_HEADER_BYTES as u16),
            EnumerationStep::Bos(total) => (kind::BOS, 0, 0, total as u16),
            EnumerationStep::Header(index) => (kind::CONFIGURATION, index, 0, UsbConfiguration::HEADER_BYTES as u16),
            EnumerationStep::Configuration(index, total) => (kind::CONFIGURATION, index, 0, total as u16),
            EnumerationStep::Languages => (kind::STRING, 0, 0, STRING_BYTES),
            EnumerationStep::String(index) => (kind::STRING, index, self.language, STRING_BYTES),
            EnumerationStep::Finished => return self.finish(),
        };
        let left = self.until.map_or(CONTROL_TIMEOUT, |until| (until - now).min(CONTROL_TIMEOUT));
        if left.is_zero() {
            return self.finish();
        }
        self.step = step;
        self.request_count += 1;
        assert!(self.request_count <= limits::ENUMERATION_TRANSFERS_MAX, "each step is bounded, so is their sum");
        let setup = SetupPacket::get_descriptor(kind, index, language, length);
        self.transfers.control_in(now, setup, Some(left));
    }

    fn finish(&mut self) {
        self.step = EnumerationStep::Finished;
        self.outcome = Some(Ok(std::mem::take(&mut self.found)));
    }

    fn answered(&mut self, now: Instant, done: UrbCompletion) {
        match self.understand(&done) {
            Ok(next) => self.ask(now, next),
            Err(reason) => {
                let piece = self.step.piece();
                self.step = EnumerationStep::Finished;
                self.outcome = Some(Err(EnumerationError { piece, reason }));
            }
        }
    }

    /// Processes one answer and returns what to ask next.
    fn understand(&mut self, done: &UrbCompletion) -> Result<EnumerationStep, EnumerationErrorReason> {
        if matches!(done.status, UrbStatus::Gone | UrbStatus::Shutdown) {
            return Err(EnumerationErrorReason::Gone);
        }
        let refused = !matches!(done.status, UrbStatus::Ok | UrbStatus::Short);
        let bytes = done.payload.contiguous();
        match self.step {
            EnumerationStep::BosHeader | EnumerationStep::Bos(_) if refused => Ok(EnumerationStep::Header(0)),
            EnumerationStep::Header(index @ 1..) if done.status == UrbStatus::Stall => {
                self.repairs.note(17, "there are fewer configurations than bNumConfigurations says");
                self.found.device.configurations = index;
                Ok(self.first_string())
            }
            EnumerationStep::Languages if refused => Ok(EnumerationStep::Finished),
            // A device that refuses one string may have the next; one that is silent has had its chance.
            EnumerationStep::String(_) if done.status == UrbStatus::TimedOut => Ok(EnumerationStep::Finished),
            EnumerationStep::String(_) if refused => Ok(self.next_string()),
            _ if done.status == UrbStatus::TimedOut => Err(EnumerationErrorReason::TimedOut),
            _ if refused => Err(EnumerationErrorReason::Refused(done.status)),
            EnumerationStep::Device => self.understand_device(&bytes),
            EnumerationStep::BosHeader | EnumerationStep::Bos(_) => Ok(self.understand_bos(&bytes)),
            EnumerationStep::Header(index) => {
                let got = bytes.len();
                let Some(&[_, kind, low, high]) = bytes.first_chunk::<4>() else {
                    return Err(EnumerationErrorReason::Cut { got, wanted: UsbConfiguration::HEADER_BYTES });
                };
                if kind != kind::CONFIGURATION {
                    return Err(DescriptorError { offset: 1, rule: "a configuration descriptor has type 2" }.into());
                }
                let total = usize::from(u16::from_le_bytes([low, high])).max(UsbConfiguration::HEADER_BYTES);
                Ok(EnumerationStep::Configuration(index, total))
            }
            EnumerationStep::Configuration(index, total) => {
                self.understand_configuration(&bytes[..bytes.len().min(total)], index)
            }
            EnumerationStep::Languages => Ok(self.understand_languages(&bytes)),
            EnumerationStep::String(index) => {
                if bytes.get(1) == Some(&kind::STRING) {
                    self.found.strings.insert(index, string_from_bytes(&bytes));
                }
                Ok(self.next_string())
            }
            EnumerationStep::Finished => Ok(EnumerationStep::Finished),
        }
    }

    fn understand_device(&mut self, bytes: &[u8]) -> Result<EnumerationStep, EnumerationErrorReason> {
        self.found.device = DeviceDescriptor::read(bytes, &mut self.repairs)?;
        if self.found.device.configurations > CONFIGURATIONS_MAX {
            self.repairs.note(17, "there are more than 8 configurations: the first 8 count");
            self.found.device.configurations = CONFIGURATIONS_MAX;
        }
        match self.found.device.configurations {
            0 => Err(EnumerationErrorReason::Malformed(DescriptorError {
                offset: 17,
                rule: "a device has a configuration",
            })),
            _ if self.speed >= UsbSpeed::Super => Ok(EnumerationStep::BosHeader),
            _ => Ok(EnumerationStep::Header(0)),
        }
    }

    /// An object store counts if it is whole; nothing of the device depends on it.
    fn understand_bos(&mut self, bytes: &[u8]) -> EnumerationStep {
        let total = bos_total(bytes).filter(|total| *total <= BOS_BYTES_MAX);
        match (self.step, total) {
            (EnumerationStep::BosHeader, Some(total)) => return EnumerationStep::Bos(total),
            (EnumerationStep::Bos(requested), Some(total)) if total == requested && bytes.len() >= total => {
                self.found.bos = bytes[..total].to_vec();
            }
            _ => self.repairs.note(0, "the binary object store is broken: left out"),
        }
        EnumerationStep::Header(0)
    }

    fn understand_configuration(&mut self, bytes: &[u8], index: u8) -> Result<EnumerationStep, EnumerationErrorReason> {
        self.found.configurations.push(UsbConfiguration::read(bytes, self.speed, &mut self.repairs)?);
        let next = index + 1;
        if next < self.found.device.configurations {
            return Ok(EnumerationStep::Header(next));
        }
        Ok(self.first_string())
    }

    fn first_string(&mut self) -> EnumerationStep {
        self.strings = self.found.string_indexes().take(STRINGS_MAX).collect();
        self.strings.reverse();
        if self.strings.is_empty() { EnumerationStep::Finished } else { EnumerationStep::Languages }
    }

    /// English if there is any, else the first language (USB 2.0 §9.6.7). Some devices answer, and name no language:
    /// they have strings in English (`usb_get_langid` of Linux).
    fn understand_languages(&mut self, bytes: &[u8]) -> EnumerationStep {
        let length = bytes.first().map_or(0, |&length| usize::from(length).min(bytes.len()));
        let codes = bytes.get(2..length).unwrap_or(&[]).chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
        let is_string = bytes.get(1) == Some(&kind::STRING);
        if bytes.len() < 2 {
            return EnumerationStep::Finished;
        }
        let first = codes.clone().next().filter(|_| is_string && !codes.clone().any(|code| code == LANGUAGE_EN_US));
        self.language = first.unwrap_or(LANGUAGE_EN_US);
        self.next_string()
    }

    fn next_string(&mut self) -> EnumerationStep {
        self.strings.pop().map_or(EnumerationStep::Finished, EnumerationStep::String)
    }
}

/// `wTotalLength` of an object store, if these bytes begin one.
fn bos_total(bytes: &[u8]) -> Option<usize> {
    let &[length, kind, low, high, _] = bytes.first_chunk::<BOS_HEADER_BYTES>()?;
    let total = usize::from(u16::from_le_bytes([low, high]));
    let is_whole = usize::from(length) >= BOS_HEADER_BYTES && total >= usize::from(length);
    (kind == kind::BOS && is_whole).then_some(total)
}

impl DeviceDriver for DescriptorEnumerator {
    type Outcome = Result<DescriptorSet, EnumerationError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.transfers.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.transfers.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: UrbCompletion) {
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
pub struct EnumerationError {
    /// The part that was being read, or the configuration that was being selected.
    pub piece: DescriptorPart,
    /// What was wrong with it.
    pub reason: EnumerationErrorReason,
}

/// A part of a device's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorPart {
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
pub enum EnumerationErrorReason {
    /// The device did not give it.
    Refused(UrbStatus),
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
}

impl From<DescriptorError> for EnumerationErrorReason {
    fn from(error: DescriptorError) -> Self {
        EnumerationErrorReason::Malformed(error)
    }
}

impl EnumerationStep {
    fn piece(self) -> DescriptorPart {
        match self {
            EnumerationStep::Device | EnumerationStep::Finished => DescriptorPart::Device,
            EnumerationStep::BosHeader | EnumerationStep::Bos(_) => DescriptorPart::Bos,
            EnumerationStep::Header(index) | EnumerationStep::Configuration(index, _) => {
                DescriptorPart::Configuration(index)
            }
            EnumerationStep::Languages => DescriptorPart::String(0),
            EnumerationStep::String(index) => DescriptorPart::String(index),
        }
    }
}

impl fmt::Display for EnumerationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.piece, self.reason)
    }
}

impl std::error::Error for EnumerationError {}

impl fmt::Display for DescriptorPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorPart::Device => f.write_str("device descriptor"),
            DescriptorPart::Bos => f.write_str("binary object store"),
            DescriptorPart::Configuration(index) => write!(f, "configuration descriptor {index}"),
            DescriptorPart::String(index) => write!(f, "string {index}"),
            DescriptorPart::Selection(value) => write!(f, "selecting configuration {value}"),
        }
    }
}

impl fmt::Display for EnumerationErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnumerationErrorReason::Refused(status) => write!(f, "the device refused it ({status:?})"),
            EnumerationErrorReason::TimedOut => f.write_str("the device did not answer in time"),
            EnumerationErrorReason::Gone => f.write_str("the device is gone or was reset"),
            EnumerationErrorReason::Cut { got, wanted } => write!(f, "{got} of {wanted} bytes came"),
            EnumerationErrorReason::Malformed(error) => error.fmt(f),
        }
    }
}

/// Selects a configuration.
#[derive(Debug)]
pub struct ConfigurationSetter {
    transfers: TransferTracker,
    value: u8,
}

impl ConfigurationSetter {
    /// Selects the configuration of this value.
    pub fn new(now: Instant, ids: IdSource, value: u8) -> Self {
        let mut transfers = TransferTracker::new(ids);
        let setup = SetupPacket::set_configuration(value);
        transfers.control_out(now, setup, Payload::Empty, Some(CONTROL_TIMEOUT));
        Self { transfers, value }
    }

    /// Selects a device's first configuration, as hosts do without a reason for another.
    ///
    /// # Errors
    /// If it has none that can be selected: value 0 means "not configured" (USB 2.0 §9.4.7).
    pub fn first(now: Instant, ids: IdSource, descriptors: &DescriptorSet) -> Result<Self, EnumerationError> {
        let selectable = descriptors.configurations.iter().find(|configuration| configuration.value != 0);
        let Some(configuration) = selectable else {
            let error = DescriptorError { offset: 5, rule: "some configuration has a value other than 0" };
            return Err(EnumerationError { piece: DescriptorPart::Configuration(0), reason: error.into() });
        };
        Ok(Self::new(now, ids, configuration.value))
    }

    /// The value that is being selected.
    pub fn value(&self) -> u8 {
        self.value
    }
}

impl DeviceDriver for ConfigurationSetter {
    type Outcome = Result<u8, EnumerationError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.transfers.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.transfers.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: UrbCompletion) {
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
            UrbStatus::Ok => return Some(Ok(self.value)),
            UrbStatus::TimedOut => EnumerationErrorReason::TimedOut,
            UrbStatus::Gone | UrbStatus::Shutdown => EnumerationErrorReason::Gone,
            status => EnumerationErrorReason::Refused(status),
        };
        Some(Err(EnumerationError { piece: DescriptorPart::Selection(self.value), reason }))
    }
}
