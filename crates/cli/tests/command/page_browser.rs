//! The page in a real browser: what it shows and when, what a hostile device and a hostile page of another site get of
//! it, and whether somebody without a mouse, with a phone, or in the dark can use it.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::browser::{Browser, ENTER, MadeUp, Pages, TAB, has_browser};
use super::harness::{Harness, PATIENCE, Running, finish, wait_until};

/// What is heard of a device has to be seen within this time, milliseconds.
const SEEN_WITHIN_MS: f64 = 1000.0;
/// A stall of the machine may disturb all rounds but one.
const ROUNDS: usize = 3;

/// A page, and where it is.
pub fn open_page(harness: &Harness) -> (Running, String) {
    let process = Running::start(harness.command(&["page", "--listen", "127.0.0.1:0"]));
    let line = process.wait_for_line("page at http://");
    let address = line.split_whitespace().nth(2).unwrap().trim_end_matches('/').to_owned();
    (process, address)
}

/// The browser's only complaints are `count` answers with an error to this action.
pub fn assert_complaints_of(browser: &Browser, action: &str, count: usize) {
    let complaints = browser.complaints();
    let is_it =
        |complaint: &&String| complaint.contains(&format!("/api/v1/actions/{action} - Failed to load resource"));
    assert!(complaints.iter().all(|complaint| is_it(&complaint)) && complaints.len() == count, "{complaints:?}");
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1000.0
}

/// Nothing violated a policy, failed to load or threw.
pub fn assert_no_complaint(browser: &Browser) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn wait_goes_on_in_the_document_that_replaces_the_one_it_began_in() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let next = Pages::serve("<!doctype html><title>next</title><p>next".to_owned());
    let first = Pages::serve(format!(
        "<!doctype html><title>first</title><script>setTimeout(() => {{ location = 'http://{}/'; }}, 500)</script>",
        next.address
    ));
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("http://{}/", first.address));
    browser.wait_for("document.title === 'next'");
    assert_eq!(browser.script("return document.querySelector('p').textContent"), "next");
}

#[test]
fn device_that_comes_and_goes_is_seen_within_a_second_and_without_a_reload() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.script("window.isTheSame = true");
    let shows = "[...document.querySelectorAll('main bdi')].some((name) => name.textContent === 'keyboard')";
    let mut delays = Vec::new();
    for _ in 0..ROUNDS {
        let mut share = harness.share(&["keyboard"]);
        let came = now_ms();
        let seen = browser.wait_for(shows);
        let goes = now_ms();
        share.process.kill();
        let missed = browser.wait_for(&format!("!({shows})"));
        delays.push((seen - came).max(missed - goes));
    }
    println!("seen after, milliseconds: {delays:?}");
    assert!(delays.iter().any(|delay| *delay < SEEN_WITHIN_MS), "{delays:?}");
    assert_eq!(browser.script("return window.isTheSame"), true, "it was not loaded again");
    assert_no_complaint(&browser);
}

/// Texts that become elements, attributes, links or scripts if one place forgets what they are.
pub fn hostile_texts() -> Vec<&'static str> {
    vec![
        "<script>window.evil = 1; alert(1)</script>",
        "<img src=x onerror=\"window.evil = 1\">",
        "\"><svg onload='window.evil = 1'>",
        "' onmouseover='window.evil = 1' autofocus onfocus='window.evil = 1",
        "javascript:window.evil=1",
        "</title></style></textarea></table><script>window.evil = 1</script>",
        "{{7*7}}${7*7}<!--",
        "../../../?q=<b>#x&y=%00%2e%2e",
        "..",
        "\u{202e}gnp.exe\u{0}\u{1b}[2J\u{7}",
        "event: status\ndata: x\n\n",
    ]
}

#[test]
fn hostile_texts_of_devices_are_shown_as_text_and_run_nothing() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    assert_hostile_texts_run_nothing(&harness, &browser, &url);
}

