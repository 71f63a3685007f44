//! `ARCHITECTURE.toml`: what the rules are set to.

use super::tree::Tree;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Where the settings stand, relative to the workspace.
pub const FILE: &str = "ARCHITECTURE.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    room: Vec<Room>,
    third_party: ThirdParty,
    banned: Banned,
    unsafe_code: UnsafeCode,
    errno: Errno,
    files: Files,
    prose: Prose,
    #[serde(default)]
    folders: Vec<Folders>,
}

/// The settings, and their text for the lines of violations in them.
#[derive(Debug)]
pub struct Architecture {
    pub rooms: Vec<Room>,
    pub third_party: ThirdParty,
    pub banned: Banned,
    pub unsafe_code: UnsafeCode,
    pub errno: Errno,
    pub files: Files,
    pub prose: Prose,
    pub folders: Vec<Folders>,
    text: String,
}

/// A package of the workspace and what it may know.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    pub name: String,
    pub package: String,
    /// Rooms import downwards only; 0 stands apart from the house.
    pub floor: u32,
    pub kind: Kind,
    pub arrows: Vec<String>,
    #[serde(default)]
    pub test_arrows: Vec<String>,
    pub third_party: Vec<String>,
    #[serde(default)]
    pub runtimes: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Never touches the world.
    Pure,
    /// Touches the world; a library all the same.
    Outside,
    /// Wiring, tools and tests.
    Binary,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThirdParty {
    pub in_tests: Vec<String>,
    pub runtimes: Vec<String>,
}

/// Names and what to do instead: `a::b` for a path, `name!` for a macro.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Banned {
    /// Names that a rule would cover and that are fine.
    pub except: Vec<String>,
    pub pure: BTreeMap<String, String>,
    pub library: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsafeCode {
    /// Beginnings of the paths where it may be.
    pub under: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errno {
    /// Beginning of the paths that are looked at.
    pub within: String,
    /// Beginnings of the paths where the numbers may be.
    pub under: Vec<String>,
    /// Beginnings of the paths where a system call's typed error may be read besides.
    pub typed_under: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    pub lines_max: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prose {
    /// Names of folders at the root of a file system.
    pub banned_folders: Vec<String>,
}

/// The folders at the top of a package's `src`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folders {
    /// The path of the crate's root file, from the workspace.
    pub root: String,
    /// The most folders and files that may be there.
    pub entries_max: usize,
    /// Imports that still point up: `from::module -> to::module`.
    #[serde(default)]
    pub back: Vec<String>,
    /// From the lowest to the highest.
    pub folder: Vec<Folder>,
}

/// A folder, or a file, and which others it imports.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    pub name: String,
    pub imports: Vec<String>,
}

impl Folders {
    /// How its entry begins.
    pub fn line(&self) -> String {
        format!("root = \"{}\"", self.root)
    }
}

impl Folder {
    /// How its entry begins.
    pub fn line(&self) -> String {
        format!("name = \"{}\"", self.name)
    }
}

/// Whether an import between two modules is the one that is written so: `a::b -> c::d`.
pub fn leads(from: &[String], to: &[String], written: &str) -> bool {
    written.split_once(" -> ").is_some_and(|(one, other)| one == from.join("::") && other == to.join("::"))
}

pub fn read(tree: &Tree) -> Result<Architecture, String> {
    let text = tree.get(FILE).ok_or_else(|| format!("{FILE} is missing: it says which arrows are allowed"))?;
    let Settings { room, third_party, banned, unsafe_code, errno, files, prose, folders } =
        toml::from_str(text).map_err(|trouble| format!("{FILE}: {trouble}"))?;
    Ok(Architecture {
        rooms: room,
        third_party,
        banned,
        unsafe_code,
        errno,
        files,
        prose,
        folders,
        text: text.to_owned(),
    })
}

impl Architecture {
    pub fn room(&self, name: &str) -> Option<&Room> {
        self.rooms.iter().find(|room| room.name == name)
    }

    pub fn room_of_package(&self, package: &str) -> Option<&Room> {
        self.rooms.iter().find(|room| room.package == package)
    }

    /// Where a room's entry begins.
    pub fn line_of(&self, room: &Room) -> usize {
        self.line_with(&format!("name = \"{}\"", room.name))
    }

    /// The first line that is this one.
    pub fn line_with(&self, wanted: &str) -> usize {
        self.text.lines().position(|line| line.trim() == wanted).map_or(1, |at| at + 1)
    }

    /// Whether an import inside the crate with this root is listed as one that still points up.
    pub fn is_excused(&self, root: &str, from: &[String], to: &[String]) -> bool {
        let of_crate = self.folders.iter().filter(|folders| folders.root == root);
        of_crate.flat_map(|folders| &folders.back).any(|back| leads(from, to, back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixtures::HOUSE;

    #[test]
    fn rooms_are_found_by_both_names_and_by_line() {
        let architecture = read(&Tree::of([(FILE, HOUSE)])).unwrap();
        let wire = architecture.room("wire").unwrap();
        assert_eq!(architecture.room_of_package("farbus-wire").unwrap().name, "wire");
        let line = architecture.line_of(wire);
        assert!(HOUSE.lines().nth(line - 1).unwrap().contains("\"wire\""));
    }

    #[test]
    fn a_misspelt_setting_is_refused() {
        let text = HOUSE.replace("lines_max", "line_max");
        let trouble = read(&Tree::of([(FILE, text.as_str())])).unwrap_err();
        assert!(trouble.contains("line_max"), "{trouble}");
    }
}
