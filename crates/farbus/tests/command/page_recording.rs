//! A recording as somebody makes it on a device's page: begun, seen to grow, downloaded and ended there.

use farbus::client;
use serde_json::{Value, json};

use super::browser::{Browser, has_browser};
use super::harness::Harness;
use super::observe::press;
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
    let bytes = "Number(document.querySelector('#recordings li').dataset.bytes)";
    let before = browser.script(&format!("return {bytes}")).as_u64().unwrap();
    let mut keyboard = client::open(&share.library_target("keyboard")).unwrap();
    assert_eq!(harness.run(&["type", "a"]).code, Some(0));
    assert_eq!(press(&mut keyboard), 4);
    browser.wait_for(&format!("{bytes} > {before}"));
    let magic = "fetch(document.querySelector('#recordings a[download]').href)\
        .then((answer) => answer.arrayBuffer()).then((bytes) => done([...new Uint8Array(bytes).slice(0, 4)]))";
    assert_eq!(browser.script_with_done(magic), json!([0x0a, 0x0d, 0x0d, 0x0a]));
    browser.resize(900, 1700);
    browser.keep_picture("device-recording");
    let end = "document.querySelector('#recordings button.do')";
    let kill = browser.script(&format!("return {end}.parentElement.querySelector('code').textContent"));
    assert!(kill.as_str().unwrap().starts_with("kill "), "{kill}");
    browser.script(&format!("{end}.click()"));
    browser.wait_for("document.querySelector('#recordings li').textContent.includes('has ended')");
    let left = browser.script(
        "return [document.querySelector('#recordings button'), \
        document.querySelector('#recordings a[download]') !== null]",
    );
    assert_eq!(left, json!([Value::Null, true]), "it is kept after its end");
    assert_no_complaint(&browser);
}
