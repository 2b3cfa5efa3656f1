//! Streams over mapped files, against those of the C library.

mod stream;
