//! What kind of program a file is, as far as the agent's way into it depends on that.

use core::ffi::CStr;

use crate::file::{self, Fd};
use crate::raw::Result;

/// What executing a file means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A program that glibc's dynamic linker starts: it loads what `LD_PRELOAD` names.
    Dynamic,
    /// Any other 64-bit program: the agent must be mapped into it from outside. So must it be where
    /// code of the program runs before that of libraries, and into what a registered interpreter of programs
    /// for another machine is (qemu-user, say).
    Static,
    /// A 32-bit program, which this processor runs: without the agent.
    Foreign,
    /// Not seen: it cannot be read, or it is nothing that this code knows. Executing it either
    /// fails, or a registered interpreter takes it.
    Unknown,
}

/// What the first bytes of a file say.
enum Start {
    Program(Image),
    /// `#!`: length of the interpreter's name, in the buffer from `from`.
    Script {
        from: usize,
        to: usize,
    },
}

/// Bytes that Linux looks at to tell what a file is.
const HEAD_BYTES: usize = 256;
/// Scripts that name scripts: as deep as Linux goes.
const SCRIPTS_MAX: usize = 5;
/// A program with more thread-local storage makes the dynamic linker map memory that the filter
/// traps, before the agent is there.
const TLS_MAX_BYTES: u64 = 64 << 10;
const PATH_BYTES: usize = 256;

const CLASS_64: u8 = 2;
const X86_64: u16 = 62;
const I386: u16 = 3;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const ENTRY_BYTES: usize = 56;
const ENTRIES_MAX: usize = 64;
const TABLE_BYTES: usize = ENTRY_BYTES * ENTRIES_MAX;
const PT_LOAD: u32 = 1;
/// Functions of the program that run first of all.
const DT_PREINIT_ARRAY: u64 = 32;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const SYMBOL_BYTES: u64 = 24;
/// Symbols that are looked at for one name.
const CHAIN_MAX: u32 = 64;
/// A function of MemorySanitizer: a program that has it wants the addresses where the agent's memory would be,
/// and takes them after the libraries have started.
const TAKES_ADDRESSES: &[u8; 12] = b"__msan_init\0";
const DYNAMIC_BYTES: usize = 16;
const DYNAMIC_MAX: usize = 64;

/// Finds out what executing the open file `fd` means; follows `#!`. What Linux will execute for that is
/// told to `before` it is looked at.
pub fn inspect(fd: Fd, mut before: impl FnMut(Fd)) -> Image {
    let mut head = [0; HEAD_BYTES];
    let mut path = [0; PATH_BYTES];
    before(fd);
    let mut start = look(fd, &mut head);
    for _ in 0..SCRIPTS_MAX {
        match start {
            Err(_) => return Image::Unknown,
            Ok(Start::Program(image)) => return image,
            Ok(Start::Script { from, to }) => {
                path.fill(0);
                path[..to - from].copy_from_slice(&head[from..to]);
            }
        }
        let Ok(name) = CStr::from_bytes_until_nul(&path) else {
            return Image::Unknown;
        };
        let flags = linux_raw_sys::general::O_CLOEXEC;
        let Ok(interpreter) = file::with_room(|| file::open(name, flags, 0)) else {
            return Image::Unknown;
        };
        before(interpreter);
        start = look(interpreter, &mut head);
        file::close(interpreter);
    }
    Image::Unknown
}

fn look(fd: Fd, head: &mut [u8; HEAD_BYTES]) -> Result<Start> {
    head.fill(0);
    let got = file::pread(fd, head, 0)?;
    let seen = &head[..got];
    if let Some(line) = seen.strip_prefix(b"#!") {
        let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
        let skipped = line.iter().take_while(|byte| blank(byte)).count();
        let ends = |byte: &u8| blank(byte) || *byte == b'\n' || *byte == 0;
        let length = line[skipped..]
            .iter()
            .take_while(|byte| !ends(byte))
            .count();
        if length == 0 || length >= PATH_BYTES {
            return Ok(Start::Program(Image::Unknown));
        }
        let from = 2 + skipped;
        return Ok(Start::Script {
            from,
            to: from + length,
        });
    }
    if seen.len() < 64 || !seen.starts_with(b"\x7fELF") {
        return Ok(Start::Program(Image::Unknown));
    }
    match (u16_at(seen, 18), seen[4]) {
        (X86_64, CLASS_64) => program(fd, seen).map(Start::Program),
        (X86_64 | I386, _) => Ok(Start::Program(Image::Foreign)),
        _ => Ok(Start::Program(Image::Static)),
    }
}

