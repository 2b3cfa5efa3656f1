//! A compressed page as it lies in a packed segment: a header of 16 bytes, then the bytes.

use farpage_object::ObjectId;
use farpage_sys::crc32c;

use crate::location::{ALIGN, length_of};

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;

/// How the bytes after the header were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coding {
    Lz4,
    Zstd,
    /// As they are: a page that does not compress and that no paging file takes.
    Stored,
}

/// What a record says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) object: ObjectId,
    /// Below 2^48.
    pub(crate) page: u64,
    /// Bytes after the header, 1 to 4096.
    pub(crate) length: usize,
    pub(crate) coding: Coding,
    /// CRC32C of the bytes. Stored mixed with that of the rest of the header.
    pub(crate) crc: u32,
}

impl Header {
    pub(crate) fn pack(self) -> [u8; HEADER] {
        let coding = match self.coding {
            Coding::Lz4 => 1u16,
            Coding::Zstd => 2,
            Coding::Stored => 3,
        };
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.object.0.to_le_bytes());
        bytes[4..10].copy_from_slice(&self.page.to_le_bytes()[..6]);
        bytes[10..12].copy_from_slice(&(self.length as u16 & 0xfff | coding << 12).to_le_bytes());
        let crc = self.crc ^ crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` when no record begins here.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let mut page = [0; 8];
        page[..6].copy_from_slice(&bytes[4..10]);
        let tail = u16::from_le_bytes([bytes[10], bytes[11]]);
        let coding = match tail >> 12 {
            1 => Coding::Lz4,
            2 => Coding::Zstd,
            3 => Coding::Stored,
            _ => return None,
        };
        let crc = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        Some(Self {
            object: ObjectId(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            page: u64::from_le_bytes(page),
            length: length_of(tail),
            coding,
            crc: crc ^ crc32c(&bytes[..12]),
        })
    }

    /// The bytes of the record at `offset` of `segment`, if it is all there and whole.
    pub(crate) fn checked(segment: &[u8], offset: usize) -> Option<(Self, &[u8])> {
        let header = Self::unpack(segment.get(offset..)?)?;
        let start = offset + HEADER;
        let bytes = segment.get(start..start + header.length)?;
        (crc32c(bytes) == header.crc).then_some((header, bytes))
    }
}

/// Bytes that a record of `length` takes in its segment.
pub(crate) const fn record_bytes(length: usize) -> usize {
    (HEADER + length).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_noticed() {
        let payload = [9u8; 40];
        let header = Header {
            object: ObjectId(3),
            page: (1 << 47) + 5,
            length: 40,
            coding: Coding::Zstd,
            crc: crc32c(&payload),
        };
        let mut bytes = [0u8; 80];
        bytes[16..32].copy_from_slice(&header.pack());
        bytes[32..72].copy_from_slice(&payload);
        assert_eq!(Header::checked(&bytes, 16), Some((header, &payload[..])));
        for at in 16..72 {
            bytes[at] ^= 0x10;
            assert_eq!(Header::checked(&bytes, 16), None, "byte {at}");
            bytes[at] ^= 0x10;
        }
        assert_eq!(Header::checked(&bytes, 64), None);
        assert_eq!(record_bytes(40), 64);
    }
}
