//! What kernels and pagers in other processes say to each other: the memory-object protocol.
//!
//! A memory object is a port of its pager's ([`OfferedCalls`]). A kernel that is handed a right to
//! it begins with `init`, by which each gets a right to a port that is only for the two of them and
//! this object: the kernel one to ask by ([`PagingCalls`]), the pager one to answer by
//! ([`RequestCalls`]). So nobody else, whatever rights to the object it has, can answer or ask in
//! the name of either.

use farpage_port::interface::{Both, Contents};
use farpage_port::{SendRight, interface};
use serde::{Deserialize, Serialize};

/// What a pager says of its object when a kernel begins to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Its name; a pager that offers an object of the same name and size takes over.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// It can be written to.
    pub writable: bool,
    /// Pages that take hardly longer than one, where one is wanted.
    pub cluster_pages: u32,
}

/// Pages that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataWanted {
    /// The first.
    pub first: u64,
    /// How many may be supplied, from the first.
    pub pages: u64,
    /// How many of them somebody waits for, from the first.
    pub needed: u64,
    /// To be written to.
    pub write: bool,
    /// Nobody waits yet.
    pub ahead: bool,
}

/// How contents are supplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// The pager keeps no copy.
    pub precious: bool,
    /// Nobody may write to them before they are unlocked.
    pub locked: bool,
}

/// What is to happen to pages that the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageOrder {
    /// What was modified is handed over.
    Clean,
    /// That, and all are let go of: they are asked for again.
    Flush,
    /// Nobody writes to them before they are unlocked.
    Lock,
    /// Everybody may write to them again.
    Unlock,
}

interface! {
    /// A memory object.
    pub trait OfferedCalls, client OfferedClient, "farpage.memory-object" version 1 {
        /// `pager_init`: a kernel begins to use it. What there is to know of it, or why it may not
        /// be used, and a right to ask by ([`PagingCalls`]).
        fn init(kernel: SendRight) -> Both<Result<Ready, String>, SendRight>;
    }
}

interface! {
    /// What a kernel asks of the pager, of one object.
    pub trait PagingCalls, client PagingClient, "farpage.pager" version 2 {
        /// `pager_data_request`: answered by `data_provided`, `data_unavailable` or `data_error`.
        fn data_request(id: u64, wanted: DataWanted);
        /// `pager_data_write`: answered by `data_taken` or `data_refused`.
        fn data_write(id: u64, first: u64, contents: Contents);
        /// `pager_data_unlock`: somebody wants to write to a page that is locked. Answered by
        /// `lock_request`.
        fn data_unlock(page: u64);
        /// The kernel lets go of the object.
        fn terminate();
    }
}

interface! {
    /// What the pager tells and asks a kernel, of one object.
    pub trait RequestCalls, client RequestClient, "farpage.pager-request" version 2 {
        /// `pager_data_provided`: the contents of whole pages, from the first that was asked for.
        fn data_provided(id: u64, how: Provided, contents: Contents);
        /// `pager_data_unavailable`: so many pages, from the first, never had contents: zeros.
        fn data_unavailable(id: u64, pages: u64);
        /// The first page cannot be had.
        fn data_error(id: u64, why: String);
        /// The pager answers for what was written.
        fn data_taken(id: u64);
        /// It does not.
        fn data_refused(id: u64, why: String);
        /// `pager_clean_request`, `pager_flush_request`, `pager_data_lock`: answered when it is done.
        /// Locks are set at once, before cleaning and flushing that was asked for earlier.
        fn lock_request(first: u64, pages: u64, order: PageOrder) => Result<(), String>;
        /// So many pages take hardly longer than one from now on.
        fn set_attributes(cluster_pages: u32);
    }
}
