//! Exclusive processors: cpusets that no other threads use, so that promises on one of them depend on it alone.
//!
//! `SCHED_DEADLINE` accepts a thread only if it may run on every processor of its scheduling domain; a cpuset that is a
//! domain of its own keeps a thread on one processor all the same. Both versions of control groups can make one:
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | makes it a domain | `cpuset.cpu_exclusive`, and the root's `cpuset.sched_load_balance` off | `cpuset.cpus.partition` = `root` |
//! | other threads meanwhile | are not moved between processors automatically | do not run on it |
//! | what enters it | a thread | the whole process, which can have only one such processor |
//!
//! When the last of a process's sets is dropped, everything is as it was before. A process that is killed leaves its
//! set behind, whose name contains the process id; the next process removes it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The prefix of our sets' names; the process id and the processor follow.
const NAME: &str = "farbus-";

/// Version 2's file that makes a set a domain of its own.
const PARTITION: &str = "cpuset.cpus.partition";
/// How often to try to empty a set while its threads end.
const TRIES: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Why there is no exclusive processor.
#[derive(Debug)]
pub enum CpusetError {
    /// The system has no cpusets, or none that this process may create.
    None(String),
    /// Version 2 keeps a process together, and it has an exclusive processor already.
    Together,
    /// The system denied an operation.
    Denied {
        /// What was written or read, and where.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for CpusetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpusetError::None(why) => write!(f, "no cpusets: {why}"),
            CpusetError::Together => f.write_str(
                "no second processor of one's own: version 2 of control groups keeps a process together, on one of them",
            ),
            CpusetError::Denied { what, error } => write!(f, "no processor of one's own: {what}: {error}"),
        }
    }
}

impl std::error::Error for CpusetError {}

/// An exclusive processor, until this is dropped.
#[derive(Debug)]
pub struct ExclusiveProcessor {
    folder: PathBuf,
    home: CpusetOrigin,
    cpu: usize,
}

/// Access to a processor that was taken. The rights were checked when it was opened.
#[derive(Debug)]
pub struct CpusetEntry {
    cpu: usize,
    file: File,
}

impl CpusetEntry {
    /// Access that was opened in another process.
    pub fn passed(cpu: usize, descriptor: OwnedFd) -> Self {
        Self { cpu, file: descriptor.into() }
    }

    /// The descriptor, for another process.
    pub fn into_descriptor(self) -> OwnedFd {
        self.file.into()
    }

