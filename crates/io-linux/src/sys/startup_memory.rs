//! Memory that only the start of a process needed, or what it does rarely.

#![allow(unsafe_code, reason = "the ends of the program's code are symbols of the linker's")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, ptr, thread};

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// When the first requests of a user are over.
const SOON: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 64 << 10;

static IS_PERMITTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// Where the program begins in memory.
    static __executable_start: u8;
    /// The end of its code. Between the two nothing is written: the kernel can read all of it again from the file.
    static etext: u8;
}

/// Gives back what only the start of this process needed: the mapped pages of the program's own code.
///
/// The kernel maps a neighbourhood of each function that is called, so that an idle process has most of the program in
/// memory for what it did once. What is called again is mapped again, by one fault a neighbourhood. Memory that is
/// locked stays, and so does the code of a process that sees that it is traced: its debugger has written into it. (One
/// that is confined does not see it: `--no-sandbox` is what is debugged.)
pub fn give_back() {
    if !is_traced() {
        // Memory that is locked is refused, and stays.
        let _ = forget_code();
    }
}

/// Permits [`give_back_soon`]: the code is that of farbus's own program, and of no other one that uses its library.
pub fn permit() {
    IS_PERMITTED.store(true, Ordering::Release);
}

/// As [`give_back`], a second later and on a thread of its own: the user of what this process has begun makes first
/// requests now, and would wait for their code to be mapped again. Until then further calls do nothing, and
/// neither do any before [`permit`].
pub fn give_back_soon() {
    static IS_DUE: AtomicBool = AtomicBool::new(false);
    if !IS_PERMITTED.load(Ordering::Acquire) || IS_DUE.swap(true, Ordering::AcqRel) {
        return;
    }
    let later = || {
        thread::sleep(SOON);
        IS_DUE.store(false, Ordering::Release);
        give_back();
    };
    // Without a further thread it stays.
    if thread::Builder::new().name("startup-memory".into()).stack_size(STACK_BYTES).spawn(later).is_err() {
        IS_DUE.store(false, Ordering::Release);
    }
}

fn is_traced() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).is_some_and(|pid| pid.trim() != "0")
}

fn forget_code() -> rustix::io::Result<()> {
    let (start, end) = (&raw const __executable_start, &raw const etext);
    // The last page may hold other things behind the code.
    let bytes = (end.addr() - start.addr()) / page_size() * page_size();
    // SAFETY: these pages are of the program's file and are only read and executed, and the same bytes are found again.
    unsafe { madvise(ptr::without_provenance_mut(start.addr()), bytes, Advice::LinuxDontNeed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this program's file that are mapped and in memory.
    fn resident_bytes_of_code() -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_code = false;
        let mut kib = 0;
        for line in maps.lines() {
            if let Some((_, rest)) = line.split_once(" r-xp ") {
                is_code = rest.ends_with(std::env::current_exe().unwrap().to_str().unwrap());
            } else if let (true, Some(rss)) = (is_code, line.strip_prefix("Rss:")) {
                kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            } else if line.contains("-p ") && !line.starts_with(char::is_uppercase) {
                is_code = false;
            }
        }
        kib << 10
    }

    #[test]
    fn code_that_was_given_back_is_there_when_it_is_called() {
        let before = resident_bytes_of_code();
        give_back();
        let after = resident_bytes_of_code();
        assert!(before > 0 && after < before, "{before} {after}");
        assert_eq!(format!("{:?}", Some([1.5, 2.5])), "Some([1.5, 2.5])");
    }
}
