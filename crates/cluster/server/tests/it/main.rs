//! Hosts that share memory, all in one process.

mod costs;
mod deaths;
mod durable;
mod foreign;
mod hosts;
mod late;
mod leaving;
mod linearizable;
mod locked;
mod mirrored;
mod options;
mod release;
mod seal;
mod simple;
mod support;
mod unreadable;
