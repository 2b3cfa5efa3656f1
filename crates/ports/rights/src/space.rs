//! One task's names, and what it does with its own ports.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::accept::Named;
use crate::error::Error;
use crate::export::{Export, Link};
use crate::few::Few;
use crate::frame::Frame;
use crate::import::{Import, ImportState};
use crate::input::Output;
use crate::message::{Disposition, Give, LinkId, Name, RightKind, TaskId, Waiter};
use crate::port::{Home, Letter, Place, Port, Set};
use crate::right::{Entry, Right, Target};
use crate::settle::Work;
use crate::slab::{NONE, Slab};
use crate::third::Provided;
use crate::wait::{On, Waiting};

/// The queue limit of a new port, as Mach's.
pub const DEFAULT_LIMIT: u16 = 5;

/// One task's name space.
///
/// All operations are immediate: what must wait answers that it would block, and
/// [`poll_output`](Self::poll_output) says later whom to wake. After every operation the shell
/// takes outputs until there is none.
///
/// ```
/// use farpage_rights::{Disposition, Give, LinkId, Message, Output, Space, TaskId};
///
/// let (mut server, mut client) = (Space::new(TaskId(1)), Space::new(TaskId(2)));
/// let link = LinkId(0);
/// server.link_up(link, TaskId(2), 0)?;
/// client.link_up(link, TaskId(1), 0)?;
/// let port = server.allocate_port();
/// client.expect_offer(77);
/// server.offer(link, 77, Give::new(port, Disposition::MakeSend))?;
/// // The shell carries frames; here there is one each way.
/// let Some(Output::Frame { frame, .. }) = server.poll_output() else { panic!() };
/// client.handle_frame(link, frame, vec![])?;
/// let Some(Output::Offered { right, .. }) = client.poll_output() else { panic!() };
/// let to = right.name().expect("the port lives");
/// client.send(Message::new(Give::new(to, Disposition::CopySend), 7))?;
/// let Some(Output::Frame { frame, .. }) = client.poll_output() else { panic!() };
/// server.handle_frame(link, frame, vec![])?;
/// assert_eq!(server.receive(port)?.id, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg_attr(test, derive(Clone, Hash))]
pub struct Space {
    pub(crate) task: TaskId,
    pub(crate) names: Slab<Entry>,
    pub(crate) ports: Slab<Port>,
    pub(crate) sets: Slab<Set>,
    pub(crate) letters: Slab<Letter>,
    pub(crate) exports: Slab<Export>,
    pub(crate) imports: Slab<Import>,
    pub(crate) links: Few<LinkId, Link>,
    pub(crate) tasks: BTreeMap<TaskId, LinkId>,
    /// Dead-name requests, by what would die and the name.
    pub(crate) requests: BTreeMap<(Target, Name), Right>,
    pub(crate) no_senders: BTreeMap<u32, Right>,
    pub(crate) port_destroyed: BTreeMap<u32, Right>,
    /// What peers have provided for third tasks, by the provider's Link and number.
    pub(crate) provided: BTreeMap<(LinkId, u64), Provided>,
    /// Accepts that came before their Provide: by provider and number, then who asks.
    pub(crate) early: BTreeMap<(LinkId, u64, LinkId), RightKind>,
    /// What this task has provided: by the owner's Link and number, for whom.
    pub(crate) given: BTreeMap<(LinkId, u64), LinkId>,
    /// Imports that wait for the owner's answer: by owner, provider and number.
    pub(crate) accepts: BTreeMap<(TaskId, TaskId, u64), u32>,
    pub(crate) introducing: BTreeSet<TaskId>,
    /// Tokens of offers that somebody waits for.
    pub(crate) expected: BTreeSet<u64>,
    pub(crate) nonce: u64,
    /// Forwarders by where they forward to.
    pub(crate) feeds: BTreeSet<(Target, u32)>,
    pub(crate) work: VecDeque<Work>,
    pub(crate) waits: BTreeMap<On, VecDeque<Waiter>>,
    pub(crate) waiters: BTreeMap<Waiter, Waiting>,
    pub(crate) deadlines: BTreeSet<(crate::Tick, Waiter)>,
    pub(crate) outputs: VecDeque<Output>,
    /// Empty: room for what a frame names while it is checked.
    pub(crate) named: Vec<Named>,
}

/// What there is to know about a port whose receive right is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// How many messages every sending task may have queued.
    pub limit: u16,
    /// Messages queued.
    pub queued: u32,
    /// Messages received so far.
    pub sequence: u32,
    /// Send rights: one for each task that holds any, one for each on its way.
    pub sends: u32,
    /// Send-once rights.
    pub send_onces: u32,
    /// Send rights made.
    pub make_sends: u32,
    /// The set that it is a member of.
    pub set: Option<Name>,
    /// Somebody is to be told when there are no senders.
    pub no_senders: bool,
    /// Somebody gets the receive right when it is destroyed.
    pub port_destroyed: bool,
}

