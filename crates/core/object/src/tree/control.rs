//! The control block: one memfd that every process of a `farpage run` tree maps shared.
//!
//! It is made of atomics only, and every process may die at any instruction: whatever a task
//! claims here it claims under its own slot, so that the supervisor can take it back.
//! All-zero bytes are a valid, empty block.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::full::Full;
use super::maps::Maps;
use super::shm::Shm;
use super::trace::TraceRing;

/// First word of a control block.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"farpage\0");
/// Layout version; a mismatch is refused.
pub const CONTROL_VERSION: u32 = 7;
/// Processes that one tree can have at a time with accounts of their own.
pub const TASKS_MAX: usize = 4096;
/// Paging files of one tree, over its whole life.
pub const SPILL_FILES_MAX: usize = 8;
/// Bytes in one segment, the unit in which paging files are claimed and returned.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// In [`Control::compressed_best_bytes`]: pages go to paging files as they are.
pub const BEST_IS_NONE: u64 = 1;
/// Segments of one paging file.
pub const SEGMENTS_MAX: usize = 1 << 20;
/// Tasks that can hold one segment by name; one more makes the segment stay until the tree ends.
pub const HOLDERS: usize = 30;

/// Rings (`io_uring`) that one task has at most.
pub const RINGS: usize = 9;
const _: () = assert!(fds::RING as usize + RINGS <= fds::FREE as usize);

/// How userfaultfd was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Tier {
    /// No userfaultfd at all.
    None = 0,
    /// `/dev/userfaultfd`: everything works.
    Device = 1,
    /// The system call with privilege: everything works.
    Syscall = 2,
    /// `UFFD_USER_MODE_ONLY`: system calls on missing pages must be helped.
    UserModeOnly = 3,
}

impl Tier {
    /// The tier whose number is `raw`.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::None),
            1 => Some(Self::Device),
            2 => Some(Self::Syscall),
            3 => Some(Self::UserModeOnly),
            _ => None,
        }
    }
}

/// Why a task was ended by Farpage, in [`TaskSlot::death`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Death {
    /// It was not.
    Alive = 0,
    /// Compressed tier and paging files are full.
    OutOfSpace = 1,
    /// A page did not match its checksum.
    Corrupt = 2,
    /// A paging file could not be read.
    ReadError = 3,
    /// A paging file could not be written and no other place was left.
    WriteError = 4,
    /// The process has said of what by itself.
    Told = 5,
}

impl Death {
    /// The cause whose number is `raw`; unknown numbers are `Told`.
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Alive,
            1 => Self::OutOfSpace,
            2 => Self::Corrupt,
            3 => Self::ReadError,
            4 => Self::WriteError,
            _ => Self::Told,
        }
    }
}

/// How far the supervisor is with mapping the agent into a static program, in [`TaskSlot::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Inject {
    /// Nothing is asked.
    None = 0,
    /// The task asks, and waits on the futex.
    Asked = 1,
    /// The supervisor traces the thread: execute now.
    Ready = 2,
    /// The supervisor cannot trace it (a debugger does, or ptrace is forbidden).
    Refused = 3,
    /// The `execve` failed: let go of the thread.
    Cancelled = 4,
    /// The supervisor has seen the request and works on it.
    Taken = 5,
}

/// Descriptors that belong to Farpage in every task, as offsets from `Control::fd_base`.
pub mod fds {
    /// The control block.
    pub const CONTROL: u32 = 0;
    /// The agent's library.
    pub const AGENT: u32 = 1;
    /// `/dev/userfaultfd`, when it can be opened.
    pub const DEVICE: u32 = 2;
    /// Where messages to the user go: the standard error of `farpage run`.
    pub const MESSAGES: u32 = 3;
    /// The library of streams, with `--stdio`.
    pub const STDIO: u32 = 5;
    /// Paging file 0; the others follow.
    pub const SPILL: u32 = 8;
    /// The task's own userfaultfd, closed on exec.
    pub const UFFD: u32 = 16;
    /// The task's pagemap, closed on exec.
    pub const PAGEMAP: u32 = 17;
    /// The first of the task's rings ([`RINGS`] at most), closed on exec.
    ///
    /// [`RINGS`]: super::RINGS
    pub const RING: u32 = 18;
    /// First one free for other uses inside a task, closed on exec: held by a child of `CLONE_VFORK`.
    pub const FREE: u32 = 27;
    /// How many there are.
    pub const COUNT: u32 = 32;
    /// The socket to the supervisor, where there are mapped files or shared memory is kept.
    pub const MAPS: u32 = 4;
    /// The task's userfaultfd for mapped files, closed on exec.
    pub const MAPS_UFFD: u32 = 28;
    /// The task's connection about shared memory, closed on exec.
    pub const SHM: u32 = 29;
    /// The task's userfaultfd for shared memory, closed on exec.
    pub const SHM_UFFD: u32 = 30;
    /// Mapped files, to read and write; [`MAPPED_MAX`] of them. Only where there are any, or shared
    /// memory is kept.
    ///
    /// [`MAPPED_MAX`]: super::maps::MAPPED_MAX
    pub const MAPPED: u32 = COUNT;
    /// Descriptors of the program's for mapped files and for files of shared memory: the filter
    /// knows them by their numbers.
    pub const OPENED: u32 = MAPPED + crate::maps::MAPPED_MAX as u32;
    /// End of them.
    pub const OPENED_END: u32 = 256;
}

