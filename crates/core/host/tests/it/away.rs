//! Pages that another kernel has next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use farpage_host::Objects;
use farpage_object::{
    Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError,
    Supplied,
};

use crate::support::mapped_of;

/// Has pages as long as they are not here.
#[derive(Default)]
struct Giver {
    pages: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    asked: AtomicU64,
    handed_over: AtomicU64,
}

impl Pager for Giver {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let first = request.pages().start.0;
        match self.pages.lock().unwrap().get(&first) {
            Some(kept) => Ok(request.supply(&**kept)),
            None => Ok(request.supply(&[0; PAGE_BYTES])),
        }
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.pages.lock().unwrap();
        for out in pages {
            self.handed_over.fetch_add(1, Ordering::Relaxed);
            all.insert(out.page.0, Box::new(*out.bytes));
        }
        Ok(())
    }

    fn data_unlock(&self, _: ObjectId, _: PageIndex, _: Access) -> bool {
        false
    }

    fn locks_pages(&self) -> bool {
        true
    }
}

#[test]
fn a_page_that_goes_away_is_not_handed_over_and_asked_for_again() {
    let giver = Arc::new(Giver::default());
    let objects = Objects::start(64 << 20).unwrap();
    let (object, view) = mapped_of(objects, Arc::clone(&giver) as Arc<dyn Pager>, 600, false);
    let mut bytes = [0; PAGE_BYTES];
    assert_eq!(object.contents_of(PageIndex(7), &mut bytes), Ok(false));
    // All of a block: one that is given to Linux otherwise.
    (0..600).for_each(|page| view.word(page * PAGE_BYTES).store(9, Ordering::Relaxed));
    let asked = giver.asked.load(Ordering::Relaxed);
    let page = PageRange::one(PageIndex(7));
    object.lock_pages(page).unwrap();
    assert_eq!(object.contents_of(PageIndex(7), &mut bytes), Ok(true));
    assert_eq!(bytes[0], 9);
    let resident = object.resident();
    object.take_away(page).unwrap();
    assert_eq!(object.resident(), resident - 1);
    assert_eq!(object.contents_of(PageIndex(7), &mut bytes), Ok(false));
    assert_eq!(giver.handed_over.load(Ordering::Relaxed), 0);
    let word = view.word(7 * PAGE_BYTES);
    assert_eq!(word.load(Ordering::Relaxed), 0, "the pager's, not ours");
    assert_eq!(giver.asked.load(Ordering::Relaxed), asked + 1);
    // What was locked is not, when it comes back unlocked.
    word.store(3, Ordering::Relaxed);
}

#[test]
fn who_waits_to_write_to_a_page_that_goes_away_asks_for_it_again() {
    let giver = Arc::new(Giver::default());
    let objects = Objects::start(64 << 20).unwrap();
    let (object, view) = mapped_of(objects, Arc::clone(&giver) as Arc<dyn Pager>, 16, false);
    let word = view.word(3 * PAGE_BYTES);
    assert_eq!(word.load(Ordering::Relaxed), 0);
    let page = PageRange::one(PageIndex(3));
    object.lock_pages(page).unwrap();
    // What happens is kept from the first look on.
    object.trace(0, 1);
    thread::scope(|scope| {
        let writer = scope.spawn(|| word.store(5, Ordering::Relaxed));
        while object
            .trace(0, 100)
            .1
            .iter()
            .all(|event| event.what != farpage_host::What::Unlock)
        {
            thread::yield_now();
        }
        object.take_away(page).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(word.load(Ordering::Relaxed), 5);
    assert_eq!(giver.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn a_precious_page_comes_back_though_nobody_wrote_to_it() {
    let giver = Arc::new(Giver::default());
    let objects = Objects::start(64 << 20).unwrap();
    let (object, view) = mapped_of(objects, Arc::clone(&giver) as Arc<dyn Pager>, 16, false);
    assert_eq!(view.word(0).load(Ordering::Relaxed), 0);
    assert_eq!(object.make_precious(PageIndex(0)), Ok(true));
    assert_eq!(object.make_precious(PageIndex(1)), Ok(false));
    object.flush(PageRange::new(0, 16)).unwrap();
    assert_eq!(giver.handed_over.load(Ordering::Relaxed), 1);
}
