//! Block devices and their layers, compared with a model of plain bytes under random operations.

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use farbus_model::block::MemoryStore;
use farbus_model::trace::TracePoint;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BlockStore, BufferPool,
    CompletionQueue, ExtentList, Instant, Payload, PendingBlockRequests, StoreError, StoreExtent,
};
use farbus_session::ProtocolViolation;
use farbus_session::block::{
    ANY_BYTE_KIND, AnyByteLayer, CopyOnWriteView, ImmediateDeviceStore, RangeView, ReadOnlyView, SWAPPED_KIND,
    SparseMemory, StoreDevice, SwappableDevice, TracingLayer,
};
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};
use fuzzing::{Input, fuzz};

const SIZE: u64 = 64 << 10;

fn device(blocks: u32) -> StoreDevice<Holey> {
    let bytes = (0..SIZE).map(|at| (at / 5 + at / 512) as u8).collect();
    StoreDevice::new(Holey(MemoryStore::new(bytes))).with_blocks(blocks)
}

/// A store that calls every run of zeros a hole.
struct Holey(MemoryStore);

impl BlockStore for Holey {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.0.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.write_zeroes(offset, len)
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        let bytes = &self.0.bytes()[offset as usize..][..len as usize];
        let is_hole = bytes[0] == 0;
        let length = bytes.iter().take_while(|byte| (**byte == 0) == is_hole).count() as u64;
        Ok(StoreExtent { length, is_hole })
    }
}

/// What the device tells of a range's holes.
fn map(device: &mut impl BlockDevice, offset: u64, length: u32) -> Vec<StoreExtent> {
    let bytes = ask(device, BlockRequest::map(BlockId(3), offset, length)).unwrap();
    ExtentList::read(&bytes.into(), length).unwrap().iter().collect()
}

/// Answers when it is told to, in an order of its own.
struct Late<D> {
    device: D,
    /// Requests of this turn; they are sent at its end.
    unsent: Vec<BlockInFlight>,
    held: Vec<BlockInFlight>,
    order: u64,
}

impl<D: BlockDevice> BlockDevice for Late<D> {
    fn info(&self) -> &BlockInfo {
        self.device.info()
    }

    fn submit(&mut self, _: Instant, mut request: BlockInFlight, _: &mut CompletionQueue<BlockCompletion>) {
        request.own_payload();
        self.unsent.push(request);
    }

    fn end_turn(&mut self, _: Instant, _: &mut CompletionQueue<BlockCompletion>) {
        self.held.append(&mut self.unsent);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        while !self.held.is_empty() {
            self.order = self.order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (self.order >> 33) as usize % self.held.len();
            self.device.submit(now, self.held.remove(at), done);
        }
    }

    /// Saves the open requests; the device below stays where it is.
    fn save(&mut self, _: Instant) -> Option<Vec<u8>> {
        let mut to = SnapshotWriter::part();
        to.u64(self.order);
        for requests in [&self.unsent, &self.held] {
            to.count(requests.len());
            requests.iter().for_each(|request| to.block_request(request));
        }
        Some(to.into_bytes())
    }

    fn leave(&mut self) {
        self.unsent.drain(..).chain(self.held.drain(..)).for_each(|request| drop(request.recall()));
    }
}

impl<D: BlockDevice> Late<D> {
    fn restore(device: D, bytes: &[u8]) -> Result<(Self, PendingBlockRequests), ProtocolViolation> {
        let mut from = FieldReader::new(bytes);
        let order = from.u64("order")?;
        let (mut pending, mut all) = (PendingBlockRequests::new(), [Vec::new(), Vec::new()]);
        for requests in &mut all {
            for _ in 0..from.count("requests", 8)? {
                let request = from.block_request()?;
                let what = (request.op, request.offset, request.length);
                if device.info().check(&request).is_err() || pending.insert(request.id, what).is_some() {
                    return Err(ProtocolViolation::new("request", request.id.0, "it can be had, and once"));
                }
                requests.push(request);
            }
        }
        from.end("device")?;
        let [unsent, held] = all.map(|all| all.into_iter().map(BlockRequest::launch).collect());
        Ok((Self { device, unsent, held, order }, pending))
    }
}

