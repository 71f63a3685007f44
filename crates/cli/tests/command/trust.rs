//! Two hosts on one machine: keys, pairing codes, permissions, and hosts that have none of them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, wait_until};
use super::siege::connect_as_attacker;

/// One of several hosts in a harness.
pub struct Host<'a> {
    pub harness: &'a Harness,
    pub name: &'static str,
}

impl<'a> Host<'a> {
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.equip(self.harness.command(arguments))
    }

    /// Makes the command run as this host.
    pub fn equip(&self, mut command: Command) -> Command {
        command.env("FARBUS_STATE", self.harness.path(self.name)).env("FARBUS_NAME", self.name);
        // Each is a host of its own: processes of one host do not find those of another.
        command.env("XDG_RUNTIME_DIR", self.harness.path(&format!("run-{}", self.name)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), PATIENCE)
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    fn fingerprint(&self) -> String {
        self.json(&["id", "--json"])["fingerprint"].as_str().unwrap().to_owned()
    }

    /// Starts to wait for a pairing; returns the process, its address and the code.
    fn wait_to_pair(&self) -> (Running, String, String) {
        let waiting = self.start(&["pair", "--listen", "127.0.0.1:0", "--json"]);
        let (address, code) = next_code(&waiting);
        (waiting, address, code)
    }

    /// Shares for paired hosts alone; returns the process and its address.
    pub fn share(&self, what: &[&str]) -> (Running, String) {
        let share = self.start(&[&["share"], what, &["--listen", "none", "--secure", "127.0.0.1:0"]].concat());
        let line = share.wait_for_line("for paired hosts");
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        (share, address)
    }

    /// The entries of both logs: first the actions, then the refusals.
    pub fn audit(&self) -> Vec<Value> {
        ["audit.log", "refused.log"].into_iter().flat_map(|file| self.noted(file)).collect()
    }

    /// The entries of one log file.
    pub fn noted(&self, file: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.harness.path(self.name).join(file)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How many entries of the logs are of this event.
    pub fn audit_lines(&self, event: &str) -> usize {
        self.audit().iter().filter(|line| line["event"] == event).count()
    }

    /// Whether the logs have an entry with these values.
    pub fn has_noted(&self, values: &[(&str, &str)]) -> bool {
        self.audit().iter().any(|line| values.iter().all(|(key, value)| line[*key] == *value))
    }
}

pub fn next_code(waiting: &Running) -> (String, String) {
    let line: Value = serde_json::from_str(&waiting.wait_for_line("\"code\"")).unwrap();
    (line["address"].as_str().unwrap().to_owned(), line["code"].as_str().unwrap().to_owned())
}

pub fn hosts(harness: &Harness) -> [Host<'_>; 2] {
    ["lab3", "desk"].map(|name| Host { harness, name })
}

/// One host that shares and two that may use all of it, all paired with each other.
pub fn three(harness: &Harness) -> [Host<'_>; 3] {
    let hosts = ["lab3", "desk", "rack"].map(|name| Host { harness, name });
    let [lab3, desk, rack] = &hosts;
    for importer in [desk, rack] {
        pair(lab3, importer);
        lab3.ok(&["allow", importer.name, "all"]);
    }
    pair(desk, rack);
    hosts
}

/// Pairs two hosts.
pub fn pair(waits: &Host<'_>, joins: &Host<'_>) {
    let (mut waiting, address, code) = waits.wait_to_pair();
    joins.ok(&["pair", &address, &code]);
    assert_eq!(waiting.wait_for_end(PATIENCE), Some(0));
}

/// A pairing code that differs from this one.
fn other_than(code: &str) -> String {
    let last = if code.ends_with('0') { '1' } else { '0' };
    format!("{}{last}", &code[..code.len() - 1])
}

#[test]
fn a_key_is_made_once_and_kept_from_others() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let fingerprint = lab3.fingerprint();
    assert_eq!((fingerprint.len(), lab3.fingerprint()), (52, fingerprint.clone()));
    assert_ne!(desk.fingerprint(), fingerprint);
    let key = harness.path("lab3").join("key.pem");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(harness.path("lab3")).unwrap().permissions().mode() & 0o777, 0o700);
    // A key that other users can read is refused.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let outcome = lab3.run(&["id"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("chmod 600"), "{}", outcome.stderr);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "not a key").unwrap();
    assert!(lab3.run(&["id"]).stderr.contains("no Ed25519 key"));
}

