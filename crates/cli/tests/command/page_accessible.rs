//! Whether people who use the page by a screen reader, by keyboard, or with weak eyes are kept out of any of its views.

use serde_json::{Value, json};

use super::browser::{Browser, MadeUp, PID, has_browser};
use super::harness::Harness;
use super::page_browser::{WIDTHS, assert_no_complaint, open_page};

/// What is wrong with a document for people who use it by a screen reader, by keyboard, or with weak eyes: what the
/// browser's own tree and the computed styles tell. It is no substitute for axe, which the gate runs, too.
const ACCESSIBILITY: &str = r#"
const wrong = [];
const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
if (document.documentElement.lang !== "en") { wrong.push("no language"); }
if (document.title.trim() === "") { wrong.push("no title"); }
for (const name of ["main", "h1", "header", "footer"]) {
  if (document.querySelectorAll(name).length !== 1) { wrong.push("not one " + name); }
}
let level = 0;
for (const heading of [...document.querySelectorAll("h1, h2, h3, h4")].filter(seen)) {
  const own = Number(heading.tagName[1]);
  if (own > level + 1) { wrong.push("heading " + heading.textContent + " skips a level"); }
  level = own;
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of ids.filter((id, at) => ids.indexOf(id) !== at)) { wrong.push("id twice: " + id); }
for (const table of document.querySelectorAll("table")) {
  if (!table.querySelector("thead th[scope=col]")) { wrong.push("table without headings"); }
  for (const row of table.querySelectorAll("tbody tr")) {
    if (!row.querySelector("th[scope=row]")) { wrong.push("row without a heading: " + row.textContent); }
  }
}
for (const list of document.querySelectorAll("ul")) {
  if ([...list.children].some((child) => child.tagName !== "LI")) { wrong.push("list with other than items"); }
}
for (const input of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
  if (!input.labels?.length) { wrong.push("input without a label: " + input.id); }
}
for (const svg of document.querySelectorAll("svg[role=img]")) {
  if (svg.ariaLabel) { continue; }
  const ids = (svg.getAttribute("aria-labelledby") ?? "").split(" ");
  if (!ids.every((id) => document.getElementById(id)?.textContent.trim())) { wrong.push("picture without a name"); }
}
const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (colour) => {
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
};
const luminance = (colour) => colour.slice(0, 3).map((value) => value / 255)
  .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) { return colour; }
  }
  return [255, 255, 255, 255];
};
let least = 21;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (node.textContent.trim() === "" || !seen(element) || element.closest("title, desc")) { continue; }
  const style = getComputedStyle(element);
  const own = rgb(element.closest("svg") ? style.fill : style.color);
  const [dark, light] = [luminance(own), luminance(ground(element))].sort((one, other) => one - other);
  const contrast = (light + 0.05) / (dark + 0.05);
  least = Math.min(least, contrast);
  if (contrast < 4.5) { wrong.push("contrast " + contrast.toFixed(2) + ": " + node.textContent.trim().slice(0, 40)); }
}
return { wrong: [...new Set(wrong)], least };
"#;

