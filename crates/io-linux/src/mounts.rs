//! What `/proc` and `/sys` say of mounts, block devices and processes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The names in a folder, sorted; none if it cannot be read.
pub fn entries(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = all.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The device numbers of a block device and its partitions, as `mountinfo` has them. `folder` is its folder below
/// `/sys`.
pub fn numbers_below(folder: &Path, name: &str) -> Vec<String> {
    let number = |folder: PathBuf| fs::read_to_string(folder.join("dev")).ok().map(|dev| dev.trim().to_owned());
    let parts = entries(folder).into_iter().filter(|part| part.starts_with(name)).map(|part| folder.join(part));
    [folder.to_owned()].into_iter().chain(parts).filter_map(number).collect()
}

/// Where file systems of devices with these numbers are mounted, in order, from the text of `mountinfo` (proc(5)).
pub fn mounts_in(text: &str, numbers: &[String]) -> Vec<PathBuf> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let (number, _root, at) = (fields.next()?, fields.next()?, fields.next()?);
        numbers.iter().any(|known| known == number).then(|| PathBuf::from(unescape(at)))
    };
    text.lines().filter_map(mount).collect()
}

/// Decodes a path from `mountinfo` or `swaps`: spaces and the like are three octal digits.
pub fn unescape(text: &str) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Every process that can be seen.
pub fn processes() -> impl Iterator<Item = u32> {
    entries(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok())
}

/// The name of a process's program.
pub fn program_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}
