//! The thread that serves a mounted disk: it owns the kernel's descriptor and the device, and waits on both.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, PollInterest, wait};
use farbus_io_net::saving::{self, SaveDecision, SavedAttachment};
use farbus_model::limits::{FUSE_REQUEST_BYTES_MAX, FUSE_REQUESTS_MAX};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, BufferPool, CompletionQueue, Payload,
    PendingBlockRequests, StoreError,
};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::disk::{FlushResult, FuseDiskState};
use super::handles::{FlushCause, FuseHandles};
use super::protocol::{
    FILE, FOLDER, FuseAttr, FuseFieldError, FuseInitLimits, FuseOperation, FuseReplyBody, FuseReplySender, FuseRequest,
    HEAD_BYTES,
};
use super::state::{FuseDiskSnapshot, STATE_VERSION, SavedFuseRequest};
use crate::sys::errno::of_store;

/// How far the kernel reads ahead of a program that reads in order: several requests, to hide the link's delay.
pub(super) const READ_AHEAD_BYTES: u32 = 4 << 20;
/// How long the kernel may take for its first request, which it queued when it mounted.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Idle buffers that are kept for reads, bytes.
const POOL_BYTES: usize = 8 << 20;
/// Idle buffers that are kept for writes while nothing is under way.
const CHUNKS_KEPT: usize = 8;
/// The longest write that is copied for a device which keeps it, so that no buffer of the largest size is tied up.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// The size of the pieces in which a range is discarded or zeroed: a request's length has 32 bits, and pieces end on
/// block boundaries.
const PIECE_BYTES: u64 = 1 << 30;

/// Serves a disk as one file in one folder.
pub(super) struct FuseEngine {
    kernel: OwnedFd,
    disk: Arc<FuseDiskState>,
    at: PathBuf,
    name: String,
    folder: FuseAttr,
    file: FuseAttr,
    /// Dropped as soon as it is lost and has no request open, or is no longer needed.
    device: Option<Box<dyn BlockDevice>>,
    done: CompletionQueue<BlockCompletion>,
    requests: HashMap<u64, OpenFuseRequest>,
    next_id: u64,
    clock: BoottimeClock,
    head: [u8; HEAD_BYTES],
    /// The buffer for the next write's data; `chunks` are those that the device still reads, and idle ones.
    chunk: Arc<[u8]>,
    chunks: Vec<Arc<[u8]>>,
    /// Whether the device has kept a write's data beyond its call.
    keeps: bool,
    /// How many changes have begun; those before `durable` are durable.
    begun: u64,
    durable: u64,
    /// The error of the last flush, if it failed.
    undurable: Option<StoreError>,
    /// The open handles of the file, and which losses each was told of.
    handles: FuseHandles,
    /// Whether an error was logged; only the first is.
    complained: bool,
    /// Whether the kernel may have sent a request.
    is_asked: bool,
    /// Whether the owner has given an order.
    is_called: bool,
    /// Whether the mount is gone.
    is_over: bool,
}

/// A request that the device is carrying out.
struct OpenFuseRequest {
    by: FuseRequestOrigin,
    /// For a change: its position among all changes.
    change: Option<u64>,
    /// For a flush: changes before this one are durable when it succeeds.
    covers: Option<u64>,
    /// For a flush of a program that has the file open.
    ask: Option<FlushCause>,
    /// What remains to be discarded or zeroed after this piece.
    rest: Range<u64>,
}

enum FuseRequestOrigin {
    /// A program, through the kernel, by the number of its request.
    Program(u64),
    Owner(SyncSender<FlushResult>),
    /// No program or thread waits for it any more.
    Nobody,
}

/// What a look for requests of the kernel found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FuseReceiveOutcome {
    Something,
    Nothing,
    End,
}

