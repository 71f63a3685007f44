//! The page with a thousand devices in Chromium: how long its first paint takes, and what one change, and a further
//! second of a plot, cost its script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    database::ScratchFolder,
    page_clients::{PageClientLoad, TOKENS},
};
use crate::{
    lab::BenchmarkEnvironment,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "page";

const DEVICES: usize = 1000;
/// Seconds of a full plot.
const SECONDS: u64 = 180;
const PAINT_MS_MAX: f64 = 1000.0;
const SCRIPT_MS_MAX: f64 = 50.0;
/// The number of the process that says it has them; no process of this machine can have it.
const PID: u32 = 4_294_967_000;
/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is ended with this.
struct ProcessGuard(Child);

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ProcessGuard {
    /// Starts it and reads lines until one has this text; returns that line.
    fn start(mut command: Command, text: &str) -> Result<(Self, String)> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut process = Self(child.with_context(|| format!("cannot start {name}"))?);
        let mut lines = BufReader::new(process.0.stdout.take().context("its output")?).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains(text)).with_context(|| format!("{name} ended without '{text}'"))?;
        // What it prints later is taken from it, so that it never waits.
        thread::spawn(move || lines.for_each(drop));
        Ok((process, line))
    }
}

/// What a made-up process says it has.
type SimulatedDevices = Arc<Mutex<Vec<Value>>>;

/// Answers on a control socket for a process that shares these devices, until this one ends.
fn made_up(folder: &std::path::Path, devices: &SimulatedDevices) -> Result<()> {
    let path = folder.join(format!("{PID}.sock"));
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let devices = Arc::clone(devices);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request_line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut request_line);
            let answer = match serde_json::from_str::<Value>(&request_line) {
                Ok(question) if question["ask"] == "status" => {
                    let devices = devices.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    json!({ "ok": { "pid": PID, "role": "share", "address": "made up", "devices": devices } })
                }
                Ok(question) if question["ask"] == "latency" => {
                    let devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
                    let its = devices.iter().find(|device| device["name"] == question["device"]);
                    json!({ "ok": { "seconds": its.map(|device| device["seconds"].clone()) } })
                }
                _ => json!("unknown"),
            };
            let _ = writeln!(stream, "{answer}");
        }
    });
    Ok(())
}

/// Chromium without a window, by its WebDriver.
struct HeadlessBrowser {
    _driver: ProcessGuard,
    address: SocketAddr,
    session: String,
}

impl Drop for HeadlessBrowser {
    fn drop(&mut self) {
        let _ = self.request("DELETE", &format!("/session/{}", self.session), None);
    }
}

