//! `cargo xtask api`: the library's public API as a text, so that every change of it shows as a diff.
//!
//! | file | what it does |
//! |---|---|
//! | `sources` | parses the libraries of the workspace into modules and items |
//! | `names` | finds what a path leads to, across modules and crates |
//! | `reach` | walks from a library's root to every item that a user can name |
//! | `impls` | assigns each `impl` to the item it belongs to |
//! | `render` | writes an item as the lines of the listing |
//! | `text` | code as it is written, on one line |
//!
//! The listing is made from the sources and not by rustdoc, whose machine-readable output needs a nightly compiler. It
//! shows types as they are written, with `use` not resolved, and what a macro defines as the macro's call. What is
//! `#[doc(hidden)]` is not part of the API, nor is what only the command has (`feature = "cli"`). Lines are in the
//! order of their paths, so that moving code changes nothing.

mod impls;
mod names;
mod reach;
mod render;
mod sources;
mod text;

use crate::workspace;
use clap::Args;
use sources::Sources;
use std::path::Path;

/// Libraries whose API is listed, by the folder their `api.txt` is in. The first is what users depend on; it passes the
/// others on whole.
const LISTED: [&str; 4] = ["farbus", "model", "host", "gadgets"];

#[derive(Args)]
pub struct Arguments {
    /// Write the listings instead of comparing them
    #[arg(long)]
    bless: bool,
}

/// Compares the listings with the sources, or writes them.
///
/// # Errors
/// If a listing differs from the sources: then which lines do.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let root = workspace::root();
    let made = listings(&Sources::read(&root)?)?;
    let mut differing = Vec::new();
    for (file, text) in &made {
        let path = root.join(file);
        if arguments.bless {
            std::fs::write(&path, text).map_err(|error| format!("cannot write {file}: {error}"))?;
            println!("{file}: {} lines", text.lines().count());
        } else if let Some(difference) = difference(&read(&path)?, text) {
            println!("{file} differs from the sources (- listed, + in the sources):\n{difference}");
            differing.push(file.as_str());
        }
    }
    match differing.as_slice() {
        [] => Ok(()),
        files => Err(format!(
            "the public API changed: {}\n'cargo xtask api --bless' writes it down; the diff then belongs to the commit that changes it",
            files.join(", ")
        )),
    }
}

/// Compares the listings with the sources.
///
/// # Errors
/// If one differs.
pub fn check() -> Result<(), String> {
    run(&Arguments { bless: false })
}

/// A listing that does not exist yet is empty.
fn read(path: &Path) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// Each listing's file, relative to the workspace, and its text.
fn listings(sources: &Sources) -> Result<Vec<(String, String)>, String> {
    let listing = |folder: &str| {
        let library = sources.library_in(folder).ok_or_else(|| format!("crates/{folder} has no library"))?;
        Ok((format!("crates/{folder}/api.txt"), render::listing(sources, library)))
    };
    LISTED.into_iter().map(listing).collect()
}

/// The lines that only one of two texts has, each under the item it belongs to; `None` if the texts are equal.
fn difference(listed: &str, found: &str) -> Option<String> {
    if listed == found {
        return None;
    }
    let (old, new) = (owned_lines(listed), owned_lines(found));
    let gone = old.iter().filter(|line| !new.contains(line)).map(|line| format!("- {}", line.trim_start()));
    let come = new.iter().filter(|line| !old.contains(line)).map(|line| format!("+ {}", line.trim_start()));
    let lines: Vec<_> = gone.chain(come).collect();
    Some(if lines.is_empty() { "the order of lines".to_owned() } else { lines.join("\n") })
}

