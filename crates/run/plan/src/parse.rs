//! From the headers of an ELF file to its plan.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use object::LittleEndian as Le;
use object::elf::{
    self, EM_X86_64, ET_CORE, ET_DYN, ET_EXEC, ET_REL, FileHeader64, PF_R, PF_W, PF_X, PT_DYNAMIC,
    PT_GNU_PROPERTY, PT_GNU_STACK, PT_INTERP, PT_LOAD, PT_TLS, ProgramHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::dynamic::{self, Dynamic};
use crate::ranges::Known;
use crate::{Command, Kind, LoadError, PAGE_BYTES, Plan, PlanError, Protection, Role};

/// Bytes of the ELF header.
const HEADER_BYTES: u64 = 64;
/// Bytes at the start of a file that Linux looks at to tell what it is.
const HEAD_BYTES: u64 = 256;
/// Bytes of program headers that Linux takes.
const TABLE_MAX: u64 = 65536;
const ENTRY_BYTES: u64 = size_of::<ProgramHeader64<Le>>() as u64;
/// One past the highest address of a program.
const ADDRESS_END: u64 = 1 << 47;
/// Longest name of a dynamic linker, the zero at its end included.
const PATH_MAX: u64 = 4096;
/// Bytes that are written at the first instruction, and put back, to have a call made there.
const CALL_BYTES: u64 = 8;
const CLASS_64: u8 = 2;
const LITTLE: u8 = 1;

/// Finds out what loading a file of `size` bytes takes.
///
/// `read(offset, bytes)` must give exactly the bytes asked for; ranges never reach past `size`.
/// Asked for are the first page and, page by page, those with the name of the dynamic linker, the
/// dynamic section and the names of libraries, as far as they lie elsewhere.
///
/// # Errors
/// What is wrong with the file, or with reading it.
pub fn plan<E>(
    size: u64,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Plan, PlanError<E>> {
    let mut known = Known::new(size);
    if size > 0 {
        known.read(0..PAGE_BYTES.min(size), read)?;
    }
    loop {
        let attempt = attempt(&known);
        // What is missing makes an attempt fail. Each reads more of the file, so there is an end.
        match known.take_wanted() {
            Some(range) => known.read(range, read)?,
            None => return Ok(attempt?),
        }
    }
}

/// The plan from what is known, or what is wrong, unless something is wanted.
fn attempt(known: &Known) -> Result<Plan, LoadError> {
    let header = header(known)?;
    let headers = program_headers(known, header)?;
    let segments = segments(known, headers)?;
    let interpreter = interpreter(known, headers)?;
    let dynamic = match find(headers, PT_DYNAMIC) {
        Some(section) => dynamic::read(known, section, &segments)?,
        None => Dynamic::default(),
    };
    let entry = header.e_entry(Le);
    let kind = match (header.e_type(Le), &interpreter) {
        (ET_EXEC, Some(_)) => Kind::Dynamic,
        (ET_EXEC, None) => Kind::Static,
        (_, _) if entry == 0 => Kind::Library,
        (_, Some(_)) => Kind::DynamicPie,
        (_, None) => Kind::StaticPie,
    };
    let runs = |segment: &&Segment| segment.protection.execute && segment.memory().contains(&entry);
    let first = segments.iter().find(runs);
    if kind.is_program() && first.is_none() {
        return Err(LoadError::Entry(entry));
    }
    let mut before_start = before_start(header, headers, &segments, known.size());
    if let (Kind::Static | Kind::StaticPie, Some(segment)) = (kind, first) {
        // The agent comes in by calls that are made there.
        let at = segment.file.start + (entry - segment.address);
        before_start.push(at..at + CALL_BYTES);
    }
    Ok(Plan {
        kind,
        bytes: known.size(),
        commands: commands(headers, &segments, entry, interpreter, &dynamic),
        before_start: whole_pages(before_start, known.size()),
        search: dynamic.search,
    })
}

fn header(known: &Known) -> Result<&FileHeader64<Le>, LoadError> {
    if known.size() == 0 {
        return Err(LoadError::Empty);
    }
    let head = known.bytes("first bytes", 0, HEAD_BYTES.min(known.size()))?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Err(LoadError::Script(interpreter_of_script(line)));
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Err(LoadError::NotElf);
    }
    match head {
        [_, _, _, _, class, ..] if *class != CLASS_64 => return Err(LoadError::NotWide),
        [_, _, _, _, _, order, ..] if *order != LITTLE => return Err(LoadError::BigEndian),
        _ => {}
    }
    known.bytes("ELF header", 0, HEADER_BYTES)?;
    let header = FileHeader64::<Le>::parse(known);
    let header = header.map_err(|_| wrong("version", u64::from(head[6])))?;
    match header.e_machine(Le) {
        EM_X86_64 => {}
        other => return Err(LoadError::Machine(other.0)),
    }
    match header.e_type(Le) {
        ET_EXEC | ET_DYN => Ok(header),
        ET_REL => Err(LoadError::Type("an object file")),
        ET_CORE => Err(LoadError::Type("a core dump")),
        other => Err(wrong("type", u64::from(other.0))),
    }
}

fn interpreter_of_script(line: &[u8]) -> String {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let name = words.find(|word| !word.is_empty()).unwrap_or(b"?");
    String::from_utf8_lossy(name).into_owned()
}

fn wrong(what: &'static str, value: u64) -> LoadError {
    LoadError::Header { what, value }
}

fn program_headers<'a>(
    known: &'a Known,
    header: &FileHeader64<Le>,
) -> Result<&'a [ProgramHeader64<Le>], LoadError> {
    let (size, count) = (header.e_phentsize(Le), header.e_phnum(Le));
    if count == 0 {
        return Err(LoadError::Nothing);
    }
    if u64::from(size) != ENTRY_BYTES {
        return Err(wrong("size of a program header", size.into()));
    }
    let bytes = u64::from(count) * ENTRY_BYTES;
    if bytes > TABLE_MAX {
        return Err(wrong("number of program headers", count.into()));
    }
    let offset = header.e_phoff(Le);
    known.bytes("table of program headers", offset, bytes)?;
    let headers = header.program_headers(Le, known);
    headers.map_err(|_| wrong("offset of the program headers", offset))
}

