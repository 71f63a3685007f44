//! `farbus daemon`: it runs what its file says, and a reload disturbs no unchanged share.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use farbus::client;
use farbus::model::EpAddr;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, Running, Share, has_fuse, is_mounted, wait_until};

const SOURCE: EpAddr = EpAddr::from_byte(0x81);

fn write(harness: &Harness, text: &str) -> PathBuf {
    let path = harness.path("farbus.toml");
    fs::write(&path, text).unwrap();
    path
}

fn start(harness: &Harness, text: &str) -> Share {
    let path = write(harness, &format!("plain.listen = ['127.0.0.1:0']\n{text}"));
    Share::follow(Running::start(harness.command(&["daemon", "--config", path.to_str().unwrap()])))
}

/// The daemon's devices by name, as `farbus status --json` shows them.
fn device(harness: &Harness, name: &str) -> Value {
    let status = harness.json(&["status", "--json"]);
    let daemon =
        status.as_array().unwrap().iter().find(|process| process["role"] == "daemon").expect("it runs").clone();
    let devices = daemon["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).cloned().unwrap_or_default()
}

fn names(share: &Share) -> Vec<String> {
    client::list(&share.address).unwrap().iter().map(|record| client::name_of(record).to_owned()).collect()
}

#[test]
fn configuration_error_names_its_place_in_the_file() {
    let harness = Harness::new();
    let check = |text: &str| harness.run(&["daemon", "--check", "--config", write(&harness, text).to_str().unwrap()]);
    let fine = check("share = [{what='zero'}]\nusb = [{class='storage'}]");
    assert!(fine.code == Some(0) && fine.stdout.contains("1 shared, 1 rules"), "{fine:?}");
    let wrong = check("[[share]]\nwhat = \"tape\"");
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("farbus.toml:2:8: ") && wrong.stderr.contains("2 | what = \"tape\""), "{wrong:?}");
    let open = check("plain.listen = ['0.0.0.0']");
    assert!(open.code == Some(1) && open.stderr.contains("allow = "), "{open:?}");
    let missing = harness.run(&["daemon", "--config", harness.path("nothing").to_str().unwrap()]);
    assert!(missing.code == Some(1) && missing.stderr.contains("--config FILE"), "{missing:?}");
    let nobody = harness.run(&["daemon", "reload"]);
    assert!(nobody.code == Some(4) && nobody.stderr.contains("no daemon"), "{nobody:?}");
}

