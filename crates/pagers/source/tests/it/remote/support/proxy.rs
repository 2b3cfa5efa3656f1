//! What stands between a client and a server, and breaks connections on demand.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// After so many more bytes to the server all connections end, and so does each new one.
    After(usize),
    /// Requests that begin so reach the server, and their answers get lost.
    Unanswered(&'static str),
    /// The same once; then all connections end, and so does each new one.
    #[allow(dead_code, reason = "tests of crate farpage use it")]
    LastWords(&'static str),
}

pub struct Proxy {
    pub address: SocketAddr,
    fault: Arc<Mutex<Fault>>,
}

impl Proxy {
    /// Stands before `server`, at `address`.
    pub fn start(address: SocketAddr, server: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let fault = Arc::new(Mutex::new(Fault::Nothing));
        let shared = Arc::clone(&fault);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let fault = Arc::clone(&shared);
                thread::spawn(move || pass(client, server, &fault));
            }
        });
        Self { address, fault }
    }

    pub fn anywhere(server: SocketAddr) -> Self {
        Self::start((Ipv4Addr::LOCALHOST, 0).into(), server)
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }
}

/// Passes bytes on in both directions, until one side has enough or the fault comes.
fn pass(mut client: TcpStream, server: SocketAddr, fault: &Mutex<Fault>) {
    let mut upstream = TcpStream::connect(server).unwrap();
    let (mut from, mut to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
    let silent = Arc::new(Mutex::new(false));
    let mute = Arc::clone(&silent);
    let back = thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            if *mute.lock().unwrap() || to.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut buffer, mut last) = (vec![0; 64 << 10], false);
    while let Ok(bytes @ 1..) = client.read(&mut buffer) {
        let mut fault = fault.lock().unwrap();
        if let Fault::LastWords(start) = *fault
            && buffer.starts_with(start.as_bytes())
        {
            *silent.lock().unwrap() = true;
            *fault = Fault::After(0);
            last = true;
        }
        match &mut *fault {
            Fault::Nothing | Fault::LastWords(_) => {}
            // The rest of the request, up to the answer.
            Fault::After(_) if last => {}
            Fault::After(left) if *left < bytes => break,
            Fault::After(left) => *left -= bytes,
            Fault::Unanswered(start) => {
                if buffer.starts_with(start.as_bytes()) {
                    *silent.lock().unwrap() = true;
                }
            }
        }
        drop(fault);
        if upstream.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = upstream.shutdown(Shutdown::Both);
    let _ = back.join();
}
