//! Random bytes, buffer sizes and requests in any order: no panic, no lost request, no unbounded memory, and after
//! Reset Recovery the disk works.

use farbus_model::urb::take_lost;
use farbus_model::usb::request::GET_CONFIGURATION;
use farbus_model::{Device, Instant, OwnerCommand, SetupPacket, StoreError, TransferDirection, Urb, UrbId, UrbStatus};
use proptest::prelude::*;
use proptest::test_runner::TestError;

use super::disk::Disk;
use super::host::{CSW_BYTES, Data, Host, PASSED, cbw};
use crate::fuzzing::fuzz;
use crate::storage::bulk_only::{BULK_IN, BULK_OUT};
use crate::storage::scsi::command::op;
use crate::storage::{StorageOptions, scsi};

/// A step of a fuzz case.
#[derive(Clone, Debug)]
enum Op {
    Out(Vec<u8>),
    In(u32),
    /// A valid wrapper with any content.
    Wrapper {
        length: u32,
        flags: u8,
        lun: u8,
        cdb: Vec<u8>,
    },
    Control(SetupPacket),
    ClearHalts,
    Reset,
    Configure,
    Cancel(prop::sample::Index),
    Owner(OwnerCommand),
    /// The store begins to fail, or stops failing.
    Store {
        fails: Option<StoreError>,
        flush: Option<StoreError>,
    },
}

/// Mostly operation codes that exist.
fn opcode() -> impl Strategy<Value = u8> {
    let known = vec![
        op::TEST_UNIT_READY,
        op::REQUEST_SENSE,
        op::READ_6,
        op::WRITE_6,
        op::INQUIRY,
        op::MODE_SELECT_6,
        op::MODE_SENSE_6,
        op::START_STOP_UNIT,
        op::PREVENT_ALLOW_MEDIUM_REMOVAL,
        op::READ_FORMAT_CAPACITIES,
        op::READ_CAPACITY_10,
        op::READ_10,
        op::WRITE_10,
        op::VERIFY_10,
        op::SYNCHRONIZE_CACHE_10,
        op::WRITE_SAME_10,
        op::UNMAP,
        op::MODE_SELECT_10,
        op::MODE_SENSE_10,
        op::READ_16,
        op::WRITE_16,
        op::VERIFY_16,
        op::SYNCHRONIZE_CACHE_16,
        op::WRITE_SAME_16,
        op::SERVICE_ACTION_IN_16,
        op::REPORT_LUNS,
        op::READ_12,
        op::WRITE_12,
        op::VERIFY_12,
    ];
    prop_oneof![9 => prop::sample::select(known), 1 => any::<u8>()]
}

/// Small numbers and flags, as commands have them, more often than random bytes.
fn cdb() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0u8), 2 => 0..16u8, 1 => any::<u8>()];
    (opcode(), prop::collection::vec(byte, 0..20)).prop_map(|(opcode, rest)| [&[opcode], rest.as_slice()].concat())
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), (0..9u32).prop_map(|n| n * 512), 0..2000u32, any::<u32>()]
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..1100),
        (0..9usize).prop_map(|n| vec![0; n * 512]),
        Just(vec![0; 31]),
    ];
    let flags = prop_oneof![4 => Just(0x80), 4 => Just(0), 1 => any::<u8>()];
    let lun = prop_oneof![8 => Just(0), 1 => any::<u8>()];
    let setup = any::<[u8; 8]>().prop_map(SetupPacket::from_bytes);
    let owner = prop::sample::select(vec![OwnerCommand::Eject, OwnerCommand::Insert, OwnerCommand::Sync]);
    let error = || {
        let errors = vec![StoreError::Medium, StoreError::NoSpace, StoreError::ReadOnly, StoreError::Gone];
        prop::option::of(prop::sample::select(errors))
    };
    prop_oneof![
        6 => bytes.prop_map(Op::Out),
        8 => prop_oneof![Just(CSW_BYTES), length()].prop_map(|room| Op::In(room.min(1 << 16))),
        8 => (length(), flags, lun, cdb()).prop_map(|(length, flags, lun, cdb)| Op::Wrapper { length, flags, lun, cdb }),
        1 => setup.prop_map(Op::Control),
        3 => Just(Op::ClearHalts),
        1 => Just(Op::Reset),
        1 => Just(Op::Configure),
        1 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        1 => owner.prop_map(Op::Owner),
        1 => (error(), error()).prop_map(|(fails, flush)| Op::Store { fails, flush }),
    ]
}

