//! What callgrind wrote down: how many instructions, and in which functions.
//!
//! The format is that of Valgrind's manual, "Callgrind Format Specification": a name stands beside its number the first
//! time, later its number stands alone; the line of costs after `calls=` has what the called function took.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

/// What a function took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionCost {
    /// As the compiler names it, with its modules and types.
    pub function: String,
    /// Its file and, if it is known, the line of its first instruction.
    pub place: String,
    /// Instructions of its own and of the C library for it, in all.
    pub instructions: u64,
}

/// A profile, by function.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CallgrindProfile {
    /// All that was counted.
    pub instructions: u64,
    /// Of the program, those with most instructions first.
    pub functions: Vec<FunctionCost>,
}

/// What callgrind calls the program's first instructions, which call the C library, which calls `main`.
const BELOW_MAIN: &str = "(below main)";

/// Names by their kind and number.
#[derive(Default)]
struct SeenNames(BTreeMap<(char, String), String>);

impl SeenNames {
    /// The name that `(number) name` or `(number)` means.
    fn resolve(&mut self, kind: char, text: &str) -> String {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
            return text.to_owned();
        };
        let key = (kind, number.to_owned());
        if !name.is_empty() {
            self.0.insert(key.clone(), name.trim_start().to_owned());
        }
        self.0.get(&key).cloned().unwrap_or_default()
    }
}

/// Reads a profile; files below `root` are named without it.
pub fn read(text: &str, root: &Path) -> CallgrindProfile {
    let mut names = SeenNames::default();
    let mut functions: BTreeMap<String, FunctionCost> = BTreeMap::new();
    let (mut file, mut function, mut object, mut called) = (String::new(), String::new(), String::new(), None);
    let (mut line, mut is_inlined, mut is_call, mut instructions) = (0_i64, false, false, 0);
    for text in text.lines() {
        if let Some((key, value)) = text.split_once('=').filter(|(key, _)| key.bytes().all(|c| c.is_ascii_lowercase()))
        {
            match key {
                "fl" => (file, is_inlined) = (names.resolve('f', value), false),
                "fi" | "fe" => is_inlined = names.resolve('f', value) != file,
                "cfi" | "cfl" => drop(names.resolve('f', value)),
                "fn" => (function, called) = (names.resolve('n', value), None),
                "cfn" => drop(names.resolve('n', value)),
                "ob" => object = names.resolve('o', value),
                "cob" => called = Some(names.resolve('o', value)),
                "calls" => is_call = true,
                _ => {}
            }
            continue;
        }
        if let Some(total) = text.strip_prefix("totals: ") {
            instructions = total.trim().parse().unwrap_or_default();
        }
        let Some((place, cost)) = text.split_once(' ') else { continue };
        line = match (place.split_at_checked(1), place.parse::<i64>()) {
            (Some(("+" | "-", _)), Ok(more)) => line + more,
            (Some(("*", _)), _) => line,
            (_, Ok(at)) => at,
            _ => continue,
        };
        let (was_call, called) = (std::mem::take(&mut is_call), called.take());
        // A call within the program is counted where it leads; the C library is counted where it is called, except the
        // part of it that calls the program.
        if function == BELOW_MAIN
            || is_library(&object)
            || was_call && !called.is_some_and(|object| is_library(&object))
        {
            continue;
        }
        let entry = functions.entry(function.clone()).or_insert_with(|| FunctionCost {
            function: function.clone(),
            place: short(&file, root),
            instructions: 0,
        });
        if !is_inlined && !entry.place.contains(':') {
            let _ = write!(entry.place, ":{line}");
        }
        entry.instructions += cost.trim().parse::<u64>().unwrap_or_default();
    }
    let mut functions: Vec<FunctionCost> = functions.into_values().collect();
    functions.sort_by_key(|cost| Reverse(cost.instructions));
    CallgrindProfile { instructions, functions }
}

/// A file's name without the folder of the workspace, or of the standard library's sources.
fn short(file: &str, root: &Path) -> String {
    let standard = file.strip_prefix("/rustc/").and_then(|rest| rest.split_once('/'));
    let own = Path::new(file).strip_prefix(root).ok().map(|own| own.display().to_string());
    own.or(standard.map(|(_, rest)| rest.to_owned())).unwrap_or_else(|| file.to_owned())
}

fn is_library(object: &str) -> bool {
    object.contains(".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_has_its_own_instructions_and_those_of_the_library_for_it() {
        let text = "version: 1\nevents: Ir\n\nob=(1) /lib/libc.so.6\nfl=(1) memmove.S\nfn=(1) memcpy\n9 30\n\n\
                    ob=(2) /w/program\nfl=(2) /w/src/lane.rs\nfn=(2) wire::put\nfi=(3) /rustc/1f/library/vec.rs\n7 1\nfe=(2)\n10 5\n+2 5\n\
                    cob=(1)\ncfi=(1)\ncfn=(1)\ncalls=3 9\n13 30\ncfn=(3) wire::cut\ncalls=1 20\n* 50\n\nfl=(3)\nfn=(3)\n20 50\n\n\
                    totals: 91\n";
        let profile = read(text, Path::new("/w"));
        let cost = |function: &str, place: &str, instructions| FunctionCost {
            function: function.to_owned(),
            place: place.to_owned(),
            instructions,
        };
        assert_eq!(profile.instructions, 91);
        assert_eq!(
            profile.functions,
            [cost("wire::cut", "library/vec.rs:20", 50), cost("wire::put", "src/lane.rs:10", 41)]
        );
    }
}
