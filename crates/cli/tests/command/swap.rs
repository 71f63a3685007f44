//! Disks that are swapped to another file while they are in use: by programs that check what they read, and with owners
//! that are killed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::full_disk::SmallDisk;
use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, has_fuse, has_program, wait_until};

const MIB: u64 = 1 << 20;

/// An image with some data and holes.
fn fill(path: &Path, megabytes: &[u64]) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path).unwrap();
    for at in megabytes {
        let bytes: Vec<u8> = (0..MIB).map(|byte| (byte * 31 + byte / 999 + at) as u8).collect();
        file.write_all_at(&bytes, at * MIB).unwrap();
    }
}

fn assert_ended(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.contains(part) || outcome.stdout.contains(part), "no '{part}' in {outcome:?}");
}

#[test]
fn swapped_disks_old_medium_is_refused_until_it_is_forgotten() {
    use std::os::unix::fs::MetadataExt;
    let harness = Harness::new();
    let old = harness.image("old.img", 64 * MIB);
    fill(&old, &[3, 4, 40]);
    let [old, new] = [old, harness.path("new.img")].map(|path| path.to_str().unwrap().to_owned());
    let mut share = harness.share(&[&format!("disk:{old}"), "zero"]);
    let to_new = format!("block:{new}");
    // The swap makes the file, as sparse as the first one.
    let ended = harness.json(&["swap", "disk", "--to", &to_new, "--verify", "--json"]);
    assert_eq!(
        (&ended["state"], &ended["left_bytes"], &ended["total_bytes"]),
        (&"done".into(), &0.into(), &(64 * MIB).into())
    );
    assert!(fs::read(&old).unwrap() == fs::read(&new).unwrap(), "the copy is the original");
    assert!(fs::metadata(&new).unwrap().blocks() * 512 < 4 * MIB);
    let status = harness.json(&["status", "--json"]);
    assert_eq!(status[0]["devices"][0]["medium"]["at"], to_new.as_str());
    // An impossible swap is refused, with what to type.
    let swap = |device: &str, to: &str| harness.run(&["swap", device, "--to", to]);
    assert_ended(&swap("disk", &to_new), 3, "mounted or shared already");
    assert_ended(&swap("zero", &to_new), 3, "only a disk");
    assert_ended(&swap("tape", &to_new), 4, "farbus status");
    assert_ended(&swap("disk", "disk:x"), 2, "block:PATH");
    assert_ended(&swap("disk", "usb:1-1"), 3, "it moves to block:PATH");
    assert_ended(&swap("zero", "usb:nowhere"), 2, "usb:");
    assert_ended(&swap("zero", "usb:9-9.9"), 4, "farbus share --list");
    let small = harness.image("small.img", MIB);
    assert_ended(&swap("disk", &format!("block:{}", small.display())), 3, "truncate -s 67108864");
    assert_ended(&harness.run(&["swap", "disk", "--cancel"]), 4, "not being swapped");
    share.process.signal(Signal::INT);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0));
    assert_ended(&harness.run(&["share", &format!("disk:{old}")]), 1, "farbus swap --forget");
    // And back again: the first file becomes the disk once more.
    let share = harness.share(&[&format!("disk:{new}")]);
    assert_ended(&swap("disk", &format!("block:{old}")), 0, "lies on");
    drop(share);
    assert_ended(&harness.run(&["share", &to_new]), 1, "is old");
    drop(harness.share(&[&format!("disk:{old}")]));
    assert_ended(&harness.run(&["swap", "--forget", &new]), 0, "may be shared");
    assert_ended(&harness.run(&["swap", "--forget", &new]), 4, "nothing is against");
    drop(harness.share(&[&to_new]));
}

