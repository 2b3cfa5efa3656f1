//! gzip: decoded once to see where decoding can begin, then from there.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use farpage_sys::crc32c;
use zstd_safe::{CCtx, DCtx};

use super::chunks::{CHUNK_BYTES_MAX, Chunks, Decode};
use super::corrupt;
use super::index::{self, FOOTER_BYTES, Point, Table};
use super::inflate::{Event, WINDOW_BYTES, inflate_all, inflate_from};
use super::spill::{Spill, unnamed};
use crate::cache::Key;
use crate::file::io_error;
use crate::{Source, SourceError};

/// Decoded bytes between two points, at least. Blocks end where the compressor wants, so that it
/// is some 60 KiB more.
const SPAN_BYTES: u64 = 1 << 20;
const WINDOW_LEVEL: i32 = 1;

/// A gzip file and its index.
struct Points {
    inner: Arc<dyn Source>,
    index: File,
    table: Table,
}

pub(super) fn open(
    inner: Arc<dyn Source>,
    folder: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Arc<dyn Source>, SourceError> {
    let version = inner.version();
    let key = version.map(|version| Key::of(&inner.identity(), &version, inner.size()));
    let stored = folder.zip(key).map(|(folder, key)| place(folder, key));
    let known = stored.as_deref().zip(key);
    let known = known.and_then(|(path, key)| load(path, key, inner.size()));
    let (index, table) = match known {
        Some(known) => known,
        None => {
            let key = key.map_or([0; 32], |key| key.0);
            let Some((mut file, table)) = build(&*inner, folder, key, progress)? else {
                return spill(&*inner, folder, progress);
            };
            if let Some(path) = stored {
                // Where this fails, the next one builds it again.
                let _ = store(&mut file, &path);
            }
            (file, table)
        }
    };
    let mut starts: Vec<u64> = table.points.iter().map(|point| point.offset).collect();
    starts.push(table.size);
    let points = Points {
        inner,
        index,
        table,
    };
    Ok(Arc::new(Chunks::new(points, starts)))
}

/// Where the index of an object is.
fn place(folder: &Path, key: Key) -> PathBuf {
    folder.join(key.hex() + ".index")
}

/// Opens a stored index, if it is there and right.
fn load(path: &Path, key: Key, packed: u64) -> Option<(File, Table)> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, length.checked_sub(FOOTER_BYTES as u64)?)
        .ok()?;
    let bytes = index::table_bytes(&footer)?;
    let at = length.checked_sub(bytes)?;
    let mut bytes = vec![0; bytes as usize];
    file.read_exact_at(&mut bytes, at).ok()?;
    let table = Table::decode(&bytes, length)?;
    // It was used: what is old is thrown out first. Where this fails, it is thrown out early.
    let _ = file.set_modified(SystemTime::now());
    (table.key == key.0 && table.packed == packed).then_some((file, table))
}

/// Stores an index under its name, all of it or nothing.
fn store(file: &mut File, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // One that is left behind by a process that was killed is thrown out like the others.
    let mut named = tempfile::Builder::new();
    let mut named = named.suffix(".index").tempfile_in(folder)?;
    file.rewind()?;
    io::copy(file, &mut named)?;
    named.persist(path)?;
    Ok(())
}

/// Collects points while all is decoded.
struct Builder<'a> {
    inner: &'a dyn Source,
    file: File,
    written: u64,
    packer: CCtx<'static>,
    table: Table,
    /// Of what came since the last point.
    sum: crc32fast::Hasher,
}

