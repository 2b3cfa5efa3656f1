//! `farpage pager default`: the default pager of a host kernel, as a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_client::{Host, default_socket};
use farpage_default_pager::manager::paging::Paging;
use farpage_default_pager::manager::paging::{PagingFile, PagingSpace, named, trouble};
use farpage_default_pager::manager::{Ended, FileSpace, Offer, Space, Wired};
use farpage_object::SEGMENT_BYTES;
use farpage_supervisor::signals;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::signal;
use farpage_text::size::human;

use super::ENDS;
use crate::memory::FileArgs;

/// Time between two lines while pages move away.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks whether all pages have come.
const LOOK: Duration = Duration::from_millis(200);

/// Keep what does not fit into the memory of the host kernel, in this process
///
/// Takes the place of the default pager that is inside the host kernel, or of another process that
/// was put there, while everything runs: pages move here in the background. Interrupted or told to
/// end (INT, TERM, HUP) it first gives all of them back. When it is killed, pages that it had are
/// lost.
#[derive(Args, Debug)]
pub struct DefaultArgs {
    /// RAM that compressed pages may take here; 0 turns compression off
    ///
    /// A percentage is of the memory that this process may use. [default: 20%]
    #[arg(long, value_name = "SIZE")]
    compressed: Option<String>,
    #[command(flatten)]
    files: FileArgs,
    /// The host kernel that listens there
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Keeps pages until another does.
///
/// # Errors
/// When it cannot begin, and when the host kernel is gone.
pub fn main(args: &DefaultArgs) -> Result<()> {
    // Before there are threads, which would get them.
    let _blocked = signals::block();
    let ends = signal::watch(ENDS).context("cannot watch for signals")?;
    let compressed = args.compressed.as_deref();
    let memory = args.files.config(compressed, &MemoryLimit::read())?;
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    let host = Host::connect(&socket)?;
    host.status()?;
    // What is made from now on is wired, too.
    let wired = Wired::this_process();
    let paging = Arc::new(Paging::start(&memory)?);
    let offer = Offer::start(Arc::clone(&paging.pager) as _).context("cannot start threads")?;
    let folders = paging.about().files.into_iter().map(|file| file.folder);
    let folders = folders.collect();
    let told = Arc::clone(&paging);
    let was_full = AtomicBool::new(false);
    let tell = offer.tell(move |tell| {
        let about = told.about();
        // Whoever reads that it is full may ask how full.
        tell(&space(&about));
        say_when_full(&about, &was_full);
    });
    tell.context("cannot start a thread")?;
    let serving = Arc::new(host.set_default_memory_manager(offer, wired, folders)?);
    let own = std::process::id();
    tell!(
        "farpage: process {own} is the default pager of the host kernel at {}: {wired}",
        socket.display()
    );
    let (told, has) = (Arc::clone(&serving), Arc::clone(&paging));
    let listen = move || {
        while signal::next(ends).is_err() {}
        tell!("farpage: pages move back to the host kernel");
        told.end();
        loop {
            std::thread::sleep(SAY_EVERY);
            let (compressed, files) = kept(&has.about());
            tell!(
                "farpage: {} compressed and {} in paging files are still here (farpage stats says \
                 whether there is room elsewhere)",
                human(compressed),
                human(files)
            );
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(listen).context("cannot start a thread")?;
    let thread = std::thread::Builder::new().name("arrival".into());
    let arrive = move || say_when_all_is_here(&host);
    thread.spawn(arrive).context("cannot start a thread")?;
    match serving.wait() {
        Ended::Replaced => {
            tell!("farpage: another default pager has taken over, with all pages");
            Ok(())
        }
        Ended::KernelGone => bail!(
            "the host kernel at {} is gone, and with it who could want the pages that are here",
            socket.display()
        ),
    }
}

/// Says that the paging files take no more, or do again.
fn say_when_full(about: &PagingSpace, was_full: &AtomicBool) {
    let is_full = !about.files.is_empty() && about.files.iter().all(takes_no_more);
    if was_full.swap(is_full, Ordering::Relaxed) == is_full {
        return;
    }
    match is_full {
        true => farpage_sys::say!(
            "farpage: the paging files take no more, with {} in {}: make room where they are, or end this process and \
             start it with more --spill or --spill-limit",
            human(kept(about).1),
            folders(about)
        ),
        false => farpage_sys::say!("farpage: there is room in the paging files again"),
    }
}

/// The folders of the paging files, with what is wrong there.
fn folders(about: &PagingSpace) -> String {
    let files = about.files.iter();
    let names = files.map(|file| named(&file.folder, trouble(file.is_full, file.write_error)));
    names.collect::<Vec<String>>().join(", ")
}

/// A segment is written whole.
fn takes_no_more(file: &PagingFile) -> bool {
    let is_at = |limit| file.used_bytes + SEGMENT_BYTES as u64 > limit;
    file.is_full || file.limit_bytes.is_some_and(is_at)
}

fn say_when_all_is_here(host: &Host) {
    let own = std::process::id();
    loop {
        std::thread::sleep(LOOK);
        // A host kernel that is gone is seen elsewhere.
        let Some(space) = host.figures().ok().and_then(|all| all.paging_space) else {
            return;
        };
        let is_own = space.process.as_ref().is_some_and(|one| one.pid == own);
        if is_own && !space.is_moving {
            tell!(
                "farpage: took over {} from the previous default pager",
                came(&space)
            );
            return;
        }
    }
}

/// Bytes that are compressed, and those in paging files.
fn kept(space: &PagingSpace) -> (u64, u64) {
    let files = space.files.iter().map(|file| file.used_bytes);
    (space.compressed_bytes, files.sum())
}

/// What has come, in words.
fn came(space: &PagingSpace) -> String {
    match kept(space) {
        (0, 0) => "no pages".into(),
        (compressed, files) => format!(
            "all pages ({} compressed, {} in paging files)",
            human(compressed),
            human(files)
        ),
    }
}

fn space(about: &PagingSpace) -> Space {
    let files = about.files.iter().map(|file| FileSpace {
        used_bytes: file.used_bytes,
        limit_bytes: file.limit_bytes,
        is_full: file.is_full,
        write_error: file.write_error,
    });
    Space {
        compressed_bytes: about.compressed_bytes,
        compressed_max_bytes: about.compressed_max_bytes,
        files: files.collect(),
    }
}
