//! The `impl`s of the libraries, each with the item it is listed under.

use super::names::{Found, ItemId};
use super::sources::{ModuleId, Sources, is_hidden};
use std::collections::BTreeMap;
use syn::{Item, ItemImpl, Type};

/// An `impl` and the module that it is written in.
pub struct Placed<'a> {
    pub at: ModuleId,
    pub block: &'a ItemImpl,
}

/// The `impl`s that belong to each item: its own, and for a trait those of types that are not the libraries'.
pub fn by_item(sources: &Sources) -> BTreeMap<ItemId, Vec<Placed<'_>>> {
    let mut found: BTreeMap<ItemId, Vec<Placed<'_>>> = BTreeMap::new();
    for (at, module) in sources.modules() {
        for item in &module.items {
            if let Item::Impl(block) = item
                && !is_hidden(&block.attrs)
                && let Some(owner) = owner(sources, &at, block)
            {
                found.entry(owner).or_default().push(Placed { at: at.clone(), block });
            }
        }
    }
    found
}

fn owner(sources: &Sources, at: &ModuleId, block: &ItemImpl) -> Option<ItemId> {
    let of_type = type_path(&block.self_ty).and_then(|path| item(sources, at, path));
    let of_trait = || block.trait_.as_ref().and_then(|(_, path, _)| item(sources, at, path));
    of_type.or_else(of_trait)
}

/// The path of a type that has one; of a reference what it refers to.
fn type_path(of: &Type) -> Option<&syn::Path> {
    match of {
        Type::Path(path) if path.qself.is_none() => Some(&path.path),
        Type::Reference(reference) => type_path(&reference.elem),
        Type::Paren(paren) => type_path(&paren.elem),
        Type::Group(group) => type_path(&group.elem),
        _ => None,
    }
}

/// The item of the libraries that a path names.
pub fn item(sources: &Sources, at: &ModuleId, path: &syn::Path) -> Option<ItemId> {
    let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    sources
        .resolve(at, &parts)
        .into_iter()
        .find_map(|found| if let Found::Item(item) = found { Some(item) } else { None })
}
