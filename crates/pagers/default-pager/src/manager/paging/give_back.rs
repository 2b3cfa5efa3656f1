//! Disk space of segments that nobody needs any more goes back to the file system.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_object::{Control, SEGMENT_BYTES, SEGMENTS_MAX, TASKS_MAX};
use farpage_sys::file::{self, Fd};

/// Time between two looks. A segment goes back that was free at two of them, and not taken between:
/// what is needed again at once keeps its space, for to get it anew costs more than to write over
/// it.
pub const LOOK: Duration = Duration::from_secs(5);
/// Segments that go back at one look, at most: 4 GiB.
const MOST: usize = 4096;
/// The holder of a segment whose space goes back: a number that no task has.
const OWN: usize = TASKS_MAX;

/// What was seen of the segments of one paging file.
#[derive(Default)]
pub struct Seen(Vec<Segment>);

/// Claims count up: the same number is the same time of being free.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// As it was at the last look.
    claim: u32,
    /// As it was when its space went back; 0: a segment that nobody has taken yet has none.
    empty: u32,
}

impl Seen {
    /// Looks once at file `at` of the control block, which is open as `fd`. Returns how many
    /// segments went back.
    pub fn look(&mut self, control: &Control, at: usize, fd: BorrowedFd<'_>) -> usize {
        let allocated = control.spill[at].allocated_segments.load(Ordering::Acquire);
        let lines = &control.segments[at][..(allocated as usize).min(SEGMENTS_MAX)];
        self.0
            .resize(lines.len().max(self.0.len()), Segment::default());
        let mut gone = 0;
        for (index, (line, seen)) in lines.iter().zip(&mut self.0).enumerate() {
            let claim = line.claim.load(Ordering::Acquire);
            let before = std::mem::replace(&mut seen.claim, claim);
            let is_free = claim % 2 == 0;
            if !is_free || claim == seen.empty || claim != before || gone == MOST {
                continue;
            }
            if !line.claim(OWN) {
                continue;
            }
            let offset = (index * SEGMENT_BYTES) as u64;
            // Where holes cannot be made the space stays with the file, and is used again.
            let punched = file::punch(Fd(fd.as_raw_fd()), offset, SEGMENT_BYTES as u64);
            gone += usize::from(punched.is_ok());
            line.remove(OWN);
            seen.claim = line.claim.load(Ordering::Acquire);
            seen.empty = seen.claim;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn blocks_mib(file: &std::fs::File) -> u64 {
        file.metadata().unwrap().blocks() / 2048
    }

    #[test]
    fn the_space_of_segments_that_stay_free_goes_back_and_no_other() {
        let (fd, control) = farpage_sys::control::create().unwrap();
        file::close(fd);
        let spill = tempfile::tempfile_in("/var/tmp").unwrap();
        spill.write_all_at(&vec![7; 8 << 20], 0).unwrap();
        spill.sync_all().unwrap();
        control.spill[0]
            .allocated_segments
            .store(8, Ordering::Relaxed);
        let lines = &control.segments[0];
        // Numbers 0 to 5 were taken, of which 4 and 5 still are; nobody has had 6 and 7 yet.
        lines[..6].iter().for_each(|line| assert!(line.claim(3)));
        lines[..4].iter().for_each(|line| assert!(line.remove(3)));
        let mut seen = Seen::default();
        let mut look = || seen.look(control, 0, spill.as_fd());
        assert_eq!(look(), 0, "they may be needed again at once");
        // Number 0 was, meanwhile.
        assert!(lines[0].claim(3) && lines[0].remove(3));
        assert_eq!(look(), 3);
        assert_eq!(blocks_mib(&spill), 5);
        let mut bytes = [0; 1];
        spill.read_exact_at(&mut bytes, 4 << 20).unwrap();
        assert_eq!(bytes, [7], "what is held stays");
        assert_eq!(look(), 1, "number 0 now");
        assert_eq!(look(), 0, "it has gone already");
        assert!(lines[1].claim(3) && lines[1].remove(3));
        assert_eq!((look(), look()), (0, 1), "it was written to again");
        assert!(lines[..4].iter().all(|line| line.claim(3)), "all are free");
    }
}