/// What a task did since it started. Only ever grows, except the gauges at the top.
#[repr(C)]
#[derive(Default)]
pub struct Counters {
    /// Gauge: bytes of managed mappings a program may write (mapped, not necessarily touched).
    pub demand_bytes: AtomicU64,
    /// Gauge: bytes of managed pages resident in the program or set aside, charged to the budget.
    pub resident_bytes: AtomicU64,
    /// Gauge: bytes of memory that the compressed tier takes.
    pub compressed_bytes: AtomicU64,
    /// Gauge: bytes of pages that the compressed tier stands for.
    pub compressed_from_bytes: AtomicU64,
    /// Gauge: bytes of pages whose only copy is in paging files.
    pub spilled_bytes: AtomicU64,
    /// Faults answered.
    pub faults: AtomicU64,
    /// Pages that had no contents and were filled with zeros (large grants count each page).
    pub zero_fills: AtomicU64,
    /// Pages brought in from the compressed tier.
    pub page_ins_compressed: AtomicU64,
    /// Pages brought in from paging files.
    pub page_ins_spilled: AtomicU64,
    /// Pages of these that nobody asked for: prefetched.
    pub prefetched: AtomicU64,
    /// Pages taken out into the compressed tier.
    pub page_outs_compressed: AtomicU64,
    /// Pages written to paging files.
    pub page_outs_spilled: AtomicU64,
    /// Pages dropped because their copy in a paging file was still good.
    pub page_outs_clean: AtomicU64,
    /// Pages set aside and asked for again before they left.
    pub refaults_aside: AtomicU64,
    /// First writes to pages with a good copy.
    pub write_faults: AtomicU64,
    /// All-zero pages that were dropped instead of written.
    pub zero_pages_dropped: AtomicU64,
    /// Bytes that went into and came out of the compressor, for the ratio.
    pub compress_in_bytes: AtomicU64,
    /// See `compress_in_bytes`.
    pub compress_out_bytes: AtomicU64,
    /// Nanoseconds that faults took from being read to being answered.
    pub stall_ns: AtomicU64,
    /// Longest of them.
    pub stall_ns_max: AtomicU64,
}

impl Counters {
    /// Visits each counter with its name, gauges first, in declaration order.
    pub fn each<'a>(&'a self, mut visit: impl FnMut(&'static str, &'a AtomicU64)) {
        macro_rules! go { ($($f:ident),* $(,)?) => { $( visit(stringify!($f), &self.$f); )* } }
        go!(
            demand_bytes,
            resident_bytes,
            compressed_bytes,
            compressed_from_bytes,
            spilled_bytes,
            faults,
            zero_fills,
            page_ins_compressed,
            page_ins_spilled,
            prefetched,
            page_outs_compressed,
            page_outs_spilled,
            page_outs_clean,
            refaults_aside,
            write_faults,
            zero_pages_dropped,
            compress_in_bytes,
            compress_out_bytes,
            stall_ns,
            stall_ns_max,
        );
    }

    /// Number of gauges at the front of [`Counters::each`]: they are zeroed when a task dies.
    pub const GAUGES: usize = 5;
}

/// One process of the tree.
#[repr(C, align(64))]
pub struct TaskSlot {
    /// Process id, 0 when the slot is free. Claimed by compare-and-swap.
    pub pid: AtomicU32,
    /// [`Death`], set by the task just before it ends itself.
    pub death: AtomicU32,
    /// Futex: how often it was asked to give memory back, in its turn or because somebody waits.
    pub pressure: AtomicU32,
    /// [`Inject`]: a static program is about to be executed and needs the agent mapped into it.
    pub inject: AtomicU32,
    /// Thread that will execute it, valid while `inject` is not `Inject::None`.
    pub inject_tid: AtomicU32,
    /// Task whose fork or exec made this one, as a slot number plus one; 0 for the first.
    pub parent: AtomicU32,
    /// What it did.
    pub counters: Counters,
}

