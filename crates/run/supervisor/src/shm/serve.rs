//! Answers what tasks ask.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_default_pager::manager::paging::SpillSet;
use farpage_host::{Object, SpaceId};
use farpage_object::PageRange;
use farpage_object::shm::{Answer, Ask, Ipc, Kind};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, lock, message};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::cluster::{Acted, ClusterNames};
use super::names::Making;
use super::objects::{self, KeptObjects};
use super::sysv::SysvCall;

/// Time between two looks at what nobody may have any more, while there is something.
const LOOK: Duration = Duration::from_millis(100);
/// Of the socket that all tasks have.
const COMMON: u64 = 0;
/// Of what tells that processes have ended.
const EXITS: u64 = u64::MAX;

/// How many connections there are.
#[derive(Default)]
pub struct ShmServing {
    connections: AtomicUsize,
}

impl ShmServing {
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }
}

/// A task that has asked for something.
struct Connection {
    socket: OwnedFd,
    space: Option<SpaceId>,
    /// What it will map: made for it, or had by its parent.
    holds: Vec<Arc<Object>>,
    /// What it is about to make.
    making: Option<Making>,
}

struct Server {
    spill: Arc<SpillSet>,
    kept: Arc<Mutex<KeptObjects>>,
    /// What other hosts have, too.
    names: Option<Arc<ClusterNames>>,
    serving: Arc<ShmServing>,
    epoll: OwnedFd,
    common: OwnedFd,
    connections: HashMap<u64, Connection>,
    next: u64,
}

/// Starts to answer. Also returns the end of the socket that tasks are to have.
///
/// # Errors
/// Without a thread or descriptors.
pub fn start(
    kept: Arc<Mutex<KeptObjects>>,
    names: Option<Arc<ClusterNames>>,
    spill: Arc<SpillSet>,
) -> Result<(Arc<ShmServing>, OwnedFd)> {
    let (common, theirs) = pair().context("cannot make a socket")?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).context("cannot wait for tasks")?;
    epoll::add(&epoll, &common, EventData::new_u64(COMMON), EventFlags::IN)?;
    if let Some(names) = &names {
        epoll::add(
            &epoll,
            names.exits(),
            EventData::new_u64(EXITS),
            EventFlags::IN,
        )?;
    }
    let serving = Arc::new(ShmServing::default());
    let mut server = Server {
        spill,
        kept,
        names,
        serving: Arc::clone(&serving),
        epoll,
        common,
        connections: HashMap::new(),
        next: COMMON + 1,
    };
    std::thread::Builder::new()
        .name("shm".into())
        .spawn(move || server.run())
        .context("cannot start a thread")?;
    Ok((serving, theirs))
}

fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

