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
//! 7. A page that is locked at a host ([`Page::lock`]) stays there until its locks are given back, or the host dies.
//!
//! [`Page`] is the distributed scheduler: the owner of a page serialises what is asked of it, and
//! ownership moves to who writes. [`Group`] is a page of a host whose pages are larger than the
//! object's. [`Central`] has a server that has all contents and asks for them back. [`Twinned`] is another law,
//! for objects that are made so: several hosts may write to a page, and see what others wrote when those
//! have released it and they have acquired it.
//!
//! # When a host dies
//!
//! [`Members`] follows the views of the control plane and says of each message whether it counts.
//! The shell of a host does this:
//!
//! 1. Each message about a page, and each parcel, carries [`Members::send`]'s generation. What comes
//!    is shown to [`Members::receive`] first: taken, kept for later, or refused.
//! 2. On [`Change::Died`] it does all outputs that are left, calls [`Page::freeze`] on every page,
//!    sends each survivor a [`Marker`], and offers again what it had kept. Pages made until the end
//!    of this are frozen at once.
//! 3. When [`Members::is_drained`], it sends the home [`Page::report`] of all its pages, with
//!    what it keeps of each ([`Mirror::kept`]).
//! 4. The home makes a [`Recovery`] of each page that anybody reports, itself among them (a page
//!    that it had not touched is new, and frozen), and sends each survivor all verdicts.
//! 5. On the verdicts of the last death ([`Members::fence`]), and no others, each calls
//!    [`Page::resume`] on every page (with [`Verdict::untouched`] where there is none), then
//!    [`Members::resume`] and [`Mirror::resume`], and offers again what it had kept.
//! 6. On a mirrored object it sends its backup a parcel of all pages that [`Page::mirror`] gives,
//!    since they may be on one host only. Another host may die when that has arrived.
//!
//! A page that nobody reports was touched by nobody while the home of before lives. If that died,
//! it is as lost as one that was reported without contents: [`Recovery::verdict`] of no reports says
//! what it is, from what is [`Known`]. A host keeps the [`Page`] of whatever it has touched: others may
//! believe that it owns it, or has a copy.
//!
//! The crate is pure: no I/O, no clock, no threads.

mod central;
mod group;
mod hosts;
mod members;
mod message;
mod mirror;
mod page;
mod recovery;
mod twinned;

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
pub use twinned::{TwinMessage, TwinOutput, Twinned};
