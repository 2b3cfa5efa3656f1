//! The `farpage` command.

#[allow(dead_code)]
mod options;

fn main() {}
