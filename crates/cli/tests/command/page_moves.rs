//! Swaps and migrations on the page, in a browser: each step while it runs, and its end, begun by the page or by a
//! command.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::page_browser::{assert_complaints_of, assert_no_complaint, open_page};
use super::run::{can_run, ordinary};
use super::share_usb_by_daemon::Lab;
use super::trust::{Host, three};

/// How long a device that migrates waits for its user, and then for its successor, seconds: long enough for any test.
const HOLD_S: u64 = 25;

/// The step that goes on, and how a move ended, as the device's page draws them.
const STEP: &str = "document.querySelector('#moves [aria-current=step]')?.textContent";
const RUNS: &str = "document.querySelector('#moves progress') !== null";

/// A daemon that attaches lab3's disk by NBD.
struct Importer<'h> {
    host: &'h Host<'h>,
    daemon: Running,
    socket: PathBuf,
    _page: Running,
    url: String,
}

impl<'h> Importer<'h> {
    fn start(host: &'h Host<'h>, hold_s: u64) -> Self {
        let socket = host.harness.path(&format!("{}.sock", host.name));
        let config = host.harness.path(&format!("{}.toml", host.name));
        let text = format!(
            "plain.listen = []\n[[attach]]\ntarget = 'lab3/disk'\nvia = 'nbd'\nsocket = '{}'\nhold = {hold_s}\n",
            socket.display()
        );
        fs::write(&config, text).unwrap();
        let daemon = host.start(&["daemon", "--config", config.to_str().unwrap()]);
        let page = host.start(&["page", "--listen", "127.0.0.1:0"]);
        let line = page.wait_for_line("page at http://");
        let url = line.split_whitespace().nth(2).unwrap().trim_end_matches('/').to_owned();
        Self { host, daemon, socket, _page: page, url }
    }

    fn device(&self) -> Value {
        let status = self.host.json(&["status", "--json"]);
        let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon");
        daemon.map(|daemon| daemon["devices"][0].clone()).unwrap_or_default()
    }

    fn wait_until_attached(&self) {
        wait_until(PATIENCE, "it is attached", || self.device()["state"] == "attached");
    }

    fn open(&self, browser: &Browser) {
        browser.open(&format!("{}/device/{}?name=disk", self.url, self.daemon_pid()));
        browser.wait_for("document.querySelector('#live').textContent === 'live'");
    }

    fn daemon_pid(&self) -> u64 {
        let status = self.host.json(&["status", "--json"]);
        let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon").unwrap();
        daemon["pid"].as_u64().unwrap()
    }
}

/// Waits until the page says that a move has ended so; returns its text.
fn end_of_move(browser: &Browser, state: &str, part: &str) -> String {
    let shown = format!("document.querySelector('#moves [data-ended={state}]')?.textContent");
    browser.wait_for(&format!("{shown}?.includes('{part}')"));
    assert_eq!(browser.script(&format!("return {RUNS}")), false, "nothing runs any more");
    let text = browser.script(&format!("return {shown}"));
    text.as_str().unwrap().to_owned()
}

/// lab3's share of a disk, which both others may use and know where to find, and its address.
fn share<'h>(hosts: &'h [Host<'h>; 3]) -> (Running, String) {
    let [lab3, desk, rack] = hosts;
    let image = lab3.harness.image("disk.img", SIZE);
    let (share, address) = lab3.share(&[&format!("disk:{},name=disk", image.display())]);
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &address]);
    }
    (share, address)
}