/// Has devices with hostile texts come to a page that is open at this address, and sees what becomes of them.
pub fn assert_hostile_texts_run_nothing(harness: &Harness, browser: &Browser, url: &str) {
    let device = |text: &str| {
        json!({
            "name": text, "title": text, "state": "in use", "user": text, "reason": text, "interfaces": [text],
            "waiting": [{ "host": text }], "failure": { "message": text }, "used_s": 61.0, "speed": text, "ids": text,
            "history": [{ "user": text, "reason": text, "used_s": 1.0, "ago_s": 1.0, "ended": text, "remark": text }],
            "labels": { text: text }, "place": text, "comment": text, "bus_id": text,
            "links": { "up": 1, "each": [{ "lane": 0, "is_up": true, "since_s": 1, "peer": text }] },
        })
    };
    let texts = hostile_texts();
    let made_up = MadeUp::start(harness, texts.iter().map(|text| device(text)).collect());
    browser.open(url);
    // What comes in later takes another way into the document than what was there.
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    made_up.change(|devices| devices.iter_mut().for_each(|device| device["state"] = json!("held")));
    browser.wait_for("document.querySelector('#rows').textContent.includes('held')");
    let shown = browser.script("return document.querySelector('main').textContent");
    for text in texts.iter().filter(|text| !text.contains('\u{202e}') && !text.contains('\n')) {
        assert!(shown.as_str().unwrap().contains(text), "{text} is shown as it is");
    }
    assert_runs_nothing(browser, url);
}

/// No script of others ran, nothing of theirs was loaded, and no element is theirs.
pub fn assert_runs_nothing(browser: &Browser, url: &str) {
    assert_eq!(browser.script("return window.evil ?? null"), Value::Null);
    let strange = "return [...document.querySelectorAll('script, img, iframe, object, embed, style, base, form, a, link')]\
        .map((element) => element.src || element.href || element.action || element.data || element.outerHTML)";
    let leads_to = browser.script(strange);
    for address in leads_to.as_array().unwrap() {
        assert!(address.as_str().unwrap().starts_with(url), "{address}");
    }
    let handlers = "return [...document.querySelectorAll('*')].flatMap((element) => [...element.attributes])\
        .filter((attribute) => attribute.name.startsWith('on') || attribute.name === 'style').length";
    assert_eq!(browser.script(handlers), 0);
    // A dialog would have failed the commands before.
    assert_no_complaint(browser);
}

/// A page that tries all ways in which a page reads another, and keeps in `results` what it got.
pub fn hostile_page(target: &str) -> String {
    format!(
        r#"<!doctype html><meta charset="utf-8"><title>hostile</title><body><script>
// With a fragment it tries its own server: what reads nothing there would prove nothing elsewhere.
const target = location.hash ? location.origin : "{target}";
const results = {{}};
const tries = [];
// In its own frames it does nothing.
const paths = window === top ? ["/", "/api/v1/status", "/events", "/page.js"] : [];
const settle = (name, promise) => tries.push(promise.then(
    (value) => {{ results[name] = value; }}, () => {{ results[name] = "refused"; }}));
const element = (kind, set) => new Promise((resolve, reject) => {{
  const made = document.createElement(kind);
  made.onload = () => resolve("loaded " + kind);
  made.onerror = () => reject();
  set(made);
  document.body.append(made);
}});
for (const path of paths) {{
  const url = target + path;
  settle("fetch " + path, fetch(url).then((answer) => answer.text()));
  settle("fetch with cookies " + path, fetch(url, {{ credentials: "include" }}).then((answer) => answer.text()));
  settle("blind fetch " + path, fetch(url, {{ mode: "no-cors" }}).then((answer) => answer.text()).then((text) => {{
    if (text === "") {{ throw 0; }}
    return text;
  }}));
  settle("image " + path, element("img", (made) => {{ made.src = url; }}));
  settle("script " + path, element("script", (made) => {{ made.src = url; }}));
  settle("style " + path, element("link", (made) => {{ made.rel = "stylesheet"; made.href = url; }}));
  settle("frame " + path, new Promise((resolve, reject) => {{
    const made = document.createElement("iframe");
    made.onload = () => {{
      try {{ resolve("frame has " + made.contentDocument.body.textContent); }} catch {{ reject(); }}
    }};
    made.src = url;
    document.body.append(made);
  }}));
  settle("event source " + path, new Promise((resolve, reject) => {{
    const source = new EventSource(url);
    source.onmessage = source.onopen = () => {{ source.close(); resolve("connected"); }};
    source.addEventListener("status", () => resolve("an event"));
    source.onerror = () => {{ source.close(); reject(); }};
  }}));
  settle("form " + path, new Promise((resolve, reject) => {{
    const frame = document.createElement("iframe");
    frame.name = "form" + paths.indexOf(path);
    document.body.append(frame);
    const form = document.createElement("form");
    form.method = "post"; form.action = url; form.target = frame.name;
    frame.onload = () => {{
      let text;
      try {{ text = frame.contentDocument.body.textContent; }} catch {{ reject(); return; }}
      if (text !== "") {{ resolve("form got " + text); }}
    }};
    document.body.append(form);
    form.submit();
  }}));
}}
const all = Promise.all(tries).then(() => results);
</script>"#
    )
}

