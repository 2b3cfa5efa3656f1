//! Archives built byte by byte.

use alloc::vec;

use super::*;
use crate::testing::{npy, opened, ranges};

/// What goes into an archive, and how it departs from the ordinary.
#[derive(Clone)]
struct Stored {
    name: &'static str,
    data: Vec<u8>,
    method: u16,
    flags: u16,
    /// Numbers of the entry go into a zip64 field.
    wide: bool,
}

fn stored(name: &'static str, data: Vec<u8>) -> Stored {
    Stored {
        name,
        data,
        method: 0,
        flags: 0,
        wide: false,
    }
}

fn floats(count: usize) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}");
    npy(1, &text, &vec![7; 4 * count])
}

/// An archive; `wide`: with a zip64 end record.
fn zip(stored: &[Stored], comment: &[u8], wide: bool) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for one in stored {
        let local = file.len() as u32;
        let bytes = one.data.len() as u32;
        let name = one.name.as_bytes();
        // As numpy.savez writes it: always with a zip64 field in the local header.
        file.extend(LOCAL);
        for number in [45, one.flags, one.method, 0, 0x21] {
            file.extend(number.to_le_bytes());
        }
        file.extend([0; 4]);
        file.extend([0xff; 8]);
        file.extend((name.len() as u16).to_le_bytes());
        file.extend(20_u16.to_le_bytes());
        file.extend(name);
        file.extend([1, 0, 16, 0]);
        file.extend(u64::from(bytes).to_le_bytes());
        file.extend(u64::from(bytes).to_le_bytes());
        file.extend(&one.data);
        entry(&mut directory, one, bytes, local);
    }
    let (begin, bytes) = (file.len() as u64, directory.len() as u64);
    file.extend(directory);
    let count = stored.len() as u64;
    if wide {
        let at = file.len() as u64;
        file.extend(END64);
        file.extend(44_u64.to_le_bytes());
        file.extend([45, 0, 45, 0]);
        file.extend([0; 8]);
        for number in [count, count, bytes, begin] {
            file.extend(number.to_le_bytes());
        }
        file.extend(LOCATOR);
        file.extend([0; 4]);
        file.extend(at.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
    }
    file.extend(END);
    file.extend([0; 4]);
    file.extend(if wide {
        [0xff; 4]
    } else {
        [count as u8, 0, count as u8, 0]
    });
    file.extend(if wide {
        [0xff; 4]
    } else {
        (bytes as u32).to_le_bytes()
    });
    file.extend(if wide {
        [0xff; 4]
    } else {
        (begin as u32).to_le_bytes()
    });
    file.extend((comment.len() as u16).to_le_bytes());
    file.extend(comment);
    file
}

fn entry(directory: &mut Vec<u8>, one: &Stored, bytes: u32, local: u32) {
    directory.extend(ENTRY);
    for number in [45, 45, one.flags, one.method, 0, 0x21] {
        directory.extend(number.to_le_bytes());
    }
    directory.extend([0; 4]);
    let number = |narrow: u32| if one.wide { u32::MAX } else { narrow };
    directory.extend(number(bytes).to_le_bytes());
    directory.extend(number(bytes).to_le_bytes());
    directory.extend((one.name.len() as u16).to_le_bytes());
    directory.extend(if one.wide { [33, 0] } else { [0, 0] });
    directory.extend([0; 10]);
    directory.extend(number(local).to_le_bytes());
    directory.extend(one.name.as_bytes());
    if one.wide {
        directory.extend([0x55, 0x54, 1, 0, 9]); // some other field comes first
        directory.extend([1, 0, 24, 0]);
        for number in [bytes, bytes, local] {
            directory.extend(u64::from(number).to_le_bytes());
        }
    }
}

#[test]
fn stored_arrays_are_found() {
    let file = zip(
        &[stored("a.npy", floats(3)), stored("b/c.npy", floats(5))],
        b"",
        false,
    );
    let layout = opened(&file).unwrap();
    assert_eq!(layout.kind, Kind::Npz);
    let shapes: Vec<_> = layout
        .tensors
        .iter()
        .map(|t| (&*t.name, t.shape[0]))
        .collect();
    assert_eq!(shapes, [("a", 3), ("b/c", 5)]);
    for tensor in &layout.tensors {
        let data = &file[tensor.offset as usize..][..tensor.bytes as usize];
        assert!(data.iter().all(|&byte| byte == 7));
        assert_ne!(file[tensor.offset as usize - 1], 7);
    }
}

