//! An HTTP/1.1 server of a folder's files, as slow and as wrong as a test wants it.
//!
//! It serves ranges with strong entity tags, keeps connections, honours `If-Match`, and can be
//! told to be late, to be slow, and to answer some requests wrongly ([`Answer`]).

mod answer;
mod pace;
mod request;

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use request::Request;

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was asked for.
    Right,
    /// The right head and so many bytes of the body; then the connection ends.
    DropAfter(u64),
    /// A range that ends so many bytes early, and a head that says so.
    Shorter(u64),
    /// A range that begins so many bytes later, and a head that says so.
    Later(u64),
    /// The right body under a `Content-Range` that begins so many bytes later.
    FalseHead(u64),
    /// All of the file with status 200, whatever range was asked for.
    Whole,
    /// The right body under this entity tag, whatever `If-Match` says; without one when it is
    /// empty.
    Tagged(String),
    /// The right body in chunks, without its length.
    Chunked,
    /// The right body with so many bytes too many, in chunks.
    ChunkedLonger(u64),
    /// A status and headers, without contents.
    Status(u16, Vec<(String, String)>),
    /// The right answer; then the connection ends, without a word before.
    Close,
    /// Nothing at all until the client goes away.
    Silence,
}

impl Answer {
    /// A redirection to `url`.
    pub fn redirect(url: &str) -> Self {
        Self::Status(302, vec![("Location".into(), url.into())])
    }
}

/// How fast the server is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// Before the first byte of each answer.
    pub latency: Duration,
    /// Of each connection; as fast as it goes when `None`.
    pub bytes_per_s: Option<u64>,
}

/// A rule: which requests (they are counted from 0), by which path, get which answer.
struct Rule {
    requests: Range<u64>,
    path: String,
    answer: Answer,
}

pub(crate) struct Shared {
    folder: PathBuf,
    speed: Speed,
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Vec<Request>>,
    keeps_log: bool,
    requests: AtomicU64,
    connections: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
    stopping: AtomicBool,
}

impl Shared {
    /// Counts a request and says what it gets.
    fn answer(&self, request: &Request) -> Answer {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if self.keeps_log {
            lock(&self.log).push(request.clone());
        }
        let rules = lock(&self.rules);
        let mut found = rules
            .iter()
            .filter(|rule| rule.requests.contains(&number) && rule.path == request.path);
        found.next().map_or(Answer::Right, |r| r.answer.clone())
    }
}

/// A server, until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the files of `folder` on a free port of the loopback interface, and keeps a log of
    /// the requests.
    ///
    /// # Errors
    /// Why no port can be had.
    pub fn start(folder: &Path, speed: Speed) -> io::Result<Self> {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), folder, speed, true)
    }

    /// Serves the files of `folder` on `address`.
    ///
    /// # Errors
    /// Why the address can't be had.
    pub fn listen(
        address: SocketAddr,
        folder: &Path,
        speed: Speed,
        keeps_log: bool,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            speed,
            rules: Mutex::default(),
            log: Mutex::default(),
            keeps_log,
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let accepting = thread::spawn(move || accept(&listener, &of_thread));
        Ok(Self {
            address,
            shared,
            accepting: Some(accepting),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the file called `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Gives `answer` to every request for `path` from now on.
    pub fn always(&self, path: &str, answer: Answer) {
        self.rule(path, self.requests()..u64::MAX, answer);
    }

    /// Gives `answer` to the next request if it is for `path`.
    pub fn once(&self, path: &str, answer: Answer) {
        let next = self.requests();
        self.rule(path, next..next + 1, answer);
    }

    /// Gives `answer` to those of `requests` (counted from 0) that are for `path`. A later rule
    /// goes before an earlier one.
    pub fn rule(&self, path: &str, requests: Range<u64>, answer: Answer) {
        let rule = Rule {
            requests,
            path: path.into(),
            answer,
        };
        lock(&self.shared.rules).insert(0, rule);
    }

    /// How many requests came.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The requests that came.
    pub fn log(&self) -> Vec<Request> {
        lock(&self.shared.log).clone()
    }

    /// Returns when the server has ended, which it does not by itself.
    pub fn wait(mut self) {
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address); // wakes the thread that accepts
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(twin) = stream.try_clone() else {
            continue;
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&shared.open);
        // Those whose other side is gone are let go of.
        open.retain(|stream| stream.peer_addr().is_ok());
        open.push(twin);
        drop(open);
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // A client that goes away is its own business.
            let _ = answer::serve(&stream, &shared);
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

/// A thread that panicked leaves counters and lists as whole as they were.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
