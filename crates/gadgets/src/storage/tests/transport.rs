//! Invalid wrappers, resets, and requests that come early.

use farbus_model::descriptor::DeviceDescriptor;
use farbus_model::{Device, Instant, SetupPacket, UrbStatus, UsbSpeed};

use super::disk::Disk;
use super::host::{CSW_BYTES, Data, FAILED, Host, NO_SUCH_UNIT, PASSED, PHASE_ERROR};
use super::host::{cbw, cdb_10, pattern};
use crate::storage::bulk_only::{BULK_IN, BULK_OUT};
use crate::storage::scsi::command::op;
use crate::storage::{StorageGadget, StorageOptions};

const READY: [u8; 6] = [op::TEST_UNIT_READY, 0, 0, 0, 0, 0];

fn host() -> (Host, Disk) {
    let disk = Disk::new(64 * 512);
    (Host::new(disk.clone(), StorageOptions::default()), disk)
}

#[test]
fn the_descriptors_are_those_of_bulk_only_mass_storage() {
    for (speed, packet_bytes) in [(UsbSpeed::Full, 64), (UsbSpeed::High, 512), (UsbSpeed::Super, 1024)] {
        let serial = "00c0ffee0001";
        let options = StorageOptions {
            speed,
            serial: serial.into(),
            product: "Disk of mine".into(),
            ..StorageOptions::default()
        };
        let device = StorageGadget::device(Box::new(Disk::new(512)), options).unwrap();
        let all = device.descriptors();
        assert_eq!(DeviceDescriptor::parse(&all.device.to_bytes()).unwrap(), all.device);
        assert_eq!((all.device.vendor, all.device.product), (0x0525, 0xa4a5));
        assert_eq!(all.string(all.device.product_string), Some("Disk of mine"));
        assert_eq!(all.string(all.device.serial_string), Some("00C0FFEE0001"));
        let setting = &all.configurations[0].settings[0];
        assert_eq!(setting.class, [8, 6, 0x50]);
        let endpoints: Vec<_> = setting.endpoints.iter().map(|e| (e.address, e.packet_bytes_max)).collect();
        assert_eq!(endpoints, [(BULK_IN, packet_bytes), (BULK_OUT, packet_bytes)]);
    }
}

#[test]
fn there_is_one_logical_unit() {
    let (mut host, _) = host();
    let ask = SetupPacket { request_type: 0xa1, request: 0xfe, value: 0, index: 0, length: 1 };
    assert_eq!(host.control(ask).payload.into_vec(), [0]);
    for wrong in [SetupPacket { value: 1, ..ask }, SetupPacket { index: 1, ..ask }, SetupPacket { length: 2, ..ask }] {
        assert_eq!(host.control(wrong).status, UrbStatus::Stall);
    }
    host.tag += 1;
    let wrapper = cbw(host.tag, 0, 0, 1, &READY);
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (FAILED, 0));
    assert_eq!(host.sense(), NO_SUCH_UNIT);
}

#[test]
fn a_wrapper_that_is_not_valid_halts_both_endpoints_until_reset_recovery() {
    let good = cbw(1, 0, 0, 0, &READY);
    let mut wrong_signature = good.clone();
    wrong_signature[0] = b'X';
    let long = [good.clone(), vec![0]].concat();
    for bad in [good[..30].to_vec(), long, wrong_signature, Vec::new()] {
        let (mut host, _) = host();
        assert_eq!(host.out(bad).status, UrbStatus::Stall);
        assert!(host.is_halted(BULK_IN) && host.is_halted(BULK_OUT));
        for _ in 0..2 {
            // Clearing alone does not help (Bulk-Only 1.0 §6.6.1).
            host.clear_halt(BULK_IN);
            host.clear_halt(BULK_OUT);
            assert_eq!(host.read(CSW_BYTES).status, UrbStatus::Stall);
            assert_eq!(host.out(good.clone()).status, UrbStatus::Stall);
        }
        host.bulk_only_reset();
        // Nor does the reset without clearing (§3.1: it preserves the halts).
        assert_eq!(host.out(good.clone()).status, UrbStatus::Stall);
        host.clear_halt(BULK_IN);
        host.clear_halt(BULK_OUT);
        assert!(host.is_ready());
    }
}

