//! The ring under every order of loads and stores that the memory model allows.
//!
//! The file of the ring itself is compiled again here, with the atomics of the model checker.

#![allow(missing_docs, dead_code)]

mod atomic {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../../src/link/ring.rs"]
mod ring;

use atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::sync::Notify;
use ring::{Consumer, Lie, Lines, Producer};

const SLOTS: usize = 2;

/// What two processes share: the ring, and how each wakes the other.
struct Shared {
    words: [AtomicU32; 4],
    slots: [AtomicU64; SLOTS],
    consumer: Notify,
    producer: Notify,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            consumer: Notify::new(),
            producer: Notify::new(),
        })
    }

    fn lines(&self) -> Lines<'_, SLOTS, 1> {
        let [tail, head, consumer_sleeps, producer_sleeps] = &self.words;
        Lines {
            tail,
            head,
            consumer_sleeps,
            producer_sleeps,
            slots: &self.slots,
        }
    }

    /// Sends `value`, asleep while the ring is full.
    fn send(&self, producer: &mut Producer, value: u64) {
        let lines = self.lines();
        while producer.room(&lines, 1).expect("no lie") == 0 {
            if !lines.announce_producer(producer) {
                self.producer.wait();
            }
        }
        producer.fill(&lines, 0, &[value]);
        if producer.publish(&lines, 1) {
            self.consumer.notify();
        }
    }

    /// Receives one, asleep while there is none.
    fn receive(&self, consumer: &mut Consumer) -> u64 {
        let lines = self.lines();
        while consumer.filled(&lines).expect("no lie") == 0 {
            if !lines.announce_consumer(consumer) {
                self.consumer.wait();
            }
        }
        let [value] = consumer.copy(&lines, 0);
        if consumer.release(&lines, 1) {
            self.producer.notify();
        }
        value
    }
}

/// A wake-up that is lost leaves both asleep, which the checker reports.
fn check(values: u64, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = Shared::new();
        let other = shared.clone();
        let sender = loom::thread::spawn(move || {
            let mut producer = Producer::default();
            (1..=values).for_each(|value| other.send(&mut producer, value));
        });
        let mut consumer = Consumer::default();
        for value in 1..=values {
            assert_eq!(shared.receive(&mut consumer), value);
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn messages_arrive_whole_and_in_order_and_no_wake_up_is_lost() {
    check(2, 4);
}

#[test]
fn a_full_ring_wakes_its_producer() {
    check(4, 3);
}

#[test]
fn an_index_that_cannot_be_is_a_lie() {
    loom::model(|| {
        let shared = Shared::new();
        let lines = shared.lines();
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        for index in [3, u32::MAX, 1 << 31] {
            lines.tail.store(index, Ordering::Relaxed);
            assert_eq!(consumer.filled(&lines), Err(Lie { index, own: 0 }));
        }
        lines.tail.store(0, Ordering::Relaxed);
        producer.fill(&lines, 0, &[1]);
        producer.fill(&lines, 1, &[2]);
        assert!(!producer.publish(&lines, 2));
        assert_eq!(producer.room(&lines, 1), Ok(0));
        for index in [3, u32::MAX] {
            lines.head.store(index, Ordering::Relaxed);
            assert_eq!(producer.room(&lines, 1), Err(Lie { index, own: 2 }));
        }
        lines.head.store(2, Ordering::Relaxed);
        assert_eq!(producer.room(&lines, 1), Ok(2));
    });
}
