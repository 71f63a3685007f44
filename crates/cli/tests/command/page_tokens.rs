//! Tokens of the page: whom they let in, to what, and until when.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, has_program, wait_until};
use super::page::{Page, Reply, open_page};
use super::page_actions::{by_shell, post};

/// A user without rights to anything here.
const STRANGER: u32 = 65534;

/// Makes a token; returns it.
pub fn make(harness: &Harness, arguments: &[&str]) -> String {
    let made = harness.json(&[&["page", "token", "create", "--json"], arguments].concat());
    made["token"].as_str().unwrap().to_owned()
}

fn with(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn get(page: &Page, path: &str, token: &str) -> Reply {
    page.get(path, &with(token))
}

fn act(page: &Page, action: &str, token: &str, given: &Value) -> Reply {
    let headers = with(token) + "Content-Type: application/json\r\n";
    post(page, &format!("/api/v1/actions/{action}"), &headers, &given.to_string())
}

#[test]
fn a_token_does_what_its_scope_says_until_it_ends_or_is_revoked() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let read = make(&harness, &["--scope", "read", "--name", "ci"]);
    let observe = make(&harness, &["--scope", "observe", "--expires", "1h"]);
    let own = make(&harness, &["--scope", "own", "--expires", "30d"]);
    for token in [&read, &observe, &own] {
        for path in ["/", "/metrics", "/api/v1/status", "/api/v1/devices", "/api/v1/operations", "/readyz"] {
            assert_eq!(get(&page, path, token).status, 200, "{path}");
        }
    }
    let (given, may_not) = (json!({ "what": "zero" }), "this token may not do that\n");
    for token in [&read, &observe] {
        let refused = act(&page, "share", token, &given);
        assert_eq!((refused.status, refused.body.as_str()), (403, may_not), "{refused:?}");
        let refused = get(&page, "/api/v1/audit", token);
        assert_eq!((refused.status, refused.body.as_str()), (403, may_not), "{refused:?}");
    }
    let detached = act(&page, "detach", &own, &json!({ "device": "nothing" }));
    assert!(detached.status == 404 && detached.body.contains("\"by\":\"token "), "{detached:?}");
    let audited = get(&page, "/api/v1/audit", &own);
    assert!(audited.status == 200 && audited.body.contains("page-token-create"), "{audited:?}");

    let short = make(&harness, &["--scope", "read", "--expires", "1s", "--name", "short"]);
    let expired = |reply: &Reply| reply.status == 401 && reply.body == "this token has expired\n";
    wait_until(PATIENCE, "the token ends", || expired(&get(&page, "/metrics", &short)));
    let listed = harness.json(&["page", "token", "list", "--json"]);
    let short = listed.as_array().unwrap().iter().find(|token| token["name"] == "short").unwrap();
    assert_eq!(short["has_expired"], true, "{listed}");
    assert_eq!(harness.json(&["page", "token", "revoke", "ci", "--json"])["done"], "revoke");
    let refused = get(&page, "/metrics", &read);
    let why = "this page has no such token, or it was revoked\n";
    assert_eq!((refused.status, refused.body.as_str()), (401, why), "{refused:?}");
    assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    assert_eq!(get(&page, "/metrics", &observe).status, 200, "the others stay");
}

#[test]
fn a_token_counts_in_the_header_alone_and_as_a_whole() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let token = make(&harness, &["--scope", "own"]);
    let file = harness.path("state").join("page-tokens.json");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(!kept.contains(token.rsplit_once('-').unwrap().1), "{kept}");
    assert_eq!(get(&page, "/metrics", &token).status, 200);
    let half = &token[..token.len() - 1];
    for wrong in [half, &format!("{token}0"), &token.to_uppercase(), "x", ""] {
        assert_eq!(get(&page, "/metrics", wrong).status, 401, "{wrong}: even of the owner");
    }
    assert_eq!(page.get("/metrics", &format!("Authorization: Basic {token}\r\n")).status, 401);
    assert_eq!(page.get("/metrics", &(with(&token) + &with(&token))).status, 400, "twice");
    let body = r#"{"device":"x"}"#;
    let kind = "Content-Type: application/json\r\n";
    for path in
        [format!("/api/v1/actions/detach?token={token}"), format!("/api/v1/actions/detach?access_token={token}")]
    {
        assert_eq!(post(&page, &path, kind, body).status, 403, "in a URL it is nothing");
    }
    let cross = with(&token) + kind + "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(post(&page, "/api/v1/actions/detach", &cross, body).status, 403, "another page, with a token it stole");
}

