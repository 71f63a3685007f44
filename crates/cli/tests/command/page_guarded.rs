//! What keeps users of a page apart: pages of two users of one machine, and strangers from the owner.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, finish};
use super::page::open_page;
use super::page_remote::{Remote, cookie_of, open, open_of};
use super::page_tokens::make;

/// The pages of two users of one machine.
fn of_two_users(harness: &Harness) -> (Remote, Remote) {
    fs::create_dir(harness.path("run2")).unwrap();
    (open(harness), open_of(harness, "run2", "state2"))
}

/// A code of the second user's page.
fn invite_second(harness: &Harness) -> String {
    let mut command = harness.command(&["page", "invite", "--json"]);
    command.env("XDG_RUNTIME_DIR", harness.path("run2")).env("FARBUS_STATE", harness.path("state2"));
    let answer: Value = serde_json::from_str(&finish(command, PATIENCE).stdout).unwrap();
    answer["url"].as_str().unwrap().split_once('#').unwrap().1.to_owned()
}

#[test]
fn cookies_of_two_users_pages_of_one_machine_have_two_names_and_each_page_takes_its_own() {
    let harness = Harness::new();
    let (first, second) = of_two_users(&harness);
    let cookie = first.let_in(&harness, &["--scope", "own"]);
    let entered = second.enter(&invite_second(&harness));
    assert_eq!(entered.status, 200, "{entered:?}");
    let bare = |header: &str| header.trim_start_matches("Cookie: ").trim_end().to_owned();
    let (of_first, of_second) = (bare(&cookie), bare(&cookie_of(&entered)));
    let name = |cookie: &str| cookie.split_once('=').unwrap().0.to_owned();
    assert_ne!(name(&of_first), name(&of_second), "a browser keeps one cookie of a name for all ports");
    // What a browser sends to either.
    for both in [format!("{of_first}; {of_second}"), format!("{of_second}; {of_first}")] {
        let both = format!("Cookie: {both}\r\n");
        assert_eq!(first.get("/api/v1/audit", &both).status, 200, "{both}");
        assert_eq!(second.get("/", &both).status, 200, "{both}");
        assert_eq!(second.get("/api/v1/audit", &both).status, 403, "its scope is read there: {both}");
    }
    let of_other = second.get("/", &cookie);
    assert!(of_other.status == 403 && of_other.body.contains("farbus page invite"), "{of_other:?}");
    // One that was let in by an earlier release.
    let token = of_first.split_once('=').unwrap().1;
    assert_eq!(first.get("/", &format!("Cookie: __Host-farbus={token}\r\n")).status, 200);
}

#[test]
fn a_browser_stays_let_in_at_one_users_page_when_it_enters_anothers() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (first, second) = of_two_users(&harness);
    let browser = Browser::start(&harness, &["--ignore-certificate-errors"]);
    let enter = |page: &Remote, code: &str| {
        browser.open_invitation(&format!("https://localhost:{}/enter#{code}", page.port));
    };
    enter(&first, &first.invite(&harness, &[]));
    enter(&second, &invite_second(&harness));
    for page in [&first, &second] {
        let url = format!("https://localhost:{}/", page.port);
        browser.open(&url);
        browser.wait_for("document.querySelector('#live')?.textContent === 'live'");
        assert_eq!(browser.script("return location.href"), url);
    }
}

#[test]
fn a_wrong_token_of_another_machine_is_in_the_audit_log_with_its_address() {
    let harness = Harness::new();
    let page = open(&harness);
    let refused = page.get("/metrics", "Authorization: Bearer farbus-page-00000000-00\r\n");
    assert_eq!(refused.status, 401, "{refused:?}");
    let logged = harness.run(&["audit", "--all", "--json"]).stdout;
    let mut lines = logged.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wrong = lines.find(|line| line["event"] == "page-change").unwrap_or_else(|| panic!("{logged}"));
    assert_eq!((&wrong["address"], &wrong["outcome"]), (&json!("127.0.0.1"), &json!("refused")), "{wrong}");
}

#[test]
fn a_token_that_asks_a_process_that_does_not_answer_delays_nobody_else() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let eve = make(&harness, &["--scope", "read", "--name", "eve"]);
    let bob = make(&harness, &["--scope", "read", "--name", "bob"]);
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(page.get("/api/v1/hosts", &bearer(&bob)).status, 200);
    share.process.signal(Signal::STOP);
    let path = format!("/api/v1/latency/{}?name=zero", share.process.id());
    let flood: Vec<TcpStream> = (0..80)
        .map(|_| {
            let mut stream = page.connect();
            let (host, headers) = (&page.address, bearer(&eve));
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").unwrap();
            stream
        })
        .collect();
    // Each of those takes ten seconds, eight at a time.
    let answered = || {
        flood.iter().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            stream.peek(&mut [0]).is_ok()
        })
    };
    for headers in [String::new(), bearer(&bob)] {
        assert_eq!(page.get("/api/v1/hosts", &headers).status, 200);
        let before = answered().count();
        assert!(before <= 16, "{before} of the other's came first");
    }
    share.process.signal(Signal::CONT);
}
