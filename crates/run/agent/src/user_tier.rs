//! The user-mode-only tier: userfaultfd does not serve the kernel's own accesses, so what a system
//! call reads or writes must be in memory before it is made, and stay while it lasts.
//!
//! Calls that can wait are made by the program itself, from the gate, with their memory held until
//! the thread is here again. Transfers from and to files of any size are made here, piece by piece:
//! a program expects them whole.

use farpage_kernel::{Holder, Kernel};
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::pointers;
use farpage_sys::{Errno, Result, process, syscall};

use crate::frame::Frame;
use crate::transfer::{Transfer, Way};
use crate::trap::Outcome;
use crate::{maps, memory, program, sandbox};

/// What is held of an argument whose size is not known: a path, or a structure.
const PATH_BYTES: usize = 4096;
const IOV_MAX: usize = 1024;
/// Semaphores that a set may have, `SEMMSL`.
const SEMAPHORES_MAX: usize = 32000;
/// A transfer of so many bytes is held whole, whatever it goes to.
const HELD_WHOLE: usize = 64 << 10;
/// What is held where a structure has a pointer: the longest filter of a socket.
const POINTED_BYTES: usize = 32 << 10;
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
/// `PTRACE_GETREGSET` and `PTRACE_SETREGSET`.
const REGISTERS: [usize; 2] = [0x4204, 0x4205];
/// `struct futex_waitv`, and how many one call takes.
const WAIT_BYTES: usize = 24;
const WAITS_MAX: usize = 128;
const SOL_SOCKET: usize = 1;
const SO_TYPE: usize = 3;
const SOCK_STREAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    bytes: usize,
}

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    name: usize,
    name_bytes: usize,
    pieces: usize,
    count: usize,
    control: usize,
    control_bytes: usize,
    flags: usize,
}

/// A call with pointers to managed memory.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn call(number: u32, frame: &mut Frame) -> Outcome {
    let args = frame.arguments();
    match number {
        g::__NR_rseq | g::__NR_set_robust_list => keep(args[0], args[1]),
        // Linux looks there before each call of the thread.
        g::__NR_prctl if args[0] == PR_SET_SYSCALL_USER_DISPATCH => keep(args[4], 1),
        g::__NR_set_tid_address => keep(args[0], size_of::<u32>()),
        _ => {}
    }
    let Some(help) = Help::new() else {
        return Outcome::Reissue;
    };
    match number {
        g::__NR_read | g::__NR_write | g::__NR_pread64 | g::__NR_pwrite64
            if args[2] > HELD_WHOLE && is_file(args[0]) =>
        {
            // SAFETY: forwarded.
            Outcome::Done(unsafe { help.whole(number, args) })
        }
        g::__NR_getrandom if args[1] > HELD_WHOLE => {
            let [at, bytes, flags, ..] = args;
            // SAFETY: forwarded.
            Outcome::Done(unsafe { help.whole(number, [flags, at, bytes, 0, 0, 0]) })
        }
        g::__NR_readv | g::__NR_writev | g::__NR_preadv | g::__NR_pwritev if is_file(args[0]) => {
            // SAFETY: forwarded.
            Outcome::Done(unsafe { help.pieces_whole(number, args) })
        }
        g::__NR_preadv2 | g::__NR_pwritev2 if args[5] == 0 && is_file(args[0]) => {
            // SAFETY: forwarded.
            Outcome::Done(unsafe { help.pieces_whole(number, args) })
        }
        g::__NR_process_vm_readv | g::__NR_process_vm_writev if args[5] == 0 => {
            // SAFETY: forwarded.
            Outcome::Done(unsafe { help.between_processes(number, args) })
        }
        g::__NR_readv | g::__NR_writev | g::__NR_sendmsg | g::__NR_recvmsg
            if help.shorten(number, frame) =>
        {
            // SAFETY: the program's call, in part; what it transfers is no vector any more.
            unsafe { call(frame.rax as u32, frame) }
        }
        _ => {
            if let Some((_, bytes)) = transfer(number, args) {
                // A transfer that may be short is made as long as can be held.
                frame_length(number, frame, bytes.min(help.kernel.hold_limit()));
            }
            help.prepare(number, args);
            Outcome::ReissueAs(number)
        }
    }
}

/// Brings in what a call reads and writes that the program is going to make itself.
pub(crate) fn prepare(number: u32, args: [usize; 6]) {
    if let Some(help) = memory::is_user_tier().then(Help::new).flatten() {
        help.prepare(number, args);
    }
}

