//! What the page does: by the command line that it shows, only when it is asked by its own page or by a program that
//! no page can be, and within its limits.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::page::{Page, Reply, open_page, page_of, send};
use super::page_schema::Description;
use super::trust::three;

/// What a browser says of a request that the page's own script makes.
fn of_browser(page: &Page) -> String {
    format!("Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n", page.address)
}

/// The answer to a change that is asked for with these headers.
///
/// It is checked against the page's description of itself.
pub fn post(page: &Page, path: &str, headers: &str, body: &str) -> Reply {
    let (host, length) = (&page.address, body.len());
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    let reply = send(page.connect(), request.as_bytes());
    check(page, "post", path, &reply);
    reply
}

/// Fails unless the page describes such an answer.
pub fn check(page: &Page, method: &str, path: &str, reply: &Reply) {
    let description = page.get("/api/v1/openapi.json", "");
    let description = Description(serde_json::from_str(&description.body).unwrap());
    let path = path.split('?').next().unwrap();
    let part = |part: &str| {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) { "{id}" } else { part }.to_owned()
    };
    let path = match path.strip_prefix('/').map(|path| path.split('/').map(part).collect::<Vec<_>>().join("/")) {
        Some(path) => format!("/{path}"),
        None => path.to_owned(),
    };
    let kind = reply.head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    if let Err(why) = description.check(&path, method, reply.status, kind, &reply.body) {
        panic!("{why}");
    }
}

/// Does an action as the page's own script does; returns the status and the answer.
pub fn act(page: &Page, action: &str, given: &Value) -> (u16, Value) {
    let reply = post(page, &format!("/api/v1/actions/{action}"), &of_browser(page), &given.to_string());
    let answer = serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("{action}: {reply:?}"));
    (reply.status, answer)
}

/// Changes something without parameters as the page's own script does; returns the status.
pub fn act_at(page: &Page, path: &str) -> u16 {
    post(page, path, &of_browser(page), "{}").status
}

/// What the page says there.
/// Checked against its description.
pub fn get(page: &Page, path: &str) -> Value {
    let reply = page.get(path, "");
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    check(page, "get", path, &reply);
    serde_json::from_str(&reply.body).unwrap()
}

/// Ends every command that the page has begun and that still runs: what it shares and attaches goes on without it.
pub fn end_all(page: &Page) {
    let running = || -> Vec<u64> {
        let answer = get(page, "/api/v1/operations");
        let all = answer["operations"].as_array().unwrap();
        let with_process = all.iter().filter(|operation| operation["pid"].is_u64());
        with_process.map(|operation| operation["id"].as_u64().unwrap()).collect()
    };
    wait_until(PATIENCE, "no command of the page runs", || {
        let left = running();
        for id in &left {
            // It may have ended meanwhile.
            post(page, &format!("/api/v1/operations/{id}/stop"), &of_browser(page), "{}");
        }
        left.is_empty()
    });
}

/// Waits until an operation is not running any more; returns it.
pub fn ended(page: &Page, begun: &(u16, Value)) -> Value {
    assert_eq!(begun.0, 202, "{begun:?}");
    let at = begun.1["at"].as_str().unwrap();
    let mut now = Value::Null;
    wait_until(PATIENCE, "the operation is done", || {
        now = get(page, at);
        now["state"] != "running"
    });
    now
}

/// For how long a page waits for an action that takes seconds.
const BRIEF_TIME_MAX: Duration = Duration::from_secs(30);

/// What came of an action that takes seconds, once it is done. A page answers before if it takes longer than that,
/// as on a machine that stands still meanwhile.
pub fn done(page: &Page, action: &str, given: &Value) -> Value {
    let asked_at = Instant::now();
    let done = match act(page, action, given) {
        (200, done) => done,
        begun => {
            assert!(asked_at.elapsed() >= BRIEF_TIME_MAX, "{action} was not waited for: {begun:?}");
            ended(page, &begun)
        }
    };
    assert_eq!(done["state"], "done", "{action}: {done}");
    done
}

/// The state of the device with this name, as the processes of the harness say it.
fn state_of(harness: &Harness, device: &str) -> Option<String> {
    let status = harness.json(&["status", "--json"]);
    let devices = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    let mut found = devices.filter(|found| found["name"] == device && !found["bus_id"].is_null());
    found.next().map(|found| found["state"].as_str().unwrap().to_owned())
}

