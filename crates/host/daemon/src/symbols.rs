//! Where in a program a thread is: its process, and the function, by the symbols of its files.

use std::collections::HashMap;
use std::fs;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// Bytes of a program that is read at most.
const PROGRAM_BYTES_MAX: u64 = 128 << 20;
/// Places and programs that are kept at most.
const KEPT_MAX: usize = 4096;

/// Places that were looked up, and the functions of programs.
#[derive(Default)]
pub struct Symbols {
    processes: HashMap<u32, String>,
    places: HashMap<(u32, u64), String>,
    programs: HashMap<(u64, String), Program>,
}

/// The functions of a file: where each begins, how long it is, what it is called.
#[derive(Default)]
struct Program {
    functions: Vec<(u64, u64, String)>,
    /// Where parts of the file lie: from byte, so many, to address.
    parts: Vec<(u64, u64, u64)>,
}

impl Symbols {
    /// The process of a thread, its name, and where it is in its program: `71 python3 in add
    /// (/usr/bin/x)`. It may have ended; then what is left is said.
    pub fn place(&mut self, thread: u32, instruction: u64) -> String {
        if let Some(place) = self.places.get(&(thread, instruction)) {
            return place.clone();
        }
        let process = self.process(thread);
        let place = match self.function(thread, instruction) {
            Some(function) => format!("{process} in {function}"),
            None => process,
        };
        if self.places.len() >= KEPT_MAX {
            *self = Self::default();
        }
        self.places.insert((thread, instruction), place.clone());
        place
    }

    /// A thread's process, and the name of that.
    pub fn process(&mut self, thread: u32) -> String {
        let look = || {
            let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
            let field = |name: &str| {
                let value = status.lines().find_map(|line| line.strip_prefix(name));
                value.map(|value| value.trim().to_owned())
            };
            match (field("Tgid:"), field("Name:")) {
                (Some(process), Some(name)) => format!("{process} {name}"),
                _ => format!("thread {thread}"),
            }
        };
        self.processes.entry(thread).or_insert_with(look).clone()
    }

    fn function(&mut self, thread: u32, instruction: u64) -> Option<String> {
        if instruction == 0 {
            return None;
        }
        let maps = fs::read_to_string(format!("/proc/{thread}/maps")).ok()?;
        let (offset, inode, path) = maps.lines().find_map(|line| mapped(line, instruction))?;
        let key = (inode, path.to_owned());
        let program = self.programs.entry(key).or_insert_with(|| {
            // As the process sees it, which may have another root.
            let seen = format!("/proc/{thread}/root{path}");
            Program::read(&seen).unwrap_or_default()
        });
        let name = path.rsplit('/').next().unwrap_or(path);
        Some(match program.function(offset) {
            Some(function) => format!("{function} ({name})"),
            None => format!("{name}+{offset:#x}"),
        })
    }
}

/// Which byte of which file an address is, by a line of `maps`.
fn mapped(line: &str, address: u64) -> Option<(u64, u64, &str)> {
    let mut words = line.split_whitespace();
    let (first, end) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (first, end) = (hex(first)?, hex(end)?);
    let offset = hex(words.nth(1)?)?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    let path = &line[line.find('/')?..];
    (first..end)
        .contains(&address)
        .then(|| (address - first + offset, inode, path))
}

impl Program {
    fn read(path: &str) -> Option<Self> {
        if fs::metadata(path).ok()?.len() > PROGRAM_BYTES_MAX {
            return None;
        }
        let bytes = fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let parts = file.segments().map(|part| {
            let (first, count) = part.file_range();
            (first, count, part.address())
        });
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let functions = symbols.filter(|one| one.kind() == SymbolKind::Text && one.address() != 0);
        let functions = functions.filter_map(|one| {
            let name = one.name().ok()?.to_owned();
            Some((one.address(), one.size(), name))
        });
        let mut functions: Vec<_> = functions.collect();
        functions.sort();
        Some(Self {
            functions,
            parts: parts.collect(),
        })
    }

    fn function(&self, offset: u64) -> Option<&str> {
        let inside = |part: &&(u64, u64, u64)| (part.0..part.0 + part.1).contains(&offset);
        let (first, _, address) = self.parts.iter().find(inside)?;
        let at = offset - first + address;
        let after = self.functions.partition_point(|(begin, ..)| *begin <= at);
        let (begin, bytes, name) = self.functions[..after].last()?;
        (at < begin + bytes.max(&1)).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_that_is_looked_up() -> u32 {
        std::hint::black_box(7)
    }

    #[test]
    fn an_instruction_is_in_its_function() {
        assert_eq!(a_function_that_is_looked_up(), 7);
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let at = a_function_that_is_looked_up as fn() -> u32;
        let mut symbols = Symbols::default();
        let place = symbols.place(own, at as usize as u64);
        let process = std::process::id().to_string();
        assert!(place.starts_with(&process), "{place}");
        assert!(place.contains("a_function_that_is_looked_up"), "{place}");
        let nowhere = symbols.place(own, 0);
        assert!(!nowhere.contains(" in "), "{nowhere}");
    }

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f00-7f80 r-xp 00001000 fe:01 42   /usr/lib/a name.so";
        assert_eq!(
            mapped(line, 0x7f10),
            Some((0x1010, 42, "/usr/lib/a name.so"))
        );
        assert_eq!(mapped(line, 0x7f80), None);
        assert_eq!(mapped("7f00-7f80 rw-p 00000000 00:00 0", 0x7f10), None);
    }
}
