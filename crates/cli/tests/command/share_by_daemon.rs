//! `farbus share` beside a daemon of the same user: the daemon shares, for as long as it was asked to.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use farbus::client::{self, ImporterClient};
use farbus::frames::{FrameSelection, RemoteStreamReader, open_stream};
use farbus_io_linux::store::FileStore;
use farbus_io_net::sys::passing::send_on_stream;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has_fuse, wait_until};
use super::restart::Later;

const MIB: u64 = 1 << 20;

/// A daemon that shares a keyboard called `k`, and its configuration.
fn daemon(harness: &Harness, more: &str) -> (Share, PathBuf) {
    let path = harness.path("farbus.toml");
    let text = format!("# The laboratory.\n[plain]\nlisten = ['127.0.0.1:0']  # this machine\n{more}");
    fs::write(&path, text).unwrap();
    (Share::follow(Running::start(harness.command(&["daemon", "--config", path.to_str().unwrap()]))), path)
}

const KEYBOARD: &str = "[[share]]\nwhat = 'keyboard'\nname = 'k'\n";

fn names(address: &str) -> Vec<String> {
    let Ok(listed) = client::list(address) else { return Vec::new() };
    listed.iter().map(|record| client::name_of(record).to_owned()).collect()
}

fn status(harness: &Harness) -> Value {
    let status = harness.json(&["status", "--json"]);
    let mut processes = status.as_array().unwrap().iter();
    processes.find(|process| process["role"] == "daemon").expect("it runs").clone()
}

fn device(harness: &Harness, name: &str) -> Value {
    let status = status(harness);
    let devices = status["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).cloned().unwrap_or_default()
}

fn assert_ended(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.contains(part) || outcome.stdout.contains(part), "no '{part}' in {outcome:?}");
}

fn is_locked(path: &Path) -> bool {
    FileStore::open(path, false).is_err()
}

/// Writes to the disk as another program would, and reads it back.
fn use_disk(target: &str) {
    let mut disk = client::open_disk(&target.parse().unwrap()).unwrap();
    disk.write(4096, vec![7; 512].into()).unwrap();
    assert_eq!(disk.read(4096, 512).unwrap().into_payload().into_vec(), vec![7; 512]);
}

#[test]
fn daemon_shares_a_disk_for_a_command_until_its_ctrl_c() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let what = format!("disk:{}", image.display());
    let own = harness.share(&[&what]);
    let identity = harness.json(&["status", "--json"])[0]["devices"][0]["identity"].clone();
    drop(own);
    let (daemon, _) = daemon(&harness, KEYBOARD);
    let mut command = Running::start(harness.command(&["share", &what]));
    command.wait_for_line("disk ");
    assert_eq!(command.wait_for_line("listening on").split_whitespace().nth(2), Some(&daemon.address[..]));
    let next = command.wait_for_line("on this machine:");
    assert!(next.ends_with(&format!("farbus attach {}", daemon.target("disk"))), "{next}");
    assert_eq!(names(&daemon.address), ["k", "disk"]);
    let shared = device(&harness, "disk");
    assert_eq!(shared["identity"]["id"], identity["id"], "it is the same disk, whoever shares it");
    assert_eq!(shared["medium"]["at"], format!("block:{}", image.display()));
    use_disk(&daemon.target("disk"));
    assert!(fs::read(&image).unwrap()[4096..4608].iter().all(|byte| *byte == 7), "it was written");
    assert!(is_locked(&image));

    command.signal(Signal::INT);
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    assert_eq!(names(&daemon.address), ["k"], "when the command has ended it is not shared any more");
    wait_until(PATIENCE, "the file is free", || !is_locked(&image));
}