/// Every line with the item above it in front, as one text: equal lines of two items are different lines.
fn owned_lines(text: &str) -> Vec<String> {
    let (mut owner, mut lines) = ("", Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("    ") {
            Some(inner) => lines.push(format!("{owner}: {inner}")),
            None => {
                owner = line;
                lines.push(line.to_owned());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listing of a library `demo` with these files below `src/`.
    pub fn listed(files: &[(&str, &str)]) -> String {
        let files = files.iter().map(|(path, text)| (format!("crates/demo/src/{path}"), (*text).to_owned()));
        let sources = Sources::of(&[("demo", "demo")], files.collect()).unwrap();
        let text = render::listing(&sources, sources.library_in("demo").unwrap());
        text.lines()
            .skip_while(|line| line.starts_with('#'))
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn an_item_is_listed_where_users_name_it() {
        let text = listed(&[
            ("lib.rs", "mod deep;\npub mod open { pub use crate::deep::Thing as Named; }\npub use deep::Thing;\n"),
            ("deep.rs", "#[derive(Clone, Debug)]\npub struct Thing { pub id: u32, secret: u8 }\npub struct Unseen;\n"),
        ]);
        assert_eq!(
            text,
            "pub struct demo::Thing { .. }\n    pub id: u32\n    impl Clone\n    impl Debug\n\
             pub mod demo::open\npub use demo::Thing as demo::open::Named"
        );
    }

    #[test]
    fn methods_of_private_modules_count_for_their_type() {
        let text = listed(&[
            ("lib.rs", "mod thing;\nmod more;\npub use thing::Thing;\n"),
            ("thing.rs", "pub struct Thing<T>(T, pub u8);\nimpl<T> Thing<T> {\n    fn inner(&self) {}\n}\n"),
            (
                "more.rs",
                "use crate::thing::Thing;\nimpl Thing<u8> {\n    /// Adds.\n    pub fn add(\n        &mut self,\n        \
                 by: u8,\n    ) -> u8 { by }\n    pub(crate) fn hidden(&self) {}\n}\n\
                 impl<T> Iterator for Thing<T> {\n    type Item = T;\n    fn next(&mut self) -> Option<T> { None }\n}\n",
            ),
        ]);
        assert_eq!(
            text,
            "pub struct demo::Thing<T>(_, pub u8);\n    impl Thing<u8>: pub fn add(&mut self, by: u8) -> u8\n    \
             impl<T> Iterator for Thing<T> { type Item = T }"
        );
    }

    #[test]
    fn hidden_items_tests_and_the_commands_items_are_not_listed() {
        let text = listed(&[(
            "lib.rs",
            "#[doc(hidden)]\npub mod internals { pub fn f() {} }\n#[cfg(feature = \"cli\")]\npub fn cli() {}\n\
             #[cfg(test)]\npub fn test() {}\n#[cfg(feature = \"wasm\")]\npub const fn wasm() -> u8 { 0 }\n",
        )]);
        assert_eq!(text, "#[cfg(feature = \"wasm\")] pub const fn demo::wasm() -> u8");
    }

    #[test]
    fn traits_enums_and_constants_are_listed_with_what_they_hold() {
        let text = listed(&[(
            "lib.rs",
            "pub trait Speak: Send {\n    const LOUD: bool = false;\n    type Word;\n    fn say(&self) -> Self::Word;\n    \
             fn twice(&self) { }\n}\n#[non_exhaustive]\npub enum Kind { One, Two(u8), Three { a: u8 } }\n\
             pub const MAX: usize = 1 << 4;\nimpl<T: Speak> Speak for Box<T> {}\n",
        )]);
        assert_eq!(
            text,
            "#[non_exhaustive] pub enum demo::Kind\n    One\n    Two(u8)\n    Three { a: u8 }\npub const demo::MAX: usize\n\
             pub trait demo::Speak: Send\n    const LOUD: bool = ..\n    type Word\n    fn say(&self) -> Self::Word\n    \
             fn twice(&self) { .. }\n    impl<T: Speak> Speak for Box<T>"
        );
    }

    #[test]
    fn what_a_glob_and_another_library_bring_is_listed_too() {
        let files = [
            (
                "crates/demo/src/lib.rs",
                "mod all;\npub use all::*;\npub use demo_low as low;\npub use demo_low::Low;\npub use std::io::Error;\n",
            ),
            ("crates/demo/src/all.rs", "pub fn f(x: &str) {}\nfn g() {}\n"),
            ("crates/low/src/lib.rs", "pub struct Low;\nimpl Default for Low { fn default() -> Self { Low } }\n"),
        ];
        let files = files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
        let sources = Sources::of(&[("demo", "demo"), ("low", "demo_low")], files).unwrap();
        let text = render::listing(&sources, sources.library_in("demo").unwrap());
        let lines: Vec<_> =
            text.lines().skip_while(|line| line.starts_with('#')).filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "pub use std::io::Error as demo::Error",
                "pub struct demo::Low;",
                "    impl Default for Low",
                "pub fn demo::f(x: &str)",
                "pub use demo_low as demo::low",
            ]
        );
    }

    #[test]
    fn a_function_and_a_module_of_one_name_are_told_apart() {
        let text = listed(&[
            ("lib.rs", "mod open;\npub use open::open;\n"),
            ("open.rs", "pub fn open() {}\npub fn other() {}\n"),
        ]);
        assert_eq!(text, "pub fn demo::open()");
    }

    #[test]
    fn a_macros_call_stands_for_what_it_defines() {
        let text = listed(&[("lib.rs", "pub mod ids { newtype!(Id,   u32); }\nmod unseen { newtype!(Other, u8); }\n")]);
        assert_eq!(text, "pub mod demo::ids\n    newtype!(Id, u32)");
    }

    #[test]
    fn a_difference_names_the_item_that_changed() {
        let listed = "pub struct A\n    pub x: u8\n\npub struct B\n    pub x: u8\n";
        let found = "pub struct A\n    pub x: u8\n\npub struct B\n    pub x: u16\n";
        assert_eq!(difference(listed, listed), None);
        assert_eq!(difference(listed, found).unwrap(), "- pub struct B: pub x: u8\n+ pub struct B: pub x: u16");
    }
}
