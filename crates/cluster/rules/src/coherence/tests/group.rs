//! Hosts with pages of different sizes on one object: every order of a small world, runs by seed,
//! and what it costs.

use alloc::vec::Vec;
use alloc::{format, string::String, vec};

use farpage_object::Access::{self, Read, Write};
use stateright::{Checker, Model, Property};

use super::check_said;
use super::model::Rng;
use crate::coherence::{Group, GroupOutput, Host, Message, Output, Page};

/// A message about a unit, and its contents.
type Flying = (Host, Host, usize, Message, Option<u32>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    /// Units of a page of this host.
    units: usize,
    groups: Vec<Group>,
    contents: Vec<Option<u32>>,
    /// What tasks can do with each page.
    can: Vec<Option<Access>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    members: Vec<Member>,
    flying: Vec<Flying>,
    /// How often each unit was written.
    written: Vec<u32>,
    sent: u32,
    answered: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// A thread of a host faults on a page of that host.
    Fault(usize, usize, Access),
    LetGo(usize, usize),
    Deliver(usize),
}

impl World {
    /// Hosts with pages of so many units each; the first owns all.
    fn new(all: usize, sizes: &[usize]) -> Self {
        let member = |(own, units): (usize, &usize)| {
            let page = |_| Page::new(Host(own as u8), Host(0));
            let group = |_| Group::new((0..*units).map(page).collect());
            let groups: Vec<Group> = (0..all / units).map(group).collect();
            Member {
                units: *units,
                can: groups.iter().map(Group::allowed).collect(),
                groups,
                contents: vec![(own == 0).then_some(0); all],
            }
        };
        Self {
            members: sizes.iter().enumerate().map(member).collect(),
            flying: Vec::new(),
            written: vec![0; all],
            sent: 0,
            answered: vec![0; sizes.len()],
        }
    }

    fn due(&self) -> Vec<Action> {
        let mut due = Vec::new();
        for (host, member) in self.members.iter().enumerate() {
            let held = (0..member.groups.len()).filter(|page| member.groups[*page].is_held());
            due.extend(held.map(|page| Action::LetGo(host, page)));
        }
        due.extend((0..self.flying.len()).map(Action::Deliver));
        due
    }

