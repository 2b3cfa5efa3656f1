//! Memory that transfers go to and come from, and how its pages go away.

use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general::MADV_REMOVE;
use farpage_sys::mem;

use super::Random;

/// Of mremap.
const MAY_MOVE: u32 = 1;
const FIXED: u32 = 2;

/// Where children of fork find memory to write to: held while some of it is not there.
pub(crate) type Layout = Mutex<Vec<(usize, usize)>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Private,
    /// Private, of large pages where Linux has some.
    Huge,
    Shared,
}

/// How pages go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Discarded,
    Freed,
    Unmapped,
    MappedOver,
    Moved,
    /// By a mapping of shared memory.
    Removed,
    /// By its descriptor: who has registered it has to be told.
    Punched,
}

pub(crate) struct Area<'a> {
    pub(crate) at: usize,
    bytes: usize,
    kind: Kind,
    /// Of what is shared.
    file: Fd,
    layout: &'a Layout,
}

impl<'a> Area<'a> {
    pub(crate) fn new(kind: Kind, bytes: usize, layout: &'a Layout) -> Self {
        let file = match kind {
            Kind::Private | Kind::Huge => Fd(-1),
            Kind::Shared => {
                let file = file::memfd(c"transfers", 0).expect("a memory file");
                file::set_size(file, bytes as u64).expect("it grows");
                file
            }
        };
        let mut new = Self {
            at: 0,
            bytes,
            kind,
            file,
            layout,
        };
        new.renew(&mut held(layout));
        new
    }

    /// Somewhere else, all of it.
    fn renew(&mut self, layout: &mut Vec<(usize, usize)>) {
        layout.retain(|(at, _)| *at != self.at);
        self.at = self.map(0, 0, self.bytes, 0).expect("memory");
        if self.kind != Kind::Shared {
            layout.push((self.at, self.bytes));
        }
    }

    fn map(&self, at: usize, offset: usize, bytes: usize, flags: u32) -> Option<usize> {
        let access = mem::PROT_READ | mem::PROT_WRITE;
        let flags = flags
            | match self.kind {
                Kind::Private | Kind::Huge => mem::MAP_PRIVATE | mem::MAP_ANONYMOUS,
                Kind::Shared => mem::MAP_SHARED,
            };
        let offset = if self.kind == Kind::Shared { offset } else { 0 };
        // SAFETY: where nothing is, or over this area's own memory, which is not in use.
        let at = unsafe { mem::map(at, bytes, access, flags, self.file, offset as u64) }.ok()?;
        if self.kind == Kind::Huge {
            // SAFETY: changes no contents.
            let _ = unsafe { mem::advise(at, bytes, mem::MADV_HUGEPAGE) };
        }
        Some(at)
    }

    pub(crate) fn any_loss(&self, random: &mut Random) -> Loss {
        use Loss::{Discarded, Freed, MappedOver, Moved, Punched, Removed, Unmapped};
        match self.kind {
            Kind::Private | Kind::Huge => {
                *random.of(&[Discarded, Freed, Unmapped, MappedOver, Moved])
            }
            Kind::Shared => *random.of(&[Discarded, Unmapped, MappedOver, Moved, Removed, Punched]),
        }
    }

    /// Has pages go away and others be there. Nothing is locked of them.
    pub(crate) fn loses(&mut self, loss: Loss, from: usize, bytes: usize) {
        let at = self.at + from;
        let advice = |advice: u32| {
            // SAFETY: this area's memory, whose contents nobody wants.
            unsafe { mem::advise(at, bytes, advice) }.expect("advice is taken");
        };
        match loss {
            Loss::Discarded => advice(mem::MADV_DONTNEED),
            Loss::Freed => advice(mem::MADV_FREE),
            Loss::Removed => advice(MADV_REMOVE),
            Loss::Punched => file::punch(self.file, from as u64, bytes as u64).expect("a hole"),
            Loss::MappedOver => {
                self.map(at, from, bytes, mem::MAP_FIXED).expect("memory");
            }
            Loss::Unmapped | Loss::Moved => self.goes_and_comes(loss, from, bytes),
        }
    }

    fn goes_and_comes(&mut self, loss: Loss, from: usize, bytes: usize) {
        let (at, layout) = (self.at + from, self.layout);
        let mut layout = held(layout);
        if loss == Loss::Moved {
            let to = mem::map_anonymous(bytes).expect("memory");
            // SAFETY: mapped above, and this area's own memory, which is not in use.
            let moved = unsafe { mem::remap(at, bytes, bytes, MAY_MOVE | FIXED, to) };
            unmap(to, bytes);
            if moved.is_err() {
                // Linux moves no more than one mapping at once.
                unmap(at, bytes);
            }
        } else {
            unmap(at, bytes);
        }
        if self
            .map(at, from, bytes, mem::MAP_FIXED_NOREPLACE)
            .is_none()
        {
            // Another thread was given the addresses.
            unmap(self.at, from);
            unmap(at + bytes, self.bytes - from - bytes);
            self.renew(&mut layout);
        }
    }
}

impl Drop for Area<'_> {
    fn drop(&mut self) {
        let mut layout = held(self.layout);
        layout.retain(|(at, _)| *at != self.at);
        unmap(self.at, self.bytes);
        if self.kind == Kind::Shared {
            file::close(self.file);
        }
    }
}

/// A thread that panicked while it had it is told of at its end.
pub(crate) fn held(layout: &Layout) -> MutexGuard<'_, Vec<(usize, usize)>> {
    layout.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unmap(at: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: an area's own memory, which is not in use.
        unsafe { mem::unmap(at, bytes) }.expect("it was mapped");
    }
}