impl Space {
    /// An empty name space of `task`.
    #[must_use]
    pub const fn new(task: TaskId) -> Self {
        Self {
            task,
            names: Slab::new(),
            ports: Slab::new(),
            sets: Slab::new(),
            letters: Slab::new(),
            exports: Slab::new(),
            imports: Slab::new(),
            links: Few::new(),
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            no_senders: BTreeMap::new(),
            port_destroyed: BTreeMap::new(),
            provided: BTreeMap::new(),
            early: BTreeMap::new(),
            given: BTreeMap::new(),
            accepts: BTreeMap::new(),
            introducing: BTreeSet::new(),
            expected: BTreeSet::new(),
            nonce: 0,
            feeds: BTreeSet::new(),
            work: VecDeque::new(),
            waits: BTreeMap::new(),
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            outputs: VecDeque::new(),
            named: Vec::new(),
        }
    }

    /// Whose names these are.
    #[must_use]
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Makes a port; the name denotes its receive right.
    pub fn allocate_port(&mut self) -> Name {
        let port = self.ports.insert(Port::new(DEFAULT_LIMIT)).index;
        self.name_receive(port)
    }

    /// Makes a port that stands for one of another host's: whoever sends it what cannot go there is
    /// refused, wherever the right has come to.
    pub fn allocate_proxy(&mut self) -> Name {
        let mut port = Port::new(DEFAULT_LIMIT);
        port.is_proxy = true;
        let port = self.ports.insert(port).index;
        self.name_receive(port)
    }

