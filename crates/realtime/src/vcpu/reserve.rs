//! What a virtual CPU is promised, and how it may take too much.

/// Execution time each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Execution time, `C`, in nanoseconds.
    pub budget_ns: u64,
    /// Period, `T`, in nanoseconds.
    pub period_ns: u64,
}

/// A server ran for longer than its budget. The surplus is charged to its own future, nobody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// By how much, in nanoseconds.
    pub by_ns: u64,
}
