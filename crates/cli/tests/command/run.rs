//! `farbus run`: programs that no one wrote for farbus, as an ordinary user, see devices of another host as their own.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::harness::{
    Harness, Outcome, PATIENCE, Running, Share, copy_program, finish, has, has_fuse, has_program, wait_until,
};
use super::trust::next_code;

/// An ordinary user, whom this machine gives no rights.
const NOBODY: u32 = 65534;

/// Whether an ordinary user can have mounts of its own here.
pub(super) fn can_run() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
    if rustix::process::geteuid().is_root() {
        unshare.uid(NOBODY).gid(NOBODY);
    }
    has("user namespaces", unshare.status().is_ok_and(|status| status.success()))
        && has("/dev/fuse", Path::new("/dev/fuse").exists())
        && has("lsusb", has_program("lsusb"))
        && has("setpriv", has_program("setpriv"))
}

/// Lets go of what other tests have mounted, which nobody could unmount as long as a program of these tests runs: where
/// mounts are private, a namespace keeps what was mounted when it was made. Then becomes an ordinary user, who hears
/// signals that the tests were started to ignore (`nohup`). What is mounted below something is gone with it, before
/// its own turn comes.
const WITHOUT_OTHERS: &str = r#"
while read -r _ _ _ _ at _; do
    case "$at" in "$0"/farbus-*) umount --lazy "$at" 2> /dev/null;; esac
done < /proc/self/mountinfo
exec env --default-signal=HUP,INT,QUIT setpriv --reuid 65534 --regid 65534 --clear-groups "$@""#;

/// `farbus` as an ordinary user, with a folder of its own.
pub(super) fn ordinary(harness: &Harness, arguments: &[&str]) -> Command {
    if !rustix::process::geteuid().is_root() {
        return harness.command(arguments);
    }
    let others = std::env::temp_dir();
    let first = ["--mount", "--propagation", "slave", "sh", "-c", WITHOUT_OTHERS];
    let farbus = [others.to_str().unwrap(), env!("CARGO_BIN_EXE_farbus")];
    let mut command = harness.command_of(Path::new("unshare"), &[&first[..], &farbus, arguments].concat());
    let run = harness.path("of-nobody");
    fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
    command.env("XDG_RUNTIME_DIR", &run).env("FARBUS_STATE", run.join("state")).env("HOME", &run).current_dir(&run);
    command
}

/// Shares what any user of this machine may use.
pub(super) fn share(harness: &Harness, what: &[&str]) -> Share {
    harness.share(&[what, &["--local-users", "all"]].concat())
}

/// Runs a program with a device, to its end.
pub(super) fn run(harness: &Harness, target: &str, program: &[&str]) -> Outcome {
    finish(ordinary(harness, &[&["run", target, "--"], program].concat()), PATIENCE)
}

/// How the devices of a [`Lab`] are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    /// By plain USB/IP, as from any exporter.
    Plain,
    /// In a session without keys.
    Session,
    /// In a session of paired hosts.
    Paired,
}

/// An exporter, and an ordinary user of another host who runs programs with its devices.
pub(super) struct Lab<'h> {
    harness: &'h Harness,
    pub share: Share,
    connection: Connection,
    /// Where the exporter listens for paired hosts.
    secure: String,
}