/// A device that several users share, one after another.
struct Shared(Arc<Mutex<StoreDevice<Holey>>>, BlockInfo);

impl BlockDevice for Shared {
    fn info(&self) -> &BlockInfo {
        &self.1
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.0.lock().unwrap().submit(now, request, done);
    }
}

type View = AnyByteLayer<Late<Shared>>;

/// Restores a view from a snapshot in another process, over this device.
fn restored(
    saved: &[u8],
    store: &Arc<Mutex<StoreDevice<Holey>>>,
) -> Result<(View, PendingBlockRequests), ProtocolViolation> {
    let mut reader = snapshot::open(saved, ANY_BYTE_KIND)?;
    let shared = Shared(Arc::clone(store), *store.lock().unwrap().info());
    let (mut view, pending) =
        AnyByteLayer::restore::<ProtocolViolation>(&mut reader, |bytes| Late::restore(shared, bytes))?;
    match reader.end("view") {
        Ok(()) => Ok((view, pending)),
        Err(reject) => {
            view.leave();
            Err(reject)
        }
    }
}

/// Restores a damaged snapshot: it must be refused, or the view must answer all requests.
fn spoil(mut saved: Vec<u8>, input: &mut Input<'_>) {
    for _ in 0..1 + input.below(3) {
        let at = input.below(saved.len() as u32) as usize;
        match input.below(3) {
            0 => saved[at] ^= 1 << input.below(8),
            1 => saved[at] = input.pick(&[0, 1, 0x7f, 0xff]),
            _ => saved.insert(at, input.byte()),
        }
    }
    let Ok((mut view, mut pending)) = restored(&saved, &Arc::new(Mutex::new(device(512)))) else { return };
    let mut done = completions();
    for _ in 0..100 {
        view.end_turn(Instant::ZERO, &mut done);
        view.handle_ready(Instant::ZERO, &mut done);
        while let Some(answer) = done.pop() {
            assert!(pending.remove(&answer.id).is_some(), "once");
        }
    }
    assert!(pending.is_empty(), "everything is answered: {pending:?}");
}

fn completions() -> CompletionQueue<BlockCompletion> {
    CompletionQueue::new(BufferPool::new(1 << 20))
}

/// Submits a request and waits for its answer.
fn ask(device: &mut impl BlockDevice, request: BlockRequest) -> Result<Vec<u8>, StoreError> {
    let (mut done, id, offset) = (completions(), request.id, request.offset);
    device.submit(Instant::ZERO, request.launch(), &mut done);
    device.end_turn(Instant::ZERO, &mut done);
    device.handle_ready(Instant::ZERO, &mut done);
    let answer = done.pop().expect("every request is answered");
    assert_eq!((answer.id, answer.offset), (id, offset), "as it was asked");
    assert!(done.is_empty(), "once");
    answer.result.map(|()| answer.payload.into_vec())
}

fn read(device: &mut impl BlockDevice, offset: u64, length: u32) -> Result<Vec<u8>, StoreError> {
    ask(device, BlockRequest::read(BlockId(1), offset, length))
}

fn write(device: &mut impl BlockDevice, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    ask(device, BlockRequest::write(BlockId(2), offset, bytes.into()))
}

/// A store that counts flushes.
struct Counting(MemoryStore, u32);

impl BlockStore for Counting {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.0.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.1 += 1;
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.write_zeroes(offset, len)
    }
}

