//! `fopen`: a stream that reads, writes and maps a file.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farpage_mapio::Map;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer;
use crate::errors::argument;

pyo3::import_exception!(io, UnsupportedOperation);

const EIO: i32 = 5;
const EBADF: i32 = 9;

/// What `farpage.Stream` is made of. Any thread may use it; each call is one step.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Stream {
    /// `None` when it is closed.
    stream: Mutex<Option<farpage_mapio::Stream>>,
    mode: farpage_mapio::Mode,
    /// Its path, or the number of its descriptor, for messages.
    name: Py<PyAny>,
}

#[pymethods]
impl Stream {
    /// Refuses what is no mode.
    #[staticmethod]
    fn check(py: Python<'_>, mode: &str) -> PyResult<()> {
        parsed(py, mode).map(drop)
    }

    /// Opens a path.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<Self> {
        let name = path.as_os_str().into_pyobject(py)?.into_any().unbind();
        let parsed = parsed(py, mode)?;
        let stream = py.detach(|| farpage_mapio::Stream::open(&path, mode));
        let stream = stream.map_err(|why| raised(py, &why, &name))?;
        Ok(Self::new(stream, parsed, name))
    }

    /// Takes a descriptor that is open over; it stays the caller's when this fails.
    #[staticmethod]
    fn of_fd(py: Python<'_>, fd: RawFd, mode: &str) -> PyResult<Self> {
        let name = fd.into_pyobject(py)?.into_any().unbind();
        let parsed = parsed(py, mode)?;
        if fd < 0 {
            return Err(raised(py, &io::Error::from_raw_os_error(EBADF), &name));
        }
        // SAFETY: the caller has it open, and gives it up; `into_raw_fd` below if not.
        let file = unsafe { File::from_raw_fd(fd) };
        match suits(&file, parsed) {
            Ok(()) => {}
            Err(why) => {
                let _ = file.into_raw_fd();
                return Err(raised(py, &why, &name));
            }
        }
        let stream = farpage_mapio::Stream::from_file(file, parsed);
        let stream = stream.map_err(|why| raised(py, &why, &name))?;
        Ok(Self::new(stream, parsed, name))
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyAny> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn can_read(&self) -> bool {
        self.mode.read
    }

    #[getter]
    fn can_write(&self) -> bool {
        self.mode.write
    }

    #[getter]
    fn appends(&self) -> bool {
        self.mode.append
    }

    /// `size` bytes, fewer only at the end of the file; all that follow when it is negative or None.
    fn read<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
            return self.read_all(py);
        };
        if let Some(taken) = self.taken(py, |here| (1..=here.len()).contains(&size).then_some(size))
        {
            return Ok(taken);
        }
        bytes_of(py, size, |into| self.act(py, |stream| filled(stream, into)))
    }

    /// What one read brings, `size` bytes at most.
    fn read_once<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        bytes_of(py, size, |into| self.act(py, |stream| stream.read(into)))
    }

    /// Fills memory of the caller; once only reads once.
    fn read_into(&self, py: Python<'_>, into: &Bound<'_, PyAny>, once: bool) -> PyResult<usize> {
        let into = PyUntypedBuffer::get(into)?;
        if into.readonly() || !into.is_c_contiguous() {
            let why = "cannot read into this: it is for reading only, or not in one piece";
            return Err(PyBufferError::new_err(why));
        }
        let (at, bytes) = (into.buf_ptr() as usize, into.len_bytes());
        if bytes == 0 {
            // Of nothing there may be no address.
            return self.act(py, |_| Ok(0));
        }
        self.act(py, |stream| {
            // SAFETY: the buffer is held until after this; as with Python's own files, another
            // thread that uses it meanwhile sees what is there.
            let into = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) };
            match once {
                true => stream.read(into),
                false => filled(stream, into),
            }
        })
    }

    /// Up to and with the next newline; `size` bytes at most, unless it is negative or None.
    fn read_line<'py>(
        &self,
        py: Python<'py>,
        size: Option<isize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let most = size.and_then(|size| u64::try_from(size).ok());
        let whole = |here: &[u8]| memchr::memchr(b'\n', here).map(|at| at + 1);
        if most.is_none()
            && let Some(taken) = self.taken(py, whole)
        {
            return Ok(taken);
        }
        let line = self.act(py, |stream| line(stream, most))?;
        Ok(PyBytes::new(py, &line))
    }

    /// What follows, line by line; keeps `owner`, which would close this.
    fn lines(this: Py<Self>, py: Python<'_>, owner: Py<PyAny>) -> PyResult<Lines> {
        let stream = this.get();
        stream.act(py, |stream| match stream.mode().read {
            true => Ok(()),
            // Says what is wrong.
            false => stream.read(&mut [0]).map(drop),
        })?;
        Ok(Lines {
            stream: this,
            _owner: owner,
        })
    }

    /// What is buffered, at least a byte unless the file ends here; the stream stays where it is.
    fn peek<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let here = self.act(py, |stream| stream.fill_buf().map(<[u8]>::to_vec))?;
        Ok(PyBytes::new(py, &here))
    }

    /// Writes all of it.
    fn write(&self, py: Python<'_>, from: &Bound<'_, PyAny>) -> PyResult<usize> {
        let from = PyUntypedBuffer::get(from)?;
        let (at, bytes) = (from.buf_ptr() as usize, from.len_bytes());
        if !from.is_c_contiguous() {
            let why = "cannot write this: it is not in one piece; copy it first";
            return Err(PyBufferError::new_err(why));
        }
        if bytes == 0 {
            return self.act(py, |_| Ok(0));
        }
        self.act(py, |stream| {
            // SAFETY: as for `read_into`.
            let from = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
            stream.write_all(from)
        })?;
        Ok(bytes)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.act(py, Write::flush)
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        let negative = || PyValueError::new_err(format!("cannot seek to {offset}: it is negative"));
        let to = match whence {
            0 => SeekFrom::Start(u64::try_from(offset).map_err(|_| negative())?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            _ => {
                let why = format!("whence cannot be {whence}");
                return Err(argument(py, &why, "give os.SEEK_SET, SEEK_CUR or SEEK_END"));
            }
        };
        self.act(py, |stream| stream.seek(to))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.act(py, Seek::stream_position)
    }

    fn truncate(&self, py: Python<'_>, bytes: Option<u64>) -> PyResult<u64> {
        self.act(py, |stream| {
            let bytes = match bytes {
                Some(bytes) => bytes,
                None => stream.stream_position()?,
            };
            stream.set_len(bytes)?;
            Ok(bytes)
        })
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.act(py, |stream| Ok(stream.as_fd().as_raw_fd()))
    }

    /// Maps the file from its start.
    fn map(&self, py: Python<'_>, bytes: usize) -> PyResult<Mapped> {
        self.act(py, |stream| stream.map(bytes)).map(Mapped)
    }

    /// Closes it, also when what is in the buffer cannot be written.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.lock().take().map_or(Ok(()), |stream| stream.close()));
        closed.map_err(|why| raised(py, &why, &self.name))
    }
}

