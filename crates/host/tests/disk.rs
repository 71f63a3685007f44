//! Bringing a disk up, and its operations as a caller sees them.

mod common;

use std::collections::BTreeMap;

use common::fake::{Fake, Wrong, limits_page};
use common::port::TestPort;
use common::rng::Rng;
use common::{begin, finish, read, ready, ready_with, write};
use farbus_host::storage::{OperationResult, SenseCode};
use farbus_host::{DiskError, ScsiDiskOptions};
use farbus_model::{Payload, UrbStatus, UsbSpeed};

fn refusal(fake: Fake) -> DiskError {
    let mut port = TestPort::new(fake);
    let mut disk = begin(&port, ScsiDiskOptions::default());
    let error = finish(&mut disk, &mut port).expect_err("it cannot come up");
    disk.read(port.now, 0, 0);
    assert_eq!(finish(&mut disk, &mut port).unwrap_err(), error, "and nothing is let through");
    error
}

#[test]
fn a_disk_is_known_once_it_is_up() {
    let (disk, _) = ready(Fake::new(UsbSpeed::Super, 4096, 1000).removable());
    let info = disk.info();
    assert_eq!((info.vendor.as_str(), info.product.as_str(), info.revision.as_str()), ("test", "fake disk", "0001"));
    assert_eq!((info.block_bytes, info.blocks, info.size_bytes()), (4096, 1000, 4_096_000));
    assert_eq!((info.luns, info.removable, info.read_only, info.write_cache), (1, true, false, Some(true)));
    assert_eq!((info.unmap_blocks_max, info.write_same_blocks_max), (Some(64), Some(64)));
    assert_eq!((info.write_same_unmaps, info.transfer_bytes_max), (true, 1 << 20));
}

#[test]
fn bulk_only_is_selected_where_it_is_not_the_first_setting() {
    let (mut disk, mut port) = ready(Fake::small().second_setting());
    assert_eq!(port.device.settings, [1]);
    // And again when only a new configuration of the device helps.
    port.device.refuses.push((0xff, UrbStatus::Stall));
    port.device.wrong(Wrong::OtherTag);
    assert!(read(&mut disk, &mut port, 0, 512).is_ok());
    assert_eq!((port.device.configurations, port.device.settings.len()), (1, 2));
    let mut fake = Fake::small().second_setting();
    fake.refuses.push((11, UrbStatus::Stall));
    assert!(matches!(refusal(fake), DiskError::Unsupported(_)));
}

#[test]
fn an_old_disk_is_not_asked_what_it_would_choke_on() {
    let (disk, port) = ready(Fake::small().old());
    assert_eq!(port.device.commands, [0x12, 0x00, 0x25, 0x1a], "INQUIRY, TEST UNIT READY, READ CAPACITY, MODE SENSE");
    assert_eq!((disk.info().transfer_bytes_max, disk.info().write_same_blocks_max), (128 << 10, None));
}

#[test]
fn commands_unknown_to_a_disk_are_optional() {
    let mut fake = Fake::small();
    (fake.max_lun, fake.mode, fake.pages) = (None, None, BTreeMap::new());
    fake.unknown = vec![0x9e];
    let (disk, _) = ready(fake);
    assert_eq!((disk.info().luns, disk.info().write_cache, disk.info().unmap_blocks_max), (1, None, None));
}

#[test]
fn non_disk_is_refused_with_the_reason() {
    let with = |change: fn(&mut Fake)| {
        let mut fake = Fake::small();
        change(&mut fake);
        refusal(fake)
    };
    let unsupported = |error| matches!(error, DiskError::Unsupported(_));
    assert!(unsupported(with(|fake| fake.block_bytes = 520)));
    assert!(unsupported(with(|fake| fake.block_bytes = 0)));
    assert!(unsupported(with(|fake| fake.block_bytes = 1 << 20)));
    assert!(unsupported(with(|fake| fake.blocks = 1 << 60)));
    assert!(unsupported(with(|fake| fake.blocks = u64::MAX)));
    assert!(unsupported(with(|fake| fake.inquiry[0] = 1)), "a tape");
    assert!(unsupported(with(|fake| fake.inquiry[0] = 0x7f)), "nothing");
    assert!(unsupported(with(|fake| fake.inquiry.truncate(4))));
    assert!(unsupported(refusal_of_unit(1)));
}

