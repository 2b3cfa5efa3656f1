//! The atomics of the ring, which the check of its orders replaces.

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
