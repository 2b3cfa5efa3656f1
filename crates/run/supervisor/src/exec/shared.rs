//! `shared:NAME`: shared memory of the host kernel as a source.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use farpage_client::{Host, Shared, default_socket};
use farpage_source::{Reach, Source, SourceError, within};

const SCHEME: &str = "shared:";
const WORD: u64 = 8;

/// True of an address of shared memory.
pub fn is_shared(address: &str) -> bool {
    address.starts_with(SCHEME)
}

/// Opens shared memory of the host kernel, which `farpage up` is, by its name.
///
/// # Errors
/// When there is no host kernel, or it has nothing of this name.
pub fn open(address: &str) -> Result<Option<Arc<dyn Source>>> {
    let Some(name) = address.strip_prefix(SCHEME) else {
        return Ok(None);
    };
    let host = Host::connect(&default_socket())?;
    let shared = host.open(name).or_else(|why| {
        // One of a cluster, perhaps.
        host.shared(name, None)
            .map(|(shared, _)| shared)
            .map_err(|_| why)
    });
    let shared = shared.with_context(|| format!("cannot run '{address}'"))?;
    Ok(Some(Arc::new(SharedSource {
        name: address.to_owned(),
        shared,
        _host: host,
    })))
}

/// Its words are read where it is mapped: the host kernel brings them, from another host if need
/// be.
struct SharedSource {
    name: String,
    shared: Shared,
    _host: Host,
}

impl Source for SharedSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.shared.bytes()
    }

    fn reach(&self) -> Reach {
        // Another host may have the page: nobody else is to wait meanwhile.
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        within(self, offset, buffer.len() as u64)?;
        let words = self.shared.words();
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let word = words[(at / WORD) as usize].load(Ordering::Relaxed);
            let bytes = &word.to_ne_bytes()[(at % WORD) as usize..];
            let count = bytes.len().min(rest.len());
            rest[..count].copy_from_slice(&bytes[..count]);
            rest = &mut rest[count..];
            at += count as u64;
        }
        Ok(())
    }
}