fn refusal_of_unit(lun: u8) -> DiskError {
    let mut port = TestPort::new(Fake::small());
    let mut disk = begin(&port, ScsiDiskOptions { lun, ..ScsiDiskOptions::default() });
    finish(&mut disk, &mut port).unwrap_err()
}

#[test]
fn a_medium_may_take_its_time() {
    let mut fake = Fake::small();
    for _ in 0..10 {
        fake.wrong_at(0x00, Wrong::Fail(2, 0x04, 0x01));
    }
    for _ in 0..3 {
        fake.wrong_at(0x00, Wrong::Fail(6, 0x29, 0x00));
    }
    let mut port = TestPort::new(fake);
    let mut disk = begin(&port, ScsiDiskOptions::default());
    finish(&mut disk, &mut port).unwrap();
    assert_eq!(port.now.as_nanos(), 2_500_000_000, "ten pauses of 250 ms");
}

#[test]
fn a_medium_that_never_becomes_ready_is_given_up_after_half_a_minute() {
    let mut fake = Fake::small();
    for _ in 0..1000 {
        fake.wrong_at(0x00, Wrong::Fail(2, 0x04, 0x01));
    }
    let mut port = TestPort::new(fake);
    let mut disk = begin(&port, ScsiDiskOptions::default());
    let error = finish(&mut disk, &mut port).unwrap_err();
    assert_eq!(error, DiskError::NotReady(SenseCode { key: 2, code: 4, qualifier: 1, is_deferred: false }));
    assert_eq!(port.now.as_nanos(), 30_000_000_000);
}

#[test]
fn a_disk_that_waits_to_be_started_is_started() {
    let mut fake = Fake::small();
    fake.wrong_at(0x00, Wrong::Fail(2, 0x04, 0x02));
    let (_, port) = ready(fake);
    assert_eq!(port.device.commands[1..5], [0x00, 0x03, 0x1b, 0x00]);
}

#[test]
fn missing_medium_is_reported_as_no_medium() {
    let mut fake = Fake::small();
    fake.wrong_at(0x00, Wrong::Fail(2, 0x3a, 0));
    assert_eq!(refusal(fake), DiskError::NoMedium);
}

#[test]
fn senses_become_errors_a_front_end_can_act_on() {
    let sense = |key, code, qualifier| SenseCode { key, code, qualifier, is_deferred: false };
    let cases = [
        ((2, 0x3a, 0), DiskError::NoMedium),
        ((2, 0x04, 0x03), DiskError::NotReady(sense(2, 0x04, 0x03))),
        ((3, 0x11, 0), DiskError::MediumError(sense(3, 0x11, 0))),
        ((4, 0x44, 0), DiskError::HardwareError(sense(4, 0x44, 0))),
        ((5, 0x24, 0), DiskError::IllegalRequest(sense(5, 0x24, 0))),
        ((5, 0x21, 0), DiskError::OutOfRange),
        ((7, 0x27, 0), DiskError::WriteProtected),
        ((7, 0x27, 7), DiskError::NoSpace),
        ((8, 0, 0), DiskError::Refused(sense(8, 0, 0))),
    ];
    for ((key, code, qualifier), error) in cases {
        for wrong in [Wrong::Fail(key, code, qualifier), Wrong::FailSoftly(key, code, qualifier)] {
            let (mut disk, mut port) = ready(Fake::small());
            port.device.wrong(wrong);
            assert_eq!(read(&mut disk, &mut port, 0, 512).unwrap_err(), error);
            port.device.wrong(wrong);
            assert_eq!(write(&mut disk, &mut port, 0, &[7; 512]).unwrap_err(), error);
            assert!(read(&mut disk, &mut port, 0, 512).is_ok());
            assert_eq!(port.device.resets, 0);
        }
    }
}

#[test]
fn attentions_and_aborts_are_repeated_but_not_for_ever() {
    for (key, code) in [(6, 0x29), (0xb, 0x00), (0, 0)] {
        let (mut disk, mut port) = ready(Fake::small());
        for _ in 0..5 {
            port.device.wrong(Wrong::Fail(key, code, 0));
        }
        assert!(read(&mut disk, &mut port, 0, 512).is_ok());
        for _ in 0..6 {
            port.device.wrong(Wrong::Fail(key, code, 0));
        }
        let refused = SenseCode { key, code, qualifier: 0, is_deferred: false };
        assert_eq!(read(&mut disk, &mut port, 0, 512), Err(DiskError::Refused(refused)));
    }
}