#[test]
fn hostile_page_of_another_site_reads_nothing() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero,name=secret-zero"]);
    let (_page, url) = open_page(&harness);
    let hostile = Pages::serve(hostile_page(&url));
    let browser = Browser::start(&harness, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    browser.open(&url);
    let is_there = browser.script("return document.body.textContent.includes('secret-zero')");
    assert_eq!(is_there, true, "its owner reads it");
    let port = hostile.address.port();
    browser.open(&format!("http://127.0.0.1:{port}/#itself"));
    let results = browser.script_with_done("all.then(done)");
    for way in ["fetch /", "blind fetch /", "script /page.js", "style /", "frame /", "form /"] {
        assert_ne!(results[way], "refused", "{way} works where it may");
    }
    // Another port of this machine is the same site to a browser; a name of the attacker is another.
    for (site, kept) in [("127.0.0.1", "other-port"), ("evil.example", "other-site")] {
        let origin = format!("http://{site}:{port}/");
        browser.open(&origin);
        let results = browser.script_with_done("all.then(done)");
        browser.keep_attack(kept, &results);
        let results = results.as_object().unwrap();
        assert!(results.len() >= 36, "all ways were tried: {results:?}");
        for (way, got) in results {
            assert_eq!(got, "refused", "{origin}: {way}");
        }
        // A link may lead there; what it opens is not this page's.
        let opened = browser.script_with_done(&format!(
            "const opened = window.open('{url}/');\n\
             const isRefused = () => {{ try {{ return opened.closed || !opened.document; }} catch {{ return true; }} }};\n\
             const look = () => isRefused() ? done('refused') : setTimeout(look, 10);\n\
             look();"
        ));
        assert_eq!(opened, "refused", "{origin}");
    }
    assert!(hostile.seen().len() >= 2, "{:?}", hostile.seen());
}

#[test]
fn name_that_an_attacker_leads_to_the_page_reads_nothing() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero,name=secret-zero"]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    let rebound = url.replace("127.0.0.1", "evil.example");
    // To the browser everything of this origin is one page's own.
    browser.open(&format!("{rebound}/healthz"));
    for path in ["/", "/api/v1/status", "/metrics", "/devices", "/readyz"] {
        browser.open(&format!("{rebound}{path}"));
        let seen = browser.script("return document.documentElement.textContent");
        assert!(seen.as_str().unwrap().contains("this page is at localhost alone"), "{path}: {seen}");
        let script = format!("fetch('{path}').then((answer) => answer.text()).then(done, (error) => done('' + error))");
        let read = browser.script_with_done(&script);
        assert!(!read.as_str().unwrap().contains("secret-zero"), "{path}: {read}");
    }
    browser.open(&rebound);
    browser.keep_picture("attack-rebound-name");
}

/// What has the keyboard's focus: its text and whether that is seen.
const FOCUSED: &str = "const at = document.activeElement;\
    if (!at || at === document.body) { return null; }\
    const style = getComputedStyle(at);\
    const box = at.getBoundingClientRect();\
    const all = [...document.querySelectorAll('*')];\
    return { at: all.indexOf(at), what: at.outerHTML.slice(0, 120), \
        is_seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 1 && \
            box.right > 0 && box.bottom > 0 && box.left < innerWidth };";

