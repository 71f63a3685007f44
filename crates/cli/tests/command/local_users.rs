//! Which users of this machine may use what is shared on it: the owner, by a socket found without an address; others,
//! if the owner allows them.

use std::fs;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has, wait_until};

/// A user without rights to anything here.
const STRANGER: u32 = 65534;

/// Runs `farbus` as that user, with a runtime folder of its own.
fn as_stranger(harness: &Harness, arguments: &[&str]) -> Outcome {
    let run = harness.path("of-stranger");
    fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(STRANGER), Some(STRANGER)).unwrap();
    let mut command = harness.command(arguments);
    command.env("XDG_RUNTIME_DIR", &run).env("FARBUS_STATE", run.join("state")).uid(STRANGER).gid(STRANGER);
    finish(command, PATIENCE)
}

fn has_second_user() -> bool {
    has("a second user", rustix::process::geteuid().is_root())
}

fn share_with(harness: &Harness, arguments: &[&str]) -> Share {
    Share::follow(Running::start(harness.command(&[&["share"], arguments].concat())))
}

#[test]
fn a_share_is_found_on_its_machine_without_an_address() {
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("own.img", 1 << 20).display());
    let mut share = Running::start(harness.command(&["share", &disk, "zero"]));
    let listening = share.wait_for_line("listening on unix:");
    assert_eq!(share.wait_for_line("on this machine:").trim(), "on this machine:    farbus attach disk");
    assert!(share.wait_for_line("on another machine:").contains("this machine alone"));
    assert!(share.wait_for_line("here:   farbus share ").ends_with(" --secure"));
    let path = listening.split_whitespace().nth(2).unwrap().strip_prefix("unix:").unwrap().to_owned();
    assert!(path.starts_with(harness.path("run/farbus/share-").to_str().unwrap()), "{path}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let status = harness.json(&["status", "--json"]);
    assert_eq!(status[0]["address"], format!("unix:{path}"), "and nowhere else");

    let listed = harness.json(&["list", "localhost", "--json"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|device| device["name"].clone()).collect();
    assert_eq!(names, ["disk", "zero"]);
    assert!(harness.run(&["list"]).stdout.contains("localhost/disk"));
    for (target, other) in [("disk", "localhost/disk"), ("localhost/disk", "disk")] {
        let socket = harness.path("own.sock");
        let arguments = ["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()];
        let mut attached = Running::start(harness.command(&arguments));
        attached.wait_for_line("attached");
        assert_eq!(harness.run(&["detach", other]).code, Some(0), "{}", attached.log());
        assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    }
    let missing = harness.run(&["attach", "disk7", "--via", "nbd"]);
    assert_eq!(missing.code, Some(4), "{missing:?}");
    assert!(missing.stderr.contains("offers 'disk7', but disk, zero\n") && missing.stderr.contains("HOST/disk7"));

    share.signal(Signal::INT);
    assert_eq!(share.wait_for_end(PATIENCE), Some(0), "{}", share.log());
    wait_until(PATIENCE, "the path is gone", || !Path::new(&path).exists());
}

#[test]
fn device_name_that_two_shares_offer_is_ambiguous_until_the_share_is_named() {
    let harness = Harness::new();
    let first = share_with(&harness, &["zero", "keyboard"]);
    let second = share_with(&harness, &["zero"]);
    let several = harness.run(&["attach", "zero", "--via", "redir"]);
    assert_eq!(several.code, Some(1), "{several:?}");
    for share in [&first, &second] {
        assert!(several.stderr.contains(&format!("farbus attach {}", share.target("zero"))), "{several:?}");
    }
    let listed = harness.run(&["list"]);
    for target in [first.target("zero"), second.target("zero")] {
        assert!(listed.stdout.contains(&target), "{listed:?}");
    }
    let named = harness.run(&["list", "localhost"]);
    assert!(named.stdout.contains(&second.target("zero")) && named.stdout.contains("keyboard"), "{named:?}");
    // A device that only one share has is found by its name alone.
    let attached = Running::start(harness.command(&["attach", "keyboard", "--via", "redir"]));
    attached.wait_for_line("redir-keyboard.sock");
}

#[test]
fn another_user_is_not_shown_what_is_shared_here() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    let share = share_with(&harness, &["zero"]);
    let nowhere = as_stranger(&harness, &["attach", "zero", "--via", "redir"]);
    assert_eq!(nowhere.code, Some(4), "{nowhere:?}");
    assert!(
        nowhere.stderr.contains("sudo farbus attach zero") && nowhere.stderr.contains("--local-users"),
        "{nowhere:?}"
    );
    let named = as_stranger(&harness, &["list", &share.address]);
    assert!(named.code == Some(5) && named.stderr.contains("it is for others"), "{named:?}");
}

#[test]
fn bare_device_name_never_means_another_users_share() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    // In this test's own network namespace no other program has the port.
    let listener = std::net::TcpListener::bind("127.0.0.1:3240").unwrap();
    let share = share_with(&harness, &["zero"]);
    assert!(
        harness.run(&["list", "localhost"]).stdout.contains("zero"),
        "the port is not asked where there is a share"
    );
    drop((listener, share));
    // Another user's share at the port that is tried last.
    let run = harness.path("of-stranger");
    assert_eq!(as_stranger(&harness, &["status"]).code, Some(0));
    let mut command = harness.command(&["share", "zero", "--listen", "127.0.0.1:3240", "--local-users", "all"]);
    command.env("XDG_RUNTIME_DIR", &run).env("FARBUS_STATE", run.join("state")).uid(STRANGER).gid(STRANGER);
    let _stranger = Share::follow(Running::start(command));
    let refused = harness.run(&["attach", "zero", "--via", "redir"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("user 65534 listens") && refused.stderr.contains("farbus attach 127.0.0.1:3240/zero")
    );
    assert!(harness.run(&["list", "127.0.0.1"]).stdout.contains("zero"), "who names it means it");
}

#[test]
fn loopback_port_serves_its_owner_root_and_the_users_they_name() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    let at_port = |more: &[&str]| share_with(&harness, &[&["zero", "--listen", "127.0.0.1:0"], more].concat());
    let share = at_port(&[]);
    let own = harness.run(&["list", &share.address]);
    assert!(own.code == Some(0) && own.stdout.contains("zero"), "{own:?}");
    for arguments in [&["list", &share.address][..], &["attach", &share.target("zero"), "--via", "redir"]] {
        let refused = as_stranger(&harness, arguments);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stderr.contains("its owner and root are served") && refused.stderr.contains("--local-users"));
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    share.process.assert_logged("user 65534 of this machine is not served here");

    for named in ["65534", "nobody", "all"] {
        let is_there = fs::read_to_string("/etc/passwd").is_ok_and(|users| users.contains("nobody:x:65534:"));
        if named == "nobody" && !is_there {
            continue;
        }
        let share = at_port(&["--local-users", named]);
        let served = as_stranger(&harness, &["list", &share.address]);
        assert!(served.code == Some(0) && served.stdout.contains("zero"), "{named}: {served:?}");
    }
    let others = at_port(&["--local-users", "65533,0"]);
    assert_eq!(as_stranger(&harness, &["list", &others.address]).code, Some(3));
    let unknown = harness.run(&["share", "zero", "--local-users", "no-such-user"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("say the number"), "{unknown:?}");
}

#[test]
fn other_users_are_refused_at_every_local_address_and_without_a_sandbox() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    for more in [&[][..], &["--no-sandbox"]] {
        let share = share_with(&harness, &[&["zero", "--listen", "[::]:0"], more].concat());
        let port = share.address.rsplit_once(':').unwrap().1.to_owned();
        for host in ["127.0.0.1", "127.1.2.3", "[::1]"] {
            let address = format!("{host}:{port}");
            if TcpStream::connect(&address).is_err() {
                continue;
            }
            assert_eq!(harness.run(&["list", &address]).code, Some(0), "{address}");
            assert_eq!(as_stranger(&harness, &["list", &address]).code, Some(3), "{address}");
        }
    }
}

