//! A default pager behind a channel: what is kept comes back, and who breaks the rules breaks its own
//! calls only.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farpage_default_pager::manager::{
    About, Ended, Keeper, Manager, NotTaken, Offer, Outside, Serving,
};
use farpage_object::{
    Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError,
};
use farpage_sys::memory_file::{self, Words};

use crate::support;

const OBJECT: ObjectId = ObjectId(3);

struct Pair {
    outside: Arc<Outside>,
    serving: Serving,
    calls: OwnedFd,
    _file: std::fs::File,
}

/// A default pager with threads in this process, seen through its channel.
fn pair(tier: u64) -> Pair {
    let (_, file, pager) = support::with_file(tier, 1 << 10);
    let pager: Arc<dyn Keeper> = Arc::new(pager);
    let offer = Offer::start(pager).unwrap();
    let calls = offer.channel().try_clone_to_owned().unwrap();
    let life = offer.life().try_clone_to_owned().unwrap();
    let outside = Outside::new(std::process::id(), About::default(), &calls, life).unwrap();
    Pair {
        outside,
        serving: offer.is_taken(),
        calls,
        _file: file,
    }
}

fn write(pager: &dyn Pager, first: u64, contents: &[support::Page]) -> Result<(), PagerError> {
    let pages = PageRange::new(first, first + contents.len() as u64);
    let pairs = pages.iter().zip(contents);
    let out: Vec<PageOut<'_>> = pairs.map(|(page, bytes)| PageOut { page, bytes }).collect();
    pager.data_write(OBJECT, &out)
}

fn read(pager: &dyn Pager, page: u64, pages: u64) -> Result<(Vec<u8>, bool), PagerError> {
    let range = PageRange::new(page, page + pages);
    let mut buffer = vec![0; range.bytes() as usize];
    let request = DataRequest::new(OBJECT, range, 1, Access::Read, &mut buffer);
    let supplied = pager.data_request(request)?;
    buffer.truncate(supplied.pages as usize * PAGE_BYTES);
    Ok((buffer, supplied.precious))
}

#[test]
fn what_is_written_comes_back_and_what_is_discarded_does_not() {
    let pair = pair(8 << 20);
    let pager = pair.outside.as_ref();
    // More than a place has room for, of all kinds.
    let contents: Vec<support::Page> = (0..200)
        .map(|page| support::contents((page % 4) as u8, page))
        .collect();
    write(pager, 1000, &contents).unwrap();
    let mut page = 1000;
    while page < 1200 {
        let (bytes, precious) = read(pager, page, 1200 - page).unwrap();
        for bytes in bytes.chunks(PAGE_BYTES) {
            assert_eq!(bytes, contents[(page - 1000) as usize], "page {page}");
            page += 1;
        }
        if precious {
            // It was given away.
            assert_eq!(
                read(pager, page - 1, 1).err(),
                Some(PagerError::Unavailable)
            );
        }
    }
    write(pager, 5, &contents[..40]).unwrap();
    pager.discard(OBJECT, PageRange::new(10, 20));
    assert_eq!(read(pager, 12, 1).err(), Some(PagerError::Unavailable));
    assert_eq!(read(pager, 30, 1).unwrap().0, contents[25]);
    pager.terminate(OBJECT);
    assert_eq!(read(pager, 5, 1).err(), Some(PagerError::Unavailable));
    assert_eq!(pager.some_kept(0), Ok(None));
}

#[test]
fn many_threads_call_at_once() {
    let pair = pair(8 << 20);
    std::thread::scope(|scope| {
        for thread in 0..100u64 {
            let pager = &pair.outside;
            scope.spawn(move || {
                let contents = [support::contents(2, thread)];
                for round in 0..20 {
                    let page = (thread << 20) + round;
                    write(pager.as_ref(), page, &contents).unwrap();
                    assert_eq!(read(pager.as_ref(), page, 1).unwrap().0, contents[0]);
                }
            });
        }
    });
}

