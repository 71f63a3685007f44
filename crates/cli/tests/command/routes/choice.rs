//! A choice of cells that covers each pair: of a capability and a value of the route, and of two values of the route.

use std::collections::BTreeSet;

use super::Cell;

/// What a cell has two of: a kind, and its value as a word.
type Pair = [(usize, String); 2];

fn pairs(cell: &Cell) -> BTreeSet<Pair> {
    let route = cell.route;
    let values = [
        cell.capability.name.to_owned(),
        format!("{:?}", route.way),
        format!("{:?}", route.connection),
        format!("{:?}", route.keeper),
        format!("{:?}", route.distance),
    ];
    let values: Vec<(usize, String)> = values.into_iter().enumerate().collect();
    let mut pairs = BTreeSet::new();
    for (at, one) in values.iter().enumerate() {
        pairs.extend(values[at + 1..].iter().map(|other| [one.clone(), other.clone()]));
    }
    pairs
}

/// The cells of a choice in which each pair occurs that occurs at all: each time the one that adds most, the first of
/// equals. It is the same every time.
pub fn covering(cells: &[Cell]) -> Vec<Cell> {
    let mut open: BTreeSet<Pair> = cells.iter().flat_map(pairs).collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let gain = |cell: &Cell| pairs(cell).intersection(&open).count();
        // `max_by_key` returns the last of equals.
        let best = cells.iter().rev().max_by_key(|cell| gain(cell)).expect("what is open stands in a cell");
        open = &open - &pairs(best);
        chosen.push(*best);
    }
    chosen
}

#[test]
fn choice_has_each_pair_and_is_a_fraction_of_all_cells() {
    let all: Vec<Cell> = Cell::all().collect();
    let chosen = covering(&all);
    let of = |cells: &[Cell]| cells.iter().flat_map(pairs).collect::<BTreeSet<_>>();
    assert_eq!(of(&chosen), of(&all));
    println!("{} of {} cells", chosen.len(), all.len());
    assert!(chosen.len() * 3 < all.len(), "{} of {}", chosen.len(), all.len());
}
