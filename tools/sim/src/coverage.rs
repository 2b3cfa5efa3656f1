//! What happened in a run, counted: a test demands that everything happens in some seed.

use core::fmt;

/// Something that a run should come across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A fault answered with each of the answers.
    Wake,
    /// The fault waits for a transfer.
    Wait,
    /// Filled with zeros.
    Zero,
    /// A block given to Linux.
    Grant,
    /// Moved back.
    Restore,
    /// Copied back while on its way out.
    CopyBack,
    /// Asked from the pager.
    PageIn,
    /// Asked from the pager ahead, with a stride.
    Strided,
    /// Made writable.
    Unprotect,
    /// Lost.
    Fail,
    /// No room: the fault had to be tried again.
    Starved,
    /// A call was cut short or blocked by an event.
    Again,
    /// A page that a fork left shared was copied aside instead of moved.
    SharedOut,
    /// The same, back.
    SharedBack,
    /// A granted run was taken back.
    Ungranted,
    /// A clean page was dropped.
    Dropped,
    /// A page went to the pager, unmapped.
    PagedOut,
    /// A page went to the pager and was mapped again meanwhile.
    PagedOutMapped,
    /// A thread waited for the end of a page-out.
    PagedOutAwaited,
    /// A page of zeros went nowhere.
    ZeroOut,
    /// A page of zeros was mapped again and had to go to the pager.
    ZeroRefused,
    /// The pager did not take a page.
    Refused,
    /// The pager did not take a page that was mapped again.
    RefusedMapped,
    /// The pager supplied fewer pages than it was asked for, and a thread waited for one.
    Short,
    /// A thread wrote to a page that had come in and was not told yet.
    WriterCame,
    /// The pager supplied a page and kept no copy.
    Precious,
    /// A mapping that was there before it was managed.
    Adopted,
    /// munmap or MADV_DONTNEED waited for a transfer.
    DiscardWaits,
    /// Pages moved back because they were renamed.
    RenameRestores,
    /// mremap.
    Renamed,
    /// mlock.
    Wired,
    /// fork.
    Forked,
    /// fork waited for transfers.
    ForkWaits,
    /// A fault waited for a fork.
    Frozen,
    /// A program ended.
    Exited,
    /// Its end waited for transfers.
    ExitWaits,
    /// A page was lost that had left.
    Lost,
    /// The pager of an object was asked for a page that nobody had touched.
    OwnAsked,
    /// It supplied fewer than it was asked for, and a thread waited for one.
    OwnShort,
    /// It could not supply one.
    OwnLost,
    /// It supplied pages that may not be written to.
    SuppliedLocked,
    /// It locked pages.
    Locked,
    /// It unlocked pages.
    Unlocked,
    /// A thread wanted to write to a locked page.
    Unlock,
    /// The pager allowed it.
    Allowed,
    /// The pager did not.
    Forbidden,
    /// A locked page was copied back.
    RestoreProtected,
    /// Dirty pages were written back and stayed.
    Cleaned,
    /// Clean pages were dropped because the pager wished it.
    Flushed,
    /// A shared page could not be copied aside.
    SharedStays,
    /// Clean pages were moved aside.
    Spared,
    /// They were dropped from there.
    SpareDropped,
    /// They were dropped from there because the pager wished it.
    FlushedSpare,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 53] = [
        Self::Wake,
        Self::Wait,
        Self::Zero,
        Self::Grant,
        Self::Restore,
        Self::CopyBack,
        Self::PageIn,
        Self::Strided,
        Self::Unprotect,
        Self::Fail,
        Self::Starved,
        Self::Again,
        Self::SharedOut,
        Self::SharedBack,
        Self::Ungranted,
        Self::Dropped,
        Self::PagedOut,
        Self::PagedOutMapped,
        Self::PagedOutAwaited,
        Self::ZeroOut,
        Self::ZeroRefused,
        Self::Refused,
        Self::RefusedMapped,
        Self::Short,
        Self::WriterCame,
        Self::Precious,
        Self::Adopted,
        Self::DiscardWaits,
        Self::RenameRestores,
        Self::Renamed,
        Self::Wired,
        Self::Forked,
        Self::ForkWaits,
        Self::Frozen,
        Self::Exited,
        Self::ExitWaits,
        Self::Lost,
        Self::OwnAsked,
        Self::OwnShort,
        Self::OwnLost,
        Self::SuppliedLocked,
        Self::Locked,
        Self::Unlocked,
        Self::Unlock,
        Self::Allowed,
        Self::Forbidden,
        Self::RestoreProtected,
        Self::Cleaned,
        Self::Flushed,
        Self::SharedStays,
        Self::Spared,
        Self::SpareDropped,
        Self::FlushedSpare,
    ];
}

const EVENTS: usize = Event::ALL.len();

/// How often each [`Event`] happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; EVENTS]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; EVENTS])
    }
}

impl Coverage {
    pub(crate) fn note(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// How often `event` happened.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, event) in Event::ALL.iter().enumerate() {
            let end = if i % 5 == 4 { "\n" } else { "  " };
            write!(f, "{event:?} {}{end}", self.of(*event))?;
        }
        Ok(())
    }
}
