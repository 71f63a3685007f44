//! What a rule has to say about a line.

use std::fmt;

/// A line that breaks a rule. Violations sort by file, then line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, relative to the workspace.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The rule's name, as the table in `tidy` lists it.
    pub rule: &'static str,
    /// What is wrong and what to do about it.
    pub advice: String,
}

impl Violation {
    pub fn new(file: impl Into<String>, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Violation { file: file.into(), line: line.max(1), rule, advice: advice.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.rule, self.advice)
    }
}
