//! The owner's commands: share, list, status, type, eject; and the exit code of each kind of failure.

use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use farbus::client;
use farbus::model::EpAddr;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::block;
use super::harness::{Harness, PATIENCE, Running, Share, has_fuse};
use super::observe::press;

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn list_shows_shared_devices_as_a_table_and_as_json() {
    let harness = Harness::new();
    let image = harness.image("a disk.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},ro", image.display()), "zero", "zero,speed=super", "keyboard"]);
    let listed = harness.json(&["list", &share.address, "--json"]);
    let expected = json!({
        "name": "disk", "bus_id": "1-1", "vendor": "0525", "product": "a4a5", "speed": "high",
        "interfaces": ["storage"], "path": "/farbus/disk", "state": "available",
    });
    assert_eq!(listed[0], expected);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disk", "zero", "zero2", "keyboard"]);
    let text = harness.run(&["list", &share.address]).stdout;
    for part in ["NAME", "zero2", "1-4", "0525:a4ac", "super", "keyboard"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_device_that_two_processes_share_under_one_name_is_meant_by_its_process() {
    let harness = Harness::new();
    let (first, second) = (harness.share(&["keyboard"]), harness.share(&["keyboard"]));
    let named = |share: &Share| format!("keyboard@{}", share.process.id());
    let unclear = harness.run(&["type", "a"]);
    assert_eq!(unclear.code, Some(3), "{unclear:?}");
    assert!(unclear.stderr.contains("'keyboard' is what 2 processes share: which is meant?"), "{unclear:?}");
    assert!([&first, &second].iter().all(|share| unclear.stderr.contains(&named(share))), "{unclear:?}");
    let used = |share: &Share| client::open(&share.library_target("keyboard")).unwrap();
    let (mut of_first, mut of_second) = (used(&first), used(&second));
    assert_eq!(harness.run(&["type", &named(&second), "b"]).code, Some(0));
    assert_eq!(harness.run(&["type", &named(&first), "a"]).code, Some(0));
    assert_eq!([press(&mut of_first), press(&mut of_second)], [4, 5]);
    assert_eq!(harness.run(&["release", &named(&second)]).code, Some(0));
    let history = harness.json(&["status", "--json"]).to_string();
    assert_eq!(history.matches("\"taken back\"").count(), 1, "{history}");
    assert_eq!(harness.run(&["type", "keyboard@1", "a"]).code, Some(4), "it has none");
    drop(first);
    assert_eq!(harness.run(&["type", "a"]).code, Some(0), "only one is left");
}

#[test]
fn what_this_machine_offers_to_paired_hosts_alone_is_named_and_not_asked_for_in_plain() {
    let harness = Harness::new();
    let ([lab3, _], _share) = block::share(&harness, &["keyboard", "zero"]);
    let listed = lab3.run(&["list"]);
    // The paired host is asked, and shares nothing.
    assert!(listed.code == Some(0) && !listed.stderr.contains("closed the connection"), "{listed:?}");
    assert!(!listed.stdout.contains("Nothing is offered here"), "{listed:?}");
    let expected = "This machine offers to paired hosts alone: keyboard, zero   (farbus status)";
    assert!(listed.stdout.contains(expected), "{listed:?}");
    let here = lab3.json(&["list", "--json"]);
    let silent: Vec<&Value> = here.as_array().unwrap().iter().map(|line| &line["host"]).collect();
    assert_eq!(silent, ["desk"], "{here}");
    let status = lab3.json(&["status", "--json"]);
    assert_eq!(status[0]["is_for_paired_hosts"], true, "{status}");
}

#[test]
fn status_shows_who_uses_what() {
    let harness = Harness::new();
    assert_eq!(harness.json(&["status", "--json"]), json!([]));
    let share = harness.share(&["zero"]);
    let idle = harness.json(&["status", "--json"]);
    assert_eq!(keys(&idle[0]), ["address", "devices", "pid", "role"]);
    assert_eq!((&idle[0]["role"], &idle[0]["address"]), (&json!("share"), &json!(share.address)));
    let device = &idle[0]["devices"][0];
    assert_eq!(
        keys(device),
        ["bus_id", "identity", "ids", "interfaces", "is_named", "name", "speed", "state", "title"]
    );
    assert_eq!(device["state"], "available");

    let mut zero = client::open(&share.library_target("zero")).unwrap();
    zero.data_in(EpAddr::from_byte(0x81), 100_000).unwrap();
    let used = harness.json(&["status", "--json"]);
    let device = &used[0]["devices"][0];
    assert_eq!(device["state"], "in use");
    assert!(device["user"].as_str().unwrap().starts_with("127.0.0.1:") && device["used_s"].is_number(), "{device}");
    assert!(device["meters"]["bytes_in"].as_u64().unwrap() >= 100_000, "{device}");
    assert!(harness.run(&["status"]).stdout.contains("in use"));
}

#[test]
fn status_counts_the_requests_of_a_disk_in_a_session_at_both_ends() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 4 << 20).display())]);
    let at = harness.path("at");
    let target = share.target("disk");
    let arguments = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--grace", "20"];
    let attach = Running::start(harness.command(&[&arguments[..], &["--cache", "none"]].concat()));
    attach.wait_for_line("attached as");
    let file = at.join("disk.img");
    assert_eq!(std::fs::read(&file).unwrap().len(), 4 << 20);
    let opened = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    opened.write_all_at(&[7; 65536], 0).unwrap();
    opened.sync_all().unwrap();
    drop(opened);
    let status = harness.json(&["status", "--json"]);
    for role in ["share", "attach"] {
        let process = status.as_array().unwrap().iter().find(|process| process["role"] == role).unwrap();
        let meters = &process["devices"][0]["meters"];
        assert!(meters["urbs"].as_u64().unwrap() >= 2, "{role}: {status}");
        assert!(meters["bytes_in"].as_u64().unwrap() >= 4 << 20, "{role}: {status}");
        assert!(meters["bytes_out"].as_u64().unwrap() >= 65536, "{role}: {status}");
    }
}