#[test]
fn an_exchanged_medium_is_not_written_to_as_if_it_were_the_old_one() {
    let (mut disk, mut port) = ready(Fake::small().removable());
    port.device.wrong(Wrong::Fail(6, 0x28, 0));
    assert_eq!(write(&mut disk, &mut port, 0, &[1; 512]), Err(DiskError::MediumChanged));
    assert_eq!(write(&mut disk, &mut port, 0, &[1; 512]), Err(DiskError::MediumChanged));
    assert!(port.device.data.is_empty());
    port.device.blocks = 4096;
    disk.bring_up(port.now);
    finish(&mut disk, &mut port).unwrap();
    assert_eq!(disk.info().blocks, 4096);
    write(&mut disk, &mut port, 0, &[1; 512]).unwrap();
    // A medium that cannot be taken out was not.
    let (mut disk, mut port) = ready(Fake::small());
    port.device.wrong(Wrong::Fail(6, 0x28, 0));
    write(&mut disk, &mut port, 0, &[1; 512]).unwrap();
}

#[test]
fn a_protected_medium_is_not_even_asked_to_be_written() {
    let mut fake = Fake::small();
    fake.mode = Some(vec![3, 0, 0x80, 0]);
    let (mut disk, mut port) = ready(fake);
    assert!(disk.info().read_only);
    assert_eq!(write(&mut disk, &mut port, 0, &[1; 512]), Err(DiskError::WriteProtected));
    disk.write_zeroes(port.now, 0, 512, true);
    assert_eq!(finish(&mut disk, &mut port).unwrap_err(), DiskError::WriteProtected);
    assert_eq!(port.turns, 0);
    assert!(read(&mut disk, &mut port, 0, 512).is_ok());
}

#[test]
fn range_outside_the_medium_is_refused() {
    let (mut disk, mut port) = ready(Fake::small());
    for (offset, len) in [(1 << 20, 1), ((1 << 20) - 511, 512), (u64::MAX, 1), (u64::MAX - 3, 512)] {
        assert_eq!(read(&mut disk, &mut port, offset, len), Err(DiskError::OutOfRange));
        assert_eq!(write(&mut disk, &mut port, offset, &vec![0; len]), Err(DiskError::OutOfRange));
        disk.discard(port.now, offset, len as u64);
        assert_eq!(finish(&mut disk, &mut port).unwrap_err(), DiskError::OutOfRange);
    }
    assert_eq!(read(&mut disk, &mut port, 1 << 20, 0).unwrap(), []);
    assert_eq!(port.turns, 0);
}

#[test]
fn large_requests_are_split_where_the_device_says() {
    let (mut disk, mut port) = ready(Fake::small());
    assert_eq!(read(&mut disk, &mut port, 0, 1 << 20).unwrap().len(), 1 << 20);
    assert_eq!(port.turns, 8, "128 KiB at high speed");
    let mut fake = Fake::small();
    fake.pages.insert(0xb0, limits_page(64));
    let (mut disk, mut port) = ready(fake);
    write(&mut disk, &mut port, 0, &[7; 1 << 20]).unwrap();
    assert_eq!(port.turns, 32, "64 sectors");
    let options = ScsiDiskOptions { transfer_bytes_max: Some(512 << 10), ..ScsiDiskOptions::default() };
    let (mut disk, mut port) = ready_with(Fake::small(), options);
    assert_eq!(read(&mut disk, &mut port, 0, 1 << 20).unwrap().len(), 1 << 20);
    assert_eq!(port.turns, 2, "as wished");
}

#[test]
fn a_disk_beyond_two_to_the_32_sectors_is_reached_with_sixteen_bytes() {
    let blocks = (1u64 << 33) + 5;
    let (mut disk, mut port) = ready(Fake::new(UsbSpeed::Super, 512, blocks));
    assert_eq!(disk.info().blocks, blocks);
    port.device.commands.clear();
    let end = blocks * 512;
    write(&mut disk, &mut port, end - 1024, &[9; 1024]).unwrap();
    assert_eq!(read(&mut disk, &mut port, end - 1025, 1025).unwrap(), [&[0][..], &[9; 1024]].concat());
    let edge = (1u64 << 32) * 512;
    write(&mut disk, &mut port, edge - 512, &[8; 1024]).unwrap();
    assert_eq!(read(&mut disk, &mut port, edge - 512, 512).unwrap(), [8; 512]);
    assert_eq!(port.device.commands, [0x8a, 0x88, 0x8a, 0x28]);
}