impl<'h> Lab<'h> {
    pub fn new(harness: &'h Harness, connection: Connection, what: &[&str]) -> Self {
        let here = ["--local-users", "all", "--listen", "127.0.0.1:0", "--secure", "127.0.0.1:0"];
        let exporter = |arguments: &[&str]| {
            let mut command = harness.command(arguments);
            command.env("FARBUS_NAME", "lab3");
            command
        };
        if connection == Connection::Paired {
            let mut waiting = Running::start(exporter(&["pair", "--listen", "127.0.0.1:0", "--json"]));
            let (address, code) = next_code(&waiting);
            let mut joining = ordinary(harness, &["pair", &address, &code]);
            joining.env("FARBUS_NAME", "desk");
            let joined = finish(joining, PATIENCE);
            assert_eq!((joined.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{joined:?}");
            let allowed = finish(exporter(&["allow", "desk", "all"]), PATIENCE);
            assert_eq!(allowed.code, Some(0), "{allowed:?}");
        }
        let share = Share::follow(Running::start(exporter(&[&["share"], what, &here].concat())));
        let line = share.process.wait_for_line("for paired hosts");
        let secure = line.split_whitespace().nth(2).unwrap().to_owned();
        Self { harness, share, connection, secure }
    }

    /// `farbus run` with a device of it.
    pub fn command(&self, device: &str, program: &[&str]) -> Command {
        let (here, paired) = (self.share.target(device), format!("lab3/{device}"));
        let how = match self.connection {
            Connection::Plain => vec!["run", &here, "--grace", "0", "--"],
            Connection::Session => vec!["run", &here, "--grace", "20", "--"],
            Connection::Paired => vec!["run", &paired, "--address", &self.secure, "--"],
        };
        ordinary(self.harness, &[&how, program].concat())
    }

    /// Runs a program with a device of it, to its end.
    pub fn run(&self, device: &str, program: &[&str]) -> Outcome {
        finish(self.command(device, program), PATIENCE)
    }
}

/// Waits until nobody uses the device.
pub(super) fn wait_until_free(harness: &Harness, share: &Share) {
    wait_until(PATIENCE, "the device is free", || {
        harness.json(&["list", &share.address, "--json"])[0]["state"] == "available"
    });
}

/// A row of the table of mounts, of any process here, that is of `farbus run`.
pub(super) fn left_mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains("fuse.farbus ")).map(str::to_owned).collect()
}

#[test]
fn lsusb_sees_a_device_of_another_host_and_the_tree_of_its_bus() {
    lsusb_sees_the_tree(Connection::Plain);
}

#[test]
fn lsusb_sees_a_device_of_a_paired_host_and_the_tree_of_its_bus() {
    lsusb_sees_the_tree(Connection::Paired);
}

fn lsusb_sees_the_tree(connection: Connection) {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["zero"]);
    let seen = lab.run("zero", &["lsusb"]);
    assert_eq!(seen.code, Some(0), "{seen:?}");
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{seen:?}");
    assert!(lines[0].starts_with("Bus 001 Device 002: ID 0525:a4a0"), "{seen:?}");
    assert!(lines[1].starts_with("Bus 001 Device 001: ID 1d6b:0002"), "{seen:?}");

    let seen = lab.run("zero", &["lsusb", "-v", "-d", "0525:a4a0"]);
    for part in [
        "iManufacturer           1 farbus",
        "iProduct                2 source/sink",
        "Transfer Type            Isochronous",
    ] {
        assert!(seen.stdout.contains(part), "{part}: {seen:?}");
    }
    assert_eq!(seen.stderr, "", "no program complains");
    let tree = lab.run("zero", &["lsusb", "-t"]);
    assert!(tree.stdout.contains("Dev 1, Class=root_hub") && tree.stdout.contains("Dev 2, If 0"), "{tree:?}");
    assert_eq!((tree.code, tree.stderr.as_str()), (Some(0), ""));
    let table = lab.run("zero", &["usb-devices"]);
    for part in ["Vendor=0525 ProdID=a4a0", "S:  Manufacturer=farbus", "S:  Product=source/sink", "S:  SerialNumber="] {
        assert!(table.stdout.contains(part) && table.stderr.is_empty(), "{part}: {table:?}");
    }
    assert!(left_mounts().is_empty(), "and nobody outside sees a thing");
}

#[test]
fn attributes_of_a_device_are_the_same_over_every_connection() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    // A debug probe: its interfaces have names, too.
    let every_attribute = "cd /sys/bus/usb/devices/1-1/ && for one in * 1-1:*/*; do \
        [ -f \"$one\" ] && echo \"$one: $(od -An -c \"$one\")\"; done; true";
    let seen = [Connection::Plain, Connection::Session, Connection::Paired].map(|connection| {
        let lab = Lab::new(&harness, connection, &["cmsis-dap"]);
        let seen = lab.run("cmsis-dap", &["sh", "-c", every_attribute]);
        let texts = lab.run("cmsis-dap", &["sh", "-c", "cd /sys/bus/usb/devices && cat 1-1/product 1-1:1.0/interface"]);
        assert_eq!(texts.stdout.trim_end(), "CMSIS-DAP probe\nCMSIS-DAP v2", "{connection:?}: {texts:?}");
        wait_until_free(&harness, &lab.share);
        seen
    });
    assert!(seen[0].code == Some(0) && seen[0].stdout.contains("serial: "), "{seen:?}");
    assert_eq!(seen[1].stdout, seen[0].stdout);
    assert_eq!(seen[2].stdout, seen[0].stdout);
}

