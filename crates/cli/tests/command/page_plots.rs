//! The plots over time of a device's page: what is read, enlarged and left out, by mouse and by keyboard, in colours of
//! day and night, and on a phone.

use std::time::Instant;

use serde_json::{Value, json};

use super::browser::{Browser, ENTER, MadeUp, PID, has_browser};
use super::harness::Harness;
use super::page_accessible::assert_accessible;
use super::page_browser::{SCRIPT_MS_MAX, assert_no_complaint, open_page};

/// A second of a made-up attachment; its network takes a tenth of all.
fn second(number: u64, last: u64, us: f64) -> Value {
    let stage = |us: f64| json!({ "p50": us, "p99": us * 3.0, "p999": us * 10.0 });
    json!({
        "number": number, "ago_s": last - number, "timed": 7, "all_us": stage(us), "network_us": stage(us / 10.0),
        "bus_us": stage(us / 5.0), "back_end_us": stage(us / 2.0),
    })
}

/// A device with the seconds from `first` to `last`; nothing was asked of it in seconds 100 to 119.
pub fn device(first: u64, last: u64) -> Value {
    let us = |number: u64| 100.0 * (1 + number % 10) as f64;
    let is_idle = |number: &u64| (100..120).contains(number);
    let seconds: Vec<Value> =
        (first..=last).filter(|number| !is_idle(number)).map(|number| second(number, last, us(number))).collect();
    let spread = json!({ "p50": 100.0, "p90": 200.0, "p99": 900.0 });
    json!({
        "name": "board", "title": "Example board", "state": "attached", "seconds": seconds,
        "latency": { "samples": 9, "second": last + 1, "all_us": spread },
    })
}

/// The plot of a stage, and where it is on the screen.
const PLOTS: &str = "const boxes = [...document.querySelectorAll('#latency-plots [role=img]')];\
    const over = boxes[0].querySelector('.u-over').getBoundingClientRect();";

fn open_device(harness: &Harness, made_up: &Value) -> (super::harness::Running, MadeUp, Browser) {
    let made_up = MadeUp::start(harness, vec![made_up.clone()]);
    let (page, url) = open_page(harness);
    let browser = Browser::start(harness, &[]);
    browser.resize(1280, 1000);
    browser.open(&format!("{url}/device/{PID}?name=board"));
    browser.wait_for("document.querySelector('#live').textContent === 'live'");
    (page, made_up, browser)
}

