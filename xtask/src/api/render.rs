//! The listing's lines.

use super::impls;
use super::impls::Placed;
use super::names::ItemId;
use super::reach::{Reached, reach};
use super::sources::{Library, Sources, attributes, conditions, definition, is_hidden, is_public};
use super::text::text;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use syn::{Attribute, Fields, ImplItem, Item, Signature, TraitItem};

/// The listing of a library.
pub fn listing(sources: &Sources, library: &Library) -> String {
    let reached = reach(sources, library);
    let impls = impls::by_item(sources);
    let mut blocks: BTreeMap<(String, u8), String> = BTreeMap::new();
    for (path, target) in &reached.elsewhere {
        blocks.insert((path.clone(), 0), format!("pub use {target} as {path}\n"));
    }
    for (path, module) in &reached.modules {
        let mut block = format!("pub mod {path}\n");
        let items = sources.module(module).into_iter().flat_map(|module| &module.items);
        calls(items, &mut block);
        blocks.insert((path.clone(), 1), block);
    }
    for (id, paths) in &reached.items {
        let mut paths = paths.iter().map(|path| path.text.as_str());
        let Some(best) = paths.next() else { continue };
        let of_item: &[Placed] = impls.get(id).map_or(&[], Vec::as_slice);
        blocks.insert((best.to_owned(), 2), block(sources, &reached, id, best, of_item));
        for other in paths {
            blocks.insert((other.to_owned(), 2), format!("pub use {best} as {other}\n"));
        }
    }
    let mut text = format!(
        "# The public API of the library {}, made by `cargo xtask api --bless`: every item by the path that its users write.\n",
        library.name
    );
    for block in blocks.into_values() {
        let _ = write!(text, "\n{block}");
    }
    text
}

/// What macros define in a module is not known; their calls stand for it.
fn calls<'a>(items: impl Iterator<Item = &'a Item>, block: &mut String) {
    for item in items {
        if let Item::Macro(call) = item
            && call.ident.is_none()
            && !call.mac.path.is_ident("thread_local")
        {
            let _ = writeln!(block, "    {}!({})", text(&call.mac.path), text(&call.mac.tokens));
        }
    }
}

/// An item: what it is on the first line, what it has on the others. A name may be that of a type and of a function at
/// once.
fn block(sources: &Sources, reached: &Reached, id: &ItemId, path: &str, impls: &[Placed]) -> String {
    let items = sources.module(&id.module).into_iter().flat_map(|module| &module.items);
    let named = items.filter(|item| !matches!(item, Item::Mod(_)) && definition(item) == Some((id.name.clone(), true)));
    let mut block = String::new();
    for item in named {
        let (head, mut lines) = described(item, path);
        let _ = writeln!(block, "{}{head}", marks(attributes(item)));
        if matches!(item, Item::Struct(_) | Item::Enum(_) | Item::Union(_) | Item::Trait(_) | Item::Type(_)) {
            let mut further = derived(attributes(item));
            further.extend(impls.iter().flat_map(|block| lines_of_impl(sources, reached, id, block)));
            further.sort();
            further.dedup();
            lines.extend(further);
        }
        lines.iter().for_each(|line| {
            let _ = writeln!(block, "    {line}");
        });
    }
    block
}

/// An item's first line, and the lines of its fields, variants or members.
fn described(item: &Item, path: &str) -> (String, Vec<String>) {
    match item {
        Item::Const(item) => (format!("pub const {path}: {}", text(&item.ty)), Vec::new()),
        Item::Static(item) => (format!("pub static {path}: {}", text(&item.ty)), Vec::new()),
        Item::Fn(item) => (format!("pub {}", signature(&item.sig, path)), Vec::new()),
        Item::Type(item) => (format!("pub type {path}{} = {}", text(&item.generics), text(&item.ty)), Vec::new()),
        Item::Struct(item) => {
            let (shape, lines) = fields_of_struct(&item.fields);
            let condition = where_clause(&item.generics);
            (format!("pub struct {path}{}{shape}{condition}", text(&item.generics)), lines)
        }
        Item::Union(item) => (format!("pub union {path}{}", text(&item.generics)), Vec::new()),
        Item::Enum(item) => {
            let lines = item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)).map(|variant| {
                let value =
                    variant.discriminant.as_ref().map_or(String::new(), |(_, value)| format!(" = {}", text(value)));
                format!("{}{}{}{value}", marks(&variant.attrs), variant.ident, fields_of_variant(&variant.fields))
            });
            let condition = where_clause(&item.generics);
            (format!("pub enum {path}{}{condition}", text(&item.generics)), lines.collect())
        }
        Item::Trait(item) => {
            let safety = if item.unsafety.is_some() { "unsafe " } else { "" };
            let above = item.supertraits.iter().map(text).collect::<Vec<_>>().join(" + ");
            let above = if above.is_empty() { above } else { format!(": {above}") };
            let condition = where_clause(&item.generics);
            let head = format!("pub {safety}trait {path}{}{above}{condition}", text(&item.generics));
            (head, item.items.iter().filter_map(member_of_trait).collect())
        }
        _ => (String::new(), Vec::new()),
    }
}

fn fields_of_struct(fields: &Fields) -> (String, Vec<String>) {
    match fields {
        Fields::Unit => (";".into(), Vec::new()),
        Fields::Unnamed(fields) => {
            let shown = fields.unnamed.iter().map(|field| match is_public(&field.vis) {
                true => format!("pub {}", text(&field.ty)),
                false => "_".to_owned(),
            });
            (format!("({});", shown.collect::<Vec<_>>().join(", ")), Vec::new())
        }
        Fields::Named(fields) => {
            let public = fields.named.iter().filter(|field| is_public(&field.vis) && !is_hidden(&field.attrs));
            let lines: Vec<_> = public
                .filter_map(|field| {
                    Some(format!("{}pub {}: {}", marks(&field.attrs), field.ident.as_ref()?, text(&field.ty)))
                })
                .collect();
            let has_others = lines.len() < fields.named.len();
            (if has_others { " { .. }".into() } else { String::new() }, lines)
        }
    }
}