#[test]
fn client_that_hung_up_before_it_was_identified_is_not_taken_for_root() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("race.img", 1 << 20);
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let mut share = share_with(&harness, &[&format!("disk:{}", image.display()), "--listen", "127.0.0.1:0"]);
    let port = share.address.rsplit_once(':').unwrap().1.to_owned();
    let pid = harness.json(&["status", "--json"])[0]["pid"].as_i64().unwrap() as i32;
    let tell = |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    // The client imports, and is gone before the share can look it up.
    tell(Signal::STOP);
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '\\x01\\x11\\x80\\x03\\0\\0\\0\\0%s' 1-1 >&3; head -c 29 /dev/zero >&3"
    );
    let sent = Command::new("bash").args(["-c", &script]).uid(STRANGER).gid(STRANGER).status().unwrap();
    assert!(sent.success());
    // What has ended has no socket any more.
    tell(Signal::CONT);
    share.process.assert_logged("its program has closed it");
    assert!(!share.process.log().contains("attached"), "{}", share.process.log());
    share.process.signal(Signal::INT);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0));
}

#[test]
fn socket_that_is_open_to_others_gives_them_only_its_devices() {
    if !has_second_user() {
        return;
    }
    let harness = Harness::new();
    let open = format!("unix:{}", harness.path("open.sock").display());
    let mode = ["zero", "--listen", &open, "--socket-mode", "666"];
    let share = share_with(&harness, &mode);
    let wish = ["attach", &share.target("zero"), "--via", "redir", "--reserve", "bytes=512,period=8,endpoint=0x83"];
    let refused = as_stranger(&harness, &wish);
    assert!(refused.code == Some(3) && refused.stderr.contains("--local-users 65534"), "{refused:?}");
    drop(share);
    let share = share_with(&harness, &[&mode[..], &["--local-users", "65534"]].concat());
    let wish = ["attach", &share.target("zero"), "--via", "redir", "--reserve", "bytes=63,period=3"];
    let admitted = as_stranger(&harness, &wish);
    assert!(admitted.stderr.contains("no power of two"), "he may, if it can be: {admitted:?}");
}

