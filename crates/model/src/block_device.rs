//! The contract of an asynchronous block device: many requests at a time, each answered exactly once.
//!
//! [`BlockStore`](crate::BlockStore) is the synchronous one, for a medium that answers before its call returns. A
//! request has the same three shapes here as a URB has ([`crate::urb`]): [`BlockRequest`], [`BlockInFlight`],
//! [`BlockCompletion`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::block::StoreError;
use crate::device::{CompletionQueue, OwnerCommand, OwnerCommandError, ReadinessSource};
use crate::extents::ExtentList;
use crate::payload::Payload;
use crate::time::Instant;

/// A block device: one over a store, one on another machine (requirement N4).
///
/// Sans-IO: its caller tells it what happened and when; it leaves finished requests in [`CompletionQueue`]. Every
/// request given to [`BlockDevice::submit`] comes back there exactly once, during that call or any later one, in any
/// order. Requests in flight together may also be carried out in any order: a user that needs one done before another
/// waits for its answer.
pub trait BlockDevice: Send {
    /// Size, block size and limits; constant while the device is attached.
    fn info(&self) -> &BlockInfo;

    /// Starts a request. May finish it at once. A device that keeps a write beyond the call first calls
    /// [`BlockInFlight::own_payload`], because its bytes may lie in a link's receive buffer.
    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>);

    /// When [`BlockDevice::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when the moment of [`BlockDevice::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let _ = (now, done);
    }

    /// Called after the last submission of a turn: a device behind a link then sends them together.
    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let _ = (now, done);
    }

    /// What the engine has to wait on for this device, if the device is outside the process. The engine then calls
    /// [`BlockDevice::handle_ready`].
    fn readiness(&self) -> Option<&ReadinessSource> {
        None
    }

    /// Called when [`BlockDevice::readiness`] became ready.
    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let _ = (now, done);
    }

    /// Whether the device itself is gone: it has answered every request it held with [`StoreError::Gone`] or
    /// [`StoreError::Lost`], and takes no more.
    fn is_gone(&self) -> bool {
        false
    }

    /// Carries out a command of the owner's, as [`Device::command`](crate::Device::command) does.
    ///
    /// # Errors
    /// [`OwnerCommandError`] when this device does not know the command or refuses it.
    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), OwnerCommandError> {
        let _ = (now, done);
        Err(OwnerCommandError::unknown(command))
    }

    /// Identifies the time in which only this user changes the content: data that was read stays valid until this user
    /// writes, as long as the epoch is the same. `None` (the default): others may change the content at any time.
    fn epoch(&self) -> Option<u64> {
        None
    }

    /// Whether [`BlockDevice::info`] is known. A device that must be examined first becomes ready later, or [is
    /// gone](BlockDevice::is_gone).
    fn is_ready(&self) -> bool {
        true
    }

    /// Why the device is gone, if that is known; a sentence for a person.
    fn why_gone(&self) -> Option<String> {
        None
    }

    /// What a replacement process needs to continue with the medium, while the device holds no request; as
    /// [`Device::save`](crate::Device::save). `None`: no other process can. Empty: the other process only opens the
    /// medium again.
    fn state(&self) -> Option<Vec<u8>> {
        None
    }

    /// Makes this new device continue from a [`BlockDevice::state`] of another process. Returns whether it can.
    fn go_on_from(&mut self, state: &[u8]) -> bool {
        let _ = state;
        false
    }

    /// What a replacement process needs to continue, including the pending requests. The caller submits nothing
    /// meanwhile, and the device may still continue here. `None`: no other process can.
    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        let _ = now;
        None
    }

    /// Tells the device that a replacement continues from [`BlockDevice::save`]: the replacement answers the pending
    /// requests, and this device leaves its medium untouched from now on, also when it is dropped.
    fn leave(&mut self) {}
}

/// The properties of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Capacity of the medium, bytes; a request that ends beyond it is refused with [`StoreError::Invalid`].
    pub size_bytes: u64,
    /// Offsets and lengths of requests are multiples of this, bytes; a power of two from 1.
    pub block_bytes: u32,
    /// The preferred size and alignment of requests, bytes; a power of two from [`BlockInfo::block_bytes`].
    pub preferred_bytes: u32,
    /// The most bytes of one read or write.
    pub request_bytes_max: u32,
    /// Whether the device refuses every operation that changes it.
    pub is_read_only: bool,
    /// Whether the device makes use of [`BlockOp::Trim`]; a device that does not ignores it.
    pub trims: bool,
}

