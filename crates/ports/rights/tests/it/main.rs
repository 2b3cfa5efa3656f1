//! Mach's rights, as values.

mod attacks;
mod links;
mod local;
mod memory;
mod sets;
mod support;
mod three;
mod wire;
