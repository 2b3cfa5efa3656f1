//! Hosts' view of a cluster, with a real etcd.

mod faults;
mod members;
mod objects;
mod ports;
mod support;
mod tls;