/// True of a program that the agent must be in before any of its libraries: it has code that runs before
/// theirs, or it takes addresses that the agent would use.
pub fn is_before_libraries(fd: Fd) -> bool {
    let mut head = [0; HEAD_BYTES];
    let mut table = [0; TABLE_BYTES];
    if !matches!(look(fd, &mut head), Ok(Start::Program(image)) if image != Image::Unknown) {
        return false;
    }
    let Ok(Some(entries)) = entries(fd, &head, &mut table) else {
        return false;
    };
    entries.chunks_exact(ENTRY_BYTES).any(|entry| {
        let is_dynamic = u32_at(entry, 0) == PT_DYNAMIC;
        is_dynamic && Dynamic::read(fd, entries, entry).is_ok_and(|section| section.is_first())
    })
}

/// The table of what is mapped; `None` of a file that has no such.
fn entries<'a>(fd: Fd, head: &[u8], to: &'a mut [u8; TABLE_BYTES]) -> Result<Option<&'a [u8]>> {
    let entries = u16_at(head, 56) as usize;
    if u16_at(head, 54) as usize != ENTRY_BYTES || entries > ENTRIES_MAX {
        return Ok(None);
    }
    let bytes = &mut to[..ENTRY_BYTES * entries];
    let got = file::pread(fd, bytes, u64_at(head, 32))?;
    Ok((got == bytes.len()).then_some(bytes))
}

fn program(fd: Fd, head: &[u8]) -> Result<Image> {
    let mut table = [0; TABLE_BYTES];
    let Some(bytes) = entries(fd, head, &mut table)? else {
        return Ok(Image::Unknown);
    };
    let mut image = Image::Static;
    let mut is_first = false;
    for entry in bytes.chunks_exact(ENTRY_BYTES) {
        match u32_at(entry, 0) {
            PT_INTERP if is_glibc(fd, u64_at(entry, 8), u64_at(entry, 32))? => {
                image = Image::Dynamic;
            }
            PT_TLS if u64_at(entry, 40) > TLS_MAX_BYTES => return Ok(Image::Static),
            PT_DYNAMIC => is_first = Dynamic::read(fd, bytes, entry)?.is_first(),
            _ => {}
        }
    }
    Ok(if is_first { Image::Static } else { image })
}

/// The dynamic section of a program.
struct Dynamic<'a> {
    fd: Fd,
    /// Says where in the file an address lies.
    entries: &'a [u8],
    section: [u8; DYNAMIC_BYTES * DYNAMIC_MAX],
}

impl<'a> Dynamic<'a> {
    fn read(fd: Fd, entries: &'a [u8], entry: &[u8]) -> Result<Self> {
        let mut section = [0; DYNAMIC_BYTES * DYNAMIC_MAX];
        let length = section.len().min(u64_at(entry, 32) as usize);
        file::pread(fd, &mut section[..length], u64_at(entry, 8))?;
        Ok(Self {
            fd,
            entries,
            section,
        })
    }

    fn is_first(&self) -> bool {
        self.value(DT_PREINIT_ARRAY).is_some() || self.defines(TAKES_ADDRESSES).unwrap_or(false)
    }

    fn value(&self, tag: u64) -> Option<u64> {
        let mut entries = self.section.chunks_exact(DYNAMIC_BYTES);
        let found = entries.find(|entry| u64_at(entry, 0) == tag)?;
        Some(u64_at(found, 8))
    }

    /// The bytes of the file that will be at `address`.
    fn at<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let place = self.entries.chunks_exact(ENTRY_BYTES).find_map(|entry| {
            let inside = address.checked_sub(u64_at(entry, 16))?;
            let is_here = u32_at(entry, 0) == PT_LOAD && inside < u64_at(entry, 32);
            is_here.then(|| u64_at(entry, 8).wrapping_add(inside))
        })?;
        let mut bytes = [0; N];
        let got = file::pread(self.fd, &mut bytes, place).ok()?;
        (got == N).then_some(bytes)
    }

    /// Looks a symbol up by its name, which ends with a zero, as the dynamic linker does.
    fn defines<const N: usize>(&self, name: &[u8; N]) -> Option<bool> {
        let [strings, symbols, table] =
            [DT_STRTAB, DT_SYMTAB, DT_GNU_HASH].map(|tag| self.value(tag));
        let (strings, symbols, table) = (strings?, symbols?, table?);
        let head: [u8; 16] = self.at(table)?;
        let [buckets, first, words, shift] = [0, 4, 8, 12].map(|at| u32_at(&head, at));
        if buckets == 0 || words == 0 {
            return None;
        }
        let hash = gnu_hash(&name[..N - 1]);
        let word = u64::from(hash / 64 % words);
        let filter = u64::from_le_bytes(self.at(table + 16 + 8 * word)?);
        let bits = 1 << (hash % 64) | 1 << (hash.wrapping_shr(shift) % 64);
        if filter & bits != bits {
            return Some(false);
        }
        let lists = table + 16 + 8 * u64::from(words);
        let bucket = u64::from(hash % buckets);
        let start = u32::from_le_bytes(self.at(lists + 4 * bucket)?);
        let chain = lists + 4 * u64::from(buckets);
        for index in start.checked_sub(first)?..(start - first).saturating_add(CHAIN_MAX) {
            let other = u32::from_le_bytes(self.at(chain + 4 * u64::from(index))?);
            let symbol = symbols + SYMBOL_BYTES * (u64::from(index) + u64::from(first));
            if other | 1 == hash | 1 {
                let at = u32::from_le_bytes(self.at(symbol)?);
                if self.at::<N>(strings + u64::from(at))? == *name {
                    return Some(true);
                }
            }
            if other & 1 == 1 {
                break;
            }
        }
        Some(false)
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    let add = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.iter().fold(5381, add)
}

