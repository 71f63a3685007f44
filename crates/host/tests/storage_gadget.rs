//! The disk driver over the storage gadget, in memory: two implementations of one specification.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::port::TestPort;
use common::rng::Rng;
use farbus_gadgets::storage::{StorageGadget, StorageOptions as GadgetOptions};
use farbus_gadgets::{EmulatedDevice, GadgetFunction};
use farbus_host::storage::{BulkOnlyInterface, OperationResult};
use farbus_host::{
    ConfigurationSetter, DiskError, HostPort, HostPortError, IdSource, LocalPort, RemoteDevice, RemoteDisk, ScsiDisk,
    ScsiDiskOptions, run,
};
use farbus_model::{
    BlockStore, BufferPool, CompletionQueue, Device, Instant, OwnerCommand, StoreError, Urb, UrbCompletion, UrbId,
    UrbStatus, UsbSpeed,
};

/// A sparse store whose owner can look at it.
#[derive(Clone, Default)]
struct Sparse(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    size_bytes: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    flushes: usize,
    discarded_bytes: u64,
    fails: Option<StoreError>,
}

const PAGE: usize = 4096;

impl Sparse {
    fn new(size_bytes: u64) -> Self {
        let store = Self::default();
        store.0.lock().unwrap().size_bytes = size_bytes;
        store
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.clone().read_at(offset, &mut bytes).unwrap();
        bytes
    }

    fn each(
        &self,
        offset: u64,
        len: u64,
        mut act: impl FnMut(&mut Inner, u64, usize, usize),
    ) -> Result<(), StoreError> {
        let inner = &mut *self.0.lock().unwrap();
        assert!(offset + len <= inner.size_bytes, "a caller keeps inside the size");
        if let Some(error) = inner.fails {
            return Err(error);
        }
        let mut at = 0;
        while at < len {
            let within = ((offset + at) % PAGE as u64) as usize;
            let n = (PAGE - within).min((len - at) as usize);
            act(inner, (offset + at) / PAGE as u64, within, at as usize);
            at += n as u64;
        }
        Ok(())
    }
}

impl BlockStore for Sparse {
    fn size_bytes(&self) -> u64 {
        self.0.lock().unwrap().size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.each(offset, to.len() as u64, |inner, page, within, at| {
            let n = (PAGE - within).min(to.len() - at);
            match inner.pages.get(&page) {
                Some(page) => to[at..at + n].copy_from_slice(&page[within..within + n]),
                None => to[at..at + n].fill(0),
            }
        })
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.each(offset, from.len() as u64, |inner, page, within, at| {
            let n = (PAGE - within).min(from.len() - at);
            let page = inner.pages.entry(page).or_insert_with(|| vec![0; PAGE]);
            page[within..within + n].copy_from_slice(&from[at..at + n]);
        })
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.lock().unwrap().flushes += 1;
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write_zeroes(offset, len)?;
        self.0.lock().unwrap().discarded_bytes += len;
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.each(offset, len, |inner, page, within, at| {
            let n = (PAGE - within).min(len as usize - at);
            if n == PAGE {
                inner.pages.remove(&page);
            } else if let Some(page) = inner.pages.get_mut(&page) {
                page[within..within + n].fill(0);
            }
        })
    }
}

fn gadget(store: &Sparse, options: GadgetOptions) -> EmulatedDevice<StorageGadget> {
    StorageGadget::device(Box::new(store.clone()), options).unwrap()
}

fn open(store: &Sparse, options: GadgetOptions) -> RemoteDisk<LocalPort<EmulatedDevice<StorageGadget>>> {
    let speed = options.speed;
    let device = RemoteDevice::open(LocalPort::new(gadget(store, options)), speed).unwrap();
    device.into_disk(ScsiDiskOptions::default()).unwrap()
}

fn owner<F: GadgetFunction>(disk: &mut RemoteDisk<LocalPort<EmulatedDevice<F>>>, command: OwnerCommand) {
    let (device, done) = disk.port_mut().parts_mut();
    device.command(Instant::ZERO, &command, done).unwrap();
}

