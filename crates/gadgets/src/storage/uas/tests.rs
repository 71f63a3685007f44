//! A host that has many commands in flight, and a device that answers on demand, in any order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use farbus_model::urb::take_lost;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool, CompletionQueue, Device,
    Instant, Payload, PendingBlockRequests, SetupPacket, StoreDevice, StoreError, Urb, UrbId, UrbStatus,
};
use proptest::prelude::*;

use super::*;
use crate::storage::scsi::command::op;
use crate::storage::tests::disk::Disk;

const SIZE_BYTES: u64 = 64 << 20;
const SECTOR_BYTES: usize = 512;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

/// A remote device: requests wait for [`Far::answer`].
#[derive(Clone)]
struct Far(Arc<Mutex<FarState>>);

struct FarState {
    store: StoreDevice<Disk>,
    waiting: Vec<BlockInFlight>,
    /// Requests that are answered and whose answers are still under way.
    answered: Vec<BlockInFlight>,
    durable_writes: usize,
    largest_bytes: u32,
}

impl Far {
    fn new(disk: &Disk) -> Self {
        let store = StoreDevice::new(disk.clone());
        let state = FarState { store, waiting: Vec::new(), answered: Vec::new(), durable_writes: 0, largest_bytes: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The requests of a local device that are unanswered.
    fn pending(&self) -> PendingBlockRequests {
        let state = self.0.lock().unwrap();
        let all = state.waiting.iter().chain(&state.answered);
        all.map(|flight| (flight.id, (flight.op, flight.offset, flight.length))).collect()
    }

    /// Another device with the same unanswered requests.
    fn like(&self) -> Self {
        let other = Self::new(&Disk::new(SIZE_BYTES));
        other.0.lock().unwrap().waiting = self
            .pending()
            .into_iter()
            .map(|(id, (op, offset, length))| {
                let length_written = if op == BlockOp::Write { length as usize } else { 0 };
                let payload = Payload::pattern(&[0], length_written);
                BlockRequest { op, offset, length, payload, ..BlockRequest::flush(id) }.launch()
            })
            .collect();
        other
    }

    fn waiting(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }

    /// Answers the waiting request at this place.
    fn answer(&self, at: usize) {
        let mut state = self.0.lock().unwrap();
        let request = state.waiting.remove(at);
        state.answered.push(request);
    }
}

struct Near {
    far: Far,
    info: BlockInfo,
}

impl BlockDevice for Near {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, _now: Instant, mut request: BlockInFlight, _done: &mut CompletionQueue<BlockCompletion>) {
        let mut state = self.far.0.lock().unwrap();
        request.own_payload();
        assert_eq!(self.info.check(&request), Ok(()), "it is asked for what it has");
        state.durable_writes += usize::from(request.is_durable);
        state.largest_bytes = state.largest_bytes.max(request.length);
        state.waiting.push(request);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let mut state = self.far.0.lock().unwrap();
        for request in std::mem::take(&mut state.answered) {
            state.store.submit(now, request, done);
        }
    }

    fn save(&mut self, _now: Instant) -> Option<Vec<u8>> {
        Some(b"near".to_vec())
    }
}

struct Host {
    device: EmulatedDevice<AttachedScsi>,
    done: CompletionQueue,
    far: Far,
    disk: Disk,
    next_id: u64,
    finished: BTreeMap<UrbId, farbus_model::UrbCompletion>,
}

impl Host {
    fn new() -> Self {
        let mut host = Self::with(StorageOptions::default());
        assert_eq!(host.ask(1, &[op::TEST_UNIT_READY; 1]), (CHECK_CONDITION, (6, 0x29, 0)));
        host
    }

    fn with(options: StorageOptions) -> Self {
        Self::over(options, true)
    }

    /// A disk over a device that supports trim, or does not.
    fn over(options: StorageOptions, trims: bool) -> Self {
        let disk = Disk::new(SIZE_BYTES);
        let far = Far::new(&disk);
        let info = BlockInfo {
            request_bytes_max: 256 << 10,
            block_bytes: 512,
            is_read_only: false,
            trims,
            ..*far.0.lock().unwrap().store.info()
        };
        let device = AttachedScsi::device(Box::new(Near { far: far.clone(), info }), options).unwrap();
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut host = Self { device, done, far, disk, next_id: 0, finished: BTreeMap::new() };
        let set = SetupPacket::set_configuration(1);
        let id = host.submit(|id| Urb::control(id, set, Payload::Empty));
        assert_eq!(host.finished.remove(&id).unwrap().status, UrbStatus::Ok);
        host
    }