#[test]
fn the_program_is_an_ordinary_program_of_its_user() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let target = share.target("zero");
    let outside = finish(own_words(ordinary_shell(&harness)), PATIENCE);
    let inside = run(&harness, &target, &["sh", "-c", OWN_WORDS]);
    assert_eq!((inside.code, &inside.stdout), (Some(7), &outside.stdout), "{inside:?}");

    let mut command = ordinary(&harness, &["run", &target, "--", "tr", "a-z", "A-Z"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through a pipe").unwrap();
    let mut message = String::new();
    child.stdout.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!((message.as_str(), child.wait().unwrap().code()), ("THROUGH A PIPE", Some(0)));

    // A terminal, both ways in which programs make one.
    if has("script", has_program("script")) {
        let seen = run(&harness, &target, &["script", "-qec", "tty && lsusb -d 0525:", "/dev/null"]);
        assert!(seen.code == Some(0) && seen.stdout.contains("/pts/") && seen.stdout.contains("0525:a4a0"), "{seen:?}");
    }
}

/// What a program sees of itself: user, groups, folder, umask, limits, environment.
const OWN_WORDS: &str =
    "id -u; id -g; pwd; umask; ulimit -n; echo $HOME $XDG_RUNTIME_DIR; touch mine && echo made; exit 7";

fn ordinary_shell(harness: &Harness) -> Command {
    let farbus = ordinary(harness, &[]);
    let mut shell = Command::new("sh");
    shell.envs(farbus.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    if let Some(folder) = farbus.get_current_dir() {
        shell.current_dir(folder).uid(NOBODY).gid(NOBODY);
    }
    shell
}

fn own_words(mut shell: Command) -> Command {
    shell.args(["-c", OWN_WORDS]);
    shell
}

#[test]
fn signals_reach_the_program_and_its_end_is_the_commands() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let target = share.target("zero");
    let killed = run(&harness, &target, &["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.code, Some(137), "as a shell says it: {killed:?}");
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let program = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut process = Running::start(ordinary(&harness, &["run", &target, "--", "sh", "-c", &program]));
        process.wait_for_line("ready");
        process.signal(signal);
        process.wait_for_line(&format!("got {name}"));
        assert_eq!(process.wait_for_end(PATIENCE), Some(9));
    }
    wait_until_free(&harness, &share);
}

#[test]
fn what_cannot_run_is_said_before_it_begins() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let target = share.target("zero");
    let missing = run(&harness, &target, &["/no/such/program"]);
    assert!(missing.code == Some(127) && missing.stderr.contains("/no/such/program"), "{missing:?}");
    let folder = run(&harness, &target, &["/"]);
    assert!(folder.code == Some(126), "{folder:?}");
    let gone = run(&harness, &share.target("nothing"), &["true"]);
    assert_eq!(gone.code, Some(4), "{gone:?}");

    // The kernel lets nobody look into a program that its user may run and not read.
    let hidden = harness.path("hidden");
    copy_program(Path::new("/usr/bin/lsusb"), &hidden);
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o711)).unwrap();
    if rustix::process::geteuid().is_root() {
        let refused = run(&harness, &target, &[hidden.to_str().unwrap()]);
        assert!(refused.code == Some(126) && refused.stderr.contains("may not read"), "{refused:?}");
    }

    // A machine whose users have no namespaces: one whose limit is reached.
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let script = format!(
        "echo 1 > /proc/sys/user/max_user_namespaces && \
         exec unshare --user --map-user=1000 --map-group=1000 {farbus} run {target} -- true"
    );
    let arguments = ["--user", "--map-root-user", "sh", "-c", &script];
    let refused = finish(harness.command_of(Path::new("unshare"), &arguments), PATIENCE);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in ["user namespace", "--via kernel"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    wait_until_free(&harness, &share);
}

