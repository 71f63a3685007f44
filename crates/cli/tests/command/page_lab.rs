//! The page shows the devices of all hosts: of those that are paired with this one, and by the directory; and attaches
//! them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::browser::{Browser, has_browser};
use super::directory::Site;
use super::etcd::{Etcd, has_etcd};
use super::harness::{Harness, PATIENCE, has_fuse, wait_until};
use super::page::{Page, page_of};
use super::page_actions::{act, end_all, ended, get};
use super::page_browser::assert_no_complaint;
use super::trust::{Host, three};

/// What a daemon knows is seen within this time.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

fn open_page(host: &Host<'_>) -> Page {
    page_of(host.command(&["page", "--listen", "127.0.0.1:0"]))
}

/// The devices of all hosts that the page says for this query.
fn devices(page: &Page, query: &str) -> Vec<Value> {
    get(page, &format!("/api/v1/lab/devices{query}"))["devices"].as_array().unwrap().clone()
}

/// Waits until the page says of one device of this name and host what is true for it.
fn wait_for(page: &Page, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    wait_until(PATIENCE, &format!("{name}: {what}"), || {
        let all = devices(page, "?host=lab3");
        found = all.into_iter().find(|device| device["name"] == name).unwrap_or_default();
        is_so(&found)
    });
    found
}

#[test]
fn devices_of_paired_hosts_are_shown_with_who_has_them_and_attached_by_the_line_that_is_shown() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let [first, second] = ["disk", "spare"].map(|name| {
        let image = harness.image(&format!("{name}.img"), 1 << 20);
        format!("disk:{},name={name}", image.display())
    });
    let (_share, address) = lab3.share(&[&first, &second, "zero,name=board"]);
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &address]);
    }
    let page = open_page(desk);
    // The first answer waits for those of the hosts.
    let all = devices(&page, "");
    let disk = all.iter().find(|device| device["name"] == "disk").unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(
        (&disk["host"], &disk["state"], &disk["class"], &disk["from"]),
        (&json!("lab3"), &json!("available"), &json!("disk"), &json!("host")),
        "{disk}"
    );
    assert_eq!(disk["actions"][0]["command"], "farbus attach lab3/disk", "{disk}");
    let socket = |name: &str| harness.path(name).display().to_string();
    let used = rack.start(&["attach", "lab3/disk", "--via", "nbd", "--socket", &socket("rack.nbd"), "--reason", "x"]);
    used.wait_for_line("attached as");
    rack.ok(&["lease", "lab3/board", "--for", "1h"]);
    let disk = wait_for(&page, "disk", "rack uses it", |device| device["state"] == "in use");
    assert!(disk["user"].as_str().unwrap().starts_with("rack") && disk["since_s"].is_u64(), "{disk}");
    assert_eq!((&disk["reason"], &disk["actions"]), (&json!("x"), &json!([])));
    let board = wait_for(&page, "board", "rack has a lease of it", |device| device["state"] == "leased");
    assert_eq!((&board["user"], &board["actions"]), (&json!("rack"), &json!([])), "{board}");
    assert!(board["leased_until"].as_str().unwrap().ends_with('Z'), "{board}");
    for (query, names) in [
        ("?state=leased", vec!["board"]),
        ("?class=disk&host=lab3", vec!["disk", "spare"]),
        ("?q=rack", vec!["board", "disk"]),
        ("?host=nobody", vec![]),
        ("?q=spare&page=7", vec!["spare"]),
    ] {
        let found: Vec<Value> = devices(&page, query).iter().map(|device| device["name"].clone()).collect();
        assert_eq!(found, names, "{query}");
    }
    let known = get(&page, "/api/v1/hosts")["known"].clone();
    let host = |name: &str| known.as_array().unwrap().iter().find(|host| host["name"] == name).unwrap();
    assert_eq!((&host("lab3")["devices"], &host("lab3")["used"]), (&json!(3), &json!(1)), "{known}");
    assert!(host("rack")["failure"].is_string(), "it shares nothing, and keeps nobody else waiting: {known}");
    let shown = page.get("/hosts", "").body;
    assert!(shown.contains("<bdi>lab3</bdi>") && shown.contains("paired") && shown.contains(&address), "{shown}");
    assert!(page.get("/network", "").body.contains("rack"), "a paired host is drawn");

    // What is attached here is one row, whose user is this host.
    let spare = devices(&page, "?q=spare")[0]["actions"][0]["parameters"].clone();
    let mut given = spare;
    (given["via"], given["socket"]) = (json!("nbd"), json!(socket("desk.nbd")));
    let attached = ended(&page, &act(&page, "attach", &given));
    assert_eq!(attached["state"], "done", "{attached}");
    wait_until(PATIENCE, "one row says that it is attached", || {
        let rows = devices(&page, "?q=spare");
        rows.len() == 1 && rows[0]["state"] == "attached"
    });
    let row = devices(&page, "?state=attached")[0].clone();
    assert_eq!((&row["host"], &row["class"], &row["user"]), (&json!("lab3"), &json!("disk"), &json!("this machine")));
    page.assert_small();
    end_all(&page);
}

