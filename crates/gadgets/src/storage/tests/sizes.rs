//! Disks of any size, sectors of any size.

use farbus_model::block::MemoryStore;

use super::disk::Disk;
use super::host::{Data, Host, OUT_OF_RANGE, cdb_10, cdb_16, pattern, unmap};
use crate::storage::scsi::command::op;
use crate::storage::{StorageGadget, StorageOptionError, StorageOptions};

fn capacity_16(host: &mut Host) -> (u64, u32, u8) {
    let mut cdb = cdb_16(op::SERVICE_ACTION_IN_16, 0, 32);
    cdb[1] = op::READ_CAPACITY_16;
    let data = host.passes(&cdb, Data::In(32));
    let last = u64::from_be_bytes(data[..8].try_into().unwrap());
    (last, u32::from_be_bytes(data[8..12].try_into().unwrap()), data[13])
}

fn capacity_10(host: &mut Host) -> u32 {
    let data = host.passes(&cdb_10(op::READ_CAPACITY_10, 0, 0), Data::In(8));
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

/// Checks that the first, the middle and the last block keep what is written there, and that the next one does not
/// exist.
fn check_ends(host: &mut Host, blocks: u64, block_bytes: usize) {
    for (lba, seed) in [(0, 1), (blocks / 2, 2), (blocks - 1, 3)] {
        host.passes(&cdb_16(op::WRITE_16, lba, 1), Data::Out(pattern(seed, block_bytes)));
    }
    for (lba, seed) in [(0, 1), (blocks / 2, 2), (blocks - 1, 3)] {
        let data = host.passes(&cdb_16(op::READ_16, lba, 1), Data::In(block_bytes as u32));
        assert_eq!(data, pattern(seed, block_bytes));
    }
    let beyond = cdb_16(op::READ_16, blocks, 1);
    assert_eq!(host.fails(&beyond, Data::In(block_bytes as u32)), OUT_OF_RANGE);
    let (cdb, list) = unmap(&[(blocks - 1, 1)]);
    host.passes(&cdb, list);
    let data = host.passes(&cdb_16(op::READ_16, blocks - 1, 1), Data::In(block_bytes as u32));
    assert_eq!(data, vec![0; block_bytes]);
}

#[test]
fn a_sparse_disk_of_64_gib_is_reached_to_its_end() {
    let blocks = (64 << 30) / 512;
    let mut host = Host::new(Disk::new(64 << 30), StorageOptions::default());
    assert_eq!(capacity_10(&mut host), blocks as u32 - 1);
    assert_eq!(capacity_16(&mut host), (blocks - 1, 512, 3));
    check_ends(&mut host, blocks, 512);
    let last = cdb_10(op::READ_10, blocks as u32 - 1, 1);
    assert_eq!(host.passes(&last, Data::In(512)).len(), 512);
}

#[test]
fn a_sparse_disk_of_16_tib_needs_64_bits_to_tell_its_size() {
    let blocks = (16 << 40) / 512;
    let mut host = Host::new(Disk::new(16 << 40), StorageOptions::default());
    assert_eq!(capacity_10(&mut host), u32::MAX);
    assert_eq!(capacity_16(&mut host), (blocks - 1, 512, 3));
    check_ends(&mut host, blocks, 512);
    assert_eq!(host.reports(&[op::MODE_SENSE_6, 0, 8, 0, 192, 0], 192)[4..8], [0xff; 4]);
    assert_eq!(host.reports(&cdb_10(op::READ_FORMAT_CAPACITIES, 0, 12), 12)[4..8], [0xff; 4]);
}

#[test]
fn the_last_block_that_32_bits_can_tell_is_not_mistaken_for_more() {
    // A last block of fffffffe is reported; ffffffff means "use (16)", even if it is the last block.
    let mut host = Host::new(Disk::new(0xffff_ffff * 512), StorageOptions::default());
    assert_eq!(capacity_10(&mut host), 0xffff_fffe);
    let mut host = Host::new(Disk::new((1 << 32) * 512), StorageOptions::default());
    assert_eq!(capacity_10(&mut host), 0xffff_ffff);
    assert_eq!(capacity_16(&mut host).0, 0xffff_ffff);
}

#[test]
fn a_disk_as_large_as_64_bits_does_not_overflow() {
    let mut host = Host::new(Disk::new(u64::MAX), StorageOptions::default());
    let blocks = u64::MAX / 512;
    assert_eq!(capacity_16(&mut host).0, blocks - 1);
    check_ends(&mut host, blocks, 512);
    assert_eq!(host.fails(&cdb_16(op::READ_16, u64::MAX, 0xffff), Data::In(0xffff * 512)), OUT_OF_RANGE);
}

#[test]
fn sectors_of_every_size_work() {
    for (sector_bytes, exponent) in [(512, 3), (1024, 2), (2048, 1), (4096, 0)] {
        let options = StorageOptions { sector_bytes, ..StorageOptions::default() };
        let mut host = Host::new(Disk::new(1 << 30), options);
        let blocks = (1 << 30) / u64::from(sector_bytes);
        assert_eq!(capacity_16(&mut host), (blocks - 1, sector_bytes, exponent));
        check_ends(&mut host, blocks, sector_bytes as usize);
        let block = pattern(4, sector_bytes as usize);
        host.passes(&cdb_10(op::WRITE_SAME_10, 7, 33), Data::Out(block.clone()));
        let back = host.passes(&cdb_10(op::READ_10, 7, 33), Data::In(33 * sector_bytes));
        assert_eq!(back, block.repeat(33));
        let limits = host.reports(&[op::INQUIRY, 1, 0xb0, 0, 64, 0], 64);
        assert_eq!(u32::from_be_bytes(limits[28..32].try_into().unwrap()) * sector_bytes, 4096);
        assert_eq!(u32::from_be_bytes(limits[20..24].try_into().unwrap()) * sector_bytes, 1 << 30);
    }
}

#[test]
fn bytes_after_the_last_whole_sector_are_out_of_reach() {
    let options = StorageOptions { sector_bytes: 4096, ..StorageOptions::default() };
    let mut host = Host::new(MemoryStore::new(vec![0; 3 * 4096 + 4095]), options.clone());
    assert_eq!(capacity_10(&mut host), 2);
    assert_eq!(host.fails(&cdb_10(op::READ_10, 3, 1), Data::In(4096)), OUT_OF_RANGE);
    let refused = StorageGadget::device(Box::new(MemoryStore::new(vec![0; 4095])), options).unwrap_err();
    assert_eq!(refused, StorageOptionError::TooSmall { size_bytes: 4095, sector_bytes: 4096 });
    assert!(StorageGadget::device(Box::new(MemoryStore::new(Vec::new())), StorageOptions::default()).is_err());
}
