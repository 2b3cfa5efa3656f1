//! The connection to the supervisor, and what becomes of it in a fork.

use alloc::vec::Vec;

use farpage_object::fds;
use farpage_object::shm::{Answer, Ask, Kind};
use farpage_sys::file::{self, Fd};
use farpage_sys::futex::{Guard, Mutex};
use farpage_sys::linux::general as g;
use farpage_sys::uffd::{Uffd, features};
use farpage_sys::{Errno, Result, mem, process, socket};

use super::memory::Piece;
use super::segments::Attached;
use super::{exist, own_files, say};
use crate::{own_threads, start, supervised};

/// What this task has.
pub(super) struct State {
    connected: bool,
    /// The userfaultfd is open, and the supervisor has it.
    ready: bool,
    /// A thread watches for the end of the supervisor.
    watched: bool,
    /// In the order of their addresses.
    pub(super) pieces: Vec<Piece>,
    pub(super) attached: Vec<Attached>,
    /// The connection of a child that is being made.
    child: Option<Fd>,
}

pub(super) static STATE: Mutex<State> = Mutex::new(State {
    connected: false,
    ready: false,
    watched: false,
    pieces: Vec::new(),
    attached: Vec::new(),
    child: None,
});

impl State {
    /// Asks the supervisor. Returns the number of an object, and a descriptor that came along.
    ///
    /// # Errors
    /// Its answer; `EAGAIN` in a process that shares its memory with a parent.
    pub(super) fn ask(&mut self, ask: Ask, with: Option<Fd>) -> Result<(u64, Option<Fd>)> {
        self.ask_named(ask, with, &[])
    }

    /// As [`State::ask`], with a name.
    pub(super) fn ask_named(
        &mut self,
        ask: Ask,
        with: Option<Fd>,
        name: &[u8],
    ) -> Result<(u64, Option<Fd>)> {
        let mut bytes = [0; Answer::BYTES];
        let name = &name[..name.len().min(Ask::NAME_MAX)];
        let (got, fd) = self.exchange(ask, with, name, &mut bytes)?;
        said_by(&bytes, got, fd)
    }

    /// Asks, with data; the answer, and its data.
    ///
    /// # Errors
    /// As [`State::ask`], but for what the answer says.
    pub(super) fn ask_with_data(&mut self, ask: Ask, data: &[u8]) -> Result<(Answer, Vec<u8>)> {
        self.watch()?;
        let mut bytes = alloc::vec![0; Answer::BYTES + Answer::DATA_MAX];
        let (got, _) = self.exchange(ask, None, data, &mut bytes)?;
        bytes.truncate(got);
        match bytes.split_first_chunk() {
            Some((answer, data)) => Ok((Answer::from_bytes(answer), data.to_vec())),
            None => die_without_supervisor(),
        }
    }

    /// Sends a question, and waits for what comes: how many bytes, and a descriptor.
    fn exchange(
        &mut self,
        ask: Ask,
        with: Option<Fd>,
        data: &[u8],
        bytes: &mut [u8],
    ) -> Result<(usize, Option<Fd>)> {
        self.connect()?;
        let connection = start::descriptor(fds::SHM);
        let mut question = ask.to_bytes().to_vec();
        question.extend_from_slice(data);
        file::with_room(|| {
            let sent = socket::send(connection, &question, with);
            if sent.is_err() && start::is_visitor() {
                // Its parent has got the connection since they parted.
                return Err(Errno::EAGAIN);
            }
            let got = sent.and_then(|()| socket::receive(connection, bytes));
            match got {
                Ok(got) if got.0 > 0 => Ok(got),
                Err(Errno::EMFILE) => Err(Errno::EMFILE),
                _ => die_without_supervisor(),
            }
        })
    }

    /// From now on this task ends with the supervisor.
    fn watch(&mut self) -> Result<()> {
        if !self.watched {
            // SAFETY: the guard uses nothing of libc; all signals are blocked in the handler.
            unsafe { own_threads::spawn(guard, 0) }?;
            self.watched = true;
        }
        Ok(())
    }

    /// What was about to be made is not.
    pub(super) fn made_nothing(&mut self) {
        let nothing = Ask {
            a: 3,
            ..Ask::new(Kind::Making)
        };
        let _ = self.ask(nothing, None);
    }

    fn connect(&mut self) -> Result<()> {
        if self.connected {
            return Ok(());
        }
        if start::is_visitor() {
            return Err(Errno::EAGAIN);
        }
        if start::slot().is_none() {
            say("cannot use shared memory here: the process is in another namespace of ids");
            return Err(Errno::ENODEV);
        }
        let [own, theirs] = file::with_room(socket::pair)?;
        let ask = Ask::new(Kind::Connect).to_bytes();
        let sent = socket::send(start::descriptor(fds::MAPS), &ask, Some(theirs));
        file::close(theirs);
        if sent.is_err() {
            die_without_supervisor();
        }
        file::move_to(own, start::descriptor(fds::SHM), true).inspect_err(|_| file::close(own))?;
        self.connected = true;
        Ok(())
    }

