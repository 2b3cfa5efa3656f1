//! Files for tests, built byte by byte, and a reader that notes what it is asked for.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{FormatError, Layout, OpenError, open};

/// Opens `file`, known by its bytes alone.
pub(crate) fn opened(file: &[u8]) -> Result<Layout, FormatError> {
    named(file, None)
}

/// Opens `file` under a name.
pub(crate) fn named(file: &[u8], name: Option<&str>) -> Result<Layout, FormatError> {
    let mut read = |at: u64, bytes: usize| Ok::<_, ()>(file[at as usize..][..bytes].to_vec());
    match open(file.len() as u64, name, &mut read) {
        Ok(layout) => Ok(layout),
        Err(OpenError::Format(error)) => Err(error),
        Err(OpenError::Read { .. }) => panic!("a reader that cannot fail"),
    }
}

/// The ranges that are read to open `file`.
pub(crate) fn ranges(file: &[u8]) -> Vec<(usize, usize)> {
    let mut asked = Vec::new();
    let mut read = |at: u64, bytes: usize| {
        asked.push((at as usize, bytes));
        Ok::<_, ()>(file[at as usize..][..bytes].to_vec())
    };
    let _ = open(file.len() as u64, None, &mut read);
    asked
}

/// An npy file, its header padded to 64 bytes as NumPy does.
pub(crate) fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let fields = if version == 1 { 10 } else { 12 };
    let mut header = String::from(header);
    while (fields + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    match version {
        1 => file.extend((header.len() as u16).to_le_bytes()),
        _ => file.extend((header.len() as u32).to_le_bytes()),
    }
    file.extend(header.as_bytes());
    file.extend(data);
    file
}