/// Controls and pictures that the browser's accessibility tree has without a name.
fn nameless(browser: &Browser) -> Vec<String> {
    let tree = browser.devtools("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().unwrap();
    assert!(nodes.len() > 20, "{tree}");
    let needs_name =
        ["link", "button", "textbox", "searchbox", "image", "img", "heading", "table", "navigation", "group"];
    let is_nameless = |node: &&Value| {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        node["ignored"] == false
            && needs_name.contains(&role)
            && node["name"]["value"].as_str().unwrap_or_default().trim().is_empty()
    };
    nodes.iter().filter(is_nameless).map(|node| format!("{} {}", node["role"]["value"], node["nodeId"])).collect()
}

/// What axe-core finds, as far as it is more than a remark.
const SERIOUS: &str = "axe.run(document).then((found) => done(found.passes.length < 10 ? 'it checks nothing' : found.violations\
    .filter((violation) => ['serious', 'critical'].includes(violation.impact))\
    .map((violation) => violation.id + ': ' + violation.nodes.map((node) => node.html).join(' '))),\
    (error) => done('' + error));";

/// The program of axe-core, if `FARBUS_AXE` names its file, as the gate does (`cargo xtask axe`).
fn axe() -> Option<String> {
    let Some(path) = std::env::var_os("FARBUS_AXE") else {
        println!("axe-core was not run: FARBUS_AXE names no axe.min.js; 'cargo xtask axe' prints one");
        return None;
    };
    Some(std::fs::read_to_string(path).unwrap())
}

/// Nobody is kept out of what the browser shows now, by what its tree and styles tell and, where it is, by axe. Returns
/// the least contrast of a text.
pub fn assert_accessible(browser: &Browser, what: &str) -> f64 {
    let least = assert_accessible_without_script(browser, what);
    if let Some(axe) = axe() {
        let found = browser.script_with_done(&format!("{axe}\n{SERIOUS}"));
        assert_eq!(found, json!([]), "axe: {what}");
    }
    least
}

/// Like [`assert_accessible`], but without axe, for a browser that runs no script of the page.
pub fn assert_accessible_without_script(browser: &Browser, what: &str) -> f64 {
    let found = browser.script(ACCESSIBILITY);
    assert_eq!(found["wrong"], json!([]), "{what}");
    assert_eq!(nameless(browser), [""; 0], "{what}");
    found["least"].as_f64().unwrap()
}

#[test]
fn every_view_is_accessible_as_far_as_the_browser_can_tell_by_day_and_by_night() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    let _reserved = harness.share(&["keyboard", "--reserve", "keyboard:bytes=8,period=8"]);
    let _disk = harness.share(&[&format!("disk:{}", image.display())]);
    let links = json!({ "up": 1, "each": [{ "lane": 0, "is_up": true, "since_s": 9.0, "peer": "10.0.0.3:1", "bytes_in": 5,
        "bytes_out": 6, "round_trip_ms": 0.4 }] });
    let spread = json!({ "p50": 100.0, "p99": 900.0 });
    let _made_up = MadeUp::start(
        &harness,
        vec![json!({
            "name": "used", "title": "Example board", "state": "in use", "user": "desk (10.0.0.3:1)", "used_s": 5.0,
            "links": links, "waiting": [{ "host": "rack", "waits_s": 3.0 }], "failure": { "message": "a reason" },
            "meters": { "urbs": 7, "bytes_in": 5, "bytes_out": 6 }, "labels": { "board": "imx8" },
            "latency": { "samples": 9, "all_us": spread, "network_us": spread, "bus_us": spread, "back_end_us": spread },
            "history": [{ "user": "rack", "used_s": 5.0, "ago_s": 6.0, "ended": "detached", "reason": "a test" }],
        })],
    );
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    let mut least = f64::MAX;
    let device = format!("{url}/device/{}?name=used", PID);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for width in WIDTHS {
            browser.resize(width, 900);
            for (name, address) in [
                ("devices", &url),
                ("device", &device),
                ("buses", &format!("{url}/buses")),
                ("network", &format!("{url}/network")),
                ("hosts", &format!("{url}/hosts")),
            ] {
                browser.open(address);
                browser.wait_for("document.querySelector('#live').textContent === 'live'");
                least = least.min(assert_accessible(&browser, &format!("{name}, {scheme}, {width}")));
                let widest = browser.script("return document.documentElement.scrollWidth").as_u64().unwrap();
                assert!(widest <= width.into(), "{name}, {scheme}, {width}: {widest} pixels");
                browser.keep_picture(&format!("{name}-{scheme}-{width}"));
            }
        }
    }
    println!("the least contrast of a text: {least:.2}");
    assert_no_complaint(&browser);
}
