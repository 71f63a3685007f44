//! The page for browsers of other machines: TLS, codes that let one in, and strangers.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_net::trust::{HostFolder, PageKey};
use serde_json::{Value, json};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::page::{Reply, send};
use super::page_accessible::assert_accessible;
use super::page_confined::http_processes;
use super::rights::{assert_without_rights, of_process};

/// The name by which the tests ask for a page.
pub const NAME: &str = "lab3.example";

/// A page that browsers of other machines reach, too.
pub struct Remote {
    pub process: Running,
    pub local: String,
    pub site: TlsSite,
}

/// Where browsers of other machines come in.
pub struct TlsSite {
    pub port: u16,
    fingerprint: String,
    certificate: Vec<u8>,
}

pub fn open(harness: &Harness) -> Remote {
    open_of(harness, "run", "state")
}

/// The page of a user with these folders.
pub fn open_of(harness: &Harness, run: &str, state: &str) -> Remote {
    let mut command = harness.command(&[
        "page",
        "--listen",
        "127.0.0.1:0",
        "--tls",
        "127.0.0.1:0",
        "--name",
        NAME,
        "--name",
        "localhost",
    ]);
    command.env("XDG_RUNTIME_DIR", harness.path(run)).env("FARBUS_STATE", harness.path(state));
    let process = Running::start(command);
    let line = process.wait_for_line("page at http://");
    let local = line.split_whitespace().nth(2).unwrap().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let line = process.wait_for_line("for browsers of other machines at https://lab3.example:");
    let port = line.split("lab3.example:").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let line = process.wait_for_line("certificate SHA-256 ");
    let fingerprint = line.split_whitespace().last().unwrap().to_owned();
    let key = PageKey::load(&HostFolder::at(harness.path(state))).unwrap().unwrap();
    assert_eq!(fingerprint, key.fingerprint());
    Remote { process, local, site: TlsSite { port, fingerprint, certificate: key.certificate } }
}

impl std::ops::Deref for Remote {
    type Target = TlsSite;

    fn deref(&self) -> &TlsSite {
        &self.site
    }
}