#[test]
fn keyboard_alone_reaches_everything_and_shows_where_it_is() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["zero", "keyboard", "--reserve", "keyboard:bytes=8,period=8"]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    let device = format!("/device/{}?name=zero", share.process.id());
    for (view, stops_min) in [("/", 7), (device.as_str(), 12), ("/buses", 8), ("/network", 6)] {
        browser.open(&format!("{url}{view}"));
        browser.wait_for("document.querySelector('#live').textContent === 'live'");
        let wanted = browser.script(
            "const all = [...document.querySelectorAll('*')];\
             return [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]\
                .filter((element) => element.checkVisibility() && element.tabIndex >= 0)\
                .map((element) => all.indexOf(element))",
        );
        let wanted: Vec<u64> = wanted.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        let mut reached = Vec::new();
        for _ in 0..wanted.len() {
            browser.press(&[TAB]);
            let focused = browser.script(FOCUSED);
            assert_eq!(focused["is_seen"], true, "{view}: {focused}");
            reached.push(focused["at"].as_u64().unwrap());
        }
        assert!(wanted.len() >= stops_min, "{view}: {wanted:?}");
        assert_eq!(reached, wanted, "{view}: the order of the document");
    }
    // The first stop leads past what is on every page.
    browser.open(&url);
    browser.press(&[TAB]);
    let first = browser.script("return document.activeElement.getAttribute('href')");
    assert_eq!(first, "#main");
    browser.press(&[ENTER]);
    browser.press(&[TAB]);
    let at = browser.script(
        "return document.querySelector('main').contains(document.activeElement) || \
        document.activeElement.compareDocumentPosition(document.querySelector('main')) === 2",
    );
    assert_eq!(at, true, "the next stop is in the main part, or after it");
    assert_no_complaint(&browser);
}

/// The widths that are looked at: a phone, and a screen.
pub const WIDTHS: [u32; 2] = [360, 1280];

#[test]
fn page_fits_a_phone_and_a_screen_by_day_and_by_night() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero", "keyboard", &format!("zero,name={}", "long-name-".repeat(6))]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    let mut grounds = BTreeSet::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for width in WIDTHS {
            browser.resize(width, 800);
            browser.open(&url);
            let widest = browser.script("return document.documentElement.scrollWidth").as_u64().unwrap();
            assert!(widest <= width.into(), "{scheme}, {width}: {widest} pixels");
            browser.keep_picture(&format!("devices-{scheme}-{width}"));
        }
        let ground = browser.script(
            "const canvas = document.createElement('canvas').getContext('2d');\
             canvas.fillStyle = getComputedStyle(document.body).backgroundColor;\
             canvas.fillRect(0, 0, 1, 1);\
             return canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).reduce((sum, value) => sum + value, 0);",
        );
        grounds.insert((scheme, ground.as_u64().unwrap()));
    }
    let [(_, dark), (_, light)] = grounds.into_iter().collect::<Vec<_>>()[..] else { panic!("two") };
    assert!(dark < 200 && light > 600, "{dark} {light}");
}

/// What a page of a thousand devices may have: bytes, elements, and milliseconds of script for each event.
const PAGE_BYTES_MAX: u64 = 120 << 10;
const ELEMENTS_MAX: u64 = 3000;
pub const SCRIPT_MS_MAX: f64 = 50.0;
/// Bytes of the event that tells of one change.
const EVENT_BYTES_MAX: u64 = 8 << 10;

#[test]
fn thousand_devices_take_a_page_of_bounded_size_and_a_change_takes_one_row() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, url) = open_page(&harness);
    let device = |n: usize| {
        json!({
            "name": format!("board{n}"), "title": "Example Inc. board", "state": "available", "interfaces": ["storage"],
            "labels": { "rack": format!("r{}", n % 7) },
        })
    };
    let made_up = MadeUp::start(&harness, (0..1000).map(device).collect());
    let browser = Browser::start(&harness, &[]);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.wait_for("document.querySelector('#count').textContent === 'Devices 1 to 100 of 1000'");
    let number = |script: &str| browser.script(&format!("return {script}")).as_u64().unwrap();
    let bytes = number("performance.getEntriesByType('navigation')[0].decodedBodySize");
    let elements = number("document.querySelectorAll('*').length");
    // What a change costs: the script's time, and the bytes of its event.
    browser.script(
        "window.heard = []; events.addEventListener('parts', (event) => window.heard.push(event.data.length));",
    );
    browser.devtools("Performance.enable", &json!({ "timeDomain": "threadTicks" }));
    let script_ms = || {
        let metrics = browser.devtools("Performance.getMetrics", &json!({}));
        let metrics = metrics["metrics"].as_array().unwrap();
        let seconds = metrics.iter().find(|metric| metric["name"] == "ScriptDuration").unwrap();
        seconds["value"].as_f64().unwrap() * 1000.0
    };
    let before = script_ms();
    let mut spent = Vec::new();
    for round in 0..ROUNDS {
        let began = script_ms();
        made_up.change(|devices| devices[50]["title"] = json!(format!("changed {round}")));
        browser.wait_for(&format!("document.querySelector('#rows').textContent.includes('changed {round}')"));
        spent.push(script_ms() - began);
    }
    let heard = browser.script("return window.heard");
    let heard: Vec<u64> = heard.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    println!(
        "{bytes} bytes, {elements} elements, events of {heard:?} bytes, {spent:?} ms of script each ({before} before)"
    );
    assert!(bytes < PAGE_BYTES_MAX && elements < ELEMENTS_MAX, "{bytes} {elements}");
    assert!(heard.len() >= ROUNDS && heard.iter().all(|bytes| *bytes < EVENT_BYTES_MAX), "{heard:?}");
    assert!(spent.iter().any(|ms| *ms < SCRIPT_MS_MAX), "{spent:?}");
    // The filter, with the script and then without it.
    browser.script("document.querySelector('#filter').focus()");
    browser.press(&["r", "3"]);
    browser.wait_for("document.querySelector('#count').textContent === 'Devices 1 to 100 of 143'");
    assert_eq!(browser.script("return location.search"), "?q=r3");
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&format!("{url}/?q=board77"));
    let count = browser.script("return document.querySelectorAll('#rows tr').length");
    assert_eq!(count, 11);
    browser.open(&format!("{url}/?q=r3&page=2"));
    let count = browser.script("return document.querySelector('#count').textContent");
    assert_eq!(count, "Devices 101 to 143 of 143");
    browser.keep_picture("devices-filtered");
}