#[test]
fn device_of_a_killed_command_is_unshared_and_of_a_killed_daemon_is_reported() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let (mut daemon, _) = daemon(&harness, KEYBOARD);
    let what = format!("disk:{},name=backup", image.display());
    let start = || {
        let command = Running::start(harness.command(&["share", &what, "zero"]));
        command.wait_for_line("listening on");
        command
    };
    let mut command = start();
    assert_eq!(names(&daemon.address), ["k", "backup", "zero"]);
    // A user of the disk does not keep it shared.
    let used = client::open_disk(&daemon.library_target("backup")).unwrap();
    command.kill();
    wait_until(PATIENCE, "nothing of it is shared", || names(&daemon.address) == ["k"]);
    wait_until(PATIENCE, "the file is free", || !is_locked(&image));
    drop(used);

    let mut command = start();
    daemon.process.kill();
    assert_eq!(command.wait_for_end(PATIENCE), Some(4));
    assert!(command.log().contains("the daemon has ended"), "{}", command.log());
}

#[test]
fn a_program_reads_one_value_when_it_is_shared_by_a_process_of_its_own_and_by_a_daemon() {
    let harness = Harness::new();
    let start = |words: &[&str]| {
        let command = Running::start(harness.command(&[&["share", "zero", "--json"], words].concat()));
        let mut text = String::new();
        let value = loop {
            text += &command.wait_for_line("");
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                break value;
            }
        };
        (command, value)
    };
    let (mut own, answer) = start(&["--listen", "127.0.0.1:0"]);
    let at = answer["listening"][0]["at"].as_str().unwrap();
    assert_eq!(names(at), ["zero"]);
    let expected = json!({ "pid": own.id(), "daemon": null, "saved": null, "listening": [{ "at": at, "is_secure": false }],
        "devices": [{ "name": "zero", "bus_id": "1-1", "ids": "0525:a4a0", "speed": "high", "id": answer["devices"][0]["id"] }] });
    assert_eq!(answer, expected);
    own.signal(Signal::INT);
    assert_eq!((own.wait_for_end(PATIENCE), own.has_line_before_its_end("")), (Some(0), false));

    let (daemon, _) = daemon(&harness, KEYBOARD);
    let (mut command, answer) = start(&[]);
    assert_eq!(
        (&answer["daemon"], &answer["devices"][0]["name"]),
        (&json!(daemon.process.id()), &json!("zero")),
        "{answer}"
    );
    assert_eq!(names(&daemon.address), ["k", "zero"]);
    assert_ended(&harness.run(&["unshare", "zero"]), 0, "not shared any more: zero");
    assert_eq!(command.wait_for_end(PATIENCE), Some(0));
    assert!(!command.has_line_before_its_end("") && command.log().contains("somebody else ended this share"));
}

#[test]
fn kept_device_survives_reload_and_is_unshared_when_nobody_uses_it_or_by_force() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let (daemon, _) = daemon(&harness, KEYBOARD);
    let kept = harness.json(&["share", &format!("disk:{}", image.display()), "--keep", "--json"]);
    assert_eq!((&kept["devices"][0]["name"], &kept["saved"]), (&json!("disk"), &Value::Null), "{kept}");
    assert_ended(&harness.run(&["daemon", "reload"]), 0, "nothing changed");
    assert_eq!(names(&daemon.address), ["k", "disk"]);
    let used = client::open_disk(&daemon.library_target("disk")).unwrap();
    assert_ended(&harness.run(&["unshare", "disk"]), 3, "farbus unshare disk --force");
    assert_eq!(names(&daemon.address), ["k", "disk"]);
    assert_ended(&harness.run(&["unshare", "disk", "--force"]), 0, "not shared any more: disk");
    assert_eq!(names(&daemon.address), ["k"]);
    drop(used);
    assert_ended(&harness.run(&["unshare", "disk"]), 4, "farbus status");

    // Another command ends the share of one that runs.
    let mut command = Running::start(harness.command(&["share", "zero"]));
    command.wait_for_line("listening on");
    let unshared = harness.json(&["unshare", "zero", "--json"]);
    assert_eq!(unshared, json!({ "unshared": ["zero"], "until_reload": false }));
    command.wait_for_line("somebody else ended this share");
    assert_eq!(command.wait_for_end(PATIENCE), Some(0));

    // What the configuration asks for comes back with a reload.
    assert_ended(&harness.run(&["unshare", "k"]), 0, "until the next 'farbus daemon reload'");
    assert_eq!(names(&daemon.address), [""; 0]);
    assert_ended(&harness.run(&["daemon", "reload"]), 0, "added k");
    assert_eq!(names(&daemon.address), ["k"]);

    // A share of its own is no daemon's.
    let own = harness.share(&["serial"]);
    assert_ended(&harness.run(&["unshare", "serial"]), 3, "Ctrl-C there");
    assert_eq!(names(&own.address), ["serial"]);
}

