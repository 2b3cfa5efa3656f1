//! Objects that are read and written by calls, where nobody can map them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use farpage_host::{Object, Objects};
use farpage_object::{DataRequest, ObjectId, PAGE_BYTES, PageOut, Pager, PagerError, Supplied};

const PAGES: u64 = 400;
const PAGE: u64 = PAGE_BYTES as u64;

/// Keeps what it is given; all else is the number of its page, and the last page cannot be had.
#[derive(Default)]
struct Store(Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>);

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (pages, all) = (request.pages(), self.0.lock().unwrap());
        let parts = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(parts) {
            match all.get(&page.0) {
                Some(kept) => into.copy_from_slice(&**kept),
                None if page.0 == PAGES - 1 => return Err(PagerError::Corrupt),
                None => into.fill(page.0 as u8),
            }
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.0.lock().unwrap();
        all.extend(pages.iter().map(|out| (out.page.0, Box::new(*out.bytes))));
        Ok(())
    }
}

/// An object, of which a quarter fits into memory.
fn object(starts: fn(u64) -> Result<&'static Objects, farpage_host::Error>) -> Arc<Object> {
    let objects = starts(PAGES / 4 * PAGE).unwrap();
    let store = Arc::new(Store::default());
    objects.create("called", PAGES, store, false).unwrap()
}

#[test]
fn what_is_written_by_calls_is_read_by_calls_while_pages_come_and_go() {
    for starts in [Objects::start, Objects::start_for_calls] {
        let object = object(starts);
        let mut whole = vec![0; 3 * PAGE_BYTES];
        object.read(5 * PAGE + 100, &mut whole).unwrap();
        let first = |page: usize| whole[page * PAGE_BYTES - 100];
        assert_eq!((whole[0], first(1), first(2)), (5, 6, 7));
        // Threads write to neighbouring bytes of all pages but the last.
        thread::scope(|scope| {
            for thread in 0..4 {
                let object = &object;
                scope.spawn(move || {
                    for step in 0..2 * PAGES {
                        let page = step * 37 % (PAGES - 1);
                        let (at, mut seen) = (page * PAGE + PAGE - 4 + thread, [0; 1]);
                        object.read(at, &mut seen).unwrap();
                        object.write(at, &[seen[0].wrapping_add(1)]).unwrap();
                        object
                            .write(page * PAGE + 64 * (thread + 1), &[9; 64])
                            .unwrap();
                    }
                });
            }
        });
        let figures = object.figures();
        assert!(figures.resident_max <= PAGES / 2, "{figures:?}");
        let mut page = vec![0; PAGE_BYTES];
        object.read(PAGE, &mut page).unwrap();
        assert_eq!(page[64..320], [9; 256]);
        assert_eq!(page[320..PAGE_BYTES - 4], vec![1; PAGE_BYTES - 324]);
    }
}

#[test]
fn what_cannot_be_had_is_an_error_that_says_why() {
    let object = object(Objects::start_for_calls);
    let last = (PAGES - 1) * PAGE;
    let error = object.read(last - 8, &mut [0; 16]).unwrap_err();
    assert_eq!((error.name.as_str(), error.offset), ("called", last));
    assert_eq!(error.why, PagerError::Corrupt.to_string());
    let beyond = object.write(PAGES * PAGE, &[1]).unwrap_err();
    assert!(beyond.why.contains("beyond its end"), "{beyond}");
    assert_eq!(object.read(0, &mut []), Ok(()));
}