#[test]
fn page_of_a_device_shows_its_descriptors_and_commands_that_work() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["zero,name=board", "keyboard"]);
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&url);
    browser.script("[...document.querySelectorAll('th a')].find((link) => link.textContent.includes('board')).click()");
    browser.wait_for("document.querySelector('h1')?.textContent.includes('board')");
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let tree = browser.script("return document.querySelector('#descriptors').textContent");
    let tree = tree.as_str().unwrap();
    for part in ["Configuration 1", "Interface 0, setting 0", "bulk in, packets of up to 512 bytes: up to 53.25 MB/s"] {
        assert!(tree.contains(part), "{part}: {tree}");
    }
    let facts = browser.script("return document.querySelector('#facts').textContent");
    assert!(facts.as_str().unwrap().contains("0525:a4a0"), "{facts}");
    browser.keep_picture("device");
    let lines =
        browser.script("return [...document.querySelectorAll('#commands code')].map((line) => line.textContent)");
    let lines: Vec<&str> = lines.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(lines.iter().any(|line| line.starts_with("farbus label ")), "{lines:?}");
    // Typed into a shell, each line is one that the command understands: a usage error is exit code 2.
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_farbus")).parent().unwrap();
    for line in lines {
        let line = line.replace("farbus attach", "timeout 5 farbus attach");
        let mut shell = harness.command_of(std::path::Path::new("bash"), &["-c", &line]);
        shell.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        let outcome = finish(shell, PATIENCE);
        assert!(outcome.code.is_some_and(|code| code != 2 && code != 127), "{line}: {outcome:?}");
    }
    // Without a mouse a command line is copied, or at least selected where the browser refuses that.
    browser.script("document.querySelector('button.copy').focus()");
    browser.press(&[ENTER]);
    let line = "document.querySelector('#commands code').textContent";
    browser.wait_for(&format!(
        "document.querySelector('#live').textContent === 'copied' || getSelection().toString() === {line}"
    ));
    browser.script("getSelection().removeAllRanges()");
    // What happens is seen here, too, and what has gone is said to have gone.
    browser.wait_for("document.querySelector('#facts').textContent.includes('PlaceTEXT')");
    drop(share);
    browser.wait_for("document.querySelector('#gone') !== null");
    assert_no_complaint(&browser);
}

