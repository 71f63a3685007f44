//! Tests of one process do not wait for each other's open files.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use farbus::model::block::MemoryStore;
use farbus::model::{BlockStore, StoreDevice, StoreError};
use farbus_io_linux::frontend::fuse::DiskMount;

use super::harness::{Harness, PATIENCE, has_fuse};
use super::own_network;

/// Whether a disk answers, which its users wait for.
#[derive(Clone, Default)]
struct Answers(Arc<(Mutex<bool>, Condvar)>);

impl Answers {
    fn wait(&self) {
        let (answers, changed) = &*self.0;
        drop(changed.wait_while(answers.lock().unwrap(), |answers| !*answers).unwrap());
    }
}

/// However the test ends, its disk answers.
impl Drop for Answers {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// A disk whose flushes are answered later.
struct Slow {
    bytes: MemoryStore,
    answers: Answers,
}

impl BlockStore for Slow {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.bytes.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.bytes.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.answers.wait();
        self.bytes.flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.bytes.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.bytes.write_zeroes(offset, len)
    }
}

/// A process that is started closes its copies of what is open where it was started, and closing a written file
/// flushes.
#[test]
fn a_disk_that_does_not_answer_keeps_no_other_test_from_starting_a_program() {
    if !has_fuse() {
        return;
    }
    let (tell, is_told) = channel();
    let (tell_started, heard) = channel();
    let (entered, is_entered) = channel();
    // As another test does: it has a table of its own before this one opens its file.
    thread::spawn(move || {
        own_network::enter();
        entered.send(()).unwrap();
        is_told.recv().unwrap();
        let _ = tell_started.send(Command::new("true").status().unwrap().success());
    });
    is_entered.recv().unwrap();
    let harness = Harness::new();
    let answers = Answers::default();
    let disk = Slow { bytes: MemoryStore::new(vec![0; 1 << 20]), answers: Answers(Arc::clone(&answers.0)) };
    let mount = DiskMount::mount(&harness.path("slow"), "disk.img", StoreDevice::new(disk)).unwrap();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(direct).open(mount.file()).unwrap();
    // Dropped before what waits for it.
    let answers = answers;
    file.write_all_at(&[7; 4096], 0).unwrap();
    tell.send(()).unwrap();
    let started = heard.recv_timeout(PATIENCE);
    drop(answers);
    assert_eq!(started, Ok(true), "the other test's program waits for this test's disk");
    drop(file);
}