fn is_glibc(fd: Fd, at: u64, bytes: u64) -> Result<bool> {
    let mut name = [0; PATH_BYTES];
    let length = (bytes as usize).min(PATH_BYTES);
    file::pread(fd, &mut name[..length], at)?;
    let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
    Ok(base.starts_with(b"ld-linux-x86-64.so"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn image_of(path: &Path) -> Image {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let fd = file::open(&name, 0, 0).unwrap();
        let image = inspect(fd, |_| ());
        file::close(fd);
        image
    }

    fn written(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(std::format!("elf-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn this_test_is_dynamic_and_so_is_what_a_script_names() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(image_of(&own), Image::Dynamic);
        let line = std::format!("#! \t{} -x\nrest", own.display());
        let script = written("script", line.as_bytes());
        assert_eq!(image_of(&script), Image::Dynamic);
        let outer = written("outer", std::format!("#!{}\n", script.display()).as_bytes());
        assert_eq!(image_of(&outer), Image::Dynamic);
        for path in [script, outer] {
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_program_without_interpreter_is_static() {
        let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let table = u64_at(&bytes, 32) as usize;
        for index in 0..u16_at(&bytes, 56) as usize {
            let entry = table + index * ENTRY_BYTES;
            if u32_at(&bytes, entry) == PT_INTERP {
                bytes[entry..entry + 4].fill(0);
            }
        }
        let path = written("static", &bytes);
        assert_eq!(image_of(&path), Image::Static);
        bytes[18] = 3;
        bytes[4] = 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(image_of(&path), Image::Foreign);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_program_whose_code_runs_before_that_of_libraries_takes_the_agent_from_outside() {
        const DT_DEBUG: u64 = 21;
        let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let before = written("before", &bytes);
        let (table, count) = (u64_at(&bytes, 32) as usize, u16_at(&bytes, 56) as usize);
        let entries = (0..count).map(|index| table + index * ENTRY_BYTES);
        let mut dynamic = entries.filter(|entry| u32_at(&bytes, *entry) == PT_DYNAMIC);
        let section = u64_at(&bytes, dynamic.next().unwrap() + 8) as usize;
        let places = (0..DYNAMIC_MAX).map(|index| section + index * DYNAMIC_BYTES);
        let mut debug = places.filter(|place| u64_at(&bytes, *place) == DT_DEBUG);
        let place = debug.next().unwrap();
        bytes[place] = DT_PREINIT_ARRAY as u8;
        let after = written("after", &bytes);
        for (path, image, is_first) in [
            (&before, Image::Dynamic, false),
            (&after, Image::Static, true),
        ] {
            assert_eq!(image_of(path), image);
            let name = CString::new(path.to_str().unwrap()).unwrap();
            let fd = file::open(&name, 0, 0).unwrap();
            assert_eq!(is_before_libraries(fd), is_first);
            file::close(fd);
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn what_is_no_program_is_unknown() {
        let cases: [&[u8]; 5] = [
            b"",
            b"echo hello\n",
            b"#!\n",
            b"#!/no/such/file\n",
            b"\x7fELF",
        ];
        for case in cases {
            let path = written("other", case);
            assert_eq!(image_of(&path), Image::Unknown, "{case:?}");
            fs::remove_file(path).unwrap();
        }
        let path = written("loop", b"");
        fs::write(&path, std::format!("#!{}\n", path.display())).unwrap();
        assert_eq!(image_of(&path), Image::Unknown);
        fs::remove_file(path).unwrap();
    }
}
