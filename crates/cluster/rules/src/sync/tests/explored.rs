//! Every order.

use std::string::String;
use std::vec::Vec;

use Script::{Arrives, Locks, LocksWithin, Sets, Waits};
use stateright::{Checker, Model, Property};

use super::world::{Action, Script, World};
use crate::sync::Kind;

struct Small {
    world: World,
    /// Deaths, at most.
    deaths: u8,
    /// Sleepers that look, or whose time is over, whenever they like.
    looks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    deaths: u8,
    looks: u8,
    wrong: Option<String>,
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [State {
            world: self.world.clone(),
            deaths: self.deaths,
            looks: self.looks,
            wrong: None,
        }]
        .into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_none() {
            actions.extend(state.world.due());
            actions.extend(state.world.chances(state.deaths > 0, state.looks > 0));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let is_free = state.world.due().contains(&action);
        match action {
            Action::Dies(_) | Action::HostDies(_) => next.deaths -= 1,
            Action::Looks(_) | Action::TimesOut(_) if !is_free => {
                next.looks = next.looks.checked_sub(1)?;
            }
            Action::Step(_) | Action::Arrives(..) | Action::Looks(_) | Action::TimesOut(_) => {}
        }
        next.wrong = next.world.act(action).err();
        if next.wrong.is_none() && next.world.due().is_empty() && !next.world.is_all_over() {
            next.wrong = Some("nobody wakes who sleeps".into());
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        [Property::always("no law is broken", |_, state: &State| {
            state.wrong.is_none()
        })]
        .into()
    }
}

fn explore(kind: Kind, threads: &[(u8, Script)], deaths: u8, looks: u8) {
    let world = World::new(kind, threads);
    let small = Small {
        world,
        deaths,
        looks,
    };
    let checked = small.checker().threads(2).spawn_bfs().join();
    std::println!(
        "{kind}, {threads:?}, {deaths} deaths, {looks} looks: {} states",
        checked.unique_state_count()
    );
    if let Some((law, path)) = checked.discoveries().into_iter().next() {
        let wrong = path.last_state().wrong.clone();
        panic!("{law}: {wrong:?} after {:#?}", path.into_actions());
    }
}

#[test]
fn a_lock_is_one_threads_and_no_wake_up_is_missed() {
    explore(Kind::Mutex, &[(0, Locks(2)), (1, Locks(2))], 0, 2);
    explore(Kind::Mutex, &[(0, Locks(2)), (0, Locks(2))], 0, 2);
    explore(
        Kind::Mutex,
        &[(0, Locks(1)), (0, Locks(1)), (1, Locks(1))],
        0,
        1,
    );
    explore(
        Kind::Mutex,
        &[(0, Locks(1)), (1, Locks(1)), (2, Locks(1))],
        0,
        1,
    );
}

#[test]
fn a_lock_is_had_after_its_holder_died_at_any_step() {
    explore(Kind::Mutex, &[(0, Locks(2)), (1, Locks(2))], 1, 1);
    explore(
        Kind::Mutex,
        &[(0, Locks(1)), (1, Locks(1)), (1, Locks(1))],
        2,
        0,
    );
    explore(
        Kind::Mutex,
        &[(0, Locks(1)), (1, Locks(1)), (2, Locks(1))],
        2,
        0,
    );
}

#[test]
fn who_waits_no_longer_keeps_nobody_waiting() {
    explore(Kind::Mutex, &[(0, Locks(2)), (1, LocksWithin(1))], 0, 2);
    explore(Kind::Mutex, &[(0, Locks(2)), (1, LocksWithin(1))], 1, 1);
    explore(
        Kind::Mutex,
        &[(0, Locks(1)), (1, LocksWithin(1)), (2, Locks(1))],
        0,
        1,
    );
}

#[test]
fn a_semaphore_has_so_many_places_also_after_deaths() {
    let two = Kind::Semaphore(2);
    explore(two, &[(0, Locks(1)), (1, Locks(1)), (2, Locks(1))], 0, 1);
    explore(two, &[(0, Locks(1)), (0, Locks(1)), (1, Locks(1))], 1, 0);
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    explore(Kind::Barrier(2), &[(0, Arrives(3)), (1, Arrives(3))], 0, 2);
    explore(
        Kind::Barrier(3),
        &[(0, Arrives(2)), (1, Arrives(2)), (1, Arrives(2))],
        0,
        0,
    );
}

#[test]
fn a_barrier_ends_for_all_when_a_party_dies_at_any_step() {
    explore(Kind::Barrier(2), &[(0, Arrives(3)), (1, Arrives(3))], 1, 0);
    explore(Kind::Barrier(2), &[(0, Arrives(2)), (1, Arrives(2))], 2, 1);
}

#[test]
fn a_condition_that_is_said_to_have_changed_is_looked_at() {
    explore(Kind::Mutex, &[(0, Waits), (1, Sets)], 0, 2);
    explore(Kind::Mutex, &[(0, Waits), (0, Sets)], 0, 2);
}
