//! A USB disk and its driver as a block device: the driver runs beside the device, and its user may be far away.

use std::collections::VecDeque;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, BufferPool, CompletionQueue, Device, Instant,
    OwnerCommand, OwnerCommandError, Payload, ReadinessSource, StoreError, Urb, UrbCompletion, UrbId, UsbSpeed,
};

use crate::driver::{DeviceDriver, IdSource};
use crate::enumerate::ConfigurationSetter;
use crate::limits::BLOCK_BYTES;
use crate::storage::{BulkOnlyInterface, DiskError, OperationResult, ScsiDisk, ScsiDiskOptions};

/// The most bytes of one request: eight or more commands at high speed, one at SuperSpeed. Users split longer requests.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// The preferred request size, whatever the sectors: flash has pages of this size or more, and so have the users'
/// caches.
const PREFERRED_BYTES: u32 = 4096;

/// The refusal of a card reader with several slots.
const ONE_OF_SEVERAL: &str =
    "it has several units, of which one would be had; as a USB device (--via kernel) all of them are";

/// A Bulk-Only disk and its driver, used as a block device (requirement U9: a request crosses the distance as a whole
/// instead of command, data and status one by one, and many may be under way though the disk takes one command at a
/// time).
///
/// The disk is first brought up: configured, identified and measured. Until it [is ready](BlockDevice::is_ready)
/// requests wait and [`BlockDevice::info`] is not valid; a disk that does not become ready [is
/// gone](BlockDevice::is_gone), and [says why](BlockDevice::why_gone).
///
/// | what happens | result |
/// |---|---|
/// | a sector cannot be read or written | that request fails, [`StoreError::Medium`] |
/// | STALL, phase error, no answer in time | the transport is reset and the command repeated, see [`crate::storage::bulk_only`] |
/// | it has several units (a card reader) | it does not become ready: the importer would miss the other units |
/// | the medium was taken out or exchanged | everything fails, and the disk is gone: no request reaches another medium |
/// | the device was unplugged | the same |
/// | a write is to be durable | SYNCHRONIZE CACHE follows it |
#[derive(Debug)]
pub struct DrivenDisk<D: Device> {
    device: D,
    below: CompletionQueue,
    ids: IdSource,
    target: BulkOnlyInterface,
    driver: DrivenDiskState,
    info: BlockInfo,
    /// The disk was brought up, here or in another process.
    is_ready: bool,
    queue: VecDeque<BlockInFlight>,
    job: Option<DrivenRequest>,
    end: Option<DiskError>,
    /// Another process continues with the disk.
    is_left: bool,
}

/// The state of the driver.
#[derive(Debug)]
enum DrivenDiskState {
    /// No request was sent to the device yet; says whether it was configured in another process.
    New {
        is_configured: bool,
    },
    Configuring(ConfigurationSetter),
    /// The disk is brought up, and then used.
    Driving(Box<ScsiDisk>),
    Ended,
}

/// The request being carried out.
#[derive(Debug)]
struct DrivenRequest {
    request: BlockInFlight,
    /// It was carried out, and is being flushed.
    is_flushing: bool,
}

/// The Bulk-Only interface of a device, if it has one in some configuration.
fn target_of(device: &(impl Device + ?Sized)) -> Option<BulkOnlyInterface> {
    let speed: UsbSpeed = device.speed();
    let selectable = device.descriptors().configurations.iter().filter(|configuration| configuration.value != 0);
    selectable.filter_map(|configuration| BulkOnlyInterface::find(configuration, speed)).next()
}

/// Whether this driver can drive `device`.
pub fn fits(device: &(impl Device + ?Sized)) -> bool {
    target_of(device).is_some()
}

impl<D: Device> DrivenDisk<D> {
    /// Drives `device`, which has no other user.
    ///
    /// # Errors
    /// The device, if it has no Bulk-Only interface.
    pub fn new(device: D) -> Result<Self, D> {
        let Some(target) = target_of(&device) else { return Err(device) };
        Ok(Self {
            device,
            below: CompletionQueue::new(BufferPool::new(0)),
            ids: IdSource::new(),
            target,
            driver: DrivenDiskState::New { is_configured: false },
            info: block_info(0, *BLOCK_BYTES.start(), true, false),
            is_ready: false,
            queue: VecDeque::new(),
            job: None,
            end: None,
            is_left: false,
        })
    }

