//! A source that computes its bytes, as if far away, and tells what was asked of it.

use std::ops::Range;
use std::sync::Mutex;

use farpage_source::{Reach, Source, SourceError};

pub struct Made {
    name: String,
    size: u64,
    seed: u64,
    /// What was read.
    pub reads: Mutex<Vec<Range<u64>>>,
    /// Nothing can be reached.
    pub is_down: bool,
}

impl Made {
    pub fn new(name: &str, size: u64) -> Self {
        let seed = name.bytes().fold(7, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Self {
            name: name.into(),
            size,
            seed,
            reads: Mutex::new(Vec::new()),
            is_down: false,
        }
    }

    /// The bytes from `offset` on.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let word = |number: u64| (number ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let head = (offset.wrapping_neg() % 8).min(buffer.len() as u64) as usize;
        let (head, rest) = buffer.split_at_mut(head);
        let of = |at: u64| word(at / 8).to_le_bytes()[(at % 8) as usize];
        for (at, byte) in (offset..).zip(head.iter_mut()) {
            *byte = of(at);
        }
        let start = offset + head.len() as u64;
        for (number, bytes) in (start / 8..).zip(rest.chunks_mut(8)) {
            bytes.copy_from_slice(&word(number).to_le_bytes()[..bytes.len()]);
        }
    }

    /// Reads a range through `source` and says whether it is right.
    pub fn matches(&self, source: &dyn Source, offset: u64, bytes: usize) -> bool {
        let (mut is, mut must) = (vec![0; bytes], vec![0; bytes]);
        source.read_at(offset, &mut is).unwrap();
        self.fill(offset, &mut must);
        is == must
    }
}

impl Source for Made {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        Some("1".into())
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let end = offset + buffer.len() as u64;
        assert!(end <= self.size, "{offset}..{end}");
        if self.is_down {
            return Err(SourceError::Unreachable {
                name: self.name.clone(),
                cause: "it is down".into(),
                retry_after: None,
            });
        }
        self.reads.lock().unwrap().push(offset..end);
        self.fill(offset, buffer);
        Ok(())
    }
}
