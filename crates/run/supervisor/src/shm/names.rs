//! Names that tasks make in a run, and their removal.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farpage_object::shm::Ipc;
use farpage_sys::ipc;

use super::FOLDER;

/// Folders in folders that are looked into.
const DEPTH: usize = 8;

/// Something with a name, or a number, that outlives who made it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MadeName {
    /// A file: its device and inode number.
    File(u64, u64),
    /// What System V has by a number.
    Ipc(Ipc, u32),
    /// A message queue of POSIX, with the slash before its name.
    Queue(String),
}

impl MadeName {
    /// As it is noted.
    pub fn to_line(&self) -> String {
        match self {
            Self::File(device, inode) => format!("file {device} {inode}"),
            Self::Ipc(what, number) => format!("ipc {} {number}", *what as u64),
            Self::Queue(name) => format!("queue {name}"),
        }
    }

    /// As it was noted.
    pub fn from_line(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        let two = || rest.split_once(' ');
        match kind {
            "file" => Some(Self::File(two()?.0.parse().ok()?, two()?.1.parse().ok()?)),
            "ipc" => {
                let what = Ipc::from_raw(two()?.0.parse().ok()?)?;
                Some(Self::Ipc(what, two()?.1.parse().ok()?))
            }
            "queue" => Some(Self::Queue(rest.to_string())),
            _ => None,
        }
    }
}

/// Something that a task was about to make when it ended.
pub enum Making {
    /// A file of that name, in a folder.
    File(OwnedFd, OsString),
    /// A message queue of POSIX.
    Queue(String),
    /// What System V has by numbers: its key, and the process.
    Ipc(Ipc, u32, u32),
}

/// What is there of that, and how to remove it.
pub struct FoundName {
    /// As it would have been noted.
    pub name: MadeName,
    path: Option<PathBuf>,
}

impl Making {
    /// What there is of it. What had a name before was not about to be made.
    pub fn find(&self) -> Vec<FoundName> {
        let found = |name| vec![FoundName { name, path: None }];
        match self {
            Self::File(folder, name) => {
                let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
                let path = path.join(name);
                let about = fs::symlink_metadata(&path);
                let file = about
                    .ok()
                    .filter(|about| about.is_file() && about.len() == 0);
                let found = |about: fs::Metadata| FoundName {
                    name: MadeName::File(about.dev(), about.ino()),
                    path: Some(path),
                };
                file.map(found).into_iter().collect()
            }
            Self::Queue(name) => found(MadeName::Queue(format!("/{name}"))),
            Self::Ipc(Ipc::Segment | Ipc::HugeSegment, _, process) => segments_by(*process),
            // Nothing tells who made those that have no key.
            Self::Ipc(_, 0, _) => Vec::new(),
            Self::Ipc(what, key, _) => {
                let number = match what {
                    Ipc::Semaphores => ipc::semaphores_of(*key),
                    _ => ipc::messages_of(*key),
                };
                number.map_or_else(|_| Vec::new(), |number| found(MadeName::Ipc(*what, number)))
            }
        }
    }
}

/// Segments that a process has made.
fn segments_by(process: u32) -> Vec<FoundName> {
    let text = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let segment = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = words.nth(1)?.parse().ok()?;
        let made_by: u32 = words.nth(2)?.parse().ok()?;
        (made_by == process).then_some(FoundName {
            name: MadeName::Ipc(Ipc::Segment, number),
            path: None,
        })
    };
    text.lines().skip(1).filter_map(segment).collect()
}

impl FoundName {
    /// Removes it. False when it was gone.
    pub fn remove(self) -> bool {
        match self.path {
            Some(path) => fs::remove_file(path).is_ok(),
            None => remove([&self.name].into_iter()) > 0,
        }
    }
}

/// Removes what of `names` is still there. Returns how many were.
pub fn remove<'a>(names: impl Iterator<Item = &'a MadeName>) -> u64 {
    let (mut files, mut count) = (HashSet::new(), 0);
    for name in names {
        let removed = match name {
            MadeName::File(device, inode) => {
                files.insert((*device, *inode));
                false
            }
            MadeName::Ipc(Ipc::Segment | Ipc::HugeSegment, number) => {
                ipc::remove_segment(*number).is_ok()
            }
            MadeName::Ipc(Ipc::Semaphores, number) => ipc::remove_semaphores(*number).is_ok(),
            MadeName::Ipc(Ipc::Messages, number) => ipc::remove_messages(*number).is_ok(),
            MadeName::Queue(name) => ipc::remove_queue(name.trim_start_matches('/')).is_ok(),
        };
        count += u64::from(removed);
    }
    if !files.is_empty() {
        count += remove_files(Path::new(FOLDER), &files, DEPTH);
    }
    count
}

fn remove_files(folder: &Path, files: &HashSet<(u64, u64)>, depth: usize) -> u64 {
    let mut count = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if about.is_dir() && depth > 0 {
            count += remove_files(&entry.path(), files, depth - 1);
        } else if files.contains(&(about.dev(), about.ino())) {
            count += u64::from(fs::remove_file(entry.path()).is_ok());
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_noted() {
        for name in [
            MadeName::File(27, 12345),
            MadeName::Ipc(Ipc::Semaphores, 98304),
            MadeName::Queue("/a queue".to_string()),
        ] {
            assert_eq!(MadeName::from_line(&name.to_line()), Some(name));
        }
        for nonsense in ["", "file", "file 1", "ipc 9 1", "other 1 2"] {
            assert_eq!(MadeName::from_line(nonsense), None, "{nonsense}");
        }
    }
}
