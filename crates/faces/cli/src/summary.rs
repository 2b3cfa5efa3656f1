//! What `farpage run` says at the end: what it took, what it cost, and who had to die of what.

use std::path::PathBuf;

use farpage_object::Death;

use farpage_supervisor::config::{Casualty, RunOptions};
use farpage_supervisor::sampler::{Peaks, Sample, Totals};
use farpage_supervisor::shm;
use farpage_text::size::{human, human_count, human_time};

const PAGE: u64 = farpage_object::PAGE_BYTES as u64;

/// Figures of a run that has ended.
pub struct Outcome<'a> {
    /// What its memory could take; where that followed a cgroup, at most.
    pub ram_bytes: u64,
    /// Sums of all counters.
    pub totals: &'a Totals,
    /// The last sample.
    pub last: &'a Sample,
    /// The highest values.
    pub peaks: &'a Peaks,
    /// From start to end.
    pub wall_ns: u64,
    /// What became of shared memory, with `--shm`.
    pub shared: Option<shm::SharedMemoryFigures>,
}

impl Outcome<'_> {
    /// Bytes that went into the compressor for one that came out; `None` when nothing did.
    pub fn compression_ratio(&self) -> Option<f64> {
        let out = self.totals.get("compress_out_bytes");
        (out > 0).then(|| self.totals.get("compress_in_bytes") as f64 / out as f64)
    }

    /// Time that faults took, as a share of the run: 1.0 is one thread waiting all the time.
    pub fn stalled(&self) -> f64 {
        self.stall_ns() as f64 / self.wall_ns.max(1) as f64
    }

    /// Time that faults took, those in shared memory too.
    fn stall_ns(&self) -> u64 {
        self.last.stall_ns + self.shared.map_or(0, |shared| shared.stall_ns)
    }
}

/// The summary, three to six lines.
pub fn text(outcome: &Outcome) -> String {
    let budget = human(outcome.ram_bytes);
    let peaks = outcome.peaks;
    if outcome.last.page_outs == 0 && outcome.last.page_ins == 0 {
        // What is in RAM is known only where not all that is mapped fits.
        let in_ram = match peaks.demand_bytes > outcome.ram_bytes {
            true => format!(" and {} in RAM", human(peaks.resident_bytes)),
            false => String::new(),
        };
        return format!(
            "farpage: nothing had to be paged: at most {} mapped{in_ram}, budget {budget}, {}\n",
            human(peaks.demand_bytes),
            human_time(outcome.wall_ns)
        );
    }
    let shared = outcome.shared.unwrap_or_default();
    let beside = match shared.objects {
        0 => "",
        _ => " beside shared memory",
    };
    let mut lines = vec![
        (
            "demand",
            format!(
                "{} at most{beside}; in RAM {} of {budget}, compressed up to {}",
                human(peaks.demand_bytes),
                human(peaks.used_bytes),
                human(peaks.compressed_bytes),
            ),
        ),
        ("paged out", paged_out(outcome)),
        ("paged in", paged_in(outcome)),
    ];
    if let Some(ratio) = outcome.compression_ratio() {
        let bytes = |name| human(outcome.totals.get(name));
        let (from, to) = (bytes("compress_in_bytes"), bytes("compress_out_bytes"));
        lines.push(("compression", format!("{ratio:.1} to 1: {from} took {to}")));
    }
    lines.push((
        "stalled",
        format!(
            "{} in {} faults, the longest {}",
            human_time(outcome.stall_ns()),
            human_count(outcome.last.faults + shared.faults),
            human_time(outcome.totals.get("stall_ns_max").max(shared.stall_ns_max)),
        ),
    ));
    lines.push((
        "time",
        format!(
            "{}, {:.0}% of it stalled",
            human_time(outcome.wall_ns),
            outcome.stalled() * 100.0
        ),
    ));
    let mut text = String::new();
    for (at, (name, value)) in lines.iter().enumerate() {
        let head = if at == 0 { "farpage:" } else { "" };
        text += &format!("{head:8} {name:<11}  {value}\n");
    }
    text
}

fn paged_out(outcome: &Outcome) -> String {
    let pages = |name| outcome.totals.get(name) * PAGE;
    let dropped = pages("page_outs_clean") + pages("zero_pages_dropped");
    format!(
        "{}: {} compressed, {} to disk, {} clean or zero",
        human(outcome.last.page_outs * PAGE),
        human(pages("page_outs_compressed")),
        human(pages("page_outs_spilled")),
        human(dropped),
    )
}

fn paged_in(outcome: &Outcome) -> String {
    let pages = |name| human(outcome.totals.get(name) * PAGE);
    format!(
        "{}: {} decompressed, {} from disk; {} ahead of need",
        human(outcome.last.page_ins * PAGE),
        pages("page_ins_compressed"),
        pages("page_ins_spilled"),
        pages("prefetched"),
    )
}

/// Which process Farpage had to end, why, and what to do; `dirs` have its paging files. `None`: it has
/// said so itself.
pub fn casualty(casualty: &Casualty, options: &RunOptions, dirs: &[PathBuf]) -> Option<String> {
    let who = match casualty.name.as_str() {
        "" => format!("process {}", casualty.pid),
        name => format!("{name} (process {})", casualty.pid),
    };
    let shown: Vec<String> = dirs
        .iter()
        .map(|dir| format!("'{}'", dir.display()))
        .collect();
    let cause = cause(casualty.cause, options, &shown.join(", "))?;
    Some(format!("farpage: {who} was killed: {cause}\n"))
}