#[test]
fn saved_device_is_in_the_configuration_and_shared_by_the_next_daemon() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let (mut daemon, path) = daemon(&harness, KEYBOARD);
    let before = fs::read_to_string(&path).unwrap();
    // A relative path is meant from where the command was typed.
    let mut command = harness.command(&["share", "disk:image,sector=4096,name=backup", "--save"]);
    command.current_dir(harness.path(""));
    assert_ended(&finish(command, PATIENCE), 0, "saved in ");
    let after = fs::read_to_string(&path).unwrap();
    let entry = format!("\n[[share]]\nwhat = \"disk:{},sector=4096\"\nname = \"backup\"\n", image.display());
    assert_eq!(after, format!("{before}{entry}"), "everything else stays as it was");
    let identity = device(&harness, "backup")["identity"].clone();
    let used = client::open_disk(&daemon.library_target("backup")).unwrap();
    assert_ended(&harness.run(&["daemon", "reload"]), 0, "added backup");
    assert_eq!(device(&harness, "backup")["state"], "in use", "its user noticed nothing");
    drop(used);
    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    let next = Share::follow(Running::start(harness.command(&["daemon", "--config", path.to_str().unwrap()])));
    assert_eq!(names(&next.address), ["k", "backup"]);
    assert_eq!(device(&harness, "backup")["identity"], identity);

    // A file that cannot take the entry, and one that cannot be written, are left alone, and nothing is shared.
    fs::write(&path, "share = [{what = 'keyboard', name = 'k'}]").unwrap();
    let refused = harness.run(&["share", "zero", "--save"]);
    assert_ended(&refused, 1, "add it by hand");
    assert_eq!(fs::read_to_string(&path).unwrap(), "share = [{what = 'keyboard', name = 'k'}]");
    fs::rename(&path, harness.path("away")).unwrap();
    assert_ended(&harness.run(&["share", "zero", "--save"]), 1, "--keep");
    assert_eq!(names(&next.address), ["k", "backup"]);
}

#[test]
fn restarted_daemon_goes_on_with_the_shares_of_commands() {
    let harness = Harness::new();
    let [kept, leased] = ["kept", "leased"].map(|name| harness.image(name, MIB));
    let (mut daemon, _) = daemon(&harness, KEYBOARD);
    let [keep, lease] = [&kept, &leased].map(|path| format!("disk:{}", path.display()));
    assert_ended(&harness.run(&["share", &keep, "--keep"]), 0, "farbus unshare disk");
    let mut command = Running::start(harness.command(&["share", &lease, "bridge"]));
    command.wait_for_line("listening on");
    assert_ended(&harness.run(&["unshare", "k"]), 0, "until the next");
    let before = ["disk", "disk2", "bridge-a"].map(|name| device(&harness, name)["identity"].clone());
    let at = harness.path("at");
    let target = daemon.target("disk");
    let arguments = ["attach", &target, "--grace", "60", "--via", "fuse", "--at", at.to_str().unwrap()];
    let user = has_fuse().then(|| Running::start(harness.command(&arguments)));
    user.iter().for_each(|user| drop(user.wait_for_line("attached as ")));
    let next = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    let all = ["disk", "disk2", "bridge-a", "bridge-b"];
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == all);
    assert_eq!(before, ["disk", "disk2", "bridge-a"].map(|name| device(&harness, name)["identity"].clone()));
    assert!(is_locked(&kept) && is_locked(&leased));
    use_disk(&daemon.target("disk2"));
    if let Some(mut user) = user {
        let file = File::options().write(true).open(at.join("disk.img")).unwrap();
        file.write_all_at(b"after the restart", 512).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read(&kept).unwrap()[512..529], *b"after the restart", "its user goes on");
        user.signal(Signal::INT);
        assert_eq!(user.wait_for_end(PATIENCE), Some(0), "{}", user.log());
    }
    command.signal(Signal::INT);
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    assert_eq!(names(&daemon.address), ["disk"]);
    assert_ended(&harness.run(&["unshare", "disk"]), 0, "not shared any more");
    wait_until(PATIENCE, "the files are free", || !is_locked(&kept) && !is_locked(&leased));
    assert_ended(&harness.run(&["daemon", "reload"]), 0, "added k");
    next.end();
}

