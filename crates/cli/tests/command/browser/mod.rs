//! Chromium without a window, driven by its WebDriver (W3C WebDriver, and Chromium's own commands for DevTools).

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, Running, has, has_program};

mod made_up;
mod server;

pub use made_up::{MadeUp, PID};
pub use server::Pages;

/// The key *Tab*, as WebDriver names keys.
pub const TAB: &str = "\u{e004}";
/// The key *Enter*.
pub const ENTER: &str = "\u{e007}";

/// For how long a document is waited in before it is asked whether it is still the one that is shown.
const DOCUMENT_TIME_MAX: Duration = Duration::from_secs(3);

/// Names the browser's profile in the environment of its processes.
const MARK: &str = "FARBUS_TEST_BROWSER";

/// A browser with a profile of its own. It ends when dropped.
pub struct Browser {
    driver: Running,
    address: SocketAddr,
    session: String,
    /// A variable that its driver and all of its processes have in their environment.
    mark: String,
    /// For how long it waits for a script.
    gives_up_after: Cell<Duration>,
}

/// Whether this machine has Chromium and its driver. If not, the test says so, and fails where it is required.
pub fn has_browser() -> bool {
    has("chromium and chromedriver", has_program("chromium") && has_program("chromedriver"))
}

impl Browser {
    /// Starts a browser that takes these options besides those that every test needs.
    pub fn start(harness: &Harness, options: &[&str]) -> Self {
        let mut command = harness.command_of(Path::new("chromedriver"), &["--port=0"]);
        // What a user of this machine set for browsers is not part of a test.
        command.env_remove("CHROMIUM_FLAGS").env_remove("http_proxy").env_remove("https_proxy");
        let profile = harness.path("chromium").display().to_string();
        // It is killed if it does not end soon, and leaves what it has there; a test may look at the harness's own.
        let temporary = harness.path("tmp-of-chromium");
        fs::create_dir_all(&temporary).unwrap();
        command.env("TMPDIR", temporary);
        command.env(MARK, &profile);
        let driver = Running::start(command);
        let line = driver.wait_for_line("started successfully on port ");
        let port = line.trim_end_matches('.').rsplit(' ').next().and_then(|port| port.parse().ok()).expect("a port");
        let (address, mark) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), format!("{MARK}={profile}"));
        let mut browser = Self { driver, address, session: String::new(), mark, gives_up_after: Cell::new(PATIENCE) };
        let profile = format!("--user-data-dir={profile}");
        let mut arguments =
            vec!["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", &profile];
        if rustix::process::geteuid().is_root() {
            arguments.push("--no-sandbox");
        }
        arguments.extend(["--no-proxy-server", "--disable-background-networking", "--disable-component-update"]);
        arguments.extend(options);
        let chrome = json!({ "args": arguments });
        let wanted = json!({
            "browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": { "browser": "ALL" },
            // A dialog stays open and fails the next command.
            "unhandledPromptBehavior": "ignore", "timeouts": { "script": PATIENCE.as_millis() as u64 },
        });
        let session = browser.post("/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// The driver and the browser's processes, those that have no parent any more, too.
    fn processes(&self) -> impl Iterator<Item = Pid> {
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let is_its = environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes());
            is_its.then(|| Pid::from_raw(number)).flatten()
        })
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// Opens the link of an invitation, and waits until the page has let this browser in and is live.
    pub fn open_invitation(&self, url: &str) {
        self.open(url);
        self.wait_for("location.pathname === '/' && document.querySelector('#live')?.textContent === 'live'");
    }

    /// What a script returns: the body of a function.
    pub fn script(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What a script passes to `done` sometime. It is given up after [`PATIENCE`].
    pub fn script_with_done(&self, script: &str) -> Value {
        self.give_up_after(PATIENCE);
        let (status, value) = self.try_script_with_done(script);
        assert_eq!(status, 200, "{script}: {value}\n{}", self.driver.log());
        value
    }

    fn try_script_with_done(&self, script: &str) -> (u16, Value) {
        let script = format!("const done = arguments[arguments.length - 1];\n{script}");
        let body = json!({ "script": script, "args": [] });
        self.try_request("POST", &self.path("execute/async"), Some(&body)).expect("the driver answers")
    }

    /// For how long scripts are waited for from now on.
    fn give_up_after(&self, time_max: Duration) {
        if self.gives_up_after.replace(time_max) != time_max {
            self.command("timeouts", &json!({ "script": time_max.as_millis() as u64 }));
        }
    }

    /// Waits, by the document's own changes, until a condition is true; returns the moment by the browser's clock, as
    /// milliseconds since 1970. What waits in a document that another one replaces is never told: it is asked for again
    /// in the new one.
    pub fn wait_for(&self, condition: &str) -> f64 {
        let script = format!(
            "const is_so = () => {{ if ({condition}) {{ watch.disconnect(); done(Date.now()); return true; }} }};\n\
             const watch = new MutationObserver(is_so);\n\
             watch.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});\n\
             window.watchOfTest?.disconnect(); window.watchOfTest = watch;\n\
             is_so();"
        );
        let start = Instant::now();
        self.give_up_after(DOCUMENT_TIME_MAX);
        loop {
            let (status, answer) = self.try_script_with_done(&script);
            let is_left = answer["error"] == "script timeout" || answer["message"].to_string().contains("unloaded");
            if status == 200 {
                return answer.as_f64().expect("a time");
            }
            if !is_left || start.elapsed() >= PATIENCE {
                let shown =
                    self.try_script_with_done("done(location.href + ': ' + document.documentElement.innerText)");
                panic!("{condition}: {answer}\n{}\n{}", shown.1, self.driver.log());
            }
        }
    }

    /// Presses and releases keys, one after the other.
    pub fn press(&self, keys: &[&str]) {
        let strokes: Vec<_> = keys
            .iter()
            .flat_map(|key| [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })])
            .collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.command("actions", &json!({ "actions": [keyboard] }));
    }

    /// What a mouse does, as WebDriver has it: moves, presses and releases, in this order.
    pub fn mouse(&self, actions: &[Value]) {
        let mouse =
            json!({ "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": actions });
        self.command("actions", &json!({ "actions": [mouse] }));
    }

    /// The answer to a command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Opens a tab, and looks at it from now on.
    pub fn new_tab(&self) {
        let tab = self.command("window/new", &json!({ "type": "tab" }));
        self.show_tab(tab["handle"].as_str().expect("a tab"));
    }

    /// The tabs that are open.
    pub fn tabs(&self) -> Vec<String> {
        let tabs = self.request("GET", &self.path("window/handles"), None);
        tabs.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Looks at this tab, which comes to the front, from now on.
    pub fn show_tab(&self, tab: &str) {
        self.command("window", &json!({ "handle": tab }));
        self.devtools("Page.bringToFront", &json!({}));
    }

    /// The size of the window, in CSS pixels, as on a phone or a screen.
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// What its user prefers: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        self.prefer_all(&[("prefers-color-scheme", scheme)]);
    }

    /// What its user prefers, by the names that CSS has for that; what is not named is as at first.
    pub fn prefer_all(&self, preferred: &[(&str, &str)]) {
        let feature = |(name, value): &(&str, &str)| json!({ "name": name, "value": value });
        let features: Vec<Value> = preferred.iter().map(feature).collect();
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// What the browser has complained about since it was asked last: violations of a policy, failed loads, errors of
    /// scripts.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.command("se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().into_iter().flatten();
        let messages = entries.filter_map(|entry| entry["message"].as_str());
        // The browser's own first page is not a test's.
        messages.filter(|message| !message.starts_with("chrome://")).map(str::to_owned).collect()
    }

    /// Keeps a picture of what is seen, as `target/tmp/page/NAME.png`, and prints where it is.
    pub fn keep_picture(&self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
        std::fs::create_dir_all(&folder).unwrap();
        let picture = self.request("GET", &self.path("screenshot"), None);
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture.as_str().expect("a picture")).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"), "a picture");
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, bytes).unwrap();
        println!("picture: {}", path.display());
        path
    }

    /// Keeps a picture of a page that attacks, with what came of each way that it tried.
    pub fn keep_attack(&self, name: &str, results: &Value) {
        self.script(&format!(
            "const said = document.createElement('pre'); said.textContent = JSON.stringify({results}, null, 1);\n\
             document.body.prepend(location.origin, said)"
        ));
        self.keep_picture(&format!("attack-{name}"));
    }

    fn path(&self, command: &str) -> String {
        format!("/session/{}/{command}", self.session)
    }

    fn command(&self, command: &str, body: &Value) -> Value {
        self.post(&self.path(command), body)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", path, Some(body))
    }

    /// The value of an answer. What WebDriver refuses ends the test.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, value) = self.try_request(method, path, body).expect("the driver answers");
        assert_eq!(status, 200, "{method} {path}: {value}\n{}", self.driver.log());
        value
    }

    fn try_request(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE + Duration::from_secs(10)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut answer = BufReader::new(stream);
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut length = 0;
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
        let answer: Value = serde_json::from_slice(&bytes)?;
        Ok((status, answer["value"].clone()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends as a browser does, if its driver still answers; what is left of it then is killed.
        if !self.session.is_empty() && !thread::panicking() {
            let _ = self.try_request("DELETE", &format!("/session/{}", self.session), None);
        }
        while self.processes().filter(|process| kill_process(*process, Signal::KILL).is_ok()).count() > 0 {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
    }
}
