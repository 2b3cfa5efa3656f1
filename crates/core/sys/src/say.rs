//! Messages of processes that others wait for: who should read them may not.

use alloc::format;
use alloc::string::String;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::file::{self, Fd};

/// The standard error output.
const ERRORS: Fd = Fd(2);
/// A pipe that takes something takes so many bytes at once.
const AT_ONCE: usize = 4096;

/// Lines that nobody took. No lock: another thread may have held it at a fork.
static DROPPED: AtomicU64 = AtomicU64::new(0);

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
    write(ERRORS, message, &DROPPED);
}

fn write(to: Fd, message: Arguments<'_>, dropped: &AtomicU64) {
    if !file::takes_at_once(to) {
        dropped.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let before = match dropped.swap(0, Ordering::Relaxed) {
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
        let dropped = AtomicU64::new(0);
        // Much more than a pipe has room for.
        for number in 0..10_000 {
            write(to, format_args!("farpage: message {number:>60}"), &dropped);
        }
        let count = dropped.load(Ordering::Relaxed);
        assert!((5000..10_000).contains(&count), "{count}");
        let mut buffer = vec![0; 1 << 20];
        let read = reads.read(&mut buffer).expect("it is there");
        let written = 10_000 - count;
        assert_eq!(
            buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64,
            written
        );
        write(to, format_args!("farpage: one more"), &dropped);
        let read = reads.read(&mut buffer).expect("it is there");
        let said = String::from_utf8_lossy(&buffer[..read]);
        let expected =
            format!("{count} messages were dropped here: nobody read them\nfarpage: one more\n");
        assert!(said.ends_with(&expected), "{said}");
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_closed_output_and_a_long_message_are_no_failure() {
        let (mut reads, writes) = pipe().expect("descriptors");
        let to = Fd(writes.as_raw_fd());
        write(to, format_args!("{:>10000}", "end"), &AtomicU64::new(0));
        let mut buffer = vec![0; 1 << 14];
        assert_eq!(reads.read(&mut buffer).expect("it is there"), AT_ONCE);
        drop(reads);
        write(to, format_args!("to nobody"), &AtomicU64::new(0));
    }
}
