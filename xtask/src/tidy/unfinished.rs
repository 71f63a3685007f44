//! Rules `unfinished` and `ignored`: what must not be left behind.

use super::source::{SourceFile, SourceToken, TokenKind};
use super::violation::Violation;
use proc_macro2::Delimiter;

/// Macros that say the work is not done.
const MARKS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

pub fn check(sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        for name in source.names() {
            if let Some(mark) = MARKS.iter().find(|mark| name.parts.last().is_some_and(|last| last == *mark)) {
                violations.push(Violation::new(
                    &source.path,
                    name.line,
                    "unfinished",
                    format!("{mark}: finish it or take it out"),
                ));
            }
        }
        violations.extend(ignored_lines(&source.tokens).map(|line| {
            Violation::new(
                &source.path,
                line,
                "ignored",
                "a test that is not run proves nothing: run it or take it out",
            )
        }));
    }
    violations
}

/// Lines of `#[ignore…]`, also where a `cfg_attr` hides it.
fn ignored_lines(tokens: &[SourceToken]) -> impl Iterator<Item = usize> {
    let opens = |at: usize| {
        tokens[at].kind == TokenKind::Sign('#', false)
            && tokens.get(at + 1).is_some_and(|token| token.kind == TokenKind::Open(Delimiter::Bracket))
    };
    (0..tokens.len()).filter(move |&at| opens(at)).filter_map(|at| {
        let inside = tokens[at + 2..].iter().take_while(|token| token.kind != TokenKind::Close(Delimiter::Bracket));
        let words: Vec<&str> = inside
            .filter_map(|token| match &token.kind {
                TokenKind::Word(word) => Some(word.as_str()),
                _ => None,
            })
            .collect();
        let ignored = match *words.first()? {
            "ignore" => true,
            "cfg_attr" => words.contains(&"ignore"),
            _ => false,
        };
        ignored.then_some(tokens[at].line)
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    fn said_of(text: &str) -> Vec<String> {
        complaints(&workspace_with(&[("crates/wire/src/a.rs", text)]))
    }

    #[test]
    fn unfinished_work_is_found_in_tests_too() {
        for mark in ["todo!()", "unimplemented!(\"later\")", "dbg!(x)", "std::todo!()"] {
            let messages = said_of(&format!("fn f() {{\n    {mark};\n}}\n"));
            assert_eq!(messages.len(), 1, "{messages:#?}");
            assert!(messages[0].starts_with("crates/wire/src/a.rs:2: unfinished: "), "{}", messages[0]);
            let messages = said_of(&format!("#[cfg(test)]\nmod tests {{\n    fn f() {{ {mark} }}\n}}\n"));
            assert_eq!(messages.len(), 1, "{messages:#?}");
        }
    }

    #[test]
    fn words_in_text_are_not_marks() {
        assert_eq!(said_of("/// Never todo!() here.\nfn f() { g(\"todo!()\", todo); }\n"), [""; 0]);
    }

    #[test]
    fn ignored_tests_are_found() {
        for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(miri, ignore)]"] {
            let printed = said_of(&format!("#[test]\n{attribute}\nfn f() {{ assert!(true); }}\n"));
            assert_eq!(printed.len(), 1, "{printed:#?}");
            assert!(printed[0].starts_with("crates/wire/src/a.rs:2: ignored: "), "{}", printed[0]);
        }
        assert_eq!(said_of("#[derive(Debug)]\nstruct S {\n    ignore: bool,\n}\n"), [""; 0]);
    }
}
