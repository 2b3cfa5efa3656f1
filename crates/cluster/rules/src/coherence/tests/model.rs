//! Every order of a few faults, and long runs by seed.

use alloc::string::String;
use alloc::vec::Vec;

use stateright::{Checker, Model, Property};

use super::world::{Action, Way, World};

struct Small {
    hosts: u8,
    /// Faults, and copies dropped to have room.
    chances: u8,
    way: Way,
    may_lock: bool,
}

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
        let world = World::new(self.hosts, self.way).locking(self.may_lock);
        let chances = self.chances;
        let broken = None;
        [State {
            world,
            chances,
            broken,
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
        if matches!(
            action,
            Action::Fault(..)
                | Action::Lock(..)
                | Action::Forget(_)
                | Action::Seal(_)
                | Action::Tick
        ) {
            next.chances -= 1;
        }
        next.broken = next.world.act(action).err();
        // It is no part of what can happen next.
        next.world.sent = 0;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        [
            Property::always("no law is broken", |_, state: &State| {
                state.broken.is_none()
            }),
            // It is sent on for each time that the owner changed meanwhile.
            Property::always("requests arrive", |model: &Self, state: &State| {
                state.world.hops_max <= model.hosts.max(model.chances)
            }),
        ]
        .into()
    }
}

fn explore(hosts: u8, chances: u8, way: Way) {
    explore_locking(hosts, chances, way, false);
}

fn explore_locking(hosts: u8, chances: u8, way: Way, may_lock: bool) {
    let checked = Small {
        hosts,
        chances,
        way,
        may_lock,
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    std::println!(
        "{hosts} hosts, {chances} events: {} states",
        checked.unique_state_count()
    );
    if let Some((law, path)) = checked.discoveries().into_iter().next() {
        let last = path.last_state().broken.clone();
        panic!("{law}: {last:?} after {:#?}", path.into_actions());
    }
}

#[test]
fn two_hosts_in_every_order() {
    explore(2, 8, Way::Plain);
    explore(2, 8, Way::Migrates);
    explore(2, 8, Way::Sealed);
    explore(2, 8, Way::Lent(2));
}

#[test]
fn three_hosts_in_every_order() {
    explore(3, 5, Way::Plain);
    explore(3, 5, Way::Migrates);
    explore(3, 5, Way::Sealed);
    explore(3, 4, Way::Lent(2));
}

#[test]
fn hosts_that_lock_the_page_in_every_order() {
    for way in [Way::Plain, Way::Migrates, Way::Sealed, Way::Lent(2)] {
        explore_locking(2, 6, way, true);
        explore_locking(3, 4, way, true);
    }
}

pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) % end as u64) as usize
    }
}

/// A run of random events in random order, to whose end all is delivered.
fn run(seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed);
    let way = match seed % 4 {
        0 => Way::Plain,
        1 => Way::Migrates,
        2 => Way::Sealed,
        _ => Way::Lent(1 + rng.below(5) as u16),
    };
    let may_lock = seed % 8 >= 4;
    let mut world = World::new(2 + rng.below(7) as u8, way).locking(may_lock);
    // Some locks are held while much else happens.
    let lazy = 1 + rng.below(16);
    // Some runs have hardly any messages in flight at a time, others hundreds.
    let eager = 1 + rng.below(8);
    for _ in 0..300 {
        let (due, chances) = (world.due(), world.chances());
        let pick = match due.is_empty() || rng.below(eager) == 0 && !chances.is_empty() {
            true => chances,
            false => due,
        };
        if !pick.is_empty() {
            let action = pick[rng.below(pick.len())].clone();
            if !matches!(action, Action::Unlock(..)) || rng.below(lazy) == 0 {
                world.act(action)?;
            }
        }
    }
    loop {
        let due = world.due();
        if due.is_empty() {
            return Ok(());
        }
        world.act(due[rng.below(due.len())].clone())?;
    }
}

#[test]
fn no_law_is_broken_in_any_run() {
    for seed in super::seeds() {
        if let Err(broken) = run(seed) {
            panic!(
                "seed {seed}: {broken}\nagain: FARPAGE_SEED={seed} cargo test -p farpage-rules \
                 in_any_run"
            );
        }
    }
}
