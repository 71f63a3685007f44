//! A Bulk-Only disk with its driver beside it, as a block device.

mod common;

use common::fake::{Fake, Wrong};
use common::rng::Rng;
use farbus_gadgets::storage::{StorageGadget, StorageOptions as GadgetOptions};
use farbus_host::DrivenDisk;
use farbus_host::driven_disk::fits;
use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, BufferPool, CompletionQueue, Device, Instant,
    StoreError, UrbStatus, UsbSpeed,
};

struct User<D: Device> {
    disk: DrivenDisk<D>,
    done: CompletionQueue<BlockCompletion>,
    now: Instant,
    next: u64,
}

impl<D: Device> User<D> {
    fn new(device: D) -> Self {
        assert!(fits(&device));
        let Ok(disk) = DrivenDisk::new(device) else { panic!("it is a disk") };
        let mut user = Self { disk, done: CompletionQueue::new(BufferPool::new(1 << 20)), now: Instant::ZERO, next: 0 };
        assert!(!user.disk.is_ready());
        user.let_pass();
        user
    }

    /// Lets time pass until nothing is due any more.
    fn let_pass(&mut self) {
        self.disk.handle_ready(self.now, &mut self.done);
        while let Some(due) = self.disk.poll_timeout() {
            self.now = self.now.max(due);
            self.disk.handle_timeout(self.now, &mut self.done);
        }
    }

    fn submit(&mut self, request: impl FnOnce(BlockId) -> BlockRequest) -> BlockId {
        self.next += 1;
        let id = BlockId(self.next);
        self.disk.submit(self.now, request(id).launch(), &mut self.done);
        id
    }

    fn ask(&mut self, request: impl FnOnce(BlockId) -> BlockRequest) -> Result<Vec<u8>, StoreError> {
        let id = self.submit(request);
        self.let_pass();
        let answer = self.done.pop().expect("it is answered");
        assert_eq!((answer.id, self.done.len()), (id, 0));
        answer.result.map(|()| answer.payload.into_vec())
    }

    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, StoreError> {
        self.ask(|id| BlockRequest::read(id, offset, length))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.ask(|id| BlockRequest::write(id, offset, bytes.to_vec().into())).map(|_| ())
    }

    fn device(&mut self) -> &mut D {
        self.disk.device_mut()
    }

    fn into_device(mut self) -> D {
        let device = self.disk.into_device(self.now, &mut self.done);
        assert!(self.done.is_empty(), "nothing was asked");
        device
    }
}

/// Why a disk did not become ready.
fn refusal(fake: Fake) -> String {
    let user = User::new(fake);
    assert!(user.disk.is_gone() && !user.disk.is_ready());
    user.disk.why_gone().expect("it says why")
}

#[test]
fn many_requests_wait_while_the_disk_takes_one_command_at_a_time() {
    for sector_bytes in [512, 4096] {
        let options = GadgetOptions { sector_bytes, ..GadgetOptions::default() };
        let store = Box::new(MemoryStore::new(vec![0; 4 << 20]));
        let mut user = User::new(StorageGadget::device(store, options).unwrap());
        let info = *user.disk.info();
        assert_eq!((info.size_bytes, info.block_bytes, info.is_read_only), (4 << 20, sector_bytes, false));
        let (mut rng, mut model) = (Rng(7), vec![0; 4 << 20]);
        let mut expected = Vec::new();
        for round in 0..200 {
            let length = (1 + rng.below(64)) as usize * 4096;
            let at = rng.below(((4 << 20) - length) as u64 / 4096 + 1) as usize * 4096;
            // Each request is made before the one before it can be answered; the disk keeps their order.
            match rng.below(4) {
                0 => {
                    let bytes = rng.bytes(length);
                    model[at..at + length].copy_from_slice(&bytes);
                    let is_durable = round % 3 == 0;
                    let write = |id| BlockRequest { is_durable, ..BlockRequest::write(id, at as u64, bytes.into()) };
                    expected.push((user.submit(write), Vec::new()));
                }
                1 => {
                    model[at..at + length].fill(0);
                    let op = if round % 2 == 0 { BlockOp::Discard } else { BlockOp::WriteZeroes };
                    let id = user.submit(|id| BlockRequest::zero(id, op, at as u64, length as u32));
                    expected.push((id, Vec::new()));
                }
                _ => {
                    let id = user.submit(|id| BlockRequest::read(id, at as u64, length as u32));
                    expected.push((id, model[at..at + length].to_vec()));
                }
            }
        }
        user.let_pass();
        for (id, bytes) in expected {
            let answer = user.done.pop().expect("each is answered");
            assert_eq!((answer.id, answer.result), (id, Ok(())));
            assert!(answer.payload.into_vec() == bytes, "{id:?}");
        }
        assert!(user.done.is_empty());
        assert_eq!(user.read(0, 1 << 20), Ok(model[..1 << 20].to_vec()), "the largest");
        user.into_device();
    }
}

