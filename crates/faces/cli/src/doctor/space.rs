//! Room for paging files.

use std::os::fd::AsFd;
use std::path::Path;

use farpage_default_pager::manager::paging::{self, OpenedPagingFile};
use farpage_text::size::human;
use rustix::fs::{fstatfs, fstatvfs};

use super::{Check, State};

const SPACE: &str = "paging space";
/// Free space below which a paging file is soon full.
const FREE_MIN_BYTES: u64 = 1 << 30;

/// One block, placed as direct I/O wants it.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Makes a paging file in `dir`, writes to it and reads it back.
pub(super) fn check(dir: &Path) -> Check {
    let name = dir.display().to_string();
    let opened = match paging::open_in(dir) {
        Ok(opened) => opened,
        Err(error) => {
            return Check::new(SPACE, &name, State::Fail, format!("{error:#}"))
                .improve("mkdir -p ~/.cache/farpage && export FARPAGE_SPILL=~/.cache/farpage");
        }
    };
    if let Err(errno) = write_and_read(opened.file.as_fd()) {
        let text = format!("a block could not be written and read back: {errno}");
        return Check::new(SPACE, &name, State::Fail, text)
            .improve("export FARPAGE_SPILL=DIR    # a directory on another disk");
    }
    let free = fstatvfs(&opened.file).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    let kind = fstatfs(&opened.file).map_or("?", |fs| kind_name(fs.f_type));
    judge(&name, kind, free, &opened)
}

fn judge(name: &str, kind: &str, free: u64, opened: &OpenedPagingFile) -> Check {
    let room = format!("{} free on {kind}", human(free));
    let other = "export FARPAGE_SPILL=DIR    # a directory on a local disk with room";
    let warn =
        |why: &str| Check::new(SPACE, name, State::Warn, format!("{room}; {why}")).improve(other);
    if opened.in_memory {
        return warn("it is in memory, so paging to it frees none");
    }
    if free < FREE_MIN_BYTES {
        return warn("that is soon full, and then the program is ended");
    }
    if !opened.direct {
        return warn("it has no O_DIRECT, so paging takes a detour through the page cache");
    }
    let text = format!("{room}; unnamed files (O_TMPFILE) and direct I/O (O_DIRECT) work");
    Check::new(SPACE, name, State::Ok, text)
}

fn write_and_read(file: rustix::fd::BorrowedFd<'_>) -> rustix::io::Result<()> {
    let written = Block([0x5a; 4096]);
    let mut read = Block([0; 4096]);
    let put = rustix::io::pwrite(file, &written.0, 0)?;
    let got = rustix::io::pread(file, &mut read.0, 0)?;
    let same = put == written.0.len() && got == read.0.len() && read.0 == written.0;
    if same {
        Ok(())
    } else {
        Err(rustix::io::Errno::IO)
    }
}

/// The name of a file system, by its magic number.
fn kind_name(magic: i64) -> &'static str {
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlayfs",
        0x2FC1_2FC1 => "zfs",
        0xF2F5_2010 => "f2fs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        _ => "its file system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(direct: bool, in_memory: bool) -> OpenedPagingFile {
        OpenedPagingFile {
            file: std::fs::File::open("/dev/null").unwrap().into(),
            direct,
            in_memory,
        }
    }

    #[test]
    fn room_is_judged() {
        let state = |free, opened| judge("/d", "ext4", free, &opened).state;
        assert_eq!(state(8 << 30, opened(true, false)), State::Ok);
        assert_eq!(state(8 << 20, opened(true, false)), State::Warn);
        assert_eq!(state(8 << 30, opened(false, false)), State::Warn);
        assert_eq!(state(8 << 30, opened(true, true)), State::Warn);
    }

    #[test]
    fn a_directory_is_really_tried() {
        assert_ne!(check(Path::new("/var/tmp")).state, State::Fail);
        let missing = check(Path::new("/no/such/dir"));
        assert_eq!(missing.state, State::Fail);
        assert!(missing.improve[0].contains("FARPAGE_SPILL"));
    }
}
