//! What a path leads to: through modules, `use` and re-exports, across the workspace's libraries.

use super::sources::{ModuleId, Sources, definition, is_public};
use syn::{Item, UseTree};

/// Paths that pass through more re-exports than this are taken to lead nowhere.
const HOPS_MAX: usize = 16;

/// A type, trait, function, … of one of the libraries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemId {
    pub module: ModuleId,
    pub name: String,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Module(ModuleId),
    Item(ItemId),
    /// Something of a library that is not the workspace's, under the path that it has there.
    Elsewhere(String),
}

/// One name that a `use` brings into a module.
pub struct Imported {
    /// What it is called there; `None` for everything in it (`*`).
    pub name: Option<String>,
    pub path: Vec<String>,
    pub is_public: bool,
}

/// The names of one `use`.
pub fn imports(item: &syn::ItemUse) -> Vec<Imported> {
    let mut found = Vec::new();
    collect(&item.tree, &mut Vec::new(), is_public(&item.vis), &mut found);
    found
}

fn collect(tree: &UseTree, before: &mut Vec<String>, is_public: bool, found: &mut Vec<Imported>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect(&path.tree, before, is_public, found);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, before, is_public, found)),
        UseTree::Glob(_) => found.push(Imported { name: None, path: before.clone(), is_public }),
        UseTree::Name(name) if name.ident == "self" => {
            found.push(Imported { name: before.last().cloned(), path: before.clone(), is_public });
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            let path = [before.as_slice(), std::slice::from_ref(&name)].concat();
            found.push(Imported { name: Some(name), path, is_public });
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            path.extend((rename.ident != "self").then(|| rename.ident.to_string()));
            found.push(Imported { name: Some(rename.rename.to_string()), path, is_public });
        }
    }
}

impl Sources {
    /// What a path leads to that is written in `at`. A name may be that of a module and of a function at once.
    pub fn resolve(&self, at: &ModuleId, path: &[String]) -> Vec<Found> {
        self.resolve_within(at, path, HOPS_MAX)
    }

    fn resolve_within(&self, at: &ModuleId, path: &[String], hops: usize) -> Vec<Found> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let root = |library: &str| ModuleId { library: library.to_owned(), path: Vec::new() };
        match first.as_str() {
            "crate" => self.walk(root(&at.library), rest, hops),
            "self" => self.walk(at.clone(), rest, hops),
            "super" => {
                let mut above = at.clone();
                above.path.pop();
                let above = if rest.first().is_some_and(|next| next == "super") {
                    return self.resolve_within(&above, rest, hops);
                } else {
                    above
                };
                self.walk(above, rest, hops)
            }
            name => {
                let here = self.walk(at.clone(), path, hops);
                if !here.is_empty() {
                    here
                } else if self.library(name).is_some() {
                    self.walk(root(name), rest, hops)
                } else {
                    vec![Found::Elsewhere(path.join("::"))]
                }
            }
        }
    }

    fn walk(&self, at: ModuleId, path: &[String], hops: usize) -> Vec<Found> {
        let Some((name, rest)) = path.split_first() else { return vec![Found::Module(at)] };
        let found = self.members(&at, name, hops);
        if rest.is_empty() {
            return found;
        }
        let module = found.into_iter().find_map(|found| match found {
            Found::Module(module) => Some(self.walk(module, rest, hops)),
            Found::Elsewhere(path) => Some(vec![Found::Elsewhere(format!("{path}::{}", rest.join("::")))]),
            Found::Item(_) => None,
        });
        module.unwrap_or_default()
    }

    /// What a module calls so: what it defines, or else what it imports.
    fn members(&self, at: &ModuleId, name: &str, hops: usize) -> Vec<Found> {
        let (Some(module), Some(hops)) = (self.module(at), hops.checked_sub(1)) else { return Vec::new() };
        let mut found = Vec::new();
        for item in &module.items {
            match (item, definition(item)) {
                (_, Some((defined, _))) if defined != name => {}
                (Item::Mod(_), Some(_)) => found.push(Found::Module(at.child(name))),
                (_, Some(_)) => found.push(Found::Item(ItemId { module: at.clone(), name: name.to_owned() })),
                (Item::Use(item), None) => {
                    let named = imports(item).into_iter().filter(|import| import.name.as_deref() == Some(name));
                    // A library of this name is not what a `use` of the same name in the same module leads to.
                    named.for_each(|import| found.extend(self.resolve_import(at, &import.path, hops)));
                }
                _ => {}
            }
        }
        if found.is_empty() {
            let globs = module
                .items
                .iter()
                .filter_map(|item| if let Item::Use(item) = item { Some(imports(item)) } else { None });
            for glob in globs.flatten().filter(|import| import.name.is_none()) {
                for target in self.resolve_import(at, &glob.path, hops) {
                    if let Found::Module(target) = target
                        && target != *at
                    {
                        found.extend(self.members(&target, name, hops));
                    }
                }
            }
        }
        found
    }

    /// As [`Sources::resolve`], of a `use`, which may name what it brings in: `use farbus_model;`, `use model::model;`.
    fn resolve_import(&self, at: &ModuleId, path: &[String], hops: usize) -> Vec<Found> {
        match path {
            [library] if self.library(library).is_some() => {
                vec![Found::Module(ModuleId { library: library.clone(), path: Vec::new() })]
            }
            path => self.resolve_within(at, path, hops),
        }
    }
}

impl ModuleId {
    pub fn child(&self, name: &str) -> ModuleId {
        ModuleId { library: self.library.clone(), path: [self.path.as_slice(), &[name.to_owned()]].concat() }
    }
}
