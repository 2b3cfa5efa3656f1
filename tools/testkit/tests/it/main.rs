//! The server for tests.

mod speed;
