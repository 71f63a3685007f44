//! Attaching where a container takes rights away: `--via nbd` works, and what does not work says so.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has, has_program, wait_until};

/// A user of a container, as images choose it.
const USER: u32 = 1000;

/// Whether a container's rights can be imitated here.
fn can_drop_rights() -> bool {
    let is_root = has("root, whose rights can be dropped", rustix::process::geteuid().is_root());
    is_root && has("setpriv", has_program("setpriv"))
}

/// A shared disk that every user of this machine may use, and a folder that is `USER`'s.
fn shared(harness: &Harness) -> (Share, PathBuf) {
    let disk = format!("disk:{}", harness.image("image", 1 << 20).display());
    let listen = format!("unix:{}", harness.path("share.sock").display());
    let arguments = ["share", &disk, "--listen", &listen, "--socket-mode", "666"];
    let share = Share::follow(Running::start(harness.command(&arguments)));
    let own = harness.path("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    (share, own)
}

/// A command whose process has less than its rights: `setpriv` with `dropped`, then `farbus` with `arguments`.
fn command(harness: &Harness, own: &Path, dropped: &[&str], arguments: &[&str]) -> std::process::Command {
    let farbus = [env!("CARGO_BIN_EXE_farbus")];
    let mut command = harness.command_of(Path::new("setpriv"), &[dropped, &farbus, arguments].concat());
    command.env("XDG_RUNTIME_DIR", own);
    command
}

fn run(harness: &Harness, own: &Path, dropped: &[&str], arguments: &[&str]) -> Outcome {
    finish(command(harness, own, dropped, arguments), PATIENCE)
}

/// Attaches the disk via NBD with less rights, and detaches it.
fn assert_nbd_works(harness: &Harness, share: &Share, own: &Path, dropped: &[&str], more: &[&str]) {
    let socket = own.join("disk.sock");
    let target = share.target("disk");
    let arguments = [&["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap()], more].concat();
    let mut attach = Running::start(command(harness, own, dropped, &arguments));
    attach.wait_for_line("attached as nbd+unix:");
    if has("nbdinfo", has_program("nbdinfo")) {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let outcome = finish(harness.command_of(Path::new("nbdinfo"), &["--size", &uri]), PATIENCE);
        assert_eq!((outcome.code, outcome.stdout.trim()), (Some(0), "1048576"), "{}", outcome.stderr);
    }
    attach.signal(Signal::INT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    wait_until(PATIENCE, "its socket goes with it", || !socket.exists());
}

#[test]
fn root_without_setgid_is_told_what_the_container_lacks_and_what_works() {
    if !can_drop_rights() {
        return;
    }
    let harness = Harness::new();
    let (share, own) = shared(&harness);
    chown(&own, Some(0), Some(0)).unwrap();
    let target = share.target("disk");
    for (dropped, capability) in [("-setgid", "CAP_SETGID"), ("-setuid", "CAP_SETUID")] {
        let dropped = ["--bounding-set", dropped];
        let refused = run(&harness, &own, &dropped, &["attach", &target, "--via", "nbd"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for part in [capability, "--cap-add SETGID --cap-add SETUID", "another user", "--no-sandbox"] {
            assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        }
        assert_nbd_works(&harness, &share, &own, &dropped, &["--no-sandbox"]);
    }
}

#[test]
fn user_without_any_capability_attaches_via_nbd_and_fuse_that_cannot_mount_says_so() {
    if !can_drop_rights() {
        return;
    }
    let harness = Harness::new();
    let (share, own) = shared(&harness);
    let user = USER.to_string();
    // Nor can it gain rights by a setuid program, such as FUSE's.
    let dropped = ["--reuid", &user, "--regid", &user, "--clear-groups", "--bounding-set=-all", "--no-new-privs"];
    let (target, at) = (share.target("disk"), own.join("mnt"));
    let at = at.to_str().unwrap();
    for way in [&["--via", "fuse", "--at", at][..], &["--at", at]] {
        let refused = run(&harness, &own, &dropped, &[&["attach", &target], way].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("--via nbd"), "{way:?}: {refused:?}");
    }
    assert_nbd_works(&harness, &share, &own, &dropped, &[]);
}

#[test]
fn root_that_may_not_mount_is_told_of_nbd_which_works() {
    if !can_drop_rights() {
        return;
    }
    let harness = Harness::new();
    let (share, own) = shared(&harness);
    chown(&own, Some(0), Some(0)).unwrap();
    let dropped = ["--bounding-set", "-sys_admin"];
    let at = own.join("mnt");
    let refused = run(
        &harness,
        &own,
        &dropped,
        &["attach", &share.target("disk"), "--via", "fuse", "--at", at.to_str().unwrap()],
    );
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--via nbd"), "{refused:?}");
    assert_nbd_works(&harness, &share, &own, &dropped, &[]);
}
