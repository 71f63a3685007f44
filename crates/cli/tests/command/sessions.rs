//! Simultaneous and successive sessions: one user per device, ten sessions at once, and clients that are killed.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Instant;

use farbus::client::{self, ClientError};
use farbus::model::EpAddr;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, assert_quickest_is_noticed, wait_until};

const SOURCE: EpAddr = EpAddr::from_byte(0x81);
const SINK: EpAddr = EpAddr::from_byte(0x01);

#[test]
fn a_device_has_one_user_at_a_time() {
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let first = client::open(&share.library_target("disk")).unwrap();
    let second = harness.run(&["attach", &share.target("disk"), "--via", "fuse"]);
    assert!(second.code == Some(3) && second.stderr.contains("one user at a time"), "{second:?}");
    let refused = client::open(&share.library_target("1-1")).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
    drop(first);
    wait_until(PATIENCE, "the device is offered again", || client::open(&share.library_target("disk")).is_ok());
}

#[test]
fn ten_sessions_at_once_each_get_their_own_bytes() {
    const SESSIONS: usize = 10;
    let harness = Harness::new();
    let share = harness.share(&["zero,fill=mod63,verify"; SESSIONS]);
    let names = (1..=SESSIONS).map(|n| if n == 1 { "zero".to_owned() } else { format!("zero{n}") });
    let mut devices: Vec<_> = names.map(|name| client::open(&share.library_target(&name)).unwrap()).collect();
    let status = harness.json(&["status", "--json"]);
    let in_use = status[0]["devices"].as_array().unwrap().iter().filter(|device| device["state"] == "in use").count();
    assert_eq!(in_use, SESSIONS);
    thread::scope(|scope| {
        for (n, device) in devices.iter_mut().enumerate() {
            scope.spawn(move || {
                // Not a whole number of packets, and a different length for each session, so that mixed-up data is
                // found.
                let length = 50_000 + 7 * n as u32;
                for _ in 0..100 {
                    let data = device.data_in(SOURCE, length).unwrap();
                    let counts = (0..length).map(|at| (at % 512 % 63) as u8);
                    assert!(data.contiguous().iter().copied().eq(counts), "session {n}");
                    assert_eq!(device.data_out(SINK, data).unwrap(), length);
                }
            });
        }
    });
    drop(devices);
    wait_until(PATIENCE, "all are offered again", || {
        let status = harness.json(&["status", "--json"]);
        status[0]["devices"].as_array().unwrap().iter().all(|device| device["state"] == "available")
    });
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn child_that_reads_for_ever() {
    let Ok(target) = std::env::var("FARBUS_TEST_CHILD_READS") else { return };
    let mut device = client::open(&target.parse().unwrap()).unwrap();
    println!("reading now");
    loop {
        let data = device.data_in(SOURCE, 1 << 20).unwrap();
        assert_eq!(data.len(), 1 << 20);
    }
}

#[test]
fn client_killed_during_a_transfer_frees_its_device_without_a_timeout() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["sessions::child_that_reads_for_ever", "--exact", "--nocapture"]);
        command.env("FARBUS_TEST_CHILD_READS", share.target("zero"));
        let mut child = Running::start(command);
        child.wait_for_line("reading now");
        let bytes_in = || {
            let status = harness.json(&["status", "--json"]);
            status[0]["devices"][0]["meters"]["bytes_in"].as_u64().unwrap_or(0)
        };
        wait_until(PATIENCE, "bytes pass", || bytes_in() > 4 << 20);
        child.kill();
        let killed = Instant::now();
        wait_until(PATIENCE, "the device is offered again", || client::open(&share.library_target("zero")).is_ok());
        times.push(killed.elapsed());
        // The device that was just opened has to be free before the next child comes.
        let state = || harness.json(&["status", "--json"])[0]["devices"][0]["state"].clone();
        wait_until(PATIENCE, "it is free", || state() == "available");
    }
    assert_quickest_is_noticed(&times);
}

#[test]
fn trace_records_every_tap_of_every_request_with_its_time() {
    let harness = Harness::new();
    let file = harness.path("trace.jsonl");
    let share = harness.share(&["zero", "--trace", file.to_str().unwrap()]);
    let mut device = client::open(&share.library_target("zero")).unwrap();
    for _ in 0..10 {
        device.data_in(SOURCE, 4096).unwrap();
    }
    drop(device);
    // The trace is written when the session ends, one line of JSON per tap.
    let mut journeys = BTreeMap::<(String, u64), Vec<(String, u64)>>::new();
    wait_until(PATIENCE, "the trace is written", || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let taps = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        journeys.clear();
        for tap in taps.filter(|tap| tap["endpoint"] == SOURCE.as_byte()) {
            let key = (tap["peer"].as_str().unwrap().to_owned(), tap["seqnum"].as_u64().unwrap());
            let step = (tap["stage"].as_str().unwrap().to_owned(), tap["at_ns"].as_u64().unwrap());
            journeys.entry(key).or_default().push(step);
        }
        journeys.len() == 10
    });
    for (key, steps) in journeys {
        let stages: Vec<_> = steps.iter().map(|(stage, _)| stage.as_str()).collect();
        assert_eq!(stages, ["received", "submitted", "completed", "replied"], "{key:?}");
        // A device made of code answers within one turn of the session: its stages have times of their own.
        assert!(steps.is_sorted_by(|(_, earlier), (_, later)| earlier < later), "{key:?}: {steps:?}");
    }
}
