//! A block device as a USB Attached SCSI disk at high speed: many commands at a time, each ended when its time comes,
//! so that a disk far away is as quick as its line.
//!
//! ```text
//! command pipe ─► unit ─► block device ─► unit ─┬► read ready ─► data-in pipe ─┐
//!                   │                           └──────────────────────────────┴► status pipe
//!                   └► write ready ─► data-out pipe ─► unit ─► block device ─► unit ─► status
//! ```
//!
//! At high speed there are no streams: data moves in the order in which the status pipe said that it would (UAS §5.3).
//! Read data is there before it is announced, so nothing that was announced fails.

mod iu;
#[cfg(test)]
mod tests;
mod unit;

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;

use farbus_model::definition::{InterfaceDefinition, SynchronizationType};
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::{
    BlockDevice, BlockInfo, DeviceDefinition, EpAddr, Instant, OwnerCommand, OwnerCommandError, Payload,
    PendingBlockRequests, ReadinessSource, SetupPacket, UsbSpeed,
};

use self::iu::{CommandIu, UasResponseCode, function};
use self::unit::{UasLogicalUnit, UasUnitEvent};
use super::options::{StorageOptionError, StorageOptions};
use crate::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use crate::saved::{SavedStateReader, SavedStateWriter};

/// Mass storage, SCSI transparent command set, USB Attached SCSI (§4.3).
const INTERFACE_CLASS: (u8, u8, u8) = (0x08, 0x06, 0x62);
/// The pipes, by `bPipeID` (§4.5.2).
const COMMAND: EpAddr = EpAddr::from_byte(0x01);
const STATUS: EpAddr = EpAddr::from_byte(0x81);
const DATA_IN: EpAddr = EpAddr::from_byte(0x82);
const DATA_OUT: EpAddr = EpAddr::from_byte(0x02);
const PIPES: [(EpAddr, u8); 4] = [(COMMAND, 1), (STATUS, 2), (DATA_IN, 3), (DATA_OUT, 4)];
/// Bytes of a unit on the status pipe: from a header to sense data of 18 bytes.
const STATUS_BYTES: RangeInclusive<usize> = 4..=34;
/// The product id of farbus's UAS disk, next to the Bulk-Only disk's.
const VENDOR: u16 = 0x0525;
const PRODUCT: u16 = 0xa4a6;

/// A block device as a disk.
pub struct AttachedScsi {
    unit: UasLogicalUnit,
    /// Units for the status pipe.
    statuses: VecDeque<Vec<u8>>,
    /// Announced data for the data-in pipe.
    outbound: VecDeque<(u16, Payload)>,
    /// Announced data from the data-out pipe.
    inbound: VecDeque<InboundTransfer>,
}

/// A saved state that no disk can have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSavedState;

/// The options of a disk over such a device.
fn fitting(info: &BlockInfo, options: StorageOptions) -> Result<StorageOptions, StorageOptionError> {
    let options = StorageOptions {
        sector_bytes: options.sector_bytes.max(info.block_bytes),
        removable: false,
        // At higher speeds UAS uses streams, which a virtual host controller does not have.
        speed: UsbSpeed::High,
        ..options
    };
    options.check(info.size_bytes)
}

/// Data that the host has to send.
struct InboundTransfer {
    tag: u16,
    left: u32,
    came: Vec<Payload>,
}

impl AttachedScsi {
    /// Makes the device over `device`.
    ///
    /// # Errors
    /// [`StorageOptionError`] when the options are invalid, or the device holds less than a sector, or has larger blocks.
    pub fn device(
        device: Box<dyn BlockDevice>,
        options: StorageOptions,
    ) -> Result<EmulatedDevice<Self>, StorageOptionError> {
        let options = fitting(device.info(), options)?;
        Ok(Self::of(UasLogicalUnit::new(device, &options), &options))
    }

    fn of(unit: UasLogicalUnit, options: &StorageOptions) -> EmulatedDevice<Self> {
        let (class, subclass, protocol) = INTERFACE_CLASS;
        let bulk = |interface: InterfaceDefinition, (endpoint, pipe): (EpAddr, u8)| {
            let usage = [4, 0x24, pipe, 0];
            let (number, direction) = (endpoint.number(), endpoint.direction());
            interface.bulk(number, direction).of_endpoint(SynchronizationType::default(), &[], &usage)
        };
        let interface = PIPES.into_iter().fold(InterfaceDefinition::new(class, subclass, protocol), bulk);
        let definition = DeviceDefinition::new(VENDOR, PRODUCT)
            .speed(options.speed)
            .names("farbus", &options.product, &options.serial)
            .interface(interface);
        let disk = Self { unit, statuses: VecDeque::new(), outbound: VecDeque::new(), inbound: VecDeque::new() };
        EmulatedDevice::new(&definition, disk)
    }