fn texts(browser: &Browser, selector: &str) -> Vec<String> {
    let script = format!("return [...document.querySelectorAll('{selector}')].map((element) => element.textContent)");
    let texts = browser.script(&script);
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The ends of the time that all plots of latency show, if it is the same of all.
fn shown(browser: &Browser) -> (f64, f64) {
    let script = format!("{PLOTS} return boxes.map((box) => [box.plot.scales.x.min, box.plot.scales.x.max])");
    let all = browser.script(&script);
    let all = all.as_array().unwrap();
    assert!(all.len() == 4 && all.iter().all(|one| one == &all[0]), "{all:?}");
    (all[0][0].as_f64().unwrap(), all[0][1].as_f64().unwrap())
}

#[test]
fn plot_of_latency_is_read_enlarged_and_reset_with_the_mouse_and_a_line_is_left_out() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, made_up, browser) = open_device(&harness, &device(0, 179));
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    browser.script("window.isTheSame = true; document.querySelector('#latency-plots').scrollIntoView()");
    let drawn = browser.script(&format!("{PLOTS} return boxes[3].plot.data"));
    // Of the device, half of all: the second 0, and the row that keeps the line from the gap.
    assert_eq!((&drawn[1][0], &drawn[2][0], &drawn[3][0]), (&json!(50), &json!(150), &json!(500)), "{drawn}");
    assert_eq!((&drawn[1][99], &drawn[1][100], &drawn[1][101]), (&json!(500), &Value::Null, &json!(50)), "{drawn}");
    // All of one scale, from the least of the network to the most of all.
    let scales =
        browser.script(&format!("{PLOTS} return boxes.map(({{ plot }}) => [plot.scales.y.min, plot.scales.y.max])"));
    assert_eq!(scales, json!([[10, 10_000], [10, 10_000], [10, 10_000], [10, 10_000]]));
    for at in 0..4 {
        let coloured = browser.script(&format!("const panel = {at}; {COLOURED}")).as_u64().unwrap();
        assert!(coloured > 500, "{coloured} pixels have the colours of the lines");
    }
    let readings = texts(&browser, "#latency-plots figcaption");
    let last = ", median 1 ms, 99 % 3 ms, 99.9 % 10 ms";
    assert!(readings[0].starts_with("All ") && readings[0].ends_with(last), "{readings:?}");

    // The mouse stands on the second 30.
    let point = |number: u64| {
        let script = format!(
            "{PLOTS} return [over.left + boxes[0].plot.valToPos(boxes[0].plot.data[0][{number}], 'x'), over.top + 40]"
        );
        let at = browser.script(&script);
        (at[0].as_f64().unwrap().round(), at[1].as_f64().unwrap().round())
    };
    let to = |(x, y): (f64, f64)| json!({ "type": "pointerMove", "duration": 0, "x": x, "y": y });
    let (down, up) = (json!({ "type": "pointerDown", "button": 0 }), json!({ "type": "pointerUp", "button": 0 }));
    browser.mouse(&[to(point(30))]);
    browser.wait_for("document.querySelector('#reading-latency-all').textContent.includes('median 100 µs')");
    let readings = texts(&browser, "#latency-plots figcaption");
    assert!(readings[1].ends_with("median 10 µs, 99 % 30 µs, 99.9 % 100 µs"), "of the same second: {readings:?}");
    browser.keep_picture("plots-latency-read");

    let whole = shown(&browser);
    assert_eq!(whole.1 - whole.0, 180.0);
    browser.mouse(&[to(point(30)), down.clone(), to(point(45)), to(point(60)), up.clone()]);
    browser.wait_for("!document.querySelector('#latency-plots .legend > button:last-child').hidden");
    let enlarged = shown(&browser);
    assert!((enlarged.1 - enlarged.0 - 30.0).abs() < 1.0, "{enlarged:?}");
    // A further second comes in, and what is enlarged stays where it is.
    made_up.change(|devices| devices[0] = device(1, 180));
    browser.wait_for("document.querySelector('#latency-history').dataset.shown === '181'");
    assert_eq!(shown(&browser), enlarged);
    let first = browser.script(&format!("{PLOTS} return boxes[0].plot.data[0][0]")).as_f64().unwrap();
    assert_eq!(first, drawn[0][1].as_f64().unwrap(), "the second 1 is drawn where it was");
    browser.keep_picture("plots-latency-enlarged");
    browser.mouse(&[to(point(40)), down.clone(), up.clone(), down.clone(), up.clone()]);
    browser.wait_for("document.querySelector('#latency-plots .legend > button:last-child').hidden");
    assert_eq!(shown(&browser), (whole.0 + 1.0, whole.1 + 1.0));

    // Another session counts its seconds anew: they are drawn where they are, and nothing of the former is left.
    made_up.change(|devices| devices[0] = device(0, 9));
    browser.wait_for("document.querySelector('#latency-history').dataset.shown === '10'");
    let (_, end) = shown(&browser);
    let now = browser.script("return Date.now() / 1000").as_f64().unwrap();
    let seconds = browser.script(&format!("{PLOTS} return boxes[0].plot.data[0].length"));
    // A stall of the machine may have passed meanwhile; the former session ended at second 180.
    assert!((now - end).abs() < 60.0 && seconds == 10, "{end} {now} {seconds}");

    // Without its legend's button a line is there again.
    let press = "document.querySelectorAll('#latency-plots .legend button')[2].click()";
    let are_shown = format!("{PLOTS} return boxes.map((box) => box.plot.series[3].show)");
    browser.script(press);
    assert_eq!(browser.script(&are_shown), json!([false, false, false, false]));
    let readings = texts(&browser, "#latency-plots figcaption");
    assert!(readings.iter().all(|reading| !reading.contains("99.9 %")), "{readings:?}");
    let pressed = browser.script("return document.querySelectorAll('#latency-plots [aria-pressed=false]').length");
    assert_eq!(pressed, 1);
    browser.script(press);
    assert_eq!(browser.script(&are_shown), json!([true, true, true, true]));
    assert_eq!(browser.script("return window.isTheSame"), true, "it was not loaded again");
    assert_no_complaint(&browser);
}

