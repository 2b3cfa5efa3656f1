//! The states of a page.

/// Pages in one cluster: the unit in which pages queue for replacement.
pub const CLUSTER_PAGES: u64 = 16;

/// Where a page's contents are. One byte in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nowhere: never written, or discarded. A fault fills it with zeros (temporary memory) or
    /// asks the pager.
    Absent = 0,
    /// Linux fills it by itself when it is touched; it may or may not be there.
    Granted = 1,
    /// In the program, and only there.
    Resident = 2,
    /// In the program, write-protected; the pager has the same contents.
    Clean = 3,
    /// Moved aside, and only there.
    Aside = 4,
    /// Being handed to the pager from aside.
    PagingOut = 5,
    /// Being handed to the pager from aside, and back in the program, write-protected.
    PagingOutMapped = 6,
    /// Asked from the pager.
    PagingIn = 7,
    /// With the pager, and only there.
    Out = 8,
    /// Lost: the pager reported an error. Accesses must fail.
    Failed = 9,
    /// Moved aside; the pager has the same contents.
    Spare = 10,
}

impl State {
    pub(crate) const MASK: u8 = 0x0f;
    /// A thread waits for the page's transfer to end.
    pub(crate) const AWAITED: u8 = 0x10;
    /// A thread waits to write: to a page that came in and was not told yet, or, if the page is in
    /// the program, to a locked one whose pager is being asked.
    pub(crate) const WRITER: u8 = 0x40;
    /// Writing is forbidden until the pager allows it.
    pub(crate) const LOCKED: u8 = 0x80;
    /// The page must not leave (mlock).
    pub(crate) const WIRED: u8 = 0x20;

    pub(crate) fn of(byte: u8) -> Self {
        match byte & Self::MASK {
            0 => Self::Absent,
            1 => Self::Granted,
            2 => Self::Resident,
            3 => Self::Clean,
            4 => Self::Aside,
            5 => Self::PagingOut,
            6 => Self::PagingOutMapped,
            7 => Self::PagingIn,
            8 => Self::Out,
            9 => Self::Failed,
            10 => Self::Spare,
            other => unreachable!("page state {other}"),
        }
    }

    /// True when the page takes memory that is charged to the budget.
    pub fn is_charged(self) -> bool {
        match self {
            Self::Granted
            | Self::Resident
            | Self::Clean
            | Self::Aside
            | Self::Spare
            | Self::PagingOut
            | Self::PagingOutMapped
            | Self::PagingIn => true,
            Self::Absent | Self::Out | Self::Failed => false,
        }
    }

    /// True when the page lies aside, and is not being paged out.
    pub fn is_aside(self) -> bool {
        matches!(self, Self::Aside | Self::Spare)
    }

    /// True when the page is mapped in the program and can be chosen to leave.
    pub(crate) fn can_leave(self) -> bool {
        matches!(self, Self::Resident | Self::Clean)
    }
}
