//! How many descriptors this process may have (`RLIMIT_NOFILE`).
//!
//! Each connection, device and wait of farbus needs some. The soft limit is 1,024 on most systems, for programs that
//! use `select`; farbus does not, so it raises its own to the hard one.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of descriptors of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// How many it may have now; `None`: any number.
    pub soft: Option<u64>,
    /// How many it may allow itself; `None`: any number.
    pub hard: Option<u64>,
}

/// Whether this is the error of a process, or a system, that has as many descriptors as it may.
pub fn are_used_up(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The limit as it is.
pub fn limit() -> DescriptorLimit {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    DescriptorLimit { soft: current, hard: maximum }
}

/// Raises the soft limit to the hard one. Returns the limit that holds then.
pub fn raise() -> DescriptorLimit {
    let before = limit();
    if before.soft != before.hard {
        // What may not be raised stays as it was, and is returned so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: before.hard, maximum: before.hard });
    }
    limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_may_have_as_many_descriptors_as_its_hard_limit_allows() {
        let before = limit();
        let raised = raise();
        assert_eq!(raised.soft, raised.hard);
        assert_eq!(raised.hard, before.hard);
    }
}
