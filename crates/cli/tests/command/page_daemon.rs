//! The page of a daemon: it is where the configuration says, and ends with the daemon.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running, has, has_program, wait_until};
use super::page::{Reply, assert_socket_is_its_owners, send};
use super::page_confined::http_processes;
use super::page_tokens::make;
use super::rights::of_process;

fn write(harness: &Harness, text: &str) -> String {
    let path = harness.path("farbus.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn start(harness: &Harness, config: &str) -> Running {
    let daemon = Running::start(harness.command(&["daemon", "--config", config]));
    daemon.wait_for_line("listening on ");
    daemon
}

/// What the daemon says of its page.
fn page_of(harness: &Harness) -> Value {
    let status = harness.json(&["status", "--json"]);
    let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon");
    daemon.map(|daemon| daemon["page"].clone()).unwrap_or_default()
}

/// Waits until the page is there; returns where.
fn wait_for_page(harness: &Harness) -> String {
    let mut at = None;
    wait_until(PATIENCE, "the daemon has a page", || {
        at = page_of(harness)["at"].as_str().map(str::to_owned);
        at.is_some()
    });
    at.unwrap()
}

/// The answer to a question at this place.
fn get(at: &str, path: &str, more: &str) -> Reply {
    let address = at.trim_start_matches("http://").trim_end_matches('/');
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n");
    send(stream, request.as_bytes())
}

/// Waits until nobody answers there.
fn wait_for_nobody(at: &str) {
    let address = at.trim_start_matches("http://").trim_end_matches('/').to_owned();
    wait_until(PATIENCE, "nobody answers there", || std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn a_daemons_page_is_for_other_machines_and_keeps_its_rights_if_the_configuration_says_so() {
    let harness = Harness::new();
    let text = "[page]\nlisten = \"127.0.0.1:0\"\ntls = \"127.0.0.1:0\"\nnames = [\"lab3.example\"]\nsandbox = false\n";
    let config = write(&harness, &format!("[plain]\nlisten = [\"127.0.0.1:0\"]\n{text}"));
    let daemon = start(&harness, &config);
    let at = wait_for_page(&harness);
    assert_eq!(get(&at, "/readyz", "").status, 200);
    let answer = page_of(&harness)["elsewhere"].clone();
    let url = answer["url"].as_str().unwrap();
    assert!(
        url.starts_with("https://lab3.example:") && answer["fingerprint"].as_str().unwrap().len() == 95,
        "{answer}"
    );
    let invited = harness.json(&["page", "invite", "--json"]);
    assert!(invited["url"].as_str().unwrap().starts_with(&format!("{url}/enter#")), "{invited}");
    assert_eq!(invited["fingerprint"], answer["fingerprint"]);
    let http = http_processes(&daemon);
    assert!(!http.is_empty());
    for pid in http {
        assert_eq!(of_process(&pid.into(), "Seccomp"), "0", "it keeps its rights");
    }
}

#[test]
fn a_daemon_serves_its_page_and_ends_it_with_itself() {
    let harness = Harness::new();
    let config = write(&harness, "[page]\nlisten = \"127.0.0.1:0\"\n[[share]]\nwhat = \"zero\"\n");
    let mut daemon = start(&harness, &config);
    let at = wait_for_page(&harness);
    let status = get(&at, "/api/v1/status", "");
    assert!(status.status == 200 && status.body.contains("\"role\":\"daemon\""), "{status:?}");
    let token = make(&harness, &["--scope", "read"]);
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert!(get(&at, "/metrics", &bearer).body.contains("role=\"daemon\",device=\"zero\""));
    let message = harness.run(&["status"]).stdout;
    assert!(message.contains(&format!("page at {at}")), "{message}");
    let doctor = harness.run(&["doctor"]).stdout;
    assert!(doctor.contains("the daemon's is at"), "{doctor}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    wait_for_nobody(&at);

    // However it ends.
    let mut daemon = start(&harness, &config);
    let at = wait_for_page(&harness);
    daemon.kill();
    wait_for_nobody(&at);
}

#[test]
fn another_user_who_reaches_the_socket_of_a_daemons_page_learns_only_that_it_runs() {
    if !has("a second user", rustix::process::geteuid().is_root()) || !has("curl", has_program("curl")) {
        return;
    }
    let harness = Harness::new();
    let config = write(&harness, "[page]\nlisten = \"unix\"\n[[share]]\nwhat = \"zero\"\n");
    let _daemon = start(&harness, &config);
    let at = wait_for_page(&harness);
    assert_socket_is_its_owners(&harness, Path::new(at.trim_start_matches("unix:")));
}

#[test]
fn a_reload_moves_and_ends_the_page_and_a_restart_brings_it_back() {
    let harness = Harness::new();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (first, second) = (free(), free());
    let text = |page: &str| format!("{page}[[share]]\nwhat = \"zero\"\n");
    let at = |address| text(&format!("[page]\nlisten = \"{address}\"\n"));
    let config = write(&harness, &text(""));
    let mut daemon = start(&harness, &config);
    assert!(page_of(&harness).is_null(), "off by default");
    let reload = |text: &str| {
        write(&harness, text);
        let reloaded = harness.run(&["daemon", "reload"]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    };
    reload(&at(first));
    assert_eq!(wait_for_page(&harness), format!("http://{first}/"));
    reload(&at(second));
    wait_for_nobody(&format!("http://{first}/"));
    assert_eq!(wait_for_page(&harness), format!("http://{second}/"));
    let restarted = harness.json(&["daemon", "restart", "--json"]);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    assert_eq!(wait_for_page(&harness), format!("http://{second}/"), "of the replacement");
    assert_eq!(get(&format!("http://{second}/"), "/readyz", "").body, "ready\n");
    reload(&text(""));
    wait_for_nobody(&format!("http://{second}/"));
    assert!(page_of(&harness).is_null());
    let pid = i32::try_from(restarted["pid"].as_u64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    wait_until(PATIENCE, "the replacement has ended", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_page_whose_address_is_taken_is_told_and_keeps_nothing_else_from_running() {
    let harness = Harness::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = write(&harness, &format!("[page]\nlisten = \"{address}\"\n[[share]]\nwhat = \"zero\"\n"));
    let _daemon = start(&harness, &config);
    wait_until(PATIENCE, "the daemon says why", || page_of(&harness)["failure"].is_string());
    let why = page_of(&harness);
    let message = harness.run(&["status"]).stdout;
    assert!(why["failure"].as_str().unwrap().contains("in use") && message.contains("no page: "), "{why} {message}");
    assert!(message.contains("zero"), "{message}");
    drop(taken);
    assert_eq!(wait_for_page(&harness), format!("http://{address}/"), "as soon as it is free");
}

#[test]
fn a_wrong_place_of_the_page_is_named_by_the_check() {
    let harness = Harness::new();
    for (listen, why) in [("0.0.0.0:7240", "not this machine's alone"), ("lab3", "no place for the page")] {
        let config = write(&harness, &format!("[page]\nlisten = \"{listen}\"\n"));
        let checked = harness.run(&["daemon", "--check", "--config", &config]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        assert!(checked.stderr.contains("farbus.toml:2:10: ") && checked.stderr.contains(why), "{checked:?}");
    }
}

#[test]
fn a_device_of_a_daemon_is_found_at_its_old_address_after_a_restart_and_an_open_view_follows_it() {
    let harness = Harness::new();
    let config = write(&harness, "[plain]\nlisten = [\"127.0.0.1:0\"]\n[[share]]\nwhat = \"keyboard\"\n");
    let mut daemon = start(&harness, &config);
    let page = super::page::open_page(&harness);
    let path = format!("/device/{}?name=keyboard", daemon.id());
    assert_eq!(page.get(&path, "").status, 200);
    assert!(page.get("/", "").body.contains(&format!("href=\"{path}&amp;role=daemon\"")), "a link says it");
    let browser = has_browser().then(|| Browser::start(&harness, &[]));
    let live = "document.querySelector('#live').textContent === 'live'";
    if let Some(browser) = &browser {
        browser.open(&format!("http://{}{path}", page.address));
        browser.wait_for(live);
    }
    let restarted = harness.json(&["daemon", "restart", "--json"]);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    assert_ne!(restarted["pid"], daemon.id());
    for path in [&path, &format!("{path}&role=daemon")] {
        wait_until(PATIENCE, "the device is there", || page.get(path, "").status == 200);
        // Its descriptors are asked of the process that has it now.
        assert!(page.get(path, "").body.contains("id=\"descriptors\""), "{path}");
    }
    assert_eq!(page.get(&format!("/device/{}?name=tape", daemon.id()), "").status, 404);
    if let Some(browser) = &browser {
        // What the replacement does is seen at the old address.
        assert_eq!(harness.run(&["unshare", "keyboard"]).code, Some(0));
        browser.wait_for("document.querySelector('#gone') !== null");
        assert_eq!(harness.run(&["share", "keyboard", "--keep"]).code, Some(0));
        browser.wait_for("document.querySelector('#gone') === null");
        browser.wait_for(live);
    }
    let pid = i32::try_from(restarted["pid"].as_u64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    wait_until(PATIENCE, "the replacement has ended", || !Path::new(&format!("/proc/{pid}")).exists());
}
