//! What has been read of a descriptor and not been used: in a buffer, or mapped.
//!
//! The descriptor's offset is always the end of what is here, as it is with a stream that reads into
//! a buffer. So another process that shares the offset sees what it would see then.

use farpage_sys::buffer::Buffer;
use farpage_sys::file::{self, Fd};
use farpage_sys::guarded::{Guarded, OnLoss, prefetch};
use farpage_sys::{Errno, Result};

/// Read at first, and again after a move: who reads a little here and there wants no more.
const FIRST_BYTES: usize = 16 << 10;
/// Read at a time then.
pub const BUFFER_BYTES: usize = 64 << 10;
/// So much must have been read in order before a file is mapped. `docs/stdio.md` has the figures.
const MAP_AFTER_BYTES: u64 = 512 << 10;
/// Less than this is not worth a mapping.
const MAP_LEAST_BYTES: u64 = 256 << 10;
/// Mapped at a time: Linux maps large pages where the addresses allow it.
const CHUNK_BYTES: usize = 4 << 20;
const LARGE_PAGE: usize = 2 << 20;
/// Handed out at a time of what is mapped. The next as many bytes are on their way from memory to
/// the processor meanwhile.
const WINDOW_BYTES: usize = 1 << 10;
/// Where so many windows of a chunk had to be looked at for zeros, what follows is read: looking costs more
/// than the copy.
const DOUBTS_MAX: usize = CHUNK_BYTES / WINDOW_BYTES / 8;

/// Bytes to use: addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From here on they may be used again.
    pub base: usize,
    /// The next.
    pub at: usize,
    /// Behind the last.
    pub end: usize,
}

impl Window {
    /// None.
    pub const EMPTY: Self = Self {
        base: 0,
        at: 0,
        end: 0,
    };
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes.
    Window(Window),
    /// The end of the file, for now.
    End,
    /// The file was cut off meanwhile, below what counted as read.
    Lost,
}

/// How bytes will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// One by one, where they lie: mapping saves the copy.
    InPlace,
    /// Copied: reading is as fast.
    Copied,
    /// As [`Use::Copied`], and they must lie in the buffer.
    Owned,
}

/// A part of the mapped chunk that was copied to the buffer, since zeros might be no zeros of the
/// file's.
#[derive(Clone, Copy)]
struct Checked {
    from: usize,
    bytes: usize,
}

enum Kind {
    Empty,
    /// The buffer has this many bytes.
    Read(usize),
    /// Addresses in the mapped area.
    Mapped {
        start: usize,
        end: usize,
        checked: Option<Checked>,
    },
}

/// The bytes between the descriptor's offset and what was used.
pub struct Windows {
    buffer: Buffer,
    area: Option<Guarded>,
    /// It cannot be mapped.
    is_refused: bool,
    kind: Kind,
    /// The descriptor's offset, unless somebody else moved it.
    offset: u64,
    /// Bytes read in order.
    run: u64,
    /// Windows of this chunk that were copied because of zeros.
    doubts: usize,
    loss: Option<(usize, OnLoss)>,
}

