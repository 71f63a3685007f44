//! `farbus lease`: a device is one host's for a time, then the next one's, and the number of the former is refused.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::restart::{exporter, restart};
use super::trust::{Host, three};

/// A device called `disk` that lab3 shares, and that both others know where to find.
pub struct Lab<'a> {
    pub lab3: &'a Host<'a>,
    pub share: Running,
    pub target: String,
}

impl<'a> Lab<'a> {
    pub fn new([lab3, desk, rack]: &'a [Host<'a>; 3], what: &[&str]) -> Self {
        let (share, address) = lab3.share(what);
        for host in [desk, rack] {
            host.ok(&["list", "lab3", "--address", &address]);
        }
        Self { lab3, share, target: "lab3/disk".to_owned() }
    }

    pub fn lease(&self) -> serde_json::Value {
        self.lab3.json(&["status", "--json"])[0]["devices"][0]["lease"].clone()
    }
}

#[test]
fn audit_log_says_who_had_a_device_from_when_to_when_and_why_others_had_not() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let lab = Lab::new(&hosts, &[&format!("disk:{}", image.display())]);
    let target = lab.target.as_str();
    desk.ok(&["lease", target, "--for", "2h", "--reason", "a test"]);
    assert_eq!(rack.run(&["lease", target, "--no-wait"]).code, Some(3));
    desk.ok(&["lease", "extend", target, "--for", "3h"]);
    desk.ok(&["lease", "give", target, "--to", "rack"]);
    rack.ok(&["lease", "release", target]);
    desk.ok(&["lease", target, "--from", "+90m", "--for", "1h", "--reason", "a longer one"]);
    desk.ok(&["lease", "release", target]);
    desk.ok(&["lease", target]);
    lab3.ok(&["release", "disk"]);

    let lines = lab3.ok(&["audit", "--device", "disk", "--json"]);
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let all: Vec<_> = lines.iter().filter(|line| line["event"] != "attach" && line["event"] != "detach").collect();
    for (line, (event, peer, outcome, why)) in all.iter().zip([
        ("lease", "desk", "ok", "for: a test"),
        ("lease", "rack", "refused", "desk has it"),
        ("lease-extend", "desk", "ok", "until 20"),
        ("lease", "rack", "ok", "until 20"),
        ("lease-end", "desk", "ok", "handed over"),
        ("lease-end", "rack", "ok", "released"),
        ("book", "desk", "ok", "for: a longer one"),
        ("book-end", "desk", "ok", "given up"),
        ("lease", "desk", "ok", "until 20"),
        ("lease-end", "desk", "ok", "taken back"),
    ]) {
        assert_eq!((&line["event"], &line["peer"], &line["outcome"]), (&json!(event), &json!(peer), &json!(outcome)));
        assert!(line["why"].as_str().unwrap().contains(why) && line["fingerprint"].is_string(), "{line}");
    }
    assert_eq!(all.len(), 10, "{all:?}");

    let holders = lab3.json(&["audit", "--holders", "--device", "disk", "--since", "1h", "--json"]);
    let hosts: Vec<_> = holders.as_array().unwrap().iter().map(|held| held["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["desk", "rack", "desk"], "{holders}");
    assert!(holders[0]["from"].as_str() <= holders[0]["until"].as_str(), "{holders}");
    let text = lab3.ok(&["audit", "--holders"]);
    assert!(text.contains("GRANTED") && text.contains("for: a test"), "{text}");
    for then in [&["--on", "2026-01-01"][..], &["--until", "2026-01-01T00:00Z"]] {
        let nobody = lab3.ok(&[&["audit", "--holders"], then].concat());
        assert!(nobody.starts_with("Nobody had such a device then"), "{nobody}");
        assert!(lab3.ok(&[&["audit", "--all"], then].concat()).contains("no such line"));
    }
    assert!(lab3.run(&["audit", "--on", "tuesday"]).stderr.contains("is no day: 2026-11-24"));
}

#[test]
fn leased_device_is_its_holders_alone_and_goes_to_who_waits() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let lab = Lab::new(&hosts, &[&format!("disk:{}", image.display())]);
    let target = lab.target.as_str();

    let leased = desk.json(&["lease", target, "--for", "2h", "--reason", "a test", "--json"]);
    assert_eq!((&leased["state"], &leased["lease"]["host"]), (&json!("held"), &json!("desk")));
    assert!(leased["lease"]["is_yours"] == true && leased["lease"]["number"].as_u64() > Some(0), "{leased}");
    let again = desk.json(&["lease", target, "--for", "9h", "--json"]);
    assert_eq!(again["lease"]["number"], leased["lease"]["number"], "to ask again changes nothing");
    assert!(again["lease"]["left_s"].as_f64() < Some(7201.0), "{again}");

    let refused = rack.run(&["lease", target, "--no-wait"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("desk has it"), "{refused:?}");
    let refused = rack.run(&["attach", target, "--via", "fuse"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("leased to desk for another 120 min"), "{refused:?}");
    assert!(refused.stderr.contains("farbus lease lab3/disk --for 1h"), "{refused:?}");
    let listed = rack.json(&["lease", "list", "lab3", "--json"]);
    assert_eq!((&listed[0]["host"], &listed[0]["is_yours"]), (&json!("desk"), &json!(false)), "{listed}");
    assert!(rack.ok(&["list", "lab3"]).contains("leased"));
    assert!(lab.lab3.ok(&["status"]).contains("leased to desk"));

    let waits = rack.start(&["lease", target, "--for", "1m"]);
    let message = waits.wait_for_line("waiting for");
    assert!(message.contains("place 1") && message.contains("leased to desk"), "{message}");
    let refused = desk.run(&["lease", "extend", target, "--for", "3h"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("waits for it"), "{refused:?}");
    desk.ok(&["lease", "release", target]);
    waits.wait_for_line("is leased for");
    let lease = lab.lease();
    assert_eq!(lease["host"], "rack");
    assert!(lease["number"].as_u64() > leased["lease"]["number"].as_u64(), "{lease}");
    let refused = desk.run(&["lease", "release", target]);
    assert!(refused.code == Some(3) && refused.stderr.contains("no lease"), "{refused:?}");

    rack.ok(&["lease", "give", target, "--to", "desk"]);
    assert_eq!(lab.lease()["host"], "desk");
    lab.lab3.ok(&["release", "disk"]);
    assert!(lab.lease().is_null(), "the owner takes back a lease, too");
    for (wrong, code) in [("lab3/tape", 4), ("127.0.0.1:1/disk", 3)] {
        assert_eq!(desk.run(&["lease", wrong]).code, Some(code), "{wrong}");
    }
    let refused = desk.run(&["lease", target, "--priority", "1"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--reserve-high"), "{refused:?}");
}

#[test]
fn interrupted_wait_leaves_the_queue_at_once() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    desk.ok(&["lease", &lab.target]);
    let mut waits = rack.start(&["lease", &lab.target]);
    waits.wait_for_line("waiting for");
    let waiting = || lab.lab3.json(&["status", "--json"])[0]["devices"][0]["waiting"].clone();
    assert_eq!(waiting()[0]["host"], "rack");
    waits.signal(Signal::INT);
    assert_eq!(waits.wait_for_shell_code(PATIENCE), 130);
    assert!(waiting().is_null());
}

#[test]
fn lease_that_ends_takes_the_device_from_its_user_and_fences_it_off() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let lab = Lab::new(&hosts, &[&format!("disk:{}", image.display())]);
    let target = lab.target.as_str();
    // To write out takes seconds beside tests that write disks: three quarters of the time are for that.
    desk.ok(&["lease", target, "--for", "12s"]);
    let number = lab.lease()["number"].as_u64().unwrap();
    let socket = harness.path("desk.sock");
    let mut attach = desk.start(&["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    attach.wait_for_line("attached as");
    let waits = rack.start(&["lease", target, "--for", "1h"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());
    let log = attach.log();
    assert!(log.contains("lease of the device ends soon") && log.contains("lease expired"), "{log}");
    waits.wait_for_line("is leased for");
    let device = lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    assert!(device["lease"]["number"].as_u64() > Some(number), "{device}");
    let ended: Vec<_> = device["history"].as_array().unwrap().iter().map(|past| &past["ended"]).collect();
    assert_eq!(ended, ["lease expired", "lease expired"], "its use and itself: {device}");
    lab.share.assert_logged("the lease of its user ends soon");
    attach.assert_logged("the file systems of this machine have written out what they held");
}

#[test]
fn lease_and_its_numbers_outlive_the_exporter() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let what = format!("disk:{}", image.display());
    let mut lab = Lab::new(&hosts, &[&what]);
    desk.ok(&["lease", &lab.target, "--for", "1h", "--reason", "long"]);
    let lease = lab.lease();
    let (number, left_s) = (lease["number"].as_u64().unwrap(), lease["left_s"].as_f64().unwrap());
    lab.share.kill();

    // As if the clock was set back: what was reserved is a day ahead of it.
    let folder = harness.path("lab3");
    let is_lease = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("lease-");
    let file = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_lease).unwrap();
    let mut stored: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let ahead = stored["reserved"].as_u64().unwrap() + 86_400_000;
    stored["reserved"] = json!(ahead);
    fs::write(&file, stored.to_string()).unwrap();

    let lab = Lab::new(&hosts, &[&what]);
    let lease = lab.lease();
    assert_eq!((&lease["host"], &lease["reason"], &lease["number"]), (&json!("desk"), &json!("long"), &json!(number)));
    assert!(lease["left_s"].as_f64().unwrap() <= left_s, "{lease}");
    assert_eq!(rack.run(&["attach", &lab.target, "--via", "fuse"]).code, Some(3));
    desk.ok(&["lease", "release", &lab.target]);
    rack.ok(&["lease", &lab.target]);
    let next = lab.lease()["number"].as_u64().unwrap() >> 20;
    assert!(next > ahead, "{next} is later than {ahead}, whatever the clock says");
    wait_until(Duration::from_secs(1), "it is rack's", || {
        lab3.json(&["status", "--json"])[0]["devices"][0]["lease"]["host"] == "rack"
    });
}

/// A command of the chapter: the host that types it, its words, and what is said behind it.
fn commands_of_chapter() -> Vec<(String, Vec<String>, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/leases.md");
    let text = fs::read_to_string(path).unwrap();
    let typed = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once("$ farbus "));
    let words = |(host, line): (&str, &str)| {
        let (command, remark) = line.split_once('#').unwrap_or((line, ""));
        (host.to_owned(), command.split_whitespace().map(str::to_owned).collect(), remark.trim().to_owned())
    };
    typed.map(words).collect()
}

#[test]
fn commands_of_the_chapter_do_what_it_says() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let _lab = Lab::new(&hosts, &["zero,name=board", "zero,name=probe"]);
    let commands = commands_of_chapter();
    assert!(commands.len() >= 9, "{commands:?}");
    let mut waiting: Option<Running> = None;
    for (host, words, remark) in commands {
        let host = hosts.iter().find(|known| known.name == host).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if remark.starts_with("waits") {
            let waits = host.start(&words);
            waits.wait_for_line("waiting for lab3/board, place 1");
            waiting = Some(waits);
            continue;
        }
        let outcome = host.run(&words);
        assert_eq!(outcome.code, Some(if remark.starts_with("refused") { 3 } else { 0 }), "{words:?}: {outcome:?}");
        if remark.starts_with("the next in line")
            && let Some(mut waits) = waiting.take()
        {
            waits.wait_for_line("is leased for");
            assert_eq!(waits.wait_for_end(PATIENCE), Some(0));
        }
    }
    assert!(waiting.is_none(), "the chapter lets the one who waits have it");
}

#[test]
fn holder_whose_link_comes_back_after_its_lease_is_refused() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let lab = Lab::new(&hosts, &[&format!("disk:{}", image.display())]);
    let target = lab.target.as_str();
    desk.ok(&["lease", target, "--for", "3s"]);
    let socket = harness.path("desk.sock");
    let mut attach = desk.start(&["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    attach.wait_for_line("attached as");
    // It hears nothing of the end, and believes that it has the disk.
    attach.signal(Signal::STOP);
    rack.ok(&["lease", target, "--for", "1h"]);
    let device = || lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    assert_eq!(device()["lease"]["host"], "rack");
    attach.signal(Signal::CONT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());
    attach.assert_logged("the lease under which this host used it is over: lease expired");
    let device = device();
    assert_eq!((&device["lease"]["host"], &device["state"]), (&json!("rack"), &json!("available")), "{device}");
}

#[test]
fn lease_and_its_use_go_on_when_the_daemon_is_replaced() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let (mut daemon, _, secure) = exporter(&harness, lab3, &format!("{{what='disk:{}'}}", image.display()));
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &secure]);
    }
    let leased = desk.json(&["lease", "lab3/disk", "--for", "1h", "--json"]);
    let socket = harness.path("desk.sock");
    let mut attach = desk.start(&["attach", "lab3/disk", "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    attach.wait_for_line("attached as");
    let next = restart(lab3, 1);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    let device = || lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    wait_until(PATIENCE, "its user is there again", || device()["state"] == "in use");
    let lease = device()["lease"].clone();
    assert_eq!((&lease["host"], &lease["number"]), (&json!("desk"), &leased["lease"]["number"]), "{lease}");
    assert_eq!(rack.run(&["lease", "lab3/disk", "--no-wait"]).code, Some(3));
    let refused = desk.run(&["lease", "release", "lab3/disk"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--force"), "it is attached: {refused:?}");
    attach.signal(Signal::INT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    desk.ok(&["lease", "release", "lab3/disk"]);
    rack.ok(&["lease", "lab3/disk", "--no-wait"]);
    next.end();
}

/// The leases of lab3's devices, as a host sees them: `device host`.
fn leases(host: &Host<'_>) -> Vec<String> {
    let all = host.json(&["lease", "list", "lab3", "--json"]);
    let line = |lease: &serde_json::Value| {
        format!(
            "{} {} {}",
            lease["target"].as_str().unwrap(),
            lease["host"].as_str().unwrap(),
            lease["state"].as_str().unwrap()
        )
    };
    all.as_array().unwrap().iter().map(line).collect()
}

#[test]
fn several_devices_are_leased_together_or_not_at_all() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=a", "zero,name=b", "keyboard,name=c"]);
    desk.ok(&["lease", "lab3/b", "--for", "1h"]);
    let refused = rack.run(&["lease", "lab3/a", "lab3/b", "lab3/c", "--for", "1h", "--no-wait"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("lab3/b (desk has it)"), "{refused:?}");
    assert_eq!(leases(rack), ["lab3/b desk held"], "nothing is kept of what could be had");
    assert!(lab.lease().is_null());

    let mut waits = rack.start(&["lease", "lab3/c", "lab3/b", "lab3/a", "--for", "1h", "--reason", "a test"]);
    assert!(waits.wait_for_line("waiting for 3 at once").contains("lab3/b (desk has it)"));
    let other = desk.json(&["lease", "lab3/a", "lab3/b", "--for", "10m", "--json"]);
    assert_eq!(other["leases"].as_array().map(Vec::len), Some(2), "who waits holds nothing: {other}");
    desk.ok(&["lease", "release", "lab3/b"]);
    desk.ok(&["lease", "release", "lab3/a"]);
    waits.wait_for_line("lab3/a is leased for");
    assert_eq!(waits.wait_for_end(PATIENCE), Some(0));
    assert_eq!(leases(desk), ["lab3/a rack held", "lab3/b rack held", "lab3/c rack held"]);
    let number = |at: usize| lab3.json(&["status", "--json"])[0]["devices"][at]["lease"]["number"].as_u64();
    assert!((0..3).all(|at| number(at) > Some(0)), "a confirmed lease has a number");

    let again = rack.json(&["lease", "lab3/a", "lab3/b", "--no-wait", "--json"]);
    assert_eq!(again["leases"][0]["lease"]["number"].as_u64(), number(0), "to ask again changes nothing");
    for (words, code, why) in [
        (&["lease", "lab3/a", "lab3/a"][..], 1, "named twice"),
        (&["lease", "lab3/a", "free"], 1, "not both"),
        (&["lease", "lab3/a", "--count", "2"], 1, "only 1"),
        (&["lease", "lab3/a", "lab3/tape", "--no-wait"], 4, "shares no 'tape'"),
        (&["lease", "label:board=imx8"], 4, "no device"),
        (&["lease", "colour=red"], 2, "class=, vendor="),
    ] {
        let refused = rack.run(words);
        assert!(refused.code == Some(code) && refused.stderr.contains(why), "{words:?}: {refused:?}");
    }
}

#[test]
fn query_leases_as_many_of_the_devices_it_means_as_are_asked_for() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let _lab = Lab::new(&hosts, &["zero,name=a", "zero,name=b", "zero,name=c", "keyboard,name=k"]);
    for device in ["a", "b", "c"] {
        lab3.ok(&["label", device, "board=imx8"]);
    }
    let message = desk.ok(&["lease", "label:board=imx8", "host=lab3", "--no-wait"]);
    assert!(message.starts_with("lab3/a is leased for"), "{message}");
    let message = rack.ok(&["lease", "label:board=imx8", "--count", "2", "--for", "5m"]);
    assert_eq!(message.lines().count(), 2, "{message}");
    assert_eq!(leases(rack), ["lab3/a desk held", "lab3/b rack held", "lab3/c rack held"]);
    let refused = desk.run(&["lease", "label:board=imx8", "--count", "2", "--no-wait"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("nothing is leased"), "{refused:?}");
    assert_eq!(leases(desk).len(), 3, "what desk had before stays its own");
    let mut waits = desk.start(&["lease", "label:board=imx8", "--count", "3"]);
    waits.wait_for_line("waiting for 3 at once");
    waits.signal(Signal::INT);
    assert_eq!(waits.wait_for_shell_code(PATIENCE), 130);
    assert_eq!(leases(desk), ["lab3/a desk held", "lab3/b rack held", "lab3/c rack held"]);
}

#[test]
fn query_that_waits_takes_a_device_that_appears_later() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let (mut daemon, _, secure) = exporter(&harness, lab3, "{what='zero',name='a'}");
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &secure]);
    }
    lab3.ok(&["label", "a", "board=imx8"]);
    desk.ok(&["lease", "lab3/a", "--for", "1h"]);
    let mut waits = rack.start(&["lease", "label:board=imx8", "--for", "5m"]);
    assert!(waits.wait_for_line("waiting for 1 at once").contains("lab3/a (desk has it)"));
    let mut share = lab3.start(&["share", "zero,name=b"]);
    wait_until(PATIENCE, "b is on offer", || lab3.ok(&["status"]).contains("\nb "));
    lab3.ok(&["label", "b", "board=imx8"]);
    waits.wait_for_line("lab3/b is leased for");
    assert_eq!(waits.wait_for_end(PATIENCE), Some(0), "{}", waits.log());
    assert_eq!(leases(desk), ["lab3/a desk held", "lab3/b rack held"]);
    share.kill();
    daemon.kill();
}

