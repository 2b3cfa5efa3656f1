//! Programs that use the library of streams.

mod programs;
