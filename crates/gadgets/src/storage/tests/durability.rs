//! Which data has to be durable when, and which errors are reported when it is not.

use farbus_model::{Device, Instant, OwnerCommand, StoreError};

use super::disk::Disk;
use super::host::{
    Data, Host, NO_MEDIUM, NO_SPACE, READ_ERROR, Sense, WRITE_ERROR, WRITE_PROTECTED, cdb_10, cdb_16, unmap,
};
use crate::storage::StorageOptions;
use crate::storage::scsi::command::op;

const SYNC: [u8; 10] = [op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const EJECT: [u8; 6] = [op::START_STOP_UNIT, 0, 0, 0, 2, 0];
const STOP: [u8; 6] = [op::START_STOP_UNIT, 0, 0, 0, 0, 0];
const STANDBY: [u8; 6] = [op::START_STOP_UNIT, 0, 0, 0, 0x30, 0];

fn host() -> (Host, Disk) {
    let disk = Disk::new(1 << 20);
    (Host::new(disk.clone(), StorageOptions::default()), disk)
}

fn write(host: &mut Host) {
    host.passes(&cdb_10(op::WRITE_10, 0, 1), Data::Out(vec![1; 512]));
}

fn with_fua<const N: usize>(mut cdb: [u8; N]) -> [u8; N] {
    cdb[1] |= 0x18;
    cdb
}

fn set_write_cache(host: &mut Host, on: bool) {
    let page = [[0, 0, 0, 0, 0x08, 0x12, if on { 4 } else { 0 }].as_slice(), &[0; 17]].concat();
    host.passes(&[op::MODE_SELECT_6, 0x10, 0, 0, page.len() as u8, 0], Data::Out(page));
}

/// A way in which a host or an owner asks for a flush.
type Ask = fn(&mut Host);

#[test]
fn each_way_to_ask_for_durability_flushes_once_if_something_was_written() {
    let asks: [(&str, Ask); 9] = [
        ("synchronize cache (10)", |host| drop(host.passes(&SYNC, Data::None))),
        ("synchronize cache (16)", |host| drop(host.passes(&cdb_16(op::SYNCHRONIZE_CACHE_16, 0, 0), Data::None))),
        ("a read past the cache", |host| drop(host.passes(&with_fua(cdb_10(op::READ_10, 0, 1)), Data::In(512)))),
        ("the cache turned off", |host| set_write_cache(host, false)),
        ("stop", |host| drop(host.passes(&STOP, Data::None))),
        ("standby", |host| drop(host.passes(&STANDBY, Data::None))),
        ("eject", |host| drop(host.passes(&EJECT, Data::None))),
        ("the owner's eject", |host| host.owner(OwnerCommand::Eject).unwrap()),
        ("the owner's sync", |host| host.owner(OwnerCommand::Sync).unwrap()),
    ];
    for (name, ask) in asks {
        let (mut host, disk) = host();
        ask(&mut host);
        assert_eq!(disk.look().flushes, 0, "{name}: nothing was written");
        let (mut host, disk) = self::host();
        write(&mut host);
        assert_eq!(disk.look().flushes, 0, "{name}: the cache is on");
        ask(&mut host);
        assert_eq!(disk.look().flushes, 1, "{name}");
        host.owner(OwnerCommand::Sync).unwrap();
        assert_eq!(disk.look().flushes, 1, "{name}: nothing was written since");
    }
}

#[test]
fn a_write_past_the_cache_is_durable_before_its_status() {
    let (mut host, disk) = host();
    let wide = [op::WRITE_12, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    host.passes(&with_fua(cdb_10(op::WRITE_10, 0, 1)), Data::Out(vec![1; 512]));
    host.passes(&with_fua(wide), Data::Out(vec![1; 512]));
    host.passes(&with_fua(cdb_16(op::WRITE_16, 0, 1)), Data::Out(vec![1; 512]));
    assert_eq!(disk.look().flushes, 3);
}

#[test]
fn without_a_write_cache_everything_written_is_durable_before_its_status() {
    let (mut host, disk) = host();
    set_write_cache(&mut host, false);
    let flushes_of = |host: &mut Host, cdb: &[u8], data| {
        let before = disk.look().flushes;
        host.passes(cdb, data);
        disk.look().flushes - before
    };
    assert_eq!(flushes_of(&mut host, &cdb_10(op::WRITE_10, 0, 1), Data::Out(vec![1; 512])), 1);
    assert_eq!(flushes_of(&mut host, &cdb_10(op::WRITE_SAME_10, 0, 1), Data::Out(vec![1; 512])), 1);
    let (cdb, list) = unmap(&[(0, 1)]);
    assert_eq!(flushes_of(&mut host, &cdb, list), 1);
    let mut no_data = cdb_16(op::WRITE_SAME_16, 0, 1);
    no_data[1] = 1;
    assert_eq!(flushes_of(&mut host, &no_data, Data::None), 1);
    assert_eq!(flushes_of(&mut host, &cdb_10(op::READ_10, 0, 1), Data::In(512)), 0);
    set_write_cache(&mut host, true);
    assert_eq!(flushes_of(&mut host, &cdb_10(op::WRITE_10, 0, 1), Data::Out(vec![1; 512])), 0);
}

#[test]
fn a_flush_that_fails_fails_the_command_and_is_tried_again() {
    let (mut host, disk) = host();
    write(&mut host);
    disk.look().fail_flush = Some(StoreError::Medium);
    assert_eq!(host.fails(&SYNC, Data::None), WRITE_ERROR);
    assert_eq!(host.fails(&EJECT, Data::None), WRITE_ERROR);
    assert!(host.device.function().has_medium(), "it stays in");
    assert_eq!(host.fails(&with_fua(cdb_10(op::WRITE_10, 0, 1)), Data::Out(vec![1; 512])), WRITE_ERROR);
    disk.look().fail_flush = None;
    host.passes(&SYNC, Data::None);
    assert_eq!(disk.look().flushes, 4);
}

#[test]
fn a_failure_of_the_owners_flush_is_deferred_to_the_host() {
    let (mut host, disk) = host();
    write(&mut host);
    disk.look().fail_flush = Some(StoreError::Medium);
    let error = host.owner(OwnerCommand::Sync).unwrap_err();
    assert_eq!(error.0, "written data is not durable: the medium failed");
    disk.look().fail_flush = None;
    // INQUIRY does not report it, the next command does, once.
    host.reports(&[op::INQUIRY, 0, 0, 0, 36, 0], 36);
    assert!(!host.is_ready());
    let sense = host.sense_bytes();
    assert_eq!((sense[0], sense[2], sense[12]), (0x71, 3, 0x0c));
    assert!(host.is_ready());
}

#[test]
fn a_deferred_error_survives_a_port_reset_and_can_be_asked_for() {
    let (mut host, disk) = host();
    write(&mut host);
    disk.look().fail_flush = Some(StoreError::NoSpace);
    assert_eq!(host.owner(OwnerCommand::Eject).unwrap_err().0, "the disk stays in: no space left on the medium");
    host.device.reset(Instant::ZERO, &mut host.done);
    host.configure();
    let sense = host.sense_bytes();
    assert_eq!((sense[0], sense[2], sense[12], sense[13]), (0x71, 7, 0x27, 7));
    assert!(host.is_ready());
}

#[test]
fn each_trouble_of_a_store_has_its_sense_data() {
    let table: [(StoreError, Sense, Sense); 4] = [
        (StoreError::Medium, READ_ERROR, WRITE_ERROR),
        (StoreError::NoSpace, NO_SPACE, NO_SPACE),
        (StoreError::ReadOnly, WRITE_PROTECTED, WRITE_PROTECTED),
        (StoreError::Gone, NO_MEDIUM, NO_MEDIUM),
    ];
    for (error, reading, writing) in table {
        let (mut host, disk) = host();
        disk.look().fail_from = Some((0, error));
        let block = || Data::Out(vec![1; 512]);
        assert_eq!(host.fails(&cdb_10(op::READ_10, 0, 1), Data::In(512)), reading);
        assert_eq!(host.fails(&cdb_10(op::VERIFY_10, 0, 1), Data::None), reading);
        assert_eq!(host.fails(&cdb_10(op::WRITE_10, 0, 1), block()), writing);
        assert_eq!(host.fails(&cdb_10(op::WRITE_SAME_10, 0, 1), block()), writing);
        let (cdb, list) = unmap(&[(1, 1)]);
        assert_eq!(host.fails(&cdb, list), writing);
        let mut no_data = cdb_16(op::WRITE_SAME_16, 1, 1);
        no_data[1] = 1;
        assert_eq!(host.fails(&no_data, Data::None), writing);
    }
}
