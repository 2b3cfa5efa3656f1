//! The `farpage` command.
#![allow(dead_code)]

mod launch;
mod options;
mod size;

fn main() {}