#[test]
fn pairing_code_makes_two_hosts_know_each_other() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let (mut waiting, address, code) = lab3.wait_to_pair();
    let message = desk.ok(&["pair", &address, &code]);
    assert!(message.contains(&format!("paired with lab3  {}", lab3.fingerprint())), "{message}");
    let news: Value = serde_json::from_str(&waiting.wait_for_line("paired")).unwrap();
    assert_eq!((&news["paired"]["name"], &news["paired"]["fingerprint"]), (&"desk".into(), &desk.fingerprint().into()));
    assert_eq!(waiting.wait_for_end(PATIENCE), Some(0));
    let known = desk.json(&["peers", "--json"]);
    assert_eq!((&known[0]["name"], &known[0]["allow"]), (&"lab3".into(), &Value::Array(Vec::new())));
    assert!(lab3.has_noted(&[("event", "pair"), ("outcome", "ok"), ("peer", "desk")]));
    // A code works once.
    let outcome = desk.run(&["pair", &address, &code]);
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
}

#[test]
fn three_wrong_codes_void_a_code_and_nine_end_the_pairing() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let (mut waiting, address, mut code) = lab3.wait_to_pair();
    let first = code.clone();
    for number in 1..=9 {
        let outcome = desk.run(&["pair", &address, &other_than(&code)]);
        assert_eq!(outcome.code, Some(3), "{number}: {outcome:?}");
        assert!(outcome.stderr.contains("the code is wrong"), "{number}: {outcome:?}");
        if number == 3 {
            // The first code is void, even if typed correctly.
            code = next_code(&waiting).1;
            assert_ne!(code, first);
        }
        if number == 6 {
            code = next_code(&waiting).1;
        }
    }
    assert_eq!(waiting.wait_for_end(PATIENCE), Some(3));
    assert!(waiting.log().contains("9 wrong codes were tried"), "{}", waiting.log());
    assert_eq!(lab3.json(&["peers", "--json"]), Value::Array(Vec::new()));
    assert_eq!(desk.json(&["peers", "--json"]), Value::Array(Vec::new()));
    let refusals = lab3.audit().iter().filter(|line| line["event"] == "pair" && line["outcome"] == "refused").count();
    assert_eq!(refusals, 9, "each with its address");
    assert!(lab3.audit().iter().all(|line| line["address"].as_str().unwrap().starts_with("127.0.0.1:")));
}

#[test]
fn a_void_code_does_not_pair() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let (mut waiting, address, first) = lab3.wait_to_pair();
    for _ in 0..3 {
        desk.run(&["pair", &address, &other_than(&first)]);
    }
    let second = next_code(&waiting).1;
    assert_eq!(desk.run(&["pair", &address, &first]).code, Some(3));
    desk.ok(&["pair", &address, &second]);
    assert_eq!(waiting.wait_for_end(PATIENCE), Some(0));
}

