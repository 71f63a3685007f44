//! One user per device: what the second importer is told, how importers wait, and how an owner takes a device back.

use std::time::{Duration, Instant};

use farbus::client::{self, ClientConfig, ClientError, DeviceTarget, ImporterClient};
use rustix::process::Signal;
use serde_json::json;

use super::harness::{Harness, PATIENCE, Running, has_fuse, wait_until};

#[test]
fn second_importer_is_refused_and_told_who_uses_the_device_since_when() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let first = client::open(&share.library_target("zero")).unwrap();
    let listed = &harness.json(&["list", &share.address, "--json"])[0];
    assert_eq!((&listed["name"], &listed["state"]), (&json!("zero"), &json!("in use")));
    let user = listed["user"].as_str().unwrap().to_owned();
    assert!(user.starts_with("127.0.0.1:") && listed["used_s"].is_u64(), "{listed}");
    assert!(harness.run(&["list", &share.address]).stdout.contains(&user));

    let second = harness.run(&["attach", &share.target("zero"), "--via", "fuse", "--json"]);
    assert_eq!(second.code, Some(3), "{second:?}");
    let message = format!("farbus: refused: {} is in use by {user} since ", share.target("zero"));
    assert!(second.stderr.contains(&message), "{second:?}");
    let report: serde_json::Value = serde_json::from_str(&second.stdout).unwrap();
    assert_eq!(report["failure"]["attribute"], "refused");
    share.process.assert_logged(&format!("holder=\"{user}\""));
    drop(first);
    wait_until(PATIENCE, "it is free", || harness.json(&["list", &share.address, "--json"])[0]["state"] == "available");
}

#[test]
fn attach_with_wait_gets_the_device_when_it_is_free_or_gives_up_in_time() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 1 << 20).display())]);
    let first = client::import(&share.library_target("disk")).unwrap();
    let at = harness.path("at");
    let arguments = ["attach", &share.target("disk"), "--via", "fuse", "--at", at.to_str().unwrap()];

    let started = Instant::now();
    let gave_up = harness.run(&[&arguments[..], &["--wait=1"]].concat());
    assert!(gave_up.code == Some(3) && gave_up.stdout.contains("waiting for"), "{gave_up:?}");
    assert!(started.elapsed() >= Duration::from_secs(1));

    let mut waits = Running::start(harness.command(&[&arguments[..], &["--wait", "--reason", "a backup"]].concat()));
    waits.wait_for_line("waiting for");
    let device = || harness.json(&["status", "--json"])[0]["devices"][0].clone();
    wait_until(PATIENCE, "it is in the queue", || device()["waiting"][0]["host"] == "127.0.0.1");
    drop(first);
    waits.wait_for_line("attached as");
    wait_until(PATIENCE, "the exporter knows why", || device()["reason"] == "a backup");
    assert!(harness.run(&["status"]).stdout.contains("used for: a backup"));

    waits.signal(Signal::TERM);
    assert_eq!(waits.wait_for_end(PATIENCE), Some(0));
    wait_until(PATIENCE, "it is free", || device()["state"] == "available");
    let history = device()["history"].clone();
    assert_eq!((&history[0]["reason"], &history[0]["ended"]), (&json!("a backup"), &json!("detached")));

    let _third = client::import(&share.library_target("disk")).unwrap();
    let mut waits = Running::start(harness.command(&[&arguments[..], &["--wait"]].concat()));
    waits.wait_for_line("waiting for");
    waits.signal(Signal::INT);
    assert_eq!(waits.wait_for_shell_code(PATIENCE), 130, "a wait that a signal ends has not got the device");
}