    /// Makes a device that continues from a saved state. `device` restores the device below from the first part of the
    /// state, and returns its pending requests. [`EmulatedDevice::resume`] restores the host's requests.
    ///
    /// # Errors
    /// Why not: no disk can have been in this state. The device below has been left.
    pub fn restore<E: From<InvalidSavedState>>(
        state: &[u8],
        options: StorageOptions,
        device: impl FnOnce(&[u8]) -> Result<(Box<dyn BlockDevice>, PendingBlockRequests), E>,
    ) -> Result<EmulatedDevice<Self>, E> {
        let mut from = SavedStateReader(state);
        let (mut device, pending) = device(from.bytes().ok_or(InvalidSavedState)?)?;
        let Ok(options) = fitting(device.info(), options) else {
            device.leave();
            return Err(InvalidSavedState.into());
        };
        let mut disk = Self::of(UasLogicalUnit::new(device, &options), &options);
        match disk.function_mut().load(&mut from, &pending) {
            Some(()) => Ok(disk),
            None => {
                disk.function_mut().unit.leave();
                Err(InvalidSavedState.into())
            }
        }
    }

    /// Saves the state, including the pending requests of the device below. `None`: no other process can continue.
    pub fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.unit.with_device(now, |_, _| {});
        self.follow();
        let mut to = SavedStateWriter::default();
        self.unit.save(now, &mut to)?;
        to.u32(self.statuses.len() as u32);
        self.statuses.iter().for_each(|unit| to.bytes(unit));
        to.u32(self.outbound.len() as u32);
        for (tag, data) in &self.outbound {
            to.u32((*tag).into());
            to.bytes(&data.contiguous());
        }
        to.u32(self.inbound.len() as u32);
        for InboundTransfer { tag, left, came } in &self.inbound {
            to.u32((*tag).into());
            to.u32(*left);
            to.u32(came.len() as u32);
            came.iter().for_each(|part| to.bytes(&part.contiguous()));
        }
        Some(to.into_bytes())
    }

    fn load(&mut self, from: &mut SavedStateReader<'_>, pending: &PendingBlockRequests) -> Option<()> {
        self.unit.load(from, pending)?;
        for _ in 0..from.u32()? {
            let unit = from.bytes().filter(|unit| STATUS_BYTES.contains(&unit.len()))?;
            self.statuses.push_back(unit.to_vec());
        }
        for _ in 0..from.u32()? {
            let (tag, data) = (u16::try_from(from.u32()?).ok()?, from.bytes()?.to_vec());
            let is_known = self.unit.is_sending(tag) && self.outbound.iter().all(|(of, _)| *of != tag);
            self.outbound.push_back((tag, Payload::from(data)));
            is_known.then_some(())?;
        }
        for _ in 0..from.u32()? {
            let (tag, left, mut came) = (u16::try_from(from.u32()?).ok()?, from.u32()?, Vec::new());
            for _ in 0..from.u32()? {
                came.push(Payload::from(from.bytes()?.to_vec()));
            }
            let bytes = u64::from(left) + came.iter().map(|part| part.len() as u64).sum::<u64>();
            let is_known = left > 0 && self.unit.is_gathering(tag, bytes);
            (is_known && self.inbound.iter().all(|inbound| inbound.tag != tag)).then_some(())?;
            self.inbound.push_back(InboundTransfer { tag, left, came });
        }
        // Commands that wait for their host must be those with announced data.
        (self.unit.waits_for_host() == self.outbound.len() + self.inbound.len() && from.is_empty()).then_some(())
    }

    /// Takes the events of the unit.
    fn follow(&mut self) {
        while let Some(event) = self.unit.poll_event() {
            match event {
                UasUnitEvent::Send(tag, data) => {
                    self.statuses.push_back(iu::read_ready(tag));
                    self.outbound.push_back((tag, data));
                }
                UasUnitEvent::Take(tag, bytes) => {
                    self.statuses.push_back(iu::write_ready(tag));
                    self.inbound.push_back(InboundTransfer { tag, left: bytes, came: Vec::new() });
                }
                UasUnitEvent::Ended(tag, result) => self.statuses.push_back(iu::status(tag, result)),
            }
        }
    }

    fn receive_command(&mut self, payload: &Payload, now: Instant) -> OutTransferAnswer {
        if !self.unit.has_room() {
            return OutTransferAnswer::Nak;
        }
        let answer = match iu::parse(payload) {
            CommandIu::Command { tag, .. } if self.unit.knows(tag) => iu::response(tag, UasResponseCode::OverlappedTag),
            CommandIu::Command { tag, lun, cdb } => {
                self.unit.begin(now, tag, lun, &cdb);
                self.follow();
                return OutTransferAnswer::Accepted;
            }
            CommandIu::TaskManagement { tag, lun, .. } if lun != 0 => iu::response(tag, UasResponseCode::IncorrectLun),
            CommandIu::TaskManagement { tag, function, task, .. } => iu::response(tag, self.manage(function, task)),
            CommandIu::Invalid { tag } => iu::response(tag, UasResponseCode::InvalidUnit),
        };
        self.statuses.push_back(answer);
        OutTransferAnswer::Accepted
    }

    /// Task management (SAM-5 §7). An aborted task has ended when the next command begins.
    fn manage(&mut self, function: u8, task: u16) -> UasResponseCode {
        match function {
            function::ABORT_TASK => self.forsake(task),
            function::ABORT_TASK_SET | function::CLEAR_TASK_SET => self.forsake_all(),
            function::LOGICAL_UNIT_RESET | function::I_T_NEXUS_RESET => {
                self.forsake_all();
                self.unit.reset();
            }
            function::QUERY_TASK if self.unit.knows(task) => return UasResponseCode::Succeeded,
            function::QUERY_TASK => {}
            _ => return UasResponseCode::NotSupported,
        }
        UasResponseCode::Complete
    }

    fn forsake(&mut self, tag: u16) {
        if self.unit.forsake(tag) {
            self.outbound.retain(|(of, _)| *of != tag);
            self.inbound.retain(|inbound| inbound.tag != tag);
            self.statuses.retain(|unit| unit[2..4] != tag.to_be_bytes());
        }
    }

    fn forsake_all(&mut self) {
        self.unit.forsake_all();
        self.outbound.clear();
        self.inbound.clear();
        self.statuses.clear();
    }

    fn receive_data(&mut self, payload: &Payload, now: Instant) -> OutTransferAnswer {
        let Some(inbound) = self.inbound.front_mut() else { return OutTransferAnswer::Nak };
        let tag = inbound.tag;
        let Some(left) = u32::try_from(payload.len()).ok().and_then(|len| inbound.left.checked_sub(len)) else {
            // More than the host was told to send: none of it is credible.
            self.inbound.pop_front();
            self.unit.refuse(now, tag);
            self.follow();
            return OutTransferAnswer::Stall;
        };
        inbound.left = left;
        inbound.came.push(payload.clone());
        if left > 0 {
            // It lies in a buffer that may be reused for the next bytes.
            inbound.came.iter_mut().for_each(Payload::own);
            return OutTransferAnswer::Accepted;
        }
        let data = Payload::joined(std::mem::take(&mut inbound.came));
        self.inbound.pop_front();
        self.unit.take(now, tag, data);
        self.follow();
        OutTransferAnswer::Accepted
    }

    fn send_status(&mut self, room: usize) -> InTransferAnswer {
        match self.statuses.pop_front() {
            // On a bus, less space would be babble.
            Some(unit) if unit.len() > room => InTransferAnswer::Stall,
            Some(unit) => InTransferAnswer::Data(unit.into()),
            None => InTransferAnswer::Nak,
        }
    }

    fn send_data(&mut self, room: usize) -> InTransferAnswer {
        let Some((tag, data)) = self.outbound.front_mut() else { return InTransferAnswer::Nak };
        if room < data.len() {
            return InTransferAnswer::Data(data.split_front(room));
        }
        let (tag, data) = (*tag, std::mem::take(data));
        self.outbound.pop_front();
        self.unit.sent(tag);
        self.follow();
        InTransferAnswer::Data(data)
    }
}