#[test]
fn a_paired_host_uses_what_it_is_allowed_and_sees_nothing_else() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let image = harness.image("a.img", 4 << 20);
    let (_share, address) = lab3.share(&[&format!("disk:{}", image.display()), "zero"]);
    // A paired host may use nothing until the owner allows it.
    let listed = desk.run(&["list", "lab3", "--address", &address]);
    assert!(listed.stdout.contains("offers nothing to this host"), "{listed:?}");
    for device in ["disk", "no-such-device"] {
        let refused = desk.run(&["attach", &format!("lab3/{device}"), "--via", "fuse"]);
        let next = format!("farbus allow desk '{device}'");
        assert!(refused.code == Some(3) && refused.stderr.contains(&next), "{refused:?}");
    }
    let known = lab3.run(&["allow", "desk", "disk"]);
    assert!(known.code == Some(0) && !known.stderr.contains("warning"), "{known:?}");
    let unknown = lab3.run(&["allow", "desk", "nonexistent"]);
    assert!(unknown.code == Some(0) && unknown.stderr.contains("no device called 'nonexistent'"), "{unknown:?}");
    assert!(unknown.stderr.contains("Shared now: disk, zero"), "{unknown:?}");
    let granted = lab3.json(&["forbid", "desk", "nonexistent", "--json"]);
    assert_eq!((&granted["done"], &granted["may_use"]), (&"forbid".into(), &serde_json::json!(["disk"])), "{granted}");
    let listed = desk.json(&["list", "lab3", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&"disk".into(), &"available".into()));
    // Not by bus id either.
    assert_eq!(desk.run(&["attach", "lab3/1-2", "--via", "fuse"]).code, Some(3));
    lab3.ok(&["forbid", "desk", "all"]);
    assert_eq!(desk.json(&["list", "lab3", "--json"]), Value::Array(Vec::new()));
    lab3.ok(&["allow", "desk", "all"]);
    assert_eq!(desk.json(&["list", "lab3", "--json"]).as_array().unwrap().len(), 2);
}

#[test]
fn a_disk_is_read_and_written_over_an_encrypted_link() {
    if !super::harness::has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "disk"]);
    let image = harness.image("a.img", 8 << 20);
    let (_share, address) = lab3.share(&[&format!("disk:{}", image.display())]);
    let at = harness.path("mnt");
    let arguments = ["attach", "lab3/disk", "--address", &address, "--via", "fuse", "--at", at.to_str().unwrap()];
    let mut attached = desk.start(&arguments);
    attached.wait_for_line("attached as ");
    let data: Vec<u8> = (0..6 << 20).map(|at: u32| (at * 31 + at / 4096) as u8).collect();
    let mut file = fs::File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(&image).unwrap()[..data.len()] == data[..], "durable at the exporter");
    let mut back = vec![0; data.len()];
    fs::File::open(at.join("disk.img")).unwrap().read_exact(&mut back).unwrap();
    assert!(back == data);
    drop(file);
    let states = desk.json(&["list", "lab3", "--json"]);
    assert_eq!(states[0]["state"], "in use");
    assert!(states[0]["user"].as_str().unwrap().starts_with("desk ("), "{states}");
    assert!(lab3.has_noted(&[("event", "attach"), ("outcome", "ok"), ("peer", "desk"), ("device", "disk")]));
    // Unpairing takes back every permission at once, also from a running session.
    lab3.ok(&["unpair", "desk"]);
    assert_eq!(attached.wait_for_end(PATIENCE), Some(3), "{}", attached.log());
    assert!(attached.log().contains("refused: lab3/disk: not shared with you any more"), "{}", attached.log());
    wait_until(PATIENCE, "noted", || lab3.has_noted(&[("event", "detach"), ("device", "disk")]));
    let outcome = desk.run(&["list", "lab3"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("does not know this host's key"), "{outcome:?}");
}

