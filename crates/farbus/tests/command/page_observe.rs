//! What a page shows of what devices send: to those who may observe, with a line in the audit log for each.

use std::io::{Read, Write};

use farbus::client;
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, wait_until};
use super::observe::press;
use super::page::{Page, open_page};
use super::page_actions::{act, ended, get, post};
use super::page_tokens::make;

fn with(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n")
}

/// The recording of an operation: its status, and its bytes.
fn recording(page: &Page, id: u64, headers: &str) -> (u16, Vec<u8>) {
    let (path, host) = (format!("/api/v1/operations/{id}/recording"), &page.address);
    let mut stream = page.connect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let status = std::str::from_utf8(&bytes[..head]).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    (status, bytes.split_off(head))
}

/// How often the bytes are in there.
fn count(of: &[u8], part: &[u8]) -> usize {
    of.windows(part.len()).filter(|window| *window == part).count()
}

#[test]
fn keys_are_recorded_for_those_who_may_observe_and_each_step_is_in_the_audit_log() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let page = open_page(&harness);
    let (reader, observer) =
        (make(&harness, &["--scope", "read"]), make(&harness, &["--scope", "observe", "--name", "eve"]));
    let given = json!({ "target": share.target("keyboard") }).to_string();
    let path = "/api/v1/actions/observe";
    assert_eq!(post(&page, path, &with(&reader), &given).status, 403);
    let begun = post(&page, path, &with(&observer), &given);
    assert_eq!(begun.status, 202, "{begun:?}");
    let begun: Value = serde_json::from_str(&begun.body).unwrap();
    let line = begun["command"].as_str().unwrap();
    assert!(line.starts_with("farbus observe --pcapng ") && line.ends_with("/keyboard"), "{line}");
    let id = begun["id"].as_u64().unwrap();
    // A section has begun when the exporter has said that it may be observed.
    wait_until(PATIENCE, "it has begun", || {
        recording(&page, id, &with(&observer)).1.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a])
    });
    let mut keyboard = client::open(&share.library_target("keyboard")).unwrap();
    assert_eq!(harness.run(&["type", "ab"]).code, Some(0));
    assert_eq!([press(&mut keyboard), press(&mut keyboard)], [4, 5], "the user has it as ever");
    let mut recorded = Vec::new();
    wait_until(PATIENCE, "both keys are recorded", || {
        recorded = recording(&page, id, &with(&observer)).1;
        count(&recorded, &[0, 0, 4, 0, 0, 0, 0, 0]) >= 1 && count(&recorded, &[0, 0, 5, 0, 0, 0, 0, 0]) >= 1
    });
    assert_eq!(recording(&page, id, &with(&reader)).0, 403);
    let text_of = |token: &str| page.get(&format!("/api/v1/operations/{id}/text"), &with(token));
    assert_eq!(text_of(&reader).status, 403);
    wait_until(PATIENCE, "both keys are read as text", || text_of(&observer).body == "ab");
    let stop = format!("/api/v1/operations/{id}/stop");
    assert_eq!(post(&page, &stop, &with(&reader), "{}").status, 403);
    assert_eq!(post(&page, &stop, &with(&observer), "{}").status, 202);
    let end = ended(&page, &(202, begun));
    assert_eq!(end["state"], "done", "{end}");
    assert_eq!(end["progress"]["is_full"], false, "{end}");
    let kept = recording(&page, id, &with(&observer)).1;
    assert_eq!(end["progress"]["bytes"].as_u64(), Some(kept.len() as u64), "it is kept after its end");
    for event in ["page-observe", "page-recording", "page-recording-text", "page-observe-end"] {
        let mut found = Value::Null;
        wait_until(PATIENCE, event, || {
            let audit = get(&page, "/api/v1/audit");
            let lines = audit["lines"].as_array().unwrap();
            found = lines.iter().find(|line| line["event"] == event).cloned().unwrap_or_default();
            !found.is_null()
        });
        assert_eq!((&found["address"], &found["outcome"]), (&json!("token eve"), &json!("ok")), "{found}");
    }
}

#[test]
fn who_may_observe_stops_nothing_else_and_records_nothing_that_its_owner_does_not_permit() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    let page = open_page(&harness);
    let observer = make(&harness, &["--scope", "observe"]);
    let shared = act(&page, "share", &json!({ "what": "zero" }));
    let stop = format!("{}/stop", shared.1["at"].as_str().unwrap());
    let refused = post(&page, &stop, &with(&observer), "{}");
    assert_eq!((refused.status, refused.body.as_str()), (403, "this token may not stop that\n"));
    let begun = act(&page, "observe", &json!({ "target": share.target("keyboard") }));
    let end = ended(&page, &begun);
    assert_eq!((&end["state"], &end["failure"]["attribute"]), (&json!("failed"), &json!("refused")), "{end}");
    assert!(end["failure"]["message"].as_str().unwrap().contains("--observable"), "{end}");
}
