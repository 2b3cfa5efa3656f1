//! A program that is a host of a cluster by itself.
//!
//! Programs of a host share memory through its host kernel, and map it. That takes userfaultfd, and a
//! host kernel for their processor. One that has neither joins the cluster itself, and reads and
//! writes shared memory by calls ([`Object::read`], [`Object::write`]), which wait as faults do. All
//! else is as for any other host: what it has written to is its own until another wants it, and what
//! it has read stays here until another writes. Its numbers are in its own byte order.

mod address;
pub mod join;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_default_pager::DefaultPager;
use farpage_host::{Object, Objects};
use farpage_membership::{Description, Endpoint};
use farpage_network::{ClusterKey, KeyError};
use farpage_object::{Pager, PagerError};
use farpage_sys::Errno;

use crate::{Cluster, HaveError, JoinError, Left, Observer, OnReleased, Unreleased, Wish};

pub use address::{AddressError, address};

/// Memory that a member has at least.
const RAM_MIN: u64 = 4 << 20;

/// How a program joins.
#[derive(Clone, Debug)]
pub struct Joining {
    /// `etcd://HOST:PORT/NAME`.
    pub store: String,
    /// The cluster's key, or the folder that it is in.
    pub key: PathBuf,
    /// Where other hosts reach this one, perhaps with a port; `None`: as the store is reached, at any
    /// free port.
    pub address: Option<String>,
    /// What this host is called in lists; `None`: its host name.
    pub name: Option<String>,
    /// Bytes of memory for what it has of shared memory: 4 MiB or more. Half of it is for compressed
    /// pages; what does not fit is refused, since there is no paging file.
    pub ram_bytes: u64,
}

/// Why a program did not join.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store's address.
    #[error("cannot use '{0}' as the store of a cluster: {1}")]
    Store(String, String),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Where it is.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Too little memory.
    #[error("cannot share memory with {0} bytes; give 4 MiB or more")]
    Ram(u64),
    /// Linux.
    #[error("cannot make room for shared memory: Linux says {0}")]
    System(Errno),
    /// Paging space.
    #[error("cannot make room for shared memory: {0}")]
    PagingSpace(PagerError),
    /// Threads.
    #[error(transparent)]
    Objects(#[from] farpage_host::Error),
    /// The cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// This program as a host of a cluster. It leaves, without handing anything over, when it is dropped.
pub struct Member {
    cluster: Cluster,
}

/// Says on standard error what a user should see.
struct Says;

impl Observer for Says {
    fn say(&self, what: &str) {
        farpage_sys::say!("farpage: {what}");
    }
}

impl Member {
    /// Joins. A process can be a member once.
    ///
    /// # Errors
    /// [`Error`].
    pub fn join(joining: &Joining) -> Result<Self, Error> {
        let ram_bytes = joining.ram_bytes;
        if ram_bytes < RAM_MIN {
            return Err(Error::Ram(ram_bytes));
        }
        let wrong =
            |why: &dyn std::fmt::Display| Error::Store(joining.store.clone(), why.to_string());
        let endpoint = Endpoint::parse(&joining.store).map_err(|why| wrong(&why))?;
        let key = ClusterKey::load(&joining.key)?;
        let address = address(joining.address.as_deref(), &joining.store, 0)?;
        let name = joining.name.clone().unwrap_or_else(host_name);
        let config = crate::Config {
            control: farpage_membership::Config::new(endpoint, address, &name),
            key,
            listen: address,
        };
        let objects = Objects::start_for_calls(ram_bytes / 2)?;
        let paging_space = paging_space(ram_bytes / 2)?;
        let cluster = Cluster::join(config, objects, paging_space, Arc::new(Says))?;
        Ok(Self { cluster })
    }

    /// The number of this host.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.cluster.own().0
    }

    /// The memory of a name, which is made as it is wished when there is none. This host has it from
    /// then on, until [`Member::release`]. Its number, what is said of it, and it.
    ///
    /// # Errors
    /// [`HaveError`].
    pub fn shared(
        &self,
        name: &str,
        wish: Option<&Wish>,
    ) -> Result<(u64, Description, Arc<Object>), HaveError> {
        let uid = rustix::process::getuid().as_raw();
        self.cluster.have(name, uid, wish, None)
    }

    /// This host does not need an object any more.
    pub fn release(&self, number: u64) {
        if let Err(error) = self.cluster.release(number) {
            farpage_sys::say!("farpage: shared memory is kept until this host leaves: {error}");
        }
    }

    /// What this host wrote to memory with release consistency until now is seen by who acquires it after
    /// this has returned; of other memory nothing is to be done.
    ///
    /// # Errors
    /// [`Unreleased`].
    pub fn release_writes(&self, number: u64) -> Result<(), Unreleased> {
        self.waits_for(|on_end| self.cluster.releases(number, on_end))
    }

    /// What this host reads of it from now on has what was released before.
    ///
    /// # Errors
    /// [`Unreleased`].
    pub fn acquire_writes(&self, number: u64) -> Result<(), Unreleased> {
        self.waits_for(|on_end| self.cluster.acquires(number, on_end))
    }

    fn waits_for(&self, begins: impl FnOnce(OnReleased)) -> Result<(), Unreleased> {
        let (tells, told) = std::sync::mpsc::sync_channel(1);
        begins(Box::new(move |ended| {
            // Who called waits.
            let _ = tells.send(ended);
        }));
        told.recv().unwrap_or(Ok(()))
    }

    /// Hands over what only this host has, for so long at most, and leaves. What could not be handed
    /// over.
    #[must_use]
    pub fn leave(self, within: Duration) -> Vec<Left> {
        self.cluster.leave(within, &|_| ())
    }
}

/// What this host is called in lists, unless it is said.
#[must_use]
pub fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Compressed pages, in so much memory.
fn paging_space(bytes: u64) -> Result<Arc<dyn Pager>, Error> {
    let (_file, control) = farpage_sys::control::create().map_err(Error::System)?;
    control.budget_bytes.store(bytes, Ordering::Relaxed);
    control.compressed_max_bytes.store(bytes, Ordering::Relaxed);
    let pager = DefaultPager::new(control, 0).map_err(Error::PagingSpace)?;
    Ok(Arc::new(pager))
}
