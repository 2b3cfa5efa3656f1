//! All shared objects at this host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farpage_coherence::{Host, Violation};
use farpage_host::{Object, Objects};
use farpage_pagers::Pager;

use crate::counters::Figures;
use crate::holds::Holds;
use crate::object::{About, Shared, lock};
use crate::wire::Head;

/// Pages of a unit at most: 2 MiB.
const UNIT_PAGES_MAX: u64 = 512;

/// Brings messages to other hosts: each once, in any order.
pub trait Wire: Send + Sync {
    /// Sends a message, the parts one after the other. It is not waited for.
    fn send(&self, to: Host, parts: &[&[u8]]);
}

/// What all objects here have in common.
pub(crate) struct Shell {
    pub(crate) own: Host,
    pub(crate) wire: Arc<dyn Wire>,
    /// Keeps what does not fit into memory.
    pub(crate) paging_space: Arc<dyn Pager>,
    pub(crate) holds: Holds,
}

/// The shared memory server of a host.
pub struct Server {
    shell: Arc<Shell>,
    objects: &'static Objects,
    shared: Mutex<HashMap<u64, Open>>,
    holds: Option<JoinHandle<()>>,
}

struct Open {
    shared: Arc<Shared>,
    kernel: Arc<Object>,
}

/// Why an object could not be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is of no size, or its units are.
    #[error(
        "a shared object of {bytes} bytes in units of {unit_pages} pages cannot be; give at least a \
         byte, and units of 1 to 512 pages, a power of two"
    )]
    Size {
        /// Its bytes.
        bytes: u64,
        /// Pages of a unit.
        unit_pages: u64,
    },
    /// The kernel of this host could not make it.
    #[error(transparent)]
    Kernel(#[from] farpage_host::Error),
}

/// Why what a peer sent was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is no message.
    #[error("{by} sent {what}; its connection is to be closed")]
    Garbled {
        /// Who.
        by: Host,
        /// What.
        what: String,
    },
    /// This host knows no such object.
    #[error("{by} sent a message of object {object}, which this host does not know")]
    Unknown {
        /// Who.
        by: Host,
        /// Which.
        object: u64,
    },
    /// It does not keep to the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl Server {
    /// The server of `own`. What does not fit into the memory of `objects` goes to `paging_space`.
    ///
    /// # Errors
    /// Without threads.
    pub fn start(
        own: Host,
        objects: &'static Objects,
        paging_space: Arc<dyn Pager>,
        wire: Arc<dyn Wire>,
    ) -> std::io::Result<Self> {
        let shell = Arc::new(Shell {
            own,
            wire,
            paging_space,
            holds: Holds::default(),
        });
        let held = Arc::clone(&shell);
        let holds = std::thread::Builder::new()
            .name("share-holds".into())
            .spawn(move || held.holds.run())?;
        Ok(Self {
            shell,
            objects,
            shared: Mutex::default(),
            holds: Some(holds),
        })
    }

    /// An object, at this host: the same for whoever opens it. It stays until [`Server::close`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, about: &About) -> Result<Arc<Object>, OpenError> {
        let (bytes, unit_pages) = (about.bytes, about.unit_pages);
        if bytes == 0 || !unit_pages.is_power_of_two() || unit_pages > UNIT_PAGES_MAX {
            return Err(OpenError::Size { bytes, unit_pages });
        }
        let mut all = lock(&self.shared);
        if let Some(open) = all.get(&about.number) {
            return Ok(Arc::clone(&open.kernel));
        }
        let shared = Shared::new(about.clone(), Arc::clone(&self.shell));
        let pages = bytes.div_ceil(farpage_abi::PAGE_BYTES as u64);
        let pager = Arc::clone(&shared) as Arc<dyn Pager>;
        let kernel = self.objects.create(&about.name, pages, pager, false)?;
        shared.is_of(&kernel);
        let open = Open {
            shared,
            kernel: Arc::clone(&kernel),
        };
        all.insert(about.number, open);
        Ok(kernel)
    }

    /// An object is gone from all hosts.
    pub fn close(&self, number: u64) {
        // Dropped without the lock: that gives its memory back.
        let _gone = lock(&self.shared).remove(&number);
    }

    /// What was done for an object so far.
    pub fn figures(&self, number: u64) -> Option<Figures> {
        Some(lock(&self.shared).get(&number)?.shared.figures())
    }

    /// A message has come from a peer.
    ///
    /// # Errors
    /// What is wrong with it; nothing was done then.
    pub fn received(&self, from: Host, bytes: &[u8]) -> Result<(), Wrong> {
        let garbled = |what: &dyn std::fmt::Display| Wrong::Garbled {
            by: from,
            what: what.to_string(),
        };
        let (head, contents) = Head::take(bytes).map_err(|error| garbled(&error))?;
        let shared = match lock(&self.shared).get(&head.object) {
            Some(open) => Arc::clone(&open.shared),
            None => {
                return Err(Wrong::Unknown {
                    by: from,
                    object: head.object,
                });
            }
        };
        let wanted = match head.message.has_contents() {
            true => shared.unit_bytes_of(head.unit),
            false => 0,
        };
        if head.unit >= shared.units() {
            return Err(garbled(
                &"a message of a place beyond the end of its object",
            ));
        }
        if contents.len() != wanted {
            return Err(garbled(&"a message with the wrong number of bytes"));
        }
        let contents = (wanted > 0).then(|| contents.into());
        Ok(shared.came(from, head.unit, head.message, contents)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shell.holds.end();
        if let Some(holds) = self.holds.take() {
            // It panics only when a unit did.
            let _ = holds.join();
        }
    }
}
