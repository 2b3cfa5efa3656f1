//! Figures of Farpage's own parts, in the form that `cargo xtask bench` puts beside its peers'.

mod cache;
mod default_pager;
mod fault;
mod heap;
mod hot;
mod locked;
mod locked_io;
mod map_fd;
mod open;
mod ports;
mod role;
mod rpc;
mod share;
mod shared;
mod stdio;
mod together;
mod translate;

const HELP: &str = "farpage-bench fault [--runs N] [--pages N] [--threads N]
    faults on absent pages of a memory object whose pager supplies them from memory
prints lines: name threads pin faults p50_ns p99_ns thousand_faults_per_s

farpage-bench cache [--runs N] [--pages N]
    the same, of an object whose contents are in the cache on disk

farpage-bench translate [--runs N] [--mib N]
    numbers of other formats into those of memory and back, beside copies of the same length
prints lines: name direction bytes_read bytes_written ns ns_of_a_copy_of_as_many_bytes_written

farpage-bench rpc [--runs N] [--calls N]
    null calls between two processes on one processor and on two, beside pipes (and peers, when built
    with them), and a GiB of memory handed over
prints lines: kind name place bytes ns

farpage-bench default-pager [--runs N] [--mib N]
    a program with less memory than it needs, with the default pager inside the host kernel and outside
prints lines: what name order pages ns_a_page, and: memory part - - KiB

farpage-bench heap [--runs N] [--pairs N]
    blocks of a heap in shared memory freed and allocated, beside the C library's malloc
prints lines: processes name sizes pairs ns_a_pair

farpage-bench map-fd [--runs N] [--mib N]
    a private copy of the bytes of a file, beside reading them and a private mapping
prints lines: way MiB ms_to_the_first_byte ms_to_a_page_in_64 ms_to_all

farpage-bench open [--runs N] [--mib N]
    a local file opened for reading and summed, beside a mapping of Linux's
prints lines: way warm_or_cold MiB ms

farpage-bench locked [--runs N]
    locking and registering memory, first and again, beside the calls of Linux that do it
prints lines: way memory bytes us_to_register us_to_give_up

farpage-bench areas [--runs N]
    an area locked and given up among so many that overlap, all within one that is locked
prints lines: areas how_many ns_to_lock ns_to_give_up

farpage-bench locked-io FOLDER [--seconds N] [--seed N]
    [--mistake old-frames|flipped|misplaced|lost, to see that it is seen]
    transfers of a file in FOLDER to locked and registered memory, each compared; exit 1 on a mismatch
prints how it goes, and what was done

farpage-bench hits [--runs N]
    registrations that are found again
prints lines: hit farpage regions threads ns

farpage-bench stdio bufreader|memmap2|stream FILE
    the bytes of a file added up
prints a line: bytes sum processor_ms ms 0 0

farpage-bench shared [--runs N] [--pages N, a power of two]
    pages of an object that two processes map, new ones and ones that are there, beside a memory file;
    pages that its pager has, beside the embedded kernel; pages of a hot set that are asked for again