#[test]
fn a_wedge_ends_with_a_new_configuration_or_a_port_reset() {
    let (mut host, _) = host();
    assert_eq!(host.out(vec![0; 31]).status, UrbStatus::Stall);
    host.configure();
    assert!(host.is_ready());
    assert_eq!(host.out(vec![0; 31]).status, UrbStatus::Stall);
    host.device.reset(Instant::ZERO, &mut host.done);
    host.configure();
    assert!(host.is_ready());
}

#[test]
fn a_wrapper_that_is_not_meaningful_is_a_phase_error() {
    let with = |at: usize, value: u8| {
        let mut bytes = cbw(9, 512, 0x80, 0, &READY);
        bytes[at] = value;
        bytes
    };
    for bad in [with(12, 0x81), with(13, 0x10), with(14, 0), with(14, 17), with(14, 0x26)] {
        let (mut host, _) = host();
        host.tag = 9;
        assert_eq!(host.out(bad).status, UrbStatus::Ok);
        assert_eq!(host.read(512).status, UrbStatus::Stall);
        host.clear_halt(BULK_IN);
        let csw = host.read(CSW_BYTES);
        assert_eq!(host.csw(&csw), (PHASE_ERROR, 512));
        host.recover();
        assert!(host.is_ready());
    }
}

#[test]
fn a_command_that_comes_before_the_status_was_collected_waits() {
    let (mut host, _) = host();
    let first = host.cbw(&READY, &Data::None);
    assert_eq!(host.out(first).status, UrbStatus::Ok);
    let first_tag = host.tag;
    let second = host.cbw(&READY, &Data::None);
    let second_id = host.submit_out(second);
    assert!(host.done.is_empty(), "it is not taken");
    host.submit_in(CSW_BYTES);
    let csw = host.done.pop().unwrap();
    assert_eq!(csw.payload.contiguous()[4..8], first_tag.to_le_bytes());
    assert_eq!(host.done.pop().unwrap().id, second_id, "now it is");
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 0));
}

#[test]
fn data_and_status_queued_before_the_command_come_in_their_order() {
    let (mut host, disk) = host();
    host.passes(&cdb_10(op::WRITE_10, 3, 8), Data::Out(pattern(1, 4096)));
    let data = host.submit_in(4096);
    let status = host.submit_in(CSW_BYTES);
    assert!(host.done.is_empty(), "there is nothing to say yet");
    let wrapper = host.cbw(&cdb_10(op::READ_10, 3, 8), &Data::In(4096));
    let command = host.submit_out(wrapper);
    let done: Vec<_> = std::iter::from_fn(|| host.done.pop()).collect();
    assert_eq!(done.iter().map(|d| d.id).collect::<Vec<_>>(), [command, data, status]);
    assert_eq!(done[1].payload.contiguous(), disk.bytes(3 * 512, 4096));
    assert_eq!(host.csw(&done[2]), (PASSED, 0));
}

#[test]
fn a_write_with_everything_queued_at_once_completes_in_one_go() {
    let (mut host, disk) = host();
    let status = host.submit_in(CSW_BYTES);
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 0, 4), &Data::Out(vec![0; 2048]));
    host.submit_out(wrapper);
    host.submit_out(pattern(5, 1024));
    host.submit_out(pattern(6, 1024));
    let done: Vec<_> = std::iter::from_fn(|| host.done.pop()).collect();
    assert_eq!(done.iter().map(|d| d.status).collect::<Vec<_>>(), [UrbStatus::Ok; 4]);
    assert_eq!(done[3].id, status);
    assert_eq!(host.csw(&done[3]), (PASSED, 0));
    assert_eq!(disk.bytes(0, 2048), [pattern(5, 1024), pattern(6, 1024)].concat());
}

#[test]
fn a_short_answer_ends_every_queued_data_request_and_the_status_follows_the_clear() {
    let (mut host, _) = host();
    let wrapper = host.cbw(&[op::INQUIRY, 0, 0, 0, 255, 0], &Data::In(1024));
    for room in [512, 512, CSW_BYTES] {
        host.submit_in(room);
    }
    host.submit_out(wrapper);
    let ends: Vec<_> = std::iter::from_fn(|| host.done.pop()).map(|d| (d.status, d.actual)).collect();
    assert_eq!(ends, [(UrbStatus::Ok, 31), (UrbStatus::Ok, 36), (UrbStatus::Stall, 0), (UrbStatus::Stall, 0)]);
    host.clear_halt(BULK_IN);
    let csw = host.read(CSW_BYTES);
    assert_eq!(host.csw(&csw), (PASSED, 1024 - 36));
}

