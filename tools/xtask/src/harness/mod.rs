//! Runs tests, each as a process of its own in a cell of its own, several at a time.
//!
//! A cell ([`cell`]) has its own folders, where root runs it also its own `/dev/shm`, `/var/tmp`, network
//! namespaces' names and System V objects. It has a hard limit, after which the stacks of all its processes
//! are printed and all of them are killed. What a test leaves behind is a failure of that test.

mod busy;
mod cell;
mod left;
mod pool;
mod processes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use busy::{Busy, HOG, be_busy};
pub(crate) use cell::Cells;
pub(crate) use left::Machine;
pub(crate) use pool::{Pool, run_all};
pub(crate) use processes::tell;

/// One program that passes or fails.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The crate and the test, as people name it: `farpage-port attacks::a_liar_is_cut_off`.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) folder: PathBuf,
    /// After this long it hangs.
    pub(crate) limit: Duration,
}

/// What became of a case.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// Why it failed; the text has all that is known.
    pub(crate) failure: Option<String>,
    /// Reasons of `skipped: REASON` lines that it printed.
    pub(crate) skipped: Vec<String>,
}

impl Ran {
    pub(crate) fn passed(&self) -> bool {
        self.failure.is_none()
    }
}

#[cfg(test)]
impl Case {
    /// A script of the shell.
    fn of_shell(name: &str, script: &str) -> Self {
        Self {
            name: name.into(),
            program: "/bin/sh".into(),
            args: ["-c", script].map(Into::into).into(),
            env: Vec::new(),
            folder: "/".into(),
            limit: Duration::from_secs(600),
        }
    }
}
