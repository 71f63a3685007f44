//! Every command, over a store in memory.

use farbus_model::block::MemoryStore;

use super::disk::Disk;
use super::host::{
    Data, Host, INVALID_COMMAND, INVALID_FIELD, INVALID_PARAMETER, LIST_LENGTH, MISCOMPARE, NO_SENSE, NOT_SAVED,
    OUT_OF_RANGE, WRITE_PROTECTED, cdb_10, cdb_16, pattern, unmap, unmap_list,
};
use crate::storage::StorageOptions;
use crate::storage::scsi::command::op;

const BLOCKS: usize = 512;

fn host() -> Host {
    let store = MemoryStore::new(pattern(0, BLOCKS * 512));
    let options =
        StorageOptions { serial: "00C0FFEE0001".into(), product: "Disk of mine".into(), ..StorageOptions::default() };
    Host::new(store, options)
}

fn read(host: &mut Host, lba: u32, blocks: u16) -> Vec<u8> {
    host.passes(&cdb_10(op::READ_10, lba, blocks), Data::In(u32::from(blocks) * 512))
}

/// A WRITE SAME(10) or (16) with these flags in byte 1.
fn write_same(opcode: u8, flags: u8, lba: u32, blocks: u16) -> Vec<u8> {
    let mut cdb = match opcode {
        op::WRITE_SAME_10 => cdb_10(opcode, lba, blocks).to_vec(),
        _ => cdb_16(opcode, lba.into(), blocks.into()).to_vec(),
    };
    cdb[1] = flags;
    cdb
}

#[test]
fn inquiry_says_who_it_is() {
    let mut host = host();
    let data = host.reports(&[op::INQUIRY, 0, 0, 0, 36, 0], 36);
    assert_eq!(data[..8], [0, 0x80, 6, 2, 31, 0, 0, 0]);
    assert_eq!(&data[8..36], b"farbus  Disk of mine    0001");
    // Less space, less data; a vital product page without EVPD is refused.
    assert_eq!(host.reports(&[op::INQUIRY, 0, 0, 0, 5, 0], 5), data[..5]);
    assert_eq!(host.fails(&[op::INQUIRY, 0, 0x80, 0, 36, 0], Data::In(36)), INVALID_FIELD);
    let fixed = StorageOptions { removable: false, product: "Ärger\n".into(), ..StorageOptions::default() };
    let mut host = Host::new(MemoryStore::new(vec![0; 512]), fixed);
    let data = host.reports(&[op::INQUIRY, 0, 0, 0, 36, 0], 36);
    assert_eq!((data[1], &data[16..32]), (0, b"?rger?          ".as_slice()));
}

