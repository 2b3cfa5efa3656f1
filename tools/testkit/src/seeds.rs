//! Which runs a test makes that makes many: of this crate, and of others that simulate by seed.

/// FARPAGE_SEEDS of them, 1000 without it, from FARPAGE_SEED on; that one alone when only it is given.
pub fn seeds() -> core::ops::Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("it is a number"))
    };
    let first = number("FARPAGE_SEED");
    let count = number("FARPAGE_SEEDS").unwrap_or(if first.is_some() { 1 } else { 1000 });
    let first = first.unwrap_or(0);
    first..first + count
}
