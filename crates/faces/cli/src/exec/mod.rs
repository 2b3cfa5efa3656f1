//! `farpage exec`: programs that are not on this machine, or not all of them.
//!
//! The program is a mapped file like those of `--map`, and Linux executes the memory file that has
//! what there is of it. So Linux's own loader maps it, and the program's own dynamic linker loads and
//! relocates the rest.

mod plan;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use farpage::Address;
use farpage_supervisor::config::{Exec, RunOptions, THRESHOLD_BYTES};
use farpage_supervisor::exec::{below, is_shared};
use farpage_supervisor::maps::MapOption;
use farpage_supervisor::program;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::time::seconds;

use crate::maps;
use crate::memory::{self, MemoryArgs};
use crate::run::{self, Report};

/// Where a program from elsewhere finds itself when nothing says where.
const FOLDER: &str = "/farpage";

/// Run a program from where it is, without copying it first
///
/// Text, data and libraries of the program are mapped from memory objects: what the program touches
/// is fetched when it does, once for all its tasks, within the budget of --ram. Linux's own loader
/// and the program's own dynamic linker do the loading. Memory of the program is managed as by
/// `farpage run`.
#[derive(Args, Debug)]
#[command(override_usage = "farpage exec [OPTIONS] ADDRESS [ARG]...")]
#[command(after_help = "Examples:\n  \
    farpage exec https://host/bin/tool --version\n  \
    farpage exec --root https://host/debian /usr/bin/python3 job.py\n  \
    farpage exec --plan s3://bucket/tool\n\n\
    Exit status:\n  \
    that of the program; by the same signal when a signal ended it\n  \
    122  it was killed, for paging space was full\n  \
    125  farpage could not do its part\n  \
    126  it is no program of this machine, or damaged\n  \
    127  it was not found")]
pub struct ExecArgs {
    /// Print what loading it takes, and what would be fetched before it starts; run nothing
    ///
    /// Reads the headers of the program only.
    #[arg(long)]
    pub plan: bool,
    /// Print the plan as JSON
    #[arg(long, requires = "plan")]
    pub json: bool,
    /// Where the root folder of the program's machine is: libraries come from there
    ///
    /// A path as ADDRESS is one below it. Libraries that the program and they name are looked for
    /// there first, in the folders that they name and in /usr/lib/x86_64-linux-gnu, /usr/lib64,
    /// /usr/lib and /usr/local/lib; the C library's own are this machine's, as its dynamic linker
    /// is.
    #[arg(long, value_name = "URL")]
    pub root: Option<String>,
    /// Another file below --root that the program finds at this PATH; may be given again
    ///
    /// What it loads later, or executes.
    #[arg(long, value_name = "PATH", requires = "root")]
    pub also: Vec<String>,
    /// A file that the program finds at PATH, with the contents of URL; may be given again
    ///
    /// As for `farpage run`. A file that is a program can be executed.
    #[arg(long, value_name = "PATH=URL")]
    pub map: Vec<OsString>,
    /// Where the program finds itself [default: its path, or /farpage/NAME]
    #[arg(long = "as", value_name = "PATH")]
    pub path: Option<String>,
    /// Where its pages are.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Seconds for which a far source is tried again before an access to it fails
    ///
    /// [default: 60, and 20 when it is opened]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub deadline: Option<Duration>,
    /// Bring in programs and libraries of at most this size whole, while the program already starts
    ///
    /// With 0 only what is touched is fetched, and what lies near it; with --record, too. With
    /// --replay what was recorded comes ahead.
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub ahead: String,
    /// Record which pages are asked for, in which order, for --replay
    #[arg(long, value_name = "TRACE")]
    pub record: Option<PathBuf>,
    /// Bring in what an earlier start recorded, while the program already runs
    ///
    /// May be the same TRACE as that of --record: the first time, when it is not there, nothing is
    /// replayed.
    #[arg(long, value_name = "TRACE")]
    pub replay: Option<PathBuf>,
    /// Write statistics to a file, as JSON, when the program has ended
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Show neither the line on the terminal nor the summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Where the program is (an URL, a path, or shared:NAME of the host kernel), and its arguments
    #[arg(
        required = true,
        value_name = "ADDRESS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub program: Vec<OsString>,
}

/// Runs the program and ends as it ended; `None` when its plan was printed instead.
///
/// # Errors
/// When it can't be started as asked, or the supervisor loses its hold of it.
pub fn main(args: &ExecArgs) -> Result<Option<ExitStatus>> {
    let root = args.root.as_deref().map(|root| root.trim_end_matches('/'));
    let program = program(args, root)?;
    if args.plan {
        return plan::print(&program.url, args).map(|()| None);
    }
    let limit = MemoryLimit::read();
    let options = options(args, root, program, &limit)?;
    let report = Report {
        stats: args.stats.clone(),
        quiet: args.quiet,
    };
    run::with_options(options, &report, &limit, None).map(Some)
}

