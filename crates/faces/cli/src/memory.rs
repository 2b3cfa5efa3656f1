//! Where pages are: RAM, compressed pages, paging files, as a command line says it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use farpage_default_pager::manager::paging::{
    self, PagingConfig, RAM_MIN_BYTES, WhenFull, whole_pages,
};
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::size::{Size, human};

/// What `--ram` must leave for resident pages beside the compressed tier.
const RESIDENT_MIN_BYTES: u64 = RAM_MIN_BYTES / 2;
/// Where pages are.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// RAM that pages may take, compressed part included
    ///
    /// At least 16M. A percentage is of the memory that this process may use: its cgroup's limit
    /// or what the machine has available, whichever is less. Without it, what the cgroup leaves,
    /// as that changes; without a cgroup's limit, 80% of what is available.
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
    /// Part of it that may hold compressed pages; 0 turns compression off
    ///
    /// A percentage is of --ram. `run` takes as much of it as pays, and none where nothing does.
    /// [default: 75%; of a host kernel: 25%]
    #[arg(long, value_name = "SIZE")]
    pub compressed: Option<String>,
    #[command(flatten)]
    pub files: FileArgs,
    /// What becomes of who needs room when paging space has none: kill, wait or wait=TIME
    ///
    /// Who waits goes on when there is room: files were deleted, a paging file was added (farpage
    /// spill add). All others go on meanwhile. After TIME, such as 90s, 10m or 2h, one process is
    /// killed, and the rest waits anew. [default: wait; without a terminal wait=1h]
    #[arg(long, value_name = "WHAT", value_parser = WhenFull::parse)]
    pub when_full: Option<WhenFull>,
}

/// Where paging files are.
#[derive(Args, Debug)]
pub struct FileArgs {
    /// Directory for a paging file; give it again for more than one
    ///
    /// The file has no name and is gone with farpage, however it ends. A local disk is best;
    /// tmpfs is memory and gains little. [default: $FARPAGE_SPILL, else $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Vec<PathBuf>,
    /// Disk space that all paging files together may take [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub spill_limit: Option<String>,
}

/// The most that compressed pages may take without `--compressed` where their part sizes itself.
pub const COMPRESSED_OF_RUN: Size = Size::Percent(75.0);
/// The same where it is what it may be.
pub const COMPRESSED_OF_HOST: Size = Size::Percent(25.0);

impl MemoryArgs {
    /// Checks the sizes and completes them; `compressed` stands for `--compressed`, unless it is
    /// said.
    ///
    /// # Errors
    /// The first thing that can't be done as asked, and what to write instead.
    pub fn config(&self, limit: &MemoryLimit, compressed: Size) -> Result<PagingConfig> {
        let ram_bytes = self.ram(limit)?;
        let compressed_max_bytes = self.compressed_max(ram_bytes, compressed)?;
        let (spill_dirs, spill_limit_bytes) = self.files.read()?;
        Ok(PagingConfig {
            ram_bytes,
            follows_cgroup: self.ram.is_none() && limit.cgroup.is_some(),
            compressed_max_bytes,
            spill_dirs,
            spill_limit_bytes,
            when_full: self.when_full.unwrap_or_else(WhenFull::unless_said),
        })
    }

    fn ram(&self, limit: &MemoryLimit) -> Result<u64> {
        let (size, shown) = match &self.ram {
            Some(text) => (Size::parse("--ram", text)?, format!("--ram {text}")),
            None => (Size::Percent(80.0), "the default --ram of 80%".to_string()),
        };
        let given = size.of(limit.bytes());
        let bytes = whole_pages(given);
        if bytes < RAM_MIN_BYTES {
            bail!(
                "cannot run with {shown}: {} is below the minimum of {}; give --ram 16M or more",
                human(given),
                human(RAM_MIN_BYTES)
            );
        }
        Ok(bytes)
    }

    fn compressed_max(&self, ram_bytes: u64, unless_said: Size) -> Result<u64> {
        let most = ram_bytes - RESIDENT_MIN_BYTES;
        let bytes = |size: Size| whole_pages(size.of(ram_bytes));
        let Some(shown) = &self.compressed else {
            return Ok(bytes(unless_said).min(most));
        };
        let bytes = bytes(Size::parse("--compressed", shown)?);
        if bytes > most {
            bail!(
                "cannot run with --compressed {shown}: it is part of --ram ({}), of which {} must \
                 stay for pages in use; give at most {}",
                human(ram_bytes),
                human(RESIDENT_MIN_BYTES),
                human(most)
            );
        }
        Ok(bytes)
    }
}

impl FileArgs {
    /// For a process that has compressed pages and paging files, but no pages in use. `compressed`:
    /// the size of the former.
    ///
    /// # Errors
    /// As [`MemoryArgs::config`].
    pub fn config(&self, compressed: Option<&str>, limit: &MemoryLimit) -> Result<PagingConfig> {
        let size = match compressed {
            Some(text) => Size::parse("--compressed", text)?,
            None => Size::Percent(20.0),
        };
        let bytes = whole_pages(size.of(limit.bytes()));
        let (spill_dirs, spill_limit_bytes) = self.read()?;
        Ok(PagingConfig {
            ram_bytes: bytes,
            follows_cgroup: false,
            compressed_max_bytes: bytes,
            spill_dirs,
            spill_limit_bytes,
            // Who has the pages decides.
            when_full: WhenFull::Kill,
        })
    }

    /// The folders of the paging files, and the most that these may take together. `--spill` may be
    /// relative; messages and `farpage spill` need names that hold everywhere.
    fn read(&self) -> Result<(Vec<PathBuf>, Option<u64>)> {
        let mut dirs = self.spill.clone();
        if dirs.is_empty() {
            dirs.push(paging::default_dir());
        }
        paging::check_count(dirs.len())?;
        let limit = self.limit(dirs.len())?;
        let dirs = dirs.into_iter();
        let dirs = dirs.map(|dir| dir.canonicalize().unwrap_or(dir)).collect();
        Ok((dirs, limit))
    }

    fn limit(&self, files: usize) -> Result<Option<u64>> {
        let limit = absolute("--spill-limit", self.spill_limit.as_deref())?;
        let least = farpage_object::SEGMENT_BYTES as u64 * files as u64;
        match (limit, &self.spill_limit) {
            (Some(bytes), Some(text)) if bytes > 0 && bytes < least => bail!(
                "cannot run with --spill-limit {text}: paging files grow by {0} each; \
                 give at least {0}, or 0 for none",
                human(least)
            ),
            (limit, _) => Ok(limit),
        }
    }
}

/// A size that cannot be a percentage, for there is nothing that it could be a percentage of.
///
/// # Errors
/// When it is one, or no size.
pub fn absolute(option: &str, text: Option<&str>) -> Result<Option<u64>> {
    match text.map(|text| Size::parse(option, text)).transpose()? {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Size::Percent(_)) => bail!(
            "cannot read {option} '{}': it takes no percentage; write e.g. 512M or 20G",
            text.unwrap_or_default()
        ),
    }
}
