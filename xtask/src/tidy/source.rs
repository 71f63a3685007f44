//! A Rust file as the rules see it: its tokens, what it imports and declares, and which lines of it are tests.
//!
//! Names are read from tokens, not from expressions, so that those inside macros count too. Structure (modules,
//! imports, functions, tests) comes from the parsed file.

use super::manifest::PackageManifest;
use super::tree::SourceTree;
use super::violation::Violation;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A parsed file of Rust code.
#[derive(Debug)]
pub struct SourceFile {
    /// Relative to the workspace.
    pub path: String,
    pub lines: usize,
    pub tokens: Vec<SourceToken>,
    /// The string literals, without the texts of doc comments.
    pub texts: Vec<StringLiteral>,
    /// Where the file stands in a crate's tree of modules; `None` for tests and examples, and for files no module
    /// names.
    pub address: Option<ModuleAddress>,
    pub functions: Vec<SourceFunction>,
    pub modules: Vec<ModuleDeclaration>,
    pub imports: Vec<ImportedName>,
    pub items: Vec<DefinedItem>,
    is_test: bool,
    test_lines: Vec<RangeInclusive<usize>>,
    /// The text of the `//!` comment at the top.
    pub description: String,
}

/// The root file of a crate, and the modules from it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleAddress {
    pub root: String,
    pub path: Vec<String>,
}

/// A string literal's value, and the line where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StringLiteral {
    pub line: usize,
    pub value: String,
}

#[derive(Clone, Debug)]
pub struct SourceToken {
    pub line: usize,
    pub kind: TokenKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Word(String),
    /// A sign, and whether the next one is glued to it.
    Sign(char, bool),
    Open(Delimiter),
    Close(Delimiter),
    Literal,
}

/// A name as written, `a::b::c`; of a macro the last part is `c!`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenName {
    pub parts: Vec<String>,
    pub line: usize,
}

/// A function and the lines from its first attribute to its end.
#[derive(Debug)]
pub struct SourceFunction {
    pub name: String,
    pub lines: RangeInclusive<usize>,
    pub line: usize,
    pub is_test: bool,
    pub may_panic_to_pass: bool,
}

/// A module declared or written out in the file.
#[derive(Debug)]
pub struct ModuleDeclaration {
    pub name: String,
    /// The modules written out around it in the same file.
    pub inside: Vec<String>,
    /// The lines of its body if it is written out here.
    pub body: Option<RangeInclusive<usize>>,
    pub is_test: bool,
    /// The file that a `#[path]` names.
    pub file: Option<String>,
}

/// One name that a `use` brings in.
#[derive(Debug)]
pub struct ImportedName {
    /// The modules written out around it in the same file.
    pub inside: Vec<String>,
    /// What it is called here; `None` for a glob.
    pub name: Option<String>,
    pub path: Vec<String>,
    pub line: usize,
    /// Whether it names something for the whole module and not for one function.
    pub in_module: bool,
}

/// Something that the file defines.
#[derive(Debug)]
pub struct DefinedItem {
    pub inside: Vec<String>,
    pub name: String,
    pub line: usize,
    /// A struct, an enum, a union, a trait or an alias.
    pub is_type: bool,
}

/// Parses every Rust file of the tree; those that do not parse become violations.
pub fn read(tree: &SourceTree, packages: &[PackageManifest]) -> (Vec<SourceFile>, Vec<Violation>) {
    let (mut sources, mut violations) = (Vec::new(), Vec::new());
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        match SourceFile::parse(path, text) {
            Ok(source) => sources.push(source),
            Err(violation) => violations.push(violation),
        }
    }
    for source in &mut sources {
        source.is_test |= !packages.iter().any(|package| package.ships(&source.path));
    }
    location(&mut sources, packages);
    (sources, violations)
}

impl SourceFile {
    pub fn parse(path: &str, text: &str) -> Result<SourceFile, Violation> {
        let tokens: TokenStream = text.parse().map_err(|trouble: proc_macro2::LexError| {
            Violation::new(path, trouble.span().start().line, "syntax", trouble.to_string())
        })?;
        let file: syn::File = syn::parse2(tokens.clone())
            .map_err(|trouble| Violation::new(path, trouble.span().start().line, "syntax", trouble.to_string()))?;
        let mut reader = StructureCollector::default();
        reader.visit_file(&file);
        let (mut flat, mut texts) = (Vec::new(), Vec::new());
        flatten(tokens, &mut flat, &mut texts);
        Ok(SourceFile {
            path: path.to_owned(),
            lines: text.lines().count(),
            tokens: flat,
            texts,
            address: None,
            functions: reader.functions,
            modules: reader.modules,
            imports: reader.imports,
            items: reader.items,
            is_test: file.attrs.iter().any(is_test_only),
            test_lines: reader.test_lines,
            description: description(text),
        })
    }

