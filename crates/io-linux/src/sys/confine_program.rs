//! Confines a program that runs as a module: it gets memory, what it was started with, and nothing else (U10,
//! requirement I3).
//!
//! | layer | what it takes away |
//! |---|---|
//! | user, capabilities, `no_new_privs` | root's identity and powers (it becomes a user that owns nothing, [`accounts`](farbus_io_net::sys::accounts)), setuid programs |
//! | landlock | all files except the system's programs and libraries and its own, which it may read; connections, signals to other processes |
//! | seccomp | new sockets, other processes' memory, signals to other processes, mounts, namespaces, keys, the kernel's own switches; changes to what a path leads to, where landlock does not check |
//! | limits | memory, open files, growing files, memory dumps, and for root's modules the number of processes and threads |
//! | processes | it ends with its supervisor, and so does all that it started: it runs in a PID namespace of its own, or may start no process |
//!
//! The filter lists what is forbidden, because the needs of a program's language are not known here. Landlock is the
//! second line of defence, so a kernel without it is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use farbus_io_net::sys::accounts::module_user;
use farbus_io_net::sys::acting::as_user;
use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope,
};
use linux_raw_sys::general as nr;
use rustix::fs::{Access as FileAccess, AtFlags, CWD};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use super::confine::{SIGNAL_COMMANDS, unknown_call};
use super::leash::die_with_supervisor;

/// Why a program is not run: a message for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError(String);

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProgramError {}

/// The memory of a module: several times the longest message, and its language's runtime.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
const OPEN_FILES_MAX: u64 = 32;
/// The processes and threads of all modules that root's farbus runs on this machine, since they are one user's.
const PROCESSES_MAX: u64 = 1024;

/// Where programs and their libraries lie, and what the loader reads.
const SYSTEM: [&str; 9] =
    ["/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime", "/dev/null"];

const FORBIDDEN: &[u32] = &[
    nr::__NR_socket,
    nr::__NR_socketpair,
    nr::__NR_connect,
    nr::__NR_bind,
    nr::__NR_listen,
    nr::__NR_accept,
    nr::__NR_accept4,
    nr::__NR_ptrace,
    nr::__NR_process_vm_readv,
    nr::__NR_process_vm_writev,
    nr::__NR_pidfd_getfd,
    nr::__NR_pidfd_send_signal,
    nr::__NR_kill,
    nr::__NR_rt_sigqueueinfo,
    nr::__NR_process_madvise,
    nr::__NR_mount,
    nr::__NR_umount2,
    nr::__NR_move_mount,
    nr::__NR_mount_setattr,
    nr::__NR_open_tree,
    nr::__NR_fsopen,
    nr::__NR_fsconfig,
    nr::__NR_fsmount,
    nr::__NR_fspick,
    // These change what a path leads to, and landlock does not check (landlock(7), "Current limitations").
    nr::__NR_fchmodat,
    nr::__NR_fchmodat2,
    nr::__NR_fchownat,
    nr::__NR_fchown,
    nr::__NR_utimensat,
    nr::__NR_setxattr,
    nr::__NR_lsetxattr,
    nr::__NR_fsetxattr,
    nr::__NR_setxattrat,
    nr::__NR_removexattr,
    nr::__NR_lremovexattr,
    nr::__NR_fremovexattr,
    nr::__NR_removexattrat,
    nr::__NR_name_to_handle_at,
    nr::__NR_open_by_handle_at,
    nr::__NR_acct,
    nr::__NR_quotactl,
    // Memory and queues that other processes can find, and that persist.
    nr::__NR_shmget,
    nr::__NR_semget,
    nr::__NR_msgget,
    nr::__NR_mq_open,
    nr::__NR_pivot_root,
    nr::__NR_chroot,
    nr::__NR_unshare,
    nr::__NR_setns,
    nr::__NR_bpf,
    nr::__NR_perf_event_open,
    nr::__NR_userfaultfd,
    nr::__NR_io_uring_setup,
    nr::__NR_add_key,
    nr::__NR_request_key,
    nr::__NR_keyctl,
    nr::__NR_init_module,
    nr::__NR_finit_module,
    nr::__NR_delete_module,
    nr::__NR_kexec_load,
    nr::__NR_reboot,
    nr::__NR_swapon,
    nr::__NR_swapoff,
    nr::__NR_settimeofday,
    nr::__NR_clock_settime,
    nr::__NR_sethostname,
    // Holes in shared memory; `MADV_REMOVE` is the other way to make them.
    nr::__NR_fallocate,
];

