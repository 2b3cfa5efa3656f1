//! A kernel with a small budget, and a pager that keeps pages in ordinary memory.

pub mod sigbus;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_kernel::{Buffer, Config, Kernel, OnLoss};
use farpage_object::{
    Access, CONTROL_MAGIC, Control, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut,
    PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::file::Fd;
use farpage_sys::mem;

pub const MIB: usize = 1 << 20;

/// Keeps pages in ordinary memory. `clean`: keeps its copy of what it supplies.
#[derive(Default)]
pub struct Store {
    pub pages: Mutex<BTreeMap<u64, Box<[u8; PAGE_BYTES]>>>,
    pub clean: bool,
    /// Pages supplied together although they lie apart, and requests for such refused.
    pub together: AtomicU64,
    pub refused: AtomicU64,
}

/// More are not supplied together.
const TOGETHER_MAX: usize = 5;

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let mut pages = self.pages.lock().expect("no panic");
        let range = request.pages();
        let mut count = 0;
        for (page, into) in range
            .iter()
            .zip(request.buffer().chunks_exact_mut(PAGE_BYTES))
        {
            let Some(bytes) = pages.get(&page.0) else {
                break;
            };
            into.copy_from_slice(&bytes[..]);
            if !self.clean {
                pages.remove(&page.0);
            }
            count += 1;
        }
        match count {
            0 => Err(PagerError::Unavailable),
            n if self.clean => Ok(Supplied::clean(n)),
            n => Ok(Supplied::precious(n)),
        }
    }

    fn data_request_strided(
        &self,
        object: ObjectId,
        first: PageIndex,
        stride: i64,
        buffer: &mut [u8],
    ) -> Result<Supplied, PagerError> {
        if self.together.load(Ordering::Relaxed) > 20 * self.refused.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(PagerError::Dead);
        }
        let mut supplied = Supplied::clean(0);
        for (step, space) in (0..).zip(buffer.chunks_exact_mut(PAGE_BYTES).take(TOGETHER_MAX)) {
            let pages = PageRange::one(PageIndex(first.0.wrapping_add_signed(stride * step)));
            let request = DataRequest::new(object, pages, 1, Access::Read, space);
            match self.data_request(request) {
                Ok(one) => {
                    supplied = Supplied {
                        pages: supplied.pages + 1,
                        ..one
                    }
                }
                Err(error) if step == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.together.fetch_add(supplied.pages, Ordering::Relaxed);
        Ok(supplied)
    }

    fn data_write(&self, _: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut pages = self.pages.lock().expect("no panic");
        for page in out {
            pages.insert(page.page.0, Box::new(*page.bytes));
        }
        Ok(())
    }

    fn discard(&self, _: ObjectId, range: PageRange) {
        let mut pages = self.pages.lock().expect("no panic");
        let gone: Vec<u64> = pages
            .range(range.start.0..range.end.0)
            .map(|(p, _)| *p)
            .collect();
        for page in gone {
            pages.remove(&page);
        }
    }

    fn rename(&self, _: ObjectId, from: PageRange, to: PageIndex) -> Result<(), PagerError> {
        let mut pages = self.pages.lock().expect("no panic");
        let moved: Vec<u64> = pages
            .range(from.start.0..from.end.0)
            .map(|(p, _)| *p)
            .collect();
        for page in moved {
            let bytes = pages.remove(&page).expect("listed just now");
            pages.insert(page - from.start.0 + to.0, bytes);
        }
        Ok(())
    }
}

fn control(budget: u64) -> &'static Control {
    let at = mem::map_anonymous(size_of::<Control>()).expect("address space");
    // SAFETY: all-zero bytes are a valid control block; the mapping lives for ever.
    let control = unsafe { &*(at as *const Control) };
    control.magic.store(CONTROL_MAGIC, Ordering::Relaxed);
    control.budget_bytes.store(budget, Ordering::Relaxed);
    control.threshold_bytes.store(128 << 10, Ordering::Relaxed);
    control.tasks[0]
        .pid
        .store(std::process::id(), Ordering::Relaxed);
    control
}

pub fn kernel(budget: u64, clean: bool) -> &'static Kernel {
    let kernel = dormant(budget, clean);
    activate(kernel);
    kernel
}

pub fn dormant(budget: u64, clean: bool) -> &'static Kernel {
    let store = Store {
        clean,
        ..Store::default()
    };
    dormant_of(budget, Arc::new(store))
}

pub fn dormant_of(budget: u64, store: Arc<Store>) -> &'static Kernel {
    Box::leak(Box::new(Kernel::new(Config {
        control: control(budget),
        slot: 0,
        default_pager: store,
        on_loss: OnLoss::Kill,
        covers: false,
        device: None,
        messages: Fd(2),
        fixed_fds: None,
    })))
}

pub fn activate(kernel: &'static Kernel) {
    assert!(kernel.activate().expect("userfaultfd"));
    for _ in 0..3 {
        kernel.handler_starts();
        std::thread::spawn(|| kernel.handle_faults(Buffer::new().expect("memory")));
    }
    // It is never idle time that has it look: only who asks.
    std::thread::spawn(|| kernel.page_out_for_ever(3_600_000_000_000, || {}));
}

pub fn map(kernel: &Kernel, bytes: usize) -> usize {
    let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS;
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: a fresh mapping.
    unsafe { kernel.mmap(0, bytes, prot, flags, Fd(-1), 0) }.expect("a mapping")
}

pub fn words(at: usize, bytes: usize) -> &'static mut [u64] {
    // SAFETY: mapped just now by the caller, and by nobody else used.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u64, bytes / 8) }
}

pub fn mixed(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55
}

pub fn fill(at: usize, bytes: usize, seed: u64) {
    for (i, word) in words(at, bytes).iter_mut().enumerate() {
        *word = mixed(i as u64 + seed);
    }
}

pub fn check(at: usize, bytes: usize, seed: u64) {
    for (i, word) in words(at, bytes).iter().enumerate() {
        assert_eq!(*word, mixed(i as u64 + seed), "word {i} at {at:#x}");
    }
}

pub fn press(kernel: &Kernel) {
    let bytes = 48 * MIB;
    let at = map(kernel, bytes);
    for round in 0..2 {
        fill(at, bytes, round);
    }
    // SAFETY: nobody uses it any more.
    unsafe { kernel.munmap(at, bytes) }.expect("unmapped");
}

/// Pages of a range that Linux has in memory.
pub fn in_memory(at: usize, bytes: usize) -> usize {
    let mut pages = vec![0u8; bytes / 4096];
    farpage_sys::mem::in_core(at, &mut pages).expect("mapped");
    pages.iter().filter(|page| **page & 1 == 1).count()
}