    /// Whether a line is part of a test.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Whether the whole file is.
    pub fn is_test_file(&self) -> bool {
        self.is_test
    }

    /// Lines that are not part of a test.
    pub fn lines_without_tests(&self) -> usize {
        (1..=self.lines).filter(|&line| !self.is_test_line(line)).count()
    }

    /// The modules written out in this file around a line, outermost first.
    pub fn modules_around(&self, line: usize) -> Vec<String> {
        let around = self.modules.iter().filter(|module| module.body.as_ref().is_some_and(|body| body.contains(&line)));
        around.max_by_key(|module| module.inside.len()).map_or_else(Vec::new, |module| {
            let mut path = module.inside.clone();
            path.push(module.name.clone());
            path
        })
    }

    /// Every name in the file: what `use` brings in, and what is written elsewhere.
    pub fn names(&self) -> Vec<WrittenName> {
        let imported = self.imports.iter().map(|import| WrittenName { parts: import.path.clone(), line: import.line });
        imported.chain(written_names(&self.tokens)).collect()
    }
}

/// Names outside `use`: words joined by `::`, and macros. Words behind a dot are fields or methods and left out.
fn written_names(tokens: &[SourceToken]) -> Vec<WrittenName> {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let TokenKind::Word(word) = &token.kind else {
            at += 1;
            continue;
        };
        // `use` also opens the list of captured lifetimes in a bound, which names nothing.
        if word == "use" && !matches!(kind(tokens, at + 1), Some(TokenKind::Sign('<', _))) {
            at += tokens[at..].iter().position(|token| token.kind == TokenKind::Sign(';', false)).unwrap_or(1);
            continue;
        }
        if word == "pub" && restricts_visibility(tokens, at) {
            at += tokens[at..].iter().position(|token| matches!(token.kind, TokenKind::Close(_))).unwrap_or(1);
            continue;
        }
        let after_dot = at > 0 && tokens[at - 1].kind == TokenKind::Sign('.', false);
        let line = token.line;
        let mut parts = vec![word.clone()];
        at += 1;
        while let (Some(TokenKind::Sign(':', true)), Some(TokenKind::Sign(':', _)), Some(TokenKind::Word(next))) =
            (kind(tokens, at), kind(tokens, at + 1), kind(tokens, at + 2))
        {
            parts.push(next.clone());
            at += 3;
        }
        if let (Some(TokenKind::Sign('!', _)), Some(TokenKind::Open(_))) = (kind(tokens, at), kind(tokens, at + 1)) {
            let last = parts.len() - 1;
            parts[last].push('!');
        }
        if !after_dot {
            names.push(WrittenName { parts, line });
        }
    }
    names
}

/// `pub(crate)`, `pub(super)`, `pub(in …)`: a wall, not an arrow.
fn restricts_visibility(tokens: &[SourceToken], at: usize) -> bool {
    let whom = match kind(tokens, at + 2) {
        Some(TokenKind::Word(whom)) => whom.as_str(),
        _ => return false,
    };
    kind(tokens, at + 1) == Some(&TokenKind::Open(Delimiter::Parenthesis))
        && match whom {
            "in" => true,
            "crate" | "self" | "super" => kind(tokens, at + 3) == Some(&TokenKind::Close(Delimiter::Parenthesis)),
            _ => false,
        }
}

fn kind(tokens: &[SourceToken], at: usize) -> Option<&TokenKind> {
    tokens.get(at).map(|token| &token.kind)
}

fn flatten(stream: TokenStream, into: &mut Vec<SourceToken>, texts: &mut Vec<StringLiteral>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                into.push(SourceToken { line, kind: TokenKind::Open(group.delimiter()) });
                let end = group.span_close().start().line;
                let delimiter = group.delimiter();
                flatten(group.stream(), into, texts);
                into.push(SourceToken { line: end, kind: TokenKind::Close(delimiter) });
            }
            TokenTree::Ident(word) => into.push(SourceToken { line, kind: TokenKind::Word(word.to_string()) }),
            TokenTree::Punct(sign) => {
                let kind = TokenKind::Sign(sign.as_char(), sign.spacing() == Spacing::Joint);
                into.push(SourceToken { line, kind });
            }
            TokenTree::Literal(literal) => {
                if !documents(into)
                    && let Ok(text) = syn::parse2::<syn::LitStr>(TokenTree::Literal(literal).into())
                {
                    texts.push(StringLiteral { line, value: text.value() });
                }
                into.push(SourceToken { line, kind: TokenKind::Literal });
            }
        }
    }
}

/// Whether what comes next is the text of a doc comment, which the compiler reads as `doc = "…"`.
fn documents(before: &[SourceToken]) -> bool {
    matches!(before, [.., SourceToken { kind: TokenKind::Word(word), .. }, SourceToken { kind: TokenKind::Sign('=', _), .. }] if word == "doc")
}

