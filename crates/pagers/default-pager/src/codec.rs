//! Compressing one page, and what it costs to find out that a page does not compress.

use core::sync::atomic::{AtomicU8, Ordering};

use farpage_object::{ObjectId, PAGE_BYTES, PagerError};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

use crate::record::Coding;

/// A page that does not become smaller than this is kept as it is: 3/4 of a page.
pub(crate) const KEEP_BYTES: usize = PAGE_BYTES / 4 * 3;
/// Room that the compressors want for one page, however badly it compresses.
pub(crate) const ROOM_BYTES: usize = PAGE_BYTES + PAGE_BYTES / 8 + 64;

/// True when all of the page is zero.
pub(crate) fn is_zero(page: &[u8; PAGE_BYTES]) -> bool {
    static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    *page == ZEROS
}

/// The fast level. Its table is a part of it: compressing allocates nothing.
pub(crate) struct Fast {
    table: CompressTable,
}

impl Fast {
    pub(crate) fn new() -> Self {
        Self {
            table: CompressTable::small(),
        }
    }

    /// Compresses into the start of `room`; `None` when it does not pay.
    pub(crate) fn compress(&mut self, page: &[u8], room: &mut [u8]) -> Option<usize> {
        compress_into_with_table(page, room, &mut self.table)
            .ok()
            .filter(|&bytes| bytes <= KEEP_BYTES)
    }
}

/// The dense level: 2 to 4 times slower than the fast one, for pages that are cold.
#[cfg(feature = "zstd")]
pub(crate) struct Dense {
    context: zstd_safe::CCtx<'static>,
}

#[cfg(feature = "zstd")]
impl Dense {
    /// Makes the context with all the memory that it will need.
    pub(crate) fn new() -> Option<Self> {
        let mut new = Self {
            context: zstd_safe::CCtx::try_create()?,
        };
        let mut room = [0; 64];
        new.compress(&[0; PAGE_BYTES], &mut room)?;
        Some(new)
    }

    /// Compresses into the start of `room`; `None` when it does not pay.
    pub(crate) fn compress(&mut self, page: &[u8], room: &mut [u8]) -> Option<usize> {
        self.context
            .compress(room, page, 1)
            .ok()
            .filter(|&bytes| bytes <= KEEP_BYTES)
    }
}

/// Undoes both levels.
pub(crate) struct Decoder {
    #[cfg(feature = "zstd")]
    context: zstd_safe::DCtx<'static>,
}

impl Decoder {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            #[cfg(feature = "zstd")]
            context: zstd_safe::DCtx::try_create()?,
        })
    }

    /// Fills all of `page` from the bytes of a record.
    ///
    /// # Errors
    /// `Corrupt` when they are not a page.
    pub(crate) fn decode(
        &mut self,
        coding: Coding,
        bytes: &[u8],
        page: &mut [u8],
    ) -> Result<(), PagerError> {
        match coding {
            Coding::Lz4 => decode_fast(bytes, page),
            Coding::Stored => decode_stored(bytes, page),
            #[cfg(feature = "zstd")]
            Coding::Zstd => match self.context.decompress(page, bytes) {
                Ok(PAGE_BYTES) => Ok(()),
                _ => Err(PagerError::Corrupt),
            },
            #[cfg(not(feature = "zstd"))]
            Coding::Zstd => Err(PagerError::Corrupt),
        }
    }
}

/// [`Decoder::decode`] for the fast level, which needs no context.
pub(crate) fn decode_fast(bytes: &[u8], page: &mut [u8]) -> Result<(), PagerError> {
    match decompress_into(bytes, page) {
        Ok(PAGE_BYTES) => Ok(()),
        _ => Err(PagerError::Corrupt),
    }
}

/// [`Decoder::decode`] for pages that are kept as they are.
pub(crate) fn decode_stored(bytes: &[u8], page: &mut [u8]) -> Result<(), PagerError> {
    if bytes.len() != page.len() {
        return Err(PagerError::Corrupt);
    }
    page.copy_from_slice(bytes);
    Ok(())
}

/// Pages in a row that must fail to compress before their neighbours are only sampled.
const MISSES: u8 = 16;
/// Then one in this many is tried.
const SAMPLE: u8 = 16;
const NEIGHBOURHOODS: usize = 256;

/// How well the neighbourhoods (16 MiB) of pages compressed lately.
pub(crate) struct Misses {
    counts: [AtomicU8; NEIGHBOURHOODS],
}

impl Misses {
    pub(crate) fn new() -> Self {
        Self {
            counts: [const { AtomicU8::new(0) }; NEIGHBOURHOODS],
        }
    }

    fn count(&self, object: ObjectId, page: u64) -> &AtomicU8 {
        let at = (page >> 12).wrapping_add(u64::from(object.0).wrapping_mul(97));
        &self.counts[at as usize % NEIGHBOURHOODS]
    }

    /// False when the page is so likely not to compress that it is not tried.
    pub(crate) fn worth_trying(&self, object: ObjectId, page: u64) -> bool {
        let count = self.count(object, page);
        let misses = count.load(Ordering::Relaxed);
        if misses < MISSES {
            return true;
        }
        let sampled = misses + 1 >= MISSES + SAMPLE;
        let next = if sampled { MISSES } else { misses + 1 };
        count.store(next, Ordering::Relaxed);
        sampled
    }

    /// Notes how a page that was tried came out.
    pub(crate) fn note(&self, object: ObjectId, page: u64, compressed: bool) {
        let count = self.count(object, page);
        let misses = count.load(Ordering::Relaxed);
        if compressed {
            count.store(0, Ordering::Relaxed);
        } else if misses < MISSES {
            count.store(misses + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> [u8; PAGE_BYTES] {
        core::array::from_fn(|i| b"the quick brown fox jumps over it "[i * (i / 700 + 1) % 34])
    }

    #[test]
    fn pages_come_back() {
        let (page, mut room) = (text(), [0; ROOM_BYTES]);
        let mut back = [0; PAGE_BYTES];
        let length = Fast::new().compress(&page, &mut room).unwrap();
        decode_fast(&room[..length], &mut back).unwrap();
        assert_eq!(page, back);
        assert!(decode_fast(&room[..length - 1], &mut back).is_err());
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn dense_pages_come_back() {
        let (page, mut room) = (text(), [0; ROOM_BYTES]);
        let mut back = [0; PAGE_BYTES];
        let length = Dense::new().unwrap().compress(&page, &mut room).unwrap();
        let mut decoder = Decoder::new().unwrap();
        let bytes = &room[..length];
        decoder.decode(Coding::Zstd, bytes, &mut back).unwrap();
        assert_eq!(page, back);
        let cut = &room[..length - 1];
        assert!(decoder.decode(Coding::Zstd, cut, &mut back).is_err());
    }

    #[test]
    fn one_in_sixteen_is_tried_where_nothing_compresses() {
        let misses = Misses::new();
        let object = ObjectId(1);
        let mut tried = 0;
        for page in 0..1616 {
            if misses.worth_trying(object, page) {
                tried += 1;
                misses.note(object, page, false);
            }
        }
        assert_eq!(tried, 16 + 100);
        misses.note(object, 5, true);
        assert!(misses.worth_trying(object, 6));
        assert!(misses.worth_trying(object, 1 << 30));
    }

    #[test]
    fn zero_means_every_byte() {
        let mut page = [0; PAGE_BYTES];
        assert!(is_zero(&page));
        page[4095] = 1;
        assert!(!is_zero(&page));
    }
}
