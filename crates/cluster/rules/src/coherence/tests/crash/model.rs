//! Every order of a few faults and one death.

use alloc::string::String;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use farpage_object::Access;
use stateright::{Checker, Model, Property};

use super::world::{Action, World};

struct Small {
    hosts: u8,
    pages: usize,
    is_mirrored: bool,
    may_seal: bool,
    may_lock: bool,
    /// Faults, writes, and copies dropped to have room.
    chances: u8,
}

#[derive(Clone, Debug)]
struct State {
    world: World,
    chances: u8,
    crashes: u8,
    broken: Option<String>,
}

impl State {
    /// The same for states from which the same can follow: counters of messages and their order on
    /// the way do not matter.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.world, self.chances, self.crashes, &self.broken).hash(&mut hasher);
        hasher.finish()
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.print() == other.print()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print().hash(state);
    }
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let world = World::new(self.hosts, self.pages, self.is_mirrored);
        [State {
            world,
            chances: self.chances,
            crashes: 1,
            broken: None,
        }]
        .into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        actions.extend(state.world.due());
        if state.chances > 0 {
            actions.extend(state.world.chances(true));
            if self.may_lock {
                let living = state.world.living().filter(|one| one.locker.is_none());
                actions.extend(living.flat_map(|one| {
                    let all = (0, self.pages);
                    [Access::Read, Access::Write].map(|access| Action::Lock(one.own, access, all))
                }));
            }
            if self.may_seal {
                let living = state.world.living();
                actions.extend(living.map(|one| Action::Seal(one.own, 0)));
            }
        }
        if state.crashes > 0 {
            actions.extend(state.world.living().map(|one| Action::Crash(one.own)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Fault(..)
            | Action::Write(..)
            | Action::Lock(..)
            | Action::Forget(..)
            | Action::Seal(..) => {
                next.chances -= 1;
            }
            Action::Crash(_) => next.crashes -= 1,
            Action::LetGo(..)
            | Action::Unlock(_)
            | Action::Deliver(_)
            | Action::Hear(_)
            | Action::Arrived(_)
            | Action::Expire(..)
            | Action::Join(_)
            | Action::Reset(..) => {}
        }
        next.broken = next.world.act(action).err();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        [Property::always("no law is broken", |_, state: &State| {
            state.broken.is_none()
        })]
        .into()
    }
}

impl Small {
    fn explore(self) {
        let (hosts, pages, chances) = (self.hosts, self.pages, self.chances);
        let is_mirrored = self.is_mirrored;
        let checked = self.checker().threads(2).spawn_bfs().join();
        std::println!(
            "{hosts} hosts, {pages} pages, {chances} events, mirrored {is_mirrored}: {} states, depth {}",
            checked.unique_state_count(),
            checked.max_depth()
        );
        if let Some((law, path)) = checked.discoveries().into_iter().next() {
            let mut world = path.clone().into_states()[0].world.clone();
            for action in path.clone().into_actions() {
                if let Action::Deliver(at) = action {
                    std::println!("{:?}", world.flying[at]);
                } else {
                    std::println!("{action:?}");
                }
                let _ = world.act(action);
            }
            panic!("{law}: {:?}", path.last_state().broken);
        }
    }
}

fn chances(default: u8) -> u8 {
    std::env::var("FARPAGE_EVENTS").map_or(default, |events| events.parse().unwrap())
}

#[test]
fn a_host_dies_in_every_order() {
    Small {
        hosts: 3,
        pages: 1,
        is_mirrored: false,
        may_seal: false,
        may_lock: false,
        chances: chances(3),
    }
    .explore();
}

#[test]
fn a_host_of_a_page_that_is_sealed_meanwhile_dies_in_every_order() {
    Small {
        hosts: 3,
        pages: 1,
        is_mirrored: false,
        may_seal: true,
        may_lock: false,
        chances: chances(3),
    }
    .explore();
}

#[test]
fn a_host_of_a_mirrored_page_dies_in_every_order() {
    Small {
        hosts: 3,
        pages: 1,
        is_mirrored: true,
        may_seal: false,
        may_lock: false,
        chances: chances(3),
    }
    .explore();
}

#[test]
fn a_host_of_two_pages_dies_in_every_order() {
    for is_mirrored in [false, true] {
        Small {
            hosts: 3,
            pages: 2,
            is_mirrored,
            may_seal: false,
            may_lock: false,
            chances: chances(3),
        }
        .explore();
    }
}

#[test]
fn a_host_that_locks_pages_dies_in_every_order() {
    for (pages, is_mirrored, may_seal) in [(1, false, true), (2, false, false), (1, true, false)] {
        Small {
            hosts: 3,
            pages,
            is_mirrored,
            may_seal,
            may_lock: true,
            chances: chances(2),
        }
        .explore();
    }
}
