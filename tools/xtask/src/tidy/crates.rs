//! Rules about crates: their floors, and where unsafe code stands.

use syn::visit::{self, Visit};

use super::Finding;
use super::sources::{Package, Tree};

pub(super) fn no_floor(tree: &Tree) -> Vec<Finding> {
    let homeless = tree
        .packages
        .iter()
        .filter(|package| package.place.is_none());
    homeless
        .map(|package| Finding::new(&package.name, 1, &package.folder))
        .collect()
}

pub(super) fn upward(tree: &Tree) -> Vec<Finding> {
    let floor = |name: &str| {
        let package = tree.packages.iter().find(|package| package.name == name)?;
        package.place.as_ref().map(|place| place.floor)
    };
    let mut found = Vec::new();
    for package in &tree.packages {
        let Some(own) = floor(&package.name) else {
            continue;
        };
        let up = package
            .uses
            .iter()
            .filter(|used| floor(used).is_some_and(|floor| floor > own));
        found.extend(up.map(|used| Finding::new(format!("{}->{used}", package.name), 1, "")));
    }
    found
}

pub(super) fn impure(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in &tree.packages {
        if !package.place.as_ref().is_some_and(|place| place.is_pure) {
            continue;
        }
        let root = format!("{}/src/lib.rs", package.folder);
        let text = tree.sources.iter().find(|source| source.path == root);
        let text = text.map_or("", |source| source.text.as_str());
        let mut lacks = Vec::new();
        if !text.contains("#![no_std]") && !text.contains("no_std)]") {
            lacks.push("no_std");
        }
        if !text.contains("forbid(unsafe_code)") {
            lacks.push("forbid(unsafe_code)");
        }
        if package.uses.iter().any(|used| used == "farpage-sys") {
            lacks.push("it uses farpage-sys");
        }
        if !lacks.is_empty() {
            found.push(Finding::new(&package.name, lacks.len(), lacks.join(", ")));
        }
    }
    found
}

pub(super) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let may = |package: &Package| package.place.as_ref().is_some_and(|place| place.is_unsafe);
    let mut found = Vec::new();
    for source in tree.product() {
        if may(&tree.packages[source.package]) {
            continue;
        }
        let mut count = Unsafe(0);
        count.visit_file(&source.parsed);
        if count.0 > 0 {
            found.push(Finding::new(&source.path, count.0, ""));
        }
    }
    found
}

/// Blocks, functions and implementations that are unsafe.
struct Unsafe(usize);

impl<'ast> Visit<'ast> for Unsafe {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        // A module that stands in its file is one of tests.
        if node.content.is_none() {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_expr_unsafe(&mut self, node: &'ast syn::ExprUnsafe) {
        self.0 += 1;
        visit::visit_expr_unsafe(self, node);
    }

    fn visit_signature(&mut self, node: &'ast syn::Signature) {
        self.0 += usize::from(node.unsafety.is_some());
        visit::visit_signature(self, node);
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        self.0 += usize::from(node.unsafety.is_some());
        visit::visit_item_impl(self, node);
    }
}
