//! Paging space that cannot be read: who waits for what is there is told, at whichever host.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farpage_object::{Access, PAGE_BYTES, PageRange};
use farpage_server::{About, NotLocked, Unreleased};
use farpage_sys::view::View;

use crate::support::{
    One, Order, UNREADABLE, about, hosts, mirrored, read, released, simple, write,
};

/// More than fit into memory.
const PAGES: u64 = 1200;
/// One that has left it.
const EARLY: usize = 3;
/// One that has not.
const LATE: usize = PAGES as usize - 1;
const PATIENCE: Duration = Duration::from_secs(120);

fn fails(is_so: bool) {
    UNREADABLE.store(is_so, Ordering::SeqCst);
}

/// Two hosts; the first has written each page, or the second.
fn written_by(writer: usize, about: &About) -> (Vec<One>, Arc<Vec<View>>) {
    let all = hosts(2, 1 << 20, Order::AsSent);
    let views: Vec<View> = all.iter().map(|one| one.map(about).1).collect();
    for page in 0..PAGES as usize {
        assert!(write(&views[writer], page * PAGE_BYTES, 1));
    }
    (all, Arc::new(views))
}

/// What a thread of a host has of a page; `None`: it was told that it cannot have it.
///
/// # Panics
/// When it is not answered.
fn has(views: &Arc<Vec<View>>, host: usize, page: usize, writes: bool) -> Option<u64> {
    let (tells, told) = channel();
    let views = Arc::clone(views);
    thread::spawn(move || {
        let at = page * PAGE_BYTES;
        let had = match writes {
            true => write(&views[host], at, 2).then_some(2),
            false => read(&views[host], at),
        };
        let _ = tells.send(had);
    });
    let told = told.recv_timeout(PATIENCE);
    told.unwrap_or_else(|_| panic!("host {host} waits for ever for page {page}"))
}

fn kinds() -> [(&'static str, About); 4] {
    [
        ("plain", about(1, PAGES, 1)),
        ("of two pages", about(2, PAGES, 2)),
        ("mirrored", mirrored(3, PAGES, 1)),
        ("simple", simple(4, PAGES, 1)),
    ]
}

#[test]
fn who_reads_what_its_host_cannot_read_is_told_and_the_next_has_it_when_that_can() {
    farpage_testkit::in_own_process!();
    for (name, about) in kinds() {
        let (all, views) = written_by(0, &about);
        fails(true);
        let while_it_fails = has(&views, 1, EARLY, false);
        fails(false);
        assert_eq!(while_it_fails, None, "{name}");
        assert_eq!(has(&views, 1, LATE, false), Some(1), "{name}: others");
        // Who was told never has it.
        let next = Arc::new(vec![all[1].map(&about).1]);
        let again = has(&next, 0, EARLY, false);
        match name {
            // The home gave up what it had to be told of.
            "simple" => assert_eq!(again, None),
            _ => assert_eq!(again, Some(1), "{name}: its host has it still"),
        }
    }
}

#[test]
fn who_locks_what_another_host_cannot_read_is_told_and_can_when_that_can() {
    farpage_testkit::in_own_process!();
    for (name, about) in kinds().into_iter().filter(|(name, _)| *name != "simple") {
        let lock = |host: &One, page: usize, access| {
            let (tells, told) = channel();
            let page = page as u64;
            let on_end = move |ended| {
                // It is waited for below.
                let _ = tells.send(ended);
            };
            let pages = PageRange::new(page, page + 1);
            let _ = host
                .server
                .locks(about.number, pages, access, Box::new(on_end));
            told.recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("{name}: it waits for ever"))
        };
        let (all, views) = written_by(0, &about);
        fails(true);
        let while_it_fails = lock(&all[1], EARLY, Access::Read);
        fails(false);
        assert!(
            matches!(while_it_fails, Err(NotLocked::Lost(_))),
            "{name}: {while_it_fails:?}"
        );
        lock(&all[1], EARLY, Access::Read).unwrap();
        lock(&all[1], LATE, Access::Write).unwrap();
        assert_eq!(has(&views, 1, EARLY, false), Some(1), "{name}");
        assert_eq!(has(&views, 1, LATE, true), Some(2), "{name}");
    }
}

#[test]
fn who_writes_to_what_its_host_cannot_read_is_told_and_nobody_ever_sees_zeros() {
    farpage_testkit::in_own_process!();
    for (name, about) in kinds() {
        let (_all, views) = written_by(1, &about);
        fails(true);
        let while_it_fails = has(&views, 0, EARLY, true);
        fails(false);
        assert_eq!(while_it_fails, None, "{name}");
        for host in [0, 1] {
            let after = has(&views, host, EARLY, false);
            assert!(matches!(after, Some(1) | None), "{name}: {after:?}");
        }
        assert_eq!(has(&views, 0, LATE, true), Some(2), "{name}: others");
    }
}

fn release(host: &One) -> Result<(), Unreleased> {
    let (tells, told) = channel();
    let on_end = move |ended: Result<(), Unreleased>| {
        let _ = tells.send(ended);
    };
    host.server.releases(5, Box::new(on_end));
    let told = told.recv_timeout(PATIENCE);
    told.expect("a release ends")
}

#[test]
fn a_release_of_what_cannot_be_read_ends_and_says_so() {
    farpage_testkit::in_own_process!();
    let (all, views) = written_by(1, &released(5, PAGES, 1));
    fails(true);
    let first = release(&all[1]);
    fails(false);
    assert!(
        matches!(first, Err(Unreleased::Unread(..) | Unreleased::Lost(_))),
        "{first:?}"
    );
    assert_eq!(release(&all[1]), Ok(()), "it is over");
    assert!(write(&views[1], LATE * PAGE_BYTES, 3));
    assert_eq!(release(&all[1]), Ok(()), "another");
    assert_eq!(has(&views, 0, LATE, false), Some(3));
}

#[test]
fn a_release_to_who_cannot_read_ends_and_says_so() {
    farpage_testkit::in_own_process!();
    let (all, views) = written_by(0, &released(5, PAGES, 1));
    assert_eq!(has(&views, 1, EARLY, true), Some(2));
    // The owner's copy leaves memory again.
    for page in EARLY + 1..PAGES as usize {
        assert_eq!(read(&views[0], page * PAGE_BYTES), Some(1));
    }
    fails(true);
    let ended = release(&all[1]);
    fails(false);
    assert!(matches!(ended, Err(Unreleased::Lost(_))), "{ended:?}");
    assert_eq!(release(&all[1]), Ok(()), "it is over");
}
