//! A program that needs more memory than there is, with the default pager inside the host kernel and as
//! a process of its own: Golub's and Draves' table 7-1, with their sizes and larger ones. And what the
//! process takes: their tables 7-2 and 7-3.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_client::Host;
use farpage_daemon::Service;
use farpage_default_pager::DefaultPager;
use farpage_default_pager::manager::{Manager, Offer, Wired};
use farpage_host::Objects;
use farpage_object::{Control, PAGE_BYTES, SEGMENTS_MAX, SpillState, fds};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::role::{Role, serves};

/// Bytes of the program's memory in table 7-1.
const PROGRAM: u64 = 7_000_000;
/// Bytes that were available, in thousands.
const AVAILABLE: [u64; 3] = [6500, 2500, 1500];

/// Kinds of a child of this program.
pub const KERNEL: &str = "default-pager-kernel";
pub const PROCESS: &str = "default-pager-process";
pub const USER: &str = "default-pager-program";

/// A host kernel, and its default pager when that is outside.
struct Machine {
    socket: PathBuf,
    _kernel: Role,
    pager: Option<Role>,
}

impl Machine {
    fn start(folder: &Path, name: &str, ram: u64, tier: u64, outside: bool) -> Self {
        let socket = folder.join(name);
        let path = socket.to_str().expect("a path");
        let (ram, tier) = (ram.to_string(), tier.to_string());
        let mut kernel = Role::start(&[KERNEL, path, &ram, &tier]);
        kernel.line();
        let pager = outside.then(|| {
            let mut pager = Role::start(&[PROCESS, path, &tier]);
            pager.line();
            pager
        });
        Self {
            socket,
            _kernel: kernel,
            pager,
        }
    }

    /// Nanoseconds that the program takes.
    fn run(&self, bytes: u64, order: &str, passes: u64) -> u64 {
        let path = self.socket.to_str().expect("a path");
        let (bytes, passes) = (bytes.to_string(), passes.to_string());
        let mut program = Role::start(&[USER, path, &bytes, order, &passes]);
        program.line().parse().expect("a number")
    }
}

/// Prints lines: what name order pages ns_a_page, and: memory part - - KiB.
pub fn run(runs: u64, mib: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let large = mib << 20;
    let mut last = None;
    for (kind, bytes, order, passes) in [
        ("disk", PROGRAM, "at_random", 20),
        ("disk", PROGRAM, "in_order", 20),
        ("disk", large, "in_order", 1),
        ("compressed", large, "in_order", 1),
    ] {
        for available in AVAILABLE.into_iter().filter(|_| bytes > 0) {
            let ram = bytes / 7000 * available;
            let tier = if kind == "disk" { 0 } else { ram / 4 };
            let start =
                |name, outside| Machine::start(folder.path(), name, ram - tier, tier, outside);
            let (inside, outside) = (start("inside", false), start("outside", true));
            let what = format!("{kind}_{}_of_{}_MB", ram / 1_000_000, bytes / 1_000_000);
            let pages = bytes / PAGE_BYTES as u64;
            for _ in 0..runs {
                for (name, host) in [("inside", &inside), ("farpage", &outside)] {
                    let ns = host.run(bytes, order, passes);
                    let each = ns as f64 / (pages * passes) as f64;
                    println!("{what} {name} {order} {pages} {each:.1}");
                }
            }
            if let Some(pager) = outside.pager.as_ref().filter(|_| bytes == PROGRAM) {
                last = Some(memory(pager.child.id()));
            }
        }
    }
    for (part, number) in last.into_iter().flatten() {
        println!("memory {part} - - {number}");
    }
}

