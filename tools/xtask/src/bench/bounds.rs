//! Bounds that a bench keeps with `--assert`: ratios of figures of one run, beside what docs/ROWS.md says was
//! reached.

use anyhow::{Result, bail, ensure};

use super::load::Load;
use super::spread;
use crate::args::Args;
use crate::table::median;

/// Fewer runs say too little.
const RUNS_LEAST: u32 = 5;

/// A ratio of two figures of the same run, and how much worse than it was it may be.
pub(crate) struct Bound {
    pub(crate) what: &'static str,
    reached: f64,
    /// Percent.
    tolerance: u32,
    better: Better,
}

#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

impl Bound {
    /// The more the better: times that something else takes of what is ours.
    pub(crate) const fn at_least(what: &'static str, reached: f64, tolerance: u32) -> Self {
        Self {
            what,
            reached,
            tolerance,
            better: Better::More,
        }
    }

    /// The less the better: times that ours takes of something else.
    pub(crate) const fn at_most(what: &'static str, reached: f64, tolerance: u32) -> Self {
        Self {
            what,
            reached,
            tolerance,
            better: Better::Less,
        }
    }

    /// Worse than this is missed.
    fn bound(&self) -> f64 {
        let part = f64::from(self.tolerance) / 100.0;
        match self.better {
            Better::More => self.reached * (1.0 - part),
            Better::Less => self.reached * (1.0 + part),
        }
    }

    fn is_kept(&self, is: f64) -> bool {
        match self.better {
            Better::More => is >= self.bound(),
            Better::Less => is <= self.bound(),
        }
    }

    /// `at least 3.51 (reached 3.9, tolerance 10%)`
    pub(crate) fn promise(&self) -> String {
        let better = match self.better {
            Better::More => "at least",
            Better::Less => "at most",
        };
        format!(
            "{better} {} (reached {}, tolerance {}%)",
            three_digits(self.bound()),
            self.reached,
            self.tolerance
        )
    }
}

/// As many decimals as a reader can use.
fn three_digits(value: f64) -> String {
    let decimals = match value {
        small if small < 0.1 => 3,
        small if small < 10.0 => 2,
        _ => 1,
    };
    format!("{value:.decimals$}")
}

/// Whether the bounds of a bench are asserted.
pub(crate) struct Asserts {
    load: Option<Load>,
    is_wanted: bool,
}

impl Asserts {
    /// Takes `--assert`. With it, fails at once on a busy machine: what is built then would be in vain.
    pub(crate) fn wanted(args: &mut Args, runs: u32) -> Result<Self> {
        let asserts = Self::parse(args, runs)?;
        if asserts.is_wanted {
            Load::begin()?;
        }
        Ok(asserts)
    }

    fn parse(args: &mut Args, runs: u32) -> Result<Self> {
        let is_wanted = args.flag("--assert");
        ensure!(
            !is_wanted || runs >= RUNS_LEAST,
            "--assert needs at least {RUNS_LEAST} runs, not {runs}: give --runs {RUNS_LEAST}, or leave it out"
        );
        Ok(Self {
            load: None,
            is_wanted,
        })
    }

    /// Everything is built: what comes is measured. Fails on a busy machine.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if self.is_wanted {
            self.load = Some(Load::begin()?);
        }
        Ok(())
    }

    /// All is measured: fails when the machine was busy, or a bound is missed. `ratios` gives those of all runs
    /// for what a bound is about; none, when that was not measured.
    pub(crate) fn end(self, bounds: &[Bound], ratios: impl Fn(&str) -> Vec<f64>) -> Result<()> {
        let Some(load) = self.load else {
            return Ok(());
        };
        load.end()?;
        let (lines, missed) = judge(bounds, ratios);
        println!("\nbounds: medians (least-most) of the ratios of each run");
        lines.iter().for_each(|line| println!("{line}"));
        match missed.as_slice() {
            [] => Ok(()),
            missed => bail!("{} bounds were missed: {}", missed.len(), missed.join("; ")),
        }
    }
}

/// A line for each bound, and those that were missed. What was hardly measured counts as skipped.
fn judge(bounds: &[Bound], ratios: impl Fn(&str) -> Vec<f64>) -> (Vec<String>, Vec<String>) {
    let mut missed = Vec::new();
    let line = |bound: &Bound| {
        let ratios = ratios(bound.what);
        if ratios.len() < RUNS_LEAST as usize {
            return format!("skipped: {}: measured {} times", bound.what, ratios.len());
        }
        let is = median(&ratios);
        let promise = bound.promise();
        let verdict = if bound.is_kept(is) {
            "kept"
        } else {
            missed.push(format!("{}: {}, {promise}", bound.what, three_digits(is)));
            "MISSED"
        };
        let decimals = if is < 0.1 { 3 } else { 2 };
        format!(
            "{}: {}, {promise}: {verdict}",
            bound.what,
            spread(&ratios, decimals)
        )
    };
    let lines = bounds.iter().map(line).collect();
    (lines, missed)
}

/// Of each run, one figure by another.
pub(crate) fn quotients(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(a, b)| a / b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [Bound; 3] = [
        Bound::at_least("getc of glibc / ours", 4.0, 10),
        Bound::at_most("ours / read", 1.0, 20),
        Bound::at_least("a peer / ours", 2.0, 10),
    ];

    fn ratios(getc: f64, read: f64) -> impl Fn(&str) -> Vec<f64> {
        move |what| match what {
            "getc of glibc / ours" => vec![getc, getc, getc + 0.5, getc, getc - 0.5],
            "ours / read" => vec![read; 5],
            _ => vec![9.0],
        }
    }

    #[test]
    fn what_is_within_the_tolerance_is_kept_and_what_is_hardly_measured_is_skipped() {
        let (lines, missed) = judge(&BOUNDS, ratios(3.6, 1.2));
        assert!(missed.is_empty(), "{missed:?}");
        assert_eq!(
            lines,
            [
                "getc of glibc / ours: 3.60 (3.10-4.10), at least 3.60 (reached 4, tolerance 10%): kept",
                "ours / read: 1.20 (1.20-1.20), at most 1.20 (reached 1, tolerance 20%): kept",
                "skipped: a peer / ours: measured 1 times",
            ]
        );
    }

    #[test]
    fn every_bound_that_is_missed_is_named() {
        let (lines, missed) = judge(&BOUNDS, ratios(3.1, 1.3));
        assert!(lines[0].ends_with("MISSED") && lines[1].ends_with("MISSED"));
        assert_eq!(
            missed,
            [
                "getc of glibc / ours: 3.10, at least 3.60 (reached 4, tolerance 10%)",
                "ours / read: 1.30, at most 1.20 (reached 1, tolerance 20%)",
            ]
        );
    }

    #[test]
    fn few_runs_are_refused_and_without_the_option_nothing_is_asserted() {
        let args = |line: &str| Args::new(line.split_whitespace().map(String::from));
        assert!(Asserts::parse(&mut args("--assert"), 4).is_err());
        let asserts = Asserts::parse(&mut args("--assert"), 5).unwrap();
        assert!(asserts.is_wanted);
        let mut not = Asserts::parse(&mut args(""), 1).unwrap();
        not.begin().unwrap();
        not.end(&BOUNDS, ratios(0.0, 9.0)).unwrap();
    }

    #[test]
    fn quotients_are_of_the_same_run() {
        assert_eq!(quotients(&[6.0, 9.0], &[3.0, 3.0]), [2.0, 3.0]);
    }
}
