//! The line that a terminal shows while the program runs.
//!
//! It sits below the program's output: the cursor is saved, the line is drawn one row further
//! down, the cursor goes back. So a program that prints a line bit by bit is not cut in two.

use std::io::{IsTerminal, Write};

use rustix::termios::{self, LocalModes};

use farpage_supervisor::sampler::Sample;
use farpage_text::size::{human, human_count, human_time};

/// Go down one row (scrolling if need be) and up again: now there is a row below.
const MAKE_ROOM: &str = "\x1bD\x1b[A";
const SAVE_AND_GO_BELOW: &str = "\x1b7\x1b[B\r";
const ERASE_REST: &str = "\x1b[K";
const RESTORE: &str = "\x1b8";

/// Draws the live line on standard error.
pub struct Live {
    before: Sample,
    drawn: bool,
}

impl Live {
    /// A live line, when standard error is a terminal that can show it.
    pub fn new() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        (std::io::stderr().is_terminal() && !dumb).then_some(Self {
            before: Sample::default(),
            drawn: false,
        })
    }

    /// Shows `sample` of a run with so much memory, or for how long it waits because paging space is full,
    /// unless the program has the screen for itself.
    pub fn draw(&mut self, sample: &Sample, ram_bytes: u64, full_ns: Option<u64>) {
        let before = std::mem::replace(&mut self.before, *sample);
        if !may_draw() {
            self.drawn = false;
            return;
        }
        let text = match full_ns {
            None => line(sample, &before, ram_bytes, columns()),
            Some(ns) => waiting(ns, sample.spilled_bytes, columns()),
        };
        self.drawn = true;
        write(&format!(
            "{MAKE_ROOM}{SAVE_AND_GO_BELOW}{text}{ERASE_REST}{RESTORE}"
        ));
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            write(&format!("{SAVE_AND_GO_BELOW}{ERASE_REST}{RESTORE}"));
        }
    }
}

/// One write, so that nothing gets in between. A terminal that is gone is no error of the run.
fn write(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Width of the terminal; 80 when it does not say.
fn columns() -> usize {
    let columns = termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 {
        80
    } else {
        usize::from(columns)
    }
}

/// True when the terminal is ours to write on: we are in the foreground, and no program reads it
/// key by key (editors, pagers, shells with line editing).
fn may_draw() -> bool {
    let terminal = std::io::stderr();
    let foreground =
        termios::tcgetpgrp(&terminal).is_ok_and(|group| group == rustix::process::getpgrp());
    let line_mode = termios::tcgetattr(&terminal)
        .is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON));
    foreground && line_mode
}

/// The text while paging space is full, in at most `columns` less one.
fn waiting(for_ns: u64, spilled_bytes: u64, columns: usize) -> String {
    let (time, out) = (human_time(for_ns), human(spilled_bytes));
    let all = [
        format!(
            "farpage  paging space is full, with {out}: waiting for room, {time}  (farpage spill add DIR)"
        ),
        format!("farpage  paging space is full: waiting, {time}  (farpage spill add DIR)"),
        format!("farpage  paging space is full: waiting, {time}"),
        format!("full: waiting, {time}"),
    ];
    let fits = |text: &String| text.chars().count() < columns;
    all.into_iter().find(fits).unwrap_or_default()
}

/// The text for `now`, where `before` is the sample before it, in at most `columns` less one.
fn line(now: &Sample, before: &Sample, ram_bytes: u64, columns: usize) -> String {
    let elapsed_ns = now.at_ns.saturating_sub(before.at_ns).max(1);
    let per_s = |now: u64, before: u64| {
        let grown = now.saturating_sub(before);
        (grown as f64 * 1e9 / elapsed_ns as f64) as u64
    };
    let stalled = now.stall_ns.saturating_sub(before.stall_ns) * 100 / elapsed_ns;
    let resident = human(now.resident_bytes);
    let compressed = human(now.compressed_bytes);
    let out = human(now.spilled_bytes);
    let ins = human_count(per_s(now.page_ins, before.page_ins));
    let full = format!(
        "farpage  resident {resident} of {}  compressed {compressed}  paged out {out}  \
         {ins} page-ins/s  stalled {stalled}%",
        human(ram_bytes)
    );
    let shorter = [
        format!(
            "farpage  resident {resident} of {}  paged out {out}  {ins} page-ins/s  \
             stalled {stalled}%",
            human(ram_bytes)
        ),
        format!("farpage  {resident} in RAM, {out} out, {ins} page-ins/s, stalled {stalled}%"),
        format!("{resident} in RAM, {out} out, stalled {stalled}%"),
        format!("{out} out, {stalled}%"),
    ];
    std::iter::once(full)
        .chain(shorter)
        .find(|text| text.chars().count() < columns)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Sample = Sample {
        at_ns: 1_000_000_000,
        demand_bytes: 0,
        resident_bytes: 0,
        compressed_bytes: 0,
        compressed_from_bytes: 0,
        spilled_bytes: 0,
        faults: 0,
        page_ins: 1000,
        page_outs: 0,
        stall_ns: 50_000_000,
    };

    fn now() -> Sample {
        Sample {
            at_ns: 1_200_000_000,
            resident_bytes: 812 << 20,
            compressed_bytes: 190 << 20,
            spilled_bytes: 23 << 27,
            page_ins: 3480,
            stall_ns: 118_000_000,
            ..BEFORE
        }
    }

    #[test]
    fn the_line_says_what_happened_since_the_last() {
        assert_eq!(
            line(&now(), &BEFORE, 1 << 30, 120),
            "farpage  resident 812 MiB of 1.00 GiB  compressed 190 MiB  paged out 2.88 GiB  \
             12.4k page-ins/s  stalled 34%"
        );
    }

    #[test]
    fn while_paging_space_is_full_it_says_that() {
        let long = "farpage  paging space is full, with 4.00 GiB: waiting for room, 12.0 s  (farpage spill add DIR)";
        assert_eq!(waiting(12_000_000_000, 4 << 30, 120), long);
        for columns in 0..150 {
            let text = waiting(12_000_000_000, 4 << 30, columns);
            assert!(text.len() < columns.max(1), "{columns}: {text}");
            assert!(columns < 22 || text.contains("12.0 s"), "{columns}");
        }
    }

    #[test]
    fn the_line_fits_every_terminal() {
        for columns in 0..150 {
            let text = line(&now(), &BEFORE, 1 << 30, columns);
            assert!(text.len() < columns.max(1), "{columns}: {text}");
            assert!(columns < 22 || text.contains("2.88 GiB"), "{columns}");
        }
    }
}