fn wait_for_state(harness: &Harness, device: &str, state: Option<&str>) {
    wait_until(PATIENCE, &format!("{device} is {state:?}"), || state_of(harness, device).as_deref() == state);
}

/// A command line in a shell that finds `farbus`.
pub fn by_shell(harness: &Harness, shell: &str, line: &str) -> Command {
    let programs = harness.path("bin");
    if !programs.exists() {
        std::fs::create_dir(&programs).unwrap();
        symlink(env!("CARGO_BIN_EXE_farbus"), programs.join("farbus")).unwrap();
    }
    let mut command = harness.command_of(Path::new("/usr/bin/env"), &[shell, "-c", line]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", programs.display()));
    command
}

#[test]
fn an_action_and_the_command_line_that_it_shows_do_the_same() {
    let harness = Harness::new();
    let image = harness.image("a b.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let page = open_page(&harness);
    let socket = harness.path("it's nbd");
    let attach = json!({ "target": share.target("disk"), "via": "nbd", "socket": socket });

    let attached = ended(&page, &act(&page, "attach", &attach));
    assert_eq!(attached["state"], "done", "{attached}");
    assert_eq!(state_of(&harness, "disk").as_deref(), Some("in use"));
    let typed = attached["command"].as_str().unwrap();
    assert_eq!(
        typed,
        format!("farbus attach {} --via=nbd --socket='{}'", share.target("disk"), {
            socket.to_str().unwrap().replace('\'', r"'\''")
        })
    );
    let offered = get(&page, "/api/v1/attachments")["devices"][0]["actions"][0].clone();
    assert_eq!(offered["action"], "detach");
    let (status, detached) = act(&page, "detach", &offered["parameters"]);
    assert_eq!((status, detached["command"].as_str()), (200, offered["command"].as_str()), "{detached}");
    wait_for_state(&harness, "disk", Some("available"));

    // The same again, typed.
    let typed = Running::start(by_shell(&harness, "sh", typed));
    wait_for_state(&harness, "disk", Some("in use"));
    let release = json!({ "device": "disk", "reason": "it is mine; $(reboot)", "force": true });
    let released = done(&page, "release", &release);
    drop(typed);
    wait_for_state(&harness, "disk", Some("available"));
    let history = |harness: &Harness| {
        let status = harness.json(&["status", "--json"]);
        let shares = status.as_array().unwrap().iter().filter(|process| process["role"] == "share");
        shares.map(|process| process["devices"][0]["history"][0]["remark"].clone()).next().unwrap()
    };
    let remark = history(&harness);
    let again = ended(&page, &act(&page, "attach", &attach));
    assert_eq!(again["state"], "done", "{again}");
    let line = released["command"].as_str().unwrap();
    let typed = super::harness::finish(by_shell(&harness, "sh", line), PATIENCE);
    assert_eq!(typed.code, Some(0), "{line}: {typed:?}");
    wait_for_state(&harness, "disk", Some("available"));
    assert_eq!(history(&harness), remark);
    let audited = harness.run(&["audit", "--json", "--all"]).stdout;
    let line = |event: &str| audited.lines().any(|line| line.contains(event) && line.contains("\"address\":\"page\""));
    assert!(line("page-attach") && line("page-detach") && line("page-release"), "{audited}");
}

#[test]
fn three_hosts_allow_attach_and_migrate_through_their_pages() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let (_share, address) = lab3.share(&[&format!("disk:{},name=disk", image.display())]);
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &address]);
    }
    let [at_lab3, at_desk, at_rack] =
        [lab3, desk, rack].map(|host| page_of(host.command(&["page", "--listen", "127.0.0.1:0"])));
    let may_use = |name: &str| {
        let hosts = get(&at_lab3, "/api/v1/hosts");
        let found = hosts["paired"].as_array().unwrap().iter().find(|host| host["name"] == name).unwrap().clone();
        found["may_use"].clone()
    };
    for (action, device, left) in [("forbid", "all", json!([])), ("allow", "disk", json!(["disk"]))] {
        let (status, done) = act(&at_lab3, action, &json!({ "host": "desk", "device": device }));
        assert_eq!(
            (status, done["command"].as_str()),
            (200, Some(&*format!("farbus {action} desk {device}"))),
            "{done}"
        );
        assert_eq!(may_use("desk"), left);
    }
    let attach = |page: &Page, name: &str, wait: u64| {
        let given = json!({ "target": "lab3/disk", "via": "nbd", "socket": harness.path(name), "wait": wait });
        act(page, "attach", &given)
    };
    let attached = ended(&at_desk, &attach(&at_desk, "desk.nbd", 0));
    assert_eq!(attached["state"], "done", "{attached}");
    let offered = get(&at_desk, "/api/v1/attachments")["devices"][0]["actions"].clone();
    let migrate = offered.as_array().unwrap().iter().find(|offer| offer["action"] == "migrate").unwrap().clone();
    assert_eq!(migrate["missing"], json!(["to"]), "{offered}");
    let waits = attach(&at_rack, "rack.nbd", 60);
    let mut given = migrate["parameters"].clone();
    given["to"] = json!("rack");
    let migrated = ended(&at_desk, &act(&at_desk, "migrate", &given));
    assert_eq!(migrated["state"], "done", "{migrated}");
    assert!(migrated["command"].as_str().unwrap().ends_with("/disk --to=rack"), "{migrated}");
    assert_eq!(ended(&at_rack, &waits)["state"], "done");
    let user = |page: &Page| get(page, "/api/v1/shares")["devices"][0]["device"]["user"].clone();
    wait_until(PATIENCE, "rack has it", || user(&at_lab3).as_str().is_some_and(|user| user.starts_with("rack")));
    let id = waits.1["id"].as_u64().unwrap();
    let stop = post(&at_rack, &format!("/api/v1/operations/{id}/stop"), &of_browser(&at_rack), "{}");
    assert_eq!(stop.status, 202, "{stop:?}");
    wait_until(PATIENCE, "it is free", || user(&at_lab3).is_null());
}

