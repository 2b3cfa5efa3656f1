//! The memory-object protocol, seen from the pager.
//!
//! A **memory object** is memory whose contents are the business of a **pager**. The kernel asks
//! for pages with [`Pager::data_request`] and hands modified pages back with
//! [`Pager::data_write`]; the names are those of the external pager interface of Mach
//! (`docs/protocol.md` has the table).

mod ticket;

use core::fmt;

use crate::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};

pub use ticket::{Later, Ticket};

/// Answers for the contents of memory objects.
///
/// Calls come from the kernel's own threads, several at a time; from the thread that faulted only
/// when [`Pager::is_signal_safe`] says that this is right. A call must not touch memory that this
/// same pager serves: its own fault would wait for itself.
pub trait Pager: Send + Sync {
    /// The kernel starts to use `object` (`pager_init`): when it is made, or mapped again after
    /// [`Pager::terminate`]. Refusing makes that fail.
    ///
    /// # Errors
    /// A [`PagerError`], handed to whoever created the object.
    fn init(&self, object: ObjectId, pages: u64) -> Result<(), PagerError> {
        let _ = (object, pages);
        Ok(())
    }

    /// The contents of `request.pages()` are wanted (`pager_data_request`).
    ///
    /// Fill any prefix of the range that is at least one page; the kernel asks again for what it
    /// still needs. `request.needed()` is the number of pages that a thread waits for; the rest is
    /// prefetch.
    ///
    /// A pager that must wait for something itself keeps a [`Ticket`] with [`DataRequest::later`],
    /// returns, and answers when it can: no thread is held meanwhile.
    ///
    /// # Errors
    /// Why the first page cannot be had: the thread that waits gets an error, never zeros.
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError>;

    /// Says in words why `page` cannot be had: what, why, and what to do. Asked when a request for
    /// it has failed and a thread needs it. False, with nothing written: nothing is known but the
    /// error itself.
    fn explain(&self, object: ObjectId, page: PageIndex, into: &mut dyn fmt::Write) -> bool {
        let _ = (object, page, into);
        false
    }

    /// A thread waits for `page`, which was asked for already, perhaps ahead of need: it may go before
    /// what nobody waits for.
    fn hasten(&self, object: ObjectId, page: PageIndex) {
        let _ = (object, page);
    }

    /// How many pages, a power of two, are worth bringing in where `page` is needed alone: as many
    /// as take hardly longer than one. 1 from pagers that do not know; the kernel then decides.
    fn cluster_pages(&self, object: ObjectId, page: PageIndex) -> u64 {
        let _ = (object, page);
        1
    }

    /// Pages that lie apart are wanted: `first`, `first + stride` and so on, as many as `buffer` has
    /// room for. Fill any of them from the first on; nobody waits for them. For pagers that can have
    /// several on their way at once; 0 pages, which is what others supply, say: one at a time.
    ///
    /// # Errors
    /// Why the first page cannot be had.
    fn data_request_strided(
        &self,
        object: ObjectId,
        first: PageIndex,
        stride: i64,
        buffer: &mut [u8],
    ) -> Result<Supplied, PagerError> {
        let _ = (object, first, stride, buffer);
        Ok(Supplied::clean(0))
    }

    /// True when `page` can be supplied, or a ticket kept, without waiting for anything. The kernel
    /// then answers the fault on the spot; else it first lets another thread take further faults.
    fn is_at_hand(&self, object: ObjectId, page: PageIndex) -> bool {
        let _ = (object, page);
        false
    }

    /// True when `page` can be supplied just now without waiting for a device or a peer. Unlike one
    /// that is always [at hand](Pager::is_at_hand), asking for it costs enough that its neighbours
    /// are worth bringing along. The kernel then answers the fault on the spot, too.
    fn is_quick(&self, object: ObjectId, page: PageIndex) -> bool {
        self.is_at_hand(object, page)
    }

    /// True when [`Pager::data_request`] may be called in a signal handler of the thread that
    /// faulted. For mappings whose faults are answered there: pages that are at hand then come
    /// without another thread. Such a pager takes no mutex that a thread may hold while it touches
    /// the mapping, and does not panic.
    fn is_signal_safe(&self) -> bool {
        false
    }

    /// Modified pages are handed back (`pager_data_write`). When this returns `Ok` the pager
    /// answers for them; the kernel forgets its copy.
    ///
    /// # Errors
    /// Why they could not be taken: the kernel keeps the pages and tries again later.
    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError>;

    /// A thread wants to write to a page that is locked against writing (`pager_data_unlock`).
    /// Return `true` to let it: the page is not locked any more. After `false` the thread waits
    /// until the lock is lifted. The page stays in memory while the call lasts.
    fn data_unlock(&self, object: ObjectId, page: PageIndex, access: Access) -> bool {
        let _ = (object, page, access);
        true
    }

