//! Several transfers at once by one thread: `io_uring(7)`.
//!
//! A ring is an optimisation and nothing else: what it did not do whole, whatever the cause, its
//! user does again by `pread` or `pwrite`, whose error is the one that counts.

use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as g;
use linux_raw_sys::io_uring as u;

use crate::arena::{Arena, Kept, Reading};
use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::{mem, syscall, thread, time};

/// Transfers that a ring takes at once.
pub const DEPTH: usize = 16;

const SQE_BYTES: usize = size_of::<u::io_uring_sqe>();
const CQE_BYTES: usize = 16;
const _: () = assert!(SQE_BYTES == 64 && size_of::<u::io_uring_params>() == 120);
/// Reads of no more than this, together, may end soon...
const SOON_BYTES: usize = 64 << 10;
/// ... and are looked for this long, while other threads may run, before the thread sleeps: an idle
/// processor takes as long to wake as a fast disk to read.
const SOON_NS: u64 = 200_000;
/// Time between two looks when Linux refuses to let a thread wait.
const LOOK_NS: u64 = 100_000;

/// One read of a batch.
pub struct Read<'a> {
    /// From where.
    pub fd: Fd,
    /// Byte offset in the file.
    pub offset: u64,
    /// To where; less than 4 GiB.
    pub buffer: &'a mut [u8],
    /// Set when all of `buffer` was read.
    pub whole: bool,
}

/// A ring of [`DEPTH`] transfers, used by one thread at a time. A forked child does not have its
/// memory and must give up its descriptor: [`Ring::abandon`].
pub struct Ring {
    fd: Fd,
    /// Both queues; their places lie in `offsets`.
    queues: usize,
    queues_bytes: usize,
    entries: usize,
    offsets: u::io_uring_params,
    /// What a write on its way reads.
    writing: Option<Kept>,
}

impl Ring {
    /// Makes a ring whose descriptor has the number `at`, closed on exec. What had the number is
    /// closed, unless this fails.
    ///
    /// # Errors
    /// As `io_uring_setup(2)` and `mmap(2)`: `ENOSYS` and `EPERM` where it is forbidden, `EINVAL`
    /// before Linux 5.4.
    pub fn new(at: Fd) -> Result<Self> {
        // SAFETY: a structure of numbers, all zero.
        let mut offsets: u::io_uring_params = unsafe { core::mem::zeroed() };
        let parameters = &raw mut offsets;
        // SAFETY: `parameters` is the structure that the call reads and fills.
        let made = unsafe { syscall!(g::__NR_io_uring_setup, DEPTH, parameters) }?;
        let made = Fd(made as i32);
        let mut ring = Self::map(made, offsets)?;
        ring.fd = file::move_to(made, at, true)?;
        Ok(ring)
    }

    /// Maps the ring of `fd`, which is closed when that fails.
    fn map(fd: Fd, offsets: u::io_uring_params) -> Result<Self> {
        let completions = offsets.cq_off.cqes as usize + offsets.cq_entries as usize * CQE_BYTES;
        let array = offsets.sq_off.array as usize + offsets.sq_entries as usize * 4;
        let mut ring = Self {
            fd,
            queues: 0,
            queues_bytes: completions.max(array),
            entries: 0,
            offsets,
            writing: None,
        };
        if offsets.features & u::IORING_FEAT_SINGLE_MMAP == 0 {
            return Err(Errno::EINVAL);
        }
        ring.queues = map_part(fd, ring.queues_bytes, u::IORING_OFF_SQ_RING)?;
        ring.entries = map_part(fd, ring.entries_bytes(), u::IORING_OFF_SQES)?;
        for index in 0..offsets.sq_entries {
            let place = offsets.sq_off.array + index * 4;
            ring.word(place).store(index, Ordering::Relaxed);
        }
        Ok(ring)
    }

    fn entries_bytes(&self) -> usize {
        self.offsets.sq_entries as usize * SQE_BYTES
    }

