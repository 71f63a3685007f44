//! Rules `module-up` and `module-loop`: the arrows inside a crate.
//!
//! A module is a file. An arrow is a name, in a `use` or anywhere else outside tests, that leads from one file to
//! another; a name that a module only passes on (`pub use child::Thing`) leads to where the thing is defined. Then:
//!
//! - A parent may name its children: it puts them together. That is the way down.
//! - A child may not name what its parent, or any module above it, defines itself: parent and child would hold each
//!   other. What both need goes into a file beside the child, from which the parent may pass it on. (`module-up`)
//! - Children of one parent may name each other, each counted with all that is below it, as long as no circle comes of
//!   it: the rules of crates hold for folders. (`module-loop`)
//!
//! Together these leave no circle of files anywhere: all files of a circle have a lowest module above them, and there
//! the circle is either one of its children or passes through itself.

use super::architecture::{ArchitectureRules, leads};
use super::graph::{self, NameGraph};
use super::manifest::PackageManifest;
use super::source::SourceFile;
use super::violation::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// The arrows inside one crate.
pub struct CrateArrows<'a> {
    /// The path of the crate's root file.
    pub root: &'a str,
    pub arrows: Vec<ModuleArrow<'a>>,
}

/// A name that leads from one file to another.
pub struct ModuleArrow<'a> {
    pub source: &'a SourceFile,
    pub line: usize,
    pub written: String,
    pub from: Vec<String>,
    pub to: Vec<String>,
}

impl ModuleArrow<'_> {
    /// Whether it is the import that is written so: `a::b -> c::d`.
    pub fn is_from_to(&self, written: &str) -> bool {
        leads(&self.from, &self.to, written)
    }
}

/// The arrows of all crates.
pub fn read<'a>(packages: &'a [PackageManifest], sources: &'a [SourceFile]) -> Vec<CrateArrows<'a>> {
    let roots = packages.iter().flat_map(|package| &package.roots);
    roots.map(|root| CrateArrows { root, arrows: ModuleTree::of(root, sources).arrows() }).collect()
}

pub fn check(architecture: &ArchitectureRules, insides: &[CrateArrows]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for CrateArrows { root, arrows } in insides {
        let arrows: Vec<&ModuleArrow> =
            arrows.iter().filter(|arrow| !architecture.is_excused(root, &arrow.from, &arrow.to)).collect();
        violations.extend(upward(&arrows));
        violations.extend(circles(&arrows));
    }
    violations
}

fn upward(arrows: &[&ModuleArrow]) -> Vec<Violation> {
    let up = arrows.iter().filter(|arrow| arrow.from.starts_with(&arrow.to));
    up.map(|arrow| {
        let above = display(&arrow.to);
        let advice = format!(
            "`{}` is defined in {above}, above this module: move it into a file beside this one, and let {above} pass it on with `use`",
            arrow.written
        );
        Violation::new(&arrow.source.path, arrow.line, "module-up", advice)
    })
    .collect()
}

/// Circles among the children of each module, every child counted with all below it.
fn circles(arrows: &[&ModuleArrow]) -> Vec<Violation> {
    let mut graphs: BTreeMap<Vec<String>, NameGraph> = BTreeMap::new();
    let mut evidence: BTreeMap<(Vec<String>, String, String), &ModuleArrow> = BTreeMap::new();
    for arrow in arrows {
        let common = arrow.from.iter().zip(&arrow.to).take_while(|(from, to)| from == to).count();
        if let (Some(from), Some(to)) = (arrow.from.get(common), arrow.to.get(common)) {
            let parent = arrow.from[..common].to_vec();
            graphs.entry(parent.clone()).or_default().entry(from.clone()).or_default().insert(to.clone());
            evidence.entry((parent, from.clone(), to.clone())).or_insert(arrow);
        }
    }
    let mut violations = Vec::new();
    for (parent, graph) in &graphs {
        for circle in graph::loops(graph) {
            let steps: Vec<&ModuleArrow> = (0..circle.len())
                .map(|at| {
                    let next = circle[(at + 1) % circle.len()].clone();
                    evidence[&(parent.clone(), circle[at].clone(), next)]
                })
                .collect();
            let reported: Vec<_> = steps
                .iter()
                .map(|arrow| format!("{}:{} names `{}`", arrow.source.path, arrow.line, arrow.written))
                .collect();
            let advice = format!(
                "{} → {} is a circle in {}: {}; turn one arrow round, or move what both need into a file below them",
                circle.join(" → "),
                circle[0],
                display(parent),
                reported.join(", ")
            );
            violations.push(Violation::new(&steps[0].source.path, steps[0].line, "module-loop", advice));
        }
    }
    violations
}

