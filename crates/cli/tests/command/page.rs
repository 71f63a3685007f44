//! The page: what it shows its owner, and what hostile pages, other users and clients that do not read get of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::browser::MadeUp;
use super::harness::{Harness, PATIENCE, Running, finish, has, has_program, wait_until};
use super::page_browser::hostile_texts;
use super::rights::of_process;
use super::sockets::share_at_socket;

/// A user without rights to anything here.
pub const STRANGER: u32 = 65534;

pub struct Page {
    pub process: Running,
    pub address: String,
}

pub fn open_page(harness: &Harness) -> Page {
    page_of(harness.command(&["page", "--listen", "127.0.0.1:0"]))
}

/// The page that this command opens.
pub fn page_of(command: Command) -> Page {
    let process = Running::start(command);
    let line = process.wait_for_line("page at http://");
    let address = line.split_whitespace().nth(2).unwrap();
    let address = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
    Page { process, address }
}

impl Page {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// None of its processes has used 128 MiB.
    pub fn assert_small(&self) {
        for pid in super::page_confined::http_processes(&self.process) {
            let peak = of_process(&pid.into(), "VmHWM");
            let kib: u64 = peak.trim_end_matches(" kB").parse().unwrap();
            assert!(kib < 128 << 10, "{pid}: {kib}");
        }
        assert!(self.process.peak_kib() < 128 << 10, "{}", self.process.peak_kib());
    }

    /// The answer to a request that is the last on its connection.
    pub fn get(&self, path: &str, more: &str) -> Reply {
        let host = &self.address;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        send(self.connect(), request.as_bytes())
    }
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn send(mut stream: impl Read + Write, request: &[u8]) -> Reply {
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    // The rest of a request that was refused may reset the connection, after the answer.
    let _ = stream.read_to_end(&mut bytes);
    // A picture is no text.
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

#[test]
fn the_page_and_its_api_show_what_status_shows() {
    let harness = Harness::new();
    let page = open_page(&harness);
    assert!(page.get("/", "").body.contains("farbus share zero"), "nothing is shared yet");
    let _share = harness.share(&["zero", "keyboard"]);
    let mut shown = Reply { status: 0, head: String::new(), body: String::new() };
    wait_until(PATIENCE, "the page shows the share", || {
        shown = page.get("/", "");
        shown.body.contains("<bdi>keyboard</bdi>")
    });
    assert!(shown.body.contains("<bdi>zero</bdi>") && shown.body.contains("<bdi>available</bdi>"), "{shown:?}");
    let reply = page.get("/api/v1/status", "");
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    let status = harness.json(&["status", "--json"]);
    assert_eq!(answer[0]["pid"], status[0]["pid"]);
    assert_eq!(answer[0]["devices"], status[0]["devices"]);
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        assert_eq!(page.get(path, "").body, body);
    }
    assert_eq!(page.get("/else", "").status, 404);
    for path in ["/", "/else", "/page.js", "/metrics"] {
        let head = page.get(path, "").head;
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.contains(line), "{path}: no {line} in {head}");
        }
    }
}

#[test]
fn what_a_hostile_page_makes_a_browser_send_is_refused() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let rebound = b"GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let rebound = send(page.connect(), rebound);
    assert!(rebound.status == 421 && !rebound.body.contains("zero"), "{rebound:?}");
    let cross = page.get("/api/v1/status", "Sec-Fetch-Site: cross-site\r\n");
    assert!(cross.status == 403 && !cross.body.contains("zero"), "{cross:?}");
    assert!(!cross.head.contains("access-control-allow"), "{cross:?}");
    assert_eq!(page.get("/", "Origin: http://evil.example\r\n").status, 403);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let host = &page.address;
        let request = format!("{method} / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}");
        let refused = send(page.connect(), request.as_bytes());
        assert_eq!(refused.status, 405, "{method}: {refused:?}");
    }
}

#[test]
fn requests_that_are_too_long_or_no_http_end_their_connection_alone() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let host = &page.address;
    let long = format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", "a".repeat(1 << 20));
    let many: String = (0..1000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n");
    for wrong in
        [long.as_bytes(), many.as_bytes(), b"\x16\x03\x01\0\xa5\x01\0\0\xa1\r\n\r\n", b"GET\r\n\r\n", b"\r\n\0\xff\n\n"]
    {
        let mut stream = page.connect();
        // It may be closed before all is sent.
        let _ = stream.write_all(wrong);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_eq!(page.get("/healthz", "").status, 200);
    }
    page.assert_small();
}

