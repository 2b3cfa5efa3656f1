//! The only source of chance: everything that a run does follows from its seed.

/// A small generator (splitmix64): good enough to choose, the same everywhere.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x5DEE_CE66_D1CE_4E5B);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; `n` must not be 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing to choose from");
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True `per_thousand` times in a thousand.
    pub(crate) fn chance(&mut self, per_thousand: u64) -> bool {
        self.below(1000) < per_thousand
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