fn description(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.is_empty() || line.starts_with("//"));
    lines.filter_map(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n")
}

/// `#[cfg(test)]`, alone or with other conditions, but not `not(test)`.
fn is_test_only(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg") && {
        let words = words(&attribute.meta);
        words.iter().any(|word| word == "test") && !words.iter().any(|word| word == "not")
    }
}

/// `#[test]`, or a runtime's version of it.
fn is_test_mark(attribute: &syn::Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "test")
}

fn words(meta: &syn::Meta) -> Vec<String> {
    let mut tokens = Vec::new();
    if let syn::Meta::List(list) = meta {
        flatten(list.tokens.clone(), &mut tokens, &mut Vec::new());
    }
    let words = tokens.into_iter().filter_map(|token| match token.kind {
        TokenKind::Word(word) => Some(word),
        _ => None,
    });
    words.collect()
}

/// Collects structure while walking a parsed file.
#[derive(Default)]
struct StructureCollector {
    inside: Vec<String>,
    functions_around: usize,
    functions: Vec<SourceFunction>,
    modules: Vec<ModuleDeclaration>,
    imports: Vec<ImportedName>,
    items: Vec<DefinedItem>,
    test_lines: Vec<RangeInclusive<usize>>,
}

impl StructureCollector {
    fn function(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, whole: &dyn Spanned) {
        let is_test = attributes.iter().any(is_test_mark);
        let lines = lines_of(whole);
        if is_test || attributes.iter().any(is_test_only) {
            self.test_lines.push(lines.clone());
        }
        self.functions.push(SourceFunction {
            name: signature.ident.to_string(),
            line: signature.ident.span().start().line,
            lines,
            is_test,
            may_panic_to_pass: attributes.iter().any(|attribute| attribute.path().is_ident("should_panic")),
        });
    }

    fn import(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>) {
        let line = tree.span().start().line;
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
                prefix.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix)),
            syn::UseTree::Glob(_) => self.push_import(None, prefix.clone(), line),
            syn::UseTree::Name(name) => self.import_name(&name.ident.to_string(), None, prefix, line),
            syn::UseTree::Rename(rename) => {
                self.import_name(&rename.ident.to_string(), Some(rename.rename.to_string()), prefix, line);
            }
        }
    }

    /// `self` at the end of a group stands for the group's own path.
    fn import_name(&mut self, word: &str, renamed: Option<String>, prefix: &[String], line: usize) {
        let mut path = prefix.to_vec();
        if word != "self" || path.is_empty() {
            path.push(word.to_owned());
        }
        let name = renamed.or_else(|| path.last().cloned());
        self.push_import(name, path, line);
    }

    fn push_import(&mut self, name: Option<String>, path: Vec<String>, line: usize) {
        let in_module = self.functions_around == 0;
        self.imports.push(ImportedName { inside: self.inside.clone(), name, path, line, in_module });
    }
}

impl<'ast> Visit<'ast> for StructureCollector {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes_of(item).iter().any(is_test_only) {
            self.test_lines.push(lines_of(item));
        }
        if self.functions_around == 0
            && let Some(name) = name_of(item)
        {
            let (line, is_type) = (name.span().start().line, is_type(item));
            self.items.push(DefinedItem { inside: self.inside.clone(), name: name.to_string(), line, is_type });
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let name = module.ident.to_string();
        self.modules.push(ModuleDeclaration {
            name: name.clone(),
            inside: self.inside.clone(),
            body: module.content.is_some().then(|| lines_of(module)),
            is_test: module.attrs.iter().any(is_test_only),
            file: module.attrs.iter().find_map(path_attribute),
        });
        self.inside.push(name);
        visit::visit_item_mod(self, module);
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.attrs, &function.sig, function);
        self.functions_around += 1;
        visit::visit_item_fn(self, function);
        self.functions_around -= 1;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.attrs, &function.sig, function);
        self.functions_around += 1;
        visit::visit_impl_item_fn(self, function);
        self.functions_around -= 1;
    }
}

fn lines_of(spanned: &(impl Spanned + ?Sized)) -> RangeInclusive<usize> {
    let span = spanned.span();
    span.start().line..=span.end().line
}

fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
    pair.path.is_ident("path").then(|| text.value())
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<&syn::Ident> {
    Some(match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    })
}

fn is_type(item: &syn::Item) -> bool {
    use syn::Item::{Enum, Struct, Trait, Type, Union};
    matches!(item, Enum(_) | Struct(_) | Trait(_) | Type(_) | Union(_))
}