    fn chances(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (host, member) in self.members.iter().enumerate() {
            for (page, group) in member.groups.iter().enumerate() {
                for access in [Read, Write] {
                    let may = group.allowed() == Some(Write) || group.allowed() == Some(access);
                    if !may && group.wanted() != Some(access) {
                        all.push(Action::Fault(host, page, access));
                    }
                }
            }
        }
        all
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Fault(host, page, access) => {
                self.members[host].groups[page].fault(access);
                self.drain(host, page, None)?;
            }
            Action::LetGo(host, page) => {
                self.members[host].groups[page].let_go();
                self.drain(host, page, None)?;
            }
            Action::Deliver(at) => {
                let (from, to, unit, message, contents) = self.flying.remove(at);
                let host = usize::from(to.0);
                let member = &mut self.members[host];
                let (page, at) = (unit / member.units, unit % member.units);
                let handled = member.groups[page].handle(at, from, message);
                handled.map_err(|violation| format!("an honest host: {violation}"))?;
                self.drain(host, page, contents)?;
            }
        }
        self.check()
    }

    fn drain(&mut self, host: usize, page: usize, mut came: Option<u32>) -> Result<(), String> {
        while let Some(output) = self.members[host].groups[page].poll_output() {
            let member = &mut self.members[host];
            match output {
                GroupOutput::Unit(at, output) => {
                    let unit = page * member.units + at;
                    match output {
                        Output::Send(to, message) => {
                            check_said(&message, member.can[page])?;
                            let contents = match message.has_contents() {
                                true => Some(member.contents[unit].ok_or("sends nothing")?),
                                false => None,
                            };
                            let from = Host(host as u8);
                            self.flying.push((from, to, unit, message, contents));
                            self.sent += 1;
                        }
                        Output::Take => {
                            member.contents[unit] = Some(came.take().ok_or("takes nothing")?);
                        }
                        Output::Allow(None) => member.contents[unit] = None,
                        Output::Allow(Some(_)) | Output::Withdraw => {}
                        Output::Show { .. }
                        | Output::Keep(_)
                        | Output::Restore(_)
                        | Output::Answer(_)
                        | Output::Lost
                        | Output::Sealed => return Err(format!("{output:?}")),
                    }
                }
                GroupOutput::Allow(access) => member.can[page] = access,
                GroupOutput::Answer(access) => self.answer(host, page, access)?,
                GroupOutput::Lost | GroupOutput::Sealed => return Err(format!("{output:?}")),
            }
        }
        Ok(())
    }

    /// A thread reads all units of the host's page, or writes one of them.
    fn answer(&mut self, host: usize, page: usize, access: Access) -> Result<(), String> {
        self.check()?;
        self.answered[host] += 1;
        let member = &mut self.members[host];
        let units = page * member.units..(page + 1) * member.units;
        if member.contents[units.clone()]
            != self.written[units.clone()]
                .iter()
                .map(|one| Some(*one))
                .collect::<Vec<_>>()[..]
        {
            return Err(format!("host {host} sees {:?}", &member.contents[units]));
        }
        if access == Write {
            for unit in units {
                self.written[unit] += 1;
                member.contents[unit] = Some(self.written[unit]);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for unit in 0..self.written.len() {
            let allowed = |member: &Member| {
                member.groups[unit / member.units].units()[unit % member.units].allowed()
            };
            let may: Vec<_> = self.members.iter().filter_map(allowed).collect();
            if may.contains(&Write) && may.len() > 1 {
                return Err(format!(
                    "{} hosts with unit {unit}, one may write",
                    may.len()
                ));
            }
            for member in &self.members {
                if allowed(member).is_some() && member.contents[unit] != Some(self.written[unit]) {
                    return Err(format!("unit {unit} is {:?}", member.contents[unit]));
                }
            }
        }
        let mut groups = self.members.iter().flat_map(|member| &member.groups);
        if self.due().is_empty() && groups.any(|group| group.wanted().is_some()) {
            return Err("a thread waits for nothing".into());
        }
        Ok(())
    }

    /// All that is left to do, in the order of sending.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..1_000_000 {
            match self.due().last() {
                None => return Ok(()),
                Some(Action::Deliver(_)) => self.act(Action::Deliver(0))?,
                Some(due) => self.act(*due)?,
            }
        }
        Err("it never ends".into())
    }

    fn cost(&mut self, host: usize, page: usize, access: Access) -> u32 {
        let before = self.sent;
        self.act(Action::Fault(host, page, access)).unwrap();
        self.settle().unwrap();
        self.sent - before
    }
}

struct Small;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    chances: u8,
    broken: Option<String>,
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [State {
            world: World::new(2, &[1, 2, 2]),
            chances: 3,
            broken: None,
        }]
        .into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_none() {
            actions.extend(state.world.due());
            if state.chances > 0 {
                actions.extend(state.world.chances());
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.chances -= u8::from(matches!(action, Action::Fault(..)));
        next.broken = next.world.act(action).err();
        next.world.sent = 0;
        next.world.answered.fill(0);
        next.world.flying.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        [Property::always("no law is broken", |_, state: &State| {
            state.broken.is_none()
        })]
        .into()
    }
}

#[test]
fn two_large_hosts_and_a_small_one_in_every_order() {
    let checked = Small.checker().threads(2).spawn_bfs().join();
    std::println!("{} states", checked.unique_state_count());
    if let Some((_, path)) = checked.discoveries().into_iter().next() {
        let last = path.last_state().broken.clone();
        panic!("{last:?} after {:#?}", path.into_actions());
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed);
    let all = [1, 2, 4, 16][rng.below(4)];
    let mut sizes = Vec::new();
    for _ in 0..2 + rng.below(4) {
        let fits = [1, 2, 4, 16].into_iter().filter(|units| *units <= all);
        let fits: Vec<usize> = fits.collect();
        sizes.push(fits[rng.below(fits.len())]);
    }
    let mut world = World::new(all, &sizes);
    let eager = 1 + rng.below(20);
    for _ in 0..500 {
        let (due, chances) = (world.due(), world.chances());
        let pick = match due.is_empty() || rng.below(eager) == 0 && !chances.is_empty() {
            true => chances,
            false => due,
        };
        if !pick.is_empty() {
            world.act(pick[rng.below(pick.len())])?;
        }
    }
    for _ in 0..1_000_000 {
        let due = world.due();
        if due.is_empty() {
            return Ok(());
        }
        world.act(due[rng.below(due.len())])?;
    }
    Err("it never ends".into())
}

