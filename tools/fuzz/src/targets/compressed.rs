//! Tables at the end of compressed files, and the headers of frames.

use farpage_source::parse;
use farpage_sys::crc32c;

/// A seek table and the frames that it names: they fill the file without gaps.
pub(crate) fn zstd(input: &[u8]) {
    let Some((size, table)) = input.split_first_chunk() else {
        return;
    };
    let size = u64::from_le_bytes(*size);
    let footer = &table[table.len().saturating_sub(parse::FOOTER_BYTES)..];
    let bytes = parse::table_bytes(footer);
    if let Some(frames) = parse::seek_table(table, size) {
        assert_eq!(bytes, Some(table.len() as u64));
        let mut at = 0;
        for frame in frames {
            assert_eq!(frame.at, at);
            at += frame.packed;
        }
        assert!(at <= size);
    }
    // What a header says is used by the decoder alone, which checks it: it must only be said.
    let _ = parse::header(table);
    if let Some(head) = table.first_chunk() {
        let _ = parse::block(*head);
    }
}

/// A valid table of three frames, and one whose count lies.
pub(crate) fn zstd_seeds() -> Vec<Vec<u8>> {
    let table = |count: u32| {
        let mut table = 0x184d_2a5e_u32.to_le_bytes().to_vec();
        table.extend((3 * 8 + 9u32).to_le_bytes());
        for packed in [100u32, 200, 300] {
            table.extend(packed.to_le_bytes());
            table.extend((packed * 4).to_le_bytes());
        }
        table.extend(count.to_le_bytes());
        table.push(0);
        table.extend(0x8f92_eab1_u32.to_le_bytes());
        let mut input = (600 + table.len() as u64).to_le_bytes().to_vec();
        input.extend(table);
        input
    };
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x24, 4, 0x21, 0, 0, 1, 2, 3, 4];
    let header = [&1000u64.to_le_bytes()[..], &frame[..]].concat();
    vec![table(3), table(4), header]
}

/// The end of a stored index: the length of the index, points, sizes and key. The count of the points
/// and the checksum are put behind them, as mutation would not find them.
pub(crate) fn gzip_index(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else {
        return;
    };
    let length = u64::from_le_bytes(*length);
    let _ = parse::index_bytes(rest);
    let _ = parse::Index::decode(rest, length);
    let Some(points) = rest.len().checked_sub(INDEX_END).map(|bytes| bytes / POINT) else {
        return;
    };
    let mut bytes = rest[..points * POINT + INDEX_END].to_vec();
    bytes.extend((points as u32).to_le_bytes());
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes.extend(b"FPGZIDX1");
    assert_eq!(
        parse::index_bytes(&bytes[points * POINT..]),
        Some(bytes.len() as u64)
    );
    let index = parse::Index::decode(&bytes, length);
    assert!(index.is_none() || points > 0 && length >= bytes.len() as u64);
}

/// Bytes of a point.
const POINT: usize = 40;
/// Bytes of sizes and key, behind the points.
const INDEX_END: usize = 48;

/// An index of three points, one of an empty file, and nothing but lengths.
pub(crate) fn gzip_index_seeds() -> Vec<Vec<u8>> {
    let index = |points: &[u64], size: u64| {
        let mut input = 10_000u64.to_le_bytes().to_vec();
        for offset in points {
            for long in [*offset, offset / 4, offset / 1000] {
                input.extend(long.to_le_bytes());
            }
            for word in [100u32, 7, 9] {
                input.extend(word.to_le_bytes());
            }
            input.extend([3, 5, 0, 0]);
        }
        input.extend(size.to_le_bytes());
        input.extend((size / 4).to_le_bytes());
        input.extend([1; 32]);
        input
    };
    vec![
        index(&[0, 400_000, 900_000], 1_000_000),
        index(&[0], 0),
        vec![0xff; 200],
    ]
}
