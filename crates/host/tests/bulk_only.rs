//! The transport's two tables, line by line, against a disk that does what each line says.

mod common;

use common::fake::{Fake, Silent, Wrong};
use common::port::Event;
use common::rng::Rng;
use common::{read, ready, write};
use farbus_host::DiskError;
use farbus_host::storage::TransportFault;
use farbus_model::{UrbStatus, UsbSpeed};

const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;
const SENSE: u8 = 0x03;

fn stamp(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_read_of_128_kib_is_one_round_trip() {
    let (mut disk, mut port) = ready(Fake::small());
    assert_eq!(read(&mut disk, &mut port, 0, 128 << 10).unwrap().len(), 128 << 10);
    assert_eq!(port.submitted_at_first(), [(0x01, 31), (0x81, 128 << 10), (0x81, 13)], "before anything came back");
    assert_eq!(port.turns, 1);
}

#[test]
fn a_write_of_whole_packets_is_one_round_trip() {
    let (mut disk, mut port) = ready(Fake::small());
    write(&mut disk, &mut port, 0, &stamp(128 << 10)).unwrap();
    assert_eq!(port.submitted_at_first(), [(0x01, 31), (0x01, 128 << 10), (0x81, 13)]);
    assert_eq!(port.turns, 1);
    assert_eq!(port.device.read_store(0, 128 << 10), stamp(128 << 10));
}

#[test]
fn a_write_whose_last_packet_is_short_goes_phase_by_phase() {
    // Sectors of 512 bytes at SuperSpeed: an odd number of them ends in half a packet.
    let (mut disk, mut port) = ready(Fake::new(UsbSpeed::Super, 512, 2048));
    write(&mut disk, &mut port, 0, &stamp(3 * 512)).unwrap();
    assert_eq!((port.submitted_at_first(), port.turns), (vec![(0x01, 31)], 3));
    port.forget();
    write(&mut disk, &mut port, 0, &stamp(4 * 512)).unwrap();
    assert_eq!(port.turns, 1);
}

#[test]
fn commands_without_data_are_one_round_trip() {
    let (mut disk, mut port) = ready(Fake::small());
    disk.flush(port.now);
    common::finish(&mut disk, &mut port).unwrap();
    assert_eq!((port.submitted_at_first(), port.turns), (vec![(0x01, 31), (0x81, 13)], 1));
}

/// Checks the result of every recovery, whatever the order of completions, and whether a halt fails or keeps the
/// requests behind it: the right bytes, a transport in step, no request left over.
fn recovers(wrong: Wrong, resets: usize) {
    for seed in 0..20 {
        for keeps_behind_halt in [false, true] {
            for code in [READ, WRITE] {
                let (mut disk, mut port) = ready(Fake::small());
                port.device.keeps_behind_halt = keeps_behind_halt;
                port.shuffle = (seed > 0).then_some(Rng(seed));
                let bytes = stamp(4096);
                write(&mut disk, &mut port, 0, &bytes).unwrap();
                port.device.wrong_at(code, wrong);
                if code == WRITE {
                    write(&mut disk, &mut port, 8192, &bytes).unwrap();
                }
                let offset = if code == WRITE { 8192 } else { 0 };
                assert_eq!(read(&mut disk, &mut port, offset, 4096).unwrap(), bytes, "{wrong:?} {code:#x} seed {seed}");
                assert_eq!(port.device.resets, resets, "{wrong:?} {code:#x} seed {seed}");
                assert!(port.device.script.is_empty());
            }
        }
    }
}

#[test]
fn faults_end_in_reset_recovery_and_the_command_is_repeated() {
    for wrong in [
        Wrong::StallCommand,
        Wrong::LoseCommand(UrbStatus::Protocol),
        Wrong::LoseCommand(UrbStatus::NoCredit),
        Wrong::BreakData(UrbStatus::Protocol),
        Wrong::BreakData(UrbStatus::Overflow),
        Wrong::BreakData(UrbStatus::Crc),
        Wrong::Residue(512),
        Wrong::Residue(4097),
        Wrong::StallStatus(2),
        Wrong::OtherTag,
        Wrong::OtherSignature,
        Wrong::CutStatus,
        Wrong::Status(2),
        Wrong::Status(3),
        Wrong::Silence(Silent::Command),
        Wrong::Silence(Silent::Data),
        Wrong::Silence(Silent::Status),
    ] {
        recovers(wrong, 1);
    }
}

#[test]
fn harmless_irregularity_costs_no_reset() {
    recovers(Wrong::StallStatus(1), 0);
    recovers(Wrong::BlankStatus, 0);
}

#[test]
fn a_short_read_that_passed_is_not_believed() {
    let (mut disk, mut port) = ready(Fake::small());
    port.device.wrong(Wrong::ShortData(512));
    assert_eq!(read(&mut disk, &mut port, 0, 4096).unwrap().len(), 4096);
    assert_eq!(port.device.resets, 1);
}

#[test]
fn a_halt_in_the_data_is_cleared_and_the_status_read() {
    for keeps_behind_halt in [false, true] {
        for seed in 0..20 {
            for after in [0, 512, 4096] {
                let (mut disk, mut port) = ready(Fake::small());
                port.device.keeps_behind_halt = keeps_behind_halt;
                port.shuffle = (seed > 0).then_some(Rng(seed));
                port.device.wrong(Wrong::StallData { after, status: 1 });
                // Its sense data gives no reason: the command is repeated.
                assert_eq!(read(&mut disk, &mut port, 0, 4096).unwrap().len(), 4096);
                assert_eq!(port.device.commands.iter().rev().take(3).collect::<Vec<_>>(), [&READ, &SENSE, &READ]);
                assert_eq!(port.device.resets, 0);
                port.device.wrong(Wrong::StallData { after, status: 1 });
                let error = write(&mut disk, &mut port, 0, &stamp(4096)).unwrap_err();
                assert!(matches!(error, DiskError::MediumError(_)), "{error}");
                assert_eq!(port.device.resets, 0);
                assert!(read(&mut disk, &mut port, 0, 512).is_ok(), "it is in step again");
            }
        }
    }
}

#[test]
fn requests_behind_a_halt_are_cancelled_before_it_is_cleared() {
    let (mut disk, mut port) = ready(Fake::small());
    port.device.keeps_behind_halt = true;
    port.device.wrong(Wrong::StallData { after: 0, status: 1 });
    read(&mut disk, &mut port, 0, 4096).unwrap();
    let cancelled = port.log.iter().position(|event| matches!(event, Event::Cancelled(_))).unwrap();
    let Event::Cancelled(id) = port.log[cancelled] else { unreachable!() };
    let back = port.log.iter().position(|event| matches!(event, Event::Done(done, _) if *done == id)).unwrap();
    let is_control = |event: &Event| matches!(event, Event::Submitted(_, endpoint, _) if endpoint.is_control());
    let cleared = port.log.iter().position(is_control).unwrap();
    assert!(cancelled < back && back < cleared, "{:?}", port.log);
}

#[test]
fn a_status_in_place_of_the_data_is_understood() {
    for keeps_behind_halt in [false, true] {
        let (mut disk, mut port) = ready(Fake::small());
        port.device.keeps_behind_halt = keeps_behind_halt;
        port.device.wrong(Wrong::SkipData);
        assert_eq!(read(&mut disk, &mut port, 0, 4096).unwrap().len(), 4096);
        assert_eq!(port.device.resets, 1, "it passed without data: not believed");
        port.device.wrong(Wrong::FailSoftly(3, 0x11, 0));
        assert!(matches!(read(&mut disk, &mut port, 0, 4096), Err(DiskError::MediumError(_))));
        assert_eq!(port.device.resets, 1, "that needs no reset");
    }
}

#[test]
fn a_status_before_the_data_was_taken_is_a_fault() {
    for seed in 0..20 {
        let (mut disk, mut port) = ready(Fake::small());
        port.shuffle = (seed > 0).then_some(Rng(seed));
        port.device.wrong(Wrong::EarlyStatus);
        write(&mut disk, &mut port, 0, &stamp(4096)).unwrap();
        assert!(port.device.resets >= 1, "seed {seed}");
        assert_eq!(port.device.read_store(0, 4096), stamp(4096));
    }
}

#[test]
fn silence_lasts_as_long_as_the_timeout_and_then_the_reset() {
    let (mut disk, mut port) = ready(Fake::small());
    let before = port.now;
    port.device.wrong(Wrong::Silence(Silent::Status));
    read(&mut disk, &mut port, 0, 512).unwrap();
    assert_eq!((port.now - before).as_secs(), 30);
    for _ in 0..2 {
        port.device.wrong(Wrong::Silence(Silent::Data));
    }
    assert_eq!(read(&mut disk, &mut port, 0, 512), Err(DiskError::TimedOut));
    assert_eq!((port.now - before).as_secs(), 90, "a silent device is asked twice");
    assert!(read(&mut disk, &mut port, 0, 512).is_ok(), "and may come to its senses");
}

#[test]
fn a_device_that_loses_a_status_behind_its_data_is_asked_phase_by_phase_from_then_on() {
    let (mut disk, mut port) = ready(Fake::small());
    port.device.wrong(Wrong::Silence(Silent::Status));
    read(&mut disk, &mut port, 0, 4096).unwrap();
    assert_eq!(port.device.resets, 1);
    port.forget();
    assert_eq!(read(&mut disk, &mut port, 0, 4096).unwrap().len(), 4096);
    assert_eq!((port.submitted_at_first(), port.turns), (vec![(0x01, 31)], 3));
    port.forget();
    write(&mut disk, &mut port, 0, &stamp(4096)).unwrap();
    assert_eq!((port.submitted_at_first(), port.turns), (vec![(0x01, 31)], 3));
    assert_eq!(port.device.read_store(0, 4096), stamp(4096));
    // A device that is silent for another reason is still treated normally.
    let (mut disk, mut port) = ready(Fake::small());
    port.device.wrong(Wrong::Silence(Silent::Data));
    read(&mut disk, &mut port, 0, 4096).unwrap();
    port.forget();
    read(&mut disk, &mut port, 0, 4096).unwrap();
    assert_eq!(port.turns, 1);
}

#[test]
fn a_fault_that_stays_is_reported_after_three_tries() {
    let (mut disk, mut port) = ready(Fake::small());
    for _ in 0..3 {
        port.device.wrong(Wrong::Status(2));
    }
    assert_eq!(read(&mut disk, &mut port, 0, 512), Err(DiskError::Transport(TransportFault::PhaseError)));
    assert_eq!(port.device.resets, 3);
    assert!(read(&mut disk, &mut port, 0, 512).is_ok());
}

#[test]
fn a_device_that_refuses_the_reset_is_configured_anew() {
    // CLEAR_FEATURE is 1.
    for request in [0xff, 1] {
        for refusal in [UrbStatus::Stall, UrbStatus::Protocol, UrbStatus::TimedOut] {
            let (mut disk, mut port) = ready(Fake::small());
            port.device.wrong(Wrong::Silence(Silent::Data));
            port.device.refuses.push((request, refusal));
            write(&mut disk, &mut port, 0, &stamp(512)).unwrap();
            assert_eq!((port.device.read_store(0, 512), port.device.configurations), (stamp(512), 1));
        }
    }
}

#[test]
fn a_reset_that_fails_is_made_again_before_the_next_command() {
    for refusal in [UrbStatus::Protocol, UrbStatus::TimedOut] {
        let (mut disk, mut port) = ready(Fake::small());
        port.device.wrong(Wrong::Status(2));
        port.device.refuses = vec![(0xff, refusal), (9, refusal)];
        let error = read(&mut disk, &mut port, 0, 512).unwrap_err();
        assert!(matches!(error, DiskError::Transport(_)), "{error}");
        port.device.refuses.clear();
        assert!(read(&mut disk, &mut port, 0, 512).is_ok());
        assert_eq!(port.device.resets, 1);
    }
}

#[test]
fn a_device_that_does_not_answer_a_withdrawal_is_given_up() {
    let (mut disk, mut port) = ready(Fake::small());
    port.device.ignores_cancel = true;
    port.device.wrong(Wrong::Silence(Silent::Data));
    let dead = Err(DiskError::Transport(TransportFault::Unanswered));
    assert_eq!(read(&mut disk, &mut port, 0, 512), dead);
    let turns = port.turns;
    assert_eq!(read(&mut disk, &mut port, 0, 512), dead);
    assert_eq!(port.turns, turns, "nothing is tried any more");
}

#[test]
fn a_device_that_goes_is_gone_at_once() {
    for code in [READ, WRITE] {
        let (mut disk, mut port) = ready(Fake::small());
        port.device.wrong_at(code, Wrong::Gone);
        let before = port.now;
        let result = if code == READ {
            read(&mut disk, &mut port, 0, 512).map(|_| ())
        } else {
            write(&mut disk, &mut port, 0, &stamp(512))
        };
        assert_eq!(result, Err(DiskError::Gone));
        assert_eq!(read(&mut disk, &mut port, 0, 512), Err(DiskError::Gone));
        assert_eq!(port.now, before, "without waiting");
    }
}