impl Builder<'_> {
    /// False when there are too many bytes without a place to begin.
    fn event(&mut self, event: Event<'_>) -> Result<bool, SourceError> {
        let last = self.table.points.last().map(|point| point.offset);
        let since = self.table.size - last.unwrap_or(0);
        match event {
            Event::Bytes(bytes) => {
                self.sum.update(bytes);
                self.table.size += bytes.len() as u64;
                return Ok(since + bytes.len() as u64 <= CHUNK_BYTES_MAX);
            }
            Event::Boundary(boundary, window) if last.is_none() || since >= SPAN_BYTES => {
                self.end_chunk();
                let bound = zstd_safe::compress_bound(window.len());
                let mut packed = vec![0; bound];
                let bytes = self.packer.compress(&mut packed[..], window, WINDOW_LEVEL);
                packed.truncate(bytes.expect("there is room for all that zstd makes of it"));
                self.table.points.push(Point {
                    offset: self.table.size,
                    boundary,
                    window_at: self.written,
                    window_bytes: packed.len() as u32,
                    window_sum: crc32c(&packed),
                    sum: 0,
                });
                self.append(&packed)?;
            }
            Event::Boundary(..) => {}
        }
        Ok(true)
    }

    fn end_chunk(&mut self) {
        let sum = std::mem::take(&mut self.sum).finalize();
        if let Some(last) = self.table.points.last_mut() {
            last.sum = sum;
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let (name, what) = (self.inner.name(), "write the index of");
        let written = self.file.write_all(bytes);
        written.map_err(|error| io_error(name, what, self.written, &error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Decodes all and makes the index. `None` when a block is too long for one.
fn build(
    inner: &dyn Source,
    folder: Option<&Path>,
    key: [u8; 32],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<(File, Table)>, SourceError> {
    let mut builder = Builder {
        inner,
        file: unnamed(folder)?,
        written: 0,
        packer: CCtx::create(),
        table: Table {
            key,
            size: 0,
            packed: inner.size(),
            points: Vec::new(),
        },
        sum: crc32fast::Hasher::new(),
    };
    if !inflate_all(inner, progress, &mut |event| builder.event(event))? {
        return Ok(None);
    }
    builder.end_chunk();
    drop_empty_end(&mut builder.table);
    builder.append(&builder.table.encode())?;
    Ok(Some((builder.file, builder.table)))
}

/// The last point has nothing after it when the file ends with an empty member or block.
fn drop_empty_end(table: &mut Table) {
    let points = &mut table.points;
    if points.len() > 1 && points.last().is_some_and(|last| last.offset == table.size) {
        points.pop();
    }
}

/// Decodes all of it into a file.
fn spill(
    inner: &dyn Source,
    folder: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Arc<dyn Source>, SourceError> {
    let mut spill = Spill::new(inner, folder)?;
    inflate_all(inner, progress, &mut |event| {
        if let Event::Bytes(bytes) = event {
            spill.append(bytes)?;
        }
        Ok(true)
    })?;
    Ok(Arc::new(spill))
}

impl Points {
    /// What matches of piece `chunk` reach back to.
    fn window(&self, point: &Point) -> Result<Vec<u8>, SourceError> {
        let mut packed = vec![0; point.window_bytes as usize];
        let read = self.index.read_exact_at(&mut packed, point.window_at);
        let (name, what) = (self.inner.name(), "read the index of");
        read.map_err(|error| io_error(name, what, point.window_at, &error))?;
        let mut window = vec![0; WINDOW_BYTES];
        let bytes = DCtx::create().decompress(&mut window[..], &packed);
        match bytes {
            Ok(bytes) if crc32c(&packed) == point.window_sum => window.truncate(bytes),
            _ => {
                let cause = "its index on the disk is damaged: remove that, and open it again";
                return Err(corrupt(&*self.inner, point.boundary.at, cause));
            }
        }
        Ok(window)
    }

    /// Where the compressed bytes of piece `chunk` end, or a little before.
    fn end(&self, chunk: usize) -> u64 {
        let next = self.table.points.get(chunk + 1);
        next.map_or(self.table.packed, |point| point.boundary.at)
    }
}

impl Decode for Points {
    fn inner(&self) -> &dyn Source {
        &*self.inner
    }

    fn decode(&self, chunk: usize, bytes: usize) -> Result<Vec<u8>, SourceError> {
        let point = &self.table.points[chunk];
        let mut out = self.window(point)?;
        let from = out.len();
        out.resize(from + bytes, 0);
        let end = self.end(chunk);
        inflate_from(&*self.inner, point.boundary, end, &mut out, from)?;
        out.drain(..from);
        if crc32fast::hash(&out) != point.sum {
            let cause = "what is decoded from here is not what it was when it was indexed";
            return Err(corrupt(&*self.inner, point.boundary.at, cause));
        }
        Ok(out)
    }

    fn is_at_hand(&self, chunk: usize) -> bool {
        let start = self.table.points[chunk].boundary.at;
        self.inner.is_at_hand(start, self.end(chunk) - start)
    }
}
