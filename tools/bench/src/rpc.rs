//! Null calls between two processes, and memory handed over: a Link beside the bare pipe and peers.

mod link;
mod memory;
mod node;
#[cfg(feature = "peers")]
mod peers;
mod pipe;

use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Bytes of a call and of its answer.
pub(crate) const SIZES: [usize; 4] = [64, 1024, 4096, 16384];
/// The processor of the caller.
const HERE: u32 = 0;

/// Who answers calls in a child, by name.
type Serve = fn(&[String]);

/// Makes a channel to a child on `processor` for calls of `bytes` bytes.
type Connect = fn(processor: u32, bytes: usize) -> Channel;

/// A way to call another process.
pub(crate) struct Channel {
    pub(crate) server: Child,
    /// Sends so many bytes, waits for as many.
    pub(crate) call: Box<dyn FnMut()>,
}

/// A way and its name, with `_` for a space.
type Way = (&'static str, Connect, Serve);

const WAYS: &[Way] = &[
    ("pipe", pipe::connect, pipe::serve),
    ("farpage_link", link::connect, link::serve),
    ("farpage_port", node::connect, node::serve),
];

fn ways() -> impl Iterator<Item = &'static Way> {
    #[cfg(feature = "peers")]
    return WAYS.iter().chain(peers::WAYS);
    #[cfg(not(feature = "peers"))]
    WAYS.iter()
}

/// Starts this program again as the server `name` on `processor`.
pub(crate) fn server(name: &str, processor: u32, bytes: usize, more: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    let (processor, bytes) = (processor.to_string(), bytes.to_string());
    command.args(["rpc-server", name, &processor, &bytes, more]);
    command.stdin(Stdio::null());
    command
}

/// What a server does: `rpc-server NAME PROCESSOR BYTES [MORE]`.
pub fn serve(args: &[String]) {
    let processor = args[1].parse().expect("a processor");
    farpage_sys::thread::run_on(processor).expect("a processor to run on");
    let way = ways().find(|(name, _, _)| *name == args[0]);
    let (_, _, serve) = way.expect("a server of this name");
    serve(&args[2..]);
}

/// Prints lines `call NAME PLACE BYTES NS`, for each of `runs` runs, and lines
/// `memory NAME - BYTES NS`.
pub fn run(runs: usize, calls: usize) {
    farpage_sys::thread::run_on(HERE).expect("a processor to run on");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let processors = processors.max(online());
    for _ in 0..runs {
        for (place, processor) in [("same", HERE), ("other", HERE + 1)] {
            if processor as usize >= processors {
                continue;
            }
            for bytes in SIZES {
                for (name, connect, _) in ways() {
                    let ns = measure(connect(processor, bytes), calls, place);
                    println!("call {name} {place} {bytes} {ns:.0}");
                }
            }
        }
        memory::run();
    }
}

fn online() -> usize {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("processor"))
        .count()
}

/// Nanoseconds of a call.
fn measure(mut channel: Channel, calls: usize, place: &str) -> f64 {
    // Waking an idle processor takes tens of times as long.
    let calls = if place == "same" { calls } else { calls / 10 };
    (0..calls / 10).for_each(|_| (channel.call)());
    let start = Instant::now();
    (0..calls).for_each(|_| (channel.call)());
    let ns = start.elapsed().as_nanos() as f64 / calls as f64;
    drop(channel.call);
    channel
        .server
        .wait()
        .expect("the server ends when its caller is gone");
    ns
}