#[test]
fn numbers_of_64_bits_are_read() {
    let mut wide = stored("a.npy", floats(3));
    wide.wide = true;
    let same = |file: &[u8]| opened(file).unwrap().tensors[0].shape == [3];
    assert!(same(&zip(&[wide.clone()], b"", true)));
    assert!(same(&zip(&[wide], b"", false)));
    assert!(same(&zip(&[stored("a.npy", floats(3))], b"", true)));
}

#[test]
fn an_array_takes_one_read_and_the_directory_one() {
    let arrays = [stored("a.npy", floats(5000)), stored("b.npy", floats(5000))];
    let file = zip(&arrays, b"", false);
    let end = file.len() - 4096;
    let second = arrays[0].data.len() + 30 + 5 + 20;
    assert_eq!(
        ranges(&file),
        [(0, 4096), (end, 4096), (0, 4096), (second, 4096)]
    );
}

#[test]
fn a_long_comment_is_looked_past() {
    let mut comment = vec![b'x'; 60_000];
    comment[30_000..30_004].copy_from_slice(END); // a false end
    let file = zip(&[stored("a.npy", floats(3))], &comment, false);
    assert_eq!(opened(&file).unwrap().tensors.len(), 1);
}

#[test]
fn a_compressed_entry_is_named_with_the_remedy() {
    let mut packed = stored("weights.npy", floats(3));
    packed.method = 8;
    let error = opened(&zip(&[packed], b"", false)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("weights.npy") && text.contains("deflate"),
        "{text}"
    );
    assert!(text.contains("numpy.savez instead"), "{text}");
}

#[test]
fn an_encrypted_entry_is_refused() {
    let mut locked = stored("a.npy", floats(3));
    locked.flags = 1;
    let error = opened(&zip(&[locked], b"", false)).unwrap_err();
    assert!(matches!(error, FormatError::Unsupported { .. }), "{error}");
}

#[test]
fn an_archive_without_arrays_is_refused_and_an_empty_one_is_not() {
    let text = opened(&zip(&[stored("a.txt", vec![1])], b"", false)).unwrap_err();
    assert!(text.to_string().contains("without arrays"), "{text}");
    assert!(opened(&zip(&[], b"", false)).unwrap().tensors.is_empty());
    let both = [
        stored("d/", vec![]),
        stored("a.txt", vec![1, 2]),
        stored("a.npy", floats(1)),
    ];
    let layout = opened(&zip(&both, b"", false)).unwrap();
    assert_eq!(layout.tensor("a.txt").unwrap().bytes, 2);
    assert_eq!(layout.tensors.len(), 2);
}

#[test]
fn names_that_stand_twice_are_refused() {
    let twice = [stored("a.npy", floats(1)), stored("a.npy", floats(1))];
    let error = opened(&zip(&twice, b"", false)).unwrap_err();
    assert!(matches!(error, FormatError::Duplicate { .. }), "{error}");
}

#[test]
fn an_array_that_is_longer_than_its_entry_is_refused() {
    let mut data = floats(3);
    data.truncate(data.len() - 1);
    let error = opened(&zip(
        &[stored("a.npy", data), stored("b.npy", floats(9))],
        b"",
        false,
    ));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("the data of array \"a\""), "{text}");
}

#[test]
fn an_object_array_is_named() {
    let header = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }";
    let file = zip(&[stored("bad.npy", npy(1, header, &[0; 8]))], b"", false);
    let name = "bad".to_string();
    assert_eq!(opened(&file), Err(FormatError::Pickled { name }));
}

#[test]
fn archives_cut_off_or_damaged_anywhere_do_not_panic() {
    let file = zip(&[stored("a.npy", floats(3))], b"hello", true);
    for length in 0..file.len() {
        assert!(opened(&file[..length]).is_err(), "{length}");
    }
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut file = file.clone();
            file[at] = value;
            let _ = opened(&file);
        }
    }
}

#[test]
fn a_directory_outside_the_file_is_refused() {
    let mut file = zip(&[stored("a.npy", floats(3))], b"", false);
    let place = file.len() - 6;
    file[place..place + 4].copy_from_slice(&0xffff_fffe_u32.to_le_bytes());
    assert!(matches!(opened(&file), Err(FormatError::Outside { .. })));
}
