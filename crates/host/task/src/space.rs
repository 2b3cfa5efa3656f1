//! The address space of this process.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use farpage_client::Host;
use farpage_sys::Errno;
use farpage_sys::area::{AREA, Area, From, Held, Place};
use farpage_sys::memory_file::{self, FIXED, WRITE};

use crate::map::{Backing, Map, Piece};
use crate::note::{self, InheritError, Note};
use crate::object::{FrozenFile, Object};
use crate::types::{Argument, Shortage};
use crate::{Inheritance, PAGE_BYTES, Protection, VmError, fork};

/// Where memory that comes from `vm_allocate` lies, in all processes.
pub const BOUNDS: Range<u64> = AREA.start as u64..AREA.end as u64;
/// Pieces that memory may be divided into: Linux has 65530 mappings for the whole process.
const PIECES_MAX: usize = 16384;
/// Linux makes huge pages of what is aligned so.
const HUGE_BYTES: u64 = 2 << 20;

pub(crate) type Result<T> = std::result::Result<T, VmError>;

/// The address space of this process, as Mach's `mach_task_self()` has it: [`AddressSpace::own`].
///
/// What `vm_allocate` gives lies within [`BOUNDS`], where nothing else of the process is. Who makes
/// pointers and references of its addresses answers for what is done to them here, by this process
/// and by those who have a right to its [task port](crate::TaskPort).
pub struct AddressSpace {
    pub(crate) area: Area,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) map: Map,
    pub(crate) note: Note,
    /// Makes what becomes shared.
    pub(crate) host: Option<Host>,
    /// Where objects of it are mapped: all of each, until the last piece goes.
    pub(crate) views: Vec<(Range<u64>, Weak<Object>)>,
    /// In a child: objects among whose places it has other things.
    pub(crate) kept: Vec<Arc<Object>>,
}