#[test]
fn migration_is_drawn_from_its_first_step_to_its_end_begun_by_the_page_and_by_a_command() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let _share = share(&hosts);
    let at_desk = Importer::start(desk, HOLD_S);
    at_desk.wait_until_attached();
    let browser = Browser::start(&harness, &[]);
    browser.resize(1200, 900);

    // By the page's own button, with a user that leaves.
    let at_rack = Importer::start(rack, HOLD_S);
    wait_until(PATIENCE, "rack asks for it", || at_rack.device()["failure"]["message"].is_string());
    at_desk.open(&browser);
    let mut client = Client::connect(&at_desk.socket);
    client.write(0, 7);
    let field = "document.querySelector('#do-migrate-to')";
    let button = "document.querySelector('#do-migrate button.do')";
    browser.script(&format!("{button}.click()"));
    browser.wait_for(&format!("{field}.getAttribute('aria-invalid') === 'true'"));
    browser.script(&format!("{field}.value = 'rack'; {button}.click()"));
    browser.wait_for(&format!("{STEP} === 'hold what its user asks'"));
    browser.keep_picture("migration-runs");
    let answer = browser.script("return document.querySelector('#moves').textContent");
    assert!(answer.as_str().unwrap().contains("It goes to rack."), "{answer}");
    drop(client);
    let text = end_of_move(&browser, "done", "The migration to rack is done: it took ");
    println!("{text}");
    browser.keep_picture("migration-done");
    let line = browser.script("return document.querySelector('#moves .operations').textContent");
    assert!(line.as_str().unwrap().contains("disk --to=rack has ended"), "the command that did it: {line}");
    at_rack.wait_until_attached();
    Client::connect(&at_rack.socket).assert_reads(0, 7);

    // By a command, back, on the other daemon's page.
    desk.ok(&["daemon", "reload"]);
    at_rack.open(&browser);
    rack.ok(&["migrate", "lab3/disk", "--to", "desk"]);
    end_of_move(&browser, "done", "The migration to desk is done: it took ");
    at_desk.wait_until_attached();
    // It was first asked for without a host.
    assert_complaints_of(&browser, "migrate", 1);
    let user = lab3.json(&["status", "--json"])[0]["devices"][0]["user"].clone();
    assert!(user.as_str().unwrap().starts_with("desk"), "{user}");
}

#[test]
fn migration_for_which_nobody_comes_or_whose_user_stays_says_why_and_what_to_type_next() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, _] = &hosts;
    let _share = share(&hosts);
    let at_desk = Importer::start(desk, 2);
    at_desk.wait_until_attached();
    let browser = Browser::start(&harness, &[]);
    browser.resize(1200, 900);
    // Nobody comes for it: it says why, and what to type.
    at_desk.open(&browser);
    desk.ok(&["migrate", "lab3/disk", "--to", "rack"]);
    let text = end_of_move(&browser, "failed", "rack did not attach it within 2 s");
    assert!(text.contains("on rack: farbus attach HOST/disk --wait=60"), "{text}");
    assert!(text.contains("again: farbus migrate lab3/disk --to rack"), "{text}");
    at_desk.wait_until_attached();

    // Its user does not leave.
    let client = Client::connect(&at_desk.socket);
    desk.ok(&["migrate", "lab3/disk", "--to", "rack"]);
    browser.wait_for(&format!("{STEP} === 'hold what its user asks'"));
    end_of_move(&browser, "failed", "its user did not leave within 2 s");
    browser.keep_picture("migration-failed");
    drop(client);
    assert_no_complaint(&browser);
}

#[test]
fn migration_whose_exporter_ends_or_whose_process_is_killed_is_not_drawn_as_running() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, _] = &hosts;
    let (mut share, address) = share(&hosts);
    let mut at_desk = Importer::start(desk, HOLD_S);
    at_desk.wait_until_attached();
    let browser = Browser::start(&harness, &[]);
    at_desk.open(&browser);
    let _client = Client::connect(&at_desk.socket);
    desk.ok(&["migrate", "lab3/disk", "--to", "rack"]);
    browser.wait_for(RUNS);
    // A migration that its owner takes back.
    desk.ok(&["resume", "lab3/disk"]);
    end_of_move(&browser, "failed", "its owner let it continue here (farbus resume)");
    // Its device goes in the middle.
    desk.ok(&["migrate", "lab3/disk", "--to", "rack"]);
    browser.wait_for(RUNS);
    share.signal(Signal::INT);
    assert_eq!(share.wait_for_end(PATIENCE), Some(0), "{}", share.log());
    let text = end_of_move(&browser, "failed", "lab3/disk did not go to rack");
    assert!(!text.contains("farbus resume"), "{text}");
    drop(share);
    // The process that has it is killed.
    let what = format!("disk:{},name=disk", harness.path("disk.img").display());
    let _share = lab3.start(&["share", &what, "--listen", "none", "--secure", &address]);
    at_desk.wait_until_attached();
    let _client = Client::connect(&at_desk.socket);
    desk.ok(&["migrate", "lab3/disk", "--to", "rack"]);
    browser.wait_for(RUNS);
    at_desk.daemon.kill();
    browser.wait_for("document.querySelector('#gone') !== null");
    assert_eq!(browser.script(&format!("return {RUNS}")), false);
    assert_no_complaint(&browser);
}

