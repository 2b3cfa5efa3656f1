//! A decoded copy on the disk, of what cannot be decoded in pieces.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::file::{direct_of, io_error, read_sparing};
use crate::{Source, SourceError, within};

/// A file without a name: it is gone when it is closed, however the process ends.
pub(super) struct Spill {
    name: String,
    version: Option<String>,
    file: File,
    /// The same, read past the page cache.
    direct: Option<File>,
    size: u64,
}

impl Spill {
    pub(super) fn new(inner: &dyn Source, folder: Option<&Path>) -> Result<Self, SourceError> {
        let file = unnamed(folder)?;
        Ok(Self {
            name: format!("{} (decoded)", inner.name()),
            version: inner.version(),
            direct: direct_of(&file),
            file,
            size: 0,
        })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let written = self.file.write_all_at(bytes, self.size);
        let what = "write the decoded copy of";
        written.map_err(|error| io_error(&self.name, what, self.size, &error))?;
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// A file without a name in `folder`, or where temporary files are.
pub(super) fn unnamed(folder: Option<&Path>) -> Result<File, SourceError> {
    let temporary = std::env::temp_dir();
    let folder = folder.unwrap_or(&temporary);
    let file = tempfile::tempfile_in(folder);
    file.map_err(|error| crate::file::opening(&folder.display().to_string(), &error))
}

impl Source for Spill {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        self.version.clone()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        within(self, offset, buffer.len() as u64)?;
        let read = read_sparing(&self.file, self.direct.as_ref(), offset, buffer);
        let got = read.map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno.0);
            io_error(&self.name, "read", offset, &error)
        })?;
        if got < buffer.len() {
            return Err(SourceError::Short {
                name: self.name.clone(),
                offset,
                bytes: buffer.len() as u64,
                end: offset + got as u64,
            });
        }
        Ok(())
    }
}
