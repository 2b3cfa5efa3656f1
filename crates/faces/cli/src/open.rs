//! `farpage open`: what is at an address, and how it would be read.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use farpage::{Address, Cache, OpenOptions, Reach, Source, Tensor, open_source};
use farpage_format::{FormatError, OpenError};
use farpage_source::{Compression, Retry, is_compressed};
use rustix::fs::{Access, access};
use serde::Serialize;

use farpage_text::columns::{Side, columns};
use farpage_text::size::human;
use farpage_text::time::seconds;

/// Cells of the bar that shows what the cache has.
const CELLS: u64 = 60;

/// Say what is at an address: its arrays, and how they would be read
///
/// Reads no more than it takes to know: the first bytes and the table of contents. For what lies
/// behind a network it shows how much of it the cache on this machine's disk has
/// ($FARPAGE_CACHE, else $XDG_CACHE_HOME/farpage, else ~/.cache/farpage).
#[derive(Args, Debug)]
#[command(after_help = "Addresses:\n  \
    data.npy  file:///srv/x.safetensors  https://host/x.npz  s3://bucket/key  gs://  az://")]
pub struct OpenArgs {
    /// A path or an URL
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    /// Header of requests to an HTTP server, as 'Name: value'; may be given again
    #[arg(long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// Seconds for which it is tried again when it fails [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub deadline: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What was found.
#[derive(Serialize)]
struct Found {
    name: String,
    kind: String,
    bytes: u64,
    version: Option<String>,
    arrays: Vec<Row>,
    /// `near` or `far`.
    reach: &'static str,
    /// Whether it could be written to, as far as can be told without trying.
    writable: bool,
    /// How, or why not.
    writing: &'static str,
    /// What is opened without a budget of its own keeps so much in memory, all together.
    default_ram_bytes: u64,
    cache: Option<Kept>,
}

/// One array.
#[derive(Serialize)]
struct Row {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    fortran: bool,
    offset: u64,
    bytes: u64,
}

/// What the cache has of it.
#[derive(Serialize)]
struct Kept {
    folder: PathBuf,
    bytes: u64,
    /// Ranges of bytes: first, and one after the last.
    ranges: Vec<(u64, u64)>,
}

/// Prints what is at the address.
///
/// # Errors
/// Those of opening it; when it is damaged.
pub fn main(args: &OpenArgs) -> Result<()> {
    let found = look(args)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        out!("{}", text(&found));
    }
    Ok(())
}

fn look(args: &OpenArgs) -> Result<Found> {
    let headers = args.headers.iter().map(|header| {
        let (name, value) = header.split_once(':').ok_or_else(|| {
            anyhow!("--header '{header}' has no colon; write it as 'Name: value'")
        })?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    });
    let options = OpenOptions {
        headers: headers.collect::<Result<_>>()?,
        deadline: args.deadline,
        // To know what is compressed inside it would have to be decoded.
        decompress: Some(false),
        ..OpenOptions::default()
    };
    let source = open_source(&args.address, &options)?;
    let (kind, arrays) = contents(&source, options.retry())?;
    let far = source.reach() == Reach::Far;
    let (writable, writing) = writing(&args.address, &kind);
    Ok(Found {
        writable,
        writing,
        name: source.name().to_owned(),
        kind,
        bytes: source.size(),
        version: source.version(),
        arrays: arrays.iter().map(row).collect(),
        reach: if far { "far" } else { "near" },
        default_ram_bytes: farpage::default_ram(),
        cache: match Address::parse(&args.address) {
            Address::Url(_) if far => kept(&*source)?,
            Address::Url(_) | Address::Path(_) => None,
        },
    })
}

fn contents(source: &Arc<dyn Source>, retry: Retry) -> Result<(String, Vec<Tensor>)> {
    match retry.run(|| is_compressed(&**source))? {
        Some(Compression::Gzip) => return Ok(("gzip".into(), Vec::new())),
        Some(Compression::Zstd) => return Ok(("zstd".into(), Vec::new())),
        None => {}
    }
    let mut read = |offset: u64, bytes: usize| {
        let mut buffer = vec![0; bytes];
        let read = || source.read_at(offset, &mut buffer);
        retry.run(read).map(|()| buffer)
    };
    match farpage_format::open(source.size(), Some(source.name()), &mut read) {
        Ok(layout) => Ok((layout.kind.to_string(), layout.tensors)),
        Err(OpenError::Format(FormatError::Unknown)) => Ok(("bytes".into(), Vec::new())),
        Err(OpenError::Format(error)) => {
            Err(error).with_context(|| format!("cannot load '{}'", source.name()))
        }
        Err(OpenError::Read { error, .. }) => Err(error.into()),
    }
}

/// Whether it could be opened for writing; and how, or why not.
fn writing(address: &str, kind: &str) -> (bool, &'static str) {
    let place = Address::parse(address);
    let may = |path: &Path| access(path, Access::WRITE_OK).is_ok();
    match place {
        _ if matches!(kind, "gzip" | "zstd") => (false, "what is compressed is only read"),
        Address::Path(path) if may(&path) => (true, "in place, and it can grow"),
        Address::Path(_) => (false, "this user may not write to the file"),
        Address::Url(url) if is_http(&url) => (false, "what HTTP serves is only read"),
        Address::Url(_) => (
            true,
            "as a whole, when it is flushed, and if the store lets you",
        ),
    }
}

