//! The cluster that the host kernel is in, stay after stay.

mod joined;
mod offered;
mod ports;
mod told;

pub use joined::{Joined, join};
