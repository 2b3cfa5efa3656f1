//! Paging files: unlinked from the start, so that nothing is left behind however a run ends.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use farpage_object::{SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX};
use farpage_sys::limits::{self, Resource};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, fstatfs, ftruncate, openat};
use rustix::io::Errno;

const TMPFS_MAGIC: u64 = 0x0102_1994;
/// All that a paging file can ever have in it.
const LENGTH: u64 = SEGMENTS_MAX as u64 * SEGMENT_BYTES as u64;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// An open paging file, with what its file system can do.
#[derive(Debug)]
pub struct OpenedPagingFile {
    /// Read and write, close-on-exec, unlinked.
    pub file: OwnedFd,
    /// Reads and writes bypass the page cache.
    pub direct: bool,
    /// The directory is memory (tmpfs): paging to it gains little.
    pub in_memory: bool,
}

/// The directories in which paging files are made when `--spill` is not given.
pub fn default_dir() -> PathBuf {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    from("FARPAGE_SPILL")
        .or_else(|| from("TMPDIR"))
        .map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Makes a paging file in `dir`.
///
/// # Errors
/// When `dir` is missing, no directory, not writable, or its file system has no unnamed files.
pub fn open_in(dir: &Path) -> Result<OpenedPagingFile> {
    let shown = dir.display();
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = match openat(rustix::fs::CWD, dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(Errno::NOENT) if dir.exists() => bail!(no_unnamed_files(dir)),
        Err(Errno::NOENT) => bail!(
            "cannot page to '{shown}': there is no such directory; \
             make it or give another with --spill"
        ),
        Err(Errno::NOTDIR) => {
            bail!("cannot page to '{shown}': it is not a directory; give a directory with --spill")
        }
        Err(Errno::ACCESS | Errno::PERM) => bail!(
            "cannot page to '{shown}': you may not make files there; give a directory of your own"
        ),
        Err(Errno::ROFS) => bail!(
            "cannot page to '{shown}': its file system is mounted read-only; \
             give another directory with --spill"
        ),
        Err(Errno::NOSPC | Errno::DQUOT) => bail!(
            "cannot page to '{shown}': its file system or your quota is full; \
             make room or give another directory with --spill"
        ),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => bail!(no_unnamed_files(dir)),
        Err(errno) => {
            bail!("cannot page to '{shown}': {errno}; give another directory with --spill")
        }
    };
    let in_memory = fstatfs(&file).is_ok_and(|fs| {
        // Its width depends on the processor.
        let kind = u64::try_from(fs.f_type);
        kind.is_ok_and(|kind| kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
    });
    // Programs whose files are limited (ulimit -f) write by mappings, within the file. Where it
    // cannot be so long they page out less.
    let may_have = limits::get(Resource::FileSize).map_or(0, |limit| limit.now);
    let _ = ftruncate(&file, LENGTH.min(may_have));
    let direct = fcntl_getfl(&file)
        .and_then(|now| fcntl_setfl(&file, now | OFlags::DIRECT))
        .is_ok();
    Ok(OpenedPagingFile {
        file,
        direct,
        in_memory,
    })
}

fn no_unnamed_files(dir: &Path) -> String {
    format!(
        "cannot page to '{}': its file system has no unnamed files (O_TMPFILE); \
         give a directory on ext4, xfs, btrfs or tmpfs with --spill",
        dir.display()
    )
}

/// What to tell a user who pages to memory.
pub fn in_memory_warning(dir: &Path) -> String {
    format!(
        "warning: '{0}' is in memory (tmpfs), so paging to it frees none; \
         give a directory on a disk with --spill",
        dir.display()
    )
}

/// Refuses more directories than a tree can have.
///
/// # Errors
/// When there are more than [`SPILL_FILES_MAX`].
pub fn check_count(dirs: usize) -> Result<()> {
    if dirs > SPILL_FILES_MAX {
        bail!(
            "cannot page to {dirs} directories: a run has at most {SPILL_FILES_MAX} paging files; \
             give fewer --spill"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_takes_a_file_that_has_no_name() {
        let dir = std::env::temp_dir().join(format!("farpage-spill-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let opened = open_in(&dir).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        rustix::io::pwrite(&opened.file, &[0; 0], 0).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn directories_that_take_none_are_refused() {
        let in_proc = if rustix::process::geteuid().is_root() {
            "no unnamed files"
        } else {
            "you may not make files there"
        };
        for (dir, why) in [
            ("/no/such/dir", "there is no such directory"),
            ("/etc/passwd", "it is not a directory"),
            ("/proc", in_proc),
        ] {
            let message = open_in(Path::new(dir)).unwrap_err().to_string();
            let start = format!("cannot page to '{dir}': ");
            assert!(
                message.starts_with(&start) && message.contains(why),
                "{message}"
            );
        }
        assert!(check_count(8).is_ok());
        assert!(check_count(9).is_err());
    }

    #[test]
    fn memory_is_told_from_disk() {
        if !Path::new("/dev/shm").is_dir() {
            println!("skipped: no /dev/shm here");
            return;
        }
        assert!(open_in(Path::new("/dev/shm")).unwrap().in_memory);
        assert!(!open_in(Path::new("/var/tmp")).unwrap().in_memory);
    }
}
