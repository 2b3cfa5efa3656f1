//! The native part of the Python package: what is thin enough to need no thought in Python.

mod buffer;
mod errors;
mod fopen;
mod locks;
mod map_fd;
mod memory;
mod options;
mod pager;
mod registrations;
mod served;
mod shared;
mod shared_locks;
mod sync;

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use farpage::{Dtype, Element, Loaded, Order, Place, Places, Slice, Source, Trace};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use errors::raised;
use memory::Memory;
use options::Options;

/// Addresses, each with offset and size of what is meant there.
type Parts = Vec<(String, Option<u64>, Option<u64>)>;

fn places(parts: Parts) -> Places {
    let place = |(address, offset, size)| Place {
        address,
        offset,
        size,
    };
    Places(parts.into_iter().map(place).collect())
}

/// Maps the bytes of the parts.
#[pyfunction]
fn open(py: Python<'_>, parts: Parts, options: &Bound<'_, PyDict>) -> PyResult<Memory> {
    let options = Options::read(options)?;
    let opened = py.detach(|| farpage::Memory::open(places(parts), &options.load.open));
    Memory::new(py, opened, &options)
}

/// Maps what a process serves that is asked over the socket `control`: from the first of `bytes` up
/// to the second.
#[pyfunction]
fn open_served(
    py: Python<'_>,
    control: RawFd,
    name: String,
    bytes: (u64, u64),
    writable: bool,
    options: &Bound<'_, PyDict>,
) -> PyResult<Memory> {
    let options = Options::read(options)?;
    let open = &options.load.open;
    let (start, end) = bytes;
    let source = served::Served::new(control, name, end, writable, open.deadline)?;
    let mut source: Arc<dyn Source> = Arc::new(source);
    if start > 0 {
        let slice = Slice::new(source, start, end - start);
        source = Arc::new(slice.map_err(|error| raised(py, &error.into()))?);
    }
    let opened = farpage::Memory::of_source(source, open);
    Memory::new(py, opened, &options)
}

/// One array: name, NumPy's description of its type, shape, whether it is in Fortran order, offset
/// in bytes, length in bytes.
type Entry = (String, String, Vec<u64>, bool, u64, u64);

/// Maps the arrays of the file that the parts make.
#[pyfunction]
fn load(
    py: Python<'_>,
    parts: Parts,
    options: &Bound<'_, PyDict>,
) -> PyResult<(Memory, String, Vec<Entry>)> {
    let options = Options::read(options)?;
    let loaded = py.detach(|| farpage::load(places(parts), &options.load));
    answer(py, loaded, &options)
}

/// The type of that name, and its order of bytes.
fn number(py: Python<'_>, dtype: &str) -> PyResult<(Dtype, Order)> {
    let named = |(name, order)| Dtype::from_name(name).map(|dtype| (dtype, order));
    let number = Dtype::from_descr(dtype)
        .or_else(|| {
            dtype
                .strip_prefix('>')
                .and_then(|name| named((name, Order::Big)))
        })
        .or_else(|| named((dtype, Order::Little)));
    number.ok_or_else(|| {
        let why = format!("dtype '{dtype}' is not known");
        errors::argument(
            py,
            &why,
            "give one of NumPy's, 'bf16', or 'vax_f', 'vax_d', 'vax_g'",
        )
    })
}

/// Maps parts that are nothing but numbers.
#[pyfunction]
fn raw(
    py: Python<'_>,
    parts: Parts,
    dtype: &str,
    shape: Vec<i64>,
    options: &Bound<'_, PyDict>,
) -> PyResult<(Memory, String, Vec<Entry>)> {
    let options = Options::read(options)?;
    let number = number(py, dtype)?;
    let loaded = py.detach(|| farpage::raw(places(parts), number, &shape, &options.load));
    answer(py, loaded, &options)
}

fn answer(
    py: Python<'_>,
    loaded: Result<Loaded, farpage::Error>,
    options: &Options,
) -> PyResult<(Memory, String, Vec<Entry>)> {
    let loaded = loaded.map_err(|error| raised(py, &error))?;
    let arrays = loaded.arrays.into_iter().map(|array| {
        let tensor = array.tensor;
        let descr = match &tensor.element {
            Element::Number { dtype, order } => dtype
                .descr(*order)
                .unwrap_or_else(|| dtype.name().to_owned()),
            Element::Opaque { descr, .. } => descr.clone(),
        };
        (
            tensor.name,
            descr,
            tensor.shape,
            tensor.fortran,
            tensor.offset,
            tensor.bytes,
        )
    });
    let entries = arrays.collect();
    let memory = Memory::new(py, Ok(loaded.memory), options)?;
    Ok((memory, loaded.kind.to_string(), entries))
}

/// The budget of what is opened without one, in bytes.
#[pyfunction]
fn set_ram(py: Python<'_>, bytes: u64) -> PyResult<()> {
    farpage::set_default_ram(bytes).map_err(|error| raised(py, &error))
}

/// The runs of a trace: first page and count.
#[pyfunction]
fn read_trace(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(u64, u64)>> {
    let trace = Trace::read(&path).map_err(|error| raised(py, &error.into()))?;
    let runs = trace.runs.iter().map(|run| (run.start.0, run.pages()));
    Ok(runs.collect())
}

#[pymodule]
fn _farpage(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Memory>()?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(open_served, module)?)?;
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(raw, module)?)?;
    module.add_function(wrap_pyfunction!(set_ram, module)?)?;
    module.add_function(wrap_pyfunction!(read_trace, module)?)?;
    module.add_function(wrap_pyfunction!(pager::serve_pager, module)?)?;
    module.add_class::<fopen::Stream>()?;
    module.add_class::<locks::Area>()?;
    module.add_class::<registrations::RegCache>()?;
    module.add_class::<registrations::Registered>()?;
    module.add_class::<map_fd::Mapping>()?;
    module.add_function(wrap_pyfunction!(map_fd::map_fd, module)?)?;
    module.add_function(wrap_pyfunction!(map_fd::map_fd_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(map_fd::map_url, module)?)?;
    module.add_class::<shared::Shared>()?;
    module.add_class::<shared_locks::SharedLock>()?;
    module.add_function(wrap_pyfunction!(shared_locks::lock_file, module)?)?;
    module.add_function(wrap_pyfunction!(shared_locks::lock_segment, module)?)?;
    module.add_function(wrap_pyfunction!(shared_locks::borrow_lock, module)?)?;
    module.add_class::<sync::Mutex>()?;
    module.add_class::<sync::Semaphore>()?;
    module.add_class::<sync::Barrier>()?;
    module.add_function(wrap_pyfunction!(shared::shared_create, module)?)?;
    module.add_function(wrap_pyfunction!(shared::shared_forget_host, module)?)?;
    module.add_function(wrap_pyfunction!(shared::shared_open, module)?)?;
    module.add_function(wrap_pyfunction!(shared::shared_of_cluster, module)?)?;
    module.add_function(wrap_pyfunction!(shared::shared_unlink, module)?)?;
    module.add_function(wrap_pyfunction!(shared::unlink_of_cluster, module)?)?;
    module.add_function(wrap_pyfunction!(shared::seal_of_cluster, module)?)?;
    module.add_function(wrap_pyfunction!(shared::flush_of_cluster, module)?)?;
    Ok(())
}
