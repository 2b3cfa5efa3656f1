//! Heads of requests.

use std::io::{self, Read};
use std::net::TcpStream;

/// A longer head is refused.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The head of a request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, say.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// The header called `name` (in small letters).
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Reads the next request of a connection. `left` is what was read beyond the last one.
    /// `None` when the client has ended the connection.
    pub(crate) fn read(stream: &TcpStream, left: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let mut stream = stream;
        let mut chunk = [0; 4096];
        loop {
            if let Some((request, length)) = Self::parse(left)? {
                left.drain(..length);
                return Ok(Some(request));
            }
            if left.len() > HEAD_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match stream.read(&mut chunk)? {
                0 => return Ok(None),
                count => left.extend_from_slice(&chunk[..count]),
            }
        }
    }

    fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut headers);
        let parsed = head.parse(bytes).map_err(io::Error::other)?;
        let httparse::Status::Complete(length) = parsed else {
            return Ok(None);
        };
        let target = head.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = head.headers.iter().map(|header| {
            let value = String::from_utf8_lossy(header.value).into_owned();
            (header.name.to_ascii_lowercase(), value)
        });
        let request = Self {
            method: head.method.unwrap_or_default().into(),
            path: path.into(),
            query: query.into(),
            headers: headers.collect(),
        };
        Ok(Some((request, length)))
    }

    /// The bytes wanted of a file of `size` bytes: `Ok(None)` for all of it, `Err` when there are
    /// none of them.
    pub(crate) fn range(&self, size: u64) -> Result<Option<(u64, u64)>, ()> {
        let Some(text) = self.header("range").and_then(|r| r.strip_prefix("bytes=")) else {
            return Ok(None);
        };
        let Some((first, last)) = text.split_once('-') else {
            return Ok(None);
        };
        let (first, last) = (first.parse::<u64>().ok(), last.parse::<u64>().ok());
        let (start, end) = match (first, last) {
            (Some(first), Some(last)) => (first, last.saturating_add(1).min(size)),
            (Some(first), None) => (first, size),
            (None, Some(count)) => (size.saturating_sub(count), size),
            (None, None) => return Ok(None),
        };
        if start >= end {
            return Err(());
        }
        Ok(Some((start, end - start)))
    }
}
