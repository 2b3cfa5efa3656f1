//! The default pager, with paging files that work and that do not.

mod allocation;
mod failure;
#[cfg(feature = "manager")]
mod manager;
mod model;
mod rings;
mod support;