/// State of a paging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SpillState {
    /// Never used.
    Unused = 0,
    /// Takes new segments.
    Active = 1,
    /// Takes no new segments; tasks move their pages elsewhere (`farpage spill rm`).
    Draining = 2,
    /// Nothing is left in it.
    Removed = 3,
}

/// One paging file of the tree: unlinked from the start, held open by the supervisor and by tasks.
#[repr(C, align(64))]
pub struct SpillFile {
    /// [`SpillState`].
    pub state: AtomicU32,
    /// Descriptor number in the supervisor: tasks open `/proc/<supervisor>/fd/<n>`.
    pub supervisor_fd: AtomicU32,
    /// Segments whose disk space is allocated, from the file's start.
    pub allocated_segments: AtomicU32,
    /// Segments claimed by tasks.
    pub used_segments: AtomicU32,
    /// Where the search for a free segment starts.
    pub search_from: AtomicU32,
    /// The second, by `CLOCK_MONOTONIC` and not 0, in which its disk was last found full; 0 when a segment was
    /// returned since, or there was room.
    pub full: AtomicU32,
    /// The system error of its last write, if that failed because of its disk, which was not full; else 0.
    pub write_error: AtomicU32,
    /// Largest number of segments it may take (`--spill-limit` shared out, or [`SEGMENTS_MAX`]).
    pub limit_segments: AtomicU32,
}

/// Who holds one segment of a paging file.
///
/// A segment is free when `claim` is even. Claiming adds one by compare-and-swap; the last holder
/// to leave adds one again. The count therefore also tells one life of the segment from the next.
#[repr(C, align(64))]
pub struct SegmentLine {
    /// Even: free. Odd: held.
    pub claim: AtomicU32,
    /// Slot number plus one of each holder; 0 is empty, `u16::MAX` in the last place means "more
    /// than can be listed: keep until the tree ends".
    pub holders: [AtomicU16; HOLDERS],
}

/// The whole block. About 512 MiB of address space, sparse; a few pages of it are ever touched.
#[repr(C)]
pub struct Control {
    /// [`CONTROL_MAGIC`].
    pub magic: AtomicU64,
    /// [`CONTROL_VERSION`].
    pub version: AtomicU32,
    /// [`Tier`] that the supervisor found.
    pub tier: AtomicU32,
    /// Process id of `farpage run`.
    pub supervisor_pid: AtomicU32,
    /// First of the descriptor numbers that belong to Farpage in every task.
    pub fd_base: AtomicU32,
    /// 1 when the trace ring is wanted.
    pub trace: AtomicU32,
    /// 1 when tasks may use io_uring: the supervisor has tried.
    pub io_uring: AtomicU32,
    /// Futex: bumped when `resident + compressed` falls, so that waiting faults look again.
    pub memory_freed: AtomicU32,
    /// Futex: bumped when every task must start managing its memory (demand passed the budget).
    pub pressure: AtomicU32,
    /// Futex: bumped when a task has set its `inject`.
    pub inject_requests: AtomicU32,
    /// One more than the highest slot ever claimed: only slots below are looked at.
    pub tasks_high: AtomicU32,
    /// Filters of system calls that the supervisor is subject to itself.
    pub filters: AtomicU32,
    /// Inode of the supervisor's process-id namespace: elsewhere ids mean other processes.
    pub pid_namespace: AtomicU64,
    /// `CLOCK_MONOTONIC` nanoseconds at the start.
    pub started_ns: AtomicU64,
    /// `--ram`: resident pages, pages set aside and compressed tier together, bytes.
    pub budget_bytes: AtomicU64,
    /// Largest size of the compressed tier, part of the budget, bytes.
    pub compressed_max_bytes: AtomicU64,
    /// Size of the compressed tier that proved best, bytes; 0: nothing is known yet.
    /// [`BEST_IS_NONE`]: to have none.
    pub compressed_best_bytes: AtomicU64,
    /// Memory that a buffer of a task may keep while nobody uses it, bytes; 0: all of it. Buffers
    /// come on top of the budget.
    pub buffer_bytes: AtomicU64,
    /// Anonymous private mappings below this size are left alone, bytes.
    pub threshold_bytes: AtomicU64,
    /// `--memory`: what programs see as the memory of the machine, bytes; 0: what there is.
    pub machine_bytes: AtomicU64,
    /// Sum over tasks of their resident bytes; the budget is checked against this.
    pub resident_bytes: AtomicU64,
    /// Sum over tasks of the compressed tier.
    pub compressed_bytes: AtomicU64,
    /// Sum over tasks of demand.
    pub demand_bytes: AtomicU64,
    /// Paging space takes no more, and somebody needs it.
    pub full: Full,
    /// Counters of tasks that are gone, folded in by the supervisor.
    pub past: Counters,
    /// Paging files.
    pub spill: [SpillFile; SPILL_FILES_MAX],
    /// Tasks.
    pub tasks: [TaskSlot; TASKS_MAX],
    /// Files that `farpage run --map` gives the tree.
    pub maps: Maps,
    /// Shared memory that `farpage run --shm` keeps.
    pub shm: Shm,
    /// Trace, when wanted.
    pub ring: TraceRing,
    /// Who holds which segment of which paging file.
    pub segments: [[SegmentLine; SEGMENTS_MAX]; SPILL_FILES_MAX],
}

