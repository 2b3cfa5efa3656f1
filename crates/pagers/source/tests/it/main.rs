//! Sources of bytes: files, compressed files, the cache, the pager over them.

mod cache;
mod cache_processes;
mod file;
mod gzip;
mod made;
mod packed;
mod pager;
#[cfg(feature = "remote")]
mod remote;
mod zstd;
