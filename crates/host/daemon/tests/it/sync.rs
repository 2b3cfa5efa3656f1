//! Locks, semaphores, barriers and conditions between processes of one host.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_client::sync::{Acquired, Barrier, Condition, Mutex, Semaphore, SyncError};
use farpage_client::{Host, Shared};

use crate::support;
use crate::support::{PROGRAM, Program, run_host};

/// Where the test's memory has what.
const LOCK: u64 = 0;
const COUNT: usize = 512 / 8;
const PLACES: u64 = 1024;
const PARTIES: u64 = 2048;

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    let socket = farpage_client::default_socket();
    if kind == "host" {
        run_host();
    }
    let host = Host::connect(&socket).unwrap();
    let shared = host.open("table").unwrap();
    let lock = Mutex::at(&shared, LOCK).unwrap();
    let places = Semaphore::at(&shared, PLACES, 2).unwrap();
    let parties = Barrier::at(&shared, PARTIES, 2).unwrap();
    println!("> ready");
    for line in std::io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "take" => format!("{:?}", lock.acquire(None).unwrap()),
            "give" => lock
                .release()
                .map_or_else(|e| e.to_string(), |()| "done".into()),
            "right" => format!("{:?}", lock.is_right_again().unwrap()),
            "place" => places.acquire(None).unwrap().to_string(),
            "arrive" => parties
                .wait(None)
                .map_or_else(|e| e.to_string(), |n| n.to_string()),
            "count" => {
                counts(&lock, &shared);
                "done".into()
            }
            other => panic!("no such thing: {other}"),
        };
        println!("> {answer}");
    }
}

/// Adds one a thousand times, not atomically.
fn counts(lock: &Mutex, shared: &Shared) {
    let count = &shared.words()[COUNT];
    for _ in 0..1000 {
        let guard = lock.lock().unwrap();
        let before = count.load(Ordering::Relaxed);
        count.store(before + 1, Ordering::Relaxed);
        drop(guard);
    }
}

fn tell(program: &mut Program, what: &str) {
    writeln!(program.hears, "{what}").unwrap();
}

struct World {
    _folder: tempfile::TempDir,
    kernel: Program,
    socket: std::path::PathBuf,
    host: Host,
    shared: Shared,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let kernel = Program::start("sync::host", &socket);
        let host = Host::connect(&socket).unwrap();
        let shared = host.create("table", 8192).unwrap();
        Self {
            _folder: folder,
            kernel,
            socket,
            host,
            shared,
        }
    }

    fn program(&self) -> Program {
        Program::start("sync::program", &self.socket)
    }
}

#[test]
fn one_thread_at_a_time_of_all_processes_has_a_lock() {
    let world = World::new();
    let mut programs = [world.program(), world.program()];
    for program in &mut programs {
        tell(program, "count");
    }
    let lock = Mutex::at(&world.shared, LOCK).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| counts(&lock, &world.shared));
        }
    });
    for program in &mut programs {
        assert_eq!(program.line(), "done");
    }
    assert_eq!(world.shared.words()[COUNT].load(Ordering::Relaxed), 4000);
    assert!(!lock.is_held().unwrap());
}

#[test]
fn who_waits_for_a_process_that_is_killed_has_the_lock_and_is_told() {
    let world = World::new();
    let lock = Mutex::at(&world.shared, LOCK).unwrap();
    let [mut dies, mut waits] = [world.program(), world.program()];
    assert_eq!(dies.does("take"), "Taken");
    assert_eq!(
        lock.acquire(Some(Duration::ZERO)).unwrap(),
        Acquired::TimedOut
    );
    assert_eq!(
        lock.acquire(Some(Duration::from_millis(700))).unwrap(),
        Acquired::TimedOut,
        "it is not taken from one that lives"
    );
    tell(&mut waits, "take");
    dies.child.kill().unwrap();
    assert_eq!(waits.line(), "HolderDied");
    assert_eq!(waits.does("give"), "done");
    let guard = lock.lock().unwrap();
    assert!(guard.holder_died(), "until somebody says that all is right");
    lock.is_right_again().unwrap();
    drop(guard);
    assert!(!lock.lock().unwrap().holder_died());
    // Also who only looks in now and then finds out.
    let mut dies = world.program();
    assert_eq!(dies.does("take"), "Taken");
    dies.child.kill().unwrap();
    let glance = Some(Duration::from_millis(1));
    support::until("it is found", || {
        lock.acquire(glance).unwrap() == Acquired::HolderDied
    });
}

#[test]
fn places_of_a_killed_process_are_free_again() {
    let world = World::new();
    let places = Semaphore::at(&world.shared, PLACES, 2).unwrap();
    let mut dies = world.program();
    assert_eq!(
        (dies.does("place"), dies.does("place")),
        ("true".into(), "true".into())
    );
    assert!(!places.acquire(Some(Duration::ZERO)).unwrap());
    dies.child.kill().unwrap();
    assert!(places.acquire(None).unwrap() && places.acquire(None).unwrap());
    assert!(!places.acquire(Some(Duration::ZERO)).unwrap());
    places.release().unwrap();
    places.release().unwrap();
    assert!(matches!(places.release(), Err(SyncError::NotHeld(_))));
}

