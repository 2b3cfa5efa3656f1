//! The sparse page table: one byte a page, in blocks of 2 MiB.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::queue::Node;
use crate::state::{CLUSTER_PAGES, State};

/// Pages in one block of the table: 2 MiB, a huge page.
pub const BLOCK_PAGES: u64 = 512;
pub(crate) const CLUSTERS: usize = (BLOCK_PAGES / CLUSTER_PAGES) as usize;

const LEVEL_BITS: u32 = 13;
const LEVEL: usize = 1 << LEVEL_BITS;

#[cfg_attr(any(test, feature = "check"), derive(Clone))]
pub(crate) struct Block {
    pub(crate) pages: [u8; BLOCK_PAGES as usize],
    pub(crate) clusters: [Node; CLUSTERS],
}

type Middle = [Option<Box<Block>>; LEVEL];

/// Blocks by block number (virtual page number / 512), below 2^26.
#[cfg_attr(any(test, feature = "check"), derive(Clone))]
pub(crate) struct Table {
    top: Vec<Option<Box<Middle>>>,
}

fn split(block: u64) -> (usize, usize) {
    let top = (block >> LEVEL_BITS) as usize;
    assert!(top < LEVEL, "page outside the address space");
    (top, block as usize & (LEVEL - 1))
}

impl Table {
    pub(crate) fn new() -> Self {
        let mut top = Vec::new();
        top.resize_with(LEVEL, || None);
        Self { top }
    }

    pub(crate) fn block(&self, block: u64) -> Option<&Block> {
        let (top, middle) = split(block);
        self.top[top].as_ref()?[middle].as_deref()
    }

    /// The block, made when it is not there: every page absent.
    pub(crate) fn make(&mut self, block: u64) -> &mut Block {
        let (top, middle) = split(block);
        let level = self.top[top].get_or_insert_with(|| {
            let mut level: Vec<Option<Box<Block>>> = Vec::with_capacity(LEVEL);
            level.resize_with(LEVEL, || None);
            match level.into_boxed_slice().try_into() {
                Ok(level) => level,
                Err(_) => unreachable!("length is LEVEL"),
            }
        });
        level[middle].get_or_insert_with(|| {
            Box::new(Block {
                pages: [State::Absent as u8; BLOCK_PAGES as usize],
                clusters: [Node::FREE; CLUSTERS],
            })
        })
    }

    pub(crate) fn byte(&self, page: u64) -> u8 {
        self.block(page / BLOCK_PAGES)
            .map_or(State::Absent as u8, |block| {
                block.pages[(page % BLOCK_PAGES) as usize]
            })
    }

    pub(crate) fn byte_mut(&mut self, page: u64) -> &mut u8 {
        &mut self.make(page / BLOCK_PAGES).pages[(page % BLOCK_PAGES) as usize]
    }

    pub(crate) fn node(&self, cluster: u32) -> &Node {
        let (block, at) = (
            u64::from(cluster) / CLUSTERS as u64,
            cluster as usize % CLUSTERS,
        );
        match self.block(block) {
            Some(block) => &block.clusters[at],
            None => &Node::FREE,
        }
    }

    pub(crate) fn node_mut(&mut self, cluster: u32) -> &mut Node {
        let (block, at) = (
            u64::from(cluster) / CLUSTERS as u64,
            cluster as usize % CLUSTERS,
        );
        &mut self.make(block).clusters[at]
    }

    /// Forgets a block whose pages are all absent and whose clusters are in no queue.
    pub(crate) fn free_if_empty(&mut self, block: u64) {
        let (top, middle) = split(block);
        let Some(level) = self.top[top].as_mut() else {
            return;
        };
        let empty = level[middle].as_ref().is_some_and(|b| {
            b.pages.iter().all(|&byte| byte == State::Absent as u8)
                && b.clusters.iter().all(|node| node.is_free())
        });
        if empty {
            level[middle] = None;
        }
    }

    /// Pages whose byte says that they exist in some form.
    pub(crate) fn next_block(&self, from: u64) -> Option<u64> {
        let (mut top, mut middle) = (from >> LEVEL_BITS, from & (LEVEL as u64 - 1));
        while (top as usize) < LEVEL {
            if let Some(level) = &self.top[top as usize] {
                while (middle as usize) < LEVEL {
                    if level[middle as usize].is_some() {
                        return Some(top << LEVEL_BITS | middle);
                    }
                    middle += 1;
                }
            }
            top += 1;
            middle = 0;
        }
        None
    }
}
