//! Keeps a process that serves a disk from deadlocking with the kernel's writeback.
//!
//! A front end that serves a disk is on the path by which the kernel frees memory: dirty pages leave through it. If it
//! waited for memory itself, both would wait for ever. So its pages are locked, and the kernel is told never to write
//! back on its behalf (`PR_SET_IO_FLUSHER`).

use std::fmt;

use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};

/// What [`protect_writeback_path`] obtained.
#[derive(Debug)]
#[must_use = "tell the user what was refused"]
pub struct WritebackProtection {
    /// Whether no page of this process can be swapped out.
    pub memory_locked: Result<(), WritebackRefusal>,
    /// Whether memory for this thread is allocated without writing anything back.
    pub io_flusher: Result<(), WritebackRefusal>,
}

/// Why the kernel did not grant something: a message for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackRefusal(String);

/// Protects a process that serves a disk to its own kernel, as far as it has the rights.
///
/// Call it before any other thread is started: the second half applies to a thread and is inherited by those it starts.
/// Never fails: the report contains what was refused. The disk works without it, unless memory runs out while it is
/// being written.
pub fn protect_writeback_path() -> WritebackProtection {
    WritebackProtection { memory_locked: lock_memory(), io_flusher: mark_io_flusher() }
}

/// The part of [`protect_writeback_path`] that applies to the calling thread.
///
/// # Errors
/// The [`WritebackRefusal`], without `CAP_SYS_RESOURCE`.
pub fn mark_io_flusher() -> Result<(), WritebackRefusal> {
    rustix::process::configure_io_flusher_behavior(true).map_err(|errno| match errno {
        Errno::PERM => WritebackRefusal("it needs CAP_SYS_RESOURCE; run as root outside a container".into()),
        Errno::INVAL => WritebackRefusal("the kernel is older than 5.6 and does not know it".into()),
        errno => WritebackRefusal(errno.to_string()),
    })
}

fn lock_memory() -> Result<(), WritebackRefusal> {
    // Under a limit, MCL_FUTURE would make a later allocation fail instead, which is worse than unlocked memory. Nor
    // does the right to lock help: a process that gives it up later is under the limit from then on.
    let unlimited = Rlimit { current: None, maximum: None };
    if let Some(limit) = rustix::process::getrlimit(Resource::Memlock).current
        && rustix::process::setrlimit(Resource::Memlock, unlimited).is_err()
    {
        return Err(WritebackRefusal(format!(
            "it needs CAP_SYS_RESOURCE or `ulimit -l unlimited` (now {} KiB)",
            limit >> 10
        )));
    }
    // ONFAULT: buffers that are reserved for the largest request but never filled take no memory.
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|errno| WritebackRefusal(errno.to_string()))
}

impl WritebackProtection {
    /// Whether everything was granted.
    pub fn is_complete(&self) -> bool {
        self.memory_locked.is_ok() && self.io_flusher.is_ok()
    }
}

impl fmt::Display for WritebackProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let halves = [("memory locked", &self.memory_locked), ("marked as I/O flusher", &self.io_flusher)];
        for (i, (name, granted)) in halves.into_iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            match granted {
                Ok(()) => write!(f, "{separator}{name}")?,
                Err(refusal) => write!(f, "{separator}not {name}: {refusal}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for WritebackRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WritebackRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_report_matches_what_was_granted() {
        let report = protect_writeback_path();
        println!("{report}");
        let locked_kib: u64 = std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix("kB")?.trim().parse().ok())
            .unwrap();
        assert_eq!(report.memory_locked.is_ok(), locked_kib > 0, "{report}");
        if report.io_flusher.is_ok() {
            assert!(rustix::process::is_io_flusher().unwrap());
            let inherited = std::thread::spawn(|| rustix::process::is_io_flusher().unwrap());
            assert!(inherited.join().unwrap());
            rustix::process::configure_io_flusher_behavior(false).unwrap();
        }
        assert_eq!(report.is_complete(), !report.to_string().contains("not "));
        rustix::mm::munlockall().unwrap();
    }
}
