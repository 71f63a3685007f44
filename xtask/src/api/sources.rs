//! The libraries of the workspace, parsed: crates, modules, items.

use super::text::text;
use std::collections::BTreeMap;
use std::path::Path;
use syn::{Attribute, Item, Visibility};

/// The libraries of a workspace.
pub struct Sources {
    libraries: Vec<Library>,
}

/// One library.
pub struct Library {
    /// Its folder below `crates/`.
    pub folder: String,
    /// What code calls it.
    pub name: String,
    modules: BTreeMap<Vec<String>, Module>,
}

/// A module, in a file of its own or not.
pub struct Module {
    /// All that it defines, without tests; modules are among them, with no content.
    pub items: Vec<Item>,
}

/// A module of one of the libraries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleId {
    /// The library's name.
    pub library: String,
    pub path: Vec<String>,
}

impl Sources {
    /// Reads and parses the libraries below `crates/`.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn read(root: &Path) -> Result<Sources, String> {
        let (mut names, mut files) = (Vec::new(), BTreeMap::new());
        let folders = std::fs::read_dir(root.join("crates")).map_err(|error| format!("cannot read crates: {error}"))?;
        for folder in folders {
            let folder = folder.map_err(|error| format!("cannot read crates: {error}"))?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if folder.join("src/lib.rs").is_file() {
                read_folder(&folder.join("src"), &format!("crates/{name}/src/"), &mut files)?;
                let library = if name == "farbus" { name.clone() } else { format!("farbus_{name}") };
                names.push((name, library));
            }
        }
        names.sort();
        let names: Vec<_> = names.iter().map(|(folder, name)| (folder.as_str(), name.as_str())).collect();
        Sources::of(&names, files)
    }

    /// The libraries with these folders and names, from these files (`crates/FOLDER/src/…`).
    ///
    /// # Errors
    /// A file that is missing or cannot be parsed.
    pub fn of(libraries: &[(&str, &str)], files: BTreeMap<String, String>) -> Result<Sources, String> {
        let parsed = |&(folder, name): &(&str, &str)| {
            let mut library = Library { folder: folder.to_owned(), name: name.to_owned(), modules: BTreeMap::new() };
            library.add_file(&format!("crates/{folder}/src/lib.rs"), Vec::new(), &files)?;
            Ok(library)
        };
        Ok(Sources { libraries: libraries.iter().map(parsed).collect::<Result<_, String>>()? })
    }

    pub fn library_in(&self, folder: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.folder == folder)
    }

    pub fn library(&self, name: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.name == name)
    }

    pub fn module(&self, id: &ModuleId) -> Option<&Module> {
        self.library(&id.library)?.modules.get(&id.path)
    }

    /// Every module of every library.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleId, &Module)> {
        self.libraries.iter().flat_map(|library| {
            let id = |path: &Vec<String>| ModuleId { library: library.name.clone(), path: path.clone() };
            library.modules.iter().map(move |(path, module)| (id(path), module))
        })
    }
}

impl Library {
    pub fn root(&self) -> ModuleId {
        ModuleId { library: self.name.clone(), path: Vec::new() }
    }

    fn add_file(&mut self, file: &str, path: Vec<String>, files: &BTreeMap<String, String>) -> Result<(), String> {
        let text = files.get(file).ok_or_else(|| format!("{file} is missing"))?;
        let parsed = syn::parse_file(text).map_err(|error| {
            let at = error.span().start();
            format!("{file}:{}:{}: {error}", at.line, at.column + 1)
        })?;
        let top = file.ends_with("/lib.rs") || file.ends_with("/mod.rs");
        let folder = match top {
            true => file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned(),
            false => file.trim_end_matches(".rs").to_owned(),
        };
        self.add_items(parsed.items, path, &folder, files)
    }

    fn add_items(
        &mut self,
        items: Vec<Item>,
        path: Vec<String>,
        folder: &str,
        files: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let mut kept = Vec::new();
        for mut item in items.into_iter().filter(|item| !is_left_out(attributes(item))) {
            if let Item::Mod(module) = &mut item {
                let name = module.ident.to_string();
                let (inner, within) =
                    ([path.as_slice(), std::slice::from_ref(&name)].concat(), format!("{folder}/{name}"));
                match module.content.take() {
                    Some((_, items)) => self.add_items(items, inner, &within, files)?,
                    None => {
                        let beside = format!("{within}.rs");
                        let file = if files.contains_key(&beside) { beside } else { format!("{within}/mod.rs") };
                        self.add_file(&file, inner, files)?;
                    }
                }
            }
            kept.push(item);
        }
        self.modules.insert(path, Module { items: kept });
        Ok(())
    }
}

fn read_folder(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            read_folder(&path, &format!("{name}/"), files)?;
        } else if name.ends_with(".rs") {
            files.insert(name, std::fs::read_to_string(&path).map_err(cannot)?);
        }
    }
    Ok(())
}

/// The conditions of an item (`#[cfg(…)]`), as written.
pub fn conditions(attributes: &[Attribute]) -> impl Iterator<Item = String> {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.meta.require_list().ok().map(|list| text(&list.tokens)))
}

/// Whether an item is not part of the library as its users build it: a test, or the command's.
fn is_left_out(attributes: &[Attribute]) -> bool {
    conditions(attributes).any(|condition| condition == "test" || condition == "feature = \"cli\"")
}

pub fn is_hidden(attributes: &[Attribute]) -> bool {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    docs.filter_map(|attribute| attribute.meta.require_list().ok()).any(|list| list.tokens.to_string() == "hidden")
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// What an item defines and whether it is `pub`; `None` of what has no name (an `impl`, a `use`, a macro's call).
pub fn definition(item: &Item) -> Option<(String, bool)> {
    let (name, visibility) = match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Mod(item) => (&item.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((name.to_string(), is_public(visibility)))
}

pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}