impl AddressSpace {
    /// That of this process. In a program that was executed, the first call maps what the one that
    /// executed it shares with its children, where that has it.
    ///
    /// # Errors
    /// [`InheritError`]: something of it cannot be mapped. That stays so.
    pub fn own() -> std::result::Result<&'static Self, InheritError> {
        static OWN: OnceLock<std::result::Result<AddressSpace, InheritError>> = OnceLock::new();
        // First: who forks then waits until it is there, which a child whose parent was at it never would.
        fork::watch();
        OWN.get_or_init(Self::begin).as_ref().map_err(Clone::clone)
    }

    fn begin() -> std::result::Result<Self, InheritError> {
        let area = Area::take().expect("this is the only one that takes it");
        let mut state = State {
            map: Map::default(),
            note: Note::default(),
            host: None,
            views: Vec::new(),
            kept: Vec::new(),
        };
        note::inherit(&area, &mut state)?;
        let state = Mutex::new(state);
        Ok(Self { area, state })
    }

    /// From now on memory that becomes shared before anybody has touched it is an object of the
    /// host kernel: it need not fit into memory. What has contents moves into a memory file, as
    /// without a host kernel: only there nothing that threads write meanwhile can be lost.
    ///
    /// Programs that are executed reach the same host kernel by the same path. One that a program
    /// executes in its own place finds the memory only if another process has it still.
    pub fn share_through(&self, host: Host) {
        self.lock().host = Some(host);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `vm_allocate`: zeros, of whole pages, with [`Protection::DEFAULT`], [`Protection::ALL`] as
    /// maximum, and [`Inheritance::Copy`]. `anywhere`: where there is room; else from the page on
    /// that `address` lies in. Nothing is made of no bytes. The address.
    ///
    /// # Errors
    /// [`VmError::InvalidAddress`] outside of [`BOUNDS`]; [`VmError::NoSpace`] where something is,
    /// or when there is no room; [`VmError::ResourceShortage`].
    pub fn vm_allocate(&self, address: u64, bytes: u64, anywhere: bool) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let no_space = VmError::NoSpace { bytes };
        let whole = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(no_space)?;
        let mut state = self.lock();
        state.room_for(1)?;
        let start = if anywhere {
            let align = if whole < HUGE_BYTES {
                PAGE_BYTES
            } else {
                HUGE_BYTES
            };
            state.gap(whole, align).ok_or(no_space)?
        } else {
            address - address % PAGE_BYTES
        };
        let invalid = VmError::InvalidAddress { address, bytes };
        let end = start.checked_add(whole).ok_or(invalid)?;
        if start < BOUNDS.start || end > BOUNDS.end {
            return Err(invalid);
        }
        let range = start..end;
        if !state.map.within(&range).is_empty() || state.view_at(&range).is_some() {
            return Err(no_space);
        }
        self.lay(&range, &Piece::new(), Place::Free)?;
        state.map.put(&range, Piece::new());
        Ok(start)
    }

    /// `vm_deallocate`: the pages that hold the range are not there any more, for this task.
    ///
    /// # Errors
    /// [`VmError::InvalidAddress`] when not all of it is allocated: then nothing changes.
    pub fn vm_deallocate(&self, address: u64, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        let Some(range) = pages_of(address, bytes)? else {
            return Ok(());
        };
        let parts = state.parts(&range)?;
        if state.map.is_middle(&range) {
            state.room_for(1)?;
        }
        let mut leave = |part: &Range<u64>, piece: &Piece| -> Result<()> {
            let place = addresses(part);
            match piece.backing.view() {
                None => self.area.unmap(&place)?,
                // It is unmapped with the rest of its object.
                Some(_) => self.area.protect(&place, Protection::NONE.access())?,
            }
            state.map.remove(part);
            Ok(())
        };
        let left = parts
            .iter()
            .try_for_each(|(part, piece)| leave(part, piece));
        let noted = state.note_if(parts.iter().any(|(_, piece)| is_given(piece)));
        left.and(noted)
    }

    /// `vm_protect`: what may be done with the pages that hold the range. With `set_max` it is what
    /// they may be allowed at most from now on, and what they are allowed beyond goes.
    ///
    /// # Errors
    /// [`VmError::ProtectionFailure`] when it is beyond the maximum; [`VmError::InvalidAddress`]
    /// when not all of it is allocated. Nothing changes then.
    pub fn vm_protect(
        &self,
        address: u64,
        bytes: u64,
        set_max: bool,
        protection: Protection,
    ) -> Result<()> {
        let mut state = self.lock();
        let Some(range) = pages_of(address, bytes)? else {
            return Ok(());
        };
        let parts = state.parts(&range)?;
        if !parts
            .iter()
            .all(|(_, piece)| protection.is_within(piece.max_protection))
        {
            return Err(VmError::ProtectionFailure { address, bytes });
        }
        state.room_for(2)?;
        let is_given = parts.iter().any(|(_, piece)| is_given(piece));
        for (part, mut piece) in parts {
            if set_max {
                piece.max_protection = protection;
            }
            let wanted = if set_max {
                piece.protection.and(protection)
            } else {
                protection
            };
            if wanted != piece.protection {
                piece.protection = wanted;
                self.area.protect(&addresses(&part), wanted.access())?;
            }
            state.map.put(&part, piece);
        }
        state.note_if(is_given)
    }

    /// `vm_inherit`: what children have of the pages that hold the range. What is shared with
    /// children for the first time moves into an object, while threads that write to it wait.
    ///
    /// The caller's own stack must not lie in it: it would wait for itself. System calls that
    /// write to it meanwhile wait as well, or fail with `EFAULT` where this user may only have
    /// userfaultfds for faults of programs (`farpage doctor`).
    ///
    /// [`Inheritance::Copy`] of memory that is shared takes effect by a handler of `fork`; all else
    /// Linux does by itself, however a child is made.
    ///
    /// # Errors
    /// [`VmError::InvalidAddress`] when not all of it is allocated; [`VmError::ResourceShortage`];
    /// [`VmError::Failure`] where there is no userfaultfd and other threads cannot be made to wait.
    pub fn vm_inherit(&self, address: u64, bytes: u64, inheritance: Inheritance) -> Result<()> {
        let mut state = self.lock();
        let Some(range) = pages_of(address, bytes)? else {
            return Ok(());
        };
        let parts = state.parts(&range)?;
        state.room_for(2)?;
        let was_given = parts.iter().any(|(_, piece)| is_given(piece));
        let is_share = inheritance == Inheritance::Share;
        let mut object = match is_share {
            true => self.object_of_host(&mut state, &range, &parts)?,
            false => None,
        };
        // An object of the host kernel lies there already.
        let is_placed = object.is_some();
        let mut change = |part: &Range<u64>, piece: &Piece| -> Result<()> {
            let offset = part.start - range.start;
            let mut then = piece.clone();
            then.inheritance = inheritance;
            if is_share && !matches!(piece.backing, Backing::Shared(..)) {
                let made = match &object {
                    Some(object) => Arc::clone(object),
                    None => Arc::new(Object::new(range.end - range.start)?),
                };
                object = Some(Arc::clone(&made));
                then.backing = Backing::Shared(made, offset);
                if !is_placed {
                    self.share(part, piece, &then)?;
                }
            } else if piece.backing.view().is_none() {
                self.area
                    .give_to_children(&addresses(part), inheritance != Inheritance::None)?;
            }
            state.map.put(part, then);
            Ok(())
        };
        let changed = parts
            .iter()
            .try_for_each(|(part, piece)| change(part, piece));
        let noted = state.note_if(was_given || is_share);
        changed.and(noted)
    }

    /// Moves a part into an object, and is itself the same afterwards.
    fn share(&self, part: &Range<u64>, piece: &Piece, then: &Piece) -> Result<()> {
        let Backing::Shared(object, offset) = &then.backing else {
            unreachable!("it becomes shared");
        };
        let file = Moving {
            file: object.file(),
            offset: *offset,
            seal: false,
        };
        self.move_to(part, piece, then, &file)
    }

    /// An object of the host kernel, in place of memory that nobody has touched, if there is one.
    fn object_of_host(
        &self,
        state: &mut State,
        range: &Range<u64>,
        parts: &[(Range<u64>, Piece)],
    ) -> Result<Option<Arc<Object>>> {
        let is_new = |(_, piece): &(_, Piece)| matches!(piece.backing, Backing::Zeros);
        let Some(host) = &state.host else {
            return Ok(None);
        };
        if !parts.iter().all(is_new) {
            return Ok(None);
        }
        // Nothing comes there before the object does.
        let _held = self.area.hold_first_touches(&addresses(range))?;
        if self.area.resident_bytes(&addresses(range))? > 0 {
            return Ok(None);
        }
        let object = Object::of_host(host, &self.area, range).inspect_err(|_| {
            // As it was, wherever it failed.
            for (part, piece) in parts {
                let _ = self.lay(part, piece, Place::Replace);
            }
        });
        let object = Arc::new(object?);
        if object.view().is_some() {
            state.views.push((range.clone(), Arc::downgrade(&object)));
        }
        for (part, piece) in parts {
            if piece.protection != Protection::DEFAULT {
                self.area
                    .protect(&addresses(part), piece.protection.access())?;
            }
        }
        Ok(Some(object))
    }

    /// Puts what a part of this task's own has into a file that nobody changes any more, and the
    /// part is a copy of that from then on, made page by page when somebody writes. The file.
    pub(crate) fn freeze(&self, part: &Range<u64>, piece: &Piece) -> Result<Piece> {
        let file = memory_file::create(c"farpage-frozen", (part.end - part.start) as usize)?;
        let file = Arc::new(FrozenFile::new(file)?);
        let frozen = Piece {
            backing: Backing::Frozen(Arc::clone(&file), 0),
            ..piece.clone()
        };
        let to = Moving {
            file: file.file(),
            offset: 0,
            seal: true,
        };
        self.move_to(part, piece, &frozen, &to)?;
        Ok(frozen)
    }

    /// What threads write meanwhile is in the one or in the other, and nothing is lost: they wait.
    fn move_to(
        &self,
        part: &Range<u64>,
        piece: &Piece,
        then: &Piece,
        to: &Moving<'_>,
    ) -> Result<()> {
        let place = addresses(part);
        let _held = if piece.protection.write {
            self.hold_writers(&place)?
        } else {
            None
        };
        if !piece.protection.read {
            self.area.protect(&place, Protection::READ.access())?;
        }
        let copied = self.copy_contents(part, piece, to.file, to.offset);
        let sealed = copied.and_then(|()| match to.seal {
            true => Ok(memory_file::seal(to.file, FIXED | WRITE)?),
            false => Ok(()),
        });
        let moved = sealed.and_then(|()| self.lay(part, then, Place::Replace));
        if moved.is_err() && !piece.protection.read {
            self.area.protect(&place, piece.protection.access())?;
        }
        moved
    }

    /// `None`: no other thread can write.
    fn hold_writers(&self, place: &Range<usize>) -> Result<Option<Held>> {
        match self.area.hold_writers(place) {
            Ok(held) => Ok(Some(held)),
            Err(_) if is_alone() => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Maps a piece as it should be.
    pub(crate) fn lay(&self, range: &Range<u64>, piece: &Piece, place: Place) -> Result<()> {
        lay(&self.area, range, piece, place)?;
        if piece.inheritance == Inheritance::None {
            self.area.give_to_children(&addresses(range), false)?;
        }
        Ok(())
    }
}

pub(crate) fn lay(
    area: &Area,
    range: &Range<u64>,
    piece: &Piece,
    place: Place,
) -> std::result::Result<(), Errno> {
    let from = match &piece.backing {
        Backing::Zeros => From::Zeros,
        Backing::Frozen(file, offset) => From::Private(file.file(), *offset),
        Backing::Shared(object, offset) => From::Shared(object.file(), *offset),
    };
    area.map(&addresses(range), piece.protection.access(), from, place)
}

/// Where contents move to.
struct Moving<'a> {
    file: BorrowedFd<'a>,
    offset: u64,
    seal: bool,
}