/// Makes `bytes` bytes at `at` present, and writable if they will be written, when they are managed memory
/// that is not. True when they were.
pub(crate) fn bring_in(at: usize, bytes: usize, write: bool) -> bool {
    let help = memory::is_user_tier().then(Help::more).flatten();
    help.is_some_and(|help| help.hold(at, bytes, write))
}

/// Ends what this thread holds: it makes no call any more in which it could.
pub(crate) fn let_go() {
    if let Some(help) = memory::is_user_tier().then(Help::more).flatten() {
        help.release();
    }
}

/// Makes `bytes` bytes at `at` present and writable if they are managed memory, until this thread's
/// next call.
pub(crate) fn bring_in_to_write(at: usize, bytes: usize) {
    if let Some(help) = memory::is_user_tier().then(Help::new).flatten() {
        help.hold(at, bytes, true);
    }
}

/// The length and place of a plain transfer.
fn transfer(number: u32, args: [usize; 6]) -> Option<(usize, usize)> {
    match number {
        g::__NR_read
        | g::__NR_write
        | g::__NR_pread64
        | g::__NR_pwrite64
        | g::__NR_recvfrom
        | g::__NR_sendto
        | g::__NR_getdents
        | g::__NR_getdents64
        | g::__NR_mq_timedsend
        | g::__NR_mq_timedreceive => Some((args[1], args[2])),
        // The kind of the message comes before its text.
        g::__NR_msgsnd | g::__NR_msgrcv => Some((args[1], args[2].saturating_add(8))),
        g::__NR_getrandom | g::__NR_getcwd => Some((args[0], args[1])),
        _ => None,
    }
}

fn frame_length(number: u32, frame: &mut Frame, bytes: usize) {
    match number {
        g::__NR_getrandom => frame.rsi = bytes,
        g::__NR_read | g::__NR_write | g::__NR_pread64 | g::__NR_pwrite64 => frame.rdx = bytes,
        g::__NR_recvfrom | g::__NR_sendto if is_stream(frame.rdi) => frame.rdx = bytes,
        _ => {}
    }
}

/// The kernel only reads what this call names.
fn only_reads(number: u32) -> bool {
    matches!(
        number,
        g::__NR_write
            | g::__NR_pwrite64
            | g::__NR_writev
            | g::__NR_pwritev
            | g::__NR_pwritev2
            | g::__NR_sendto
            | g::__NR_sendmsg
            | g::__NR_sendmmsg
            | g::__NR_msgsnd
            | g::__NR_mq_timedsend
    )
}

/// Bytes behind an argument other than a transfer's, where they may be more than [`PATH_BYTES`].
fn size_of_argument(number: u32, args: [usize; 6]) -> usize {
    let times = |count: usize, bytes: usize| count.min(1 << 20) * bytes;
    match number {
        g::__NR_poll | g::__NR_ppoll => times(args[1], 8),
        g::__NR_epoll_wait | g::__NR_epoll_pwait | g::__NR_epoll_pwait2 => times(args[2], 12),
        g::__NR_mincore => args[1] / 4096 + 1,
        g::__NR_getgroups | g::__NR_setgroups => times(args[0], 4),
        g::__NR_semop | g::__NR_semtimedop => times(args[2], 6),
        g::__NR_semctl => times(SEMAPHORES_MAX, 2),
        g::__NR_move_pages => times(args[1], 8),
        g::__NR_sched_setaffinity | g::__NR_sched_getaffinity => args[1],
        g::__NR_mbind => args[4] / 8,
        g::__NR_set_mempolicy | g::__NR_get_mempolicy => args[2] / 8,
        g::__NR_migrate_pages => args[1] / 8,
        g::__NR_setxattr | g::__NR_lsetxattr | g::__NR_fsetxattr => args[3],
        g::__NR_getxattr | g::__NR_lgetxattr | g::__NR_fgetxattr => args[3],
        g::__NR_listxattr | g::__NR_llistxattr | g::__NR_flistxattr => args[2],
        g::__NR_add_key | g::__NR_keyctl => args[3],
        g::__NR_syslog | g::__NR_readlink => args[2],
        g::__NR_readlinkat => args[3],
        g::__NR_setsockopt | g::__NR_fsconfig => args[4],
        // A filter is counted in instructions, of eight bytes.
        g::__NR_getsockopt => {
            program::read::<u32>(args[4]).map_or(0, |count| times(count as usize, 8))
        }
        g::__NR_ioctl => 4 * PATH_BYTES,
        _ => PATH_BYTES,
    }
}