/// The lines of a stream.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Lines {
    stream: Py<Stream>,
    _owner: Py<PyAny>,
}

#[pymethods]
impl Lines {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let line = self.stream.get().read_line(py, None)?;
        Ok((!line.as_bytes().is_empty()).then_some(line))
    }
}

/// The stream, locked.
type Locked<'a> = MutexGuard<'a, Option<farpage_mapio::Stream>>;

impl Stream {
    fn new(stream: farpage_mapio::Stream, mode: farpage_mapio::Mode, name: Py<PyAny>) -> Self {
        Self {
            stream: Mutex::new(Some(stream)),
            mode,
            name,
        }
    }

    fn lock(&self) -> Locked<'_> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As many of the buffered bytes as `wanted` says, if they are at hand: no other thread has the
    /// stream.
    fn taken<'py>(
        &self,
        py: Python<'py>,
        wanted: impl FnOnce(&[u8]) -> Option<usize>,
    ) -> Option<Bound<'py, PyBytes>> {
        let mut locked = self.stream.try_lock().ok()?;
        let stream = locked.as_mut()?;
        let here = stream.buffered();
        let bytes = wanted(here)?;
        let taken = PyBytes::new(py, &here[..bytes]);
        stream.consume(bytes);
        Some(taken)
    }

    /// One step, while other threads run Python.
    fn act<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut farpage_mapio::Stream) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| self.lock().as_mut().map(act));
        match done {
            Some(done) => done.map_err(|why| raised(py, &why, &self.name)),
            None => Err(PyValueError::new_err(
                "cannot use a stream that is closed; open it again",
            )),
        }
    }

    fn read_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let left = self.act(py, |stream| {
            let here = stream.stream_position().unwrap_or(0);
            let bytes = rustix::fs::fstat(stream.as_fd())?.st_size as u64;
            Ok(bytes.saturating_sub(here))
        })?;
        let expected = usize::try_from(left).unwrap_or(usize::MAX);
        let most = bytes_of(py, expected, |into| {
            self.act(py, |stream| filled(stream, into))
        })?;
        // A file of /proc has no size, and one that grows has more.
        let mut rest = Vec::new();
        self.act(py, |stream| stream.read_to_end(&mut rest))?;
        if rest.is_empty() {
            return Ok(most);
        }
        let whole = [most.as_bytes(), &rest].concat();
        Ok(PyBytes::new(py, &whole))
    }
}

