//! `farpage doctor`: what works here, and the line that improves what does not.

mod kernel;
mod limits;
mod report;
mod space;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use farpage_default_pager::manager::paging;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::probe::kernel_release;
use farpage_sys::userfaultfd::{self, tier_name};

/// Say what works on this machine and how to improve it
///
/// Tries what `farpage run` needs: userfaultfd, kernel features, limits, room for paging files.
/// For each shortcoming it prints the command that removes it. Exit status 1 when `farpage run`
/// could not work.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Directory for paging files to look at; may be given again
    ///
    /// [default: $FARPAGE_SPILL, else $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Good to know; nothing to improve.
    Info,
    /// `farpage run` works, but not as well as it could.
    Warn,
    /// `farpage run` can't work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What it belongs to: a heading.
    pub(crate) group: &'static str,
    /// What was looked at.
    pub(crate) name: String,
    /// How it is.
    pub(crate) state: State,
    /// What was found, and what it means when it is not as it should be.
    pub(crate) found: String,
    /// Command lines that improve it, the first of them now, others for good or elsewhere.
    pub(crate) improve: Vec<String>,
}

impl Check {
    fn new(group: &'static str, name: &str, state: State, found: impl Into<String>) -> Self {
        Self {
            group,
            name: name.to_string(),
            state,
            found: found.into(),
            improve: Vec::new(),
        }
    }

    fn improve(mut self, line: impl Into<String>) -> Self {
        self.improve.push(line.into());
        self
    }
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Report {
    /// `farpage run` can work.
    works: bool,
    /// Version of Farpage.
    farpage: &'static str,
    /// Release of the kernel.
    kernel: String,
    /// How userfaultfd can be opened.
    tier: &'static str,
    /// Each thing looked at.
    checks: Vec<Check>,
}

/// Looks at everything and prints it. False when `farpage run` can't work.
///
/// # Errors
/// When standard output can't be written.
pub fn main(args: &DoctorArgs) -> Result<bool> {
    let found = userfaultfd::probe();
    let dirs: Vec<PathBuf> = if args.spill.is_empty() {
        vec![paging::default_dir()]
    } else {
        args.spill.clone()
    };
    let mut checks = kernel::userfaultfd(&found, &kernel::Caller::read());
    checks.extend(kernel::features(&found));
    checks.extend(kernel::calls());
    checks.extend(limits::all(&MemoryLimit::read()));
    checks.extend(dirs.iter().map(|dir| space::check(dir)));
    let report = Report {
        works: checks.iter().all(|check| check.state != State::Fail),
        farpage: env!("CARGO_PKG_VERSION"),
        kernel: kernel_release(),
        tier: tier_name(found.tier),
        checks,
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        out!("{}", report::text(&report, colour()));
    }
    Ok(report.works)
}

/// Whether standard output wants colour.
fn colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

/// The hidden child of a probe: waits until its standard input ends.
pub fn wait_for_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
