//! What a process has of its host kernel: shared memory by name, and what goes on there.
//!
//! - [`Host`]: it makes, finds and maps shared memory.
//! - [`sync`]: locks, semaphores, barriers and conditions there.
//! - [`heap`]: `malloc` there.
//! - [`locks`]: shared memory of others that stays where it is.
//! - [`pager`]: objects whose contents this process answers for.
//! - [`interface`]: what processes and the host kernel say to each other.
//!
//! An object is a port: who holds a send right to it has the object. When the last right is gone,
//! by whatever end of its holder, so are the object and its name. A mapping is a port too, so that
//! nothing of a process that was killed stays behind.

mod client;
pub mod cluster;
mod cluster_figures;
mod figures;
pub mod heap;
pub mod interface;
pub mod locks;
pub mod pager;
mod passes;
mod ports;
pub mod sleepers;
pub mod sync;

use std::path::PathBuf;

pub use client::{Created, Error, Hold, Host, Offered, Shared, Wire, check_owner};
pub use farpage_object::Access;
pub use figures::{Figures, Message, ObjectFigures, PagerFigures, SILENT_NS, times};
pub use interface::{Listed, PagerListed, Refusal, Status};
pub use ports::{PortListed, PortsListed};

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