    fn submit(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbId {
        self.next_id += 1;
        let id = UrbId(self.next_id);
        self.device.submit(Instant::ZERO, urb(id).launch(), &mut self.done);
        self.collect();
        id
    }

    fn collect(&mut self) {
        while let Some(done) = self.done.pop() {
            assert!(self.finished.insert(done.id, done).is_none(), "answered once");
        }
    }

    /// Continues in another process, over this device; `None` if it cannot.
    fn restored(&self, state: &[u8], far: &Far) -> Option<EmulatedDevice<AttachedScsi>> {
        let device = |bytes: &[u8]| {
            let info =
                BlockInfo { request_bytes_max: 256 << 10, block_bytes: 512, ..*far.0.lock().unwrap().store.info() };
            let near: Box<dyn BlockDevice> = Box::new(Near { far: far.clone(), info });
            if bytes == b"near" { Ok((near, far.pending())) } else { Err(InvalidSavedState) }
        };
        let mut restored = AttachedScsi::restore(state, StorageOptions::default(), device).ok()?;
        let waiting = self.device.waiting().cloned().collect();
        restored.resume(self.device.selection().clone(), self.device.halts(), waiting).expect("they waited there");
        Some(restored)
    }

    fn move_on(&mut self) {
        let state = self.device.function_mut().save(Instant::ZERO).unwrap();
        let restored = self.restored(&state, &self.far).expect("what was saved is restored");
        std::mem::replace(&mut self.device, restored).leave();
    }

    /// Changes a byte of the saved state: it is refused, or the disk that continues from it still works.
    fn spoil(&mut self, at: prop::sample::Index, to: u8) {
        let mut state = self.device.function_mut().save(Instant::ZERO).unwrap();
        let at = at.index(state.len());
        state[at] = to;
        let far = self.far.like();
        if let Some(device) = self.restored(&state, &far) {
            let done = CompletionQueue::new(BufferPool::new(1 << 20));
            let (disk, next_id, finished) = (self.disk.clone(), 1 << 32, BTreeMap::new());
            // Its end answers every request.
            let mut other = Host { device, done, far, disk, next_id, finished };
            for _ in 0..4 {
                for way in [STATUS, DATA_IN] {
                    other.submit(|id| Urb::data_in(id, way, 1 << 20));
                }
                other.submit(|id| Urb::data_out(id, DATA_OUT, vec![0; 512].into()));
                other.answer_all();
            }
        } else {
            far.0.lock().unwrap().waiting.drain(..).for_each(|flight| drop(flight.recall()));
        }
    }

    fn command(&mut self, tag: u16, cdb: &[u8]) -> UrbId {
        let bytes = command(tag, 0, cdb);
        self.submit(|id| Urb::data_out(id, COMMAND, bytes.into()))
    }

    fn manage(&mut self, function: u8, task: u16) -> u8 {
        let [high, low] = task.to_be_bytes();
        let bytes = vec![5, 0, 0xff, 0xfe, function, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
        self.submit(|id| Urb::data_out(id, COMMAND, bytes.into()));
        let unit = self.status();
        assert_eq!(unit[..4], [4, 0, 0xff, 0xfe]);
        unit[7]
    }

    fn status_urb(&mut self) -> UrbId {
        self.submit(|id| Urb::data_in(id, STATUS, 112))
    }

    /// The next unit of the status pipe, which has to be there.
    fn status(&mut self) -> Vec<u8> {
        let id = self.status_urb();
        self.finished.remove(&id).expect("a unit is there").payload.into_vec()
    }

    fn is_silent(&mut self) -> bool {
        let id = self.status_urb();
        let is_silent = !self.finished.contains_key(&id);
        self.device.cancel(Instant::ZERO, id, &mut self.done);
        self.collect();
        is_silent
    }

    /// Delivers the answers of the remote device.
    fn arrive(&mut self) {
        self.device.handle_ready(Instant::ZERO, &mut self.done);
        self.collect();
    }

    fn answer_all(&mut self) {
        while self.far.waiting() > 0 {
            self.far.answer(0);
            self.arrive();
        }
    }

    /// The status of a command without data, and its sense data.
    fn ask(&mut self, tag: u16, cdb: &[u8]) -> (u8, (u8, u8, u8)) {
        self.command(tag, cdb);
        self.answer_all();
        self.ending(tag)
    }

    fn ending(&mut self, tag: u16) -> (u8, (u8, u8, u8)) {
        let unit = self.status();
        assert_eq!((unit[0], &unit[2..4]), (3, &tag.to_be_bytes()[..]));
        let sense = if unit.len() > 16 { (unit[16 + 2], unit[16 + 12], unit[16 + 13]) } else { (0, 0, 0) };
        (unit[6], sense)
    }

    fn read_data(&mut self, tag: u16, bytes: u32) -> Vec<u8> {
        assert_eq!(self.status(), iu::read_ready(tag));
        let id = self.submit(|id| Urb::data_in(id, DATA_IN, bytes));
        let data = self.finished.remove(&id).expect("what is announced is there");
        data.payload.into_vec()
    }

    fn read(&mut self, tag: u16, lba: u32, blocks: u16) -> Vec<u8> {
        self.command(tag, &read_10(lba, blocks));
        self.answer_all();
        let data = self.read_data(tag, u32::from(blocks) * SECTOR_BYTES as u32);
        assert_eq!(self.ending(tag).0, GOOD);
        data
    }

    /// Sends a command's data; its writes wait in the remote device.
    fn begin_write(&mut self, tag: u16, cdb: &[u8], data: &[u8]) {
        self.command(tag, cdb);
        assert_eq!(self.status(), iu::write_ready(tag));
        let id = self.submit(|id| Urb::data_out(id, DATA_OUT, data.into()));
        assert_eq!(self.finished.remove(&id).unwrap().status, UrbStatus::Ok);
    }

    fn write(&mut self, tag: u16, cdb: &[u8], data: &[u8]) -> (u8, (u8, u8, u8)) {
        self.begin_write(tag, cdb, data);
        self.answer_all();
        self.ending(tag)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.device.reset(Instant::ZERO, &mut self.done);
            self.answer_all();
            assert!(take_lost().is_empty(), "every request is answered");
            assert_eq!(farbus_model::block_device::take_lost(), []);
        }
    }
}

fn command(tag: u16, lun: u8, cdb: &[u8]) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    let mut bytes = vec![1, 0, high, low, 0, 0, 0, 0, 0, lun, 0, 0, 0, 0, 0, 0];
    bytes.extend(cdb);
    bytes.resize(32, 0);
    bytes
}

fn block_10(code: u8, flags: u8, lba: u32, blocks: u16) -> Vec<u8> {
    let ([a, b, c, d], [high, low]) = (lba.to_be_bytes(), blocks.to_be_bytes());
    vec![code, flags, a, b, c, d, 0, high, low, 0]
}

fn read_10(lba: u32, blocks: u16) -> Vec<u8> {
    block_10(op::READ_10, 0, lba, blocks)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at / 7) ^ (at % 251) ^ seed) as u8).collect()
}

