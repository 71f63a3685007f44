//! Confinement: a process that parses untrusted input keeps only the rights that it needs (U10).
//!
//! | layer | what it takes away | if it is missing |
//! |---|---|---|
//! | user | root's identity, groups and capabilities ([`accounts`](farbus_io_net::sys::accounts)) | nothing starts |
//! | `no_new_privs` | setuid programs | nothing starts |
//! | seccomp | every system call that an engine does not make, for example `execve`, `ptrace`, `mount`, `socket`, `rename`; opening a file for writing; signals to other processes | nothing starts |
//! | landlock | files except those named, new TCP connections | kernels before 5.13: the report says so |
//!
//! A call that takes a path is allowed only if landlock checks where the path leads; it does not for `chmod` and its
//! kind (landlock(7)), so modes are changed by descriptor. `stat` and its kind are allowed, since reading a
//! descriptor's size is the same call: the process can learn names, sizes and modes of what every user of the machine
//! may look at.
//!
//! Inherited descriptors are closed ([`inherited`](super::inherited)). Other open descriptors stay open: a process
//! opens what it needs before it confines itself, or asks a process that is not confined later
//! ([`passing`](farbus_io_net::sys::passing)). Confinement applies to the calling thread and to those that it starts,
//! so it comes before the second thread.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sys::scheduling::ORDINARY_AGAIN;
use farbus_io_net::sys::accounts::{UserAccount, confined_user};
use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope,
};
use linux_raw_sys::general as nr;
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::Resource;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// What a confined process still needs.
#[derive(Clone, Debug, Default)]
pub struct ConfinementNeeds {
    /// Files and folders that it may read, with what is in them.
    pub readable: Vec<PathBuf>,
    /// A folder that it may read, with what is in it. The process becomes the folder's owner; a folder of root's is
    /// refused.
    pub state: Option<Arc<OwnedFd>>,
    /// Deadlines for its threads, and locked memory: it keeps the two capabilities for these.
    pub deadlines: bool,
    /// Datagrams to and from networks, for multicast DNS, and the list of this machine's networks.
    pub datagrams: bool,
    /// It needs no path: the kernel refuses every call that opens or lists one, whether there is landlock or not.
    /// With something in `readable` or `state` it means nothing.
    pub has_no_paths: bool,
}

/// What [`confine`] took away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "tell the user what could not be taken"]
pub struct ConfinementReport {
    /// The user it became; `None` if it was not root to begin with.
    pub user: Option<String>,
    /// Whether files and networks are out of reach; otherwise the reason.
    pub files: Result<(), String>,
}

/// Why a process could not be confined: a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfineError(String);

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfineError {}

impl fmt::Display for ConfinementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "runs as {user}, without capabilities")?,
            None => f.write_str("without new rights")?,
        }
        match &self.files {
            Ok(()) => f.write_str("; no files, no connections of its own"),
            Err(why) => write!(f, "; files and connections are within reach: {why}"),
        }
    }
}

/// Gives up the rights of this thread, and of all threads that it will start.
///
/// # Errors
/// [`ConfineError`] if a layer that must not be missing is refused; the process is then half confined and should end.
pub fn confine(needs: &ConfinementNeeds) -> Result<ConfinementReport, ConfineError> {
    super::inherited::close();
    let user = become_somebody(needs)?;
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    let files = restrict_files(needs);
    restrict_calls(needs)?;
    Ok(ConfinementReport { user, files })
}

fn failed<E: fmt::Display>(what: &'static str) -> impl FnOnce(E) -> ConfineError {
    move |error| ConfineError(format!("cannot {what}: {error}"))
}

/// The message of a step of root's that needs `capability`.
fn failed_without(what: &'static str, capability: &'static str) -> impl FnOnce(Errno) -> ConfineError {
    move |errno| match errno {
        Errno::PERM => ConfineError(format!(
            "cannot {what}: root lacks CAP_{capability} here, as in some containers\n  \
             run farbus as another user, or give the container both: --cap-add SETGID --cap-add SETUID"
        )),
        errno => failed(what)(errno),
    }
}

