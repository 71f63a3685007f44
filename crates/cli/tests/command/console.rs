//! A serial console, observed: by a command, by a program at the page, and in a browser, while another program uses the
//! adapter.

use farbus::client::{self, DevicePort};
use farbus_host::RemoteDevice;
use farbus_model::EpAddr;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::browser::{Browser, ENTER, TAB, has_browser};
use super::harness::{Harness, PATIENCE, Running, Share, wait_until};
use super::page::open_page;
use super::page_accessible::assert_accessible;
use super::page_actions::{act, ended, get, post};
use super::page_browser::{assert_no_complaint, open_page as open_page_in_browser};
use super::page_tokens::make;
use super::trust::{hosts, pair};

/// What is printed has to be seen within this time, milliseconds.
const SEEN_WITHIN_MS: f64 = 1000.0;
/// A stall of the machine may disturb all rounds but one.
const ROUNDS: usize = 3;

/// The user of the adapter, whose plug returns what is sent.
struct User(RemoteDevice<DevicePort>);

impl User {
    fn of(share: &Share) -> Self {
        Self(client::open(&share.library_target("serial")).unwrap())
    }

    /// Has the adapter send this, and reads it.
    fn print(&mut self, text: &[u8]) {
        assert_eq!(self.0.data_out(EpAddr::from_byte(1), text.to_vec()).unwrap(), text.len() as u32);
        let mut read = Vec::new();
        while read.len() < text.len() {
            read.extend(self.0.data_in(EpAddr::from_byte(0x81), 16 << 10).unwrap().into_vec());
        }
        assert_eq!(read, text, "the user has it as ever");
    }
}