/// Structures with pointers in them, of calls about which no more is known here: where, and how long they are.
fn structures(number: u32, args: [usize; 6]) -> [(usize, usize); 2] {
    const NONE: (usize, usize) = (0, 0);
    const BYTES_MAX: usize = 256;
    match number {
        g::__NR_ioctl => [
            (args[2], (args[1] >> 16 & 0x3fff).clamp(64, BYTES_MAX)),
            NONE,
        ],
        g::__NR_setsockopt => [(args[3], args[4].min(16)), NONE],
        g::__NR_ptrace if REGISTERS.contains(&args[0]) => [(args[3], 16), NONE],
        g::__NR_bpf => [(args[1], args[2].min(BYTES_MAX)), NONE],
        g::__NR_keyctl => [(args[2], 16), (args[4], 16)],
        g::__NR_mq_notify => [(args[1], 16), NONE],
        g::__NR_setxattrat | g::__NR_getxattrat => [(args[4], 16), NONE],
        _ => [NONE; 2],
    }
}

/// True when `fd` is a file, a block device, or one that has zeros, random bytes or nothing: transfers there do not wait
/// for anybody.
fn is_file(fd: usize) -> bool {
    const FORMAT: u32 = 0o170_000;
    const REGULAR: u32 = 0o100_000;
    const BLOCK: u32 = 0o060_000;
    const CHARACTER: u32 = 0o020_000;
    /// `/dev/null`, `zero`, `full` and `urandom`.
    const ENDLESS: [u64; 4] = [0x103, 0x105, 0x107, 0x109];
    let mut status = [0u64; 18];
    // SAFETY: the kernel's `struct stat` has 144 bytes.
    let asked = unsafe { syscall!(g::__NR_fstat, fd, status.as_mut_ptr()) };
    let mode = status[3] as u32 & FORMAT;
    let is_endless = mode == CHARACTER && ENDLESS.contains(&status[5]);
    asked.is_ok() && (mode == REGULAR || mode == BLOCK || is_endless)
}

/// True when `fd` is a stream socket: what it takes or gives at a time has no meaning.
fn is_stream(fd: usize) -> bool {
    let (mut kind, mut bytes) = (0u32, 4u32);
    let (at, size) = (&raw mut kind, &raw mut bytes);
    // SAFETY: Linux writes the socket's type, four bytes.
    let asked = unsafe { syscall!(g::__NR_getsockopt, fd, SOL_SOCKET, SO_TYPE, at, size) };
    asked.is_ok() && kind == SOCK_STREAM
}

struct Help {
    kernel: &'static Kernel,
    thread: Holder,
}

impl Help {
    /// For a new call of this thread: what it held for the last one is released. `None` where
    /// nothing can be managed.
    fn new() -> Option<Self> {
        let help = Self::more()?;
        help.release();
        Some(help)
    }

    /// For more of the same call.
    fn more() -> Option<Self> {
        // A call may last until its memory is managed: what it needs is noted before that, too, but where
        // asking for the thread's number may be forbidden.
        let may = |kernel: &&Kernel| kernel.is_active() || maps::are_mapped() || !sandbox::is_on();
        let kernel = memory::kernel().filter(may)?;
        // Only now: the program may have forbidden itself the call.
        let thread = Holder::Call(process::thread_id());
        Some(Self { kernel, thread })
    }

    fn release(&self) {
        self.kernel.release(self.thread);
        maps::release();
    }

    fn hold(&self, at: usize, bytes: usize, write: bool) -> bool {
        if at < 0x1_0000 || bytes == 0 {
            return false;
        }
        let end = at.saturating_add(bytes);
        let mapped = maps::hold(at, bytes);
        // SAFETY: a trapped call's thread holds no lock.
        let managed = unsafe {
            self.kernel.hold(self.thread, at, end, write)
                || write && self.kernel.hold(self.thread, at, end, false)
        };
        mapped || managed
    }

    /// All that the call reads and writes, as much as can be held.
    fn prepare(&self, number: u32, args: [usize; 6]) {
        if let Some((at, bytes)) = transfer(number, args) {
            self.hold(at, bytes.min(self.kernel.hold_limit()), !only_reads(number));
        }
        self.vectors(number, args);
        self.arguments(number, args);
    }

    /// Whatever else the pointers among the arguments name.
    fn arguments(&self, number: u32, args: [usize; 6]) {
        let plain = transfer(number, args).map(|(at, _)| at);
        let bytes = size_of_argument(number, args).max(PATH_BYTES);
        let bytes = bytes.min(self.kernel.hold_limit());
        let pointers = pointers::of_call(number);
        for (argument, at) in args.into_iter().enumerate() {
            if pointers & 1 << argument != 0 && Some(at) != plain {
                self.hold(at, bytes, !only_reads(number));
            }
        }
        for (at, bytes) in structures(number, args) {
            self.pointers(at, bytes, !only_reads(number));
        }
    }

