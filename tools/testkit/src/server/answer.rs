//! Answers to requests.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};
use std::thread;

use crate::server::pace::Pace;
use crate::server::{Answer, Request, Shared};

/// Bytes in a chunk of a chunked body.
const CHUNK_BYTES: u64 = 8000;

/// Whether the connection goes on.
type GoesOn = bool;

/// Answers the requests of one connection.
pub(crate) fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Connection {
        stream,
        shared,
        pace: Pace::new(shared.speed.bytes_per_s),
    };
    let mut left = Vec::new();
    while let Some(request) = Request::read(stream, &mut left)? {
        let answer = shared.answer(&request);
        if !shared.speed.latency.is_zero() {
            thread::sleep(shared.speed.latency);
        }
        if !connection.answer(&request, &answer)? {
            break;
        }
    }
    Ok(())
}

struct Connection<'a> {
    stream: &'a TcpStream,
    shared: &'a Shared,
    pace: Pace,
}

/// A file and the part of it that is sent.
struct Part<'a> {
    file: &'a File,
    start: u64,
    bytes: u64,
}

impl Connection<'_> {
    fn answer(&mut self, request: &Request, answer: &Answer) -> io::Result<GoesOn> {
        match answer {
            Answer::Silence => {
                let mut stream = self.stream;
                while stream.read(&mut [0; 64])? > 0 {}
                return Ok(false);
            }
            Answer::Status(code, headers) => {
                let mut head = String::from("Content-Length: 0\r\n");
                for (name, value) in headers {
                    let _ = write!(head, "{name}: {value}\r\n");
                }
                return self.head(*code, &head);
            }
            _ => {}
        }
        if request.method != "GET" && request.method != "HEAD" {
            return self.head(405, "Content-Length: 0\r\n");
        }
        if request.path == "/" {
            return self.list(request.method == "GET");
        }
        let Some(file) = self.open(&request.path) else {
            return self.head(404, "Content-Length: 0\r\n");
        };
        self.file(request, answer, &file)
    }

    fn open(&self, path: &str) -> Option<File> {
        let path = Path::new(path.trim_start_matches('/'));
        let is_inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let path = self.shared.folder.join(path);
        (is_inside && path.is_file()).then(|| File::open(path).ok())?
    }

    fn file(&mut self, request: &Request, answer: &Answer, file: &File) -> io::Result<GoesOn> {
        let metadata = file.metadata()?;
        let size = metadata.len();
        let tag = match answer {
            Answer::Tagged(tag) => tag.clone(),
            _ => {
                let ns = metadata.mtime_nsec() + metadata.mtime() * 1_000_000_000;
                format!("\"{:x}-{ns:x}-{size:x}\"", metadata.ino())
            }
        };
        let mut head = String::from("Accept-Ranges: bytes\r\n");
        if !tag.is_empty() {
            let _ = write!(head, "ETag: {tag}\r\n");
        }
        let heeds = !matches!(answer, Answer::Tagged(_));
        if heeds
            && request
                .header("if-match")
                .is_some_and(|wanted| wanted != tag)
        {
            return self.head(412, &format!("Content-Length: 0\r\n{head}"));
        }
        let range = match answer {
            Answer::Whole => Ok(None),
            _ => request.range(size),
        };
        let (code, mut start, mut bytes) = match range {
            Ok(None) => (200, 0, size),
            Ok(Some((start, bytes))) => (206, start, bytes),
            Err(()) => {
                let none = format!("Content-Length: 0\r\nContent-Range: bytes */{size}\r\n{head}");
                return self.head(416, &none);
            }
        };
        match answer {
            Answer::Shorter(less) => bytes = bytes.saturating_sub(*less).max(1),
            Answer::Later(more) => start = (start + more).min(size - bytes),
            _ => {}
        }
        if code == 206 {
            let shift = if let Answer::FalseHead(n) = answer {
                *n
            } else {
                0
            };
            let (first, last) = (start + shift, start + shift + bytes - 1);
            let _ = write!(head, "Content-Range: bytes {first}-{last}/{size}\r\n");
        }
        if request.method == "HEAD" {
            return self.head(code, &format!("Content-Length: {bytes}\r\n{head}"));
        }
        self.body(code, &mut head, answer, &Part { file, start, bytes })
    }

    fn body(
        &mut self,
        code: u16,
        head: &mut String,
        answer: &Answer,
        part: &Part,
    ) -> io::Result<GoesOn> {
        let longer = match answer {
            Answer::Chunked => Some(0),
            Answer::ChunkedLonger(more) => Some(*more),
            _ => None,
        };
        if let Some(more) = longer {
            self.head(code, &format!("Transfer-Encoding: chunked\r\n{head}"))?;
            return self.chunks(part, more);
        }
        self.head(code, &format!("Content-Length: {}\r\n{head}", part.bytes))?;
        let bytes = match answer {
            Answer::DropAfter(bytes) => part.bytes.min(*bytes),
            _ => part.bytes,
        };
        self.pace.send(self.stream, part.file, part.start, bytes)?;
        Ok(!matches!(answer, Answer::DropAfter(_) | Answer::Close))
    }

    fn chunks(&mut self, part: &Part, more: u64) -> io::Result<GoesOn> {
        let mut stream = self.stream;
        let end = part.start + part.bytes;
        let mut at = part.start;
        while at < end {
            let mut chunk = vec![0; CHUNK_BYTES.min(end - at) as usize];
            part.file.read_exact_at(&mut chunk, at)?;
            at += chunk.len() as u64;
            stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
            chunk.extend_from_slice(b"\r\n");
            stream.write_all(&chunk)?;
        }
        if more > 0 {
            let chunk = "x".repeat(more as usize);
            stream.write_all(format!("{more:x}\r\n{chunk}\r\n").as_bytes())?;
        }
        stream.write_all(b"0\r\n\r\n")?;
        Ok(true)
    }

    /// A page that links to the folder's files, for clients that look for one.
    fn list(&mut self, whole: bool) -> io::Result<GoesOn> {
        let mut page = String::from("<!DOCTYPE html>\n<title>files</title>\n");
        for entry in std::fs::read_dir(&self.shared.folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let _ = writeln!(page, "<a href=\"{name}\">{name}</a>");
        }
        let length = page.len();
        self.head(
            200,
            &format!("Content-Type: text/html\r\nContent-Length: {length}\r\n"),
        )?;
        let mut stream = self.stream;
        stream.write_all(if whole { page.as_bytes() } else { b"" })?;
        Ok(true)
    }

    fn head(&mut self, code: u16, headers: &str) -> io::Result<GoesOn> {
        let mut stream = self.stream;
        stream.write_all(format!("HTTP/1.1 {code} -\r\n{headers}\r\n").as_bytes())?;
        Ok(true)
    }
}
