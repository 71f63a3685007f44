//! What a program gets that is run as a module: memory, what it was started with, and nothing else (U10, requirement I3).
//!
//! | layer | what it takes away |
//! |---|---|
//! | capabilities, `no_new_privs` | root's powers, setuid programs |
//! | landlock | all files but the system's programs and libraries and its own, to be read; connections, signals to others |
//! | seccomp | new sockets, other processes' memory, mounts, namespaces, keys, the kernel's own switches |
//! | limits | memory, open files, files that grow, memory dumps |
//!
//! A filter of what is forbidden, because what a program's language needs is not known here; landlock is what stands behind it, and a
//! kernel without it is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope,
};
use linux_raw_sys::general as nr;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Why a program is not run: a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError(String);

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProgramError {}

/// Memory of a module: the longest message a few times, and its language's runtime.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
const OPEN_FILES_MAX: u64 = 32;

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
    nr::__NR_mount,
    nr::__NR_umount2,
    nr::__NR_move_mount,
    nr::__NR_open_tree,
    nr::__NR_fsopen,
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
    // Holes in memory that is shared; `MADV_REMOVE` is the other way to make them.
    nr::__NR_fallocate,
];

/// The argument of `madvise` that says what is to become of the memory.
const ADVICE: u8 = 2;

const EPERM: u32 = 1;

/// Takes this process's rights, before it becomes `program`.
///
/// # Errors
/// [`ProgramError`]: a layer is missing; nothing is to be run then.
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
        // What is left of root is the owner of root's files; landlock says which of them.
        for capability in CapabilitySet::all().iter() {
            // Those that this kernel has.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).map_err(failed("drop capabilities"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    restrict_files(program).map_err(ProgramError)?;
    let filter = forbidden_calls().and_then(forbidding);
    let filter = filter.map_err(|error| ProgramError(format!("cannot build the filter of system calls: {error}")))?;
    seccompiler::apply_filter(&filter)
        .map_err(|error| ProgramError(format!("cannot apply the filter of system calls: {error}")))
}

fn forbidden_calls() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<_, _> = FORBIDDEN.iter().map(|&call| (i64::from(call), Vec::new())).collect();
    let removes = SeccompCondition::new(ADVICE, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(nr::MADV_REMOVE))?;
    rules.insert(nr::__NR_madvise.into(), vec![SeccompRule::new(vec![removes])?]);
    Ok(rules)
}

fn forbidding(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EPERM), arch)?.try_into()
}

/// The newest rules that are known here; an older kernel takes those that it knows.
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
