//! A source that a Python process serves.
//!
//! Python code cannot answer faults in the process that faults: the thread that waits for its page
//! may hold the interpreter lock. So it runs in a process of its own. What asks it is one end of a
//! socket pair, which has no name that others could find or that could be left behind.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farpage::{Reach, Source, SourceError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A connection for each request: they are cheap beside Python, and a child of fork shares none.
pub(crate) struct Served {
    /// Takes requests, each with the connection that it is answered on. The process ends when
    /// nobody holds the other ends any more.
    control: OwnedFd,
    name: String,
    size: u64,
    writable: bool,
    timeout: Duration,
}

/// Bytes that an answer that is an error has at most.
const MESSAGE_MAX: u64 = 64 << 10;
/// For those who name none.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Zero would mean no limit.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

impl Served {
    /// `control` is open during this call, and stays the caller's.
    pub(crate) fn new(
        control: RawFd,
        name: String,
        size: u64,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        // SAFETY: Python holds the socket that this is the number of while it makes this call.
        let control = unsafe { BorrowedFd::borrow_raw(control) }.try_clone_to_owned()?;
        let timeout = timeout.unwrap_or(TIMEOUT).max(TIMEOUT_MIN);
        // What fits no clock is no limit.
        set_socket_timeout(&control, Timeout::Send, Some(timeout))
            .or_else(|_| set_socket_timeout(&control, Timeout::Send, None))?;
        Ok(Self {
            control,
            name,
            size,
            writable,
            timeout,
        })
    }

    fn failed(&self, offset: u64, cause: impl Into<String>) -> SourceError {
        SourceError::Callback {
            name: self.name.clone(),
            offset,
            cause: cause.into(),
        }
    }

    fn no_answer(&self, offset: u64, error: &io::Error) -> SourceError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SourceError::TimedOut {
                name: self.name.clone(),
                seconds: self.timeout.as_secs_f64().ceil() as u64,
                cause: format!("the code that answers for byte {offset} has not returned"),
                remedy: "make it faster, or allow more time",
            },
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => {
                self.failed(offset, "the process that runs it has ended; open it again")
            }
            _ => self.failed(offset, format!("its process cannot be asked ({error})")),
        }
    }

    /// Hands the process a request and the connection to answer it on.
    fn connect(&self, head: &[u8]) -> io::Result<UnixStream> {
        let (stream, other) = UnixStream::pair()?;
        for stream in [&stream, &other] {
            // What fits no clock is no limit.
            stream
                .set_read_timeout(Some(self.timeout))
                .or_else(|_| stream.set_read_timeout(None))?;
            stream
                .set_write_timeout(Some(self.timeout))
                .or_else(|_| stream.set_write_timeout(None))?;
        }
        let descriptors = [other.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let head = [IoSlice::new(head)];
        sendmsg(&self.control, &head, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(stream)
    }

    /// Sends a request and returns the connection with the length of the answer.
    fn ask(
        &self,
        what: u8,
        offset: u64,
        bytes: u64,
        payload: &[u8],
    ) -> Result<(UnixStream, u64), SourceError> {
        let gone = |error: io::Error| self.no_answer(offset, &error);
        let mut head = [what; 17];
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..].copy_from_slice(&bytes.to_le_bytes());
        let mut stream = self.connect(&head).map_err(gone)?;
        stream.write_all(payload).map_err(gone)?;
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).map_err(gone)?;
        let [status, length @ ..] = answer;
        let length = u64::from_le_bytes(length);
        if status == 0 {
            return Ok((stream, length));
        }
        let mut message = Vec::new();
        stream
            .take(length.min(MESSAGE_MAX))
            .read_to_end(&mut message)
            .map_err(gone)?;
        Err(self.failed(offset, String::from_utf8_lossy(&message)))
    }
}

impl Source for Served {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = buffer.len() as u64;
        let (mut stream, length) = self.ask(b'r', offset, bytes, &[])?;
        if length != bytes {
            let cause = format!("it returned {length} bytes of {bytes}");
            return Err(self.failed(offset, cause));
        }
        let read = stream.read_exact(buffer);
        read.map_err(|error| self.no_answer(offset, &error))
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.ask(b'w', offset, bytes.len() as u64, bytes).map(drop)
    }

    fn sync(&self) -> Result<(), SourceError> {
        if self.writable {
            self.ask(b's', 0, 0, &[])?;
        }
        Ok(())
    }
}