#[test]
fn what_the_daemon_hears_of_the_directory_is_seen_within_a_second() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let at_lab3 = Site::start(lab3, &format!("{}\nshare = [{{what='zero', name='board'}}]", etcd.line()));
    let at_desk = Site::start(desk, &etcd.line());
    rack.ok(&["list", "lab3", "--address", &at_lab3.address]);
    let page = open_page(desk);
    wait_for(&page, "board", "it is there", |device| device["from"] == "directory");
    let mut delays = Vec::new();
    for round in 0..3 {
        let state = if round == 1 { "available" } else { "leased" };
        match state {
            "leased" => rack.ok(&["lease", "lab3/board", "--for", "1h"]),
            _ => rack.ok(&["lease", "release", "lab3/board"]),
        };
        at_desk.wait_for(state, |line| line["lease"].is_object() == (state == "leased"));
        let known = Instant::now();
        wait_for(&page, "board", state, |device| device["state"] == state);
        delays.push(known.elapsed());
    }
    println!("seen after the daemon knew it: {delays:?}");
    assert!(delays.iter().any(|delay| *delay < SEEN_WITHIN), "{delays:?}");
    let lab3 = get(&page, "/api/v1/hosts")["known"][0].clone();
    assert_eq!((&lab3["name"], &lab3["is_in_directory"]), (&json!("lab3"), &json!(true)), "{lab3}");
}

#[test]
fn a_browser_sees_a_device_of_another_host_come_be_used_and_leased_and_attaches_it() {
    if !has_browser() || !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let at_lab3 = Site::start(lab3, &etcd.line());
    let at_desk = Site::start(desk, &etcd.line());
    at_desk.wait_for_trouble(None);
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &at_lab3.address]);
    }
    let page = open_page(desk);
    let browser = Browser::start(&harness, &[]);
    browser.resize(1280, 640);
    browser.open(&format!("http://{}", page.address));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let row = |state: &str, more: &str| {
        format!(
            "[...document.querySelectorAll('#rows tr')].some((row) => \
             row.querySelector('th').textContent === 'disk' && \
             row.querySelector('[data-label=Host]').textContent.startsWith('lab3') && \
             row.querySelector('[data-label=State]').textContent.startsWith('{state}') && {more})"
        )
    };
    let used_by = |host: &str| format!("row.querySelector('[data-label=User]').textContent.startsWith('{host}')");
    let image = harness.image("disk.img", 1 << 20);
    let _share = lab3.start(&["share", &format!("disk:{},name=disk", image.display())]);
    browser.wait_for(&row("available", "row.querySelector('svg[aria-label=disk]') !== null"));
    browser.keep_picture("lab-device-comes");
    let socket = harness.path("rack.nbd").display().to_string();
    let mut used = rack.start(&["attach", "lab3/disk", "--via", "nbd", "--socket", &socket]);
    browser.wait_for(&row("in use", &used_by("rack")));
    browser.keep_picture("lab-device-used");
    used.kill();
    // Its session may outlive it for a while.
    lab3.run(&["release", "disk", "--force"]);
    browser.wait_for(&row("available", "true"));
    rack.ok(&["lease", "lab3/disk", "--for", "1h"]);
    browser.wait_for(&row("leased", &format!("{} && row.querySelector('button') === null", used_by("rack"))));
    browser.keep_picture("lab-device-leased");
    rack.ok(&["lease", "release", "lab3/disk"]);
    browser.wait_for(&row("available", "row.querySelector('button.do') !== null"));
    if has_fuse() {
        browser.script("document.querySelector('#rows button.do').click()");
        browser.wait_for(&row("attached", &used_by("this machine")));
        browser.keep_picture("lab-device-attached");
        desk.ok(&["detach", "lab3/disk"]);
    }
    browser.open(&format!("http://{}/hosts", page.address));
    browser.wait_for("document.querySelector('#rows').textContent.includes('lab3')");
    browser.keep_picture("lab-hosts");
    assert_no_complaint(&browser);
}
