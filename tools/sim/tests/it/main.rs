//! Simulated machines by seed.

mod seeds;
