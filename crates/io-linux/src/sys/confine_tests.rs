//! Tries each call of a list in a confined process, on files of root, of another user and of its own user.

#![allow(unsafe_code, reason = "system calls as they are, for which there are no functions that refuse nothing")]

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::*;

#[test]
fn the_filters_can_be_built() {
    assert!(!allowed_calls(&ConfinementNeeds::default()).unwrap().is_empty());
    assert!(!unknown_call(nr::__NR_clone3).unwrap().is_empty());
}

/// Tells the child process from a test run: which layers it has, and where the files are.
const CHILD: &str = "FARBUS_TEST_CALLS_CHILD";
/// A process of the same user that stands for another instance of farbus.
const NEIGHBOUR: &str = "FARBUS_TEST_CALLS_NEIGHBOUR";

type Call = fn(&CString) -> i64;

/// Calls that take a path and change what is there, or make it accessible. A confined process must not succeed with any
/// of them.
#[cfg(target_arch = "x86_64")]
const CALLS_BY_PATH: &[(&str, Call)] = &[
    ("chmod", |path| call(nr::__NR_chmod, [at(path), 0o4777, 0, 0, 0])),
    ("fchmodat", |path| call(nr::__NR_fchmodat, [CWD, at(path), 0o4777, 0, 0])),
    ("fchmodat2", |path| call(nr::__NR_fchmodat2, [CWD, at(path), 0o4777, 0, 0])),
    ("chown", |path| call(nr::__NR_chown, [at(path), 65520, 65520, 0, 0])),
    ("lchown", |path| call(nr::__NR_lchown, [at(path), 65520, 65520, 0, 0])),
    ("fchownat", |path| call(nr::__NR_fchownat, [CWD, at(path), 65520, 65520, 0])),
    ("utime", |path| call(nr::__NR_utime, [at(path), 0, 0, 0, 0])),
    ("utimes", |path| call(nr::__NR_utimes, [at(path), 0, 0, 0, 0])),
    ("futimesat", |path| call(nr::__NR_futimesat, [CWD, at(path), 0, 0, 0])),
    ("utimensat", |path| call(nr::__NR_utimensat, [CWD, at(path), 0, 0, 0])),
    ("setxattr", |path| call(nr::__NR_setxattr, [at(path), at(ATTRIBUTE), at(ATTRIBUTE), 1, 0])),
    ("lsetxattr", |path| call(nr::__NR_lsetxattr, [at(path), at(ATTRIBUTE), at(ATTRIBUTE), 1, 0])),
    ("removexattr", |path| call(nr::__NR_removexattr, [at(path), at(ATTRIBUTE), 0, 0, 0])),
    ("lremovexattr", |path| call(nr::__NR_lremovexattr, [at(path), at(ATTRIBUTE), 0, 0, 0])),
    ("getxattr", |path| call(nr::__NR_getxattr, [at(path), at(ATTRIBUTE), 0, 0, 0])),
    ("truncate", |path| call(nr::__NR_truncate, [at(path), 0, 0, 0, 0])),
    ("creat", |path| call(nr::__NR_creat, [at(path), 0o600, 0, 0, 0])),
    ("open", |path| call(nr::__NR_open, [at(path), 1, 0, 0, 0])),
    ("openat2", |path| call(nr::__NR_openat2, [CWD, at(path), [0u64; 3].as_ptr() as u64, 24, 0])),
    ("link", |path| call(nr::__NR_link, [at(path), at(NEW), 0, 0, 0])),
    ("linkat", |path| call(nr::__NR_linkat, [CWD, at(path), CWD, at(NEW), 0])),
    ("symlink", |path| call(nr::__NR_symlink, [at(path), at(NEW), 0, 0, 0])),
    ("symlinkat", |path| call(nr::__NR_symlinkat, [at(path), CWD, at(NEW), 0, 0])),
    ("mknod", |_| call(nr::__NR_mknod, [at(NEW), 0o010_600, 0, 0, 0])),
    ("mknodat", |_| call(nr::__NR_mknodat, [CWD, at(NEW), 0o010_600, 0, 0])),
    ("chdir", |_| call(nr::__NR_chdir, [at(c"/"), 0, 0, 0, 0])),
    ("chroot", |_| call(nr::__NR_chroot, [at(c"/"), 0, 0, 0, 0])),
    ("mount", |path| call(nr::__NR_mount, [at(path), at(path), 0, 4096, 0])),
    ("umount2", |_| call(nr::__NR_umount2, [at(c"/proc"), 2, 0, 0, 0])),
    ("open_tree", |path| call(nr::__NR_open_tree, [CWD, at(path), 1, 0, 0])),
    ("swapon", |path| call(nr::__NR_swapon, [at(path), 0, 0, 0, 0])),
    ("acct", |path| call(nr::__NR_acct, [at(path), 0, 0, 0, 0])),
    ("quotactl", |path| call(nr::__NR_quotactl, [0x80_0700, at(path), 0, 0, 0])),
    ("execve", |path| call(nr::__NR_execve, [at(path), 0, 0, 0, 0])),
    ("execveat", |path| call(nr::__NR_execveat, [CWD, at(path), 0, 0, 0])),
    ("name_to_handle_at", |path| call(nr::__NR_name_to_handle_at, [CWD, at(path), 0, 0, 0])),
    ("inotify_init1", |_| call(nr::__NR_inotify_init1, [0; 5])),
    ("fanotify_init", |_| call(nr::__NR_fanotify_init, [0; 5])),
    ("statfs", |path| call(nr::__NR_statfs, [at(path), [0u64; 32].as_mut_ptr() as u64, 0, 0, 0])),
    ("pivot_root", |_| call(nr::__NR_pivot_root, [at(c"/"), at(c"/"), 0, 0, 0])),
    ("x32 chmod", |path| call(nr::__NR_chmod | 0x4000_0000, [at(path), 0o4777, 0, 0, 0])),
];
#[cfg(not(target_arch = "x86_64"))]
const CALLS_BY_PATH: &[(&str, Call)] = &[
    ("fchmodat", |path| call(nr::__NR_fchmodat, [CWD, at(path), 0o4777, 0, 0])),
    ("fchownat", |path| call(nr::__NR_fchownat, [CWD, at(path), 65520, 65520, 0])),
    ("utimensat", |path| call(nr::__NR_utimensat, [CWD, at(path), 0, 0, 0])),
];
/// Further calls by path, which every architecture has.
const OTHER_CALLS_BY_PATH: &[(&str, Call)] = &[
    ("openat to write", |path| call(nr::__NR_openat, [CWD, at(path), 0o1, 0, 0])),
    ("openat to read and write", |path| call(nr::__NR_openat, [CWD, at(path), 0o2, 0, 0])),
    ("openat to make shorter", |path| call(nr::__NR_openat, [CWD, at(path), 0o1000, 0, 0])),
    ("openat of a new file", |_| call(nr::__NR_openat, [CWD, at(NEW), 0o100, 0o600, 0])),
    ("openat of a file without a name", |_| call(nr::__NR_openat, [CWD, at(c"/tmp"), 0o20_200_002, 0o600, 0])),
    ("unlinkat", |path| call(nr::__NR_unlinkat, [CWD, at(path), 0, 0, 0])),
    ("renameat2", |path| call(nr::__NR_renameat2, [CWD, at(path), CWD, at(NEW), 0])),
    ("mkdirat", |_| call(nr::__NR_mkdirat, [CWD, at(NEW), 0o700, 0, 0])),
];