    /// What the words of a structure point to, if they do.
    fn pointers(&self, at: usize, bytes: usize, write: bool) {
        for word in (at..at.saturating_add(bytes)).step_by(size_of::<usize>()) {
            let Ok(pointer) = program::read::<usize>(word) else {
                return;
            };
            self.hold(pointer, POINTED_BYTES, write);
        }
    }

    /// A transfer from or to a file, piece by piece, as long as pieces come whole.
    unsafe fn whole(&self, number: u32, args: [usize; 6]) -> Result<usize> {
        let [fd, at, bytes, offset, ..] = args;
        let write = !only_reads(number);
        let positioned = matches!(number, g::__NR_pread64 | g::__NR_pwrite64);
        let mut done = 0;
        loop {
            let piece = (bytes - done).min(self.kernel.hold_limit());
            self.release();
            self.hold(at + done, piece, write);
            let from = if positioned { offset + done } else { 0 };
            let part = match number {
                g::__NR_getrandom => [at + done, piece, fd, 0, 0, 0],
                _ => [fd, at + done, piece, from, 0, 0],
            };
            // SAFETY: the program's own call, in part.
            let got = unsafe { farpage_sys::raw::syscall(number, part) };
            match got {
                Ok(count) => {
                    done += count;
                    if count < piece || done == bytes {
                        break;
                    }
                }
                Err(errno) if done == 0 => {
                    self.release();
                    return Err(errno);
                }
                Err(_) => break,
            }
        }
        self.release();
        Ok(done)
    }