fn display(path: &[String]) -> String {
    if path.is_empty() { "the crate root".to_owned() } else { path.join("::") }
}

/// The modules of one crate.
struct ModuleTree<'a> {
    sources: Vec<&'a SourceFile>,
    modules: BTreeMap<Vec<String>, CrateModule<'a>>,
}

/// One module, written out in a file or a file of its own.
struct CrateModule<'a> {
    /// The path of the file it stands in.
    file: &'a [String],
    children: BTreeSet<&'a str>,
    imports: BTreeMap<&'a str, Vec<&'a [String]>>,
    globs: Vec<&'a [String]>,
    items: BTreeSet<&'a str>,
}

/// What a name leads to.
enum NameTarget {
    Module(Vec<String>),
    /// Something that this module defines, or that nothing explains and so is taken for its own.
    ItemOf(Vec<String>),
}

/// Names that pass through more hands than this are taken to come from elsewhere.
const HOPS_MAX: usize = 16;

impl<'a> ModuleTree<'a> {
    fn of(root: &str, sources: &'a [SourceFile]) -> ModuleTree<'a> {
        let mut all = ModuleTree { sources: Vec::new(), modules: BTreeMap::new() };
        for source in sources {
            if let Some(address) = source.address.as_ref().filter(|address| address.root == root) {
                all.add(&address.path, source);
            }
        }
        all
    }

    fn add(&mut self, file: &'a [String], source: &'a SourceFile) {
        self.sources.push(source);
        self.module(file, &[], file);
        for module in source.modules.iter().filter(|module| !module.is_test) {
            self.module(file, &module.inside, file).children.insert(&module.name);
            if module.body.is_some() {
                let inside = [module.inside.as_slice(), std::slice::from_ref(&module.name)].concat();
                self.module(file, &inside, file);
            }
        }
        for import in source.imports.iter().filter(|import| import.in_module && !source.is_test_line(import.line)) {
            let module = self.module(file, &import.inside, file);
            match &import.name {
                Some(name) => module.imports.entry(name).or_default().push(&import.path),
                None => module.globs.push(&import.path),
            }
        }
        for item in &source.items {
            self.module(file, &item.inside, file).items.insert(&item.name);
        }
    }

    fn module(&mut self, path: &[String], inside: &[String], file: &'a [String]) -> &mut CrateModule<'a> {
        self.modules.entry([path, inside].concat()).or_insert_with(|| CrateModule {
            file,
            children: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            items: BTreeSet::new(),
        })
    }

    /// Every name outside tests that leads from one file to another.
    fn arrows(&self) -> Vec<ModuleArrow<'a>> {
        let mut arrows = Vec::new();
        for &source in &self.sources {
            let Some(address) = &source.address else { continue };
            for name in source.names().into_iter().filter(|name| !source.is_test_line(name.line)) {
                let around = [address.path.as_slice(), &source.modules_around(name.line)].concat();
                let (Some(NameTarget::Module(to)) | Some(NameTarget::ItemOf(to))) =
                    self.resolve(&around, &name.parts, 0)
                else {
                    continue;
                };
                let Some(target) = self.modules.get(&to) else { continue };
                if target.file != address.path {
                    let (from, to) = (address.path.clone(), target.file.to_vec());
                    arrows.push(ModuleArrow { source, line: name.line, written: name.parts.join("::"), from, to });
                }
            }
        }
        arrows
    }

    /// Where a name leads that is written in module `around`; `None` is out of the crate, or too local to matter.
    fn resolve(&self, around: &[String], parts: &[String], hops: usize) -> Option<NameTarget> {
        let (first, rest) = parts.split_first()?;
        match first.as_str() {
            "crate" => self.walk(Vec::new(), rest, hops),
            "self" => self.walk(around.to_vec(), rest, hops),
            "super" => {
                let mut above = around.to_vec();
                above.pop()?;
                let further = rest.iter().take_while(|part| *part == "super").count();
                above.truncate(above.len().checked_sub(further)?);
                self.walk(above, &rest[further..], hops)
            }
            first => {
                // A local name matters when it is a module: what is imported as an item was counted where it is
                // imported.
                let module = self.modules.get(around)?;
                let known = module.children.contains(first) || module.imports.contains_key(first);
                let beginning = known.then(|| self.walk(around.to_vec(), &parts[..1], hops)).flatten()?;
                match beginning {
                    NameTarget::Module(path) if !rest.is_empty() || hops > 0 => self.walk(path, rest, hops),
                    NameTarget::ItemOf(path) if hops > 0 => Some(NameTarget::ItemOf(path)),
                    _ => None,
                }
            }
        }
    }

    /// Where `rest` leads from inside module `at`.
    fn walk(&self, at: Vec<String>, rest: &[String], hops: usize) -> Option<NameTarget> {
        let Some((name, rest)) = rest.split_first() else { return Some(NameTarget::Module(at)) };
        let module = self.modules.get(&at)?;
        if module.children.contains(name.as_str()) {
            return self.walk([at, vec![name.clone()]].concat(), rest, hops);
        }
        if hops >= HOPS_MAX {
            return None;
        }
        if let Some(paths) = module.imports.get(name.as_str()) {
            return match paths.iter().find_map(|path| self.resolve(&at, path, hops + 1))? {
                NameTarget::Module(path) => self.walk(path, rest, hops),
                item => Some(item),
            };
        }
        if !module.items.contains(name.as_str()) {
            for glob in &module.globs {
                if let Some(NameTarget::Module(path)) = self.resolve(&at, glob, hops + 1)
                    && self.modules.get(&path).is_some_and(|module| module.offers(name))
                {
                    return self.walk(path, &[std::slice::from_ref(name), rest].concat(), hops + 1);
                }
            }
        }
        Some(NameTarget::ItemOf(at))
    }
}

impl CrateModule<'_> {
    fn offers(&self, name: &str) -> bool {
        self.children.contains(name) || self.imports.contains_key(name) || self.items.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, lib, workspace_with};

