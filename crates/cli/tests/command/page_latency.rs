//! The latency of an attached disk over time, as its page draws it while the disk is read.

use serde_json::json;

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running, finish, has, has_program};
use super::page_accessible::assert_accessible;
use super::page_browser::{assert_no_complaint, open_page};
use super::page_schema::Description;
use super::run::can_run;
use super::sockets::share_at_socket;

#[test]
fn latency_of_each_second_is_drawn_and_told_while_a_disk_is_read_and_without_a_reload() {
    if !has_browser() || !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 8 << 20);
    // What is a hole is not read.
    std::fs::write(&image, vec![0x5a; 8 << 20]).unwrap();
    let (_share, path) = share_at_socket(&harness, &[&format!("disk:{},name=disk", image.display())]);
    let socket = harness.path("nbd");
    let target = format!("unix:{}/disk", path.display());
    let arguments = ["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attached = Running::start(harness.command(&arguments));
    attached.wait_for_line("attached as");
    let read = || {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let copy = harness.command_of(std::path::Path::new("nbdcopy"), &["--request-size=65536", &uri, "null:"]);
        let outcome = finish(copy, PATIENCE);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    };
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    let device = format!("{}?name=disk", attached.id());
    browser.open(&format!("{url}/device/{device}"));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    browser.script("window.isTheSame = true");
    read();
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    browser.wait_for("document.querySelector('#reading-latency-device').textContent.includes('99.9 % ')");
    let shown = browser.script("return Number(document.querySelector('#latency-history').dataset.shown)");
    read();
    browser.wait_for(&format!("Number(document.querySelector('#latency-history').dataset.shown) > {shown}"));
    assert_eq!(browser.script("return window.isTheSame"), true, "it was not loaded again");
    let table = browser.script("return document.querySelector('#latency-history table').textContent");
    for word in ["All", "Network", "Exporter", "Device", "99.9 %", "µs"] {
        assert!(table.as_str().unwrap().contains(word), "{word}: {table}");
    }
    let script = format!("fetch('/api/v1/latency/{device}').then((answer) => answer.json()).then(done)");
    let answer = browser.script_with_done(&script);
    let description =
        browser.script_with_done("fetch('/api/v1/openapi.json').then((answer) => answer.json()).then(done)");
    let is_described =
        Description(description).check("/api/v1/latency/{id}", "get", 200, "application/json", &answer.to_string());
    assert_eq!(is_described, Ok(()));
    let seconds = answer["seconds"].as_array().unwrap();
    assert!(seconds.len() >= 2 && seconds.iter().all(|second| second["timed"].as_u64() > Some(0)), "{answer}");
    let of = |percentile: &str| seconds[0]["all_us"][percentile].as_f64().unwrap();
    assert!(0.0 < of("p50") && of("p50") <= of("p99") && of("p99") <= of("p999"), "{answer}");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.resize(900, 1700);
        browser.script("document.querySelector('#latency-history details').open = true");
        assert_accessible(&browser, &format!("latency over time, {scheme}"));
        browser.script("document.querySelector('#latency-plots').scrollIntoView()");
        browser.keep_picture(&format!("device-latency-{scheme}"));
    }
    assert_no_complaint(&browser);
    // Without the script the tables say it, and nothing else claims to.
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&format!("{url}/device/{device}"));
    let seen = browser.script(
        "return [document.querySelectorAll('#latency-history tbody tr').length >= 5, \
         document.querySelector('#latency-plots').checkVisibility(), document.querySelectorAll('canvas, svg.latency').length]",
    );
    assert_eq!(seen, json!([true, false, 0]));
    browser.keep_picture("device-latency-without-script");
    assert_no_complaint(&browser);
}

#[test]
fn device_of_a_program_in_farbus_run_has_its_latency_over_time_on_its_page() {
    if !has_browser() || !can_run() {
        return;
    }
    let harness = Harness::new();
    let (_share, path) = share_at_socket(&harness, &["zero"]);
    let target = format!("unix:{}/zero", path.display());
    let program = "echo ready; while lsusb -v > /dev/null; do :; done";
    let run = Running::start(harness.command(&["run", &target, "--", "sh", "-c", program]));
    run.wait_for_line("ready");
    let status = harness.json(&["status", "--json"]);
    let process = status.as_array().unwrap().iter().find(|process| process["role"] == "run").unwrap();
    assert_eq!(process["devices"][0]["interfaces"], json!(["vendor specific"]), "{process}");
    let (_page, url) = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.open(&format!("{url}/device/{}?name=zero", process["pid"]));
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    browser.wait_for("document.querySelector('#reading-latency-all').textContent.includes('99.9 % ')");
    let answer = browser.script("return document.querySelector('#latency-history table').textContent");
    assert!(answer.as_str().unwrap().contains("µs"), "{answer}");
    browser.script("document.querySelector('#latency-plots').scrollIntoView()");
    browser.keep_picture("device-latency-of-run");
    assert_no_complaint(&browser);
}