/// Calls that newer systems have only under another number.
#[cfg(target_arch = "x86_64")]
const OLD_FORBIDDEN: &[u32] = &[
    nr::__NR_chmod,
    nr::__NR_chown,
    nr::__NR_lchown,
    nr::__NR_utime,
    nr::__NR_utimes,
    nr::__NR_futimesat,
    nr::__NR_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FORBIDDEN: &[u32] = &[];

/// The calls that start a process, besides `clone` and `clone3`.
#[cfg(target_arch = "x86_64")]
const FORKS: &[u32] = &[nr::__NR_fork, nr::__NR_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORKS: &[u32] = &[];

/// The argument of `madvise` that contains the advice.
const ADVICE: u8 = 2;

/// `prctl`: the signal at the parent's death, with which the supervisor ends it.
const PR_SET_PDEATHSIG: u64 = 1;
/// `clone`: into the same thread group, as every thread and no process does.
const CLONE_THREAD: u64 = 0x0001_0000;
/// x86-64 adds this to the call numbers of its third interface (x32), which would pass a filter of forbidden calls.
const X32: u32 = 0x4000_0000;

const EPERM: u32 = 1;

/// Whether this process is the first of its PID namespace.
fn is_first() -> bool {
    rustix::process::getpid() == rustix::process::Pid::INIT
}

/// Checks that `program` can run as a module if root runs farbus: the modules' user, who owns nothing, has to be able
/// to read and run it.
///
/// # Errors
/// [`ProgramError`], which says what to type.
pub fn check_program(program: &Path) -> Result<(), ProgramError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = module_user();
    let may = as_user(user, group, || {
        rustix::fs::accessat(CWD, program, FileAccess::READ_OK | FileAccess::EXEC_OK, AtFlags::EACCESS)
    });
    let may = may.map_err(|error| ProgramError(format!("cannot become the user of modules: {error}")))?;
    may.map_err(|errno| {
        ProgramError(format!(
            "modules run as user {}, who cannot run it ({errno})\n  type: chmod o+rx {}, and chmod o+x each folder above it",
            user.as_raw(),
            program.display()
        ))
    })
}

/// Gives up this process's rights, before it becomes `program`.
///
/// # Errors
/// [`ProgramError`]: a layer is missing; the program must not be run then.
pub fn confine_for(program: &Path) -> Result<(), ProgramError> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| ProgramError(format!("cannot {what}: {error}"));
    for (resource, max) in [
        (Resource::As, MEMORY_BYTES_MAX),
        (Resource::Nofile, OPEN_FILES_MAX),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ] {
        setrlimit(resource, Rlimit { current: Some(max), maximum: Some(max) }).map_err(failed("limit it"))?;
    }
    if rustix::process::geteuid().is_root() {
        let processes = Rlimit { current: Some(PROCESSES_MAX), maximum: Some(PROCESSES_MAX) };
        setrlimit(Resource::Nproc, processes).map_err(failed("limit it"))?;
        for capability in CapabilitySet::all().iter() {
            // Capabilities that this kernel does not know cannot be removed.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
        let (user, group) = module_user();
        rustix::thread::set_thread_groups(&[]).map_err(failed("leave root's groups"))?;
        rustix::thread::set_thread_res_gid(group, group, group).map_err(failed("leave root's group"))?;
        rustix::thread::set_thread_res_uid(user, user, user).map_err(failed("become another user"))?;
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).map_err(failed("drop capabilities"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    // Only now: the kernel forgets it when the user changes.
    die_with_supervisor().map_err(|error| ProgramError(format!("its supervisor is not there: {error}")))?;
    restrict_files(program).map_err(ProgramError)?;
    let may_fork = is_first();
    let filter = |filter: Result<BpfProgram, seccompiler::BackendError>| {
        let filter =
            filter.map_err(|error| ProgramError(format!("cannot build the filter of system calls: {error}")))?;
        seccompiler::apply_filter(&filter)
            .map_err(|error| ProgramError(format!("cannot apply the filter of system calls: {error}")))
    };
    filter(Ok(other_interfaces()))?;
    if !may_fork {
        filter(unknown_call(nr::__NR_clone3))?;
    }
    filter(forbidden_calls(may_fork).and_then(forbidding))
}

/// Refuses all calls by numbers of x32. Every other interface of the machine is another architecture to the filters,
/// which end the process.
fn other_interfaces() -> BpfProgram {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    vec![
        // The number is the first word of `seccomp_data` (seccomp(2)).
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, X32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | EPERM),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// The forbidden calls by number, with their conditions. A program that may start processes has a PID namespace of its
/// own, so that its signals reach only those.
fn forbidden_calls(may_fork: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<_, _> =
        FORBIDDEN.iter().chain(OLD_FORBIDDEN).map(|&call| (i64::from(call), Vec::new())).collect();
    let is = |argument, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    rules.insert(nr::__NR_prctl.into(), vec![SeccompRule::new(vec![is(0, PR_SET_PDEATHSIG)?])?]);
    let by_fcntl = SIGNAL_COMMANDS.iter().map(|&command| SeccompRule::new(vec![is(1, command.into())?]));
    rules.insert(nr::__NR_fcntl.into(), by_fcntl.collect::<Result<_, _>>()?);
    if !may_fork {
        rules.extend(FORKS.iter().map(|&call| (i64::from(call), Vec::new())));
        let makes_process = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(CLONE_THREAD), 0)?;
        rules.insert(nr::__NR_clone.into(), vec![SeccompRule::new(vec![makes_process])?]);
        rules.insert(nr::__NR_tkill.into(), Vec::new());
        let own = std::process::id().into();
        let to_others = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own)?;
        for call in [nr::__NR_tgkill, nr::__NR_rt_tgsigqueueinfo] {
            rules.insert(call.into(), vec![SeccompRule::new(vec![to_others.clone()])?]);
        }
    }
    let removes = SeccompCondition::new(ADVICE, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(nr::MADV_REMOVE))?;
    rules.insert(nr::__NR_madvise.into(), vec![SeccompRule::new(vec![removes])?]);
    Ok(rules)
}

fn forbidding(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EPERM), arch)?.try_into()
}

/// The newest rules that are known here; an older kernel applies those that it knows.
const LANDLOCK: ABI = ABI::V6;

fn restrict_files(program: &Path) -> Result<(), String> {
    let restrict = || -> Result<RulesetStatus, Box<dyn std::error::Error>> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        let system = SYSTEM.iter().map(Path::new).filter(|path| path.exists());
        for path in system.chain([program]) {
            let file = AccessFs::ReadFile | AccessFs::Execute;
            let access = if path.is_dir() { file | AccessFs::ReadDir } else { file };
            ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    };
    match restrict().map_err(|error| format!("cannot keep it from files: {error}"))? {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("this kernel has no landlock (5.13 and later do)".into()),
    }
}

#[cfg(test)]
#[path = "confine_program_tests.rs"]
mod tests;
