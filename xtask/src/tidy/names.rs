//! Rules `homonym` and `one-word`: a type's name carries its noun, so that one who searches for it finds one thing.

use super::architecture::{ArchitectureRules, FILE, TypeNames, words_of};
use super::source::{DefinedItem, SourceFile};
use super::violation::Violation;
use std::collections::BTreeMap;

/// Types that more than a few modules call the same, exceptions for names that are so rare no more, and the share of
/// names with one word in all of them.
pub fn check(architecture: &ArchitectureRules, sources: &[SourceFile]) -> Vec<Violation> {
    let TypeNames { definitions_max, one_word_percent_max, excused } = &architecture.type_names;
    let mut definitions: BTreeMap<&str, Vec<(&SourceFile, &DefinedItem)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test_file()) {
        for item in source.items.iter().filter(|item| item.is_type && !source.is_test_line(item.line)) {
            definitions.entry(&item.name).or_default().push((source, item));
        }
    }
    let mut violations = Vec::new();
    for (name, locations) in &definitions {
        if locations.len() > *definitions_max && !excused.contains_key(*name) {
            let (source, item) = locations[locations.len() - 1];
            let advice = format!("{} types are called {name}, {definitions_max} may be: whose?", locations.len());
            violations.push(Violation::new(&source.path, item.line, "homonym", advice));
        }
    }
    for name in excused.keys() {
        if definitions.get(name.as_str()).is_none_or(|locations| locations.len() <= *definitions_max) {
            let advice = format!("{name} needs no exception any more");
            violations.push(Violation::new(
                FILE,
                architecture.line_beginning(&format!("{name} = ")),
                "homonym",
                advice,
            ));
        }
    }
    let all = definitions.values().map(Vec::len).sum::<usize>();
    let with_one_word = definitions.iter().filter(|(name, _)| words_of(name).len() == 1);
    let with_one_word = with_one_word.map(|(_, locations)| locations.len()).sum::<usize>();
    if with_one_word * 100 > one_word_percent_max * all {
        let advice = format!(
            "{with_one_word} of {all} types have a name of one word, {one_word_percent_max} in a hundred may: give a \
             new one its noun"
        );
        violations.push(Violation::new(FILE, architecture.line_with("[type_names]"), "one-word", advice));
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{ARCHITECTURE, complaints, workspace_with};

    /// The small architecture, in which 60 of a hundred names may be one word.
    fn settings() -> String {
        ARCHITECTURE.replace("one_word_percent_max = 100", "one_word_percent_max = 60")
    }

    #[test]
    fn name_of_too_many_types_is_found_and_types_of_tests_do_not_count() {
        let one = "pub struct State;\npub struct BoxState;\n#[cfg(test)]\nmod tests {\n    struct State;\n}\n";
        let two = [("crates/wire/src/a.rs", one), ("crates/wire/src/b.rs", one)];
        assert_eq!(complaints(&workspace_with(&two)), Vec::<String>::new());
        let three = [two[0], two[1], ("crates/wire/src/c.rs", "enum State {}\ntype BoxState = ();\n")];
        let messages = complaints(&workspace_with(&three));
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/c.rs:1: homonym: 3 types are called State"),
            "{}",
            messages[0]
        );
        assert!(messages[1].contains(": homonym: 3 types are called BoxState"), "{}", messages[1]);
    }

    #[test]
    fn exception_is_granted_while_it_is_needed() {
        let settings = format!("{}\nArgs = \"what the parser reads\"\n", settings());
        let text = "struct Args;\nstruct ParsedArgs;\n";
        let files = [
            ("ARCHITECTURE.toml", settings.as_str()),
            ("crates/wire/src/a.rs", text),
            ("crates/wire/src/b.rs", "struct Args;\n"),
            ("crates/wire/src/c.rs", "struct Args;\nstruct CaptureArgs;\n"),
        ];
        assert_eq!(complaints(&workspace_with(&files)), Vec::<String>::new());
        let messages = complaints(&workspace_with(&files[..3]));
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].contains(": one-word: 2 of 3 types"), "{}", messages[0]);
        assert!(messages[1].starts_with("ARCHITECTURE.toml:"), "{}", messages[1]);
        assert!(messages[1].contains("Args needs no exception"), "{}", messages[1]);
    }

    #[test]
    fn too_many_names_of_one_word_are_found() {
        let text = "struct Door;\ntrait Entry {}\nimpl Entry for Door {}\nstruct BoxState;\n";
        let messages =
            complaints(&workspace_with(&[("ARCHITECTURE.toml", &settings()), ("crates/wire/src/a.rs", text)]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("one-word: 2 of 3 types have a name of one word"), "{}", messages[0]);
    }
}