#[test]
fn reload_leaves_unchanged_shares_alone() {
    let harness = Harness::new();
    let daemon =
        start(&harness, "share = [{what='zero', name='stays'}, {what='zero', name='goes'}, {what='keyboard'}]");
    assert_eq!(names(&daemon), ["stays", "goes", "keyboard"]);
    let mut stays = client::open(&daemon.library_target("stays")).unwrap();
    let mut goes = client::open(&daemon.library_target("goes")).unwrap();
    goes.set_timeout(Some(Duration::from_secs(5)));
    assert_eq!(stays.data_in(SOURCE, 1000).unwrap().len(), 1000);

    write(
        &harness,
        "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero', name='stays'}, {what='zero', name='comes'}]",
    );
    let reloaded = harness.run(&["daemon", "reload"]);
    assert_eq!(reloaded.stdout, "reloaded: added comes, removed goes, keyboard", "{reloaded:?}");
    assert_eq!(names(&daemon), ["stays", "comes"]);
    assert_eq!(stays.data_in(SOURCE, 1000).unwrap().len(), 1000, "the session goes on");
    goes.data_in(SOURCE, 1000).unwrap_err();

    // A file with an error changes nothing.
    write(&harness, "share = [{what='tape'}]");
    let wrong = harness.run(&["daemon", "reload"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("farbus.toml:1:16"), "{wrong:?}");
    daemon.process.signal(Signal::HUP);
    wait_until(PATIENCE, "it says so", || daemon.process.log().matches("not reloaded").count() == 2);
    assert_eq!(names(&daemon), ["stays", "comes"]);
    assert_eq!(stays.data_in(SOURCE, 1000).unwrap().len(), 1000);
}

#[test]
fn daemon_listens_at_the_configured_address_also_after_a_reload() {
    let harness = Harness::new();
    let daemon = start(&harness, "share = [{what='zero'}]");
    let mut zero = client::open(&daemon.library_target("zero")).unwrap();
    write(&harness, "plain.listen = ['127.0.0.2:0']\nshare = [{what='zero'}]");
    let reloaded = harness.run(&["daemon", "reload"]).stdout;
    let other = reloaded.split([' ', ',']).nth(2).unwrap().to_owned();
    assert!(other.starts_with("127.0.0.2:"), "{reloaded}");
    assert_eq!(client::list(&other).unwrap().len(), 1);
    wait_until(PATIENCE, "the first is closed", || client::list(&daemon.address).is_err());
    assert_eq!(zero.data_in(SOURCE, 1000).unwrap().len(), 1000, "who came through it stays");
}

/// What has the addresses is here as a killed daemon's last threads are: it listens, and answers nobody.
#[test]
fn daemon_waits_at_its_start_for_the_addresses_of_a_process_that_is_ending() {
    let harness = Harness::new();
    let path = harness.path("daemon.sock");
    let (tcp, local) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
    let address = tcp.local_addr().unwrap();
    let config = write(&harness, &format!("plain.listen = ['{address}', 'unix:{}']\n", path.display()));
    let daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    daemon.assert_logged("another process listens there: waiting up to 10 s for its end");
    drop(tcp);
    daemon.assert_logged(&format!("location={}", path.display()));
    drop(local);
    daemon.wait_for_line(&format!("listening on unix:{}", path.display()));
}

#[test]
fn device_that_is_absent_at_the_start_is_shown_and_shared_later() {
    let harness = Harness::new();
    let image = harness.path("late");
    let daemon = start(&harness, &format!("share = [{{what='disk:{}'}}, {{what='zero'}}]", image.display()));
    assert_eq!(names(&daemon), ["zero"]);
    let failed = device(&harness, "disk");
    assert_eq!((&failed["state"], &failed["failure"]["attribute"]), (&json!("failed"), &json!("local")));
    assert!(harness.run(&["status"]).stdout.contains("disk: local: "));
    fs::File::create_new(&image).unwrap().set_len(1 << 20).unwrap();
    wait_until(PATIENCE, "it is shared", || names(&daemon) == ["zero", "disk"]);
}

#[test]
fn daemon_takes_the_same_owner_commands_as_a_share() {
    let harness = Harness::new();
    let daemon = start(&harness, "share = [{what='keyboard', name='k'}]");
    assert_eq!(harness.run(&["type", "k", "a"]).code, Some(0));
    let mut keyboard = client::open(&daemon.library_target("k")).unwrap();
    assert_eq!(keyboard.data_in(SOURCE, 8).unwrap().into_vec()[2], 4);
    assert_eq!(harness.run(&["release", "k"]).code, Some(0));
    wait_until(PATIENCE, "it is free", || device(&harness, "k")["state"] == "available");
    assert_eq!(device(&harness, "k")["history"][0]["ended"], "taken back");
}

#[test]
fn daemon_attaches_a_disk_again_after_its_exporter_restarts() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let what = format!("disk:{}", harness.image("image", 1 << 20).display());
    let mut share = harness.share(&[&what]);
    let address = share.address.clone();
    let at = harness.path("at");
    let attach = format!("attach = [{{target='{address}/disk', via='fuse', at='{}', reason='tests'}}]", at.display());
    let mut daemon = start(&harness, &attach);
    let is = |state: &str| device(&harness, "disk")["state"] == state;
    let file = at.join("disk.img");
    wait_until(PATIENCE, "it is attached", || is("attached") && file.exists());

    for signal in [Signal::KILL, Signal::TERM] {
        share.process.signal(signal);
        share.process.wait_for_end(PATIENCE);
        wait_until(PATIENCE, "the loss is seen", || device(&harness, "disk")["failure"]["attribute"] == "network");
        wait_until(PATIENCE, "the file is gone", || !is_mounted(&at));
        let again = ["share", &what, "--listen", &address];
        share = Share::follow(Running::start(harness.command(&again)));
        wait_until(PATIENCE, "it is attached again", || is("attached") && file.exists());
        assert!(device(&harness, "disk")["failure"].is_null());
    }

    assert_eq!(harness.run(&["detach", "disk"]).code, Some(0));
    wait_until(PATIENCE, "it is let go of", || is("detached") && !is_mounted(&at));
    assert_eq!(harness.run(&["daemon", "reload"]).stdout, "reloaded: nothing changed");
    wait_until(PATIENCE, "a reload takes it again", || is("attached"));

    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0), "{}", daemon.process.log());
    assert!(!is_mounted(&at));
    wait_until(PATIENCE, "its device is free", || {
        harness.json(&["status", "--json"])[0]["devices"][0]["state"] == "available"
    });
}

#[test]
fn daemon_notifies_its_service_manager_and_uses_its_socket() {
    let harness = Harness::new();
    let at_manager = harness.path("notify");
    let manager = UnixDatagram::bind(&at_manager).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = |word: &str| loop {
        let mut text = [0; 1024];
        let count = manager.recv(&mut text).unwrap_or_else(|error| panic!("no {word}: {error}"));
        let text = String::from_utf8(text[..count].to_vec()).unwrap();
        if text.lines().any(|line| line == word) {
            return text;
        }
    };
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let path = write(&harness, &format!("plain.listen = ['{address}']\nshare = [{{what='zero'}}]"));
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let script = format!("exec 3<&0 </dev/null; LISTEN_PID=$$ exec {farbus} daemon --config {}", path.display());
    let start = || {
        let mut command = harness.command_of(Path::new("sh"), &["-c", &script]);
        command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
        command.env("NOTIFY_SOCKET", &at_manager).env("LISTEN_FDS", "1").env("WATCHDOG_USEC", "200000");
        Share::follow(Running::start(command))
    };
    let mut daemon = start();
    // The socket is already bound by the service manager: the daemon could not have bound it itself.
    assert_eq!(daemon.address, address.to_string());
    assert_eq!(names(&daemon), ["zero"]);
    assert!(hear("READY=1").contains("STATUS=1 shared"));
    hear("WATCHDOG=1");
    daemon.process.signal(Signal::HUP);
    assert!(hear("RELOADING=1").contains("MONOTONIC_USEC="));
    hear("READY=1");
    daemon.process.signal(Signal::TERM);
    hear("STOPPING=1");
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    assert_eq!(names(&start()), ["zero"], "the socket is still its owner's, and listens for the next");
}
