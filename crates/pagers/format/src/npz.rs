//! npz: a zip archive of npy files, as far as it takes to find stored entries.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::dtype::{Dtype, Element};
use crate::error::{FormatError, OpenError};
use crate::layout::{Kind, Tensor};
use crate::npy;
use crate::source::{HEAD, Source, little};

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_BYTES: u64 = 20;
const END64: &[u8] = b"PK\x06\x06";
const END64_BYTES: usize = 56;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: u64 = 30;
/// The longest comment behind the end record.
const COMMENT_MAX: usize = u16::MAX as usize;
/// The longest directory that is believed: a million entries of ordinary names.
const DIRECTORY_MAX: u64 = 100 << 20;
/// The tag of an extra field with numbers of 64 bits.
const EXTRA64: u64 = 1;

/// Where the directory of the archive lies.
struct Directory {
    begin: u64,
    bytes: u64,
    entries: u64,
}

/// One entry of the directory.
struct Entry {
    name: String,
    flags: u64,
    method: u64,
    packed: u64,
    bytes: u64,
    /// Where its local header begins.
    local: u64,
}

fn invalid(why: impl Into<String>) -> FormatError {
    FormatError::invalid(Kind::Npz, why)
}

fn outside(what: &str, begin: u64, end: u64, size: u64) -> FormatError {
    let what = what.to_string();
    FormatError::Outside {
        what,
        begin,
        end,
        size,
    }
}

/// Reads the directory and the header of each array.
pub(crate) fn open<E>(source: &mut Source<'_, E>) -> Result<Vec<Tensor>, OpenError<E>> {
    let directory = find(source)?;
    let entries = entries(source, &directory)?;
    if !entries.is_empty() && !entries.iter().any(|entry| entry.name.ends_with(".npy")) {
        return Err(invalid("it is a zip archive, but without arrays (.npy)").into());
    }
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries.iter().filter(|entry| !entry.name.ends_with('/')) {
        tensors.push(tensor(source, entry, directory.begin)?);
    }
    Ok(tensors)
}

/// Finds the directory by the end of the file.
fn find<E>(source: &mut Source<'_, E>) -> Result<Directory, OpenError<E>> {
    let size = source.size;
    for most in [HEAD, END_BYTES + COMMENT_MAX] {
        let begin = size.saturating_sub(most as u64);
        let tail = source.ahead(begin, most)?;
        let last = tail.len().checked_sub(END_BYTES);
        let Some(last) = last else { break };
        // Its comment must reach to the end exactly, or this is some other PK.
        let ends = |&at: &usize| {
            let comment = little::<2>(&tail, at + 20).unwrap_or(0);
            tail[at..].starts_with(END) && at as u64 + 22 + comment == tail.len() as u64
        };
        if let Some(at) = (0..=last).rev().find(ends) {
            return directory(source, &tail[at..], begin + at as u64);
        }
    }
    Err(
        invalid("it does not end as a zip archive does: it is cut off, or something follows")
            .into(),
    )
}

/// The directory that the end record `end` at `at` tells of.
fn directory<E>(
    source: &mut Source<'_, E>,
    end: &[u8],
    at: u64,
) -> Result<Directory, OpenError<E>> {
    let field2 = |place| little::<2>(end, place).unwrap_or(0);
    let field4 = |place| little::<4>(end, place).unwrap_or(0);
    let mut found = Directory {
        begin: field4(16),
        bytes: field4(12),
        entries: field2(10),
    };
    let mut parts = field2(4) != 0 || field2(6) != 0 || field2(8) != found.entries;
    let mut expected_end = at;
    let wide = found.begin == u64::from(u32::MAX)
        || found.bytes == u64::from(u32::MAX)
        || found.entries == u64::from(u16::MAX);
    if wide
        && let Some(locator) = at.checked_sub(LOCATOR_BYTES)
        && let locator = source.bytes("the zip64 locator", locator, LOCATOR_BYTES as usize)?
        && locator.starts_with(LOCATOR)
    {
        let begin = little::<8>(&locator, 8).unwrap_or(0);
        let end64 = source.bytes("the zip64 end record", begin, END64_BYTES)?;
        if !end64.starts_with(END64) {
            return Err(invalid("no zip64 end record where it should be").into());
        }
        let field8 = |place| little::<8>(&end64, place).unwrap_or(0);
        found = Directory {
            begin: field8(48),
            bytes: field8(40),
            entries: field8(32),
        };
        parts = little::<4>(&end64, 16) != Some(0) || field8(24) != found.entries;
        expected_end = begin;
    }
    if parts {
        return Err(invalid("an archive in several parts; join them").into());
    }
    let end = found.begin.checked_add(found.bytes);
    if end.is_none_or(|end| end > expected_end) {
        let end = end.unwrap_or(u64::MAX);
        return Err(outside("the directory", found.begin, end, expected_end).into());
    }
    if found.bytes > DIRECTORY_MAX {
        let why = format!(
            "a directory of {} bytes; {DIRECTORY_MAX} are the most",
            found.bytes
        );
        return Err(invalid(why).into());
    }
    if end != Some(expected_end) {
        let why = "other bytes between the directory and the end of the archive";
        return Err(invalid(why).into());
    }
    Ok(found)
}

