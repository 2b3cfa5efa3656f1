//! `vm_copy`, `vm_read`, `vm_write`: contents that move by mapping, where they are long.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farpage_port::{Donated, Memory};
use farpage_sys::area::Place;
use farpage_sys::{Errno, copy, memory_file};

use crate::map::{Backing, Piece};
use crate::object::FrozenFile;
use crate::space::{AddressSpace, BOUNDS, Result, State, addresses, whole_pages};
use crate::types::{Argument, Shortage};
use crate::{PAGE_BYTES, VmError, look};

/// From here on contents are mapped, and copied when somebody writes.
const MAPPED_MIN: u64 = 64 << 10;
/// Bytes that one operation copies.
const COPIED_MAX: u64 = 1 << 30;
const CHUNK: usize = 1 << 20;

impl AddressSpace {
    /// `vm_copy`: what is at `source` is at `destination` as well. From 64 KiB on nothing is copied
    /// before one of the two is written, but what was written at `source` since the last time. What
    /// `destination` is protected for and inherited as stays.
    ///
    /// Below that, and from or to shared memory, bytes are copied one after another: who writes
    /// meanwhile may find the old and the new in one page.
    ///
    /// # Errors
    /// [`VmError::InvalidArgument`] when addresses or size are not of whole pages;
    /// [`VmError::InvalidAddress`] when not all of `destination` is allocated, or not all of
    /// `source` is there; [`VmError::ProtectionFailure`] when one cannot be read or the other not written;
    /// [`VmError::ResourceShortage`].
    pub fn vm_copy(&self, source: u64, bytes: u64, destination: u64) -> Result<()> {
        let (from, to) = (
            whole_pages(source, bytes)?,
            whole_pages(destination, bytes)?,
        );
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(());
        };
        if !overlaps(&from, &BOUNDS) {
            // It may have to wait for a pager.
            let data = self.vm_read(source, bytes)?;
            return self.vm_write_memory(destination, &data.into());
        }
        let mut state = self.lock();
        state.parts(&from)?;
        state.writable(&to)?;
        state.readable(&from)?;
        if from == to {
            return Ok(());
        }
        if bytes >= MAPPED_MIN {
            match self.copy_mapped(&mut state, &from, &to) {
                Err(VmError::ResourceShortage(Shortage::Descriptors)) => {}
                other => return other,
            }
        }
        self.copy_bytes(&from, &to)
    }

    fn copy_mapped(&self, state: &mut State, from: &Range<u64>, to: &Range<u64>) -> Result<()> {
        let mut frozen = Vec::new();
        for (part, piece) in state.parts(from)? {
            state.room_for(2)?;
            let copy = match &piece.backing {
                Backing::Shared(..) => {
                    let file = self.sealed_copy(&part, &piece)?;
                    let file = Arc::new(FrozenFile::new(file)?);
                    Backing::Frozen(file, 0)
                }
                Backing::Frozen(..) if !self.area.has_copies(&addresses(&part))? => piece.backing,
                Backing::Frozen(..) | Backing::Zeros => {
                    let made = self.freeze(&part, &piece)?;
                    state.map.put(&part, made.clone());
                    made.backing
                }
            };
            frozen.push((part, copy));
        }
        for (part, copy) in frozen {
            let start = to.start + (part.start - from.start);
            self.replace(state, &(start..start + (part.end - part.start)), &copy)?;
        }
        Ok(())
    }

    /// Puts the contents of a frozen file where something writable is.
    fn replace(&self, state: &mut State, to: &Range<u64>, copy: &Backing) -> Result<()> {
        for (part, piece) in state.parts(to)? {
            let backing = copy.advanced(part.start - to.start);
            if matches!(piece.backing, Backing::Shared(..)) {
                let (file, offset) = backing.file().expect("a frozen file");
                self.write_file(&part, file, offset)?;
                continue;
            }
            state.room_for(2)?;
            let then = Piece { backing, ..piece };
            self.lay(&part, &then, Place::Replace)?;
            state.map.put(&part, then);
        }
        Ok(())
    }

    /// What others have, too, is written to where it is.
    fn write_file(&self, part: &Range<u64>, file: BorrowedFd<'_>, offset: u64) -> Result<()> {
        check_copied(part.end - part.start)?;
        let map = memory_file::Frozen::map(file)?;
        let from = offset as usize;
        let bytes = &map[from..from + addresses(part).len()];
        Ok(self.area.write(part.start as usize, bytes)?)
    }

    fn copy_bytes(&self, from: &Range<u64>, to: &Range<u64>) -> Result<()> {
        let bytes = addresses(from).len();
        check_copied(bytes as u64)?;
        let step = if overlaps(from, to) { bytes } else { CHUNK };
        let mut buffer = vec![0; step.min(bytes)];
        for done in (0..bytes).step_by(step) {
            let part = &mut buffer[..step.min(bytes - done)];
            read_into(from.start + done as u64, part)?;
            self.area.write(to.start as usize + done, part)?;
        }
        Ok(())
    }

    /// `vm_read`: what is in the range now, to be mapped or sent on. Of memory that came by
    /// `vm_write` or `vm_copy`, whole and not written since, nothing is copied. Also of memory that
    /// was not allocated here.
    ///
    /// # Errors
    /// As for [`vm_copy`](Self::vm_copy); [`VmError::InvalidArgument`] also for no bytes;
    /// [`VmError::ResourceShortage`] also for more than 1 GiB.
    pub fn vm_read(&self, address: u64, bytes: u64) -> Result<Donated> {
        let state = self.lock();
        let Some(range) = whole_pages(address, bytes)? else {
            return Err(VmError::InvalidArgument(Argument::Nothing));
        };
        check_copied(bytes)?;
        if !overlaps(&range, &BOUNDS) {
            drop(state);
            let mut draft = memory_file::Draft::create(c"farpage-read", bytes as usize)?;
            read_into(address, &mut draft)?;
            return Ok(Donated::new(draft.seal()?)?);
        }
        let parts = state.readable(&range)?;
        if let [(part, piece)] = &parts[..]
            && let Backing::Frozen(file, 0) = &piece.backing
            && !self.area.has_copies(&addresses(part))?
            && let Ok(again) = file.file().try_clone_to_owned()
            && let Ok(donated) = Donated::new(again)
            && donated.bytes() == bytes
        {
            return Ok(donated);
        }
        let file = memory_file::create(c"farpage-read", bytes as usize)?;
        for (part, piece) in &parts {
            self.copy_contents(part, piece, file.as_fd(), part.start - range.start)?;
        }
        memory_file::seal(file.as_fd(), memory_file::FIXED | memory_file::WRITE)?;
        Ok(Donated::new(file)?)
    }

    /// Copies what a part has into a file that has nothing.
    pub(crate) fn copy_contents(
        &self,
        part: &Range<u64>,
        piece: &Piece,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<()> {
        let place = addresses(part);
        if piece.backing.view().is_some() {
            // Only the host kernel knows what there is.
            check_copied(part.end - part.start)?;
            return Ok(self.area.copy_all_to_file(&place, file, offset)?);
        }
        let beneath = piece.backing.file();
        Ok(self.area.copy_to_file(&place, file, offset, beneath)?)
    }

    /// The same, as a file that nobody can change.
    pub(crate) fn sealed_copy(&self, part: &Range<u64>, piece: &Piece) -> Result<OwnedFd> {
        let file = memory_file::create(c"farpage-frozen", addresses(part).len())?;
        self.copy_contents(part, piece, file.as_fd(), 0)?;
        memory_file::seal(file.as_fd(), memory_file::FIXED | memory_file::WRITE)?;
        Ok(file)
    }

    /// `vm_write`: puts `data`, whole pages of it, to `address`.
    ///
    /// # Errors
    /// As for [`vm_copy`](Self::vm_copy).
    pub fn vm_write(&self, address: u64, data: &[u8]) -> Result<()> {
        let state = self.lock();
        let Some(range) = whole_pages(address, data.len() as u64)? else {
            return Ok(());
        };
        state.writable(&range)?;
        Ok(self.area.write(range.start as usize, data)?)
    }

    /// The same of memory that came in a message, or from [`vm_read`](Self::vm_read): from 64 KiB
    /// on it is mapped, and copied when somebody writes.
    ///
    /// # Errors
    /// As for [`vm_copy`](Self::vm_copy).
    pub fn vm_write_memory(&self, address: u64, data: &Memory) -> Result<()> {
        let donated = match data {
            Memory::Donated(donated) => donated,
            Memory::Lent(lent) => {
                check_copied(lent.bytes() as u64)?;
                let mut bytes = vec![0; lent.bytes()];
                lent.copy_to(0, &mut bytes)?;
                return self.vm_write(address, &bytes);
            }
        };
        let mut state = self.lock();
        let Some(range) = whole_pages(address, donated.bytes())? else {
            return Ok(());
        };
        state.writable(&range)?;
        if donated.bytes() >= MAPPED_MIN {
            let again = donated.file().try_clone_to_owned();
            // Else no descriptor is left for it.
            if let Ok(file) = again
                && let Ok(file) = FrozenFile::new(file)
            {
                let copy = Backing::Frozen(Arc::new(file), 0);
                return self.replace(&mut state, &range, &copy);
            }
        }
        self.write_file(&range, donated.file(), 0)
    }
}