#[test]
fn row_that_changes_keeps_the_focus_and_waits_for_a_selection() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, url) = open_page(&harness);
    let device = |n: usize| json!({ "name": format!("board{n}"), "title": "at first", "state": "in use" });
    let made_up = MadeUp::start(&harness, (0..3).map(device).collect());
    let retitle = |title: &'static str| {
        made_up.change(|devices| devices.iter_mut().for_each(|device| device["title"] = json!(title)));
    };
    let browser = Browser::start(&harness, &[]);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.script("document.querySelectorAll('#rows a')[1].focus()");
    retitle("then");
    browser.wait_for("document.querySelector('#rows').textContent.includes('then')");
    assert_eq!(browser.script("return document.activeElement.textContent"), "board1");
    let select = "window.heard = 0; events.addEventListener('parts', () => { document.title = 'heard'; });\
        getSelection().selectAllChildren(document.querySelectorAll('#rows code')[1]);";
    browser.script(select);
    retitle("at last");
    browser.wait_for("document.title === 'heard'");
    let seen = browser.script("return [getSelection().toString(), document.querySelector('#rows').textContent]");
    assert_eq!(seen[0], "farbus release board1");
    assert!(!seen[1].as_str().unwrap().contains("at last"), "{seen}");
    browser.script("getSelection().removeAllRanges()");
    browser.wait_for("document.querySelector('#rows').textContent.includes('at last')");
}

#[test]
fn page_that_was_started_again_is_followed_again() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    drop(page);
    browser.wait_for("document.querySelector('#live').textContent.startsWith('not live')");
    let _share = harness.share(&["keyboard"]);
    let address = url.trim_start_matches("http://");
    let page = Running::start(harness.command(&["page", "--listen", address]));
    page.wait_for_line("page at http://");
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.wait_for("document.querySelector('#rows').textContent.includes('keyboard')");
}

/// Tries every way in which a page of another site, which the browser shows, can make it send this body to an address.
pub fn press(browser: &Browser, at: &str, body: &str) {
    let script = format!(
        "const at = '{at}', body = \"{body}\";\n\
         const ways = [];\n\
         for (const mode of ['no-cors', 'cors']) for (const kind of ['text/plain', 'application/json'])\n\
           ways.push(fetch(at, {{ method: 'POST', mode, body, credentials: 'include', headers: {{ 'Content-Type': \
         kind }} }}).catch(() => null));\n\
         ways.push(Promise.resolve(navigator.sendBeacon(at, body)));\n\
         for (const query of ['', '?' + body]) ways.push(fetch(at + query, {{ mode: 'no-cors', credentials: 'include' \
         }}).catch(() => null));\n\
         const frame = document.createElement('iframe'); frame.name = 'frame' + document.querySelectorAll('iframe').length; document.body.append(frame);\n\
         const form = document.createElement('form'); form.method = 'post'; form.action = at;\n\
         form.target = frame.name; form.enctype = 'text/plain';\n\
         const field = document.createElement('input'); field.name = body; form.append(field);\n\
         document.body.append(form);\n\
         frame.addEventListener('load', () => Promise.all(ways).then(() => done('tried')));\n\
         form.submit();"
    );
    assert_eq!(browser.script_with_done(&script), "tried", "{at}");
}

#[test]
fn a_button_does_what_its_command_does_and_a_page_of_another_site_presses_none() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let socket = harness.path("nbd");
    let arguments = ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let mut attached = Running::start(harness.command(&arguments));
    attached.wait_for_line("attached as");
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    let state = || {
        let status = harness.json(&["status", "--json"]);
        let of_share = status.as_array().unwrap().iter().find(|process| process["role"] == "share").unwrap();
        of_share["devices"][0]["state"].as_str().unwrap().to_owned()
    };

    // Every way in which a page of another site can make a browser send something.
    let hostile = Pages::serve("<!doctype html><title>x</title>".to_owned());
    for origin in ["127.0.0.1", "evil.example"] {
        browser.open(&format!("http://{origin}:{}/", hostile.address.port()));
        press(&browser, &format!("{url}/api/v1/actions/release"), r#"{\"device\":\"disk\",\"force\":true}"#);
        assert_eq!(state(), "in use", "{origin}");
        browser.keep_attack(&format!("press-{origin}"), &json!({ "release": state() }));
    }
    let _ = browser.complaints();

    browser.open(&format!("{url}/device/{}?name=disk", attached.id()));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    let line =
        "document.querySelector('button.do[data-action=detach]').parentElement.querySelector('code').textContent";
    let line = browser.script(&format!("return {line}"));
    assert_eq!(line, format!("farbus detach {}", share.target("disk")));
    browser.script("document.querySelector('button.do[data-action=detach]').click()");
    browser.wait_for("document.getElementById('sure').open");
    browser.script("document.getElementById('sure-yes').click()");
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    wait_until(PATIENCE, "the disk is free", || state() == "available");
    let audited = harness.run(&["audit", "--all"]).stdout;
    assert!(audited.contains("page-detach") && audited.contains("page-change"), "{audited}");
}