#[test]
fn swap_is_watched_and_cancelled_and_continues_after_a_kill() {
    let harness = Harness::new();
    let old = harness.image("old.img", 48 * MIB);
    fill(&old, &[0, 1, 2, 3, 20, 21, 22, 47]);
    let [old, new] = [old, harness.path("new.img")].map(|path| path.to_str().unwrap().to_owned());
    let to_new = format!("block:{new}");
    let slowly = ["swap", "disk", "--to", &to_new, "--rate", "4M"];
    let is_running = || {
        let answer = harness.run(&["status", "--json"]).stdout;
        let status: Value = serde_json::from_str(&answer).unwrap();
        status[0]["devices"][0]["medium"]["is_swapping"] == true
    };
    let mut share = harness.share(&[&format!("disk:{old}")]);
    let mut first = Running::start(harness.command(&slowly));
    wait_until(PATIENCE, "it begins", is_running);
    assert_ended(
        &harness.run(&["swap", "disk", "--to", &format!("block:{}", harness.path("third.img").display())]),
        3,
        "--cancel",
    );
    assert!(!harness.path("third.img").exists(), "what was made for nothing is gone");
    // Ctrl-C cancels the swap, and waits until it is cancelled.
    first.signal(Signal::INT);
    assert_eq!(first.wait_for_shell_code(PATIENCE), 130);
    first.assert_logged("was cancelled");
    assert!(!is_running());
    // The owner is killed during a swap: the old file is complete, the new one is not.
    let mut second = Running::start(harness.command(&slowly));
    wait_until(PATIENCE, "it begins again", is_running);
    share.process.kill();
    assert_eq!(second.wait_for_end(PATIENCE), Some(4));
    assert_ended(&harness.run(&["share", &to_new]), 1, "unfinished copy");
    let share = harness.share(&[&format!("disk:{old}")]);
    let third = harness.run(&["swap", "disk", "--to", &to_new]);
    assert_ended(&third, 0, "has a part of it already");
    assert!(fs::read(&old).unwrap() == fs::read(&new).unwrap(), "the copy is the original");
    share.process.assert_logged("resume=true");
}

#[test]
fn a_disk_that_has_become_shorter_stays_where_it_is() {
    let harness = Harness::new();
    let old = harness.image("old.img", 8 * MIB);
    fill(&old, &[0, 7]);
    let share = harness.share(&[&format!("disk:{}", old.display())]);
    fs::File::options().write(true).open(&old).unwrap().set_len(5 * MIB).unwrap();
    let to = format!("block:{}", harness.path("new.img").display());
    let failed = harness.run(&["swap", "disk", "--to", &to, "--json"]);
    assert_ended(&failed, 6, "it has become shorter");
    assert!(failed.stderr.contains("byte 5242880"), "{failed:?}");
    let last: Value = serde_json::from_str(&failed.stdout[..=failed.stdout.find("\n}").unwrap() + 1]).unwrap();
    assert_eq!((&last["state"], &last["failure"]["attribute"]), (&"failed".into(), &"device".into()));
    // The disk is unchanged, and can be swapped once the file is whole again.
    fs::File::options().write(true).open(&old).unwrap().set_len(8 * MIB).unwrap();
    fill(&old, &[7]);
    assert_ended(&harness.run(&["swap", "disk", "--to", &to]), 0, "lies on");
    assert!(fs::read(&old).unwrap() == fs::read(harness.path("new.img")).unwrap(), "the copy is the original");
    drop(share);
}

#[test]
fn swap_without_disk_space_fails_and_continues_when_there_is_space() {
    let harness = Harness::new();
    let Some(small) = SmallDisk::mount(harness.path("small")) else {
        println!("skipped: this machine lets nobody mount");
        return;
    };
    let old = harness.image("old.img", 8 * MIB);
    fill(&old, &[0, 3, 7]);
    let share = harness.share(&[&format!("disk:{}", old.display())]);
    let new = harness.path("small").join("new.img");
    let swap = || harness.run(&["swap", "disk", "--to", &format!("block:{}", new.display())]);
    let failed = swap();
    assert_ended(&failed, 1, "no space");
    assert_ended(&failed, 1, "make room and type the same again, which continues");
    let status = harness.json(&["status", "--json"]);
    let medium = &status[0]["devices"][0]["medium"];
    assert_eq!((&medium["at"], &medium["is_swapping"]), (&format!("block:{}", old.display()).into(), &false.into()));
    small.grow("16m");
    assert_ended(&swap(), 0, "has a part of it already");
    assert!(fs::read(&old).unwrap() == fs::read(&new).unwrap(), "the copy is the original");
    drop(share);
}