fn find(headers: &[ProgramHeader64<Le>], kind: elf::ProgramType) -> Option<&ProgramHeader64<Le>> {
    headers.iter().find(|header| header.p_type(Le) == kind)
}

/// A part of the file that is mapped.
pub(crate) struct Segment {
    pub(crate) file: Range<u64>,
    pub(crate) address: u64,
    memory_bytes: u64,
    protection: Protection,
}

impl Segment {
    fn memory(&self) -> Range<u64> {
        self.address..self.address + self.memory_bytes
    }

    /// Where what comes from the file ends.
    fn contents_end(&self) -> u64 {
        self.address + (self.file.end - self.file.start)
    }
}

/// The segments that are mapped, all of them possible.
fn segments(known: &Known, headers: &[ProgramHeader64<Le>]) -> Result<Vec<Segment>, LoadError> {
    let mut segments: Vec<Segment> = Vec::new();
    for (number, header) in headers.iter().enumerate() {
        if header.p_type(Le) != PT_LOAD || header.p_memsz(Le) == 0 {
            continue;
        }
        let refuse = |why| Err(LoadError::Segment { number, why });
        let (offset, bytes) = (header.p_offset(Le), header.p_filesz(Le));
        let (address, memory_bytes) = (header.p_vaddr(Le), header.p_memsz(Le));
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= known.size()) else {
            return Err(LoadError::Outside {
                what: "segment",
                begin: offset,
                end: offset.saturating_add(bytes),
                size: known.size(),
            });
        };
        if bytes > memory_bytes {
            return refuse("has more bytes in the file than in memory");
        }
        if offset % PAGE_BYTES != address % PAGE_BYTES {
            return refuse("does not begin at the same place of a page in the file and in memory");
        }
        if address
            .checked_add(memory_bytes)
            .is_none_or(|end| end > ADDRESS_END)
        {
            return refuse("lies where no program can be");
        }
        if segments
            .last()
            .is_some_and(|last| address < last.memory().end)
        {
            return refuse("overlaps the one before it, or is out of order");
        }
        let flags = header.p_flags(Le);
        segments.push(Segment {
            file: offset..end,
            address,
            memory_bytes,
            protection: Protection {
                read: flags.contains(PF_R),
                write: flags.contains(PF_W),
                execute: flags.contains(PF_X),
            },
        });
    }
    match segments.is_empty() {
        true => Err(LoadError::Nothing),
        false => Ok(segments),
    }
}