#[test]
fn a_change_reaches_the_page_as_an_event() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let mut stream = page.connect();
    let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.to_lowercase() == "content-type: text/event-stream"));
    assert!(lines.any(|line| line == "event: status"), "what there is now");
    let _share = harness.share(&["zero"]);
    assert!(lines.any(|line| line == "event: status"), "what has changed");
    assert!(page.get("/devices", "").body.contains("<bdi>zero</bdi>"));
}

#[test]
fn another_user_of_this_machine_learns_only_that_the_page_runs() {
    if !has("a second user", rustix::process::geteuid().is_root()) || !has("curl", has_program("curl")) {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let ask = |path: &str, user: u32| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-w", "%{http_code}", &format!("http://{}{path}", page.address)]);
        String::from_utf8(curl.uid(user).gid(user).output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask("/healthz", STRANGER), "ok\n200");
    for path in ["/", "/metrics", "/api/v1/status", "/events", "/readyz"] {
        assert_eq!(ask(path, STRANGER), "this page is another user's\n403", "{path}");
    }
    assert!(ask("/api/v1/status", 0).contains("zero"));
}

#[test]
fn the_pages_socket_is_its_owners_and_is_removed_at_the_end() {
    let harness = Harness::new();
    let mut process = Running::start(harness.command(&["page", "--socket"]));
    let line = process.wait_for_line("page at unix:");
    let path = line.split_whitespace().nth(2).unwrap().trim_start_matches("unix:").to_owned();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = send(stream, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((answer.status, answer.body.as_str()), (200, "ready\n"));
    process.signal(Signal::TERM);
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
    assert!(!std::path::Path::new(&path).exists());
}

/// What another user of this machine is told at a page's socket, once the owner has opened the way to it: the kernel
/// says who connects.
pub fn assert_socket_is_its_owners(harness: &Harness, socket: &std::path::Path) {
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    let body = r#"{"device":"zero"}"#;
    let change = ["-H", "Content-Type: application/json", "--data", body];
    let ask = |path: &str, more: &[&str], user: u32| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-w", "%{http_code}", "--unix-socket", socket.to_str().unwrap()]);
        curl.args(more).arg(format!("http://localhost{path}")).uid(user).gid(user);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask("/healthz", &[], STRANGER), "000", "the folder lets nobody through");
    let folders = [harness.path("run"), socket.parent().unwrap().to_owned()];
    folders.iter().for_each(|folder| mode(folder, 0o711));
    mode(socket, 0o666);
    assert_eq!(ask("/healthz", &[], STRANGER), "ok\n200");
    for path in ["/", "/metrics", "/api/v1/status", "/events", "/readyz", "/api/v1/audit"] {
        assert_eq!(ask(path, &[], STRANGER), "this page is another user's\n403", "{path}");
    }
    for path in ["/api/v1/actions/release", "/api/v1/actions/share", "/api/v1/operations/1/stop"] {
        assert_eq!(ask(path, &change, STRANGER), "this page is another user's\n403", "{path}");
    }
    folders.iter().for_each(|folder| mode(folder, 0o700));
    mode(socket, 0o600);
    assert!(ask("/api/v1/status", &[], 0).ends_with("200"));
    assert!(ask("/api/v1/operations/1/stop", &change, 0).ends_with("404"), "its owner may; there is nothing to stop");
    let operations = ask("/api/v1/operations", &[], 0);
    assert_eq!(operations, "{\"operations\":[]}200", "the other has begun nothing");
}

#[test]
fn another_user_who_reaches_the_pages_socket_learns_only_that_it_runs() {
    if !has("a second user", rustix::process::geteuid().is_root()) || !has("curl", has_program("curl")) {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let process = Running::start(harness.command(&["page", "--socket"]));
    let line = process.wait_for_line("page at unix:");
    let socket = line.split_whitespace().nth(2).unwrap().trim_start_matches("unix:").to_owned();
    assert_socket_is_its_owners(&harness, std::path::Path::new(&socket));
    assert_eq!(super::page_confined::http_processes(&process).len(), 2, "others have a process of their own");
}

#[test]
fn the_page_listens_at_no_address_of_the_network() {
    let harness = Harness::new();
    for address in ["0.0.0.0:7240", "192.0.2.1:7240", "[::]:7240"] {
        let refused = harness.run(&["page", "--listen", address]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("is no address of the loopback"), "{refused:?}");
        assert!(refused.stderr.contains(&format!("--tls {address}")), "{refused:?}");
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_of_shared_and_attached_devices_with_hostile_names() {
    if !has("promtool", has_program("promtool")) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    std::fs::write(&image, vec![0x5a; 1 << 20]).unwrap();
    let (share, _) = share_at_socket(&harness, &["keyboard", &format!("disk:{},name=disk", image.display())]);
    let socket = harness.path("nbd");
    let arguments = ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attached = Running::start(harness.command(&arguments));
    attached.wait_for_line("attached as");
    let is_read = has("nbdcopy", has_program("nbdcopy"));
    if is_read {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let copy = harness.command_of(std::path::Path::new("nbdcopy"), &["--request-size=4096", &uri, "null:"]);
        let copied = finish(copy, PATIENCE);
        assert_eq!(copied.code, Some(0), "{copied:?}");
    }
    let hostile = hostile_texts();
    let _made_up = MadeUp::start(&harness, hostile.iter().map(|name| json!({ "name": name })).collect());
    let page = open_page(&harness);
    let mut metrics = page.get("/metrics", "");
    wait_until(PATIENCE, "a device is attached", || {
        metrics = page.get("/metrics", "");
        metrics.body.contains("farbus_device_in_use{role=\"attach\",device=\"disk\"} 1\n")
    });
    assert_eq!(metrics.body.matches("\nfarbus_device_leased{").count(), 3 + hostile.len(), "each has one line");
    for line in [
        "farbus_device_in_use{role=\"share\",device=\"keyboard\"} 0\n",
        "farbus_device_links_up{role=\"attach\",device=\"disk\"} 1\n",
        "farbus_device_links_replaced_total{role=\"attach\",device=\"disk\"} 0\n",
        "\nfarbus_page_event_streams 0\n",
    ] {
        assert!(metrics.body.contains(line), "{line}: {metrics:?}");
    }
    let latency = "farbus_device_latency_seconds{role=\"attach\",device=\"disk\",stage=\"all\",percentile=\"99\"} ";
    assert!(!is_read || metrics.body.contains(latency), "{metrics:?}");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(metrics.body.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let bytes = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && bytes.is_empty(), "{}", String::from_utf8_lossy(&bytes));
}

/// Prometheus of another user, which scrapes the page with more in its configuration.
struct Prometheus {
    process: Running,
    at: std::net::SocketAddr,
}

impl Prometheus {
    fn start(harness: &Harness, page: &Page, more: &str) -> Self {
        let config = harness.path("prometheus.yml");
        let text = format!(
            "scrape_configs:\n- job_name: farbus\n  scrape_interval: 1s\n{more}  static_configs:\n  - targets: ['{}']\n",
            page.address
        );
        std::fs::write(&config, text).unwrap();
        let data = harness.path("tsdb");
        let _ = std::fs::remove_dir_all(&data);
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::chown(&data, Some(STRANGER), Some(STRANGER)).unwrap();
        // A port that nobody has now: Prometheus does not say which it took.
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let arguments = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address={at}"),
        ];
        let mut command = Command::new("prometheus");
        command.args(arguments).stdin(Stdio::null()).current_dir(&data).uid(STRANGER).gid(STRANGER);
        Self { process: Running::start(command), at }
    }

    fn ask(&self, path: &str) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.at);
        let output = Command::new("curl").args(["-s", "-g", "-m", "10", &url]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until it says so there.
    fn wait_for(&self, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(PATIENCE, what, || {
            let is_it = is_so(&self.ask(path)["data"]);
            if !is_it {
                // waits: between two looks for an event
                std::thread::sleep(Duration::from_millis(100));
            }
            is_it
        });
    }
}

const IN_USE: &str = "query?query=farbus_device_in_use";

#[test]
fn prometheus_of_another_user_scrapes_the_page_with_a_token_and_is_refused_without() {
    let has_all = has("prometheus", has_program("prometheus")) && has("curl", has_program("curl"));
    if !has_all || !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let without = Prometheus::start(&harness, &page, "");
    without.wait_for("it is refused", "targets", |data| {
        let target = &data["activeTargets"][0];
        target["health"] == "down" && target["lastError"].as_str().is_some_and(|why| why.contains("403"))
    });
    assert_eq!(without.ask(IN_USE)["data"]["result"], json!([]), "{}", without.process.log());
    drop(without);
    let file = harness.path("token");
    std::fs::write(&file, super::page_tokens::make(&harness, &["--scope", "read"])).unwrap();
    let more = format!("  authorization:\n    credentials_file: {}\n", file.display());
    let with = Prometheus::start(&harness, &page, &more);
    with.wait_for("it has the device", IN_USE, |data| {
        let metric = &data["result"][0]["metric"];
        metric["device"] == "zero" && metric["role"] == "share"
    });
    with.wait_for("it is not refused", "targets", |data| data["activeTargets"][0]["health"] == "up");
}

#[test]
fn the_page_is_not_ready_while_its_processes_cannot_be_found() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let ready = |page: &Page| {
        let ready = page.get("/readyz", "");
        (ready.status, ready.body)
    };
    assert_eq!(ready(&page), (200, "ready\n".to_owned()));
    let folder = harness.path("run").join("farbus");
    let mode = |mode: u32| {
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(0o777);
    wait_until(PATIENCE, "the page is not ready", || ready(&page).0 != 200);
    assert_eq!(ready(&page), (503, "the processes cannot be asked\n".to_owned()));
    assert!(page.get("/metrics", "").body.contains("\nfarbus_ready 0\n"));
    assert_eq!(page.get("/healthz", "").status, 200, "it runs all the same");
    mode(0o700);
    wait_until(PATIENCE, "the page is ready", || ready(&page).0 == 200);
    assert!(page.get("/metrics", "").body.contains("\nfarbus_ready 1\n"));
}

/// Where the files for Prometheus and Grafana are.
fn monitoring() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus")
}

#[test]
fn alerts_and_dashboard_ask_for_figures_that_the_page_has() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let metrics = open_page(&harness).get("/metrics", "").body;
    let has = |name: &str| metrics.contains(&format!("# TYPE {name} "));
    let dashboard = std::fs::read_to_string(monitoring().join("farbus-dashboard.json")).unwrap();
    let parsed: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() >= 10), "{parsed}");
    for file in ["farbus-dashboard.json", "farbus.rules.yml"] {
        let text = std::fs::read_to_string(monitoring().join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: std::collections::BTreeSet<&str> = words.filter(|word| word.starts_with("farbus_")).collect();
        assert!(names.len() >= 4 && names.iter().all(|name| has(name)), "{file}: {names:?}");
    }
}

