//! What programs of hosts do with a heap in what they share.

use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_client::Shared;
use farpage_client::heap::{Block, Heap, Kind};

/// A program's heap, and the blocks that it has.
#[derive(Default)]
pub struct Heaps {
    heap: Option<Heap<Shared>>,
    own: Vec<Block>,
}

impl Heaps {
    /// What comes of it; `None` of what is no such thing.
    pub fn act(&mut self, words: &[&str], shared: &Shared) -> Option<String> {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        if words[0] == "heap" {
            self.heap = None;
            let opened = shared.heap();
            return Some(match opened {
                Ok(heap) => {
                    self.heap = Some(heap);
                    "done".into()
                }
                Err(error) => error.to_string(),
            });
        }
        let heap = self.heap.as_ref();
        let heap = || heap.expect("it has a heap");
        Some(match words[0] {
            "churn" => churn(
                heap(),
                &mut self.own,
                number(1),
                number(2),
                words[3] == "alone",
            ),
            // Frees what it has; how many that were.
            "free" => {
                let own = std::mem::take(&mut self.own);
                for block in &own {
                    checked(heap(), *block);
                    heap().free(*block).unwrap();
                }
                own.len().to_string()
            }
            // Frees what anybody has.
            "free-all" => {
                let blocks: Vec<Block> = heap().blocks().map(|(block, _)| block).collect();
                blocks.iter().for_each(|block| heap().free(*block).unwrap());
                "done".into()
            }
            "recovers" => heap().recover().to_string(),
            "usage" => {
                let usage = heap().usage();
                let is_sound = match heap().check() {
                    Ok(()) => "sound".into(),
                    Err(damage) => damage.to_string(),
                };
                format!(
                    "{} blocks, {} bytes not free, {} processes, {is_sound}",
                    usage.blocks,
                    usage.bytes - usage.free_bytes,
                    usage.processes
                )
            }
            _ => return None,
        })
    }
}

/// All words of a block say where it is.
fn written(heap: &Heap<Shared>, block: Block) {
    for word in heap.words(block).unwrap() {
        word.store(block.0, Ordering::Relaxed);
    }
}

fn checked(heap: &Heap<Shared>, block: Block) {
    for word in heap.words(block).unwrap() {
        assert_eq!(
            word.load(Ordering::Relaxed),
            block.0,
            "it was another's, too"
        );
    }
}

/// Allocates and frees, so many times, and keeps a hundred blocks at most; unless `is_alone`, every fourth
/// goes to whoever looks next, of any host, and what lies there is freed. How many microseconds that took.
fn churn(
    heap: &Heap<Shared>,
    own: &mut Vec<Block>,
    times: u64,
    seed: u64,
    is_alone: bool,
) -> String {
    let began = Instant::now();
    let mut random = seed | 1;
    for _ in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if own.len() == 100 || own.len() > 50 && random & 1 == 0 {
            let at = (random >> 8) as usize % own.len();
            let block = own.swap_remove(at);
            checked(heap, block);
            heap.free(block).unwrap();
            continue;
        }
        let block = heap
            .allocate(Kind::BYTES, 16 << (random >> 16 & 7))
            .unwrap();
        written(heap, block);
        if is_alone || random >> 32 & 3 != 0 {
            own.push(block);
            continue;
        }
        let root = heap.root((random >> 40) as usize % 16);
        let found = Block(root.swap(block.0, Ordering::SeqCst));
        if found.0 != 0 {
            checked(heap, found);
            heap.free(found).unwrap();
        }
    }
    began.elapsed().as_micros().to_string()
}
