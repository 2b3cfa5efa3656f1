//! Small worlds in every order, large ones by seed, and the six ways in which the scheduler of 1989
//! went wrong, each by name.

mod central;
mod crash;
mod group;
mod hot;
mod model;
mod named;
mod world;

/// The seeds of a test that runs many: FARPAGE_SEEDS of them, or the one that FARPAGE_SEED names, or
/// so many from there.
fn seeds() -> core::ops::Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("it is a number"))
    };
    let first = number("FARPAGE_SEED");
    let count = number("FARPAGE_SEEDS").unwrap_or(if first.is_some() { 1 } else { 1000 });
    let first = first.unwrap_or(0);
    first..first + count
}