fn become_somebody(needs: &ConfinementNeeds) -> Result<Option<String>, ConfineError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    if needs.deadlines {
        rustix::thread::set_keep_capabilities(true).map_err(failed("keep the right to deadlines"))?;
    }
    let (name, (uid, gid)) = match &needs.state {
        Some(state) => owner(state)?,
        None => confined_user(),
    };
    rustix::thread::set_thread_groups(&[]).map_err(failed_without("leave root's groups", "SETGID"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed_without("leave root's group", "SETGID"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed_without("become another user", "SETUID"))?;
    // The change of user dropped them, unless the kernel had been told to keep them. Memory that root locks is locked
    // as it grows; for other users there is a limit.
    let for_deadlines = CapabilitySet::SYS_NICE | CapabilitySet::IPC_LOCK;
    let kept = if needs.deadlines { for_deadlines } else { CapabilitySet::empty() };
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed("drop capabilities"))?;
    Ok(Some(name))
}

/// The owner of a folder. The process that talks to the network must not be root, not even without capabilities: root's
/// files would be its own.
fn owner(folder: &OwnedFd) -> Result<(String, UserAccount), ConfineError> {
    let about = rustix::fs::fstat(folder).map_err(failed("look at its folder"))?;
    if about.st_uid == 0 {
        return Err(ConfineError("the folder of its own is root's, and it is not to be root".to_owned()));
    }
    Ok((format!("user {}", about.st_uid), (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid))))
}

/// The newest rules that are known here; an older kernel applies those that it knows.
const LANDLOCK: ABI = ABI::V6;

fn restrict_files(needs: &ConfinementNeeds) -> Result<(), String> {
    let restrict = || -> Result<RulesetStatus, Box<dyn std::error::Error>> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        for path in needs.readable.iter().filter(|path| path.exists()) {
            ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, readable_as(path)))?;
        }
        if let Some(state) = &needs.state {
            ruleset = ruleset.add_rule(PathBeneath::new(state, AccessFs::ReadFile | AccessFs::ReadDir))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    };
    match restrict().map_err(|error| error.to_string())? {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("this kernel has no landlock (5.13 and later do)".into()),
    }
}

fn readable_as(path: &Path) -> landlock::BitFlags<AccessFs> {
    if path.is_dir() { AccessFs::ReadFile | AccessFs::ReadDir } else { AccessFs::ReadFile.into() }
}

