//! Reading and writing by copying: what cannot be had is an error and no signal.

use farpage_sys::copy;

use crate::{Error, Memory, SourceError};

/// Bytes that are brought in and copied at a time: less than half of the smallest budget.
const STEP: usize = 1 << 20;

impl Memory {
    /// Copies the bytes from `offset` on to `into`. Pages that cannot be had are an error; touching
    /// them would raise SIGBUS.
    ///
    /// # Errors
    /// [`Error::NotRead`] with the failure of the source; what `into` holds then is unspecified.
    /// [`Error::Argument`] for a range that is not inside.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.inside(offset, into.len())?;
        for (part, start) in into.chunks_mut(STEP).zip((offset..).step_by(STEP)) {
            self.prefetch(start..start + part.len() as u64, |_| ())?;
            let from = self.as_ptr().addr() + start as usize;
            // It may have left again, and come back, or not.
            copy::from(from, part).map_err(|_| self.lost(start))?;
        }
        Ok(())
    }

    /// Copies `from` to the bytes from `offset` on. They are durable after [`Memory::flush`].
    ///
    /// # Errors
    /// [`SourceError::ReadOnly`] in [`Error::Source`]; otherwise as [`Memory::read_at`]: pages that
    /// are written to are read before. How much was written then is unspecified.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.inside(offset, from.len())?;
        if !self.is_writable() {
            let name = self.name().to_owned();
            return Err(SourceError::ReadOnly { name }.into());
        }
        for (part, start) in from.chunks(STEP).zip((offset..).step_by(STEP)) {
            self.prefetch(start..start + part.len() as u64, |_| ())?;
            let to = self.as_ptr().addr() + start as usize;
            // SAFETY: inside the mapping, which no reference points into.
            unsafe { copy::to(to, part) }.map_err(|_| self.lost(start))?;
        }
        Ok(())
    }

    fn inside(&self, offset: u64, bytes: usize) -> Result<(), Error> {
        let end = offset.saturating_add(bytes as u64);
        self.pages(&(offset..end)).map(drop)
    }

    fn lost(&self, offset: u64) -> Error {
        let unknown = || SourceError::Io {
            name: self.name().to_owned(),
            what: "read",
            offset,
            cause: "its pages could not be copied".into(),
            remedy: "see standard error for the reason",
        };
        Error::NotRead {
            why: self.last_failure().unwrap_or_else(unknown),
        }
    }
}
