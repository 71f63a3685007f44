//! What a client of a page gets ends with its token: when that is revoked, and when it expires.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, wait_until};
use super::page::{Page, open_page};
use super::page_actions::{get, post};
use super::page_tokens::make;

/// A stream of events for the bearer of a token, of which the first bytes have come.
fn follow(page: &Page, path: &str, token: &str) -> TcpStream {
    try_follow(page, path, token).unwrap_or_else(|refused| panic!("{refused}"))
}

/// Opens such a stream. The error is how the answer begins that refuses it.
fn try_follow(page: &Page, path: &str, token: &str) -> Result<TcpStream, String> {
    let mut stream = page.connect();
    let host = &page.address;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    if &head == b"HTTP/1.1 200 OK" { Ok(stream) } else { Err(String::from_utf8_lossy(&head).into_owned()) }
}

/// Reads until the connection ends; returns when it did.
fn end_of(mut stream: TcpStream) -> Instant {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
    Instant::now()
}

#[test]
fn streams_end_after_their_token_was_revoked_and_those_of_others_go_on() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let good = make(&harness, &["--scope", "read"]);
    let mut kept = follow(&page, "/events", &good);
    let rounds = ["eve", "mallory", "trudy"].map(|name| {
        let bad = make(&harness, &["--scope", "read", "--name", name]);
        let streams: Vec<TcpStream> = ["/events", "/api/v1/events", "/events?view=%2F&version=0"]
            .into_iter()
            .map(|path| follow(&page, path, &bad))
            .collect();
        std::thread::scope(|scope| {
            let readers: Vec<_> = streams.into_iter().map(|stream| scope.spawn(|| end_of(stream))).collect();
            assert_eq!(harness.run(&["page", "token", "revoke", name]).code, Some(0));
            let revoked = Instant::now();
            let ended = readers.into_iter().map(|reader| reader.join().unwrap().saturating_duration_since(revoked));
            ended.max().expect("there are streams")
        })
    });
    println!("the last ended after {rounds:?}");
    let mut read = Vec::new();
    let mut wait_for = |count: usize| {
        while String::from_utf8_lossy(&read).matches("event: status").count() < count {
            let mut bytes = [0; 4096];
            let came = kept.read(&mut bytes).unwrap();
            assert!(came > 0, "it has ended");
            read.extend_from_slice(&bytes[..came]);
        }
    };
    wait_for(1);
    let _share = harness.share(&["zero"]);
    wait_for(2);
}

#[test]
fn a_stream_ends_after_its_token_has_expired_and_not_before() {
    let harness = Harness::new();
    let page = open_page(&harness);
    // A machine that stands still may disturb all rounds but one.
    let rounds = ["2s", "3s", "4s"].map(|expires| {
        let asked_at = Instant::now();
        let token = make(&harness, &["--scope", "read", "--expires", expires]);
        let made = Instant::now();
        let stream = try_follow(&page, "/events", &token).ok()?;
        let ended = end_of(stream);
        // It was made between these two moments, which a busy machine puts apart.
        Some((ended.duration_since(asked_at), ended.duration_since(made)))
    });
    println!("ended after {rounds:?}");
    assert!(rounds.iter().any(Option::is_some), "none was there before its token had expired: {rounds:?}");
    // It expires in its last second: the file counts whole ones.
    let early = |(expires_s, ended): (u64, &Option<(Duration, Duration)>)| {
        ended.is_some_and(|(since_asked, _)| since_asked <= Duration::from_secs(expires_s - 1))
    };
    assert!(!(2..).zip(&rounds).any(early), "{rounds:?}");
}

#[test]
fn a_recording_ends_after_the_token_that_began_it_was_revoked() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let page = open_page(&harness);
    let given = json!({ "target": share.target("keyboard") }).to_string();
    let times = ["eve", "mallory", "trudy"].map(|name| {
        let token = make(&harness, &["--scope", "observe", "--name", name]);
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        let begun = post(&page, "/api/v1/actions/observe", &headers, &given);
        let begun: Value = serde_json::from_str(&begun.body).unwrap();
        let at = begun["at"].as_str().unwrap();
        assert!(get(&page, at)["pid"].is_u64(), "its command runs");
        assert_eq!(harness.run(&["page", "token", "revoke", name]).code, Some(0));
        let revoked = Instant::now();
        wait_until(PATIENCE, "its command has ended", || get(&page, at)["pid"].is_null());
        revoked.elapsed()
    });
    println!("ended after {times:?}");
}
