//! Open anything as memory.
//!
//! ```no_run
//! use farpage::{LoadOptions, load};
//!
//! # fn main() -> Result<(), farpage::Error> {
//! let model = load("https://host/model.safetensors", &LoadOptions::default())?;
//! let array = model.array("embedding.weight").expect("it has one");
//! // Nothing has been fetched yet but the header. What is touched comes in.
//! let first = unsafe { array.as_ptr().cast::<f32>().read() };
//! # Ok(())
//! # }
//! ```
//!
//! [`Memory`] is the bytes of a file, an address or any [`Source`], mapped; [`load`] understands
//! the formats of arrays. Both read what is touched, when it is touched, and keep no more in RAM
//! than their budget.

#[allow(unsafe_code)]
mod checked;
mod cover;
mod error;
mod fork;
mod kernels;
mod leases;
mod load;
mod locks;
mod map_fd;
mod memory;
pub mod registrations;
mod snapshot;
mod typed;

pub use error::Error;
pub use farpage_format::{Dtype, Element, Kind, Layout, Order, Tensor};
pub use farpage_kernel::embed::{Embedded, Mapping, Object};
pub use farpage_object::PageRange;
pub use farpage_source::open::{Address, Mode, OpenOptions, Place, Places};
pub use farpage_source::{Cache, Concat, OnFailure, Reach, Slice, Source, SourceError};
pub use farpage_source::{
    FileSource, OpenMode, SourcePager, Trace, TraceError, yet_to_be_recorded,
};
pub use kernels::{default_ram, set_default_ram};
pub use load::{Array, LoadOptions, Loaded, load, open_source, raw, raw_of_source};
pub use locks::{Block, Hold, LockError, Locked, LockedSums, lock_area, locked_sums};
pub use map_fd::{Kept, MappedBytes, map_fd, map_fd_shared, map_url, snapshot_of_fd};
pub use memory::{Memory, Stats};