fn fields_of_variant(fields: &Fields) -> String {
    match fields {
        Fields::Unit => String::new(),
        Fields::Unnamed(fields) => {
            format!("({})", fields.unnamed.iter().map(|field| text(&field.ty)).collect::<Vec<_>>().join(", "))
        }
        Fields::Named(fields) => {
            let named =
                fields.named.iter().filter_map(|field| Some(format!("{}: {}", field.ident.as_ref()?, text(&field.ty))));
            format!(" {{ {} }}", named.collect::<Vec<_>>().join(", "))
        }
    }
}

fn member_of_trait(item: &TraitItem) -> Option<String> {
    let (attributes, line) = match item {
        TraitItem::Fn(item) => {
            let provided = if item.default.is_some() { " { .. }" } else { "" };
            (&item.attrs, format!("{}{provided}", signature(&item.sig, &item.sig.ident.to_string())))
        }
        TraitItem::Const(item) => {
            let provided = if item.default.is_some() { " = .." } else { "" };
            (&item.attrs, format!("const {}: {}{provided}", item.ident, text(&item.ty)))
        }
        TraitItem::Type(item) => {
            let bounds = item.bounds.iter().map(text).collect::<Vec<_>>().join(" + ");
            let bounds = if bounds.is_empty() { bounds } else { format!(": {bounds}") };
            (&item.attrs, format!("type {}{}{bounds}", item.ident, text(&item.generics)))
        }
        _ => return None,
    };
    (!is_hidden(attributes)).then(|| format!("{}{line}", marks(attributes)))
}

/// An `impl`'s lines: one a public method of its own, or one for the trait; none of a trait that users cannot name.
fn lines_of_impl(sources: &Sources, reached: &Reached, id: &ItemId, placed: &Placed) -> Vec<String> {
    let Placed { at, block } = placed;
    let (generics, condition) = (text(&block.generics), where_clause(&block.generics));
    let this = text(&block.self_ty);
    if let Some((bang, of_trait, _)) = &block.trait_ {
        if impls::item(sources, at, of_trait).is_some_and(|of_trait| reached.path(&of_trait).is_none()) {
            return Vec::new();
        }
        let types = block.items.iter().filter_map(|item| match item {
            ImplItem::Type(item) => Some(format!("type {}{} = {}", item.ident, text(&item.generics), text(&item.ty))),
            _ => None,
        });
        let types = types.collect::<Vec<_>>().join("; ");
        let types = if types.is_empty() { types } else { format!(" {{ {types} }}") };
        let not = if bang.is_some() { "!" } else { "" };
        return vec![format!(
            "{}impl{generics} {not}{} for {this}{types}{condition}",
            marks(&block.attrs),
            text(of_trait)
        )];
    }
    // The plain case needs no repetition of the type.
    let is_plain = generics.is_empty() && condition.is_empty() && this == id.name;
    let prefix = match is_plain {
        true => String::new(),
        false => format!("impl{generics} {this}{condition}: "),
    };
    let members = block.items.iter().filter_map(|item| {
        let (attributes, line) = match item {
            ImplItem::Fn(item) if is_public(&item.vis) => {
                (&item.attrs, format!("pub {}", signature(&item.sig, &item.sig.ident.to_string())))
            }
            ImplItem::Const(item) if is_public(&item.vis) => {
                (&item.attrs, format!("pub const {}: {}", item.ident, text(&item.ty)))
            }
            _ => return None,
        };
        (!is_hidden(attributes)).then(|| format!("{}{prefix}{line}", marks(attributes)))
    });
    members.collect()
}

/// What `#[derive(…)]` implements.
fn derived(attributes: &[Attribute]) -> Vec<String> {
    let lists = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
    let mut derived = Vec::new();
    for list in lists {
        let _ = list.parse_nested_meta(|of| {
            derived.push(format!("impl {}", text(&of.path)));
            Ok(())
        });
    }
    derived
}

/// A function's signature, under a name.
fn signature(of: &Signature, name: &str) -> String {
    let word = |is: bool, word: &str| if is { format!("{word} ") } else { String::new() };
    let abi = of.abi.as_ref().map_or(String::new(), |abi| format!("{} ", text(abi)));
    let words = word(of.constness.is_some(), "const")
        + &word(of.asyncness.is_some(), "async")
        + &word(of.unsafety.is_some(), "unsafe");
    let inputs = of.inputs.iter().map(text).collect::<Vec<_>>().join(", ");
    let output = match &of.output {
        syn::ReturnType::Default => String::new(),
        syn::ReturnType::Type(_, of) => format!(" -> {}", text(of)),
    };
    format!("{words}{abi}fn {name}{}({inputs}){output}{}", text(&of.generics), where_clause(&of.generics))
}

fn where_clause(of: &syn::Generics) -> String {
    of.where_clause.as_ref().map_or(String::new(), |clause| format!(" {}", text(clause).trim_end_matches(',')))
}

/// Attributes that matter to users, to stand before what they are of.
fn marks(attributes: &[Attribute]) -> String {
    let mut marks = String::new();
    conditions(attributes).for_each(|condition| {
        let _ = write!(marks, "#[cfg({condition})] ");
    });
    for name in ["non_exhaustive", "deprecated", "must_use"] {
        if attributes.iter().any(|attribute| attribute.path().is_ident(name)) {
            let _ = write!(marks, "#[{name}] ");
        }
    }
    marks
}
