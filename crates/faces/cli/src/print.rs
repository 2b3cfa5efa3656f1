//! What commands print. Nobody may be there to read it: that is no failure of Farpage.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Exit status of who prints for nobody, as of programs that SIGPIPE ends.
const NOBODY_READS: i32 = 141;

/// Prints what a command was asked for; the command ends when nobody reads it, or it cannot be written.
macro_rules! out {
    ($($text:tt)*) => {
        $crate::print::out(::core::format_args!($($text)*))
    };
}

/// The same, and a newline.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::print::out(::core::format_args!("{}\n", ::core::format_args!($($text)*)))
    };
}

/// Prints a line about what goes on, for whoever reads it.
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::print::tell(::core::format_args!($($text)*))
    };
}

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

pub fn tell(line: Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Text of lines to standard error.
pub fn errors(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