#[test]
fn durable_write_is_flushed_before_it_is_answered() {
    let mut device = StoreDevice::new(Counting(MemoryStore::new(vec![0; 4096]), 0));
    write(&mut device, 0, &[1; 512]).unwrap();
    assert_eq!(device.store_mut().1, 0);
    let durable = BlockRequest::write(BlockId(1), 0, vec![1; 512].into());
    ask(&mut device, BlockRequest { is_durable: true, ..durable }).unwrap();
    ask(&mut device, BlockRequest::flush(BlockId(2))).unwrap();
    let zero = BlockRequest::zero(BlockId(3), BlockOp::Discard, 0, 512);
    ask(&mut device, BlockRequest { is_durable: true, ..zero }).unwrap();
    assert_eq!(device.into_store().1, 3);
}

#[test]
fn views_tell_holes_from_data() {
    let extent = |length: u64, is_hole: bool| StoreExtent { length, is_hole };
    let (hole, data) = (|length| extent(length, true), |length| extent(length, false));
    let sparse = || {
        let mut memory = SparseMemory::new(1 << 30, 1 << 20);
        memory.write_at(1 << 20, &[1; 512]).unwrap();
        StoreDevice::new(memory)
    };
    let (whole, chunk) = (1 << 30, 128 << 10);
    let extents = [hole(1 << 20), data(chunk), hole(whole - (1 << 20) - chunk)];
    assert_eq!(map(&mut sparse(), 0, whole as u32), extents);
    assert_eq!(map(&mut ReadOnlyView::new(sparse()), 0, whole as u32), extents);
    let mut part = RangeView::new(sparse(), 1 << 19, 1 << 20).unwrap();
    assert_eq!(map(&mut part, 1 << 18, 1 << 19), [hole(1 << 18), data(chunk), hole(chunk)]);
    let mut any = AnyByteLayer::new(sparse().with_blocks(4096));
    assert_eq!(map(&mut any, (1 << 20) - 3, 10), [hole(3), data(7)]);
    assert_eq!(map(&mut any, 5, 6), [hole(6)]);

    // A view's own changes are known exactly.
    let mut scratch = CopyOnWriteView::new(sparse(), SparseMemory::new(1 << 20, 1 << 20));
    write(&mut scratch, 0, &[0; 1024]).unwrap();
    ask(&mut scratch, BlockRequest::zero(BlockId(1), BlockOp::WriteZeroes, 1 << 20, 4096)).unwrap();
    let extents = [data(1024), hole((1 << 20) + 4096 - 1024), data(chunk - 4096), hole(chunk)];
    assert_eq!(map(&mut scratch, 0, (1 << 20) + 2 * chunk as u32), extents);
    let mut store = ImmediateDeviceStore::new(scratch);
    assert_eq!(store.extent(512, whole - 512), Ok(data(512)));

    // A store that does not know has data only, and so has a block that is partly data.
    assert_eq!(map(&mut StoreDevice::new(MemoryStore::new(vec![0; 4096])), 0, 4096), [data(4096)]);
    let mut bytes = vec![0; 4096];
    bytes[700] = 1;
    let mut device = StoreDevice::new(Holey(MemoryStore::new(bytes))).with_blocks(512);
    assert_eq!(map(&mut device, 0, 4096), [hole(512), data(512), hole(3072)]);
    write(&mut device, 0, &[1; 512]).unwrap();
    assert_eq!(map(&mut device, 0, 4096), [data(1024), hole(3072)], "what was a hole is data once it is written");
}

#[test]
fn request_buffers_are_reused() {
    let (mut device, mut done) = (device(1), completions());
    let mut addresses = Vec::new();
    for id in 0..3 {
        device.submit(Instant::ZERO, BlockRequest::read(BlockId(id), 0, 4096).launch(), &mut done);
        let answer = done.pop().unwrap();
        addresses.push(answer.payload.contiguous().as_ptr());
        done.pool.recycle(answer.payload);
    }
    assert!(
        addresses.iter().all(|address| *address == addresses[0]),
        "the data path allocates while it warms up and no more"
    );
}