impl Control {
    /// Bytes that resident pages, pages set aside and the compressed tier take now.
    pub fn used_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed) + self.compressed_bytes.load(Ordering::Relaxed)
    }

    /// Memory that a buffer of a task may keep while nobody uses it, bytes.
    pub fn buffer_bytes(&self) -> usize {
        match self.buffer_bytes.load(Ordering::Relaxed) {
            0 => usize::MAX,
            bytes => bytes as usize,
        }
    }

    /// True when the tree, once `bytes` more are mapped, has mapped about as much as the budget or
    /// more: memory must be managed.
    pub fn is_tight_with(&self, bytes: u64) -> bool {
        let budget = self.budget_bytes.load(Ordering::Relaxed);
        self.demand_bytes.load(Ordering::Relaxed) + bytes > budget - budget / 16
    }

    /// Claims a slot for process `pid`, the one it has already if it has one (and then what it held
    /// stays). `None`: all are taken.
    pub fn claim(&self, pid: u32) -> Option<usize> {
        self.slot_of(pid).or_else(|| self.claim_another(pid))
    }

    /// Claims a free slot in the name of `pid`, even if that has one already. `None`: all are
    /// taken.
    pub fn claim_another(&self, pid: u32) -> Option<usize> {
        let take = |slot: &TaskSlot| {
            let free = slot.pid.load(Ordering::Relaxed) == 0;
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            free && slot.pid.compare_exchange(0, pid, order, failed).is_ok()
        };
        let slot = self.tasks.iter().position(take)?;
        self.tasks_high.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        Some(slot)
    }

    /// The slots up to the highest that was ever claimed. To look at the others would take memory
    /// for them.
    pub fn slots(&self) -> &[TaskSlot] {
        let high = self.tasks_high.load(Ordering::Acquire) as usize;
        &self.tasks[..high.min(TASKS_MAX)]
    }

    /// The slot of process `pid`.
    pub fn slot_of(&self, pid: u32) -> Option<usize> {
        let own = |slot: &TaskSlot| slot.pid.load(Ordering::Acquire) == pid;
        self.slots().iter().position(own)
    }

    /// The task that is charged most memory, `slot` left aside. `None`: no other is charged any.
    pub fn largest_but(&self, slot: usize) -> Option<&TaskSlot> {
        let resident = |task: &TaskSlot| task.counters.resident_bytes.load(Ordering::Relaxed);
        let others = self.slots().iter().enumerate();
        let held = others.filter(|(at, task)| *at != slot && resident(task) > 0);
        held.map(|(_, task)| task).max_by_key(|task| resident(task))
    }

    /// Gives back all that task `slot` (a number below [`TASKS_MAX`]) held, after its death:
    /// budget, compressed tier, demand and segments. Returns the number of segments returned.
    pub fn reap(&self, slot: usize) -> usize {
        let task = &self.tasks[slot];
        let returned = self.reset(slot);
        task.parent.store(0, Ordering::Relaxed);
        task.death.store(0, Ordering::Relaxed);
        task.inject.store(0, Ordering::Relaxed);
        task.pid.store(0, Ordering::Release);
        returned
    }

    /// As [`Control::reap`], but the slot stays claimed: its process executes another program.
    pub fn reset(&self, slot: usize) -> usize {
        let task = &self.tasks[slot];
        let take = |gauge: &AtomicU64, total: Option<&AtomicU64>| {
            let bytes = gauge.swap(0, Ordering::AcqRel);
            if let Some(total) = total {
                total.fetch_sub(bytes, Ordering::AcqRel);
            }
        };
        let c = &task.counters;
        take(&c.resident_bytes, Some(&self.resident_bytes));
        take(&c.compressed_bytes, Some(&self.compressed_bytes));
        take(&c.demand_bytes, Some(&self.demand_bytes));
        take(&c.compressed_from_bytes, None);
        take(&c.spilled_bytes, None);
        let mut past: [Option<&AtomicU64>; 32] = [None; 32];
        let mut count = 0;
        self.past.each(|_, counter| {
            past[count] = Some(counter);
            count += 1;
        });
        let mut at = 0;
        c.each(|name, counter| {
            let value = counter.swap(0, Ordering::AcqRel);
            if let Some(total) = past[at] {
                if name.ends_with("_max") {
                    total.fetch_max(value, Ordering::Relaxed);
                } else {
                    total.fetch_add(value, Ordering::Relaxed);
                }
            }
            at += 1;
        });
        let returned = self.release_segments_of(slot);
        self.maps.leave(slot);
        task.pressure.store(0, Ordering::Relaxed);
        self.memory_freed.fetch_add(1, Ordering::Release);
        returned
    }

    fn release_segments_of(&self, slot: usize) -> usize {
        let mut returned = 0;
        for (file, lines) in self.spill.iter().zip(&self.segments) {
            let allocated = file.allocated_segments.load(Ordering::Acquire) as usize;
            for line in &lines[..allocated.min(SEGMENTS_MAX)] {
                if line.remove(slot) {
                    file.segment_returned();
                    returned += 1;
                }
            }
        }
        returned
    }
}