impl FuseEngine {
    /// Completes the handshake with the kernel on `kernel`, the descriptor of a new mount at `at` that belongs to
    /// `owner`.
    pub fn new(
        kernel: OwnedFd,
        disk: Arc<FuseDiskState>,
        (at, name): (&Path, &str),
        owner: (u32, u32),
        device: Box<dyn BlockDevice>,
        clock: BoottimeClock,
    ) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = (now.as_secs(), now.subsec_nanos());
        let request_bytes_max = (device.info().request_bytes_max.min(FUSE_REQUEST_BYTES_MAX) / 4096).max(1) * 4096;
        let mut engine = Self::over(kernel, disk, (at, name), (owner, time), device, clock);
        let flags = rustix::fs::fcntl_getfl(&engine.kernel)?;
        rustix::fs::fcntl_setfl(&engine.kernel, flags | OFlags::NONBLOCK)?;
        engine.say_hello(request_bytes_max)?;
        Ok(engine)
    }

    fn over(
        kernel: OwnedFd,
        disk: Arc<FuseDiskState>,
        (at, name): (&Path, &str),
        (owner, time): ((u32, u32), (u64, u32)),
        device: Box<dyn BlockDevice>,
        clock: BoottimeClock,
    ) -> Self {
        let info = *device.info();
        let perm = if info.is_read_only { 0o400 } else { 0o600 };
        Self {
            kernel,
            disk,
            at: at.to_owned(),
            name: name.to_owned(),
            folder: FuseAttr { node: FOLDER, size: 0, perm: 0o500, owner, time },
            file: FuseAttr { node: FILE, size: info.size_bytes, perm, owner, time },
            device: Some(device),
            done: CompletionQueue::new(BufferPool::new(POOL_BYTES)),
            requests: HashMap::new(),
            next_id: 0,
            clock,
            head: [0; HEAD_BYTES],
            chunk: fresh_chunk(),
            chunks: Vec::new(),
            keeps: false,
            begun: 0,
            durable: 0,
            undurable: None,
            handles: FuseHandles::default(),
            complained: false,
            is_asked: false,
            is_called: false,
            is_over: false,
        }
    }

    /// Restores an engine that another process saved; `pending` are the requests that the device has open.
    pub fn restore(
        kernel: OwnedFd,
        disk: Arc<FuseDiskState>,
        state: &FuseDiskSnapshot,
        (device, pending): (Box<dyn BlockDevice>, &PendingBlockRequests),
        clock: BoottimeClock,
    ) -> io::Result<Self> {
        let (file, whose) = ((&*state.at, &*state.name), (state.owner, state.time));
        let mut engine = Self::over(kernel, disk, file, whose, device, clock);
        (engine.next_id, engine.begun, engine.durable) = (state.next_id, state.begun, state.durable);
        (engine.keeps, engine.is_asked) = (true, true);
        engine.handles = FuseHandles::restore(&state.handles);
        engine.disk.show_open(engine.handles.open());
        for request in &state.requests {
            let what = pending.get(&BlockId(request.id));
            let zeroes = matches!(what, Some((BlockOp::Discard | BlockOp::WriteZeroes, ..)));
            let is_right = what.is_some()
                && request.id <= state.next_id
                && (request.rest.is_empty() || zeroes && request.rest.end <= engine.file.size);
            let by = request.unique.map_or(FuseRequestOrigin::Nobody, FuseRequestOrigin::Program);
            let (change, covers, ask, rest) = (request.change, request.covers, request.ask, request.rest.clone());
            if !is_right
                || engine.requests.insert(request.id, OpenFuseRequest { by, change, covers, ask, rest }).is_some()
            {
                engine.leave();
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request was not asked so"));
            }
        }
        if engine.requests.len() != pending.len() {
            engine.leave();
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the device has what nobody asked"));
        }
        Ok(engine)
    }

    /// Answers a request for a snapshot. Receives nothing until the replacement has decided whether it continues.
    fn part(&mut self, asker: saving::SaveRequest<SavedAttachment>) -> SaveDecision {
        match self.save() {
            Ok(Some(saved)) => asker.part(saved),
            // No answer tells the asking thread that it cannot be saved.
            Ok(None) => SaveDecision::Stay,
            Err(error) => {
                tracing::warn!(file = ?self.name, %error, "the disk cannot be passed on");
                SaveDecision::Stay
            }
        }
    }

    /// Writes a snapshot that includes the kernel's open requests; `None` if it is ending, or its owner waits for a
    /// flush.
    fn save(&mut self) -> io::Result<Option<SavedAttachment>> {
        self.collect();
        let is_ending = self.is_over || self.disk.is_lost();
        let is_waited_for = self.requests.values().any(|request| matches!(request.by, FuseRequestOrigin::Owner(_)));
        let now = self.clock.now();
        let Some(device) = self.device.as_mut().filter(|_| !is_ending && !is_waited_for) else { return Ok(None) };
        let Some(device) = device.save(now) else { return Ok(None) };
        let requests = self.requests.iter().map(|(&id, request)| SavedFuseRequest {
            id,
            unique: if let FuseRequestOrigin::Program(unique) = request.by { Some(unique) } else { None },
            change: request.change,
            covers: request.covers,
            ask: request.ask,
            rest: request.rest.clone(),
        });
        let state = FuseDiskSnapshot {
            version: STATE_VERSION,
            at: self.at.clone(),
            name: self.name.clone(),
            owner: self.file.owner,
            time: self.file.time,
            next_id: self.next_id,
            begun: self.begun,
            durable: self.durable,
            requests: requests.collect(),
            handles: self.handles.save(),
        };
        let descriptors = vec![self.kernel.try_clone()?];
        Ok(Some(SavedAttachment { snapshot: state.to_bytes(&device)?, descriptors, medium: None }))
    }

    /// Drops the engine without ending anything: a replacement process continues it.
    pub fn leave(mut self) {
        if let Some(device) = &mut self.device {
            device.leave();
        }
        self.device = None;
        self.durable = self.begun;
        // The replacement tells the programs that have the file open of losses.
        self.handles = FuseHandles::default();
        self.disk.hand_over();
    }

    fn say_hello(&mut self, request_bytes_max: u32) -> io::Result<()> {
        wait(&mut [PollInterest::new(self.kernel.as_fd(), false)], Some(HELLO_TIME_MAX))?;
        let strange = |FuseFieldError(field, value)| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's {field} is {value}"))
        };
        let Some(count) = self.read()? else { return Err(io::ErrorKind::TimedOut.into()) };
        let hello = FuseRequest::parse(&self.head, &self.chunk, count).map_err(strange)?;
        let FuseOperation::Init { major, minor, max_readahead, flags } = hello.op else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel does not begin with a greeting"));
        };
        let background_max = u16::try_from(FUSE_REQUESTS_MAX).expect("it is a small number");
        let terms = FuseInitLimits { request_bytes_max, background_max, read_ahead_bytes: READ_AHEAD_BYTES };
        match FuseReplyBody::init(major, minor, max_readahead, flags, &terms) {
            Some(body) => {
                self.kernel().body(hello.unique, &body);
                Ok(())
            }
            None => {
                self.kernel().error(hello.unique, Errno::PROTO);
                let what = format!("this kernel speaks FUSE {major}.{minor}; 7.23 is the least (Linux 3.15)");
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
        }
    }

    /// Serves until the mount is gone and written data is durable, as far as possible.
    pub fn run(mut self) {
        let mut is_flushing = false;
        loop {
            self.look_after_owner();
            if let Some(asker) = self.disk.save_requester().requested()
                && self.part(asker) == SaveDecision::Go
            {
                return self.leave();
            }
            if self.is_over && self.requests.is_empty() {
                if is_flushing || !self.is_dirty() || self.device.is_none() {
                    break;
                }
                is_flushing = true;
                self.flush(FuseRequestOrigin::Nobody, None);
            }
            self.receive_all();
            self.end_turn();
            // Otherwise there is nothing left to wait for.
            let is_waiting = !self.is_over || !self.requests.is_empty();
            if is_waiting && let Err(error) = self.wait() {
                tracing::error!(file = ?self.name, %error, "the disk cannot be served");
                break;
            }
        }
    }

    fn kernel(&self) -> FuseReplySender<'_> {
        FuseReplySender(self.kernel.as_fd())
    }

    fn is_dirty(&self) -> bool {
        self.begun > self.durable
    }

    /// Carries out the owner's orders: to flush, or to stop serving.
    fn look_after_owner(&mut self) {
        if self.disk.is_lost() {
            self.let_go();
        }
        if !std::mem::take(&mut self.is_called) {
            return;
        }
        self.disk.wake().clear();
        for asker in self.disk.take_flushes() {
            if !self.is_dirty() {
                let _ = asker.try_send(self.handles.told_to_nobody());
            } else {
                self.flush(FuseRequestOrigin::Owner(asker), None);
            }
        }
    }

    /// Refuses all open requests after the device was lost, and drops it once it has no request open.
    fn let_go(&mut self) {
        let waiting: Vec<FuseRequestOrigin> = self
            .requests
            .values_mut()
            .map(|request| std::mem::replace(&mut request.by, FuseRequestOrigin::Nobody))
            .collect();
        waiting.into_iter().for_each(|asker| self.refuse(asker));
        if self.requests.is_empty() {
            self.device = None;
        }
    }

    /// Handles the kernel's requests. A program whose request was answered often has its next one ready at once.
    fn receive_all(&mut self) {
        if !std::mem::take(&mut self.is_asked) {
            return;
        }
        for _ in 0..FUSE_REQUESTS_MAX {
            if self.is_over || self.requests.len() >= FUSE_REQUESTS_MAX {
                return;
            }
            match self.receive() {
                FuseReceiveOutcome::Something => {}
                FuseReceiveOutcome::Nothing => return,
                FuseReceiveOutcome::End => self.is_over = true,
            }
        }
    }

    fn receive(&mut self) -> FuseReceiveOutcome {
        let count = match self.read() {
            Ok(Some(count)) => count,
            Ok(None) => return FuseReceiveOutcome::Nothing,
            Err(error) => {
                if !matches!(Errno::from_io_error(&error), Some(Errno::NODEV | Errno::CONNABORTED)) {
                    tracing::error!(file = ?self.name, %error, "the FUSE session failed");
                }
                return FuseReceiveOutcome::End;
            }
        };
        match FuseRequest::parse(&self.head, &self.chunk, count) {
            Ok(FuseRequest { unique, op: FuseOperation::Destroy, .. }) => {
                self.kernel().ok(unique);
                FuseReceiveOutcome::End
            }
            Ok(request) => {
                self.carry_out(request);
                FuseReceiveOutcome::Something
            }
            Err(FuseFieldError(field, value)) => {
                tracing::error!(file = ?self.name, field, value, "the kernel says what no kernel says");
                FuseReceiveOutcome::End
            }
        }
    }

    /// Bytes of the next request, or that there is none.
    fn read(&mut self) -> io::Result<Option<usize>> {
        let chunk = match Arc::get_mut(&mut self.chunk) {
            Some(chunk) => chunk,
            None => {
                let idle = self.chunks.iter_mut().position(|chunk| Arc::get_mut(chunk).is_some());
                let next = idle.map_or_else(fresh_chunk, |at| self.chunks.swap_remove(at));
                self.chunks.push(std::mem::replace(&mut self.chunk, next));
                Arc::get_mut(&mut self.chunk).expect("nobody else looks at an idle one")
            }
        };
        loop {
            let mut parts = [IoSliceMut::new(&mut self.head), IoSliceMut::new(chunk)];
            match rustix::io::readv(&self.kernel, &mut parts) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::AGAIN) => return Ok(None),
                // The request was interrupted while it was read.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn carry_out(&mut self, FuseRequest { unique, node, op }: FuseRequest) {
        let attributes = match node {
            FOLDER => Some(self.folder),
            FILE => Some(self.file),
            _ => None,
        };
        let kernel = self.kernel();
        match op {
            FuseOperation::Read { offset, size } => self.read_at(unique, offset, size),
            FuseOperation::Write { offset, size } => self.write_at(unique, offset, size),
            FuseOperation::Fsync { handle } => {
                self.flush(FuseRequestOrigin::Program(unique), Some(FlushCause::Sync(handle)))
            }
            FuseOperation::Flush { handle } => self.close(unique, FlushCause::Close(handle)),
            FuseOperation::Release { handle } if node == FILE => self.close(unique, FlushCause::Release(handle)),
            FuseOperation::Release { .. } | FuseOperation::FolderDone => kernel.ok(unique),
            FuseOperation::Fallocate { offset, length, mode } => self.allocate(unique, offset, length, mode),
            FuseOperation::Lookup { name } if node == FOLDER && name == self.name.as_bytes() => {
                kernel.body(unique, &FuseReplyBody::entry(&self.file));
            }
            FuseOperation::Lookup { .. } => kernel.error(unique, Errno::NOENT),
            FuseOperation::Getattr => match attributes {
                Some(attributes) => kernel.body(unique, &FuseReplyBody::attr(&attributes)),
                None => kernel.error(unique, Errno::NOENT),
            },
            // The size is the disk's and the owner is the user who attached it: a request that changes neither
            // succeeds.
            FuseOperation::Setattr { mode, uid, gid, size } => match attributes {
                None => kernel.error(unique, Errno::NOENT),
                Some(now) => {
                    let same = size.is_none_or(|size| size == now.size)
                        && mode.is_none_or(|mode| mode & 0o7777 == now.perm)
                        && uid.is_none_or(|uid| uid == now.owner.0)
                        && gid.is_none_or(|gid| gid == now.owner.1);
                    if same {
                        kernel.body(unique, &FuseReplyBody::attr(&now))
                    } else {
                        kernel.error(unique, Errno::PERM)
                    }
                }
            },
            FuseOperation::Open => match node {
                FILE if self.disk.is_lost() => kernel.error(unique, Errno::NODEV),
                FILE => self.open(unique),
                FOLDER => kernel.error(unique, Errno::ISDIR),
                _ => kernel.error(unique, Errno::NOENT),
            },
            FuseOperation::Opendir => kernel.body(unique, &FuseReplyBody::opened(FOLDER, 0)),
            FuseOperation::Readdir { offset, size } if node == FOLDER => {
                kernel.body(unique, &FuseReplyBody::folder(self.name.as_bytes(), offset, size));
            }
            FuseOperation::Readdir { .. } => kernel.error(unique, Errno::NOTDIR),
            FuseOperation::Statfs => kernel.body(unique, &FuseReplyBody::statfs(self.file.size)),
            FuseOperation::Change => kernel.error(unique, Errno::PERM),
            FuseOperation::Forget => {}
            // After one ENOSYS the kernel does it by itself or asks no more. Otherwise every write would be preceded by
            // a request for the file's capabilities.
            FuseOperation::Init { .. } | FuseOperation::Destroy | FuseOperation::Other => {
                kernel.error(unique, Errno::NOSYS)
            }
        }
    }

    /// How much of `offset..offset + len` lies on the disk.
    fn clip(&self, offset: u64, len: u64) -> u64 {
        len.min(self.file.size.saturating_sub(offset))
    }

    fn read_at(&mut self, unique: u64, offset: u64, size: u32) {
        match self.clip(offset, size.into()) as u32 {
            0 => self.kernel().data(unique, &Payload::Empty),
            len => {
                let id = self.new_id();
                self.ask(BlockRequest::read(id, offset, len), OpenFuseRequest::by(FuseRequestOrigin::Program(unique)));
            }
        }
    }

    fn write_at(&mut self, unique: u64, offset: u64, size: u32) {
        // As with a block device: what fits is written, and for the rest there is no space.
        let len = self.clip(offset, size.into()) as usize;
        if len == 0 && size > 0 {
            return self.kernel().error(unique, Errno::NOSPC);
        }
        let is_copied = self.keeps && len <= COPIED_BYTES_MAX;
        let payload = if is_copied { Payload::from(&self.chunk[..len]) } else { Payload::shared(&self.chunk, 0..len) };
        let id = self.new_id();
        let change = Some(self.new_change());
        self.ask(
            BlockRequest::write(id, offset, payload),
            OpenFuseRequest { change, ..OpenFuseRequest::by(FuseRequestOrigin::Program(unique)) },
        );
        self.keeps |= self.requests.contains_key(&id.0);
    }

    fn allocate(&mut self, unique: u64, offset: u64, length: u64, mode: u32) {
        let mode = FallocateFlags::from_bits_retain(mode);
        let len = self.clip(offset, length);
        if len < length && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return self.kernel().error(unique, Errno::NOSPC);
        }
        // No other mode makes sense on a disk: there is nothing to allocate or to move. A hole reads as zeros, but is
        // useful only where space is given back: for a caller that can do without one (a loop device that discards),
        // writing zeros would be a waste.
        let op = match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE if self.device.as_ref().is_none_or(|device| device.info().trims) => {
                BlockOp::Discard
            }
            FallocateFlags::ZERO_RANGE => BlockOp::WriteZeroes,
            _ => return self.kernel().error(unique, Errno::OPNOTSUPP),
        };
        if len == 0 {
            return self.kernel().ok(unique);
        }
        let change = Some(self.new_change());
        self.zero(
            op,
            OpenFuseRequest {
                change,
                rest: offset..offset + len,
                ..OpenFuseRequest::by(FuseRequestOrigin::Program(unique))
            },
        );
    }

    /// Requests the first piece of a range to be zeroed.
    fn zero(&mut self, op: BlockOp, mut request: OpenFuseRequest) {
        let Range { start, end } = request.rest;
        let until = end.min((start / PIECE_BYTES + 1) * PIECE_BYTES);
        request.rest = until..end;
        let id = self.new_id();
        let length = u32::try_from(until - start).expect("a piece is short");
        self.ask(BlockRequest::zero(id, op, start, length), request);
    }

    fn open(&mut self, unique: u64) {
        // Counted before the program continues.
        let handle = self.handles.open_next();
        self.disk.show_open(self.handles.open());
        if !self.kernel().opened(unique, FILE, handle) {
            let _nobody_has_it = self.hear(FlushCause::Release(handle), Ok(()));
        }
    }

    /// Handles the closing of a descriptor, or of the last one of a handle.
    fn close(&mut self, unique: u64, ask: FlushCause) {
        if self.is_dirty() {
            return self.flush(FuseRequestOrigin::Program(unique), Some(ask));
        }
        let result = self.hear(ask, Ok(()));
        match result {
            _ if self.disk.is_lost() => self.kernel().error(unique, Errno::NODEV),
            Err(error) => self.kernel().error(unique, of_store(error)),
            Ok(()) => self.kernel().ok(unique),
        }
    }

    /// The result of a flush as the program that asked is told: earlier losses that it does not know of included.
    fn hear(&mut self, ask: FlushCause, flushed: FlushResult) -> FlushResult {
        let result = self.handles.hear(ask, flushed);
        self.disk.show_open(self.handles.open());
        result
    }

    /// Flushes everything that has been answered.
    fn flush(&mut self, by: FuseRequestOrigin, ask: Option<FlushCause>) {
        let covers = self.requests.values().filter_map(|request| request.change).min().unwrap_or(self.begun);
        let id = self.new_id();
        self.ask(BlockRequest::flush(id), OpenFuseRequest { covers: Some(covers), ask, ..OpenFuseRequest::by(by) });
    }

    fn new_id(&mut self) -> BlockId {
        self.next_id += 1;
        BlockId(self.next_id)
    }

    fn new_change(&mut self) -> u64 {
        self.begun += 1;
        self.begun - 1
    }

    /// Passes a request to the device, unless the disk is lost, and sends answers that are there at once while they are
    /// still in the cache.
    fn ask(&mut self, request: BlockRequest, open_request: OpenFuseRequest) {
        let Some(device) = self.device.as_mut().filter(|_| !self.disk.is_lost()) else {
            self.let_go();
            if let Some(ask) = open_request.ask {
                let _refused_below = self.hear(ask, Ok(()));
            }
            return self.refuse(open_request.by);
        };
        self.requests.insert(request.id.0, open_request);
        device.submit(self.clock.now(), request.launch(), &mut self.done);
        self.collect();
    }

    fn end_turn(&mut self) {
        if let Some(device) = self.device.as_mut().filter(|_| !self.requests.is_empty()) {
            device.end_turn(self.clock.now(), &mut self.done);
        }
        self.collect();
        if self.device.as_ref().is_some_and(|device| device.is_gone()) {
            self.lose();
        }
    }

    /// Handles the requests that the device has completed.
    fn collect(&mut self) {
        while let Some(done) = self.done.pop() {
            let request = self.requests.remove(&done.id.0).expect("a device answers what it was asked, once");
            let mut result = done.result;
            if let Err(error) = result {
                self.note(error);
            }
            if let Some(covers) = request.covers {
                self.undurable = result.err();
                match result {
                    Ok(()) => self.durable = self.durable.max(covers),
                    Err(error) => self.handles.lose(error),
                }
                result = match request.ask {
                    Some(ask) => self.hear(ask, result),
                    None => result.and_then(|()| self.handles.told_to_nobody()),
                };
            }
            self.done.pool.recycle(done.spent);
            if done.result.is_ok() && !request.rest.is_empty() {
                self.zero(done.op, request);
                continue;
            }
            self.tell(request.by, result, done.op, done.length, &done.payload);
            self.done.pool.recycle(done.payload);
        }
    }

    fn tell(&self, origin: FuseRequestOrigin, result: FlushResult, op: BlockOp, length: u32, payload: &Payload) {
        let kernel = self.kernel();
        match (origin, result) {
            (FuseRequestOrigin::Program(unique), Err(error)) => kernel.error(unique, of_store(error)),
            (FuseRequestOrigin::Program(unique), Ok(())) => match op {
                BlockOp::Read => kernel.data(unique, payload),
                BlockOp::Write => kernel.written(unique, length),
                BlockOp::Flush | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim | BlockOp::Map => {
                    kernel.ok(unique);
                }
            },
            (FuseRequestOrigin::Owner(asker), result) => {
                // The channel has room for its only answer.
                let _ = asker.try_send(result);
            }
            (FuseRequestOrigin::Nobody, _) => {}
        }
    }

    /// Answers that the device is lost.
    fn refuse(&self, origin: FuseRequestOrigin) {
        match origin {
            FuseRequestOrigin::Program(unique) => self.kernel().error(unique, of_store(StoreError::Gone)),
            FuseRequestOrigin::Owner(asker) => {
                let _ = asker.try_send(Err(self.undurable.unwrap_or(StoreError::Gone)));
            }
            FuseRequestOrigin::Nobody => {}
        }
    }

    fn note(&mut self, error: StoreError) {
        if error == StoreError::Gone {
            self.lose();
        } else if !self.complained {
            self.complained = true;
            tracing::warn!(file = ?self.name, %error, "the disk reported an error; further ones are not logged");
        }
    }

    fn lose(&self) {
        if !self.disk.is_lost() {
            tracing::error!(file = ?self.name, "the disk is gone: every further request fails");
            self.disk.lose();
        }
    }

    /// Waits for the kernel, the device, or the owner.
    fn wait(&mut self) -> io::Result<()> {
        let is_full = self.requests.len() >= FUSE_REQUESTS_MAX;
        let on_kernel = (!self.is_over && !is_full).then(|| PollInterest::new(self.kernel.as_fd(), false));
        let device = self.device.as_ref();
        let on_device = device.and_then(|device| device.readiness()).and_then(DeviceWaitSource::interest);
        let timeout = device.and_then(|device| device.poll_timeout());
        let (has_device, has_kernel) = (on_device.is_some(), on_kernel.is_some());
        let span = timeout.map(|at| at - self.clock.now());
        let owner = || PollInterest::new(self.disk.wake().as_fd(), false);
        // The first entries are those that exist; the others only fill the array.
        let mut interests = match (on_kernel, on_device) {
            (Some(on_kernel), Some(on_device)) => [owner(), on_kernel, on_device],
            (Some(on_kernel), None) => [owner(), on_kernel, owner()],
            (None, Some(on_device)) => [owner(), on_device, owner()],
            (None, None) => [owner(), owner(), owner()],
        };
        let count = 1 + usize::from(has_kernel) + usize::from(has_device);
        wait(&mut interests[..count], span)?;
        self.is_called = interests[0].readable;
        self.is_asked = has_kernel && interests[1].readable;
        let on_device = &interests[if has_kernel { 2 } else { 1 }];
        let is_ready = has_device && on_device.is_ready();
        let now = self.clock.now();
        if let Some(device) = &mut self.device {
            if is_ready {
                device.handle_ready(now, &mut self.done);
            }
            if device.poll_timeout().is_some_and(|at| at <= now) {
                device.handle_timeout(now, &mut self.done);
            }
        }
        self.collect();
        if self.requests.is_empty() {
            self.keep_few_idle_chunks();
        }
        Ok(())
    }
}

