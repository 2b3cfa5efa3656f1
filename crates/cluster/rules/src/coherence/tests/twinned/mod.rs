//! Pages that several hosts write at a time: every order of a few events, and long runs by seed.

mod world;

use alloc::string::String;
use alloc::vec::Vec;

use farpage_object::Access;
use stateright::{Checker, Model, Property};

use super::model::Rng;
use crate::coherence::{Host, TwinMessage, TwinOutput, Twinned};
use world::{Action, World};

/// Every order of a few events: deaths among them if it is said how many.
struct Small {
    hosts: u8,
    pages: usize,
    chances: u8,
    deaths: u8,
    /// Pages may change their owner, and copies go to make room.
    moves: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    chances: u8,
    deaths: u8,
    broken: Option<String>,
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [State {
            world: World::new(self.hosts, self.pages),
            chances: self.chances,
            deaths: self.deaths,
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
            let moves =
                |action: &Action| matches!(action, Action::TakeOver(..) | Action::Forget(..));
            let chances = state.world.chances().into_iter();
            actions.extend(chances.filter(|action| self.moves || !moves(action)));
        }
        if state.deaths > 0 {
            actions.extend((0..self.hosts).map(Host).map(Action::Dies));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Dies(_) => next.deaths -= 1,
            Action::Fault(..)
            | Action::Write(..)
            | Action::Release(_)
            | Action::Acquire(_)
            | Action::TakeOver(..)
            | Action::Forget(..) => next.chances -= 1,
            Action::LetGo(..)
            | Action::Applied(..)
            | Action::Deliver(_)
            | Action::Freeze(_)
            | Action::Resume(_) => {}
        }
        next.broken = next.world.act(action).err();
        if next.broken.is_none() && next.world.due().is_empty() {
            next.broken = next.world.check_rest().err();
        }
        // It is no part of what can happen next.
        next.world.sent = 0;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let lawful = |_: &Self, state: &State| state.broken.is_none();
        [Property::always("no law is broken", lawful)].into()
    }
}

fn explore(hosts: u8, pages: usize, chances: u8, deaths: u8, moves: bool) {
    let small = Small {
        hosts,
        pages,
        chances,
        deaths,
        moves,
    };
    let checked = small.checker().threads(2).spawn_bfs().join();
    std::println!(
        "{hosts} hosts, {pages} pages, {chances} events, {deaths} deaths: {} states",
        checked.unique_state_count()
    );
    if let Some((law, path)) = checked.discoveries().into_iter().next() {
        let last = path.last_state().broken.clone();
        panic!("{law}: {last:?} after {:#?}", path.into_actions());
    }
}

#[test]
fn two_hosts_write_one_page_in_every_order() {
    explore(2, 1, 8, 0, false);
    explore(2, 1, 6, 0, true);
    explore(2, 1, 4, 1, true);
}

#[test]
fn two_hosts_write_two_pages_in_every_order() {
    explore(2, 2, 5, 0, false);
    explore(2, 2, 4, 0, true);
}

#[test]
fn three_hosts_write_in_every_order() {
    explore(3, 1, 5, 0, false);
    explore(3, 1, 4, 0, true);
    explore(3, 2, 4, 0, false);
    explore(3, 1, 3, 1, true);
}

/// A run of random events in random order, to whose end all is delivered.
fn run(seed: u64) -> Result<u32, String> {
    let mut rng = Rng(seed);
    let mut world = World::new(2 + rng.below(4) as u8, 1 + rng.below(3));
    let mut deaths = rng.below(3);
    // Some runs have hardly any messages in flight at a time, others many.
    let eager = 1 + rng.below(8);
    for _ in 0..300 {
        if deaths > 0 && world.count() > 1 && world.is_calm() && rng.below(100) == 0 {
            deaths -= 1;
            let dies: Vec<Host> = (0..8).map(Host).filter(|host| world.lives(*host)).collect();
            world.act(Action::Dies(dies[rng.below(dies.len())]))?;
            continue;
        }
        let (due, chances) = (world.due(), world.chances());
        let pick = match due.is_empty() || rng.below(eager) == 0 && !chances.is_empty() {
            true => chances,
            false => due,
        };
        if !pick.is_empty() {
            world.act(pick[rng.below(pick.len())].clone())?;
        }
    }
    for _ in 0..100_000 {
        let due = world.due();
        if due.is_empty() {
            world.check_rest()?;
            return Ok(world.sent);
        }
        world.act(due[rng.below(due.len())].clone())?;
    }
    Err("it does not end".into())
}

#[test]
fn who_acquires_sees_what_was_released_in_any_run() {
    let mut sent = 0;
    for seed in super::seeds() {
        match run(seed) {
            Ok(more) => sent += more,
            Err(broken) => panic!(
                "seed {seed}: {broken}\nagain: FARPAGE_SEED={seed} cargo test -p farpage-rules \
                 was_released_in_any_run"
            ),
        }
    }
    assert!(sent > 0, "something was told");
}

fn sends(page: &mut Twinned) -> Vec<(Host, TwinMessage)> {
    let all = core::iter::from_fn(|| page.poll_output());
    let sent = all.filter_map(|output| match output {
        TwinOutput::Send(to, message) => Some((to, message)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut page = Twinned::new(Host(1), Host(0));
    let before = page.clone();
    for message in [
        TwinMessage::Copy,
        TwinMessage::Own {
            epoch: crate::coherence::Epoch(1),
        },
        TwinMessage::Applied { number: 1 },
        TwinMessage::Elsewhere { owner: Host(2) },
        TwinMessage::Lost,
    ] {
        assert!(page.handle(Host(0), message).is_err(), "{message:?}");
    }
    assert!(
        page.handle(Host(1), TwinMessage::Ask { to_own: false })
            .is_err()
    );
    assert!(
        page.handle(Host(200), TwinMessage::Ask { to_own: false })
            .is_err()
    );
    assert_eq!(page, before);
    page.fault(Access::Read);
    assert!(
        page.handle(Host(0), TwinMessage::Elsewhere { owner: Host(1) })
            .is_err()
    );
    assert!(page.handle(Host(0), TwinMessage::Copy).is_ok());
    assert!(page.handle(Host(0), TwinMessage::Copy).is_err(), "twice");
}

#[test]
fn a_read_costs_two_messages_and_a_release_of_what_changed_two() {
    let mut page = Twinned::new(Host(1), Host(0));
    page.fault(Access::Write);
    let asks = (Host(0), TwinMessage::Ask { to_own: false });
    assert_eq!(sends(&mut page), [asks]);
    page.handle(Host(0), TwinMessage::Copy).unwrap();
    assert_eq!(page.allowed(), Some(Access::Write));
    let number = page.release().unwrap();
    let diffs = core::iter::from_fn(|| page.poll_output());
    let diffs = diffs.filter(|output| matches!(output, TwinOutput::Diff { .. }));
    assert_eq!(diffs.count(), 1);
    assert!(!page.has_released(number));
    assert_eq!(page.allowed(), Some(Access::Read), "it is read on");
    page.handle(Host(0), TwinMessage::Applied { number })
        .unwrap();
    assert!(page.has_released(number));
    assert_eq!((page.release(), sends(&mut page).len()), (None, 0));
}

#[test]
fn an_owner_writes_and_acquires_without_a_message() {
    let mut page = Twinned::new(Host(0), Host(0));
    page.fault(Access::Write);
    assert_eq!((page.release(), page.acquire()), (None, None));
    assert!(sends(&mut page).is_empty());
}