#[test]
fn data_of_a_single_command_is_not_copied() {
    let (mut disk, mut port) = ready(Fake::small());
    disk.read(port.now, 512, 1024);
    let OperationResult::Data(data) = finish(&mut disk, &mut port).unwrap() else { panic!("it was a read") };
    let at = data.runs().next().unwrap().as_ptr();
    let Payload::Bytes(bytes) = data.into_payload() else { panic!("it has its own buffer") };
    assert_eq!((bytes.as_ptr(), bytes.len()), (at, 1024));
}

#[test]
fn zeros_are_written_by_the_device_where_it_can() {
    let (mut disk, mut port) = ready(Fake::small());
    write(&mut disk, &mut port, 0, &[7; 200 << 10]).unwrap();
    port.device.commands.clear();
    disk.write_zeroes(port.now, 100, 100 << 10, false);
    finish(&mut disk, &mut port).unwrap();
    let expected = [vec![7; 100], vec![0; 100 << 10], vec![7; (100 << 10) - 100]].concat();
    assert_eq!(port.device.read_store(0, 200 << 10), expected);
    let zeros = port.device.commands.iter().filter(|code| **code == 0x93).count();
    assert_eq!((zeros, port.device.commands.len()), (4, 8), "199 sectors, 64 at a time; read and write at each edge");
}

#[test]
fn zeros_are_written_by_us_where_the_device_cannot() {
    let mut announces = Fake::small();
    announces.unknown = vec![0x93];
    for fake in [announces, Fake::small().old()] {
        let (mut disk, mut port) = ready(fake);
        write(&mut disk, &mut port, 0, &[7; 300 << 10]).unwrap();
        disk.write_zeroes(port.now, 5, 299 << 10, true);
        finish(&mut disk, &mut port).unwrap();
        let expected = [vec![7; 5], vec![0; 299 << 10], vec![7; 1019]].concat();
        assert_eq!(port.device.read_store(0, 300 << 10), expected);
        assert_eq!(disk.info().write_same_blocks_max, None, "it is not asked twice");
    }
}

#[test]
fn a_discard_gives_back_whole_sectors_and_touches_nothing_else() {
    let (mut disk, mut port) = ready(Fake::small());
    write(&mut disk, &mut port, 0, &[7; 64 << 10]).unwrap();
    port.device.commands.clear();
    disk.discard(port.now, 100, 60 << 10);
    finish(&mut disk, &mut port).unwrap();
    assert_eq!(port.device.commands, [0x42, 0x42]);
    assert_eq!(port.device.data.len(), 128 - 119, "119 whole sectors lie in it");
    assert_eq!(port.device.read_store(0, 512), [7; 512]);
    disk.discard(port.now, 100, 300);
    finish(&mut disk, &mut port).unwrap();
    assert_eq!(port.device.commands.len(), 2, "less than a sector is nothing");
}

#[test]
fn a_discard_that_the_device_does_not_know_is_nothing() {
    let mut announces = Fake::small();
    announces.unknown = vec![0x42, 0x93];
    for fake in [announces, Fake::small().old()] {
        let (mut disk, mut port) = ready(fake);
        write(&mut disk, &mut port, 0, &[7; 4096]).unwrap();
        disk.discard(port.now, 0, 4096);
        finish(&mut disk, &mut port).unwrap();
        assert_eq!(port.device.read_store(0, 4096), [7; 4096]);
        port.forget();
        disk.discard(port.now, 0, 4096);
        finish(&mut disk, &mut port).unwrap();
        assert_eq!(port.turns, 0, "it is not asked twice");
    }
}

#[test]
fn a_flush_goes_out_only_where_there_may_be_a_cache() {
    let flush = |mode: Option<Vec<u8>>, unknown: &[u8]| {
        let mut fake = Fake::small();
        (fake.mode, fake.unknown) = (mode, unknown.to_vec());
        let (mut disk, mut port) = ready(fake);
        let results = [(); 2].map(|()| {
            disk.flush(port.now);
            finish(&mut disk, &mut port).is_ok()
        });
        (results, port.device.commands.iter().filter(|code| **code == 0x35).count())
    };
    let caching = |flags: u8| Some(vec![7, 0, 0, 0, 0x08, 2, flags, 0]);
    assert_eq!(flush(caching(4), &[]), ([true, true], 2));
    assert_eq!(flush(caching(0), &[]), ([true, true], 0));
    assert_eq!(flush(Some(vec![7, 0, 0x80, 0, 0x08, 2, 4, 0]), &[]), ([true, true], 0), "nothing was written");
    assert_eq!(flush(None, &[]), ([true, true], 2));
    assert_eq!(flush(None, &[0x35]), ([true, true], 1), "asked once, then believed");
    assert_eq!(flush(caching(4), &[0x35]), ([false, false], 2), "it has a cache and cannot flush it");
}