impl SpillFile {
    /// What is done with it.
    pub fn state(&self) -> SpillState {
        use SpillState::{Active, Draining, Removed, Unused};
        let raw = self.state.load(Ordering::Acquire);
        let mut used = [Active, Draining, Removed].into_iter();
        used.find(|&state| state as u32 == raw).unwrap_or(Unused)
    }

    /// The system error of its last write, if its disk failed.
    pub fn write_error(&self) -> Option<i32> {
        match self.write_error.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(errno as i32),
        }
    }

    /// Accounts for one segment that became free.
    pub fn segment_returned(&self) {
        self.used_segments.fetch_sub(1, Ordering::AcqRel);
        self.full.store(0, Ordering::Relaxed);
    }
}

impl SegmentLine {
    /// Claims a free segment for task `slot`. False when it is not free.
    pub fn claim(&self, slot: usize) -> bool {
        let seen = self.claim.load(Ordering::Acquire);
        if seen % 2 == 1 {
            return false;
        }
        let won = self
            .claim
            .compare_exchange(
                seen,
                seen.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok();
        if won {
            self.holders[0].store(slot as u16 + 1, Ordering::Release);
        }
        won
    }

    /// Adds task `slot` to the holders; the caller holds the segment itself and keeps holding it
    /// while it adds (fork: the parent adds its child).
    pub fn add(&self, slot: usize) {
        for holder in &self.holders[..HOLDERS - 1] {
            let free =
                holder.compare_exchange(0, slot as u16 + 1, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                return;
            }
        }
        self.holders[HOLDERS - 1].store(u16::MAX, Ordering::Release);
    }

    /// Takes task `slot` off the holders. True when it was the last and the segment is free now.
    pub fn remove(&self, slot: usize) -> bool {
        let seen = self.claim.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return false;
        }
        let mut was_holder = false;
        for holder in &self.holders {
            let own = slot as u16 + 1;
            let left = holder.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
            was_holder |= left.is_ok();
        }
        was_holder
            && self
                .holders
                .iter()
                .all(|holder| holder.load(Ordering::Acquire) == 0)
            && self
                .claim
                .compare_exchange(
                    seen,
                    seen.wrapping_add(1),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> SegmentLine {
        SegmentLine {
            claim: AtomicU32::new(0),
            holders: [const { AtomicU16::new(0) }; HOLDERS],
        }
    }

    #[test]
    fn a_segment_is_free_after_its_last_holder() {
        let line = line();
        assert!(line.claim(3));
        assert!(!line.claim(4));
        line.add(4);
        assert!(!line.remove(3));
        assert!(!line.remove(3), "a second removal is no removal");
        assert!(line.remove(4));
        assert!(line.claim(5));
    }

    #[test]
    fn too_many_holders_keep_the_segment() {
        let line = line();
        assert!(line.claim(0));
        for slot in 1..100 {
            line.add(slot);
        }
        for slot in 0..100 {
            assert!(!line.remove(slot));
        }
        assert!(!line.claim(1));
    }

    #[test]
    fn layout_is_what_processes_share() {
        assert_eq!(size_of::<SegmentLine>(), 64);
        assert_eq!(align_of::<TaskSlot>(), 64);
        assert_eq!(size_of::<Control>() % 64, 0);
    }
}