#[test]
fn swapped_disk_of_a_command_frees_its_old_file_and_does_not_survive_a_restart() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let (daemon, _) = daemon(&harness, KEYBOARD);
    assert_ended(&harness.run(&["share", &format!("disk:{}", image.display()), "--keep"]), 0, "farbus unshare disk");
    assert_ended(
        &harness.run(&["swap", "disk", "--to", &format!("block:{}", harness.path("new").display())]),
        0,
        "lies on",
    );
    wait_until(PATIENCE, "the old file is free", || !is_locked(&image));
    let refused = harness.run(&["daemon", "restart"]);
    assert_ended(&refused, 3, "disk was shared by a command, and has moved to another medium");
    assert_eq!(names(&daemon.address), ["k", "disk"]);
    assert_ended(&harness.run(&["unshare", "disk"]), 0, "not shared any more: disk");
    wait_until(PATIENCE, "the new file is free", || !is_locked(&harness.path("new")));
}

/// A FIFO, and the words for frames of 4 bytes out of it.
fn fifo(harness: &Harness) -> (PathBuf, String) {
    let path = harness.path("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let words = format!("stream:{},frame=4", path.display());
    (path, words)
}

fn write(path: &Path, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn frames_of(daemon: &Share, name: &str) -> RemoteStreamReader {
    open_stream(&ImporterClient::default(), &daemon.library_target(name), FrameSelection::All).unwrap()
}

fn next(frames: &mut RemoteStreamReader) -> Vec<u8> {
    frames.next_frame().unwrap().unwrap().data.contiguous().to_vec()
}

#[test]
fn daemon_reads_the_frames_that_a_command_opened_until_its_ctrl_c() {
    let harness = Harness::new();
    let (path, _) = fifo(&harness);
    let (daemon, _) = daemon(&harness, KEYBOARD);
    // A relative path is meant from where the command was typed, and nobody opens it a second time.
    let mut command = harness.command(&["share", "stream:fifo,frame=4,name=cam"]);
    command.current_dir(harness.path(""));
    let mut command = Running::start(command);
    assert_eq!(command.wait_for_line("listening on").split_whitespace().nth(2), Some(&daemon.address[..]));
    fs::rename(&path, harness.path("elsewhere")).unwrap();
    let path = harness.path("elsewhere");
    assert_eq!(names(&daemon.address), ["k", "cam"]);
    let mut frames = frames_of(&daemon, "cam");
    write(&path, b"abcdefgh");
    assert_eq!([next(&mut frames), next(&mut frames)], [b"abcd", b"efgh"]);
    command.signal(Signal::INT);
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    assert_eq!(names(&daemon.address), ["k"]);
    assert!(frames.next_frame().is_err(), "its reader hears of the end");
    wait_until(PATIENCE, "nobody reads the FIFO", || {
        File::options().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path).is_err()
    });
}

#[test]
fn restarted_daemon_goes_on_with_frames_that_nobody_reads_and_says_which_are_read() {
    let harness = Harness::new();
    let (path, words) = fifo(&harness);
    let (mut daemon, _) = daemon(&harness, KEYBOARD);
    assert_ended(&harness.run(&["share", &words, "--keep"]), 0, "farbus unshare stream");
    let mut frames = frames_of(&daemon, "stream");
    // A frame and a half: its reader goes, and the rest of the second is still to come.
    write(&path, b"abcdef");
    assert_eq!(next(&mut frames), b"abcd");
    let refused = harness.run(&["daemon", "restart"]);
    assert_ended(&refused, 3, "frames of stream are being read");
    assert_ended(&refused, 3, "stream was shared by a command, and would not be shared any more");
    drop(frames);
    wait_until(PATIENCE, "its reader is gone", || device(&harness, "stream")["state"] == "available");
    assert_ended(&harness.run(&["daemon", "restart"]), 3, "frames of stream are being read");
    write(&path, b"gh");
    wait_until(PATIENCE, "no frame is begun", || harness.run(&["daemon", "restart"]).code == Some(0));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["stream", "k"]);
    let next_daemon = Later::of(&status(&harness));
    let mut frames = frames_of(&daemon, "stream");
    write(&path, b"ijkl");
    assert_eq!(next(&mut frames), b"ijkl", "the first frame begins where one begins");
    assert_ended(&harness.run(&["unshare", "stream", "--force"]), 0, "not shared any more: stream");
    next_daemon.end();
}

