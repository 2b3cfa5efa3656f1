//! The scheduler: one seed chooses which machine takes the next step, and what goes wrong.

use farpage_object::PageRange;

use crate::coverage::Coverage;
use crate::handler::{self, Handler};
use crate::linux::WINDOW;
use crate::locks::{self, Locker, Question};
use crate::pagein::{self, PageIn};
use crate::pageout::{self, Evictor, Writer};
use crate::program::Thread;
use crate::rng::Rng;
use crate::settings::Settings;
use crate::shared::{Budget, Core, Proc, say};
use crate::store::{Store, Troubles};
use crate::{calls, check};

/// Steps in which a healed world must come to rest.
const HEAL_STEPS_MAX: u64 = 1_000_000;
/// Steps between two checks of all laws.
const CHECK_EVERY: u64 = 100;
/// Reads that each process makes after all is healed.
const CHECKS: u64 = 60;

/// A step machine and the process that it belongs to.
pub(crate) struct Actor {
    pub(crate) proc: usize,
    pub(crate) machine: Machine,
}

pub(crate) enum Machine {
    Thread(Thread),
    Handler(Handler),
    Evictor(Evictor),
    Writer(Writer),
    PageIn(PageIn),
    Question(Question),
    Locker(Locker),
}

impl Machine {
    fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::PageIn(PageIn::Over) | Self::Question(Question::Over)
        )
    }

    fn is_idle(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.is_over(),
            Self::Handler(at) => matches!(at, Handler::Idle),
            Self::Evictor(at) => matches!(at, Evictor::Idle),
            Self::Writer(at) => matches!(at, Writer::Idle),
            Self::PageIn(at) => matches!(at, PageIn::Over),
            Self::Question(at) => matches!(at, Question::Over),
            Self::Locker(at) => matches!(at, Locker::Idle),
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps taken.
    pub steps: u64,
    /// Fault messages handled.
    pub faults: u64,
    /// What happened.
    pub coverage: Coverage,
}

/// Where the lines of a replayed run go.
pub type Log = Box<dyn FnMut(String)>;

/// Runs the world of `seed`. With a log, all laws are checked after every step.
///
/// # Panics
/// When a law is broken.
pub fn run(seed: u64, log: Option<Log>) -> Report {
    let mut world = World::new(seed, log);
    let steps = world.core.settings.steps;
    for _ in 0..steps {
        world.step();
    }
    world.heal();
    Report {
        steps: world.core.now,
        faults: world.core.faults,
        coverage: world.core.coverage,
    }
}

struct World {
    core: Core,
    actors: Vec<Actor>,
    /// Does not run for a while.
    stalled: usize,
}

impl World {
    fn new(seed: u64, log: Option<Log>) -> Self {
        let mut rng = Rng::new(seed);
        let settings = Settings::by_seed(&mut rng);
        let mut core = Core {
            store: Store::new(settings.store_pages, settings.troubles),
            budget: Budget {
                limit: settings.budget,
                charged: 0,
                starved: false,
            },
            procs: vec![Proc::new(settings.partial)],
            rng,
            settings,
            healing: false,
            spawned: Vec::new(),
            log,
            faults: 0,
            coverage: Coverage::default(),
            now: 0,
        };
        say!(core, "seed {seed}: {:?}", core.settings);
        for _ in 0..core.settings.maps {
            calls::first_map(&mut core);
        }
        staff(&mut core, 0);
        let mut world = Self {
            core,
            actors: Vec::new(),
            stalled: usize::MAX,
        };
        world.take_in();
        world
    }

    /// Gives the machines that were made their numbers.
    fn take_in(&mut self) {
        for actor in self.core.spawned.drain(..) {
            match self.actors.iter_mut().find(|a| a.machine.is_gone()) {
                Some(place) => *place = actor,
                None => self.actors.push(actor),
            }
        }
    }

    fn step(&mut self) {
        self.core.now += 1;
        let count = self.actors.len() as u64;
        if self.core.now.is_multiple_of(128) {
            self.stalled = self.core.rng.below(2 * count) as usize;
        }
        self.trouble();
        let mut at = self.core.rng.below(count) as usize;
        for _ in 0..8 {
            if !self.rests(at) {
                break;
            }
            at = self.core.rng.below(count) as usize;
        }
        if at == self.stalled && !self.core.healing {
            return;
        }
        let (core, actor) = (&mut self.core, &mut self.actors[at]);
        let proc = actor.proc;
        match &mut actor.machine {
            Machine::Thread(thread) => thread.step(core, proc, at),
            Machine::Handler(now) => *now = handler::step(core, proc, at, *now),
            Machine::Evictor(now) => *now = pageout::evict(core, proc, at, *now),
            Machine::Writer(now) => *now = pageout::write(core, proc, at, *now),
            Machine::PageIn(now) => {
                let before = core::mem::replace(now, PageIn::Over);
                *now = pagein::step(core, proc, at, before);
            }
            Machine::Question(now) => *now = locks::ask(core, proc, at, *now),
            Machine::Locker(now) => *now = locks::step(core, proc, at, *now),
        }
        if !self.core.spawned.is_empty() {
            self.take_in();
        }
        if self.core.log.is_some() || self.core.now.is_multiple_of(CHECK_EVERY) {
            check::all(&mut self.core);
        }
    }

