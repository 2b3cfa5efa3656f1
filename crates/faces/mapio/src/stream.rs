//! A buffered file: `Read`, `BufRead`, `Seek`, `Write`.

use std::fs::File;
use std::io::{self, BufRead, Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use farpage_sys::file::Fd;

use crate::map::{Map, error};
use crate::mode::Mode;
use crate::windows::{BUFFER_BYTES, Next, Use, Window, Windows};

/// What Linux says of what has no offset.
const ESPIPE: i32 = 29;
/// Copies of this size and more are Linux's own.
const DIRECT_BYTES: usize = 32 << 10;

/// A file that is read, written, appended to or updated through a buffer.
///
/// Reading and writing may alternate as one likes: what is written is flushed before anything is
/// read, and what was read ahead is given back before anything is written. Of a pipe, a terminal or a
/// socket it stays, to be read afterwards; they cannot seek.
///
/// A file that somebody else cuts off meanwhile ends early, with an error of the kind
/// `UnexpectedEof`; what was returned before it is the file's.
///
/// ```
/// use std::io::{BufRead, Write};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("lines");
/// let mut stream = farpage_mapio::Stream::open(&path, "w+")?;
/// writeln!(stream, "one\ntwo")?;
/// std::io::Seek::rewind(&mut stream)?;
/// let lines: Vec<String> = stream.lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stream {
    file: File,
    mode: Mode,
    /// Its descriptor has an offset.
    is_seekable: bool,
    windows: Windows,
    window: Window,
    /// Written, and not yet by Linux.
    written: Vec<u8>,
    map: Option<Arc<Map>>,
}

impl Stream {
    /// Opens `path` with a mode of `fopen`: `r`, `w`, `a`, each perhaps with `+`, `x`, `b`, `e`.
    ///
    /// # Errors
    /// As `open(2)`; `InvalidInput` when it is no mode.
    pub fn open(path: impl AsRef<Path>, mode: &str) -> io::Result<Self> {
        let mode = Mode::parse(mode)?;
        Self::from_file(mode.open(path.as_ref())?, mode)
    }