#[test]
fn a_share_that_the_page_began_goes_on_without_it_and_is_stopped_through_it() {
    let harness = Harness::new();
    let mut page = open_page(&harness);
    let shared = ended(&page, &act(&page, "share", &json!({ "what": "zero" })));
    assert_eq!((&shared["state"], &shared["command"]), (&json!("done"), &json!("farbus share zero")), "{shared}");
    assert_eq!(state_of(&harness, "zero").as_deref(), Some("available"));
    let at = format!("/api/v1/operations/{}/stop", shared["id"]);
    let stopped = post(&page, &at, &of_browser(&page), "{}");
    assert!(stopped.status == 202 && stopped.body.contains("\"stopped_by\":\"kill "), "{stopped:?}");
    wait_for_state(&harness, "zero", None);
    wait_until(PATIENCE, "its process has ended", || get(&page, &at.replace("/stop", ""))["pid"].is_null());
    assert_eq!(post(&page, &at, &of_browser(&page), "{}").status, 404, "it has ended");

    let kept = ended(&page, &act(&page, "share", &json!({ "what": "keyboard" })));
    page.process.signal(Signal::INT);
    assert_eq!(page.process.wait_for_end(PATIENCE), Some(0), "{}", page.process.log());
    assert_eq!(state_of(&harness, "keyboard").as_deref(), Some("available"));
    let pid = i32::try_from(kept["pid"].as_u64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    wait_for_state(&harness, "keyboard", None);
}

#[test]
fn a_swap_answers_at_once_and_its_progress_and_end_are_events() {
    let harness = Harness::new();
    let (old, new) = (harness.image("old.img", 8 << 20), harness.path("new.img"));
    let _share = harness.share(&[&format!("disk:{},name=disk", old.display())]);
    let page = open_page(&harness);
    let mut stream = page.connect();
    let request = format!("GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.to_lowercase() == "content-type: text/event-stream"));
    assert!(lines.any(|line| line == "event: status"), "the processes are asked for it");
    let to = format!("block:{}", new.display());
    let (status, begun) = act(&page, "swap", &json!({ "device": "disk", "to": to, "rate": "4M" }));
    assert_eq!((status, &begun["state"]), (202, &json!("running")), "{begun}");
    let operations = lines.filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let of_it: Vec<Value> = {
        let mut of_it = Vec::new();
        for event in operations.filter(|event| event["id"] == begun["id"]) {
            let is_end = event["state"] != "running";
            of_it.push(event);
            if is_end {
                break;
            }
        }
        of_it
    };
    assert_eq!(of_it.last().unwrap()["state"], "done", "{of_it:?}");
    assert!(of_it.iter().any(|event| event["progress"]["total_bytes"] == 8 << 20), "{of_it:?}");
    let operation = get(&page, begun["at"].as_str().unwrap());
    assert_eq!(operation["answer"]["to"], to.as_str(), "{operation}");
    assert_eq!(operation["command"], format!("farbus swap disk --to={to} --rate=4M"));
}

#[test]
fn a_swap_is_cancelled_and_a_module_is_paused_as_the_page_offers() {
    let harness = Harness::new();
    let (old, new) = (harness.image("old.img", 64 << 20), harness.path("new.img"));
    let share = harness.share(&[&format!("disk:{},name=disk", old.display())]);
    let page = open_page(&harness);
    let socket = harness.path("nbd");
    let arguments =
        ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap(), "--module", "pause"];
    let attached = Running::start(harness.command(&arguments));
    attached.wait_for_line("attached as");
    let attached = get(&page, "/api/v1/attachments")["devices"][0].clone();
    let offer = |name: &str| {
        let offers = attached["actions"].as_array().unwrap();
        offers.iter().find(|offer| offer["action"] == name).unwrap_or_else(|| panic!("{attached}")).clone()
    };
    for name in ["module-pause", "module-resume"] {
        let (status, done) = act(&page, name, &offer(name)["parameters"]);
        assert_eq!((status, &done["command"]), (200, &offer(name)["command"]), "{done}");
    }
    let to = format!("block:{}", new.display());
    let begun = act(&page, "swap", &json!({ "device": "disk", "to": to, "rate": "1M" }));
    wait_until(PATIENCE, "it is copied", || {
        get(&page, begun.1["at"].as_str().unwrap())["progress"]["state"] == "running"
    });
    let (status, cancelled) = act(&page, "swap-cancel", &json!({ "device": "disk" }));
    assert_eq!((status, &cancelled["command"]), (200, &json!("farbus swap --cancel disk")), "{cancelled}");
    let swapped = ended(&page, &begun);
    assert!(swapped["state"] == "failed" && swapped["failure"]["message"].is_string(), "{swapped}");
    let shared = get(&page, "/api/v1/shares")["devices"][0]["device"]["medium"].clone();
    assert_eq!((&shared["at"], &shared["is_swapping"]), (&json!(format!("block:{}", old.display())), &json!(false)));
}

#[test]
fn an_action_that_fails_says_why_and_one_that_is_wrong_is_not_begun() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let (status, failed) = act(&page, "unshare", &json!({ "device": "zero" }));
    assert_eq!((status, &failed["failure"]["attribute"]), (409, &json!("refused")), "{failed}");
    let (status, failed) = act(&page, "detach", &json!({ "device": "nothing" }));
    assert_eq!((status, &failed["failure"]["attribute"]), (404, &json!("gone")), "{failed}");
    let (status, failed) = act(&page, "allow", &json!({ "host": "nobody", "device": "zero" }));
    assert_eq!((status, &failed["failure"]["attribute"]), (404, &json!("gone")), "{failed}");
    let (status, failed) = act(&page, "detach", &json!({ "device": "zero", "force": true, "unmount": true }));
    assert_eq!(status, 400, "{failed}");
    assert!(failed["failure"]["message"].as_str().unwrap().contains("cannot be used with"), "{failed}");
    let count = get(&page, "/api/v1/operations")["operations"].as_array().unwrap().len();
    for (given, parameter) in [(json!({}), "device"), (json!({ "device": "zero", "keep_out": 1e9 }), "keep_out")] {
        let (status, wrong) = act(&page, "release", &given);
        assert_eq!((status, &wrong["wrong"]["parameter"]), (400, &json!(parameter)), "{wrong}");
    }
    for body in ["", "[]", "null", "{", "\"device\"", &format!("{}1{}", "[".repeat(5000), "]".repeat(5000))] {
        let reply = post(&page, "/api/v1/actions/release", &of_browser(&page), body);
        assert_eq!((reply.status, reply.body.as_str()), (400, "the body is no object of JSON\n"), "{body}");
    }
    assert_eq!(get(&page, "/api/v1/operations")["operations"].as_array().unwrap().len(), count, "none was begun");
}

