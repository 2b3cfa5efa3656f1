//! From the command line of `farpage run` to a run that is ready to start, or a refusal.

use std::path::PathBuf;

use anyhow::{Result, bail};

use clap::Args;
use farpage_supervisor::config::{RunOptions, THRESHOLD_BYTES};
use farpage_supervisor::program;

use crate::maps;
use crate::run::RunArgs;
use farpage_manager::paging::{self, PagingConfig, RAM_MIN_BYTES, WhenFull, whole_pages};
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::size::{Size, human};

/// What `--ram` must leave for resident pages beside the compressed tier.
const RESIDENT_MIN_BYTES: u64 = RAM_MIN_BYTES / 2;
/// What a program can address.
const ADDRESSES_BYTES: u64 = 128 << 40;

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

/// Checks the sizes of `args`, completes them, and finds the program.
///
/// # Errors
/// The first thing that can't be done as asked, and what to write instead.
pub fn options(args: &RunArgs, limit: &MemoryLimit) -> Result<RunOptions> {
    let is_cluster = args.join.cluster.is_some();
    if is_cluster && !args.map.is_empty() {
        bail!("cannot run with --cluster and --map at a time: leave one of them out");
    }
    let name = &args.program[0];
    let path = std::env::var_os("PATH");
    Ok(RunOptions {
        memory: memory(&args.memory, limit, COMPRESSED_OF_RUN)?,
        threshold_bytes: absolute("--threshold", args.threshold.as_deref())?
            .unwrap_or(THRESHOLD_BYTES),
        machine_bytes: machine(args.machine.as_deref())?,
        maps: maps::options(&args.map, &maps::folder()?)?,
        exec: None,
        deadline: args.deadline,
        record: args.record.clone(),
        replay: args.replay.clone(),
        shm: args.shm || is_cluster,
        stdio: args.stdio,
        trace: args.trace,
        program: program::find(name, path.as_deref()).map_err(anyhow::Error::new)?,
        args: args.program.clone(),
    })
}

/// The most that compressed pages may take without `--compressed` where their part sizes itself.
pub const COMPRESSED_OF_RUN: Size = Size::Percent(75.0);
/// The same where it is what it may be.
pub const COMPRESSED_OF_HOST: Size = Size::Percent(25.0);

/// Checks the sizes and completes them; `compressed` stands for `--compressed`, unless it is said.
///
/// # Errors
/// As [`options`].
pub fn memory(args: &MemoryArgs, limit: &MemoryLimit, compressed: Size) -> Result<PagingConfig> {
    let ram_bytes = ram(args, limit)?;
    let compressed_max_bytes = compressed_max(args, ram_bytes, compressed)?;
    let follows_cgroup = args.ram.is_none() && limit.cgroup.is_some();
    let (spill_dirs, spill_limit_bytes) = files(&args.files)?;
    Ok(PagingConfig {
        ram_bytes,
        follows_cgroup,
        compressed_max_bytes,
        spill_dirs,
        spill_limit_bytes,
        when_full: args.when_full.unwrap_or_else(WhenFull::unless_said),
    })
}

