//! Names of objects, of hosts and of clusters.

/// Characters of a name at most.
pub(crate) const NAME_MAX: usize = 200;

/// Whether this may be a name: characters, none of them a slash or a control character.
pub(crate) fn is_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c.is_control();
    (1..=NAME_MAX).contains(&name.chars().count()) && !name.chars().any(bad)
}

/// A name as a message shows it.
pub(crate) fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_characters_and_no_slashes() {
        for name in ["x", "psm_1234", "a name", ".", "ü", &"ü".repeat(200)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a/b", "/x", "a\0", "two\nlines", &"x".repeat(201)] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_is_shown_is_short_and_one_line() {
        assert_eq!(shown("two\nlines"), "twolines");
        assert_eq!(shown(&"x".repeat(300)).len(), 60);
    }
}
