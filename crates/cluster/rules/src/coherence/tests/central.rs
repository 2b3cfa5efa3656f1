//! A server and hosts, whose messages arrive in order, in every order otherwise.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use alloc::{format, string::String, vec};

use farpage_object::Access;
use stateright::{Checker, Model, Property};

use crate::coherence::{Asked, Central, Host, Order};

/// How often the page had been written.
type Version = u8;

/// A host tells the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    Asks(Access, bool),
    Returns(Version, bool),
    Drops,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    allowed: Option<Access>,
    contents: Option<Version>,
    asked: Option<Access>,
    is_dead: bool,
    inbox: VecDeque<(Order, Option<Version>)>,
    outbox: VecDeque<Told>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    page: Central,
    contents: Version,
    members: Vec<Member>,
    written: Version,
    chances: u8,
    deaths: u8,
    sent: u32,
    broken: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Fault(usize, Access),
    ToServer(usize),
    ToHost(usize),
    /// The host needs room.
    LetGo(usize),
    Dies(usize),
}

impl World {
    fn new(hosts: usize, chances: u8, deaths: u8) -> Self {
        Self {
            page: Central::new(),
            contents: 0,
            members: vec![Member::default(); hosts],
            written: 0,
            chances,
            deaths,
            sent: 0,
            broken: None,
        }
    }

    fn tell(&mut self, host: usize, told: Told) {
        self.members[host].outbox.push_back(told);
        self.sent += 1;
    }

    fn orders(&mut self) {
        while let Some(order) = self.page.poll_order() {
            let (to, contents) = match order {
                Order::Supply { to, contents, .. } => (to, contents.then_some(self.contents)),
                Order::Recall { from, .. } => (from, None),
                Order::Drop(host) => (host, None),
            };
            self.sent += 1;
            self.members[usize::from(to.0)]
                .inbox
                .push_back((order, contents));
        }
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Fault(host, access) => {
                let member = &mut self.members[host];
                member.asked = Some(access);
                let has_copy = member.allowed.is_some();
                self.tell(host, Told::Asks(access, has_copy));
            }
            Action::LetGo(host) => {
                let member = &mut self.members[host];
                let (allowed, contents) = (member.allowed.take(), member.contents.take());
                match allowed {
                    Some(Access::Write) => {
                        self.tell(host, Told::Returns(contents.expect("it has them"), false));
                    }
                    _ => self.tell(host, Told::Drops),
                }
            }
            Action::Dies(host) => {
                let dead = Member {
                    is_dead: true,
                    ..Member::default()
                };
                self.members[host] = dead;
                if self.page.is_gone(Host(host as u8)) {
                    // What it wrote is lost: the last that the server has counts.
                    self.written = self.contents;
                }
            }
            Action::ToServer(host) => self.server_hears(host)?,
            Action::ToHost(host) => self.host_hears(host)?,
        }
        self.orders();
        self.check()
    }

    fn server_hears(&mut self, host: usize) -> Result<(), String> {
        let by = Host(host as u8);
        let heard = match self.members[host].outbox.pop_front().expect("told") {
            Told::Asks(access, has_copy) => self.page.ask(Asked {
                by,
                access,
                has_copy,
            }),
            Told::Returns(contents, kept) => {
                self.contents = contents;
                self.page.returned(by, kept)
            }
            Told::Drops => self.page.dropped(by),
        };
        heard.map_err(|violation| format!("an honest host: {violation}"))
    }

    fn host_hears(&mut self, host: usize) -> Result<(), String> {
        let (order, came) = self.members[host].inbox.pop_front().expect("told");
        let member = &mut self.members[host];
        match order {
            Order::Supply { access, .. } => {
                member.contents = came.or(member.contents);
                (member.allowed, member.asked) = (Some(access), None);
                if member.contents != Some(self.written) {
                    return Err(format!("{:?} of {}", member.contents, self.written));
                }
                if access == Access::Write {
                    self.written += 1;
                    member.contents = Some(self.written);
                }
            }
            Order::Recall { keep, .. } => {
                // Else it has returned them just now.
                if let (Some(Access::Write), Some(contents)) = (member.allowed, member.contents) {
                    member.allowed = keep.then_some(Access::Read);
                    member.contents = member.contents.filter(|_| keep);
                    self.tell(host, Told::Returns(contents, keep));
                }
            }
            Order::Drop(_) => {
                if member.allowed.take().is_some() {
                    member.contents = None;
                    self.tell(host, Told::Drops);
                }
            }
        }
        Ok(())
    }

    fn due(&self) -> Vec<Action> {
        let mut due = Vec::new();
        for (host, member) in self.members.iter().enumerate() {
            due.extend((!member.outbox.is_empty()).then_some(Action::ToServer(host)));
            due.extend((!member.inbox.is_empty()).then_some(Action::ToHost(host)));
        }
        due
    }

    fn chances(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (host, member) in self.members.iter().enumerate() {
            if member.is_dead || member.asked.is_some() {
                continue;
            }
            let can = match member.allowed {
                None => &[Access::Read, Access::Write][..],
                Some(Access::Read) => &[Access::Write],
                Some(Access::Write) => &[],
            };
            all.extend(can.iter().map(|access| Action::Fault(host, *access)));
            all.extend(member.allowed.map(|_| Action::LetGo(host)));
            all.extend((self.deaths > 0).then_some(Action::Dies(host)));
        }
        all
    }

    fn check(&self) -> Result<(), String> {
        let may = |access| {
            self.members
                .iter()
                .filter(|one| one.allowed == Some(access))
                .count()
        };
        let (readers, writers) = (may(Access::Read), may(Access::Write));
        if writers > 1 || writers == 1 && readers > 0 {
            return Err(format!("{writers} hosts write, {readers} read"));
        }
        let is_old = |one: &&Member| one.allowed.is_some() && one.contents != Some(self.written);
        if let Some(old) = self.members.iter().find(is_old) {
            return Err(format!("{:?} of {}", old.contents, self.written));
        }
        if self.due().is_empty() && self.members.iter().any(|one| one.asked.is_some()) {
            return Err("a thread waits for nothing".into());
        }
        Ok(())
    }
}

