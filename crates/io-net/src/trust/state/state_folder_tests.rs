use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::trust::{AuditEvent, AuditLog, AuditOutcome, HostFolder, HostIdentity, PairedHostList};

/// An unprivileged user, in whose folder root works.
const MALLORY: u32 = 1600;

/// A folder that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farbus-state-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Creates a folder in it that belongs to `user`.
    fn of(&self, name: &str, user: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        path
    }

    /// A file of root's that no other user may read.
    fn victim(&self) -> PathBuf {
        let path = self.0.join("victim");
        fs::write(&path, "root's own").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("only root can make other users' files: not tried");
    }
    is_root
}

fn refusal<T>(result: Result<T, FolderError>) -> FolderRefusal {
    match result.map(drop) {
        Err(FolderError { why: FolderTrouble::Refused(refusal), .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

fn assert_untouched(victim: &Path) {
    let about = fs::metadata(victim).unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (0, 0, 0o600));
    assert_eq!(fs::read_to_string(victim).unwrap(), "root's own");
}

/// What an attacker puts in the place of a file.
const TRICKS: [&str; 5] = ["symbolic link", "hard link", "FIFO", "folder", "dangling link"];

fn put(trick: &str, at: &Path, victim: &Path) {
    let _ = fs::remove_file(at);
    let _ = fs::remove_dir(at);
    match trick {
        "symbolic link" => symlink(victim, at).unwrap(),
        "dangling link" => symlink(victim.with_extension("new"), at).unwrap(),
        "hard link" => fs::hard_link(victim, at).unwrap(),
        "FIFO" => mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        "folder" => fs::create_dir(at).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn link_or_pipe_in_place_of_a_file_is_refused_to_root_and_its_target_stays_as_it_is() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (path, victim) = (scratch.of("state", MALLORY), scratch.victim());
    let folder = StateFolder::open(&path).unwrap().unwrap();
    for trick in TRICKS {
        put(trick, &path.join("file"), &victim);
        let expected = match trick {
            "symbolic link" | "dangling link" => FolderRefusal::SymbolicLink,
            "hard link" => FolderRefusal::ManyLinks(2),
            kind => FolderRefusal::NotAFile(kind),
        };
        for access in [FileAccessMode::Read, FileAccessMode::Append, FileAccessMode::ReadWrite] {
            assert_eq!(refusal(folder.file("file", access)), expected, "{trick}");
            assert_eq!(refusal(folder.file_or_make("file", access)), expected, "{trick}");
        }
        assert!(folder.make_file("file").unwrap().is_none(), "{trick}: the name is taken");
        assert_untouched(&victim);
        assert!(!victim.with_extension("new").exists());
    }
    symlink("/etc", path.join("swaps")).unwrap();
    assert_eq!(refusal(folder.subfolder("swaps")), FolderRefusal::SymbolicLink);
    assert_eq!(refusal(folder.subfolder_or_make("swaps")), FolderRefusal::SymbolicLink);
}

/// Each name in farbus's state, with each of the tricks: every operation reports why it fails, or continues without the
/// file.
#[test]
fn no_name_of_the_state_folder_leads_root_to_another_file() {
    if !is_root() {
        return;
    }
    for name in ["lock", "audit.log", "audit.log.1", "key.pem", "key.pem.new", "peers.json", "peers.json.new"] {
        for trick in TRICKS {
            let scratch = Scratch::new();
            let (path, victim) = (scratch.of("state", MALLORY), scratch.victim());
            put(trick, &path.join(name), &victim);
            let folder = HostFolder::at(&path);
            let identity = HostIdentity::load_or_create(&folder);
            let changed = PairedHostList::change(&folder, |_| ());
            let audit = AuditLog::new(folder.clone());
            (0..2).for_each(|_| audit.record(&AuditEvent::new("attach", AuditOutcome::Ok)));
            assert_untouched(&victim);
            assert!(!victim.with_extension("new").exists(), "{name}: {trick}");
            let is_refused = match name {
                "lock" | "key.pem" => identity.is_err(),
                "peers.json" => changed.is_err(),
                _ => true,
            };
            assert!(is_refused, "{name}: {trick}");
            let about = |entry: fs::DirEntry| (entry.file_name(), entry.metadata().unwrap());
            for (made, about) in fs::read_dir(&path).unwrap().flatten().map(about).filter(|(made, _)| made != name) {
                assert_eq!(about.uid(), MALLORY, "{made:?} is the owner's");
            }
        }
    }
}

#[test]
fn file_that_root_makes_in_a_users_folder_is_that_users_from_the_start() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.of("state", MALLORY);
    let folder = StateFolder::open(&path).unwrap().unwrap();
    folder.file_or_make("a", FileAccessMode::Append).unwrap().write_all(b"line").unwrap();
    folder.make_file("b").unwrap().unwrap();
    folder.subfolder_or_make("c").unwrap().make_file("d").unwrap().unwrap();
    for name in ["a", "b", "c", "c/d"] {
        let about = fs::metadata(path.join(name)).unwrap();
        let mode = if name == "c" { 0o700 } else { 0o600 };
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (MALLORY, MALLORY, mode), "{name}");
    }
    let mut text = String::new();
    folder.file("a", FileAccessMode::Read).unwrap().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "line");
    let mut names = folder.names().unwrap();
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    folder.rename("a", "b").unwrap();
    assert!(folder.remove("b").unwrap() && !folder.remove("b").unwrap());
}

/// As created by earlier releases: root's journals in the service user's folder.
#[test]
fn subfolder_that_root_made_in_a_users_folder_goes_on_working() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.of("state", MALLORY);
    fs::create_dir(path.join("swaps")).unwrap();
    fs::set_permissions(path.join("swaps"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("swaps/1"), "said").unwrap();
    let swaps = StateFolder::open(&path).unwrap().unwrap().subfolder("swaps").unwrap().unwrap();
    assert!(swaps.file("1", FileAccessMode::ReadWrite).unwrap().is_some() && swaps.make_file("2").unwrap().is_some());
}

#[test]
fn folder_in_a_folder_of_another_user_is_refused_to_root() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let mallorys = scratch.of("home", MALLORY);
    let roots = scratch.of("roots", 0);
    let on_the_way = |at: &Path| FolderRefusal::OwnerOnTheWay(at.to_owned(), MALLORY);
    // Another user's folder, that user's link, and a folder that would have to be created.
    fs::create_dir(mallorys.join("state")).unwrap();
    assert_eq!(refusal(StateFolder::open(&mallorys.join("state"))), on_the_way(&mallorys));
    symlink(&roots, mallorys.join("link")).unwrap();
    assert_eq!(refusal(StateFolder::open(&mallorys.join("link"))), on_the_way(&mallorys));
    assert_eq!(refusal(StateFolder::open_or_make(&mallorys.join("new"))), on_the_way(&mallorys));
    assert!(!mallorys.join("new").exists());
    let link = scratch.0.join("link");
    symlink(&roots, &link).unwrap();
    rustix::fs::chownat(CWD, &link, Some(Uid::from_raw(MALLORY)), None, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(refusal(StateFolder::open(&link)), on_the_way(&link));
    // A folder that is entirely that user's is used with that user's rights, and root's own links are followed.
    chown(mallorys.join("state"), Some(MALLORY), Some(MALLORY)).unwrap();
    assert_eq!(StateFolder::open(&mallorys.join("state")).unwrap().unwrap().owner().0.as_raw(), MALLORY);
    let own = scratch.0.join("own");
    symlink("roots/../roots", &own).unwrap();
    assert!(StateFolder::open(&own).unwrap().unwrap().owner().0.is_root());
    assert!(StateFolder::open_or_make(&own.join("a/b")).is_ok() && roots.join("a/b").is_dir());
    assert!(StateFolder::open(&own.join("a/c/d")).unwrap().is_none());
    // A folder in which every user may rename.
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(refusal(StateFolder::open(&roots.join("a"))), FolderRefusal::OpenToAll(roots));
}

#[test]
fn file_of_a_third_user_is_refused() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.of("state", MALLORY);
    fs::write(path.join("file"), "").unwrap();
    chown(path.join("file"), Some(1700), None).unwrap();
    let folder = StateFolder::open(&path).unwrap().unwrap();
    assert_eq!(refusal(folder.file("file", FileAccessMode::Read)), FolderRefusal::OwnerOfFile(1700));
}

#[test]
fn names_lead_nowhere_but_into_the_folder() {
    let scratch = Scratch::new();
    let folder = StateFolder::open_or_make(&scratch.0.join("state")).unwrap();
    for name in ["..", ".", "/etc/passwd", "a/b", "a/", "../victim"] {
        assert!(folder.file_or_make(name, FileAccessMode::Append).is_err(), "{name}");
        assert!(folder.subfolder(name).is_err() && folder.remove(name).is_err(), "{name}");
        assert!(folder.rename("a", name).is_err(), "{name}");
    }
    assert!(folder.names().unwrap().is_empty());
}

#[test]
fn folder_that_is_held_stays_the_one_it_was() {
    let scratch = Scratch::new();
    let folder = HostFolder::at(scratch.0.join("state"));
    folder.make().unwrap();
    folder.hand_over().unwrap();
    fs::rename(folder.path(), scratch.0.join("moved")).unwrap();
    let opened = folder.clone().opened().unwrap().unwrap();
    opened.make_file("here").unwrap().unwrap();
    assert!(scratch.0.join("moved/here").exists() && !folder.path().exists());
}
