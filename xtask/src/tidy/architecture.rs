//! `ARCHITECTURE.toml`: what the rules are set to.

use super::tree::SourceTree;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Where the settings stand, relative to the workspace.
pub const FILE: &str = "ARCHITECTURE.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchitectureFile {
    #[serde(rename = "crate")]
    crates: Vec<CrateRules>,
    third_party: OutsideCrateRules,
    banned: BannedNames,
    unsafe_code: UnsafeCode,
    errno: ErrnoRules,
    files: LengthLimits,
    prose: ProseRules,
    retired: RetiredNames,
    type_names: TypeNames,
    #[serde(default)]
    folders: Vec<FolderRules>,
}

/// The settings, and their text for the lines of violations in them.
#[derive(Debug)]
pub struct ArchitectureRules {
    pub crates: Vec<CrateRules>,
    pub third_party: OutsideCrateRules,
    pub banned: BannedNames,
    pub unsafe_code: UnsafeCode,
    pub errno: ErrnoRules,
    pub files: LengthLimits,
    pub prose: ProseRules,
    pub retired: RetiredNames,
    pub type_names: TypeNames,
    pub folders: Vec<FolderRules>,
    text: String,
}

/// Names that the project has given up, and what stands in their place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetiredNames {
    /// Words of any identifier, in lower case.
    pub words: BTreeMap<String, String>,
    /// Whole identifiers, each with what to write in its place.
    pub names: BTreeMap<String, String>,
}

/// What the names of types are held to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeNames {
    /// The most types of one name.
    pub definitions_max: usize,
    /// The most types with a name of one word, in a hundred.
    pub one_word_percent_max: usize,
    /// Names that more types may have, with the reasons.
    pub excused: BTreeMap<String, String>,
}

/// A package of the workspace and what it may know.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrateRules {
    pub name: String,
    pub package: String,
    /// Crates import from lower layers only; 0 stands apart.
    pub layer: u32,
    pub kind: CrateKind,
    pub arrows: Vec<String>,
    #[serde(default)]
    pub test_arrows: Vec<String>,
    pub third_party: Vec<String>,
    #[serde(default)]
    pub runtimes: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CrateKind {
    /// Never touches the world.
    Pure,
    /// Touches the world; a library all the same.
    Outside,
    /// Wiring, tools and tests.
    Binary,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutsideCrateRules {
    pub in_tests: Vec<String>,
    pub runtimes: Vec<String>,
}

/// Names and what to do instead: `a::b` for a path, `name!` for a macro.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BannedNames {
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
pub struct ErrnoRules {
    /// Beginning of the paths that are looked at.
    pub within: String,
    /// Beginnings of the paths where the numbers may be.
    pub under: Vec<String>,
    /// Beginnings of the paths where a system call's typed error may be read besides.
    pub typed_under: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthLimits {
    /// Of a file, without its tests.
    pub lines_max: usize,
    /// Of a function that is no test, from its name on.
    pub function_lines_max: usize,
    /// Of a crate below `crates/`, without tests.
    pub crate_lines_max: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProseRules {
    /// Names of folders at the root of a file system.
    pub banned_folders: Vec<String>,
}

/// The folders at the top of a package's `src`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderRules {
    /// The path of the crate's root file, from the workspace.
    pub root: String,
    /// The most folders and files that may be there.
    pub entries_max: usize,
    /// Imports that still point up: `from::module -> to::module`.
    #[serde(default)]
    pub back: Vec<String>,
    /// From the lowest to the highest.
    pub folder: Vec<SourceFolder>,
}

/// A folder, or a file, and which others it imports.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFolder {
    pub name: String,
    pub imports: Vec<String>,
}

impl FolderRules {
    /// How its entry begins.
    pub fn line(&self) -> String {
        format!("root = \"{}\"", self.root)
    }
}

impl SourceFolder {
    /// How its entry begins.
    pub fn line(&self) -> String {
        format!("name = \"{}\"", self.name)
    }
}

/// Whether an import between two modules is the one that is written so: `a::b -> c::d`.
pub fn leads(from: &[String], to: &[String], written: &str) -> bool {
    written.split_once(" -> ").is_some_and(|(one, other)| one == from.join("::") && other == to.join("::"))
}

pub fn read(tree: &SourceTree) -> Result<ArchitectureRules, String> {
    let text = tree.get(FILE).ok_or_else(|| format!("{FILE} is missing: it says which arrows are allowed"))?;
    let ArchitectureFile {
        crates,
        third_party,
        banned,
        unsafe_code,
        errno,
        files,
        prose,
        retired,
        type_names,
        folders,
    } = toml::from_str(text).map_err(|trouble| format!("{FILE}: {trouble}"))?;
    Ok(ArchitectureRules {
        crates,
        third_party,
        banned,
        unsafe_code,
        errno,
        files,
        prose,
        retired,
        type_names,
        folders,
        text: text.to_owned(),
    })
}

impl ArchitectureRules {
    pub fn crate_named(&self, name: &str) -> Option<&CrateRules> {
        self.crates.iter().find(|rules| rules.name == name)
    }

    pub fn rules_of_package(&self, package: &str) -> Option<&CrateRules> {
        self.crates.iter().find(|rules| rules.package == package)
    }

    /// What of an identifier is retired, and what to use instead.
    pub fn retired_in(&self, name: &str) -> Option<(&str, &str)> {
        let RetiredNames { words, names } = &self.retired;
        let found = names.get_key_value(name);
        let found = found.or_else(|| words_of(name).iter().find_map(|word| words.get_key_value(word)));
        found.map(|(retired, instead)| (retired.as_str(), instead.as_str()))
    }

    /// Where a crate's entry begins.
    pub fn line_of(&self, rules: &CrateRules) -> usize {
        self.line_with(&format!("name = \"{}\"", rules.name))
    }

    /// The first line that begins so.
    pub fn line_beginning(&self, beginning: &str) -> usize {
        self.text.lines().position(|line| line.starts_with(beginning)).map_or(1, |at| at + 1)
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

/// The words of an identifier in lower case: of `HeirOf`, `heir_of` and `HEIR_OF` the same.
pub fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for sign in name.chars() {
        if !sign.is_alphanumeric() || (sign.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if sign.is_alphanumeric() {
            words.last_mut().expect("there is one").extend(sign.to_lowercase());
        }
        was_lower = sign.is_lowercase() || sign.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixtures::ARCHITECTURE;

    #[test]
    fn crates_are_found_by_both_names_and_by_line() {
        let architecture = read(&SourceTree::of([(FILE, ARCHITECTURE)])).unwrap();
        let wire = architecture.crate_named("wire").unwrap();
        assert_eq!(architecture.rules_of_package("farbus-wire").unwrap().name, "wire");
        let line = architecture.line_of(wire);
        assert!(ARCHITECTURE.lines().nth(line - 1).unwrap().contains("\"wire\""));
    }

    #[test]
    fn a_misspelt_setting_is_refused() {
        let text = ARCHITECTURE.replace("lines_max", "line_max");
        let trouble = read(&SourceTree::of([(FILE, text.as_str())])).unwrap_err();
        assert!(trouble.contains("line_max"), "{trouble}");
    }
}
