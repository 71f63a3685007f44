//! A full disk for logs and for a host's state: sessions continue, changes are refused, and everything works again when
//! there is space.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, has, has_fuse, wait_until};
use super::trust::{hosts, pair};

const PAGE_BYTES: usize = 4096;

/// A small file system in memory. Dropping it unmounts it.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this machine does not permit the mount.
    pub fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=128k,mode=755", "farbus-test"]).arg(&at);
        command.output().is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    /// Sets the size of the file system.
    pub fn grow(&self, size: &str) {
        let mut command = Command::new("mount");
        command.args(["-o", &format!("remount,size={size}")]).arg(&self.0);
        assert!(command.output().unwrap().status.success());
    }

    /// Makes the file system read-only, or no longer.
    pub fn make_read_only(&self, is_read_only: bool) {
        let mut command = Command::new("mount");
        command.args(["-o", if is_read_only { "remount,ro" } else { "remount,rw" }]).arg(&self.0);
        assert!(command.output().unwrap().status.success());
    }

    pub fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).unwrap();
        while file.write(&[0; 512]).is_ok() {}
        assert!(fs::write(self.0.join("more"), [0; 4096]).is_err(), "it is full");
        let _ = fs::remove_file(self.0.join("more"));
    }

    pub fn make_room(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Appends a line so long that 60 bytes are left to the end of a page.
fn pad(file: &Path, line: &str) {
    let end = fs::metadata(file).unwrap().len() as usize + line.len() + 1;
    let blanks = " ".repeat((2 * PAGE_BYTES - 60 - end % PAGE_BYTES) % PAGE_BYTES);
    File::options().append(true).open(file).unwrap().write_all(format!("{line}{blanks}\n").as_bytes()).unwrap();
    assert_eq!(fs::metadata(file).unwrap().len() as usize % PAGE_BYTES, PAGE_BYTES - 60);
}

/// The audit log's lines, and how many are malformed.
fn audit(folder: &Path) -> (Vec<Value>, usize) {
    let text = fs::read_to_string(folder.join("audit.log")).unwrap_or_default();
    let (whole, torn): (Vec<_>, Vec<_>) = text.lines().map(serde_json::from_str).partition(Result::is_ok);
    (whole.into_iter().map(Result::unwrap).collect(), torn.len())
}

#[test]
fn a_full_disk_for_logs_stops_no_session_and_is_over_when_there_is_room() {
    let harness = Harness::new();
    let Some(disk) = SmallDisk::mount(harness.path("lab3")) else {
        has("rights to mount", false);
        return;
    };
    if !has_fuse() {
        return;
    }
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "disk"]);
    let image = harness.path("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    // The share's own log is on the disk that fills up, too.
    let log = disk.0.join("stderr.log");
    let what = format!("disk:{}", image.display());
    let script = format!("exec \"$0\" \"$@\" 2>>{}", log.display());
    let arguments = ["-c", &script, env!("CARGO_BIN_EXE_farbus"), "share", &what, "zero", "--listen", "none"];
    let arguments = [&arguments[..], &["--secure", "127.0.0.1:0"]].concat();
    let mut share = Running::start(lab3.equip(harness.command_of(Path::new("sh"), &arguments)));
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let attach = |name: &str| {
        let at = harness.path(name);
        let arguments = ["attach", "lab3/disk", "--address", address, "--via", "fuse", "--at", at.to_str().unwrap()];
        let attached = desk.start(&arguments);
        attached.wait_for_line("attached as ");
        assert!(fs::read(at.join("disk.img")).unwrap() == [7; 1 << 20], "{name}");
        attached
    };
    let is_free = || desk.json(&["list", "lab3", "--address", address, "--json"])[0]["state"] == "available";
    drop(attach("before"));
    wait_until(PATIENCE, "it is free", is_free);
    // 60 bytes are left of each file's last page: they take only part of the next line.
    pad(&disk.0.join("audit.log"), &serde_json::json!({ "event": "test" }).to_string());
    pad(&log, "");
    let lines_before = audit(&disk.0).0.len();
    disk.fill();
    for number in 0..3 {
        drop(attach(&format!("full-{number}")));
        wait_until(PATIENCE, "it is free", is_free);
    }
    assert_eq!(audit(&disk.0).0.len(), lines_before);
    // A change that cannot be stored is refused with a reason; the earlier permissions still apply.
    let refused = lab3.run(&["allow", "desk", "zero"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("No space left"), "{refused:?}");
    assert_eq!(lab3.json(&["peers", "--json"])[0]["allow"], serde_json::json!(["disk"]));
    assert!(!disk.0.join("peers.json.new").exists(), "nothing is left of it");

    disk.make_room();
    lab3.ok(&["allow", "desk", "zero"]);
    drop(attach("after"));
    let (lines, torn) = audit(&disk.0);
    assert!(
        lines.len() > lines_before && torn == 1,
        "{} lines before, {} after, {torn} torn",
        lines_before,
        lines.len()
    );
    assert!(lines.iter().rev().any(|line| line["event"] == "attach" && line["outcome"] == "ok"));
    wait_until(PATIENCE, "it says so", || {
        fs::read_to_string(&log).unwrap().contains("the audit log is written again; lines are missing")
    });
    share.signal(rustix::process::Signal::TERM);
    assert_eq!(share.wait_for_end(PATIENCE), Some(0));
    assert!(!fs::read_to_string(&log).unwrap().contains("panicked"));
}
