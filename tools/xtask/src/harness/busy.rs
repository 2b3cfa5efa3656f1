//! A machine that is busy with other things: two loops for each processor, and memory that is always touched.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::world::own_program;

/// The hidden command that touches memory.
pub(crate) const HOG: &str = "touch-memory";

/// Ends all of it when it is dropped.
pub(crate) struct Busy(Vec<Child>);

impl Busy {
    /// Starts it. The processes end with this one, however that ends: they wait for a pipe to close.
    pub(crate) fn start() -> Result<Self> {
        let processors = std::thread::available_parallelism()?.get();
        let mut busy = Self(Vec::new());
        for _ in 0..2 * processors {
            busy.spawn("loop")?;
        }
        busy.spawn(&(memory_mib()? / 4).to_string())?;
        Ok(busy)
    }

    fn spawn(&mut self, what: &str) -> Result<()> {
        let mut command = Command::new(own_program());
        command.args([HOG, what]).stdin(Stdio::piped());
        self.0
            .push(command.spawn().context("cannot start a busy process")?);
        Ok(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Body of the processes: a loop, or so many MiB touched again and again, until the input ends.
pub(crate) fn be_busy(what: &str) -> Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    if what == "loop" {
        loop {
            std::hint::black_box(0);
        }
    }
    let Ok(mib) = what.parse::<usize>() else {
        bail!("{HOG} {what}: not 'loop' and not a number of MiB");
    };
    let mut memory = vec![0_u8; mib << 20];
    loop {
        memory
            .iter_mut()
            .step_by(4096)
            .for_each(|byte| *byte = byte.wrapping_add(1));
        std::hint::black_box(&memory);
    }
}

/// Memory that is free for use, by Linux's own estimate.
fn memory_mib() -> Result<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok());
    Ok(kib.context("/proc/meminfo does not say MemAvailable")? >> 10)
}
