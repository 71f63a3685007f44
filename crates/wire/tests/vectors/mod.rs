//! The messages of the native protocol's document, as files: `#` begins a comment, `"text"` is the bytes of a text,
//! `55*4096` a byte repeated, and the rest is hexadecimal.

#![allow(dead_code, reason = "every test takes what it needs")]

use std::path::{Path, PathBuf};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden_native")
}

pub fn text(name: &str) -> String {
    let path = folder().join(name).with_extension("hex");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The bytes of a golden file.
pub fn bytes_of(name: &str) -> Vec<u8> {
    text(name).lines().flat_map(|line| line_bytes(line).unwrap_or_else(|| panic!("{name}: {line}"))).collect()
}

fn line_bytes(line: &str) -> Option<Vec<u8>> {
    let (before, quoted) = line.split_once('"').unwrap_or((line, ""));
    let Some(before) = before.split('#').next().filter(|_| !quoted.is_empty()) else {
        return digits(line.split('#').next()?);
    };
    let (text, behind) = quoted.split_once('"')?;
    Some([digits(before)?, text.as_bytes().to_vec(), line_bytes(behind)?].concat())
}

fn digits(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let (word, count) = word.split_once('*').map_or((word, Some(1)), |(word, count)| (word, count.parse().ok()));
        let once: Option<Vec<u8>> =
            (0..word.len()).step_by(2).map(|at| u8::from_str_radix(word.get(at..at + 2)?, 16).ok()).collect();
        bytes.extend(once?.repeat(count?));
    }
    Some(bytes)
}

/// The bytes of all files whose names begin so.
pub fn all_bytes(begin: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files
        .filter(|file| file.extension().is_some_and(|kind| kind == "hex"))
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .filter(|name| name.starts_with(begin))
        .collect();
    names.sort();
    names.iter().map(|name| bytes_of(name)).collect()
}