    /// The same of a file that is open, from where it is.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn from_file(file: File, mode: Mode) -> io::Result<Self> {
        let offset = (&file).stream_position();
        Ok(Self {
            is_seekable: offset.is_ok(),
            windows: Windows::new(offset.unwrap_or(0)).map_err(error)?,
            window: Window::EMPTY,
            written: Vec::new(),
            map: None,
            file,
            mode,
        })
    }

    /// What it may do.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What can be read without asking Linux, if it is in the buffer.
    pub fn buffered(&self) -> &[u8] {
        self.windows.slice(self.window).unwrap_or_default()
    }

    /// The next byte; `None` at the end of the file.
    ///
    /// # Errors
    /// As for reading.
    #[inline]
    pub fn read_byte(&mut self) -> io::Result<Option<u8>> {
        if self.window.at < self.window.end {
            let byte = self.windows.byte(self.window.at);
            if byte != 0 {
                self.window.at += 1;
                return Ok(Some(byte));
            }
        }
        self.read_byte_slowly()
    }

    /// Maps the whole file, as the paper's `fmap` does: to be read `bytes` at most, to be written
    /// `bytes` at least, and the file grows; something suitable when it is 0. It may be mapped again
    /// with more.
    ///
    /// From then on nothing is kept back in a buffer: what is read is what the map has, and what is
    /// written is in it. Writing and moving beyond its end are errors.
    ///
    /// # Errors
    /// As [`Map::new`].
    pub fn map(&mut self, bytes: usize) -> io::Result<Arc<Map>> {
        self.flush()?;
        self.settle()?;
        let wanted = Map::again(self.map.as_deref(), bytes);
        let map = Map::of_file(&self.file, wanted, self.mode.write)?;
        Ok(Arc::clone(self.map.insert(Arc::new(map))))
    }

    /// Cuts the file off at `bytes`, or makes it longer with zeros; the stream stays where it is.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    pub fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.may(self.mode.write, "write to", "w, a or +")?;
        self.flush()?;
        self.settle()?;
        self.file.set_len(bytes)
    }

    /// Writes what is in the buffer, and puts the descriptor's offset to where the stream is.
    ///
    /// # Errors
    /// As `write(2)`.
    pub fn close(mut self) -> io::Result<()> {
        self.flush()?;
        self.settle()
    }

    fn read_byte_slowly(&mut self) -> io::Result<Option<u8>> {
        if !self.make_window(Use::InPlace)? {
            return Ok(None);
        }
        let byte = self.windows.byte(self.window.at);
        if self.windows.is_suspicious(byte) {
            let next = self
                .windows
                .check(self.fd(), self.window.at, self.window.end);
            self.take(next)?;
        }
        self.window.at += 1;
        Ok(Some(byte))
    }

    fn fd(&self) -> Fd {
        Fd(self.file.as_raw_fd())
    }

    /// Makes sure that there is a byte to read; false at the end of the file.
    fn make_window(&mut self, wanted: Use) -> io::Result<bool> {
        self.may(self.mode.read, "read", "r or +")?;
        if self.map.is_some() {
            self.settle()?;
        }
        let is_here = self.window.at < self.window.end;
        if is_here && (wanted != Use::Owned || self.windows.slice(self.window).is_some()) {
            return Ok(true);
        }
        self.flush()?;
        let next = self.windows.next(self.fd(), self.window.at, wanted);
        self.take(next.map_err(error)?)
    }

    fn take(&mut self, next: Next) -> io::Result<bool> {
        match next {
            Next::Window(window) => self.window = window,
            Next::End => {
                self.window = Window::EMPTY;
                return Ok(false);
            }
            Next::Lost => {
                let offset = self.windows.position(self.window.at);
                self.settle()?;
                let why = format!(
                    "cannot read on at byte {offset}: somebody has cut the file off; open it again"
                );
                return Err(Error::new(ErrorKind::UnexpectedEof, why));
            }
        }
        Ok(true)
    }

    /// Gives back what was read ahead. A pipe or a socket takes nothing back: there it stays, to be read.
    fn settle(&mut self) -> io::Result<()> {
        if !self.is_seekable {
            return Ok(());
        }
        let window = std::mem::replace(&mut self.window, Window::EMPTY);
        self.windows.settle(self.fd(), window.at).map_err(error)
    }

    /// Writes without the buffer, which is empty.
    fn write_past(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = (&self.file).write(bytes);
        self.restart();
        done
    }

    /// After a write: nothing is here of what follows.
    fn restart(&mut self) {
        if self.is_seekable {
            let offset = (&self.file).stream_position();
            self.windows.restart(offset.unwrap_or(0));
        }
    }

    fn may(&self, allowed: bool, what: &str, mode: &str) -> io::Result<()> {
        if allowed {
            return Ok(());
        }
        let why = format!(
            "cannot {what} this stream: it was opened without {mode}; open it again with it"
        );
        Err(Error::new(ErrorKind::PermissionDenied, why))
    }

    /// Refuses what lies beyond the map.
    fn within(&mut self, end: u64) -> io::Result<()> {
        match self.map.as_ref().map(|map| map.bytes() as u64) {
            Some(bytes) if end > bytes => {
                let why = format!(
                    "cannot go to byte {end} of a stream of which {bytes} are mapped: map more"
                );
                Err(Error::new(ErrorKind::InvalidInput, why))
            }
            _ => Ok(()),
        }
    }

    /// Copies from the window, and looks again where that has zeros that may be nobody's.
    fn copy(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Window { at, end, .. } = self.window;
        let bytes = into.len().min(end - at);
        self.windows.copy_to(at, &mut into[..bytes]);
        if !self.windows.is_suspicious(into[bytes - 1]) {
            self.window.at += bytes;
            return Ok(bytes);
        }
        let next = self.windows.check(self.fd(), at, end);
        self.take(next)?;
        let bytes = bytes.min(self.window.end - self.window.at);
        self.windows.copy_to(self.window.at, &mut into[..bytes]);
        self.window.at += bytes;
        Ok(bytes)
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        // Behind a window there may be more that is mapped.
        let is_here = self.window != Window::EMPTY && self.windows.left(self.window.at) > 0;
        if !is_here && into.len() >= DIRECT_BYTES && self.mode.read && self.map.is_none() {
            self.flush()?;
            self.window = Window::EMPTY;
            let fd = self.fd();
            // Nothing is left of what is here, so nothing is given back.
            return self.windows.read_past(fd, into).map_err(error);
        }
        if !self.make_window(Use::Copied)? {
            return Ok(0);
        }
        self.copy(into)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.make_window(Use::Owned)?;
        Ok(self.windows.slice(self.window).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.window.at += bytes.min(self.window.end - self.window.at);
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.may(self.mode.write, "write to", "w, a or +")?;
        if self.window != Window::EMPTY {
            self.settle()?;
        }
        if self.map.is_some() {
            let from = if self.mode.append {
                self.file.metadata()?.len()
            } else {
                (&self.file).stream_position()?
            };
            self.within(from + bytes.len() as u64)?;
            return self.write_past(bytes);
        }
        if self.written.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            return self.write_past(bytes);
        }
        self.written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.written.is_empty() {
            return Ok(());
        }
        let mut done = 0;
        let result = loop {
            match (&self.file).write(&self.written[done..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => done += bytes,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => break Err(why),
            }
            if done == self.written.len() {
                break Ok(());
            }
        };
        // What could not be written stays, to be tried again.
        self.written.drain(..done);
        self.restart();
        result
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.flush()?;
        if !self.is_seekable {
            return Err(Error::from_raw_os_error(ESPIPE));
        }
        if self.map.is_some() {
            self.settle()?;
            let target = match to {
                SeekFrom::Start(offset) => offset,
                SeekFrom::Current(by) => (&self.file).stream_position()?.saturating_add_signed(by),
                SeekFrom::End(by) => self.file.metadata()?.len().saturating_add_signed(by),
            };
            self.within(target)?;
        } else if self.window != Window::EMPTY {
            let wanted = match to {
                SeekFrom::Start(offset) => Some(offset),
                SeekFrom::Current(by) => {
                    let here = self.windows.position(self.window.at);
                    here.checked_add_signed(by)
                }
                SeekFrom::End(_) => None,
            };
            let fd = self.fd();
            let found = wanted.and_then(|offset| self.windows.find(fd, offset));
            if let (Some(offset), Some(window)) = (wanted, found) {
                self.window = window;
                return Ok(offset);
            }
            self.settle()?;
        }
        let offset = (&self.file).seek(to)?;
        self.windows.restart(offset);
        Ok(offset)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        if self.window != Window::EMPTY && self.is_seekable {
            return Ok(self.windows.position(self.window.at));
        }
        self.flush()?;
        (&self.file).stream_position()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Who wants to know of errors calls `close`.
        let _ = self.flush();
        let _ = self.settle();
    }
}
