//! A database in a file system on an attached disk: what a program that relies on both is promised. SQLite commits in
//! full synchrony, an ext4 file system lies on a loop device over the disk's file. After each error the file system is
//! mounted again and checked, and the database has to have every commit that was acknowledged.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::disk_clients::HANGS;
use super::super::harness::{Harness, has, has_program};
use super::scene::{FrontEnd, WriterCounters};
use super::store::{file_of, is_done, while_no_loop_device_is_made};

/// The size of its disk.
pub const DISK_BYTES: usize = 8 << 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Commits until its disk fails or its input ends. In this journal mode a full synchronous commit is durable when it
/// returns; in the usual one the removal of the journal is not.
const COMMITS: &str = r#"
import os, sqlite3, sys, threading
def end():
    sys.stdin.read(); os._exit(0)
def die(word, error):
    print(word, repr(error), flush=True); os._exit(1)
try:
    db = sqlite3.connect(sys.argv[1], isolation_level=None)
    db.execute("pragma journal_mode=wal"); db.execute("pragma synchronous=full")
    db.execute("pragma wal_autocheckpoint=100")
    found = db.execute("pragma integrity_check").fetchone()
    if found != ("ok",): die("broken", found)
    db.execute("create table if not exists t (n integer primary key, b blob)")
    n = db.execute("select coalesce(max(n), 0) from t").fetchone()[0]
    print("found", n, flush=True)
    if sys.argv[2:] == ["look"]: os._exit(0)
    threading.Thread(target=end, daemon=True).start()
    while True:
        n += 1
        db.execute("begin immediate")
        db.execute("insert into t values (?, ?)", (n, os.urandom(700)))
        db.execute("delete from t where n <= ?", (n - 300,))
        db.execute("commit")
        print("committed", n, flush=True)
except sqlite3.OperationalError as error: die("error", error)
except sqlite3.DatabaseError as error: die("broken", error)
except OSError as error: die("error", error)
"#;

/// Whether there is what it needs.
pub fn can_run() -> bool {
    ["python3", "unshare", "mount", "losetup", "mkfs.ext4", "e2fsck"]
        .into_iter()
        .all(|program| has(program, has_program(program)))
}

/// The database, and what it was told.
pub struct Database<'h, 's> {
    front: &'s FrontEnd<'h>,
    counters: &'s WriterCounters,
    /// The number of faults that are over.
    turn: &'s AtomicU64,
    at: PathBuf,
    is_made: bool,
    /// The last commit that was acknowledged.
    committed: u64,
    /// How often the file system was checked, and found without an error.
    checks: u64,
}

impl<'h, 's> Database<'h, 's> {
    pub fn new(harness: &Harness, front: &'s FrontEnd<'h>, counters: &'s WriterCounters, turn: &'s AtomicU64) -> Self {
        let at = harness.path("database");
        std::fs::create_dir_all(&at).unwrap();
        Self { front, counters, turn, at, is_made: false, committed: 0, checks: 0 }
    }

    /// Works until told to stop.
    pub fn work(mut self, is_over: &AtomicBool) -> Self {
        let disk = self.front.location().join("disk.img");
        while !is_over.load(Ordering::Acquire) {
            match Looped::over(&disk) {
                Some(device) => self.one_life(&device, is_over),
                // waits: a program that failed tries again
                None => thread::sleep(BETWEEN_TRIES),
            }
        }
        self
    }