    /// The number of the processor.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Moves the calling thread to the processor, where it stays; with version 2, its whole process.
    ///
    /// # Errors
    /// [`CpusetError`] with the system's error.
    pub fn enter(&self) -> Result<(), CpusetError> {
        // Zero means the thread that writes it.
        (&self.file).write_all(b"0").map_err(|error| denied(format!("enter processor {}", self.cpu), error))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CpusetOrigin {
    /// The file that splits the root's domain.
    One { balance: PathBuf, tasks: PathBuf },
    /// Where the process was before.
    Two { procs: PathBuf },
}

/// How many sets of this process split the root's domain, and what the file contained before.
static SPLIT: Mutex<(usize, String)> = Mutex::new((0, String::new()));

impl ExclusiveProcessor {
    /// Takes a processor exclusively.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn take(cpu: usize) -> Result<Self, CpusetError> {
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        match find(&mounts, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()) {
            Some(CpusetHierarchy::One(root)) => Self::take_one(&root, cpu),
            Some(CpusetHierarchy::Two(root)) => Self::take_two(&root, cpu),
            None => Err(CpusetError::None("neither kind of control groups with cpusets is mounted".into())),
        }
    }

    /// The number of the processor.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Access for threads of the process that has it.
    ///
    /// # Errors
    /// [`CpusetError`] with the system's error.
    pub fn cpuset_entry(&self) -> Result<CpusetEntry, CpusetError> {
        let path = self.folder.join(match self.home {
            CpusetOrigin::One { .. } => "tasks",
            CpusetOrigin::Two { .. } => "cgroup.procs",
        });
        let file = File::options().write(true).open(&path);
        let file = file.map_err(|error| denied(format!("open {}", path.display()), error))?;
        Ok(CpusetEntry { cpu: self.cpu, file })
    }

    fn take_one(root: &Path, cpu: usize) -> Result<Self, CpusetError> {
        clear_after_the_dead(root, "tasks");
        let folder = new_folder(root, cpu)?;
        let home = CpusetOrigin::One { balance: root.join("cpuset.sched_load_balance"), tasks: root.join("tasks") };
        let this = Self { folder, home, cpu };
        // From here on, dropping it undoes everything if a step fails.
        let split = split(root);
        let made = (|| {
            write(&this.folder.join("cpuset.cpus"), &cpu.to_string())?;
            let memory = read(&root.join("cpuset.mems"))?;
            write(&this.folder.join("cpuset.mems"), memory.trim())?;
            write(&this.folder.join("cpuset.cpu_exclusive"), "1")
        })();
        split.and(made).map(|()| this)
    }

    fn take_two(root: &Path, cpu: usize) -> Result<Self, CpusetError> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let procs = root.join(own).join("cgroup.procs");
        clear_after_the_dead(root, "cgroup.procs");
        let ours = format!("{NAME}{}-", std::process::id());
        let mut entries = fs::read_dir(root).into_iter().flatten().flatten();
        if entries.any(|entry| entry.file_name().to_string_lossy().starts_with(&ours)) {
            return Err(CpusetError::Together);
        }
        // It stays on: other processes may have begun to use it meanwhile.
        write(&root.join("cgroup.subtree_control"), "+cpuset")?;
        let this = Self { folder: new_folder(root, cpu)?, home: CpusetOrigin::Two { procs }, cpu };
        write(&this.folder.join("cpuset.cpus"), &cpu.to_string())?;
        let partition = this.folder.join(PARTITION);
        write(&partition, "root")?;
        // The kernel may accept the word and still report that it is not in force, and why.
        let state = read(&partition)?;
        match state.trim() {
            "root" => Ok(this),
            other => Err(denied(format!("{} says '{other}'", partition.display()), io::ErrorKind::InvalidInput.into())),
        }
    }
}

impl Drop for ExclusiveProcessor {
    fn drop(&mut self) {
        let (own, back) = match &self.home {
            CpusetOrigin::One { tasks, .. } => ("tasks", tasks),
            CpusetOrigin::Two { procs } => ("cgroup.procs", procs),
        };
        // A thread that is ending is in the set for a moment more. What cannot be removed is removed by the next
        // process.
        for _ in 0..TRIES {
            empty(&self.folder, own, back);
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(BETWEEN_TRIES),
                _ => break,
            }
        }
        if let CpusetOrigin::One { balance, .. } = &self.home {
            let mut split = SPLIT.lock().unwrap_or_else(PoisonError::into_inner);
            split.0 = split.0.saturating_sub(1);
            if split.0 == 0 {
                let _ = fs::write(balance, &split.1);
            }
        }
    }
}

/// Splits the root's domain into those of its sets.
fn split(root: &Path) -> Result<(), CpusetError> {
    let balance = root.join("cpuset.sched_load_balance");
    let mut split = SPLIT.lock().unwrap_or_else(PoisonError::into_inner);
    split.0 += 1;
    if split.0 == 1 {
        split.1 = read(&balance)?.trim().to_owned();
        write(&balance, "0")?;
    }
    Ok(())
}

fn new_folder(root: &Path, cpu: usize) -> Result<PathBuf, CpusetError> {
    let folder = root.join(format!("{NAME}{}-{cpu}", std::process::id()));
    fs::create_dir(&folder).map_err(|error| denied(format!("make {}", folder.display()), error))?;
    Ok(folder)
}

/// Removes the sets of processes that were killed.
fn clear_after_the_dead(root: &Path, own: &str) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            empty(&entry.path(), own, &root.join(own));
            if fs::remove_dir(entry.path()).is_ok() && own == "tasks" {
                // That process split the domain, and no living process has done so since.
                let _ = fs::write(root.join("cpuset.sched_load_balance"), "1");
            }
        }
    }
}

/// Moves all threads in the set back. A thread that ends meanwhile need not be moved.
fn empty(folder: &Path, own: &str, back: &Path) {
    if own == "cgroup.procs" {
        // A removed folder gives its processor back with a delay, possibly after the next process has taken it, whose
        // set would then be a domain only by name.
        let _ = fs::write(folder.join(PARTITION), "member");
    }
    for thread in fs::read_to_string(folder.join(own)).unwrap_or_default().lines() {
        let _ = fs::write(back, thread);
    }
}

