//! Registrations: memory that stays registered with a device after its use.
//!
//! The cache has a lock while it calls a program's functions, which need the interpreter: who asks a cache
//! for something does so without the interpreter. What those functions themselves let go of, also by the
//! way of Python's collector, is given back later.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use farpage::registrations::{
    Limits, Pinning, Register, RegisterError, Registrations, RingBuffers,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;

use crate::errors::made;
use crate::{locks, map_fd};

thread_local! {
    /// A function of a program runs that a cache has called.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What that function raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// What was let go of inside of such a function.
static LATER: Mutex<Vec<Later>> = Mutex::new(Vec::new());

enum Later {
    Put(Got),
    Closed(Arc<Registrations>),
}

/// What a program registers memory with.
struct Functions {
    register: Py<PyAny>,
    deregister: Py<PyAny>,
}

/// None when the interpreter has ended.
fn inside<T>(call: impl for<'py> FnOnce(Python<'py>) -> T) -> Option<T> {
    let outside = INSIDE.replace(true);
    let done = Python::try_attach(call);
    INSIDE.set(outside);
    done
}

impl Register for Functions {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        let called = inside(|py| {
            let token = self.register.bind(py).call1((at, bytes));
            let number = |token: Bound<'_, PyAny>| {
                token.extract::<u64>().map_err(|_| {
                    let token = token.repr().map_or_else(|_| "something else".into(), |text| text.to_string());
                    let why = format!(
                        "register returned {token}; have it return what the device knows the memory by, an int from 0 \
                         to 2**64 - 1, or raise an exception"
                    );
                    made(py, "ArgumentError", why)
                })
            };
            token
                .and_then(number)
                .map_err(|error| (is_full(py, &error), error.to_string(), error))
        });
        let (full, why, error) = match called {
            Some(Ok(token)) => {
                RAISED.set(None);
                return Ok(token);
            }
            Some(Err((full, why, error))) => (full, why, Some(error)),
            None => (false, "Python has ended".to_owned(), None),
        };
        RAISED.set(error);
        Err(RegisterError::Refused {
            at: at as u64,
            asked: bytes as u64 >> 10,
            why,
            full,
        })
    }

    fn deregister(&mut self, at: usize, bytes: usize, token: u64) {
        inside(|py| {
            let function = self.deregister.bind(py);
            if let Err(error) = function.call1((at, bytes, token)) {
                error.write_unraisable(py, Some(function));
            }
        });
    }
}

/// It may be done once other memory is given up.
fn is_full(py: Python<'_>, error: &PyErr) -> bool {
    const ENOMEM: i32 = 12;
    const ENOSPC: i32 = 28;
    let number = || error.value(py).getattr("errno").ok()?.extract::<i32>().ok();
    error.is_instance_of::<PyMemoryError>(py)
        || (error.is_instance_of::<PyOSError>(py) && matches!(number(), Some(ENOMEM | ENOSPC)))
}

/// A cache of registrations.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct RegCache {
    cache: Mutex<Option<Arc<Registrations>>>,
    process: u32,
}

/// Memory that is registered until this is put back.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Registered(Mutex<Option<Got>>);

struct Got {
    cache: Arc<Registrations>,
    number: u32,
    /// The memory stays mapped as long as there is a view of it.
    view: PyUntypedBuffer,
    /// Of a child of fork nothing is registered.
    process: u32,
}

#[pymethods]
impl RegCache {
    /// With two functions, or a ring's first buffers, or of memory whose frames stay.
    #[new]
    fn new(
        py: Python<'_>,
        functions: Option<(Py<PyAny>, Py<PyAny>)>,
        ring: Option<(RawFd, u32)>,
        bytes: u64,
        regions: u32,
    ) -> PyResult<Self> {
        let limits = Limits { bytes, regions };
        let cache = match (functions, ring) {
            (Some((register, deregister)), _) => {
                let with = Functions {
                    register,
                    deregister,
                };
                py.detach(|| Registrations::new(with, limits))
            }
            (None, Some((ring, buffers))) => {
                let with = RingBuffers::new(map_fd::borrowed(py, ring)?, buffers);
                let with = with.map_err(|error| raised(py, &error))?;
                py.detach(|| Registrations::new(with, limits))
            }
            (None, None) => py.detach(|| Registrations::new(Pinning::new(), limits)),
        };
        let cache = cache.map_err(|error| raised(py, &error))?;
        Ok(Self {
            cache: Mutex::new(Some(Arc::new(cache))),
            process: std::process::id(),
        })
    }

