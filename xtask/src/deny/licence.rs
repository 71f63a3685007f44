//! Licence expressions (SPDX): `MIT OR Apache-2.0`, `(MIT OR Zlib) AND ISC`, `Apache-2.0 WITH LLVM-exception`, and the
//! older `MIT/Apache-2.0`.

use std::collections::BTreeSet;

/// Whether a licence expression can be met with the allowed licences alone.
///
/// # Errors
/// The text is no such expression.
pub fn is_allowed(text: &str, allowed: &BTreeSet<&str>) -> Result<bool, String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = LicenceParser { words: spaced.split_whitespace().collect(), at: 0, allowed };
    let holds = words.any()?;
    match words.next() {
        None => Ok(holds),
        Some(word) => Err(format!("{word} was not expected there")),
    }
}

struct LicenceParser<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a BTreeSet<&'a str>,
}

impl<'a> LicenceParser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.get(self.at) == Some(&word);
        self.at += usize::from(is_next);
        is_next
    }

    /// `A OR B OR …`: all are read, one is enough.
    fn any(&mut self) -> Result<bool, String> {
        let mut holds = self.all()?;
        while self.takes("OR") {
            holds |= self.all()?;
        }
        Ok(holds)
    }

    /// `A AND B AND …`.
    fn all(&mut self) -> Result<bool, String> {
        let mut holds = self.one()?;
        while self.takes("AND") {
            holds &= self.one()?;
        }
        Ok(holds)
    }

    fn one(&mut self) -> Result<bool, String> {
        match self.next() {
            Some("(") => {
                let holds = self.any()?;
                if self.takes(")") { Ok(holds) } else { Err("a parenthesis is not closed".into()) }
            }
            None | Some(")" | "OR" | "AND" | "WITH") => Err("a licence is missing".into()),
            Some(licence) if self.takes("WITH") => {
                let exception = self.next().ok_or("an exception is missing")?;
                // An exception allows more than the licence does.
                Ok(self.allowed.contains(licence)
                    || self.allowed.contains(format!("{licence} WITH {exception}").as_str()))
            }
            Some(licence) => Ok(self.allowed.contains(licence)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str) -> Result<bool, String> {
        is_allowed(text, &BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]))
    }

    #[test]
    fn one_of_several_licences_is_enough_and_all_of_several_are_needed() {
        for (text, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT / GPL-3.0", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("MIT OR GPL-3.0 AND LGPL-3.0", true),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH Some-exception", true),
        ] {
            assert_eq!(allowed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in ["", "MIT OR", "(MIT", "MIT ISC", ") MIT", "MIT WITH"] {
            assert!(allowed(text).is_err(), "{text}");
        }
    }
}