/// A database is written as fast as possible while its disk is swapped back and forth: no transaction fails, none is
/// lost.
#[test]
fn database_loses_no_transaction_while_its_disk_is_swapped() {
    if !has_fuse() || !has("python3", has_program("python3")) {
        return;
    }
    const LOAD: &str = r#"
import os, sqlite3, sys, time
disk, stop = sys.argv[1:]
db = sqlite3.connect(disk, isolation_level=None)
# There is room for one file only.
db.execute("pragma journal_mode=memory"); db.execute("pragma synchronous=full")
count, longest, began = 0, 0, time.monotonic()
while not os.path.exists(stop):
    at = time.monotonic()
    db.execute("begin"); db.execute("insert into t values (?, ?)", (count, os.urandom(2000)))
    db.execute("delete from t where n = ?", (count - 2000,)); db.execute("commit")
    longest = max(longest, time.monotonic() - at); count += 1
    if count == 10: print("going", flush=True)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
assert db.execute("select max(n) from t").fetchone() == (count - 1,)
print(f"done {count} {count / (time.monotonic() - began):.0f} {longest * 1000:.1f}", flush=True)
"#;
    let harness = Harness::new();
    let old = harness.path("old.img");
    let python = |script: &str, arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).args(arguments);
        command
    };
    let make = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('create table t (n integer primary key, b blob)')";
    let made = finish(python(make, &[old.to_str().unwrap()]), PATIENCE);
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::File::options().write(true).open(&old).unwrap().set_len(64 * MIB).unwrap();
    let share = harness.share(&[&format!("disk:{}", old.display())]);
    let (_attached, disk) = harness.attach(&share.target("disk"), &harness.path("at"));
    let stop = harness.path("stop");
    let mut load = Running::start(python(LOAD, &[disk.to_str().unwrap(), stop.to_str().unwrap()]));
    load.wait_for_line("going");
    let mut quiet = Vec::new();
    for (to, options) in [("new.img", &["--verify"][..]), ("third.img", &[])] {
        let to = format!("block:{}", harness.path(to).display());
        let ended = harness.json(&[&["swap", "disk", "--to", &to, "--json"][..], options].concat());
        assert_eq!(ended["state"], "done");
        quiet.push(ended["quiet_ms"].clone());
    }
    // waits: what is under test is in use for a while, however little of it runs in that time
    std::thread::sleep(Duration::from_millis(200));
    fs::write(&stop, "").unwrap();
    let line = load.wait_for_line("done ");
    assert_eq!(load.wait_for_end(PATIENCE), Some(0), "{}", load.log());
    let words: Vec<&str> = line.split(' ').collect();
    println!(
        "{} transactions, {} a second, the longest {} ms; held for at most {quiet:?} ms; none failed",
        words[1], words[2], words[3]
    );
    // The last medium holds a complete database, with the last transaction in it.
    let count = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                 print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select max(n) from t').fetchone()[0])";
    let found = finish(python(count, &[harness.path("third.img").to_str().unwrap()]), PATIENCE);
    let last = words[1].parse::<u64>().unwrap() - 1;
    assert_eq!((found.code, found.stdout.as_str()), (Some(0), format!("ok {last}").as_str()), "{found:?}");
}

