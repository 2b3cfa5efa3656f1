//! The `farpage` command.

#[macro_use]
extern crate farpage_text;

mod args;
mod cluster;
mod doctor;
mod exec;
mod generate;
mod host;
mod live;
mod maps;
mod memory;
mod open;
mod pager;
mod panics;
mod plot;
mod run;
mod spill;
mod stats;
mod summary;
mod up;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use farpage_supervisor::{program, signals};

use crate::args::{Cli, Command, is_mistyped_option};

/// What `farpage run` ends with when it could not do its part: `env` and `timeout` do the same.
const RUN_FAILED: u8 = 125;

fn main() -> ExitCode {
    panics::end_the_process();
    let (result, failed) = match Cli::parse().command {
        Command::Run(args) if is_mistyped_option(&args.program[0], std::env::args_os()) => {
            unknown_option("run", &args.program[0])
        }
        Command::Exec(args) if is_mistyped_option(&args.program[0], std::env::args_os()) => {
            unknown_option("exec", &args.program[0])
        }
        Command::Run(args) => match run::main(&args) {
            Ok(status) => signals::end_like(status),
            Err(error) => (Err(error), RUN_FAILED),
        },
        Command::Exec(args) => match exec::main(&args) {
            Ok(Some(status)) => signals::end_like(status),
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => (Err(error), RUN_FAILED),
        },
        Command::Doctor(args) => match doctor::main(&args) {
            Ok(true) => return ExitCode::SUCCESS,
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => (Err(error), 1),
        },
        Command::Open(args) => (open::main(&args), 1),
        Command::Up(args) => (up::main(&args), 1),
        Command::Cluster(args) => (cluster::main(&args), 1),
        Command::Create(args) => (cluster::objects::create(&args), 1),
        Command::Seal(args) => (cluster::objects::seal(&args), 1),
        Command::Flush(args) => (cluster::objects::flush(&args), 1),
        Command::Ls(args) => (host::list::list(&args), 1),
        Command::Rm(args) => (host::list::remove(&args), 1),
        Command::Stats(args) => (host::figures::stats(&args), 1),
        Command::Ports(args) => (host::ports::ports(&args), 1),
        Command::Locks(args) => (host::locks::locks(&args), 1),
        Command::Gc(args) => (host::gc::gc(&args), 1),
        Command::Top(args) => (host::top::top(&args), 1),
        Command::Trace(args) => (host::trace::trace(&args), 1),
        Command::Pages(args) => (cluster::pages::pages(&args), 1),
        Command::Pager(args) => (pager::main(&args), 1),
        Command::Plot(args) => (plot::main(&args), 1),
        Command::Spill(args) => (spill::main(&args), 1),
        Command::Completions { shell } => {
            generate::completions(shell);
            (Ok(()), 0)
        }
        Command::Wait => {
            doctor::wait_for_end_of_input();
            (Ok(()), 0)
        }
        Command::Man { dir } => (generate::man(&dir), 1),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    farpage_sys::say!("farpage: {error:#}");
    let unusable = error.downcast_ref::<program::Unusable>();
    ExitCode::from(unusable.map_or(failed, program::Unusable::exit_code))
}

fn unknown_option(of: &str, word: &OsStr) -> ! {
    let mut command = Cli::command();
    command.build();
    let run = command.find_subcommand_mut(of);
    let run = run.expect("it was given");
    let shown = word.display();
    let tip = similar(run, &word.to_string_lossy()).map_or(String::new(), |option| {
        format!("; did you mean '--{option}'?")
    });
    let message = format!(
        "unknown option '{shown}'{tip}\n\n\
         To run a program of that name: farpage {of} [OPTIONS] -- {shown}"
    );
    run.error(ErrorKind::UnknownArgument, message).exit()
}

/// The option that `word` was probably to be.
fn similar(command: &clap::Command, word: &str) -> Option<String> {
    let name = word.trim_start_matches('-').split('=').next()?;
    let options = command
        .get_arguments()
        .filter(|option| !option.is_hide_set());
    options
        .filter_map(|option| option.get_long())
        .map(|option| (strsim::normalized_damerau_levenshtein(name, option), option))
        .filter(|(likeness, _)| *likeness > 0.6)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, option)| option.to_owned())
}