    /// The device, for its owner.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the device in a state fit for its next user. Unflushed writes are as durable as the device makes them by
    /// itself; a gadget is told to flush.
    pub fn into_device(mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> D {
        if !self.is_left {
            self.device.reset(now, &mut self.below);
            // A device that cannot flush reports it at the next command.
            let _ = self.device.command(now, &OwnerCommand::Sync, &mut self.below);
        }
        while self.below.pop().is_some() {}
        self.finish_all(&DiskError::Gone, done);
        self.device
    }

    /// Passes requests to the device and answers back, until there is nothing more to pass.
    fn pump(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        std::mem::swap(&mut self.below.pool, &mut done.pool);
        if let DrivenDiskState::New { is_configured } = self.driver {
            self.driver = match is_configured {
                false => DrivenDiskState::Configuring(ConfigurationSetter::new(
                    now,
                    self.ids.clone(),
                    self.target.configuration,
                )),
                true => self.bring_up(now),
            };
        }
        loop {
            while self.exchange(now) || self.advance(now, done) {}
            self.device.end_turn(now, &mut self.below);
            if self.below.is_empty() {
                break;
            }
        }
        std::mem::swap(&mut self.below.pool, &mut done.pool);
    }

    fn bring_up(&self, now: Instant) -> DrivenDiskState {
        DrivenDiskState::Driving(Box::new(ScsiDisk::new(
            now,
            self.ids.clone(),
            self.target,
            ScsiDiskOptions::default(),
        )))
    }

    /// Passes requests and answers once; returns whether there were any.
    fn exchange(&mut self, now: Instant) -> bool {
        let mut has_moved = false;
        while let Some(id) = self.driver.poll_cancel() {
            self.device.cancel(now, id, &mut self.below);
            has_moved = true;
        }
        while let Some(urb) = self.driver.poll_submit() {
            self.device.submit(now, urb.launch(), &mut self.below);
            has_moved = true;
        }
        while let Some(answer) = self.below.pop() {
            self.driver.handle_done(now, answer);
            self.below.pool.recycle(self.driver.poll_spent());
            has_moved = true;
        }
        has_moved
    }

    /// Advances the operation; returns whether one ended or began.
    fn advance(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        match &mut self.driver {
            DrivenDiskState::Configuring(configure) => match configure.poll_outcome() {
                None => return false,
                Some(Ok(_)) => self.driver = self.bring_up(now),
                Some(Err(_)) if self.device.is_gone() => self.finish_all(&DiskError::Gone, done),
                Some(Err(_)) => {
                    self.finish_all(&DiskError::Unsupported("its configuration cannot be selected"), done);
                }
            },
            DrivenDiskState::Driving(disk) => match disk.poll_outcome() {
                Some(outcome) => self.handle_outcome(now, outcome, done),
                None if self.job.is_none() && disk.is_idle() => return self.begin_next(now, done),
                None => return false,
            },
            DrivenDiskState::New { .. } | DrivenDiskState::Ended => return false,
        }
        true
    }

    fn handle_outcome(
        &mut self,
        now: Instant,
        outcome: Result<OperationResult, DiskError>,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let DrivenDiskState::Driving(disk) = &mut self.driver else { return };
        let Some(DrivenRequest { request, is_flushing }) = self.job.take() else {
            match outcome {
                Ok(_) => self.get_to_know(done),
                Err(error) => self.finish_all(&error, done),
            }
            return;
        };
        match outcome {
            Ok(_) if request.is_durable && !is_flushing && request.op != BlockOp::Flush => {
                disk.flush(now);
                self.job = Some(DrivenRequest { request, is_flushing: true });
            }
            Ok(OperationResult::Data(data)) => done.push(request.answer(data.into_payload())),
            Ok(OperationResult::Done | OperationResult::Ready) => done.push(request.answer(Payload::Empty)),
            Err(error) => {
                done.push(request.fail(StoreError::from(&error)));
                if matches!(StoreError::from(&error), StoreError::Gone) {
                    self.finish_all(&error, done);
                }
            }
        }
    }

    /// Processes the result of bringing the disk up, and compares it with the disk of before, if there was one.
    fn get_to_know(&mut self, done: &mut CompletionQueue<BlockCompletion>) {
        let DrivenDiskState::Driving(disk) = &self.driver else { return };
        let known = disk.info();
        if known.luns > 1 {
            return self.finish_all(&DiskError::Unsupported(ONE_OF_SEVERAL), done);
        }
        let info = block_info(known.size_bytes(), known.block_bytes, known.read_only, known.gives_back());
        if self.is_ready && info != self.info {
            return self.finish_all(&DiskError::MediumChanged, done);
        }
        (self.info, self.is_ready) = (info, true);
    }

    fn begin_next(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        let DrivenDiskState::Driving(disk) = &mut self.driver else { return false };
        let Some(mut request) = self.queue.pop_front() else { return false };
        let (offset, length) = (request.offset, request.length);
        match request.op {
            BlockOp::Read => disk.read(now, offset, length as usize),
            BlockOp::Write => disk.write(now, offset, request.take_payload()),
            BlockOp::Flush => disk.flush(now),
            BlockOp::Discard => disk.write_zeroes(now, offset, length.into(), true),
            BlockOp::WriteZeroes => disk.write_zeroes(now, offset, length.into(), false),
            BlockOp::Trim => disk.discard(now, offset, length.into()),
            // Few USB disks can tell where they are empty.
            BlockOp::Map => {
                done.push(request.answer_all_data());
                return true;
            }
        }
        self.job = Some(DrivenRequest { request, is_flushing: false });
        true
    }

    /// Ends: fails every request with this error.
    fn finish_all(&mut self, error: &DiskError, done: &mut CompletionQueue<BlockCompletion>) {
        self.driver = DrivenDiskState::Ended;
        let job = self.job.take().map(|job| job.request);
        job.into_iter().chain(self.queue.drain(..)).for_each(|request| done.push(request.fail(StoreError::Gone)));
        self.end.get_or_insert(error.clone());
    }
}

impl DrivenDiskState {
    fn poll_submit(&mut self) -> Option<Urb> {
        match self {
            DrivenDiskState::Configuring(configure) => configure.poll_submit(),
            DrivenDiskState::Driving(disk) => disk.poll_submit(),
            DrivenDiskState::New { .. } | DrivenDiskState::Ended => None,
        }
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        match self {
            DrivenDiskState::Configuring(configure) => configure.poll_cancel(),
            DrivenDiskState::Driving(disk) => disk.poll_cancel(),
            DrivenDiskState::New { .. } | DrivenDiskState::Ended => None,
        }
    }