/// Both daemons read untrusted bytes, and both run without privileges.
#[test]
fn a_daemon_serves_paired_hosts_and_another_keeps_what_they_share_attached() {
    if !super::harness::has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "disk"]);
    let image = harness.image("a.img", 4 << 20);
    let daemon = |host: &Host<'_>, text: &str| {
        let config = harness.path(&format!("{}.toml", host.name));
        fs::write(&config, text).unwrap();
        host.start(&["daemon", "--config", config.to_str().unwrap()])
    };
    let shares = format!(
        "plain.listen=[]\nsecure.listen=['127.0.0.1:0']\nshare=[{{what='disk:{}', name='disk'}}, {{what='zero'}}]",
        image.display()
    );
    let mut exporter = daemon(&lab3, &shares);
    let address = exporter.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned();
    desk.ok(&["list", "lab3", "--address", &address]);
    let at = harness.path("mnt");
    let attaches = format!(
        "plain.listen=[]\nattach=[{{target='lab3/disk', via='fuse', at='{}', reason='nightly backup'}}]",
        at.display()
    );
    let mut importer = daemon(&desk, &attaches);
    let file = at.join("disk.img");
    wait_until(PATIENCE, "it is attached", || file.exists());
    fs::File::options().write(true).open(&file).and_then(|mut file| file.write_all(&[7; 4096])).unwrap();

    // Both the owner and any host that may use the disk see who uses it, and why.
    let disk = |host: &Host<'_>| host.json(&["status", "--json"])[0]["devices"][0].clone();
    wait_until(PATIENCE, "the reason is told", || disk(&lab3)["reason"] == "nightly backup");
    let listed = desk.json(&["list", "--json"]);
    let line = listed.as_array().unwrap().iter().find(|line| line["target"] == "lab3/disk").expect("it is listed");
    assert_eq!(
        (&line["host"], &line["state"], &line["reason"]),
        (&"lab3".into(), &"in use".into(), &"nightly backup".into())
    );
    assert!(line["user"].as_str().unwrap().starts_with("desk ("), "{listed}");
    assert!(!listed.to_string().contains("lab3/zero"), "not allowed, hence not seen: {listed}");

    for host in [&lab3, &desk] {
        let pid = &host.json(&["status", "--json"])[0]["pid"];
        super::rights::assert_without_rights(pid);
    }

    // The broker reads another configuration.
    fs::write(harness.path("desk.toml"), "plain.listen=[]").unwrap();
    assert!(desk.ok(&["daemon", "reload"]).contains("removed"));
    wait_until(PATIENCE, "it is let go of", || !at.exists() && disk(&lab3)["state"] == "available");
    assert!(fs::read(&image).unwrap()[..4096] == [7; 4096], "durable at the exporter");
    for process in [&mut importer, &mut exporter] {
        process.signal(rustix::process::Signal::TERM);
        assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
    }
}

#[test]
fn paired_name_never_reaches_another_host() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    // lab3's address now has a plain exporter, not the paired host.
    let plain = harness.share(&["zero"]);
    let outcome = desk.run(&["list", "lab3", "--address", &plain.address]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    // Or a farbus with another key.
    let mallory = Host { harness: &harness, name: "mallory" };
    mallory.fingerprint();
    let (_share, address) = mallory.share(&["zero"]);
    let outcome = desk.run(&["list", "lab3", "--address", &address]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("not the host that was paired as 'lab3'"), "{outcome:?}");
    // An unreadable list of peers does not fall back to plain USB/IP.
    fs::write(harness.path("desk").join("peers.json"), "{").unwrap();
    let outcome = desk.run(&["list", &plain.address]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn unpaired_hosts_are_refused_and_logged_and_disturb_no_session() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (share, address) = lab3.share(&["zero"]);
    desk.ok(&["list", "lab3", "--address", &address]);

    // A farbus that is not paired here, though it has paired lab3 on its own side.
    let stranger = Host { harness: &harness, name: "stranger" };
    let key = stranger.fingerprint();
    fs::copy(harness.path("desk").join("peers.json"), harness.path("stranger").join("peers.json")).unwrap();
    let outcome = stranger.run(&["list", "lab3"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("does not know this host's key"), "{outcome:?}");
    wait_until(PATIENCE, "noted", || {
        lab3.has_noted(&[("event", "connect"), ("outcome", "refused"), ("fingerprint", &key)])
    });

    // Connections that stay silent and keep their places.
    let silent: Vec<_> = (0..5).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // A client that speaks plain USB/IP.
    let mut plain = TcpStream::connect(&address).unwrap();
    plain.write_all(&[0x01, 0x11, 0x80, 0x05, 0, 0, 0, 0]).unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).unwrap();
    assert!(answer.len() < 16 && !answer.starts_with(&[0x01, 0x11]), "an alert and nothing of ours: {answer:?}");
    desk.ok(&["list", "lab3"]);
    // Silent connections are closed.
    let started = Instant::now();
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)), "nothing is said to them");
    }
    assert!(started.elapsed() < PATIENCE);

    // And a client at another address that connects a thousand times.
    let mut refused_at_once = 0;
    for _ in 0..1000 {
        let Ok(mut stream) = connect_as_attacker(&address) else { continue };
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        refused_at_once += u32::from(answer.is_empty());
    }
    assert!(refused_at_once > 500, "only {refused_at_once} of a thousand");
    let lines = lab3.audit_lines("connect");
    assert!(lines < 50, "{lines} lines: a flood does not fill the log");
    share.assert_logged("further ones are not mentioned");
    desk.ok(&["list", "lab3"]);
}

