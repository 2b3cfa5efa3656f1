//! Where the decoding of a gzip file can begin, as a file.
//!
//! | bytes | what |
//! |---|---|
//! | 0 .. | windows: what matches reach back to, each compressed with zstd |
//! | then, 40 each | the points: offset when decoded, offset in the gzip file, offset of the window, its length and CRC32C, CRC32 of what is decoded up to the next point, bits, their number, 0, 0 |
//! | the last 64 | decoded size, gzip file's size, key, number of points, CRC32C of points and this, magic |
//!
//! It is some 1% of what it indexes. The windows stay on the disk.

use farpage_sys::crc32c;

use super::chunks::CHUNK_BYTES_MAX;
use super::inflate::{Boundary, WINDOW_BYTES};

/// Bytes that end an index.
pub const FOOTER_BYTES: usize = 64;
const POINT_BYTES: usize = 40;
const MAGIC: &[u8; 8] = b"FPGZIDX1";

/// A place where decoding can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The offset of what is decoded from here.
    pub(super) offset: u64,
    pub(super) boundary: Boundary,
    /// Where the window is in the index, its compressed length, and the sum of that.
    pub(super) window_at: u64,
    pub(super) window_bytes: u32,
    pub(super) window_sum: u32,
    /// The sum of what is decoded up to the next point.
    pub(super) sum: u32,
}

/// All that an index says, the windows excepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What the gzip file is known by.
    pub(super) key: [u8; 32],
    /// Bytes when decoded.
    pub(super) size: u64,
    /// Bytes of the gzip file.
    pub(super) packed: u64,
    pub(super) points: Vec<Point>,
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

/// Bytes of the points and the footer, given the footer. `None` when it is none.
pub fn table_bytes(footer: &[u8]) -> Option<u64> {
    let right = footer.len() == FOOTER_BYTES && footer[56..] == MAGIC[..];
    right.then(|| u64::from(word(footer, 48)) * POINT_BYTES as u64 + FOOTER_BYTES as u64)
}

impl Table {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((self.points.len() + 2) * POINT_BYTES);
        for point in &self.points {
            for long in [point.offset, point.boundary.at, point.window_at] {
                bytes.extend(long.to_le_bytes());
            }
            for word in [point.window_bytes, point.window_sum, point.sum] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend([point.boundary.bit_buffer, point.boundary.bits, 0, 0]);
        }
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.packed.to_le_bytes());
        bytes.extend(self.key);
        bytes.extend((self.points.len() as u32).to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    }

    /// Reads the end of an index of `length` bytes. `None` unless all of it is right and fits
    /// together.
    pub fn decode(bytes: &[u8], length: u64) -> Option<Self> {
        let at = bytes.len().checked_sub(FOOTER_BYTES)?;
        let footer = &bytes[at..];
        let windows_end = length.checked_sub(bytes.len() as u64)?;
        let whole = table_bytes(footer)? == bytes.len() as u64;
        if !whole || word(footer, 52) != crc32c(&bytes[..at + 52]) {
            return None;
        }
        let points = bytes[..at].chunks_exact(POINT_BYTES).map(|bytes| Point {
            offset: long(bytes, 0),
            boundary: Boundary {
                at: long(bytes, 8),
                bit_buffer: bytes[36],
                bits: bytes[37],
            },
            window_at: long(bytes, 16),
            window_bytes: word(bytes, 24),
            window_sum: word(bytes, 28),
            sum: word(bytes, 32),
        });
        let table = Self {
            key: core::array::from_fn(|i| footer[16 + i]),
            size: long(footer, 0),
            packed: long(footer, 8),
            points: points.collect(),
        };
        table.is_right(windows_end).then_some(table)
    }

    fn is_right(&self, windows_end: u64) -> bool {
        let ends = self.points.iter().skip(1).map(|point| point.offset);
        let mut ends = self.points.iter().zip(ends.chain([self.size]));
        let is_last = |at: u64| at == self.size && self.size == 0;
        let in_order = ends.all(|(point, end)| {
            let bytes = end.checked_sub(point.offset);
            bytes.is_some_and(|bytes| bytes <= CHUNK_BYTES_MAX && (bytes > 0 || is_last(end)))
        });
        let bound = zstd_safe::compress_bound(WINDOW_BYTES) as u64;
        let fits = |point: &Point| {
            let bytes = u64::from(point.window_bytes);
            let end = point.window_at.checked_add(bytes);
            let boundary = point.boundary;
            end.is_some_and(|end| end <= windows_end)
                && bytes <= bound
                && boundary.at <= self.packed
                && boundary.bits < 8
        };
        let first = self.points.first();
        first.is_some_and(|point| point.offset == 0)
            && in_order
            && self.points.is_sorted_by_key(|point| point.boundary.at)
            && self.points.iter().all(fits)
    }
}