#[test]
fn read_only_view_accepts_reads_and_refuses_changes() {
    let mut view = ReadOnlyView::new(device(512));
    assert!(view.info().is_read_only);
    let before = read(&mut view, 0, SIZE as u32).unwrap();
    assert_eq!(write(&mut view, 0, &[0; 512]), Err(StoreError::ReadOnly));
    for op in [BlockOp::Discard, BlockOp::WriteZeroes, BlockOp::Trim] {
        assert_eq!(ask(&mut view, BlockRequest::zero(BlockId(1), op, 0, 512)), Err(StoreError::ReadOnly));
    }
    ask(&mut view, BlockRequest::flush(BlockId(1))).unwrap();
    assert!(read(&mut view, 0, SIZE as u32).unwrap() == before);
}

#[test]
fn range_ends_at_its_own_end() {
    assert_eq!(RangeView::new(device(512), 100, 512).err(), Some(StoreError::Invalid), "not on a block");
    assert_eq!(RangeView::new(device(512), SIZE, 512).err(), Some(StoreError::Invalid));
    assert_eq!(RangeView::new(device(512), 512, u64::MAX - 511).err(), Some(StoreError::Invalid));
    let whole = read(&mut device(1), 0, SIZE as u32).unwrap();
    let mut part = RangeView::new(device(512), 1024, 4096).unwrap();
    assert!(read(&mut part, 512, 2048).unwrap() == whole[1536..][..2048]);
    write(&mut part, 0, &[7; 4096]).unwrap();
    assert_eq!(write(&mut part, 4096, &[7; 512]), Err(StoreError::Invalid));
    assert_eq!(read(&mut part, 3584, 1024), Err(StoreError::Invalid));
    assert_eq!(read(&mut part, u64::MAX - 511, 512), Err(StoreError::Invalid));
    ask(&mut part, BlockRequest::flush(BlockId(1))).unwrap();
}

#[test]
fn each_scratch_view_has_private_changes() {
    let before = read(&mut device(1), 0, SIZE as u32).unwrap();
    let mut views = [
        CopyOnWriteView::new(device(1), SparseMemory::new(SIZE, SIZE)),
        CopyOnWriteView::new(device(1), SparseMemory::new(SIZE, SIZE)),
    ];
    write(&mut views[0], 512, &[1; 1024]).unwrap();
    write(&mut views[1], 1024, &[2; 512]).unwrap();
    let [a, b] = [0, 1].map(|at| read(&mut views[at], 0, 2048).unwrap());
    let expect = |from: usize, to: usize, with: u8| {
        let mut expected = before[..2048].to_vec();
        expected[from..to].fill(with);
        expected
    };
    assert!(a == expect(512, 1536, 1) && b == expect(1024, 1536, 2));
    assert_eq!(views[0].used_bytes(), 4096, "a grain");
}

#[test]
fn full_scratch_view_refuses_new_changes_and_keeps_old_ones() {
    let mut view = CopyOnWriteView::new(device(1), MemoryStore::new(vec![0; 8192]));
    write(&mut view, 0, &[1; 8192]).unwrap();
    assert_eq!(write(&mut view, 8192, &[1; 512]), Err(StoreError::NoSpace));
    write(&mut view, 512, &[2; 512]).unwrap();
    assert_eq!(read(&mut view, 0, 1024).unwrap(), [[1; 512], [2; 512]].concat());
    // Zeroed sectors use no space, and free what they had.
    ask(&mut view, BlockRequest::zero(BlockId(1), BlockOp::Discard, 0, SIZE as u32)).unwrap();
    write(&mut view, 20480, &[3; 4096]).unwrap();
    assert_eq!(read(&mut view, 19968, 1024).unwrap(), [[0; 512], [3; 512]].concat());
    assert_eq!(view.used_bytes(), 4096);
}