    /// True when a step of this machine would most likely change nothing.
    fn rests(&self, at: usize) -> bool {
        let process = &self.core.procs[self.actors[at].proc];
        match &self.actors[at].machine {
            Machine::Thread(thread) => {
                let asleep = process
                    .space
                    .sleepers
                    .iter()
                    .any(|&(thread, _)| thread == at);
                asleep || thread.is_over()
            }
            Machine::Handler(Handler::Idle) => {
                process.space.queue.is_empty() && !process.space.event
            }
            Machine::Evictor(Evictor::Idle) | Machine::Writer(Writer::Idle) => {
                !self.core.budget.is_tight() && self.core.settings.eager == 0
            }
            Machine::Handler(_) | Machine::Evictor(_) | Machine::Writer(_) => false,
            Machine::PageIn(now) => matches!(now, PageIn::Over),
            Machine::Question(now) => matches!(now, Question::Over),
            Machine::Locker(now) => matches!(now, Locker::Idle) && self.core.settings.locks == 0,
        }
    }

    fn trouble(&mut self) {
        let core = &mut self.core;
        if core.trouble(core.settings.events) {
            let proc = core.rng.below(core.procs.len() as u64) as usize;
            core.procs[proc].space.event = true;
        }
        if core.trouble(core.settings.spurious) {
            let proc = core.rng.below(core.procs.len() as u64) as usize;
            core.procs[proc].space.wake_spuriously(&mut core.rng);
        }
    }

    /// Nothing goes wrong any more: everything must come to rest, and be as it should.
    fn heal(&mut self) {
        let core = &mut self.core;
        core.healing = true;
        core.store.troubles = Troubles::default();
        core.store.capacity = usize::MAX;
        for process in &mut core.procs {
            process.space.partial = 0;
            process.program.checks_left = CHECKS;
        }
        say!(core, "healed");
        let until = self.core.now + HEAL_STEPS_MAX;
        while !self.is_quiet() {
            if self.core.now > until {
                check::all(&mut self.core);
                panic!("no progress: {} of {:?}", self.stuck(), self.core.budget);
            }
            self.step();
        }
        check::all(&mut self.core);
        self.tear_down();
    }

    fn is_quiet(&self) -> bool {
        let idle = self.actors.iter().all(|actor| actor.machine.is_idle());
        idle && self.core.procs.iter().all(|p| p.space.queue.is_empty())
    }

    fn stuck(&self) -> String {
        let busy = self.actors.iter().filter(|a| !a.machine.is_idle());
        let lines = busy.map(|a| match &a.machine {
            Machine::Thread(at) => format!("p{} {at:?}; ", a.proc),
            Machine::Handler(at) => format!("p{} {at:?}; ", a.proc),
            Machine::Evictor(at) => format!("p{} {at:?}; ", a.proc),
            Machine::Writer(at) => format!("p{} {at:?}; ", a.proc),
            Machine::PageIn(at) => format!("p{} {at:?}; ", a.proc),
            Machine::Question(at) => format!("p{} {at:?}; ", a.proc),
            Machine::Locker(at) => format!("p{} {at:?}; ", a.proc),
        });
        lines.collect()
    }

    /// The processes end: nothing is left behind.
    fn tear_down(&mut self) {
        let core = &mut self.core;
        for proc in 0..core.procs.len() {
            let held = core.procs[proc].pages.discard(PageRange::new(0, WINDOW));
            core.budget.give(held.charged);
            core.procs[proc].pages.check();
            assert_eq!(core.procs[proc].in_flight, 0, "transfers that nobody ends");
            assert_eq!(
                core.procs[proc].pages.clusters_queued(),
                0,
                "queues of an empty space"
            );
            for page in 0..WINDOW {
                core.release_slot(proc, page);
            }
        }
        assert_eq!(core.budget.charged, 0, "charged for nothing");
        assert_eq!(core.store.used(), 0, "pages leak in the pager");
    }
}

/// The threads of the program and of the agent of a new process.
pub(crate) fn staff(core: &mut Core, proc: usize) {
    let mut add = |machine| core.spawned.push(Actor { proc, machine });
    for _ in 0..core.settings.threads {
        add(Machine::Thread(Thread::new()));
    }
    for _ in 0..core.settings.handlers {
        add(Machine::Handler(Handler::Idle));
    }
    for _ in 0..core.settings.pageouts {
        add(Machine::Evictor(Evictor::Idle));
        add(Machine::Writer(Writer::Idle));
    }
    add(Machine::Locker(Locker::Idle));
}
