//! Shared memory in memory: mapping, protecting, moving.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farpage_object::shm::{Ask, Kind, Shm};
use farpage_object::{PAGE_BYTES, fds};
use farpage_sys::file::{self, Fd};
use farpage_sys::futex::Guard;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::later::{self, Unseen};
use farpage_sys::uffd::Uffd;
use farpage_sys::{Errno, Result, mem, time};

use super::connection::{STATE, State};
use super::{descriptors, memory_files, say, status_of, transfer};
use crate::{memory, sandbox, start, supervised};

const FIXED: u32 = g::MAP_FIXED | g::MAP_FIXED_NOREPLACE;
pub(super) const EALREADY: Errno = Errno(114);
const WILL_WAIT: u32 = g::MAP_POPULATE | g::MAP_LOCKED;

/// How many pieces there are, for who only looks whether there are any.
static PIECES: AtomicUsize = AtomicUsize::new(0);

/// There has been one.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A range of this task's memory that shows a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) object: u64,
    pub(super) start: usize,
    pub(super) end: usize,
    /// The page of the object at `start`.
    pub(super) first: u64,
    pub(super) prot: u32,
    pub(super) shared: bool,
    /// It may be given the right to be written to.
    pub(super) writable: bool,
    /// Children do not get it (`MADV_DONTFORK`).
    pub(super) left_out: bool,
}

impl Piece {
    /// That it is mapped.
    pub(super) fn to_ask(self) -> Ask {
        Ask {
            kind: Kind::Map,
            a: self.object,
            b: self.start as u64,
            c: self.first,
            d: (self.end - self.start) as u64,
        }
    }

    /// The part of it in `from .. to`.
    fn part(self, from: usize, to: usize) -> Option<Self> {
        let (start, end) = (self.start.max(from), self.end.min(to));
        (start < end).then(|| Self {
            start,
            end,
            first: self.first + ((start - self.start) / PAGE_BYTES) as u64,
            ..self
        })
    }
}

/// A mapping that is to be made.
pub(super) struct Wanted {
    pub(super) object: u64,
    /// Its memory file.
    pub(super) memory: Fd,
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) prot: u32,
    pub(super) flags: u32,
    /// Page of the object.
    pub(super) first: u64,
    pub(super) writable: bool,
}

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [at, bytes, c, ..] = args;
    match number {
        // SAFETY: forwarded.
        g::__NR_mmap => unsafe { map(shm, args) },
        _ if !are_mapped() => None,
        g::__NR_mprotect | g::__NR_pkey_mprotect => refuses_protection(at, bytes, c as u32),
        g::__NR_madvise if c as u32 == g::MADV_REMOVE => remove(at, bytes),
        g::__NR_madvise if matches!(c as u32, g::MADV_DONTFORK | g::MADV_DOFORK) => {
            leave_out(at, bytes, c as u32 == g::MADV_DONTFORK);
            None
        }
        // SAFETY: forwarded.
        g::__NR_mremap => unsafe { remap(args) },
        _ => None,
    }
}

