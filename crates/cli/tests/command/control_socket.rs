//! The control socket, spoken to by hand (docs/control.md): what it answers, and what garbage costs.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, assert_quickest_is_noticed};

fn socket(harness: &Harness) -> PathBuf {
    let folder = fs::read_dir(harness.path("run").join("farbus")).unwrap();
    let mut paths = folder.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|end| end == "sock")).expect("somebody runs")
}

fn connect(harness: &Harness) -> UnixStream {
    let stream = UnixStream::connect(socket(harness)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(harness: &Harness, question: &[u8]) -> Value {
    let mut stream = connect(harness);
    stream.write_all(question).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

#[test]
fn control_socket_admits_its_owner_only_and_names_its_protocol() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(socket(&harness)), mode(harness.path("run").join("farbus"))), (0o600, 0o700));
    let version = json!({ "protocol": 1, "farbus": env!("CARGO_PKG_VERSION") });
    assert_eq!(ask(&harness, b"{\"ask\":\"version\"}\n"), json!({ "ok": version }));
    assert_eq!(ask(&harness, b"{\"ask\":\"type\",\"device\":\"tape\",\"text\":\"x\"}\n"), json!("unknown"));
    let idle = ask(&harness, b"{\"ask\":\"release\",\"device\":\"zero\"}\n");
    assert_eq!(idle["failed"]["attribute"], "gone", "{idle}");
}

#[test]
fn control_socket_refuses_garbage_and_answers_the_next_client() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    for garbage in
        [&b"\n"[..], b"hello\n", b"\xff\xfe\0\n", b"{\"ask\":\"shutdown\"}\n", b"[[[[[[[[[[\n", b"{\"ask\":1}\n"]
    {
        let answer = ask(&harness, garbage);
        assert!(answer["refused"].as_str().unwrap().starts_with("not a question"), "{answer}");
    }
    let deep = [vec![b'['; 60_000], vec![b'\n']].concat();
    assert!(ask(&harness, &deep)["refused"].is_string());

    // More bytes than the socket accepts: it answers with an error and closes, whatever follows.
    let mut stream = connect(&harness);
    let mut sent = 0;
    let end = loop {
        match stream.write(&[b'x'; 4096]) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
        assert!(sent < 4 << 20, "it goes on listening");
    };
    assert!(matches!(end, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{end:?}");
    assert!(share.process.peak_kib() < 64 << 10);
    assert_eq!(harness.json(&["status", "--json"])[0]["devices"][0]["name"], "zero");
}

#[test]
fn a_client_that_asks_slowly_keeps_others_waiting_only_until_it_is_cut_off() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut slow = connect(&harness);
        let started = Instant::now();
        let dribble = std::thread::spawn(move || {
            // Each byte comes in time, but the request never ends.
            while slow.write_all(b" ").is_ok() {
                // waits: each byte comes in time and the request never ends; later bytes are no less slow
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = slow.read(&mut [0; 8]);
        });
        assert!(harness.json(&["status", "--json"])[0]["pid"].is_number());
        times.push(started.elapsed());
        dribble.join().unwrap();
    }
    // It is cut off after a second.
    assert_quickest_is_noticed(&times);
}
