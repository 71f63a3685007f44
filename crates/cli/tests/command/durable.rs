//! What is durable when a disk is detached, and which clients learn of lost writes: real file systems on loop devices
//! over FUSE, raw NBD clients, exporters that are killed and whose machine was started again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Harness, PATIENCE, Running, has, has_fuse, has_program, in_own_process, wait_until};
use super::trust::{Host, hosts, pair, three};

const MIB: u64 = 1 << 20;

fn have(programs: &[&str]) -> bool {
    has("root", rustix::process::geteuid().is_root())
        && programs.iter().all(|program| has(program, has_program(program)))
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An ext4 file system on a loop device over a disk's file, mounted. Dropping it removes what is left of it.
struct Tree {
    device: String,
    /// The device and inode number of the file below it.
    file: String,
    at: PathBuf,
}

impl Tree {
    fn over(harness: &Harness, file: &Path) -> Self {
        let device = run("losetup", &["--find", "--show", "--direct-io=on", file.to_str().unwrap()]);
        let file = file_below(&device);
        run("mkfs.ext4", &["-q", "-F", &device]);
        let at = harness.path("tree");
        fs::create_dir_all(&at).unwrap();
        run("mount", &[&device, at.to_str().unwrap()]);
        Self { device, file, at }
    }

    /// Writes a file without syncing it.
    fn write(&self) -> Vec<u8> {
        let bytes: Vec<u8> = (0..MIB as u32).map(|at| (at / 7) as u8).collect();
        fs::write(self.at.join("file"), &bytes).unwrap();
        bytes
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
        // farbus may have released it, and another test may have the device of this number since.
        if file_below(&self.device) == self.file {
            let _ = Command::new("losetup").args(["-d", &self.device]).output();
        }
    }
}

/// What file a loop device is on; nothing if it is on none.
fn file_below(device: &str) -> String {
    run("losetup", &["--noheadings", "-O", "BACK-MAJ:MIN,BACK-INO", device])
}

/// Reads this file from the file system in an image.
fn read_from(harness: &Harness, image: &Path, name: &str) -> Vec<u8> {
    let device = run("losetup", &["--find", "--show", "--read-only", image.to_str().unwrap()]);
    let at = harness.path("look");
    fs::create_dir_all(&at).unwrap();
    run("mount", &["-o", "ro,noload", &device, at.to_str().unwrap()]);
    let bytes = fs::read(at.join(name)).unwrap_or_default();
    run("umount", &[at.to_str().unwrap()]);
    run("losetup", &["-d", &device]);
    bytes
}

#[test]
fn a_disk_with_a_mounted_file_system_stays_until_it_is_unmounted_and_then_nothing_is_lost() {
    if !has_fuse() || !have(&["losetup", "mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk, rack] = three(&harness);
    let image = harness.image("image", 64 * MIB);
    let mut share =
        lab3.start(&["share", &format!("block:{}", image.display()), "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let at = harness.path("at");
    let mut attach =
        desk.start(&["attach", "lab3/block", "--address", address, "--via", "fuse", "--at", at.to_str().unwrap()]);
    attach.wait_for_line("attached as ");
    let tree = Tree::over(&harness, &at.join("disk.img"));
    let written = tree.write();

    for arguments in [&["migrate", "lab3/block", "--to", "rack"][..], &["detach"]] {
        let refused = desk.run(arguments);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        for part in ["in use", &tree.device, tree.at.to_str().unwrap(), "--unmount"] {
            assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        }
    }
    assert_eq!(fs::read(tree.at.join("file")).unwrap(), written, "it goes on");
    let refused = lab3.run(&["release", "block"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--force"), "{refused:?}");

    // An open file keeps the mount busy: then the disk stays attached as well.
    let busy = File::open(tree.at.join("file")).unwrap();
    let refused = desk.run(&["migrate", "lab3/block", "--to", "rack", "--unmount"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("fuser"), "{refused:?}");
    drop(busy);

    // A program that took a copy of the mounts keeps it, too, and is named before anything is unmounted.
    let mut other = Command::new("unshare");
    other.args(["--mount", "--propagation", "private", "sh", "-c", "echo copied by process $$ && exec sleep 60"]);
    let other = Running::start(other);
    let line = other.wait_for_line("copied");
    let its = &line[line.find("process").unwrap()..];
    let refused = desk.run(&["migrate", "lab3/block", "--to", "rack", "--unmount"]);
    for part in ["only another program", &tree.device, its, "nsenter"] {
        assert!(refused.code == Some(3) && refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert_eq!(fs::read(tree.at.join("file")).unwrap(), written, "it is still mounted");
    drop(other);

    desk.ok(&["migrate", "lab3/block", "--to", "rack", "--unmount"]);
    let there = harness.path("there");
    let mut successor = rack.start(&[
        "attach",
        "lab3/block",
        "--address",
        address,
        "--via",
        "fuse",
        "--at",
        there.to_str().unwrap(),
        "--wait=20",
    ]);
    successor.wait_for_line("attached as ");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    let found = read_from(&harness, &there.join("disk.img"), "file");
    assert!(found == written, "{} bytes", found.len());
    rack.ok(&["detach"]);
    assert_eq!(successor.wait_for_end(PATIENCE), Some(0), "{}", successor.log());
    share.signal(Signal::INT);
    assert_eq!(share.wait_for_end(PATIENCE), Some(0));
}

#[test]
fn sigterm_writes_out_a_mounted_file_system_and_exits_with_an_error_for_what_is_still_open() {
    if !has_fuse() || !have(&["losetup", "mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 64 * MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (mut attach, file) = harness.attach(&share.target("disk"), &harness.path("at"));
    let tree = Tree::over(&harness, &file);
    let written = tree.write();
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(6), "{}", attach.log());
    assert!(attach.log().contains("something may be lost"), "{}", attach.log());
    drop(tree);
    drop(share);
    let found = read_from(&harness, &image, "file");
    assert!(found == written, "{} bytes", found.len());
}

/// This process and those that it started.
fn family(started: u32) -> Vec<u32> {
    let is_of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        *pid == started || status.lines().any(|line| line == format!("PPid:\t{started}"))
    };
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(is_of).collect()
}

/// Whether a thread of this process writes file systems out.
fn writes_out(pid: &u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|it| it == "sync\n"))
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    // One of them may end the others.
    let _ = kill_process(pid, signal);
}

/// The kernel waits for the disk in a thread of the very process that shows it, and that process is killed.
#[test]
fn killed_attachment_whose_file_systems_are_being_written_out_leaves_nothing_that_waits_for_ever() {
    if !has_fuse() || !have(&["losetup", "mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 64 * MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (mut attach, file) = harness.attach(&share.target("disk"), &harness.path("at"));
    let tree = Tree::over(&harness, &file);
    tree.write();
    // Nobody answers any more, and nobody says so.
    family(share.process.id()).into_iter().for_each(|pid| signal(pid, Signal::STOP));
    attach.signal(Signal::TERM);
    let processes = family(attach.id());
    wait_until(PATIENCE, "it writes file systems out", || processes.iter().any(writes_out));
    processes.iter().for_each(|pid| signal(*pid, Signal::KILL));
    assert!(attach.wait_for_end(PATIENCE).is_none(), "{}", attach.log());
    let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/task")).exists();
    wait_until(PATIENCE, "each of its threads has ended", || !processes.iter().any(is_there));
    family(share.process.id()).into_iter().for_each(|pid| signal(pid, Signal::CONT));
    drop(tree);
}

#[test]
fn sigterm_of_a_disk_that_nobody_has_open_loses_nothing_and_exits_with_0() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (mut attach, file) = harness.attach(&share.target("disk"), &harness.path("at"));
    OpenOptions::new().write(true).open(file).unwrap().write_all_at(&[7; 4096], 0).unwrap();
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    assert_eq!(fs::read(image).unwrap()[..4096], [7; 4096]);
}

/// A minimal NBD client.
pub struct Nbd(UnixStream, u64);

impl Nbd {
    pub fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let mut greeting = 3u32.to_be_bytes().to_vec();
        greeting.extend(b"IHAVEOPT");
        greeting.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        stream.write_all(&greeting).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream, 0)
    }

    /// Sends a request and returns the error of its answer, or 0. Command 1 writes, 3 flushes.
    fn ask(&mut self, command: u16, offset: u64, payload: &[u8]) -> u32 {
        self.send(command, offset, payload.len() as u32, payload);
        self.receive()
    }

    fn send(&mut self, command: u16, offset: u64, count: u32, payload: &[u8]) {
        self.1 += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.1.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        bytes.extend(payload);
        self.0.write_all(&bytes).unwrap();
    }

    /// The error of an answer, or 0.
    fn receive(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    pub fn write(&mut self, offset: u64, payload: &[u8]) {
        assert_eq!(self.ask(1, offset, payload), 0);
    }

    /// Reads so many bytes.
    pub fn read(&mut self, offset: u64, count: u32) -> Vec<u8> {
        self.send(0, offset, count, &[]);
        let error = self.receive();
        assert_eq!(error, 0);
        let mut bytes = vec![0; count as usize];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server has closed the connection; waits until it says something.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 16]), Ok(0) | Err(_))
    }

    pub fn flush(&mut self) -> bool {
        self.ask(3, 0, &[]) == 0
    }
}

/// Runs a share as if the machine had been started for the `boot`th time, once [`may_start`] allows it. The program is
/// started earlier: a program started later closes its copies of the files open here, and each `close` flushes.
fn share_after_boot(host: &Host<'_>, boot: u32, arguments: &[&str]) -> Running {
    let path = host.harness.path(&format!("boot_id_{boot}"));
    fs::write(&path, format!("{boot:08}-0000-4000-8000-000000000000\n")).unwrap();
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; mount --bind {} /proc/sys/kernel/random/boot_id && exec {} \"$@\"",
        start_of(host, boot).display(),
        path.display(),
        env!("CARGO_BIN_EXE_farbus")
    );
    let all = [&["-m", "sh", "-c", &script, "farbus", "share"], arguments].concat();
    Running::start(host.equip(host.harness.command_of(Path::new("unshare"), &all)))
}

fn start_of(host: &Host<'_>, boot: u32) -> PathBuf {
    host.harness.path(&format!("start_{boot}"))
}

fn may_start(host: &Host<'_>, boot: u32, share: &Running) -> String {
    fs::write(start_of(host, boot), "").unwrap();
    let line = share.wait_for_line("for paired hosts");
    line.split_whitespace().nth(2).unwrap().to_owned()
}

#[test]
fn writes_lost_by_a_killed_exporter_are_repeated_or_each_client_gets_one_error() {
    if has_fuse() && have(&["unshare", "mount"]) {
        let name = "durable::writes_lost_by_a_killed_exporter_are_repeated_or_each_client_gets_one_error";
        in_own_process(name, kill_exporters_and_flush);
    }
}

fn kill_exporters_and_flush() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let images = ["a", "b"].map(|name| harness.image(name, 64 * MIB));
    let whats = images.each_ref().map(|image| format!("block:{}", image.display()));
    let mut share = share_after_boot(&lab3, 1, &[&whats[0], &whats[1], "--listen", "none", "--secure", "127.0.0.1:0"]);
    let address = may_start(&lab3, 1, &share);
    let mut later: Vec<Running> = [2, 3]
        .map(|boot| share_after_boot(&lab3, boot, &[&whats[0], &whats[1], "--listen", "none", "--secure", &address]))
        .into();
    let (at, socket) = (harness.path("at"), harness.path("b.sock"));
    let fuse = desk.start(&[
        "attach",
        "lab3/block",
        "--address",
        &address,
        "--via",
        "fuse",
        "--at",
        at.to_str().unwrap(),
        "--grace",
        "60",
    ]);
    fuse.wait_for_line("attached as ");
    let nbd = desk.start(&[
        "attach",
        "lab3/block2",
        "--address",
        &address,
        "--via",
        "nbd",
        "--socket",
        socket.to_str().unwrap(),
        "--grace",
        "60",
    ]);
    nbd.wait_for_line("attached");
    let open = || OpenOptions::new().read(true).write(true).open(at.join("disk.img")).unwrap();
    let files = [open(), open()];
    let mut clients = [Nbd::connect(&socket), Nbd::connect(&socket)];

    // Boot 2: little was lost, and the importer still has all of it. Boot 3: more was lost than the importer keeps.
    for (boot, bytes) in [(2u32, MIB), (3, 12 * MIB)] {
        let block = vec![boot as u8; 256 << 10];
        for offset in (0..bytes).step_by(block.len()) {
            files[0].write_all_at(&block, offset).unwrap();
            clients[0].write(offset, &block);
        }
        share.kill();
        share = later.remove(0);
        may_start(&lab3, boot, &share);
        let is_lost = boot == 3;
        for round in 0..2 {
            let is_told = is_lost && round == 0;
            for (who, file) in files.iter().enumerate() {
                assert_eq!(file.sync_all().is_err(), is_told, "file {who}, boot {boot}, round {round}");
            }
            for (who, client) in clients.iter_mut().enumerate() {
                assert_eq!(client.flush(), !is_told, "client {who}, boot {boot}, round {round}");
            }
        }
        if !is_lost {
            for image in &images {
                let stored = fs::read(image).unwrap();
                assert!(stored[..bytes as usize].iter().all(|byte| *byte == boot as u8), "boot {boot}");
            }
        }
    }

    let refused = desk.run(&["detach", "lab3/block2"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("2 NBD clients are connected"), "{refused:?}");
    drop(clients);
    drop(files);
    desk.ok(&["detach", "lab3/block2"]);
    desk.ok(&["detach", "lab3/block"]);
}

#[test]
fn migrate_says_at_once_that_an_nbd_client_still_has_the_disk() {
    let harness = Harness::new();
    let [lab3, desk, _rack] = three(&harness);
    let what = format!("block:{}", harness.image("image", MIB).display());
    let (_share, address) = lab3.share(&[&what]);
    let socket = harness.path("a.sock");
    let words = ["attach", "lab3/block", "--address", &address, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attach = desk.start(&words);
    attach.wait_for_line("attached");
    let mut client = Nbd::connect(&socket);
    client.write(0, &[7; 512]);
    let message = desk.ok(&["migrate", "lab3/block", "--to", "rack"]);
    for part in
        ["an NBD client is connected", "goes to rack once all have left", "end it", "20 s", "farbus resume lab3/block"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Requests made meanwhile wait until the owner resumes the disk.
    let waiting = thread::spawn(move || {
        client.write(512, &[8; 512]);
        client
    });
    // waits: nothing must happen meanwhile; a slow machine only shows less
    thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished());
    desk.ok(&["resume", "lab3/block"]);
    drop(waiting.join().unwrap());
    desk.ok(&["detach"]);
}

#[test]
fn a_disk_is_released_from_its_writer_with_force_alone() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let what = format!("block:{}", harness.image("image", MIB).display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let socket = harness.path("a.sock");
    let words = ["attach", "lab3/block", "--address", address, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let mut attach = desk.start(&words);
    attach.wait_for_line("attached");
    let refused = lab3.run(&["release", "block"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("release block --force"), "{refused:?}");
    lab3.ok(&["release", "block", "--force"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());

    // A reader has nothing to lose.
    let mut reader = desk.start(&[&words[..], &["--mode", "read"]].concat());
    reader.wait_for_line("attached");
    let is_used = || lab3.json(&["status", "--json"])[0]["devices"][0]["mode"] == "read";
    wait_until(PATIENCE, "it is read", is_used);
    lab3.ok(&["release", "block"]);
    assert_eq!(reader.wait_for_end(PATIENCE), Some(3), "{}", reader.log());
}