#[test]
fn uas_disk_reports_its_identity_and_capabilities() {
    let mut host = Host::new();
    let interface = host.device.descriptors().configurations[0].setting(0, 0).unwrap().clone();
    assert_eq!(interface.class, [8, 6, 0x62]);
    assert_eq!(interface.endpoints.iter().map(|e| e.address).collect::<Vec<_>>(), [COMMAND, STATUS, DATA_IN, DATA_OUT]);
    let bytes = &host.device.descriptors().configurations[0].bytes;
    let usages: Vec<u8> = bytes.windows(4).filter(|w| w[..2] == [4, 0x24]).map(|w| w[2]).collect();
    assert_eq!(usages, [1, 2, 3, 4], "each endpoint is followed by the pipe it is");

    host.command(2, &[op::INQUIRY, 0, 0, 0, 36]);
    let inquiry = host.read_data(2, 36);
    assert_eq!((inquiry.len(), inquiry[1], &inquiry[8..16]), (36, 0, &b"farbus  "[..]), "and not removable");
    assert_eq!(host.ending(2).0, GOOD);
    host.command(3, &[op::READ_CAPACITY_10]);
    let capacity = host.read_data(3, 8);
    let last = (SIZE_BYTES / 512 - 1) as u32;
    assert_eq!(capacity, [last.to_be_bytes(), 512u32.to_be_bytes()].concat());
    assert_eq!(host.ending(3).0, GOOD);
    assert!(host.is_silent());
}

#[test]
fn written_data_is_read_back_in_pieces_of_the_devices_size() {
    let mut host = Host::new();
    let data = pattern(3, 1 << 20);
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 0, 8, 2048), &data).0, GOOD);
    assert_eq!(host.disk.bytes(8 * 512, 1 << 20), data);
    assert_eq!(host.read(2, 8, 2048), data);
    let state = host.far.0.lock().unwrap();
    assert_eq!((state.largest_bytes, state.durable_writes), (256 << 10, 0));
}

