//! What the tree is doing, read from the control block: sums over live and past tasks, the highest
//! values seen, and a time series of bounded length. Nothing here knows a clock.

use std::sync::atomic::Ordering;

use farpage_object::{Control, Counters};
use serde::{Deserialize, Serialize};

/// Samples that a series holds before it is thinned to half.
const SERIES_MAX: usize = 4096;
/// Nanoseconds between samples of a series, to begin with.
pub const SERIES_STEP_NS: u64 = 50_000_000;

/// One value per counter of [`Counters`], with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    values: Vec<(&'static str, u64)>,
}

impl Totals {
    /// Sums the counters of all tasks, live and past.
    pub fn of(control: &Control) -> Self {
        let mut totals = Self::default();
        control.past.each(|name, counter| {
            totals.values.push((name, counter.load(Ordering::Relaxed)));
        });
        for task in control.slots() {
            if task.pid.load(Ordering::Acquire) != 0 {
                totals.add(&task.counters);
            }
        }
        totals
    }

    fn add(&mut self, counters: &Counters) {
        let mut at = 0;
        counters.each(|name, counter| {
            let value = counter.load(Ordering::Relaxed);
            let total = &mut self.values[at].1;
            *total = if name.ends_with("_max") {
                value.max(*total)
            } else {
                total.wrapping_add(value)
            };
            at += 1;
        });
    }

    /// Makes counters no smaller than they were in `before`: while a dead task's counters are
    /// folded into the past they are missing for an instant.
    fn not_below(&mut self, before: &Self) {
        let counters = self.values.iter_mut().zip(&before.values);
        for (now, before) in counters.skip(Counters::GAUGES) {
            now.1 = now.1.max(before.1);
        }
    }

    /// The value of counter `name`.
    ///
    /// # Panics
    /// When there is no such counter.
    pub fn get(&self, name: &str) -> u64 {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.expect("a counter of the control block").1
    }

    /// Each counter with its name, in the order of the control block.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.values.iter().copied()
    }
}

/// What matters at one moment. Bytes are now, counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the start of the run.
    pub at_ns: u64,
    /// Managed memory that is mapped.
    pub demand_bytes: u64,
    /// Managed memory in RAM.
    pub resident_bytes: u64,
    /// RAM that the compressed tier takes.
    pub compressed_bytes: u64,
    /// Memory that the compressed tier stands for.
    pub compressed_from_bytes: u64,
    /// Memory whose only copy is in paging files.
    pub spilled_bytes: u64,
    /// Faults answered.
    pub faults: u64,
    /// Pages brought in, from wherever.
    pub page_ins: u64,
    /// Pages taken out, wherever to.
    pub page_outs: u64,
    /// Time that faults took, all threads together.
    pub stall_ns: u64,
}

impl Sample {
    fn new(at_ns: u64, control: &Control, totals: &Totals) -> Self {
        let sum = |names: &[&str]| names.iter().map(|name| totals.get(name)).sum();
        Self {
            at_ns,
            demand_bytes: control.demand_bytes.load(Ordering::Relaxed),
            resident_bytes: control.resident_bytes.load(Ordering::Relaxed),
            compressed_bytes: control.compressed_bytes.load(Ordering::Relaxed),
            compressed_from_bytes: totals.get("compressed_from_bytes"),
            spilled_bytes: totals.get("spilled_bytes"),
            faults: totals.get("faults"),
            page_ins: sum(&["page_ins_compressed", "page_ins_spilled"]),
            page_outs: sum(&[
                "page_outs_compressed",
                "page_outs_spilled",
                "page_outs_clean",
                "zero_pages_dropped",
            ]),
            stall_ns: totals.get("stall_ns"),
        }
    }
}

/// The highest values that any sample showed, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peaks {
    /// Managed memory that was mapped at one time.
    pub demand_bytes: u64,
    /// Managed memory in RAM.
    pub resident_bytes: u64,
    /// RAM taken by the compressed tier.
    pub compressed_bytes: u64,
    /// Resident and compressed together: what the budget bounds.
    pub used_bytes: u64,
    /// Memory in paging files.
    pub spilled_bytes: u64,
}

impl Peaks {
    fn take(&mut self, sample: &Sample) {
        let raise = |peak: &mut u64, value: u64| *peak = value.max(*peak);
        raise(&mut self.demand_bytes, sample.demand_bytes);
        raise(&mut self.resident_bytes, sample.resident_bytes);
        raise(&mut self.compressed_bytes, sample.compressed_bytes);
        let used = sample.resident_bytes + sample.compressed_bytes;
        raise(&mut self.used_bytes, used);
        raise(&mut self.spilled_bytes, sample.spilled_bytes);
    }
}

/// Takes samples and remembers what the summary and the statistics need of them.
pub struct Sampler {
    control: &'static Control,
    totals: Totals,
    last: Sample,
    peaks: Peaks,
    series: Option<Series>,
}

impl Sampler {
    /// A sampler of `control`; with `series` it keeps a time series.
    pub fn new(control: &'static Control, series: bool) -> Self {
        Self {
            control,
            totals: Totals::of(control),
            last: Sample::default(),
            peaks: Peaks::default(),
            series: series.then(Series::new),
        }
    }