#[test]
fn plot_of_latency_is_read_with_the_keyboard_and_has_a_name_and_the_tables_beside_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, _made_up, browser) = open_device(&harness, &device(0, 179));
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    browser.script("document.querySelector('#latency-plots [role=img]').focus()");
    // The last second has 1 ms, the one before 900 µs.
    browser.press(&["\u{e012}"]);
    browser.wait_for("document.querySelector('#reading-latency-all').textContent.includes('median 900 µs')");
    browser.press(&["\u{e012}", "\u{e012}", "\u{e014}"]);
    browser.wait_for("document.querySelector('#reading-latency-device').textContent.includes('median 400 µs')");
    // What is read is enlarged around it, by a button as fingers press it, down to some seconds.
    let whole = shown(&browser);
    let read = whole.1 - 5.0;
    let press = |name: &str| {
        let button = "[...document.querySelectorAll('#latency-plots button')].find((button) => button.textContent ===";
        browser.script(&format!("{button} '{name}').focus()"));
        browser.press(&[ENTER]);
    };
    let mut width = whole.1 - whole.0;
    for _ in 0..5 {
        press("Enlarge");
        width /= 2.0;
        let (from, to) = shown(&browser);
        assert!((to - from - width).abs() < 0.01 && from <= read && read <= to, "{from} {read} {to}");
    }
    assert!(width < 10.0);
    press("Enlarge");
    assert!((shown(&browser).1 - shown(&browser).0 - width).abs() < 0.01, "that is all");
    press("Show all");
    assert_eq!(shown(&browser), whole);
    let tree = browser.devtools("Accessibility.getFullAXTree", &json!({}));
    let pictures: Vec<&Value> = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["role"]["value"] == "image" && node["ignored"] == false)
        .filter(|node| node["name"]["value"].as_str().is_some_and(|name| name.starts_with("Plot over time, ")))
        .collect();
    assert_eq!(pictures.len(), 4, "{tree}");
    for picture in pictures {
        let (name, described) = (picture["name"]["value"].as_str().unwrap(), &picture["description"]["value"]);
        assert!(name.ends_with("the tables below have the numbers"), "{name}");
        assert!(described.as_str().unwrap().contains("median "), "{picture}");
    }
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for width in [320, 1280] {
            browser.resize(width, 1000);
            browser.script("document.querySelector('#latency-history details').open = true");
            assert_accessible(&browser, &format!("plots, {scheme}, {width}"));
        }
    }
    assert_no_complaint(&browser);
}

/// How many pixels of a plot are blue or red rather than grey: those of the median's and the 99.9th percentile's line.
const COLOURED: &str = "const drawn = document.querySelectorAll('#latency-plots canvas')[panel];\
    const canvas = document.createElement('canvas');\
    [canvas.width, canvas.height] = [drawn.width, drawn.height];\
    const context = canvas.getContext('2d', { willReadFrequently: true });\
    context.drawImage(drawn, 0, 0);\
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);\
    let count = 0;\
    for (let at = 0; at < data.length; at += 4) {\
      if (data[at + 3] > 100 && Math.abs(data[at] - data[at + 2]) > 60) { count += 1; }\
    }\
    return count;";