#[test]
fn thirty_reads_are_answered_as_they_come_whatever_their_order() {
    let mut host = Host::new();
    let data = pattern(9, 30 * 4096);
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 0, 0, 240), &data).0, GOOD);
    for tag in 0..30u16 {
        host.command(tag, &read_10(u32::from(tag) * 8, 8));
    }
    assert_eq!(host.far.waiting(), 30);
    assert!(host.is_silent(), "nothing is announced before it is there");
    for tag in (0..30).rev() {
        host.far.answer(tag as usize);
        host.arrive();
        let at = usize::from(tag) * 4096;
        assert!(host.read_data(tag, 4096) == data[at..at + 4096], "the data of {tag}");
        assert_eq!(host.ending(tag).0, GOOD);
    }
}

#[test]
fn data_may_move_in_parts_both_ways() {
    let mut host = Host::new();
    let data = pattern(1, 8192);
    host.command(5, &block_10(op::WRITE_10, 0, 16, 16));
    assert_eq!(host.status(), iu::write_ready(5));
    for part in data.chunks(2048) {
        // As in a receive buffer.
        let chunk: Arc<[u8]> = part.into();
        host.submit(|id| Urb::data_out(id, DATA_OUT, Payload::shared(&chunk, 0..part.len())));
    }
    host.answer_all();
    assert_eq!(host.ending(5).0, GOOD);
    host.command(6, &read_10(16, 16));
    host.answer_all();
    let mut read = host.read_data(6, 4096);
    let id = host.submit(|id| Urb::data_in(id, DATA_IN, 4096));
    read.extend(host.finished.remove(&id).unwrap().payload.into_vec());
    assert_eq!(read, data);
    assert_eq!(host.ending(6).0, GOOD);
}

#[test]
fn writes_are_flushed_when_the_host_asks_for_it() {
    let mut host = Host::new();
    let durable = |host: &Host| host.far.0.lock().unwrap().durable_writes;
    let sector = [7; SECTOR_BYTES];
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 8, 0, 1), &sector).0, GOOD);
    assert_eq!(durable(&host), 1, "FUA");
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 0, 0, 1), &sector).0, GOOD);
    assert_eq!(durable(&host), 1);
    assert_eq!(host.ask(2, &[op::SYNCHRONIZE_CACHE_10]).0, GOOD);
    assert_eq!(host.disk.look().flushes, 2);
    // Turns the write cache off: its content is flushed, and so is every later write.
    let list = [0, 0, 0, 0, 0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(host.write(3, &[op::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8], &list).0, GOOD);
    assert_eq!(host.disk.look().flushes, 3);
    assert_eq!(host.write(4, &block_10(op::WRITE_10, 0, 0, 1), &sector).0, GOOD);
    assert_eq!(durable(&host), 2);
    // A read that must come from the medium follows a flush.
    host.command(5, &block_10(op::READ_10, 8, 0, 1));
    host.answer_all();
    assert_eq!(host.read_data(5, 512), sector);
    assert_eq!(host.ending(5).0, GOOD);
    assert_eq!(host.disk.look().flushes, 5);
    // The disk flushes before it rests.
    assert_eq!(host.ask(6, &[op::START_STOP_UNIT, 0, 0, 0, 0]).0, GOOD);
    assert_eq!(host.disk.look().flushes, 6);
    assert_eq!(host.ask(7, &[op::TEST_UNIT_READY]), (CHECK_CONDITION, (2, 4, 2)));
    assert_eq!(host.ask(8, &[op::START_STOP_UNIT, 0, 0, 0, 1]).0, GOOD);
    assert_eq!(host.ask(9, &[op::TEST_UNIT_READY]).0, GOOD);
}

#[test]
fn a_disk_that_cannot_give_space_back_does_not_say_so() {
    for trims in [true, false] {
        let mut host = Host::over(StorageOptions::default(), trims);
        host.ask(1, &[op::TEST_UNIT_READY; 1]);
        host.command(2, &[op::INQUIRY, 1, 0xb2, 0, 64, 0]);
        host.answer_all();
        let page = host.read_data(2, 8);
        assert_eq!((host.ending(2).0, page.len()), (GOOD, 8));
        assert_eq!(page[5] & 0xe0 != 0, trims, "UNMAP, and WRITE SAME that unmaps");
    }
}

