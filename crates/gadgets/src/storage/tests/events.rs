//! Media that are removed and inserted, and events that are reported once.

use farbus_model::{Device, Instant, OwnerCommand, UrbStatus};

use super::disk::Disk;
use super::host::{
    CSW_BYTES, Data, FAILED, Host, INVALID_FIELD, MEDIUM_CHANGED, NO_MEDIUM, NO_SENSE, REMOVAL_PREVENTED,
    RESET_OCCURRED, STOPPED, cdb_10, unmap,
};
use crate::storage::StorageOptions;
use crate::storage::scsi::command::op;

const READY: [u8; 6] = [op::TEST_UNIT_READY, 0, 0, 0, 0, 0];

fn host() -> Host {
    Host::new(Disk::new(1 << 20), StorageOptions::default())
}

fn start_stop(byte: u8) -> [u8; 6] {
    [op::START_STOP_UNIT, 0, 0, 0, byte, 0]
}

const START: u8 = 1;
const STOP: u8 = 0;
const EJECT: u8 = 2;
const LOAD: u8 = 3;

fn prevent(host: &mut Host, prevented: bool) {
    host.passes(&[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, prevented.into(), 0], Data::None);
}

#[test]
fn a_new_disk_tells_of_its_reset_once_but_not_to_inquiry_or_report_luns() {
    let mut host = Host::unconfigured(Disk::new(1 << 20), StorageOptions::default());
    host.configure();
    host.reports(&[op::INQUIRY, 0, 0, 0, 36, 0], 36);
    host.passes(&[op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], Data::In(16));
    assert_eq!(host.fails(&cdb_10(op::READ_10, 0, 1), Data::In(512)), RESET_OCCURRED);
    assert_eq!(host.passes(&cdb_10(op::READ_10, 0, 1), Data::In(512)).len(), 512);
    // REQUEST SENSE reports it too, and that was the only time.
    let mut host = Host::unconfigured(Disk::new(1 << 20), StorageOptions::default());
    host.configure();
    assert_eq!(host.sense(), RESET_OCCURRED);
    assert!(host.is_ready());
}

#[test]
fn a_port_reset_lifts_the_hosts_locks_and_is_no_news() {
    let mut host = host();
    prevent(&mut host, true);
    host.passes(&start_stop(STOP), Data::None);
    let cache_off = [[0, 0, 0, 0, 0x08, 0x12].as_slice(), &[0; 18]].concat();
    host.passes(&[op::MODE_SELECT_6, 0x10, 0, 0, 24, 0], Data::Out(cache_off));
    host.device.reset(Instant::ZERO, &mut host.done);
    host.configure();
    assert!(host.is_ready(), "it runs again");
    assert_eq!(host.reports(&[op::MODE_SENSE_6, 8, 8, 0, 192, 0], 192)[6] & 4, 0, "its cache stays off");
    host.passes(&start_stop(EJECT), Data::None);
}

#[test]
fn a_bulk_only_reset_keeps_what_the_host_set() {
    let mut host = host();
    prevent(&mut host, true);
    host.recover();
    assert!(host.is_ready(), "and is no news");
    assert_eq!(host.fails(&start_stop(EJECT), Data::None), REMOVAL_PREVENTED);
}

#[test]
fn ejecting_takes_the_medium_out_and_loading_puts_it_back() {
    let mut host = host();
    host.passes(&start_stop(EJECT), Data::None);
    assert!(!host.device.function().has_medium());
    assert_eq!(host.fails(&READY, Data::None), NO_MEDIUM);
    assert_eq!(host.fails(&cdb_10(op::READ_10, 0, 1), Data::In(512)), NO_MEDIUM);
    assert_eq!(host.fails(&cdb_10(op::READ_CAPACITY_10, 0, 0), Data::In(8)), NO_MEDIUM);
    assert_eq!(host.fails(&cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0), Data::None), NO_MEDIUM);
    assert_eq!(host.fails(&start_stop(START), Data::None), NO_MEDIUM);
    assert_eq!(host.sense(), NO_MEDIUM, "REQUEST SENSE says why the next one would fail");
    // Commands that need no medium work without one.
    host.reports(&[op::INQUIRY, 0, 0, 0, 36, 0], 36);
    assert_eq!(host.reports(&[op::MODE_SENSE_6, 0, 0x3f, 0, 192, 0], 192)[4..8], [0; 4]);
    assert_eq!(host.reports(&cdb_10(op::READ_FORMAT_CAPACITIES, 0, 252), 252)[8], 3);
    host.passes(&start_stop(EJECT), Data::None);
    host.passes(&start_stop(STOP), Data::None);
    host.passes(&start_stop(LOAD), Data::None);
    assert_eq!(host.fails(&READY, Data::None), MEDIUM_CHANGED);
    assert!(host.is_ready());
}