#[test]
fn traced_device_records_submissions_and_completions() {
    let late = Late { device: device(1), unsent: Vec::new(), held: Vec::new(), order: 1 };
    let (mut view, mut done) = (TracingLayer::new(late, 16), completions());
    let (asked_at, answered) = (Instant::from_nanos(5), Instant::from_nanos(9));
    view.submit(asked_at, BlockRequest::read(BlockId(77), 0, 512).launch(), &mut done);
    view.end_turn(asked_at, &mut done);
    view.handle_ready(answered, &mut done);
    assert!(done.pop().is_some_and(|answer| answer.result.is_ok()));
    let taps: Vec<_> = view.ring().taps().map(|tap| (tap.key, tap.stage, tap.at)).collect();
    assert_eq!(taps, [(77, TracePoint::Submitted, asked_at), (77, TracePoint::Completed, answered)]);
}

#[test]
fn any_byte_of_a_device_of_larger_blocks_is_read_and_changed() {
    let mut view = AnyByteLayer::new(device(512));
    assert_eq!((view.info().block_bytes, view.info().size_bytes), (1, SIZE));
    let mut model = read(&mut device(1), 0, SIZE as u32).unwrap();
    for (offset, length) in [(0, 1), (511, 2), (512, 512), (1000, 24), (1000, 5000), (SIZE - 1, 1), (3, 509)] {
        let bytes: Vec<u8> = (0..length as u32).map(|at| (at * 7 + 3) as u8).collect();
        write(&mut view, offset, &bytes).unwrap();
        model[offset as usize..][..length as usize].copy_from_slice(&bytes);
        assert!(read(&mut view, offset, length as u32).unwrap() == bytes, "{length} at {offset}");
        assert!(read(&mut view, 0, SIZE as u32).unwrap() == model, "{length} at {offset}");
    }
    for (op, offset, length) in
        [(BlockOp::Discard, 100, 9), (BlockOp::WriteZeroes, 700, 3000), (BlockOp::Discard, 0, 512)]
    {
        ask(&mut view, BlockRequest::zero(BlockId(1), op, offset, length)).unwrap();
        model[offset as usize..][..length as usize].fill(0);
        assert!(read(&mut view, 0, SIZE as u32).unwrap() == model, "{length} at {offset}");
    }
    // A trim reaches the device for whole blocks only; in memory they then read as zeros.
    for (offset, length) in [(100, 1000), (3, 509), (2048, 512), (SIZE - 600, 600)] {
        ask(&mut view, BlockRequest::zero(BlockId(1), BlockOp::Trim, offset, length)).unwrap();
        let (first, end) = (offset.next_multiple_of(512), (offset + u64::from(length)) / 512 * 512);
        if first < end {
            model[first as usize..end as usize].fill(0);
        }
        assert!(read(&mut view, 0, SIZE as u32).unwrap() == model, "{length} at {offset}");
    }
    assert_eq!(read(&mut view, SIZE, 1), Err(StoreError::Invalid));
    assert_eq!(write(&mut AnyByteLayer::new(ReadOnlyView::new(device(512))), 1, &[1]), Err(StoreError::ReadOnly));
}

/// Counts changes, and separately those with FUA.
struct Noting<D>(D, Arc<[AtomicU32; 2]>);

