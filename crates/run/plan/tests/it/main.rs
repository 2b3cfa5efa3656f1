//! Where programs go, and which are refused.

mod plan;
