//! What somebody begins on a device's page and follows there: a recording, and a swap.

use farbus::client;
use serde_json::{Value, json};

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running};
use super::observe::press;
use super::page_accessible::assert_accessible;
use super::page_browser::{assert_no_complaint, open_page};

#[test]
fn a_recording_is_begun_downloaded_and_ended_on_the_page_of_its_device() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("{url}/device/{}?name=keyboard", share.process.id()));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let button = "document.querySelector('button.do[data-action=observe]')";
    let line = browser.script(&format!("return {button}.parentElement.querySelector('code').textContent"));
    let target = share.target("keyboard");
    assert_eq!(line, format!("farbus observe --pcapng {target} > FILE.pcapng"));
    browser.script(&format!("{button}.click()"));
    // A section has begun when the exporter has said that it may be observed.
    browser.wait_for("document.querySelector('#recordings a[download]') !== null");
    let heading = browser.script("return document.querySelector('#recordings li').textContent");
    assert!(heading.as_str().unwrap().contains(&format!("farbus observe --pcapng {target} runs")), "{heading}");
    let bytes = "Number(document.querySelector('#recordings li').dataset.number)";
    let before = browser.script(&format!("return {bytes}")).as_u64().unwrap();
    let mut keyboard = client::open(&share.library_target("keyboard")).unwrap();
    assert_eq!(harness.run(&["type", "a"]).code, Some(0));
    assert_eq!(press(&mut keyboard), 4);
    browser.wait_for(&format!("{bytes} > {before}"));
    browser.wait_for("document.querySelector('#device pre').textContent === 'a'");
    assert_eq!(harness.run(&["type", "Hi <b>"]).code, Some(0));
    let keys = [(); 6].map(|()| press(&mut keyboard));
    assert_eq!(keys, [0x0b, 0x0c, 0x2c, 0x36, 0x05, 0x37]);
    browser.wait_for("document.querySelector('#device pre').textContent === 'aHi <b>'");
    let magic = "fetch(document.querySelector('#recordings a[download]').href)\
        .then((answer) => answer.arrayBuffer()).then((bytes) => done([...new Uint8Array(bytes).slice(0, 4)]))";
    assert_eq!(browser.script_with_done(magic), json!([0x0a, 0x0d, 0x0d, 0x0a]));
    browser.resize(900, 1700);
    browser.keep_picture("device-recording");
    assert_accessible(&browser, "a device with a recording");
    let end = "document.querySelector('#recordings button.do')";
    let kill = browser.script(&format!("return {end}.parentElement.querySelector('code').textContent"));
    assert!(kill.as_str().unwrap().starts_with("kill "), "{kill}");
    browser.script(&format!("{end}.click()"));
    // What ends is asked about, for others may have begun it.
    browser.wait_for("document.getElementById('sure').open");
    let warning = browser.script("return document.getElementById('sure').textContent");
    assert!(warning.as_str().unwrap().contains("This ends what page has begun: farbus observe"), "{warning}");
    browser.script("document.getElementById('sure-yes').click()");
    browser.wait_for("document.querySelector('#recordings li').textContent.includes('has ended')");
    let left = browser.script(
        "return [document.querySelector('#recordings button'), \
        document.querySelector('#recordings a[download]') !== null]",
    );
    assert_eq!(left, json!([Value::Null, true]), "it is kept after its end");
    assert_no_complaint(&browser);
}

#[test]
fn a_swap_is_drawn_while_it_runs_and_its_end_is_told_whether_a_page_or_a_command_began_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("old.img", 8 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("{url}/device/{}?name=disk", share.process.id()));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let bar = "document.querySelector('#moves progress')";
    let to = |name: &str| format!("block:{}", harness.path(name).display());
    let given = json!({ "device": "disk", "to": to("new.img"), "rate": "3M" });
    let begin = format!(
        "fetch('/api/v1/actions/swap', {{ method: 'POST', headers: {{ 'Content-Type': 'application/json' }}, \
         body: {} }}).then((answer) => done(answer.status))",
        json!(given.to_string())
    );
    assert_eq!(browser.script_with_done(&begin), 202);
    browser.wait_for(&format!("{bar}?.value > 0 && {bar}.value < {bar}.max"));
    let step = browser.script("return document.querySelector('#moves [aria-current=step]').textContent");
    assert_eq!(step, "copying");
    browser.resize(900, 1500);
    browser.keep_picture("device-swap");
    assert_accessible(&browser, "a device that is swapped");
    browser.wait_for(&format!("{bar} === null && document.querySelector('#moves').textContent.includes('has ended')"));

    let words = ["swap", "disk", "--to", &to("third.img"), "--rate", "3M"];
    let mut command = Running::start(harness.command(&words));
    browser.wait_for(&format!("{bar}?.value > 0 && {bar}.value < {bar}.max"));
    let cancel = "document.querySelector('button.do[data-action=swap-cancel]')";
    browser.wait_for(&format!("{cancel} !== null"));
    browser.script(&format!("{cancel}.click()"));
    browser.wait_for(&format!("{bar} === null"));
    assert_ne!(command.wait_for_end(PATIENCE), Some(0), "it was cancelled: {}", command.log());
    assert_no_complaint(&browser);
}
