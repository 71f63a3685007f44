//! The picture of a stream on the page: for those who may observe, beside every reader, and while somebody looks.

use std::io::{Read, Write};
use std::time::Duration;

use farbus::client::ImporterClient;
use farbus::frames::{FrameSelection, open_stream};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::browser::{Browser, Pages, has_browser};
use super::harness::{Harness, PATIENCE, Share, wait_until};
use super::page::{Page, open_page};
use super::page_accessible::assert_accessible;
use super::page_actions::{act, check, ended, get, post};
use super::page_browser::{assert_no_complaint, open_page as open_page_at};
use super::page_tokens::make;

const CAMERA: &str = "stream:pattern,size=64x48,rate=50";
/// What a PNG begins with.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

fn with(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n")
}

/// The picture that an operation shows: the status and the head of the answer in lower case, and its bytes.
fn picture(page: &Page, id: u64, headers: &str) -> (u16, String, Vec<u8>) {
    let (path, host) = (format!("/api/v1/operations/{id}/picture"), &page.address);
    let mut stream = page.connect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let body = bytes.split_off(head);
    let head = String::from_utf8(bytes).unwrap().to_lowercase();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head, body)
}

/// Begins to look at a shared stream as the page's button does. Returns what was begun, once it shows a picture.
fn look(page: &Page, share: &Share) -> (u16, Value) {
    look_beside(page, share, &[])
}

/// Like [`look`], while `others` are looked at, so that they do not end meanwhile.
fn look_beside(page: &Page, share: &Share, others: &[(u16, Value)]) -> (u16, Value) {
    let begun = act(page, "picture", &json!({ "target": share.target("stream") }));
    assert_eq!(begun.0, 202, "{begun:?}");
    wait_until(PATIENCE, "a picture is shown", || {
        others.iter().for_each(|other| assert_eq!(picture(page, id_of(other), "").0, 200));
        picture(page, id_of(&begun), "").0 == 200
    });
    begun
}

fn id_of(begun: &(u16, Value)) -> u64 {
    begun.1["id"].as_u64().unwrap()
}

#[test]
fn who_may_observe_sees_the_newest_picture_and_each_step_is_in_the_audit_log() {
    let harness = Harness::new();
    let share = harness.share(&[CAMERA, "--observable"]);
    let page = open_page(&harness);
    let (reader, observer) =
        (make(&harness, &["--scope", "read"]), make(&harness, &["--scope", "observe", "--name", "eve"]));
    let given = json!({ "target": share.target("stream") }).to_string();
    let path = "/api/v1/actions/picture";
    assert_eq!(post(&page, path, &with(&reader), &given).status, 403);
    let begun = post(&page, path, &with(&observer), &given);
    assert_eq!(begun.status, 202, "{begun:?}");
    let begun: Value = serde_json::from_str(&begun.body).unwrap();
    let line = format!("farbus stream read --observe --pictures --rate 4 {}", share.target("stream"));
    assert_eq!(begun["command"], line);
    let id = begun["id"].as_u64().unwrap();
    let seen = |token: &str| picture(&page, id, &with(token));
    wait_until(PATIENCE, "a picture is shown", || seen(&observer).0 == 200);
    let (_, head, first) = seen(&observer);
    for line in [
        "content-type: image/png\r\n",
        "x-content-type-options: nosniff\r\n",
        "cache-control: no-store\r\n",
        "cross-origin-resource-policy: same-origin\r\n",
        "content-security-policy: default-src 'none';",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    let path = format!("/api/v1/operations/{id}/picture");
    check(&page, "get", &path, &page.get(&path, &with(&observer)));
    assert!(first.starts_with(PNG) && first[16..24] == [0, 0, 0, 64, 0, 0, 0, 48], "{first:02x?}");
    wait_until(PATIENCE, "another one is shown", || seen(&observer).2 != first);
    assert_eq!(seen(&reader).0, 403);
    let now = get(&page, &format!("/api/v1/operations/{id}"));
    let progress = &now["progress"];
    assert_eq!((&progress["width"], &progress["type"]), (&json!(64), &json!("image/png")), "{now}");
    let stop = format!("/api/v1/operations/{id}/stop");
    assert_eq!(post(&page, &stop, &with(&reader), "{}").status, 403);
    assert_eq!(post(&page, &stop, &with(&observer), "{}").status, 202);
    assert_eq!(ended(&page, &(202, begun))["state"], "done");
    assert_eq!(seen(&observer).0, 404, "nothing is kept after the end");
    for event in ["page-picture", "page-picture-seen", "page-picture-end"] {
        let mut found = Value::Null;
        wait_until(PATIENCE, event, || {
            let audit = get(&page, "/api/v1/audit");
            let lines = audit["lines"].as_array().unwrap();
            assert!(lines.iter().filter(|line| line["event"] == event).count() <= 1, "{event}: once");
            found = lines.iter().find(|line| line["event"] == event).cloned().unwrap_or_default();
            !found.is_null()
        });
        assert_eq!((&found["address"], &found["outcome"]), (&json!("token eve"), &json!("ok")), "{found}");
    }
}

#[test]
fn a_picture_that_is_looked_at_takes_no_frame_from_the_reader_of_all_even_when_its_command_is_stopped() {
    let harness = Harness::new();
    let share = harness.share(&["stream:pattern,size=64x48,rate=0", "--observable"]);
    let page = open_page(&harness);
    let mut frames =
        open_stream(&ImporterClient::default(), &share.library_target("stream"), FrameSelection::All).unwrap();
    // While the reader of all frames waits, so does the source: nothing comes but what there is room for.
    let begun = act(&page, "picture", &json!({ "target": share.target("stream") }));
    let id = id_of(&begun);
    let mut last = None;
    let mut read = |count: u64| {
        for _ in 0..count {
            let sequence = frames.next_frame().unwrap().unwrap().sequence;
            assert_eq!(sequence, last.map_or(0, |last: u64| last + 1), "no frame is missing");
            last = Some(sequence);
        }
    };
    wait_until(PATIENCE, "a picture is shown beside it", || {
        read(100);
        picture(&page, id, "").0 == 200
    });
    let pid = get(&page, &format!("/api/v1/operations/{id}"))["pid"].as_u64().unwrap();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    read(5000);
    kill_process(pid, Signal::CONT).unwrap();
    let shown = picture(&page, id, "").2;
    wait_until(PATIENCE, "it shows what comes now", || {
        read(100);
        picture(&page, id, "").2 != shown
    });
}

#[test]
fn a_stream_that_has_no_picture_or_that_nobody_may_observe_is_refused_with_the_reason() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let end = |share: &Share| ended(&page, &act(&page, "picture", &json!({ "target": share.target("stream") })));
    let hidden = end(&harness.share(&[CAMERA]));
    assert_eq!((&hidden["state"], &hidden["failure"]["attribute"]), (&json!("failed"), &json!("refused")), "{hidden}");
    assert!(hidden["failure"]["message"].as_str().unwrap().contains("--observable"), "{hidden}");
    let bytes = end(&harness.share(&["stream:pattern,frame=4096", "--observable"]));
    assert_eq!(bytes["failure"]["attribute"], "device", "{bytes}");
    assert!(bytes["failure"]["message"].as_str().unwrap().contains("no pictures"), "{bytes}");
}

