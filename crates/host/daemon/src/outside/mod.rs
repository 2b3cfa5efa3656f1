//! The kernel's side of pagers in other processes: it believes nothing that it hears.

mod cleaning;
mod kept;
mod pager;
mod pagers;

pub(crate) use pager::Outside;
pub(crate) use pagers::{Begun, Outsides};