fn interpreter(
    known: &Known,
    headers: &[ProgramHeader64<Le>],
) -> Result<Option<String>, LoadError> {
    let Some(header) = find(headers, PT_INTERP) else {
        return Ok(None);
    };
    let (offset, bytes) = (header.p_offset(Le), header.p_filesz(Le));
    if !(2..=PATH_MAX).contains(&bytes) {
        return Err(LoadError::Interpreter("is too short or too long"));
    }
    let name = known.bytes("name of the dynamic linker", offset, bytes)?;
    let Some((0, name)) = name.split_last() else {
        return Err(LoadError::Interpreter("does not end with a zero"));
    };
    let end = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    match core::str::from_utf8(&name[..end]) {
        Ok(name) if !name.is_empty() => Ok(Some(name.to_string())),
        Ok(_) => Err(LoadError::Interpreter("is empty")),
        Err(_) => Err(LoadError::Interpreter("is no UTF-8")),
    }
}

/// What Linux reads of the file during `execve`, and what it writes copies of.
fn before_start(
    header: &FileHeader64<Le>,
    headers: &[ProgramHeader64<Le>],
    segments: &[Segment],
    size: u64,
) -> Vec<Range<u64>> {
    let table = header.e_phoff(Le);
    let table = table..table + headers.len() as u64 * ENTRY_BYTES;
    let mut ranges = [0..HEAD_BYTES.min(size), table].to_vec();
    for header in headers {
        if matches!(header.p_type(Le), PT_INTERP | PT_GNU_PROPERTY) {
            let offset = header.p_offset(Le);
            ranges.push(offset..offset.saturating_add(header.p_filesz(Le)));
        }
    }
    for segment in segments {
        let end = segment.contents_end();
        let in_page = end % PAGE_BYTES != 0 && !segment.file.is_empty();
        if in_page && end < segment.memory().end {
            // The rest of that page is overwritten with zeros, in a copy.
            ranges.push(segment.file.end - 1..segment.file.end);
        }
    }
    ranges
}

/// The pages of `ranges` that the file has, in order and each once.
fn whole_pages(ranges: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    let whole = |range: Range<u64>| {
        let end = range.end.min(size).next_multiple_of(PAGE_BYTES).min(size);
        range.start / PAGE_BYTES * PAGE_BYTES..end
    };
    let mut ranges: Vec<Range<u64>> = ranges.into_iter().map(whole).collect();
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

fn commands(
    headers: &[ProgramHeader64<Le>],
    segments: &[Segment],
    entry: u64,
    interpreter: Option<String>,
    dynamic: &Dynamic,
) -> Vec<Command> {
    let mut commands = Vec::new();
    for segment in segments {
        let (file, protection) = (segment.file.clone(), segment.protection);
        let address = segment.address..segment.contents_end();
        if !file.is_empty() {
            commands.push(match protection.write {
                true => Command::Writeable {
                    file,
                    address,
                    protection,
                },
                false => Command::ReadOnly {
                    file,
                    address,
                    protection,
                },
            });
        }
        let zeros = segment.contents_end()..segment.memory().end;
        if !zeros.is_empty() {
            commands.push(Command::ZeroFill { address: zeros });
        }
    }
    let file = |role| move |name| Command::LoadFile { name, role };
    commands.extend(interpreter.map(file(Role::Interpreter)));
    commands.extend(dynamic.libraries.iter().cloned().map(file(Role::Library)));
    commands.extend(dynamic.relocations.iter().cloned());
    let stack = find(headers, PT_GNU_STACK);
    commands.push(Command::Register {
        entry,
        tls_bytes: find(headers, PT_TLS).map_or(0, |tls| tls.p_memsz(Le)),
        executable_stack: stack.is_none_or(|stack| stack.p_flags(Le).contains(PF_X)),
    });
    commands.push(Command::EndLoad);
    commands
}