struct World {
    host: Host,
    disk: Disk,
    waiting: Vec<UrbId>,
}

impl World {
    fn new() -> Self {
        let disk = Disk::new(1 << 20);
        let mut host = Host::unconfigured(disk.clone(), StorageOptions::default());
        host.configure();
        Self { host, disk, waiting: Vec::new() }
    }

    fn apply(&mut self, op: Op) {
        let host = &mut self.host;
        match op {
            Op::Out(bytes) => self.waiting.push(host.submit_out(bytes)),
            Op::In(room) => self.waiting.push(host.submit_in(room)),
            Op::Wrapper { length, flags, lun, cdb } => {
                self.waiting.push(host.submit_out(&cbw(7, length, flags, lun, &cdb)[..31]));
            }
            Op::Control(setup) => self.control(setup),
            Op::ClearHalts => {
                self.control(SetupPacket::clear_halt(BULK_IN));
                self.control(SetupPacket::clear_halt(BULK_OUT));
            }
            Op::Reset => host.device.reset(Instant::ZERO, &mut host.done),
            Op::Configure => self.control(SetupPacket::set_configuration(1)),
            Op::Cancel(which) if !self.waiting.is_empty() => {
                let id = *which.get(&self.waiting);
                host.device.cancel(Instant::ZERO, id, &mut host.done);
            }
            Op::Cancel(_) => {}
            Op::Owner(command) => drop(host.owner(command)),
            Op::Store { fails, flush } => {
                let mut state = self.disk.look();
                state.fail_from = fails.map(|error| (0, error));
                state.fail_flush = flush;
            }
        }
        self.collect();
    }

    fn control(&mut self, setup: SetupPacket) {
        let id = self.host.urb_id();
        let data = if setup.direction() == TransferDirection::Out { vec![0; setup.length.into()] } else { Vec::new() };
        let urb = Urb::control(id, setup, data.into());
        self.waiting.push(id);
        self.host.device.submit(Instant::ZERO, urb.launch(), &mut self.host.done);
    }

    /// Checks that every answer belongs to a request, and comes once.
    fn collect(&mut self) {
        while let Some(done) = self.host.done.pop() {
            let at = self.waiting.iter().position(|id| *id == done.id).expect("it waits for an answer");
            self.waiting.remove(at);
            assert!(done.actual <= done.length);
            self.host.done.pool.recycle(done.payload);
        }
        assert_eq!(self.host.device.function().unit.held_bytes(), scsi::BUFFER_BYTES, "one buffer, never another");
    }

    /// Cancels everything, makes a Reset Recovery, and uses the disk.
    fn recover(mut self) {
        for id in std::mem::take(&mut self.waiting) {
            self.host.device.cancel(Instant::ZERO, id, &mut self.host.done);
            assert_eq!(self.host.done.pop().map(|done| (done.id, done.status)), Some((id, UrbStatus::Cancelled)));
        }
        let ask = SetupPacket { request_type: 0x80, request: GET_CONFIGURATION, length: 1, ..SetupPacket::default() };
        if self.host.control(ask).payload.into_vec() == [0] {
            self.host.configure();
        }
        let mut state = self.disk.look();
        (state.fail_from, state.fail_flush) = (None, None);
        drop(state);
        self.host.recover();
        self.host.owner(OwnerCommand::Insert).unwrap();
        // A deferred error, a unit attention: each is reported once.
        let ready = (0..3).any(|_| self.host.is_ready());
        assert!(ready, "{:02x?}", self.host.sense());
        let read = self.host.command(&[op::READ_6, 0, 0, 0, 1, 0], Data::In(512));
        assert_eq!((read.status, read.data.len()), (PASSED, 512));
        assert!(take_lost().is_empty());
    }
}

#[test]
fn fuzz_storage_survives_any_bytes() {
    let ops = prop::collection::vec(op(), 1..60);
    fuzz("fuzz_storage_survives_any_bytes", |runner| {
        let result = runner.run(&ops, |ops| {
            let mut world = World::new();
            ops.into_iter().for_each(|op| world.apply(op));
            world.recover();
            Ok(())
        });
        result.map_err(|error| match error {
            TestError::Fail(why, ops) => format!("{why}\n{ops:#?}"),
            TestError::Abort(why) => why.to_string(),
        })
    });
}