/// What the process of a default pager takes, by part.
fn memory(pid: u32) -> Vec<(&'static str, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let mut parts: Vec<(&'static str, u64)> = Vec::new();
    let mut part = "";
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, access, _, _, _, name @ ..] if range.contains('-') && access.len() == 4 => {
                let name = name.first().copied().unwrap_or("");
                part = match name {
                    name if name.contains("farpage-default-pager") => "calls",
                    name if name.contains("farpage-bench") && access.contains('x') => "code",
                    name if name.contains("farpage-bench") => "data",
                    name if name.contains(".so") => "libraries",
                    "[heap]" => "heap",
                    "[stack]" => "stacks",
                    name if name.contains("memfd") => "links",
                    _ => "stacks_and_buffers",
                };
            }
            ["Rss:", kib, "kB"] => {
                let kib: u64 = kib.parse().expect("a number");
                match parts.iter_mut().find(|(name, _)| *name == part) {
                    Some((_, sum)) => *sum += kib,
                    None => parts.push((part, kib)),
                }
            }
            _ => {}
        }
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    for (field, part) in [("VmPTE:", "page_tables"), ("Threads:", "threads")] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        parts.push((part, number.expect("a field")));
    }
    parts
}

/// A default pager of this process, with a paging file, and `tier` bytes of compressed memory.
pub fn paging(tier: u64) -> DefaultPager {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let (_, control) = farpage_sys::control::create().expect("a control block");
    let base = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(1 << 20)
        .min(1 << 20);
    let base = (base - u64::from(fds::COUNT)) as u32;
    control.fd_base.store(base, Ordering::Relaxed);
    control.budget_bytes.store(tier, Ordering::Relaxed);
    control.compressed_max_bytes.store(tier, Ordering::Relaxed);
    control
        .supervisor_pid
        .store(std::process::id(), Ordering::Relaxed);
    let rings = farpage_sys::probe::io_uring().is_ok();
    control.io_uring.store(rings.into(), Ordering::Relaxed);
    add_file(control);
    DefaultPager::new(control, 0).expect("a default pager")
}

/// A paging file on disk, without a name.
fn add_file(control: &Control) {
    const O_DIRECT: i32 = 0x4000;
    const O_TMPFILE: i32 = 0x41_0000;
    let open = |flags| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(O_TMPFILE | flags);
        options.open("/var/tmp")
    };
    let file = open(O_DIRECT).or_else(|_| open(0)).expect("a paging file");
    let line = &control.spill[0];
    line.supervisor_fd
        .store(file.as_raw_fd() as u32, Ordering::Relaxed);
    line.limit_segments
        .store(SEGMENTS_MAX as u32, Ordering::Relaxed);
    line.state
        .store(SpillState::Active as u32, Ordering::Release);
    // It is open as long as this process lives.
    std::mem::forget(file);
}

/// A host kernel that lives until it is killed.
pub fn kernel(socket: &Path, ram: u64, tier: u64) {
    let inside = Arc::new(paging(tier));
    let manager = Manager::start(Arc::clone(&inside) as _).expect("a thread");
    let objects = Objects::start(ram).expect("threads");
    let service = Service::new(objects, ram, inside).expect("a service");
    serves(service.with_default_memory_manager(manager), socket);
}

/// The default pager of a host kernel, until it is killed.
pub fn process(socket: &Path, tier: u64) {
    let host = Host::connect(socket).expect("a host kernel");
    host.status().expect("it answers");
    let wired = Wired::this_process();
    let offer = Offer::start(Arc::new(paging(tier))).expect("threads");
    let serving = host.set_default_memory_manager(offer, wired, Vec::new());
    println!("ready");
    serving.expect("it is taken").wait();
}

/// A program that reads and writes all of its memory some times; prints nanoseconds.
pub fn program(socket: &Path, bytes: u64, order: &str, passes: u64) {
    let host = Host::connect(socket).expect("a host kernel");
    let shared = host.create("", bytes).expect("memory");
    let words = shared.words();
    let pages = words.len() / (PAGE_BYTES / 8);
    let step = if order == "at_random" { 1_237 } else { 1 };
    let mut seed = 1u64;
    let touch = |page: usize, seed: &mut u64| {
        // A quarter of it changes, to what compresses to about half.
        for word in words[page * (PAGE_BYTES / 8)..][..PAGE_BYTES / 8]
            .iter()
            .step_by(4)
        {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.store(
                word.load(Ordering::Relaxed) ^ *seed >> 20,
                Ordering::Relaxed,
            );
        }
    };
    (0..pages).for_each(|page| touch(page, &mut seed));
    let began = Instant::now();
    for pass in 0..passes as usize {
        (0..pages).for_each(|page| touch((page * step + pass) % pages, &mut seed));
    }
    println!("{}", began.elapsed().as_nanos());
}