impl Windows {
    /// Nothing read of a descriptor whose offset is `offset`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(offset: u64) -> Result<Self> {
        Ok(Self {
            buffer: Buffer::new(BUFFER_BYTES)?,
            area: None,
            is_refused: false,
            kind: Kind::Empty,
            offset,
            run: 0,
            doubts: 0,
            loss: None,
        })
    }

    /// Begins anew, with a descriptor whose offset is `offset`.
    pub fn restart(&mut self, offset: u64) {
        self.empty();
        (self.offset, self.run, self.is_refused) = (offset, 0, false);
    }

    /// Has `call` told at once when a mapped file is cut off.
    ///
    /// # Safety
    /// As for [`Guarded::tell`].
    #[allow(unsafe_code)]
    pub unsafe fn tell(&mut self, owner: usize, call: OnLoss) {
        self.loss = Some((owner, call));
        if let Some(area) = &self.area {
            // SAFETY: forwarded to the caller.
            unsafe { area.tell(owner, call) };
        }
    }

    /// What follows `at`, the end of the last window, or any address in it when the rest of it is
    /// to be looked at again.
    ///
    /// # Errors
    /// As `read(2)`, when nothing was read.
    pub fn next(&mut self, fd: Fd, at: usize, wanted: Use) -> Result<Next> {
        if let Kind::Mapped { end, .. } = self.kind {
            let at = self.in_area(at);
            if at < end {
                return Ok(match wanted {
                    Use::Owned => self.copy_checked(fd, at, end.min(at + BUFFER_BYTES)),
                    Use::InPlace | Use::Copied => self.window(fd, at),
                });
            }
        }
        self.fill(fd, wanted)
    }

    /// The bytes from `at` on, of a window that ends at `end`, as the file has them: for zeros that
    /// may be there because it was cut off. Where it is cut, all that follows in the page is zeros.
    pub fn check(&mut self, fd: Fd, at: usize, end: usize) -> Next {
        let buffer = self.buffer_at();
        let Kind::Mapped { start, checked, .. } = &self.kind else {
            let base = buffer;
            return Next::Window(Window { base, at, end });
        };
        let base = *start;
        if let Some(checked) = checked
            && (buffer..=buffer + checked.bytes).contains(&at)
        {
            let base = buffer;
            return Next::Window(Window { base, at, end });
        }
        let last = self.area.as_ref().map_or(0, |area| area.byte(end - 1));
        if last != 0 {
            return Next::Window(Window { base, at, end });
        }
        self.copy_checked(fd, at, end)
    }

    /// Whether a copy of bytes of this window, of which the last is `last`, needs a
    /// [check](Windows::check): who cuts a file off makes zeros of what follows in the page.
    pub fn is_suspicious(&self, last: u8) -> bool {
        last == 0 && matches!(self.kind, Kind::Mapped { .. })
    }

    /// Reads past everything here, of which nothing is left, into `into`.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read_past(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize> {
        self.empty();
        let got = file::read(fd, into)?;
        self.count(got);
        Ok(got)
    }

    /// Offset in the file of what is at `at`.
    pub fn position(&self, at: usize) -> u64 {
        self.offset - self.left(at) as u64
    }

    /// Bytes from `at` on.
    pub fn left(&self, at: usize) -> usize {
        match self.kind {
            Kind::Empty => 0,
            Kind::Read(bytes) => self.buffer_at() + bytes - at,
            Kind::Mapped { end, .. } => end - self.in_area(at),
        }
    }

    /// The window in which the byte at `offset` is, if it is here.
    pub fn find(&mut self, fd: Fd, offset: u64) -> Option<Window> {
        let start = self.offset - self.here() as u64;
        let ahead = usize::try_from(offset.checked_sub(start)?).ok()?;
        match self.kind {
            Kind::Empty => None,
            Kind::Read(bytes) => (ahead <= bytes).then(|| Window {
                base: self.buffer_at(),
                at: self.buffer_at() + ahead,
                end: self.buffer_at() + bytes,
            }),
            Kind::Mapped { start, end, .. } => {
                let is_here = ahead < end - start;
                match is_here.then(|| self.window(fd, start + ahead))? {
                    Next::Window(window) => Some(window),
                    Next::End | Next::Lost => None,
                }
            }
        }
    }

    /// Gives up what is here from `at` on: the descriptor's offset is then that of the next byte.
    ///
    /// # Errors
    /// As `lseek(2)`; nothing is here all the same.
    pub fn settle(&mut self, fd: Fd, at: usize) -> Result<()> {
        self.run = 0;
        self.give_back(fd, at)
    }

    /// The bytes of a window that are in the buffer; `None` when they are mapped.
    pub fn slice(&self, window: Window) -> Option<&[u8]> {
        let from = window.at.checked_sub(self.buffer_at())?;
        self.buffer.get(from..from + (window.end - window.at))
    }

    /// The byte at `at`, of a window.
    #[inline]
    pub fn byte(&self, at: usize) -> u8 {
        match self.buffer.get(at.wrapping_sub(self.buffer_at())) {
            Some(&byte) => byte,
            None => self.area.as_ref().map_or(0, |area| area.byte(at)),
        }
    }

    /// Copies bytes of a window.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        let end = at + into.len();
        match (self.slice(Window { base: at, at, end }), &self.area) {
            (Some(bytes), _) => into.copy_from_slice(bytes),
            (None, Some(area)) => area.copy_to(at, into),
            (None, None) => unreachable!("bytes that are nowhere"),
        }
    }

    fn give_back(&mut self, fd: Fd, at: usize) -> Result<()> {
        let left = self.left(at);
        self.empty();
        if left == 0 {
            return Ok(());
        }
        self.offset = file::move_offset(fd, -(left as i64))?;
        Ok(())
    }

    fn empty(&mut self) {
        if let Kind::Mapped { .. } = self.kind
            && let Some(area) = &mut self.area
            && area.clear().is_err()
        {
            self.area = None;
        }
        self.kind = Kind::Empty;
    }

    fn here(&self) -> usize {
        match self.kind {
            Kind::Empty => 0,
            Kind::Read(bytes) => bytes,
            Kind::Mapped { start, end, .. } => end - start,
        }
    }

    fn count(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        self.run += bytes as u64;
    }

    fn buffer_at(&self) -> usize {
        self.buffer.as_ptr().addr()
    }

    /// The address in the area of what may be in the buffer.
    fn in_area(&self, at: usize) -> usize {
        match self.kind {
            Kind::Mapped { start, end, .. } if (start..=end).contains(&at) => at,
            Kind::Mapped { checked, .. } => {
                let from = checked.map_or(at, |checked| checked.from);
                from + (at - self.buffer_at())
            }
            Kind::Empty | Kind::Read(_) => at,
        }
    }

    fn fill(&mut self, fd: Fd, wanted: Use) -> Result<Next> {
        if wanted == Use::InPlace
            && self.run >= MAP_AFTER_BYTES
            && !self.is_refused
            && let Some(next) = self.map(fd)
        {
            return Ok(next);
        }
        self.empty();
        let most = if self.run == 0 {
            FIRST_BYTES
        } else {
            BUFFER_BYTES
        };
        let got = file::read(fd, self.buffer.room(most))?;
        if got == 0 {
            // Of what was mapped before it is known that there was more.
            let is_cut = self.area.is_some()
                && file::status(fd).is_ok_and(|status| {
                    status.is_regular() && status.bytes < self.offset && self.run > 0
                });
            return Ok(if is_cut { Next::Lost } else { Next::End });
        }
        self.count(got);
        self.kind = Kind::Read(got);
        let at = self.buffer_at();
        Ok(Next::Window(Window {
            base: at,
            at,
            end: at + got,
        }))
    }

    /// Maps what follows the descriptor's offset, and moves that behind it. `None` when it is to be
    /// read.
    fn map(&mut self, fd: Fd) -> Option<Next> {
        let size = file::status(fd)
            .ok()
            .filter(file::Status::is_regular)?
            .bytes;
        let ahead = size.checked_sub(self.offset)?;
        if ahead < MAP_LEAST_BYTES {
            return None;
        }
        let inside = (self.offset % LARGE_PAGE as u64) as usize;
        let bytes = ahead.min((CHUNK_BYTES - inside) as u64) as usize;
        if self
            .map_at(fd, self.offset - inside as u64, inside + bytes)
            .is_err()
        {
            self.is_refused = true;
            self.kind = Kind::Empty;
            return None;
        }
        let area = self.area.as_ref()?;
        let start = area.address() + inside;
        let moved = file::move_offset(fd, bytes as i64).ok()?;
        if moved != self.offset + bytes as u64 || area.populate(start, bytes).is_err() {
            // Somebody else moves the same offset, or has cut the file off: reading tells.
            self.offset = file::move_offset(fd, -(bytes as i64)).ok()?;
            self.kind = Kind::Empty;
            return None;
        }
        let more = (ahead - bytes as u64).min(CHUNK_BYTES as u64);
        if more > 0 {
            file::read_ahead(fd, moved, more);
        }
        self.count(bytes);
        self.doubts = 0;
        self.kind = Kind::Mapped {
            start,
            end: start + bytes,
            checked: None,
        };
        Some(self.window(fd, start))
    }

    fn map_at(&mut self, fd: Fd, offset: u64, bytes: usize) -> Result<()> {
        if self.area.is_none() {
            let area = Guarded::reserve(CHUNK_BYTES, LARGE_PAGE)?;
            if let Some((owner, call)) = self.loss {
                // SAFETY: who called `tell` has promised it.
                #[allow(unsafe_code)]
                unsafe {
                    area.tell(owner, call);
                }
            }
            self.area = Some(area);
        }
        let area = self.area.as_mut().ok_or(Errno::ENOMEM)?;
        area.map(fd, offset, bytes, false)
    }

    /// The window from `at` on, which is mapped.
    fn window(&mut self, fd: Fd, at: usize) -> Next {
        let (Kind::Mapped { start, end, .. }, Some(area)) = (&self.kind, &self.area) else {
            unreachable!("a window of what is not mapped");
        };
        let (base, last) = (*start, *end);
        let end = ((at + 1).next_multiple_of(WINDOW_BYTES)).min(last);
        if area.byte(end - 1) == 0 {
            return self.copy_checked(fd, at, end);
        }
        prefetch(end, WINDOW_BYTES.min(last - end));
        Next::Window(Window { base, at, end })
    }

    /// Copies what may have been cut off, and looks at the size afterwards: what the file then had
    /// is right.
    fn copy_checked(&mut self, fd: Fd, at: usize, end: usize) -> Next {
        let Some(area) = &self.area else {
            unreachable!("a window of what is not mapped");
        };
        let bytes = end - at;
        self.doubts += 1;
        self.is_refused |= self.doubts > DOUBTS_MAX;
        area.copy_to(at, self.buffer.room(bytes));
        let size = file::status(fd).map_or(0, |status| status.bytes);
        let valid = size.saturating_sub(self.position(at)).min(bytes as u64) as usize;
        let valid = area
            .lost()
            .map_or(valid, |lost| valid.min(lost.saturating_sub(at)));
        if valid == 0 {
            return Next::Lost;
        }
        let buffer = self.buffer_at();
        if let Kind::Mapped { checked, .. } = &mut self.kind {
            *checked = Some(Checked { from: at, bytes });
        }
        Next::Window(Window {
            base: buffer,
            at: buffer,
            end: buffer + valid,
        })
    }
}
