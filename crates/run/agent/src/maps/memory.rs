//! Mapped files in memory: mapping, protecting, forking.
//!
//! Their pieces are listed in the control block, where the supervisor finds them when it reads the
//! faults of this task's userfaultfd for them. A piece is listed and registered before it can be
//! accessed, and wherever it is not registered it is not there: Linux would make pages of zeros.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::maps::{Maps, PieceOf, Word};
use farpage_object::{PAGE_BYTES, fds};
use farpage_sys::file::Fd;
use farpage_sys::futex::{self, Guard, Mutex};
use farpage_sys::linux::general as g;
use farpage_sys::uffd::{self, Uffd, features};
use farpage_sys::{Errno, Result, mem, process, socket};

use super::paths::mapped;
use super::{file_of, maps, say, size_of_file};
use crate::{memory, own_threads, start, supervised};

/// Time between two looks whether pages are still being taken out.
const TAKING_OUT_NS: u64 = 100_000;
const FIXED: u32 = g::MAP_FIXED | g::MAP_FIXED_NOREPLACE;
const WILL_WAIT: u32 = g::MAP_POPULATE | g::MAP_LOCKED;

struct State {
    /// The userfaultfd is open, and the supervisor has it.
    ready: bool,
    /// What a forked child gets.
    pieces: Vec<PieceOf>,
}

static STATE: Mutex<State> = Mutex::new(State {
    ready: false,
    pieces: Vec::new(),
});

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(maps: &Maps, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [at, bytes, c, d, e, offset] = args;
    let slot = start::slot();
    match number {
        g::__NR_mmap if d as u32 & g::MAP_ANONYMOUS == 0 => {
            let wanted = Wanted {
                file: file_of(maps, e)?,
                at,
                bytes,
                prot: c as u32,
                flags: d as u32,
                offset,
            };
            // SAFETY: forwarded.
            Some(unsafe { wanted.map(maps) })
        }
        g::__NR_mprotect | g::__NR_pkey_mprotect if refuses_protection(at, bytes, c as u32) => {
            Some(Err(Errno::EACCES))
        }
        g::__NR_madvise => {
            let pieces = within(maps, slot?, at, bytes);
            match c as u32 {
                _ if pieces.is_empty() => None,
                g::MADV_REMOVE => Some(Err(Errno::EACCES)),
                g::MADV_WILLNEED => {
                    pieces.iter().for_each(soon);
                    Some(Ok(0))
                }
                _ => None,
            }
        }
        g::__NR_mremap => {
            let pieces = within(maps, slot?, at, bytes.max(1));
            // SAFETY: forwarded.
            (!pieces.is_empty()).then(|| unsafe { remap(maps, &pieces, args) })
        }
        _ => None,
    }
}

/// The program's `mmap`.
struct Wanted {
    file: usize,
    at: usize,
    bytes: usize,
    prot: u32,
    flags: u32,
    offset: usize,
}

impl Wanted {
    /// # Safety
    /// As the call that the program made.
    unsafe fn map(&self, maps: &Maps) -> Result<usize> {
        let length = self.bytes.checked_next_multiple_of(PAGE_BYTES);
        let length = length.filter(|length| *length > 0).ok_or(Errno::EINVAL)?;
        if !self.offset.is_multiple_of(PAGE_BYTES) {
            return Err(Errno::EINVAL);
        }
        let shared = self.flags & g::MAP_TYPE != g::MAP_PRIVATE;
        if shared && self.prot & g::PROT_WRITE != 0 {
            return Err(Errno::EACCES);
        }
        let slot = start::slot().ok_or_else(|| {
            say("cannot map a file of --map here: the process is in another namespace of ids");
            Errno::ENODEV
        })?;
        let fixed = self.flags & FIXED != 0;
        let end = self.at.checked_add(length).ok_or(Errno::ENOMEM)?;
        if fixed && !supervised::is_seen(self.at, end) {
            say("cannot map a file of --map at a fixed address there; let the system choose it");
            return Err(Errno::ENOMEM);
        }
        let mut state = STATE.lock();
        let uffd = ready(&mut state, slot)?;
        let kind = if shared {
            g::MAP_SHARED
        } else {
            g::MAP_PRIVATE
        };
        let kept = self.flags & !(g::MAP_TYPE | WILL_WAIT | g::MAP_SYNC) | kind | g::MAP_NORESERVE;
        let (fd, offset) = (mapped(self.file), self.offset as u64);
        let at = if fixed {
            // SAFETY: the program's own call, but that nothing there can be accessed yet.
            let at = unsafe { memory::mmap(self.at, length, g::PROT_NONE, kept, fd, offset) }?;
            maps.remove(slot, at as u64, (at + length) as u64);
            at
        } else {
            place(maps, slot, length, kept, fd, offset)?
        };
        let piece = PieceOf {
            file: self.file,
            shared,
            reading: false,
            start: at as u64,
            end: (at + length) as u64,
            first: (self.offset / PAGE_BYTES) as u64,
        };
        // SAFETY: mapped just now.
        unsafe { begin(maps, uffd, slot, piece, self.prot) }?;
        drop(state);
        if self.flags & WILL_WAIT != 0 {
            soon(&piece);
        }
        Ok(at)
    }
}

