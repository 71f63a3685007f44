//! Another process continues with a disk, also during commands.

use super::disk::Disk;
use super::host::{Data, Host, MISCOMPARE, NO_SENSE, REMOVAL_PREVENTED, cbw, cdb_10, cdb_16, pattern, unmap};
use crate::storage::StorageOptions;
use crate::storage::scsi::command::op;
use farbus_model::{Device, Instant, OwnerCommand, UrbStatus};

#[test]
fn commands_end_as_if_nothing_had_happened() {
    let disk = Disk::new(64 * 512);
    let mut host = Host::moving(disk.clone(), StorageOptions { removable: true, ..StorageOptions::default() });
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
    assert!(host.owner(OwnerCommand::Eject).is_err());
}

#[test]
fn next_process_flushes_writes_of_the_previous_one() {
    let disk = Disk::new(64 * 512);
    let mut host = Host::moving(disk.clone(), StorageOptions::default());
    host.passes(&cdb_10(op::WRITE_10, 0, 1), Data::Out(pattern(1, 512)));
    let before = disk.look().flushes;
    host.passes(&cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0), Data::None);
    assert!(disk.look().flushes > before);
}

/// A saved state is untrusted: the process that wrote it read untrusted bytes.
#[test]
fn damaged_saved_state_is_refused_or_harmless() {
    let disk = Disk::new(64 * 512);
    let (mut refused, mut taken) = (0, 0);
    let commands = [
        (cdb_10(op::READ_10, 8, 4), 2048, 0x80),
        (cdb_10(op::WRITE_10, 8, 4), 2048, 0),
        (cdb_10(op::VERIFY_10, 8, 4).map(|byte| if byte == 0 { 2 } else { byte }), 2048, 0),
        (unmap(&[(8, 4)]).0, 24, 0),
    ];
    for (cdb, length, flags) in commands {
        let mut host = Host::new(disk.clone(), StorageOptions::default());
        assert_eq!(host.out(cbw(7, length, flags, 0, &cdb)).status, UrbStatus::Ok);
        let (selection, state) = (host.device.selection().clone(), host.device.save().expect("nothing waits"));
        for at in 0..state.len() {
            for byte in [0, 1, 2, 7, 0x7f, 0xff, state[at] ^ 0x10] {
                let mut spoilt = state.clone();
                spoilt[at] = byte;
                let mut host = Host::new(disk.clone(), StorageOptions::default());
                if !host.device.restore(&selection, &spoilt) {
                    refused += 1;
                    assert!(host.device.selection().configuration() == 0, "it is as after a reset");
                    continue;
                }
                taken += 1;
                for room in [512, 4096, 13] {
                    host.submit_in(room);
                    host.submit_out(pattern(1, 100));
                }
                host.device.reset(Instant::ZERO, &mut host.done);
                while host.done.pop().is_some() {}
            }
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} refused and {taken} taken prove little");
}
