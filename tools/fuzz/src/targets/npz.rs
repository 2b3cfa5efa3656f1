//! npz files.

use std::io::Write;

use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::npy;

/// Archives of none, one and several entries, stored and said to be compressed.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let array = npy::file(1, "'<f4'", "(3,)", 12);
    let one = ("a.npy", array.as_slice(), CompressionMethod::STORE);
    let two = ("b/c.npy", array.as_slice(), CompressionMethod::STORE);
    let text = ("notes.txt", b"hello".as_slice(), CompressionMethod::STORE);
    let packed = ("d.npy", array.as_slice(), CompressionMethod::DEFLATE);
    vec![
        archive(&[]),
        archive(&[one]),
        archive(&[one, two, text]),
        archive(&[packed]),
        wide(archive(&[one])),
    ]
}

fn archive(entries: &[(&str, &[u8], CompressionMethod)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut file);
    for (name, data, method) in entries {
        let entry = archive.new_file(name).compression_method(*method);
        let (mut entry, config) = entry.start().expect("an entry");
        let mut writer = config.wrap(&mut entry);
        writer.write_all(data).expect("into memory");
        let (_, descriptor) = writer.finish().expect("a descriptor");
        entry.finish(descriptor).expect("an end");
    }
    archive.finish().expect("a directory");
    file
}

/// The same with the records of zip64 before its end.
fn wide(file: Vec<u8>) -> Vec<u8> {
    let (body, end) = file.split_at(file.len() - 22);
    let number = |at: usize| u32::from_le_bytes(end[at..at + 4].try_into().expect("4 bytes"));
    let mut file = body.to_vec();
    let at = file.len() as u64;
    file.extend(b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
    let count = u64::from(end[10]);
    for number in [count, count, u64::from(number(12)), u64::from(number(16))] {
        file.extend(number.to_le_bytes());
    }
    file.extend(b"PK\x06\x07\0\0\0\0");
    file.extend(at.to_le_bytes());
    file.extend(b"\x01\0\0\0PK\x05\x06\0\0\0\0");
    file.extend([0xff; 12]);
    file.extend([0, 0]);
    file
}
