//! Where the arrays of data files lie, found without reading the data.
//!
//! [`open`] takes the size of a file and a function that reads ranges of it, and gives the
//! [`Layout`]: each array's name, element type, shape, and place in the file. It asks for few and
//! small ranges, because the file may be on another machine. [`raw`] does the same for bytes whose
//! type only the caller knows.
//!
//! What a file says about itself is a claim: every number is checked against the others and
//! against the size of the file. A [`Layout`] that is returned lies inside the file.
//!
//! This crate is pure: no I/O, no clock, no threads, no unsafe code.
//!
//! ```
//! use farpage_format::{Dtype, open};
//!
//! let mut file = b"\x93NUMPY\x01\x00\x36\x00".to_vec();
//! file.extend(b"{'descr':'<f4','fortran_order':False,'shape':(2,),  }\n");
//! file.extend([0; 8]);
//! let mut read = |at: u64, bytes: usize| Ok::<_, String>(file[at as usize..][..bytes].to_vec());
//! let layout = open(file.len() as u64, None, &mut read)?;
//! assert_eq!(layout.tensors[0].element.dtype(), Some(Dtype::F32));
//! assert_eq!((layout.tensors[0].offset, layout.tensors[0].bytes), (64, 8));
//!
//! let cut_off = open(file.len() as u64 - 1, None, &mut read).unwrap_err();
//! assert!(cut_off.to_string().contains("at bytes 64..72, but only 71 are there"));
//! # Ok::<(), farpage_format::OpenError<String>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "arrow")]
mod arrow;
mod dtype;
mod error;
mod layout;
mod literal;
mod npy;
mod npz;
mod raw;
mod safetensors;
mod source;
#[cfg(test)]
mod testing;

use alloc::vec::Vec;

pub use dtype::{Dtype, Element, Order};
pub use error::{FormatError, OpenError};
pub use layout::{DIMENSIONS_MAX, Kind, Layout, Tensor};
pub use raw::raw;

use source::{HEAD, Source};

/// Finds the arrays of a file of `size` bytes.
///
/// The format is known by the file's first bytes; `name`, the file's name or address, decides by
/// its extension only when they say nothing. `read(offset, bytes)` must give exactly the bytes
/// asked for; ranges never reach past `size`. Asked for are the first 4 KiB, and then
///
/// | format | ranges |
/// |---|---|
/// | npy | none, or the rest of a longer header |
/// | npz | the last 4 KiB (64 KiB when a comment is longer), the directory, 4 KiB for each array |
/// | safetensors | none, or the rest of a longer header |
/// | Arrow | the footer, and the header of each record batch |
///
/// # Errors
/// [`OpenError::Read`] is what `read` failed with, [`OpenError::Format`] what is wrong with the
/// file.
pub fn open<E>(
    size: u64,
    name: Option<&str>,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Layout, OpenError<E>> {
    let mut source = Source::new(size, read);
    let head = source.ahead(0, HEAD)?;
    let kind = Kind::of_bytes(&head, size).or_else(|| name.and_then(Kind::of_name));
    let tensors = match kind {
        Some(Kind::Npy) => {
            let whole = npy::Place {
                name: "",
                begin: 0,
                end: size,
            };
            Vec::from([npy::open(&mut source, &whole)?])
        }
        Some(Kind::Npz) => npz::open(&mut source)?,
        Some(Kind::Safetensors) => safetensors::open(&mut source)?,
        #[cfg(feature = "arrow")]
        Some(Kind::Arrow) => arrow::open(&mut source)?,
        #[cfg(not(feature = "arrow"))]
        Some(Kind::Arrow) => return Err(without_arrow().into()),
        Some(Kind::Raw) | None => return Err(FormatError::Unknown.into()),
    };
    let kind = kind.unwrap_or(Kind::Raw);
    Ok(Layout::checked(kind, size, tensors)?)
}

#[cfg(not(feature = "arrow"))]
fn without_arrow() -> FormatError {
    FormatError::Unsupported {
        name: alloc::string::String::new(),
        what: alloc::string::String::from("is an Arrow file"),
        remedy: "build farpage-format with its feature arrow",
    }
}
