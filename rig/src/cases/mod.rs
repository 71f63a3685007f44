//! What the rig proves, one named case each.

mod kernel;

use crate::Result;
use crate::lab::Lab;

/// One proof. It returns a short note for the reader (a measured time, a count) when it holds.
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it proves, in one line.
    pub purpose: &'static str,
    /// The proof.
    pub run: fn(&Lab) -> Result<String>,
}

/// All cases, in the order in which a failure is best understood.
pub fn all() -> Vec<Case> {
    [kernel::CASES].into_iter().flatten().map(|case| Case { ..*case }).collect()
}