#[test]
fn status_shows_where_an_attachment_is_and_its_modules_and_detach_all_ends_every_one() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let disk = |name| format!("disk:{}", harness.image(name, 1 << 20).display());
    let share = harness.share(&[&disk("one"), &disk("two")]);
    let paths = ["one at", "two at"].map(|name| harness.path(name));
    let mut attached: Vec<_> = std::iter::zip(["disk", "disk2"], &paths)
        .map(|(name, at)| {
            let target = share.target(name);
            let arguments = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--grace", "20"];
            let attach = Running::start(harness.command(&[&arguments[..], &["--module", "zstd"]].concat()));
            attach.wait_for_line("attached as");
            attach
        })
        .collect();
    let status = harness.json(&["status", "--json"]);
    let process = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").unwrap();
    assert_eq!(process["devices"][0]["modules"], json!(["zstd"]), "{status}");
    let text = harness.run(&["status"]).stdout;
    assert!(text.contains("through modules: zstd"), "{text}");
    for at in &paths {
        assert!(text.contains(at.join("disk.img").to_str().unwrap()), "{text}");
    }
    assert_eq!(harness.run(&["detach", "disk", "--all"]).code, Some(2), "one of the two");
    let detached = harness.run(&["detach", "--all"]);
    assert_eq!(detached.code, Some(0), "{detached:?}");
    for attach in &mut attached {
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    }
    assert_eq!(harness.run(&["detach", "--all"]).code, Some(4), "nothing is attached any more");
}

#[test]
fn connection_that_its_own_user_closes_at_once_is_not_said_to_be_turned_away() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    for _ in 0..50 {
        drop(std::net::TcpStream::connect(&share.address).unwrap());
    }
    // The share has accepted all of them once it answers the next one.
    assert_eq!(harness.run(&["list", &share.address]).code, Some(0));
    assert!(!share.process.log().contains("turned away"), "{}", share.process.log());
}

#[test]
fn host_that_is_kept_out_is_told_so_and_a_released_one_hears_the_reason() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 1 << 20).display())]);
    let (at, target) = (harness.path("at"), share.target("disk"));
    let arguments = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--grace", "20"];
    let mut attach = Running::start(harness.command(&arguments));
    attach.wait_for_line("attached as");
    let released = harness.run(&["release", "disk", "--force", "--reason", "needed here", "--keep-out", "600"]);
    assert_eq!(released.code, Some(0), "{released:?}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());
    assert!(attach.log().contains("released by its owner: needed here"), "{}", attach.log());
    let kept_out = harness.run(&arguments);
    assert!(kept_out.code == Some(3) && !kept_out.stderr.contains("in use"), "{kept_out:?}");
    assert!(kept_out.stderr.contains("its owner keeps this host out for another "), "{kept_out:?}");
}

#[test]
fn typed_text_arrives_as_key_reports() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    assert_eq!(harness.run(&["type", "aB"]).code, Some(0), "nobody has to be there yet");
    let mut keyboard = client::open(&share.library_target("keyboard")).unwrap();
    let mut read = || keyboard.data_in(EpAddr::from_byte(0x81), 8).unwrap().into_vec();
    assert_eq!([read(), read()], [[0, 0, 4, 0, 0, 0, 0, 0], [0; 8]]);
    assert_eq!([read(), read()], [[2, 0, 5, 0, 0, 0, 0, 0], [0; 8]]);
    assert_eq!(harness.run(&["type", "--device", "keyboard", "c"]).code, Some(2), "DEVICE is a word, not an option");
    assert_eq!(harness.run(&["type", "keyboard", "c"]).code, Some(0));
    assert_eq!(read()[2], 6);
    let refused = harness.run(&["type", "é"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("no key for 'é'"), "{refused:?}");
}