#[test]
fn whatever_is_killed_nothing_is_left_and_the_device_is_free() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let target = share.target("zero");
    for round in 0..3 {
        let marker = format!("{}", 7_000_000 + std::process::id() * 10 + round);
        let mut process = Running::start(ordinary(
            &harness,
            &["run", &target, "--", "sh", "-c", &format!("echo ready; exec sleep {marker}")],
        ));
        process.wait_for_line("ready");
        let is_sleeping = || {
            pids_of(&marker)
                .iter()
                .any(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0")))
        };
        wait_until(PATIENCE, "the program runs", is_sleeping);
        let helpers = children_of(&pids_of(&marker));
        assert!(!helpers.is_empty(), "the process for events");
        if round == 0 {
            // The program: the command ends as a shell would.
            let is_program = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap().starts_with(b"sleep\0");
            let program = pids_of(&marker).into_iter().find(is_program).unwrap();
            rustix::process::kill_process(rustix::process::Pid::from_raw(program).unwrap(), Signal::KILL).unwrap();
            assert_eq!(process.wait_for_end(PATIENCE), Some(137));
        } else {
            process.kill();
        }
        wait_until(PATIENCE, "no process is left", || {
            pids_of(&marker).is_empty() && helpers.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        });
        wait_until_free(&harness, &share);
        assert!(left_mounts().is_empty());
    }
}

/// The processes that have this among their arguments.
pub(super) fn pids_of(marker: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(marker)))
        .collect()
}

/// The processes that these have started.
fn children_of(parents: &[i32]) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid: &i32| {
        // The fields after the name, which stands in brackets: state, parent.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent.is_some_and(|parent| parents.contains(&parent))
    })
    .collect()
}

#[test]
fn a_program_that_speaks_to_usbfs_itself_moves_every_byte_of_a_disk() {
    if !can_run() || !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.path("disk.img");
    let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&image, &bytes).unwrap();
    let share = share(&harness, &[&format!("disk:{}", image.display())]);
    // farbus itself, which drives what is plugged in here by usbfs alone.
    let inner = ["share", "usb:1-1", "--listen", "127.0.0.1:0", "--local-users", "all"];
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let target = share.target("disk");
    let arguments = [&["run", &target, "--", farbus], &inner[..]].concat();
    let inner = Share::follow(Running::start(ordinary(&harness, &arguments)));
    let name = harness.json(&["list", &inner.address, "--json"])[0]["name"].as_str().unwrap().to_owned();
    let (mut attached, file) = harness.attach(&inner.target(&name), &harness.path("at"));
    assert!(fs::read(&file).unwrap() == bytes, "the disk is read as it is");
    let mut disk = fs::File::options().read(true).write(true).open(&file).unwrap();
    let new: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x5a).collect();
    disk.write_all(&new).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    attached.signal(Signal::INT);
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0));
    drop(inner);
    wait_until_free(&harness, &share);
    assert!(fs::read(&image).unwrap() == new, "and written");
}

#[test]
fn a_device_that_went_and_comes_back_has_another_number() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let mut first = share(&harness, &["zero"]);
    let target = first.target("zero");
    let program = "exec 3<>/dev/bus/usb/001/002; echo ready; \
        until lsusb -v -s 1:1 | grep 'Port 1: 0000.0100 power$'; do sleep 0.05; done; \
        until lsusb -s 1:3 | grep 0525:; do sleep 0.1; done; \
        [ -e /dev/bus/usb/001/002 ] || echo first is gone; \
        lsusb -v -s 1:1 | grep 'Port 1:'; lsusb -v -s 1:3 | grep iProduct; echo done";
    let mut process = Running::start(ordinary(&harness, &["run", &target, "--", "sh", "-c", program]));
    process.wait_for_line("ready");
    first.process.kill();
    process.assert_logged("the device is gone, and is looked for");
    process.wait_for_line("Port 1: 0000.0100 power");
    let arguments = ["share", "zero", "--local-users", "all", "--listen", &first.address];
    let second = Share::follow(Running::start(harness.command(&arguments)));
    assert!(process.wait_for_line("Bus 001 Device 003").contains("0525:a4a0"));
    process.wait_for_line("first is gone");
    process.wait_for_line("enable connect");
    process.wait_for_line("source/sink");
    assert_eq!(process.wait_for_end(PATIENCE), Some(0));
    wait_until_free(&harness, &second);
}

/// A program on libusb that waits for devices. It is of Debian's python3-usb1, whatever Python is first in the path.
const WAITS_FOR_DEVICES: &str = r#"
import usb1
def heard(context, device, event):
    word = "came" if event == usb1.HOTPLUG_EVENT_DEVICE_ARRIVED else "went"
    print("libusb:", word, "%04x" % device.getVendorID(), device.getDeviceAddress(), flush=True)
    return False
