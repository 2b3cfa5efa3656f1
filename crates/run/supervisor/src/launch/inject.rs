//! Programs without dynamic linker: the agent is mapped into them from outside, between `execve`
//! and their first instruction.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farpage_object::{Control, Inject, PAGE_BYTES, TaskSlot, fds};
use farpage_sys::linux::general as g;
use farpage_sys::ptrace::{Registers, Stop, Tracee};
use farpage_sys::seccomp::later::BY_SUPERVISOR;
use farpage_sys::{Result, futex, mem};

use super::agent::AgentImage;
use super::layout;

/// How often it is looked whether the thread has executed, at first and later.
const FIRST_STEP: Duration = Duration::from_micros(20);
const LONGEST_STEP: Duration = Duration::from_millis(2);
/// A task that asked and then neither executes nor takes it back is let go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves the request in slot `slot`, on the calling thread, which must do nothing else meanwhile.
pub fn serve(control: &Control, slot: usize, image: &AgentImage) {
    let task = &control.tasks[slot];
    let library = control.fd_base.load(Ordering::Relaxed) + fds::AGENT;
    let library = u64::from(library);
    let (thread, process) = (
        task.inject_tid.load(Ordering::Acquire),
        task.pid.load(Ordering::Acquire),
    );
    let Ok(tracee) = Tracee::seize(thread, process) else {
        answer(task, Inject::Taken, Inject::Refused);
        return;
    };
    let granted = answer(task, Inject::Taken, Inject::Ready);
    if (granted && follow(task, &tracee)) || let_go(&tracee) {
        if let Err(errno) = map_agent(&tracee, image, library, layout::is_own(process)) {
            farpage_sys::say!(
                "farpage: cannot map the agent into program {process}: {errno}; it is killed"
            );
            let _ = farpage_sys::process::kill(process, g::SIGKILL);
        }
        let _ = tracee.detach(0);
        return;
    }
    task.inject.store(Inject::None as u32, Ordering::Release);
    futex::wake(&task.inject, i32::MAX as u32);
}

/// True when the task's request went from `from` to `to`.
pub(super) fn answer(task: &TaskSlot, from: Inject, to: Inject) -> bool {
    if task.inject.load(Ordering::Relaxed) != from as u32 {
        return false;
    }
    let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    let done = task
        .inject
        .compare_exchange(from as u32, to as u32, order, failed)
        .is_ok();
    futex::wake(&task.inject, i32::MAX as u32);
    done
}

/// Waits for the thread's `execve`. False when it did not come.
fn follow(task: &TaskSlot, tracee: &Tracee) -> bool {
    let started = Instant::now();
    let mut step = FIRST_STEP;
    while started.elapsed() < PATIENCE {
        let went_on = match tracee.poll() {
            Ok(Some(Stop::Exec)) => return true,
            Ok(Some(Stop::Signal(signal))) => tracee.go_on(signal),
            Ok(Some(Stop::Group)) => tracee.listen(),
            Ok(Some(Stop::Gone)) | Err(_) => return false,
            Ok(None) => {
                if task.inject.load(Ordering::Acquire) == Inject::Cancelled as u32 {
                    return false;
                }
                std::thread::sleep(step);
                step = (step * 2).min(LONGEST_STEP);
                Ok(())
            }
        };
        if went_on.is_err() {
            return false;
        }
    }
    false
}

/// Stops tracing a thread that runs. True when it has executed meanwhile: then it is still traced.
fn let_go(tracee: &Tracee) -> bool {
    if tracee.interrupt().is_err() {
        return false;
    }
    let signal = match tracee.wait() {
        Ok(Stop::Exec) => return true,
        Ok(Stop::Signal(signal)) => signal,
        Ok(Stop::Group) => 0,
        Ok(Stop::Gone) | Err(_) => return false,
    };
    let _ = tracee.detach(signal);
    false
}

/// Maps the agent into the stopped thread's process, where its library is the descriptor `library`,
/// and makes it start there.
fn map_agent(tracee: &Tracee, image: &AgentImage, library: u64, leaves_memory: bool) -> Result<()> {
    tracee.die_with_tracer()?;
    let registers = tracee.registers()?;
    let start = registers.rip;
    let (code, data) = (image.code_bytes, image.data_bytes());
    // The code is the library's own pages, shared by all. One page beyond the data stays as it is:
    // nothing is mapped directly behind them.
    let prot = u64::from(mem::PROT_READ | mem::PROT_EXEC);
    let length = code + data + PAGE_BYTES as u64;
    let flags = u64::from(mem::MAP_PRIVATE);
    let base = tracee.call(start, g::__NR_mmap, [0, length, prot, flags, library, 0])?;
    // The filters let this mapping at a fixed place pass.
    let prot = u64::from(mem::PROT_READ | mem::PROT_WRITE);
    let flags = flags | u64::from(mem::MAP_ANONYMOUS | mem::MAP_FIXED);
    let by = i64::from(BY_SUPERVISOR) as u64;
    tracee.call(start, g::__NR_mmap, [base + code, data, prot, flags, by, 0])?;
    tracee.write(base + code, &image.data_at(base, start, leaves_memory))?;
    tracee.set_registers(&Registers {
        rip: base + image.entry,
        orig_rax: !0,
        ..registers
    })
}