impl FuseEngine {
    /// Drops idle buffers beyond those that are kept. Those that a session still has, until their data are
    /// acknowledged, are idle after that: without them, each write would have a new buffer.
    fn keep_few_idle_chunks(&mut self) {
        let mut idle = 0;
        self.chunks.retain(|chunk| {
            idle += usize::from(Arc::strong_count(chunk) == 1);
            Arc::strong_count(chunk) > 1 || idle <= CHUNKS_KEPT
        });
    }
}

impl Drop for FuseEngine {
    /// However the engine ends, by a bug too: no thread waits for it for ever.
    fn drop(&mut self) {
        let flushed = match self.is_dirty() {
            true => Err(self.undurable.unwrap_or(StoreError::Gone)),
            false => self.handles.told_to_nobody(),
        };
        if let Err(error) = flushed {
            tracing::error!(file = ?self.name, %error, "the last writes may be lost");
        }
        self.device = None;
        self.disk.end(flushed);
    }
}

impl OpenFuseRequest {
    fn by(by: FuseRequestOrigin) -> Self {
        Self { by, change: None, covers: None, ask: None, rest: 0..0 }
    }
}

fn fresh_chunk() -> Arc<[u8]> {
    farbus_model::new_chunk(FUSE_REQUEST_BYTES_MAX as usize)
}