/// Follows `mod` declarations from every crate root, so that each file knows its module and whether it is a test's.
fn location(sources: &mut [SourceFile], packages: &[PackageManifest]) {
    let index: BTreeMap<String, usize> =
        sources.iter().enumerate().map(|(at, source)| (source.path.clone(), at)).collect();
    for root in packages.iter().flat_map(|package| &package.roots) {
        let Some(&at) = index.get(root) else { continue };
        let mut open = vec![(at, ModuleAddress { root: root.clone(), path: Vec::new() }, false)];
        while let Some((at, address, is_test)) = open.pop() {
            let source = &mut sources[at];
            if source.address.is_some() {
                continue;
            }
            source.is_test |= is_test;
            source.address = Some(address.clone());
            let is_test = source.is_test;
            for module in source.modules.iter().filter(|module| module.body.is_none()) {
                let found = module_files(&source.path, source.path == *root, module);
                if let Some(&child) = found.iter().find_map(|path| index.get(path)) {
                    let mut path = address.path.clone();
                    path.extend(module.inside.iter().cloned());
                    path.push(module.name.clone());
                    open.push((child, ModuleAddress { root: root.clone(), path }, is_test || module.is_test));
                }
            }
        }
    }
}

/// Where the body of `mod name;` may be.
fn module_files(file: &str, is_root: bool, module: &ModuleDeclaration) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    if let Some(named) = &module.file {
        return vec![format!("{folder}/{named}")];
    }
    let mut base = folder.to_owned();
    if !is_root && name != "mod.rs" {
        base = format!("{folder}/{}", name.trim_end_matches(".rs"));
    }
    for inside in &module.inside {
        base = format!("{base}/{inside}");
    }
    vec![format!("{base}/{}.rs", module.name), format!("{base}/{}/mod.rs", module.name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> SourceFile {
        SourceFile::parse("a.rs", text).unwrap()
    }

    fn names(text: &str) -> Vec<String> {
        parse(text).names().iter().map(|name| name.parts.join("::")).collect()
    }

    #[test]
    fn imports_are_taken_apart() {
        let found = names("use std::{fs, net::{self, TcpStream as Stream}, io::*};");
        assert_eq!(found, ["std::fs", "std::net", "std::net::TcpStream", "std::io"]);
        let source = parse("use a::{self as b, c};");
        let called: Vec<_> = source.imports.iter().map(|import| import.name.as_deref().unwrap()).collect();
        assert_eq!(called, ["b", "c"]);
    }

    #[test]
    fn names_inside_macros_count_and_methods_do_not() {
        let found = names("fn f() { vec![crate::a::b(), c.channel()]; println!(\"x\"); if a != b {} }");
        assert!(found.contains(&"crate::a::b".to_owned()), "{found:?}");
        assert!(found.contains(&"println!".to_owned()), "{found:?}");
        assert!(!found.contains(&"channel".to_owned()), "{found:?}");
        assert!(!found.iter().any(|name| name == "a!"), "{found:?}");
    }

    #[test]
    fn visibility_is_not_a_name() {
        let found = names("pub(crate) fn f() {} pub(super) struct S(pub(in crate::a) u8, pub (crate::B, u8));");
        assert!(!found.contains(&"super".to_owned()) && !found.contains(&"crate::a".to_owned()), "{found:?}");
        assert!(found.contains(&"crate::B".to_owned()), "{found:?}");
    }

    #[test]
    fn captured_lifetimes_are_not_an_import() {
        let found = names("fn f<'a>(x: &'a u8) -> impl Sized + use<'a> { crate::g(x) }");
        assert!(found.contains(&"crate::g".to_owned()), "{found:?}");
    }

    #[test]
    fn test_lines_are_known() {
        let source = parse("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(not(test))]\nfn c() {}\n");
        let tests: Vec<_> = (1..=7).filter(|&line| source.is_test_line(line)).collect();
        assert_eq!(tests, [2, 3, 4, 5]);
        assert_eq!(source.lines_without_tests(), 3);
    }

    #[test]
    fn the_innermost_module_around_a_line_is_found() {
        let source = parse("mod a {\n    mod b {\n        fn c() {}\n    }\n}\nfn d() {}\n");
        assert_eq!(source.modules_around(3), ["a", "b"]);
        assert_eq!(source.modules_around(6), [""; 0]);
    }

    #[test]
    fn the_description_is_the_comment_at_the_top() {
        assert_eq!(
            parse("//! one\n//! two\n\nfn a() {}\n//! not this\nfn b() {}\n".replace("//! not this\n", "").as_str())
                .description,
            " one\n two"
        );
    }

    #[test]
    fn a_file_that_does_not_parse_says_where() {
        let violation = SourceFile::parse("a.rs", "fn a() {}\nfn {}\n").unwrap_err();
        assert_eq!((violation.line, violation.rule), (2, "syntax"));
        let violation = SourceFile::parse("a.rs", "fn a() {\n").unwrap_err();
        assert_eq!(violation.rule, "syntax");
    }
}