#[test]
fn whoever_dies_or_ends_is_seen() {
    let pair = pair(8 << 20);
    let (_, _file, inside) = support::with_file(8 << 20, 1 << 10);
    let manager = Manager::start(Arc::new(inside)).unwrap();
    let contents = [support::contents(3, 1)];
    write(manager.as_ref(), 7, &contents).unwrap();
    let outside = Arc::clone(&pair.outside);
    manager.set_default_memory_manager(outside).unwrap();
    farpage_testkit::until("all has moved outside", || {
        manager.state().outside.is_some() && !manager.state().is_moving
    });
    assert_eq!(read(pair.outside.as_ref(), 7, 1).unwrap().0, contents[0]);
    write(manager.as_ref(), 7, &contents).unwrap();
    pair.serving.end();
    assert_eq!(pair.serving.wait(), Ended::Replaced);
    assert!(manager.state().outside.is_none());
    assert_eq!(read(manager.as_ref(), 7, 1).unwrap().0, contents[0]);
    // And one that dies.
    let next = self::pair(8 << 20);
    let outside = Arc::clone(&next.outside);
    manager.set_default_memory_manager(outside).unwrap();
    farpage_testkit::until("all has moved outside", || {
        manager.state().outside.is_some() && !manager.state().is_moving
    });
    write(manager.as_ref(), 8, &contents).unwrap();
    drop(next.serving);
    farpage_testkit::until("the loss is noticed", || !manager.state().lost.is_empty());
    assert_eq!(read(manager.as_ref(), 8, 1).err(), Some(PagerError::Dead));
    let mut why = String::new();
    assert!(manager.explain(OBJECT, PageIndex(8), &mut why));
    assert!(why.contains("died with it"), "{why}");
    write(manager.as_ref(), 8, &contents).unwrap();
    assert_eq!(read(manager.as_ref(), 8, 1).unwrap().0, contents[0]);
}

#[test]
fn what_is_no_channel_is_refused() {
    let pair = pair(1 << 20);
    let life = || {
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        OwnedFd::from(one)
    };
    let refused = |calls: OwnedFd, life: OwnedFd| {
        let taken = Outside::new(1, About::default(), &calls, life);
        assert!(matches!(taken.err(), Some(NotTaken::Channel(_))));
    };
    refused(std::fs::File::open("/dev/zero").unwrap().into(), life());
    refused(std::fs::File::open(Path::new("/")).unwrap().into(), life());
    // It could shrink.
    let bytes = std::fs::File::from(pair.calls.try_clone().unwrap());
    let bytes = bytes.metadata().unwrap().len() as usize;
    refused(memory_file::create(c"channel", bytes).unwrap(), life());
    let sealed = |bytes| {
        let file = memory_file::create(c"channel", bytes).unwrap();
        memory_file::seal(file.as_fd(), memory_file::FIXED).unwrap();
        file
    };
    refused(sealed(bytes - PAGE_BYTES), life());
    // It has no magic number.
    refused(sealed(bytes), life());
    // Writing to it might never end.
    let not_a_socket = std::fs::File::open("/dev/null").unwrap();
    refused(pair.calls.try_clone().unwrap(), not_a_socket.into());
}

/// A default pager that writes anything anywhere: calls fail, or give any contents, or end with it.
#[test]
fn a_default_pager_that_lies_fails_calls_and_nothing_else() {
    let pair = pair(8 << 20);
    let bytes = std::fs::File::from(pair.calls.try_clone().unwrap());
    let bytes = bytes.metadata().unwrap().len() as usize;
    let words = Words::map(pair.calls.as_fd(), bytes).unwrap();
    let (_, _file, inside) = support::with_file(8 << 20, 1 << 10);
    let manager = Manager::start(Arc::new(inside)).unwrap();
    let outside = Arc::clone(&pair.outside);
    manager.set_default_memory_manager(outside).unwrap();
    farpage_testkit::until("there is an outer manager", || {
        manager.state().outside.is_some()
    });
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (manager, ends) = (&manager, &ends);
                scope.spawn(move || {
                    let contents = [support::contents(3, thread); 3];
                    let mut calls = 0u64;
                    while !ends.load(Ordering::Relaxed) {
                        calls += 1;
                        let page = (thread << 20) + calls % 64;
                        let _ = write(manager.as_ref(), page, &contents);
                        if let Ok((bytes, _)) = read(manager.as_ref(), page, 3) {
                            assert!((1..=3 * PAGE_BYTES).contains(&bytes.len()));
                        }
                        manager.discard(OBJECT, PageRange::new(page, page + 2));
                    }
                })
            })
            .collect();
        let mut seed = 5u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        // Where all but contents is.
        let head = 21 * PAGE_BYTES / 8;
        for _ in 0..3_000_000 {
            let at = random() as usize % head;
            let value = [0, 1, 2, u64::MAX, random(), random() % 80][random() as usize % 6];
            words.u64s()[at].store(value, Ordering::Relaxed);
        }
        ends.store(true, Ordering::Relaxed);
        // Who waits for an answer that never comes has one when it dies.
        drop(pair.serving);
        for caller in callers {
            caller.join().unwrap();
        }
    });
    farpage_testkit::until("the loss is noticed", || !manager.state().lost.is_empty());
    let contents = [support::contents(1, 1)];
    write(manager.as_ref(), 1, &contents).unwrap();
    assert_eq!(read(manager.as_ref(), 1, 1).unwrap().0, contents[0]);
}