/// A file as memory, unmapped when nobody has a view of it.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Mapped(Arc<Map>);

#[pymethods]
impl Mapped {
    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(
        this: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let place = (this.0.address(), this.0.bytes() as u64);
        let read_only = !this.0.is_writable();
        // SAFETY: `view` is Python's; it holds a reference to this object, which stays mapped.
        unsafe { buffer::fill(view, &this, place, read_only, flags) }
    }
}

fn parsed(py: Python<'_>, mode: &str) -> PyResult<farpage_mapio::Mode> {
    farpage_mapio::Mode::parse(mode).map_err(|why| {
        let why = why.to_string();
        let (what, remedy) = why.split_once(": ").unwrap_or((&why, ""));
        argument(py, what, remedy)
    })
}

/// Whether a descriptor may do what a mode says, as `fdopen` asks; `EBADF` when it is not open.
fn suits(file: &File, mode: farpage_mapio::Mode) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let access = flags & rustix::fs::OFlags::RWMODE;
    let is_only = |one| access == one;
    let reads = !is_only(rustix::fs::OFlags::WRONLY);
    let writes = !is_only(rustix::fs::OFlags::RDONLY);
    if mode.read && !reads || mode.write && !writes {
        let why = "cannot open this descriptor with that mode: it was opened for less";
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    if mode.append && !flags.contains(rustix::fs::OFlags::APPEND) {
        rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::APPEND)?;
    }
    Ok(())
}

/// Fills `into` as far as the file goes.
fn filled(stream: &mut farpage_mapio::Stream, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match stream.read(&mut into[done..])? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

fn line(stream: &mut farpage_mapio::Stream, most: Option<u64>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    match most {
        None => stream.read_until(b'\n', &mut line)?,
        Some(most) => stream.take(most).read_until(b'\n', &mut line)?,
    };
    Ok(line)
}

/// A `bytes` of at most `size`, of which `fill` says how many are there.
fn bytes_of<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut [u8]) -> PyResult<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let Ok(length) = isize::try_from(size) else {
        return Err(PyValueError::new_err(format!(
            "cannot read {size} bytes: too many"
        )));
    };
    // SAFETY: makes an object of that size, whose bytes are written before it is shown.
    let made = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), length) };
    // SAFETY: a bytes object of ours, or null and an exception.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: nobody else knows the object, and its memory is of that size.
    let into = unsafe {
        std::slice::from_raw_parts_mut(ffi::PyBytes_AsString(made.as_ptr()).cast(), size)
    };
    let got = fill(into)?;
    if got < size {
        return Ok(PyBytes::new(py, &into[..got]));
    }
    // SAFETY: as above.
    Ok(unsafe { made.cast_into_unchecked() })
}

/// The exception for an error of a stream: OSError with its number, and what it says.
fn raised(py: Python<'_>, why: &io::Error, name: &Py<PyAny>) -> PyErr {
    if let Some(number) = why.raw_os_error() {
        let said = why.to_string();
        let said = said
            .split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned();
        return PyOSError::new_err((number, said, name.clone_ref(py)));
    }
    match why.kind() {
        ErrorKind::PermissionDenied => UnsupportedOperation::new_err(why.to_string()),
        ErrorKind::InvalidInput => {
            let why = why.to_string();
            let (what, remedy) = why.rsplit_once(": ").unwrap_or((&why, "see its mode"));
            argument(py, what, remedy)
        }
        _ => PyOSError::new_err((EIO, why.to_string(), name.clone_ref(py))),
    }
}
