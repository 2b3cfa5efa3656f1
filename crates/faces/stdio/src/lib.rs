//! `libfarpage-stdio.so`: glibc's own streams, which read large files where they lie.
//!
//! A `FILE` stays glibc's: it opens, writes, formats, locks, flushes and closes. Only the bytes
//! between `_IO_read_ptr` and `_IO_read_end` may be ours, of a large regular file that is read
//! through a full buffer: a bigger buffer, or the file itself, mapped. Such a stream is **lent**.
//! Code that has glibc's macros compiled into it takes these bytes like any others, and calls
//! `__uflow` for more, which is here.
//!
//! Every function of glibc that takes a stream is defined here, too. Those that read do so from what is
//! lent. All others give it back first (the descriptor's offset is then that of the next byte, and
//! the buffer is empty), and go on in glibc.

#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
// The boundary to C, and to glibc's structure.
#![allow(unsafe_code)]

mod block;
mod enter;
mod file;
mod fmap;
mod forward;
mod lend;
mod line;
mod place;
mod real;
mod slots;
