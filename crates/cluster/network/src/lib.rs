//! Messages between the host daemons of a cluster, over TCP with TLS on both sides.
//!
//! Each run of a daemon is an [`Incarnation`]. Between two that have met ([`Network::meet`]) and of
//! which neither has parted from the other ([`Network::part`]), each message arrives exactly once
//! and in order of its [`Priority`], whatever becomes of connections meanwhile: they are made, and
//! made again, by themselves. Who may take part is decided by the [`ClusterKey`].
//!
//! Page faults wait for these messages, so nothing here wakes a thread that need not be woken: a
//! message is written to the socket by the thread that sends it, and handled by the thread that
//! finds it there. Any thread may be that one ([`Network::turn`]), also one that waits for other
//! things ([`Network::descriptor`]).
//!
//! A session ([`session`]) is a value without I/O; it is tested by seed over connections that break
//! anywhere. Peers have the cluster's key and are not trusted to be sane all the same: what they
//! send is bounded and checked, and ends their connection when it is wrong.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::mpsc::{Sender, channel};
//!
//! use farpage_network::{ClusterKey, Config, Incarnation, Network, Priority, Receiver};
//!
//! struct Print(Sender<Vec<u8>>);
//!
//! impl Receiver for Print {
//!     fn received(&self, _from: Incarnation, _priority: Priority, message: &[u8]) {
//!         self.0.send(message.to_vec()).unwrap();
//!     }
//! }
//!
//! # let folder = tempfile::tempdir()?;
//! let key = ClusterKey::create(folder.path())?;
//! let (sender, messages) = channel();
//! let start = |number| {
//!     let config = Config::new("127.0.0.1:0".parse().unwrap(), key.clone(), Incarnation(number));
//!     Network::start(config, Arc::new(Print(sender.clone())))
//! };
//! let (one, two) = (start(1)?, start(2)?);
//! one.meet(Incarnation(2), two.local_address())?;
//! two.meet(Incarnation(1), one.local_address())?;
//! one.send(Incarnation(2), Priority::Urgent, &[b"page ", b"7"])?;
//! assert_eq!(messages.recv()?, b"page 7");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attach;
mod batch;
#[doc(hidden)]
pub mod frame;
mod greet;
mod key;
mod lane;
mod line;
mod network;
#[doc(hidden)]
pub mod session;
mod shared;
mod tick;
mod tls;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use frame::MESSAGE_BYTES_MAX;
pub use key::{ClusterKey, KeyError};
pub use network::{Config, Gone, MeetError, Network, NetworkError, Receiver};

/// One run of a host's daemon. A host that starts again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl std::fmt::Display for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a message may wait for. Each priority has a connection of its own: nothing that is `Bulk`
/// stands before something `Urgent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    Urgent,
    /// Much, for which nobody waits.
    Bulk,
}
