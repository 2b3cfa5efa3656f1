//! The manager of pagers in other processes.

mod outside;
#[path = "../../../default-pager/tests/it/support/mod.rs"]
#[allow(dead_code, reason = "its other half is for tests of the default pager")]
mod support;