#[test]
fn ejected_disk_returns_when_it_is_inserted() {
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    assert_eq!(harness.run(&["eject"]).code, Some(0));
    let attach = || harness.run(&["attach", &share.target("disk"), "--via", "fuse", "--at", "/dev/null"]);
    let without = attach();
    assert!(without.code == Some(6) && without.stderr.contains("medium"), "{without:?}");
    assert_eq!(harness.run(&["insert", "disk"]).code, Some(0));
    let with = attach();
    assert!(with.code == Some(1) && with.stderr.contains("not a folder"), "it gets as far as that: {with:?}");
}

#[test]
fn each_way_to_fail_has_its_exit_code() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let missing = harness.path("no such image");
    for (code, arguments, part) in [
        (1, &["share", &format!("disk:{}", missing.display())][..], "there is no such file"),
        (1, &["share", "zero", "--listen", &share.address], "another share"),
        (1, &["share", "zero", "--listen", "not an address"], "no address to listen at"),
        (4, &["attach", &share.target("tape")], "shares no 'tape'; it shares: zero"),
        (4, &["detach"], "nothing is attached here"),
        (4, &["type", "x"], "no device called 'keyboard'"),
        (5, &["list", &free.to_string()], "cannot connect"),
        (5, &["attach", &format!("{free}/disk")], "cannot connect"),
        (6, &["attach", &share.target("zero"), "--via", "fuse"], "is no disk"),
    ] {
        let outcome = harness.run(arguments);
        assert!(outcome.code == Some(code) && outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.lines().any(|line| line.starts_with("farbus: ")), "{outcome:?}");
    }
}

#[test]
fn a_missing_image_is_reported_before_a_taken_port_and_the_port_once() {
    let harness = Harness::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let missing = format!("disk:{}", harness.path("no such image").display());
    let outcome = harness.run(&["share", &missing, "--listen", &port]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("there is no such file"), "{outcome:?}");
    assert!(!outcome.stderr.contains("cannot listen"), "{outcome:?}");
    let outcome = harness.run(&["share", "zero", "--listen", &port]);
    assert_eq!((outcome.code, outcome.stderr.matches("cannot listen at").count()), (Some(1), 1), "{outcome:?}");
}

#[test]
fn values_that_cannot_be_had_in_full_are_warned_of() {
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("odd", 1000).display())]);
    share.process.assert_logged("cannot reach its last 488 bytes");
    let even = harness.share(&[&format!("disk:{}", harness.image("even", 1024).display())]);
    assert!(!even.process.log().contains("warning"), "{}", even.process.log());
    for (grace, is_warned) in [("1000", true), ("120", false)] {
        let outcome = harness.run(&["attach", &share.target("tape"), "--grace", grace]);
        assert_eq!(outcome.stderr.contains("exporters wait 120 s"), is_warned, "{outcome:?}");
    }
}

#[test]
fn what_an_owner_asks_is_answered_as_one_json_object() {
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display()), "keyboard", "zero"]);
    let _user = client::open(&share.library_target("zero")).unwrap();
    for (arguments, device) in [
        (&["eject", "disk"][..], "disk"),
        (&["insert", "disk"], "disk"),
        (&["type", "x"], "keyboard"),
        (&["release", "zero"], "zero"),
    ] {
        let answer = harness.json(&[arguments, &["--json"]].concat());
        assert_eq!((&answer["device"], &answer["done"]), (&device.into(), &arguments[0].into()), "{answer}");
    }
    for arguments in [
        &["eject", "tape"][..],
        &["insert", "tape"],
        &["type", "keyboard2", "x"],
        &["release", "tape"],
        &["detach", "tape"],
        &["hold", "tape"],
        &["resume", "tape"],
        &["module", "pause", "tape"],
        &["swap", "tape", "--cancel"],
        &["daemon", "reload"],
        &["unpair", "nobody"],
        &["allow", "nobody", "disk"],
        &["forbid", "nobody", "disk"],
    ] {
        let outcome = harness.run(&[arguments, &["--json"]].concat());
        let answer: Value =
            serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        assert_eq!((outcome.code, &answer["failure"]["attribute"]), (Some(4), &"gone".into()), "{outcome:?}");
    }
}

#[test]
fn an_image_is_shared_once() {
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("image", 1 << 20).display());
    let first = harness.share(&[&disk]);
    let second = harness.run(&["share", &disk, "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert_eq!(harness.json(&["list", &first.address, "--json"])[0]["name"], "disk");
}

#[test]
fn ctrl_c_ends_a_share_and_its_sessions() {
    let harness = Harness::new();
    let mut share = harness.share(&["zero"]);
    let mut zero = client::open(&share.library_target("zero")).unwrap();
    zero.set_timeout(Some(Duration::from_secs(5)));
    share.process.signal(Signal::INT);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0));
    zero.data_in(EpAddr::from_byte(0x81), 8).unwrap_err();
    assert_eq!(harness.json(&["status", "--json"]), json!([]), "its door is gone");
}