#[test]
fn write_same_and_unmap_change_large_ranges() {
    let mut host = Host::new();
    let data = pattern(5, 64 * SECTOR_BYTES);
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 0, 0, 64), &data).0, GOOD);
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend([0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0]);
    let unmap = [op::UNMAP, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    assert_eq!(host.write(2, &unmap, &list).0, GOOD);
    assert_eq!(host.write(3, &block_10(op::WRITE_SAME_10, 0, 16, 8), &[0; SECTOR_BYTES]).0, GOOD);
    // Three megabytes of one pattern.
    let sector = pattern(77, SECTOR_BYTES);
    assert_eq!(host.write(4, &block_10(op::WRITE_SAME_10, 0, 64, 6144), &sector).0, GOOD);
    let held = host.disk.bytes(0, (64 + 6144) * SECTOR_BYTES);
    let zeros = |from: usize| held[from * 512..(from + 8) * 512].iter().all(|byte| *byte == 0);
    assert!(zeros(8) && zeros(16));
    assert_eq!((held[..8 * 512] == data[..8 * 512], held[24 * 512..64 * 512] == data[24 * 512..]), (true, true));
    assert!(held[64 * 512..].chunks(512).all(|block| block == sector));
    assert_eq!(host.disk.look().discarded_bytes, 4096);
    assert_eq!(host.ask(5, &block_10(op::VERIFY_10, 0, 0, 6208)).0, GOOD);
}

#[test]
fn error_is_reported_with_its_command_and_block() {
    let mut host = Host::new();
    host.disk.look().fail_from = Some((100 * 512, StoreError::Medium));
    host.command(1, &read_10(96, 8));
    host.answer_all();
    let unit = host.status();
    assert_eq!((unit[6], unit[16], unit[18], &unit[19..23]), (2, 0xf0, 3, &96u32.to_be_bytes()[..]));
    host.disk.look().fail_from = Some((0, StoreError::NoSpace));
    assert_eq!(host.write(2, &block_10(op::WRITE_10, 0, 0, 1), &[1; 512]), (CHECK_CONDITION, (7, 0x27, 7)));
    host.disk.look().fail_from = None;
    host.disk.look().fail_flush = Some(StoreError::Medium);
    assert_eq!(host.ask(3, &[op::SYNCHRONIZE_CACHE_10]), (CHECK_CONDITION, (3, 0x0c, 0)));
    for (tag, cdb, sense) in [
        (4, read_10((SIZE_BYTES / 512) as u32, 1), (5, 0x21, 0)),
        (5, vec![0xc0], (5, 0x20, 0)),
        (6, vec![op::START_STOP_UNIT, 0, 0, 0, 2], (5, 0x24, 0)),
        (7, block_10(op::VERIFY_10, 2, 0, 1), (5, 0x24, 0)),
    ] {
        assert_eq!(host.ask(tag, &cdb), (CHECK_CONDITION, sense));
    }
    let bytes = command(8, 1, &[op::TEST_UNIT_READY]);
    host.submit(|id| Urb::data_out(id, COMMAND, bytes.into()));
    assert_eq!(host.ending(8), (CHECK_CONDITION, (5, 0x25, 0)), "there is one unit");
    assert!(host.is_silent());
}

#[test]
fn a_disk_that_is_only_read_takes_no_writes() {
    let mut host = Host::with(StorageOptions { read_only: true, ..StorageOptions::default() });
    assert_eq!(host.ask(1, &[op::TEST_UNIT_READY]).1, (6, 0x29, 0));
    assert_eq!(host.ask(2, &block_10(op::WRITE_10, 0, 0, 1)), (CHECK_CONDITION, (7, 0x27, 0)));
    assert_eq!(host.read(3, 0, 1), [0; 512]);
}

#[test]
fn invalid_information_unit_is_answered_as_invalid() {
    let mut host = Host::new();
    host.command(1, &read_10(0, 8));
    host.command(1, &read_10(8, 8));
    assert_eq!(host.status(), iu::response(1, UasResponseCode::OverlappedTag));
    for bytes in [vec![], vec![1, 0, 0, 2], vec![9; 32], vec![5; 15]] {
        let tag = if bytes.len() < 4 { 0 } else { u16::from_be_bytes([bytes[2], bytes[3]]) };
        host.submit(|id| Urb::data_out(id, COMMAND, bytes.into()));
        assert_eq!(host.status(), iu::response(tag, UasResponseCode::InvalidUnit));
    }
    assert_eq!(host.manage(0x55, 1), UasResponseCode::NotSupported as u8);
    // More data than the host was told to send.
    host.command(3, &block_10(op::WRITE_10, 0, 0, 1));
    assert_eq!(host.status(), iu::write_ready(3));
    let id = host.submit(|id| Urb::data_out(id, DATA_OUT, vec![1; 513].into()));
    assert_eq!(host.finished.remove(&id).unwrap().status, UrbStatus::Stall);
    assert_eq!(host.ending(3), (CHECK_CONDITION, (5, 0x26, 0)));
    host.answer_all();
    assert_eq!(host.read_data(1, 4096), [0; 4096], "the first of the two goes on");
}