    fn get(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Registered> {
        let cache = self.cache(py)?;
        let (view, (at, bytes)) = view(py, buffer)?;
        let number = py.detach(|| cache.get_number(at, bytes));
        let number = number.map_err(|error| raised(py, &error))?;
        Ok(self.got(cache, number, view))
    }

    fn get_all(&self, py: Python<'_>, buffers: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Registered>> {
        let cache = self.cache(py)?;
        let views: PyResult<Vec<_>> = buffers.iter().map(|buffer| view(py, buffer)).collect();
        let (views, parts): (Vec<_>, Vec<_>) = views?.into_iter().unzip();
        let numbers = py.detach(|| cache.get_all_numbers(&parts));
        let numbers = numbers.map_err(|error| raised(py, &error))?;
        let got = |(number, view)| self.got(Arc::clone(&cache), number, view);
        Ok(numbers.into_iter().zip(views).map(got).collect())
    }

    fn forget(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let cache = self.cache(py)?;
        let (view, (at, bytes)) = view(py, buffer)?;
        py.detach(|| cache.forget(at, bytes));
        drop(view);
        Ok(())
    }

    /// Regions, bytes, made, evicted, gone.
    fn sums(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let cache = self.cache(py)?;
        let sums = py.detach(|| cache.sums());
        Ok((sums.regions, sums.bytes, sums.made, sums.evicted, sums.gone))
    }

    /// Gives up what is not held; again is nothing.
    fn close(&self, py: Python<'_>) {
        let cache = lock(&self.cache).take();
        if let Some(cache) = cache {
            Later::Closed(cache).done(py);
        }
    }

    #[getter]
    fn is_closed(&self) -> bool {
        lock(&self.cache).is_none()
    }
}

impl RegCache {
    fn cache(&self, py: Python<'_>) -> PyResult<Arc<Registrations>> {
        let refused = |why: String| Err(made(py, "LockError", why));
        if INSIDE.get() {
            let why = "cannot use a cache of registrations in a function that one has called; do it afterwards";
            return refused(why.to_owned());
        }
        let cache = lock(&self.cache).clone();
        let Some(cache) = cache else {
            return refused("cannot use a cache that was closed; make another".to_owned());
        };
        if std::process::id() != self.process {
            return refused(RegisterError::Forked(self.process).to_string());
        }
        let later = std::mem::take(&mut *lock(&LATER));
        later.into_iter().for_each(|later| later.done(py));
        Ok(cache)
    }

    fn got(&self, cache: Arc<Registrations>, number: u32, view: PyUntypedBuffer) -> Registered {
        Registered(Mutex::new(Some(Got {
            cache,
            number,
            view,
            process: self.process,
        })))
    }
}

impl Drop for RegCache {
    fn drop(&mut self) {
        let cache = lock(&self.cache).take();
        if let Some(cache) = cache {
            Later::Closed(cache).done_if_python();
        }
    }
}

#[pymethods]
impl Registered {
    #[getter]
    fn token(&self, py: Python<'_>) -> PyResult<u64> {
        self.about(py, |about| about.1)
    }

    /// Addresses of the first byte and behind the last.
    #[getter]
    fn range(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.about(py, |about| (about.0.start, about.0.end))
    }

    #[getter]
    fn is_gone(&self, py: Python<'_>) -> PyResult<bool> {
        self.about(py, |about| !about.2)
    }

    #[getter]
    fn is_held(&self) -> bool {
        let here = std::process::id();
        lock(&self.0)
            .as_ref()
            .is_some_and(|got| got.process == here)
    }

    /// Puts it back; again is nothing.
    fn put(&self, py: Python<'_>) {
        let got = lock(&self.0).take();
        if let Some(got) = got {
            Later::Put(got).done(py);
        }
    }
}

/// Addresses, token, and whether it is alive.
type About = (std::ops::Range<usize>, u64, bool);

impl Registered {
    fn about<T>(&self, py: Python<'_>, tell: impl FnOnce(About) -> T) -> PyResult<T> {
        let here = std::process::id();
        let got = lock(&self.0);
        match got.as_ref().filter(|got| got.process == here) {
            Some(got) => Ok(tell(got.cache.about(got.number))),
            None => {
                let why = match &*got {
                    Some(_) => {
                        "this registration is the parent's: a child of fork has none; make a cache here"
                    }
                    None => "cannot use a registration that was put back; get it again",
                };
                Err(made(py, "LockError", why.to_owned()))
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let got = lock(&self.0).take();
        if let Some(got) = got {
            Later::Put(got).done_if_python();
        }
    }
}

impl Later {
    fn done(self, py: Python<'_>) {
        if INSIDE.get() {
            lock(&LATER).push(self);
            return;
        }
        match self {
            Self::Closed(cache) => py.detach(|| drop(cache)),
            Self::Put(got) => {
                let is_here = got.process == std::process::id();
                let (cache, number) = (got.cache, got.number);
                py.detach(|| {
                    if is_here {
                        cache.put_number(number);
                    }
                    drop(cache);
                });
                drop(got.view);
            }
        }
    }

    fn done_if_python(self) {
        // Without it nobody is left to ask for anything.
        let mut some = Some(self);
        Python::try_attach(|py| some.take().into_iter().for_each(|later| later.done(py)));
        std::mem::forget(some);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn view(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<(PyUntypedBuffer, (usize, usize))> {
    let why = "cannot register this: it is not in one piece; give the array that it is a part of, or its parts \
               to get_all";
    locks::view(py, buffer, why)
}

fn raised(py: Python<'_>, error: &RegisterError) -> PyErr {
    let class = match error {
        RegisterError::Lock(why) => return locks::raised(py, why),
        RegisterError::Large { .. } | RegisterError::Full { .. } | RegisterError::Caches(_) => {
            "KernelError"
        }
        RegisterError::Unwatched { .. } => "Unsupported",
        RegisterError::Refused { .. } => match RAISED.take() {
            Some(own) => return own,
            None => "CallbackError",
        },
        RegisterError::Forked(_) => "LockError",
        _ => "ArgumentError",
    };
    made(py, class, error.to_string())
}