#[test]
fn prometheus_of_another_user_has_the_figures_with_a_token_and_nothing_else() {
    if !has("a second user", rustix::process::geteuid().is_root()) || !has("curl", has_program("curl")) {
        return;
    }
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let page = open_page(&harness);
    let token = make(&harness, &["--scope", "read"]);
    let ask = |arguments: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-w", "%{http_code}"]).args(arguments).uid(STRANGER).gid(STRANGER);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let at = |path: &str| format!("http://{}{path}", page.address);
    let bearer = format!("Authorization: Bearer {token}");
    let figures = ask(&["-H", &bearer, &at("/metrics")]);
    assert!(figures.ends_with("200") && figures.contains("device=\"zero\""), "{figures}");
    assert_eq!(ask(&[&at("/metrics")]), "this page is another user's\n403");
    assert_eq!(ask(&["-H", &bearer, &at("/api/v1/audit")]), "this token may not do that\n403");
    let (kind, change) = ("Content-Type: application/json", at("/api/v1/actions/share"));
    assert_eq!(
        ask(&["-H", &bearer, "-H", kind, "-d", r#"{"what":"zero"}"#, &change]),
        "this token may not do that\n403"
    );
}

#[test]
fn the_user_as_whom_strangers_are_heard_makes_no_token_that_changes_something() {
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let page = open_page(&harness);
    let own = make(&harness, &["--scope", "own"]);
    assert_eq!(get(&page, "/api/v1/audit", &own).status, 200);
    // As a daemon does that serves paired hosts.
    let given = Command::new("chown").arg("-R").arg(STRANGER.to_string()).arg(harness.path("state")).status();
    assert!(given.unwrap().success());
    assert_eq!(get(&page, "/metrics", &own).status, 200);
    assert_eq!(get(&page, "/api/v1/audit", &own).status, 403);
    assert_eq!(act(&page, "detach", &own, &json!({ "device": "x" })).status, 403);
    let refused = harness.run(&["page", "token", "create", "--scope", "own"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("farbus page --socket"), "{refused:?}");
    make(&harness, &["--scope", "read"]);
}

#[test]
fn tokens_are_made_listed_and_revoked_with_words_and_exit_codes() {
    let harness = Harness::new();
    let none = harness.run(&["page", "token", "list"]);
    assert!(none.code == Some(0) && none.stdout.contains("farbus page token create"), "{none:?}");
    let made = harness.run(&["page", "token", "create", "--scope", "read", "--name", "ci"]);
    assert!(made.code == Some(0) && made.stdout.starts_with("farbus-page-") && made.stdout.lines().count() == 1);
    assert!(made.stderr.contains("scope read, until you revoke it"), "{made:?}");
    let listed = harness.run(&["page", "token", "list"]);
    assert!(listed.stdout.contains("ci") && !listed.stdout.contains(made.stdout.trim()), "{listed:?}");
    let code = |arguments: &[&str]| {
        let Outcome { code, stderr, .. } = harness.run(&[&["page", "token"], arguments].concat());
        (code, stderr)
    };
    let taken = code(&["create", "--scope", "own", "--name", "ci"]);
    assert!(taken.0 == Some(3) && taken.1.contains("farbus page token revoke ci"), "{taken:?}");
    assert_eq!(code(&["create", "--scope", "root"]).0, Some(2));
    assert_eq!(code(&["create"]).0, Some(2), "a scope is said");
    assert_eq!(code(&["create", "--scope", "read", "--expires", "0s"]).0, Some(2));
    let gone = code(&["revoke", "nobody"]);
    assert!(gone.0 == Some(4) && gone.1.contains("farbus page token list"), "{gone:?}");
    assert_eq!(code(&["revoke", "ci"]).0, Some(0));
    let audited = harness.run(&["audit", "--all"]).stdout;
    assert!(audited.contains("page-token-create") && audited.contains("page-token-revoke"), "{audited}");
}

/// The lines of the chapter that are typed, and what is said behind them.
fn lines_of_chapter() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/page.md");
    let text = std::fs::read_to_string(path).unwrap();
    let typed = text.lines().filter_map(|line| line.strip_prefix("    $ "));
    typed
        .map(|line| line.split_once("  # ").unwrap_or((line, "")))
        .map(|(line, comment)| (line.into(), comment.into()))
        .collect()
}

#[test]
fn commands_of_the_chapter_do_what_it_says() {
    if !has("curl", has_program("curl")) {
        return;
    }
    let harness = Harness::new();
    let lines = lines_of_chapter();
    assert!(lines.len() >= 19, "{lines:?}");
    let mut running = Vec::new();
    for (line, message) in lines {
        // What goes on takes the shell's place, so that it ends with it.
        let typed = line.strip_suffix(" &").map_or_else(|| line.clone(), |begun| format!("exec {begun}"));
        let mut command = by_shell(&harness, "sh", &typed);
        command.current_dir(harness.path("tmp"));
        if line.ends_with(" &") {
            let process = Running::start(command);
            process.wait_for_line(if line.contains("page") { "page at " } else { "listening on " });
            running.push(process);
            continue;
        }
        let outcome = finish(command, PATIENCE);
        // curl's exit code for an answer of status 400 and above.
        assert_eq!(outcome.code, Some(if message == "refused" { 22 } else { 0 }), "{line}: {outcome:?}");
        assert!(message == "refused" || outcome.stdout.contains(&message), "{line}: {outcome:?}");
    }
    assert_eq!(running.len(), 4);
}