    #[test]
    fn a_parent_may_name_its_children() {
        let root = lib("mod a;\npub use a::A;\npub fn b() -> a::A { self::a::A }\n");
        let tree = workspace_with(&[("crates/wire/src/lib.rs", &root), ("crates/wire/src/a.rs", "pub struct A;\n")]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn a_child_may_not_name_what_its_parent_defines() {
        let tree = workspace_with(&[
            ("crates/wire/src/lib.rs", &lib("mod a;\npub struct Above;\n")),
            ("crates/wire/src/a.rs", "use super::Above;\nfn f(_: Above, _: crate::Above) {}\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/a.rs:1: module-up: `super::Above` is defined in the crate root")
        );
        assert!(
            messages[1].starts_with("crates/wire/src/a.rs:2: module-up: `crate::Above` is defined in the crate root")
        );
    }

    #[test]
    fn a_grandchild_may_not_either() {
        let tree = workspace_with(&[
            ("crates/wire/src/a.rs", "mod b;\npub struct Above;\n"),
            ("crates/wire/src/a/b.rs", "fn f(_: crate::a::Above) {}\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/wire/src/a/b.rs:1: module-up: `crate::a::Above` is defined in a,"));
    }

    #[test]
    fn taking_everything_from_above_is_an_arrow_up() {
        let tree =
            workspace_with(&[("crates/wire/src/a/mod.rs", "mod b;\n"), ("crates/wire/src/a/b.rs", "use super::*;\n")]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/a/b.rs:1: module-up: `super` is defined in a,"),
            "{}",
            messages[0]
        );
    }

    #[test]
    fn what_the_parent_only_passes_on_counts_for_its_owner() {
        let tree = workspace_with(&[
            ("crates/wire/src/lib.rs", &lib("mod a;\nmod b;\npub use b::Thing as Renamed;\npub use b::*;\n")),
            ("crates/wire/src/a.rs", "use crate::{Other, Renamed};\n"),
            ("crates/wire/src/b.rs", "pub struct Thing;\npub struct Other;\n"),
        ]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn a_loop_is_told_with_its_evidence() {
        let tree = workspace_with(&[
            ("crates/wire/src/a.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/wire/src/b.rs", "use crate::c::C;\npub struct B;\n"),
            ("crates/wire/src/c.rs", "pub struct C;\nfn f() { let _ = super::a::A; }\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/a.rs:1: module-loop: a → b → c → a is a circle in the crate root")
        );
        assert!(messages[0].contains("crates/wire/src/c.rs:2 names `super::a::A`"), "{}", messages[0]);
    }

    #[test]
    fn a_loop_through_a_re_export_is_still_one() {
        let tree = workspace_with(&[
            ("crates/wire/src/lib.rs", &lib("mod a;\nmod b;\npub use a::A;\npub use b::B;\n")),
            ("crates/wire/src/a.rs", "use crate::B;\npub struct A;\n"),
            ("crates/wire/src/b.rs", "use crate::A;\npub struct B;\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("module-loop: a → b → a"), "{}", messages[0]);
    }

    /// No two files hold each other, but the folders do.
    #[test]
    fn folders_follow_the_rules_of_crates() {
        let tree = workspace_with(&[
            ("crates/wire/src/a/mod.rs", "mod up;\npub mod low;\n"),
            ("crates/wire/src/a/up.rs", "use crate::b::low::B;\n"),
            ("crates/wire/src/a/low.rs", "pub struct A;\n"),
            ("crates/wire/src/b/mod.rs", "mod up;\npub mod low;\n"),
            ("crates/wire/src/b/up.rs", "use crate::a::low::A;\n"),
            ("crates/wire/src/b/low.rs", "pub struct B;\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("module-loop: a → b → a is a circle in the crate root"), "{}", messages[0]);
    }

    #[test]
    fn siblings_deep_down_may_not_circle_either() {
        let tree = workspace_with(&[
            ("crates/wire/src/a/mod.rs", "mod b;\nmod c;\n"),
            ("crates/wire/src/a/b.rs", "use super::c;\nfn f() { c::g(); }\npub fn h() {}\n"),
            ("crates/wire/src/a/c.rs", "pub fn g() { super::b::h() }\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("module-loop: b → c → b is a circle in a:"), "{}", messages[0]);
    }

    #[test]
    fn names_inside_macros_are_arrows_too() {
        let tree = workspace_with(&[
            ("crates/wire/src/a.rs", "pub fn f() { assert!(matches!(crate::b::g(), 1)); }\n"),
            ("crates/wire/src/b.rs", "pub fn g() -> u8 { crate::a::f(); 1 }\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("module-loop: a → b → a"), "{}", messages[0]);
    }

    #[test]
    fn a_module_written_out_is_part_of_its_file() {
        let tree = workspace_with(&[(
            "crates/wire/src/a.rs",
            "pub struct A;\nmod inner {\n    use super::A;\n    pub fn f(_: A, _: super::super::a::A) {}\n}\nfn g() { inner::f(A, A); }\n",
        )]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn tests_may_look_where_they_like() {
        let tree = workspace_with(&[
            (
                "crates/wire/src/a.rs",
                "pub struct A;\n#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::b::B;\n}\n",
            ),
            ("crates/wire/src/b.rs", "use crate::a::A;\npub struct B;\n"),
        ]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn programs_are_held_to_it_as_well() {
        let tree = workspace_with(&[
            ("crates/farbus/src/main.rs", "mod a;\nstruct Cli;\nfn main() { a::run(); }\n"),
            ("crates/farbus/src/a.rs", "pub fn run() { let _: crate::Cli; }\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/farbus/src/a.rs:1: module-up: `crate::Cli`"), "{}", messages[0]);
    }
}
