//! Sharing at a Unix socket: plain USB/IP and sessions, for the users that its mode admits.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farbus::client::DevicePort;
use farbus::client::{ClientConfig, ImporterClient};
use farbus::host::RemoteDisk;
use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Harness, PATIENCE, Running, Share, finish, has, has_program, wait_until};

/// `farbus share WHAT… --listen unix:PATH`, and the path.
pub fn share_at_socket(harness: &Harness, what: &[&str]) -> (Share, PathBuf) {
    let path = harness.path("share.sock");
    let listen = format!("unix:{}", path.display());
    let arguments = [&["share"], what, &["--listen", &listen]].concat();
    let share = Share::follow(Running::start(harness.command(&arguments)));
    assert_eq!(share.address, listen);
    (share, path)
}

fn read(disk: &mut RemoteDisk<DevicePort>, offset: u64, bytes: usize) -> Vec<u8> {
    let read = disk.read(offset, bytes).unwrap();
    read.into_payload().into_vec()
}

#[test]
fn a_socket_is_its_owner_s_and_serves_plain_and_sessions_alike() {
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("local.img", 1 << 20).display());
    let (mut share, path) = share_at_socket(&harness, &["zero", &disk]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let listed = harness.json(&["list", &share.address, "--json"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|device| device["name"].clone()).collect();
    assert_eq!(names, ["zero", "disk"], "{listed}");
    let here = harness.run(&["list"]);
    assert!(here.stdout.contains(&share.target("disk")), "among this machine's own: {here:?}");

    // A session: the disk is a block device, and NBD shows it.
    let socket = harness.path("far.sock");
    let arguments = ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let mut attach = Running::start(harness.command(&arguments));
    attach.wait_for_line("attached");
    let device =
        harness.json(&["status", "--json"]).as_array().unwrap().iter().find(|it| it["role"] == "share").cloned();
    let device = device.expect("it shares")["devices"][1].clone();
    let user = format!("user {} (process ", rustix::process::getuid().as_raw());
    assert!(device["user"].as_str().unwrap_or_default().starts_with(&user), "{device}");
    assert_eq!(device["mode"], "exclusive");
    if has("nbdcopy", has_program("nbdcopy")) {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let copied = finish(harness.command_of(Path::new("nbdcopy"), &[&uri, "null:"]), PATIENCE);
        assert_eq!(copied.code, Some(0), "{copied:?}");
        let outcome = harness.run(&["status", "--latency"]);
        assert!(outcome.stdout.contains("BACK END") && outcome.stdout.contains("disk"), "{outcome:?}");
        let answer = harness.json(&["status", "--json"]);
        let attached = answer.as_array().unwrap().iter().find(|it| it["role"] == "attach").expect("it is attached");
        let latency = &attached["devices"][0]["latency"];
        assert!(latency["back_end_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{latency}");
    }
    let second = harness.run(&["attach", &share.target("disk"), "--via", "nbd"]);
    assert_eq!(second.code, Some(3), "{second:?}");
    attach.signal(Signal::INT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());

    // Plain USB/IP, as other programs speak it.
    let config = ClientConfig { grace: Some(Duration::ZERO), ..ClientConfig::default() };
    let client = ImporterClient::new(config);
    let mut plain = client.open_disk(&share.library_target("disk")).unwrap();
    plain.write(512, vec![7; 512].into()).unwrap();
    drop(plain);
    let is_free = || {
        let status = harness.json(&["status", "--json"]);
        status[0]["devices"][1]["state"] == "available"
    };
    wait_until(PATIENCE, "the claim", is_free);
    // A session, unless the client chooses otherwise.
    let mut disk = ImporterClient::default().open_disk(&share.library_target("disk")).unwrap();
    assert_eq!(read(&mut disk, 512, 512), [7; 512]);
    drop(disk);

    share.process.signal(Signal::INT);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0), "{}", share.process.log());
    wait_until(PATIENCE, "the path is gone", || !path.exists());
    let nobody = harness.run(&["attach", &share.target("disk"), "--via", "nbd"]);
    assert_eq!(nobody.code, Some(5), "{nobody:?}");
    assert!(nobody.stderr.contains("--listen unix:PATH"), "{nobody:?}");
}

