//! The default pager, with paging files that work and that do not.

mod allocation;
mod failure;
mod model;
mod rings;
mod support;
