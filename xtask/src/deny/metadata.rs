//! What `cargo metadata` says of packages and what each is built with.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// `cargo metadata`, as far as it is needed.
#[derive(Debug, Deserialize)]
pub struct ResolvedMetadata {
    pub packages: Vec<ResolvedPackage>,
    pub resolve: ResolveGraph,
}

#[derive(Debug, Deserialize)]
pub struct ResolvedPackage {
    pub id: String,
    pub name: String,
    pub version: String,
    pub manifest_path: PathBuf,
    pub license: Option<String>,
    /// Nothing for a package of the workspace.
    pub source: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct ResolveGraph {
    pub nodes: Vec<ResolveNode>,
}

#[derive(Debug, Deserialize)]
pub struct ResolveNode {
    pub id: String,
    pub deps: Vec<NodeDependency>,
}

#[derive(Debug, Deserialize)]
pub struct NodeDependency {
    pub pkg: String,
    pub dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
pub struct DependencyKind {
    /// Nothing for what a package is built with.
    pub kind: Option<String>,
}

impl ResolvedMetadata {
    /// Packages that are used on the platforms that matter.
    pub fn used(&self) -> Vec<&ResolvedPackage> {
        let ids: BTreeSet<&str> = self.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
        self.packages.iter().filter(|package| ids.contains(package.id.as_str())).collect()
    }

    /// Names of the packages that depend on this one.
    pub fn users(&self, id: &str) -> Vec<String> {
        let uses = |node: &&ResolveNode| node.deps.iter().any(|dependency| dependency.pkg == id);
        let users: BTreeSet<&str> = self.resolve.nodes.iter().filter(uses).map(|node| node.id.as_str()).collect();
        self.packages
            .iter()
            .filter(|package| users.contains(package.id.as_str()))
            .map(|package| package.name.clone())
            .collect()
    }

    /// What a package depends on itself and is built with: ids.
    pub fn direct<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        let nodes = self.resolve.nodes.iter().filter(move |node| node.id == id);
        let all = nodes.flat_map(|node| &node.deps);
        let built = all.filter(|dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        built.map(|dependency| dependency.pkg.as_str())
    }

    /// What a package is built with, all the way down: ids.
    pub fn below<'a>(&'a self, id: &'a str) -> BTreeSet<&'a str> {
        let nodes: BTreeMap<&str, &ResolveNode> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut found = BTreeSet::new();
        let mut open = vec![id];
        while let Some(node) = open.pop().and_then(|id| nodes.get(id)) {
            for dependency in &node.deps {
                if dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()) && found.insert(dependency.pkg.as_str())
                {
                    open.push(&dependency.pkg);
                }
            }
        }
        found
    }
}
