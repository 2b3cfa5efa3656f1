//! Every order of the steps of a few threads of a few hosts, with deaths between any two.

mod explored;
mod named;
mod world;
