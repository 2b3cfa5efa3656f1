//! What zstd files are made of: pure functions.
//!
//! The formats: RFC 8878, and "Zstandard Seekable Format" 0.1.0 for the table of frames at the
//! end.

/// Bytes that tell how long the table is.
pub const FOOTER_BYTES: usize = 9;

const FRAME: u32 = 0xfd2f_b528;
const SKIPPABLE: u32 = 0x184d_2a50;
/// The skippable frame that is a table of frames.
const TABLE: u32 = 0x184d_2a5e;
const SEEKABLE: u32 = 0x8f92_eab1;
const FRAMES_MAX: u64 = 0x800_0000;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it begins in the file.
    pub at: u64,
    /// Its bytes in the file.
    pub packed: u64,
    /// Its bytes when decoded.
    pub bytes: u64,
    /// The lower half of their XXH64, where the file has it.
    pub sum: Option<u32>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The length of the table that ends with `footer`, all its frame included. `None` when there is
/// none.
pub fn table_bytes(footer: &[u8]) -> Option<u64> {
    let (frames, kind) = (word(footer, 0)?, *footer.get(4)?);
    let is_table = word(footer, 5)? == SEEKABLE && footer.len() == FOOTER_BYTES;
    // The bits between are for later versions, which this one could not read.
    let known = kind & 0b0111_1100 == 0 && u64::from(frames) <= FRAMES_MAX;
    let entry = if kind & 0x80 == 0 { 8 } else { 12 };
    (is_table && known).then(|| 8 + u64::from(frames) * entry + FOOTER_BYTES as u64)
}

/// The frames of a file of `size` bytes that ends with `table`. `None` when it does not say where
/// all of them are.
pub fn seek_table(table: &[u8], size: u64) -> Option<Vec<Frame>> {
    let footer = &table[table.len().checked_sub(FOOTER_BYTES)?..];
    let right = table_bytes(footer)? == table.len() as u64
        && word(table, 0)? == TABLE
        && u64::from(word(table, 4)?) == table.len() as u64 - 8;
    let entry = if footer[4] & 0x80 == 0 { 8 } else { 12 };
    if !right {
        return None;
    }
    let (mut at, mut total) = (0, 0u64);
    let entries = table[8..table.len() - FOOTER_BYTES].chunks_exact(entry);
    let frames: Option<Vec<Frame>> = entries
        .map(|entry| {
            let frame = Frame {
                at,
                packed: word(entry, 0)?.into(),
                bytes: word(entry, 4)?.into(),
                sum: word(entry, 8),
            };
            at = at.checked_add(frame.packed)?;
            total = total.checked_add(frame.bytes)?;
            Some(frame)
        })
        .collect();
    frames.filter(|_| at.checked_add(table.len() as u64) == Some(size))
}

/// What the first bytes of a frame say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// It is left out when decoding: this many bytes, the first ones included.
    Skippable(u64),
    /// It has data.
    Data {
        /// Number of the first bytes.
        header: u64,
        /// Bytes when decoded, where it says.
        bytes: Option<u64>,
        /// Whether 4 bytes of checksum end it.
        has_sum: bool,
    },
}

/// Bytes of which [`header`] may need all.
pub const HEADER_BYTES_MAX: usize = 18;

/// Reads the first bytes of a frame, up to 18 of them, or all there are. `None` when it
/// is no frame or not whole.
pub fn header(bytes: &[u8]) -> Option<Header> {
    let magic = word(bytes, 0)?;
    if magic & !0xf == SKIPPABLE {
        return Some(Header::Skippable(8 + u64::from(word(bytes, 4)?)));
    }
    let kind = *bytes.get(4)?;
    if magic != FRAME || kind & 0b1000 != 0 {
        return None;
    }
    let single = kind & 0b10_0000 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(kind & 3)];
    let at = 5 + usize::from(!single) + dictionary;
    let length = match kind >> 6 {
        0 => usize::from(single),
        more => 1 << more,
    };
    let field = bytes.get(at..at + length)?;
    let number = field
        .iter()
        .rev()
        .fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Some(Header::Data {
        header: (at + length) as u64,
        bytes: match length {
            0 => None,
            2 => Some(number + 256),
            _ => Some(number),
        },
        has_sum: kind & 0b100 != 0,
    })
}

/// What the 3 bytes before a block say: how many follow, and whether it is the last. `None` when
/// there is no such block.
pub fn block(bytes: [u8; 3]) -> Option<(u64, bool)> {
    let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    let length = u64::from(word >> 3);
    let length = match (word >> 1) & 3 {
        1 => 1,
        3 => return None,
        _ => length,
    };
    Some((length, word & 1 == 1))
}