/// Reads the whole directory.
fn entries<E>(
    source: &mut Source<'_, E>,
    directory: &Directory,
) -> Result<Vec<Entry>, OpenError<E>> {
    let bytes = source.bytes("the directory", directory.begin, directory.bytes as usize)?;
    let mut rest = bytes.as_slice();
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (entry, length) = Entry::read(rest).ok_or_else(|| {
            let at = bytes.len() - rest.len();
            invalid(format!("byte {at} of the directory begins no whole entry"))
        })?;
        entries.push(entry);
        rest = &rest[length..];
    }
    if entries.len() as u64 != directory.entries {
        let (there, said) = (entries.len(), directory.entries);
        let why = format!("{there} entries where the directory should have {said}");
        return Err(invalid(why).into());
    }
    Ok(entries)
}

impl Entry {
    /// The entry at the beginning of `bytes`, and how long it is there.
    fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let field2 = |place| little::<2>(bytes, place);
        let field4 = |place| little::<4>(bytes, place);
        let (name, extra, comment) = (field2(28)?, field2(30)?, field2(32)?);
        let extra_at = ENTRY_BYTES + name as usize;
        let comment_at = extra_at + extra as usize;
        let length = comment_at + comment as usize;
        if !bytes.starts_with(ENTRY) || bytes.len() < length {
            return None;
        }
        let name = &bytes[ENTRY_BYTES..extra_at];
        let mut entry = Self {
            // Names that are no UTF-8 are in a code page of long ago; NumPy writes UTF-8.
            name: String::from_utf8_lossy(name).into_owned(),
            flags: field2(8)?,
            method: field2(10)?,
            packed: field4(20)?,
            bytes: field4(24)?,
            local: field4(42)?,
        };
        entry.widen(&bytes[extra_at..comment_at])?;
        Some((entry, length))
    }

    /// Takes what does not fit into 32 bits from the extra fields. `None`: it is not there.
    fn widen(&mut self, mut extra: &[u8]) -> Option<()> {
        let full = u64::from(u32::MAX);
        let numbers = [&mut self.bytes, &mut self.packed, &mut self.local];
        let mut wanted = numbers.into_iter().filter(|n| **n == full).peekable();
        if wanted.peek().is_none() {
            return Some(());
        }
        loop {
            let (tag, bytes) = (little::<2>(extra, 0)?, little::<2>(extra, 2)? as usize);
            let field = extra.get(4..4 + bytes)?;
            if tag == EXTRA64 {
                let mut at = 0;
                for number in wanted {
                    *number = little::<8>(field, at)?;
                    at += 8;
                }
                return Some(());
            }
            extra = &extra[4 + bytes..];
        }
    }
}

/// The array of `entry`; data end before `limit`.
fn tensor<E>(
    source: &mut Source<'_, E>,
    entry: &Entry,
    limit: u64,
) -> Result<Tensor, OpenError<E>> {
    let name = || entry.name.clone();
    if entry.flags & 1 != 0 {
        return Err(FormatError::Unsupported {
            name: name(),
            what: "is encrypted".to_string(),
            remedy: "write the archive without a password",
        }
        .into());
    }
    if entry.method != 0 {
        return Err(FormatError::Compressed {
            name: name(),
            how: match entry.method {
                8 => "deflate".to_string(),
                method => format!("zip method {method}"),
            },
            remedy: "write it with numpy.savez instead of numpy.savez_compressed",
        }
        .into());
    }
    if entry.packed != entry.bytes {
        let why = format!("{:?} is stored, but in {} bytes", entry.name, entry.packed);
        return Err(invalid(why + ", not its own").into());
    }
    source.ahead(entry.local, HEAD)?;
    let local = source.bytes("a local header", entry.local, LOCAL_BYTES as usize)?;
    if !local.starts_with(LOCAL) {
        let why = format!(
            "no local header of {:?} at byte {}",
            entry.name, entry.local
        );
        return Err(invalid(why).into());
    }
    let skipped = little::<2>(&local, 26).unwrap_or(0) + little::<2>(&local, 28).unwrap_or(0);
    let begin = entry.local + LOCAL_BYTES + skipped;
    let end = begin.saturating_add(entry.bytes);
    if end > limit {
        return Err(outside(&format!("entry {:?}", entry.name), begin, end, limit).into());
    }
    if let Some(name) = entry.name.strip_suffix(".npy") {
        return npy::open(source, &npy::Place { name, begin, end });
    }
    Ok(Tensor {
        name: name(),
        element: Element::little(Dtype::U8),
        shape: Vec::from([entry.bytes]),
        fortran: false,
        offset: begin,
        bytes: entry.bytes,
    })
}

#[cfg(test)]
mod tests;
