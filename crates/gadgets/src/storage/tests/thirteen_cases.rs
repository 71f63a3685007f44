//! Bulk-Only 1.0 §6.7: what the host expects, compared with what the device wants to do.

use farbus_model::EpAddr;

use super::disk::Disk;
use super::host::{Data, FAILED, Host, PASSED, PHASE_ERROR, cdb_10, pattern};
use crate::storage::StorageOptions;
use crate::storage::bulk_only::{BULK_IN, BULK_OUT};
use crate::storage::scsi::command::op;

struct Case {
    name: &'static str,
    cdb: Vec<u8>,
    host: Data,
    /// Status, residue, bytes read, endpoints that stalled.
    end: (u8, u32, usize, &'static [EpAddr]),
    /// Sectors of the disk that have changed.
    written: usize,
}

fn cases() -> Vec<Case> {
    let ready = vec![op::TEST_UNIT_READY, 0, 0, 0, 0, 0];
    let read = |blocks| cdb_10(op::READ_10, 0, blocks).to_vec();
    let write = |blocks| cdb_10(op::WRITE_10, 0, blocks).to_vec();
    let beyond = |opcode| cdb_10(opcode, 64, 1).to_vec();
    let out = |bytes| Data::Out(pattern(7, bytes));
    let case = |name, cdb, host, end, written| Case { name, cdb, host, end, written };
    vec![
        case("1 Hn = Dn", ready.clone(), Data::None, (PASSED, 0, 0, &[]), 0),
        case("1 Hn = Dn, failing", beyond(op::READ_10), Data::None, (FAILED, 0, 0, &[]), 0),
        case("2 Hn < Di", read(1), Data::None, (PHASE_ERROR, 0, 0, &[]), 0),
        case("3 Hn < Do", write(1), Data::None, (PHASE_ERROR, 0, 0, &[]), 0),
        case("4 Hi > Dn", ready.clone(), Data::In(512), (PASSED, 512, 0, &[BULK_IN]), 0),
        case("4 Hi > Dn, failing", beyond(op::READ_10), Data::In(512), (FAILED, 512, 0, &[BULK_IN]), 0),
        case("5 Hi > Di", read(1), Data::In(1024), (PASSED, 512, 512, &[BULK_IN]), 0),
        case("6 Hi = Di", read(2), Data::In(1024), (PASSED, 0, 1024, &[]), 0),
        case("7 Hi < Di", read(2), Data::In(512), (PHASE_ERROR, 512, 0, &[BULK_IN]), 0),
        case("8 Hi <> Do", write(1), Data::In(512), (PHASE_ERROR, 512, 0, &[BULK_IN]), 0),
        case("9 Ho > Dn", ready, out(512), (PASSED, 512, 0, &[BULK_OUT]), 0),
        case("9 Ho > Dn, failing", beyond(op::WRITE_10), out(512), (FAILED, 512, 0, &[BULK_OUT]), 0),
        case("10 Ho <> Di", read(1), out(512), (PHASE_ERROR, 512, 0, &[BULK_OUT]), 0),
        case("11 Ho > Do", write(1), out(1024), (PASSED, 512, 0, &[BULK_OUT]), 1),
        case("12 Ho = Do", write(2), out(1024), (PASSED, 0, 0, &[]), 2),
        case("13 Ho < Do", write(2), out(512), (PHASE_ERROR, 512, 0, &[BULK_OUT]), 0),
    ]
}

#[test]
fn each_of_the_thirteen_cases_ends_as_the_specification_says_and_the_next_command_works() {
    each_case_ends_well(Host::new);
}

#[test]
fn each_of_the_thirteen_cases_ends_the_same_across_processes() {
    each_case_ends_well(Host::moving);
}

fn each_case_ends_well(host: fn(Disk, StorageOptions) -> Host) {
    for case in cases() {
        let disk = Disk::new(64 * 512);
        let mut host = host(disk.clone(), StorageOptions::default());
        let reply = host.command(&case.cdb, case.host);
        assert_eq!((reply.status, reply.residue, reply.data.len(), reply.stalls.as_slice()), case.end, "{}", case.name);
        let expected = [pattern(7, case.written * 512), vec![0; (64 - case.written) * 512]].concat();
        assert_eq!(disk.bytes(0, 64 * 512), expected, "{}", case.name);
        assert!(host.is_ready(), "{}", case.name);
    }
}