impl<D: BlockDevice> BlockDevice for Noting<D> {
    fn info(&self) -> &BlockInfo {
        self.0.info()
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if request.op != BlockOp::Read {
            self.1[usize::from(request.is_durable)].fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(now, request, done);
    }
}

#[test]
fn every_part_of_a_durable_change_is_durable() {
    let noted = Arc::<[AtomicU32; 2]>::default();
    let mut view = AnyByteLayer::new(Noting(device(512), Arc::clone(&noted)));
    let zero = BlockRequest::zero(BlockId(1), BlockOp::WriteZeroes, 100, 2000);
    ask(&mut view, BlockRequest { is_durable: true, ..zero }).unwrap();
    let counts = || [0, 1].map(|at| noted[at].load(Ordering::Relaxed));
    assert_eq!(counts(), [0, 3], "a block cut at its front, whole ones, one cut at its back");
    write(&mut view, 5, &[1]).unwrap();
    assert_eq!(counts(), [1, 3]);
}

/// Concurrent changes of different bytes, completed in any order.
#[test]
fn fuzz_any_byte_at_once() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_any_byte_at_once", |input| {
        let order = u64::from(input.byte());
        let store = Arc::new(Mutex::new(device(512)));
        let shared = Shared(Arc::clone(&store), *store.lock().unwrap().info());
        let late = Late { device: shared, unsent: Vec::new(), held: Vec::new(), order };
        let mut view = AnyByteLayer::new(late);
        let mut model = read(&mut device(1), 0, SIZE as u32).unwrap();
        let mut done = completions();
        while !input.is_empty() {
            // Neighbouring changes, submitted in any order: each begins where another ends.
            let (mut at, mut requests) = (u64::from(input.below(4096)), Vec::new());
            for id in 0..=u64::from(input.below(8)) {
                let length = 1 + input.below(1200);
                let fill = ((id as u8) << 4) | (1 + input.below(15) as u8);
                let request = match input.below(4) {
                    0 => BlockRequest::zero(BlockId(id), BlockOp::WriteZeroes, at, length),
                    1 => BlockRequest::zero(BlockId(id), BlockOp::Discard, at, length),
                    _ => BlockRequest::write(BlockId(id), at, Payload::from(vec![fill; length as usize])),
                };
                let value = if request.op == BlockOp::Write { fill } else { 0 };
                model[at as usize..][..length as usize].fill(value);
                at += u64::from(length);
                requests.insert(input.below(requests.len() as u32 + 1) as usize, request);
            }
            let mut open = requests.len();
            for request in requests {
                view.submit(Instant::ZERO, request.launch(), &mut done);
                if input.below(3) == 0 {
                    view.end_turn(Instant::ZERO, &mut done);
                    view.handle_ready(Instant::ZERO, &mut done);
                }
                if input.below(4) == 0 {
                    // Another process continues with everything in flight.
                    let saved = view.save(Instant::ZERO).expect("it can be passed on");
                    spoil(saved.clone(), input);
                    view.leave();
                    view = restored(&saved, &store).expect("it stood so").0;
                }
            }
            for _ in 0..100 {
                view.end_turn(Instant::ZERO, &mut done);
                view.handle_ready(Instant::ZERO, &mut done);
                while let Some(answer) = done.pop() {
                    assert_eq!(answer.result, Ok(()));
                    open -= 1;
                }
            }
            assert_eq!(open, 0, "every request is answered, once");
        }
        for at in (0..SIZE).step_by(4096) {
            assert!(read(&mut view, at, 4096).unwrap() == model[at as usize..][..4096], "from {at} on");
        }
    });
}

/// A random stack of layers, and where in the device it begins.
fn stack(input: &mut Input<'_>) -> (Box<dyn BlockDevice>, u64) {
    let mut base: Box<dyn BlockDevice> = Box::new(device(input.pick(&[1, 512])));
    if input.below(2) == 0 {
        base = Box::new(Late { device: base, unsent: Vec::new(), held: Vec::new(), order: u64::from(input.byte()) });
    }
    let mut start = 0;
    for _ in 0..input.below(4) {
        base = match input.below(4) {
            0 => {
                let size = base.info().size_bytes;
                let offset = u64::from(input.below((size / 512) as u32)) * 512;
                start += offset;
                let part = RangeView::new(base, offset, (size - offset) / 512 * 512);
                Box::new(part.expect("it lies in the device"))
            }
            1 => Box::new(TracingLayer::new(base, 8)),
            2 => Box::new(CopyOnWriteView::new(base, SparseMemory::new(2 * SIZE, SIZE * 2))),
            _ => Box::new(CopyOnWriteView::new(
                TracingLayer::new(base, 8),
                MemoryStore::new(vec![0xee; 2 * SIZE as usize]),
            )),
        };
    }
    if input.once_in(8) { (Box::new(ReadOnlyView::new(base)), start) } else { (base, start) }
}