/// Lists and registers a piece that was mapped without access, and lets it be accessed.
///
/// # Safety
/// Nobody may use what lies there.
unsafe fn begin(maps: &Maps, uffd: Uffd, slot: usize, piece: PieceOf, prot: u32) -> Result<()> {
    let (at, bytes) = (piece.start as usize, (piece.end - piece.start) as usize);
    let begun = match maps.add(slot, piece) {
        // SAFETY: its faults are answered from now on.
        true => unsafe { uffd.register_missing(at, bytes) },
        false => Err(Errno::ENOMEM),
    };
    // SAFETY: nobody uses it yet.
    let begun = begun.and_then(|()| unsafe { mem::protect(at, bytes, prot) });
    begun.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { mem::unmap(at, bytes) };
        maps.remove(slot, piece.start, piece.end);
    })
}

/// Lists and registers what Linux mapped when it executed the program, which has not run yet.
pub(super) fn adopt(maps: &Maps, pieces: &[PieceOf]) -> Result<()> {
    let slot = start::slot().ok_or(Errno::ENODEV)?;
    let mut state = STATE.lock();
    let uffd = ready(&mut state, slot)?;
    for piece in pieces {
        if !maps.add(slot, *piece) {
            return Err(Errno::ENOMEM);
        }
        let (at, bytes) = (piece.start as usize, (piece.end - piece.start) as usize);
        // SAFETY: its faults are answered from now on.
        unsafe { uffd.register_missing(at, bytes) }?;
    }
    Ok(())
}

/// Maps `bytes` of a file without access, at the lowest place that is free.
fn place(maps: &Maps, slot: usize, bytes: usize, flags: u32, fd: Fd, offset: u64) -> Result<usize> {
    let mut taken: Vec<(usize, usize)> = maps
        .pieces_of(slot)
        .map(|(_, piece)| (piece.start as usize, piece.end as usize))
        .collect();
    taken.sort_unstable();
    supervised::place(taken.into_iter(), bytes, flags, fd, offset)
}

/// Maps a whole file for the agent to read from; `publish` is told where, with the lock held.
pub(super) fn map_for_reading(maps: &Maps, file: usize, publish: impl FnOnce(usize)) -> Result<()> {
    let slot = start::slot().ok_or(Errno::ENODEV)?;
    let mut state = STATE.lock();
    let all = maps.pieces_of(slot);
    let mut readings = all.filter(|(_, piece)| piece.reading && piece.file == file);
    if let Some((_, piece)) = readings.next() {
        publish(piece.start as usize);
        return Ok(());
    }
    if start::is_visitor() {
        // The userfaultfd would be this process's, and the memory is another's.
        return Err(Errno::EAGAIN);
    }
    let uffd = ready(&mut state, slot)?;
    let bytes = (size_of_file(maps, file) as usize).next_multiple_of(PAGE_BYTES);
    let flags = g::MAP_PRIVATE | g::MAP_NORESERVE;
    let at = place(maps, slot, bytes, flags, mapped(file), 0)?;
    let piece = PieceOf {
        file,
        shared: false,
        reading: true,
        start: at as u64,
        end: (at + bytes) as u64,
        first: 0,
    };
    // SAFETY: mapped just now.
    unsafe { begin(maps, uffd, slot, piece, g::PROT_READ) }?;
    publish(at);
    Ok(())
}