#[test]
fn saved_frames_are_read_by_the_next_daemon_and_a_descriptor_of_the_command_is_not_saved() {
    let harness = Harness::new();
    let (path, words) = fifo(&harness);
    let (daemon, config) = daemon(&harness, KEYBOARD);
    assert_ended(&harness.run(&["share", &words, "--save"]), 0, "saved in ");
    let entry = format!("\n[[share]]\nwhat = \"{words}\"\nname = \"stream\"\n");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.ends_with(&entry), "{text}");
    let mut frames = frames_of(&daemon, "stream");
    assert_ended(&harness.run(&["daemon", "reload"]), 0, "added stream");
    write(&path, b"abcd");
    assert_eq!(next(&mut frames), b"abcd", "its reader noticed nothing");
    let refused = harness.run(&["share", "stream:/dev/stdin,frame=4", "--save"]);
    assert_ended(&refused, 3, "/dev/stdin is open in this command alone");
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
    assert_eq!(names(&daemon.address), ["k", "stream"]);
}

#[test]
fn command_with_options_of_a_share_has_a_process_of_its_own() {
    let harness = Harness::new();
    assert_ended(&harness.run(&["share", "zero", "--keep"]), 4, "farbus daemon --config FILE");
    let (daemon, _) = daemon(&harness, KEYBOARD);
    let own = harness.share(&["zero"]);
    assert_eq!((names(&own.address), names(&daemon.address)), (vec!["zero".to_owned()], vec!["k".to_owned()]));
    for arguments in [["zero", "--keep", "--listen", "loopback"].as_slice(), &["zero", "--save", "--secure"]] {
        assert_eq!(harness.run(&[&["share"], arguments].concat()).code, Some(2), "{arguments:?}");
    }
    assert_ended(&harness.run(&["share", "usb:9-9", "--keep"]), 4, "no USB device is usb:9-9");
}

#[test]
fn names_and_files_that_are_shared_already_are_refused_with_their_names() {
    let harness = Harness::new();
    let [image, other] = ["image", "other"].map(|name| harness.image(name, MIB));
    let (daemon, _) = daemon(&harness, KEYBOARD);
    let what = format!("disk:{}", image.display());
    assert_ended(&harness.run(&["share", &what, "--keep"]), 0, "farbus unshare disk");
    assert_ended(&harness.run(&["share", &what]), 3, "is shared by the daemon already, as 'disk'");
    assert_ended(
        &harness.run(&["share", "zero,name=k", "--keep"]),
        3,
        "'k' is the name of a device in the configuration",
    );
    let taken = harness.run(&["share", &format!("disk:{},name=disk", other.display()), "--keep"]);
    assert_ended(&taken, 3, &format!("'disk' is the name of another device already: block:{}", image.display()));
    assert!(!is_locked(&other));
    // One that fails leaves nothing of the others.
    assert_ended(
        &harness.run(&["share", "zero", &format!("disk:{}/nothing", harness.path("").display())]),
        1,
        "no such file",
    );
    assert_eq!(names(&daemon.address), ["k", "disk"]);
}