fn cause(cause: Death, options: &RunOptions, dirs: &str) -> Option<String> {
    let cause = match cause {
        Death::OutOfSpace => {
            let limit = match options.memory.spill_limit_bytes {
                Some(bytes) => format!("limited to {} by --spill-limit", human(bytes)),
                None => "as large as their disks allow".to_string(),
            };
            format!(
                "a page had to leave RAM and there was no room for it: the compressed tier ({}) \
                 and the paging files in {dirs} ({limit}) are full; make room there, give another \
                 directory with --spill, raise --spill-limit, or, while a run goes on: \
                 farpage spill add DIR",
                human(options.memory.compressed_max_bytes)
            )
        }
        Death::Corrupt => format!(
            "a page that came back from {dirs} was not what had been written (its checksum \
             differs), and going on would have computed with wrong data; check that disk and its \
             cables, or give another directory with --spill"
        ),
        Death::ReadError => format!(
            "a page could not be read back from the paging files in {dirs}; \
             see dmesg for the disk's error, and give another directory with --spill"
        ),
        Death::WriteError => format!(
            "a page could not be written to the paging files in {dirs} and no other place was \
             left; see dmesg for the disk's error, and give another directory with --spill"
        ),
        Death::Told | Death::Alive => return None,
    };
    Some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_default_pager::manager::paging::{PagingConfig, WhenFull};
    use farpage_object::Control;
    use farpage_supervisor::config::THRESHOLD_BYTES;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn options() -> RunOptions {
        RunOptions {
            memory: PagingConfig {
                ram_bytes: 1 << 30,
                follows_cgroup: false,
                compressed_max_bytes: 1 << 28,
                spill_dirs: vec!["/var/tmp".into(), "/mnt/fast".into()],
                spill_limit_bytes: Some(4 << 30),
                when_full: WhenFull::Kill,
            },
            threshold_bytes: THRESHOLD_BYTES,
            machine_bytes: None,
            exec: None,
            maps: Vec::new(),
            deadline: None,
            record: None,
            replay: None,
            shm: false,
            stdio: false,
            trace: false,
            program: "/bin/true".into(),
            args: vec!["true".into()],
        }
    }

    fn summary(fill: impl Fn(&Control)) -> String {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        fill(control);
        let mut sampler = farpage_supervisor::sampler::Sampler::new(control, false);
        sampler.take(58_200_000_000);
        text(&Outcome {
            ram_bytes: 1 << 30,
            totals: sampler.totals(),
            last: sampler.last(),
            peaks: sampler.peaks(),
            wall_ns: 58_200_000_000,
            shared: None,
        })
    }

    #[test]
    fn a_run_that_fitted_is_one_line() {
        let text = |demand_bytes, resident_bytes| {
            summary(|control| {
                control.demand_bytes.store(demand_bytes, Ordering::Relaxed);
                control
                    .resident_bytes
                    .store(resident_bytes, Ordering::Relaxed);
            })
        };
        let head = "farpage: nothing had to be paged: at most";
        let tail = "budget 1.00 GiB, 58.2 s\n";
        assert_eq!(text(312 << 20, 0), format!("{head} 312 MiB mapped, {tail}"));
        let sparse = format!("{head} 3.00 GiB mapped and 312 MiB in RAM, {tail}");
        assert_eq!(text(3 << 30, 312 << 20), sparse);
    }

    #[test]
    fn a_run_that_paged_is_accounted_for() {
        let text = summary(|control| {
            let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
            set(&control.demand_bytes, 3 << 30);
            set(&control.resident_bytes, 800 << 20);
            set(&control.compressed_bytes, 200 << 20);
            let past = &control.past;
            set(&past.faults, 123_456);
            set(&past.page_outs_compressed, 400_000);
            set(&past.page_outs_spilled, 300_000);
            set(&past.zero_pages_dropped, 1000);
            set(&past.page_ins_compressed, 200_000);
            set(&past.page_ins_spilled, 100_000);
            set(&past.prefetched, 50_000);
            set(&past.compress_in_bytes, 310);
            set(&past.compress_out_bytes, 100);
            set(&past.stall_ns, 12_300_000_000);
            set(&past.stall_ns_max, 9_000_000);
        });
        let expected = "\
farpage: demand       3.00 GiB at most; in RAM 0.98 GiB of 1.00 GiB, compressed up to 200 MiB
         paged out    2.67 GiB: 1.53 GiB compressed, 1.14 GiB to disk, 3.91 MiB clean or zero
         paged in     1.14 GiB: 781 MiB decompressed, 391 MiB from disk; 195 MiB ahead of need
         compression  3.1 to 1: 310 B took 100 B
         stalled      12.3 s in 123k faults, the longest 9 ms
         time         58.2 s, 21% of it stalled
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_casualty_is_told_what_to_do() {
        let dead = |cause| Casualty {
            pid: 77,
            name: "python3".to_string(),
            cause,
        };
        let dirs = options().memory.spill_dirs;
        let message = casualty(&dead(Death::OutOfSpace), &options(), &dirs).expect("it is told");
        for part in [
            "farpage: python3 (process 77) was killed",
            "'/var/tmp', '/mnt/fast' (limited to 4.00 GiB by --spill-limit)",
            "farpage spill add DIR",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let message = casualty(&dead(Death::Corrupt), &options(), &dirs).expect("it is told");
        assert!(message.contains("checksum"), "{message}");
        assert_eq!(casualty(&dead(Death::Told), &options(), &dirs), None);
    }
}
