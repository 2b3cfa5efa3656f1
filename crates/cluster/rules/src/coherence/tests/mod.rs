//! Small worlds in every order, large ones by seed, and the six ways in which the scheduler of 1989
//! went wrong, each by name.

mod central;
mod crash;
mod group;
mod hot;
mod lock;
mod migration;
mod model;
mod named;
mod seal;
mod twinned;
mod world;

use alloc::{format, string::String};

use farpage_object::Access;
use farpage_testkit::seeds;

use crate::coherence::Message;

/// Refuses what a host says while its tasks can do so much that they would see, or write, what the
/// receiver takes for its own.
fn check_said(message: &Message, can: Option<Access>) -> Result<(), String> {
    let may = match message {
        Message::Copy { .. } | Message::Sealed { .. } => can != Some(Access::Write),
        // Who has what nobody writes any more keeps it.
        Message::Own {
            is_sealed: true, ..
        } => can != Some(Access::Write),
        Message::Own { .. } | Message::Dropped { .. } => can.is_none(),
        Message::Request(_) | Message::Invalidate { .. } | Message::Lost { .. } => true,
    };
    match may {
        true => Ok(()),
        false => Err(format!("says {message:?}, while tasks have {can:?}")),
    }
}
