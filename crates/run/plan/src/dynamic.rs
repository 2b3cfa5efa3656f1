//! The dynamic section: what else is loaded, and what is relocated.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use object::LittleEndian as Le;
use object::elf::{
    DT_JMPREL, DT_NEEDED, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_RELR, DT_RELRSZ, DT_RPATH,
    DT_RUNPATH, DT_STRSZ, DT_STRTAB, Dyn64, ProgramHeader64,
};
use object::pod::slice_from_all_bytes;
use object::read::elf::{Dyn, ProgramHeader};

use crate::parse::Segment;
use crate::ranges::Known;
use crate::{Command, LoadError};

/// Bytes of a dynamic section, more than any has.
const SECTION_MAX: u64 = 1 << 16;
/// Longest name of a library, or list of folders.
const NAME_MAX: u64 = 4096;
const RELA_BYTES: u64 = 24;
const WORD_BYTES: u64 = 8;

/// What it says.
#[derive(Default)]
pub(crate) struct Dynamic {
    /// Names that are looked for.
    pub(crate) libraries: Vec<String>,
    /// Where, first.
    pub(crate) search: Vec<String>,
    /// Tables.
    pub(crate) relocations: Vec<Command>,
}

/// Reads the dynamic section of a file with these `segments`.
pub(crate) fn read(
    known: &Known,
    header: &ProgramHeader64<Le>,
    segments: &[Segment],
) -> Result<Dynamic, LoadError> {
    let bytes = header.p_filesz(Le);
    if bytes > SECTION_MAX {
        return Err(LoadError::Dynamic("is too long"));
    }
    let section = known.bytes("dynamic section", header.p_offset(Le), bytes)?;
    let entries = slice_from_all_bytes::<Dyn64<Le>>(section);
    let entries = entries.map_err(|()| LoadError::Dynamic("has half an entry"))?;
    let end = entries.iter().position(|entry| entry.d_tag(Le) == DT_NULL);
    let entries = &entries[..end.unwrap_or(entries.len())];
    let value = |tag| {
        let mut all = entries.iter().filter(|entry| entry.d_tag(Le) == tag);
        all.next().map(|entry| entry.d_val(Le))
    };
    let names = match (value(DT_STRTAB), value(DT_STRSZ)) {
        (Some(address), Some(bytes)) => in_file(segments, address, bytes, "strings")?,
        _ => 0..0,
    };
    let mut found = Dynamic::default();
    for entry in entries {
        match entry.d_tag(Le) {
            DT_NEEDED => found.libraries.push(name(known, &names, entry.d_val(Le))?),
            DT_RPATH | DT_RUNPATH => {
                let list = name(known, &names, entry.d_val(Le))?;
                let folders = list.split(':').filter(|folder| !folder.is_empty());
                found.search.extend(folders.map(str::to_string));
            }
            _ => {}
        }
    }
    let tables = [
        ("RELA", DT_RELA, DT_RELASZ, RELA_BYTES),
        ("JMPREL", DT_JMPREL, DT_PLTRELSZ, RELA_BYTES),
        ("RELR", DT_RELR, DT_RELRSZ, WORD_BYTES),
    ];
    for (table, at, size, each) in tables {
        let (Some(address), Some(bytes @ 1..)) = (value(at), value(size)) else {
            continue;
        };
        found.relocations.push(Command::Relocate {
            table,
            file: in_file(segments, address, bytes, "relocations")?,
            entries: bytes / each,
        });
    }
    Ok(found)
}

/// Where in the file `bytes` bytes at `address` are.
fn in_file(
    segments: &[Segment],
    address: u64,
    bytes: u64,
    what: &'static str,
) -> Result<Range<u64>, LoadError> {
    let outside = LoadError::Dynamic(match what {
        "strings" => "has its strings outside the file",
        _ => "has its relocations outside the file",
    });
    let place = |segment: &Segment| {
        let start = segment
            .file
            .start
            .checked_add(address.checked_sub(segment.address)?)?;
        let end = start.checked_add(bytes)?;
        (end <= segment.file.end).then_some(start..end)
    };
    segments.iter().find_map(place).ok_or(outside)
}

/// The string at `at` among `names`.
fn name(known: &Known, names: &Range<u64>, at: u64) -> Result<String, LoadError> {
    let wrong = || LoadError::Dynamic("names a library outside its strings");
    let start = names
        .start
        .checked_add(at)
        .filter(|start| *start < names.end);
    let start = start.ok_or_else(wrong)?;
    let end = names.end.min(start + NAME_MAX);
    let mut page_end = start;
    // Mostly it ends in the page in which it begins.
    loop {
        page_end = (page_end + 1).next_multiple_of(crate::PAGE_BYTES).min(end);
        let bytes = known.bytes("name of a library", start, page_end - start)?;
        if let Some(length) = bytes.iter().position(|byte| *byte == 0) {
            let name = core::str::from_utf8(&bytes[..length]);
            let name = name.map_err(|_| LoadError::Dynamic("has a name that is no UTF-8"))?;
            return Ok(name.to_string());
        }
        if page_end == end {
            return Err(LoadError::Dynamic("has a name without an end"));
        }
    }
}