/// The system calls that an engine, its log and its runtime make. Anything else must be opened before confinement.
const CALLS: &[u32] = &[
    // Links, descriptors and what waits on them. No socket(2): it makes no new connections.
    nr::__NR_read,
    nr::__NR_write,
    nr::__NR_readv,
    nr::__NR_writev,
    nr::__NR_recvfrom,
    nr::__NR_recvmsg,
    nr::__NR_recvmmsg,
    nr::__NR_sendto,
    nr::__NR_sendmsg,
    nr::__NR_accept4,
    nr::__NR_shutdown,
    nr::__NR_getsockname,
    nr::__NR_getpeername,
    nr::__NR_getsockopt,
    nr::__NR_setsockopt,
    nr::__NR_close,
    nr::__NR_dup,
    nr::__NR_pipe2,
    nr::__NR_eventfd2,
    nr::__NR_ppoll,
    nr::__NR_epoll_create1,
    nr::__NR_epoll_ctl,
    nr::__NR_epoll_pwait,
    nr::__NR_timerfd_create,
    nr::__NR_timerfd_settime,
    // Images, and files that landlock allows to be read.
    nr::__NR_pread64,
    nr::__NR_pwrite64,
    nr::__NR_preadv,
    nr::__NR_pwritev,
    nr::__NR_lseek,
    nr::__NR_fsync,
    nr::__NR_fdatasync,
    // File systems on a disk that is being detached, without its descriptor.
    nr::__NR_sync,
    nr::__NR_close_range,
    nr::__NR_fallocate,
    nr::__NR_ftruncate,
    // Memory with a descriptor, for what is passed to another process and is longer than a message.
    nr::__NR_memfd_create,
    nr::__NR_fstat,
    nr::__NR_newfstatat,
    nr::__NR_statx,
    nr::__NR_openat,
    nr::__NR_getdents64,
    nr::__NR_readlinkat,
    nr::__NR_faccessat,
    nr::__NR_faccessat2,
    // Memory.
    nr::__NR_mmap,
    nr::__NR_munmap,
    nr::__NR_mremap,
    nr::__NR_mprotect,
    nr::__NR_madvise,
    nr::__NR_brk,
    // Threads and signals. clone3 is answered as unknown, and clone makes only threads.
    nr::__NR_clone3,
    nr::__NR_exit,
    nr::__NR_exit_group,
    nr::__NR_futex,
    nr::__NR_set_robust_list,
    nr::__NR_rseq,
    nr::__NR_sched_yield,
    nr::__NR_sched_getaffinity,
    nr::__NR_gettid,
    nr::__NR_getpid,
    nr::__NR_rt_sigaction,
    nr::__NR_rt_sigprocmask,
    nr::__NR_rt_sigreturn,
    nr::__NR_sigaltstack,
    nr::__NR_restart_syscall,
    nr::__NR_membarrier,
    // Children that it had before.
    nr::__NR_wait4,
    nr::__NR_waitid,
    // Time, random numbers, and its own identity.
    nr::__NR_clock_gettime,
    nr::__NR_clock_nanosleep,
    nr::__NR_nanosleep,
    nr::__NR_getrandom,
    nr::__NR_getuid,
    nr::__NR_geteuid,
    nr::__NR_getgid,
    nr::__NR_getegid,
    nr::__NR_sysinfo,
    nr::__NR_uname,
];

/// Calls that open, list or change what has a path, and are refused to a process that needs none. The kind of `stat`
/// stays, for it also tells a descriptor's size.
const PATH_CALLS: &[u32] = &[
    nr::__NR_openat,
    nr::__NR_getdents64,
    nr::__NR_readlinkat,
    nr::__NR_faccessat,
    nr::__NR_faccessat2,
    nr::__NR_fallocate,
    nr::__NR_ftruncate,
    nr::__NR_sync,
    nr::__NR_close_range,
];
#[cfg(target_arch = "x86_64")]
const OLD_PATH_CALLS: &[u32] = &[nr::__NR_readlink, nr::__NR_access];
#[cfg(not(target_arch = "x86_64"))]
const OLD_PATH_CALLS: &[u32] = &[];

/// The additional calls for deadlines: the capabilities tell why one was denied.
const DEADLINE_CALLS: &[u32] = &[nr::__NR_sched_getattr, nr::__NR_munlockall, nr::__NR_capget];

/// The additional calls for datagrams, besides `socket`.
const DATAGRAM_CALLS: &[u32] = &[nr::__NR_bind, nr::__NR_connect];
/// Domain and kind of `socket(2)`: IPv4 and IPv6 datagrams, routing netlink, which lists networks, and the socket on
/// which the C library asks for a network's number.
const DATAGRAM_SOCKETS: &[(u64, u64)] = &[(2, 2), (10, 2), (16, 2), (16, 3), (AF_UNIX, 2)];
/// `ioctl`: the number of a network.
const SIOCGIFINDEX: u64 = 0x8933;
/// The bits of a socket's kind that are not flags.
const SOCKET_KIND: u64 = 0xf;
/// `socketpair(2)`: within this process, or to the process that is passed an end.
const AF_UNIX: u64 = 1;
const SOCK_STREAM: u64 = 1;
const SOCK_SEQPACKET: u64 = 5;
/// `setpriority(2)`: of a process or thread, and of the caller if its number is 0.
const PRIO_PROCESS: u64 = 0;