    /// True when it locks pages time and again: its kernel then decides on each page, and gives Linux
    /// no whole blocks of them.
    fn locks_pages(&self) -> bool {
        false
    }

    /// The contents of `pages` are gone for good: the program dropped them, or unmapped temporary
    /// memory. An object of a pager's own that is unmapped keeps its contents.
    fn discard(&self, object: ObjectId, pages: PageRange) {
        let _ = (object, pages);
    }

    /// The contents of `from` are those of as many pages from `to` on, from now on. Only asked of
    /// pagers of temporary objects.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    fn rename(&self, object: ObjectId, from: PageRange, to: PageIndex) -> Result<(), PagerError> {
        let _ = (object, from, to);
        Ok(())
    }

    /// True when each cluster of [`Pager::cluster_pages`] is answered by itself, perhaps long after others: no
    /// request is for pages of two.
    fn answers_clusters_apart(&self) -> bool {
        false
    }

    /// The kernel has let go of the object (`port death`, in Mach): once for each [`Pager::init`],
    /// after what was modified was handed back.
    fn terminate(&self, object: ObjectId) {
        let _ = object;
    }
}

/// One page on its way to the pager.
#[derive(Clone, Copy)]
pub struct PageOut<'a> {
    /// Which.
    pub page: PageIndex,
    /// Its contents. Nobody else writes to them while the call lasts.
    pub bytes: &'a [u8; PAGE_BYTES],
}

/// A request for contents, with the buffer to put them into.
pub struct DataRequest<'a> {
    object: ObjectId,
    pages: PageRange,
    needed: u64,
    access: Access,
    ahead: bool,
    copied: bool,
    buffer: &'a mut [u8],
    later: Option<MakeTicket<'a>>,
}

/// Who takes the late answer, and what gives its number.
type MakeTicket<'a> = (&'static dyn Later, &'a (dyn Fn() -> u64 + Sync));

impl<'a> DataRequest<'a> {
    /// A request for `pages`, of which the first `needed` are waited for. Made by kernels and by
    /// tests of pagers.
    ///
    /// # Panics
    /// When `buffer` has not exactly the bytes of `pages`, or `needed` is 0 or more than them.
    pub fn new(
        object: ObjectId,
        pages: PageRange,
        needed: u64,
        access: Access,
        buffer: &'a mut [u8],
    ) -> Self {
        assert_eq!(
            buffer.len() as u64,
            pages.bytes(),
            "buffer and range differ in size"
        );
        assert!(
            0 < needed && needed <= pages.pages(),
            "a request that nobody waits for"
        );
        Self {
            object,
            pages,
            needed,
            access,
            ahead: false,
            copied: false,
            buffer,
            later: None,
        }
    }

    /// The same request, to ask another pager. It cannot be answered later.
    pub fn anew(&mut self) -> DataRequest<'_> {
        DataRequest {
            buffer: &mut *self.buffer,
            later: None,
            ..*self
        }
    }

    /// The pager is to keep its own copy, if it can: then what it supplies is not precious.
    pub fn copied(self) -> Self {
        Self {
            copied: true,
            ..self
        }
    }

    /// Nobody waits for the pages yet. Used by kernels and by tests of pagers.
    pub fn ahead_of_need(self) -> Self {
        Self {
            ahead: true,
            ..self
        }
    }

    /// The request may be answered later, to `kernel`, under the number that `number` gives when
    /// the pager decides so. Used by kernels and by tests of pagers.
    pub fn or_later(
        self,
        kernel: &'static dyn Later,
        number: &'a (dyn Fn() -> u64 + Sync),
    ) -> Self {
        Self {
            later: Some((kernel, number)),
            ..self
        }
    }

    /// The pager answers later: `keep` puts the ticket where it is found again, and what this
    /// returns is returned from [`Pager::data_request`]. The ticket may be answered at once, by
    /// another thread or in `keep`.
    ///
    /// ```
    /// use std::sync::mpsc::Sender;
    ///
    /// use farpage_object::{
    ///     DataRequest, ObjectId, PageOut, Pager, PagerError, Supplied, Ticket,
    /// };
    ///
    /// /// Leaves requests to whoever holds the other end: `ticket.supply(&bytes)` answers one.
    /// struct Remote(Sender<Ticket>);
    ///
    /// impl Pager for Remote {
    ///     fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
    ///         // Without anybody there the ticket is dropped, and the access fails.
    ///         Ok(request.later(|ticket| drop(self.0.send(ticket))))
    ///     }
    ///
    ///     fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
    ///         Err(PagerError::Write(30)) // read-only
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    /// When the request was made without [`DataRequest::or_later`]; kernels make none such.
    pub fn later(self, keep: impl FnOnce(Ticket)) -> Supplied {
        let (kernel, number) = self.later.expect("a request that can be answered later");
        let (object, access, pages) = (self.object, self.access, self.pages);
        keep(Ticket::new(
            kernel,
            number(),
            object,
            access,
            self.needed,
            pages,
        ));
        Supplied::clean(0)
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.object
    }

    /// The pages that may be supplied, in order from the first.
    pub fn pages(&self) -> PageRange {
        self.pages
    }

    /// How many of them, from the first, a thread waits for; at least 1.
    pub fn needed(&self) -> u64 {
        self.needed
    }

    /// True when nobody waits yet: what others wait for may come first.
    pub fn is_ahead_of_need(&self) -> bool {
        self.ahead
    }

    /// True when the pager is to keep its own copy.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// What the waiting thread wants to do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Where the contents go: [`PAGE_BYTES`] for each page. What it holds before is unspecified.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Copies `bytes` to the buffer's start and supplies the whole pages among them; a last part of
    /// a page is filled up with zeros.
    ///
    /// # Panics
    /// When `bytes` is empty or longer than the buffer.
    pub fn supply(self, bytes: &[u8]) -> Supplied {
        assert!(!bytes.is_empty(), "nothing supplied");
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        let pages = bytes.len().div_ceil(PAGE_BYTES);
        self.buffer[bytes.len()..pages * PAGE_BYTES].fill(0);
        Supplied {
            pages: pages as u64,
            precious: false,
            locked: None,
        }
    }
}

