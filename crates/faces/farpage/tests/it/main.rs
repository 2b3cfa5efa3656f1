//! The facade, used as programs use it.

mod cover;
mod fork;
mod kv;
mod locks;
mod locks_io;
mod locks_truth;
mod map_fd;
mod open;
mod parts;
mod registrations;
mod store;
#[path = "../../../../pagers/source/tests/it/remote/support/mod.rs"]
#[allow(dead_code, reason = "its other half is for tests of farpage-source")]
mod support;
mod transfers;

/// What io_uring pins counts for its user in all processes, so tests that pin or count it are alone
/// on the machine.
const LOCKED_MEMORY: &str = "locked-memory";