const CWD: u64 = -100i64 as u64;
const ATTRIBUTE: &std::ffi::CStr = c"user.a";
const NEW: &std::ffi::CStr = c"/tmp/farbus-test-calls-new";

fn at(text: impl AsRef<std::ffi::CStr>) -> u64 {
    text.as_ref().as_ptr() as u64
}

/// The negative error number, or the result of the call.
fn call(number: u32, arguments: [u64; 5]) -> i64 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: every address in the tables above points to memory that lives until the call returns and is long enough.
    let result = unsafe { libc::syscall(number.into(), a, b, c, d, e) };
    if result < 0 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { result }
}

/// Not a test by itself: the child process of the next tests. Prints a line for each call that was not refused.
#[test]
fn child_that_is_confined_makes_every_call() {
    let Ok(setting) = std::env::var(CHILD) else { return };
    let (layers, folder) = setting.split_once(':').unwrap();
    let folder = PathBuf::from(folder);
    assert!(folder.is_dir(), "{setting}");
    let neighbour: u64 = std::env::var(NEIGHBOUR).unwrap().parse().unwrap();
    let state = folder.join("state");
    let fd = Arc::new(OwnedFd::from(fs::File::open(&state).unwrap()));
    let needs = ConfinementNeeds { state: Some(fd), deadlines: true, ..ConfinementNeeds::default() };
    let (pipe, _held) = rustix::pipe::pipe().unwrap();
    become_somebody(&needs).unwrap();
    rustix::thread::set_no_new_privs(true).unwrap();
    if layers == "landlock" {
        restrict_files(&needs).unwrap();
    }
    restrict_calls(&needs).unwrap();
    let refused = |what: String, result: i64| {
        // Older kernels do not have some of the calls.
        if ![-1, -13, -38].contains(&result) {
            println!("\nWRONG {what}: {result}");
        }
    };
    let path = |name: &str| CString::new(folder.join(name).as_os_str().as_bytes()).unwrap();
    for name in FILES {
        let path = path(name);
        for (what, call) in CALLS_BY_PATH.iter().chain(OTHER_CALLS_BY_PATH) {
            refused(format!("{what} on {name}"), call(&path));
        }
    }
    let number = |fd: &OwnedFd| u64::try_from(fd.as_raw_fd()).unwrap();
    for (what, result) in [
        ("kill", call(nr::__NR_kill, [neighbour, 9, 0, 0, 0])),
        ("tkill", call(nr::__NR_tkill, [neighbour, 9, 0, 0, 0])),
        ("tgkill", call(nr::__NR_tgkill, [neighbour, neighbour, 9, 0, 0])),
        ("rt_sigqueueinfo", call(nr::__NR_rt_sigqueueinfo, [neighbour, 9, 0, 0, 0])),
        ("pidfd_open", call(nr::__NR_pidfd_open, [neighbour, 0, 0, 0, 0])),
        ("ptrace", call(nr::__NR_ptrace, [16, neighbour, 0, 0, 0])),
        ("process_vm_readv", call(nr::__NR_process_vm_readv, [neighbour, 0, 0, 0, 0])),
        ("F_SETOWN", call(nr::__NR_fcntl, [number(&pipe), 8, neighbour, 0, 0])),
        ("F_SETSIG", call(nr::__NR_fcntl, [number(&pipe), 10, 9, 0, 0])),
        ("setpriority of another", call(nr::__NR_setpriority, [0, neighbour, 19, 0, 0])),
        ("setpriority of a user", call(nr::__NR_setpriority, [2, 0, 19, 0, 0])),
        (
            "sched_setattr of another",
            call(nr::__NR_sched_setattr, [neighbour, [48u64, 0, 0, 0, 0, 0].as_ptr() as u64, 0, 0, 0]),
        ),
        (
            "sched_setscheduler of another",
            call(nr::__NR_sched_setscheduler, [neighbour, 0x4000_0000, [0u64; 1].as_ptr() as u64, 0, 0]),
        ),
        (
            "sched_setscheduler to SCHED_IDLE",
            call(nr::__NR_sched_setscheduler, [0, 5, [0u64; 1].as_ptr() as u64, 0, 0]),
        ),
        ("prlimit of another", call(nr::__NR_prlimit64, [neighbour, 7, [9u64; 2].as_ptr() as u64, 0, 0])),
        ("socketpair of datagrams", call(nr::__NR_socketpair, [1, 2, 0, [0u32; 2].as_mut_ptr() as u64, 0])),
        ("fork", call(nr::__NR_clone, [17, 0, 0, 0, 0])),
    ] {
        refused(what.to_owned(), result);
    }
    // What it needs still works: reading its folder, its own signals.
    let possible = |what: &str, result: i64| {
        if result < 0 {
            println!("\nWRONG {what} was refused: {result}");
        }
    };
    let own = path(IN_ITS_FOLDER);
    let file = call(nr::__NR_openat, [CWD, at(&own), 0, 0, 0]);
    possible("a file of its folder", file);
    possible("what is in it", call(nr::__NR_pread64, [file.unsigned_abs(), [0u8; 4].as_mut_ptr() as u64, 4, 0, 0]));
    let me = u64::from(std::process::id());
    possible("a signal to itself", call(nr::__NR_tgkill, [me, call(nr::__NR_gettid, [0; 5]).unsigned_abs(), 0, 0, 0]));
    possible(
        "a deadline given back",
        call(nr::__NR_sched_setscheduler, [0, 0x4000_0000, [0u64; 1].as_ptr() as u64, 0, 0]),
    );
    possible("a step back", call(nr::__NR_setpriority, [0, 0, 19, 0, 0]));
    possible("a descriptor's flags", call(nr::__NR_fcntl, [number(&pipe), 3, 0, 0, 0]));
    println!("\nTRIED all");
}