    /// A word of the queues, which Linux writes as well.
    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(
            offset as usize + 4 <= self.queues_bytes,
            "outside of a ring"
        );
        // SAFETY: inside the mapping, which lives as long as the ring; Linux aligns its words.
        unsafe { &*((self.queues + offset as usize) as *const AtomicU32) }
    }

    /// Reads all of `reads`, at once as far as Linux is able to. Nothing is on its way any more
    /// when this returns.
    ///
    /// # Panics
    /// When there are more than [`DEPTH`], or a write is on its way.
    pub fn read_all(&mut self, reads: &mut [Read<'_>]) {
        assert!(reads.len() <= DEPTH, "a full ring");
        for (index, read) in reads.iter_mut().enumerate() {
            let at = read.buffer.as_mut_ptr() as usize;
            let place = (read.fd, read.offset);
            self.push(
                u::io_uring_op::IORING_OP_READ,
                place,
                at,
                read.buffer.len(),
                index,
            );
        }
        let bytes: usize = reads.iter().map(|read| read.buffer.len()).sum();
        let soon = bytes <= SOON_BYTES;
        let until = if soon { time::now_ns() + SOON_NS } else { 0 };
        let mut missing = self.submit();
        while missing > 0 {
            while let Some((index, result)) = self.next_completion() {
                missing -= 1;
                if let Some(read) = reads.get_mut(index) {
                    read.whole = usize::try_from(result) == Ok(read.buffer.len());
                }
            }
            if missing > 0 {
                if soon && time::now_ns() < until {
                    thread::let_others_run();
                } else {
                    self.wait();
                }
            }
        }
    }

    /// Starts to write `bytes` at `offset`; they are kept until [`Ring::end_write`]. False when
    /// Linux does not take the write.
    ///
    /// # Panics
    /// When a write is on its way already.
    pub fn begin_write(&mut self, fd: Fd, bytes: Reading<'_>, offset: u64) -> bool {
        assert!(self.writing.is_none(), "a write is on its way");
        let (at, length) = (bytes.as_ptr() as usize, bytes.len());
        self.push(
            u::io_uring_op::IORING_OP_WRITE,
            (fd, offset),
            at,
            length,
            length,
        );
        let begun = self.submit() == 1;
        if begun {
            self.writing = Some(bytes.keep());
        }
        begun
    }

    /// True when the write on its way, if there is one, has ended.
    pub fn has_written(&self) -> bool {
        let offsets = &self.offsets.cq_off;
        let ended = self.word(offsets.tail).load(Ordering::Acquire);
        self.writing.is_none() || ended != self.word(offsets.head).load(Ordering::Relaxed)
    }

    /// Waits for the write on its way, out of `arena`. True when all was written.
    pub fn end_write(&mut self, arena: &Arena) -> bool {
        let Some(kept) = self.writing.take() else {
            return false;
        };
        let (length, result) = loop {
            match self.next_completion() {
                Some(ended) => break ended,
                None => self.wait(),
            }
        };
        arena.release(kept);
        usize::try_from(result) == Ok(length)
    }

    /// Queues a transfer of `bytes` bytes at `address`.
    fn push(
        &mut self,
        what: u::io_uring_op,
        (fd, offset): (Fd, u64),
        address: usize,
        bytes: usize,
        name: usize,
    ) {
        let tail = self.word(self.offsets.sq_off.tail);
        let next = tail.load(Ordering::Relaxed);
        // SAFETY: a structure of numbers, all zero.
        let mut entry: u::io_uring_sqe = unsafe { core::mem::zeroed() };
        entry.opcode = what as u8;
        entry.fd = fd.0;
        entry.__bindgen_anon_1.off = offset;
        entry.__bindgen_anon_2.addr = address as u64;
        entry.len = bytes as u32;
        entry.user_data = name as u64;
        let index = (next % self.offsets.sq_entries) as usize;
        let place = (self.entries + index * SQE_BYTES) as *mut u::io_uring_sqe;
        // SAFETY: inside the mapping; Linux has taken all entries, as `submit` sees to.
        unsafe { place.write(entry) };
        tail.store(next.wrapping_add(1), Ordering::Release);
    }

    /// Hands over what is queued. Returns how many transfers are on their way; the others are
    /// queued no more.
    fn submit(&mut self) -> usize {
        let head = self.word(self.offsets.sq_off.head);
        let tail = self.word(self.offsets.sq_off.tail);
        let before = head.load(Ordering::Acquire);
        let until = tail.load(Ordering::Relaxed);
        loop {
            let left = until.wrapping_sub(head.load(Ordering::Acquire));
            if left == 0 {
                break;
            }
            // SAFETY: the entries name memory that the callers keep until they have completed.
            let taken = unsafe { syscall!(g::__NR_io_uring_enter, self.fd.0, left, 0, 0, 0, 0) };
            if !matches!(taken, Ok(1..) | Err(Errno::EINTR)) {
                break;
            }
        }
        let reached = head.load(Ordering::Acquire);
        tail.store(reached, Ordering::Release);
        reached.wrapping_sub(before) as usize
    }

    /// Takes the next completion: the transfer's name and result.
    fn next_completion(&mut self) -> Option<(usize, i32)> {
        let offsets = &self.offsets.cq_off;
        let head = self.word(offsets.head);
        let at = head.load(Ordering::Relaxed);
        if at == self.word(offsets.tail).load(Ordering::Acquire) {
            return None;
        }
        let index = at % self.offsets.cq_entries;
        let place = offsets.cqes + index * CQE_BYTES as u32;
        // The upper half of the name is zero: names are small.
        let name = self.word(place).load(Ordering::Relaxed);
        let result = self.word(place + 8).load(Ordering::Relaxed);
        head.store(at.wrapping_add(1), Ordering::Release);
        Some((name as usize, result as i32))
    }

    /// Waits for a completion. May return without one.
    fn wait(&self) {
        let flags = u::IORING_ENTER_GETEVENTS;
        // SAFETY: submits nothing, takes no pointer.
        let waited = unsafe { syscall!(g::__NR_io_uring_enter, self.fd.0, 0, 1, flags, 0, 0) };
        if !matches!(waited, Ok(_) | Err(Errno::EINTR)) {
            // What is on its way goes on: its memory may not be left before it has ended.
            time::sleep_ns(LOOK_NS);
        }
    }

    /// In a forked child: lets go of the parent's ring. The number of its descriptor goes to
    /// another name of `instead`, or is free when there is no such thing.
    pub fn abandon(self, instead: Fd) {
        if file::put_at(instead, self.fd).is_err() {
            file::close(self.fd);
        }
        core::mem::forget(self);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (at, bytes) in [
            (self.queues, self.queues_bytes),
            (self.entries, self.entries_bytes()),
        ] {
            if at != 0 {
                // SAFETY: this ring's own mapping, used by nobody else.
                let _ = unsafe { mem::unmap(at, bytes) };
            }
        }
        file::close(self.fd);
    }
}

