//! One GiB handed over: what the receiver spends until it has both ends of it.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use farpage_port::link::{Attached, Draft, Frame, HEADER_BYTES, Link, Region, Sealed};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const BYTES: usize = 1 << 30;
const TIMES: usize = 20;
const HEADER: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// Prints the medians of this run.
pub(super) fn run() {
    let (near, far) = link();
    let mut draft = Draft::create(c"bench", BYTES).expect("memory");
    ends(&mut draft);
    let sealed = Sealed::new(draft).expect("sealed");
    let frame = Frame {
        header: HEADER,
        body: &[],
    };
    print("farpage_link,_donated", || {
        near.donate(&frame, &sealed, &[]).expect("sent");
        let start = Instant::now();
        let message = far.receive(None).expect("received");
        let Attached::Memory(memory) = &message.attached else {
            unreachable!("memory was sent");
        };
        black_box((memory[0], memory[BYTES - 1]));
        start.elapsed().as_nanos()
    });
    let mut region = Region::create(BYTES).expect("a region");
    ends(&mut region);
    print("farpage_link,_lent", || {
        near.lend(HEADER, &region, 0..BYTES).expect("lent");
        let start = Instant::now();
        let message = far.receive(None).expect("received");
        let Attached::Loan(loan) = message.attached else {
            unreachable!("a loan was sent");
        };
        let mut byte = [0];
        loan.copy_to(0, &mut byte);
        loan.copy_to(BYTES - 1, black_box(&mut byte));
        let ns = start.elapsed().as_nanos();
        far.give_back(HEADER, loan).expect("returned");
        near.receive(None).expect("returned");
        ns
    });
    #[cfg(feature = "peers")]
    ipc_channel();
}

#[cfg(feature = "peers")]
fn ipc_channel() {
    use ipc_channel::ipc::{self, IpcSharedMemory};
    let (to, from) = ipc::channel::<IpcSharedMemory>().expect("a channel");
    let shared = IpcSharedMemory::from_byte(1, BYTES);
    print("ipc-channel,_shared", || {
        to.send(shared.clone()).expect("sent");
        let start = Instant::now();
        let memory = from.recv().expect("received");
        black_box((memory[0], memory[BYTES - 1]));
        start.elapsed().as_nanos()
    });
}

fn ends(memory: &mut [u8]) {
    memory[0] = 1;
    memory[BYTES - 1] = 1;
}

fn print(name: &str, mut once: impl FnMut() -> u128) {
    let mut all: Vec<u128> = (0..TIMES).map(|_| once()).collect();
    all.sort_unstable();
    println!("memory {name} - {BYTES} {}", all[TIMES / 2]);
}

/// Both ends in this process: only the receiver's time counts.
fn link() -> (Link, Link) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (one, other) =
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let near = thread::spawn(move || Link::connect_over(one, None).expect("a Link"));
    let far = Link::accept_over(other, None).expect("a Link");
    (near.join().expect("no panic"), far)
}
