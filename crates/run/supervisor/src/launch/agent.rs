//! The agent's library: a copy for this run, and its image for programs that cannot load it.

use std::fs::File;
use std::io::Write;
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use farpage_sys::join::{AGENT_MARK, AgentConfig};
use object::elf::{DT_RELA, DT_RELASZ, PF_X, PT_LOAD};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, Rela, Sym};
use object::{Endianness, Object, elf};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// `libfarpage-stdio.so`.
static STDIO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stdio.so"));

const PAGE: u64 = farpage_object::PAGE_BYTES as u64;

/// The library's bytes for a run whose descriptors start at `fd_base`.
pub fn library(fd_base: u32) -> Result<Vec<u8>> {
    let mut bytes = LIBRARY.to_vec();
    let mark = mark();
    let mut found = bytes
        .windows(mark.len())
        .enumerate()
        .filter(|(_, seen)| *seen == mark);
    let at = found.next().map(|(at, _)| at);
    ensure!(
        found.next().is_none(),
        "the agent's library has two places for its settings"
    );
    let at = at.context("the agent's library has no place for its settings")?;
    let at = at + offset_of!(AgentConfig, fd_base);
    bytes[at..at + 4].copy_from_slice(&fd_base.to_ne_bytes());
    Ok(bytes)
}

/// The library of streams, as [`file`] has it.
pub fn stdio() -> Result<OwnedFd> {
    sealed("farpage-stdio", STDIO)
}

/// A file in memory with the library that nobody can change any more, closed on exec.
pub fn file(library: &[u8]) -> Result<OwnedFd> {
    sealed("farpage-agent", library)
}

fn sealed(name: &str, library: &[u8]) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(name, flags).context("cannot make a memory file")?;
    let mut file = File::from(fd);
    file.write_all(library)
        .context("cannot copy the agent's library")?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).context("cannot seal the agent's library")?;
    Ok(file.into())
}

/// The library as it lies in memory: pages of code, which are the file's own, and behind them
/// pages of data, which are relocated.
#[derive(Clone, Debug)]
pub struct AgentImage {
    /// Bytes of code: this much of the file, from its start.
    pub code_bytes: u64,
    /// The pages of data, not yet relocated.
    data: Vec<u8>,
    /// Places in `data` to which the image's address is added, with the value found there.
    relocations: Vec<(usize, u64)>,
    /// Offset of `farpage_agent_entry`.
    pub entry: u64,
    /// Place in `data` of [`AgentConfig`].
    config: usize,
}

impl AgentImage {
    /// Lays `library` out.
    ///
    /// # Errors
    /// When it is not what the build makes.
    pub fn new(library: &[u8]) -> Result<Self> {
        let file = ElfFile64::<Endianness>::parse(library)?;
        let endian = file.endianness();
        let mut bytes = Vec::new();
        let mut code_bytes = 0;
        for segment in file.elf_header().program_headers(endian, library)? {
            if segment.p_type(endian) != PT_LOAD {
                continue;
            }
            let (from, size) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            let end = (from + size).next_multiple_of(PAGE);
            let content = segment.data(endian, library);
            let content = content.ok().context("a segment outside the file")?;
            bytes.resize(bytes.len().max(end as usize), 0);
            bytes[from as usize..][..content.len()].copy_from_slice(content);
            if segment.p_flags(endian).contains(PF_X) {
                let at_start = from == 0 && segment.p_offset(endian) == 0;
                ensure!(at_start, "the agent's code does not start its library");
                code_bytes = end;
            } else {
                ensure!(from >= code_bytes, "the agent's data overlap its code");
            }
        }
        ensure!(code_bytes > 0, "the agent's library has no code");
        let config = bytes.windows(16).position(|seen| seen == mark());
        let config = config.context("the agent's library has no place for its settings")?;
        let in_data = |at: usize| {
            let at = at.checked_sub(code_bytes as usize);
            at.context("something to fill in lies in the agent's code")
        };
        let mut relocations = relocations(&file, library, &bytes)?;
        for (at, _) in &mut relocations {
            *at = in_data(*at)?;
        }
        Ok(Self {
            relocations,
            entry: symbol(&file, library, b"farpage_agent_entry")?,
            config: in_data(config)?,
            data: bytes.split_off(code_bytes as usize),
            code_bytes,
        })
    }

    /// Bytes of data, whole pages.
    pub fn data_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// The data of an image at `base`, in a program that starts at `program_entry` and whose memory
    /// is left alone or not.
    pub fn data_at(&self, base: u64, program_entry: u64, leaves_memory: bool) -> Vec<u8> {
        let mut data = self.data.clone();
        let mut put = |at: usize, word: u64| data[at..at + 8].copy_from_slice(&word.to_le_bytes());
        for &(at, value) in &self.relocations {
            put(at, base + value);
        }
        put(self.config + offset_of!(AgentConfig, entry), program_entry);
        let at = self.config + offset_of!(AgentConfig, leaves_memory);
        data[at..at + 4].copy_from_slice(&u32::from(leaves_memory).to_ne_bytes());
        data
    }
}

fn mark() -> Vec<u8> {
    AGENT_MARK
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect()
}

fn relocations(
    file: &ElfFile64<'_, Endianness>,
    library: &[u8],
    image: &[u8],
) -> Result<Vec<(usize, u64)>> {
    let endian = file.endianness();
    let (mut table, mut size) = (0, 0);
    for segment in file.elf_header().program_headers(endian, library)? {
        for entry in segment.dynamic(endian, library)?.into_iter().flatten() {
            match entry.d_tag(endian) {
                DT_RELA => table = entry.d_val(endian) as usize,
                DT_RELASZ => size = entry.d_val(endian) as usize,
                _ => {}
            }
        }
    }
    let bytes = image
        .get(table..table + size)
        .context("relocations outside the image")?;
    let entries = object::pod::slice_from_all_bytes::<elf::Rela64<Endianness>>(bytes);
    let entries = entries.ok().context("relocations of an odd size")?;
    let place = |entry: &elf::Rela64<Endianness>| {
        let at = entry.r_offset(endian) as usize;
        ensure!(at + 8 <= image.len(), "a relocation outside the image");
        Ok((at, entry.r_addend(endian) as u64))
    };
    entries.iter().map(place).collect()
}

fn symbol(file: &ElfFile64<'_, Endianness>, library: &[u8], name: &[u8]) -> Result<u64> {
    let endian = file.endianness();
    let sections = file.elf_header().sections(endian, library)?;
    let symbols = sections.symbols(endian, library, elf::SHT_DYNSYM)?;
    let mut named = symbols
        .iter()
        .filter(|symbol| symbol.name(endian, symbols.strings()) == Ok(name));
    let found = named
        .next()
        .context("the agent's library lacks its entry")?;
    Ok(found.st_value(endian))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_made_for_this_run() {
        let one = library(4064).unwrap();
        let two = library(992).unwrap();
        let differing = one.iter().zip(&two).filter(|(a, b)| a != b).count();
        assert!((1..=4).contains(&differing));
        assert!(file(&one).is_ok());
    }

    #[test]
    fn the_image_is_relocated() {
        let image = AgentImage::new(&library(4064).unwrap()).unwrap();
        let (low, high) = (image.data_at(0, 1, false), image.data_at(0x1000, 1, false));
        assert!(!image.relocations.is_empty());
        for &(at, _) in &image.relocations {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(word(&low) + 0x1000, word(&high));
        }
        assert!((1..image.code_bytes).contains(&image.entry));
        assert_eq!(image.data_bytes() % PAGE, 0);
    }
}