#[test]
fn a_barrier_is_broken_by_a_party_that_is_killed_and_can_be_reset() {
    let world = World::new();
    let parties = Barrier::at(&world.shared, PARTIES, 2).unwrap();
    let mut dies = world.program();
    for _ in 0..3 {
        tell(&mut dies, "arrive");
        let own = parties.wait(None).unwrap();
        assert_eq!(dies.line(), (1 - own).to_string());
    }
    dies.child.kill().unwrap();
    let broken = parties.wait(None).unwrap_err();
    assert!(
        broken.to_string().contains("a party of it died"),
        "{broken}"
    );
    assert!(matches!(parties.wait(None), Err(SyncError::Broken)));
    parties.reset().unwrap();
    let mut other = world.program();
    tell(&mut other, "arrive");
    assert!(parties.wait(None).unwrap() < 2);
    other.line();
    tell(&mut other, "arrive");
    let late = parties.wait(Some(Duration::ZERO)).err();
    assert!(late.is_none_or(|late| matches!(late, SyncError::Broken)));
    other.line();
    parties.abort().unwrap();
    assert!(other.does("arrive").contains("the barrier is broken"));
}

#[test]
fn whoever_waits_for_a_condition_goes_on_when_it_is_said() {
    let world = World::new();
    let lock = Mutex::at(&world.shared, LOCK).unwrap();
    let changed = Condition::of(&lock);
    let [waiting, flag] = [COUNT, COUNT + 1].map(|at| &world.shared.words()[at]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let guard = lock.lock().unwrap();
                waiting.fetch_add(1, Ordering::Relaxed);
                while flag.load(Ordering::Relaxed) == 0 {
                    assert!(changed.wait(None).unwrap().is_notified);
                }
                drop(guard);
            });
        }
        support::until("both wait", || {
            let guard = lock.lock().unwrap();
            let both = waiting.load(Ordering::Relaxed) == 2;
            if both {
                flag.store(1, Ordering::Relaxed);
                changed.notify().unwrap();
            }
            drop(guard);
            both
        });
    });
    let guard = lock.lock().unwrap();
    let waited = changed.wait(Some(Duration::from_millis(1))).unwrap();
    assert!(!waited.is_notified && !waited.holder_died);
    drop(guard);
}

#[test]
fn what_makes_no_sense_is_refused_and_said() {
    let mut world = World::new();
    let shared = &world.shared;
    let lock = Mutex::at(shared, LOCK).unwrap();
    let said = |error: SyncError| error.to_string();
    let refused = said(Mutex::at(shared, 8).err().unwrap());
    assert!(
        refused.contains("a lock cannot lie at byte 8 of 8192"),
        "{refused}"
    );
    assert!(matches!(
        Mutex::at(shared, 8192),
        Err(SyncError::Place { .. })
    ));
    assert!(matches!(
        Mutex::at(shared, u64::MAX - 63),
        Err(SyncError::Place { .. })
    ));
    let refused = said(Barrier::at(shared, 4096, 0).err().unwrap());
    assert!(
        refused.contains("a barrier of 0 cannot be; give a number from 1"),
        "{refused}"
    );
    assert!(matches!(
        Semaphore::at(shared, 0, 5000),
        Err(SyncError::Count(_))
    ));
    let refused = said(Semaphore::at(shared, LOCK, 2).err().unwrap());
    assert!(
        refused.contains("at byte 0 lies a lock, and not a semaphore of 2"),
        "{refused}"
    );
    shared.words()[4096 / 8].store(7, Ordering::Relaxed);
    let refused = said(Mutex::at(shared, 4096).err().unwrap());
    assert!(
        refused.contains("lies something else, and not a lock"),
        "{refused}"
    );
    let refused = said(lock.release().unwrap_err());
    assert!(refused.contains("a lock is not this caller's"), "{refused}");
    let changed = Condition::of(&lock);
    assert!(matches!(changed.notify(), Err(SyncError::NotHeld(_))));
    assert!(matches!(changed.wait(None), Err(SyncError::NotHeld(_))));
    let guard = lock.lock().unwrap();
    assert!(said(lock.acquire(None).unwrap_err()).contains("has the lock already"));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| lock.release());
        assert!(matches!(other.join().unwrap(), Err(SyncError::NotHeld(_))));
    });
    drop(guard);
    let named = Mutex::named(&world.host, "own", 1).unwrap();
    let again = Mutex::named(&world.host, "own", 1).unwrap();
    let guard = named.lock().unwrap();
    assert!(again.is_own().unwrap(), "a name is one lock");
    drop(guard);
    assert!(matches!(
        Barrier::named(&world.host, "a/b", 2, 1),
        Err(SyncError::Host(_))
    ));
    // Nobody answers any more.
    let other = Mutex::at(shared, 64).unwrap();
    world.kernel.child.kill().unwrap();
    world.kernel.child.wait().unwrap();
    support::until("it is noticed", || other.is_held().is_err());
}
