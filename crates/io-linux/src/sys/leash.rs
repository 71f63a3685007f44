//! Processes that end together with the process that started them.
//!
//! | which process is killed | what ends the rest |
//! |---|---|
//! | the one that a supervisor serves | the supervisor sees the end of a pipe, and kills what it started |
//! | the supervisor | the kernel sends its child the signal that the child asked for ([`die_with_supervisor`]) |
//! | that child, as the first of a PID namespace | the kernel kills every other process of the namespace ([`own_pid_namespace`]) |

#![allow(unsafe_code, reason = "a call that is safe for one of its flags alone")]

use std::fs::File;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// Makes the next process that this one starts the first of a PID namespace; when that process ends, the kernel ends
/// all others in it. This process can start no thread afterwards.
///
/// # Errors
/// The system's error: root may not always do this.
pub fn own_pid_namespace() -> std::io::Result<()> {
    // SAFETY: the namespace of future processes is unshared; memory, descriptors and this process's own id stay as they
    // are.
    unsafe {
        rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWPID)?;
    }
    Ok(())
}

/// Has this process, and the program that it becomes, told of its parent's end by the signal for a lost terminal, which
/// ends a program that does not handle it. A parent that has ended before is not noticed.
///
/// # Errors
/// The system's error.
pub fn hang_up_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::HUP))?)
}

/// Call this in the process that is to become the program, as the user that it stays: the process ends with its
/// supervisor, also if the supervisor has ended already.
///
/// # Errors
/// The system's error; `BrokenPipe` if the supervisor has ended.
pub fn die_with_supervisor() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A process closes its descriptors before its children are told of its end: if it still has the pipe, the signal
    // will arrive.
    let mut pipe = [PollFd::from_borrowed_fd(rustix::stdio::stderr(), PollFlags::IN)];
    poll(&mut pipe, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if pipe[0].revents().contains(PollFlags::HUP) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}
