//! Reservations: which are refused and why, what the status shows, and that a daemon restart keeps them.

use std::thread;
use std::time::Duration;

use farbus::client::{ClientConfig, ImporterClient};
use farbus::model::{EpAddr, Urb, UrbStatus};
use farbus::reservation::ReservationRequest;
use serde_json::Value;

use super::driver::Driver;
use super::harness::{Harness, PATIENCE, wait_until};
use super::restart::{exporter, restart};
use super::trust::{Host, hosts, pair};

const LOW: &str = "bytes=256,period=1,criticality=low,endpoint=0x83";

/// The name and reservation state of each device that has a reservation, from the status.
fn reserved(host: &Host<'_>) -> Vec<(String, String)> {
    let status = host.json(&["status", "--json"]);
    let devices = status[0]["devices"].as_array().cloned().unwrap_or_default();
    let reserved = devices.iter().filter(|device| device["reservation"] != Value::Null);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    reserved.map(|device| (text(&device["name"]), text(&device["reservation"]["state"]))).collect()
}

fn as_told(driver: &mut Driver) -> Option<String> {
    driver.submit(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 64));
    assert_eq!(driver.wait().status, UrbStatus::Ok, "what is not reserved goes on");
    driver.linked.status().reserved().map(|reserved| format!("{:?}", reserved.state))
}

#[test]
fn impossible_reservation_is_refused_with_the_reason() {
    let harness = Harness::new();
    for (wish, why) in [
        ("zero:bytes=64,period=3", "a period of 3 intervals is no power of two; 2 serves it at least as often"),
        ("zero:bytes=2000,period=1", "976 too few"),
        ("zero:bytes=64,period=1,endpoint=0x87", "the device has no endpoint 0x87"),
        ("zero:bytes=65536,period=1,endpoint=0x81,criticality=low", "of an interval are missing"),
        ("none:bytes=64,period=1", "no device called 'none'"),
    ] {
        let refused = harness.run(&["share", "zero", "--listen", "127.0.0.1:0", "--reserve", wish]);
        assert!(refused.code == Some(3) && refused.stderr.contains(why), "{wish}: {refused:?}");
    }
    let keyboard =
        harness.run(&["share", "keyboard", "--listen", "127.0.0.1:0", "--reserve", "keyboard:bytes=9,period=8"]);
    assert!(keyboard.code == Some(3) && keyboard.stderr.contains("the wire carries 8"), "{keyboard:?}");
    let misread = harness.run(&["share", "zero", "--reserve", "bytes=64,period=1"]);
    assert!(misread.code == Some(2), "{misread:?}");
    // The same request from an importer.
    let share = harness.share(&["zero"]);
    let ReservationRequest(odd) = "bytes=64,period=3".parse().unwrap();
    let reserving =
        |reservation| ImporterClient::new(ClientConfig { reservation: Some(reservation), ..ClientConfig::default() });
    let client = reserving(odd);
    let refused = client.session(&share.library_target("zero"), Duration::from_secs(5)).err().expect("it cannot be");
    assert!(refused.to_string().contains("it cannot be reserved: endpoint 0x83: a period of 3"), "{refused}");
    let ReservationRequest(quick) = "bytes=64,period=1,latency=10us".parse().unwrap();
    let client = reserving(quick);
    let refused = client.session(&share.library_target("zero"), Duration::from_secs(5)).err().expect("it is too slow");
    assert!(refused.to_string().contains("ms are missing: data are there after"), "{refused}");
    let usual = harness.run(&["attach", &share.target("zero"), "--via", "redir", "--reserve", "bytes=64,period=3"]);
    assert!(usual.code == Some(3) && usual.stderr.contains("no power of two"), "{usual:?}");
}

/// 64 packets each microframe are 524 MB/s: more than a SuperSpeed wire carries, and less than by eight bits a byte.
#[test]
fn reservation_above_what_the_wire_carries_is_refused() {
    const ABOVE: &str = "bytes=65536,period=1,endpoint=0x81,criticality=low";
    let harness = Harness::new();
    let share = harness.share(&["zero,speed=super"]);
    let session = |reservation: &str| {
        let ReservationRequest(reservation) = reservation.parse().unwrap();
        let client = ImporterClient::new(ClientConfig { reservation: Some(reservation), ..ClientConfig::default() });
        client.session(&share.library_target("zero"), Duration::from_secs(5)).map(drop).map_err(|why| why.to_string())
    };
    let refusal = session(ABOVE).expect_err("the wire carries 57 packets");
    assert!(refusal.contains("of an interval are missing"), "{refusal}");
    session("bytes=49152,period=1,endpoint=0x81").expect("it carries 48");
    // From a paired host, by the daemon.
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "zero"]);
    let (_daemon, _, secure) = exporter(&harness, &lab3, "{what='zero,speed=super'}");
    let refused = desk.run(&["attach", "lab3/zero", "--via", "redir", "--address", &secure, "--reserve", ABOVE]);
    assert!(refused.code == Some(3) && refused.stderr.contains("of an interval are missing"), "{refused:?}");
}

#[test]
fn reservations_survive_a_daemon_restart() {
    let harness = Harness::new();
    let [lab3, _] = hosts(&harness);
    let stream = "{what='zero,speed=full'}";
    let owned = "{what='zero,speed=full', name='mine', reserve=['bytes=256,period=1,endpoint=0x83']}";
    let (_daemon, plain, _) = exporter(&harness, &lab3, &format!("{stream}, {stream}, {stream}, {stream}, {owned}"));
    let admitted =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "admitted".to_owned())).collect::<Vec<_>>();
    assert_eq!(reserved(&lab3), admitted(&["mine"]));
    let mut low = ["zero", "zero2", "zero3"].map(|name| Driver::reserving(&plain, name, LOW));
    assert_eq!(reserved(&lab3), admitted(&["zero", "zero2", "zero3", "mine"]));
    let mut later = vec![restart(&lab3, 3)];
    wait_until(PATIENCE, "all is as it was", || reserved(&lab3) == admitted(&["zero", "zero2", "zero3", "mine"]));
    // The bus carries four streams: another one of high criticality suspends the last that came.
    let mut high = Driver::reserving(&plain, "zero4", &LOW.replace("low", "high"));
    wait_until(PATIENCE, "who came last is told", || as_told(&mut low[2]).as_deref() == Some("Suspended"));
    assert_eq!(as_told(&mut low[1]).as_deref(), Some("Admitted"));
    let text = lab3.run(&["status"]).stdout;
    assert!(text.contains("zero3: reserved, low, suspended, bus: 135.503 us of an interval missing"), "{text}");
    low[2].submit(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 64));
    assert_eq!(low[2].wait().status, UrbStatus::Ok);
    later.push(restart(&lab3, 4));
    let suspended =
        |host: &Host<'_>| reserved(host).iter().any(|(name, state)| name == "zero3" && state == "suspended");
    wait_until(PATIENCE, "it still is", || suspended(&lab3) && reserved(&lab3).len() == 5);
    assert_eq!(as_told(&mut low[2]).as_deref(), Some("Suspended"));
    let others = [&mut high].into_iter().chain(&mut low[..2]);
    others.for_each(|driver| assert_eq!(as_told(driver).as_deref(), Some("Admitted")));
    drop(high);
    wait_until(PATIENCE, "and goes on when there is room", || {
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(50));
        as_told(&mut low[2]).as_deref() == Some("Admitted")
    });
    assert_eq!(reserved(&lab3), admitted(&["zero", "zero2", "zero3", "mine"]));
}