#[test]
fn every_sector_size_at_every_speed_holds_what_was_written() {
    for (seed, sector_bytes) in [512, 1024, 2048, 4096].into_iter().enumerate() {
        for speed in [UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super] {
            let store = Sparse::new(1 << 20);
            let mut disk = open(&store, GadgetOptions { sector_bytes, speed, ..GadgetOptions::default() });
            assert_eq!((disk.info().block_bytes, disk.size_bytes()), (sector_bytes, 1 << 20));
            let (mut rng, mut model) = (Rng(seed as u64), vec![0; 1 << 20]);
            for _ in 0..60 {
                let offset = rng.below(1 << 20) as usize;
                let most = [10, 5000, 1 << 20][rng.below(3) as usize];
                let len = (rng.below(most) as usize).min((1 << 20) - offset);
                let range = offset..offset + len;
                match rng.below(4) {
                    0 => {
                        let bytes = rng.bytes(len);
                        disk.write_at(offset as u64, &bytes).unwrap();
                        model[range].copy_from_slice(&bytes);
                    }
                    1 => {
                        disk.write_zeroes(offset as u64, len as u64).unwrap();
                        model[range].fill(0);
                    }
                    2 => {
                        disk.discard(offset as u64, len as u64).unwrap();
                        model[range].fill(0);
                    }
                    _ => {
                        let mut bytes = vec![0xee; len];
                        disk.read_at(offset as u64, &mut bytes).unwrap();
                        assert!(bytes == model[range], "{sector_bytes} {speed}");
                    }
                }
            }
            assert!(store.bytes(0, 1 << 20) == model);
        }
    }
}

#[test]
fn a_disk_of_64_gib_and_one_of_four_tib_are_reached_to_their_ends() {
    for size_bytes in [64 << 30, 4u64 << 40] {
        let store = Sparse::new(size_bytes);
        let mut disk = open(&store, GadgetOptions::default());
        assert_eq!(disk.size_bytes(), size_bytes);
        disk.write_at(size_bytes - 5000, &[7; 5000]).unwrap();
        let mut bytes = [0; 5001];
        disk.read_at(size_bytes - 5001, &mut bytes).unwrap();
        assert_eq!((bytes[0], &bytes[1..]), (0, &[7; 5000][..]));
        assert_eq!(store.bytes(size_bytes - 5000, 5000), [7; 5000]);
    }
}

#[test]
fn a_protected_disk_is_read_only() {
    let store = Sparse::new(1 << 20);
    let mut disk = open(&store, GadgetOptions { read_only: true, ..GadgetOptions::default() });
    assert!(disk.is_read_only());
    assert_eq!(disk.write_at(0, &[1; 512]), Err(StoreError::ReadOnly));
    disk.read_at(0, &mut [0; 512]).unwrap();
    assert!(store.0.lock().unwrap().pages.is_empty());
}

#[test]
fn a_flush_reaches_the_store_and_so_does_a_discard() {
    let store = Sparse::new(1 << 20);
    let mut disk = open(&store, GadgetOptions::default());
    assert_eq!(disk.info().write_cache, Some(true));
    disk.write_at(0, &[7; 1 << 16]).unwrap();
    let before = store.0.lock().unwrap().flushes;
    disk.flush().unwrap();
    assert!(store.0.lock().unwrap().flushes > before);
    disk.discard(0, 1 << 16).unwrap();
    assert_eq!(store.0.lock().unwrap().discarded_bytes, 1 << 16);
    disk.release(1 << 16, 1 << 16).unwrap();
    assert_eq!(store.0.lock().unwrap().discarded_bytes, 2 << 16);
}

#[test]
fn an_eject_is_durable_and_what_comes_in_is_another_medium() {
    let store = Sparse::new(1 << 20);
    let mut disk = open(&store, GadgetOptions::default());
    disk.write_at(0, &[7; 512]).unwrap();
    disk.eject().unwrap();
    assert!(store.0.lock().unwrap().flushes > 0);
    assert_eq!(disk.read(0, 512).unwrap_err(), DiskError::NoMedium);
    assert_eq!(disk.bring_up(), Err(DiskError::NoMedium));
    owner(&mut disk, OwnerCommand::Insert);
    disk.bring_up().unwrap();
    let mut bytes = [0; 512];
    disk.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 512]);
    // Now the owner ejects and inserts the medium while it is in use.
    owner(&mut disk, OwnerCommand::Eject);
    owner(&mut disk, OwnerCommand::Insert);
    assert_eq!(disk.write_at(0, &[8; 512]), Err(StoreError::Gone));
    assert_eq!(disk.last_error(), Some(&DiskError::MediumChanged));
    assert_eq!(store.bytes(0, 512), [7; 512]);
    disk.bring_up().unwrap();
    disk.write_at(0, &[8; 512]).unwrap();
}

#[test]
fn a_store_that_fails_is_a_medium_that_fails_and_the_disk_lives_on() {
    let store = Sparse::new(1 << 20);
    let mut disk = open(&store, GadgetOptions::default());
    store.0.lock().unwrap().fails = Some(StoreError::Medium);
    for len in [512, 200_000] {
        assert_eq!(disk.read_at(0, &mut vec![0; len]), Err(StoreError::Medium));
        assert_eq!(disk.write_at(0, &vec![1; len]), Err(StoreError::Medium));
        assert!(matches!(disk.last_error(), Some(DiskError::MediumError(_))), "{:?}", disk.last_error());
    }
    store.0.lock().unwrap().fails = None;
    disk.write_at(0, &[1; 512]).unwrap();
}