impl HeadlessBrowser {
    fn start(profile: &std::path::Path) -> Result<Self> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").env_remove("CHROMIUM_FLAGS");
        let (driver, line) = ProcessGuard::start(command, "started successfully on port ")?;
        let port = line.trim_end_matches('.').rsplit(' ').next().and_then(|port| port.parse().ok());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.context("chromedriver's port")?));
        let mut browser = Self { _driver: driver, address, session: String::new() };
        let profile = format!("--user-data-dir={}", profile.display());
        let mut options = vec![&*profile, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage"];
        options.extend(["--no-first-run", "--no-proxy-server", "--disable-background-networking"]);
        // Nobody has signed the page's certificate.
        options.push("--ignore-certificate-errors");
        if rustix::process::geteuid().is_root() {
            options.push("--no-sandbox");
        }
        let wanted = json!({
            "browserName": "chrome", "goog:chromeOptions": { "args": options },
            "timeouts": { "script": PATIENCE.as_millis() as u64 },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.request("POST", "/session", Some(&wanted))?;
        session["sessionId"].as_str().context("a session")?.clone_into(&mut browser.session);
        Ok(browser)
    }

    fn command(&self, command: &str, body: &Value) -> Result<Value> {
        self.request("POST", &format!("/session/{}/{command}", self.session), Some(body))
    }

    /// What a script passes to `done`.
    fn script(&self, script: &str) -> Result<Value> {
        let script = format!("const done = arguments[arguments.length - 1];\n{script}");
        self.command("execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits, by the document's own changes, until a condition is true.
    fn wait_for(&self, condition: &str) -> Result<()> {
        let script = format!(
            "const look = () => {{ if ({condition}) {{ watch.disconnect(); done(true); }} }};\n\
             const watch = new MutationObserver(look);\n\
             watch.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});\n\
             look();"
        );
        self.script(&script).map(drop)
    }

    /// How long scripts have run in this document, milliseconds.
    fn script_ms(&self) -> Result<f64> {
        let answer = json!({ "cmd": "Performance.getMetrics", "params": {} });
        let answer = self.command("goog/cdp/execute", &answer)?;
        let metric =
            answer["metrics"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "ScriptDuration"));
        let seconds = metric.and_then(|metric| metric["value"].as_f64()).context("the time of its scripts")?;
        Ok(seconds * 1000.0)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut answer = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            if answer.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut bytes = vec![0; length];
        answer.read_exact(&mut bytes)?;
        let value = serde_json::from_slice::<Value>(&bytes)?["value"].take();
        if value["error"].is_string() {
            bail!("the browser refuses {path}: {value}");
        }
        Ok(value)
    }
}

/// A device with three minutes of latency, up to this second.
fn plotted(last: u64) -> Value {
    let stage = |us: u64| json!({ "p50": us, "p99": us * 3, "p999": us * 10 });
    let second = |number: u64| {
        let us = 100 * (1 + number % 10);
        json!({
            "number": number, "ago_s": last - number, "timed": 7, "all_us": stage(us), "network_us": stage(us / 10),
            "bus_us": stage(us / 5), "back_end_us": stage(us / 2),
        })
    };
    let seconds: Vec<Value> = (last - (SECONDS - 1)..=last).map(second).collect();
    let spread = json!({ "p50": 100.0, "p90": 200.0, "p99": 900.0 });
    json!({
        "name": "plotted", "title": "Example Inc. board", "state": "attached", "seconds": seconds,
        "latency": { "samples": 9, "second": last + 1, "all_us": spread },
    })
}

/// What a further second of a full plot costs the script of a device's page, milliseconds.
fn further_seconds(browser: &HeadlessBrowser, url: &str, devices: &SimulatedDevices, rounds: u64) -> Result<Vec<f64>> {
    let change = |last| devices.lock().unwrap_or_else(PoisonError::into_inner)[DEVICES - 1] = plotted(last);
    change(SECONDS);
    browser.command("url", &json!({ "url": format!("{}/device/{PID}?name=plotted", url.trim_end_matches('/')) }))?;
    browser.wait_for("document.querySelector('#live').textContent === 'live'")?;
    browser.wait_for("document.querySelectorAll('#latency-plots canvas').length === 4")?;
    let mut spent = Vec::new();
    for last in SECONDS + 1..=SECONDS + rounds {
        let before = browser.script_ms()?;
        change(last);
        browser.wait_for(&format!("document.querySelector('#latency-history').dataset.shown === '{}'", last + 1))?;
        spent.push(browser.script_ms()? - before);
    }
    Ok(spent)
}

/// The moment at which the first text was painted, milliseconds after the address was opened.
const PAINTED: &str = "new PerformanceObserver((list, watch) => {\n\
    const paint = list.getEntriesByName('first-contentful-paint')[0];\n\
    if (paint) { watch.disconnect(); done(paint.startTime); }\n\
    }).observe({ type: 'paint', buffered: true });";

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let folder = ScratchFolder::new(NAME)?;
    let (runtime, state) = (folder.folder("run")?, folder.folder("state")?);
    let sockets = folder.folder("run/farbus")?;
    for private in [&runtime, &state, &sockets] {
        std::fs::set_permissions(private, std::fs::Permissions::from_mode(0o700))?;
    }
    let device = |n: usize| {
        json!({
            "name": format!("board{n}"), "title": "Example Inc. board", "state": "available", "interfaces": ["storage"],
            "labels": { "rack": format!("r{}", n % 7) },
        })
    };
    let devices: SimulatedDevices = Arc::new(Mutex::new((0..DEVICES).map(device).collect()));
    made_up(&sockets, &devices)?;
    let farbus = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(lab.farbus_program()?);
        command.args(arguments).env("XDG_RUNTIME_DIR", &runtime).env("FARBUS_STATE", &state);
        Ok(command)
    };
    let page = farbus(&["page", "--listen", "127.0.0.1:0", "--tls", "127.0.0.1:0", "--name", "localhost"])?;
    let (page, line) = ProcessGuard::start(page, "page at http://")?;
    let url = line.split_whitespace().nth(2).context("the page's address")?.to_owned();
    let answer: Value = serde_json::from_slice(&std::fs::read(state.join("page-place.json"))?)?;
    let elsewhere = answer["url"].as_str().context("the address for other machines")?;
    let field_of = |arguments: &[&str], field: &str| -> Result<String> {
        let output = farbus(arguments)?.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        Ok(answer[field].as_str().with_context(|| format!("{arguments:?}: {answer}"))?.to_owned())
    };
    let browser = HeadlessBrowser::start(&folder.folder("profile")?)?;
    browser.command("goog/cdp/execute", &json!({ "cmd": "Performance.enable", "params": {} }))?;
    browser.command("url", &json!({ "url": field_of(&["page", "invite", "--json"], "url")? }))?;
    // Its script leads from one document to another: what waits in the first would not be answered.
    while browser.script("done(location.pathname)")? != "/" {
        thread::yield_now();
    }
    browser.wait_for("document.querySelector('#live')?.textContent === 'live'")?;
    let retitle = |title: &str| {
        devices.lock().unwrap_or_else(PoisonError::into_inner)[50]["title"] = json!(title);
    };
    let rounds: u64 = if lab.quick { 3 } else { 15 };
    let (mut painted, mut spent) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..rounds {
        for (at, painted) in [elsewhere, &url].into_iter().zip(&mut painted) {
            browser.command("url", &json!({ "url": "about:blank" }))?;
            browser.command("url", &json!({ "url": at }))?;
            painted.push(browser.script(PAINTED)?.as_f64().context("the moment of its first paint")?);
            browser.wait_for("document.querySelector('#live').textContent === 'live'")?;
            let shown = browser.script("done(document.querySelector('#count').textContent)")?;
            ensure!(shown == format!("Devices 1 to 100 of {DEVICES}"), "the page shows {shown}");
        }
        let before = browser.script_ms()?;
        let title = format!("changed {round}");
        retitle(&title);
        browser.wait_for(&format!("document.querySelector('#rows').textContent.includes('{title}')"))?;
        spent.push(browser.script_ms()? - before);
    }
    let drawn = further_seconds(&browser, &url, &devices, rounds)?;
    drop(browser);
    let [over_tls, painted] = painted;
    lab.plot(NAME, &chart((&painted, &over_tls), &spent, &drawn).render())?;
    let of = |what: &str| format!("{DEVICES} devices: {what}");
    let ms = |times: Vec<f64>| MeasuredQuantity::new(SampleSpread::new(times), "ms");
    let paint = SpeedTarget::AtMost(PAINT_MS_MAX);
    let mut findings = vec![
        BenchmarkFinding::absolute(NAME, of("first contentful paint"), ms(painted), paint),
        BenchmarkFinding::absolute(NAME, of("first contentful paint over TLS"), ms(over_tls), paint),
        BenchmarkFinding::absolute(
            NAME,
            of("script for the event of one change"),
            ms(spent),
            SpeedTarget::AtMost(SCRIPT_MS_MAX),
        ),
        BenchmarkFinding::absolute(
            NAME,
            format!("script for a further second of four plots of {SECONDS}"),
            ms(drawn),
            SpeedTarget::AtMost(SCRIPT_MS_MAX),
        ),
    ];
    let make = ["page", "token", "create", "--scope", "read", "--json"];
    let tokens = (0..TOKENS).map(|_| field_of(&make, "token")).collect::<Result<Vec<String>>>()?;
    let many_clients = PageClientLoad {
        pid: page.0.id(),
        plain: url.trim_start_matches("http://").trim_end_matches('/'),
        tls: answer["listen"].as_str().and_then(|at| at.parse().ok()).context("its address")?,
        host: elsewhere.trim_start_matches("https://"),
        tokens: &tokens,
        retitle: &retitle,
    };
    let (of_clients, chart) = many_clients.run(NAME, rounds)?;
    lab.plot("page-clients", &chart.render())?;
    findings.extend(of_clients);
    Ok(findings)
}

fn chart((painted, over_tls): (&[f64], &[f64]), spent: &[f64], drawn: &[f64]) -> LineChart {
    let line = |name: &str, times: &[f64]| ChartLine {
        name: name.to_owned(),
        points: times.iter().enumerate().map(|(round, ms)| ((round + 1) as f64, *ms)).collect(),
    };
    let panel = |lines| ChartPanel { up: "ms".into(), is_logarithmic: false, lines };
    let paints = vec![line("first contentful paint", painted), line("the same over TLS", over_tls)];
    LineChart {
        title: "The page of a thousand devices in Chromium (limits: 1,000 ms and 50 ms)".into(),
        across: "load of the page".into(),
        panels: vec![
            panel(paints),
            panel(vec![line("script for one event", spent)]),
            panel(vec![line("script for plots", drawn)]),
        ],
    }
}