#[test]
fn a_picture_ends_with_its_stream_and_with_the_token_that_began_it() {
    let harness = Harness::new();
    let mut share = harness.share(&[CAMERA, "--observable"]);
    let page = open_page(&harness);
    let token = make(&harness, &["--scope", "observe", "--name", "eve"]);
    let given = json!({ "target": share.target("stream") }).to_string();
    let of_token = post(&page, "/api/v1/actions/picture", &with(&token), &given);
    let of_token: Value = serde_json::from_str(&of_token.body).unwrap();
    let of_owner = look(&page, &share);
    assert_eq!(harness.run(&["page", "token", "revoke", "eve"]).code, Some(0));
    assert_eq!(ended(&page, &(202, of_token))["state"], "done");
    assert_eq!(picture(&page, id_of(&of_owner), "").0, 200, "the owner's goes on");
    share.process.signal(Signal::TERM);
    share.process.wait_for_end(PATIENCE);
    let end = ended(&page, &of_owner);
    assert_eq!((&end["state"], &end["failure"]["attribute"]), (&json!("failed"), &json!("gone")), "{end}");
    let why = end["failure"]["message"].as_str().unwrap();
    assert!(why.ends_with("its share has ended") && why.lines().count() == 1, "{why}");
    assert_eq!(picture(&page, id_of(&of_owner), "").0, 404);
    // A file of frames has an end.
    let file = harness.path("frames");
    std::fs::write(&file, [7; 8 * 8 * 4]).unwrap();
    let words = format!("stream:{},size=8x8,format=grey,rate=5", file.display());
    let share = harness.share(&[&words, "--observable"]);
    let end = ended(&page, &act(&page, "picture", &json!({ "target": share.target("stream") })));
    assert_eq!((&end["state"], &end["failure"]["attribute"]), (&json!("failed"), &json!("gone")), "{end}");
    assert!(end["progress"]["pictures"].as_u64() >= Some(1), "{end}");
}