#[test]
fn a_medium_that_is_out_stays_out_over_a_reset() {
    let mut host = host();
    host.passes(&start_stop(EJECT), Data::None);
    host.device.reset(Instant::ZERO, &mut host.done);
    host.configure();
    assert_eq!(host.fails(&READY, Data::None), NO_MEDIUM);
}

#[test]
fn ejecting_while_prevented_is_refused_to_host_and_owner() {
    let mut host = host();
    prevent(&mut host, true);
    assert_eq!(host.fails(&start_stop(EJECT), Data::None), REMOVAL_PREVENTED);
    assert_eq!(host.owner(OwnerCommand::Eject).unwrap_err().0, "the disk stays in: the host has locked it in");
    assert!(host.is_ready());
    prevent(&mut host, false);
    host.owner(OwnerCommand::Eject).unwrap();
    assert_eq!(host.fails(&READY, Data::None), NO_MEDIUM);
}

#[test]
fn the_owner_takes_the_medium_out_and_puts_it_back() {
    let mut host = host();
    host.owner(OwnerCommand::Insert).unwrap();
    assert!(host.is_ready(), "it was in");
    host.owner(OwnerCommand::Eject).unwrap();
    host.owner(OwnerCommand::Eject).unwrap();
    assert_eq!(host.fails(&READY, Data::None), NO_MEDIUM);
    host.owner(OwnerCommand::Insert).unwrap();
    assert_eq!(host.fails(&READY, Data::None), MEDIUM_CHANGED);
    assert!(host.is_ready());
    let unknown = host.owner(OwnerCommand::Type("x".into())).unwrap_err();
    assert_eq!(unknown.0, "this device does not know 'type'");
}

#[test]
fn a_disk_that_is_not_removable_stays_in() {
    let mut host = Host::new(Disk::new(1 << 20), StorageOptions { removable: false, ..StorageOptions::default() });
    assert_eq!(host.fails(&start_stop(EJECT), Data::None), INVALID_FIELD);
    assert_eq!(host.fails(&start_stop(LOAD), Data::None), INVALID_FIELD);
    assert_eq!(host.owner(OwnerCommand::Eject).unwrap_err().0, "the disk stays in: it is not removable");
    assert!(host.is_ready());
}

#[test]
fn a_stopped_disk_wants_to_be_started() {
    let mut host = host();
    host.passes(&start_stop(STOP), Data::None);
    assert_eq!(host.fails(&READY, Data::None), STOPPED);
    assert_eq!(host.fails(&cdb_10(op::READ_10, 0, 1), Data::In(512)), STOPPED);
    assert_eq!(host.sense(), STOPPED);
    host.passes(&start_stop(START), Data::None);
    assert!(host.is_ready());
    assert_eq!(host.sense(), NO_SENSE);
    // The disk leaves idle and standby by itself.
    for condition in [0x20, 0x30] {
        host.passes(&start_stop(condition), Data::None);
        assert!(host.is_ready());
    }
}

#[test]
fn a_medium_taken_out_in_the_data_phase_ends_it() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    let (cdb_unmap, list) = unmap(&[(0, 1)]);
    let commands = [
        (cdb_10(op::READ_10, 0, 2), Data::In(1024)),
        (cdb_10(op::WRITE_10, 0, 2), Data::Out(vec![0; 1024])),
        (cdb_10(op::WRITE_SAME_10, 0, 2), Data::Out(vec![1; 512])),
        (cdb_unmap, list),
    ];
    for (cdb, data) in commands {
        let wrapper = host.cbw(&cdb, &data);
        host.out(wrapper);
        host.owner(OwnerCommand::Eject).unwrap();
        let piece = match data {
            Data::Out(bytes) => host.out(bytes),
            _ => host.read(512),
        };
        if piece.status == UrbStatus::Stall {
            host.clear_halt(piece.endpoint);
        }
        let csw = host.read(CSW_BYTES);
        assert_eq!(host.csw(&csw).0, FAILED);
        assert_eq!(host.sense(), NO_MEDIUM);
        host.owner(OwnerCommand::Insert).unwrap();
        assert_eq!(host.sense(), MEDIUM_CHANGED);
    }
    let state = disk.look();
    assert_eq!((state.discarded_bytes, state.longest_bytes), (0, 0), "nothing reached the store");
}
