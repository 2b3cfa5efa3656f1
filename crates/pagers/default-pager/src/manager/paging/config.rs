//! How much memory pages may take, and where.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, bail};
use farpage_object::{Control, Tier};
use farpage_sys::userfaultfd;

use super::WhenFull;

/// Smallest `--ram`: below it the agent's own working memory would be most of the budget.
pub const RAM_MIN_BYTES: u64 = 16 << 20;

/// `bytes`, less what is no whole page.
pub fn whole_pages(bytes: u64) -> u64 {
    bytes / farpage_object::PAGE_BYTES as u64 * farpage_object::PAGE_BYTES as u64
}

/// Where pages may be, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagingConfig {
    /// `--ram`: resident pages, pages set aside and compressed tier together, bytes. At least
    /// [`RAM_MIN_BYTES`], a multiple of the page size.
    pub ram_bytes: u64,
    /// `ram_bytes` is only where the budget begins: then it follows what the cgroup leaves.
    pub follows_cgroup: bool,
    /// `--compressed`: largest size of the compressed tier, part of `ram_bytes`. 0: no such tier.
    pub compressed_max_bytes: u64,
    /// `--spill`: directories of paging files, checked: each takes a file. One file per entry.
    pub spill_dirs: Vec<PathBuf>,
    /// `--spill-limit`: bytes that all paging files together may take. `None`: as the disks allow.
    pub spill_limit_bytes: Option<u64>,
    /// `--when-full`.
    pub when_full: WhenFull,
}

impl PagingConfig {
    /// Writes what there is into a fresh control block, and what this process can do.
    ///
    /// # Errors
    /// When it gets no userfaultfd.
    pub fn fill(&self, control: &Control) -> Result<()> {
        let found = userfaultfd::probe();
        if found.tier == Tier::None {
            bail!(
                "cannot run: this user gets no userfaultfd here ({}); \
                 farpage doctor says how to change that",
                found
                    .error
                    .map_or("unknown error", farpage_sys::Errno::name)
            );
        }
        let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        set(&control.budget_bytes, self.ram_bytes);
        set(&control.compressed_max_bytes, self.compressed_max_bytes);
        set(&control.full.patience_ns, self.when_full.patience_ns());
        set(&control.started_ns, farpage_sys::time::now_ns());
        let set = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
        set(&control.tier, found.tier as u32);
        let rings = farpage_sys::probe::io_uring().is_ok();
        set(&control.io_uring, rings.into());
        set(&control.supervisor_pid, std::process::id());
        Ok(())
    }

    /// Segments that each paging file may take: `--spill-limit` in equal shares, the largest
    /// number without it.
    pub fn segments_per_file(&self) -> u32 {
        let Some(limit) = self.spill_limit_bytes else {
            return farpage_object::SEGMENTS_MAX as u32;
        };
        let files = self.spill_dirs.len().max(1) as u64;
        let share = limit / files / farpage_object::SEGMENT_BYTES as u64;
        share.min(farpage_object::SEGMENTS_MAX as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(dirs: usize, limit: Option<u64>) -> PagingConfig {
        PagingConfig {
            ram_bytes: 1 << 30,
            follows_cgroup: false,
            compressed_max_bytes: 1 << 28,
            spill_dirs: vec![PathBuf::from("/var/tmp"); dirs],
            spill_limit_bytes: limit,
            when_full: WhenFull::Kill,
        }
    }

    #[test]
    fn the_spill_limit_is_shared_out() {
        assert_eq!(memory(2, Some(10 << 20)).segments_per_file(), 5);
        assert_eq!(memory(1, Some(10 << 20)).segments_per_file(), 10);
        assert_eq!(memory(1, None).segments_per_file(), 1 << 20);
        assert_eq!(
            memory(1, Some(u64::MAX)).segments_per_file(),
            farpage_object::SEGMENTS_MAX as u32
        );
    }
}