/// # Safety
/// As the call that the program made.
unsafe fn map(shm: &Shm, args: [usize; 6]) -> Option<Result<usize>> {
    let [at, bytes, prot, flags, fd, offset] = args;
    let flags = flags as u32;
    let kind = flags & g::MAP_TYPE;
    let wanted = |object, memory, first, writable| Wanted {
        object,
        memory,
        at,
        bytes,
        prot: prot as u32,
        flags,
        first,
        writable,
    };
    if flags & g::MAP_ANONYMOUS != 0 {
        if kind != g::MAP_SHARED || flags & g::MAP_HUGETLB != 0 || bytes < threshold() {
            return None;
        }
        let mut state = STATE.lock();
        let ask = Ask {
            b: bytes as u64,
            ..Ask::new(Kind::New)
        };
        let (object, memory) = match given(state.ask(ask, None)) {
            Ok(given) => given,
            Err(errno) => return Some(Err(errno)),
        };
        // SAFETY: forwarded.
        let mapped = unsafe { wanted(object, memory, 0, true).map(&mut state) };
        file::close(memory);
        return Some(mapped);
    }
    let fd = Fd(fd as i32);
    let is_memory = memory_files::is_one(shm, &status_of(shm, fd)?);
    if is_memory && !memory_files::maps_object(shm, fd, bytes, kind) {
        return None;
    }
    if let Err(errno) = may_be(flags) {
        return Some(Err(errno));
    }
    let (mut state, given) = object_of(fd);
    let (object, memory) = match given {
        Ok(given) => given,
        Err(Errno::ENOENT) => {
            if is_memory {
                memory_files::stays_linuxs(shm, fd);
            }
            return None;
        }
        Err(errno) => return Some(Err(said(errno))),
    };
    let first = (offset / PAGE_BYTES) as u64;
    let mapped = may_map(fd, prot as u32, kind, offset).and_then(|writable| {
        // SAFETY: forwarded.
        unsafe { wanted(object, memory, first, writable).map(&mut state) }
    });
    file::close(memory);
    drop(state);
    descriptors::see_or_hide(fd);
    Some(mapped)
}

