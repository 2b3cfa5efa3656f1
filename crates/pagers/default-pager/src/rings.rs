//! Rings (`io_uring`): reads that lie in several places of the paging files go out together, and
//! segments are written behind (`behind`).
//!
//! Measured on a virtual disk, ext4, O_DIRECT, 2 cores, µs a read (median of 15, quartiles), one
//! `pread` after another, then in batches of 16: 4 KiB 91 (79..109) and 18 (18..20); 16 KiB 85
//! (79..101) and 26 (24..32); 64 KiB 126 (96..179) and 71 (67..79). Alone in its batch a read costs
//! the same either way (82) as long as the thread sleeps. Small reads are looked for instead, for a
//! while: 20,000 random reads of a program take 2.0 s, not 2.5.
//!
//! A ring belongs to one process: its memory is not copied by fork, its descriptor is closed by
//! exec and replaced in a forked child, which makes its own when it needs one. Where none can be
//! made, or a filter of the program's own could forbid its use, the reads are made one by one.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use farpage_object::{Control, fds};
use farpage_sys::file::Fd;
use farpage_sys::process;
use farpage_sys::ring::{Read, Ring};

/// Whether rings may be used here.
pub(crate) struct Permission {
    control: &'static Control,
    withdrawn: AtomicBool,
    /// The thread that writes behind, 0 when none is known.
    writer: AtomicU32,
}

impl Permission {
    pub(crate) fn new(control: &'static Control) -> Self {
        Self {
            control,
            withdrawn: AtomicBool::new(false),
            writer: AtomicU32::new(0),
        }
    }

    /// For good, and in forked children.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
    }

    /// The calling thread writes behind from now on.
    pub(crate) fn write_here(&self) {
        self.writer.store(process::thread_id(), Ordering::Relaxed);
    }

    /// True in the thread that writes behind.
    pub(crate) fn writes_here(&self) -> bool {
        self.given() && self.writer.load(Ordering::Relaxed) == process::thread_id()
    }

    /// In a forked child, which does not have the thread.
    pub(crate) fn forget_writer(&self) {
        self.writer.store(0, Ordering::Relaxed);
    }

    fn given(&self) -> bool {
        self.control.io_uring.load(Ordering::Relaxed) != 0
            && !self.withdrawn.load(Ordering::Relaxed)
    }

    fn descriptor(&self, offset: u32) -> Fd {
        Fd((self.control.fd_base.load(Ordering::Relaxed) + offset) as i32)
    }
}

/// A ring, made when it is first needed.
pub(crate) struct Lazy {
    /// Which of the task's rings it is.
    number: u32,
    state: Made,
}

enum Made {
    NotYet,
    Yes(Ring),
    Refused,
}

impl Lazy {
    pub(crate) fn new(number: usize) -> Self {
        assert!(
            number < farpage_object::RINGS,
            "more rings than descriptors"
        );
        Self {
            number: number as u32,
            state: Made::NotYet,
        }
    }

    /// Reads as many of `reads` as it can, all at once: see `Read::whole`.
    pub(crate) fn read_all(&mut self, permission: &Permission, reads: &mut [Read<'_>]) {
        if let Some(ring) = self.ring(permission) {
            ring.read_all(reads);
        }
    }

    /// The ring, if one may be used and can be made.
    pub(crate) fn ring(&mut self, permission: &Permission) -> Option<&mut Ring> {
        if !permission.given() {
            return None;
        }
        if let Made::NotYet = self.state {
            let made = Ring::new(permission.descriptor(fds::RING + self.number));
            self.state = made.map_or(Made::Refused, Made::Yes);
        }
        self.made()
    }

    /// The ring, if it was made.
    pub(crate) fn made(&mut self) -> Option<&mut Ring> {
        match &mut self.state {
            Made::Yes(ring) => Some(ring),
            Made::NotYet | Made::Refused => None,
        }
    }

    /// In a forked child: the ring is the parent's.
    pub(crate) fn abandon(&mut self, permission: &Permission) {
        if let Made::Yes(ring) = core::mem::replace(&mut self.state, Made::NotYet) {
            ring.abandon(permission.descriptor(fds::CONTROL));
        }
    }
}
