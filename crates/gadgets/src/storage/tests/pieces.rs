//! Data in pieces: scatter-gather of any size, and memory that does not grow with the command.

use std::sync::Arc;

use farbus_model::{Payload, StoreError, UrbStatus};

use super::disk::Disk;
use super::host::{CSW_BYTES, Data, FAILED, Host, PASSED, PHASE_ERROR, cdb_10, pattern};
use crate::storage::StorageOptions;
use crate::storage::bulk_only::{BULK_IN, BULK_OUT};
use crate::storage::scsi::command::op;

const BLOCKS: u16 = 16;
const BYTES: usize = 16 * 512;

#[test]
fn pieces_of_any_size_make_the_same_read_and_the_same_write() {
    for cut in [1, 13, 31, 511, 512, 513, 4095, BYTES - 1, BYTES] {
        let disk = Disk::new(1 << 20);
        let mut host = Host::new(disk.clone(), StorageOptions::default());
        let data = pattern(cut as u8, BYTES);
        let wrapper = host.cbw(&cdb_10(op::WRITE_10, 5, BLOCKS), &Data::Out(data.clone()));
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        for piece in data.chunks(cut) {
            assert_eq!(host.out(piece).status, UrbStatus::Ok);
        }
        let csw = host.read(CSW_BYTES);
        assert_eq!(host.csw(&csw), (PASSED, 0));
        assert_eq!(disk.bytes(5 * 512, BYTES), data);

        let wrapper = host.cbw(&cdb_10(op::READ_10, 5, BLOCKS), &Data::In(BYTES as u32));
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        let mut back = Vec::new();
        while back.len() < BYTES {
            back.extend(host.read(cut.min(BYTES - back.len()) as u32).payload.into_vec());
        }
        let csw = host.read(CSW_BYTES);
        assert_eq!(host.csw(&csw), (PASSED, 0));
        assert_eq!(back, data);
    }
}

#[test]
fn pieces_of_a_verify_are_compared_each_with_its_own_place() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk, StorageOptions::default());
    let data = pattern(1, BYTES);
    host.passes(&cdb_10(op::WRITE_10, 5, BLOCKS), Data::Out(data.clone()));
    let mut verify = cdb_10(op::VERIFY_10, 5, BLOCKS);
    verify[1] = 2;
    let wrapper = host.cbw(&verify, &Data::Out(data.clone()));
    host.out(wrapper);
    for piece in data.chunks(1000) {
        assert_eq!(host.out(piece).status, UrbStatus::Ok);
    }
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 0));
}

#[test]
fn a_request_larger_than_the_data_ends_short() {
    let mut host = Host::new(Disk::new(1 << 20), StorageOptions::default());
    let wrapper = host.cbw(&cdb_10(op::READ_10, 0, 1), &Data::In(512));
    host.submit_in(4096);
    host.submit_in(4096);
    host.submit_out(wrapper);
    let actual: Vec<_> = std::iter::from_fn(|| host.done.pop()).map(|d| (d.status, d.actual)).collect();
    assert_eq!(actual, [(UrbStatus::Ok, 31), (UrbStatus::Ok, 512), (UrbStatus::Ok, CSW_BYTES)]);
}

#[test]
fn requests_without_room_or_data_move_nothing_and_end_nothing() {
    let mut host = Host::new(Disk::new(1 << 20), StorageOptions::default());
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 0, 1), &Data::Out(vec![0; 512]));
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    assert_eq!(host.out(Vec::new()).status, UrbStatus::Ok);
    assert_eq!(host.out(vec![1; 512]).status, UrbStatus::Ok);
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 0));
    let wrapper = host.cbw(&cdb_10(op::READ_10, 0, 1), &Data::In(512));
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    assert_eq!(host.read(0).actual, 0);
    assert_eq!(host.read(512).payload.into_vec(), [1; 512]);
}