/// The mean brightness of what is drawn in the first plot, 0 to 255.
const BRIGHTNESS: &str = "const drawn = document.querySelector('#latency-plots canvas');\
    const canvas = document.createElement('canvas');\
    [canvas.width, canvas.height] = [drawn.width, drawn.height];\
    const context = canvas.getContext('2d', { willReadFrequently: true });\
    context.drawImage(drawn, 0, 0);\
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);\
    let [sum, count] = [0, 0];\
    for (let at = 0; at < data.length; at += 4) {\
      if (data[at + 3] > 200) { sum += data[at] + data[at + 1] + data[at + 2]; count += 3; }\
    }\
    return sum / count;";

#[test]
fn plots_follow_the_colours_that_are_preferred_the_width_of_a_phone_and_the_wish_for_little_motion() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, made_up, browser) = open_device(&harness, &device(0, 179));
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    let frame = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(true))))";
    let mut brightness = Vec::new();
    for scheme in ["light", "dark", "light"] {
        browser.prefer(scheme);
        browser.script_with_done(frame);
        brightness.push(browser.script(BRIGHTNESS).as_f64().unwrap());
        browser.script("document.querySelector('#latency-plots').scrollIntoView()");
        browser.keep_picture(&format!("plots-latency-{scheme}"));
    }
    println!("brightness of what is drawn, light, dark, light: {brightness:?}");
    assert_eq!(brightness[0], brightness[2]);
    // The lines of the grid are light by day and dark by night; what tells is the text and the lines.
    assert!((brightness[1] - brightness[0]).abs() > 10.0, "{brightness:?}");

    browser.resize(320, 800);
    browser.wait_for("document.querySelector('#latency-plots [role=img]').plot.width <= 320");
    let widest = browser.script("return document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(widest <= 320, "{widest} pixels");
    // Its time axis has two marks at least.
    let marks = "document.querySelector('#latency-plots [role=img]').plot.axes[0]._splits.length";
    assert!(browser.script(&format!("return {marks}")).as_u64() >= Some(2));
    browser.script("document.querySelector('#latency-plots').scrollIntoView()");
    browser.keep_picture("plots-latency-320");
    browser.resize(1280, 1000);
    browser.wait_for("document.querySelector('#latency-plots [role=img]').plot.width > 1000");

    // With little motion the time that is shown does not move on with each second.
    browser.prefer_all(&[("prefers-reduced-motion", "reduce")]);
    let mut ends = std::collections::BTreeSet::new();
    for last in 180..186 {
        made_up.change(|devices| devices[0] = device(last - 179, last));
        browser.wait_for(&format!("document.querySelector('#latency-history').dataset.shown === '{}'", last + 1));
        let (from, to) = shown(&browser);
        assert_eq!((to % 60.0, to - from), (0.0, 180.0));
        ends.insert(to as u64);
    }
    assert!(ends.len() <= 2, "{ends:?}");
    assert_no_complaint(&browser);
}

#[test]
fn a_further_second_of_a_full_plot_takes_little_script_and_uplot_is_loaded_once() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (_page, made_up, browser) = open_device(&harness, &device(200, 379));
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4");
    browser.devtools("Performance.enable", &json!({ "timeDomain": "threadTicks" }));
    let script_ms = || {
        let metrics = browser.devtools("Performance.getMetrics", &json!({}));
        let metrics = metrics["metrics"].as_array().unwrap();
        metrics.iter().find(|metric| metric["name"] == "ScriptDuration").unwrap()["value"].as_f64().unwrap() * 1000.0
    };
    let mut spent = Vec::new();
    for last in 380..385 {
        let began = script_ms();
        made_up.change(|devices| devices[0] = device(last - 179, last));
        browser.wait_for(&format!("document.querySelector('#latency-history').dataset.shown === '{}'", last + 1));
        spent.push(script_ms() - began);
    }
    let bytes = browser.script("return document.querySelector('#latency-history').innerHTML.length");
    println!("script of a further second of 180: {spent:?} ms; it has {bytes} characters");
    assert!(spent.iter().any(|ms| *ms < SCRIPT_MS_MAX), "{spent:?}");
    assert!(bytes.as_u64().unwrap() < 32 << 10, "{bytes}");

    // What has its version in its address is kept by the browser.
    let loaded = "return performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/uplot-'))\
        .map((entry) => entry.transferSize)";
    let first = browser.script(loaded);
    assert!(first.as_array().unwrap().iter().all(|bytes| bytes.as_u64() > Some(1000)), "{first}");
    let url = browser.script("return location.href");
    browser.open(&format!("{}&again", url.as_str().unwrap()));
    assert_eq!(browser.script(loaded), json!([0, 0]));
    assert_no_complaint(&browser);
}

