//! `cargo xtask tidy`: the rules of the house, as `crates/README.md` and `docs/GLOSSARY.md` state
//! them.
//!
//! What breaks a rule today stands in `tools/xtask/tidy.txt`, with how often. The list only
//! shrinks: what is not in it, or is more than it says, is a failure, and so is an entry that says
//! more than there is.

mod accepted;
mod crates;
mod sources;
mod text;
mod types;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::table::Table;
use crate::world::World;
use accepted::Accepted;
use sources::Tree;

/// A rule of the house.
struct Rule {
    /// As `tools/xtask/tidy.txt` calls it.
    name: &'static str,
    /// What is to be, for the message.
    says: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

/// What breaks a rule.
struct Finding {
    /// A file, a crate or a type; without spaces.
    place: String,
    /// How often, or how large: what has to shrink.
    count: usize,
    /// Where to look first, if the place does not say it.
    detail: String,
}

impl Finding {
    fn new(place: impl Into<String>, count: usize, detail: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            count,
            detail: detail.into(),
        }
    }
}

/// What was found, by rule and place.
type Found = BTreeMap<(String, String), Finding>;

const RULES: [Rule; 16] = [
    Rule {
        name: "upward",
        says: "a crate uses crates of its own floor and of floors below",
        check: crates::upward,
    },
    Rule {
        name: "no-floor",
        says: "every crate has its line in crates/README.md",
        check: crates::no_floor,
    },
    Rule {
        name: "impure",
        says: "a pure crate has #![no_std], forbids unsafe code, and does not use farpage-sys",
        check: crates::impure,
    },
    Rule {
        name: "unsafe",
        says: "unsafe stands only in crates that crates/README.md calls unsafe",
        check: crates::unsafe_code,
    },
    Rule {
        name: "same-name",
        says: "the name of a public type is used once in the workspace",
        check: types::same_name,
    },
    Rule {
        name: "retired",
        says: "words that docs/GLOSSARY.md retires are not used",
        check: text::retired,
    },
    Rule {
        name: "one-implementation",
        says: "a trait has two implementations, or its doc names the test that is the second",
        check: types::one_implementation,
    },
    Rule {
        name: "command-line",
        says: "libraries read no arguments and print nothing",
        check: text::command_line,
    },
    Rule {
        name: "methods",
        says: "a type has at most 40 methods of its own",
        check: types::methods,
    },
    Rule {
        name: "scattered",
        says: "the methods of a type stand in at most 3 files",
        check: types::scattered,
    },
    Rule {
        name: "columns",
        says: "a line has at most 100 columns",
        check: text::columns,
    },
    Rule {
        name: "function",
        says: "a function has at most 70 lines",
        check: types::functions,
    },
    Rule {
        name: "file",
        says: "a file has at most 500 lines",
        check: text::files,
    },
    Rule {
        name: "path",
        says: "no #[path] leads out of a crate",
        check: text::paths,
    },
    Rule {
        name: "sleep",
        says: "a test waits for events, not for time",
        check: text::sleeps,
    },
    Rule {
        name: "phrase",
        says: "phrases that docs/GLOSSARY.md lists are not used",
        check: text::phrases,
    },
];

/// Entry point.
pub(crate) fn tidy(world: &World, mut args: Args) -> Result<()> {
    let write = args.flag("--write");
    let wanted = args.values("--rule")?;
    args.finish()?;
    for name in &wanted {
        if !RULES.iter().any(|rule| rule.name == name) {
            let names: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
            bail!("--rule {name}: no such rule; they are {}", names.join(", "));
        }
    }
    let tree = Tree::read(world)?;
    let mut found = Found::new();
    for rule in &RULES {
        for finding in (rule.check)(&tree) {
            let key = (rule.name.to_owned(), finding.place.clone());
            match found.entry(key) {
                Entry::Vacant(place) => drop(place.insert(finding)),
                Entry::Occupied(mut known) => known.get_mut().count += finding.count,
            }
        }
    }
    if !wanted.is_empty() {
        for ((rule, place), finding) in &found {
            if wanted.iter().any(|name| name == rule) {
                println!("{rule} {place} {} {}", finding.count, finding.detail);
            }
        }
        return Ok(());
    }
    let mut accepted = Accepted::read(world)?;
    let worse = accepted.worse(&found);
    for finding in &worse {
        println!("{finding}");
    }
    let shrunk = accepted.shrink(&found);
    table(&found).print();
    if !worse.is_empty() {
        bail!(
            "{} places break a rule of the house; mend them (tools/xtask/tidy.txt takes nothing new)",
            worse.len()
        );
    }
    match (shrunk, write) {
        (0, _) => Ok(()),
        (_, true) => accepted.write(world),
        (shrunk, false) => bail!(
            "{shrunk} entries of tools/xtask/tidy.txt say more than there is: run cargo xtask tidy --write"
        ),
    }
}

/// How many places break each rule, and by how much together.
fn table(found: &Found) -> Table {
    let mut table = Table::new(["rule", "places", "sum"]);
    for rule in &RULES {
        let of_rule = found.iter().filter(|((name, _), _)| name == rule.name);
        let (mut places, mut sum) = (0, 0);
        for (_, finding) in of_rule {
            places += 1;
            sum += finding.count;
        }
        table.row([rule.name.to_owned(), places.to_string(), sum.to_string()]);
    }
    table
}