#[test]
fn a_read_of_128_kib_is_one_round_trip() {
    let store = Sparse::new(1 << 20);
    let mut port = TestPort::new(gadget(&store, GadgetOptions::default()));
    let mut disk = bring_up(&mut port);
    port.forget();
    disk.read(port.now, 0, 128 << 10);
    assert!(matches!(run(&mut disk, &mut port).unwrap(), Ok(OperationResult::Data(_))));
    assert_eq!((port.submitted_at_first(), port.turns), (vec![(0x01, 31), (0x81, 128 << 10), (0x81, 13)], 1));
    port.device.reset(port.now, &mut CompletionQueue::new(BufferPool::new(0)));
}

fn bring_up<D: Device>(port: &mut TestPort<D>) -> ScsiDisk {
    let ids = IdSource::new();
    run(&mut ConfigurationSetter::new(port.now, ids.clone(), 1), port).unwrap().unwrap();
    let target = BulkOnlyInterface::find(&port.device.descriptors().configurations[0], port.device.speed()).unwrap();
    let mut disk = ScsiDisk::new(port.now, ids, target, ScsiDiskOptions::default());
    run(&mut disk, port).unwrap().unwrap();
    disk
}

/// A port whose device is reset by someone else before the n-th request reaches it.
struct ResetAt {
    port: LocalPort<EmulatedDevice<StorageGadget>>,
    countdown: Option<usize>,
    resets: usize,
}

impl HostPort for ResetAt {
    fn submit(&mut self, urb: Urb) {
        self.countdown = match self.countdown {
            Some(0) => {
                let now = self.port.now();
                let (device, done) = self.port.parts_mut();
                device.reset(now, done);
                self.resets += 1;
                None
            }
            other => other.map(|n| n - 1),
        };
        self.port.submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.port.cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        self.port.wait(until)
    }

    fn now(&self) -> Instant {
        self.port.now()
    }
}

/// The device loses its configuration during a command, at any of its requests: the driver recovers and the caller sees
/// the right bytes.
#[test]
fn a_reset_in_the_middle_of_anything_is_survived() {
    for at in 0..30 {
        for is_write in [false, true] {
            let store = Sparse::new(1 << 20);
            // 512 bytes at SuperSpeed go phase by phase, whole packets together.
            let options = GadgetOptions { speed: UsbSpeed::Super, ..GadgetOptions::default() };
            let port = ResetAt { port: LocalPort::new(gadget(&store, options)), countdown: None, resets: 0 };
            let device = RemoteDevice::open(port, UsbSpeed::Super).unwrap();
            let mut disk = device.into_disk(ScsiDiskOptions::default()).unwrap();
            disk.write_at(0, &[7; 8192]).unwrap();
            disk.port_mut().countdown = Some(at);
            for offset in [0, 512, 1024] {
                let len = if offset == 512 { 512 } else { 4096 };
                if is_write {
                    disk.write_at(offset, &vec![at as u8; len]).unwrap();
                } else {
                    let mut bytes = vec![0; len];
                    disk.read_at(offset, &mut bytes).unwrap();
                    assert!(bytes == vec![7; len], "reset at {at}");
                }
            }
            if is_write {
                assert!(store.bytes(0, 5120) == vec![at as u8; 5120], "reset at {at}");
            }
            assert_eq!(disk.port_mut().resets, usize::from(at < 9), "three commands are nine requests");
        }
    }
}

/// A host that goes away in mid data phase leaves the device waiting for data: the next host must
/// not have its command taken for data.
#[test]
fn a_host_that_left_in_the_data_phase_does_no_harm_to_the_next() {
    for sent in 1..3 {
        let store = Sparse::new(1 << 20);
        let mut port = TestPort::new(gadget(&store, GadgetOptions::default()));
        let mut disk = bring_up(&mut port);
        disk.write(port.now, 0, vec![7; 1 << 16].into());
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let mut left = 0;
        while let Some(urb) = farbus_host::DeviceDriver::poll_submit(&mut disk) {
            // Only the command arrives, or the command and half of its data.
            match (left, sent) {
                (0, _) => port.device.submit(port.now, urb.launch(), &mut done),
                (1, 2) => {
                    let half = Urb { length: 1 << 15, payload: vec![7; 1 << 15].into(), ..urb };
                    port.device.submit(port.now, half.launch(), &mut done);
                }
                _ => {}
            }
            left += 1;
        }
        drop(disk);
        // The next host configures the device, as every host does, and that ends the data phase.
        let mut disk = bring_up(&mut port);
        disk.read(port.now, 1 << 16, 512);
        assert!(matches!(run(&mut disk, &mut port).unwrap(), Ok(OperationResult::Data(_))));
        assert!(done.pop().is_some_and(|done| done.status == UrbStatus::Ok));
        port.device.reset(port.now, &mut done);
    }
}
