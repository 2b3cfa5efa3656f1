//! The control plane of hosts that share memory: who is in the cluster and may act, what objects
//! there are, and where they were last known to be.
//!
//! It is kept in etcd, or within the process for one host alone ([`Endpoint`]). A host joins
//! ([`Control::join`]), is told of everything ([`Control::next_event`]), and asks before it acts
//! whether it may ([`Control::is_fenced`]). Nothing of it is on the path of a fault.
//!
//! ```
//! use farpage_membership::{Config, Consistency, Control, Durability, Endpoint, Home, Scheduler};
//! # use farpage_membership::{ControlError, Description};
//! let endpoint = Endpoint::parse("embedded:")?;
//! let control = Control::join(Config::new(endpoint, ([127, 0, 0, 1], 7000).into(), "here"))?;
//! let description = Description {
//!     bytes: 1 << 30,
//!     page_bytes: 4096,
//!     scheduler: Scheduler::Distributed,
//!     hold_us: None,
//!     stale_us: None,
//!     consistency: Consistency::Strict,
//!     is_sealed: false,
//!     replicas: 1,
//!     durability: Durability::Volatile,
//!     home: Home { slot: control.slot(), incarnation: control.incarnation() },
//!     uid: 0,
//!     stays: true,
//!     note: String::new(),
//! };
//! let id = control.make(Some("grid"), description)?;
//! assert_eq!(control.find("grid")?.0, id);
//! assert!(!control.is_fenced());
//! control.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is stored
//! JSON under the name of the cluster; `etcdctl get --prefix NAME/` shows it.
//!
//! | key | what |
//! |---|---|
//! | `format` | the version, which all hosts must have |
//! | `key` | which key the hosts have, which does not give it away |
//! | `now/view` | the newest view and the next incarnation; its revision is the generation |
//! | `now/alive/INCARNATION` | goes with the host's lease |
//! | `now/goes-on/INCARNATION` | the host counts on promises of the others |
//! | `now/unheard/INCARNATION` | of whom the host has not heard for two leases; goes with its lease |
//! | `now/object/ID` | an object; somebody holds it, or it has a name and stays |
//! | `now/holder/ID/INCARNATION` | the host holds the object; counts while the host is in the view |
//! | `name/NAME` | the number of the object |
//! | `next-object` | the number of the next object |
//!
//! etcd keeps the history of all this until it is told otherwise: run it with
//! `--auto-compaction-retention=1h`.
//!
//! # Who may act
#![doc = include_str!("rule.md")]

mod apart;
mod clock;
mod control;
mod embedded;
mod endpoint;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod event;
mod host;
mod join;
mod known;
mod names;
mod objects;
mod ports;
#[doc(hidden)]
pub mod record;
mod rule;
mod store;
mod table;
mod view;

#[cfg(test)]
mod tests;

pub use clock::Moment;
pub use control::{Config, Control};
pub use embedded::Embedded;
pub use endpoint::{Endpoint, EtcdEndpoint};
pub use error::{ControlError, EndpointError};
pub use event::Event;
pub use record::{
    CheckedIn, Consistency, Description, Durability, Home, NOTE_MAX, Object, ObjectId, RecordError,
    Scheduler,
};
pub use rule::{Ping, Pong};
pub use view::{HOSTS_MAX, Incarnation, Member, Representation, Slot, View};