    fn handle_done(&mut self, now: Instant, done: UrbCompletion) {
        match self {
            DrivenDiskState::Configuring(configure) => configure.handle_done(now, done),
            DrivenDiskState::Driving(disk) => disk.handle_done(now, done),
            DrivenDiskState::New { .. } | DrivenDiskState::Ended => {}
        }
    }

    fn poll_spent(&mut self) -> Payload {
        if let DrivenDiskState::Driving(disk) = self { disk.poll_spent() } else { Payload::Empty }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            DrivenDiskState::Configuring(configure) => configure.poll_timeout(),
            DrivenDiskState::Driving(disk) => disk.poll_timeout(),
            // The bring-up has not begun and is due.
            DrivenDiskState::New { .. } => Some(Instant::ZERO),
            DrivenDiskState::Ended => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            DrivenDiskState::Configuring(configure) => configure.handle_timeout(now),
            DrivenDiskState::Driving(disk) => disk.handle_timeout(now),
            DrivenDiskState::New { .. } | DrivenDiskState::Ended => {}
        }
    }
}

fn block_info(size_bytes: u64, block_bytes: u32, is_read_only: bool, trims: bool) -> BlockInfo {
    let preferred_bytes = block_bytes.max(PREFERRED_BYTES);
    BlockInfo { size_bytes, block_bytes, preferred_bytes, request_bytes_max: REQUEST_BYTES_MAX, is_read_only, trims }
}

impl<D: Device> BlockDevice for DrivenDisk<D> {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if self.end.is_some() {
            return done.push(request.fail(StoreError::Gone));
        }
        // A command that is repeated sends its bytes again.
        request.share_payload();
        self.queue.push_back(request);
        self.pump(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.driver.poll_timeout().into_iter().chain(self.device.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.device.poll_timeout().is_some_and(|due| due <= now) {
            self.device.handle_timeout(now, &mut self.below);
        }
        self.pump(now, done);
        if self.driver.poll_timeout().is_some_and(|due| due <= now) {
            self.driver.handle_timeout(now);
            self.pump(now, done);
        }
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.pump(now, done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.device.readiness()
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.device.handle_ready(now, &mut self.below);
        self.pump(now, done);
        if self.device.is_gone() && self.end.is_none() {
            self.finish_all(&DiskError::Gone, done);
        }
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), OwnerCommandError> {
        self.device.command(now, command, &mut self.below)?;
        self.pump(now, done);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn is_gone(&self) -> bool {
        self.end.is_some()
    }

    fn why_gone(&self) -> Option<String> {
        self.end.as_ref().map(DiskError::to_string)
    }

    fn state(&self) -> Option<Vec<u8>> {
        let is_idle = match &self.driver {
            DrivenDiskState::New { .. } => true,
            DrivenDiskState::Driving(disk) => disk.is_idle() && self.job.is_none(),
            DrivenDiskState::Configuring(_) | DrivenDiskState::Ended => false,
        };
        let device = if self.is_ready && is_idle { self.device.save()? } else { return None };
        let info = &self.info;
        let mut state = info.size_bytes.to_le_bytes().to_vec();
        state.extend(info.block_bytes.to_le_bytes());
        state.extend([info.is_read_only, info.trims].map(u8::from));
        state.extend(device);
        Some(state)
    }

    fn go_on_from(&mut self, state: &[u8]) -> bool {
        let Some((size, rest)) = state.split_first_chunk() else { return false };
        let Some((block, [is_read_only, trims, device @ ..])) = rest.split_first_chunk() else { return false };
        let (size_bytes, block_bytes) = (u64::from_le_bytes(*size), u32::from_le_bytes(*block));
        let is_block = block_bytes.is_power_of_two() && BLOCK_BYTES.contains(&block_bytes);
        let target = self.target;
        let mut selection = self.device.selection().clone();
        let all = self.device.descriptors();
        let is_selected = selection.select_configuration(all, target.configuration)
            && selection.select_interface(all, target.interface, target.alternate);
        if !is_block || !size_bytes.is_multiple_of(block_bytes.into()) || !is_selected {
            return false;
        }
        (self.info, self.is_ready) = (block_info(size_bytes, block_bytes, *is_read_only != 0, *trims != 0), true);
        self.driver = DrivenDiskState::New { is_configured: true };
        self.device.restore(&selection, device)
    }

    fn leave(&mut self) {
        self.device.leave();
        self.is_left = true;
    }
}
