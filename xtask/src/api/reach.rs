//! What a user of a library can name, and by which paths.

use super::names::{Found, ItemId, imports};
use super::sources::{Library, ModuleId, Sources, attributes, definition, is_hidden};
use std::collections::{BTreeMap, BTreeSet};
use syn::Item;

/// Modules nested deeper than this are a circle of re-exports.
const DEPTH_MAX: usize = 12;

/// All that is reachable.
#[derive(Debug, Default)]
pub struct Reached {
    /// Modules by their public path.
    pub modules: BTreeMap<String, ModuleId>,
    /// The public paths of each item, the best first.
    pub items: BTreeMap<ItemId, BTreeSet<Path>>,
    /// Public paths that lead to other libraries, and where to.
    pub elsewhere: BTreeMap<String, String>,
}

/// A public path. The shortest is the best, then the first of the alphabet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    parts: usize,
    pub text: String,
}

/// Walks from a library's root.
pub fn reach(sources: &Sources, library: &Library) -> Reached {
    let mut reached = Reached::default();
    reached.walk(sources, &library.root(), &library.name, 0);
    reached
}

impl Reached {
    /// The path by which an item is listed.
    pub fn path(&self, item: &ItemId) -> Option<&str> {
        self.items.get(item)?.first().map(|path| path.text.as_str())
    }

    fn walk(&mut self, sources: &Sources, at: &ModuleId, public: &str, depth: usize) {
        let Some(module) = sources.module(at).filter(|_| depth < DEPTH_MAX) else { return };
        for item in module.items.iter().filter(|item| !is_hidden(attributes(item))) {
            match item {
                Item::Use(item) => {
                    for import in imports(item).into_iter().filter(|import| import.is_public) {
                        for found in sources.resolve(at, &import.path) {
                            match &import.name {
                                Some(name) => self.add(sources, found, &format!("{public}::{name}"), depth),
                                None => self.add_all(sources, found, public, depth),
                            }
                        }
                    }
                }
                item => {
                    if let Some((name, true)) = definition(item) {
                        let found = match item {
                            Item::Mod(_) => Found::Module(at.child(&name)),
                            _ => Found::Item(ItemId { module: at.clone(), name: name.clone() }),
                        };
                        self.add(sources, found, &format!("{public}::{name}"), depth);
                    }
                }
            }
        }
    }

    /// What a path leads to, under the name that it has for users.
    fn add(&mut self, sources: &Sources, found: Found, public: &str, depth: usize) {
        match found {
            Found::Module(module) if module.path.is_empty() => {
                self.elsewhere.insert(public.to_owned(), module.library);
            }
            Found::Module(module) if is_open(sources, &module) => {
                self.modules.insert(public.to_owned(), module.clone());
                self.walk(sources, &module, public, depth + 1);
            }
            Found::Item(item) if is_listed(sources, &item) => {
                let path = Path { parts: public.split("::").count(), text: public.to_owned() };
                self.items.entry(item).or_default().insert(path);
            }
            Found::Elsewhere(path) => {
                self.elsewhere.insert(public.to_owned(), path);
            }
            Found::Module(_) | Found::Item(_) => {}
        }
    }

    /// All that a `pub use …::*` brings.
    fn add_all(&mut self, sources: &Sources, found: Found, public: &str, depth: usize) {
        match found {
            Found::Module(module) => self.walk(sources, &module, public, depth + 1),
            Found::Elsewhere(path) => {
                self.elsewhere.insert(format!("{public}::*"), format!("{path}::*"));
            }
            Found::Item(_) => {}
        }
    }
}

/// A module that its own parent keeps to itself is not passed on by a name that it shares with a function.
fn is_open(sources: &Sources, id: &ModuleId) -> bool {
    let Some((name, above)) = id.path.split_last() else { return true };
    let above = ModuleId { library: id.library.clone(), path: above.to_vec() };
    let items = sources.module(&above).into_iter().flat_map(|module| &module.items);
    items
        .filter(|item| matches!(item, Item::Mod(_)))
        .any(|item| definition(item) == Some((name.clone(), true)) && !is_hidden(attributes(item)))
}

fn is_listed(sources: &Sources, id: &ItemId) -> bool {
    let items = sources.module(&id.module).into_iter().flat_map(|module| &module.items);
    items
        .filter(|item| !matches!(item, Item::Mod(_)))
        .any(|item| definition(item) == Some((id.name.clone(), true)) && !is_hidden(attributes(item)))
}
