//! The `farpage` command.
#![allow(dead_code)]

mod args;
mod control_socket;
mod heat;
mod launch;
mod live;
mod memory_limit;
mod options;
mod prepare;
mod program;
mod sampler;
mod signals;
mod size;
mod spill;
mod spill_file;
mod spill_set;
mod summary;

fn main() {}
