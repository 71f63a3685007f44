//! Code as it is written in a file, on one line.

use syn::spanned::Spanned;

/// Code as it is written, on one line; nothing of what is empty.
pub fn text(of: &impl Spanned) -> String {
    one_line(&of.span().source_text().unwrap_or_default())
}

/// Joins lines, and takes away what only a broken line needs.
fn one_line(written: &str) -> String {
    let lines = written.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code).trim());
    let mut text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    while let Some(at) = text.find("  ") {
        text.remove(at);
    }
    for (broken, whole) in
        [("( ", "("), (", )", ")"), (" )", ")"), ("[ ", "["), (", ]", "]"), ("< ", "<"), (", >", ">")]
    {
        text = text.replace(broken, whole);
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_lines_become_one() {
        let written = "fn f(\n    a: u8, // first\n    b: Vec<\n        u8,\n    >,\n)";
        assert_eq!(one_line(written), "fn f(a: u8, b: Vec<u8>)");
    }
}