#[test]
fn a_refused_write_stalls_the_queued_data_and_cannot_take_it_for_commands() {
    let (mut host, disk) = host();
    host.submit_in(CSW_BYTES);
    let wrapper = host.cbw(&cdb_10(op::WRITE_10, 64, 2), &Data::Out(vec![0; 1024]));
    host.submit_out(wrapper);
    // Data that is a command itself.
    let trap = [cbw(1, 0, 0, 0, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0]), vec![0; 1024 - 31]].concat();
    host.submit_out(trap[..31].to_vec());
    host.submit_out(trap[31..].to_vec());
    let done: Vec<_> = std::iter::from_fn(|| host.done.pop()).collect();
    let statuses: Vec<_> = done.iter().map(|d| (d.endpoint, d.status)).collect();
    assert_eq!(
        statuses,
        [
            (BULK_OUT, UrbStatus::Ok),
            (BULK_IN, UrbStatus::Ok),
            (BULK_OUT, UrbStatus::Stall),
            (BULK_OUT, UrbStatus::Stall)
        ]
    );
    assert_eq!(host.csw(&done[1]), (FAILED, 1024));
    host.clear_halt(BULK_OUT);
    assert!(host.is_ready() && host.device.function().has_medium());
    assert_eq!(disk.look().longest_bytes, 0);
}

#[test]
fn a_reset_in_the_data_phase_leaves_a_device_that_takes_the_next_command() {
    let resets: [fn(&mut Host); 3] = [
        Host::bulk_only_reset,
        |host| {
            host.device.reset(Instant::ZERO, &mut host.done);
            host.configure();
        },
        Host::configure,
    ];
    for reset in resets {
        let (mut host, disk) = host();
        host.passes(&cdb_10(op::WRITE_10, 0, 4), Data::Out(pattern(1, 2048)));
        // In: half has been read.
        let wrapper = host.cbw(&cdb_10(op::READ_10, 0, 4), &Data::In(2048));
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        assert_eq!(host.read(1024).actual, 1024);
        reset(&mut host);
        assert!(host.is_ready());
        // Out: half has been written.
        let wrapper = host.cbw(&cdb_10(op::WRITE_10, 8, 4), &Data::Out(vec![0; 2048]));
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        assert_eq!(host.out(pattern(9, 1024)).status, UrbStatus::Ok);
        reset(&mut host);
        assert_eq!(host.passes(&cdb_10(op::READ_10, 0, 4), Data::In(2048)), pattern(1, 2048));
        assert_eq!(disk.bytes(8 * 512, 2048), [pattern(9, 1024), vec![0; 1024]].concat());
        // Status: it was never collected.
        let wrapper = host.cbw(&READY, &Data::None);
        assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
        reset(&mut host);
        assert!(host.is_ready());
    }
}

#[test]
fn a_port_reset_ends_what_waits() {
    let (mut host, _) = host();
    host.submit_in(512);
    host.device.reset(Instant::ZERO, &mut host.done);
    assert_eq!(host.only().status, UrbStatus::Shutdown);
}

#[test]
fn a_cancelled_read_is_recovered_by_reset() {
    let (mut host, _) = host();
    let waiting = host.submit_in(512);
    host.device.cancel(Instant::ZERO, waiting, &mut host.done);
    assert_eq!(host.only().status, UrbStatus::Cancelled);
    host.recover();
    assert!(host.is_ready());
}

#[test]
fn a_status_request_without_room_gets_what_fits_and_the_device_goes_on() {
    let (mut host, _) = host();
    let wrapper = host.cbw(&READY, &Data::None);
    assert_eq!(host.out(wrapper).status, UrbStatus::Ok);
    assert_eq!(host.read(4).payload.into_vec(), *b"USBS");
    assert!(host.is_ready());
}