#[test]
fn connection_of_a_stock_client_is_closed_when_a_host_of_a_higher_priority_is_to_have_the_device() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    // Its owner gives it two seconds, and not a minute.
    let what = format!("{{what='disk:{}'}}]\npreempt_notice = '2s'\nattach = [", image.display());
    let (_daemon, plain, secure) = exporter(&harness, lab3, &what);
    desk.ok(&["list", "lab3", "--address", &secure]);
    lab3.ok(&["allow", "desk", "disk", "--reserve-high"]);
    let (target, socket) = (format!("{plain}/disk"), harness.path("rack.sock"));
    // USB/IP alone, as 'usbip attach' speaks it: it never asked for a lease, and cannot be warned.
    let mut stock =
        rack.start(&["attach", &target, "--grace", "0", "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    stock.wait_for_line("attached as");
    let mut waits = desk.start(&["lease", "lab3/disk", "--priority", "1"]);
    assert!(waits.wait_for_line("waiting for").contains("in use by"));
    let end = stock.wait_for_end(PATIENCE);
    assert!(end.is_some_and(|code| code > 0), "{end:?} {}", stock.log());
    waits.wait_for_line("is leased for");
    assert_eq!(waits.wait_for_end(PATIENCE), Some(0));
    let device = lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    assert_eq!(
        (&device["lease"]["host"], &device["history"][0]["ended"]),
        (&json!("desk"), &json!("preempted")),
        "{device}"
    );
}

#[test]
fn booking_outlives_the_exporter_and_who_uses_the_device_then_gives_way_to_it() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let what = format!("disk:{}", image.display());
    let mut lab = Lab::new(&hosts, &[&what]);
    let message = desk.ok(&["lease", &lab.target, "--from", "+1h", "--for", "1h", "--reason", "a demo"]);
    assert!(message.contains("is booked from 20"), "{message}");
    lab.share.kill();
    let lab = Lab::new(&hosts, &[&what]);
    let target = lab.target.as_str();
    let listed = rack.json(&["lease", "list", "lab3", "--json"]);
    assert_eq!((&listed[0]["state"], &listed[0]["host"]), (&json!("booked"), &json!("desk")), "{listed}");
    assert!(lab3.ok(&["status"]).contains("booked by desk from 20"));
    let refused = rack.run(&["lease", target, "--for", "2h", "--no-wait"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("desk has booked it"), "{refused:?}");
    rack.ok(&["lease", target, "--for", "10m", "--no-wait"]);
    rack.ok(&["lease", "release", target]);
    let refused = rack.run(&["lease", target, "--from", "+90m", "--for", "5m"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("desk has it for a part of that time"), "{refused:?}");
    assert_eq!(rack.run(&["lease", target, "--from", "yesterday"]).code, Some(2));
    desk.ok(&["lease", "release", target]);
    assert_eq!(rack.json(&["lease", "list", "lab3", "--json"]), json!([]));

    let socket = harness.path("rack.sock");
    let mut attach = rack.start(&["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    attach.wait_for_line("attached as");
    desk.ok(&["lease", target, "--from", "+2s", "--for", "1h"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());
    wait_until(PATIENCE, "the booking is a lease", || lab.lease()["host"] == "desk");
    // Its number is stored then.
    wait_until(PATIENCE, "the lease has its number", || lab.lease()["number"].as_u64() > Some(0));
    assert!(lab.lease()["left_s"].as_f64() <= Some(3600.0));
}