#[test]
fn so_many_streams_are_looked_at_at_a_time_and_one_that_nobody_looks_at_ends() {
    let harness = Harness::new();
    let share = harness.share(&[CAMERA, "--observable"]);
    let page = open_page(&harness);
    let given = json!({ "target": share.target("stream") });
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(look_beside(&page, &share, &all));
    }
    let refused = post(&page, "/api/v1/actions/picture", &of_browser(&page), &given.to_string());
    assert_eq!(refused.status, 503, "{refused:?}");
    // Nobody looks at the first any more.
    let mut first = Value::Null;
    wait_until(PATIENCE.max(Duration::from_secs(40)), "one that nobody looks at ends", || {
        all[1..].iter().for_each(|begun| assert_eq!(picture(&page, id_of(begun), "").0, 200));
        first = get(&page, all[0].1["at"].as_str().unwrap());
        first["state"] != "running"
    });
    assert_eq!((&first["state"], &first["progress"]["ended"]), (&json!("done"), &json!("nobody has looked for 20 s")));
    look(&page, &share);
}

/// The headers of a change that the page's own script asks for.
fn of_browser(page: &Page) -> String {
    format!("Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n", page.address)
}

/// What somebody sees of the picture: the first three samples of pixels 20 and 21 of line 9, and its width.
const PIXELS: &str = "window.pixels = () => {\
    const image = document.querySelector('img.live');\
    if (!image || !image.complete || image.naturalWidth === 0) { return null; }\
    const canvas = document.createElement('canvas');\
    canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;\
    const context = canvas.getContext('2d');\
    context.drawImage(image, 0, 0);\
    return [...context.getImageData(20, 9, 2, 1).data, image.naturalWidth];\
};";

#[test]
fn the_picture_on_a_streams_page_moves_and_no_other_site_embeds_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["stream:pattern,size=320x240,rate=20", "--observable"]);
    let (_page, url) = open_page_at(&harness);
    let browser = Browser::start(&harness, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    browser.open(&format!("{url}/device/{}?name=stream", share.process.id()));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.script(PIXELS);
    let button = "document.querySelector('button.do[data-action=picture]')";
    let line = browser.script(&format!("return {button}.parentElement.querySelector('code').textContent"));
    let target = share.target("stream");
    assert_eq!(line, format!("farbus stream read --observe --pictures --rate 4 {target} > FILE.png"));
    browser.script(&format!("{button}.click()"));
    // The next picture may be on its way when it is asked again.
    browser.wait_for("(window.first = window.pixels()) !== null");
    let first = browser.script("return window.first");
    let [red, green, blue, opaque, next, .., width] = &first.as_array().unwrap()[..] else { panic!("{first}") };
    assert_eq!((red, green, blue, opaque), (green, blue, red, &json!(255)), "it is grey: {first}");
    let is_next = (red.as_u64().unwrap() + 1) % 256 == next.as_u64().unwrap();
    assert!(is_next && width == 320, "the test picture, and no other: {first}");
    browser.wait_for(&format!("window.pixels()?.[0] !== {red}"));
    let alt = browser.script("return document.querySelector('img.live').alt");
    assert_eq!(alt, "What stream shows now");
    browser.wait_for("/320 × 240, [0-9.]+ pictures a second/.test(document.querySelector('#pictures').textContent)");
    browser.resize(900, 1500);
    browser.keep_picture("device-picture");
    browser.resize(360, 1500);
    let fits = browser.script("return document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(fits, true, "on a phone");
    assert_accessible(&browser, "a stream with its picture");
    assert_no_complaint(&browser);

    let at = browser.script("return document.querySelector('#pictures a').href");
    let at = at.as_str().unwrap();
    let hostile = Pages::serve("<!doctype html><title>hostile</title><body>".to_owned());
    for site in ["127.0.0.1", "evil.example"] {
        browser.open(&format!("http://{site}:{}/", hostile.address.port()));
        let embedded = browser.script_with_done(&format!(
            "const image = new Image(); image.onload = () => done('loaded'); image.onerror = () => done('refused');\n\
             document.body.append(image); image.src = '{at}';"
        ));
        assert_eq!(embedded, "refused", "{site}");
    }
    let _ = browser.complaints();
    // Its own address shows it in the same browser, without the page's script.
    browser.open(at);
    let shown = browser.script("return [document.contentType, document.images[0].naturalWidth]");
    assert_eq!(shown, json!(["image/png", 320]));

    browser.open(&format!("{url}/device/{}?name=stream", share.process.id()));
    browser.wait_for("document.querySelector('#pictures button.do') !== null");
    browser.script("document.querySelector('#pictures button.do').click()");
    // What ends is asked about, for others may have begun it.
    browser.wait_for("document.getElementById('sure').open");
    browser.script("document.getElementById('sure-yes').click()");
    browser.wait_for("document.querySelector('#pictures').textContent.includes('has ended')");
    browser.wait_for("document.querySelector('img.live') === null");
}
