//! The shared memory server's schedulers, as values: which host may read or write a page, and what
//! hosts tell each other so that all see one memory.
//!
//! A scheduler is one page's part at one host. It takes faults and messages and says what to send
//! and what the host may do; contents travel beside its messages and are the shell's. How it looks,
//! and what always holds:
//!
//! 1. At any time one host may write a page, or any number may read it.
//! 2. A host that may read has the contents of the last write.
//! 3. Nothing is granted for writing before every copy is known to be gone.
//! 4. Messages may come in any order. None is lost or doubled: whoever carries them sees to that.
//! 5. Every fault is answered once all messages have come and everybody who holds has let go.
//! 6. A peer's message that cannot be is a [`Violation`], and changes nothing.
//!
//! [`Page`] is the distributed scheduler: the owner of a page serialises what is asked of it, and
//! ownership moves to who writes. [`Central`] has a server that has all contents and asks for them
//! back.
//!
//! The crate is pure: no I/O, no clock, no threads.
#![no_std]

extern crate alloc;

mod central;
mod group;
mod hosts;
mod members;
mod message;
mod mirror;
mod page;
mod recovery;

#[cfg(test)]
extern crate std;
#[cfg(test)]
mod tests;

pub use central::{Asked, Central, Order};
pub use group::{Group, GroupOutput};
pub use hosts::{HOSTS_MAX, Host, Hosts};
pub use members::{Change, Generation, Marker, Members, Receipt, View};
pub use message::{Epoch, Message, Output, Request, Violation};
pub use mirror::Mirror;
pub use page::Page;
pub use recovery::{Contents, Known, Recovery, Report, Standing, Verdict};
