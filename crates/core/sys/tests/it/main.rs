//! System calls.

mod dead;
mod places;