with usb1.USBContext() as context:
    context.hotplugRegisterCallback(heard, flags=usb1.HOTPLUG_ENUMERATE, vendor_id=0x0525,
        events=usb1.HOTPLUG_EVENT_DEVICE_ARRIVED | usb1.HOTPLUG_EVENT_DEVICE_LEFT)
    while True:
        context.handleEventsTimeout(60)
"#;

#[test]
fn what_is_unmounted_outside_is_unmounted_inside() {
    if !can_run() || !has("the right to mount", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let at = harness.path("mounted");
    fs::create_dir(&at).unwrap();
    // As on a machine with systemd, where mounts are shared between namespaces.
    let script = r#"
        while read -r _ _ _ _ at _; do
            case "$at" in "$4"/farbus-*) umount --lazy "$at" 2> /dev/null;; esac
        done < /proc/self/mountinfo
        mount -t tmpfs farbus-test "$1" && mkfifo "$1.begun" && chmod 666 "$1.begun" || exit 1
        setpriv --reuid 65534 --regid 65534 --clear-groups "$2" run "$3" -- sh -c '
            grep -q " $0 " /proc/self/mountinfo && echo > "$0.begun" || exit 2
            while grep -q " $0 " /proc/self/mountinfo; do sleep 0.05; done' "$1" &
        read -r _ < "$1.begun" && umount "$1" && wait $!"#;
    let target = share.target("zero");
    let first = ["--mount", "--propagation", "shared", "sh", "-c", script, "sh"];
    let others = std::env::temp_dir();
    let arguments =
        [&first[..], &[at.to_str().unwrap(), env!("CARGO_BIN_EXE_farbus"), &target, others.to_str().unwrap()]].concat();
    let ended = finish(harness.command_of(Path::new("unshare"), &arguments), PATIENCE);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn programs_hear_of_a_device_that_goes_and_comes_back() {
    let has_usb1 = || Path::new("/usr/lib/python3/dist-packages/usb1").exists();
    if !can_run() || !has("udevadm", has_program("udevadm")) || !has("python3-usb1", has_usb1()) {
        return;
    }
    let harness = Harness::new();
    let mut first = share(&harness, &["zero"]);
    let target = first.target("zero");
    let start = |program: &[&str]| Running::start(ordinary(&harness, &[&["run", &target, "--"], program].concat()));
    let both = "setpriv --pdeathsig KILL udevadm monitor --kernel --udev --subsystem-match=usb/usb_device & exec /usr/bin/python3 -c \"$0\"";
    let process = start(&["sh", "-c", both, WAITS_FOR_DEVICES]);
    // Lines that begin so and contain that; they come in any order.
    let mut lines = Vec::new();
    let mut wait_for = |parts: &[(&str, &str)]| {
        let mut left = parts.to_vec();
        while !left.is_empty() {
            let line = process.wait_for_line("");
            left.retain(|(start, part)| !(line.starts_with(start) && line.contains(part)));
            lines.push(line);
        }
    };
    // The monitor says what it will print once it listens.
    wait_for(&[("libusb: ", "came 0525 2"), ("KERNEL - ", "")]);
    first.process.kill();
    let removed = "remove   /devices/farbus/usb1/1-1 (usb)";
    wait_for(&[("libusb: ", "went 0525 2"), ("KERNEL[", removed), ("UDEV  [", removed)]);
    let arguments = ["share", "zero", "--local-users", "all", "--listen", &first.address];
    let _second = Share::follow(Running::start(harness.command(&arguments)));
    let added = "add      /devices/farbus/usb1/1-1 (usb)";
    wait_for(&[("libusb: ", "came 0525 3"), ("KERNEL[", added), ("UDEV  [", added)]);
    for sender in ["KERNEL[", "UDEV  ["] {
        let of_it = lines.iter().filter(|line| line.starts_with(sender) && line.contains(" /devices/farbus/usb1/1-1 "));
        let action =
            |line: &'_ String| line.split_whitespace().find(|word| ["add", "remove"].contains(word)).map(str::to_owned);
        let what: Vec<String> = of_it.filter_map(action).collect();
        assert_eq!(what, ["remove", "add"], "{sender}: {lines:?}");
    }
}

/// A program that prints what udev knows of the first device, its interface, and a device of this machine.
const ASKS_UDEV: &str = "
    udevadm info --query=property --path=/sys/bus/usb/devices/1-1 && ls -A /run/udev/data && cat /run/udev/data/c4:64";

#[test]
fn udev_database_has_the_device_beside_what_it_has_of_this_machine() {
    if !can_run()
        || !has("udevadm", has_program("udevadm"))
        || !has("the right to mount", rustix::process::geteuid().is_root())
    {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    // A machine whose udev has one device, and one on which udev was never at work.
    let with_udev = "mkdir -p /run/udev/data && echo E:LOCAL=1 > /run/udev/data/c4:64";
    for (before, has_local) in [(with_udev, true), ("true", false)] {
        let script = format!(
            "mount -t tmpfs farbus-test /run && {before} && exec setpriv --reuid 65534 --regid 65534 --clear-groups \
             \"$0\" run \"$1\" -- sh -c \"$2\""
        );
        let program = env!("CARGO_BIN_EXE_farbus");
        let words = ["--mount", "sh", "-c", &script, program, &share.target("zero"), ASKS_UDEV];
        let ended = finish(harness.command_of(Path::new("unshare"), &words), PATIENCE);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        for expected in [
            "DEVNAME=/dev/bus/usb/001/002",
            "ID_BUS=usb",
            "ID_VENDOR=farbus",
            "ID_VENDOR_ID=0525",
            "ID_MODEL=source_sink",
            "ID_MODEL_ENC=source\\x2fsink",
            "ID_SERIAL=farbus_source_sink_0",
            "ID_SERIAL_SHORT=0",
            "ID_USB_INTERFACES=:ff0000:",
            "USEC_INITIALIZED=1",
            "c189:0",
            "c189:1",
            "+usb:1-1:1.0",
        ] {
            assert!(lines.contains(&expected), "{expected}: {ended:?}");
        }
        assert_eq!(lines.contains(&"E:LOCAL=1"), has_local, "{ended:?}");
        assert_eq!(ended.code == Some(0), has_local, "{ended:?}");
    }
}

#[test]
fn programs_join_a_run_by_its_name() {
    if !can_run() || !has("udevadm", has_program("udevadm")) {
        return;
    }
    let harness = Harness::new();
    let mut offered = share(&harness, &["zero"]);
    let target = offered.target("zero");
    let none = finish(ordinary(&harness, &["run", "--join", "lab", "--", "true"]), PATIENCE);
    assert!(none.code == Some(4) && none.stderr.contains("farbus run --name lab DEVICE -- PROGRAM"), "{none:?}");
    let wait = ["run", "--name", "lab", &target, "--", "sh", "-c", "echo ready; exec sleep 7000000"];
    let mut first = Running::start(ordinary(&harness, &wait));
    first.wait_for_line("ready");
    let second = finish(ordinary(&harness, &["run", "--name", "lab", &target, "--", "true"]), PATIENCE);
    assert!(second.code == Some(3) && second.stderr.contains("farbus run --join lab -- PROGRAM"), "{second:?}");

    let join = |program: &[&str]| ordinary(&harness, &[&["run", "--join", "lab", "--"], program].concat());
    // Its strings are read through its node: the server has the memory of a program that it has not started.
    let seen = finish(join(&["sh", "-c", "pwd; lsusb -v -d 0525: | grep iProduct; exit 5"]), PATIENCE);
    assert_eq!(seen.code, Some(5), "{seen:?}");
    let here = ordinary(&harness, &[]).get_current_dir().map(Path::to_owned);
    let here = here.unwrap_or_else(|| std::env::current_dir().unwrap());
    assert!(seen.stdout.starts_with(here.to_str().unwrap()) && seen.stdout.contains("source/sink"), "{seen:?}");
    let monitor = Running::start(join(&["udevadm", "monitor", "--udev", "--subsystem-match=usb/usb_device"]));
    monitor.wait_for_line("UDEV - ");
    offered.process.kill();
    monitor.wait_for_line("remove   /devices/farbus/usb1/1-1 (usb)");

    first.signal(Signal::TERM);
    assert_eq!(first.wait_for_end(PATIENCE), Some(143));
    let none = finish(join(&["true"]), PATIENCE);
    assert_eq!(none.code, Some(4), "{none:?}");
}
