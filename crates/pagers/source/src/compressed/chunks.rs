//! What is decoded in pieces, each for itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Reach, Source, SourceError, within};

/// Decoded bytes that are kept for the next reads. Less than that only when one piece has more.
const RECENT_BYTES: u64 = 16 << 20;
/// The largest piece: it is decoded into memory whole.
pub(super) const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Something made of pieces that can be decoded alone.
pub(super) trait Decode: Send + Sync {
    /// What holds the compressed bytes.
    fn inner(&self) -> &dyn Source;

    /// Decodes piece `chunk`, which has `bytes` bytes.
    fn decode(&self, chunk: usize, bytes: usize) -> Result<Vec<u8>, SourceError>;

    /// True when decoding waits for nothing far away.
    fn is_at_hand(&self, chunk: usize) -> bool;
}

/// A piece. Threads that want the same one wait for the first of them to decode it.
type Slot = Arc<OnceLock<Result<Vec<u8>, SourceError>>>;

/// A source of decoded bytes.
pub(super) struct Chunks<D> {
    name: String,
    /// Where each piece begins, and where the last ends.
    starts: Vec<u64>,
    decode: D,
    /// Pieces that were used, the last at the back.
    recent: Mutex<VecDeque<(usize, Slot)>>,
}

impl<D: Decode> Chunks<D> {
    /// `starts` begins with 0 and does not decrease.
    pub(super) fn new(decode: D, starts: Vec<u64>) -> Self {
        Self {
            name: format!("{} (decoded)", decode.inner().name()),
            starts,
            decode,
            recent: Mutex::new(VecDeque::new()),
        }
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(usize, Slot)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk_at(&self, offset: u64) -> usize {
        self.starts.partition_point(|start| *start <= offset) - 1
    }

    fn bytes_of(&self, chunk: usize) -> u64 {
        self.starts[chunk + 1] - self.starts[chunk]
    }

    fn slot(&self, chunk: usize) -> Slot {
        let mut recent = self.recent();
        let known = recent.iter().position(|(number, _)| *number == chunk);
        let entry = known.and_then(|at| recent.remove(at));
        let (_, slot) = entry.unwrap_or_default();
        recent.push_back((chunk, slot.clone()));
        let mut bytes: u64 = recent
            .iter()
            .map(|(number, _)| self.bytes_of(*number))
            .sum();
        while bytes > RECENT_BYTES && recent.len() > 1 {
            let oldest = recent.pop_front();
            bytes -= oldest.map_or(0, |(number, _)| self.bytes_of(number));
        }
        slot
    }

    /// Copies what piece `chunk` has from `offset` on.
    fn copy(&self, chunk: usize, offset: u64, buffer: &mut [u8]) -> Result<usize, SourceError> {
        let slot = self.slot(chunk);
        let wanted = self.bytes_of(chunk) as usize;
        match slot.get_or_init(|| self.decode.decode(chunk, wanted)) {
            Ok(bytes) => {
                let rest = &bytes[(offset - self.starts[chunk]) as usize..];
                let some = rest.len().min(buffer.len());
                buffer[..some].copy_from_slice(&rest[..some]);
                Ok(some)
            }
            Err(error) => {
                // The next one tries again.
                self.recent()
                    .retain(|(_, other)| !Arc::ptr_eq(other, &slot));
                Err(error.clone())
            }
        }
    }
}

impl<D: Decode> Source for Chunks<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn version(&self) -> Option<String> {
        self.decode.inner().version()
    }

    fn reach(&self) -> Reach {
        self.decode.inner().reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes).min(self.size());
        if self.reach() == Reach::Near || offset >= end {
            return true;
        }
        let recent: Vec<usize> = self.recent().iter().map(|(number, _)| *number).collect();
        let mut chunks = self.chunk_at(offset)..=self.chunk_at(end - 1);
        chunks.all(|chunk| recent.contains(&chunk) || self.decode.is_at_hand(chunk))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        within(self, offset, buffer.len() as u64)?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            done += self.copy(self.chunk_at(at), at, &mut buffer[done..])?;
        }
        Ok(())
    }
}
