//! Loops in a graph of names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Arrows between names.
pub type NameGraph = BTreeMap<String, BTreeSet<String>>;

/// One shortest loop through each knot of names that reach each other, as the names in order: `[a, b]` is a → b → a.
pub fn loops(graph: &NameGraph) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for start in graph.keys() {
        // A knot is told once: by its first name.
        let is_reported =
            found.iter().any(|circle| reaches(graph, start, &circle[0]) && reaches(graph, &circle[0], start));
        if !is_reported && let Some(circle) = shortest_loop(graph, start) {
            found.push(circle);
        }
    }
    found
}

fn reaches(graph: &NameGraph, from: &str, to: &str) -> bool {
    path(graph, from, to).is_some()
}

fn shortest_loop(graph: &NameGraph, start: &str) -> Option<Vec<String>> {
    let mut circle = path(graph, start, start)?;
    circle.pop();
    Some(circle)
}

/// The shortest path of at least one arrow, both ends included.
fn path(graph: &NameGraph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front() {
        for next in graph.get(at).into_iter().flatten() {
            if next == to {
                let mut path = vec![to.to_owned(), at.to_owned()];
                let mut back = at;
                while back != from {
                    back = came_from[back];
                    path.push(back.to_owned());
                }
                path.reverse();
                return Some(path);
            }
            if next != from && !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                open.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(&str, &str)]) -> NameGraph {
        let mut graph = NameGraph::new();
        for (from, to) in arrows {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    #[test]
    fn a_tree_has_no_loop() {
        assert_eq!(loops(&graph(&[("a", "b"), ("a", "c"), ("b", "c")])), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_loop_is_told_once_and_in_order() {
        assert_eq!(loops(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])), [["a", "b", "c"]]);
    }

    #[test]
    fn the_shortest_way_round_is_told() {
        assert_eq!(loops(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")])), [["a", "b"]]);
    }

    #[test]
    fn separate_knots_are_told_separately() {
        let found = loops(&graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]));
        assert_eq!(found, [["a", "b"], ["c", "d"]]);
    }
}
