//! What a file of the cache looks like: pure functions.
//!
//! One file for each version of an object:
//!
//! | bytes | what |
//! |---|---|
//! | 0 .. 4096 | header: magic, key, size, bytes kept, pages that are being written, CRC32C of these |
//! | 4096 .. | one sum of 4 bytes for each page of 4096 bytes; 0: the page is not there |
//! | from the next multiple of 64 KiB on | the pages, each at its own place |
//!
//! The file is sparse. A page is written before its sum, and what is read is checked against it:
//! a page that was not written whole, or was damaged since, counts as not there. All processes
//! write the same bytes at the same place, so that they need not agree about who does.

use farpage_sys::crc32c;

/// What is kept, checked and counted.
pub(crate) const PAGE: u64 = 4096;
/// What is fetched at least. The pages that are asked for beyond what is needed are the business
/// of whoever reads; this much costs a network less than its latency.
pub(crate) const BLOCK: u64 = 64 << 10;
/// The largest object: the largest file of ext4.
pub(crate) const SIZE_MAX: u64 = 16 << 40;

pub(crate) const HEADER_BYTES: usize = 76;
/// Where the sum of the header is.
const SUM_AT: usize = HEADER_BYTES - 4;
const SUMS_AT: u64 = 4096;
const MAGIC: &[u8; 8] = b"FPCACHE1";

/// What an object is known by: a hash of its name, version and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) [u8; 32]);

impl Key {
    pub(crate) fn of(name: &str, version: &str, size: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        for text in [name, version] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&size.to_le_bytes());
        Self(*hash.finalize().as_bytes())
    }

    pub(crate) fn hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: Key,
    pub(crate) size: u64,
    /// Bytes of the pages that are there, those counted that are being written.
    pub(crate) kept: u64,
    /// The first of the pages that are being written, and their number: 0 when nobody writes. Who
    /// finds another number after that one was killed.
    pub(crate) writing: (u64, u64),
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..40].copy_from_slice(&self.key.0);
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.kept.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.writing.0.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.writing.1.to_le_bytes());
        let sum = crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` unless all of it is right.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let sum = u32::from_le_bytes(core::array::from_fn(|i| bytes[SUM_AT + i]));
        let right = bytes[..8] == MAGIC[..] && sum == crc32c(&bytes[..SUM_AT]);
        right.then(|| Self {
            key: Key(core::array::from_fn(|i| bytes[8 + i])),
            size: word(40),
            kept: word(48),
            writing: (word(56), word(64)),
        })
    }
}

/// Number of pages of an object, the last perhaps not whole.
pub(crate) fn pages(size: u64) -> u64 {
    size.div_ceil(PAGE)
}

/// Where the sum of a page is.
pub(crate) fn sum_at(page: u64) -> u64 {
    SUMS_AT + page * 4
}

/// Where the bytes of an object of `size` begin.
pub(crate) fn data_at(size: u64) -> u64 {
    sum_at(pages(size)).next_multiple_of(BLOCK)
}

/// The sum of a page. Never 0. The number of the page goes in, so that a page that was put
/// elsewhere is noticed.
pub(crate) fn sum(page: u64, bytes: &[u8]) -> u32 {
    let place = (page as u32).wrapping_mul(0x9e37_79b1);
    (crc32c(bytes) ^ place).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_makes_a_header_void() {
        let key = Key::of("name", "version", 77);
        let header = Header {
            key,
            size: 77,
            kept: 4096,
            writing: (7, 16),
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..HEADER_BYTES * 8 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&other), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn name_version_and_size_each_make_another_key() {
        let all = [
            Key::of("ab", "c", 1),
            Key::of("a", "bc", 1),
            Key::of("ab", "d", 1),
            Key::of("ab", "c", 2),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one));
        }
    }

    #[test]
    fn the_same_bytes_have_another_sum_at_another_page() {
        assert_ne!(sum(0, &[0; 4096]), sum(1, &[0; 4096]));
        assert_ne!(sum(5, b""), 0);
    }
}