#[test]
fn vital_product_data_has_every_page_that_it_lists() {
    let mut host = host();
    let mut page = |code: u8| host.reports(&[op::INQUIRY, 1, code, 1, 0, 0], 256);
    let pages = page(0);
    assert_eq!(pages, [0, 0, 0, 6, 0, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
    for code in &pages[4..] {
        let data = page(*code);
        assert_eq!((data[0], data[1]), (0, *code));
        assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
    }
    assert_eq!(page(0x80)[4..], *b"00C0FFEE0001");
    let names = page(0x83);
    assert_eq!(&names[..8], [0, 0x83, 0, names.len() as u8 - 4, 2, 1, 0, 36]);
    assert_eq!(&names[8..44], b"farbus  Disk of mine    00C0FFEE0001");
    assert_eq!((&names[44..48], names[48] >> 4, names.len()), ([1, 3, 0, 8].as_slice(), 3, 56));
    let limits = page(0xb0);
    assert_eq!(limits.len(), 64);
    assert_eq!(limits[4..12], [1, 0, 0, 8, 0, 0, 0xff, 0xff]);
    assert_eq!(limits[20..36], [0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 0, 8, 0x80, 0, 0, 0]);
    assert_eq!(limits[36..44], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!((page(0xb1).len(), &page(0xb1)[4..6]), (64, [0, 1].as_slice()));
    assert_eq!(page(0xb2)[4..], [0, 0xe4, 2, 0]);
    assert_eq!(host.fails(&[op::INQUIRY, 1, 0xc0, 0, 255, 0], Data::In(255)), INVALID_FIELD);
}

#[test]
fn request_sense_tells_once_in_either_format() {
    let mut host = host();
    assert_eq!(host.sense(), NO_SENSE);
    let beyond = cdb_10(op::READ_10, BLOCKS as u32, 1);
    assert_eq!(host.fails(&beyond, Data::In(512)), OUT_OF_RANGE);
    assert_eq!(host.sense(), NO_SENSE, "it was told");
    host.command(&beyond, Data::In(512));
    let data = host.reports(&[op::REQUEST_SENSE, 1, 0, 0, 252, 0], 252);
    assert_eq!(data, [0x72, 5, 0x21, 0, 0, 0, 0, 0]);
    host.command(&beyond, Data::In(512));
    assert!(host.is_ready());
    assert_eq!(host.sense(), NO_SENSE, "a command that passed leaves none");
}

#[test]
fn capacity_is_told_in_both_sizes() {
    let mut host = host();
    assert_eq!(host.passes(&cdb_10(op::READ_CAPACITY_10, 0, 0), Data::In(8)), [0, 0, 1, 0xff, 0, 0, 2, 0]);
    let mut cdb = cdb_16(op::SERVICE_ACTION_IN_16, 0, 32);
    cdb[1] = op::READ_CAPACITY_16;
    let data = host.passes(&cdb, Data::In(32));
    assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
    assert_eq!(data[16..], [0; 16]);
    assert_eq!(host.fails(&cdb_10(op::READ_CAPACITY_10, 1, 0), Data::In(8)), INVALID_FIELD);
    let formats = cdb_10(op::READ_FORMAT_CAPACITIES, 0, 252);
    assert_eq!(host.reports(&formats, 252), [0, 0, 0, 8, 0, 0, 2, 0, 2, 0, 2, 0]);
}

#[test]
fn report_luns_lists_unit_zero() {
    let mut host = host();
    let luns = |select, room| [op::REPORT_LUNS, 0, select, 0, 0, 0, 0, 0, 0, room, 0, 0];
    assert_eq!(host.passes(&luns(0, 16), Data::In(16)), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.reports(&luns(1, 16), 16), [0; 8]);
    assert_eq!(host.fails(&luns(0, 8), Data::In(8)), INVALID_FIELD);
}

#[test]
fn every_size_of_read_and_write_reaches_the_same_blocks() {
    let mut host = host();
    let data = |seed| pattern(seed, 1024);
    let wide = |opcode| [opcode, 0, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0];
    host.passes(&[op::WRITE_6, 0, 0, 9, 2, 0], Data::Out(data(1)));
    assert_eq!(host.passes(&wide(op::READ_12), Data::In(1024)), data(1));
    host.passes(&wide(op::WRITE_12), Data::Out(data(2)));
    assert_eq!(host.passes(&cdb_16(op::READ_16, 9, 2), Data::In(1024)), data(2));
    host.passes(&cdb_16(op::WRITE_16, 9, 2), Data::Out(data(3)));
    assert_eq!(host.passes(&cdb_10(op::READ_10, 9, 2), Data::In(1024)), data(3));
    host.passes(&cdb_10(op::WRITE_10, 9, 2), Data::Out(data(4)));
    assert_eq!(host.passes(&[op::READ_6, 0, 0, 9, 2, 0], Data::In(1024)), data(4));
    // Zero blocks are 256 in six bytes and none in ten.
    assert_eq!(host.passes(&[op::READ_6, 0, 0, 0, 0, 0], Data::In(256 * 512)).len(), 256 * 512);
    host.passes(&cdb_10(op::READ_10, 9, 0), Data::None);
    host.passes(&cdb_10(op::WRITE_10, 9, 0), Data::None);
}

#[test]
fn verify_reads_and_compares() {
    let mut host = host();
    let flags = |mut cdb: Vec<u8>, flags| {
        cdb[1] = flags;
        cdb
    };
    let all = pattern(0, BLOCKS * 512);
    host.passes(&cdb_10(op::VERIFY_10, 0, BLOCKS as u16), Data::None);
    host.passes(&cdb_16(op::VERIFY_16, 1, 0), Data::None);
    let compare_10 = flags(cdb_10(op::VERIFY_10, 0, BLOCKS as u16).to_vec(), 2);
    host.passes(&compare_10, Data::Out(all.clone()));
    let compare_16 = flags(cdb_16(op::VERIFY_16, 0, BLOCKS as u32).to_vec(), 2);
    host.passes(&compare_16, Data::Out(all.clone()));
    host.passes(&[op::VERIFY_12, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0], Data::Out(all[3 * 512..4 * 512].to_vec()));
    let mut other = all.clone();
    other[400 * 512 + 3] ^= 1;
    let reply = host.command(&compare_10, Data::Out(other));
    assert_eq!(reply.status, 1);
    let sense = host.sense_bytes();
    assert_eq!((sense[2], sense[12], sense[13]), MISCOMPARE);
    assert_eq!(u32::from_be_bytes([sense[3], sense[4], sense[5], sense[6]]), 400);
    assert_eq!(read(&mut host, 400, 1), all[400 * 512..401 * 512], "comparing writes nothing");
}

#[test]
fn unmapped_blocks_read_as_zeros() {
    let mut host = host();
    let (cdb, list) = unmap(&[(2, 3), (10, 0), (20, 1)]);
    host.passes(&cdb, list);
    let mut expected = pattern(0, 32 * 512);
    expected[2 * 512..5 * 512].fill(0);
    expected[20 * 512..21 * 512].fill(0);
    assert_eq!(read(&mut host, 0, 32), expected);
    // No list, or no range in it: nothing to do.
    host.passes(&cdb_10(op::UNMAP, 0, 0), Data::None);
    let (cdb, list) = unmap(&[]);
    host.passes(&cdb, list);
}

#[test]
fn an_unmap_that_is_wrong_anywhere_does_nothing() {
    let disk = Disk::new(4 << 30);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    for (ranges, sense) in [
        (vec![(0, 1), (8 << 20, 1)], OUT_OF_RANGE),
        (vec![(0, 1), (u64::MAX, 2)], OUT_OF_RANGE),
        (vec![(0, 1 << 21), (0, 1)], INVALID_PARAMETER),
        (vec![(0, 1); 257], LIST_LENGTH),
    ] {
        let (cdb, list) = unmap(&ranges);
        assert_eq!(host.fails(&cdb, list), sense, "{:?}", &ranges[..2]);
    }
    let mut list = unmap_list(&[(0, 1)]);
    assert_eq!(host.fails(&cdb_10(op::UNMAP, 0, 7), Data::Out(list[..7].to_vec())), LIST_LENGTH);
    list[3] = 17;
    assert_eq!(host.fails(&cdb_10(op::UNMAP, 0, 24), Data::Out(list.clone())), LIST_LENGTH);
    assert_eq!(disk.look().discarded_bytes, 0);
    // The part of a range at the end is ignored.
    list[3] = 15;
    host.passes(&cdb_10(op::UNMAP, 0, 24), Data::Out(list));
    assert_eq!(disk.look().discarded_bytes, 0);
    let (cdb, list) = unmap(&[(0, 1 << 20), (1 << 20, 1 << 20)]);
    host.passes(&cdb, list);
    assert_eq!(disk.look().discarded_bytes, 1 << 30, "the most that Block Limits promises");
}

#[test]
fn write_same_repeats_a_block() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    for (opcode, seed) in [(op::WRITE_SAME_10, 1), (op::WRITE_SAME_16, 2)] {
        let block = pattern(seed, 512);
        host.passes(&write_same(opcode, 0, 3, 300), Data::Out(block.clone()));
        assert_eq!(disk.bytes(3 * 512, 300 * 512), block.repeat(300));
        // UNMAP is permission: a block other than zeros is still written.
        host.passes(&write_same(opcode, 8, 0, 1), Data::Out(block.clone()));
        assert_eq!(disk.bytes(0, 512), block);
    }
    assert_eq!((disk.bytes(303 * 512, 512), disk.look().discarded_bytes), (vec![0; 512], 0));
}

#[test]
fn write_same_of_zeros_keeps_or_gives_back_the_space() {
    let disk = Disk::new(1 << 20);
    let mut host = Host::new(disk.clone(), StorageOptions::default());
    let mut counts = |cdb: &[u8], data| {
        host.passes(cdb, data);
        let state = disk.look();
        (state.zeroed_bytes, state.discarded_bytes)
    };
    let zeros = || Data::Out(vec![0; 512]);
    assert_eq!(counts(&write_same(op::WRITE_SAME_10, 0, 0, 2), zeros()), (1024, 0));
    assert_eq!(counts(&write_same(op::WRITE_SAME_10, 8, 0, 2), zeros()), (1024, 1024));
    // NDOB: zeros without a data block.
    assert_eq!(counts(&write_same(op::WRITE_SAME_16, 1, 0, 2), Data::None), (2048, 1024));
    assert_eq!(counts(&write_same(op::WRITE_SAME_16, 9, 0, 2), Data::None), (2048, 2048));
    assert_eq!(host.fails(&write_same(op::WRITE_SAME_10, 0, 0, 0), zeros()), INVALID_FIELD);
    assert_eq!(host.fails(&write_same(op::WRITE_SAME_10, 0, 2047, 2), zeros()), OUT_OF_RANGE);
}

#[test]
fn mode_sense_reports_the_write_cache_in_pages_08_and_3f() {
    let mut host = host();
    let descriptor = [0, 0, 2, 0, 0, 0, 2, 0];
    let caching = [[0x08, 0x12, 0x04].as_slice(), &[0; 17]].concat();
    let control = [[0x0a, 0x0a].as_slice(), &[0; 10]].concat();
    let exceptions = [[0x1c, 0x0a, 0x08].as_slice(), &[0; 9]].concat();
    let all = [descriptor.as_slice(), &caching, &control, &exceptions].concat();
    let mut sense_6 = |flags, page| host.reports(&[op::MODE_SENSE_6, flags, page, 0, 192, 0], 192);
    assert_eq!(sense_6(0, 0x3f), [[55, 0, 0x10, 8].as_slice(), &all].concat());
    assert_eq!(sense_6(8, 0x08), [[23, 0, 0x10, 0].as_slice(), &caching].concat());
    assert_eq!(sense_6(8, 0x0a), [[15, 0, 0x10, 0].as_slice(), &control].concat());
    assert_eq!(sense_6(8, 0x1c), [[15, 0, 0x10, 0].as_slice(), &exceptions].concat());
    // Changeable: WCE alone. Default: as the disk was made.
    let changeable = sense_6(8, 0x7f);
    assert_eq!(changeable.iter().map(|b| u32::from(*b)).sum::<u32>(), 47 + 0x10 + 0x1a + 4 + 0x14 + 0x26);
    assert_eq!(sense_6(8, 0x88)[4..], caching);

    let mut sense_10 = |flags, page| {
        let mut cdb = cdb_10(op::MODE_SENSE_10, 0, 192);
        (cdb[1], cdb[2]) = (flags, page);
        host.reports(&cdb, 192)
    };
    assert_eq!(sense_10(0, 0x3f), [[0, 58, 0, 0x10, 0, 0, 0, 8].as_slice(), &all].concat());
    let long = sense_10(0x10, 0x08);
    assert_eq!(long[..8], [0, 42, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[8..24], [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0]);

    assert_eq!(host.fails(&[op::MODE_SENSE_6, 0, 0xc8, 0, 192, 0], Data::In(192)), NOT_SAVED);
    assert_eq!(host.fails(&[op::MODE_SENSE_6, 0, 0x05, 0, 192, 0], Data::In(192)), INVALID_FIELD);
    assert_eq!(host.fails(&[op::MODE_SENSE_6, 0, 0x08, 1, 192, 0], Data::In(192)), INVALID_FIELD);
}

#[test]
fn mode_select_changes_the_write_cache_and_nothing_else() {
    let mut host = host();
    let page = |first: u8| [[0x08, 0x12, first].as_slice(), &[0; 17]].concat();
    let select = |header: &[u8], rest: &[u8]| {
        let list = [header, rest].concat();
        ([op::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8, 0], Data::Out(list))
    };
    let is_on = |host: &mut Host| host.reports(&[op::MODE_SENSE_6, 8, 0x08, 0, 192, 0], 192)[6] & 4 != 0;
    let (cdb, list) = select(&[0; 4], &page(0));
    host.passes(&cdb, list);
    assert!(!is_on(&mut host));
    // In ten bytes, with a block descriptor that changes nothing.
    let list = [[0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0].as_slice(), &page(4)].concat();
    let mut cdb_select_10 = cdb_10(op::MODE_SELECT_10, 0, list.len() as u16);
    cdb_select_10[1] = 0x10;
    host.passes(&cdb_select_10, Data::Out(list));
    assert!(is_on(&mut host));
    // What MODE SENSE reports can be sent back.
    let mut all = host.reports(&[op::MODE_SENSE_6, 0, 0x3f, 0, 192, 0], 192);
    (all[0], all[2]) = (0, 0);
    host.passes(&[op::MODE_SELECT_6, 0x10, 0, 0, all.len() as u8, 0], Data::Out(all));
    host.passes(&[op::MODE_SELECT_6, 0x10, 0, 0, 0, 0], Data::None);
    for (header, rest, sense) in [
        ([0; 4], page(5), INVALID_PARAMETER),
        ([0; 4], vec![0x0a, 0x0a, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0], INVALID_PARAMETER),
        ([0; 4], vec![0x05, 2, 0, 0], INVALID_PARAMETER),
        ([0; 4], page(4)[..10].to_vec(), LIST_LENGTH),
        ([0, 0, 0, 8], vec![0, 0, 0, 0, 0, 0, 0x10, 0], INVALID_PARAMETER),
        ([0, 0, 0, 9], page(4), INVALID_PARAMETER),
        ([0, 0, 0, 99], page(4), LIST_LENGTH),
    ] {
        let (cdb, list) = select(&header, &rest);
        assert_eq!(host.fails(&cdb, list), sense, "{header:?} {rest:?}");
    }
    assert_eq!(host.fails(&[op::MODE_SELECT_6, 0x10, 0, 0, 3, 0], Data::Out(vec![0; 3])), LIST_LENGTH);
    // Saving is not supported.
    assert_eq!(host.fails(&[op::MODE_SELECT_6, 0x11, 0, 0, 4, 0], Data::Out(vec![0; 4])), INVALID_FIELD);
    assert!(is_on(&mut host));
}

#[test]
fn blocks_beyond_the_end_are_out_of_range_even_where_64_bits_overflow() {
    let mut host = host();
    let end = BLOCKS as u64;
    for (lba, blocks) in [(end, 1), (end - 1, 2), (end + 1, 0), (u64::MAX, 1), (u64::MAX, 0xffff), (1 << 63, 2)] {
        let bytes = blocks * 512;
        let cdb = |opcode| cdb_16(opcode, lba, blocks);
        assert_eq!(host.fails(&cdb(op::READ_16), Data::In(bytes)), OUT_OF_RANGE);
        assert_eq!(host.fails(&cdb(op::WRITE_16), Data::Out(vec![0; bytes as usize])), OUT_OF_RANGE);
        assert_eq!(host.fails(&cdb(op::VERIFY_16), Data::None), OUT_OF_RANGE);
        assert_eq!(host.fails(&cdb(op::SYNCHRONIZE_CACHE_16), Data::None), OUT_OF_RANGE);
        let mut compare = cdb(op::VERIFY_16);
        compare[1] = 2;
        assert_eq!(host.fails(&compare, Data::Out(vec![0; bytes as usize])), OUT_OF_RANGE);
        if blocks > 0 {
            assert_eq!(host.fails(&cdb(op::WRITE_SAME_16), Data::Out(vec![0; 512])), OUT_OF_RANGE);
        }
    }
    host.passes(&cdb_16(op::READ_16, end, 0), Data::None);
    assert_eq!(host.fails(&[op::READ_6, 0x1f, 0xff, 0xff, 1, 0], Data::In(512)), OUT_OF_RANGE);
}

#[test]
fn a_read_only_disk_says_so_and_refuses_every_write() {
    let stores =
        [(MemoryStore::new(pattern(0, 8 * 512)).read_only(), false), (MemoryStore::new(pattern(0, 8 * 512)), true)];
    for (store, read_only) in stores {
        let mut host = Host::new(store, StorageOptions { read_only, ..StorageOptions::default() });
        assert_eq!(host.reports(&[op::MODE_SENSE_6, 8, 0x3f, 0, 192, 0], 192)[2], 0x90);
        assert_eq!(host.fails(&cdb_10(op::WRITE_10, 0, 1), Data::Out(vec![0; 512])), WRITE_PROTECTED);
        assert_eq!(host.fails(&[op::WRITE_6, 0, 0, 0, 1, 0], Data::Out(vec![0; 512])), WRITE_PROTECTED);
        assert_eq!(host.fails(&write_same(op::WRITE_SAME_16, 1, 0, 1), Data::None), WRITE_PROTECTED);
        let (cdb, list) = unmap(&[(0, 1)]);
        assert_eq!(host.fails(&cdb, list), WRITE_PROTECTED);
        host.passes(&cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0), Data::None);
        assert_eq!(read(&mut host, 0, 8), pattern(0, 8 * 512));
    }
}

#[test]
fn commands_that_are_not_known_are_refused() {
    let mut host = host();
    for opcode in [0x04, 0x2e, 0x43, 0x4d, 0x7f, 0x89, 0xa1, 0xc0, 0xff] {
        assert_eq!(host.fails(&[opcode; 16], Data::None), INVALID_COMMAND, "{opcode:02x}");
    }
    // A block too short for its command.
    assert_eq!(host.fails(&cdb_10(op::READ_10, 0, 1)[..6], Data::In(512)), INVALID_FIELD);
}
