//! Temporary memory in this process, on the real Linux, with a small budget.

#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_abi::{Access, CONTROL_MAGIC, Control, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_kernel::{Buffer, Config, Kernel, OnLoss};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_sys::file::Fd;
use farpage_sys::mem;

/// Keeps pages in ordinary memory. `clean`: keeps its copy of what it supplies.
#[derive(Default)]
struct Store {
    pages: Mutex<BTreeMap<u64, Box<[u8; PAGE_BYTES]>>>,
    clean: bool,
    /// Pages supplied together although they lie apart, and requests for such refused.
    together: AtomicU64,
    refused: AtomicU64,
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

fn kernel(budget: u64, clean: bool) -> &'static Kernel {
    let store = Store {
        clean,
        ..Store::default()
    };
    kernel_of(budget, Arc::new(store))
}

fn kernel_of(budget: u64, store: Arc<Store>) -> &'static Kernel {
    let kernel = Box::leak(Box::new(Kernel::new(Config {
        control: control(budget),
        slot: 0,
        default_pager: store,
        on_loss: OnLoss::Kill,
        device: None,
        messages: Fd(2),
        fixed_fds: None,
    })));
    assert!(kernel.activate().expect("userfaultfd"));
    for _ in 0..3 {
        kernel.handler_starts();
        std::thread::spawn(|| kernel.handle_faults(Buffer::new().expect("memory")));
    }
    std::thread::spawn(|| kernel.page_out_for_ever(|| {}));
    kernel
}

fn map(kernel: &Kernel, bytes: usize) -> usize {
    let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS;
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: a fresh mapping.
    unsafe { kernel.mmap(0, bytes, prot, flags, Fd(-1), 0) }.expect("a mapping")
}

fn words(at: usize, bytes: usize) -> &'static mut [u64] {
    // SAFETY: mapped just now by the caller, and by nobody else used.
    unsafe { core::slice::from_raw_parts_mut(at as *mut u64, bytes / 8) }
}

fn mixed(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55
}

fn fill_and_check(clean: bool) {
    let kernel = kernel(16 << 20, clean);
    let bytes = 64 << 20;
    let at = map(kernel, bytes);
    let memory = words(at, bytes);
    for round in 0..3u64 {
        for (i, word) in memory.iter_mut().enumerate() {
            if round > 0 {
                assert_eq!(
                    *word,
                    mixed(i as u64 + round - 1),
                    "word {i} in round {round}"
                );
            }
            *word = mixed(i as u64 + round);
        }
    }
    let mut at_random = 12345u64;
    for _ in 0..20_000 {
        at_random = mixed(at_random);
        let i = at_random as usize % memory.len();
        assert_eq!(memory[i], mixed(i as u64 + 2));
    }
    let control = kernel.account().control();
    let peak = control.resident_bytes.load(Ordering::Relaxed);
    assert!(peak <= 16 << 20, "{peak} bytes resident");
    // SAFETY: nobody uses it any more.
    unsafe { kernel.munmap(at, bytes) }.expect("unmapped");
    assert_eq!(control.resident_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(control.demand_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn four_times_the_budget_precious() {
    fill_and_check(false);
}

#[test]
fn four_times_the_budget_clean() {
    fill_and_check(true);
}

#[test]
fn memory_read_in_steps_is_asked_for_together_and_what_was_not_supplied_comes_alone() {
    for clean in [false, true] {
        let store = Arc::new(Store {
            clean,
            ..Store::default()
        });
        let kernel = kernel_of(16 << 20, store.clone());
        let bytes = 64 << 20;
        let memory = words(map(kernel, bytes), bytes);
        for (i, word) in memory.iter_mut().enumerate() {
            *word = mixed(i as u64);
        }
        for from in 0..24 {
            for i in (from * 512..memory.len()).step_by(24 * 512) {
                assert_eq!(memory[i], mixed(i as u64), "word {i}");
            }
        }
        let together = store.together.load(Ordering::Relaxed);
        let refused = store.refused.load(Ordering::Relaxed);
        assert!(together > 1000 && refused > 50, "{together}, {refused}");
        let prefetched = &kernel.account().counters().prefetched;
        assert!(prefetched.load(Ordering::Relaxed) >= together);
    }
}

#[test]
fn untouched_memory_reads_as_zeros() {
    let kernel = kernel(16 << 20, false);
    let bytes = 40 << 20;
    let memory = words(map(kernel, bytes), bytes);
    assert!(memory.iter().all(|word| *word == 0));
}

#[test]
fn discarded_memory_reads_as_zeros() {
    let kernel = kernel(16 << 20, true);
    let bytes = 48 << 20;
    let at = map(kernel, bytes);
    let memory = words(at, bytes);
    memory.fill(7);
    // SAFETY: the test gives the contents up.
    unsafe { kernel.madvise(at + (8 << 20), 32 << 20, mem::MADV_DONTNEED) }.expect("advised");
    let part = |from: usize, to: usize| &memory[from << 17..to << 17];
    assert!(part(0, 8).iter().all(|word| *word == 7));
    assert!(part(8, 40).iter().all(|word| *word == 0));
    assert!(part(40, 48).iter().all(|word| *word == 7));
}

#[test]
fn moved_memory_keeps_its_contents() {
    let kernel = kernel(16 << 20, true);
    let bytes = 40 << 20;
    let at = map(kernel, bytes);
    for (i, word) in words(at, bytes).iter_mut().enumerate() {
        *word = mixed(i as u64);
    }
    let may_move = 1;
    // SAFETY: the old range is not used any more.
    let to = unsafe { kernel.mremap(at, bytes, 2 * bytes, may_move, 0) }.expect("moved");
    let memory = words(to, 2 * bytes);
    for (i, word) in memory.iter().enumerate() {
        let want = if i < bytes / 8 { mixed(i as u64) } else { 0 };
        assert_eq!(*word, want, "word {i}");
    }
}

#[test]
fn several_threads() {
    let kernel = kernel(16 << 20, true);
    let bytes = 64 << 20;
    let at = map(kernel, bytes);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let part = words(at + thread * bytes / 4, bytes / 4);
            scope.spawn(move || {
                for round in 0..3u64 {
                    for (i, word) in part.iter_mut().enumerate() {
                        if round > 0 {
                            assert_eq!(*word, mixed(i as u64 ^ (round - 1)));
                        }
                        *word = mixed(i as u64 ^ round);
                    }
                }
            });
        }
    });
}
