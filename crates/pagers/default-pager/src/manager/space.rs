//! How full a default pager is.

use farpage_object::SPILL_FILES_MAX;

/// What a default pager has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that compressed pages take in RAM.
    pub compressed_bytes: u64,
    /// Bytes that they may take.
    pub compressed_max_bytes: u64,
    /// Its paging files, in order.
    pub files: Vec<FileSpace>,
}

/// A paging file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSpace {
    /// Bytes that pages take.
    pub used_bytes: u64,
    /// Bytes that they may take. `None`: as the disk allows.
    pub limit_bytes: Option<u64>,
    /// Its disk took nothing more when it was last tried.
    pub is_full: bool,
    /// The system error of that, unless the disk was full.
    pub write_error: Option<i32>,
}

impl FileSpace {
    /// 0 while its disk takes what is written, else 1 and twice the system error.
    fn trouble(&self) -> u64 {
        u64::from(self.is_full) + 2 * self.write_error.map_or(0, |errno| errno as u64)
    }
}

/// Numbers that say all of it.
pub(crate) const NUMBERS: usize = 3 + 3 * SPILL_FILES_MAX;

impl Space {
    pub(crate) fn numbers(&self) -> [u64; NUMBERS] {
        let mut numbers = [0; NUMBERS];
        let files = &self.files[..self.files.len().min(SPILL_FILES_MAX)];
        let sizes = [self.compressed_bytes, self.compressed_max_bytes];
        numbers[..3].copy_from_slice(&[sizes[0], sizes[1], files.len() as u64]);
        for (file, into) in files.iter().zip(numbers[3..].chunks_exact_mut(3)) {
            let limit = file.limit_bytes.unwrap_or(u64::MAX);
            into.copy_from_slice(&[file.used_bytes, limit, file.trouble()]);
        }
        numbers
    }

    pub(crate) fn of(numbers: &[u64; NUMBERS]) -> Self {
        let count = (numbers[2] as usize).min(SPILL_FILES_MAX);
        let file = |numbers: &[u64]| FileSpace {
            used_bytes: numbers[0],
            limit_bytes: (numbers[1] != u64::MAX).then_some(numbers[1]),
            is_full: numbers[2] % 2 == 1,
            write_error: i32::try_from(numbers[2] / 2)
                .ok()
                .filter(|errno| *errno != 0),
        };
        Self {
            compressed_bytes: numbers[0],
            compressed_max_bytes: numbers[1],
            files: numbers[3..].chunks_exact(3).take(count).map(file).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_said_and_no_count_is_believed() {
        let file = FileSpace {
            used_bytes: 7,
            limit_bytes: None,
            is_full: true,
            write_error: None,
        };
        let limited = FileSpace {
            limit_bytes: Some(9),
            ..FileSpace::default()
        };
        let failed = FileSpace {
            write_error: Some(5),
            ..file
        };
        let space = Space {
            compressed_bytes: 1,
            compressed_max_bytes: 2,
            files: vec![file, limited, failed],
        };
        assert_eq!(Space::of(&space.numbers()), space);
        let mut numbers = space.numbers();
        numbers[2] = u64::MAX;
        assert_eq!(Space::of(&numbers).files.len(), SPILL_FILES_MAX);
    }
}