impl AttachedScsi {
    /// Why acknowledged data may be lost, if the host does not know: a flush failed that the host did not ask for.
    pub fn untold_loss(&self) -> Option<farbus_model::StoreError> {
        self.unit.untold()
    }

    /// Whether the device below has answered every request, including [`OwnerCommand::Sync`].
    pub fn is_quiet(&self) -> bool {
        self.unit.is_quiet()
    }
}

impl fmt::Debug for AttachedScsi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedScsi").field("statuses", &self.statuses.len()).finish_non_exhaustive()
    }
}

impl GadgetFunction for AttachedScsi {
    fn send(&mut self, endpoint: EpAddr, room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        match endpoint {
            STATUS => self.send_status(room),
            _ => self.send_data(room),
        }
    }

    fn receive(&mut self, endpoint: EpAddr, payload: &Payload, cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        match endpoint {
            COMMAND => self.receive_command(payload, cx.now),
            _ => self.receive_data(payload, cx.now),
        }
    }

    fn control(&mut self, _setup: SetupPacket, _data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        ControlTransferAnswer::Stall
    }

    fn selected(&mut self, _selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        self.forsake_all();
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        self.forsake_all();
        self.unit.reset();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.unit.poll_timeout()
    }

    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        self.unit.with_device(cx.now, |device, done| device.handle_timeout(cx.now, done));
        self.follow();
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.unit.readiness()
    }

    fn handle_ready(&mut self, cx: &mut FunctionContext<'_>) {
        self.unit.with_device(cx.now, |device, done| device.handle_ready(cx.now, done));
        self.follow();
    }

    fn end_turn(&mut self, cx: &mut FunctionContext<'_>) -> bool {
        let is_news = self.unit.with_device(cx.now, |device, done| device.end_turn(cx.now, done));
        self.follow();
        is_news
    }

    fn is_gone(&self) -> bool {
        self.unit.is_gone()
    }

    fn leave(&mut self) {
        self.unit.leave();
    }

    fn command(&mut self, command: &OwnerCommand, cx: &mut FunctionContext<'_>) -> Result<(), OwnerCommandError> {
        match command {
            OwnerCommand::Sync => {
                self.unit.sync(cx.now);
                Ok(())
            }
            _ => Err(OwnerCommandError::unknown(command)),
        }
    }
}