#[test]
fn fuzz_block_layers() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_block_layers", |input| {
        let (mut view, start) = stack(input);
        let info = *view.info();
        let whole = read(&mut device(1), 0, SIZE as u32).unwrap();
        let mut model = whole[start as usize..][..info.size_bytes as usize].to_vec();
        let mut done = completions();
        for id in 0.. {
            if input.is_empty() || id > 200 {
                break;
            }
            let mut length = input.below(16) * 512;
            let mut offset = u64::from(input.below(SIZE as u32 / 512 + 8)) * 512;
            if input.once_in(8) {
                offset += u64::from(input.byte());
                length += u32::from(input.byte());
            }
            let request = match input.below(7) {
                0 | 1 => BlockRequest::read(BlockId(id), offset, length),
                2 | 3 => BlockRequest::write(BlockId(id), offset, Payload::from(vec![id as u8; length as usize])),
                4 => {
                    let op = input.pick(&[BlockOp::Discard, BlockOp::WriteZeroes]);
                    BlockRequest::zero(BlockId(id), op, offset, length * input.pick(&[1, 8]))
                }
                5 => BlockRequest::map(BlockId(id), offset, length * input.pick(&[1, 8])),
                _ => BlockRequest::flush(BlockId(id)),
            };
            let (op, length) = (request.op, request.length as usize);
            let (offset, expected) = (request.offset as usize, info.check(&request));
            view.submit(Instant::ZERO, request.launch(), &mut done);
            view.end_turn(Instant::ZERO, &mut done);
            view.handle_ready(Instant::ZERO, &mut done);
            let answer = done.pop().expect("every request is answered");
            assert!(done.is_empty(), "once");
            assert_eq!((answer.id, answer.op, answer.offset), (BlockId(id), op, offset as u64));
            assert_eq!(answer.result, expected, "{op:?} {length} at {offset} of {info:?}");
            if expected.is_err() {
                continue;
            }
            match op {
                BlockOp::Read => {
                    assert!(answer.payload.into_vec() == model[offset..][..length], "{length} at {offset}")
                }
                BlockOp::Write => model[offset..][..length].fill(id as u8),
                BlockOp::Discard | BlockOp::WriteZeroes => model[offset..][..length].fill(0),
                BlockOp::Map => {
                    let extent_list =
                        ExtentList::read(&answer.payload, length as u32).expect("something is told of each range");
                    let mut at = offset;
                    for StoreExtent { length, is_hole } in extent_list.iter() {
                        let is_whole = (at as u64 | length).is_multiple_of(info.block_bytes.into());
                        assert!(is_whole, "{length} at {at} are no blocks");
                        let extent = &model[at..][..length as usize];
                        assert!(!is_hole || extent.iter().all(|byte| *byte == 0), "{length} at {at} are no hole");
                        at += length as usize;
                    }
                }
                BlockOp::Flush | BlockOp::Trim => {}
            }
            done.pool.recycle(answer.spent);
        }
        for offset in (0..model.len()).step_by(4096) {
            let length = (model.len() - offset).min(4096) / 512 * 512;
            assert!(read(&mut view, offset as u64, length as u32).unwrap() == model[offset..][..length]);
        }
    });
}

/// A disk that keeps its flushes until the test has them answered. It is asked for nothing else.
struct FlushesLate {
    info: BlockInfo,
    waiting: Arc<Mutex<Vec<BlockInFlight>>>,
    answer: Result<(), StoreError>,
}

