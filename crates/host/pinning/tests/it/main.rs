//! Counts of what is locked, under every order of loads and stores.

mod hit_orders;
