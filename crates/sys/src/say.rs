//! Messages of processes that others wait for: who should read them may not.

use alloc::format;
use alloc::string::String;
use core::fmt::Arguments;
use std::sync::{Mutex, PoisonError};

use crate::file::{self, Fd};

/// The standard error output.
const ERRORS: Fd = Fd(2);
/// A pipe that takes something takes so many bytes at once.
const AT_ONCE: usize = 4096;

/// Lines that nobody took.
static DROPPED: Mutex<u64> = Mutex::new(0);

/// Writes a line to the standard error output, as `eprintln!` does, and waits for nobody: when who reads
/// it does not, and the pipe is full, the line is dropped, which the next one tells. A closed output is
/// no failure.
#[macro_export]
macro_rules! say {
    ($($message:tt)*) => {
        $crate::say::line(::core::format_args!($($message)*))
    };
}

/// What [`say!`](crate::say!) does.
pub fn line(message: Arguments<'_>) {
    let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    write(ERRORS, message, &mut dropped);
}

fn write(to: Fd, message: Arguments<'_>, dropped: &mut u64) {
    if !file::takes_at_once(to) {
        *dropped += 1;
        return;
    }
    let before = match std::mem::take(dropped) {
        0 => String::new(),
        count => format!("farpage: {count} messages were dropped here: nobody read them\n"),
    };
    let text = format!("{before}{message}\n");
    file::write_message(to, &text.as_bytes()[..text.len().min(AT_ONCE)]);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;
    use std::vec;

    use super::*;

    #[test]
    fn who_does_not_read_delays_nobody_and_hears_how_much_was_dropped() {
        let (mut reads, writes) = pipe().expect("descriptors");
        let to = Fd(writes.as_raw_fd());
        let mut dropped = 0;
        // Much more than a pipe has room for.
        for number in 0..10_000 {
            write(
                to,
                format_args!("farpage: message {number:>60}"),
                &mut dropped,
            );
        }
        assert!((5000..10_000).contains(&dropped), "{dropped}");
        let mut buffer = vec![0; 1 << 20];
        let read = reads.read(&mut buffer).expect("it is there");
        let written = 10_000 - dropped;
        assert_eq!(
            buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64,
            written
        );
        let told = dropped;
        write(to, format_args!("farpage: one more"), &mut dropped);
        let read = reads.read(&mut buffer).expect("it is there");
        let said = String::from_utf8_lossy(&buffer[..read]);
        let expected =
            format!("{told} messages were dropped here: nobody read them\nfarpage: one more\n");
        assert!(said.ends_with(&expected), "{said}");
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_closed_output_and_a_long_message_are_no_failure() {
        let (mut reads, writes) = pipe().expect("descriptors");
        let to = Fd(writes.as_raw_fd());
        write(to, format_args!("{:>10000}", "end"), &mut 0);
        let mut buffer = vec![0; 1 << 14];
        assert_eq!(reads.read(&mut buffer).expect("it is there"), AT_ONCE);
        drop(reads);
        write(to, format_args!("to nobody"), &mut 0);
    }
}