impl BlockDevice for FlushesLate {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, _: Instant, request: BlockInFlight, _: &mut CompletionQueue<BlockCompletion>) {
        assert_eq!(request.op, BlockOp::Flush, "nothing is written a second time");
        self.waiting.lock().unwrap().push(request);
    }

    fn handle_ready(&mut self, _: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        for request in self.waiting.lock().unwrap().drain(..).rev() {
            done.push(match self.answer {
                Ok(()) => request.answer(Payload::Empty),
                Err(error) => request.fail(error),
            });
        }
    }

    fn save(&mut self, _: Instant) -> Option<Vec<u8>> {
        Some(b"below".to_vec())
    }

    fn leave(&mut self) {
        self.waiting.lock().unwrap().drain(..).for_each(|request| drop(request.recall()));
    }
}

/// The snapshot of a disk that was moved, with requests that wait for a flush.
fn moved_disk(input: &mut Input<'_>, info: &BlockInfo) -> Vec<u8> {
    let mut to = SnapshotWriter::new(SWAPPED_KIND);
    to.u64(info.size_bytes);
    [info.block_bytes, info.preferred_bytes, info.request_bytes_max].into_iter().for_each(|bytes| to.u32(bytes));
    [info.is_read_only, info.trims].into_iter().for_each(|is_so| to.flag(is_so));
    to.bytes(b"below");
    let count = input.below(5);
    to.count(count as usize);
    for id in 0..u64::from(count) {
        let (offset, length) = (512 * u64::from(input.below(64)), 512 * (1 + input.below(64)));
        to.block_request(&match input.below(3) {
            0 => BlockRequest::flush(BlockId(id)),
            1 => BlockRequest { is_durable: true, ..BlockRequest::zero(BlockId(id), BlockOp::Discard, offset, length) },
            _ => BlockRequest {
                is_durable: true,
                payload: Payload::Empty,
                ..BlockRequest::write(BlockId(id), offset, vec![0; length as usize].into())
            },
        });
    }
    to.into_bytes()
}

#[test]
fn fuzz_moved_disk_of_another_process_answers_each_request_once() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_moved_disk_of_another_process_answers_each_request_once", |input| {
        let info = *device(1).with_blocks(512).info();
        let whole = moved_disk(input, &info);
        let mut bytes = whole.clone();
        if input.once_in(2) {
            match input.below(3) {
                0 => bytes.truncate(input.below(bytes.len() as u32) as usize),
                1 => bytes.extend(input.rest()),
                _ => (0..=input.below(3)).for_each(|_| {
                    let at = input.below(bytes.len() as u32) as usize;
                    bytes[at] = input.byte();
                }),
            }
        }
        let answer = input.pick(&[Ok(()), Err(StoreError::Medium)]);
        let waiting = Arc::<Mutex<Vec<BlockInFlight>>>::default();
        let restored = snapshot::open(&bytes, SWAPPED_KIND).and_then(|mut from| {
            let below = |_: &[u8], _: &BlockInfo| Ok(FlushesLate { info, waiting: Arc::clone(&waiting), answer });
            let (mut disk, pending) = SwappableDevice::restore::<ProtocolViolation>(Instant::ZERO, &mut from, below)?;
            from.end("device").inspect_err(|_| BlockDevice::leave(&mut disk)).map(|()| (disk, pending))
        });
        let Ok((mut disk, pending)) = restored else {
            waiting.lock().unwrap().drain(..).for_each(|request| drop(request.recall()));
            return assert!(bytes != whole, "what was saved is restored");
        };
        let saved = BlockDevice::save(&mut disk, Instant::ZERO).expect("all its requests wait for a flush");
        assert!(saved == whole || bytes != whole, "a second replacement gets what the first one got");
        let mut done = CompletionQueue::new(BufferPool::new(0));
        BlockDevice::handle_ready(&mut disk, Instant::ZERO, &mut done);
        let mut left = pending;
        while let Some(answered) = done.pop() {
            let request = left.remove(&answered.id).expect("it was asked, and not answered before");
            assert_eq!((answered.op, answered.offset), (request.0, request.1));
            assert_eq!(answered.result, answer);
        }
        assert!(left.is_empty(), "{left:?} are never answered");
    });
}
