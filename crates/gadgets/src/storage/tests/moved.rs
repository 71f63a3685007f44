//! Another process goes on with a disk, in the middle of commands too.

use super::disk::Disk;
use super::host::{Data, Host, MISCOMPARE, NO_SENSE, REMOVAL_PREVENTED, cdb_10, cdb_16, pattern, unmap};
use crate::storage::Options;
use crate::storage::scsi::command::op;
use farbus_model::Command;

#[test]
fn commands_end_as_if_nothing_had_happened() {
    let disk = Disk::new(64 * 512);
    let mut host = Host::moving(disk.clone(), Options { removable: true, ..Options::default() });
    let data = pattern(3, 4096);
    host.passes(&cdb_10(op::WRITE_10, 8, 8), Data::Out(data.clone()));
    assert_eq!(host.passes(&cdb_10(op::READ_10, 8, 8), Data::In(4096)), data);
    let (cdb, list) = unmap(&[(8, 4)]);
    host.passes(&cdb, list);
    assert_eq!(disk.bytes(8 * 512, 4096), [vec![0; 2048], data[2048..].to_vec()].concat());
    let mut same = cdb_16(op::WRITE_SAME_16, 20, 2);
    host.passes(&same, Data::Out(pattern(5, 512)));
    assert_eq!(disk.bytes(21 * 512, 512), pattern(5, 512));
    same[0] = op::READ_16;
    assert_eq!(host.passes(&same, Data::In(1024)), pattern(5, 512).repeat(2));
    let mut verify = cdb_10(op::VERIFY_10, 8, 8);
    verify[1] = 2;
    assert_eq!(host.fails(&verify, Data::Out(data)), MISCOMPARE, "what is wrong is known in the next process");
    assert_eq!(host.sense(), NO_SENSE);
    host.passes(&[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], Data::None);
    assert_eq!(host.fails(&[op::START_STOP_UNIT, 0, 0, 0, 2, 0], Data::None), REMOVAL_PREVENTED);
    assert!(host.owner(Command::Eject).is_err());
}

#[test]
fn what_one_process_wrote_the_next_makes_durable() {
    let disk = Disk::new(64 * 512);
    let mut host = Host::moving(disk.clone(), Options::default());
    host.passes(&cdb_10(op::WRITE_10, 0, 1), Data::Out(pattern(1, 512)));
    let before = disk.look().flushes;
    host.passes(&cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0), Data::None);
    assert!(disk.look().flushes > before);
}
