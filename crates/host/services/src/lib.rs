//! What the host kernel offers to all processes of a host, over ports.
//!
//! - [`Service`]: the host kernel's side: names, objects, who holds them. `farpage up` runs it.
//! - [`Host`]: a process's side: it makes, finds and maps shared memory.
//! - `interface`: what they say to each other.
//! - [`locks`]: shared memory of others that stays where it is.
//! - [`pager`]: objects whose contents other processes answer for.
//!
//! An object is a port: who holds a send right to it has the object. When the last right is gone,
//! by whatever end of its holder, so are the object and its name. A mapping is a port too, so that
//! nothing of a process that was killed stays behind.

mod client;
pub mod cluster;
mod cluster_figures;
mod figures;
mod heap;
mod here;
mod interface;
mod limits;
pub mod locks;
mod names;
pub mod net_message;
pub mod pager;
mod passes;
mod service;
pub mod sync;

pub use client::{Created, Error, Hold, Host, Offered, Shared, Wire, check_owner};
pub use farpage_host::Times;
pub use farpage_object::Access;
pub use figures::{Figures, Message, ObjectFigures, PagerFigures, times};
pub use heap::HeapError;
pub use here::Here;
pub use interface::{Listed, PagerListed, Refusal, Status};
pub use net_message::{NetMessages, PortListed, PortsListed};
pub use service::{Service, WriteBack};

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the host kernel of this user listens: `$FARPAGE_HOST`; else in `$XDG_RUNTIME_DIR`, for
/// root in `/run`, and without either in a folder of the user's own in `/tmp`.
pub fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("FARPAGE_HOST").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let user = rustix::process::geteuid();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("farpage"),
        None if user.is_root() => PathBuf::from("/run/farpage"),
        None => PathBuf::from(format!("/tmp/farpage-{}", user.as_raw())),
    };
    folder.join("host")
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