/// As [`memory`], for a process that has compressed pages only.
///
/// # Errors
/// As [`options`].
pub fn paging(
    compressed: Option<&str>,
    args: &FileArgs,
    limit: &MemoryLimit,
) -> Result<PagingConfig> {
    let size = match compressed {
        Some(text) => Size::parse("--compressed", text)?,
        None => Size::Percent(20.0),
    };
    let bytes = whole_pages(size.of(limit.bytes()));
    let (spill_dirs, spill_limit_bytes) = files(args)?;
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

/// The folders of the paging files, and the most that these may take together.
fn files(args: &FileArgs) -> Result<(Vec<PathBuf>, Option<u64>)> {
    let spill_dirs = if args.spill.is_empty() {
        vec![paging::default_dir()]
    } else {
        args.spill.clone()
    };
    paging::check_count(spill_dirs.len())?;
    let limit = spill_limit(args, spill_dirs.len())?;
    Ok((absolute_dirs(spill_dirs), limit))
}

/// What programs are told to be the memory of the machine.
fn machine(text: Option<&str>) -> Result<Option<u64>> {
    let Some(bytes) = absolute("--memory", text)?.map(whole_pages) else {
        return Ok(None);
    };
    let text = text.unwrap_or_default();
    if bytes < RAM_MIN_BYTES {
        bail!(
            "cannot run with --memory {text}: no program counts on a machine of less than {}; \
             give --memory 16M or more",
            human(RAM_MIN_BYTES)
        );
    }
    if bytes > ADDRESSES_BYTES {
        bail!(
            "cannot run with --memory {text}: a program has addresses for no more than {}; \
             give that or less",
            human(ADDRESSES_BYTES)
        );
    }
    Ok(Some(bytes))
}

/// What the user should know about options that are allowed but odd.
pub fn warnings(options: &RunOptions, limit: &MemoryLimit) -> Vec<String> {
    let ram_bytes = options.memory.ram_bytes;
    let mut warnings = Vec::new();
    if let Some(cgroup) = &limit.cgroup
        && ram_bytes >= cgroup.bytes
    {
        warnings.push(format!(
            "warning: --ram {} is no less than this cgroup's limit of {} ({}), so Linux may kill \
             the program first; give at most 80% of it, {}",
            human(ram_bytes),
            human(cgroup.bytes),
            cgroup.file.display(),
            human(cgroup.bytes / 5 * 4)
        ));
    } else if ram_bytes > limit.total && limit.total > 0 {
        warnings.push(format!(
            "warning: --ram {} is more than the {} of this machine; give at most 80% of it, {}",
            human(ram_bytes),
            human(limit.total),
            human(limit.total / 5 * 4)
        ));
    }
    warnings
}

fn ram(args: &MemoryArgs, limit: &MemoryLimit) -> Result<u64> {
    let (size, shown) = match &args.ram {
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

fn compressed_max(args: &MemoryArgs, ram_bytes: u64, unless_said: Size) -> Result<u64> {
    let most = ram_bytes - RESIDENT_MIN_BYTES;
    let bytes = |size: Size| whole_pages(size.of(ram_bytes));
    let Some(shown) = &args.compressed else {
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

fn spill_limit(args: &FileArgs, files: usize) -> Result<Option<u64>> {
    let limit = absolute("--spill-limit", args.spill_limit.as_deref())?;
    let least = farpage_abi::SEGMENT_BYTES as u64 * files as u64;
    match (limit, &args.spill_limit) {
        (Some(bytes), Some(text)) if bytes > 0 && bytes < least => bail!(
            "cannot run with --spill-limit {text}: paging files grow by {0} each; \
             give at least {0}, or 0 for none",
            human(least)
        ),
        (limit, _) => Ok(limit),
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

/// `--spill` may be relative; messages and `farpage spill` need names that hold everywhere.
fn absolute_dirs(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    dirs.into_iter()
        .map(|dir| dir.canonicalize().unwrap_or(dir))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::Path;

    const LIMIT: MemoryLimit = MemoryLimit {
        cgroup: None,
        available: 10 << 30,
        total: 12 << 30,
    };

    fn prepare(line: &[&str]) -> Result<RunOptions> {
        let line = ["farpage", "run"].iter().chain(line).chain(&["true"]);
        let Command::Run(args) = Cli::try_parse_from(line)?.command else {
            panic!("not a run");
        };
        options(&args, &LIMIT)
    }

    fn refusal(line: &[&str]) -> String {
        prepare(line).unwrap_err().to_string()
    }

    #[test]
    fn defaults_follow_from_the_memory_limit() {
        let options = prepare(&["--spill", "/tmp"]).unwrap();
        assert_eq!(options.memory.ram_bytes, 8 << 30);
        assert_eq!(options.memory.compressed_max_bytes, 6 << 30);
        assert_eq!(options.memory.spill_dirs, [Path::new("/tmp")]);
        assert_eq!(options.memory.spill_limit_bytes, None);
        assert_eq!(options.threshold_bytes, 128 << 10);
        assert!(options.program.is_absolute());
        assert_eq!(options.args, ["true"]);
    }

    #[test]
    fn a_budget_below_the_minimum_is_refused() {
        assert_eq!(
            prepare(&["--ram", "16M"]).unwrap().memory.ram_bytes,
            16 << 20
        );
        assert_eq!(
            refusal(&["--ram", "15M"]),
            "cannot run with --ram 15M: 15.0 MiB is below the minimum of 16.0 MiB; \
             give --ram 16M or more"
        );
        assert!(refusal(&["--ram", "0.01%"]).contains("below the minimum"));
    }

    #[test]
    fn the_compressed_tier_must_fit_into_the_budget() {
        let fits = prepare(&["--ram", "1G", "--compressed", "50%"]).unwrap();
        assert_eq!(fits.memory.compressed_max_bytes, 512 << 20);
        let off = prepare(&["--compressed", "0"]).unwrap();
        assert_eq!(off.memory.compressed_max_bytes, 0);
        let message = refusal(&["--ram", "1G", "--compressed", "1G"]);
        assert!(message.contains("it is part of --ram"), "{message}");
    }

    #[test]
    fn a_spill_limit_is_a_size_of_its_own() {
        let limited = prepare(&["--spill-limit", "2G"]).unwrap();
        assert_eq!(limited.memory.spill_limit_bytes, Some(2 << 30));
        assert!(refusal(&["--spill-limit", "50%"]).contains("takes no percentage"));
        assert!(refusal(&["--spill-limit", "4k"]).contains("grow by 1.00 MiB each"));
        let none = prepare(&["--spill-limit", "0"]).unwrap();
        assert_eq!(none.memory.spill_limit_bytes, Some(0));
    }

    #[test]
    fn the_memory_that_programs_are_told_of_is_one_that_there_could_be() {
        let told = |size| prepare(&["--memory", size]).unwrap().machine_bytes;
        assert_eq!(told("8G"), Some(8 << 30));
        assert_eq!(told("20MB"), Some(20_000_000 / 4096 * 4096));
        assert_eq!(told("128T"), Some(128 << 40));
        assert_eq!(prepare(&[]).unwrap().machine_bytes, None);
        assert_eq!(
            refusal(&["--memory", "1M"]),
            "cannot run with --memory 1M: no program counts on a machine of less than 16.0 MiB; \
             give --memory 16M or more"
        );
        assert_eq!(
            refusal(&["--memory", "129T"]),
            "cannot run with --memory 129T: a program has addresses for no more than 128 TiB; \
             give that or less"
        );
        assert!(refusal(&["--memory", "50%"]).contains("takes no percentage"));
        assert!(refusal(&["--memory", "much"]).contains("cannot read --memory 'much'"));
    }

    #[test]
    fn a_budget_above_the_limit_is_warned_of() {
        let mut limit = LIMIT;
        let mut options = prepare(&["--ram", "1G"]).unwrap();
        assert!(warnings(&options, &limit).is_empty());
        options.memory.ram_bytes = 20 << 30;
        assert!(warnings(&options, &limit)[0].contains("of this machine"));
        limit.cgroup = Some(farpage_sys::memory_limit::CgroupLimit {
            bytes: 1 << 30,
            file: PathBuf::from("/sys/fs/cgroup/memory.max"),
        });
        assert!(warnings(&options, &limit)[0].contains("this cgroup's limit of 1.00 GiB"));
    }
}
