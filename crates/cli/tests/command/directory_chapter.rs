//! The chapter *A directory of all sites*: its commands do what it says.

use std::fs;

use serde_json::json;

use super::directory::{Site, WITHIN};
use super::etcd::{Etcd, has_etcd};
use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::trust::three;

/// A command of the chapter: the host that types it, the program, its words, and the remark behind it.
struct Typed {
    host: String,
    program: String,
    words: Vec<String>,
    remark: String,
}

fn commands_of_chapter() -> Vec<Typed> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/directory.md");
    let text = fs::read_to_string(path).unwrap();
    let typed = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once("$ "));
    let read = |(host, line): (&str, &str)| {
        let (command, remark) = line.split_once('#').unwrap_or((line, ""));
        let (program, words) = command.split_once(' ').unwrap();
        let words = words.split_whitespace().map(str::to_owned).collect();
        Typed { host: host.to_owned(), program: program.to_owned(), words, remark: remark.trim().to_owned() }
    };
    typed.map(read).collect()
}

#[test]
fn commands_of_the_chapter_do_what_it_says() {
    let commands = commands_of_chapter();
    assert!(commands.len() >= 16, "{} commands", commands.len());
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let shares = "share = [{what='serial', name='board', labels={board='imx8'}}, {what='zero', name='probe'}]";
    let at_lab3 = Site::start(lab3, &format!("{}\n{shares}", etcd.line()));
    let sites = [at_lab3, Site::start(desk, &etcd.line()), Site::start(rack, &etcd.line())];
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &sites[0].address]);
    }
    sites.iter().for_each(|site| site.wait_for_counts(3, 2));
    let mut waiting: Option<Running> = None;
    for Typed { host, program, words, remark } in commands {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if program == "etcdctl" {
            let message = etcd.ctl(&words);
            assert!(message.contains("/board"), "{words:?}: {message}");
            continue;
        }
        let site = sites.iter().find(|site| site.host.name == host).unwrap();
        if remark.starts_with("waits") {
            let waits = site.host.start(&words);
            waits.wait_for_line("waiting for");
            if words[1] == "lab3/board" {
                sites[1].wait_for("who waits", |line| line["queue"][0]["host"] == "rack");
            }
            waiting = Some(waits);
            continue;
        }
        let outcome = site.host.run(&words);
        assert_eq!(outcome.code, Some(if remark.starts_with("refused") { 3 } else { 0 }), "{words:?}: {outcome:?}");
        if let Some(part) = remark.split('\'').nth(1) {
            assert!(outcome.stdout.contains(part) || outcome.stderr.contains(part), "{words:?}: {part}: {outcome:?}");
        }
        if remark.starts_with("rack has it")
            && let Some(mut waits) = waiting.take()
        {
            waits.wait_for_line("is leased");
            assert_eq!(waits.wait_for_end(PATIENCE), Some(0));
        }
        if words.len() > 3 && words[..2] == ["directory", "limit"] {
            let wanted = if words.contains(&"--none") { 0 } else { 1 };
            wait_until(WITHIN, "all hosts know of the limit", || {
                sites
                    .iter()
                    .all(|site| site.host.json(&["directory", "limit", "--json"]).as_array().unwrap().len() == wanted)
            });
        }
    }
    assert!(waiting.is_none(), "the chapter lets the one who waits have it");
    let left = desk.json(&["directory", "limit", "--json"]);
    assert_eq!(left, json!([]), "the chapter takes its limit away");
}