#[test]
fn trim_gives_space_back_or_does_nothing_and_writes_no_zeros() {
    let mut user = User::new(Fake::small());
    assert!(user.disk.info().trims);
    user.write(0, &[7; 64 << 10]).unwrap();
    user.device().commands.clear();
    user.ask(|id| BlockRequest::zero(id, BlockOp::Trim, 4096, 8192)).unwrap();
    assert!(user.device().commands.iter().all(|command| *command == 0x42) && !user.device().commands.is_empty());
    assert_eq!(user.device().data.len(), 128 - 16);
    let mut user = User::new(Fake::small().old());
    assert!(!user.disk.info().trims);
    user.write(0, &[7; 64 << 10]).unwrap();
    user.device().commands.clear();
    user.ask(|id| BlockRequest::zero(id, BlockOp::Trim, 4096, 8192)).unwrap();
    assert!(user.device().commands.is_empty());
    assert_eq!(user.read(4096, 8192), Ok(vec![7; 8192]));
}

#[test]
fn flushed_writes_are_durable() {
    let mut user = User::new(Fake::small());
    let commands = |user: &mut User<Fake>| std::mem::take(&mut user.device().commands);
    commands(&mut user);
    user.write(0, &[1; 512]).unwrap();
    assert_eq!(commands(&mut user), [0x2a]);
    let durable = |id| BlockRequest { is_durable: true, ..BlockRequest::write(id, 0, vec![2; 512].into()) };
    user.ask(durable).unwrap();
    user.ask(BlockRequest::flush).unwrap();
    assert_eq!(commands(&mut user), [0x2a, 0x35, 0x35], "WRITE and SYNCHRONIZE CACHE; SYNCHRONIZE CACHE");
    // A flush reports data that the disk called written and was not.
    user.device().wrong_at(0x28, Wrong::Deferred(3, 0x0c, 0));
    assert_eq!(user.read(0, 512), Ok(vec![2; 512]));
    assert_eq!(user.ask(BlockRequest::flush), Err(StoreError::Medium));
    assert_eq!(user.ask(BlockRequest::flush).map(|_| ()), Ok(()));
}

#[test]
fn failed_request_fails_no_other() {
    let mut user = User::new(Fake::small());
    user.write(0, &[7; 4096]).unwrap();
    user.device().wrong_at(0x28, Wrong::Fail(3, 0x11, 0));
    assert_eq!(user.read(512, 512), Err(StoreError::Medium), "an unrecovered read error");
    assert_eq!(user.read(0, 4096), Ok(vec![7; 4096]));
    for wrong in [Wrong::StallCommand, Wrong::OtherTag, Wrong::Status(2), Wrong::StallStatus(1), Wrong::SkipData] {
        user.device().wrong_at(0x28, wrong);
        assert_eq!(user.read(0, 4096), Ok(vec![7; 4096]), "{wrong:?} is recovered from");
    }
    user.device().wrong_at(0x2a, Wrong::Fail(7, 0x27, 0));
    assert_eq!(user.write(0, &[0; 512]), Err(StoreError::ReadOnly));
    assert!(!user.disk.is_gone());
    let mut device = user.into_device();
    assert_eq!(device.read_store(0, 4096), [7; 4096]);
    assert!(device.script.pop_front().is_none());
}