#[test]
fn rates_of_a_device_are_drawn_over_time_as_they_come_in() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let of = |bytes: u64, lanes: u64| {
        let link = |lane: u64| {
            json!({ "lane": lane, "is_up": true, "since_s": 9, "peer": "10.0.0.3:1", "bytes_in": bytes / (lane + 1),
                "bytes_out": 0 })
        };
        json!({
            "name": "board", "title": "Example board", "state": "in use", "user": "desk",
            "meters": { "urbs": 7, "bytes_in": bytes, "bytes_out": 0 },
            "links": { "up": lanes, "each": (0..lanes).map(link).collect::<Vec<_>>() },
        })
    };
    let (_page, made_up, browser) = open_device(&harness, &of(0, 2));
    // 6 MB/s, whenever the page asks, and for as long: what it shows is there to be read, and not for a moment only.
    let began = Instant::now();
    let carry = |lanes: u64| {
        made_up.change_before_each(move |devices| devices[0] = of(began.elapsed().as_micros() as u64 * 6, lanes));
    };
    let is_drawn = |lanes: usize, rows: usize| {
        browser.wait_for(&format!(
            "(() => {{ const plots = [...document.querySelectorAll('#rates-plots [role=img], #links-plots [role=img]')];              return plots.length === 1 + {lanes} && plots[0].plot.data[0].length >= {rows}              && plots.every((box) => Math.max(...box.plot.data[1]) > 0); }})()"
        ));
    };
    carry(2);
    is_drawn(2, 6);
    // A line that is left out is so in the panel of a link that comes later, too.
    browser.script("document.querySelector('#links-plots [aria-pressed]').click()");
    carry(3);
    is_drawn(3, 9);
    let of_links = browser.script(
        "return [...document.querySelectorAll('#links-plots [role=img]')].map((box) => \
         [Math.max(...box.plot.data[1]), box.plot.series[1].show, box.plot.series[2].show])",
    );
    let rate = |lane: usize| of_links[lane][0].as_f64().unwrap();
    assert!(rate(0) > 1.9 * rate(1) && rate(1) > rate(2) && rate(2) > 0.0, "{of_links}");
    assert!((0..3).all(|lane| of_links[lane][1] == false && of_links[lane][2] == true), "{of_links}");
    let tops = "return [...document.querySelectorAll('#links-plots [role=img]')].map((box) => box.plot.scales.y.max)";
    let tops = browser.script(tops);
    assert!(tops[0].as_f64() > Some(1e6) && tops[0] == tops[1] && tops[1] == tops[2], "one scale: {tops}");
    browser.script("document.querySelector('#links-plots [aria-pressed]').click()");
    let readings = texts(&browser, "#links-plots figcaption");
    assert!(readings[2].starts_with("Lane 2 ") && readings[2].contains("received "), "{readings:?}");
    // The table has the present rates.
    browser.wait_for("document.querySelector('#links').textContent.includes('MB/s')");
    browser.wait_for("document.querySelector('#reading-rates-rate').textContent.includes('MB/s')");
    let drawn = browser.script("return document.querySelector('#rates-plots [role=img]').plot.data");
    let of_device: Vec<f64> = drawn[1].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(of_device.iter().any(|rate| *rate > 1e6) && drawn[2][0] == 0, "{drawn}");
    browser.script("document.querySelector('#rates-plots').scrollIntoView()");
    browser.keep_picture("plots-rates");
    assert_accessible(&browser, "rates over time");
    assert_no_complaint(&browser);
}