/// Opens this task's userfaultfd for mapped files and hands it to the supervisor.
fn ready(state: &mut Guard<'_, State>, slot: usize) -> Result<Uffd> {
    let at = start::descriptor(fds::MAPS_UFFD);
    if state.ready {
        return Ok(Uffd(at));
    }
    if start::is_visitor() {
        return Err(Errno::EAGAIN);
    }
    supervised::open_userfaultfd(at, |device| Ok(uffd::offered(device)? & features::POISON))?;
    let word = Word {
        kind: Word::FAULTS,
        which: slot as u64,
        first: 0,
        pages: 0,
    };
    let supervisor = start::descriptor(fds::MAPS);
    if socket::send(supervisor, &word.to_bytes(), Some(at)).is_err() {
        die_without_supervisor();
    }
    // SAFETY: the guard uses nothing of libc; all signals are blocked in the handler.
    unsafe { own_threads::spawn(guard, 0) }?;
    state.ready = true;
    Ok(Uffd(at))
}

/// Watches for the end of the supervisor.
extern "C" fn guard(_: usize) -> ! {
    supervised::watch(die_without_supervisor)
}

fn die_without_supervisor() -> ! {
    supervised::die("a file of --map, and farpage run, which brings its pages, has ended")
}

/// Has the supervisor bring a piece in, while the program goes on.
fn soon(piece: &PieceOf) {
    let word = Word {
        kind: Word::SOON,
        which: piece.file as u64,
        first: piece.first,
        pages: (piece.end - piece.start) / PAGE_BYTES as u64,
    };
    // Advice: without it pages come when they are touched.
    let _ = socket::send(start::descriptor(fds::MAPS), &word.to_bytes(), None);
}

/// What of `at .. at + bytes` is mapped files.
fn within(maps: &Maps, slot: usize, at: usize, bytes: usize) -> Vec<PieceOf> {
    let (from, to) = (at as u64, at.saturating_add(bytes) as u64);
    let cut = |piece: PieceOf| {
        let start = piece.start.max(from & !(PAGE_BYTES as u64 - 1));
        let end = piece.end.min(to.next_multiple_of(PAGE_BYTES as u64));
        (start < end).then(|| PieceOf {
            start,
            end,
            first: piece.first + (start - piece.start) / PAGE_BYTES as u64,
            ..piece
        })
    };
    let all = maps.pieces_of(slot);
    all.filter_map(|(_, piece)| cut(piece)).collect()
}

/// True when `prot` may not be given to `at .. at + bytes`: a mapped file would be written to.
fn refuses_protection(at: usize, bytes: usize, prot: u32) -> bool {
    let (Some(maps), Some(slot)) = (maps(), start::slot()) else {
        return false;
    };
    prot & g::PROT_WRITE != 0
        && within(maps, slot, at, bytes)
            .iter()
            .any(|piece| piece.shared)
}

/// The program has unmapped or replaced `at .. at + bytes`.
pub(crate) fn forget(at: usize, bytes: usize) {
    let (Some(maps), Some(slot)) = (maps(), start::slot()) else {
        return;
    };
    let end = at.saturating_add(bytes).next_multiple_of(PAGE_BYTES);
    let _state = STATE.lock();
    maps.remove(slot, at as u64, end as u64);
}

/// `mremap` of a mapped file: smaller, or shared and larger elsewhere.
///
/// # Safety
/// As the call that the program made.
unsafe fn remap(maps: &Maps, pieces: &[PieceOf], args: [usize; 6]) -> Result<usize> {
    let [at, old, new, flags, ..] = args;
    let [piece] = pieces else {
        return Err(Errno::EFAULT);
    };
    let (old, new) = (
        old.next_multiple_of(PAGE_BYTES),
        new.checked_next_multiple_of(PAGE_BYTES)
            .ok_or(Errno::ENOMEM)?,
    );
    let whole = piece.start == at as u64 && piece.end == (at + old) as u64;
    if old == 0 || new == 0 || !whole {
        return Err(Errno::EINVAL);
    }
    let flags = flags as u32;
    if flags & !g::MREMAP_MAYMOVE != 0 || new > old && !(piece.shared && flags != 0) {
        say("a private mapping of a file of --map cannot grow, and none be moved to an address");
        return Err(Errno::ENOMEM);
    }
    let gone = match new.cmp(&old) {
        core::cmp::Ordering::Equal => return Ok(at),
        core::cmp::Ordering::Less => (at, at + new, old - new),
        core::cmp::Ordering::Greater => {
            let wanted = Wanted {
                file: piece.file,
                at: 0,
                bytes: new,
                prot: g::PROT_READ,
                flags: g::MAP_SHARED,
                offset: piece.first as usize * PAGE_BYTES,
            };
            // SAFETY: forwarded; it lies elsewhere.
            (unsafe { wanted.map(maps) }?, at, old)
        }
    };
    let (result, from, bytes) = gone;
    // SAFETY: forwarded.
    unsafe { memory::munmap(from, bytes) }?;
    forget(from, bytes);
    Ok(result)
}