/// What Linux refuses of a file in memory.
fn may_be(flags: u32) -> Result<()> {
    const MAP_SYNC: u32 = 0x80000;
    match flags & g::MAP_TYPE {
        g::MAP_SHARED_VALIDATE if flags & MAP_SYNC != 0 => Err(Errno::EOPNOTSUPP),
        g::MAP_SHARED | g::MAP_PRIVATE | g::MAP_SHARED_VALIDATE
            if flags & (g::MAP_GROWSDOWN | g::MAP_HUGETLB) == 0 =>
        {
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Whether the mapping may ever be written to, by what the descriptor allows.
fn may_map(fd: Fd, prot: u32, kind: u32, offset: usize) -> Result<bool> {
    let mode = file::flags(fd)? & g::O_ACCMODE;
    let is_private = kind == g::MAP_PRIVATE;
    if !is_private && prot & g::PROT_WRITE != 0 && memory_files::is_sealed(fd) {
        return Err(Errno::EPERM);
    }
    let writable = is_private || mode & 3 >= g::O_RDWR && !memory_files::is_sealed(fd);
    if mode == g::O_WRONLY || prot & g::PROT_WRITE != 0 && !writable {
        return Err(Errno::EACCES);
    }
    if !offset.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL);
    }
    Ok(writable)
}

fn threshold() -> usize {
    let control = start::control();
    control.map_or(usize::MAX, |control| {
        control.threshold_bytes.load(Ordering::Relaxed) as usize
    })
}

/// An object and its memory file, as the supervisor gives them.
pub(super) fn given(answer: Result<(u64, Option<Fd>)>) -> Result<(u64, Fd)> {
    let (object, memory) = answer?;
    Ok((object, memory.ok_or(Errno::EIO)?))
}

/// Lets those who use a file's pages go on, before its object is asked for again.
pub(super) fn wait_for_users() {
    const PAUSE_NS: u64 = 50_000;
    time::sleep_ns(PAUSE_NS);
}

/// The object of a file, made when nobody uses Linux's pages of the file any more.
pub(super) fn object_of(fd: Fd) -> (Guard<'static, State>, Result<(u64, Fd)>) {
    loop {
        let mut state = STATE.lock();
        let answer = given(state.ask(Ask::new(Kind::File), Some(fd)));
        if answer != Err(EALREADY) {
            return (state, answer);
        }
        drop(state);
        wait_for_users();
    }
}

/// Says why a file cannot be mapped, where no errno does.
fn said(errno: Errno) -> Errno {
    if errno == Errno::EBUSY {
        say(
            "cannot map a file of /dev/shm: another farpage run --shm keeps it; use it in one run \
             only",
        );
    }
    errno
}

impl Wanted {
    /// A mapping of the agent's own of `bytes` bytes from byte `start` on, both of pages.
    pub(super) fn window(object: &descriptors::Object, start: usize, bytes: usize) -> Self {
        Self {
            object: object.number,
            memory: object.memory,
            at: 0,
            bytes,
            prot: g::PROT_READ | g::PROT_WRITE,
            flags: g::MAP_SHARED,
            first: (start / PAGE_BYTES) as u64,
            writable: true,
        }
    }

    /// # Safety
    /// As the call that the program made.
    pub(super) unsafe fn map(&self, state: &mut Guard<'_, State>) -> Result<usize> {
        let length = self.bytes.checked_next_multiple_of(PAGE_BYTES);
        let length = length.filter(|length| *length > 0).ok_or(Errno::EINVAL)?;
        let fixed = self.flags & FIXED != 0;
        let end = self.at.checked_add(length).ok_or(Errno::ENOMEM)?;
        // Low addresses are where it is not seen what is done to memory, unless the filter is told.
        let is_low = !fixed && self.flags & mem::MAP_32BIT != 0;
        let (first, last) = if is_low { (0, 1) } else { (self.at, end) };
        if (fixed || is_low) && !is_seen(first, last) {
            say(
                "cannot map shared memory at a fixed address there in a program with a filter of its own; \
                 let the system choose it",
            );
            return Err(Errno::ENOMEM);
        }
        let uffd = state.ready()?;
        let shared = self.flags & g::MAP_TYPE != g::MAP_PRIVATE;
        let kind = if shared {
            g::MAP_SHARED
        } else {
            g::MAP_PRIVATE
        };
        let flags = self.flags & FIXED | kind | g::MAP_NORESERVE;
        let offset = self.first * PAGE_BYTES as u64;
        let at = if fixed {
            if self.flags & g::MAP_FIXED_NOREPLACE == 0 {
                cut(state, self.at, length);
            }
            // SAFETY: the program's own call, but that nothing there can be accessed yet.
            unsafe { memory::mmap(self.at, length, g::PROT_NONE, flags, self.memory, offset) }?
        } else if is_low {
            let flags = flags | mem::MAP_32BIT;
            // SAFETY: nothing that exists is touched.
            unsafe { mem::map(0, length, g::PROT_NONE, flags, self.memory, offset) }?
        } else {
            supervised::place(state.taken(), length, flags, self.memory, offset)?
        };
        let piece = Piece {
            object: self.object,
            start: at,
            end: at + length,
            first: self.first,
            prot: self.prot,
            shared,
            writable: self.writable,
            left_out: false,
        };
        // SAFETY: mapped just now.
        unsafe { begin(state, uffd, piece) }?;
        if self.flags & WILL_WAIT != 0 {
            populate(piece);
        }
        Ok(at)
    }
}

/// True where the filter sees what is done to memory, or is told to.
fn is_seen(start: usize, end: usize) -> bool {
    supervised::is_seen(start, end) || !sandbox::is_on() && later::see(Unseen::Memory).is_ok()
}

/// Registers a piece that was mapped without access, tells of it, and lets it be accessed.
///
/// # Safety
/// Nobody may use what lies there.
unsafe fn begin(state: &mut Guard<'_, State>, uffd: Uffd, piece: Piece) -> Result<()> {
    let (at, bytes) = (piece.start, piece.end - piece.start);
    // SAFETY: its faults are answered from now on.
    let begun = unsafe { uffd.register_all(at, bytes) };
    let begun = begun.and_then(|()| state.ask(piece.to_ask(), None));
    // SAFETY: nobody uses it yet.
    let begun = begun.and_then(|_| unsafe { mem::protect(at, bytes, piece.prot) });
    begun.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { mem::unmap(at, bytes) };
    })?;
    add(&mut state.pieces, piece);
    PIECES.store(state.pieces.len(), Ordering::Release);
    IS_USED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Adds a piece; those that go on in one another become one, as in Linux.
fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    let at = pieces.partition_point(|other| other.start < piece.start);
    pieces.insert(at, piece);
    let goes_on = |one: &Piece, next: &Piece| {
        let whole = Piece {
            end: next.end,
            ..*one
        };
        one.end == next.start && whole.part(next.start, next.end) == Some(*next)
    };
    for first in [at, at.wrapping_sub(1)] {
        if let Some(&[one, next]) = pieces
            .get(first..first.saturating_add(2))
            .and_then(|s| s.first_chunk())
            && goes_on(&one, &next)
        {
            pieces[first].end = next.end;
            pieces.remove(first + 1);
        }
    }
}

/// Brings a piece in. Without it pages come when they are touched.
fn populate(piece: Piece) {
    let how = match piece.prot & g::PROT_WRITE != 0 {
        true => g::MADV_POPULATE_WRITE,
        false => g::MADV_POPULATE_READ,
    };
    // SAFETY: the pages are the program's.
    let _ = unsafe { mem::advise(piece.start, piece.end - piece.start, how) };
}

/// True when this process has shared memory mapped.
pub(crate) fn are_mapped() -> bool {
    PIECES.load(Ordering::Acquire) != 0
}

/// Brings in the page of `at`, for Linux to write to, if that is shared memory.
pub(crate) fn bring_in(at: usize) {
    let is_it =
        |piece: &Piece| (piece.start..piece.end).contains(&at) && piece.prot & g::PROT_WRITE != 0;
    if are_mapped() && STATE.lock().pieces.iter().any(is_it) {
        // SAFETY: nothing of it changes.
        let _ = unsafe { mem::advise(at & !(PAGE_BYTES - 1), PAGE_BYTES, g::MADV_POPULATE_WRITE) };
    }
}

/// The program is about to unmap or replace `at .. at + bytes`.
pub(super) fn before_unmap(at: usize, bytes: usize) {
    if are_mapped() {
        cut(&mut STATE.lock(), at, bytes);
    }
}

/// The program has unmapped `at .. at + bytes`: threads that wait for a page there find out.
pub(crate) fn after_unmap(at: usize, bytes: usize) {
    if IS_USED.load(Ordering::Relaxed) {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        Uffd(start::descriptor(fds::SHM_UFFD)).wake(at, bytes);
    }
}

/// What of `at .. at + bytes` is shared memory is none any more: it is unmapped or replaced next.
pub(super) fn cut(state: &mut Guard<'_, State>, at: usize, bytes: usize) {
    let start = at & !(PAGE_BYTES - 1);
    let end = at.saturating_add(bytes).next_multiple_of(PAGE_BYTES);
    let gone = |piece: &Piece| piece.start < end && start < piece.end;
    if start >= end || !state.pieces.iter().any(gone) {
        return;
    }
    let ask = Ask {
        b: start as u64,
        d: (end - start) as u64,
        ..Ask::new(Kind::Unmap)
    };
    let _ = state.ask(ask, None);
    let keep = |piece: &Piece| [piece.part(0, start), piece.part(end, usize::MAX)];
    state.pieces = state.pieces.iter().flat_map(keep).flatten().collect();
    PIECES.store(state.pieces.len(), Ordering::Release);
    state.detach_within(start, end);
}

/// What of `at .. at + bytes` is shared memory.
fn within(pieces: &[Piece], at: usize, bytes: usize) -> Vec<Piece> {
    let start = at & !(PAGE_BYTES - 1);
    let end = at.saturating_add(bytes).next_multiple_of(PAGE_BYTES);
    let part = |piece: &Piece| piece.part(start, end);
    pieces.iter().filter_map(part).collect()
}