enum CpusetHierarchy {
    One(PathBuf),
    Two(PathBuf),
}

/// Finds where cpusets are mounted: /proc/thread-self/mountinfo separates its fields by " - " and spaces (proc(5)).
fn find(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<CpusetHierarchy> {
    let fields = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let (mut right, at) = (right.split(' '), left.split(' ').nth(4)?.to_owned());
        let kind = right.next()?.to_owned();
        Some((PathBuf::from(at), kind, right.nth(1)?.to_owned()))
    };
    let all = || mounts.lines().filter_map(fields);
    let one = all().find(|(_, kind, options)| kind == "cgroup" && options.split(',').any(|option| option == "cpuset"));
    let two = || {
        all().find(|(at, kind, _)| kind == "cgroup2" && controllers(at).split_whitespace().any(|name| name == "cpuset"))
    };
    one.map(|(at, ..)| CpusetHierarchy::One(at)).or_else(|| two().map(|(at, ..)| CpusetHierarchy::Two(at)))
}

fn denied(what: String, error: io::Error) -> CpusetError {
    CpusetError::Denied { what, error }
}

fn write(path: &Path, text: &str) -> Result<(), CpusetError> {
    fs::write(path, text).map_err(|error| denied(format!("write {text} to {}", path.display()), error))
}

fn read(path: &Path) -> Result<String, CpusetError> {
    fs::read_to_string(path).map_err(|error| denied(format!("read {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "30 24 0:25 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n";
    const TWO: &str = "31 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn cpusets_are_found_where_they_are_mounted() {
        let at = |mounts: &str, controllers: &str| {
            find(mounts, |_| controllers.to_owned()).map(|found| match found {
                CpusetHierarchy::One(at) => (1, at),
                CpusetHierarchy::Two(at) => (2, at),
            })
        };
        assert_eq!(at(ONE, ""), Some((1, "/sys/fs/cgroup/cpuset".into())));
        assert_eq!(at(TWO, "cpu cpuset io"), Some((2, "/sys/fs/cgroup".into())));
        assert_eq!(at(TWO, "cpu io"), None, "it belongs to the other kind");
        assert_eq!(at(&format!("{TWO}{ONE}"), "hugetlb"), Some((1, "/sys/fs/cgroup/cpuset".into())));
        assert_eq!(at("", ""), None);
    }

    #[test]
    fn on_a_processor_of_its_own_a_thread_has_a_deadline_all_the_same() {
        use super::super::scheduling::{SchedulingGrant, SchedulingPolicy};
        use std::time::Duration;
        let last = std::thread::available_parallelism().unwrap().get() - 1;
        let own = match ExclusiveProcessor::take(last) {
            Ok(own) => own,
            // Not possible here: then the error must say why.
            Err(error) => return assert!(error.to_string().starts_with("no "), "{error}"),
        };
        let folder = own.folder.clone();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                own.cpuset_entry().unwrap().enter().unwrap();
                let [budget, period] = [1, 100].map(Duration::from_millis);
                let reservation = SchedulingGrant::take(&[SchedulingPolicy::Deadline { budget, period }]);
                let cpus = rustix::thread::sched_getaffinity(None).unwrap();
                assert!(cpus.count() == 1 && cpus.is_set(last));
                let why: Vec<_> = reservation.denied().iter().map(|denied| denied.why).collect();
                assert!(!why.contains(&super::super::scheduling::SchedulingDenialReason::Affinity), "{why:?}");
            });
            inside.join().unwrap();
        });
        drop(own);
        assert!(!folder.exists());
    }

    #[test]
    fn a_processor_that_there_is_not_is_denied_and_nothing_is_left_behind() {
        let folders = || {
            let ours = |root: &str| fs::read_dir(root).into_iter().flatten().flatten();
            let own = format!("{NAME}{}-", std::process::id());
            ["/sys/fs/cgroup", "/sys/fs/cgroup/cpuset"]
                .into_iter()
                .flat_map(ours)
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
                .count()
        };
        let error = ExclusiveProcessor::take(8000).unwrap_err().to_string();
        assert!(error.starts_with("no "), "{error}");
        assert_eq!(folders(), 0);
    }
}
