//! The two ends of a bridge, each used by a host in a session of its own.

use farbus::model::{EpAddr, Payload, SetupPacket, TransferDirection, Urb, UrbId, UrbStatus};

use super::driver::Driver;
use super::harness::Harness;
use super::restart::{exporter, restart};
use super::trust::hosts;

const FRAMES_OUT: EpAddr = EpAddr::from_byte(0x02);
const FRAMES_IN: EpAddr = EpAddr::from_byte(0x82);
const RAW_OUT: EpAddr = EpAddr::from_byte(0x03);
const RAW_IN: EpAddr = EpAddr::from_byte(0x83);

fn network_on(host: &mut Driver) {
    let setup = SetupPacket { request_type: 1, request: 11, value: 1, index: 1, length: 0 };
    let set = host.ask(|id| Urb::control(id, setup, Payload::Empty));
    assert_eq!(set.status, UrbStatus::Ok);
}

/// An NCM block with one frame, as the specification lays it out.
fn block(frame: &[u8]) -> Vec<u8> {
    let length = (28 + frame.len()) as u16;
    let head = [b"NCMH".as_slice(), &[12, 0, 0, 0], &length.to_le_bytes(), &[12, 0]];
    let table = [b"NCM0".as_slice(), &[16, 0, 0, 0, 28, 0], &(frame.len() as u16).to_le_bytes(), &[0; 4]];
    [head.concat(), table.concat(), frame.to_vec()].concat()
}

#[test]
fn bridge_delivers_frames_and_raw_bytes_to_the_other_host() {
    let harness = Harness::new();
    let share = harness.share(&["bridge"]);
    let listed = harness.json(&["list", &share.address, "--json"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|device| device["name"].clone()).collect();
    assert_eq!(names, ["bridge-a", "bridge-b"], "{listed}");

    let [mut a, mut b] = ["bridge-a", "bridge-b"].map(|end| Driver::new(&share.address, end));
    network_on(&mut a);
    network_on(&mut b);
    let frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, 1, 2, 3];
    // The receiver waits before the other end sends, and is woken.
    b.submit(|id: UrbId| Urb::data_in(id, FRAMES_IN, 16_384));
    let sent = a.ask(|id| Urb::data_out(id, FRAMES_OUT, block(&frame).into()));
    assert_eq!((sent.status, sent.direction), (UrbStatus::Ok, TransferDirection::Out));
    let received = b.wait().payload.into_vec();
    assert!(
        received.starts_with(b"NCMH") && received.windows(frame.len()).any(|window| window == frame),
        "{received:?}"
    );

    for size in [1, 512, 100_000] {
        let bytes: Vec<u8> = (0..size).map(|at| at as u8).collect();
        a.submit(|id| Urb::data_in(id, RAW_IN, 1 << 17));
        let given = b.ask(|id| Urb::data_out(id, RAW_OUT, bytes.clone().into()));
        assert_eq!(given.status, UrbStatus::Ok);
        assert_eq!(a.wait().payload.into_vec(), bytes);
    }

    // Bytes that are no NCM block are counted and do no harm.
    let refused = a.ask(|id| Urb::data_out(id, FRAMES_OUT, vec![0xff; 64].into()));
    assert_eq!(refused.status, UrbStatus::Ok);
    let status = harness.json(&["status", "--json"]);
    let counts = &status[0]["devices"][0]["counts"];
    assert!(counts["frames"] == 1 && counts["blocks_refused"] == 1, "{status}");
    assert_eq!(status[0]["devices"][1]["counts"]["raw_bytes"], 100_513, "{status}");
}

#[test]
fn bridge_keeps_its_queued_bytes_when_the_daemon_restarts() {
    let harness = Harness::new();
    let [lab3, _] = hosts(&harness);
    let (daemon, plain, _) = exporter(&harness, &lab3, "{what='bridge',name='lab'}");
    let [mut a, mut b] = ["lab-a", "lab-b"].map(|end| Driver::new(&plain, end));
    let mut later = Vec::new();
    for round in 1..=3u8 {
        // One transfer was sent and not fetched; another was requested and not yet answered.
        let given = a.ask(|id| Urb::data_out(id, RAW_OUT, vec![round; 3000].into()));
        assert_eq!(given.status, UrbStatus::Ok);
        a.submit(|id| Urb::data_in(id, RAW_IN, 512));
        later.push(restart(&lab3, 2));
        let fetched = b.ask(|id| Urb::data_in(id, RAW_IN, 4096));
        assert_eq!(fetched.payload.into_vec(), vec![round; 3000], "round {round}\n{}", daemon.log());
        let answered = b.ask(|id| Urb::data_out(id, RAW_OUT, vec![!round; 9].into()));
        assert_eq!((answered.status, a.wait().payload.into_vec()), (UrbStatus::Ok, vec![!round; 9]), "round {round}");
    }
    assert!(a.linked.relinks() >= 3 && b.linked.relinks() >= 3);
}

#[test]
fn two_bridges_of_one_host_have_different_addresses_and_each_keeps_its_own() {
    let serials = |harness: &Harness, what: &[&str]| {
        let share = harness.share(what);
        let serial_of = |name: &str| {
            let mut host = Driver::new(&share.address, name);
            let address = SetupPacket { request_type: 0x80, request: 6, value: 0x0304, index: 0x0409, length: 255 };
            host.ask(|id| Urb::control(id, address, Payload::Empty)).payload.into_vec()
        };
        ["bridge-a", "bridge-b", "bridge2-a", "bridge2-b"].map(serial_of)
    };
    let harness = Harness::new();
    let first = serials(&harness, &["bridge", "bridge"]);
    assert!((0..4).all(|i| first[i].len() == 26 && !first[..i].contains(&first[i])), "{first:?}");
    assert_eq!(first, serials(&Harness::new(), &["bridge", "bridge"]), "after a restart, too");
    let refused = harness.run(&["share", "bridge,mac=1"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("id=TEXT"), "{refused:?}");
}
