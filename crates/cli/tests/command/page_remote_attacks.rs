//! What pages of other sites, names that lead to the page, and hostile devices get of a browser of another machine that
//! was let in with everything that its owner may do.

use farbus_io_net::trust::{HostFolder, PageKey};
use serde_json::json;

use super::browser::{Browser, Pages, has_browser};
use super::harness::{Harness, Running};
use super::page::send;
use super::page_browser::{assert_hostile_texts_run_nothing, hostile_page, press};
use super::page_remote::{NAME, Remote, open};
use super::page_tokens::make;

/// A browser that was let in and may do everything, at the page's own name.
fn let_in(harness: &Harness, page: &Remote) -> (Browser, String) {
    let names = format!("--host-resolver-rules=MAP *.example 127.0.0.1, MAP {NAME} 127.0.0.1");
    let browser = Browser::start(harness, &["--ignore-certificate-errors", &names]);
    let url = format!("https://{}", page.site.host());
    let code = page.site.invite(harness, &["--scope", "own"]);
    browser.open_invitation(&format!("{url}/enter#{code}"));
    (browser, url)
}

#[test]
fn pages_of_other_origins_read_and_change_nothing_of_a_browser_that_was_let_in() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=secret-disk", image.display())]);
    let socket = harness.path("nbd");
    let arguments = ["attach", &share.target("secret-disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attached = Running::start(harness.command(&arguments));
    attached.wait_for_line("attached as");
    let state = || harness.json(&["status", "--json"])[0]["devices"][0]["state"].clone();
    let in_use = state();
    let page = open(&harness);
    let (browser, url) = let_in(&harness, &page);
    let is_shown = "return document.body.textContent.includes('secret-disk')";
    assert_eq!(browser.script(is_shown), true, "its user reads it");

    let key = PageKey::load(&HostFolder::at(harness.path("state"))).unwrap().unwrap();
    let tls = Pages::serve_tls(hostile_page(&url), key.server_config().unwrap());
    let plain = Pages::serve(hostile_page(&url));
    let (tls_port, plain_port) = (tls.address.port(), plain.address.port());
    browser.open(&format!("https://evil.example:{tls_port}/#itself"));
    let results = browser.script_with_done("all.then(done)");
    for way in ["fetch /", "fetch with cookies /", "blind fetch /", "script /page.js", "style /", "frame /", "form /"] {
        assert_ne!(results[way], "refused", "{way} works where it may");
    }
    let code = page.site.invite(&harness, &[]);
    let origins = [
        // Another port of the same host is the same site: the browser sends the cookie, whatever SameSite says.
        format!("https://{NAME}:{tls_port}"),
        format!("https://evil.{NAME}:{tls_port}"),
        format!("https://evil.example:{tls_port}"),
        format!("http://{NAME}:{plain_port}"),
        format!("http://evil.example:{plain_port}"),
    ];
    for (number, origin) in origins.iter().enumerate() {
        browser.open(origin);
        let results = browser.script_with_done("all.then(done)");
        browser.keep_attack(&format!("tls-{number}"), &results);
        let results = results.as_object().unwrap();
        assert!(results.len() >= 36, "all ways were tried: {results:?}");
        for (way, got) in results {
            assert_eq!(got, "refused", "{origin}: {way}");
        }
        press(&browser, &format!("{url}/api/v1/actions/release"), r#"{\"device\":\"secret-disk\",\"force\":true}"#);
        assert_eq!(state(), in_use, "{origin}");
        // Nor does it let the browser in as somebody else, or use a code up.
        press(&browser, &format!("{url}/api/v1/enter"), &format!(r#"{{\"code\":\"{code}\"}}"#));
        // The token is no script's, and no other page's script replaces it.
        let cookies = browser.script(&format!(
            "for (const more of ['', '; Domain={NAME}']) document.cookie = `__Host-farbus=x; Path=/; Secure${{more}}`;\n\
             return document.cookie"
        ));
        assert!(!cookies.as_str().unwrap().contains("farbus-page-"), "{origin}: {cookies}");
        let opened = browser.script_with_done(&format!(
            "const opened = window.open('{url}/');\n\
             const isRefused = () => {{ try {{ return opened.closed || !opened.document; }} catch {{ return true; }} }};\n\
             const look = () => isRefused() ? done('refused') : setTimeout(look, 10);\n\
             look();"
        ));
        assert_eq!(opened, "refused", "{origin}");
    }
    assert!(tls.seen().len() >= 4 && plain.seen().len() >= 2, "{:?} {:?}", tls.seen(), plain.seen());
    assert_eq!(page.site.enter(&code).status, 200, "the code counts still");
    // Behind the windows that were opened it would keep no connection.
    browser.show_tab(&browser.tabs()[0]);
    browser.open(&url);
    browser.wait_for("document.querySelector('#live')?.textContent === 'live'");
    assert_eq!(browser.script(is_shown), true, "its user is let in still");
    assert_eq!(state(), in_use);
}

#[test]
fn a_name_that_an_attacker_leads_to_the_page_over_tls_reads_nothing() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero,name=secret-zero"]);
    let page = open(&harness);
    let (browser, _) = let_in(&harness, &page);
    let rebound = format!("https://evil.example:{}", page.site.port);
    for path in ["/", "/api/v1/status", "/metrics", "/devices", "/enter", "/healthz"] {
        browser.open(&format!("{rebound}{path}"));
        let seen = browser.script("return document.documentElement.textContent");
        assert!(seen.as_str().unwrap().contains("this page has another name"), "{path}: {seen}");
        let script = format!("fetch('{path}').then((answer) => answer.text()).then(done, (error) => done('' + error))");
        let read = browser.script_with_done(&script);
        assert!(!read.as_str().unwrap().contains("secret-zero"), "{path}: {read}");
    }
    browser.open(&rebound);
    browser.keep_picture("attack-tls-rebound-name");
}

#[test]
fn hostile_texts_of_devices_run_nothing_in_a_browser_of_another_machine() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let page = open(&harness);
    let (browser, url) = let_in(&harness, &page);
    assert_hostile_texts_run_nothing(&harness, &browser, &url);
}

#[test]
fn no_get_changes_anything_and_no_url_has_a_token_over_tls() {
    let harness = Harness::new();
    let page = open(&harness);
    let site = &page.site;
    let cookie = site.let_in(&harness, &["--scope", "own"]);
    let token = make(&harness, &["--scope", "own"]);
    for path in ["/", "/events", "/api/v1/status", "/api/v1/audit", "/metrics"] {
        for parameter in ["token", "access_token", "code", "__Host-farbus", "authorization"] {
            let refused = site.get(&format!("{path}?{parameter}={token}"), "");
            assert_eq!(refused.status, 403, "{path} {parameter}: {refused:?}");
        }
    }
    let actions: Vec<String> = serde_json::from_str::<serde_json::Value>(&site.get("/api/v1/actions", &cookie).body)
        .unwrap()["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| action["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(actions.len() >= 8, "{actions:?}");
    for action in actions.iter().map(|name| format!("/api/v1/actions/{name}?device=x")) {
        for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
            let host = site.host();
            let request = format!("{method} {action} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{cookie}\r\n");
            let refused = send(site.connect().unwrap(), request.as_bytes());
            assert_eq!(refused.status, 405, "{method} {action}: {refused:?}");
        }
    }
    let operations = site.get("/api/v1/operations", &cookie).body;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&operations).unwrap()["operations"], json!([]));
    for (path, cookie) in [("/", &*cookie), ("/", ""), ("/enter", ""), ("/page.js", &cookie), ("/else", &cookie)] {
        let head = site.get(path, cookie).head;
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
        ] {
            assert!(head.contains(line), "{path}: no {line} in {head}");
        }
        assert!(!head.contains("access-control-allow"), "{path}: {head}");
    }
}