struct Small(World);

impl Model for Small {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.clone()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_none() {
            actions.extend(world.due());
            if world.chances > 0 {
                actions.extend(world.chances());
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.chances -= u8::from(matches!(action, Action::Fault(..) | Action::LetGo(_)));
        next.deaths -= u8::from(matches!(action, Action::Dies(_)));
        next.broken = next.act(action).err();
        next.sent = 0;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("no law is broken", |_, world: &World| {
            world.broken.is_none()
        })]
    }
}

#[test]
fn in_every_order_with_a_host_that_dies() {
    let small = Small(World::new(3, 4, 1));
    let checked = small.checker().threads(2).spawn_bfs().join();
    std::println!("{} states", checked.unique_state_count());
    if let Some((_, path)) = checked.discoveries().into_iter().next() {
        let last = path.last_state().broken.clone();
        panic!("{last:?} after {:#?}", path.into_actions());
    }
}

#[test]
fn a_fault_costs_at_most_four_messages_and_two_for_each_copy() {
    let mut world = World::new(5, 0, 0);
    let mut cost = |host: usize, access: Access| {
        let before = world.sent;
        world.act(Action::Fault(host, access)).unwrap();
        while let Some(due) = world.due().first() {
            world.act(*due).unwrap();
        }
        world.sent - before
    };
    assert_eq!(cost(0, Access::Write), 2, "nobody has it");
    assert_eq!(cost(1, Access::Read), 4);
    assert_eq!(cost(2, Access::Read), 2);
    assert_eq!(
        cost(1, Access::Write),
        2 + 2 * 2,
        "hosts 0 and 2 have copies"
    );
    assert_eq!(cost(3, Access::Write), 4);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut page = Central::new();
    let asked = Asked {
        by: Host(1),
        access: Access::Write,
        has_copy: false,
    };
    page.ask(asked).unwrap();
    for refused in [
        page.ask(asked),
        page.returned(Host(2), false),
        page.dropped(Host(1)),
    ] {
        assert!(refused.is_err());
    }
    let reads = Asked {
        by: Host(2),
        access: Access::Write,
        ..asked
    };
    page.ask(reads).unwrap();
    assert!(page.ask(reads).is_err() && page.returned(Host(1), true).is_err());
    page.returned(Host(1), false).unwrap();
}
