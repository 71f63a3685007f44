//! The page on narrow screens: no heading is broken within a word, and nothing scrolls sideways.

use serde_json::json;

use super::browser::{Browser, MadeUp, PID, has_browser};
use super::harness::Harness;
use super::page_browser::{assert_no_complaint, open_page};
use super::page_plots::device;

/// Headings, of tables and of lists, too, that are broken within a word.
const BROKEN: &str = "const broken = [];\
    for (const heading of document.querySelectorAll('h1, h2, h3, th, dt, caption, summary, legend, figcaption, button')) {\
      const walker = document.createTreeWalker(heading, NodeFilter.SHOW_TEXT);\
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {\
        if (!node.parentElement.checkVisibility()) { continue; }\
        const head = node.parentElement.closest('thead');\
        if (head && getComputedStyle(head).position === 'absolute') { continue; }\
        for (const { index, 0: word } of node.textContent.matchAll(/[^\\s-]+/g)) {\
          const range = document.createRange();\
          range.setStart(node, index);\
          range.setEnd(node, index + word.length);\
          const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));\
          if (lines.size > 1) { broken.push(heading.tagName + ': ' + word); }\
        }\
      }\
    }\
    return [...new Set(broken)];";

#[test]
fn no_heading_is_broken_within_a_word_and_nothing_scrolls_sideways_at_any_width() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let _reserved = harness.share(&["keyboard", "--reserve", "keyboard:bytes=8,period=8"]);
    let links = json!({ "up": 1, "each": [{ "lane": 0, "is_up": true, "since_s": 9.0, "peer": "[2001:db8::7:1]:41234",
        "bytes_in": 5_000_000, "bytes_out": 6_000_000, "round_trip_ms": 0.4 }] });
    let mut board = device(0, 179);
    let further = json!({
        "title": "Example Semiconductor Inc. evaluation board", "user": "workstation (192.168.100.31:40412)", "used_s": 5.0,
        "links": links, "waiting": [{ "host": "rack", "waits_s": 3.0 }], "failure": { "message": "a reason" },
        "meters": { "urbs": 7, "bytes_in": 5, "bytes_out": 6, "unlinked": 1, "no_credit": 2, "resets": 3, "lost": 1 },
        "history": [{ "user": "workstation", "used_s": 5.0, "ago_s": 6.0, "ended": "detached", "reason": "a test",
            "remark": "it was detached by its owner" }],
    });
    board.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    let mut other = board.clone();
    other["name"] = json!("evaluationboard7");
    // A heading of its page alone: a row of the list is narrower.
    let mut long = json!({ "name": "evaluationboardinterface", "title": "Example board", "state": "available" });
    long["place"] = json!("rack 7");
    let made_up = MadeUp::start(&harness, vec![board.clone(), other.clone()]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    let mut wrong = Vec::new();
    let mut look = |name: &str, address: &str, width: u32| {
        browser.resize(width, 900);
        browser.open(address);
        browser.wait_for("document.querySelector('#live').textContent === 'live'");
        browser.script("document.querySelectorAll('details').forEach((part) => { part.open = true; })");
        let broken = browser.script(BROKEN);
        if broken != json!([]) {
            wrong.push(format!("{name}, {width}: {broken}"));
        }
        let widest = browser.script("return document.documentElement.scrollWidth").as_u64().unwrap();
        if widest > width.into() {
            wrong.push(format!("{name}, {width}: {widest} pixels wide"));
        }
        if width == 320 {
            browser.keep_picture(&format!("narrow-{name}-{width}"));
        }
    };
    for width in [320, 360, 480, 700, 721, 768, 900, 1280] {
        look("devices", &url, width);
        look("device", &format!("{url}/device/{PID}?name=board"), width);
        look("buses", &format!("{url}/buses"), width);
        look("network", &format!("{url}/network"), width);
    }
    made_up.change(|devices| devices.push(long));
    browser.open(&url);
    browser.wait_for("document.querySelector('#rows').textContent.includes('evaluationboardinterface')");
    for width in [320, 360] {
        look("device-of-a-long-name", &format!("{url}/device/{PID}?name=evaluationboardinterface"), width);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_no_complaint(&browser);
}