    /// Repeats nothing: what fails is begun again with the next loop device.
    fn one_life(&mut self, device: &Looped, is_over: &AtomicBool) {
        if !self.is_made {
            self.is_made = is_done("mkfs.ext4", &["-q", "-F", "-b", "1024", "-J", "size=1", &device.name]);
        } else if !self.is_whole(device) {
            // waits: a program that failed tries again
            thread::sleep(BETWEEN_TRIES);
            return;
        }
        let mut process = self.program(device, &[]);
        let mut turn = self.turn.load(Ordering::Acquire);
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        for line in lines.map_while(Result::ok) {
            self.hear(&line, turn);
            turn = self.turn.load(Ordering::Acquire);
            if is_over.load(Ordering::Acquire) {
                drop(process.stdin.take());
            }
        }
        if !process.wait().is_ok_and(|status| status.success()) {
            self.counters.errors.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn hear(&mut self, line: &str, turn: u64) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = rest.parse().unwrap_or_default();
        match word {
            "committed" => {
                self.committed = number;
                self.counters.requests.fetch_add(1, Ordering::AcqRel);
                self.counters.settled.fetch_max(turn, Ordering::AcqRel);
            }
            "found" if number < self.committed => {
                self.wrong(format!("commit {number} is the last, after {} was acknowledged", self.committed));
            }
            "found" => self.committed = number,
            "broken" => self.wrong(format!("the database is broken: {rest}")),
            // Its end says so, too.
            _ => {}
        }
    }

    fn wrong(&self, text: String) {
        self.counters.wrong.lock().unwrap().bytes_lost += 1;
        self.counters.first.lock().unwrap().get_or_insert(text);
    }

    /// Mounts the file system, which repeats its journal, unmounts and checks it. An error may be that of a disk that
    /// fails just now, so that it is looked at again; one that stays is shown by a database that never goes on.
    fn is_whole(&mut self, device: &Looped) -> bool {
        let mut repeated = self.in_own_mounts(device, "umount \"$1\"");
        if !repeated.status().unwrap().success() {
            return false;
        }
        let checked = Command::new("e2fsck").args(["-f", "-n", &device.name]).output().unwrap();
        let is_whole = checked.status.success();
        self.checks += u64::from(is_whole);
        let message = format!("the file system is wrong: {}", String::from_utf8_lossy(&checked.stdout));
        let mut first = self.counters.first.lock().unwrap();
        match (is_whole, &*first) {
            (false, None) => *first = Some(message),
            (true, Some(text)) if text.starts_with("the file system") => *first = None,
            _ => {}
        }
        is_whole
    }

    /// Starts the program, which commits, or only looks.
    fn program(&self, device: &Looped, arguments: &[&str]) -> Child {
        let mut command = self.in_own_mounts(device, "shift; exec python3 -c \"$@\"");
        command.arg(COMMITS).arg(self.at.join("data.db")).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Mounts the file system in a mount namespace of its own, and does something there: it is unmounted at the end of
    /// that, and no other process copies its mount. What it copies of the others' mounts is removed: a copy would keep
    /// their devices in use.
    fn in_own_mounts(&self, device: &Looped, then: &str) -> Command {
        let script = format!(
            "cut -d ' ' -f 5 /proc/self/mountinfo | grep -F \"${{1%/*}}/\" | sort -r | xargs -r -n 1 umount -l; \
             mount -t ext4 -o noatime \"$0\" \"$1\" || exit 1; {then}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, &device.name]).arg(&self.at).stderr(Stdio::null());
        command
    }

    /// Looks at what is left on the medium: every commit that was acknowledged has to be there.
    pub fn compare_durable(&mut self, disk: &Path) {
        let device = Looped::over(disk).expect("the disk is there");
        assert!(self.is_whole(&device), "{:?}", self.counters.first.lock().unwrap());
        let looked = self.program(&device, &["look"]).wait_with_output().unwrap();
        let looked = String::from_utf8_lossy(&looked.stdout).into_owned();
        assert!(looked.starts_with("found "), "{looked}");
        looked.lines().for_each(|line| self.hear(line, 0));
        assert_eq!(self.counters.wrong.lock().unwrap().bytes_lost, 0, "{:?}", self.counters.first.lock().unwrap());
    }

    /// In a few words.
    pub fn described(&self) -> String {
        let errors = self.counters.errors.load(Ordering::Acquire);
        format!(
            "{} commits, {errors} errors told, {} checks of the file system, each without an error",
            self.committed, self.checks
        )
    }
}

/// A loop device over a disk's file. Dropping it waits until nothing of it is left: two mounted file systems on one
/// disk would destroy each other.
struct Looped {
    name: String,
}

impl Looped {
    fn over(disk: &Path) -> Option<Self> {
        std::fs::metadata(disk).ok()?;
        let _nobody = while_no_loop_device_is_made();
        let made = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(disk).output().unwrap();
        let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        made.status.success().then_some(Self { name })
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        let (began, before) = (Instant::now(), file_of(&self.name));
        is_done("losetup", &["-d", &self.name]);
        while began.elapsed() < HANGS && !before.is_empty() && file_of(&self.name) == before {
            // waits: between two looks for an event
            thread::sleep(BETWEEN_TRIES);
        }
    }
}
