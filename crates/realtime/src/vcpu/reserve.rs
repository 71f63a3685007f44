//! The reserve of a virtual CPU, and its overrun.

/// Execution time each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuReserve {
    /// Execution time, `C`, in nanoseconds.
    pub budget_ns: u64,
    /// Period, `T`, in nanoseconds.
    pub period_ns: u64,
}

/// A server ran for longer than its budget. The excess is charged to its own future budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetOverrun {
    /// By how much, in nanoseconds.
    pub by_ns: u64,
}