/// Asks the daemon by hand, with descriptors.
fn ask(harness: &Harness, question: &Value, fds: &[BorrowedFd<'_>]) -> Value {
    let pid = status(harness)["pid"].clone();
    let stream = UnixStream::connect(harness.path(&format!("run/farbus/{pid}.sock"))).unwrap();
    let line = format!("{question}\n");
    assert_eq!(send_on_stream(stream.as_fd(), line.as_bytes(), fds).unwrap(), line.len());
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn passed_descriptors_that_are_no_disk_or_cannot_be_written_are_refused() {
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let (daemon, _) = daemon(&harness, KEYBOARD);
    let path = image.to_str().unwrap();
    let share = |words: &str, fds: &[BorrowedFd<'_>]| {
        ask(&harness, &json!({ "ask": "share", "what": words, "keep": true }), fds)
    };
    let refused = |answer: &Value, part: &str| {
        assert!(answer["refused"].as_str().is_some_and(|why| why.contains(part)), "no '{part}' in {answer}");
    };
    let read_only = File::open(&image).unwrap();
    refused(&share(&format!("disk:{path}"), &[read_only.as_fd()]), "for reading only");
    let (pipe, _other) = UnixStream::pair().unwrap();
    refused(&share(&format!("disk:{path},ro"), &[pipe.as_fd()]), "neither a regular file");
    refused(&share(&format!("disk:{path}"), &[]), "1 descriptors have to come along, not 0");
    refused(&share("zero", &[pipe.as_fd()]), "0 descriptors have to come along, not 1");
    refused(&share("disk:image", &[read_only.as_fd()]), "absolute");
    refused(&share("usb:046d:c52b", &[]), "a real device is named by its bus id");
    refused(&share("usb:9-9", &[read_only.as_fd()]), "no USB device is usb:9-9");
    refused(&share(&format!("stream:{path},frame=4"), &[read_only.as_fd()]), "without O_NONBLOCK");
    refused(&share(&format!("stream:{path},frame=4"), &[]), "1 descriptors have to come along, not 0");
    refused(&share("stream:image,frame=4", &[read_only.as_fd()]), "absolute");
    refused(&share("tape", &[]), "not a device");
    let locked = FileStore::open(&image, true).unwrap();
    let writes = File::options().read(true).write(true).open(&image).unwrap();
    refused(&share(&format!("disk:{path}"), &[writes.as_fd()]), "shared already");
    drop((locked, writes));
    assert_eq!(names(&daemon.address), ["k"]);
    // A descriptor that fits is enough: the path is a label.
    assert!(share(&format!("disk:{path},ro"), &[read_only.as_fd()])["ok"]["devices"].is_array());
    assert_eq!(names(&daemon.address), ["k", "disk"]);
}

#[test]
fn number_of_devices_that_a_daemon_shares_for_commands_is_limited() {
    let harness = Harness::new();
    let (daemon, _) = daemon(&harness, "");
    for number in 0..64 {
        let answer = ask(&harness, &json!({ "ask": "share", "what": "zero", "keep": true }), &[]);
        assert!(answer["ok"].is_object(), "{number}: {answer}");
    }
    let answer = ask(&harness, &json!({ "ask": "share", "what": "zero", "keep": true }), &[]);
    assert!(answer["refused"].as_str().unwrap().contains("64 devices"), "{answer}");
    assert_eq!(names(&daemon.address).len(), 64);
}