#[test]
fn command_waits_for_aborted_requests_to_the_same_blocks() {
    let mut host = Host::new();
    host.begin_write(1, &block_10(op::WRITE_10, 0, 0, 8), &[1; 4096]);
    host.command(2, &read_10(8, 8));
    assert_eq!(host.manage(function::QUERY_TASK, 1), UasResponseCode::Succeeded as u8);
    assert_eq!(host.manage(function::ABORT_TASK, 1), UasResponseCode::Complete as u8);
    // The old write is still under way: a new one to the same blocks waits for it.
    let waits = host.command(3, &block_10(op::WRITE_10, 0, 0, 8));
    assert!(!host.finished.contains_key(&waits));
    host.far.answer(1);
    host.arrive();
    assert_eq!(host.read_data(2, 4096), [0; 4096], "what was not given up goes on");
    assert_eq!(host.ending(2).0, GOOD);
    assert!(!host.finished.contains_key(&waits));
    host.far.answer(0);
    host.arrive();
    assert!(host.finished.contains_key(&waits));
    assert_eq!(host.status(), iu::write_ready(3));
    host.submit(|id| Urb::data_out(id, DATA_OUT, vec![2; 4096].into()));
    host.answer_all();
    assert_eq!(host.ending(3).0, GOOD);
    assert_eq!(host.disk.bytes(0, 4096), [2; 4096]);
    assert_eq!(host.manage(function::QUERY_TASK, 1), UasResponseCode::Complete as u8);

    // A reset of the port, and of the unit.
    for _ in 0..2 {
        host.begin_write(4, &block_10(op::WRITE_10, 0, 0, 8), &[3; 4096]);
        host.device.reset(Instant::ZERO, &mut host.done);
        host.collect();
        let set = SetupPacket::set_configuration(1);
        host.submit(|id| Urb::control(id, set, Payload::Empty));
        let waits = host.command(5, &[op::TEST_UNIT_READY]);
        assert!(!host.finished.contains_key(&waits));
        host.answer_all();
        assert_eq!(host.ending(5).0, GOOD, "what it did itself is no news to the host");
    }
    host.command(6, &read_10(0, 8));
    let reset = vec![5, 0, 0, 7, function::LOGICAL_UNIT_RESET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    host.submit(|id| Urb::data_out(id, COMMAND, reset.into()));
    assert_eq!(host.status(), iu::response(7, UasResponseCode::Complete));
    host.answer_all();
    assert!(host.is_silent(), "nothing is said of what was given up");
}

#[test]
fn a_host_that_asks_for_more_than_is_held_waits() {
    let mut host = Host::new();
    let mut accepted = Vec::new();
    for tag in 0..100u16 {
        accepted.push(host.command(tag, &read_10(0, 8)));
    }
    assert_eq!(host.far.waiting(), unit::TASKS_MAX);
    assert!(!host.finished.contains_key(&accepted[unit::TASKS_MAX]));
    for tag in 0..100u16 {
        host.far.answer(0);
        host.arrive();
        assert_eq!(host.read_data(tag, 4096), [0; 4096]);
        assert_eq!(host.ending(tag).0, GOOD);
    }
    // 32 MiB each: the disk holds the data of three of them, and no fourth begins.
    const PIECES: usize = 128;
    const { assert!(2 * 0xffff * 512 < unit::DATA_BYTES_MAX && 3 * 0xffff * 512 >= unit::DATA_BYTES_MAX) };
    for tag in 0..4 {
        host.command(tag, &read_10(0, 0xffff));
    }
    assert_eq!(host.far.waiting(), 3 * PIECES);
}

#[test]
fn a_device_that_is_gone_takes_the_disk_along() {
    struct Gone(BlockInfo, bool);
    impl BlockDevice for Gone {
        fn info(&self) -> &BlockInfo {
            &self.0
        }
        fn submit(&mut self, _now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
            done.push(request.fail(StoreError::Gone));
        }
        fn handle_ready(&mut self, _now: Instant, _done: &mut CompletionQueue<BlockCompletion>) {
            self.1 = true;
        }
        fn is_gone(&self) -> bool {
            self.1
        }
    }
    let info = *Far::new(&Disk::new(SIZE_BYTES)).0.lock().unwrap().store.info();
    let mut device = AttachedScsi::device(Box::new(Gone(info, false)), StorageOptions::default()).unwrap();
    let mut done = CompletionQueue::new(BufferPool::new(0));
    device.submit(
        Instant::ZERO,
        Urb::control(UrbId(1), SetupPacket::set_configuration(1), Payload::Empty).launch(),
        &mut done,
    );
    device.submit(Instant::ZERO, Urb::data_in(UrbId(2), STATUS, 112).launch(), &mut done);
    device.handle_ready(Instant::ZERO, &mut done);
    device.submit(Instant::ZERO, Urb::data_in(UrbId(3), STATUS, 112).launch(), &mut done);
    let ended: Vec<_> = std::iter::from_fn(|| done.pop()).map(|done| (done.id.0, done.status)).collect();
    assert_eq!(ended, [(1, UrbStatus::Ok), (2, UrbStatus::Gone), (3, UrbStatus::Gone)]);
    assert!(device.is_gone());
}

#[test]
fn blocks_larger_than_a_sector_can_be_are_refused() {
    let info = *Far::new(&Disk::new(SIZE_BYTES)).0.lock().unwrap().store.info();
    let near = |block_bytes| {
        let far = Far::new(&Disk::new(SIZE_BYTES));
        let device = Near { far, info: BlockInfo { block_bytes, ..info } };
        AttachedScsi::device(Box::new(device), StorageOptions::default()).map(|_| ())
    };
    assert_eq!(near(4096), Ok(()));
    assert_eq!(near(8192), Err(StorageOptionError::SectorBytes(8192)));
}

#[test]
fn commands_go_on_in_another_process_wherever_they_stand() {
    let mut host = Host::new();
    let data = pattern(9, 30 * 4096);
    assert_eq!(host.write(1, &block_10(op::WRITE_10, 0, 0, 240), &data).0, GOOD);
    // Data that is announced and not fetched, fetched in part, read in part; requested from the host and sent in part;
    // under way to the medium.
    host.command(1, &read_10(0, 8));
    host.command(2, &read_10(8, 8));
    host.answer_all();
    assert_eq!(host.status(), iu::read_ready(1));
    let half = host.submit(|id| Urb::data_in(id, DATA_IN, 1000));
    host.command(3, &read_10(0, 1024));
    host.far.answer(0);
    host.arrive();
    host.command(4, &block_10(op::WRITE_10, 0, 400, 8));
    assert_eq!(host.status(), iu::read_ready(2));
    assert_eq!(host.status(), iu::write_ready(4));
    host.submit(|id| Urb::data_out(id, DATA_OUT, vec![4; 3000].into()));
    host.command(5, &block_10(op::WRITE_10, 8, 408, 8));
    host.command(6, &[op::SYNCHRONIZE_CACHE_10]);
    host.move_on();
    let mut read = host.finished.remove(&half).unwrap().payload.into_vec();
    let rest = host.submit(|id| Urb::data_in(id, DATA_IN, 4096));
    read.extend(host.finished.remove(&rest).unwrap().payload.into_vec());
    assert!(read == data[..4096]);
    host.move_on();
    assert_eq!(host.status(), iu::write_ready(5));
    assert_eq!(host.ending(1).0, GOOD);
    host.submit(|id| Urb::data_out(id, DATA_OUT, vec![4; 1096].into()));
    let sent = host.submit(|id| Urb::data_out(id, DATA_OUT, vec![5; 4096].into()));
    assert_eq!(host.finished.remove(&sent).unwrap().status, UrbStatus::Ok);
    host.move_on();
    let second = host.submit(|id| Urb::data_in(id, DATA_IN, 4096));
    assert!(host.finished.remove(&second).unwrap().payload.into_vec() == data[4096..8192]);
    assert_eq!(host.ending(2).0, GOOD);
    // A pending status request continues to wait in the other process.
    let waits = host.status_urb();
    host.move_on();
    host.answer_all();
    assert_eq!(host.finished.remove(&waits).unwrap().payload.into_vec(), iu::read_ready(3));
    let third = host.submit(|id| Urb::data_in(id, DATA_IN, 1 << 20));
    let third = host.finished.remove(&third).unwrap().payload.into_vec();
    assert!(third.len() == 1 << 19 && third[..data.len()] == data);
    let mut ended: Vec<u16> =
        (0..4).map(|_| host.status()).map(|unit| u16::from_be_bytes([unit[2], unit[3]])).collect();
    ended.sort_unstable();
    assert_eq!(ended, [3, 4, 5, 6]);
    assert_eq!((host.disk.bytes(400 * 512, 4096), host.disk.bytes(408 * 512, 4096)), (vec![4; 4096], vec![5; 4096]));
    assert_eq!(host.disk.look().flushes, 2, "one for the durable write, one that was asked for");
    assert!(host.is_silent());
}

/// A step of a fuzz case.
#[derive(Clone, Debug)]
enum Op {
    Any(u8, Vec<u8>),
    Command(u16, Vec<u8>),
    Manage(u8, u16),
    In(bool, u32),
    Data(usize),
    Cancel(prop::sample::Index),
    Answer(prop::sample::Index),
    Reset,
    /// Another process continues.
    Move,
    Spoil(prop::sample::Index, u8),
}

fn ops() -> impl Strategy<Value = Op> {
    let code = prop::sample::select(vec![
        op::READ_10,
        op::WRITE_10,
        op::WRITE_16,
        op::VERIFY_10,
        op::SYNCHRONIZE_CACHE_10,
        op::UNMAP,
        op::WRITE_SAME_10,
        op::MODE_SELECT_6,
        op::INQUIRY,
        op::START_STOP_UNIT,
    ]);
    let byte = prop_oneof![6 => Just(0u8), 2 => 0..16u8, 1 => any::<u8>()];
    let cdb = (code, prop::collection::vec(byte, 9..16)).prop_map(|(code, rest)| [&[code], &rest[..]].concat());
    prop_oneof![
        1 => (0..4u8, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(pipe, bytes)| Op::Any(pipe, bytes)),
        8 => (0..9u16, cdb).prop_map(|(tag, cdb)| Op::Command(tag, cdb)),
        1 => (prop_oneof![Just(1u8), Just(2), Just(8), Just(0x80), any::<u8>()], 0..9u16).prop_map(|(f, t)| Op::Manage(f, t)),
        8 => (any::<bool>(), 0..5000u32).prop_map(|(is_status, room)| Op::In(is_status, room)),
        4 => (0..9usize).prop_map(|blocks| Op::Data(blocks * 512)),
        1 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        8 => any::<prop::sample::Index>().prop_map(Op::Answer),
        1 => Just(Op::Reset),
        2 => Just(Op::Move),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| Op::Spoil(at, to)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_commands_in_any_order_lose_no_data(ops in prop::collection::vec(ops(), 1..120)) {
        let mut host = Host::with(StorageOptions::default());
        let mut urb_ids = Vec::new();
        for op in ops {
            match op {
                Op::Any(pipe, bytes) => {
                    let endpoint = if pipe % 2 == 0 { COMMAND } else { DATA_OUT };
                    urb_ids.push(host.submit(|id| Urb::data_out(id, endpoint, bytes.into())));
                }
                Op::Command(tag, cdb) => urb_ids.push(host.command(tag, &cdb)),
                Op::Manage(function, task) => {
                    let [high, low] = task.to_be_bytes();
                    let bytes = vec![5, 0, 0, 99, function, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
                    urb_ids.push(host.submit(|id| Urb::data_out(id, COMMAND, bytes.into())));
                }
                Op::In(is_status, room) => {
                    let endpoint = if is_status { STATUS } else { DATA_IN };
                    urb_ids.push(host.submit(|id| Urb::data_in(id, endpoint, room)));
                }
                Op::Data(bytes) => urb_ids.push(host.submit(|id| Urb::data_out(id, DATA_OUT, vec![0; bytes].into()))),
                Op::Cancel(which) if !urb_ids.is_empty() => {
                    host.device.cancel(Instant::ZERO, *which.get(&urb_ids), &mut host.done);
                    host.collect();
                }
                Op::Cancel(_) => {}
                Op::Answer(which) if host.far.waiting() > 0 => {
                    host.far.answer(which.index(host.far.waiting()));
                    host.arrive();
                }
                Op::Answer(_) => {}
                Op::Move => host.move_on(),
                Op::Spoil(at, to) => host.spoil(at, to),
                Op::Reset => {
                    host.device.reset(Instant::ZERO, &mut host.done);
                    host.collect();
                    host.submit(|id| Urb::control(id, SetupPacket::set_configuration(1), Payload::Empty));
                }
            }
        }
        // After a reset it works.
        host.device.reset(Instant::ZERO, &mut host.done);
        host.collect();
        prop_assert!(urb_ids.iter().all(|id| host.finished.contains_key(id)), "each is answered by a reset at the latest");
        host.submit(|id| Urb::control(id, SetupPacket::set_configuration(1), Payload::Empty));
        host.answer_all();
        host.command(1, &[op::TEST_UNIT_READY]);
        if host.ending(1).0 == CHECK_CONDITION {
            prop_assert_eq!(host.ask(2, &[op::TEST_UNIT_READY]).0, GOOD);
        }
        prop_assert_eq!(host.read(3, 0, 8).len(), 4096);
    }
}