/// What a pager put into a request's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supplied {
    /// Pages filled, from the first; at least 1. (0 from [`DataRequest::later`] only.)
    pub pages: u64,
    /// The pager keeps no copy: the pages must come back even if nobody writes to them.
    pub precious: bool,
    /// Accesses forbidden until the pager is asked (`data_unlock`): `Some(Write)` supplies
    /// read-only, whether it is the first supply or the page was locked before. Other locks are not
    /// implemented: supplying one is a [`PagerError::Violation`]. `None` leaves a lock as it is.
    pub locked: Option<Access>,
}

impl Supplied {
    /// `pages` pages of which the pager keeps its copy.
    pub fn clean(pages: u64) -> Self {
        Self {
            pages,
            precious: false,
            locked: None,
        }
    }

    /// `pages` pages that the pager gives away.
    pub fn precious(pages: u64) -> Self {
        Self {
            pages,
            precious: true,
            locked: None,
        }
    }
}

/// The system's error numbers in [`PagerError::Read`] and [`PagerError::Write`] that say why.
pub mod errno {
    /// Reading or writing failed.
    pub const EIO: i32 = 5;
    /// Access is not allowed.
    pub const EACCES: i32 = 13;
    /// It can only be read.
    pub const EROFS: i32 = 30;
    /// It did not answer in time.
    pub const ETIMEDOUT: i32 = 110;
    /// It cannot be reached.
    pub const EHOSTUNREACH: i32 = 113;
    /// It is another version than that opened.
    pub const ESTALE: i32 = 116;
    /// Who has it could not read it.
    pub const EREMOTEIO: i32 = 121;
}

/// Why a pager could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagerError {
    /// No contents at this place (`pager_data_unavailable`): the object is shorter.
    Unavailable,
    /// No room for more pages.
    OutOfSpace,
    /// What was read is not what was written.
    Corrupt,
    /// Reading failed; the system's error number. `EACCES`, `ETIMEDOUT`, `EHOSTUNREACH` and `ESTALE`
    /// say that all of the object cannot be read.
    Read(i32),
    /// Writing failed; the system's error number.
    Write(i32),
    /// The pager is gone.
    Dead,
    /// The pager broke the protocol: it supplied no page, or more than it was asked for, or a lock
    /// other than one against writing.
    Violation,
}

impl PagerError {
    /// True when other pages of the object would fail as well: to ask for one of them alone would
    /// take longer, and come to the same.
    pub fn is_of_the_object(self) -> bool {
        use errno::{EACCES, EHOSTUNREACH, ESTALE, ETIMEDOUT};
        match self {
            Self::Dead | Self::Violation => true,
            Self::Read(errno) => matches!(errno, EACCES | ETIMEDOUT | EHOSTUNREACH | ESTALE),
            Self::Unavailable | Self::OutOfSpace | Self::Corrupt | Self::Write(_) => false,
        }
    }
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => write!(f, "the pager has no contents at this place"),
            Self::OutOfSpace => write!(f, "no room is left for pages"),
            Self::Corrupt => write!(f, "a page read back differs from the page written"),
            Self::Read(errno) => write!(f, "reading failed with system error {errno}"),
            Self::Write(errno) => write!(f, "writing failed with system error {errno}"),
            Self::Dead => write!(f, "the pager is gone"),
            Self::Violation => {
                write!(
                    f,
                    "the pager supplied no page, or more than it was asked for, or a lock that is not \
                     against writing"
                )
            }
        }
    }
}

impl core::error::Error for PagerError {}
