//! A search tree whose nodes know something of all that is below them.

use alloc::vec::Vec;
use core::ops::ControlFlow;

/// What is kept in such a tree, and what its nodes know.
pub(crate) trait Kept {
    /// In which order.
    type Key: Ord + Copy;
    /// What.
    type Value: Copy;
    /// What a node knows of itself and all below it.
    type Sum: Copy;

    /// That, from what those on its left and on its right know.
    fn sum(
        left: Option<Self::Sum>,
        key: Self::Key,
        value: Self::Value,
        right: Option<Self::Sum>,
    ) -> Self::Sum;
}

const NONE: u32 = u32::MAX;

struct Node<K: Kept> {
    key: K::Key,
    value: K::Value,
    sum: K::Sum,
    /// No node below has a greater one: they are random, so that the tree is flat.
    rank: u32,
    left: u32,
    right: u32,
}

/// The tree.
pub(crate) struct Treap<K: Kept> {
    nodes: Vec<Node<K>>,
    free: Vec<u32>,
    root: u32,
    dice: u64,
}

/// Looks at a tree in order; whole parts of it are passed by what their sum says.
pub(crate) trait Walk<K: Kept> {
    /// A part of the tree is ahead. False when there is nothing to look at in it.
    fn enters(&mut self, sum: K::Sum) -> bool;
    /// Such a part was passed by.
    fn passes(&mut self, sum: K::Sum);
    /// One of them; a break ends it.
    fn visits(&mut self, key: K::Key, value: K::Value) -> ControlFlow<()>;
}

impl<K: Kept> Treap<K> {
    pub(crate) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NONE,
            // Anything but zero.
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Makes, changes or removes what there is at `key`.
    pub(crate) fn change(
        &mut self,
        key: K::Key,
        to: impl FnOnce(Option<K::Value>) -> Option<K::Value>,
    ) {
        match self.find(key) {
            Some(at) => match to(Some(self.nodes[at as usize].value)) {
                Some(value) => self.root = self.put(self.root, key, value),
                None => self.root = self.remove(self.root, key),
            },
            None => {
                if let Some(value) = to(None) {
                    self.insert(key, value);
                }
            }
        }
    }

    /// Looks at all, but for what `walk` does not enter.
    pub(crate) fn walk(&self, walk: &mut impl Walk<K>) {
        // Who has had enough says so; there is nothing to be done then.
        let _ = self.walk_from(self.root, walk);
    }

    fn walk_from(&self, at: u32, walk: &mut impl Walk<K>) -> ControlFlow<()> {
        let Some(node) = self.nodes.get(at as usize) else {
            return ControlFlow::Continue(());
        };
        if !walk.enters(node.sum) {
            walk.passes(node.sum);
            return ControlFlow::Continue(());
        }
        self.walk_from(node.left, walk)?;
        walk.visits(node.key, node.value)?;
        self.walk_from(node.right, walk)
    }

    fn find(&self, key: K::Key) -> Option<u32> {
        let mut at = self.root;
        while let Some(node) = self.nodes.get(at as usize) {
            at = match key.cmp(&node.key) {
                core::cmp::Ordering::Less => node.left,
                core::cmp::Ordering::Equal => return Some(at),
                core::cmp::Ordering::Greater => node.right,
            };
        }
        None
    }

    fn insert(&mut self, key: K::Key, value: K::Value) {
        let rank = self.rolls();
        let node = Node {
            key,
            value,
            sum: K::sum(None, key, value, None),
            rank,
            left: NONE,
            right: NONE,
        };
        let new = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 places")
            }
        };
        self.root = self.inserted(self.root, new);
    }

    fn inserted(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let (key, rank) = (self.nodes[new as usize].key, self.nodes[new as usize].rank);
        if rank > self.nodes[at as usize].rank {
            let (left, right) = self.split(at, key);
            (
                self.nodes[new as usize].left,
                self.nodes[new as usize].right,
            ) = (left, right);
            self.knows(new);
            return new;
        }
        if key < self.nodes[at as usize].key {
            self.nodes[at as usize].left = self.inserted(self.nodes[at as usize].left, new);
        } else {
            self.nodes[at as usize].right = self.inserted(self.nodes[at as usize].right, new);
        }
        self.knows(at);
        at
    }

    /// Those below `key`, and the others.
    fn split(&mut self, at: u32, key: K::Key) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        if self.nodes[at as usize].key < key {
            let (left, right) = self.split(self.nodes[at as usize].right, key);
            self.nodes[at as usize].right = left;
            self.knows(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.nodes[at as usize].left, key);
            self.nodes[at as usize].left = right;
            self.knows(at);
            (left, at)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.nodes[left as usize].rank > self.nodes[right as usize].rank {
            let below = self.merge(self.nodes[left as usize].right, right);
            self.nodes[left as usize].right = below;
            self.knows(left);
            left
        } else {
            let below = self.merge(left, self.nodes[right as usize].left);
            self.nodes[right as usize].left = below;
            self.knows(right);
            right
        }
    }

    /// What is at `key` has another value.
    fn put(&mut self, at: u32, key: K::Key, value: K::Value) -> u32 {
        match key.cmp(&self.nodes[at as usize].key) {
            core::cmp::Ordering::Less => {
                self.put(self.nodes[at as usize].left, key, value);
            }
            core::cmp::Ordering::Equal => self.nodes[at as usize].value = value,
            core::cmp::Ordering::Greater => {
                self.put(self.nodes[at as usize].right, key, value);
            }
        }
        self.knows(at);
        at
    }

    fn remove(&mut self, at: u32, key: K::Key) -> u32 {
        let (left, right) = (self.nodes[at as usize].left, self.nodes[at as usize].right);
        match key.cmp(&self.nodes[at as usize].key) {
            core::cmp::Ordering::Less => {
                self.nodes[at as usize].left = self.remove(left, key);
            }
            core::cmp::Ordering::Equal => {
                self.free.push(at);
                return self.merge(left, right);
            }
            core::cmp::Ordering::Greater => {
                self.nodes[at as usize].right = self.remove(right, key);
            }
        }
        self.knows(at);
        at
    }

    fn knows(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let sum_of = |at: u32| self.nodes.get(at as usize).map(|node| node.sum);
        let sum = K::sum(sum_of(node.left), node.key, node.value, sum_of(node.right));
        self.nodes[at as usize].sum = sum;
    }

    /// Xorshift.
    fn rolls(&mut self) -> u32 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 32) as u32
    }
}