/// fio writes and verifies while its disk is swapped.
#[test]
fn fio_verifies_what_it_wrote_to_a_disk_that_moves() {
    if !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let old = harness.image("old.img", 64 * MIB);
    let share = harness.share(&[&format!("disk:{}", old.display())]);
    let (_attached, disk) = harness.attach(&share.target("disk"), &harness.path("at"));
    let filename = format!("--filename={}", disk.display());
    let mut fio = harness.command_of(Path::new("fio"), &["--name=swap", "--ioengine=psync", &filename]);
    fio.args(["--rw=randwrite", "--bsrange=4k-64k", "--size=64M", "--loops=3", "--fsync=64"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    let mut fio = Running::start(fio);
    for name in ["new.img", "third.img"] {
        let ended =
            harness.json(&["swap", "disk", "--to", &format!("block:{}", harness.path(name).display()), "--json"]);
        assert_eq!(ended["state"], "done");
    }
    assert_eq!(fio.wait_for_end(PATIENCE), Some(0), "{}", fio.log());
    assert!(fio.log().is_empty(), "{}", fio.log());
}

/// A disk that `farbus nbd` serves can be swapped like any other: its client writes and verifies meanwhile.
#[test]
fn disk_served_to_nbd_clients_is_swapped_cancelled_and_resumed() {
    let harness = Harness::new();
    let old = harness.image("old.img", 48 * MIB);
    fill(&old, &[0, 1, 2, 3, 20, 21, 22, 47]);
    let [old, new, socket] =
        [old, harness.path("new.img"), harness.path("disk.sock")].map(|p| p.to_str().unwrap().to_owned());
    let (what, to_new) = (format!("block:{old}"), format!("block:{new}"));
    let mut nbd = Running::start(harness.command(&["nbd", &what, "memory:1M", "--socket", &socket, "--json"]));
    nbd.wait_for_line("memory");
    let medium = || harness.json(&["status", "--json"])[0]["devices"][0]["medium"].clone();
    assert_eq!((&medium()["at"], &medium()["is_swapping"]), (&what.as_str().into(), &false.into()));
    let slowly = ["swap", "old.img", "--to", &to_new, "--rate", "4M"];
    let mut first = Running::start(harness.command(&slowly));
    wait_until(PATIENCE, "it begins", || medium()["is_swapping"] == true);
    let swap = |device: &str, to: &str| harness.run(&["swap", device, "--to", to]);
    assert_ended(&swap("old.img", &format!("block:{}", harness.path("third.img").display())), 3, "--cancel");
    assert_ended(&swap("old.img", "usb:1-1"), 3, "it moves to block:PATH");
    assert_ended(&swap("tape", &to_new), 4, "farbus status");
    assert_ended(&harness.run(&["swap", "memory", "--cancel"]), 4, "not being swapped");
    assert_ended(&harness.run(&["swap", "old.img", "--cancel"]), 0, "");
    assert_eq!(first.wait_for_end(PATIENCE), Some(3));
    first.assert_logged("was cancelled");
    assert_eq!(medium()["at"], what.as_str());
    // fio writes all the time until the swap is complete.
    let fio = (has("fio", has_program("fio"))).then(|| {
        let uri = format!("--uri=nbd+unix:///old.img?socket={socket}");
        let options = ["--rw=randwrite", "--bsrange=4k-64k", "--size=48M", "--loops=2", "--iodepth=30", "--fsync=64"];
        let mut fio = harness.command_of(Path::new("fio"), &["--name=swap", "--ioengine=nbd", &uri]);
        fio.args(options).args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
        Running::start(fio)
    });
    assert_ended(&harness.run(&["swap", "old.img", "--to", &to_new, "--verify"]), 0, "has a part of it already");
    assert_eq!((&medium()["at"], &medium()["is_swapping"]), (&to_new.as_str().into(), &false.into()));
    if let Some(mut fio) = fio {
        assert_eq!(fio.wait_for_end(PATIENCE), Some(0), "{}", fio.log());
        assert!(fio.log().is_empty(), "{}", fio.log());
    } else {
        assert!(fs::read(&old).unwrap() == fs::read(&new).unwrap(), "the copy is the original");
    }
    let ended =
        harness.json(&["swap", "memory", "--to", &format!("block:{}", harness.path("kept.img").display()), "--json"]);
    assert_eq!((&ended["state"], &ended["total_bytes"]), (&"done".into(), &MIB.into()));
    nbd.signal(Signal::INT);
    assert_eq!(nbd.wait_for_end(PATIENCE), Some(0));
    assert_ended(&harness.run(&["nbd", &what, "--socket", &socket]), 1, "farbus swap --forget");
}
