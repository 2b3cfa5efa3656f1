//! Long runs by seed: faults, copies dropped, hosts that die and come back.

use alloc::string::String;
use alloc::vec::Vec;

use farpage_object::Access;

use super::member::Member;
use super::world::{Action, World};
use crate::coherence::Host;
use crate::coherence::tests::model::Rng;

/// What all runs together came to: that they test something.
#[derive(Debug, Default)]
struct Sum {
    crashes: u64,
    joins: u64,
    losses: u64,
    restored: u64,
    resets: u64,
    seals: u64,
    locked: u64,
    sent: u64,
}

/// Deaths, hosts that come back, lost pages that get new contents, and hosts that hear that nobody is to
/// write a page any more.
fn events(world: &World, rng: &mut Rng) -> Option<Action> {
    let living: Vec<Host> = world.living().map(|one| one.own).collect();
    let may_crash = living.len() > 1 && (!world.is_mirrored || world.is_calm());
    match rng.below(4) {
        0 if may_crash => Some(Action::Crash(living[rng.below(living.len())])),
        1 => {
            let dead = (0..world.members.len() as u8).map(Host);
            let view = world.view();
            let dead: Vec<Host> = dead.filter(|host| !view.living.has(*host)).collect();
            (!dead.is_empty()).then(|| Action::Join(dead[rng.below(dead.len())]))
        }
        2 if !world.is_mirrored => {
            let host = living[rng.below(living.len())];
            // The others are written until the end.
            Some(Action::Seal(host, 0))
        }
        _ => world.living().find_map(|member| {
            let can = |page: &usize| member.pages[*page].clone().reset();
            let page = (0..member.pages.len()).find(can)?;
            Some(Action::Reset(member.own, page))
        }),
    }
}

/// A thread begins to lock some pages, to read or to write.
fn lock(world: &World, rng: &mut Rng) -> Option<Action> {
    let living: Vec<&Member> = world.living().collect();
    let member = living[rng.below(living.len())];
    let pages = member.pages.len();
    let first = rng.below(pages);
    let end = first + 1 + rng.below(pages - first);
    let access = [Access::Read, Access::Write][rng.below(2)];
    let is_free = member.locker.is_none();
    is_free.then_some(Action::Lock(member.own, access, (first, end)))
}

fn run(seed: u64, sum: &mut Sum) -> Result<(), String> {
    let mut rng = Rng(seed);
    let (hosts, pages) = (2 + rng.below(5) as u8, 1 + rng.below(4));
    let mut world = World::new(hosts, pages, seed % 2 == 1);
    world.mirrors_again = true;
    // Some runs have hardly any messages in flight at a time, others many.
    let eager = 1 + rng.below(8);
    let deadly = 20 + rng.below(200);
    // Some hold what they locked for long. Runs without locks are as many as those with them.
    let (lazy, locks) = (
        1 + rng.below(50),
        (seed % 4 >= 2).then(|| 5 + rng.below(100)),
    );
    for _ in 0..2000 {
        if locks.is_some_and(|often| rng.below(often) == 0)
            && let Some(lock) = lock(&world, &mut rng)
        {
            world.act(lock)?;
        }
        if rng.below(deadly) == 0
            && let Some(event) = events(&world, &mut rng)
        {
            sum.crashes += u64::from(matches!(event, Action::Crash(_)));
            sum.joins += u64::from(matches!(event, Action::Join(_)));
            sum.seals += u64::from(matches!(event, Action::Seal(..)));
            sum.resets += u64::from(matches!(event, Action::Reset(..)));
            world.act(event)?;
        }
        let (due, chances) = (world.due(), world.chances(true));
        let pick = match due.is_empty() || rng.below(eager) == 0 && !chances.is_empty() {
            true => chances,
            false => due,
        };
        if !pick.is_empty() {
            let action = pick[rng.below(pick.len())];
            if !matches!(action, Action::Unlock(_)) || rng.below(lazy) == 0 {
                world.act(action)?;
            }
        }
    }
    loop {
        let due = world.due();
        if due.is_empty() {
            break;
        }
        world.act(due[rng.below(due.len())])?;
    }
    sum.losses += u64::from(world.losses);
    sum.restored += u64::from(world.restored);
    sum.locked += world.locked;
    sum.sent += world.sent;
    Ok(())
}

#[test]
fn no_law_is_broken_whoever_dies() {
    let mut sum = Sum::default();
    for seed in crate::coherence::tests::seeds() {
        if let Err(broken) = run(seed, &mut sum) {
            panic!(
                "seed {seed}: {broken}\nagain: FARPAGE_SEED={seed} cargo test -p farpage-rules \
                 whoever_dies"
            );
        }
    }
    std::println!("{sum:?}");
}