    /// Looks at the control block, `at_ns` after the start of the run.
    pub fn take(&mut self, at_ns: u64) -> Sample {
        let mut totals = Totals::of(self.control);
        totals.not_below(&self.totals);
        let sample = Sample::new(at_ns, self.control, &totals);
        self.totals = totals;
        self.last = sample;
        self.peaks.take(&sample);
        if let Some(series) = &mut self.series {
            series.push(sample);
        }
        sample
    }

    /// Sums of all counters at the last sample.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The last sample.
    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// The highest values so far.
    pub fn peaks(&self) -> &Peaks {
        &self.peaks
    }

    /// The samples so far, when a series was wanted.
    pub fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }
}

/// Samples at even distances. When there are too many, every other one goes and the distance
/// doubles: a run of any length has between 2048 and 4096.
pub struct Series {
    step_ns: u64,
    samples: Vec<Sample>,
}

impl Series {
    fn new() -> Self {
        Self {
            step_ns: SERIES_STEP_NS,
            samples: Vec::new(),
        }
    }

    fn push(&mut self, sample: Sample) {
        let due = match self.samples.last() {
            Some(last) => sample.at_ns >= last.at_ns + self.step_ns - SERIES_STEP_NS / 10,
            None => true,
        };
        if !due {
            return;
        }
        self.samples.push(sample);
        if self.samples.len() == SERIES_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.step_ns *= 2;
        }
    }

    /// Nanoseconds between samples.
    pub fn step_ns(&self) -> u64 {
        self.step_ns
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> &'static Control {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        control
    }

    /// What a task counts, in a slot of its own.
    fn task(control: &Control, faults: u64, stall_max: u64) -> usize {
        let slot = control.claim_another(100).unwrap();
        let counters = &control.tasks[slot].counters;
        counters.faults.store(faults, Ordering::Relaxed);
        counters.stall_ns_max.store(stall_max, Ordering::Relaxed);
        slot
    }

    #[test]
    fn totals_are_over_live_and_past_tasks() {
        let control = control();
        task(control, 10, 7);
        let dies = task(control, 20, 9);
        let before = Totals::of(control);
        assert_eq!(before.get("faults"), 30);
        assert_eq!(before.get("stall_ns_max"), 9, "a maximum is not a sum");
        control.reap(dies);
        assert_eq!(Totals::of(control), before, "a dead task still counts");
        assert_eq!(task(control, 1, 0), dies);
        assert_eq!(Totals::of(control).get("faults"), 31);
    }

    #[test]
    fn slots_that_nobody_claimed_take_no_memory() {
        use std::os::unix::fs::MetadataExt;

        let (fd, control) = farpage_sys::control::create().unwrap();
        let taken = || {
            let file = std::fs::metadata(format!("/proc/self/fd/{}", fd.0)).unwrap();
            file.blocks() * 512
        };
        let before = taken();
        task(control, 10, 7);
        assert_eq!(Totals::of(control).get("faults"), 10);
        assert!(control.largest_but(1).is_none());
        assert!(taken() <= before + (16 << 10), "{} bytes", taken());
        farpage_sys::file::close(fd);
    }

    #[test]
    fn counters_never_fall_and_gauges_may() {
        let control = control();
        let mut sampler = Sampler::new(control, false);
        let counters = &control.tasks[task(control, 10, 0)].counters;
        let spilled = &counters.spilled_bytes;
        spilled.store(4096, Ordering::Relaxed);
        sampler.take(1);
        counters.faults.store(4, Ordering::Relaxed);
        spilled.store(0, Ordering::Relaxed);
        let sample = sampler.take(2);
        assert_eq!(sample.faults, 10);
        assert_eq!(sample.spilled_bytes, 0);
        assert_eq!(sampler.peaks().spilled_bytes, 4096);
    }

    #[test]
    fn peaks_outlive_what_they_saw() {
        let control = control();
        let mut sampler = Sampler::new(control, false);
        control.resident_bytes.store(5 << 20, Ordering::Relaxed);
        control.compressed_bytes.store(1 << 20, Ordering::Relaxed);
        sampler.take(1);
        control.resident_bytes.store(2 << 20, Ordering::Relaxed);
        control.compressed_bytes.store(3 << 20, Ordering::Relaxed);
        sampler.take(2);
        assert_eq!(sampler.peaks().resident_bytes, 5 << 20);
        assert_eq!(sampler.peaks().compressed_bytes, 3 << 20);
        assert_eq!(sampler.peaks().used_bytes, 6 << 20);
        assert_eq!(sampler.last().resident_bytes, 2 << 20);
    }

    #[test]
    fn a_series_stays_bounded_and_even() {
        let mut series = Series::new();
        for at in 0..40_000u64 {
            series.push(Sample {
                at_ns: at * SERIES_STEP_NS,
                ..Sample::default()
            });
        }
        let samples = series.samples();
        assert!((SERIES_MAX / 2..SERIES_MAX).contains(&samples.len()));
        assert_eq!(series.step_ns(), SERIES_STEP_NS * 16);
        let gaps = samples.windows(2).map(|pair| pair[1].at_ns - pair[0].at_ns);
        assert!(gaps.into_iter().all(|gap| gap == series.step_ns()));
        series.push(Sample {
            at_ns: samples_end(&series) + 1,
            ..Sample::default()
        });
        assert_eq!(samples_end(&series), 39_984 * SERIES_STEP_NS);
    }

    fn samples_end(series: &Series) -> u64 {
        series.samples().last().unwrap().at_ns
    }
}
