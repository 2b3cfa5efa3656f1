//! HTTP to one server at a time: requests with one answer, and answers of many lines.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::answers::{ANSWER_BYTES_MAX, Failure};

/// A server that knows of no leader says so at once.
const LEADER: &str = "Grpc-Metadata-hasleader";

/// A connection, which has one request at a time.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// How servers are reached.
pub(super) struct Transport {
    tls: Option<OnceLock<TlsConnector>>,
}

impl Transport {
    pub(super) fn new(tls: bool) -> Self {
        Self {
            tls: tls.then(OnceLock::new),
        }
    }

    /// Connects to `host:port`.
    pub(super) async fn connect(&self, server: &str) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(server).await.map_err(broken)?;
        // A request is written at once.
        stream.set_nodelay(true).map_err(broken)?;
        let Some(tls) = &self.tls else {
            return start(TokioIo::new(stream)).await;
        };
        let connector = match tls.get() {
            Some(connector) => connector,
            None => {
                let connector = connector().map_err(broken)?;
                tls.get_or_init(|| connector)
            }
        };
        let (host, _) = server.rsplit_once(':').expect("an endpoint has a port");
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = ServerName::try_from(String::from(host)).map_err(broken)?;
        let stream = connector.connect(host, stream).await.map_err(broken)?;
        start(TokioIo::new(stream)).await
    }
}

/// Trusts what the system trusts, as `farpage_source::remote` does.
fn connector() -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The connection is driven until nobody uses it, or its runtime ends.
async fn start<S>(stream: TokioIo<S>) -> Result<Connection, Failure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (connection, driver) = handshake(stream).await.map_err(broken)?;
    tokio::spawn(async move {
        // Who waits for an answer is told as well.
        let _ = driver.await;
    });
    Ok(connection)
}

/// Sends a request and waits for the head of its answer.
pub(super) async fn send(
    connection: &mut Connection,
    server: &str,
    path: &str,
    token: Option<HeaderValue>,
    body: String,
) -> Result<Response<Incoming>, Failure> {
    let mut request = Request::post(path)
        .header(HOST, server)
        .header(CONTENT_TYPE, "application/json")
        .header(LEADER, "true");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Full::from(body)).map_err(broken)?;
    connection.ready().await.map_err(broken)?;
    connection.send_request(request).await.map_err(broken)
}

/// The whole of an answer.
pub(super) async fn read(body: Incoming) -> Result<Bytes, Failure> {
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| Failure::Broken(cause(&*error)))?;
    Ok(body.to_bytes())
}

/// The lines of an answer that goes on.
pub(super) struct Lines {
    body: Incoming,
    buffer: LineBuffer,
}

impl Lines {
    pub(super) fn of(body: Incoming) -> Self {
        let buffer = LineBuffer::default();
        Self { body, buffer }
    }

    /// The next line. What was read of it is kept when this is given up.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(line) = self.buffer.next() {
                return Ok(line);
            }
            let Some(frame) = self.body.frame().await else {
                let rest = self.buffer.rest();
                return rest.ok_or_else(|| Failure::Broken("the server ended it".into()));
            };
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                self.buffer.push(&data)?;
            }
        }
    }
}

/// Bytes that came, up to the end of a line.
#[derive(Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// Where none of the bytes before ends a line.
    looked: usize,
}

impl LineBuffer {
    fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.bytes.len() + bytes.len() > ANSWER_BYTES_MAX {
            let why = format!("what it says is longer than {ANSWER_BYTES_MAX} bytes");
            return Err(Failure::Broken(why));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let new = &self.bytes[self.looked..];
        let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
            self.looked = self.bytes.len();
            return None;
        };
        let rest = self.bytes.split_off(self.looked + end + 1);
        self.looked = 0;
        Some(std::mem::replace(&mut self.bytes, rest))
    }

    /// A line without an end, when no more bytes come.
    fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(self).bytes;
        (!rest.is_empty()).then_some(rest)
    }
}

fn broken(error: impl Error) -> Failure {
    Failure::Broken(cause(&error))
}

/// What was wrong in the first place, in a few words: the libraries between say only that something was.
fn cause(mut error: &dyn Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    let said = error.to_string();
    let plain = said.split(" (os error").next();
    String::from(plain.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(buffer: &mut LineBuffer, bytes: &[u8]) -> Vec<String> {
        buffer.push(bytes).expect("room");
        let lines = std::iter::from_fn(|| buffer.next());
        let text = |line| String::from_utf8(line).expect("text");
        lines.map(text).collect()
    }

    #[test]
    fn lines_come_in_pieces_and_several_at_once() {
        let mut buffer = LineBuffer::default();
        assert!(lines(&mut buffer, b"{\"a\"").is_empty());
        assert!(lines(&mut buffer, b":1").is_empty());
        assert_eq!(
            lines(&mut buffer, b"}\n{}\n\n{"),
            ["{\"a\":1}\n", "{}\n", "\n"]
        );
        assert_eq!(lines(&mut buffer, b"}\n"), ["{}\n"]);
        assert!(buffer.next().is_none() && buffer.rest().is_none());
        assert!(lines(&mut buffer, b"{}").is_empty());
        assert_eq!(buffer.rest(), Some(b"{}".to_vec()));
        assert!(buffer.rest().is_none());
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let mut buffer = LineBuffer::default();
        let piece = vec![b'x'; ANSWER_BYTES_MAX / 4];
        for _ in 0..4 {
            buffer.push(&piece).expect("room");
            assert!(buffer.next().is_none());
        }
        let refused = buffer.push(b"x").expect_err("it is too long");
        assert!(refused.to_string().contains("longer than"), "{refused}");
    }
}
