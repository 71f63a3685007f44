//! The rows that `--quick` has on every machine that can run it: one that is gone is a loss that no other test sees.

use std::collections::BTreeSet;

use crate::run::ItemOutcome;

/// A row a line: item, colon, what. Rows that need a program of somebody else are not in it.
const ROWS: &str = include_str!("../rows.txt");

/// The rows of the list that these outcomes lack; items that were not chosen lack nothing.
pub fn missing(outcomes: &[ItemOutcome]) -> Vec<String> {
    let there: BTreeSet<String> = outcomes.iter().flat_map(lines).collect();
    let chosen: BTreeSet<String> = outcomes.iter().map(|outcome| outcome.item.name()).collect();
    let is_chosen = |row: &&str| row.split_once(": ").is_some_and(|(item, _)| chosen.contains(item));
    ROWS.lines().filter(is_chosen).filter(|row| !there.contains(*row)).map(str::to_owned).collect()
}

fn lines(outcome: &ItemOutcome) -> Vec<String> {
    outcome.rows().iter().map(|row| format!("{}: {}", outcome.item.name(), row.what)).collect()
}

#[cfg(test)]
mod tests {
    use farbus_bench::MeasurementPlan;

    use super::*;
    use crate::{
        item::{ItemEvidence, ItemSource, PaperItem},
        items,
        run::{ItemRunner, OutcomeState},
    };

    #[test]
    fn every_item_that_can_be_run_has_rows_in_the_list() {
        for item in items::all() {
            let begin = format!("{}: ", item.name());
            let count = ROWS.lines().filter(|row| row.starts_with(&begin)).count();
            assert_eq!(count > 0, item.evidence != ItemEvidence::Rig, "{begin}{count}");
            let ItemSource::Benchmarks(parts) = &item.source else { continue };
            for rows in parts.iter().filter(|part| !part.is_long).flat_map(|part| part.rows) {
                let whole = format!("{begin}{}", rows.begin);
                assert!(ROWS.lines().any(|row| row.starts_with(&whole)), "the list has no row '{whole}…'");
            }
        }
    }

    #[test]
    fn row_that_vanishes_is_missing() {
        let mut runner = ItemRunner::new(MeasurementPlan { farbus: "/nowhere".into(), quick: true });
        let item = items::all().into_iter().find(|item| item.name() == "2023 Figure 6").expect("an item");
        let mut outcome = [runner.run(item)];
        assert_eq!(missing(&outcome), [""; 0]);
        let OutcomeState::Ran(result) = &mut outcome[0].state else { panic!("it is computed") };
        let gone = result.rows.remove(0);
        assert_eq!(missing(&outcome), [format!("2023 Figure 6: {}", gone.what)]);
    }

    /// Those that no benchmark measures take seconds even here; the whole list is for `farbus papers --quick --check`.
    #[test]
    fn computed_items_have_the_rows_of_the_list() {
        let mut runner = ItemRunner::new(MeasurementPlan { farbus: "/nowhere".into(), quick: true });
        let is_computed = |item: &&PaperItem| {
            item.evidence == ItemEvidence::Computed && matches!(item.source, ItemSource::Function(_))
        };
        let outcomes: Vec<_> = items::all().into_iter().filter(is_computed).map(|item| runner.run(item)).collect();
        assert_eq!((outcomes.len(), missing(&outcomes)), (2, Vec::new()));
    }
}