#[test]
fn share_prints_what_is_still_to_be_typed_until_another_host_may_use_the_device() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let printed = |marker: &str| {
        let share = lab3.start(&["share", "zero", "--secure", "127.0.0.1:0"]);
        assert_eq!(share.wait_for_line("on this machine:").trim(), "on this machine:    farbus attach zero");
        let lines = share.wait_for_line(marker);
        (share, lines)
    };
    let (share, _) = printed("no host is paired with this one");
    for line in ["here:   farbus pair", "there:  farbus pair lab3 CODE", "here:   farbus allow NAME zero"] {
        share.wait_for_line(line);
    }
    assert_eq!(share.wait_for_line("attach").trim(), "there:  farbus attach lab3/zero");
    drop(share);

    pair(&lab3, &desk);
    let (share, line) = printed("no paired host may use it");
    assert!(line.contains("(desk)"), "{line}");
    let allow = share.wait_for_line("farbus allow");
    assert_eq!(allow.trim(), "here:   farbus allow desk zero");
    drop(share);

    // As printed.
    lab3.ok(&["allow", "desk", "zero"]);
    let (_share, line) = printed("on desk:");
    assert_eq!(line.trim(), "on desk: farbus attach lab3/zero");
}

#[test]
fn paired_host_tells_its_status_as_far_as_another_may_see_it() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "zero"]);
    let (_share, address) = lab3.share(&["zero", "keyboard"]);
    desk.ok(&["list", "lab3", "--address", &address]);
    let seen = |arguments: &[&str]| desk.json(&[&["status", "lab3", "--json"], arguments].concat())[0].clone();
    let status = seen(&[]);
    assert_eq!((&status["role"], &status["name"]), (&"host".into(), &"lab3".into()), "{status}");
    assert_eq!(status["farbus"], env!("CARGO_PKG_VERSION"));
    assert!(status["up_s"].is_u64(), "{status}");
    let devices = status["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "what it may not use is not shown: {status}");
    assert_eq!((&devices[0]["name"], &devices[0]["state"]), (&"zero".into(), &"available".into()));
    let message = desk.ok(&["status", "lab3"]);
    assert!(message.starts_with(&format!("lab3: farbus {}, up ", env!("CARGO_PKG_VERSION"))), "{message}");
    assert!(message.contains("zero") && !message.contains("keyboard"), "{message}");
    lab3.ok(&["forbid", "desk", "zero"]);
    assert!(desk.ok(&["status", "lab3"]).contains("farbus allow NAME DEVICE"));
    // A host that is not paired says nothing of itself.
    let stranger = desk.run(&["status", "127.0.0.1:9"]);
    assert!(stranger.code == Some(3) && stranger.stderr.contains("not paired"), "{stranger:?}");
}