#[test]
fn an_owner_takes_a_device_back() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 1 << 20).display()), "zero"]);
    let at = harness.path("at");
    let (mut attach, _) = harness.attach(&share.target("disk"), &at);
    for (device, code, part) in [("tape", 4, "no device called 'tape'"), ("zero", 4, "nobody uses 'zero'")] {
        let outcome = harness.run(&["release", device]);
        assert!(outcome.code == Some(code) && outcome.stderr.contains(part), "{outcome:?}");
    }
    let refused = harness.run(&["release", "disk"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--force"), "its user may write: {refused:?}");
    let released = harness.run(&["release", "disk", "--force", "--reason", "mine now", "--keep-out", "600"]);
    assert_eq!(released.code, Some(0), "{released:?}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());
    assert!(attach.log().contains("farbus: refused: ") && attach.log().contains("took it back"), "{}", attach.log());

    let refused = client::import(&share.library_target("disk")).map(|_| ()).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "kept out: {refused}");
    let history = harness.run(&["status", "--history"]).stdout;
    assert!(history.contains("taken back") && history.contains("mine now"), "{history}");
    share.process.assert_logged("taken back by its owner");
}

#[test]
fn two_hundred_devices_are_listed_and_cost_less_than_100_kib_each() {
    const DEVICES: usize = 200;
    let harness = Harness::new();
    let one = harness.share(&["zero"]);
    let started = Instant::now();
    let many = harness.share(&["zero"; DEVICES]);
    println!("{DEVICES} devices in {:?}", started.elapsed());
    let started = Instant::now();
    assert_eq!(client::list(&many.address).unwrap().len(), DEVICES);
    println!("listed in {:?}", started.elapsed());
    let (one, many_kib) = (one.process.peak_kib(), many.process.peak_kib());
    let each = many_kib.saturating_sub(one) / (DEVICES as u64 - 1);
    println!("{one} KiB with one, {many_kib} KiB with {DEVICES}: {each} KiB each");
    assert!(each < 100);

    let target: DeviceTarget = many.target("2-74").parse().unwrap();
    let last = client::open(&target).unwrap();
    let listed = harness.json(&["list", &many.address, "--json"]);
    assert_eq!((&listed[199]["name"], &listed[199]["state"]), (&json!("zero200"), &json!("in use")));
    drop(last);
}

/// The only shared device, as `farbus status` shows it.
fn only_device(harness: &Harness) -> serde_json::Value {
    harness.json(&["status", "--json"])[0]["devices"][0].clone()
}

#[test]
fn attach_that_cannot_show_the_device_does_not_take_it() {
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    for _ in 0..2 {
        let failed = harness.run(&["attach", &share.target("serial"), "--via", "fuse", "--grace", "20"]);
        assert!(failed.code == Some(6) && failed.stderr.contains("it is a serial port"), "{failed:?}");
        assert!(failed.stderr.contains("--via rfc2217"), "{failed:?}");
        assert!(failed.stderr.contains("--via kernel (needs vhci-hcd)"), "{failed:?}");
        let device = only_device(&harness);
        assert_eq!(device["state"], "available", "{device}");
        assert!(device["history"].is_null() && device["waiting"].is_null(), "nobody had it: {device}");
    }
}

#[test]
fn device_that_is_dropped_in_a_session_is_free_at_once_and_its_link_was_not_lost() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let client = ImporterClient::new(ClientConfig { grace: Some(Duration::from_secs(60)), ..ClientConfig::default() });
    let open = || client.open(&share.library_target("zero"));
    let first = open().unwrap();
    let refused = open().map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
    drop(first);
    drop(open().expect("the drop returned when the device was given back"));
    let ended: Vec<_> = only_device(&harness)["history"].as_array().unwrap().clone();
    assert_eq!(ended.iter().map(|past| &past["ended"]).collect::<Vec<_>>(), ["detached"; 2], "{ended:?}");
    assert!(!share.process.log().contains("WARN"), "{}", share.process.log());
}

#[test]
fn attempts_that_do_not_wait_are_not_shown_as_waiting() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let _first = client::import(&share.library_target("zero")).unwrap();
    for _ in 0..2 {
        let refused = harness.run(&["attach", &share.target("zero"), "--via", "redir"]);
        assert_eq!(refused.code, Some(3), "{refused:?}");
    }
    let device = only_device(&harness);
    assert!(device["waiting"].is_null(), "{device}");
}

#[test]
fn share_of_a_serial_port_says_what_its_user_needs() {
    let harness = Harness::new();
    let serial = harness.share(&["serial"]);
    let message = serial.process.wait_for_line("serial is a serial port");
    assert!(message.contains("modprobe vhci-hcd"), "{message}");
    let message = serial.process.wait_for_line("virtual machine");
    assert!(message.contains("--via rfc2217") && message.contains("redir for a virtual machine"), "{message}");
}
