//! What programs that are executed get to know of the shared memory of who executes them.
//!
//! A memory file of a known name, open over exec as the objects are, says which object lies where.
//! It is never changed, only replaced: a child that was forked has that of the moment of its fork,
//! and the descriptors of that moment.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::fmt::Write;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use farpage_client::Host;
use farpage_sys::area::{Area, Place};
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, Result, memory_file, process};

use crate::map::{Backing, Map, Piece};
use crate::object::Object;
use crate::space::{BOUNDS, State, addresses, is_given, lay};
use crate::{Inheritance, ObjectName, PAGE_BYTES, Protection};

const NAME: &std::ffi::CStr = c"farpage-inheritance";
const LINK: &str = "/memfd:farpage-inheritance (deleted)";

/// Shared memory of who executed this program is not here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot map {bytes} bytes at {address:#x}, which this program inherits: {why}; memory there \
     must be left free until AddressSpace::own() was called"
)]
pub struct InheritError {
    /// Where it should be.
    pub address: u64,
    /// How much it is.
    pub bytes: u64,
    /// What Linux or the host kernel says.
    pub why: String,
}

/// The descriptor of the note, when there is something to say.
#[derive(Debug, Default)]
pub(crate) struct Note(Option<OwnedFd>);

/// A line of it.
struct Entry {
    range: Range<u64>,
    protection: Protection,
    max_protection: Protection,
    descriptor: i32,
    name: ObjectName,
    object_bytes: u64,
    offset: u64,
    /// Of the host kernel whose object it is.
    host: Option<String>,
}

/// Maps what the note of this program says, and takes note of it.
pub(crate) fn inherit(area: &Area, state: &mut State) -> std::result::Result<(), InheritError> {
    let Some((number, text)) = find() else {
        return Ok(());
    };
    let mut objects = HashMap::new();
    for entry in text.lines().filter_map(Entry::read) {
        let fails = |why| InheritError {
            address: entry.range.start,
            bytes: entry.range.end - entry.range.start,
            why,
        };
        let object = match objects.entry(entry.descriptor) {
            Occupied(there) => Option::clone(there.get()),
            Vacant(new) => {
                let object = entry.object(area, state).map_err(fails)?;
                new.insert(object.map(Arc::new)).clone()
            }
        };
        // Else it came after this program's process was made.
        let Some(object) = object else { continue };
        let piece = Piece {
            protection: entry.protection,
            max_protection: entry.max_protection,
            inheritance: Inheritance::Share,
            backing: Backing::Shared(Arc::clone(&object), entry.offset),
        };
        let laid = match object.view() {
            None => lay(area, &entry.range, &piece, Place::Free),
            Some(_) => area.protect(&addresses(&entry.range), piece.protection.access()),
        };
        laid.map_err(|errno| fails(errno.to_string()))?;
        state.map.put(&entry.range, piece);
    }
    let views = objects.values().flatten().filter_map(|object| {
        let view = object.view()?.range.clone();
        Some((view, Arc::downgrade(object)))
    });
    state.views.extend(views);
    state.note = Note(process::inherited(number).ok());
    // Descriptors have other numbers now. Without one for a note, children have none.
    if state.note.write(&state.map).is_err() {
        state.note = Note::default();
    }
    Ok(())
}

impl Note {
    /// Says what is shared now.
    pub(crate) fn write(&mut self, map: &Map) -> Result<()> {
        let mut text = String::new();
        for (range, piece) in map.all().iter().filter(|(_, piece)| is_given(piece)) {
            if let Backing::Shared(object, offset) = &piece.backing {
                entry(range, piece, object, *offset).write(&mut text);
            }
        }
        if text.is_empty() {
            self.0 = None;
            return Ok(());
        }
        let file = memory_file::create(NAME, 0)?;
        file::pwrite_all(Fd(file.as_raw_fd()), text.as_bytes(), 0)?;
        memory_file::seal(file.as_fd(), memory_file::FIXED | memory_file::WRITE)?;
        let keep = |file: &OwnedFd| {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).map_err(errno)
        };
        match &mut self.0 {
            Some(note) => rustix::io::dup2(&file, note).map_err(errno),
            none => keep(&file).map(|()| *none = Some(file)),
        }
    }
}

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno(errno.raw_os_error())
}

/// The note's descriptor and what it says.
fn find() -> Option<(i32, String)> {
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let is_note = std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == LINK);
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let (true, Some(number)) = (is_note, number) {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            return Some((number, text));
        }
    }
    None
}

