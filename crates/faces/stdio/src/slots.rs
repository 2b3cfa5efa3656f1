//! What is known of streams, found by their address without a lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use farpage_mapio::{Map, Window, Windows};

use crate::file::File;

/// What is known of one stream. Whoever uses it has the stream locked.
pub struct Slot {
    /// Made when it is first lent.
    pub windows: Option<Windows>,
    /// What was lent last.
    pub window: Window,
    pub is_lent: bool,
    /// It is glibc's alone from now on.
    pub is_refused: bool,
    pub map: Option<Map>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            windows: None,
            window: Window::EMPTY,
            is_lent: false,
            is_refused: false,
            map: None,
        }
    }
}

/// Streams with the same few places: their keys are one line of the processor's cache.
#[repr(align(64))]
struct Keys([AtomicUsize; 8]);

const SETS: usize = 128;
static KEYS: [Keys; SETS] = [const { Keys([const { AtomicUsize::new(0) }; 8]) }; SETS];
static SLOTS: [[AtomicPtr<Slot>; 8]; SETS] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; 8] }; SETS];

/// How many streams have a slot. `forward` looks at it before anything else.
pub static COUNT: AtomicU32 = AtomicU32::new(0);

/// Slots of streams that are closed: their buffers are used again.
static FREE: [AtomicPtr<Slot>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];

fn set_of(file: *const File) -> usize {
    // Streams are blocks of malloc: multiples of 16.
    let number = file.addr() >> 4;
    (number ^ number >> 7 ^ number >> 14) % SETS
}

fn place_of(file: *const File) -> Option<(usize, usize)> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let set = set_of(file);
    let keys = &KEYS[set].0;
    let at = keys
        .iter()
        .position(|key| key.load(Ordering::Acquire) == file.addr())?;
    Some((set, at))
}

/// The slot of a stream, if it has one.
pub fn find(file: *const File) -> Option<*mut Slot> {
    let (set, at) = place_of(file)?;
    Some(SLOTS[set][at].load(Ordering::Acquire))
}

/// The slot of a stream, made if there is room.
pub fn make(file: *const File) -> Option<*mut Slot> {
    if let Some(slot) = find(file) {
        return Some(slot);
    }
    let set = set_of(file);
    for (key, slot) in KEYS[set].0.iter().zip(&SLOTS[set]) {
        /// No stream's address.
        const TAKEN: usize = 1;
        let taken = key.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            continue;
        }
        let made = reuse();
        slot.store(made, Ordering::Release);
        key.store(file.addr(), Ordering::Release);
        COUNT.fetch_add(1, Ordering::Relaxed);
        return Some(made);
    }
    None
}

/// Forgets a stream that is about to be closed; nothing of it is lent.
pub fn forget(file: *const File) {
    let Some((set, at)) = place_of(file) else {
        return;
    };
    let slot = SLOTS[set][at].swap(ptr::null_mut(), Ordering::AcqRel);
    KEYS[set].0[at].store(0, Ordering::Release);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: made by `reuse`, and no longer in the table; the stream's user is the only one.
    let mut slot = unsafe { Box::from_raw(slot) };
    let windows = slot.windows.take();
    *slot = Slot::new();
    slot.windows = windows;
    let mut slot = Box::into_raw(slot);
    for free in &FREE {
        slot = free.swap(slot, Ordering::AcqRel);
        if slot.is_null() {
            return;
        }
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(slot) });
}

fn reuse() -> *mut Slot {
    let found = FREE
        .iter()
        .map(|free| free.swap(ptr::null_mut(), Ordering::AcqRel));
    let found = found.into_iter().find(|slot| !slot.is_null());
    found.unwrap_or_else(|| Box::into_raw(Box::new(Slot::new())))
}

/// Every stream that has a slot.
pub fn all() -> impl Iterator<Item = *mut File> {
    let keys = KEYS.iter().flat_map(|keys| &keys.0);
    keys.filter_map(|key| {
        let address = key.load(Ordering::Acquire);
        (address > 1).then(|| ptr::with_exposed_provenance_mut(address))
    })
}
