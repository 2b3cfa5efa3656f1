//! The loops as they are compiled for a processor other than x86-64.

use crate::step::Step;

/// The way of compiling the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vectors;

impl Vectors {
    /// The only one.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        core::iter::once(Self)
    }

    /// The fastest.
    pub(crate) fn best() -> Self {
        Self
    }

    /// [`Step::run_in`].
    pub(crate) fn run_in(self, step: Step, from: &[u8], to: &mut [u8]) -> u64 {
        step.run_in(from, to)
    }

    /// [`Step::run_out`].
    pub(crate) fn run_out(self, step: Step, from: &[u8], to: &mut [u8]) -> u64 {
        step.run_out(from, to)
    }
}