#[test]
fn no_law_is_broken_whatever_sizes_pages_have() {
    for seed in super::seeds() {
        if let Err(broken) = run(seed) {
            panic!(
                "seed {seed}: {broken}\nagain: FARPAGE_SEED={seed} cargo test -p farpage-rules \
                 whatever_sizes"
            );
        }
    }
}

#[test]
fn a_large_page_costs_what_its_units_cost_and_a_unit_taken_away_costs_one() {
    let mut world = World::new(16, &[1, 16, 16]);
    assert_eq!(world.cost(1, 0, Read), 16 * 2);
    assert_eq!(
        world.cost(0, 3, Write),
        2,
        "one unit of 16 has a copy elsewhere"
    );
    assert_eq!(world.cost(1, 0, Read), 2, "the other 15 are still here");
    assert_eq!(world.cost(1, 0, Write), 16 * 2, "without contents");
    assert_eq!(world.cost(0, 5, Write), 2);
    assert_eq!(world.cost(1, 0, Write), 2);
    assert_eq!(world.cost(2, 0, Read), 16 * 2 + 16, "it asks host 0 first");
}

#[test]
fn all_units_are_asked_for_at_once() {
    let mut world = World::new(512, &[1, 512]);
    world.act(Action::Fault(1, 0, Read)).unwrap();
    assert_eq!(
        world.flying.len(),
        512,
        "one parcel, for a shell that packs them"
    );
    world.settle().unwrap();
    assert_eq!((world.sent, world.answered[1]), (1024, 1));
}

#[test]
fn a_page_with_a_lost_unit_is_lost_and_holds_nothing() {
    let mut group = Group::new(vec![Page::new(Host(1), Host(0)); 2]);
    group.fault(Read);
    let epoch = crate::coherence::Epoch(0);
    group.handle(0, Host(0), Message::Copy { epoch }).unwrap();
    assert!(group.units()[0].is_held());
    group.handle(1, Host(0), Message::Lost { epoch }).unwrap();
    let mut last = None;
    while let Some(output) = group.poll_output() {
        last = Some(output);
    }
    assert_eq!((last, group.wanted()), (Some(GroupOutput::Lost), None));
    assert!(group.at(0, Page::forget), "it is not held any more");
    let refused = group.handle(1, Host(0), Message::Copy { epoch });
    assert!(refused.is_err());
}

#[test]
fn small_hosts_share_a_large_page_without_disturbing_each_other() {
    let mut world = World::new(16, &[16, 1, 1]);
    for page in 0..16 {
        world.cost(1 + page % 2, page, Write);
    }
    let before = world.sent;
    for page in 0..16 {
        world.act(Action::Fault(1 + page % 2, page, Write)).unwrap();
    }
    assert_eq!(world.sent, before);
}

/// Hosts that always want to write: how often each gets to, and messages for each time.
fn contend(sizes: &[usize], all: usize, rounds: usize) -> (Vec<u32>, f64) {
    let mut world = World::new(all, sizes);
    let mut rng = Rng(1);
    for _ in 0..rounds {
        let writes = |action: &Action| matches!(action, Action::Fault(_, _, Write));
        for fault in world.chances().into_iter().filter(writes) {
            world.act(fault).unwrap();
        }
        // Whatever is due happens once, and then all who lost the page fault again.
        for _ in 0..world.due().len() {
            let due = world.due();
            world.act(due[rng.below(due.len())]).unwrap();
        }
    }
    let answers: u32 = world.answered.iter().sum();
    (world.answered, f64::from(world.sent) / f64::from(answers))
}

#[test]
fn hosts_of_all_sizes_get_their_turn() {
    for sizes in [&[1, 4][..], &[4, 4, 1], &[1, 1, 4], &[2, 4, 1, 4]] {
        let (answered, each) = contend(sizes, 4, 3000);
        std::println!("units of a page {sizes:?}: answered {answered:?}, {each:.2} messages each");
        // A small host has several pages to write, a large one has one.
        let turns = answered
            .iter()
            .zip(sizes)
            .map(|(count, units)| count * *units as u32);
        let (least, most) = (turns.clone().min().unwrap(), turns.max().unwrap());
        assert!(least * 10 > most, "{answered:?}");
    }
}
