//! Sending at a given rate.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Sent between two looks at the clock.
const STEP_BYTES: u64 = 64 * 1024;

/// Keeps one connection at its rate. Deadlines count from the first byte of an answer, so that a
/// sleep that lasts too long is made good by the next; a pause between answers earns nothing.
pub(crate) struct Pace {
    bytes_per_s: Option<u64>,
    free_at: Instant,
}

impl Pace {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self {
            bytes_per_s,
            free_at: Instant::now(),
        }
    }

    /// Sends bytes `from .. from + bytes` of `file`.
    pub(crate) fn send(
        &mut self,
        stream: &TcpStream,
        file: &File,
        from: u64,
        bytes: u64,
    ) -> io::Result<()> {
        let start = self.free_at.max(Instant::now());
        let mut at = from;
        let end = from + bytes;
        while at < end {
            let step = self.bytes_per_s.map_or(end - at, |_| STEP_BYTES);
            let step = step.min(end - at).min(1 << 30) as usize;
            // Moves `at` on.
            if rustix::fs::sendfile(stream, file, Some(&mut at), step)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(rate) = self.bytes_per_s {
                let due = Duration::from_secs_f64((at - from) as f64 / rate as f64);
                self.free_at = start + due;
                thread::sleep(self.free_at.saturating_duration_since(Instant::now()));
            }
        }
        Ok(())
    }
}