impl BlockInfo {
    /// Checks that the device may be given this request: its range lies inside, on block boundaries, its data matches
    /// its length, and it changes nothing on a read-only device.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] or [`StoreError::ReadOnly`]: the error to answer it with.
    pub fn check(&self, request: &BlockRequest) -> Result<(), StoreError> {
        let block = u64::from(self.block_bytes);
        let length = u64::from(request.length);
        let is_inside = request.offset.checked_add(length).is_some_and(|end| end <= self.size_bytes);
        let is_aligned = request.offset.is_multiple_of(block) && length.is_multiple_of(block);
        let moves = matches!(request.op, BlockOp::Read | BlockOp::Write);
        let fits = !moves || request.length <= self.request_bytes_max;
        let data = if request.op == BlockOp::Write { request.length as usize } else { 0 };
        if !is_inside || !is_aligned || !fits || request.payload.len() != data {
            return Err(StoreError::Invalid);
        }
        if request.op.is_change() && self.is_read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}

/// Names a request among those in flight on one device. Chosen by the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

/// The unanswered requests of a device, by id: operation, offset, and length in bytes.
pub type PendingBlockRequests = BTreeMap<BlockId, (BlockOp, u64, u32)>;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockOp {
    /// Reads bytes at the offset.
    Read,
    /// Writes the payload at the offset.
    Write,
    /// Makes every write durable that was answered before this flush was submitted. Has no range.
    Flush,
    /// Makes the range read as zeros; the device may give its space back.
    Discard,
    /// Makes the range read as zeros; the device keeps its space.
    WriteZeroes,
    /// Declares the content of the range unneeded. Until it is written again, its content is undefined. A device that
    /// cannot make use of that does nothing, and writes no zeros.
    Trim,
    /// Says which parts of the range are holes; the payload of the answer is [`ExtentList`]. The range may be longer
    /// than that of a read.
    Map,
}

impl BlockOp {
    /// Whether the operation may change what the range reads as.
    pub const fn is_change(self) -> bool {
        match self {
            BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => true,
            BlockOp::Read | BlockOp::Flush | BlockOp::Map => false,
        }
    }
}

/// One request to a block device.
#[derive(Clone, Debug)]
pub struct BlockRequest {
    /// The requester's name for it.
    pub id: BlockId,
    /// What the device is to do with the range, or with the whole medium for a flush.
    pub op: BlockOp,
    /// The start of the range, bytes; 0 for a flush.
    pub offset: u64,
    /// The length of the range, bytes; 0 for a flush.
    pub length: u32,
    /// The bytes to write; empty for all others.
    pub payload: Payload,
    /// The change must be durable before it is answered (FUA).
    pub is_durable: bool,
}

impl BlockRequest {
    /// Reads `length` bytes at `offset`.
    pub fn read(id: BlockId, offset: u64, length: u32) -> Self {
        Self { offset, length, ..Self::flush(id).with(BlockOp::Read) }
    }

    /// Writes bytes at `offset`.
    ///
    /// # Panics
    /// If they are more than 32 bits can count.
    pub fn write(id: BlockId, offset: u64, payload: Payload) -> Self {
        let length = u32::try_from(payload.len()).expect("a request's length fits 32 bits");
        Self { offset, length, payload, ..Self::flush(id).with(BlockOp::Write) }
    }

    /// Makes a range read as zeros, or declares it unneeded; `op` says what happens to its space.
    pub fn zero(id: BlockId, op: BlockOp, offset: u64, length: u32) -> Self {
        debug_assert!(matches!(op, BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim));
        Self { offset, length, ..Self::flush(id).with(op) }
    }

    /// Asks which parts of a range are holes.
    pub fn map(id: BlockId, offset: u64, length: u32) -> Self {
        Self { offset, length, ..Self::flush(id).with(BlockOp::Map) }
    }

    /// Bytes that the answer brings if it succeeds.
    pub fn answer_bytes(&self) -> usize {
        match self.op {
            BlockOp::Read => self.length as usize,
            BlockOp::Map => ExtentList::BYTES,
            BlockOp::Write | BlockOp::Flush | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => 0,
        }
    }

    /// Makes everything durable.
    pub fn flush(id: BlockId) -> Self {
        Self { id, op: BlockOp::Flush, offset: 0, length: 0, payload: Payload::Empty, is_durable: false }
    }

    fn with(mut self, op: BlockOp) -> Self {
        self.op = op;
        self
    }

    /// Hands the request to a device: from here on it has to be answered.
    pub fn launch(self) -> BlockInFlight {
        BlockInFlight { request: Some(self) }
    }
}

/// A request that a device holds and owes an answer to.
#[derive(Debug)]
pub struct BlockInFlight {
    /// `None` only after it was answered.
    request: Option<BlockRequest>,
}

impl std::ops::Deref for BlockInFlight {
    type Target = BlockRequest;

    fn deref(&self) -> &BlockRequest {
        self.request.as_ref().expect("an unanswered request is there")
    }
}

impl BlockInFlight {
    /// Takes the bytes to write, leaving none; the length stays.
    pub fn take_payload(&mut self) -> Payload {
        std::mem::take(&mut self.request.as_mut().expect("an unanswered request is there").payload)
    }

    /// Copies the bytes to write out of a buffer that is not its own, so that they may be kept.
    pub fn own_payload(&mut self) {
        self.request.as_mut().expect("an unanswered request is there").payload.own();
    }

    /// Makes a copy of the bytes to write cheap ([`Payload::share`]).
    pub fn share_payload(&mut self) {
        self.request.as_mut().expect("an unanswered request is there").payload.share();
    }

