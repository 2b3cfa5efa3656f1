//! Tests that may be skipped, by name: a test that is skipped and not listed is a failure, and so is a listed
//! one that is not skipped.

use std::fs;

use anyhow::Result;

use crate::harness::Ran;
use crate::world::World;

/// What is wrong with what was skipped, as names of failures. `tools/xtask/skips.txt` has a line for each test that
/// may be skipped: by root, by another user, or by both.
pub(super) fn check(world: &World, ran: &[Ran]) -> Result<Vec<String>> {
    let text = fs::read_to_string(world.root.join("tools/xtask/skips.txt"))?;
    let who = if world.is_root() { "root" } else { "user" };
    let wrong = compare(&text, who, ran);
    wrong.iter().for_each(|line| println!("{line}"));
    Ok(wrong)
}

fn compare(text: &str, who: &str, ran: &[Ran]) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let allowed: Vec<&str> = lines
        .filter_map(|line| line.split_once(' '))
        .filter(|(of, _)| *of == who || *of == "both")
        .map(|(_, name)| name)
        .collect();
    let mut wrong = Vec::new();
    for one in ran.iter().filter(|ran| ran.passed()) {
        match (one.skipped.is_empty(), allowed.contains(&one.name.as_str())) {
            (false, false) => wrong.push(format!(
                "{} was skipped ({}), and tools/xtask/skips.txt does not allow that",
                one.name,
                one.skipped.join("; ")
            )),
            (true, true) => wrong.push(format!(
                "{} was not skipped: take it out of tools/xtask/skips.txt",
                one.name
            )),
            (true, false) | (false, true) => (),
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(name: &str, skipped: &[&str]) -> Ran {
        Ran {
            name: name.into(),
            seconds: 0.0,
            failure: None,
            skipped: skipped.iter().map(|why| (*why).into()).collect(),
        }
    }

    #[test]
    fn only_what_is_listed_may_be_skipped() {
        let text = "# why\nroot a one\nuser a two\nboth a three\n";
        let all = [
            ran("a one", &["x"]),
            ran("a two", &["no root"]),
            ran("a three", &["y"]),
        ];
        let wrong = compare(text, "root", &all);
        assert_eq!(wrong.len(), 1);
        assert!(
            wrong[0].starts_with("a two was skipped (no root)"),
            "{wrong:?}"
        );
        let wrong = compare(text, "user", &[ran("a three", &[]), ran("a four", &[])]);
        assert_eq!(
            wrong,
            ["a three was not skipped: take it out of tools/xtask/skips.txt"]
        );
    }
}