/// A file of root's, one of another user's that everybody may write, one of its own user's that belongs to another
/// instance of farbus, and one of its own user's in the folder that it may read.
const FILES: [&str; 4] = ["roots", "another's", "its own user's", IN_ITS_FOLDER];
const IN_ITS_FOLDER: &str = "state/peers.json";

fn about(folder: &Path) -> Vec<String> {
    let line = |name: &&str| {
        let about = fs::metadata(folder.join(name)).unwrap();
        let (mode, owner) = (about.mode(), (about.uid(), about.gid()));
        format!("{name} {mode:o} {owner:?} {} {} {}.{}", about.nlink(), about.len(), about.mtime(), about.mtime_nsec())
    };
    FILES.iter().map(line).collect()
}

#[test]
fn no_call_with_a_path_changes_a_file_nor_reaches_another_process() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for layers in ["landlock", "no landlock"] {
        let folder = std::env::temp_dir().join(format!("farbus-calls-{}-{}", std::process::id(), layers.len()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let (_, (user, _)) = farbus_io_net::sys::accounts::confined_user();
        let user = user.as_raw();
        fs::create_dir(folder.join("state")).unwrap();
        chown(folder.join("state"), Some(user), Some(user)).unwrap();
        let owners = [(FILES[0], 0, 0o755), (FILES[1], 1600, 0o666), (FILES[2], user, 0o600), (FILES[3], user, 0o600)];
        for (name, owner, mode) in owners {
            fs::write(folder.join(name), "#!/bin/false\n").unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
            chown(folder.join(name), Some(owner), Some(owner)).unwrap();
        }
        let before = about(&folder);
        let mut neighbour = Command::new("sleep").arg("600").uid(user).gid(user).spawn().unwrap();

        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "sys::confine::tests::child_that_is_confined_makes_every_call";
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).current_dir("/");
        command.env(CHILD, format!("{layers}:{}", folder.display())).env(NEIGHBOUR, neighbour.id().to_string());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let lives = neighbour.try_wait().unwrap().is_none();
        neighbour.kill().unwrap();
        neighbour.wait().unwrap();
        assert!(printed.contains("TRIED all") && !printed.contains("WRONG"), "{layers}: {printed}");
        assert_eq!(about(&folder), before, "{layers}");
        assert!(lives && !Path::new(NEW.to_str().unwrap()).exists());
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn state_folder_of_root_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = OwnedFd::from(fs::File::open("/").unwrap());
    let why = owner(&root).unwrap_err().to_string();
    assert!(why.contains("root's"), "{why}");
    let (_, (user, group)) = farbus_io_net::sys::accounts::confined_user();
    assert!(!user.is_root() && !group.is_root() && farbus_io_net::sys::accounts::module_user().0 != user);
}
