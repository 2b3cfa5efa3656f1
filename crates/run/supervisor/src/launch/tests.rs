//! What the supervisor sees of a tree of programs.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_default_pager::manager::paging::{PagingConfig, WhenFull};
use farpage_object::Control;
use farpage_sys::limits::{self, Resource};
use farpage_sys::userfaultfd;
use farpage_testkit::until;

use super::{Running, start};
use crate::config::{Prepared, RunOptions, THRESHOLD_BYTES};

fn run(program: &str, args: &[&str]) -> (Running, &'static Control) {
    let (control_fd, control) = farpage_sys::control::create().unwrap();
    control.budget_bytes.store(256 << 20, Ordering::Relaxed);
    control
        .threshold_bytes
        .store(THRESHOLD_BYTES, Ordering::Relaxed);
    control
        .supervisor_pid
        .store(std::process::id(), Ordering::Relaxed);
    let tier = userfaultfd::probe().tier;
    control.tier.store(tier as u32, Ordering::Relaxed);
    let prepared = Prepared {
        options: RunOptions {
            memory: PagingConfig {
                ram_bytes: 256 << 20,
                follows_cgroup: false,
                compressed_max_bytes: 0,
                spill_dirs: Vec::new(),
                spill_limit_bytes: None,
                when_full: WhenFull::Kill,
            },
            threshold_bytes: THRESHOLD_BYTES,
            machine_bytes: None,
            exec: None,
            maps: Vec::new(),
            deadline: None,
            record: None,
            replay: None,
            shm: false,
            stdio: false,
            trace: false,
            program: PathBuf::from(program),
            args: args.iter().map(|arg| arg.into()).collect(),
        },
        control,
        control_fd,
        signal_mask: 0,
        file_size: limits::get(Resource::FileSize).unwrap(),
        maps: None,
        shm: None,
        socket: None,
    };
    (start(&prepared).unwrap(), control)
}

fn tasks(control: &Control) -> Vec<u32> {
    let ids = control
        .tasks
        .iter()
        .map(|task| task.pid.load(Ordering::Acquire));
    // Above are those that are just being forked.
    ids.filter(|id| (1..=i32::MAX as u32).contains(id))
        .collect()
}

fn status(running: &mut Running) -> std::process::ExitStatus {
    let mut ended = None;
    until("the end", || {
        ended = running.wait(Duration::from_millis(100)).unwrap();
        ended.is_some()
    });
    ended.unwrap()
}

#[test]
fn what_killed_tasks_held_is_taken_back() {
    let (mut running, control) = run("/bin/sh", &["sh", "-c", "sleep 99 & sleep 99 & wait"]);
    let program = running.program_pid();
    until("three tasks", || tasks(control).len() == 3);
    assert!(tasks(control).contains(&program));
    let child = tasks(control)
        .into_iter()
        .find(|id| *id != program)
        .unwrap();
    let slot = control.slot_of(child).unwrap();
    control.tasks[slot]
        .counters
        .resident_bytes
        .store(4096, Ordering::Relaxed);
    control.resident_bytes.fetch_add(4096, Ordering::Relaxed);
    for id in tasks(control) {
        farpage_sys::process::kill(id, 9).unwrap();
    }
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status(&mut running).signal(), Some(9));
    until("no task", || tasks(control).is_empty());
    assert_eq!(control.resident_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn tasks_name_their_parents() {
    let (mut running, control) = run("/bin/sh", &["sh", "-c", "sleep 99; exit $?"]);
    until("two tasks", || tasks(control).len() == 2);
    let program = running.program_pid();
    let child = tasks(control)
        .into_iter()
        .find(|id| *id != program)
        .unwrap();
    let slot = control.slot_of(child).unwrap();
    let parent = control.slot_of(program).unwrap() as u32 + 1;
    until("the parent", || {
        control.tasks[slot].parent.load(Ordering::Relaxed) == parent
    });
    farpage_sys::process::kill(child, 15).unwrap();
    assert_eq!(status(&mut running).code(), Some(128 + 15));
}