/// Calls that newer systems have only under another number.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[u32] =
    &[nr::__NR_poll, nr::__NR_epoll_wait, nr::__NR_readlink, nr::__NR_access, nr::__NR_stat, nr::__NR_lstat];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[u32] = &[];

/// `ioctl` by its second argument under a mask: usbfs, discarding on a block device, a block device's sector sizes, and
/// what is set of a terminal.
const IOCTLS: &[(u64, u64)] = &[
    (0xff00, b'U' as u64 * 0x100),
    (!0, BLKDISCARD),
    (!0, BLKZEROOUT),
    (!0, BLKSSZGET),
    (!0, BLKPBSZGET),
    (!0, FIONBIO),
    (!0, TCGETS),
    (!0, TCGETS2),
    (!0, SIOCOUTQ),
];
const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;
const BLKSSZGET: u64 = 0x1268;
const BLKPBSZGET: u64 = 0x127b;
/// The standard library uses it to make a socket block or not.
const FIONBIO: u64 = 0x5421;
/// Whether sent data has been read: [`unread`](farbus_io_net::sys::unread).
const SIOCOUTQ: u64 = 0x5411;
/// A log asks it of its terminal.
const TCGETS: u64 = 0x5401;
/// What a program has set of a serial port's terminal: [`terminal`](super::terminal).
const TCGETS2: u64 = 0x802c_542a;
/// `prctl`: the name and the timer slack of a thread.
const PRCTLS: &[u64] = &[15, 29];
/// `openat` by its flags: for writing, for a new file, with or without a name, or to make one shorter. Who owns a file
/// may write it by its modes, and a kernel without landlock checks nothing else.
const WRITING: u64 = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20_000_000;
/// `clone`: into the same thread group, as every thread and no process does.
const CLONE_THREAD: u64 = 0x0001_0000;

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn restrict_calls(needs: &ConfinementNeeds) -> Result<(), ConfineError> {
    let limit = rustix::process::getrlimit(Resource::Core);
    rustix::process::setrlimit(Resource::Core, rustix::process::Rlimit { current: Some(0), ..limit })
        .map_err(failed("forbid memory dumps"))?;
    for program in [unknown_call(nr::__NR_clone3), allowed_calls(needs)] {
        let program = program.map_err(failed("build the filter of system calls"))?;
        seccompiler::apply_filter(&program).map_err(failed("apply the filter of system calls"))?;
    }
    Ok(())
}

/// Answers this call as if the kernel did not know it: the caller then uses another call. Its arguments are in memory,
/// which a filter cannot read.
pub(super) fn unknown_call(call: u32) -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = BTreeMap::from([(i64::from(call), Vec::new())]);
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(ENOSYS), arch()?)?.try_into()
}

