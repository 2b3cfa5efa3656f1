//! The library for C and C++: its header, and programs that use it.

mod header;
mod programs;
