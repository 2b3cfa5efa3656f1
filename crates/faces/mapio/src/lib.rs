//! Buffered files whose buffer is the file itself, mapped.
//!
//! A [`Stream`] is to Rust what `FILE` is to C: it reads, writes, appends and updates through a
//! buffer. Small files, and what cannot be mapped, are read. Of a large one that is used byte by
//! byte, the pages that Linux has of it are the buffer: they are mapped a few MiB at a time, ahead of the
//! reader, and let go behind it, so that several readers have one copy and hardly any memory.
//!
//! Crate `stdio` does the same to the C library's own streams.

mod map;
mod mode;
mod stream;
mod windows;

pub use map::Map;
pub use mode::Mode;
pub use stream::Stream;
pub use windows::{BUFFER_BYTES, Next, Use, Window, Windows};