/// Trusts one certificate, as a person does that compares its fingerprint.
#[derive(Debug)]
struct Pinned(Vec<u8>, Arc<CryptoProvider>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match shown.as_ref() == self.0 {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General("another certificate".into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signed, &self.1.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

impl TlsSite {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// What a client does that trusts this page alone.
    pub fn config(&self) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Pinned(self.certificate.clone(), Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    pub fn connect(&self) -> io::Result<Tls> {
        let name = ServerName::try_from(NAME).unwrap();
        let stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(StreamOwned::new(ClientConnection::new(self.config(), name).unwrap(), stream))
    }

    pub fn host(&self) -> String {
        format!("{NAME}:{}", self.port)
    }

    pub fn get(&self, path: &str, more: &str) -> Reply {
        let host = self.host();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        send(self.connect().unwrap(), request.as_bytes())
    }

    /// The answer to a change that the page's own script asks for.
    pub fn post(&self, path: &str, more: &str, body: &Value) -> Reply {
        let (host, body) = (self.host(), body.to_string());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://{host}\r\nSec-Fetch-Site: same-origin\r\n\
             Content-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        send(self.connect().unwrap(), request.as_bytes())
    }

    pub fn enter(&self, code: &str) -> Reply {
        self.post("/api/v1/enter", "", &json!({ "code": code }))
    }

    /// The cookie of a browser that is let in with this scope.
    pub fn let_in(&self, harness: &Harness, arguments: &[&str]) -> String {
        let entered = self.enter(&self.invite(harness, arguments));
        assert_eq!(entered.status, 200, "{entered:?}");
        cookie_of(&entered)
    }

    /// Asks for an invitation and returns its code.
    pub fn invite(&self, harness: &Harness, arguments: &[&str]) -> String {
        let answer = harness.json(&[&["page", "invite", "--json"], arguments].concat());
        assert_eq!(answer["fingerprint"], json!(self.fingerprint));
        let (url, code) = answer["url"].as_str().unwrap().split_once('#').unwrap();
        assert_eq!(url, format!("https://{}/enter", self.host()));
        code.to_owned()
    }
}

/// The header that shows the cookie that was set.
pub fn cookie_of(reply: &Reply) -> String {
    let line = reply.head.lines().find(|line| line.starts_with("set-cookie: ")).expect("a cookie");
    let cookie = line.trim_start_matches("set-cookie: ").split(';').next().unwrap();
    // The head is in lower case here.
    format!("Cookie: {}\r\n", cookie.replace("__host-", "__Host-"))
}

#[test]
fn a_browser_with_a_code_is_let_in_once_with_what_its_code_allows() {
    let harness = Harness::new();
    let page = open(&harness);
    let stranger = page.get("/", "");
    assert_eq!(stranger.status, 403, "{stranger:?}");
    assert!(stranger.body.contains("farbus page invite"), "{stranger:?}");
    let entry = page.get("/enter", "");
    assert!(
        entry.status == 200 && entry.body.contains("/enter.js") && entry.head.contains("connection: close"),
        "{entry:?}"
    );
    let code = page.invite(&harness, &["--scope", "observe", "--name", "phone"]);
    let entered = page.enter(&code);
    assert_eq!(entered.status, 200, "{entered:?}");
    for word in ["; secure", "; httponly", "; samesite=strict", "; path=/"] {
        assert!(entered.head.contains(word), "{entered:?}");
    }
    let cookie = cookie_of(&entered);
    assert!(page.get("/", &cookie).body.contains("farbus share zero"));
    assert!(page.get("/", &cookie).body.contains(&page.fingerprint));
    assert_eq!(page.get("/api/v1/audit", &cookie).status, 403, "its scope is observe");
    assert_eq!(page.get("/api/v1/audit", "").status, 403);
    let again = page.enter(&code);
    assert!(again.status == 403 && again.body.contains("was used already"), "{again:?}");
    let wrong = page.enter("00112233445566778899aabbccddeeff");
    assert!(wrong.status == 403 && wrong.body.contains("no such code"), "{wrong:?}");
    let audited = harness.run(&["audit", "--all"]).stdout;
    for word in ["page-invite", "page-enter", "token phone, scope observe", "no such code", "127.0.0.1"] {
        assert!(audited.contains(word), "{word}: {audited}");
    }
    assert!(!audited.contains(&code), "a code is in no log");
    let listed = harness.json(&["page", "token", "list", "--json"]);
    assert_eq!(listed[0]["scope"], "observe");
    harness.json(&["page", "token", "revoke", "phone", "--json"]);
    let revoked = page.get("/", &cookie);
    assert!(revoked.status == 401 && revoked.body.contains("was revoked"), "{revoked:?}");
    assert_eq!(page.get("/enter", &cookie).status, 200, "also with an old cookie");
}

#[test]
fn a_code_counts_for_a_minute_and_the_owner_sees_how_browsers_know_the_page() {
    let harness = Harness::new();
    let page = open(&harness);
    let code = page.invite(&harness, &[]);
    // A minute later.
    let file = harness.path("state").join("page-invitations.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let until = kept["invitations"][0]["until_ms"].as_u64().unwrap();
    kept["invitations"][0]["until_ms"] = json!(until - 60_000);
    fs::write(&file, kept.to_string()).unwrap();
    let late = page.enter(&code);
    assert!(late.status == 403 && late.body.contains("has expired: it counts for 60 seconds"), "{late:?}");
    let local = TcpStream::connect(&page.local).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", page.local);
    let own = send(local, request.as_bytes()).body;
    assert!(own.contains(&page.fingerprint) && own.contains(&format!("https://{}", page.host())), "{own}");
    let typed = harness.run(&["page", "invite"]);
    assert!(typed.stdout.starts_with("https://lab3.example:") && typed.stdout.lines().count() == 1, "{typed:?}");
    assert!(typed.stderr.contains('\u{2588}') && typed.stderr.contains(&page.fingerprint), "{typed:?}");
    let Remote { mut process, .. } = page;
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
    let none = harness.run(&["page", "invite"]);
    assert!(none.code == Some(4) && none.stderr.contains("farbus page --tls"), "{none:?}");
}

#[test]
fn guesses_take_no_code_from_its_owner_and_each_costs_a_second() {
    let harness = Harness::new();
    let page = open(&harness);
    let code = page.invite(&harness, &["--scope", "own"]);
    thread::scope(|scope| {
        let guesses: Vec<_> = (0..8)
            .map(|n| {
                let page = &page.site;
                scope.spawn(move || {
                    let asked_at = Instant::now();
                    let reply = page.enter(&format!("{n:032x}"));
                    assert_eq!(reply.status, 403, "{reply:?}");
                    assert!(reply.head.contains("connection: close"), "{reply:?}");
                    asked_at.elapsed()
                })
            })
            .collect();
        let entered = page.enter(&code);
        assert_eq!(entered.status, 200, "{entered:?}");
        for guess in guesses {
            assert!(guess.join().unwrap() >= Duration::from_secs(1));
        }
        let cookie = cookie_of(&entered);
        assert_eq!(page.get("/api/v1/audit", &cookie).status, 200, "scope own");
    });
}

#[test]
fn strangers_that_say_nothing_cost_a_bounded_number_of_connections_and_keep_nobody_out() {
    let harness = Harness::new();
    let page = open(&harness);
    let cookie = page.let_in(&harness, &[]);
    let mut followed = page.connect().unwrap();
    let host = page.host();
    write!(followed, "GET /events HTTP/1.1\r\nHost: {host}\r\n{cookie}\r\n").unwrap();
    followed.read_exact(&mut [0; 12]).unwrap();
    let begun = Instant::now();
    let mut silent: Vec<TcpStream> = (0..500).map(|_| TcpStream::connect(page.address()).unwrap()).collect();
    let http = http_processes(&page.process);
    for pid in &http {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        assert!(open < 150, "{pid}: {open} descriptors");
    }
    // They have the same address here: a browser from there waits until one of them has ended.
    wait_until(PATIENCE, "another is let in", || {
        page.connect().is_ok_and(|stream| {
            let request = format!("GET /enter HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            send_to_any(stream, request.as_bytes()) == Some(200)
        })
    });
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Closed, or reset.
        assert!(!stream.read(&mut [0; 16]).is_ok_and(|count| count > 0));
    }
    println!("the last stranger was gone after {:?}", begun.elapsed());
    let _share = harness.share(&["zero"]);
    let mut text = Vec::new();
    wait_until(PATIENCE, "the browser that was let in follows as before", || {
        let mut bytes = [0; 4096];
        let count = followed.read(&mut bytes).unwrap();
        assert!(count > 0, "it has lost its connection");
        text.extend_from_slice(&bytes[..count]);
        String::from_utf8_lossy(&text).contains("event: status")
    });
    for pid in http_processes(&page.process) {
        let kib: u64 = of_process(&pid.into(), "VmHWM").trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 128 << 10, "{pid}: {kib} KiB");
    }
}

/// The status of the answer; `None`: the connection was closed.
fn send_to_any(mut stream: Tls, request: &[u8]) -> Option<u16> {
    stream.write_all(request).ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

#[test]
fn a_page_for_other_machines_speaks_tls_alone_to_its_own_names_and_with_a_key_of_its_own() {
    let harness = Harness::new();
    let page = open(&harness);
    // Plain HTTP gets no answer.
    let mut plain = TcpStream::connect(page.address()).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(plain, "GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", page.host()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
    let cookie = page.let_in(&harness, &["--scope", "own"]);
    let rebound = format!("GET / HTTP/1.1\r\nHost: evil.example:{}\r\nConnection: close\r\n{cookie}\r\n", page.port);
    assert_eq!(send(page.connect().unwrap(), rebound.as_bytes()).status, 421);
    let reached = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{cookie}\r\n", page.port);
    assert_eq!(send(page.connect().unwrap(), reached.as_bytes()).status, 200, "the address that it was reached at");
    // A page of another site, in the browser that was let in.
    let body = "{\"device\":\"x\"}";
    let cross = format!(
        "POST /api/v1/actions/detach HTTP/1.1\r\nHost: {}\r\nOrigin: https://evil.example\r\nSec-Fetch-Site: cross-site\
         \r\nContent-Type: application/json\r\nContent-Length: {}\r\n{cookie}\r\n{body}",
        page.host(),
        body.len()
    );
    assert_eq!(send(page.connect().unwrap(), cross.as_bytes()).status, 403);
    assert_eq!(page.post("/api/v1/actions/detach", &cookie, &json!({ "device": "x" })).status, 404, "and its own");
    let http = http_processes(&page.process);
    assert_eq!(http.len(), 2, "browsers of other machines have a process of their own");
    for pid in http {
        assert_without_rights(&json!(pid));
    }
    let state = harness.path("state");
    assert_eq!(fs::metadata(state.join("page-key.pem")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!state.join("key.pem").exists(), "the host's identity is not needed for it");
}

#[test]
fn a_real_browser_is_let_in_by_the_link_and_keeps_neither_code_nor_token_where_a_script_finds_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let page = open(&harness);
    let browser = Browser::start(&harness, &["--ignore-certificate-errors"]);
    let code = page.invite(&harness, &["--scope", "own", "--name", "phone"]);
    let url = format!("https://localhost:{}", page.port);
    browser.open_invitation(&format!("{url}/enter#{code}"));
    assert_eq!(browser.script("return location.href"), format!("{url}/"));
    assert_eq!(browser.script("return document.cookie"), "");
    assert!(!browser.script("return JSON.stringify(performance.getEntries())").to_string().contains(&code));
    let share = harness.share(&["keyboard"]);
    browser.wait_for("[...document.querySelectorAll('main bdi')].some((name) => name.textContent === 'keyboard')");
    drop(share);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live')?.textContent === 'live'");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    browser.keep_picture("page-of-another-machine");
    harness.json(&["page", "token", "revoke", "phone", "--json"]);
    browser.wait_for("document.querySelector('#live').textContent.includes('was revoked')");
    // The same link again.
    browser.open("about:blank");
    browser.open(&format!("{url}/enter#{code}"));
    browser.wait_for("document.querySelector('#said')?.textContent.includes('used already')");
}

#[test]
fn one_who_may_look_sees_no_button_and_until_when_and_signs_out() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "--observable"]);
    let page = open(&harness);
    let browser = Browser::start(&harness, &["--ignore-certificate-errors"]);
    browser.resize(360, 800);
    let url = format!("https://localhost:{}", page.port);
    browser.open(&format!("{url}/enter"));
    browser.wait_for("document.querySelector('#said').textContent.includes('no code')");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        assert_accessible(&browser, &format!("where a code is shown, {scheme}"));
        browser.keep_picture(&format!("enter-{scheme}"));
    }
    let device = format!("{url}/device/{}?name=keyboard", share.process.id());
    let buttons = "return [...document.querySelectorAll('button.do')].map((button) => button.dataset.action)";
    for (scope, seen) in [("read", json!([])), ("observe", json!(["observe"]))] {
        let code = page.invite(&harness, &["--scope", scope, "--name", scope]);
        browser.open("about:blank");
        browser.open(&format!("{url}/enter#{code}"));
        wait_until(PATIENCE, "it is let in", || browser.script("return location.pathname") == "/");
        browser.open(&device);
        browser.wait_for("document.querySelector('#live').textContent === 'live'");
        assert_eq!(browser.script(buttons), seen, "{scope}");
        // What changes there has none, either.
        harness.run(&["label", "keyboard", &format!("place={scope}")]);
        browser.wait_for(&format!("document.querySelector('#facts').textContent.includes('Place{scope}')"));
        assert_eq!(browser.script(buttons), seen, "{scope}");
        let answer = browser.script("return document.querySelector('#viewer').textContent");
        let line = answer.as_str().unwrap();
        assert!(line.contains(&format!("token {scope} may look")) && line.contains(", until 20"), "{line}");
        assert_accessible(&browser, &format!("a device for scope {scope}"));
        browser.keep_picture(&format!("device-scope-{scope}"));
        let listed = harness.json(&["page", "token", "list", "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
        browser.script("document.querySelector('#viewer button').click()");
        browser.wait_for("document.querySelector('#said')?.textContent.startsWith('Signed out')");
        assert_eq!(harness.json(&["page", "token", "list", "--json"]), json!([]));
        browser.open(&device);
        let refused = browser.script("return document.documentElement.textContent");
        assert!(refused.as_str().unwrap().contains("has a code"), "{refused}");
    }
    assert!(harness.run(&["audit", "--all"]).stdout.contains("page-leave"), "it has a line in the audit log");
}

#[test]
fn a_browser_whose_cookie_has_gone_is_told_what_to_type_and_asks_no_more() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let page = open(&harness);
    let browser = Browser::start(&harness, &["--ignore-certificate-errors"]);
    let code = page.invite(&harness, &["--name", "phone"]);
    browser.open_invitation(&format!("https://localhost:{}/enter#{code}", page.port));
    browser.devtools("Network.clearBrowserCookies", &json!({}));
    browser.script(
        "window.waiting = new Set(); const [begin, end] = [setTimeout, clearTimeout]; \
         window.setTimeout = (what, ...rest) => { \
           const timer = begin(() => { waiting.delete(timer); what(); }, ...rest); \
           waiting.add(timer); return timer; }; \
         window.clearTimeout = (timer) => { waiting.delete(timer); end(timer); }",
    );
    harness.json(&["page", "token", "revoke", "phone", "--json"]);
    browser.wait_for("document.querySelector('#live').textContent.includes('To be let in again')");
    let answer = browser.script("return document.querySelector('#live').textContent");
    assert!(answer.as_str().unwrap().ends_with("type on the page's machine: farbus page invite"), "{answer}");
    assert_eq!(browser.script("return [waiting.size, events]"), json!([0, null]), "nothing is tried again");
}