impl Server {
    fn run(&mut self) {
        // Something may go; looked for at intervals, however much is asked meanwhile.
        let (mut may_go, mut looked) = (false, Instant::now());
        let look = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK.as_nanos() as i64,
        };
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(&self.epoll, buffer, may_go.then_some(&look));
            may_go |= !events.is_empty();
            for event in &events {
                match event.data.u64() {
                    COMMON => self.hear(),
                    EXITS => self.names.iter().for_each(|names| names.look_for_ended()),
                    number => self.serve(number),
                }
            }
            if may_go && looked.elapsed() >= LOOK {
                may_go = lock(&self.kept).tidy();
                looked = Instant::now();
            }
        }
    }

    /// A task has come.
    fn hear(&mut self) {
        let mut bytes = [0; Ask::BYTES];
        match message::receive(self.common.as_fd(), &mut bytes) {
            Ok(mut received) if received.bytes > 0 => {
                if let Some(socket) = received.fds.pop() {
                    self.begin(socket, Vec::new());
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // No task is left that has the socket.
            Ok(_) | Err(_) => drop(epoll::delete(&self.epoll, &self.common)),
        }
    }

    fn begin(&mut self, socket: OwnedFd, holds: Vec<Arc<Object>>) {
        let data = EventData::new_u64(self.next);
        if epoll::add(&self.epoll, &socket, data, EventFlags::IN).is_err() {
            return;
        }
        let connection = Connection {
            socket,
            space: None,
            holds,
            making: None,
        };
        self.connections.insert(self.next, connection);
        self.next += 1;
        let count = self.connections.len();
        self.serving.connections.store(count, Ordering::Release);
    }

    fn serve(&mut self, number: u64) {
        let Some(mut connection) = self.connections.remove(&number) else {
            return;
        };
        let mut bytes = [0; Ask::BYTES + Ask::DATA_MAX];
        let lives = match message::receive(connection.socket.as_fd(), &mut bytes) {
            Ok(received) if received.bytes >= Ask::BYTES => {
                let asked = bytes.first_chunk().and_then(Ask::from_bytes);
                let name = &bytes[Ask::BYTES..received.bytes];
                let with = received.fds.into_iter().next();
                match asked {
                    Some(ask) if ask.kind == Kind::Sysv => self.calls(&connection, ask, name),
                    Some(ask) if ask.kind == Kind::Execute => {
                        self.gives_back(number, &connection, with)
                    }
                    Some(ask) => {
                        connection.making = making(ask, with.as_ref(), name);
                        match &self.names {
                            Some(names) if names.answers(ask) => {
                                let names = Arc::clone(names);
                                self.answers_later(names, number, &connection, ask, with, name)
                            }
                            _ => self.answer(number, &mut connection, ask, with),
                        }
                    }
                    None => false,
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Ok(_) | Err(_) => false,
        };
        if lives {
            self.connections.insert(number, connection);
            return;
        }
        // It has ended, or executes another program.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        let mut kept = lock(&self.kept);
        if let Some(space) = connection.space {
            kept.objects().detach(space);
        }
        if let Some(making) = connection.making.take() {
            kept.look_for(making);
        }
        drop(connection);
        kept.tidy();
        drop(kept);
        if let Some(names) = self.names.clone() {
            std::thread::spawn(move || names.ended(number));
        }
        let count = self.connections.len();
        self.serving.connections.store(count, Ordering::Release);
    }

    /// A call of System V that concerns all hosts: the answer comes. False when nobody hears it.
    fn calls(&self, from: &Connection, ask: Ask, data: &[u8]) -> bool {
        match (&self.names, from.socket.try_clone()) {
            (Some(names), Ok(to)) => names.calls(SysvCall { ask, data, to }),
            (None, _) | (_, Err(_)) => false,
        }
    }

    /// False when nobody hears the answer.
    fn answer(
        &mut self,
        number: u64,
        from: &mut Connection,
        ask: Ask,
        with: Option<OwnedFd>,
    ) -> bool {
        if ask.kind == Kind::Room {
            let answer = Answer {
                errno: 0,
                object: self.spill.room_bytes(),
            };
            return message::send(from.socket.as_fd(), &answer.to_bytes(), &[], false).is_ok();
        }
        let done = match (ask.kind, with) {
            (Kind::Waits | Kind::Wake, _) => match &self.names {
                Some(names) if ask.kind == Kind::Waits => {
                    names.waits(number, ask);
                    Ok(None)
                }
                Some(names) => {
                    names.wake_others(number, ask);
                    Ok(None)
                }
                None => Err(Errno::EINVAL),
            },
            (Kind::Fork, Some(socket)) => {
                let held = from.space.map(|space| self.held(space, &from.holds));
                self.begin(socket, held.unwrap_or_default());
                Ok(None)
            }
            (_, with) => act(&mut lock(&self.kept), from, ask, with.as_ref()),
        };
        says(&from.socket, ask, done)
    }

    /// The cluster is asked, while others are served. True: the answer comes.
    fn answers_later(
        &self,
        names: Arc<ClusterNames>,
        number: u64,
        from: &Connection,
        ask: Ask,
        with: Option<OwnedFd>,
        name: &[u8],
    ) -> bool {
        let (kept, name) = (Arc::clone(&self.kept), name.to_vec());
        let Ok(socket) = from.socket.try_clone() else {
            return false;
        };
        std::thread::spawn(move || {
            let acted = names.act(number, ask, with.as_ref(), &name);
            says(&socket, ask, acted_on(acted, &kept, ask, with.as_ref()));
        });
        true
    }

    /// Linux gets the contents of a file, while others are served. True: the answer comes.
    fn gives_back(&self, number: u64, from: &Connection, file: Option<OwnedFd>) -> bool {
        let (kept, names) = (Arc::clone(&self.kept), self.names.clone());
        let (Some(file), Ok(socket)) = (file, from.socket.try_clone()) else {
            return false;
        };
        std::thread::spawn(move || {
            let ask = Ask {
                a: 1,
                ..Ask::new(Kind::File)
            };
            let acted = names.map_or(Ok(Acted::OfRun), |names| {
                names.act(number, ask, Some(&file), &[])
            });
            let object = acted_on(acted, &kept, ask, Some(&file));
            let given = object.and_then(|object| match object {
                Some(object) => objects::give_back(&object, &file),
                None => Ok(()),
            });
            says(&socket, ask, given.map(|()| None));
        });
        true
    }

    /// What a task has, for its child.
    fn held(&self, space: SpaceId, more: &[Arc<Object>]) -> Vec<Arc<Object>> {
        let mut all = lock(&self.kept).objects().mapped_by(space);
        all.extend(more.iter().cloned());
        all
    }
}

/// What is told when the cluster was asked.
fn acted_on(
    acted: Result<Acted, Errno>,
    kept: &Mutex<KeptObjects>,
    ask: Ask,
    with: Option<&OwnedFd>,
) -> Result<Option<Arc<Object>>, Errno> {
    match acted? {
        Acted::OfRun => of_run(&mut lock(kept), ask, with),
        Acted::Done => Ok(None),
        Acted::Object(object) => Ok(Some(object)),
    }
}

/// Answers. False when nobody hears it.
fn says(to: &OwnedFd, ask: Ask, done: Result<Option<Arc<Object>>, Errno>) -> bool {
    // A task locks what it reads and writes by: that is an open file of its own. Mappings of one
    // open file continue one another.
    let is_for_calls = ask.kind == Kind::File && ask.a == 1;
    let given = done.and_then(|object| {
        let file = object.as_ref().filter(|_| is_for_calls);
        let open = |object: &Arc<Object>| {
            let opened = file::own_again(Fd(object.file().as_raw_fd()), g::O_RDWR);
            // Without /proc: for the task ENOENT says that the run has not made the file.
            opened.map_err(|errno| {
                if errno == Errno::ENOENT {
                    Errno::EIO
                } else {
                    errno
                }
            })
        };
        Ok((file.map(open).transpose()?, object))
    });
    let (errno, own, object) = match given {
        Ok((own, object)) => (0, own, object),
        Err(Errno(errno)) => (errno as u64, None, None),
    };
    let number = object.as_ref().map_or(0, |object| object.number().0);
    let answer = Answer {
        errno,
        object: u64::from(number),
    };
    let common = object.as_ref().map(|object| object.file());
    let memory: Vec<BorrowedFd<'_>> = own
        .as_ref()
        .map(AsFd::as_fd)
        .or(common)
        .into_iter()
        .collect();
    message::send(to.as_fd(), &answer.to_bytes(), &memory, false).is_ok()
}

/// What a task says that it is about to make; with anything else that it says that is over.
fn making(ask: Ask, with: Option<&OwnedFd>, name: &[u8]) -> Option<Making> {
    let name = || OsString::from_vec(name.to_vec());
    match (ask.kind, ask.a) {
        (Kind::Making, 0) => {
            let folder = with?.try_clone().ok()?;
            Some(Making::File(folder, name()))
        }
        (Kind::Making, 1) => Some(Making::Queue(name().to_string_lossy().into_owned())),
        (Kind::Making, 2) => {
            let what = Ipc::from_raw(ask.b)?;
            Some(Making::Ipc(what, ask.c as u32, ask.d as u32))
        }
        _ => None,
    }
}

/// Does what a task asks for. Returns the object that is to be told.
fn act(
    kept: &mut KeptObjects,
    from: &mut Connection,
    ask: Ask,
    with: Option<&OwnedFd>,
) -> Result<Option<Arc<Object>>, Errno> {
    let space = from.space.ok_or(Errno::EINVAL);
    match ask.kind {
        Kind::Space => {
            let faults = with
                .ok_or(Errno::EBADF)?
                .try_clone()
                .map_err(|_| Errno::EMFILE)?;
            from.space = Some(kept.objects().attach(faults)?);
        }
        Kind::Object => return kept.object(ask.a).map(Some),
        Kind::New => {
            let object = kept.new_object("shared", ask.b)?;
            from.holds.push(Arc::clone(&object));
            return Ok(Some(object));
        }
        Kind::Map => {
            kept.map(space?, ask.a, ask.b, ask.c, ask.d)?;
            // It is held by being mapped now, unless more of a parent's is to come.
            let is_it = |object: &Arc<Object>| u64::from(object.number().0) == ask.a;
            from.holds.retain(|object| !is_it(object));
        }
        Kind::Unmap => {
            let (at, bytes) = (ask.b as usize, ask.d as usize);
            kept.objects().unmap_part(space?, at, bytes);
        }
        Kind::Zero => {
            let page = farpage_object::PAGE_BYTES as u64;
            let pages = PageRange::new(ask.b / page, (ask.b + ask.d) / page);
            kept.object(ask.a)?.zero(pages);
        }
        Kind::Forked => from.holds.clear(),
        _ => return of_run(kept, ask, with),
    }
    Ok(None)
}

/// The same, of what concerns no task but all of the run.
fn of_run(
    kept: &mut KeptObjects,
    ask: Ask,
    with: Option<&OwnedFd>,
) -> Result<Option<Arc<Object>>, Errno> {
    let with = || with.ok_or(Errno::EBADF);
    match ask.kind {
        Kind::Made if ask.a == 1 => kept.made_queue(with()?),
        Kind::Made => drop(kept.made_file(with()?, false)?),
        Kind::File => return kept.of_file(with()?, ask.a == 1).map(Some),
        Kind::Segment => return kept.of_segment(ask.a as u32, ask.b).map(Some),
        Kind::Size => kept.look_at_size(with()?)?,
        // Noted already.
        Kind::Making => {}
        Kind::Ipc => kept.made_ipc(Ipc::from_raw(ask.a).ok_or(Errno::EINVAL)?, ask.b as u32),
        Kind::Idle => kept.is_idle(with()?)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(None)
}
