//! Shared by this crate's tests: a disk that misbehaves on demand, a port that counts.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod answers;
pub mod fake;
pub mod kernel;
pub mod mutated;
pub mod port;
pub mod rng;

use farbus_host::storage::{BulkOnlyInterface, OperationResult, ReadData};
use farbus_host::{DiskError, IdSource, ScsiDisk, ScsiDiskOptions, run};
use farbus_model::{Device, Instant};

use fake::Fake;
use port::TestPort;

/// A disk that was brought up, and the port to it, with an empty log and no turns counted.
pub fn ready(fake: Fake) -> (ScsiDisk, TestPort<Fake>) {
    ready_with(fake, ScsiDiskOptions::default())
}

/// Like [`ready`], with these options.
pub fn ready_with(fake: Fake, options: ScsiDiskOptions) -> (ScsiDisk, TestPort<Fake>) {
    let mut port = TestPort::new(fake);
    let mut disk = begin(&port, options);
    finish(&mut disk, &mut port).expect("a healthy disk comes up");
    port.forget();
    (disk, port)
}

/// A disk that has only begun to be brought up.
pub fn begin(port: &TestPort<Fake>, options: ScsiDiskOptions) -> ScsiDisk {
    let target = target(&port.device);
    ScsiDisk::new(Instant::ZERO, IdSource::new(), target, options)
}

pub fn target(device: &impl Device) -> BulkOnlyInterface {
    BulkOnlyInterface::find(&device.descriptors().configurations[0], device.speed()).expect("it is a disk")
}

pub fn finish(disk: &mut ScsiDisk, port: &mut TestPort<Fake>) -> Result<OperationResult, DiskError> {
    let outcome = run(disk, port).expect("the port works");
    assert!(disk.is_idle());
    outcome
}

pub fn read(disk: &mut ScsiDisk, port: &mut TestPort<Fake>, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
    disk.read(port.now, offset, len);
    match finish(disk, port)? {
        OperationResult::Data(data) => Ok(bytes(&data)),
        other => panic!("a read brings data, not {other:?}"),
    }
}

pub fn write(disk: &mut ScsiDisk, port: &mut TestPort<Fake>, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
    disk.write(port.now, offset, bytes.into());
    finish(disk, port).map(|_| ())
}

pub fn bytes(data: &ReadData) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    assert_eq!(data.copy_to(&mut bytes), data.len());
    bytes
}
