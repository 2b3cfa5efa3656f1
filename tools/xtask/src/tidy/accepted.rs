//! `tools/xtask/tidy.txt`: what breaks a rule and is known. A line is a rule, a place, a number, and after `#` the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Found, RULES};
use crate::world::World;

/// What is accepted of one place.
struct Entry {
    count: usize,
    reason: String,
}

/// The list.
pub(super) struct Accepted {
    entries: BTreeMap<(String, String), Entry>,
}

fn path(world: &World) -> PathBuf {
    world.root.join("tools/xtask/tidy.txt")
}

impl Accepted {
    pub(super) fn read(world: &World) -> Result<Self> {
        let text = fs::read_to_string(path(world)).context("cannot read tools/xtask/tidy.txt")?;
        let entries = text
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            .map(|line| {
                entry(line).with_context(|| {
                    format!("tools/xtask/tidy.txt: '{line}' is no RULE PLACE NUMBER")
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { entries })
    }

    /// What is not in the list, or is more than it says: a message of each.
    pub(super) fn worse(&self, found: &Found) -> Vec<String> {
        let mut messages = Vec::new();
        for (key, finding) in found {
            let allowed = self.entries.get(key).map_or(0, |entry| entry.count);
            let (rule, place) = key;
            if finding.count > allowed {
                let says = RULES.iter().find(|known| known.name == rule);
                messages.push(format!(
                    "{rule} {place}: {}, accepted are {allowed}: {}. {}",
                    finding.count,
                    says.map_or("", |rule| rule.says),
                    finding.detail
                ));
            }
        }
        messages
    }

    /// Lowers every entry to what there is. Returns how many were lowered or taken out.
    pub(super) fn shrink(&mut self, found: &Found) -> usize {
        let mut shrunk = 0;
        self.entries.retain(|key, entry| {
            let now = found.get(key).map_or(0, |finding| finding.count);
            shrunk += usize::from(now < entry.count);
            entry.count = now.min(entry.count);
            entry.count > 0
        });
        shrunk
    }

    pub(super) fn write(&self, world: &World) -> Result<()> {
        let mut text = String::from(
            "# What breaks a rule of the house, by `cargo xtask tidy`: RULE PLACE NUMBER, and after # the reason.\n\
             # The list only shrinks: `cargo xtask tidy --write` lowers what has become less.\n",
        );
        for ((rule, place), entry) in &self.entries {
            text += &format!("{rule} {place} {}", entry.count);
            if !entry.reason.is_empty() {
                text += &format!(" # {}", entry.reason);
            }
            text.push('\n');
        }
        fs::write(path(world), text).context("cannot write tools/xtask/tidy.txt")
    }
}

fn entry(line: &str) -> Option<((String, String), Entry)> {
    let (entry, reason) = line.split_once('#').unwrap_or((line, ""));
    let mut words = entry.split_whitespace();
    let key = (words.next()?.to_owned(), words.next()?.to_owned());
    let count = words.next()?.parse().ok()?;
    let reason = reason.trim().to_owned();
    words
        .next()
        .is_none()
        .then_some((key, Entry { count, reason }))
}

#[cfg(test)]
mod tests {
    use super::super::Finding;
    use super::*;

    fn list(text: &str) -> Accepted {
        Accepted {
            entries: text.lines().map(|line| entry(line).unwrap()).collect(),
        }
    }

    fn key(rule: &str, place: &str) -> (String, String) {
        (rule.to_owned(), place.to_owned())
    }

    fn found(rule: &str, place: &str, count: usize) -> Found {
        BTreeMap::from([(key(rule, place), Finding::new(place, count, ""))])
    }

    #[test]
    fn what_is_new_or_more_is_worse() {
        let list = list("file a.rs 600 # it is generated\ncolumns b.rs 3");
        assert!(list.worse(&found("file", "a.rs", 600)).is_empty());
        assert_eq!(list.worse(&found("file", "a.rs", 601)).len(), 1);
        assert_eq!(list.worse(&found("file", "c.rs", 501)).len(), 1);
    }

    #[test]
    fn what_is_less_shrinks_the_list() {
        let mut list = list("file a.rs 600 # it is generated\ncolumns b.rs 3");
        assert_eq!(list.shrink(&found("file", "a.rs", 550)), 2);
        assert_eq!(list.entries[&key("file", "a.rs")].count, 550);
        assert!(!list.entries.contains_key(&key("columns", "b.rs")));
        assert_eq!(list.shrink(&found("file", "a.rs", 700)), 0);
    }

    #[test]
    fn a_line_that_is_none_is_refused() {
        assert!(entry("file a.rs").is_none());
        assert!(entry("file a.rs many").is_none());
        assert!(entry("file a.rs 5 6").is_none());
    }
}
