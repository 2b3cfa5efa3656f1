//! Tables at the end of compressed files, and the headers of frames.

use farpage_source::parse;

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

/// The end of a stored index.
pub(crate) fn gzip_index(input: &[u8]) {
    let Some((length, bytes)) = input.split_first_chunk() else {
        return;
    };
    let length = u64::from_le_bytes(*length);
    let _ = parse::index_bytes(bytes);
    // Its checksum refuses nearly all that is not an index; what passes must fit together.
    let _ = parse::Index::decode(bytes, length);
}

/// Nothing but lengths: an index is written with a checksum, which mutation does not find.
pub(crate) fn gzip_index_seeds() -> Vec<Vec<u8>> {
    vec![vec![0; 8], vec![0; 64], vec![0xff; 200]]
}
