//! Symbols of libraries that are in memory.

use core::ffi::CStr;

use crate::file;
use crate::linux::general as g;

const PT_DYNAMIC: u32 = 2;
const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
/// Bytes of `/proc/self/auxv` that are looked at.
const AUXV_BYTES: usize = 1024;
/// More symbols than this has no library that is looked at.
const SYMBOLS_MAX: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    rest: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u32,
    value: u64,
    size: u64,
}

/// Where the dynamic linker of this program lies. `None` in a program without one.
pub fn dynamic_linker() -> Option<usize> {
    const AT_BASE: usize = 7;
    let mut bytes = [0u8; AUXV_BYTES];
    let fd = file::open(c"/proc/self/auxv", g::O_CLOEXEC, 0).ok()?;
    let got = file::read(fd, &mut bytes);
    file::close(fd);
    let (words, _) = bytes[..got.ok()?].as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let found = pairs
        .iter()
        .map(|pair| pair.map(usize::from_le_bytes))
        .find(|[kind, _]| *kind == AT_BASE);
    found.map(|[_, base]| base).filter(|base| *base != 0)
}

/// The address of the symbol `name` in the library whose first byte lies at `base`.
///
/// # Safety
/// A 64-bit ELF library that the dynamic linker has loaded must lie there.
pub unsafe fn find(base: usize, name: &CStr) -> Option<usize> {
    // SAFETY: for this and the others: the library's own headers and tables.
    let half = |at: usize| unsafe { (at as *const u16).read_unaligned() };
    // SAFETY: as above.
    let word = |at: usize| unsafe { (at as *const usize).read_unaligned() };
    let (table, count) = (base + word(base + 32), half(base + 56));
    let segments = (0..usize::from(count)).map(|i| {
        // SAFETY: as above.
        unsafe { ((table + i * size_of::<Segment>()) as *const Segment).read_unaligned() }
    });
    let dynamic = segments.into_iter().find(|s| s.kind == PT_DYNAMIC)?;
    let dynamic = base + dynamic.address as usize;
    let entry = |tag: usize| {
        let entries = (0..SYMBOLS_MAX).map(|i| dynamic + i * 16);
        let mut entries = entries.take_while(|at| word(*at) != DT_NULL);
        let value = word(entries.find(|at| word(*at) == tag)? + 8);
        // Some dynamic linkers relocate these in place.
        Some(if value < base { base + value } else { value })
    };
    let (symbols, names) = (entry(DT_SYMTAB)?, entry(DT_STRTAB)?);
    // Linkers put the names right behind the symbols.
    let count = names.checked_sub(symbols)? / size_of::<Symbol>();
    (0..count.min(SYMBOLS_MAX)).find_map(|i| {
        // SAFETY: as above.
        let symbol =
            unsafe { ((symbols + i * size_of::<Symbol>()) as *const Symbol).read_unaligned() };
        // SAFETY: as above; names end with a zero.
        let same = unsafe { CStr::from_ptr((names + symbol.name as usize) as *const _) } == name;
        (same && symbol.value != 0).then_some(base + symbol.value as usize)
    })
}

/// glibc's `__rseq_offset`: where its threads keep their restartable-sequences area, from the
/// thread pointer. `None` before glibc 2.35 and where it registers none.
pub fn rseq_offset() -> Option<isize> {
    let linker = dynamic_linker()?;
    // SAFETY: Linux says that the dynamic linker lies there.
    let [offset, size] =
        [c"__rseq_offset", c"__rseq_size"].map(|name| unsafe { find(linker, name) });
    // SAFETY: symbols of these types, set before the program starts.
    let size = unsafe { (size? as *const u32).read() };
    // SAFETY: as above.
    (size > 0).then_some(unsafe { (offset? as *const isize).read() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn the_processor_of_a_thread_is_in_its_area() {
        // Only a C library without them has none.
        let Some(offset) = rseq_offset() else { return };
        let distance = thread::rseq_from_list(offset).expect("a list");
        let own = crate::process::thread_id();
        let seen = || thread::cpu_by_rseq(own, distance, 0..usize::MAX);
        let same = (0..100).any(|_| seen() == Some(thread::current_cpu()));
        assert!(same, "{:?} is not {}", seen(), thread::current_cpu());
        assert_eq!(thread::cpu_by_rseq(own, distance, 0..1), None);
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        if let Some(linker) = dynamic_linker() {
            // SAFETY: the dynamic linker lies there.
            let found = unsafe { find(linker, c"no such symbol") };
            assert_eq!(found, None);
        }
    }
}
