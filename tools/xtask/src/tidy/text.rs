//! Rules about words, lines and files.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use super::Finding;
use super::sources::{Source, Tree};

const COLUMNS: usize = 100;
const LINES: usize = 500;

/// Adds every identifier of the code to `names`.
pub(super) fn identifiers(tokens: TokenStream, names: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => identifiers(group.stream(), names),
            TokenTree::Ident(ident) => names.push(ident.to_string()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Lines of each file for which `is_so`, and the first of them.
fn lines(
    tree: &Tree,
    sources: impl Fn(&Source) -> bool,
    is_so: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(|source| sources(source)) {
        let mut places = source
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| is_so(line));
        if let Some((first, text)) = places.next() {
            let detail = format!("line {}: {}", first + 1, text.trim());
            found.push(Finding::new(&source.path, 1 + places.count(), detail));
        }
    }
    found
}

pub(super) fn retired(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.product() {
        let mut counts: BTreeMap<&(String, String), usize> = BTreeMap::new();
        for name in &source.identifiers {
            let known = tree.retired.iter().find(|(word, _)| is_word_of(name, word));
            if let Some(known) = known {
                *counts.entry(known).or_default() += 1;
            }
        }
        let counts = counts.into_iter().map(|((word, instead), count)| {
            Finding::new(format!("{}:{word}", source.path), count, instead)
        });
        found.extend(counts);
    }
    found
}

/// A capital begins a type, which is meant as a whole; another word may be part of a name.
fn is_word_of(name: &str, word: &str) -> bool {
    match word.starts_with(char::is_uppercase) || word.contains('_') {
        true => name == word,
        false => name.split('_').any(|part| part == word),
    }
}

pub(super) fn command_line(tree: &Tree) -> Vec<Finding> {
    const PRINTS: [&str; 4] = ["println", "eprintln", "print", "eprint"];
    let mut found = Vec::new();
    for source in tree
        .product()
        .filter(|source| !source.path.contains("/bin/"))
    {
        let prints = |name: &&String| PRINTS.contains(&name.as_str());
        let count = source.identifiers.iter().filter(prints).count()
            + source.text.matches("env::args").count();
        if count > 0 {
            found.push(Finding::new(&source.path, count, ""));
        }
    }
    found
}

pub(super) fn columns(tree: &Tree) -> Vec<Finding> {
    lines(tree, |_| true, |line| line.chars().count() > COLUMNS)
}

pub(super) fn files(tree: &Tree) -> Vec<Finding> {
    let count = |source: &Source| source.text.lines().count();
    let long = tree.sources.iter().filter(|source| count(source) > LINES);
    long.map(|source| Finding::new(&source.path, count(source), ""))
        .collect()
}

pub(super) fn paths(tree: &Tree) -> Vec<Finding> {
    let leads_out = |line: &str| line.trim_start().starts_with("#[path") && line.contains("..");
    lines(tree, |_| true, leads_out)
}

pub(super) fn sleeps(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(|source| source.is_test()) {
        let is_sleep = |name: &&String| *name == "sleep";
        let count = source.identifiers.iter().filter(is_sleep).count();
        if count > 0 {
            found.push(Finding::new(&source.path, count, ""));
        }
    }
    found
}

pub(super) fn phrases(tree: &Tree) -> Vec<Finding> {
    let is_prose = |line: &str| line.contains("//") || line.contains('"');
    let has = |line: &str| {
        let line = line.to_lowercase();
        tree.phrases.iter().any(|phrase| has_phrase(&line, phrase))
    };
    lines(tree, |_| true, |line| is_prose(line) && has(line))
}

/// True if the line has the phrase between the ends of words.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_end = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    line.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + phrase.len()..]);
        is_end(before.chars().next_back()) && is_end(after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_stands_between_ends_of_words() {
        assert!(has_phrase("// who has it", "who"));
        assert!(!has_phrase("// the whole of it", "who"));
        assert!(has_phrase("// as it is now", "it is"));
        assert!(!has_phrase("// as it isn't", "it is"));
    }

    #[test]
    fn a_retired_word_is_found_within_names() {
        assert!(is_word_of("to_wire", "wire") && is_word_of("wire", "wire"));
        assert!(!is_word_of("wired", "wire"));
        assert!(is_word_of("Shared", "Shared") && !is_word_of("SharedKernel", "Shared"));
        assert!(is_word_of("page_bytes", "page_bytes") && !is_word_of("page", "page_bytes"));
    }

    #[test]
    fn identifiers_are_found_in_groups_and_not_in_comments() {
        let mut names = Vec::new();
        let tokens = "fn a() { /* sleep */ b(c) } // sleep".parse().unwrap();
        identifiers(tokens, &mut names);
        assert_eq!(names, ["fn", "a", "b", "c"]);
    }
}
