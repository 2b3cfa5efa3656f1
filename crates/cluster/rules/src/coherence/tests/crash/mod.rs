//! Hosts that die at any time: every order of a small world, and long runs by seed.

mod flying;
mod laws;
mod locker;
mod member;
mod model;
mod named;
mod seeds;
mod world;
