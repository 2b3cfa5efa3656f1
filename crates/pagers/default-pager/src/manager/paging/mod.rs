//! Paging space of a process: compressed pages, and paging files that come and go.

mod config;
mod figures;
mod file;
mod give_back;
mod set;
mod when_full;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use farpage_object::{Control, fds};
use farpage_sys::limits::{self, Resource};

use crate::DefaultPager;

pub use config::{PagingConfig, RAM_MIN_BYTES, whole_pages};
pub use figures::{PagingFile, PagingProcess, PagingSpace};
pub use file::{OpenedPagingFile, check_count, default_dir, in_memory_warning, open_in};
pub use set::{Added, PagingFileListed, SpillSet, named, trouble};
pub use when_full::{Watched, WhenFull};

/// Its place among the tasks of its control block, of which it is the only one.
const SLOT: usize = 0;

/// Paging space that this process has.
pub struct Paging {
    control: &'static Control,
    spill: Arc<SpillSet>,
    /// What keeps pages there.
    pub pager: Arc<DefaultPager>,
}

impl Paging {
    /// Opens the paging files.
    ///
    /// # Errors
    /// When a folder takes none, and without memory or userfaultfd.
    pub fn start(memory: &PagingConfig) -> Result<Self> {
        // Each object and each mapping takes some in the host kernel.
        limits::raise_descriptors();
        let (_file, control) =
            farpage_sys::control::create().context("cannot make the control block")?;
        // The highest numbers: those of objects grow from below.
        let limit = limits::get(Resource::Descriptors)?.now;
        let base = limit.min(1 << 20).saturating_sub(u64::from(fds::COUNT));
        control.fd_base.store(base as u32, Ordering::Relaxed);
        memory.fill(control)?;
        let spill = SpillSet::start(control, memory)?;
        let pager = DefaultPager::new(control, SLOT);
        let pager = pager.map_err(|error| anyhow::anyhow!("cannot make paging space: {error}"))?;
        Ok(Self {
            control,
            spill,
            pager: Arc::new(pager),
        })
    }

    /// How full it is.
    pub fn about(&self) -> PagingSpace {
        let files = self.spill.list().into_iter().map(|file| PagingFile {
            folder: file.dir.display().to_string(),
            used_bytes: file.used_bytes,
            limit_bytes: file.limit_bytes,
            is_full: file.full,
            write_error: file.write_error,
        });
        PagingSpace {
            compressed_bytes: self.control.compressed_bytes.load(Ordering::Relaxed),
            compressed_max_bytes: self.control.compressed_max_bytes.load(Ordering::Relaxed),
            files: files.collect(),
            ..PagingSpace::default()
        }
    }
}