fn entry(range: &Range<u64>, piece: &Piece, object: &Object, offset: u64) -> Entry {
    Entry {
        range: range.clone(),
        protection: piece.protection,
        max_protection: piece.max_protection,
        descriptor: object.file().as_raw_fd(),
        name: object.name(),
        object_bytes: object.bytes(),
        offset,
        host: object.view().map(|view| view.path.display().to_string()),
    }
}

impl Entry {
    /// What it is of; an object of a host kernel's is mapped then, and not accessible.
    fn object(
        &self,
        area: &Area,
        state: &mut State,
    ) -> std::result::Result<Option<Object>, String> {
        let Some(path) = &self.host else {
            return Ok(Object::inherited(
                self.descriptor,
                self.name,
                self.object_bytes,
            ));
        };
        let file = Object::inherited_file(self.descriptor, self.name, self.object_bytes);
        let Some(file) = file else {
            return Ok(None);
        };
        if state.host.is_none() {
            let host = Host::connect(path.as_ref());
            state.host = Some(host.map_err(|error| error.to_string())?);
        }
        let host = state.host.as_ref().ok_or("no host kernel")?;
        let start = self.range.start - self.offset;
        let all = start..start + self.object_bytes;
        let object = Object::inherited_of_host(host, area, &all, file)?;
        let hidden = area.protect(&addresses(&all), Protection::NONE.access());
        hidden.map_err(|errno| errno.to_string())?;
        Ok(Some(object))
    }

    fn write(&self, text: &mut String) {
        let Self {
            range,
            descriptor,
            name,
            object_bytes,
            offset,
            host,
            ..
        } = self;
        let host = host.as_deref().unwrap_or("-");
        let (protection, most) = (flags(self.protection), flags(self.max_protection));
        let (start, end) = (range.start, range.end);
        let ObjectName { device, inode } = name;
        writeln!(
            text,
            "{start:x}-{end:x} {protection} {most} {descriptor} {device} {inode} {object_bytes} \
             {offset} {host}"
        )
        .expect("writing to a string");
    }

    /// `None` for what makes no sense.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(9, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |word| u64::from_str_radix(word, 16).ok();
        let range = hex(start)?..hex(end)?;
        let protection = protection(words.next()?)?;
        let max_protection = self::protection(words.next()?)?;
        let descriptor = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let entry = Self {
            range,
            protection,
            max_protection,
            descriptor,
            name: ObjectName {
                device: number()?,
                inode: number()?,
            },
            object_bytes: number()?,
            offset: number()?,
            host: match words.next()? {
                "-" => None,
                path => Some(path.to_owned()),
            },
        };
        let Range { start, end } = entry.range;
        let is_whole = [start, end, entry.offset]
            .iter()
            .all(|at| at.is_multiple_of(PAGE_BYTES));
        let is_inside = BOUNDS.start <= start && start < end && end <= BOUNDS.end;
        let last = entry.offset.checked_add(end.checked_sub(start)?)?;
        let first = start.checked_sub(entry.offset)?;
        // All of an object of a host kernel's is mapped.
        let is_inside = is_inside
            && (entry.host.is_none()
                || (BOUNDS.start <= first && first.checked_add(entry.object_bytes)? <= BOUNDS.end));
        (is_whole && is_inside && last <= entry.object_bytes).then_some(entry)
    }
}

fn flags(protection: Protection) -> String {
    let Protection {
        read,
        write,
        execute,
    } = protection;
    let flag = |is, flag| if is { flag } else { '-' };
    [flag(read, 'r'), flag(write, 'w'), flag(execute, 'x')]
        .iter()
        .collect()
}

fn protection(flags: &str) -> Option<Protection> {
    let [read, write, execute] = flags.as_bytes() else {
        return None;
    };
    Some(Protection {
        read: *read == b'r',
        write: *write == b'w',
        execute: *execute == b'x',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_makes_no_sense_is_left_out() {
        let line = "680000000000-680000002000 rw- rwx 9 1 77 16384 4096 -";
        let entry = Entry::read(line).unwrap();
        let mut text = String::new();
        entry.write(&mut text);
        assert_eq!(text.trim_end(), line);
        assert_eq!((entry.descriptor, entry.offset), (9, 4096));
        let of_host = Entry::read("680000001000-680000002000 rw- rwx 9 1 77 16384 4096 /a b/c");
        assert_eq!(of_host.unwrap().host.unwrap(), "/a b/c");
        for (from, to) in [
            ("680000002000", "680000002001"),
            ("680000000000", "1000"),
            ("16384", "8192"),
            ("rwx", "rw"),
            ("4096 ", "18446744073709547520 "),
            (" 4096", ""),
            (" 16384 4096 -", " 17592186044416 4096 /run/host"),
        ] {
            let wrong = line.replacen(from, to, 1);
            assert!(Entry::read(&wrong).is_none(), "{wrong}");
        }
    }
}