    /// `readv` and its like on a file: one piece after the other.
    unsafe fn pieces_whole(&self, number: u32, args: [usize; 6]) -> Result<usize> {
        // All are known before anything is moved, as in Linux.
        let meant = Transfer::meant(number, args).ok_or(Errno::ENOSYS)??;
        let single = match (meant.way, meant.at) {
            (Way::Out, None) => g::__NR_read,
            (Way::Out, Some(_)) => g::__NR_pread64,
            (Way::In, None) => g::__NR_write,
            (Way::In, Some(_)) => g::__NR_pwrite64,
        };
        let mut done = 0;
        for [at, bytes] in meant.pieces {
            let from = meant.at.map_or(0, |start| start + done);
            // SAFETY: forwarded.
            match unsafe { self.whole(single, [meant.fd, at, bytes, from, 0, 0]) } {
                Ok(got) => {
                    done += got;
                    if got < bytes {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// `process_vm_readv` and its like, piece by piece. Memory of this process is brought in on
    /// both sides; what another one has paged out is `EFAULT`.
    unsafe fn between_processes(&self, number: u32, args: [usize; 6]) -> Result<usize> {
        let [pid, local, locals, remote, remotes, _] = args;
        if locals > IOV_MAX || remotes > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let here = pid == process::id() as usize;
        let write = number == g::__NR_process_vm_readv;
        let (mut near, mut far) = (Cursor::new(local, locals), Cursor::new(remote, remotes));
        let mut done = 0;
        while let (Some(to), Some(from)) = (near.rest()?, far.rest()?) {
            let bytes = to.bytes.min(from.bytes).min(self.kernel.hold_limit() / 2);
            let pieces = [to, from].map(|piece| Piece { bytes, ..piece });
            self.release();
            self.hold(to.at, bytes, write);
            if here {
                self.hold(from.at, bytes, !write);
            }
            let [to, from] = [&raw const pieces[0], &raw const pieces[1]].map(|at| at as usize);
            // SAFETY: the program's own call, in part.
            match unsafe { farpage_sys::raw::syscall(number, [pid, to, 1, from, 1, 0]) } {
                Ok(count) => {
                    done += count;
                    near.done += count;
                    far.done += count;
                    if count < bytes {
                        break;
                    }
                }
                Err(errno) if done == 0 => {
                    self.release();
                    return Err(errno);
                }
                Err(_) => break,
            }
        }
        self.release();
        Ok(done)
    }

    /// A vector for a pipe or a stream, with more in it than can be held at a time, becomes a plain
    /// transfer of its first piece: such a call may be short. False when it stays as it is.
    fn shorten(&self, number: u32, frame: &mut Frame) -> bool {
        let [fd, at, count, ..] = frame.arguments();
        let message = matches!(number, g::__NR_sendmsg | g::__NR_recvmsg);
        let (at, count) = match program::read::<Message>(at) {
            Ok(m) if message && m.control_bytes == 0 && m.name == 0 && is_stream(fd) => {
                (m.pieces, m.count)
            }
            _ if message => return false,
            _ => (at, count),
        };
        let mut pieces = Cursor::new(at, count);
        let Ok(Some(first)) = pieces.rest() else {
            return false;
        };
        if pieces.bytes(IOV_MAX) <= self.kernel.hold_limit() {
            return false;
        }
        let bytes = first.bytes.min(self.kernel.hold_limit());
        let number = match number {
            g::__NR_readv => g::__NR_read,
            g::__NR_writev => g::__NR_write,
            g::__NR_sendmsg => g::__NR_sendto,
            _ => g::__NR_recvfrom,
        };
        if message {
            let flags = frame.rdx;
            if number == g::__NR_recvfrom {
                let _ = program::write(frame.rsi + core::mem::offset_of!(Message, flags), &0u32);
            }
            (frame.r10, frame.r8, frame.r9) = (flags, 0, 0);
        }
        (frame.rax, frame.rsi, frame.rdx) = (number as usize, first.at, bytes);
        true
    }

    /// What a vector of pieces, or a message, names.
    fn vectors(&self, number: u32, args: [usize; 6]) {
        let write = !only_reads(number);
        match number {
            g::__NR_readv
            | g::__NR_writev
            | g::__NR_preadv
            | g::__NR_pwritev
            | g::__NR_preadv2
            | g::__NR_pwritev2
            | g::__NR_vmsplice => self.pieces(args[1], args[2], write),
            g::__NR_sendmsg | g::__NR_recvmsg => self.message(args[1], write),
            g::__NR_futex_waitv => self.words(args[0], args[1].min(WAITS_MAX)),
            g::__NR_futex_requeue => self.words(args[0], 2),
            g::__NR_sendmmsg | g::__NR_recvmmsg => {
                for i in 0..args[2].min(IOV_MAX) {
                    self.message(args[1] + i * (size_of::<Message>() + 8), write);
                }
            }
            _ => {}
        }
    }

    fn pieces(&self, at: usize, count: usize, write: bool) {
        self.hold(at, count.min(IOV_MAX) * size_of::<Piece>(), false);
        for i in 0..count.min(IOV_MAX) {
            if let Ok(piece) = program::read::<Piece>(at + i * size_of::<Piece>()) {
                self.hold(piece.at, piece.bytes, write);
            }
        }
    }

    /// What `futex_waitv` names.
    fn words(&self, at: usize, count: usize) {
        self.hold(at, count * WAIT_BYTES, false);
        for wait in (0..count).map(|i| at + i * WAIT_BYTES) {
            if let Ok([_, word]) = program::read::<[usize; 2]>(wait) {
                self.hold(word, size_of::<u32>(), false);
            }
        }
    }

    fn message(&self, at: usize, write: bool) {
        self.hold(at, size_of::<Message>() + 8, true);
        if let Ok(message) = program::read::<Message>(at) {
            self.hold(message.name, message.name_bytes, write);
            self.hold(message.control, message.control_bytes, write);
            self.pieces(message.pieces, message.count, write);
        }
    }
}

/// How far a vector of pieces was gone through.
struct Cursor {
    at: usize,
    left: usize,
    /// Bytes of the first piece that are done.
    done: usize,
}

impl Cursor {
    fn new(at: usize, left: usize) -> Self {
        Self { at, left, done: 0 }
    }

    /// The first piece that is not done, without what is.
    fn rest(&mut self) -> Result<Option<Piece>> {
        while self.left > 0 {
            let piece = program::read::<Piece>(self.at)?;
            if self.done < piece.bytes {
                let (at, bytes) = (piece.at.wrapping_add(self.done), piece.bytes - self.done);
                return Ok(Some(Piece { at, bytes }));
            }
            *self = Self::new(self.at + size_of::<Piece>(), self.left - 1);
        }
        Ok(None)
    }

    /// Bytes of the first `most` pieces.
    fn bytes(&self, most: usize) -> usize {
        let piece = |i| program::read::<Piece>(self.at + i * size_of::<Piece>());
        let pieces = (0..self.left.min(most)).map_while(|i| piece(i).ok());
        pieces.fold(0, |sum, piece| sum.saturating_add(piece.bytes))
    }
}

/// Has memory that Linux reads and writes when it likes stay where it is, also what is not managed yet.
pub(crate) fn keep(start: usize, bytes: usize) {
    if let (Some(kernel), Some(end)) = (memory::kernel(), start.checked_add(bytes)) {
        // SAFETY: a trapped call's thread holds no lock.
        unsafe { kernel.hold(Holder::Linux, start, end, true) };
    }
}