#[test]
fn deferred_error_fails_the_flush_and_nothing_else() {
    for at in [0x28, 0x2a, 0x35] {
        let (mut disk, mut port) = ready(Fake::small());
        port.device.wrong_at(at, Wrong::Deferred(3, 0x0c, 0));
        assert!(write(&mut disk, &mut port, 0, &[7; 512]).is_ok());
        assert_eq!(read(&mut disk, &mut port, 0, 512).unwrap(), [7; 512]);
        let mut flush = || {
            disk.flush(port.now);
            finish(&mut disk, &mut port).map(|_| ())
        };
        let error = flush().unwrap_err();
        assert_eq!(error.to_string(), "the medium failed (sense 3/0c/00, of an earlier command)");
        assert!(flush().is_ok(), "it is said once");
    }
}

#[test]
fn an_eject_makes_everything_durable_first() {
    let (mut disk, mut port) = ready(Fake::small());
    port.device.commands.clear();
    port.device.unknown = vec![0x1e];
    disk.eject(port.now);
    finish(&mut disk, &mut port).unwrap();
    assert_eq!(port.device.commands, [0x35, 0x1e, 0x03, 0x1b]);
}

/// The model is a vector of bytes; the disk has every fault that must not show.
#[test]
fn bytes_are_bytes_whatever_the_offsets_sectors_and_mishaps() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let block_bytes = [512, 2048, 4096][rng.below(3) as usize];
        let speed = [UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super][rng.below(3) as usize];
        let mut fake = Fake::new(speed, block_bytes, 32);
        if rng.one_in(3) {
            fake = fake.old();
        }
        fake.keeps_behind_halt = rng.one_in(2);
        let transfer_bytes_max = Some(1 + rng.below(64 << 10) as u32);
        let (mut disk, mut port) =
            ready_with(fake, ScsiDiskOptions { transfer_bytes_max, ..ScsiDiskOptions::default() });
        port.shuffle = Some(Rng(seed));
        let size = 32 * block_bytes;
        let mut model = vec![0; size];
        for _ in 0..40 {
            // One fault at a time: three in a row would rightly be reported.
            if rng.one_in(2) && port.device.script.is_empty() {
                let wrong = mishap(&mut rng);
                port.device.wrong(wrong);
            }
            let offset = rng.below(size as u64 + 1) as usize;
            let most = [1, 16, 2 * block_bytes as u64, size as u64][rng.below(4) as usize];
            let len = rng.below(most.min((size - offset) as u64) + 1) as usize;
            let range = offset..offset + len;
            match rng.below(4) {
                0 => {
                    let bytes = rng.bytes(len);
                    write(&mut disk, &mut port, offset as u64, &bytes).unwrap();
                    model[range].copy_from_slice(&bytes);
                }
                1 => {
                    disk.write_zeroes(port.now, offset as u64, len as u64, rng.one_in(2));
                    finish(&mut disk, &mut port).unwrap();
                    model[range].fill(0);
                }
                _ => assert_eq!(read(&mut disk, &mut port, offset as u64, len).unwrap(), model[range], "seed {seed}"),
            }
            port.forget();
        }
        assert_eq!(port.device.read_store(0, size), model, "seed {seed}");
    }
}

fn mishap(rng: &mut Rng) -> Wrong {
    use common::fake::Silent;
    let all = [
        Wrong::StallCommand,
        Wrong::LoseCommand(UrbStatus::Protocol),
        Wrong::StallData { after: 512, status: 2 },
        Wrong::BreakData(UrbStatus::Crc),
        Wrong::SkipData,
        Wrong::EarlyStatus,
        Wrong::StallStatus(1),
        Wrong::StallStatus(2),
        Wrong::BlankStatus,
        Wrong::OtherTag,
        Wrong::OtherSignature,
        Wrong::CutStatus,
        Wrong::Status(2),
        Wrong::Silence(Silent::Command),
        Wrong::Silence(Silent::Data),
        Wrong::Silence(Silent::Status),
        Wrong::Fail(6, 0x29, 0),
        Wrong::FailSoftly(0xb, 0, 0),
    ];
    all[rng.below(all.len() as u64) as usize]
}
