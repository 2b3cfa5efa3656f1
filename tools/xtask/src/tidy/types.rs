//! Rules about types, traits and functions.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::sources::{Source, Tree};

const METHODS: usize = 40;
const FILES: usize = 3;
const LINES: usize = 70;

pub(super) fn same_name(tree: &Tree) -> Vec<Finding> {
    let mut names: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for source in tree.product() {
        for name in public_types(&source.parsed.items) {
            names.entry(name).or_default().insert(&source.path);
        }
    }
    let twice = names.into_iter().filter(|(_, places)| places.len() > 1);
    twice
        .map(|(name, places)| {
            let detail = places.iter().copied().collect::<Vec<_>>().join(", ");
            Finding::new(name, places.len(), detail)
        })
        .collect()
}

/// Names of the types that a file makes public, also within modules that stand in it.
fn public_types(items: &[syn::Item]) -> Vec<String> {
    let is_public = |vis: &syn::Visibility| matches!(vis, syn::Visibility::Public(_));
    let mut names = Vec::new();
    for item in items {
        match item {
            syn::Item::Struct(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Enum(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Union(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Trait(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Mod(item) => {
                let within = item.content.as_ref().map(|(_, items)| public_types(items));
                names.extend(within.unwrap_or_default());
            }
            _ => {}
        }
    }
    names
}

/// What one pass over a file tells of it.
#[derive(Default)]
pub(super) struct Told {
    /// Traits that it defines, with their docs.
    traits: Vec<(String, String)>,
    /// Traits that it implements, by their last names.
    implemented: Vec<String>,
    /// Methods of types, of their own and not of a trait.
    methods: BTreeMap<String, usize>,
    /// Functions by name and lines.
    functions: Vec<(String, usize)>,
}

impl Told {
    pub(super) fn of(file: &syn::File) -> Self {
        let mut told = Self::default();
        told.visit_file(file);
        told
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let last = block.brace_token.span.close().end().line;
        let name = signature.ident.to_string();
        self.functions.push((name, last + 1 - first));
    }
}

fn doc_of(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let syn::Expr::Lit(literal) = &pair.value else {
            return None;
        };
        let syn::Lit::Str(text) = &literal.lit else {
            return None;
        };
        pair.path.is_ident("doc").then(|| text.value())
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl<'ast> Visit<'ast> for Told {
    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        self.traits
            .push((node.ident.to_string(), doc_of(&node.attrs)));
        visit::visit_item_trait(self, node);
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        if let Some((_, path, _)) = &node.trait_ {
            let last = path
                .segments
                .last()
                .map(|segment| segment.ident.to_string());
            self.implemented.extend(last);
        } else if let syn::Type::Path(of) = &*node.self_ty {
            let last = of
                .path
                .segments
                .last()
                .map(|segment| segment.ident.to_string());
            let is_method = |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(_));
            let count = node.items.iter().filter(is_method).count();
            *self.methods.entry(last.unwrap_or_default()).or_default() += count;
        }
        visit::visit_item_impl(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.sig, &node.block);
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.sig, &node.block);
        visit::visit_impl_item_fn(self, node);
    }
}

pub(super) fn one_implementation(tree: &Tree) -> Vec<Finding> {
    let mut implemented: BTreeMap<&str, usize> = BTreeMap::new();
    for name in tree
        .sources
        .iter()
        .flat_map(|source| &source.told.implemented)
    {
        *implemented.entry(name).or_default() += 1;
    }
    let mut found = Vec::new();
    for source in tree.product() {
        for (name, doc) in &source.told.traits {
            let count = implemented.get(name.as_str()).copied().unwrap_or_default();
            if count < 2 && !doc.contains("second implementation") {
                found.push(Finding::new(of_crate(tree, source, name), 1, &source.path));
            }
        }
    }
    found
}

/// A type or trait as `tools/xtask/tidy.txt` names it, with its crate.
fn of_crate(tree: &Tree, source: &Source, name: &str) -> String {
    format!("{}::{name}", tree.packages[source.package].name)
}

/// Methods of each type of the product, and the files in which they stand, by crate and type.
fn types(tree: &Tree) -> BTreeMap<String, (usize, BTreeSet<&str>)> {
    let mut types: BTreeMap<String, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for source in tree.product() {
        for (name, count) in &source.told.methods {
            let of_type = types.entry(of_crate(tree, source, name)).or_default();
            of_type.0 += count;
            of_type.1.insert(&source.path);
        }
    }
    types
}

pub(super) fn methods(tree: &Tree) -> Vec<Finding> {
    let many = types(tree)
        .into_iter()
        .filter(|(_, (count, _))| *count > METHODS);
    many.map(|(name, (count, _))| Finding::new(name, count, ""))
        .collect()
}

pub(super) fn scattered(tree: &Tree) -> Vec<Finding> {
    let wide = types(tree)
        .into_iter()
        .filter(|(_, (_, files))| files.len() > FILES);
    wide.map(|(name, (_, files))| Finding::new(name, files.len(), ""))
        .collect()
}

pub(super) fn functions(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for source in &tree.sources {
        for (name, lines) in &source.told.functions {
            if *lines > LINES {
                let longest = found.entry(format!("{}::{name}", source.path)).or_default();
                *longest = (*lines).max(*longest);
            }
        }
    }
    let found = found.into_iter();
    found
        .map(|(place, lines)| Finding::new(place, lines, ""))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_of_its_types_and_functions() {
        let file = syn::parse_file(
            "/// The second implementation is a test's.\npub trait Face { fn ask(&self); }\n\
             struct Thing;\nimpl Face for Thing { fn ask(&self) {} }\n\
             impl Thing { fn one(&self) {\n\n}\n fn two() {} }\n",
        );
        let file = file.unwrap();
        let told = Told::of(&file);
        assert_eq!(told.traits.len(), 1);
        assert!(told.traits[0].1.contains("second implementation"));
        assert_eq!(told.implemented, ["Face"]);
        assert_eq!(told.methods["Thing"], 2);
        assert!(told.functions.contains(&("one".to_owned(), 3)));
        assert_eq!(public_types(&file.items), ["Face"]);
    }
}