/// Notes a new protection; what it would forbid for ever is refused.
fn refuses_protection(at: usize, bytes: usize, prot: u32) -> Option<Result<usize>> {
    let mut state = STATE.lock();
    let changed = within(&state.pieces, at, bytes);
    if prot & g::PROT_WRITE != 0 && changed.iter().any(|piece| !piece.writable) {
        return Some(Err(Errno::EACCES));
    }
    for piece in changed {
        change(&mut state.pieces, Piece { prot, ..piece });
    }
    PIECES.store(state.pieces.len(), Ordering::Release);
    None
}

/// Children do not get this, a mapping of the agent's: they would have the open file by it, and what that has
/// locked, when its holder is gone.
pub(super) fn keep_from_children(state: &mut Guard<'_, State>, at: usize, bytes: usize) {
    // SAFETY: changes nothing in this process.
    if unsafe { mem::advise(at, bytes, g::MADV_DONTFORK) }.is_ok() {
        for piece in within(&state.pieces, at, bytes) {
            let left_out = true;
            change(&mut state.pieces, Piece { left_out, ..piece });
        }
    }
}

/// Notes what children do not get. Linux does it next.
fn leave_out(at: usize, bytes: usize, left_out: bool) {
    // Linux refuses it.
    if !at.is_multiple_of(PAGE_BYTES) {
        return;
    }
    let mut state = STATE.lock();
    for piece in within(&state.pieces, at, bytes) {
        change(&mut state.pieces, Piece { left_out, ..piece });
    }
    PIECES.store(state.pieces.len(), Ordering::Release);
}

/// What lies at the addresses of `piece` is this now.
fn change(pieces: &mut Vec<Piece>, piece: Piece) {
    let (start, end) = (piece.start, piece.end);
    let keep = |piece: &Piece| [piece.part(0, start), piece.part(end, usize::MAX)];
    *pieces = pieces.iter().flat_map(keep).flatten().collect();
    add(pieces, piece);
}

/// `MADV_REMOVE`: zeros from now on, for all.
fn remove(at: usize, bytes: usize) -> Option<Result<usize>> {
    let mut state = STATE.lock();
    let pieces = within(&state.pieces, at, bytes);
    if pieces.is_empty() {
        return None;
    }
    if pieces.iter().any(|piece| !piece.shared || !piece.writable) {
        return Some(Err(Errno::EINVAL));
    }
    if super::shm().is_some_and(Shm::is_cluster) {
        drop(state);
        let done = pieces.into_iter().try_for_each(zero);
        return Some(done.map(|()| 0));
    }
    for piece in pieces {
        let ask = Ask {
            a: piece.object,
            b: piece.first * PAGE_BYTES as u64,
            d: (piece.end - piece.start) as u64,
            ..Ask::new(Kind::Zero)
        };
        if let Err(errno) = state.ask(ask, None) {
            return Some(Err(errno));
        }
    }
    Some(Ok(0))
}

/// The file of an object has grown beyond `before` bytes: what this process has touched there raises
/// SIGBUS no longer. Nothing else was there.
pub(super) fn has_grown(object: u64, before: usize) {
    let first = before.div_ceil(PAGE_BYTES) as u64;
    let state = STATE.lock();
    let is_it = |piece: &&Piece| piece.object == object && piece.shared;
    for piece in state.pieces.iter().filter(is_it) {
        let skipped = first.saturating_sub(piece.first) as usize * PAGE_BYTES;
        let bytes = (piece.end - piece.start).saturating_sub(skipped);
        if bytes > 0 {
            // SAFETY: nothing of a shared file is lost.
            let _ = unsafe { mem::advise(piece.start + skipped, bytes, g::MADV_DONTNEED) };
        }
    }
}

/// Makes what a piece shows zeros, for all hosts.
fn zero(piece: Piece) -> Result<()> {
    let ask = Ask {
        a: piece.object,
        ..Ask::new(Kind::Object)
    };
    let (number, memory) = given(STATE.lock().ask(ask, None))?;
    let object = descriptors::Object::new(number, memory);
    let from = piece.first as usize * PAGE_BYTES;
    transfer::zero(&object, from, piece.end - piece.start)
}