#[test]
fn shared_and_patterned_payloads_are_written_like_any_other() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    let chunk: Arc<[u8]> = pattern(3, 2048).into();
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 0, 4), &Data::Out(vec![0; 2048]));
    assert_eq!(host.out(Payload::shared(&wrapper.clone().into(), 0..31)).status, UrbStatus::Ok);
    assert_eq!(host.out(Payload::shared(&chunk, 100..1124)).status, UrbStatus::Ok);
    assert_eq!(host.out(Payload::pattern(&[1, 2, 3], 1024)).status, UrbStatus::Ok);
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 0));
    assert_eq!(disk.bytes(0, 1024), chunk[100..1124]);
    assert_eq!(disk.bytes(1024, 1024), Payload::pattern(&[1, 2, 3], 1024).into_vec());
}

#[test]
fn more_data_than_the_wrapper_announced_is_a_phase_error_and_not_written() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 0, 2), &Data::Out(vec![0; 1024]));
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    assert_eq!(host.out(vec![1; 512]).status, UrbStatus::Ok);
    assert_eq!(host.out(vec![2; 513]).status, UrbStatus::Stall);
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PHASE_ERROR, 512));
    assert_eq!(disk.bytes(0, 1024), [[1; 512], [0; 512]].concat());
    host.recover();
    assert!(host.is_ready());
}

#[test]
fn a_write_of_eight_mebibytes_goes_to_the_store_as_it_comes() {
    let disk = Disk::new(16 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    let held = host.device.function().unit.held_bytes();
    let piece = pattern(1, 16384);
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 0, 16384), &Data::Out(vec![0; 8 << 20]));
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    for at in 0..512u64 {
        assert_eq!(disk.bytes(at * 16384, 1), [0]);
        assert_eq!(host.out(piece.clone()).status, UrbStatus::Ok);
        assert_eq!(disk.bytes(at * 16384, 16384), piece, "it is there before the next piece comes");
    }
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 0));
    assert_eq!(disk.look().longest_bytes, 16384);
    assert_eq!(host.device.function().unit.held_bytes(), held);
    assert!(held <= 64 << 10);
}

#[test]
fn commands_reuse_the_buffers_that_come_back() {
    let mut host = Host::new(Disk::new(1 << 20), StorageOptions::default());
    let mut seen = Vec::new();
    for _ in 0..10 {
        let wrapper = host.cbw(&cdb_10(op::READ_10, 0, 128), &Data::In(65536));
        host.out(wrapper);
        let data = host.read(65536);
        let csw = host.read(CSW_BYTES);
        for payload in [data.payload, csw.payload] {
            seen.push(payload.contiguous().as_ptr());
            host.done.pool.recycle(payload);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 2, "one for data, one for status, whatever the number of commands");
}

#[test]
fn a_medium_that_fails_half_way_ends_the_data_and_tells_where() {
    for (opcode, code) in [(op::READ_10, 0x11), (op::WRITE_10, 0x0c)] {
        let disk = Disk::new(1 << 20);
        let mut host = Host::new(disk.clone(), StorageOptions::default());
        disk.look().fail_from = Some((6 * 512, StoreError::Medium));
        let (host_data, endpoint) = match opcode {
            op::READ_10 => (Data::In(4096), BULK_IN),
            _ => (Data::Out(vec![0; 4096]), BULK_OUT),
        };
        let wrapper = host.cbw(&cdb_10(opcode, 2, 8), &host_data);
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        let piece = |host: &mut Host| match opcode {
            op::READ_10 => host.read(1024),
            _ => host.out(vec![1; 1024]),
        };
        assert_eq!(piece(&mut host).status, UrbStatus::Ok);
        assert_eq!(piece(&mut host).status, UrbStatus::Ok);
        assert_eq!(piece(&mut host).status, UrbStatus::Stall);
        host.clear_halt(endpoint);
        let csw = host.read(CSW_BYTES);
        assert_eq!(host.csw(&csw), (FAILED, 2048));
        let sense = host.sense_bytes();
        assert_eq!((sense[0], sense[2], sense[12], sense[13]), (0xf0, 3, code, 0));
        assert_eq!(sense[3..7], [0, 0, 0, 6], "the block that the piece began with");
        assert!(host.is_ready());
    }
}
