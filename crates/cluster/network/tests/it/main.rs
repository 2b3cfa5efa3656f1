//! Messages between hosts.

mod cuts;
mod loopback;
mod namespaces;
mod processes;
mod support;