impl State {
    fn readable(&self, range: &Range<u64>) -> Result<Vec<(Range<u64>, Piece)>> {
        let parts = self.parts(range)?;
        refuse_unless(range, parts.iter().all(|(_, piece)| piece.protection.read))?;
        Ok(parts)
    }

    fn writable(&self, range: &Range<u64>) -> Result<()> {
        let parts = self.parts(range)?;
        refuse_unless(range, parts.iter().all(|(_, piece)| piece.protection.write))
    }
}

fn refuse_unless(range: &Range<u64>, is_allowed: bool) -> Result<()> {
    if is_allowed {
        return Ok(());
    }
    Err(VmError::ProtectionFailure {
        address: range.start,
        bytes: range.end - range.start,
    })
}

fn check_copied(bytes: u64) -> Result<()> {
    if bytes > COPIED_MAX {
        return Err(VmError::ResourceShortage(Shortage::CopiedBytes));
    }
    Ok(())
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Reads memory of this process wherever it is.
fn read_into(address: u64, into: &mut [u8]) -> Result<()> {
    let bytes = into.len() as u64;
    for (at, part) in into.chunks_mut(CHUNK).enumerate() {
        let from = address as usize + at * CHUNK;
        match copy::from(from, part) {
            Ok(()) => {}
            Err(Errno::EFAULT) if look::is_mapped(address..address + bytes) => {
                return Err(VmError::ProtectionFailure { address, bytes });
            }
            Err(Errno::EFAULT) => return Err(VmError::InvalidAddress { address, bytes }),
            Err(errno) => return Err(errno.into()),
        }
    }
    debug_assert!(address.is_multiple_of(PAGE_BYTES));
    Ok(())
}
