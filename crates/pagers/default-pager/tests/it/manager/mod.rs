//! The manager of pagers in other processes.

mod outside;