    /// The name of the receive right of the port that a send-once right is to, when that is here.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn port_of_once(&mut self, once: Name) -> Result<Option<Name>, Error> {
        Ok(match self.entry(once)? {
            Entry::Once(Target::Port(port)) => match self.ports[port].place {
                Place::Named(name) => Some(Name(self.names.key(name).to_bits())),
                Place::Queued(_) | Place::Loose => None,
            },
            Entry::Once(Target::Import(_))
            | Entry::Port { .. }
            | Entry::Set(_)
            | Entry::Dead { .. } => None,
        })
    }

    /// Makes an empty port set.
    pub fn allocate_set(&mut self) -> Name {
        let set = self.sets.insert(Set {
            name: NONE,
            members: BTreeSet::new(),
            oldest: NONE,
            newest: NONE,
        });
        let name = self.names.insert(Entry::Set(set.index));
        self.sets[set.index].name = name.index;
        Name(name.to_bits())
    }

    /// Drops everything that a name denotes: all user references, the receive right, the set.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn destroy(&mut self, name: Name) -> Result<(), Error> {
        match self.entry(name)? {
            Entry::Port {
                target,
                receive,
                sends,
            } => {
                if sends > 0 {
                    self.trash(Right::Send(target));
                }
                if receive {
                    let Target::Port(port) = target else {
                        unreachable!("receive rights are to ports here");
                    };
                    self.part(port);
                    self.trash(Right::Receive(port));
                }
                self.free_name(name.key().index, true);
            }
            Entry::Once(target) => {
                self.trash(Right::Once(target));
                self.free_name(name.key().index, true);
            }
            Entry::Set(set) => {
                while let Some(&port) = self.sets[set].members.first() {
                    self.leave_set(port);
                }
                self.sets.remove(set);
                self.wake_all(On::Set(set));
                self.free_name(name.key().index, false);
            }
            Entry::Dead { .. } => self.free_name(name.key().index, false),
        }
        self.settle();
        Ok(())
    }

    /// Drops one user reference of a send, send-once or dead name.
    ///
    /// # Errors
    /// [`Error::InvalidName`]; [`Error::InvalidRight`] for a receive right alone and for sets.
    pub fn deallocate(&mut self, name: Name) -> Result<(), Error> {
        self.mod_refs(name, -1)
    }

    /// Adds to or takes from the user references of a send, send-once or dead name. A send-once
    /// right can only be dropped. The receive right of the same name is not touched.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidRight`]; [`Error::TooFew`] when there are fewer
    /// references than that; [`Error::TooMany`] when they would overflow.
    pub fn mod_refs(&mut self, name: Name, delta: i32) -> Result<(), Error> {
        let count = |old: u32| {
            let new = i64::from(old) + i64::from(delta);
            match u32::try_from(new) {
                Ok(new) => Ok(new),
                Err(_) if new < 0 => Err(Error::TooFew),
                Err(_) => Err(Error::TooMany),
            }
        };
        let index = name.key().index;
        match self.entry(name)? {
            Entry::Port { sends: 0, .. } | Entry::Set(_) => return Err(Error::InvalidRight),
            Entry::Port { target, sends, .. } => {
                let left = count(sends)?;
                if left == 0 {
                    self.trash(Right::Send(target));
                }
                self.set_sends(index, left);
            }
            Entry::Once(target) => match delta {
                0 => {}
                -1 => {
                    self.trash(Right::Once(target));
                    self.free_name(index, true);
                }
                1.. => return Err(Error::TooMany),
                ..-1 => return Err(Error::TooFew),
            },
            Entry::Dead { references } => match count(references)? {
                0 => self.free_name(index, false),
                references => self.names[index] = Entry::Dead { references },
            },
        }
        self.settle();
        Ok(())
    }

    /// Destroys the receive right that a name denotes. Its queued messages are destroyed, holders
    /// of its other rights see a dead port; send rights of the same name become a dead name.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidRight`].
    pub fn destroy_receive(&mut self, name: Name) -> Result<(), Error> {
        let port = self.receive_port(name)?;
        self.part(port);
        self.unname_receive(name.key().index);
        self.trash(Right::Receive(port));
        self.settle();
        Ok(())
    }

    /// Takes a right as a message would, and puts it under a name as receiving it would: makes
    /// send rights of an own receive right, or another user reference of a send right.
    ///
    /// # Errors
    /// As when it is put into a message.
    pub fn insert(&mut self, give: Give) -> Result<Name, Error> {
        if give.how == Disposition::MoveReceive {
            return self.receive_port(give.name).map(|_| give.name);
        }
        self.check_gives(core::iter::once(give))
            .map_err(|(_, error)| error)?;
        if let Entry::Dead { .. } = self.entry(give.name)? {
            return Err(Error::InvalidRight);
        }
        if give.how != Disposition::MakeSendOnce && self.sends(give.name.key().index) == u32::MAX {
            return Err(Error::TooMany);
        }
        let right = self.copy_in(give);
        let got = self.copy_out(right);
        self.settle();
        Ok(got.name().expect("it was alive"))
    }

    /// Puts a port into a set, or out of any.
    ///
    /// # Errors
    /// [`Error::InvalidName`]; [`Error::InvalidRight`] unless they denote a receive right and a
    /// set.
    pub fn move_member(&mut self, member: Name, set: Option<Name>) -> Result<(), Error> {
        let port = self.receive_port(member)?;
        let set = match set.map(|set| self.entry(set)).transpose()? {
            Some(Entry::Set(set)) => Some(set),
            Some(Entry::Port { .. } | Entry::Once(_) | Entry::Dead { .. }) => {
                return Err(Error::InvalidRight);
            }
            None => None,
        };
        self.leave_set(port);
        if let Some(set) = set {
            self.sets[set].members.insert(port);
            self.ports[port].set = set;
            self.wake_all(On::Queue(port));
            if self.ports[port].queued > 0 {
                self.ready_push(port);
                self.wake_one(On::Set(set));
            }
        } else if self.ports[port].queued > 0 {
            self.wake_one(On::Queue(port));
        }
        Ok(())
    }

    /// Says how many messages every sending task may have queued at a port. Fewer than before
    /// destroys nothing.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidRight`].
    pub fn set_limit(&mut self, name: Name, limit: u16) -> Result<(), Error> {
        let port = self.receive_port(name)?;
        self.ports[port].limit = limit;
        let mut index = self.ports[port].exports;
        while index != NONE {
            self.top_up(index);
            index = self.exports[index].older;
        }
        self.wake_all(On::Room(Target::Port(port)));
        Ok(())
    }

    /// What there is to know about a port whose receive right is here.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidRight`].
    pub fn status(&mut self, name: Name) -> Result<PortStatus, Error> {
        let index = self.receive_port(name)?;
        let port = &self.ports[index];
        let set = (port.set != NONE).then(|| self.sets[port.set].name);
        Ok(PortStatus {
            limit: port.limit,
            queued: port.queued,
            sequence: port.sequence,
            sends: port.sends,
            send_onces: port.onces,
            make_sends: port.make_sends,
            set: set.map(|name| Name(self.names.key(name).to_bits())),
            no_senders: self.no_senders.contains_key(&index),
            port_destroyed: self.port_destroyed.contains_key(&index),
        })
    }

    /// How many user references of a send right, a send-once right or a dead name there are, and
    /// whether the name is dead.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn references(&mut self, name: Name) -> Result<(u32, bool), Error> {
        Ok(match self.entry(name)? {
            Entry::Port { sends, .. } => (sends, false),
            Entry::Once(_) | Entry::Set(_) => (1, false),
            Entry::Dead { references } => (references, true),
        })
    }

    /// Whether there is nothing left: no name, right, message, or anything on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let slots = [
            self.names.len(),
            self.ports.len(),
            self.sets.len(),
            self.letters.len(),
            self.exports.len(),
            self.imports.len(),
            self.requests.len() + self.no_senders.len() + self.port_destroyed.len(),
            self.provided.len() + self.early.len() + self.given.len() + self.accepts.len(),
            self.feeds.len() + self.waiters.len() + self.waits.len() + self.deadlines.len(),
        ];
        slots == [0; 9]
    }

    /// Whether there is something for the shell to do.
    #[inline]
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// The next thing for the shell to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What a name denotes now: dead targets and moved ports are seen here.
    pub(crate) fn entry(&mut self, name: Name) -> Result<Entry, Error> {
        let key = name.key();
        let entry = *self.names.of(key).ok_or(Error::InvalidName)?;
        if self.is_current(entry) && self.work.is_empty() {
            return Ok(entry);
        }
        self.refresh(key.index);
        self.settle();
        Ok(self.names[key.index])
    }

    /// Whether what a name denotes is neither dead nor elsewhere; most are not.
    fn is_current(&self, entry: Entry) -> bool {
        match entry {
            Entry::Port {
                target,
                receive: false,
                ..
            }
            | Entry::Once(target) => match target {
                Target::Port(port) => self.ports[port].home == Home::Here,
                Target::Import(import) => self.imports[import].state == ImportState::Live,
            },
            Entry::Port { receive: true, .. } | Entry::Set(_) | Entry::Dead { .. } => true,
        }
    }

    pub(crate) fn receive_port(&mut self, name: Name) -> Result<u32, Error> {
        match self.entry(name)? {
            Entry::Port {
                target: Target::Port(port),
                receive: true,
                ..
            } => Ok(port),
            Entry::Port { .. } | Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. } => {
                Err(Error::InvalidRight)
            }
        }
    }

    pub(crate) fn link(&self, link: LinkId) -> &Link {
        self.links
            .get(&link)
            .expect("only Links that are up are used")
    }

    pub(crate) fn link_mut(&mut self, link: LinkId) -> &mut Link {
        self.links
            .get_mut(&link)
            .expect("only Links that are up are used")
    }

    pub(crate) fn put_frame(&mut self, link: LinkId, frame: Frame) {
        self.outputs.push_back(Output::Frame {
            link,
            frame,
            descriptors: alloc::vec::Vec::new(),
        });
    }

    /// The receive right leaves the task's hands: no set, no notification, a new beginning.
    pub(crate) fn part(&mut self, port: u32) {
        self.leave_set(port);
        self.wake_all(On::Queue(port));
        self.ports[port].place = Place::Loose;
    }

    pub(crate) fn leave_set(&mut self, port: u32) {
        let set = self.ports[port].set;
        if set == NONE {
            return;
        }
        if self.ports[port].queued > 0 {
            self.ready_remove(port);
        }
        self.sets[set].members.remove(&port);
        self.ports[port].set = NONE;
    }

    /// Puts a port last among those of its set that have messages.
    pub(crate) fn ready_push(&mut self, port: u32) {
        let set = self.ports[port].set;
        let last = self.sets[set].newest;
        self.ports[port].older = last;
        self.ports[port].newer = NONE;
        match last {
            NONE => self.sets[set].oldest = port,
            last => self.ports[last].newer = port,
        }
        self.sets[set].newest = port;
    }

    pub(crate) fn ready_remove(&mut self, port: u32) {
        let Port {
            set, newer, older, ..
        } = self.ports[port];
        match newer {
            NONE => self.sets[set].newest = older,
            newer => self.ports[newer].older = older,
        }
        match older {
            NONE => self.sets[set].oldest = newer,
            older => self.ports[older].newer = newer,
        }
    }

    /// Whether messages to `from` would come by `import`, once forwarders are empty.
    pub(crate) fn leads_to(&self, from: Target, import: u32) -> bool {
        let mut next = Some(from);
        while let Some(target) = next {
            next = match target {
                Target::Port(port) => self.forwards(port),
                Target::Import(index) if index == import => return true,
                Target::Import(index) => self.imports[index].state.next(),
            };
        }
        false
    }

    /// Where messages by a send right to this target go: past forwarders that have nothing left.
    pub(crate) fn resolve(&self, mut target: Target) -> Target {
        loop {
            target = match target {
                Target::Port(index) => match &self.ports[index] {
                    Port {
                        home: Home::Forward(next),
                        queued: 0,
                        ..
                    } => *next,
                    _ => return target,
                },
                Target::Import(index) => match self.imports[index].state.next() {
                    Some(next) => next,
                    None => return target,
                },
            }
        }
    }
}
