//! Checks and what became of them.

/// How much a claim binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckSeverity {
    /// Peers break without it.
    Must,
    /// Peers work without it, slower or by luck.
    Should,
}

impl CheckSeverity {
    /// `must` or `should`.
    pub const fn as_str(self) -> &'static str {
        match self {
            CheckSeverity::Must => "must",
            CheckSeverity::Should => "should",
        }
    }
}

/// A check: its name, which stays, and what it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConformanceCheck {
    /// The name; never used for another claim.
    pub id: &'static str,
    /// A sentence that can be false.
    pub claim: &'static str,
    /// Where it is written: a clause of a specification, a requirement, a fault that was seen.
    pub source: &'static str,
    /// How much it binds.
    pub severity: CheckSeverity,
}

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckVerdict {
    /// The claim held.
    Pass,
    /// It was seen to be false.
    Fail,
    /// The peer's device cannot show it.
    NotApplicable,
    /// It was not tried.
    Skipped,
}

impl CheckVerdict {
    /// The word in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Fail => "fail",
            CheckVerdict::NotApplicable => "not applicable",
            CheckVerdict::Skipped => "skipped",
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// What was checked.
    pub check: ConformanceCheck,
    /// What became of it.
    pub verdict: CheckVerdict,
    /// What was seen, or why it was not tried.
    pub seen: String,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConformanceReport {
    /// The results, in the order of the checks.
    pub results: Vec<CheckResult>,
}

impl ConformanceReport {
    /// How many checks of this severity ended so.
    pub fn count(&self, severity: CheckSeverity, verdict: CheckVerdict) -> usize {
        self.results.iter().filter(|r| r.check.severity == severity && r.verdict == verdict).count()
    }

    /// Whether no claim that binds was seen to be false.
    pub fn conforms(&self) -> bool {
        self.count(CheckSeverity::Must, CheckVerdict::Fail) == 0
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.results.iter().filter(|r| r.verdict == CheckVerdict::Fail).map(|r| r.check.id).collect()
    }
}

/// Why a check ended without a pass.
#[derive(Debug)]
pub(crate) enum CheckStop {
    /// The claim is false; holds what was seen.
    Fail(String),
    /// The device cannot show it; holds why.
    NotApplicable(String),
    /// It was not tried; holds why.
    Skip(String),
}

/// What a check returns: what was seen, or why it stopped.
pub(crate) type CheckOutcome = std::result::Result<String, CheckStop>;

impl CheckStop {
    pub fn fail(seen: impl Into<String>) -> Self {
        CheckStop::Fail(seen.into())
    }

    pub fn not_applicable(why: impl Into<String>) -> Self {
        CheckStop::NotApplicable(why.into())
    }
}

/// The line of a report for a check that returned this.
pub(crate) fn line(check: ConformanceCheck, seen: CheckOutcome) -> CheckResult {
    let (verdict, seen) = match seen {
        Ok(seen) => (CheckVerdict::Pass, seen),
        Err(CheckStop::Fail(seen)) => (CheckVerdict::Fail, seen),
        Err(CheckStop::NotApplicable(why)) => (CheckVerdict::NotApplicable, why),
        Err(CheckStop::Skip(why)) => (CheckVerdict::Skipped, why),
    };
    CheckResult { check, verdict, seen }
}

/// A check and the function that tries it.
pub(crate) struct CheckEntry<R> {
    pub check: ConformanceCheck,
    pub run: R,
}

/// A row of a table of checks: a claim that binds.
pub(crate) const fn must<R: Copy>(
    id: &'static str,
    claim: &'static str,
    source: &'static str,
    run: R,
) -> CheckEntry<R> {
    CheckEntry { check: ConformanceCheck { id, claim, source, severity: CheckSeverity::Must }, run }
}

/// A row of a table of checks: a claim without which peers still work.
pub(crate) const fn should<R: Copy>(
    id: &'static str,
    claim: &'static str,
    source: &'static str,
    run: R,
) -> CheckEntry<R> {
    CheckEntry { check: ConformanceCheck { id, claim, source, severity: CheckSeverity::Should }, run }
}

/// A check that the device cannot show.
pub(crate) fn not_applicable(why: impl Into<String>) -> CheckStop {
    CheckStop::not_applicable(why)
}

/// Whether a check was chosen by name; without names all are.
pub(crate) fn is_chosen(only: &[String], id: &str) -> bool {
    only.is_empty() || only.iter().any(|name| name == id)
}