/// Maps a part of a ring so that forked children do not get it.
fn map_part(fd: Fd, bytes: usize, offset: u32) -> Result<usize> {
    let (access, flags) = (mem::PROT_READ | mem::PROT_WRITE, mem::MAP_SHARED);
    // SAFETY: without MAP_FIXED nothing existing is touched.
    let at = unsafe { mem::map(0, bytes, access, flags, fd, u64::from(offset)) }?;
    // SAFETY: this advice changes no contents here.
    match unsafe { mem::advise(at, bytes, mem::MADV_DONTFORK) } {
        Ok(()) => Ok(at),
        Err(errno) => {
            // SAFETY: mapped above, known to nobody.
            let _ = unsafe { mem::unmap(at, bytes) };
            Err(errno)
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::buffer::Buffer;

    fn ring(at: i32) -> Option<Ring> {
        let made = Ring::new(Fd(at));
        if made.is_err() {
            std::println!("skipped: io_uring_setup says {:?}", made.as_ref().err());
        }
        made.ok()
    }

    /// A file of 32 pages, each full of its number.
    fn numbered() -> Fd {
        let fd = file::memfd(c"numbered", 0).unwrap();
        for page in 0..32u8 {
            file::pwrite_all(fd, &[page; 4096], u64::from(page) * 4096).unwrap();
        }
        fd
    }

    #[test]
    fn reads_arrive_each_in_its_buffer_batch_after_batch() {
        let Some(mut ring) = ring(150) else { return };
        let fd = numbered();
        let mut buffer = Buffer::new(DEPTH * 4096).unwrap();
        for batch in 0..20 {
            let of = |index: usize| (index * 7 + batch * 3) % 32;
            let mut parts = buffer.chunks_exact_mut(4096);
            let mut reads: [Read<'_>; DEPTH] = core::array::from_fn(|index| Read {
                fd,
                offset: of(index) as u64 * 4096,
                buffer: parts.next().unwrap(),
                whole: false,
            });
            ring.read_all(&mut reads);
            assert!(reads.iter().all(|read| read.whole));
            for (index, page) in buffer.chunks_exact(4096).enumerate() {
                assert!(page.iter().all(|&byte| usize::from(byte) == of(index)));
            }
        }
        file::close(fd);
    }

    #[test]
    fn what_was_not_read_whole_is_told() {
        let Some(mut ring) = ring(151) else { return };
        let fd = numbered();
        let mut buffer = Buffer::new(4 * 4096).unwrap();
        let places = [(fd, 0), (fd, 31 * 4096 + 8), (fd, 1 << 30), (Fd(-1), 0)];
        let mut parts = buffer.chunks_exact_mut(4096);
        let mut reads = places.map(|(fd, offset)| Read {
            fd,
            offset,
            buffer: parts.next().unwrap(),
            whole: false,
        });
        ring.read_all(&mut reads);
        assert_eq!(reads.map(|read| read.whole), [true, false, false, false]);
        file::close(fd);
    }

    #[test]
    fn a_ring_without_its_descriptor_reads_nothing_and_returns() {
        let Some(mut ring) = ring(152) else { return };
        let fd = numbered();
        file::close(Fd(152));
        let mut buffer = Buffer::new(4096).unwrap();
        let mut reads = [Read {
            fd,
            offset: 0,
            buffer: &mut buffer,
            whole: false,
        }];
        ring.read_all(&mut reads);
        assert!(!reads[0].whole);
        file::close(fd);
    }

    #[test]
    fn a_dropped_or_abandoned_ring_leaves_no_descriptor_but_the_one_put_there() {
        let (Some(dropped), Some(abandoned)) = (ring(153), ring(154)) else {
            return;
        };
        drop(dropped);
        assert!(!file::is_open(Fd(153)));
        let instead = file::memfd(c"instead", 0).unwrap();
        abandoned.abandon(instead);
        assert!(file::is_same(Fd(154), instead));
        file::close(Fd(154));
        file::close(instead);
    }
}
