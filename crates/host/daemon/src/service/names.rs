//! Names of objects.

use farpage_client::Refusal;

/// Characters of a name at most.
const NAME_MAX: usize = 200;

/// Refuses what can be no name.
pub(crate) fn check(name: &str) -> Result<(), Refusal> {
    let characters = name.chars().count();
    let bad = |c: char| c == '/' || c.is_control();
    if characters == 0 || characters > NAME_MAX || name.chars().any(bad) {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
        return Err(Refusal::Name(shown));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_characters_and_no_slashes() {
        for name in ["x", "psm_1234", "a name", ".", "ü"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "a/b", "/x", "a\0", "two\nlines", &"x".repeat(201)] {
            assert!(matches!(check(name), Err(Refusal::Name(_))), "{name:?}");
        }
    }
}
