//! The committed figures: `xtask/instructions.toml`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// Where the figures are.
pub const FILE: &str = "xtask/instructions.toml";
/// Percent of a figure that a count may be off where the file says nothing else. Runs and folders differ by a hundredth
/// of a percent; the rest is for changes that nobody would look for, and for another version of the C library.
const ALLOWED_PERCENT: f64 = 3.0;
const HEAD: &str = "\
# Instructions that a request takes in each scenario of crates/sim/examples/instructions, as `cargo xtask instructions`
# counts them. `cargo xtask instructions --bless` writes this file. `allowed_percent` is 3 unless a scenario has another.
";

/// The figures of all scenarios, in the order of their names.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionFigures {
    #[serde(default)]
    scenario: Vec<ScenarioFigure>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFigure {
    name: String,
    /// Instructions a request.
    instructions: u64,
    /// Percent that a count may be above or below.
    allowed_percent: Option<f64>,
}

impl InstructionFigures {
    /// Reads them; there are none where there is no file.
    ///
    /// # Errors
    /// The file says something that nobody understands.
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(root.join(FILE)).unwrap_or_default();
        toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))
    }

    fn of(&self, scenario: &str) -> Option<&ScenarioFigure> {
        self.scenario.iter().find(|figure| figure.name == scenario)
    }

    /// Instructions a request.
    pub fn figure(&self, scenario: &str) -> Option<u64> {
        self.of(scenario).map(|figure| figure.instructions)
    }

    /// Percent that a count may be above or below its figure.
    pub fn allowed_percent(&self, scenario: &str) -> f64 {
        self.of(scenario).and_then(|figure| figure.allowed_percent).unwrap_or(ALLOWED_PERCENT)
    }

    /// Whether a count is as near to its figure as it has to be.
    pub fn allows(&self, scenario: &str, count: u64) -> bool {
        let allowed = self.allowed_percent(scenario) / 100.0;
        self.figure(scenario).is_some_and(|figure| count.abs_diff(figure) as f64 <= figure as f64 * allowed)
    }

    /// Writes down a count.
    pub fn set(&mut self, scenario: &str, instructions: u64) {
        match self.scenario.iter_mut().find(|figure| figure.name == scenario) {
            Some(figure) => figure.instructions = instructions,
            None => {
                self.scenario.push(ScenarioFigure { name: scenario.to_owned(), instructions, allowed_percent: None });
            }
        }
    }

    /// Drops the figures of scenarios that are no more.
    ///
    /// # Errors
    /// There are some, and they are not to be dropped.
    pub fn keep(&mut self, scenarios: &[&str], may_drop: bool) -> Result<(), String> {
        let is_there = |figure: &ScenarioFigure| scenarios.contains(&figure.name.as_str());
        match self.scenario.iter().find(|figure| !is_there(figure)).filter(|_| !may_drop) {
            Some(gone) => Err(format!(
                "{FILE} has a figure of {}, which is no scenario; type:\n  cargo xtask instructions --bless",
                gone.name
            )),
            None => {
                self.scenario.retain(is_there);
                Ok(())
            }
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, root: &Path) -> Result<(), String> {
        fs::write(root.join(FILE), self.text()).map_err(|error| format!("cannot write {FILE}: {error}"))
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for ScenarioFigure { name, instructions, allowed_percent } in &self.scenario {
            let _ = write!(text, "\n[[scenario]]\nname = \"{name}\"\ninstructions = {instructions}\n");
            if let Some(percent) = allowed_percent {
                let _ = writeln!(text, "allowed_percent = {percent:?}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_may_be_three_percent_off_in_both_directions_unless_the_file_says_more() {
        let text = "[[scenario]]\nname = \"a\"\ninstructions = 1000\n\n\
                    [[scenario]]\nname = \"b\"\ninstructions = 1000\nallowed_percent = 10.0\n";
        let figures: InstructionFigures = toml::from_str(text).unwrap();
        assert_eq!([969, 970, 1030, 1031].map(|count| figures.allows("a", count)), [false, true, true, false]);
        assert!(figures.allows("b", 1100) && !figures.allows("c", 1));
        assert_eq!(figures.text(), format!("{HEAD}\n{text}"));
    }

    #[test]
    fn blessing_keeps_what_is_allowed_and_drops_scenarios_that_are_no_more() {
        let text = "[[scenario]]\nname = \"a\"\ninstructions = 1\nallowed_percent = 5.0\n";
        let mut figures: InstructionFigures = toml::from_str(text).unwrap();
        figures.set("a", 2);
        figures.set("b", 3);
        assert_eq!((figures.figure("a"), figures.allowed_percent("a"), figures.figure("b")), (Some(2), 5.0, Some(3)));
        assert!(figures.keep(&["b"], false).unwrap_err().contains("figure of a"));
        assert_eq!((figures.keep(&["b"], true), figures.figure("a")), (Ok(()), None));
    }
}
