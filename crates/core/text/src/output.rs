//! Output of commands. A reader that has gone away is not a failure of Farpage.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Exit status of a command whose output nobody reads any longer: the same as that of a program
/// that SIGPIPE ended.
const NOBODY_READS: i32 = 141;

/// Prints what a command was asked for. The process ends when the output cannot be written.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {
        $crate::output::out(::core::format_args!($($text)*))
    };
}

/// Prints what a command was asked for, and a newline. The process ends when the output cannot be
/// written.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::output::out(::core::format_args!("{}\n", ::core::format_args!($($text)*)))
    };
}

/// Prints a line about what is going on. It does not matter whether anybody reads it.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::output::tell(::core::format_args!($($text)*))
    };
}

/// Writes `text` to standard output; [`out!`] formats it.
pub fn out(text: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let Err(why) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else {
        return;
    };
    drop(stdout);
    if why.kind() == ErrorKind::BrokenPipe {
        std::process::exit(NOBODY_READS);
    }
    farpage_sys::say!("farpage: cannot write to standard output: {why}; give it a file with room");
    std::process::exit(1);
}

/// Writes a line to standard output, if that is possible; [`tell!`] formats it.
pub fn tell(line: Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes lines to standard error, if that is possible.
pub fn errors(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