#[test]
fn disk_properties_are_known_before_its_use() {
    let mut protected = Fake::small();
    protected.mode = Some(vec![3, 0, 0x80, 0]);
    let mut user = User::new(protected);
    assert!(user.disk.is_ready() && user.disk.info().is_read_only);
    assert_eq!(user.write(0, &[0; 512]), Err(StoreError::ReadOnly));

    // More sectors than ten bytes can name, and beyond 2 TiB.
    let mut user = User::new(Fake::new(UsbSpeed::Super, 512, 3 << 32));
    assert_eq!(user.disk.info().size_bytes, 6 << 40);
    let last = (6 << 40) - 512;
    user.write(last, &[9; 512]).unwrap();
    assert_eq!(user.read(last, 512), Ok(vec![9; 512]));

    let mut empty = Fake::small().removable();
    empty.script = (0..20).map(|_| (Some(0x00), Wrong::Fail(2, 0x3a, 0))).collect();
    assert_eq!(refusal(empty), "there is no medium in the device");
    let mut tape = Fake::small();
    tape.inquiry[0] = 1;
    assert!(refusal(tape).contains("it is no disk"));
    let mut reader = Fake::small();
    reader.max_lun = Some(3);
    assert!(refusal(reader).contains("several units"));
    let mut shy = Fake::small();
    shy.refuses.push((9, UrbStatus::Stall));
    assert!(refusal(shy).contains("configuration"));
}

#[test]
fn no_request_reaches_an_exchanged_medium() {
    let mut user = User::new(Fake::small().removable());
    user.write(0, &[1; 512]).unwrap();
    user.device().wrong_at(0x2a, Wrong::Fail(6, 0x28, 0));
    let ids = [0, 512, 1024].map(|at| user.submit(|id| BlockRequest::write(id, at, vec![2; 512].into())));
    user.let_pass();
    for id in ids {
        let answer = user.done.pop().unwrap();
        assert_eq!((answer.id, answer.result), (id, Err(StoreError::Gone)));
    }
    assert!(user.disk.is_gone() && user.disk.is_ready(), "it was one");
    assert_eq!(user.disk.why_gone().as_deref(), Some("the medium was exchanged"));
    assert_eq!(user.read(0, 512), Err(StoreError::Gone));
    assert_eq!(user.into_device().read_store(0, 2048), [&[1; 512][..], &[0; 1536]].concat());
}

#[test]
fn a_disk_that_is_unplugged_answers_all_it_was_asked() {
    let mut user = User::new(Fake::small());
    user.device().wrong_at(0x28, Wrong::Gone);
    let ids = [0, 512].map(|at| user.submit(|id| BlockRequest::read(id, at, 512)));
    user.let_pass();
    let answers: Vec<_> = std::iter::from_fn(|| user.done.pop()).map(|done| (done.id, done.result)).collect();
    assert_eq!(answers, ids.map(|id| (id, Err(StoreError::Gone))));
    assert!(user.disk.is_gone());
}

#[test]
fn another_process_goes_on_with_the_disk_that_it_was() {
    let device = || {
        let store = Box::new(MemoryStore::new(vec![3; 1 << 20]));
        StorageGadget::device(store, GadgetOptions::default()).unwrap()
    };
    let mut user = User::new(device());
    user.write(4096, &[4; 4096]).unwrap();
    let state = user.disk.state().expect("the gadget writes its state down");
    user.disk.leave();
    let mut again = DrivenDisk::new(user.into_device()).unwrap_or_else(|_| panic!("it is a disk"));
    assert!(!again.go_on_from(&state[..5]), "half of it");
    assert!(again.go_on_from(&state) && again.is_ready());
    assert_eq!(again.info().size_bytes, 1 << 20);
}
