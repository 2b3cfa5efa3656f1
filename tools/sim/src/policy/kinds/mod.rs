//! The policies: which cluster leaves next.

mod arc;
mod clock_pro;
mod generations;
mod min;
mod one_queue;
mod s3_fifo;
mod sieve;
mod two_lists;
mod warmth;

use super::Kind;
use one_queue::{OneQueue, Renews};

/// What a policy is told of clusters, and asked.
pub(super) trait Policy {
    /// True when what is chosen is moved aside first.
    fn moves_aside(&self) -> bool {
        true
    }

    /// Pages of a cluster came in; the one that was `asked` for among them, or not. The cluster may
    /// have been there.
    fn came(&mut self, cluster: u32, asked: bool);

    /// A cluster came back from aside: it is in use.
    fn returned(&mut self, _cluster: u32) {}

    /// A page of the cluster was accessed: what only the bounds may know.
    fn touched(&mut self, _cluster: u32, _next_use: u64) {}

    /// The cluster that leaves next; it is in no queue then, but for SIEVE's.
    fn choose(&mut self, is_aside: &dyn Fn(u32) -> bool) -> Option<u32>;

    /// The last page of a cluster is gone.
    fn left(&mut self, cluster: u32);
}

/// The policy of a kind, for so many clusters, of which `capacity` fit into memory.
pub(super) fn policy(kind: Kind, clusters: usize, capacity: usize) -> Box<dyn Policy> {
    match kind {
        Kind::Fifo => Box::new(OneQueue::new(Renews::Nothing)),
        Kind::SecondChance => Box::new(OneQueue::new(Renews::Return)),
        Kind::Lru => Box::new(OneQueue::new(Renews::Access)),
        Kind::Warmth => Box::new(warmth::Warmth::new(clusters, false)),
        Kind::Returning => Box::new(warmth::Warmth::new(clusters, true)),
        Kind::S3Fifo => Box::new(s3_fifo::S3Fifo::new(clusters, capacity, false)),
        Kind::S3FifoFilled => Box::new(s3_fifo::S3Fifo::new(clusters, capacity, true)),
        Kind::Sieve => Box::new(sieve::Sieve::default()),
        Kind::Arc => Box::new(arc::Arc::new(clusters, capacity)),
        Kind::ClockPro => Box::new(clock_pro::ClockPro::new(clusters, capacity)),
        Kind::TwoLists => Box::new(two_lists::TwoLists::new(clusters)),
        Kind::Generations => Box::new(generations::Generations::new(clusters)),
        Kind::Min => Box::new(min::Min::new(clusters)),
        Kind::Object => unreachable!("`object::Pages` has its queues itself"),
    }
}
