//! From the command line of `farpage run` to a run that is ready to start, or a refusal.

use anyhow::{Result, bail};
use farpage_default_pager::manager::paging::{RAM_MIN_BYTES, whole_pages};
use farpage_supervisor::config::{RunOptions, THRESHOLD_BYTES};
use farpage_supervisor::program;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::size::human;

use super::args::RunArgs;
use crate::maps;
use crate::memory::{COMPRESSED_OF_RUN, absolute};

/// What a program can address.
const ADDRESSES_BYTES: u64 = 128 << 40;

/// Checks the sizes of `args`, completes them, and finds the program.
///
/// # Errors
/// The first thing that can't be done as asked, and what to write instead.
pub fn of(args: &RunArgs, limit: &MemoryLimit) -> Result<RunOptions> {
    let is_cluster = args.join.cluster.is_some();
    if is_cluster && !args.map.is_empty() {
        bail!("cannot run with --cluster and --map at a time: leave one of them out");
    }
    let name = &args.program[0];
    let path = std::env::var_os("PATH");
    Ok(RunOptions {
        memory: args.memory.config(limit, COMPRESSED_OF_RUN)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::{Path, PathBuf};

    const LIMIT: MemoryLimit = MemoryLimit {
        cgroup: None,
        available: 10 << 30,
        total: 12 << 30,
    };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn prepare(line: &[&str]) -> Result<RunOptions> {
        let line = ["run"].iter().chain(line).chain(&["true"]);
        of(&Line::try_parse_from(line)?.run, &LIMIT)
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
