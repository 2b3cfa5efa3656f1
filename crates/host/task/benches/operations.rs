//! What long copies, reads and writes take, beside copying the bytes: medians of 5, in
//! milliseconds.

use std::time::{Duration, Instant};

use farpage_port::Node;
use farpage_task::{AddressSpace, Inheritance, PAGE_BYTES, Task, TaskPort};

const BYTES: u64 = 256 << 20;

fn median(mut act: impl FnMut() -> Duration) -> f64 {
    let mut all: Vec<f64> = (0..5).map(|_| act().as_secs_f64() * 1e3).collect();
    all.sort_by(f64::total_cmp);
    all[2]
}

fn time<T>(act: impl FnOnce() -> T) -> Duration {
    let began = Instant::now();
    let done = act();
    let took = began.elapsed();
    drop(done);
    took
}

fn main() {
    let own = AddressSpace::own().expect("an address space");
    let node = Node::new().expect("a node");
    let port = TaskPort::offer(&node).expect("a port");
    let task = Task::new(port.right());
    let bytes = vec![7; BYTES as usize];
    let new = || own.vm_allocate(0, BYTES, true).expect("room");
    let filled = || {
        let at = new();
        own.vm_write(at, &bytes).expect("written");
        at
    };
    let leave = |at| own.vm_deallocate(at, BYTES).expect("there");
    println!("{} MiB of contents, ms:", BYTES >> 20);
    let shown = |what: &str, ms: f64| println!("{what:<44} {ms:>9.3}");

    let copied = median(|| time(|| bytes.clone()));
    shown("memcpy to new memory", copied);
    let first = median(|| {
        let (from, to) = (filled(), new());
        let took = time(|| own.vm_copy(from, BYTES, to).expect("copied"));
        leave(from);
        leave(to);
        took
    });
    shown("vm_copy, the first time", first);
    let (from, to) = (filled(), new());
    own.vm_copy(from, BYTES, to).expect("copied");
    let again = median(|| time(|| own.vm_copy(from, BYTES, to).expect("copied")));
    shown("vm_copy, not written since", again);
    let read = median(|| time(|| own.vm_read(from, BYTES).expect("read")));
    shown("vm_read, not written since", read);
    let there = median(|| {
        time(|| {
            let data = task.vm_read(from, BYTES).expect("read");
            task.vm_write_memory(to, data.into()).expect("written");
        })
    });
    shown("the same by the task's port, and vm_write", there);
    let shared = median(|| {
        let at = filled();
        let took = time(|| {
            own.vm_inherit(at, BYTES, Inheritance::Share)
                .expect("shared")
        });
        leave(at);
        took
    });
    shown("vm_inherit to share, of what was written", shared);
    let call = median(|| {
        time(|| (0..1000).for_each(|_| drop(task.vm_regions(from, PAGE_BYTES).expect("there"))))
    });
    println!(
        "{:<44} {:>9.3} us",
        "vm_regions of a page by the task's port", call
    );
}