#[test]
fn alerts_fire_when_they_should() {
    if !has("promtool", has_program("promtool")) {
        return;
    }
    for arguments in [["check", "rules", "farbus.rules.yml"], ["test", "rules", "farbus.rules.test.yml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(monitoring()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn prometheus_understands_every_expression_of_the_dashboard() {
    if !has("promtool", has_program("promtool")) {
        return;
    }
    let harness = Harness::new();
    let dashboard = std::fs::read_to_string(monitoring().join("farbus-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let rules: Vec<Value> = targets
        .map(|target| target["expr"].as_str().unwrap().replace("$instance", ".*"))
        .inspect(|expression| assert!(!expression.contains('$'), "{expression}"))
        .enumerate()
        .map(|(at, expression)| json!({ "record": format!("panel:{at}"), "expr": expression }))
        .collect();
    assert!(rules.len() >= 14, "{rules:?}");
    let check = |rules: &[Value]| {
        let file = harness.path("panels.yml");
        let groups = json!({ "groups": [{ "name": "panels", "rules": rules }] });
        std::fs::write(&file, groups.to_string()).unwrap();
        Command::new("promtool").args(["check", "rules"]).arg(&file).output().unwrap()
    };
    let output = check(&rules);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("{} rules found", rules.len())), "{output:?}");
    let wrong = json!({ "record": "panel:x", "expr": "rate(farbus_device_urbs_total{)" });
    assert!(!check(&[wrong]).status.success(), "it finds what is wrong");
}
