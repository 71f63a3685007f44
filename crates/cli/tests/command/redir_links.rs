//! A guest's device in a session: links are lost and replaced below it, and the guest notices nothing.

use std::os::unix::net::UnixStream;

use farbus::model::{EpAddr, Payload};
use farbus_session::redir::usbredir::message::DataPacket;
use farbus_session::redir::usbredir::{RedirMessage, RedirStatus};

use super::cuts::{attach_through, share_through_a_cutter};
use super::harness::{Harness, PATIENCE, wait_until};
use super::redir::Guest;

/// Reads from the source endpoint, once for each id.
fn read_on(guest: &mut Guest<UnixStream>, ids: std::ops::Range<u64>) {
    for id in ids {
        let read = guest.bulk(id, 0x81, 60_000, Payload::Empty);
        assert_eq!((read.outcome, read.payload.into_vec()), (RedirStatus::Success, vec![0; 60_000]));
    }
}

#[test]
fn a_paired_hosts_device_stays_with_its_guest_while_links_are_cut() {
    let harness = Harness::new();
    let ([lab3, desk], _share, cutter) = share_through_a_cutter(&harness, "zero,verify");
    let socket = harness.path("guest.sock");
    let arguments = ["--via", "redir", "--socket", socket.to_str().unwrap()];
    let mut attach = attach_through(&desk, "zero", &cutter, &arguments, "20");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    // An interrupt stream runs meanwhile.
    guest.say(2, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x82)));
    for round in 0..4 {
        read_on(&mut guest, 100 * round..100 * round + 10);
        let before = cutter.links();
        cutter.cut();
        // A request to a device that has no link now.
        let (endpoint, outcome) = (EpAddr::from_byte(0x01), RedirStatus::Success);
        let payload: Payload = vec![0; 70_000].into();
        let packet = DataPacket { endpoint, outcome, length: 70_000, stream: 0, payload };
        guest.say(100 * round + 50, RedirMessage::Bulk(packet));
        let written = guest.hear_kind(|message| matches!(message, RedirMessage::Bulk(_)));
        let RedirMessage::Bulk(packet) = written.message else { unreachable!("it was looked for") };
        assert_eq!((written.id, packet.outcome, packet.length), (100 * round + 50, RedirStatus::Success, 70_000));
        wait_until(PATIENCE, "it has another link", || cutter.links() > before);
    }
    let status = desk.json(&["status", "--json"]);
    assert_eq!(status[0]["devices"][0]["state"], "attached", "{status}");
    // The guest is gone, and another finds the device reset.
    drop(guest);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    read_on(&mut guest, 3..5);
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    while guest.hear().is_some() {}
    let is_free = || lab3.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "it is given back", is_free);
}
