//! Accesses files with another user's rights, from a process of root's.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Runs `work` on a new thread that has the user's rights to files and no others: no group but `group`, no capability.
/// Blocks until it is done. The rest of the process keeps its rights.
///
/// # Errors
/// The system's error if the thread cannot become that user; `work` has not run then.
///
/// # Panics
/// If `work` panics.
pub fn as_user<T: Send>(user: Uid, group: Gid, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let become_user = || -> rustix::io::Result<()> {
        // These calls change only the calling thread: glibc's functions of the same names would change all threads.
        set_thread_groups(&[])?;
        set_thread_res_gid(None::<Gid>, group, None::<Gid>)?;
        // Root's capabilities leave the effective set when the effective user changes (capabilities(7)).
        set_thread_res_uid(None::<Uid>, user, None::<Uid>)
    };
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("as-user".into())
            .spawn_scoped(scope, || become_user().map(|()| work()).map_err(io::Error::from))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
