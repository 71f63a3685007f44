//! The files that the rules look at: paths relative to the workspace, and their text.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// A workspace's sources in memory.
#[derive(Debug, Default)]
pub struct SourceTree {
    files: BTreeMap<String, String>,
    /// Files whose text no rule reads: pictures, scripts, data.
    others: BTreeSet<String>,
}

impl SourceTree {
    /// Reads manifests, Rust sources and documents below `root`; build output and hidden folders are left out.
    pub fn read(root: &Path) -> io::Result<SourceTree> {
        let mut tree = SourceTree::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// All files, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// A tree of these files alone.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> SourceTree {
        let files = files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
        SourceTree { files, others: BTreeSet::new() }
    }

    /// Whether there is a file at this path, of any kind, or a folder with at least one file. An empty path is the
    /// workspace itself.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let is_folder = |first: Option<&String>| first.is_some_and(|first| first.starts_with(&folder));
        path.is_empty()
            || self.files.contains_key(path)
            || self.others.contains(path)
            || is_folder(self.files.range(folder.clone()..).next().map(|(path, _)| path))
            || is_folder(self.others.range(folder.clone()..).next())
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !name.starts_with('.') && name != "target" {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && [".rs", ".toml", ".md"].iter().any(|end| name.ends_with(end)) {
                self.files.insert(path, std::fs::read_to_string(entry.path())?);
            } else if kind.is_file() {
                self.others.insert(path);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_output_and_hidden_folders_are_left_out() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        for folder in ["src", "target/debug", ".git"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
            std::fs::write(root.join(folder).join("a.rs"), "").unwrap();
        }
        std::fs::write(root.join("picture.png"), [0xff]).unwrap();
        let read = SourceTree::read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let tree = read.unwrap();
        assert_eq!(tree.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["src/a.rs"]);
        assert_eq!(tree.get("src/a.rs"), Some(""));
        assert!(tree.has("src/a.rs") && tree.has("src") && tree.has("src/") && tree.has("picture.png") && tree.has(""));
        assert!(!tree.has("target/debug/a.rs") && !tree.has("sr") && !tree.has("src/b.rs"));
    }
}
