//! How a file is opened, in the C library's words.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// What a stream may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// All that is written goes to the end.
    pub append: bool,
    /// What was there goes away.
    truncate: bool,
    /// It must not exist.
    new: bool,
}

impl Mode {
    /// Reads `r`, `w` or `a`, then any of `+` (update), `b` (nothing), `x` (new) and `e` (nothing:
    /// files are closed on exec).
    ///
    /// # Errors
    /// `InvalidInput` when it is no mode.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = || {
            let why = format!(
                "cannot open with mode '{text}': a mode is r, w or a, and then any of +, b, e \
                 and, with w, x"
            );
            Error::new(ErrorKind::InvalidInput, why)
        };
        let mut letters = text.chars();
        let (mut read, mut write) = (false, true);
        let (mut append, mut truncate, mut new) = (false, false, false);
        match letters.next() {
            Some('r') => (read, write) = (true, false),
            Some('w') => truncate = true,
            Some('a') => append = true,
            _ => return Err(refused()),
        }
        for letter in letters {
            match letter {
                '+' => (read, write) = (true, true),
                'x' if truncate => new = true,
                'b' | 'e' => {}
                _ => return Err(refused()),
            }
        }
        Ok(Self {
            read,
            write,
            append,
            truncate,
            new,
        })
    }

    pub(crate) fn open(self, path: &Path) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(self.read).append(self.append);
        if !self.append {
            options
                .write(self.write)
                .truncate(self.truncate && !self.new);
        }
        if self.new {
            options.create_new(true);
        } else {
            options.create(self.append || self.truncate);
        }
        options.open(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_the_c_library() {
        let parsed = |text| {
            let mode = Mode::parse(text).unwrap();
            (mode.read, mode.write, mode.append, mode.truncate, mode.new)
        };
        assert_eq!(parsed("rb"), (true, false, false, false, false));
        assert_eq!(parsed("r+"), (true, true, false, false, false));
        assert_eq!(parsed("wbx"), (false, true, false, true, true));
        assert_eq!(parsed("w+e"), (true, true, false, true, false));
        assert_eq!(parsed("ab+"), (true, true, true, false, false));
        for wrong in ["", "q", "+r", "rx", "ax", "rw"] {
            let why = Mode::parse(wrong).unwrap_err();
            assert_eq!(why.kind(), ErrorKind::InvalidInput);
            assert!(
                why.to_string()
                    .starts_with(&format!("cannot open with mode '{wrong}'"))
            );
        }
    }
}