#[test]
fn what_a_serial_port_sends_is_printed_as_text_and_its_bytes_are_for_programs() {
    let harness = Harness::new();
    let share = harness.share(&["serial", "keyboard"]);
    let refused = harness.run(&["observe", &share.target("serial"), "--console"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--observable"), "{refused:?}");
    drop(share);

    let share = harness.share(&["serial", "keyboard", "memory:1M", "--observable"]);
    for device in ["keyboard", "memory"] {
        let refused = harness.run(&["observe", &share.target(device), "--console"]);
        let says = "it has no serial port whose output is shown";
        assert!(refused.code == Some(3) && refused.stderr.contains(says), "{refused:?}");
    }
    let gone = harness.run(&["observe", &share.target("tape"), "--console"]);
    assert_eq!(gone.code, Some(4), "{gone:?}");

    let target = share.target("serial");
    let mut user = User::of(&share);
    let mut text = Running::start(harness.command(&["observe", &target, "--console"]));
    text.assert_logged("is observed");
    let mut pieces = Running::start(harness.command(&["observe", &target, "--console", "--json", "--count", "1"]));
    pieces.wait_for_line("is observed");
    let mut transfers = Running::start(harness.command(&["observe", &target, "--json"]));
    transfers.wait_for_line("is observed");
    user.print(b"\x1b[1;32mU-Boot\x1b[0m\r\ngr\xc3\xbcn \xff\x07\x1b]0;evil\x07\r\n");
    assert_eq!(text.wait_for_line("U-Boot"), "U-Boot");
    assert_eq!(text.wait_for_line("n"), "gr\u{fc}n \u{fffd}");
    let piece: Value = serde_json::from_str(&pieces.wait_for_line("data")).unwrap();
    assert_eq!(
        (&piece["endpoint"], &piece["type"], &piece["lost_bytes"]),
        (&"81".into(), &"console".into(), &0.into())
    );
    assert_eq!(piece["text"], "U-Boot\ngr\u{fc}n \u{fffd}\n");
    assert!(piece["data"].as_str().unwrap().starts_with("1b5b313b33326d552d426f6f74"), "{piece}");
    assert_eq!(pieces.wait_for_end(PATIENCE), Some(0), "{}", pieces.log());
    for observer in [&mut text, &mut transfers] {
        observer.signal(Signal::INT);
        assert_eq!(observer.wait_for_end(PATIENCE), Some(0), "{}", observer.log());
    }
    assert_eq!(transfers.rest(), "", "an observer that asks for no console gets no bulk transfer");
}

#[test]
fn a_paired_host_sees_a_console_until_its_permission_is_taken_back_and_the_owner_has_it_in_his_audit_log() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let words = ["share", "serial", "--listen", "none", "--secure", "127.0.0.1:0", "--observable"];
    let share = lab3.start(&words);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    desk.ok(&["list", "lab3", "--address", address]);
    let refused = desk.run(&["observe", "lab3/serial", "--console"]);
    assert_eq!(refused.code, Some(3), "what it may not use it does not see: {refused:?}");
    lab3.ok(&["allow", "desk", "serial"]);
    let before = lab3.audit_lines("observe");
    let mut observer = desk.start(&["observe", "lab3/serial", "--console"]);
    observer.assert_logged("is observed");
    assert_eq!(lab3.audit_lines("observe"), before + 1);
    lab3.ok(&["forbid", "desk", "serial"]);
    assert_eq!(observer.wait_for_end(PATIENCE), Some(3), "{}", observer.log());
}

#[test]
fn an_observer_that_does_not_read_loses_the_oldest_bytes_and_the_user_of_the_port_waits_for_nobody() {
    const PIECE_BYTES: usize = 16 << 10;
    const PIECES: usize = 64;
    let harness = Harness::new();
    let share = harness.share(&["serial", "--observable"]);
    let mut user = User::of(&share);
    let observer = Running::start(harness.command(&["observe", &share.target("serial"), "--console", "--json"]));
    observer.wait_for_line("is observed");
    user.print(b"before");
    observer.wait_for_line("before");
    observer.signal(Signal::STOP);
    // While it is stopped, the user does everything that he wants to.
    (0..PIECES).for_each(|_| user.print(&[b'x'; PIECE_BYTES]));
    user.print(b"the latest");
    observer.signal(Signal::CONT);
    let (mut kept, mut lost) = (0, 0);
    let mut last = String::new();
    while kept + lost < PIECES * PIECE_BYTES + "the latest".len() {
        let piece: Value = serde_json::from_str(&observer.wait_for_line("data")).unwrap();
        kept += piece["data"].as_str().unwrap().len() / 2;
        lost += piece["lost_bytes"].as_u64().unwrap() as usize;
        last += piece["text"].as_str().unwrap();
    }
    println!("of {} bytes {lost} were lost", PIECES * PIECE_BYTES);
    assert_eq!(kept + lost, PIECES * PIECE_BYTES + "the latest".len(), "each byte is shown or counted");
    assert!(last.ends_with("xxthe latest"), "the oldest are lost");
    assert!(lost > PIECES * PIECE_BYTES / 2, "what waits is bounded");
}

#[test]
fn a_console_is_shown_to_those_who_may_observe_and_each_step_is_in_the_audit_log() {
    let harness = Harness::new();
    let share = harness.share(&["serial", "keyboard", "--observable"]);
    let page = open_page(&harness);
    let with = |token: &str| format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
    let (reader, observer) =
        (make(&harness, &["--scope", "read"]), make(&harness, &["--scope", "observe", "--name", "eve"]));
    let given = json!({ "target": share.target("serial") }).to_string();
    let path = "/api/v1/actions/console";
    assert_eq!(post(&page, path, &with(&reader), &given).status, 403);
    let begun = post(&page, path, &with(&observer), &given);
    assert_eq!(begun.status, 202, "{begun:?}");
    let begun: Value = serde_json::from_str(&begun.body).unwrap();
    assert_eq!(begun["command"], format!("farbus observe --console {}", share.target("serial")));
    let id = begun["id"].as_u64().unwrap();
    let text_of = |token: &str| page.get(&format!("/api/v1/operations/{id}/text"), &with(token));
    let mut user = User::of(&share);
    // It is observed once the first letter is seen.
    wait_until(PATIENCE, "a letter is seen", || {
        user.print(b".");
        text_of(&observer).body.ends_with('.')
    });
    user.print(b"\r\n<script>\x1b[2Jalert(1)</script>\r\nlogin: ");
    wait_until(PATIENCE, "all is seen", || text_of(&observer).body.ends_with(".\n<script>alert(1)</script>\nlogin: "));
    assert_eq!(text_of(&reader).status, 403);
    let recording = page.get(&format!("/api/v1/operations/{id}/recording"), &with(&observer));
    assert_eq!(recording.status, 404, "it is no recording");
    let stop = format!("/api/v1/operations/{id}/stop");
    assert_eq!(post(&page, &stop, &with(&reader), "{}").status, 403);
    assert_eq!(post(&page, &stop, &with(&observer), "{}").status, 202);
    let end = ended(&page, &(202, begun));
    assert_eq!((&end["state"], &end["progress"]["is_full"]), (&json!("done"), &json!(false)), "{end}");
    assert!(text_of(&observer).body.ends_with("login: "), "it is kept after its end");
    for event in ["page-console", "page-console-text", "page-console-end"] {
        let mut found = Value::Null;
        wait_until(PATIENCE, event, || {
            let audit = get(&page, "/api/v1/audit");
            let lines = audit["lines"].as_array().unwrap();
            found = lines.iter().find(|line| line["event"] == event).cloned().unwrap_or_default();
            !found.is_null()
        });
        assert_eq!((&found["address"], &found["outcome"]), (&json!("token eve"), &json!("ok")), "{found}");
    }
    let begun = act(&page, "console", &json!({ "target": share.target("keyboard") }));
    let end = ended(&page, &begun);
    assert_eq!((&end["state"], &end["failure"]["attribute"]), (&json!("failed"), &json!("refused")), "{end}");
    assert!(end["failure"]["message"].as_str().unwrap().contains("no serial port"), "{end}");
}

#[test]
fn a_console_is_opened_with_the_keyboard_and_what_it_prints_is_seen_within_a_second() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["serial", "--observable"]);
    let mut user = User::of(&share);
    let (_page, url) = open_page_in_browser(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("{url}/device/{}?name=serial", share.process.id()));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let button = "document.querySelector('button.do[data-action=console]')";
    let line = browser.script(&format!("return {button}.parentElement.querySelector('code').textContent"));
    assert_eq!(line, format!("farbus observe --console {}", share.target("serial")));
    // By the keyboard alone.
    for _ in 0..100 {
        browser.press(&[TAB]);
        if browser.script(&format!("return document.activeElement === {button}")) == true {
            break;
        }
    }
    assert_eq!(browser.script(&format!("return document.activeElement === {button}")), true);
    browser.press(&[ENTER]);
    let text = "document.querySelector('#device pre')?.textContent";
    browser.wait_for(&format!("{text} !== undefined"));
    wait_until(PATIENCE, "a letter is seen", || {
        user.print(b"\r\n.");
        browser.script(&format!("return {text}.endsWith('.')")) == true
    });
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let printed = browser.script("return Date.now()").as_f64().unwrap();
        user.print(format!("\r\n\x1b[32mU-Boot\x1b[0m 2026.10 round {round} <b>\u{b0}</b>").as_bytes());
        let seen = browser.wait_for(&format!("{text}.endsWith('\\nU-Boot 2026.10 round {round} <b>\u{b0}</b>')"));
        delays.push(seen - printed);
    }
    println!("seen after, milliseconds: {delays:?}");
    assert!(delays.iter().any(|delay| *delay < SEEN_WITHIN_MS), "{delays:?}");
    user.print(b"\r\n\x1b]0;owned\x07\x1b[?1049h\xff<img src=x onerror=alert(1)>\r\n\r\nboard login: ");
    browser.wait_for(&format!("{text}.endsWith('\\n\u{fffd}<img src=x onerror=alert(1)>\\n\\nboard login: ')"));
    assert_eq!(browser.script("return document.querySelector('#device pre').childElementCount"), 0);
    browser.resize(900, 1500);
    browser.keep_picture("device-console");
    assert_accessible(&browser, "a device with a console");
    // What is printed is bounded, however much that is.
    let line = [&[b'x'; 1022][..], b"\r\n"].concat();
    (0..100).for_each(|_| user.print(&line));
    user.print(b"$ ");
    browser.wait_for(&format!("{text}.endsWith('x\\n$ ')"));
    let bytes = browser.script(&format!("return {text}.length")).as_u64().unwrap();
    assert!(bytes <= 64 << 10, "{bytes}");
    let end = "document.querySelector('#consoles button.do')";
    browser.script(&format!("{end}.click()"));
    // What ends is asked about, for others may have begun it.
    browser.wait_for("document.getElementById('sure').open");
    browser.script("document.getElementById('sure-yes').click()");
    browser.wait_for("document.querySelector('#consoles li').textContent.includes('has ended')");
    assert_no_complaint(&browser);
}