    /// This task's userfaultfd for shared memory, which the supervisor has.
    pub(super) fn ready(&mut self) -> Result<Uffd> {
        let at = start::descriptor(fds::SHM_UFFD);
        if start::is_visitor() {
            return Err(Errno::EAGAIN);
        }
        if self.ready {
            return Ok(Uffd(at));
        }
        const FEATURES: u64 = features::FAULT_FLAG_WP
            | features::THREAD_ID
            | features::MINOR_SHMEM
            | features::WP_HUGETLBFS_SHMEM
            | features::POISON;
        supervised::open_userfaultfd(at, |_| Ok(FEATURES))?;
        self.ask(Ask::new(Kind::Space), Some(at))?;
        self.watch()?;
        self.ready = true;
        Ok(Uffd(at))
    }
}

/// Asks what a process may ask that shares its memory with a parent, too.
///
/// # Errors
/// As [`State::ask`].
pub(super) fn ask_of(ask: Ask, file: Fd) -> Result<(u64, Option<Fd>)> {
    if !start::is_known_visitor() {
        return STATE.lock().ask(ask, Some(file));
    }
    // The state is its parent's, who waits for ever where a child that holds it is killed.
    let [own, theirs] = file::with_room(socket::pair)?;
    let connect = Ask::new(Kind::Connect).to_bytes();
    let mut bytes = [0; Answer::BYTES];
    let sent = socket::send(start::descriptor(fds::MAPS), &connect, Some(theirs));
    file::close(theirs);
    let got = sent.and_then(|()| {
        file::with_room(|| {
            socket::send(own, &ask.to_bytes(), Some(file))?;
            socket::receive(own, &mut bytes)
        })
    });
    file::close(own);
    let (got, fd) = got?;
    said_by(&bytes, got, fd)
}

/// What an answer of the supervisor's says, of which `got` bytes came.
fn said_by(bytes: &[u8; Answer::BYTES], got: usize, fd: Option<Fd>) -> Result<(u64, Option<Fd>)> {
    let answer = Answer::from_bytes(bytes);
    match answer.errno {
        _ if got != Answer::BYTES => die_without_supervisor(),
        0 => Ok((answer.object, fd)),
        errno => Err(Errno(errno as i32)),
    }
}

/// Watches for the end of the supervisor.
extern "C" fn guard(_: usize) -> ! {
    supervised::watch(die_without_supervisor)
}

fn die_without_supervisor() -> ! {
    supervised::die("shared memory that farpage run --shm keeps, which has ended")
}

/// Nothing of this changes until [`after_fork_in_parent`] or [`after_fork_in_child`].
pub(crate) fn before_fork() {
    if !exist() {
        return;
    }
    let mut state = STATE.lock();
    if !state.pieces.is_empty() {
        state.child = connection_for_child(&mut state).ok();
    }
    core::mem::forget(state);
}

/// The supervisor keeps what this task has for whoever has the other end, though this one ends.
fn connection_for_child(state: &mut Guard<'_, State>) -> Result<Fd> {
    let [own, theirs] = file::with_room(socket::pair)?;
    let asked = state.ask(Ask::new(Kind::Fork), Some(theirs));
    file::close(theirs);
    asked.inspect_err(|_| file::close(own))?;
    Ok(own)
}

/// # Safety
/// Only after [`before_fork`] on this thread.
pub(crate) unsafe fn after_fork_in_parent() {
    // SAFETY: forwarded.
    unsafe { STATE.reset() };
    if exist()
        && let Some(child) = STATE.lock().child.take()
    {
        file::close(child);
    }
}

/// The child has the memory, and none of it registered.
///
/// # Safety
/// Only after [`before_fork`] in the parent, before the child does anything else.
pub(crate) unsafe fn after_fork_in_child() {
    // SAFETY: forwarded.
    unsafe { STATE.reset() };
    own_files::after_fork();
    if !exist() {
        return;
    }
    let mut state = STATE.lock();
    let child = state.child.take();
    state.watched = false;
    for (had, place) in [
        (core::mem::take(&mut state.connected), fds::SHM),
        (core::mem::take(&mut state.ready), fds::SHM_UFFD),
    ] {
        if had {
            start::put_back(place);
        }
    }
    if let Some(child) = child {
        let moved = file::move_to(child, start::descriptor(fds::SHM), true);
        state.connected = moved.is_ok();
    }
    if !state.pieces.is_empty() && inherit(&mut state).is_err() {
        say(&alloc::format!(
            "process {} is killed: a forked process cannot open userfaultfd for the shared memory \
             that it has",
            start::process_id()
        ));
        process::die()
    }
}

/// Registers and tells what the parent had.
fn inherit(state: &mut Guard<'_, State>) -> Result<()> {
    let uffd = state.ready()?;
    let pieces = core::mem::take(&mut state.pieces);
    // Linux has left the others out of the child.
    for piece in pieces.into_iter().filter(|piece| !piece.left_out) {
        let (at, bytes) = (piece.start, piece.end - piece.start);
        // SAFETY: its faults are answered from now on.
        unsafe { uffd.register_all(at, bytes) }?;
        if piece.shared {
            // Pages that the parent was let in to. The contents stay in the memory file.
            // SAFETY: as above; nothing of a shared file is lost.
            unsafe { mem::advise(at, bytes, g::MADV_DONTNEED) }?;
        }
        state.ask(piece.to_ask(), None)?;
        state.pieces.push(piece);
    }
    state.ask(Ask::new(Kind::Forked), None).map(drop)
}