/// # Safety
/// As the call that the program made.
unsafe fn remap(args: [usize; 6]) -> Option<Result<usize>> {
    let [at, old, new, flags, target, _] = args;
    let mut state = STATE.lock();
    let pieces = within(&state.pieces, at, old.max(1));
    if pieces.is_empty() {
        return None;
    }
    let move_ = Move {
        at,
        old: old.next_multiple_of(PAGE_BYTES),
        new: new.next_multiple_of(PAGE_BYTES),
        flags: flags as u32,
        target,
    };
    // SAFETY: forwarded.
    Some(unsafe { move_.make(&mut state, &pieces) })
}

/// `mremap` of shared memory: the same part, perhaps longer, is mapped elsewhere.
struct Move {
    at: usize,
    old: usize,
    new: usize,
    flags: u32,
    target: usize,
}

impl Move {
    /// # Safety
    /// As the call that the program made.
    unsafe fn make(&self, state: &mut Guard<'_, State>, pieces: &[Piece]) -> Result<usize> {
        let (at, old, new) = (self.at, self.old, self.new);
        let [piece] = pieces else {
            return Err(Errno::EFAULT);
        };
        let fixed = self.flags & g::MREMAP_FIXED != 0;
        let may_move = self.flags & g::MREMAP_MAYMOVE != 0;
        if new == 0 || !at.is_multiple_of(PAGE_BYTES) || fixed && !may_move {
            return Err(Errno::EINVAL);
        }
        if old != 0 && piece.end - piece.start < old {
            return Err(Errno::EFAULT);
        }
        if !fixed && old != 0 && new <= old {
            // SAFETY: the program's own call.
            unsafe { unmap(state, at + new, old - new) };
            return Ok(at);
        }
        if !piece.shared {
            say("a private mapping of shared memory can neither grow nor be moved");
            return Err(Errno::ENOMEM);
        }
        let memory = self.memory_of(state, piece.object)?;
        let wanted = |at: usize, bytes: usize, flags: u32, first: u64| Wanted {
            object: piece.object,
            memory,
            at,
            bytes,
            prot: piece.prot,
            flags: flags | g::MAP_SHARED,
            first,
            writable: piece.writable,
        };
        let made = match may_move {
            false => {
                let first = piece.first + (old / PAGE_BYTES) as u64;
                let more = wanted(at + old, new - old, g::MAP_FIXED_NOREPLACE, first);
                // SAFETY: nothing that exists is touched.
                unsafe { more.map(state) }
                    .map(|_| at)
                    .map_err(|_| Errno::ENOMEM)
            }
            true => {
                let (to, how) = if fixed {
                    (self.target, g::MAP_FIXED)
                } else {
                    (0, 0)
                };
                // SAFETY: forwarded.
                unsafe { wanted(to, new, how, piece.first).map(state) }
            }
        };
        file::close(memory);
        if may_move && made.is_ok() && self.flags & g::MREMAP_DONTUNMAP == 0 {
            // SAFETY: the program's own call.
            unsafe { unmap(state, at, old) };
        }
        made
    }

    fn memory_of(&self, state: &mut Guard<'_, State>, object: u64) -> Result<Fd> {
        let ask = Ask {
            a: object,
            ..Ask::new(Kind::Object)
        };
        Ok(given(state.ask(ask, None))?.1)
    }
}

/// # Safety
/// Nothing uses the range any more.
pub(super) unsafe fn unmap(state: &mut Guard<'_, State>, at: usize, bytes: usize) {
    if bytes > 0 {
        cut(state, at, bytes);
        // SAFETY: forwarded.
        let _ = unsafe { mem::unmap(at, bytes) };
        after_unmap(at, bytes);
    }
}