fn allowed_calls(needs: &ConfinementNeeds) -> Result<BpfProgram, seccompiler::BackendError> {
    let deadlines = DEADLINE_CALLS.iter().filter(|_| needs.deadlines);
    let datagrams = DATAGRAM_CALLS.iter().filter(|_| needs.datagrams);
    let has_no_paths = needs.has_no_paths && needs.readable.is_empty() && needs.state.is_none();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS
        .iter()
        .chain(OLD_CALLS)
        .chain(datagrams)
        .chain(deadlines)
        .filter(|call| !(has_no_paths && PATH_CALLS.iter().chain(OLD_PATH_CALLS).any(|path_call| path_call == *call)))
        .map(|&call| (i64::from(call), Vec::new()))
        .collect();
    if needs.datagrams {
        let sockets = DATAGRAM_SOCKETS.iter().map(|&(domain, kind)| {
            let is_domain = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, domain)?;
            let is_kind = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?;
            SeccompRule::new(vec![is_domain, is_kind])
        });
        rules.insert(nr::__NR_socket.into(), sockets.collect::<Result<_, _>>()?);
    }
    // No datagram sockets: these can address a path with each datagram, and landlock does not check where it leads.
    let pairs = [SOCK_STREAM, SOCK_SEQPACKET].into_iter().map(|kind| {
        let is_local = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, AF_UNIX)?;
        let is_kind = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?;
        SeccompRule::new(vec![is_local, is_kind])
    });
    rules.insert(nr::__NR_socketpair.into(), pairs.collect::<Result<_, _>>()?);
    if !has_no_paths {
        rules.insert(nr::__NR_openat.into(), vec![only(2, SeccompCmpArgLen::Dword, WRITING, 0)?]);
    }
    rules.insert(nr::__NR_fcntl.into(), vec![no_signals_by_fcntl()?]);
    // Other instances of farbus may run as the same user: only signals to this process are allowed, as when it aborts.
    rules.insert(nr::__NR_tgkill.into(), vec![only(0, SeccompCmpArgLen::Dword, !0, std::process::id().into())?]);
    // A thread that copies a disk in the background lowers its own priority; no thread can raise it again.
    let is_thread = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, PRIO_PROCESS)?;
    let is_own = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    rules.insert(nr::__NR_setpriority.into(), vec![SeccompRule::new(vec![is_thread, is_own])?]);
    // A thread gives back the deadline that the broker asked for.
    let is_own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    let is_ordinary = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, ORDINARY_AGAIN as u64)?;
    rules.insert(nr::__NR_sched_setscheduler.into(), vec![SeccompRule::new(vec![is_own, is_ordinary])?]);
    if needs.deadlines {
        rules.insert(nr::__NR_sched_setattr.into(), vec![only(0, SeccompCmpArgLen::Dword, !0, 0)?]);
    }
    let of_networks = [(!0, SIOCGIFINDEX)].into_iter().filter(|_| needs.datagrams);
    let ioctls =
        IOCTLS.iter().copied().chain(of_networks).map(|(mask, value)| only(1, SeccompCmpArgLen::Dword, mask, value));
    rules.insert(nr::__NR_ioctl.into(), ioctls.collect::<Result<_, _>>()?);
    let prctls = PRCTLS.iter().map(|&value| only(0, SeccompCmpArgLen::Dword, !0, value));
    rules.insert(nr::__NR_prctl.into(), prctls.collect::<Result<_, _>>()?);
    rules.insert(nr::__NR_clone.into(), vec![only(0, SeccompCmpArgLen::Qword, CLONE_THREAD, CLONE_THREAD)?]);
    // Its own limits may be read; none may be set.
    rules.insert(nr::__NR_prlimit64.into(), vec![only(2, SeccompCmpArgLen::Qword, !0, 0)?]);
    SeccompFilter::new(rules, SeccompAction::Errno(EPERM), SeccompAction::Allow, arch()?)?.try_into()
}

/// `fcntl` without the commands that make the kernel signal a process named by the caller.
pub(super) fn no_signals_by_fcntl() -> Result<SeccompRule, seccompiler::BackendError> {
    let is_other =
        |&command: &u32| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(command));
    SeccompRule::new(SIGNAL_COMMANDS.iter().map(is_other).collect::<Result<_, _>>()?)
}

/// `F_SETOWN`, `F_SETSIG`, `F_SETOWN_EX`, `F_SETLEASE`, `F_NOTIFY` (fcntl(2)).
pub(super) const SIGNAL_COMMANDS: &[u32] = &[8, 10, 15, 1024, 1026];

/// A rule for a call whose argument, under `mask`, is `value`.
fn only(argument: u8, len: SeccompCmpArgLen, mask: u64, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let mask = if matches!(len, SeccompCmpArgLen::Dword) { mask & u64::from(u32::MAX) } else { mask };
    SeccompRule::new(vec![SeccompCondition::new(argument, len, SeccompCmpOp::MaskedEq(mask), value)?])
}

fn arch() -> Result<TargetArch, seccompiler::BackendError> {
    std::env::consts::ARCH.try_into()
}

#[cfg(test)]
#[path = "confine_tests.rs"]
mod tests;
