//! Objects of a host, mapped and watched by several processes.

mod away;
mod calls;
mod far;
mod leaving;
mod shared;
mod support;
mod tree;