prints lines: what name order pages ns_a_page, and: hot name order pages pages_asked_for";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).map_or(default, |value| {
            value.parse().unwrap_or_else(|_| {
                eprintln!("farpage-bench: {name} takes a number, not '{value}'");
                std::process::exit(2)
            })
        })
    };
    match args.first().map(String::as_str) {
        Some("stdio") => match &args[1..] {
            [way, path] => stdio::stdio(way, path),
            _ => {
                eprintln!("farpage-bench: stdio takes a way and a file");
                std::process::exit(2);
            }
        },
        Some("locked") => locked::sizes(number("--runs", 5) as usize),
        // Parts of it.
        Some(locked::HOST) => locked::host(args[1].as_ref()),
        Some(locked::OTHER) => locked::other(args[1].as_ref(), &args[2], &args[3]),
        Some("areas") => locked::areas(number("--runs", 5) as usize),
        Some("locked-io") if args.len() > 1 => {
            let mistake = args.iter().position(|arg| arg == "--mistake");
            let mistake = mistake.and_then(|at| args.get(at + 1)).map(String::as_str);
            let (seconds, seed) = (number("--seconds", 600), number("--seed", 1));
            locked_io::run(&args[1], seconds, seed, mistake);
        }
        // A part of `cargo xtask bench locked --io`: memory that others want.
        Some("locked-io-pressure") => locked_io::pressure(number("--mib", 256) as usize),
        Some("hits") => locked::hits(number("--runs", 5) as usize),
        Some("map-fd") => map_fd::run(number("--runs", 5) as usize, number("--mib", 256) as usize),
        Some("open") => open::run(number("--runs", 5) as usize, number("--mib", 1024) as usize),
        Some("fault") => {
            let (runs, pages) = (number("--runs", 5), number("--pages", 16384));
            let threads = number("--threads", 0);
            let counts = if threads == 0 {
                vec![1, 2, 4, 8]
            } else {
                vec![threads]
            };
            let kernel = fault::kernel(pages as usize);
            for _ in 0..runs {
                for &threads in &counts {
                    for in_thread in [false, true] {
                        fault::run(kernel, threads as usize, pages as usize, in_thread);
                    }
                }
            }
        }
        Some("cache") => {
            let (runs, pages) = (number("--runs", 5), number("--pages", 16384) as usize);
            cache::run(fault::kernel(pages), pages, runs);
        }
        Some("translate") => {
            translate::run(number("--runs", 5) as usize, number("--mib", 64) as usize);
        }
        // Parts of `cargo xtask bench share`, each started on its host.
        Some("share-host") => {
            let (pages, unit) = (number("--pages", 2048), number("--unit", 4096));
            share::host(&args[1], &args[2], pages, unit);
        }
        Some("share-echo") => share::echo(&args[1], number("--unit", 4096)),
        Some("share-ask") => {
            share::ask(&args[1], number("--count", 2048), number("--unit", 4096));
        }
        Some("share-redis") => {
            share::redis(&args[1], number("--count", 64), number("--unit", 1 << 20));
        }
        // Parts of `cargo xtask bench ports`, each started on its host.
        Some("ports-serve") => ports::serve(&args[1], &args[2]),
        Some("ports-call") => ports::call(&args[1], &args[2], number("--calls", 2000)),
        Some("ports-tcp-serve") => ports::tcp_serve(&args[1]),
        Some("ports-tcp-call") => ports::tcp_call(&args[1], number("--calls", 2000)),
        Some("rpc") => rpc::run(
            number("--runs", 5) as usize,
            number("--calls", 50_000) as usize,
        ),
        Some("heap") => heap::run(number("--runs", 5), number("--pairs", 1 << 20) as usize),
        Some("heap-program") => heap::program(),
        Some("shared") => shared::run(number("--runs", 5), number("--pages", 65_536)),
        Some("shared-program") => {
            let pages = args.get(1).and_then(|pages| pages.parse().ok());
            shared::program(pages.expect("how many pages"));
        }
        Some("default-pager") => default_pager::run(number("--runs", 5), number("--mib", 4096)),
        Some(default_pager::KERNEL) => {
            default_pager::kernel(args[1].as_ref(), parsed(&args[2]), parsed(&args[3]));
        }
        Some(default_pager::PROCESS) => default_pager::process(args[1].as_ref(), parsed(&args[2])),
        Some(default_pager::USER) => {
            let (bytes, passes) = (parsed(&args[2]), parsed(&args[4]));
            default_pager::program(args[1].as_ref(), bytes, &args[3], passes);
        }
        Some("rpc-server") => rpc::serve(&args[1..]),
        Some("--help") => println!("{HELP}"),
        _ => {
            eprintln!("{HELP}");
            std::process::exit(2);
        }
    }
}

fn parsed(number: &str) -> u64 {
    number.parse().expect("a number")
}
