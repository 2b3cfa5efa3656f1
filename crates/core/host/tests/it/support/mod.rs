//! A pager that keeps what it is given, and objects that the test maps itself.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_host::{Object, Objects};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{message, socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Keeps what it is given, as long as it has room.
pub struct Store {
    pub pages: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    /// Pages that were asked for below this one.
    pub hot: u64,
    pub asked_hot: AtomicU64,
    pub is_full: AtomicBool,
}

impl Store {
    pub fn new(hot: u64) -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::default(),
            hot,
            asked_hot: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        })
    }
}

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (pages, all) = (request.pages(), self.pages.lock().unwrap());
        for (page, into) in pages
            .iter()
            .zip(request.buffer().chunks_exact_mut(PAGE_BYTES))
        {
            let is_hot = u64::from(page.0 < self.hot);
            self.asked_hot.fetch_add(is_hot, Ordering::Relaxed);
            let kept = all.get(&page.0).ok_or(PagerError::Unavailable)?;
            into.copy_from_slice(&**kept);
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(PagerError::OutOfSpace);
        }
        let mut all = self.pages.lock().unwrap();
        all.extend(
            pages
                .iter()
                .map(|page| (page.page.0, Box::new(*page.bytes))),
        );
        Ok(())
    }
}

pub fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// An object of `pages` pages that this process maps.
pub fn mapped(objects: &'static Objects, store: &Arc<Store>, pages: u64) -> (Arc<Object>, View) {
    mapped_of(objects, Arc::clone(store) as Arc<dyn Pager>, pages, true)
}

/// The same, of any pager.
pub fn mapped_of(
    objects: &'static Objects,
    pager: Arc<dyn Pager>,
    pages: u64,
    temporary: bool,
) -> (Arc<Object>, View) {
    let object = objects.create("test", pages, pager, temporary).unwrap();
    let view = View::map(object.descriptor(), pages as usize * PAGE_BYTES, None).unwrap();
    let (one, other) = pair();
    socket::send(Fd(one.as_raw_fd()), &[0; 8], Some(view.userfaultfd())).unwrap();
    let (_, faults) = message::wait(other.as_fd(), &mut [0; 8]).unwrap();
    let space = objects.attach(faults.unwrap()).unwrap();
    let all = PageRange::new(0, pages);
    objects.map(space, &object, view.address(), all).unwrap();
    (object, view)
}
