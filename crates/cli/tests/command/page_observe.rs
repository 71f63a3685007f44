//! What a page shows of what devices send: to those who may observe, with a line in the audit log for each.

use std::fs;
use std::io::{Read, Write};

use farbus::client;
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, Running, Share, wait_until};
use super::observe::press;
use super::page::{Page, open_page};
use super::page_actions::{act, act_at, end_all, ended, get, post};
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
    end_all(&page);
}

/// Waits for the line of the audit log that is so; returns it.
fn audited(page: &Page, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    wait_until(PATIENCE, what, || {
        let audit = get(page, "/api/v1/audit");
        let lines = audit["lines"].as_array().unwrap();
        found = lines.iter().find(|line| is_it(line)).cloned().unwrap_or_default();
        !found.is_null()
    });
    found
}

#[test]
fn who_stops_an_operation_is_in_the_audit_log_and_who_may_observe_stops_its_own_alone() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let page = open_page(&harness);
    let observer = |name: &str| make(&harness, &["--scope", "observe", "--name", name]);
    let (eve, bob) = (observer("eve"), observer("bob"));
    let owner = make(&harness, &["--scope", "own", "--name", "lead"]);
    let given = json!({ "target": share.target("keyboard") }).to_string();
    let begin = || {
        let begun = post(&page, "/api/v1/actions/observe", &with(&eve), &given);
        assert_eq!(begun.status, 202, "{begun:?}");
        serde_json::from_str::<Value>(&begun.body).unwrap()
    };
    let stop =
        |of: &Value, token: &str| post(&page, &format!("{}/stop", of["at"].as_str().unwrap()), &with(token), "{}");
    let first = begin();
    let refused = stop(&first, &bob);
    assert_eq!((refused.status, refused.body.as_str()), (403, "this token may not stop that\n"));
    let line = audited(&page, "the refusal", |line| line["event"] == "page-change");
    assert_eq!((&line["address"], &line["outcome"]), (&json!("token bob"), &json!("refused")), "{line}");
    assert_eq!(stop(&first, &eve).status, 202);
    let second = begin();
    assert_eq!(stop(&second, &owner).status, 202, "an owner stops everybody's");
    let shared = act(&page, "share", &json!({ "what": "zero" })).1;
    ended(&page, &(202, shared.clone()));
    assert_eq!(stop(&shared, &owner).status, 202);
    for (operation, by) in [(&first, "token eve"), (&second, "token lead"), (&shared, "token lead")] {
        let named = format!("operation {}, ", operation["id"]);
        let line = audited(&page, &named, |line| {
            line["event"] == "page-stop" && line["why"].as_str().is_some_and(|why| why.starts_with(&named))
        });
        assert_eq!((&line["address"], &line["device"]), (&json!(by), &operation["subject"]), "{line}");
    }
    let line = audited(&page, "the end of the share", |line| line["event"] == "page-share-end");
    assert_eq!((&line["address"], &line["why"]), (&json!("page"), &json!("stopped by token lead")), "{line}");
}

#[test]
fn who_may_observe_makes_the_page_connect_to_nothing_that_it_does_not_list() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    // Another user's, whose processes the page does not know.
    std::fs::create_dir(harness.path("run2")).unwrap();
    let mut command = harness.command(&["share", "keyboard", "--observable", "--listen", "127.0.0.1:0"]);
    command.env("XDG_RUNTIME_DIR", harness.path("run2")).env("FARBUS_STATE", harness.path("state2"));
    let others = Share::follow(Running::start(command));
    let page = open_page(&harness);
    let (observer, owner) =
        (make(&harness, &["--scope", "observe", "--name", "eve"]), make(&harness, &["--scope", "own"]));
    let observe = |token: &str, target: &str| {
        post(&page, "/api/v1/actions/observe", &with(token), &json!({ "target": target }).to_string())
    };
    let socket = format!("unix:{}/x/keyboard", harness.path("run2").display());
    let by_name = share.target("keyboard").replace("127.0.0.1", "localhost");
    for target in [&others.target("keyboard"), &socket, &by_name, "keyboard", "lab3/keyboard", "198.51.100.1/keyboard"]
    {
        let refused = observe(&observer, target);
        let why = "this token observes devices that this page lists\n";
        assert_eq!((refused.status, refused.body.as_str()), (403, why), "{target}");
    }
    let line = audited(&page, "the refusal", |line| line["event"] == "page-change");
    assert_eq!((&line["address"], &line["outcome"]), (&json!("token eve"), &json!("refused")), "{line}");
    assert_eq!(get(&page, "/api/v1/operations")["operations"], json!([]), "nothing was begun");
    assert_eq!(observe(&observer, &share.target("keyboard")).status, 202);
    assert_eq!(observe(&owner, &others.target("keyboard")).status, 202, "the owner names what the owner likes");
    end_all(&page);
}

#[test]
fn recordings_of_one_who_may_observe_take_no_place_from_anothers() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let page = open_page(&harness);
    let eve = make(&harness, &["--scope", "observe", "--name", "eve"]);
    let given = json!({ "target": share.target("keyboard") });
    let owners = act(&page, "observe", &given);
    let id = owners.1["id"].as_u64().unwrap();
    let stop = |id: u64| {
        let stopped = act_at(&page, &format!("/api/v1/operations/{id}/stop"));
        assert_eq!(stopped, 202);
        let end = ended(&page, &(202, json!({ "at": format!("/api/v1/operations/{id}") })));
        assert_eq!(end["state"], "done", "{end}");
    };
    wait_until(PATIENCE, "it has begun", || !recording(&page, id, "").1.is_empty());
    stop(id);
    let mut last = 0;
    for _ in 0..12 {
        let begun = post(&page, "/api/v1/actions/observe", &with(&eve), &given.to_string());
        assert_eq!(begun.status, 202, "{begun:?}");
        last = serde_json::from_str::<Value>(&begun.body).unwrap()["id"].as_u64().unwrap();
        wait_until(PATIENCE, "it has begun", || !recording(&page, last, "").1.is_empty());
        stop(last);
    }
    assert_eq!(recording(&page, id, "").0, 200, "the owner's is kept");
    assert_eq!((recording(&page, last, "").0, recording(&page, last - 2, "").0), (200, 404), "its own oldest goes");
}

#[test]
fn what_a_page_shows_of_resting_devices_ends_with_a_page_that_is_killed() {
    let harness = Harness::new();
    // A stream that has sent its only frame rests as the others do.
    let share = harness.share(&["keyboard", "serial", "stream:pattern,size=64x48,rate=0.001", "--observable"]);
    let mut page = open_page(&harness);
    let begun = [("observe", "keyboard"), ("console", "serial"), ("picture", "stream")].map(|(action, device)| {
        let (status, begun) = act(&page, action, &json!({ "target": share.target(device) }));
        assert_eq!(status, 202, "{begun}");
        let observed = ["audit", "--json", "--device", device];
        wait_until(PATIENCE, "it is observed", || harness.run(&observed).stdout.contains("\"event\":\"observe\""));
        begun["pid"].as_u64().unwrap()
    });
    let runs = |pid: &u64| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    assert!(begun.iter().all(runs), "{begun:?}");
    page.process.kill();
    wait_until(PATIENCE, "each has ended", || !begun.iter().any(runs));
}