#[test]
fn swap_of_a_twin_that_a_command_began_is_drawn_while_it_runs_and_when_it_has_ended() {
    if !has_browser() {
        return;
    }
    let (harness, elsewhere) = (Harness::new(), Harness::new());
    let share = harness.share(&["serial,name=first"]);
    let third = elsewhere.share(&["serial,name=second"]);
    let (first, second) = (share.target("first"), third.target("second"));
    let socket = harness.path("guest.sock");
    let arguments = ["attach", &first, "--via", "redir", "--socket", socket.to_str().unwrap()];
    let attach = Running::start(harness.command(&arguments));
    attach.wait_for_line("attached at ");
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("{url}/device/{}?name=first", pid_of(&harness, "attach")));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    // The other host answers nothing for a while, and its owner cancels the swap.
    let silent = pid_of(&elsewhere, "share");
    signal(silent, Signal::STOP);
    let mut swap = Running::start(harness.command(&["swap", &first, "--to", &second, "--json"]));
    browser.wait_for(RUNS);
    browser.wait_for(&format!("{STEP} === 'switching'"));
    browser.keep_picture("swap-of-a-twin-runs");
    let cancelled = harness.run(&["swap", "--cancel", &first]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    signal(silent, Signal::CONT);
    assert_ne!(swap.wait_for_end(PATIENCE), Some(0));
    let text = end_of_move(&browser, "failed", "it was cancelled");
    assert!(text.contains("stays what it was"), "{text}");
    let swapped = harness.json(&["swap", &first, "--to", &second, "--json"]);
    assert_eq!(swapped["state"], "done", "{swapped}");
    let text = end_of_move(&browser, "done", "is done: it took ");
    assert!(text.contains(&format!("The swap from {first} to {second}")), "{text}");
    // One that cannot be.
    let refused = harness.run(&["swap", &first, "--to", &share.target("nothing")]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    end_of_move(&browser, "failed", "nothing");
    assert_no_complaint(&browser);
}

#[test]
fn real_device_that_a_command_swapped_for_its_twin_at_the_exporter_is_drawn_as_swapped() {
    if !has_browser() || !can_run() {
        return;
    }
    let lab = Lab::start(true);
    let shared = Running::start(lab.command(&["share", "usb:1-1,name=board"]));
    shared.wait_for_line("listening on");
    let page = Running::start(ordinary(&lab.harness, &["page", "--listen", "127.0.0.1:0"]));
    let line = page.wait_for_line("page at http://");
    let url = line.split_whitespace().nth(2).unwrap().trim_end_matches('/');
    let status: Value = serde_json::from_str(&lab.run(&["status", "--json"]).stdout).unwrap();
    let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon").expect("it runs");
    let browser = Browser::start(&lab.harness, &[]);
    browser.resize(1200, 900);
    browser.open(&format!("{url}/device/{}?name=board", daemon["pid"]));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let used = farbus::client::open(&lab.daemon.library_target("board")).unwrap();
    let swapped = lab.run(&["swap", "board", "--to", "usb:1-2", "--json"]);
    assert_eq!(swapped.code, Some(0), "{swapped:?}");
    let text = end_of_move(&browser, "done", "The swap from usb:1-1 to usb:1-2 is done: it took ");
    println!("{text}");
    browser.keep_picture("swap-of-a-twin-done");
    let status: Value = serde_json::from_str(&lab.run(&["status", "--json"]).stdout).unwrap();
    let mut devices = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    let board = devices.find(|device| device["name"] == "board").expect("it is shared");
    assert_eq!((&board["swap"]["state"], &board["swap"]["to"]), (&"done".into(), &"usb:1-2".into()), "{board}");
    drop(used);
    assert_no_complaint(&browser);
}

/// The process of a role.
fn pid_of(harness: &Harness, role: &str) -> u64 {
    let status = harness.json(&["status", "--json"]);
    let found = status.as_array().unwrap().iter().find(|process| process["role"] == role).expect("it runs");
    found["pid"].as_u64().unwrap()
}

fn signal(pid: u64, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