    /// Answers [`BlockOp::Map`] where it is not known: all is data.
    pub fn answer_all_data(self) -> BlockCompletion {
        let extents = ExtentList::data(self.length.into());
        self.answer(extents.to_payload())
    }

    /// Answers with success; a read passes its bytes.
    ///
    /// # Panics
    /// If they are not as many as were asked for: a device's bug.
    pub fn answer(self, payload: Payload) -> BlockCompletion {
        assert_eq!(payload.len(), self.answer_bytes(), "a read brings what was asked for, all others nothing");
        self.end(Ok(()), payload)
    }

    /// Answers with an error.
    pub fn fail(self, error: StoreError) -> BlockCompletion {
        self.end(Err(error), Payload::Empty)
    }

    /// Takes the request back from a device that never began it; only queues may do so.
    pub fn recall(mut self) -> BlockRequest {
        self.request.take().expect("an unanswered request is there")
    }

    fn end(mut self, result: Result<(), StoreError>, payload: Payload) -> BlockCompletion {
        let request = self.request.take().expect("an unanswered request is there");
        BlockCompletion {
            id: request.id,
            op: request.op,
            offset: request.offset,
            length: request.length,
            result,
            payload,
            spent: request.payload,
        }
    }
}

thread_local! {
    /// Requests dropped unanswered on this thread. An engine and its device share a thread.
    static LOST: RefCell<Vec<BlockId>> = const { RefCell::new(Vec::new()) };
}

impl Drop for BlockInFlight {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let id = request.id;
            LOST.with_borrow_mut(|lost| lost.push(id));
            debug_assert!(std::thread::panicking(), "{id:?} was dropped unanswered");
        }
    }
}

/// The requests dropped unanswered on this thread since the last call. Always empty unless a device has a bug.
pub fn take_lost() -> Vec<BlockId> {
    LOST.with_borrow_mut(std::mem::take)
}

/// An answered request.
#[derive(Debug)]
pub struct BlockCompletion {
    /// The requester's name for it.
    pub id: BlockId,
    /// The operation of the request that this answers.
    pub op: BlockOp,
    /// The start of the range, bytes.
    pub offset: u64,
    /// How many bytes were asked for.
    pub length: u32,
    /// How it ended.
    pub result: Result<(), StoreError>,
    /// What was read.
    pub payload: Payload,
    /// The bytes that were to be written, if the device left them: their buffer may be reused.
    pub spent: Payload,
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: BlockInfo = BlockInfo {
        size_bytes: 1 << 20,
        block_bytes: 512,
        preferred_bytes: 4096,
        request_bytes_max: 64 << 10,
        is_read_only: false,
        trims: true,
    };

    #[test]
    fn request_outside_the_device_or_its_blocks_is_refused() {
        let read = |offset, length| INFO.check(&BlockRequest::read(BlockId(1), offset, length));
        assert_eq!(read(0, 512), Ok(()));
        assert_eq!(read((1 << 20) - 512, 512), Ok(()));
        assert_eq!(read((1 << 20) - 512, 1024), Err(StoreError::Invalid));
        assert_eq!(read(u64::MAX - 511, 512), Err(StoreError::Invalid), "the end does not fit 64 bits");
        assert_eq!(read(1, 512), Err(StoreError::Invalid));
        assert_eq!(read(0, 100), Err(StoreError::Invalid));
        assert_eq!(read(0, (64 << 10) + 512), Err(StoreError::Invalid));
        assert_eq!(INFO.check(&BlockRequest::flush(BlockId(1))), Ok(()));
        let zero = BlockRequest::zero(BlockId(1), BlockOp::Discard, 0, 1 << 20);
        assert_eq!(INFO.check(&zero), Ok(()), "a range without data may be long");
    }

    #[test]
    fn read_only_device_permits_reads_and_flushes_only() {
        let info = BlockInfo { is_read_only: true, ..INFO };
        assert_eq!(info.check(&BlockRequest::read(BlockId(1), 0, 512)), Ok(()));
        assert_eq!(info.check(&BlockRequest::flush(BlockId(1))), Ok(()));
        let write = BlockRequest::write(BlockId(1), 0, vec![0; 512].into());
        assert_eq!(info.check(&write), Err(StoreError::ReadOnly));
        assert_eq!(INFO.check(&BlockRequest { length: 1024, ..write }), Err(StoreError::Invalid), "half of its data");
    }

    #[test]
    fn a_request_dropped_unanswered_is_found() {
        let flush = BlockRequest::flush(BlockId(7)).launch();
        assert_eq!(flush.answer(Payload::Empty).result, Ok(()));
        assert!(take_lost().is_empty());
        let dropped = std::panic::catch_unwind(|| drop(BlockRequest::flush(BlockId(8)).launch()));
        assert_eq!(dropped.is_err(), cfg!(debug_assertions));
        assert_eq!(take_lost(), [BlockId(8)]);
    }

    #[test]
    #[should_panic(expected = "a read brings what was asked for")]
    fn a_read_is_answered_whole() {
        BlockRequest::read(BlockId(1), 0, 512).launch().answer(vec![0; 511].into());
    }
}
