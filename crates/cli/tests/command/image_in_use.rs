//! A disk image that this machine uses itself is not offered for writing: two that write it destroy what is on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, has_program, wait_until};
use super::trust::{hosts, pair};

/// A loop device over a file, with a file system that is mounted if that is wanted, until it is dropped.
struct LoopDevice {
    node: String,
    mounted_at: Option<PathBuf>,
}

impl LoopDevice {
    /// `None` where there are no loop devices.
    fn over(image: &Path, mount_at: Option<&Path>) -> Option<Self> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).stderr(Stdio::null()).output();
        let output = output.ok().filter(|output| output.status.success());
        if !has("loop devices", output.is_some()) {
            return None;
        }
        let output = output?;
        let mut made = Self { node: String::from_utf8(output.stdout).unwrap().trim().to_owned(), mounted_at: None };
        if let Some(at) = mount_at {
            std::fs::create_dir_all(at).unwrap();
            let is_mounted = Command::new("mount").args([Path::new(&made.node), at]).status().unwrap().success();
            if !has("mounts", is_mounted) {
                return None;
            }
            made.mounted_at = Some(at.to_owned());
        }
        Some(made)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.mounted_at.iter().for_each(|at| drop(Command::new("umount").arg(at).status()));
        let _ = Command::new("losetup").args(["-d", &self.node]).status();
    }
}

/// An image with a file system.
fn ext4(harness: &Harness, name: &str) -> Option<PathBuf> {
    let image = harness.image(name, 8 << 20);
    let mut mkfs = Command::new("mkfs.ext4");
    let is_made = mkfs.args(["-q", "-F"]).arg(&image).stdout(Stdio::null()).stderr(Stdio::null()).status();
    has("mkfs.ext4", is_made.is_ok_and(|status| status.success())).then_some(image)
}

fn assert_refused(outcome: &Outcome, who: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in ["mounted or shared already", who, ",ro", ",force"] {
        assert!(outcome.stderr.contains(part), "'{part}' in {outcome:?}");
    }
}

#[test]
fn mounted_image_is_refused_for_writing_with_where_it_is_mounted_and_read_with_a_warning() {
    let harness = Harness::new();
    let Some(image) = ext4(&harness, "busy.img") else { return };
    let Some(device) = LoopDevice::over(&image, Some(&harness.path("mnt"))) else { return };
    let mounted = format!("{}, mounted at {}", device.node, harness.path("mnt").display());
    let path = image.display().to_string();
    // Another name of the file is the same file.
    let other = harness.path("other.img");
    std::fs::hard_link(&image, &other).unwrap();
    for path in [path.as_str(), other.to_str().unwrap()] {
        assert_refused(&harness.run(&["share", &format!("disk:{path}"), "--listen", "127.0.0.1:0"]), &mounted);
        assert_refused(&harness.run(&["nbd", &format!("block:{path}")]), &mounted);
    }
    // Part of it, and as the place for changes.
    for what in [format!("disk:{path},offset=4096,size=1M"), format!("memory:1M,scratch={path}")] {
        assert_refused(&harness.run(&["share", &what, "--listen", "127.0.0.1:0"]), &mounted);
    }
    // As the destination of a move.
    let old = harness.image("old.img", 8 << 20);
    let share = harness.share(&[&format!("disk:{}", old.display())]);
    let refused = harness.run(&["swap", "disk", "--to", &format!("block:{path}")]);
    assert!(refused.code == Some(3) && refused.stderr.contains(&mounted), "{refused:?}");
    drop(share);

    for words in [format!("disk:{path},ro"), format!("disk:{path},scratch")] {
        let share = harness.share(&[&words]);
        share.process.assert_logged("what is read of it may change");
        share.process.assert_logged(&mounted);
    }
    let [word, plain] = [format!("disk:{path},force"), format!("disk:{path}")];
    for words in [&[word.as_str()][..], &[plain.as_str(), "--force"]] {
        let share = harness.share(words);
        share.process.assert_logged("written all the same, as its owner said");
    }
    let mut nbd = Running::start(harness.command(&["nbd", &format!("block:{path}"), "--force"]));
    nbd.wait_for_line("nbd+unix");
    nbd.kill();
    drop(device);
    drop(harness.share(&[&format!("disk:{path}")]));
}

#[test]
fn image_below_a_loop_device_is_found_when_its_name_is_gone() {
    let harness = Harness::new();
    let image = harness.image("gone.img", 8 << 20);
    let Some(device) = LoopDevice::over(&image, None) else { return };
    let kept = harness.path("kept.img");
    std::fs::hard_link(&image, &kept).unwrap();
    std::fs::remove_file(&image).unwrap();
    let message = std::fs::read_to_string(device.node.replace("/dev/", "/sys/block/") + "/loop/backing_file").unwrap();
    assert!(message.contains("(deleted)"), "{message}");
    assert_refused(
        &harness.run(&["share", &format!("disk:{}", kept.display()), "--listen", "none", "--secure", "127.0.0.1:0"]),
        &device.node,
    );
    // The loop device is free itself.
    drop(harness.share(&[&format!("disk:{}", device.node)]));
    // Another file that has the name now is another file.
    let new = harness.image("gone.img", 1 << 20);
    drop(harness.share(&[&format!("disk:{}", new.display())]));
}

