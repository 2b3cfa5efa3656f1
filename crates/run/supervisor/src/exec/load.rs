//! What a program needs beside itself, before it starts.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, anyhow};
use farpage_object::{PAGE_BYTES, PageIndex, PageRange};
use farpage_plan::{LoadError, Plan, PlanError, plan};
use farpage_source::SourceError;
use farpage_source::open::OpenSourceError;

use crate::config::Exec;
use crate::maps::{MapOption, OpenedFiles, at_once};
use crate::program::Unusable;

/// Where libraries are looked for below a root, after the folders that programs name.
const FOLDERS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];
/// The C library's own, by how their names begin: they fit the dynamic linker that comes with them,
/// and Linux takes this machine's.
const OF_C: [&str; 14] = [
    "ld-linux",
    "ld-musl",
    "libc.",
    "libm.",
    "libmvec.",
    "libpthread.",
    "libdl.",
    "librt.",
    "libutil.",
    "libanl.",
    "libresolv.",
    "libnss_",
    "libnsl.",
    "libthread_db.",
];

/// A file below `--root`.
pub fn below(root: &str, path: &str) -> MapOption {
    MapOption {
        name: path.to_owned(),
        path: path.to_owned(),
        url: format!("{root}{path}"),
    }
}

/// Makes what is a program of `opened` executable, the first of them, and opens the libraries that
/// they name and that are below the root. Returns which of all are programs and libraries.
///
/// # Errors
/// When the first is no program; what cannot be read.
pub fn load(opened: &mut OpenedFiles, exec: &Exec) -> Result<Vec<usize>> {
    let mut loaded = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut next = 0;
    while next < opened.options.len() {
        let mut wanted: Vec<Vec<MapOption>> = Vec::new();
        let numbers: Vec<usize> = (next..opened.options.len()).collect();
        let plans = at_once(&numbers, |number| prepared(opened, *number));
        for (number, plan) in numbers.into_iter().zip(plans) {
            let Some(plan) = plan? else {
                continue;
            };
            loaded.push(number);
            let Some(root) = &exec.root else {
                continue;
            };
            for name in plan.libraries() {
                let is_of_c = OF_C.iter().any(|begin| name.starts_with(begin));
                if !is_of_c && !name.contains('/') && seen.insert(name.to_owned()) {
                    wanted.push(candidates(root, name, &plan, &opened.options[number].path));
                }
            }
        }
        next = opened.options.len();
        let has = |path: &str| opened.options.iter().any(|option| option.path == path);
        wanted.retain(|all| !all.iter().any(|candidate| has(&candidate.path)));
        opened.add_first_found(wanted)?;
    }
    Ok(loaded)
}

/// The pages of those files, of all of `loaded`, that are far and small enough to come whole while
/// the program starts: each wait for a page of them would take longer than all of them together.
pub fn ahead(opened: &OpenedFiles, loaded: &[usize], exec: &Exec) -> Vec<(usize, PageRange)> {
    let whole = |number: &usize| {
        let size = opened.size(*number);
        let comes = opened.is_far(*number) && size <= exec.ahead_bytes;
        comes.then(|| (*number, PageRange::new(0, size.div_ceil(PAGE_BYTES as u64))))
    };
    loaded.iter().filter_map(whole).collect()
}

/// Where below the root the library `name` of the program at `path` may be.
fn candidates(root: &str, name: &str, plan: &Plan, path: &str) -> Vec<MapOption> {
    let origin = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let named = plan.search.iter().map(|folder| {
        let folder = folder.replace("${ORIGIN}", origin);
        folder.replace("$ORIGIN", origin)
    });
    let folders = named.chain(FOLDERS.map(str::to_owned));
    let absolute = folders.filter(|folder| folder.starts_with('/'));
    absolute
        .map(|folder| below(root, &format!("{}/{name}", folder.trim_end_matches('/'))))
        .collect()
}

/// The plan of a file, which can be executed from then on when it is a program.
fn prepared(opened: &OpenedFiles, number: usize) -> Result<Option<Plan>> {
    let plan = planned(opened, number)?;
    if let Some(plan) = plan.as_ref().filter(|plan| plan.kind.is_program()) {
        prepare(opened, number, plan)?;
    }
    Ok(plan)
}

/// The plan of a file. `None`: it is none of this machine's programs and libraries, which only the
/// first must be.
fn planned(opened: &OpenedFiles, number: usize) -> Result<Option<Plan>> {
    let (object, size) = (opened.object(number), opened.size(number));
    let mut read = |offset: u64, bytes: usize| {
        let mut part = vec![0; bytes];
        object.read(offset, &mut part).map(|()| part)
    };
    match plan(size, &mut read) {
        Ok(plan) if number == 0 && !plan.kind.is_program() => Err(unusable(
            opened,
            &"it is a library, no program; give a program",
        )),
        Ok(plan) => Ok(Some(plan)),
        Err(PlanError::Load(error)) if number == 0 => Err(unusable(opened, &error)),
        Err(PlanError::Load(_)) => Ok(None),
        Err(PlanError::Read { error, .. }) => Err(anyhow!("{error}")),
        Err(error @ PlanError::ShortRead { .. }) => Err(error.into()),
    }
}

fn unusable(opened: &OpenedFiles, why: &dyn std::fmt::Display) -> anyhow::Error {
    let url = &opened.options[0].url;
    Unusable::NotExecutable(format!("cannot run '{url}': {why}")).into()
}

/// The same for what was opened alone.
pub fn refused(url: &str, error: &LoadError) -> anyhow::Error {
    Unusable::NotExecutable(format!("cannot run '{url}': {error}")).into()
}

/// That something is not there, which has an exit status of its own.
pub fn missing(error: anyhow::Error) -> anyhow::Error {
    match is_missing(&error) {
        true => Unusable::NotFound(format!("{error:#}")).into(),
        false => error,
    }
}

/// True when something is not there.
pub fn is_missing(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<OpenSourceError>();
    matches!(
        error,
        Some(OpenSourceError::Source(SourceError::NotFound { .. }))
    )
}

/// The other path of what lies below `/usr/lib` or `/usr/bin`, where `/lib` and `/bin` lead there.
pub fn other_path(option: &MapOption) -> Option<String> {
    let below = option.path.strip_prefix("/usr")?;
    let top = below.split('/').nth(1)?;
    let leads_there = |top: &str| {
        let link = Path::new("/").join(top).canonicalize().ok()?;
        (link == Path::new("/usr").join(top)).then_some(())
    };
    leads_there(top).map(|()| below.to_owned())
}

/// Has in memory, for good, what Linux needs to execute the file.
fn prepare(opened: &OpenedFiles, number: usize, plan: &Plan) -> Result<()> {
    let page = PAGE_BYTES as u64;
    let pages =
        |range: &std::ops::Range<u64>| PageRange::new(range.start / page, range.end.div_ceil(page));
    let before: Vec<PageRange> = plan.before_start.iter().map(pages).collect();
    opened.is_executable(number, &before)?;
    for index in before.iter().flat_map(|range| range.start.0..range.end.0) {
        let mut byte = [0];
        let at = PageIndex(index).0 * page;
        opened.object(number).read(at, &mut byte)?;
    }
    Ok(())
}