impl State {
    /// Where an object of the host kernel is mapped that `range` overlaps.
    fn view_at(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        self.views.retain(|(_, object)| object.strong_count() > 0);
        let mut views = self.views.iter().map(|(view, _)| view);
        views
            .find(|view| view.start < range.end && range.start < view.end)
            .cloned()
    }

    /// The lowest place for so many bytes.
    fn gap(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let mut area = BOUNDS;
        loop {
            let start = self.map.gap(&area, bytes, align)?;
            match self.view_at(&(start..start + bytes)) {
                None => return Some(start),
                Some(view) => area.start = view.end,
            }
        }
    }

    /// What `range` consists of, all of which must be allocated.
    pub(crate) fn parts(&self, range: &Range<u64>) -> Result<Vec<(Range<u64>, Piece)>> {
        self.map.whole(range).ok_or(VmError::InvalidAddress {
            address: range.start,
            bytes: range.end - range.start,
        })
    }

    /// There may be so many more pieces.
    pub(crate) fn room_for(&self, pieces: usize) -> Result<()> {
        if self.map.len() + pieces > PIECES_MAX {
            return Err(VmError::ResourceShortage(Shortage::Regions));
        }
        Ok(())
    }

    /// What is shared with children has changed.
    fn note_if(&mut self, has_changed: bool) -> Result<()> {
        if has_changed {
            self.note.write(&self.map)?;
        }
        Ok(())
    }
}

/// Children, also those that execute other programs, have it.
pub(crate) fn is_given(piece: &Piece) -> bool {
    piece.inheritance == Inheritance::Share
}

/// The pages that hold bytes; `None` for no bytes.
pub(crate) fn pages_of(address: u64, bytes: u64) -> Result<Option<Range<u64>>> {
    if bytes == 0 {
        return Ok(None);
    }
    let end = address.checked_add(bytes);
    let end = end.and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
    let end = end.ok_or(VmError::InvalidAddress { address, bytes })?;
    Ok(Some(address - address % PAGE_BYTES..end))
}

/// The same, for operations that take whole pages only.
pub(crate) fn whole_pages(address: u64, bytes: u64) -> Result<Option<Range<u64>>> {
    if !address.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(VmError::InvalidArgument(Argument::NotWholePages));
    }
    pages_of(address, bytes)
}

pub(crate) fn addresses(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

pub(crate) fn errno_of(error: &std::io::Error) -> VmError {
    Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)).into()
}