#[test]
fn daemon_without_an_address_listens_at_a_socket_of_its_owner() {
    let harness = Harness::new();
    let config = harness.path("farbus.toml");
    fs::write(&config, "share = [{what='zero'}]\n").unwrap();
    let daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()])));
    assert_eq!(daemon.address, format!("unix:{}", harness.path("run/farbus/share-daemon.sock").display()));
    assert!(harness.run(&["list", "localhost"]).stdout.contains("zero"));
    // The same where an earlier version's socket unit is enabled: connections to that socket are still served.
    drop(daemon);
    wait_until(PATIENCE, "it is gone", || harness.json(&["status", "--json"]) == serde_json::json!([]));
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let script =
        format!("exec 3<&0 </dev/null; export LISTEN_PID=$$; exec {farbus} daemon --config {}", config.display());
    let mut command = harness.command_of(Path::new("sh"), &["-c", &script]);
    command.stdin(Stdio::from(OwnedFd::from(socket))).env("LISTEN_FDS", "1");
    let daemon = Running::start(command);
    daemon.wait_for_line("listening on unix:");
    daemon.wait_for_line(&format!("listening on {address}"));
    assert!(harness.run(&["list", &address]).stdout.contains("zero"));
    if has_second_user() {
        assert_eq!(as_stranger(&harness, &["list", &address]).code, Some(3));
        fs::write(&config, "plain.local_users = ['65534']\nshare = [{what='zero'}]\n").unwrap();
        assert_eq!(harness.run(&["daemon", "reload"]).code, Some(0), "{}", daemon.log());
        assert_eq!(as_stranger(&harness, &["list", &address]).code, Some(0), "{}", daemon.log());
        fs::write(&config, "plain.local_users = ['no-such-user']\nshare = [{what='zero'}]\n").unwrap();
        let unknown = harness.run(&["daemon", "reload"]);
        assert!(unknown.code != Some(0) && unknown.stderr.contains("no-such-user"), "{unknown:?}");
    }
    fs::write(&config, "share = [{what='zero'}]\n").unwrap();
    // The replacement has the same sockets.
    harness.json(&["daemon", "restart", "--json"]);
    wait_until(PATIENCE, "it is served there", || harness.run(&["list", &address]).stdout.contains("zero"));
    wait_until(PATIENCE, "and at its own", || harness.run(&["list", "localhost"]).stdout.contains("zero"));
    fs::write(&config, "plain.listen = []\nshare = [{what='zero'}]\n").unwrap();
    let reloaded = harness.run(&["daemon", "reload"]);
    assert!(
        reloaded.code == Some(0) && reloaded.stdout.contains(&address),
        "what is not named is let go of: {reloaded:?}"
    );
    let pid = harness.json(&["status", "--json"])[0]["pid"].as_i64().unwrap() as i32;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}
