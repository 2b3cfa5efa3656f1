//! A source that a Python process serves.
//!
//! Python code cannot answer faults in the process that faults: the thread that waits for its page
//! may hold the interpreter lock. So it runs in a process of its own, and is asked over a socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use farpage::{Reach, Source, SourceError};

/// A connection for each request: they are cheap beside Python, and a child of fork shares none.
pub(crate) struct Served {
    socket: PathBuf,
    name: String,
    size: u64,
    writable: bool,
}

/// Bytes that an answer that is an error has at most.
const MESSAGE_MAX: u64 = 64 << 10;

impl Served {
    pub(crate) fn new(socket: PathBuf, name: String, size: u64, writable: bool) -> Self {
        Self {
            socket,
            name,
            size,
            writable,
        }
    }

    fn failed(&self, offset: u64, cause: impl Into<String>) -> SourceError {
        SourceError::Callback {
            name: self.name.clone(),
            offset,
            cause: cause.into(),
        }
    }

    /// Sends a request and returns the connection with the length of the answer.
    fn ask(
        &self,
        what: u8,
        offset: u64,
        bytes: u64,
        payload: &[u8],
    ) -> Result<(UnixStream, u64), SourceError> {
        let gone = |error: std::io::Error| {
            self.failed(
                offset,
                format!("the process that runs it does not answer ({error})"),
            )
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(gone)?;
        let mut head = [what; 17];
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..].copy_from_slice(&bytes.to_le_bytes());
        stream.write_all(&head).map_err(gone)?;
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
        read.map_err(|error| self.failed(offset, error.to_string()))
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