#[test]
fn socket_mode_decides_which_users_may_connect() {
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    const NOBODY: u32 = 65534;
    let harness = Harness::new();
    let (share, path) = share_at_socket(&harness, &["zero"]);
    let list_as_nobody = |at: &str| {
        let mut command = harness.command(&["list", at]);
        command.uid(NOBODY).gid(NOBODY);
        finish(command, PATIENCE)
    };
    let refused = list_as_nobody(&share.address);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    assert!(refused.stderr.contains("it is for others"), "{refused:?}");
    let busy = harness.run(&["share", "zero", "--listen", &share.address]);
    assert!(busy.stderr.contains("another program listens there"), "{busy:?}");
    assert!(path.exists(), "it is the other's");

    let open = format!("unix:{}", harness.path("open.sock").display());
    let both = ["share", "zero", "--listen", &open, "--listen", "127.0.0.1:0", "--socket-mode", "666"];
    let share = Running::start(harness.command(&both));
    share.wait_for_line("listening on unix:");
    share.wait_for_line("listening on 127.0.0.1:");
    let listed = list_as_nobody(&open);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let wrong = harness.run(&["share", "zero", "--listen", &open, "--socket-mode", "777"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("660 its group too"), "{wrong:?}");
}

/// A proxy before a socket that cuts its connections.
struct Cutter(Arc<Mutex<Vec<UnixStream>>>);

impl Cutter {
    fn before(to: &Path, at: &Path) -> Self {
        let (listener, open, to) = (UnixListener::bind(at).unwrap(), Arc::<Mutex<Vec<_>>>::default(), to.to_owned());
        let for_thread = Arc::clone(&open);
        thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                let there = UnixStream::connect(&to).unwrap();
                let clone = |stream: &UnixStream| stream.try_clone().unwrap();
                for_thread.lock().unwrap().extend([clone(&here), clone(&there)]);
                let ways = [(clone(&here), clone(&there)), (there, here)];
                for (mut from, mut into) in ways {
                    thread::spawn(move || {
                        let _until_it_is_cut = io::copy(&mut from, &mut into);
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self(open)
    }

    /// Cuts every connection; returns how many ends were cut.
    fn cut(&self) -> usize {
        let ends = std::mem::take(&mut *self.0.lock().unwrap());
        ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        ends.len()
    }
}

#[test]
fn session_at_a_socket_survives_cut_links() {
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("cut.img", 1 << 20).display());
    let (_share, path) = share_at_socket(&harness, &[&disk]);
    let between = harness.path("between.sock");
    let cutter = Cutter::before(&path, &between);
    let target = format!("unix:{}/disk", between.display()).parse().unwrap();
    let mut disk = ImporterClient::default().open_disk(&target).unwrap();
    for round in 0..8 {
        disk.write(round * 4096, vec![round as u8; 4096].into()).unwrap();
        assert!(cutter.cut() >= 2, "it was in use");
        assert_eq!(read(&mut disk, round * 4096, 4096), [round as u8; 4096]);
    }
    let DevicePort::Session(port) = disk.port_mut() else { panic!("it is in a session") };
    let latency = port.ask(|linked| linked.status().latency()).expect("the first request was timed");
    assert!(latency.samples > 0 && latency.back_end_us.p99 > 0.0, "{latency:?}");
    assert!(latency.all_us.p99 >= latency.back_end_us.p50 + latency.network_us.p50, "{latency:?}");
}

#[test]
fn daemon_shares_at_a_socket_and_removes_it_when_a_reload_drops_it() {
    let harness = Harness::new();
    let (config, path) = (harness.path("farbus.toml"), harness.path("daemon.sock"));
    let with =
        format!("plain = {{listen=['unix:{}'], socket_mode='660'}}\nshare = [{{what='zero'}}]\n", path.display());
    fs::write(&config, &with).unwrap();
    let daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    daemon.wait_for_line("listening on unix:");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let address = format!("unix:{}", path.display());
    let listed = || harness.run(&["list", &address]);
    assert!(listed().stdout.contains("zero"));
    fs::write(&config, "plain.listen = []\nshare = [{what='zero'}]\n").unwrap();
    assert_eq!(harness.run(&["daemon", "reload"]).code, Some(0), "{}", daemon.log());
    assert_eq!(listed().code, Some(5), "nobody listens any more");
    fs::write(&config, &with).unwrap();
    assert_eq!(harness.run(&["daemon", "reload"]).code, Some(0), "{}", daemon.log());
    assert!(listed().stdout.contains("zero"), "what was left behind is replaced");
    let next = harness.json(&["daemon", "restart", "--json"])["pid"].as_i64().expect("it says which process goes on");
    wait_until(PATIENCE, "the next one listens there", || listed().stdout.contains("zero"));
    kill_process(Pid::from_raw(next as i32).unwrap(), Signal::TERM).unwrap();
    wait_until(PATIENCE, "the path is gone", || !path.exists());
}