/// True when this task has a mapped file in its memory.
pub(crate) fn are_mapped() -> bool {
    let slot = start::slot();
    maps().is_some_and(|maps| slot.is_some_and(|slot| maps.pieces_of(slot).next().is_some()))
}

/// Ends what this thread holds.
pub(crate) fn release() {
    if let (Some(maps), Some(slot)) = (maps(), start::slot()) {
        maps.release(slot, Some(process::thread_id()));
    }
}

/// Brings in what of `at .. at + bytes` is mapped files, for Linux to access, and holds it until
/// [`release`]. Only in the user-mode-only tier. True when any of it is.
pub(crate) fn hold(at: usize, bytes: usize) -> bool {
    let (Some(maps), Some(slot)) = (maps(), start::slot()) else {
        return false;
    };
    let pieces = within(maps, slot, at, bytes);
    for piece in &pieces {
        let size = size_of_file(maps, piece.file).next_multiple_of(PAGE_BYTES as u64);
        let there = size.saturating_sub(piece.first * PAGE_BYTES as u64);
        let end = piece.end.min(piece.start + there);
        let last = piece.first + end.saturating_sub(piece.start) / PAGE_BYTES as u64;
        // Without a place for it the call may fail, which is no worse than without this.
        maps.hold(slot, process::thread_id(), piece.file, piece.first, last);
        loop {
            let seen = maps.taking_out.load(Ordering::SeqCst);
            if seen.is_multiple_of(2) {
                break;
            }
            futex::wait(&maps.taking_out, seen, Some(TAKING_OUT_NS));
        }
        for page in (piece.start..end).step_by(PAGE_BYTES) {
            let byte = core::ptr::with_exposed_provenance::<u8>(page as usize);
            // SAFETY: a piece that the program may not read ends it, as its own access would.
            unsafe { byte.read_volatile() };
        }
    }
    !pieces.is_empty()
}

/// Nothing of this changes until [`after_fork_in_parent`] or [`after_fork_in_child`].
pub(crate) fn before_fork() {
    let (Some(maps), Some(slot)) = (maps(), start::slot()) else {
        return;
    };
    let mut state = STATE.lock();
    state.pieces = maps.pieces_of(slot).map(|(_, piece)| piece).collect();
    core::mem::forget(state);
}

/// # Safety
/// Only after [`before_fork`] on this thread.
pub(crate) unsafe fn after_fork_in_parent() {
    // SAFETY: forwarded.
    unsafe { STATE.reset() };
}

/// The child has the memory, and none of it registered.
///
/// # Safety
/// Only after [`before_fork`] in the parent, before the child does anything else.
pub(crate) unsafe fn after_fork_in_child(slot: usize) {
    // SAFETY: forwarded.
    unsafe { STATE.reset() };
    let Some(maps) = maps() else { return };
    let mut state = STATE.lock();
    let pieces = core::mem::take(&mut state.pieces);
    if core::mem::replace(&mut state.ready, false) {
        start::put_back(fds::MAPS_UFFD);
    }
    if pieces.is_empty() {
        return;
    }
    let Ok(uffd) = ready(&mut state, slot) else {
        say(&alloc::format!(
            "process {} is killed: a forked process cannot open userfaultfd for the files that it \
             has mapped",
            start::process_id()
        ));
        process::die()
    };
    for piece in pieces {
        let (at, bytes) = (piece.start as usize, (piece.end - piece.start) as usize);
        // SAFETY: its faults are answered from now on.
        let registered =
            maps.add(slot, piece) && unsafe { uffd.register_missing(at, bytes) }.is_ok();
        if !registered {
            // The program has left it out of the child, or it would read zeros.
            // SAFETY: what is there cannot be used.
            let _ = unsafe { mem::unmap(at, bytes) };
            maps.remove(slot, piece.start, piece.end);
        }
    }
}