#[test]
fn mounted_block_device_is_refused_with_where_it_is_mounted() {
    let harness = Harness::new();
    let Some(image) = ext4(&harness, "busy.img") else { return };
    let Some(device) = LoopDevice::over(&image, Some(&harness.path("mnt"))) else { return };
    let what = format!("disk:{}", device.node);
    let mounted = format!("mounted at {}", harness.path("mnt").display());
    assert_refused(&harness.run(&["share", &what, "--listen", "127.0.0.1:0"]), &mounted);
    let share = harness.share(&[&what, "--force"]);
    share.process.assert_logged("written all the same");
}

#[test]
fn swap_file_is_refused() {
    let harness = Harness::new();
    let image = harness.path("swap.img");
    std::fs::write(&image, vec![0; 8 << 20]).unwrap();
    std::fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.arg(&image).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !has("swap files", run("mkswap") && run("swapon")) {
        return;
    }
    let refused = harness.run(&["share", &format!("disk:{}", image.display()), "--listen", "127.0.0.1:0"]);
    assert!(run("swapoff"));
    assert_refused(&refused, "this machine's swap");
    drop(harness.share(&[&format!("disk:{}", image.display())]));
}

#[test]
fn image_that_a_qemu_or_another_farbus_writes_is_refused_with_its_process() {
    let harness = Harness::new();
    let image = harness.image("busy.img", 8 << 20);
    let what = format!("disk:{}", image.display());
    if has("qemu-io", has_program("qemu-io")) {
        let mut command = harness.command_of(Path::new("qemu-io"), &["-f", "raw", image.to_str().unwrap()]);
        let mut qemu = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = format!("process {} (qemu-io)", qemu.id());
        let folder = format!("/proc/{}/fdinfo", qemu.id());
        wait_until(PATIENCE, "it has locked the image", || {
            let all = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            all.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).any(|text| text.contains("OFDLCK"))
        });
        assert_refused(&harness.run(&["share", &what, "--listen", "127.0.0.1:0"]), &process);
        drop(harness.share(&[&format!("{what},ro")]));
        drop(harness.share(&[&what, "--force"]));
        drop(qemu.stdin.take());
        qemu.wait().unwrap();
    }
    let share = harness.share(&[&what]);
    let process = format!("process {} (farbus)", share.process.id());
    let refused = harness.run(&["nbd", &format!("block:{}", image.display())]);
    // Its broker has the image open, too, with the same lock.
    assert!(refused.stderr.contains(&process) || refused.stderr.contains("(farbus)"), "{refused:?}");
    assert_refused(&refused, "process ");
}

#[test]
fn daemon_shares_no_image_that_is_mounted_unless_its_file_or_its_owner_says_so() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let Some(image) = ext4(&harness, "busy.img") else { return };
    let Some(device) = LoopDevice::over(&image, Some(&harness.path("mnt"))) else { return };
    let path = image.display().to_string();
    let shared = |daemon: &Running| -> Value {
        wait_until(PATIENCE, "it answers", || lab3.run(&["status", "--json"]).stdout.contains("\"daemon\""));
        assert!(!daemon.log().is_empty());
        lab3.json(&["status", "--json"])[0]["devices"].clone()
    };
    let config = harness.path("farbus.toml");
    let start = |what: &str| {
        std::fs::write(&config, format!("[secure]\nlisten = [\"127.0.0.1:0\"]\n{what}")).unwrap();
        lab3.start(&["daemon", "--config", config.to_str().unwrap()])
    };
    let daemon = start(&format!("[[share]]\nwhat = \"disk:{path}\"\nname = \"busy\"\n"));
    daemon.assert_logged("mounted or shared already");
    daemon.assert_logged(&device.node);
    drop(daemon);
    let daemon = start(&format!("[[share]]\nwhat = \"disk:{path},force\"\nname = \"busy\"\n"));
    daemon.assert_logged("written all the same, as its owner said");
    wait_until(PATIENCE, "it is on offer", || shared(&daemon)[0]["state"] == "available");
    drop(daemon);
    // By the command, which passes it to the daemon.
    let daemon = start("");
    wait_until(PATIENCE, "it runs", || lab3.run(&["status", "--json"]).stdout.contains("\"daemon\""));
    assert_refused(&lab3.run(&["share", &format!("disk:{path}"), "--keep"]), &device.node);
    let forced = lab3.run(&["share", &format!("disk:{path}"), "--keep", "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    assert_eq!((&shared(&daemon)[0]["name"], &shared(&daemon)[0]["state"]), (&"disk".into(), &"available".into()));
    drop(daemon);
    let _ = finish(lab3.command(&["status"]), PATIENCE);
}