/// The program as a mapped file.
fn program(args: &ExecArgs, root: Option<&str>) -> Result<MapOption> {
    let address = args.program[0].to_str();
    let address = address.context("cannot run: the address is not UTF-8")?;
    let (url, path) = found(address, root)?;
    let path = args.path.clone().unwrap_or(path);
    ensure!(
        path.starts_with('/') && !path.ends_with('/'),
        "cannot run it as '{path}': --as takes an absolute path of a file; give e.g. /usr/bin/{}",
        path.trim_matches('/')
    );
    Ok(MapOption {
        name: path.clone(),
        path,
        url,
    })
}

/// Where the program is, and where it finds itself.
fn found(address: &str, root: Option<&str>) -> Result<(String, String)> {
    if let Some(root) = root {
        let below = address.strip_prefix(root).unwrap_or(address);
        if below.starts_with('/') {
            return Ok((format!("{root}{below}"), below.to_owned()));
        }
    }
    match Address::parse(address) {
        Address::Path(path) if !is_shared(address) => {
            let search = std::env::var_os("PATH");
            let found = program::find(path.as_os_str(), search.as_deref())?;
            let found = found.canonicalize().context("cannot run: it is gone")?;
            let found = found
                .to_str()
                .context("cannot run: its path is not UTF-8")?;
            Ok((found.to_owned(), found.to_owned()))
        }
        _ => {
            let bare = address.split(['?', '#']).next().unwrap_or(address);
            let name = bare.rsplit(['/', ':']).next().unwrap_or_default();
            ensure!(
                !name.is_empty(),
                "cannot run '{address}': it names no file; give the address of a program"
            );
            Ok((address.to_owned(), format!("{FOLDER}/{name}")))
        }
    }
}

fn options(
    args: &ExecArgs,
    root: Option<&str>,
    program: MapOption,
    limit: &MemoryLimit,
) -> Result<RunOptions> {
    let mut all = vec![program];
    for path in &args.also {
        ensure!(
            path.starts_with('/'),
            "cannot find '{path}' below --root: give an absolute path"
        );
        all.push(below(root.unwrap_or_default(), path));
    }
    all.extend(maps::options(&args.map, &maps::folder()?)?);
    for (number, option) in all.iter().enumerate() {
        if all[..number].iter().any(|other| other.path == option.path) {
            bail!("two files have the path '{}': leave one out", option.path);
        }
    }
    let name = OsString::from(&all[0].path);
    Ok(RunOptions {
        stdio: false,
        memory: args.memory.config(limit, memory::COMPRESSED_OF_RUN)?,
        threshold_bytes: THRESHOLD_BYTES,
        machine_bytes: None,
        program: PathBuf::from(&name),
        args: [&[name], &args.program[1..]].concat(),
        exec: Some(Exec {
            root: root.map(str::to_owned),
            ahead_bytes: memory::absolute("--ahead", Some(&args.ahead))?.unwrap_or_default(),
        }),
        maps: all,
        deadline: args.deadline,
        record: args.record.clone(),
        replay: args.replay.clone(),
        shm: false,
        trace: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_address_path_and_below_a_root() {
        let pair = |url: &str, path: &str| (url.to_owned(), path.to_owned());
        let far = found("https://host/bin/tool?v=1", None).unwrap();
        assert_eq!(far, pair("https://host/bin/tool?v=1", "/farpage/tool"));
        let root = Some("http://host/root");
        let want = pair("http://host/root/usr/bin/x", "/usr/bin/x");
        assert_eq!(found("/usr/bin/x", root).unwrap(), want);
        assert_eq!(found("http://host/root/usr/bin/x", root).unwrap(), want);
        assert_eq!(
            found("shared:tool", None).unwrap(),
            pair("shared:tool", "/farpage/tool")
        );
        let near = found("sh", None).unwrap();
        assert!(near.0.starts_with('/') && near.0 == near.1, "{near:?}");
    }

    #[test]
    fn what_names_no_program_is_refused() {
        let missing = found("/no/such/program", None).unwrap_err();
        let code = missing
            .downcast_ref::<program::Unusable>()
            .unwrap()
            .exit_code();
        assert_eq!(code, 127);
        let folder = found("https://host/bin/", None).unwrap_err().to_string();
        assert!(folder.contains("names no file"), "{folder}");
    }
}
