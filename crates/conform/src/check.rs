//! Checks and what became of them.

/// How much a claim binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Peers break without it.
    Must,
    /// Peers work without it, slower or by luck.
    Should,
}

impl Severity {
    /// `must` or `should`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Must => "must",
            Severity::Should => "should",
        }
    }
}

/// A check: its name, which stays, and what it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name; never used for another claim.
    pub id: &'static str,
    /// A sentence that can be false.
    pub claim: &'static str,
    /// Where it is written: a clause of a specification, a requirement, a fault that was seen.
    pub source: &'static str,
    /// How much it binds.
    pub severity: Severity,
}

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The claim held.
    Pass,
    /// It was seen to be false.
    Fail,
    /// The peer's device cannot show it.
    NotApplicable,
    /// It was not tried.
    Skipped,
}

impl Verdict {
    /// The word in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::NotApplicable => "not applicable",
            Verdict::Skipped => "skipped",
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Result {
    /// What was checked.
    pub check: Check,
    /// What became of it.
    pub verdict: Verdict,
    /// What was seen, or why it was not tried.
    pub seen: String,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The results, in the order of the checks.
    pub results: Vec<Result>,
}

impl Report {
    /// How many checks of this severity ended so.
    pub fn count(&self, severity: Severity, verdict: Verdict) -> usize {
        self.results.iter().filter(|r| r.check.severity == severity && r.verdict == verdict).count()
    }

    /// Whether no claim that binds was seen to be false.
    pub fn conforms(&self) -> bool {
        self.count(Severity::Must, Verdict::Fail) == 0
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.results.iter().filter(|r| r.verdict == Verdict::Fail).map(|r| r.check.id).collect()
    }
}

/// Why a check ended without a pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The claim is false; holds what was seen.
    Fail(String),
    /// The device cannot show it; holds why.
    NotApplicable(String),
    /// It was not tried; holds why.
    Skip(String),
}

/// What a check returns: what was seen, or why it stopped.
pub(crate) type Seen = std::result::Result<String, Stop>;

impl Stop {
    pub fn fail(seen: impl Into<String>) -> Self {
        Stop::Fail(seen.into())
    }

    pub fn not_applicable(why: impl Into<String>) -> Self {
        Stop::NotApplicable(why.into())
    }
}

/// The line of a report for a check that returned this.
pub(crate) fn line(check: Check, seen: Seen) -> Result {
    let (verdict, seen) = match seen {
        Ok(seen) => (Verdict::Pass, seen),
        Err(Stop::Fail(seen)) => (Verdict::Fail, seen),
        Err(Stop::NotApplicable(why)) => (Verdict::NotApplicable, why),
        Err(Stop::Skip(why)) => (Verdict::Skipped, why),
    };
    Result { check, verdict, seen }
}

/// A check and the function that tries it.
pub(crate) struct Entry<R> {
    pub check: Check,
    pub run: R,
}

/// A row of a table of checks: a claim that binds.
pub(crate) const fn must<R: Copy>(id: &'static str, claim: &'static str, source: &'static str, run: R) -> Entry<R> {
    Entry { check: Check { id, claim, source, severity: Severity::Must }, run }
}

/// A row of a table of checks: a claim without which peers still work.
pub(crate) const fn should<R: Copy>(id: &'static str, claim: &'static str, source: &'static str, run: R) -> Entry<R> {
    Entry { check: Check { id, claim, source, severity: Severity::Should }, run }
}

/// A check that the device cannot show.
pub(crate) fn not_applicable(why: impl Into<String>) -> Stop {
    Stop::not_applicable(why)
}

/// Whether a check was chosen by name; without names all are.
pub(crate) fn is_chosen(only: &[String], id: &str) -> bool {
    only.is_empty() || only.iter().any(|name| name == id)
}
