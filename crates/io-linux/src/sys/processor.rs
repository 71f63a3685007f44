//! On which processor a thread runs.

use std::{fs, io};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The place of a thread's last processor after its name (`proc_pid_stat(5)`, field 39).
const AFTER_NAME: usize = 36;

/// The processor on which a thread ran last; `None` if there is no such thread, or it is hidden.
pub fn last_of(thread: u32) -> Option<usize> {
    processor(&fs::read_to_string(format!("/proc/{thread}/stat")).ok()?)
}

/// A name may contain blanks and brackets.
fn processor(stat: &str) -> Option<usize> {
    stat.rsplit_once(") ")?.1.split(' ').nth(AFTER_NAME)?.trim_end().parse().ok()
}

/// The processors on which the thread that made this may run.
#[derive(Debug)]
pub struct AllowedProcessors {
    all: CpuSet,
}

impl AllowedProcessors {
    /// Those of the calling thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn of_this_thread() -> io::Result<Self> {
        Ok(Self { all: sched_getaffinity(None)? })
    }

    /// The calling thread runs only on this one from now on.
    ///
    /// # Errors
    /// EINVAL if it is not one of them; the system's error.
    pub fn keep_to(&self, processor: usize) -> io::Result<()> {
        if processor >= CpuSet::MAX_CPU || !self.all.is_set(processor) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let mut one = CpuSet::new();
        one.set(processor);
        Ok(sched_setaffinity(None, &one)?)
    }

    /// The calling thread runs on any of them.
    ///
    /// # Errors
    /// The system's error.
    pub fn use_all(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.all)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_keeps_to_one_processor_is_found_there_until_it_uses_all() {
        let all = AllowedProcessors::of_this_thread().unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        for one in (0..CpuSet::MAX_CPU).filter(|one| all.all.is_set(*one)) {
            all.keep_to(one).unwrap();
            assert_eq!(last_of(own), Some(one));
        }
        all.use_all().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), all.all);
        let absent = (0..=CpuSet::MAX_CPU).find(|one| *one == CpuSet::MAX_CPU || !all.all.is_set(*one)).unwrap();
        assert_eq!(all.keep_to(absent).unwrap_err().raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
    }

    #[test]
    fn a_name_with_brackets_does_not_move_the_fields() {
        let fields = (3..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(processor(&format!("7 (a) b) (c) {fields}\n")), Some(39));
        assert_eq!(processor(""), None);
    }
}
