//! Accesses files with another user's rights, from a process of root's.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, getgroups, parent_process_death_signal};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Runs `work` with the user's rights to files and no others: no group but `group`, no capability. Blocks until it is
/// done. The rest of the process keeps its rights, and so does this thread afterwards.
///
/// # Errors
/// The system's error if the thread cannot become that user; `work` has not run then.
///
/// # Panics
/// If `work` panics.
pub fn as_user<T: Send>(user: Uid, group: Gid, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    // A thread that is told of its parent's death is not told any more once its user has changed.
    if parent_process_death_signal()?.is_none() {
        return ImpersonationGuard::begin(user, group).map(|_acting| work());
    }
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("as-user".into())
            .spawn_scoped(scope, || ImpersonationGuard::begin(user, group).map(|_acting| work()))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// This thread has another user's rights until this is dropped.
struct ImpersonationGuard {
    group: Gid,
    groups: Vec<Gid>,
}

impl ImpersonationGuard {
    fn begin(user: Uid, group: Gid) -> io::Result<Self> {
        let acting = Self { group: getegid(), groups: getgroups()? };
        // These calls change only the calling thread: glibc's functions of the same names would change all threads.
        set_thread_groups(&[])?;
        set_thread_res_gid(None::<Gid>, group, None::<Gid>)?;
        // Root's capabilities leave the effective set when the effective user changes, and come back with root
        // (capabilities(7)).
        set_thread_res_uid(None::<Uid>, user, None::<Uid>)?;
        Ok(acting)
    }

    fn end(&self) -> rustix::io::Result<()> {
        set_thread_res_uid(None::<Uid>, Uid::ROOT, None::<Uid>)?;
        set_thread_res_gid(None::<Gid>, self.group, None::<Gid>)?;
        set_thread_groups(&self.groups)
    }
}

impl Drop for ImpersonationGuard {
    fn drop(&mut self) {
        if self.end().is_err() {
            // Whatever this thread did next it would do as somebody else.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_waits_for_its_parents_death_goes_on_waiting() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let signal = Some(rustix::process::Signal::USR1);
        thread::scope(|scope| {
            scope.spawn(|| {
                rustix::process::set_parent_process_death_signal(signal).unwrap();
                let other = as_user(Uid::from_raw(1600), Gid::from_raw(1601), rustix::process::geteuid).unwrap();
                assert_eq!((other, parent_process_death_signal()), (Uid::from_raw(1600), Ok(signal)));
            });
        });
    }

    #[test]
    fn other_users_rights_apply_to_the_work_only() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (user, group) = (Uid::from_raw(1600), Gid::from_raw(1601));
        let me = || (rustix::process::geteuid(), rustix::process::getegid());
        let read = || std::fs::read("/etc/shadow").map(drop).map_err(|error| error.kind());
        let (seen, result) = as_user(user, group, || (me(), read())).unwrap();
        assert_eq!((seen, result), ((user, group), Err(io::ErrorKind::PermissionDenied)));
        assert_eq!(me(), (Uid::ROOT, Gid::ROOT));
        assert!(read().is_ok(), "the rights are back");
        let panic = std::panic::catch_unwind(|| as_user(user, group, || panic!("the work fails")));
        assert!(panic.is_err() && me() == (Uid::ROOT, Gid::ROOT) && read().is_ok());
    }
}
