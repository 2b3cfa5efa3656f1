//! The `farpage` command.
#![allow(dead_code)]

mod args;
mod heat;
mod launch;
mod memory_limit;
mod options;
mod prepare;
mod program;
mod sampler;
mod size;
mod spill_file;

fn main() {}
