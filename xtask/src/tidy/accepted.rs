//! `xtask/tidy.txt`: what breaks a rule and is known. A line is a rule, a place, a number, and after `#` the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Finding, RULES};
use crate::world::World;

/// What is accepted of one place.
struct Entry {
    count: usize,
    reason: String,
}

/// The list.
pub(super) struct Accepted {
    entries: BTreeMap<(String, String), Entry>,
    /// There is no list yet: everything found becomes the first one.
    is_new: bool,
}

fn path(world: &World) -> PathBuf {
    world.root.join("xtask/tidy.txt")
}

impl Accepted {
    pub(super) fn read(world: &World) -> Result<Self> {
        let path = path(world);
        let is_new = !path.exists();
        let text = match is_new {
            true => String::new(),
            false => fs::read_to_string(&path).context("cannot read xtask/tidy.txt")?,
        };
        let entries = text
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            .map(|line| {
                entry(line)
                    .with_context(|| format!("xtask/tidy.txt: '{line}' is no RULE PLACE NUMBER"))
            })
            .collect::<Result<_>>()?;
        Ok(Self { entries, is_new })
    }

    fn allowed(&self, rule: &str, place: &str) -> usize {
        let key = (rule.to_owned(), place.to_owned());
        self.entries.get(&key).map_or(0, |entry| entry.count)
    }

    /// What is not in the list, or is more than it says: a message of each.
    pub(super) fn worse(&self, found: &BTreeMap<(&str, String), Finding>) -> Vec<String> {
        if self.is_new {
            return Vec::new();
        }
        let mut messages = Vec::new();
        for ((rule, place), finding) in found {
            let allowed = self.allowed(rule, place);
            if finding.count > allowed {
                let says = RULES.iter().find(|known| known.name == *rule);
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
    pub(super) fn shrink(&mut self, found: &BTreeMap<(&str, String), Finding>) -> usize {
        if self.is_new {
            for ((rule, place), finding) in found {
                let entry = Entry {
                    count: finding.count,
                    reason: String::new(),
                };
                self.entries
                    .insert(((*rule).to_owned(), place.clone()), entry);
            }
            return self.entries.len();
        }
        let mut shrunk = 0;
        self.entries.retain(|(rule, place), entry| {
            let now = found
                .iter()
                .find(|((name, at), _)| name == rule && at == place)
                .map_or(0, |(_, finding)| finding.count);
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
        fs::write(path(world), text).context("cannot write xtask/tidy.txt")
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
    use super::*;

    fn list(text: &str) -> Accepted {
        Accepted {
            entries: text.lines().map(|line| entry(line).unwrap()).collect(),
            is_new: false,
        }
    }

    fn found(
        rule: &'static str,
        place: &str,
        count: usize,
    ) -> BTreeMap<(&'static str, String), Finding> {
        let finding = Finding::new(place, count, "");
        BTreeMap::from([((rule, place.to_owned()), finding)])
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
        assert_eq!(list.allowed("file", "a.rs"), 550);
        assert_eq!(list.allowed("columns", "b.rs"), 0);
        assert_eq!(list.shrink(&found("file", "a.rs", 700)), 0);
    }

    #[test]
    fn a_line_that_is_none_is_refused() {
        assert!(entry("file a.rs").is_none());
        assert!(entry("file a.rs many").is_none());
        assert!(entry("file a.rs 5 6").is_none());
    }
}