#[test]
fn a_hostile_name_is_no_command_neither_in_the_page_nor_in_a_shell() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let witness = harness.path("witness");
    for name in [
        format!("$(touch {})", witness.display()),
        format!("x;touch {}", witness.display()),
        format!("x\ntouch {}\n", witness.display()),
        "--help".to_owned(),
        "-f".to_owned(),
    ] {
        let (status, failed) = act(&page, "detach", &json!({ "device": name }));
        assert_eq!((status, &failed["failure"]["attribute"]), (404, &json!("gone")), "{failed}");
        let typed = super::harness::finish(by_shell(&harness, "bash", failed["command"].as_str().unwrap()), PATIENCE);
        assert_eq!(typed.code, Some(4), "{failed}: {typed:?}");
        assert!(!witness.exists(), "{failed}");
    }
}

#[test]
fn no_other_page_and_no_get_changes_anything() {
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let socket = harness.path("nbd");
    let arguments = ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let _attached = Running::start(harness.command(&arguments));
    wait_for_state(&harness, "disk", Some("in use"));
    let page = open_page(&harness);
    let own = format!("http://{}", page.address);
    let port = page.address.rsplit_once(':').unwrap().1;
    let (at, body) = ("/api/v1/actions/release", r#"{"device":"disk","force":true}"#);
    let json_type = "Content-Type: application/json\r\n";
    let from = |origin: &str, site: &str| format!("Origin: {origin}\r\nSec-Fetch-Site: {site}\r\n");
    let attacks = [
        (from("http://evil.example", "cross-site") + json_type, 403),
        (from("null", "cross-site") + json_type, 403),
        (from("null", "same-origin") + json_type, 403),
        (from(&format!("http://127.0.0.1:{}", 8000), "same-site") + json_type, 403),
        (from(&own, "same-site") + json_type, 403),
        (from(&own, "none") + json_type, 403),
        (format!("Origin: {own}\r\n{json_type}"), 403),
        (format!("Sec-Fetch-Site: same-origin\r\n{json_type}"), 403),
        (json_type.to_owned(), 403),
        (from(&own, "same-origin") + &from(&own, "same-origin") + json_type, 400),
        (from(&own, "same-origin") + "Content-Type: text/plain\r\n", 415),
        (from(&own, "same-origin") + "Content-Type: application/x-www-form-urlencoded\r\n", 415),
        (from(&own, "same-origin") + "Content-Type: multipart/form-data; boundary=x\r\n", 415),
        (from(&own, "same-origin"), 415),
    ];
    for (headers, status) in attacks {
        let refused = post(&page, at, &headers, body);
        assert_eq!(refused.status, status, "{headers}: {refused:?}");
        assert!(!refused.head.contains("access-control-allow"), "{refused:?}");
    }
    let rebound = format!(
        "POST {at} HTTP/1.1\r\nHost: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n\
         Sec-Fetch-Site: same-origin\r\n{json_type}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(send(page.connect(), rebound.as_bytes()).status, 421);
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let request = format!("{method} {at} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", page.address);
        let refused = send(page.connect(), request.as_bytes());
        assert!(refused.status == 405 && refused.head.contains("allow: post"), "{method}: {refused:?}");
    }
    let (host, browser) = (&page.address, of_browser(&page));
    let long = format!("POST {at} HTTP/1.1\r\nHost: {host}\r\n{browser}Content-Length: 1000000000\r\n\r\n{{");
    assert_eq!(send(page.connect(), long.as_bytes()).status, 413);
    let chunked = format!("POST {at} HTTP/1.1\r\nHost: {host}\r\n{browser}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(send(page.connect(), chunked.as_bytes()).status, 411);
    assert_eq!(state_of(&harness, "disk").as_deref(), Some("in use"));
    assert!(get(&page, "/api/v1/operations")["operations"].as_array().unwrap().is_empty(), "none was begun");
    let refused = harness.run(&["audit", "--refused", "--json", "--all"]).stdout;
    assert!(refused.contains("\"event\":\"page-change\"") && refused.contains("another page may not ask"), "{refused}");
    assert_eq!(post(&page, at, &of_browser(&page), body).status, 200, "the page itself may");
    page.assert_small();
}

#[test]
fn a_client_that_does_not_send_its_body_loses_its_connection_alone() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let (host, browser) = (&page.address, of_browser(&page));
    let half = format!(
        "POST /api/v1/actions/detach HTTP/1.1\r\nHost: {host}\r\n{browser}Content-Length: 16384\r\n\r\n{{\"device\":"
    );
    let mut slow = page.connect();
    slow.write_all(half.as_bytes()).unwrap();
    assert_eq!(act(&page, "detach", &json!({ "device": "x" })).0, 404, "others are answered meanwhile");
    let reply = send(slow, b"");
    assert_eq!((reply.status, reply.body.as_str()), (408, "the body came too slowly\n"), "{reply:?}");
}

#[test]
fn a_program_at_the_socket_changes_things_by_its_user_alone() {
    let harness = Harness::new();
    let process = Running::start(harness.command(&["page", "--socket"]));
    let line = process.wait_for_line("page at unix:");
    let path = line.split_whitespace().nth(2).unwrap().trim_start_matches("unix:").to_owned();
    let body = r#"{"what":"zero"}"#;
    let request = format!(
        "POST /api/v1/actions/share HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let begun = send(stream, request.as_bytes());
    assert!(begun.status == 202 && begun.head.contains("location: /api/v1/operations/1"), "{begun:?}");
    wait_for_state(&harness, "zero", Some("available"));
    let operation: Value = serde_json::from_str(&begun.body).unwrap();
    let pid = i32::try_from(operation["pid"].as_u64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    wait_for_state(&harness, "zero", None);
}

#[test]
fn a_client_of_numbered_events_that_comes_back_gets_what_it_has_missed() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let follow = |last: &str| {
        let mut stream = page.connect();
        let request = format!("GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n{last}\r\n", page.address);
        stream.write_all(request.as_bytes()).unwrap();
        BufReader::new(stream).lines().map(Result::unwrap)
    };
    let mut lines = follow("");
    assert!(lines.any(|line| line == "event: status"), "what there is now");
    assert_eq!(act(&page, "detach", &json!({ "device": "first" })).0, 404);
    let mut id = String::new();
    assert!(lines.any(|line| {
        if let Some(number) = line.strip_prefix("id: ") {
            number.clone_into(&mut id);
        }
        line.contains("\"state\":\"failed\"")
    }));
    drop(lines);
    assert_eq!(act(&page, "detach", &json!({ "device": "second" })).0, 404);
    let mut lines = follow(&format!("Last-Event-ID: {id}\r\n"));
    let next = lines.find(|line| line.contains("\"action\"")).unwrap();
    assert!(next.contains("second"), "{next}");
    let _share = harness.share(&["zero"]);
    assert!(lines.any(|line| line.contains("\"event\":\"shared\"") && line.contains("zero")), "what a process tells");
}

#[test]
fn every_route_that_is_described_is_there_and_answers_as_described() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    assert_eq!(act(&page, "detach", &json!({ "device": "nothing" })).0, 404, "an operation, and a line of the log");
    let description = get(&page, "/api/v1/openapi.json");
    let mut count = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let at = match path.as_str() {
            "/device/{id}" => format!("/device/{}?name=zero", get(&page, "/api/v1/status")[0]["pid"]),
            path => path.replace("{id}", "1"),
        };
        if ["/enter", "/enter.js", "/enter.css", "/api/v1/enter"].contains(&path.as_str()) {
            // These are there for browsers of other machines: page_remote.rs.
            let reply = page.get(&at, "");
            assert_eq!(reply.status, 404, "{path}: {reply:?}");
        } else if methods["post"].is_object() {
            let reply = post(&page, &at, &of_browser(&page), "{\"unknown\":1}");
            assert!([400, 404].contains(&reply.status), "{path}: {reply:?}");
            assert_eq!(page.get(&at, "").status, 405, "{path}");
        } else if path.ends_with("/events") {
            let head = format!("HEAD {at} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", page.address);
            assert_eq!(send(page.connect(), head.as_bytes()).status, 200, "{path}");
        } else {
            let reply = page.get(&at, "");
            // That operation has recorded nothing and shows nothing, and that process has nothing attached.
            let nothing = ["/recording", "/text", "/picture", "/latency/{id}"];
            let expected = match path.as_str() {
                path if nothing.iter().any(|end| path.ends_with(end)) => 404,
                path if path.ends_with("/latency") => 204,
                _ => 200,
            };
            assert_eq!(reply.status, expected, "{path}: {reply:?}");
            check(&page, "get", &at, &reply);
        }
        count += 1;
    }
    assert!(count >= 41, "{count}");
}
