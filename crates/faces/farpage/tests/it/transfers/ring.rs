//! A caller's ring: transfers of registered buffers, several at a time.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use farpage_sys::file::Fd;
use farpage_sys::mem;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringOp, IoringRegisterOp,
    IoringRsrcFlags, io_uring_enter, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_setup, io_uring_sqe,
};

const CQE_BYTES: usize = 16;

/// One transfer of a registered buffer.
pub(crate) struct Transfer {
    pub(crate) write: bool,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) offset: u64,
    pub(crate) buffer: u16,
}

/// A ring whose table of buffers is sparse, used by one thread.
pub(crate) struct Ring {
    fd: OwnedFd,
    parameters: io_uring_params,
    queues: (usize, usize),
    entries: (usize, usize),
}

impl Ring {
    pub(crate) fn new(entries: u32, buffers: u32) -> io::Result<Self> {
        let mut parameters = io_uring_params::default();
        // SAFETY: the structure that the call reads and fills.
        let fd = unsafe { io_uring_setup(entries, &mut parameters) }?;
        let mut table = io_uring_rsrc_register::default();
        (table.nr, table.flags) = (buffers, IoringRsrcFlags::REGISTER_SPARSE);
        let (at, size) = ((&raw const table).cast(), size_of_val(&table) as u32);
        // SAFETY: the structure that this operation reads, and its size.
        unsafe { io_uring_register(&fd, IoringRegisterOp::RegisterBuffers2, at, size) }?;
        let completions = parameters.cq_off.cqes as usize;
        let completions = completions + parameters.cq_entries as usize * CQE_BYTES;
        let array = parameters.sq_off.array as usize + parameters.sq_entries as usize * 4;
        let entries = parameters.sq_entries as usize * size_of::<io_uring_sqe>();
        let queues = part(&fd, completions.max(array), IORING_OFF_SQ_RING)?;
        let entries = part(&fd, entries, IORING_OFF_SQES)?;
        Ok(Self {
            fd,
            parameters,
            queues,
            entries,
        })
    }

    /// Starts all and waits for them. Bytes that each has transferred.
    pub(crate) fn transfer(
        &self,
        file: BorrowedFd<'_>,
        all: &[Transfer],
    ) -> Vec<io::Result<usize>> {
        assert!(all.len() <= self.parameters.sq_entries as usize);
        let tail = self.word(self.parameters.sq_off.tail);
        for (number, one) in (0_u64..).zip(all) {
            let opcode = match one.write {
                true => IoringOp::WriteFixed,
                false => IoringOp::ReadFixed,
            };
            let mut entry = io_uring_sqe {
                opcode,
                fd: file.as_raw_fd(),
                ..Default::default()
            };
            entry.off_or_addr2.off = one.offset;
            let at = std::ptr::with_exposed_provenance_mut::<c_void>(one.at);
            entry.addr_or_splice_off_in.addr = io_uring_ptr::new(at);
            entry.len.len = one.bytes as u32;
            entry.buf.buf_index = one.buffer;
            entry.user_data.u64_ = number;
            let next = tail.load(Ordering::Relaxed);
            let index = next % self.parameters.sq_entries;
            let entries = std::ptr::with_exposed_provenance_mut::<io_uring_sqe>(self.entries.0);
            // SAFETY: inside the mapping; Linux has taken all entries before.
            unsafe { entries.add(index as usize).write(entry) };
            self.word(self.parameters.sq_off.array + index * 4)
                .store(index, Ordering::Relaxed);
            tail.store(next.wrapping_add(1), Ordering::Release);
        }
        let mut ended: Vec<Option<i32>> = all.iter().map(|_| None).collect();
        let mut submit = all.len() as u32;
        while ended.contains(&None) {
            // SAFETY: what the entries name is the caller's until all have ended.
            let entered =
                unsafe { io_uring_enter(&self.fd, submit, 1, IoringEnterFlags::GETEVENTS) };
            match entered {
                Ok(taken) => submit -= taken,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => panic!("a ring that was made takes transfers: {errno}"),
            }
            while let Some((number, result)) = self.completion() {
                ended[number as usize] = Some(result);
            }
        }
        let bytes = |result: i32| {
            usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
        };
        ended.into_iter().flatten().map(bytes).collect()
    }

    fn completion(&self) -> Option<(u64, i32)> {
        let offsets = &self.parameters.cq_off;
        let head = self.word(offsets.head);
        let at = head.load(Ordering::Relaxed);
        if at == self.word(offsets.tail).load(Ordering::Acquire) {
            return None;
        }
        let index = at % self.parameters.cq_entries;
        let place = offsets.cqes + index * CQE_BYTES as u32;
        // The upper half of the number is zero.
        let number = self.word(place).load(Ordering::Relaxed);
        let result = self.word(place + 8).load(Ordering::Relaxed);
        head.store(at.wrapping_add(1), Ordering::Release);
        Some((u64::from(number), result as i32))
    }

    /// A word of the queues, which Linux writes as well.
    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(offset as usize + 4 <= self.queues.1);
        let at = std::ptr::with_exposed_provenance_mut(self.queues.0 + offset as usize);
        // SAFETY: inside the mapping, which lives as long as the ring; Linux aligns its words.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (at, bytes) in [self.queues, self.entries] {
            // SAFETY: this ring's own mapping, used by nobody else.
            let _ = unsafe { mem::unmap(at, bytes) };
        }
    }
}

/// Maps a part of a ring, which children of fork do not get.
fn part(fd: &OwnedFd, bytes: usize, offset: u64) -> io::Result<(usize, usize)> {
    let (access, flags) = (mem::PROT_READ | mem::PROT_WRITE, mem::MAP_SHARED);
    let of = |errno: farpage_sys::Errno| io::Error::other(errno.to_string());
    // SAFETY: without MAP_FIXED nothing existing is touched.
    let at = unsafe { mem::map(0, bytes, access, flags, Fd(fd.as_raw_fd()), offset) };
    let at = at.map_err(of)?;
    // SAFETY: this advice changes no contents here.
    unsafe { mem::advise(at, bytes, mem::MADV_DONTFORK) }.map_err(of)?;
    Ok((at, bytes))
}
