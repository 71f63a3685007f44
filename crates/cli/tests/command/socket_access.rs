//! `--socket-mode` and `--socket-group`: which other users may connect where an attachment or `farbus nbd` listens.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Harness, PATIENCE, Running, finish, has, has_program, wait_until};

/// A user that owns nothing of a test.
const STRANGER: u32 = 65534;
/// A group without a name.
const GROUP: u32 = 4242;

/// Mode and group of the socket's file.
fn access_of(socket: &Path) -> (u32, u32) {
    let metadata = fs::metadata(socket).unwrap();
    (metadata.mode() & 0o7777, metadata.gid())
}

/// Whether a stranger of this group may connect: the right to write is the right to connect (unix(7)).
fn may_connect(harness: &Harness, socket: &Path, group: u32) -> bool {
    let mut command = harness.command_of(Path::new("test"), &["-w", socket.to_str().unwrap()]);
    command.uid(STRANGER).gid(group);
    finish(command, PATIENCE).code == Some(0)
}

/// Whether an NBD client of a stranger of this group is served.
fn is_served(harness: &Harness, socket: &Path, group: u32) -> bool {
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut command = harness.command_of(Path::new("nbdinfo"), &["--size", &uri]);
    command.uid(STRANGER).gid(group);
    finish(command, PATIENCE).code == Some(0)
}

#[test]
fn socket_mode_and_group_decide_who_may_connect_to_attachments_and_nbd_servers() {
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("image", 1 << 20).display());
    let share = harness.share(&[&disk, "zero"]);
    let (disk, zero) = (share.target("disk"), share.target("zero"));
    // The exporter may not know yet that the attachment before has ended.
    let ways: [(&str, &[&str]); 3] = [
        ("nbd.sock", &["attach", &disk, "--via", "nbd", "--wait=60"]),
        ("redir.sock", &["attach", &zero, "--via", "redir", "--wait=60"]),
        ("server.sock", &["nbd", "memory:1M"]),
    ];
    let group = GROUP.to_string();
    for (name, arguments) in ways {
        let socket = harness.path(name);
        let at = ["--socket", socket.to_str().unwrap()];
        let cases = [
            (&[][..], (0o600, 0), [false, false]),
            (&["--socket-mode", "666"], (0o666, 0), [true, true]),
            (&["--socket-group", &group], (0o660, GROUP), [false, true]),
            (&["--socket-mode", "620", "--socket-group", &group], (0o620, GROUP), [false, true]),
        ];
        for (more, access, [stranger, member]) in cases {
            let mut process = Running::start(harness.command(&[arguments, &at, more].concat()));
            process.wait_for_line(socket.to_str().unwrap());
            assert_eq!(access_of(&socket), access, "{arguments:?} {more:?}");
            assert_eq!(may_connect(&harness, &socket, STRANGER), stranger, "{arguments:?} {more:?}");
            assert_eq!(may_connect(&harness, &socket, GROUP), member, "{arguments:?} {more:?}");
            if name != "redir.sock" && has("nbdinfo", has_program("nbdinfo")) {
                assert_eq!(is_served(&harness, &socket, STRANGER), stranger, "{arguments:?} {more:?}");
                // A client reads, too, but needs no more than the right to write.
                assert_eq!(is_served(&harness, &socket, GROUP), member, "{arguments:?} {more:?}");
            }
            process.signal(Signal::INT);
            assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
            wait_until(PATIENCE, "its socket goes with it", || !socket.exists());
        }
    }
}

#[test]
fn daemons_restart_keeps_the_mode_and_group_of_a_socket_and_a_reload_changes_them() {
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let (file, socket) = (harness.path("farbus.toml"), harness.path("guest.sock"));
    let config = |more: &str| {
        let attach = format!("target = '{}'\nvia = 'redir'\ngrace = 60", share.target("zero"));
        fs::write(&file, format!("plain.listen = []\n[[attach]]\n{attach}\nsocket = '{}'\n{more}", socket.display()))
            .unwrap();
    };
    config(&format!("socket_mode = '666'\nsocket_group = '{GROUP}'"));
    let daemon = Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()]));
    wait_until(PATIENCE, "it is attached", || socket.exists() && access_of(&socket) == (0o666, GROUP));
    let status = || {
        let all = harness.json(&["status", "--json"]);
        let daemon = all.as_array().unwrap().iter().find(|process| process["role"] == "daemon");
        daemon.map(|daemon| daemon["devices"][0]["state"].clone()).unwrap_or_default()
    };
    wait_until(PATIENCE, "it is attached", || status() == "attached");
    let inode = fs::metadata(&socket).unwrap().ino();
    let next = harness.json(&["daemon", "restart", "--json"])["pid"].as_i64().expect("it says which process goes on");
    wait_until(PATIENCE, "the next one has it", || status() == "attached");
    assert_eq!(access_of(&socket), (0o666, GROUP), "{}", daemon.log());
    assert_eq!(fs::metadata(&socket).unwrap().ino(), inode, "it is the same socket");

    config("socket_group = 'root'");
    let reloaded = harness.run(&["daemon", "reload"]);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    let is_changed = || fs::metadata(&socket).is_ok_and(|found| (found.mode() & 0o7777, found.gid()) == (0o660, 0));
    wait_until(PATIENCE, "the socket is as the file says now", is_changed);
    kill_process(Pid::from_raw(next as i32).unwrap(), Signal::TERM).unwrap();
    wait_until(PATIENCE, "its socket goes with it", || !socket.exists());
}

#[test]
fn socket_access_that_cannot_be_granted_is_refused_with_the_reason() {
    let harness = Harness::new();
    let socket = harness.path("x.sock");
    let at = socket.to_str().unwrap();
    let via_nbd: &[&str] = &["attach", "127.0.0.1:1/disk", "--via", "nbd"];
    for command in [via_nbd, &["nbd", "memory:1M"]] {
        for (arguments, code, part) in [
            (&["--socket", at, "--socket-mode", "777"][..], 2, "660 its group too"),
            (&["--socket", at, "--socket-mode", "rw"], 2, "no mode of a socket"),
            (&["--socket", at, "--socket-group", "no-such-group"], 2, "getent group no-such-group"),
            (&["--socket", at, "--socket-group", "a b"], 2, "a name or a number"),
            (&["--socket-mode", "660"], 2, "--socket <PATH>"),
            (&["--listen", "127.0.0.1:0", "--socket-mode", "660"], 2, "--listen"),
            (&["--socket", at, "--socket-mode", "600", "--socket-group", "root"], 1, "660 lets it connect"),
        ] {
            let outcome = harness.run(&[command, arguments].concat());
            assert_eq!(outcome.code, Some(code), "{command:?} {arguments:?}: {outcome:?}");
            assert!(outcome.stderr.contains(part), "{command:?} {arguments:?}: {outcome:?}");
        }
    }
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let (run, theirs) = (harness.path("run"), harness.path("theirs"));
    fs::create_dir(&theirs).unwrap();
    for folder in [&run, &theirs] {
        chown(folder, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let socket = theirs.join("x.sock");
    let mut command =
        harness.command(&["nbd", "memory:1M", "--socket", socket.to_str().unwrap(), "--socket-group", "root"]);
    command.uid(STRANGER).gid(STRANGER);
    let outcome = finish(command, PATIENCE);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("its owner has to be a member of that group"), "{outcome:?}");
    assert!(!socket.exists(), "what is not as asked is not left behind");
}
