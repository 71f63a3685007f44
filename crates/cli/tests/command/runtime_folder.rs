//! Where an owner's processes find each other, and that no other user can pose as one of them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has};

/// A user, and a second user who wants to overhear the first.
const VICTIM: u32 = 1500;
const STRANGER: u32 = 1600;

/// Runs `farbus` as this user, who has a state folder and, unless `runtime` names one, no runtime folder.
fn command_as(harness: &Harness, user: u32, runtime: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = harness.command(arguments);
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", harness.path("tmp"));
    command.env("FARBUS_STATE", folder_of(harness, &format!("state-{user}"), user)).uid(user).gid(user);
    runtime.map(|runtime| command.env("XDG_RUNTIME_DIR", runtime));
    command
}

fn run_as(harness: &Harness, user: u32, runtime: Option<&Path>, arguments: &[&str]) -> Outcome {
    finish(command_as(harness, user, runtime, arguments), PATIENCE)
}

/// A folder of this user's.
fn folder_of(harness: &Harness, name: &str, user: u32) -> PathBuf {
    let path = harness.path(name);
    if !path.exists() {
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    chown(&path, Some(user), Some(user)).unwrap();
    path
}

fn has_users() -> bool {
    has("other users", rustix::process::geteuid().is_root())
}

/// Accepts one connection and returns what its client sends.
fn overhear(at: &Path) -> thread::JoinHandle<String> {
    let listener = UnixListener::bind(at).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o666)).unwrap();
    listener.set_nonblocking(false).unwrap();
    thread::spawn(move || {
        let mut heard = String::new();
        if let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read_to_string(&mut heard);
        }
        heard
    })
}

#[test]
fn folder_that_another_user_made_in_tmp_is_not_used() {
    if !has_users() {
        return;
    }
    let harness = Harness::new();
    fs::set_permissions(harness.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    let trap = folder_of(&harness, &format!("tmp/farbus-{VICTIM}"), STRANGER);
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o777)).unwrap();
    let ears = overhear(&trap.join("1.sock"));
    let typed = run_as(&harness, VICTIM, None, &["type", "keyboard", "hunter2"]);
    assert_eq!(typed.code, Some(4), "{typed:?}");
    assert!(typed.stderr.contains("belongs to user 1600"), "{typed:?}");
    assert!(!ears.is_finished(), "nobody connected");
    // A share of the victim's does not go there either.
    let share = Running::start(command_as(&harness, VICTIM, None, &["share", "zero"]));
    let line = share.wait_for_line("listening on unix:");
    assert!(line.contains(&format!("state-{VICTIM}/run/share-")), "{line}");
    let status = run_as(&harness, VICTIM, None, &["status", "--json"]);
    assert!(status.stdout.contains("zero"), "{status:?}");
    drop(std::os::unix::net::UnixStream::connect(trap.join("1.sock")).unwrap());
    assert_eq!(ears.join().unwrap(), "", "what was said there was ours");
}

#[test]
fn runtime_folder_that_others_can_write_is_refused_on_both_sides() {
    if !has_users() {
        return;
    }
    let harness = Harness::new();
    let runtime = folder_of(&harness, "session", VICTIM);
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
    let farbus = runtime.join("farbus");
    let refused = |why: &str| {
        for arguments in
            [&["status"][..], &["share", "zero"], &["attach", "zero"], &["swap", "disk", "--to", "block:/x"]]
        {
            let outcome = run_as(&harness, VICTIM, Some(&runtime), arguments);
            assert!(outcome.code == Some(1) && outcome.stderr.contains(why), "{arguments:?}: {outcome:?}");
        }
    };
    folder_of(&harness, "session/farbus", STRANGER);
    refused("belongs to user 1600");
    folder_of(&harness, "session/farbus", VICTIM);
    fs::set_permissions(&farbus, fs::Permissions::from_mode(0o777)).unwrap();
    refused("chmod 700");
    fs::remove_dir(&farbus).unwrap();
    symlink(folder_of(&harness, "elsewhere", VICTIM), &farbus).unwrap();
    refused("is a symbolic link");
    fs::remove_file(&farbus).unwrap();
    assert_eq!(run_as(&harness, VICTIM, Some(&runtime), &["status"]).code, Some(0));
    // If the environment names another user's folder, the folder is not used at all.
    let of_stranger = folder_of(&harness, "of-stranger", STRANGER);
    let share = Running::start(command_as(&harness, VICTIM, Some(&of_stranger), &["share", "zero"]));
    let line = share.wait_for_line("listening on unix:");
    assert!(line.contains(&format!("state-{VICTIM}/run/")), "{line}");
}

#[test]
fn another_users_process_in_the_owners_folder_is_told_nothing() {
    if !has_users() {
        return;
    }
    let harness = Harness::new();
    let runtime = folder_of(&harness, "session", STRANGER);
    let share = Running::start(command_as(
        &harness,
        STRANGER,
        Some(&runtime),
        &["share", "keyboard", "--listen", "none", "--secure", "127.0.0.1:0"],
    ));
    share.wait_for_line("listening on ");
    // However the socket came there: what counts is which user listens.
    for name in ["session", "session/farbus"] {
        folder_of(&harness, name, VICTIM);
    }
    for entry in fs::read_dir(runtime.join("farbus")).unwrap().flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o666)).unwrap();
    }
    let typed = run_as(&harness, VICTIM, Some(&runtime), &["type", "keyboard", "hunter2"]);
    assert!(typed.code == Some(3) && typed.stderr.contains("a process of user 1600 listens there"), "{typed:?}");
}

#[test]
fn a_process_of_an_earlier_version_is_found_where_it_is() {
    if !has_users() {
        return;
    }
    let harness = Harness::new();
    fs::set_permissions(harness.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    let runtime = folder_of(&harness, "session", VICTIM);
    let old = ["share", "keyboard", "--listen", "none", "--secure", "127.0.0.1:0"];
    let share = Running::start(command_as(&harness, VICTIM, Some(&runtime), &old));
    share.wait_for_line("listening on ");
    fs::rename(runtime.join("farbus"), harness.path("tmp").join(format!("farbus-{VICTIM}"))).unwrap();
    let status = run_as(&harness, VICTIM, None, &["status", "--json"]);
    assert!(status.code == Some(0) && status.stdout.contains("keyboard"), "{status:?}");
}
