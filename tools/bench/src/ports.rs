//! Calls between programs of two hosts, by ports and by bare TCP: parts of `cargo xtask bench ports`, each
//! started on its host.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use farpage_client::Host;
use farpage_port::link::{Draft, Sealed};
use farpage_port::{Memory, Message, Received};

/// Bytes of a null call, as TCP has it; those of memory, there and back.
const NULL: usize = 64;
const MUCH: usize = 1 << 20;

/// Answers calls by a port of this name with what came, for ever.
pub fn serve(socket: &str, name: &str) {
    let host = Host::connect(Path::new(socket)).expect("a host kernel");
    let port = host.node().expect("its node").port();
    host.check_in(name, &port.make_send()).expect("a name");
    println!("ready");
    loop {
        let mut call: Received = port.receive(None).expect("a call");
        let memory = std::mem::take(&mut call.memory);
        let bytes = std::mem::take(&mut call.bytes);
        let answer = Message {
            bytes,
            memory,
            ..Message::new(1)
        };
        // Who called may be gone.
        let _ = call.answer(answer);
    }
}

/// Calls it; prints `BYTES NANOSECONDS` for each kind of call.
pub fn call(socket: &str, name: &str, calls: u64) {
    let host = Host::connect(Path::new(socket)).expect("a host kernel");
    let right = host.look_up(name).expect("a port");
    let null = || {
        let bytes = vec![1; NULL];
        let message = Message {
            bytes,
            ..Message::new(1)
        };
        let answer = right.call(message, None).expect("an answer");
        assert_eq!(answer.bytes.len(), NULL);
    };
    let much = || {
        let mut draft = Draft::create(c"bench", MUCH).expect("memory");
        draft.fill(7);
        let sealed = Sealed::new(draft).expect("sealed");
        let memory = vec![Memory::Donated(sealed.into())];
        let message = Message {
            memory,
            ..Message::new(1)
        };
        let mut answer = right.call(message, None).expect("an answer");
        let Some(Memory::Donated(came)) = answer.memory.pop() else {
            panic!("no memory came back");
        };
        let came = came.map().expect("mapped");
        assert!(came.len() == MUCH && came.iter().step_by(4096).all(|byte| *byte == 7));
    };
    times(calls, null, much);
}

fn times(calls: u64, null: impl Fn(), much: impl Fn()) {
    let time = |calls: u64, call: &dyn Fn()| {
        (0..calls / 10 + 1).for_each(|_| call());
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed().as_nanos() as u64 / calls
    };
    println!("{NULL} {}", time(calls, &null));
    println!("{MUCH} {}", time(calls / 20 + 1, &much));
}

/// Sends what comes back as it came, for ever.
pub fn tcp_serve(address: &str) {
    let listener = TcpListener::bind(address).expect("an address");
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        stream.set_nodelay(true).expect("TCP");
        let mut bytes = vec![0; MUCH];
        let mut length = [0; 4];
        while stream.read_exact(&mut length).is_ok() {
            let bytes = &mut bytes[..u32::from_le_bytes(length) as usize];
            stream.read_exact(bytes).expect("all of it");
            stream.write_all(bytes).expect("it is taken");
        }
    }
}

/// Calls that.
pub fn tcp_call(address: &str, calls: u64) {
    let stream = TcpStream::connect(address).expect("a server");
    stream.set_nodelay(true).expect("TCP");
    let call = |bytes: usize| {
        let mut stream = &stream;
        let mut out = (bytes as u32).to_le_bytes().to_vec();
        out.resize(4 + bytes, 7);
        stream.write_all(&out).expect("it is taken");
        stream.read_exact(&mut out[4..]).expect("it comes back");
        assert!(out[4..].iter().step_by(4096).all(|byte| *byte == 7));
    };
    times(calls, || call(NULL), || call(MUCH));
}