fn is_http(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|s| s.eq_ignore_ascii_case("http") || s.eq_ignore_ascii_case("https"))
}

fn row(tensor: &Tensor) -> Row {
    Row {
        name: tensor.name.clone(),
        dtype: tensor.element.to_string(),
        shape: tensor.shape.clone(),
        fortran: tensor.fortran,
        offset: tensor.offset,
        bytes: tensor.bytes,
    }
}

/// Looks into the cache, and does not make one.
fn kept(source: &dyn Source) -> Result<Option<Kept>> {
    let Some(folder) = Cache::default_folder() else {
        return Ok(None);
    };
    let ranges = match folder.is_dir() {
        true => Cache::open(&folder, u64::MAX)?.resident(source),
        false => Vec::new(),
    };
    Ok(Some(Kept {
        folder,
        bytes: ranges.iter().map(|range| range.end - range.start).sum(),
        ranges: ranges
            .into_iter()
            .map(|range| (range.start, range.end))
            .collect(),
    }))
}

fn text(found: &Found) -> String {
    let mut text = format!("{}\n", found.name);
    let mut say = |what: &str, how: &str| text += &format!("  {what:<8}  {how}\n");
    let kind = match (found.kind.as_str(), found.arrays.len()) {
        ("bytes", _) => "bytes; no format of arrays that Farpage knows".to_owned(),
        ("gzip" | "zstd", _) => format!("{}, decoded when it is opened for use", found.kind),
        (kind, 1) => format!("{kind}, 1 array"),
        (kind, arrays) => format!("{kind}, {arrays} arrays"),
    };
    say("kind", &kind);
    let size = match found.bytes {
        few @ ..1024 => format!("{few} bytes"),
        many => format!("{} ({many} bytes)", human(many)),
    };
    say("size", &size);
    say(
        "version",
        found
            .version
            .as_deref()
            .unwrap_or("nothing tells it from others"),
    );
    say(
        "read",
        match found.reach {
            "far" => "far: in ranges, several at a time, ahead of need, and again when they fail",
            _ => "near: when it is touched, in the thread that answers the fault",
        },
    );
    let can = if found.writable { "yes" } else { "no" };
    say("write", &format!("{can}: {}", found.writing));
    say(
        "budget",
        &format!(
            "{}, shared by all that is opened without one of its own",
            human(found.default_ram_bytes)
        ),
    );
    if let Some(kept) = &found.cache {
        say("cache", &kept.folder.display().to_string());
        let percent = 100.0 * kept.bytes as f64 / found.bytes.max(1) as f64;
        say(
            "",
            &format!("{} of it are there ({percent:.0}%)", human(kept.bytes)),
        );
        say("", &format!("[{}]", bar(&kept.ranges, found.bytes)));
    } else if found.reach == "far" {
        say("cache", "none: set FARPAGE_CACHE to a folder");
    }
    if !found.arrays.is_empty() {
        text.push('\n');
        text += &table(&found.arrays);
    }
    text
}

/// `#`: all of the cell's bytes are there; `+`: some; `.`: none.
fn bar(ranges: &[(u64, u64)], bytes: u64) -> String {
    let edge = |cell: u64| (u128::from(bytes) * u128::from(cell) / u128::from(CELLS)) as u64;
    let overlap = |cell: &Range<u64>| {
        let of = |(start, end): &(u64, u64)| {
            (*end)
                .min(cell.end)
                .saturating_sub((*start).max(cell.start))
        };
        ranges.iter().map(of).sum::<u64>()
    };
    let sign = |cell: u64| {
        // A file of fewer bytes than cells has cells that share one.
        let cell = edge(cell)..edge(cell + 1).max(edge(cell) + 1).min(bytes.max(1));
        match overlap(&cell) {
            0 => '.',
            there if there == cell.end - cell.start => '#',
            _ => '+',
        }
    };
    (0..CELLS).map(sign).collect()
}

fn table(arrays: &[Row]) -> String {
    let shape = |row: &Row| {
        let lengths: Vec<String> = row.shape.iter().map(u64::to_string).collect();
        let order = if row.fortran && row.shape.len() > 1 {
            " (Fortran)"
        } else {
            ""
        };
        match lengths.as_slice() {
            [] => "-".to_owned(),
            lengths => format!("{}{order}", lengths.join(" x ")),
        }
    };
    let cells = arrays.iter().map(|row| {
        let name = if row.name.is_empty() { "-" } else { &row.name };
        [
            name.to_owned(),
            row.dtype.clone(),
            shape(row),
            row.bytes.to_string(),
        ]
    });
    let sides = [Side::Left, Side::Left, Side::Left, Side::Right];
    let lines = columns(sides, ["NAME", "TYPE", "SHAPE", "BYTES"], cells);
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_where_bytes_are_and_where_only_some_are() {
        assert_eq!(bar(&[], 6000), ".".repeat(60));
        assert_eq!(bar(&[(0, 6000)], 6000), "#".repeat(60));
        let halves = bar(&[(0, 150), (3000, 3100), (5999, 6000)], 6000);
        assert_eq!(halves, format!("#+{}#{}+", ".".repeat(28), ".".repeat(28)));
        assert_eq!(bar(&[], 0), ".".repeat(60));
        assert_eq!(bar(&[(0, 7)], 7), "#".repeat(60));
        let huge = u64::MAX / 2;
        assert_eq!(bar(&[(0, huge)], huge), "#".repeat(60));
    }
}
