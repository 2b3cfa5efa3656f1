//! TLS over a socket that never waits. Records are decrypted where they were received, and
//! encrypted into the buffer that is written to the socket: rustls does no I/O here.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::client::UnbufferedClientConnection;
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, Error};

use crate::Incarnation;
use crate::key::{Identity, server_name};
use crate::line::{Broken, Left, Transport};

/// So much is encrypted at a time, for one write.
const WRITE_BYTES: usize = 64 << 10;
/// Room for what TLS adds to it, and for what it says by itself.
const EXTRA_BYTES: usize = 4 << 10;
/// So much is read at a time: some of the longest records there are.
const READ_BYTES: usize = 72 << 10;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// A socket with TLS on it.
pub(crate) struct Tls {
    socket: TcpStream,
    side: Side,
    /// Why it is of no use any more.
    failed: Option<String>,
    /// Received, not decrypted: `incoming[begin..end]`.
    incoming: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Encrypted, not written: `outgoing[written..filled]`.
    outgoing: Vec<u8>,
    written: usize,
    filled: usize,
}

impl AsFd for Tls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What rustls wants next.
enum Step {
    /// To be asked again.
    Again,
    /// Nothing until more comes.
    Blocked,
    /// The peer has said that it will send no more.
    Ended,
}

impl Tls {
    /// Over a connection to `peer`, which is to prove that it is.
    pub(crate) fn client(
        socket: TcpStream,
        identity: &Identity,
        peer: Incarnation,
    ) -> Result<Self, Broken> {
        let side = UnbufferedClientConnection::new(identity.client.clone(), server_name(peer));
        Ok(Self::new(socket, Side::Client(side.map_err(made)?)))
    }

    /// Over a connection from somebody in the cluster.
    pub(crate) fn server(socket: TcpStream, identity: &Identity) -> Result<Self, Broken> {
        let side = UnbufferedServerConnection::new(Arc::clone(&identity.server));
        Ok(Self::new(socket, Side::Server(side.map_err(made)?)))
    }

    fn new(socket: TcpStream, side: Side) -> Self {
        // Nothing waits for more to be sent: what is to go together is written together.
        let _ = socket.set_nodelay(true);
        Self {
            socket,
            side,
            failed: None,
            incoming: vec![0; READ_BYTES].into(),
            begin: 0,
            end: 0,
            outgoing: vec![0; WRITE_BYTES + EXTRA_BYTES],
            written: 0,
            filled: 0,
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(client) => client.is_handshaking(),
            Side::Server(server) => server.is_handshaking(),
        }
    }

    /// Whether the peer's certificate is made out to `incarnation`.
    pub(crate) fn is_from(&self, incarnation: Incarnation) -> bool {
        let certificates = match &self.side {
            Side::Client(client) => client.peer_certificates(),
            Side::Server(server) => server.peer_certificates(),
        };
        let certificate = certificates.and_then(|chain| chain.first());
        certificate.is_some_and(|certificate| {
            ParsedCertificate::try_from(certificate).is_ok_and(|parsed| {
                rustls::client::verify_server_name(&parsed, &server_name(incarnation)).is_ok()
            })
        })
    }

    /// Goes on with the handshake, with what has come and as far as the socket takes it.
    pub(crate) fn shake_hands(&mut self) -> Result<(), Broken> {
        let result = self.advance(&[], &mut Vec::new());
        self.flush()?;
        result
    }

    /// Ends the connection for whoever uses it; its descriptor stays until it is dropped.
    pub(crate) fn shut_down(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Says nothing more; what was said is still carried to the peer.
    pub(crate) fn shut_output(&mut self) {
        let _ = self.flush();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Takes what comes without looking at it: a socket that is closed with something in it takes
    /// away from the peer what it was sent. False when nothing more will come.
    pub(crate) fn discard_input(&mut self) -> bool {
        loop {
            let flags = RecvFlags::DONTWAIT;
            match rustix::net::recv(&self.socket, &mut self.incoming[..], flags) {
                Ok((1.., _)) | Err(Errno::INTR) => {}
                Ok((0, _)) => return false,
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
    }

    /// Has rustls take what was received and encrypt `bytes`, until it wants more.
    fn advance(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<(), Broken> {
        let mut bytes = bytes;
        if let Some(why) = &self.failed {
            return Err(Broken::Tls(why.clone()));
        }
        loop {
            match self.step(&mut bytes, into) {
                Ok(Step::Again) => {}
                Ok(Step::Blocked) => break,
                Ok(Step::Ended) => return Err(Broken::Ended),
                Err(error) => {
                    // It has something to say to the peer about that. It must not see what it
                    // failed at once more: it panics.
                    while self.wants_write() && self.step(&mut &[][..], into).is_ok() {}
                    let _ = self.flush();
                    let why = words_of(&error);
                    self.failed = Some(why.clone());
                    return Err(Broken::Tls(why));
                }
            }
        }
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        Ok(())
    }

    fn wants_write(&self) -> bool {
        match &self.side {
            Side::Client(client) => client.wants_write(),
            Side::Server(server) => server.wants_write(),
        }
    }

    fn step(&mut self, bytes: &mut &[u8], into: &mut Vec<u8>) -> Result<Step, Error> {
        let incoming = &mut self.incoming[self.begin..self.end];
        let (room, filled) = (&mut self.outgoing, &mut self.filled);
        let (discard, step) = match &mut self.side {
            Side::Client(client) => {
                let status = client.process_tls_records(incoming);
                step(status, bytes, room, filled, into)
            }
            Side::Server(server) => {
                let status = server.process_tls_records(incoming);
                step(status, bytes, room, filled, into)
            }
        };
        self.begin += discard;
        step
    }

    /// Writes what is encrypted. True when all of it is written.
    fn flush(&mut self) -> Result<bool, Broken> {
        while self.written < self.filled {
            let bytes = &self.outgoing[self.written..self.filled];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, bytes, flags) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(Broken::System(errno)),
            }
        }
        (self.written, self.filled) = (0, 0);
        Ok(true)
    }

    /// Receives once. How much, unless nothing is there, and whether there was room for more.
    fn receive(&mut self) -> Result<Option<bool>, Broken> {
        if self.begin > 0 && self.end == self.incoming.len() {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        let room = &mut self.incoming[self.end..];
        let wanted = room.len();
        loop {
            match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Broken::Ended),
                Ok((count, _)) => {
                    self.end += count;
                    return Ok(Some(count < wanted));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(Broken::System(errno)),
            }
        }
    }
}

impl Transport for Tls {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        if !self.flush()? || bytes.is_empty() {
            return Ok(0);
        }
        let count = bytes.len().min(WRITE_BYTES);
        self.advance(&bytes[..count], &mut Vec::new())?;
        self.flush()?;
        Ok(count)
    }

    fn read(&mut self, bytes: &mut Vec<u8>, limit: Option<usize>) -> Result<Left, Broken> {
        let before = bytes.len();
        loop {
            let Some(is_short) = self.receive()? else {
                return Ok(Left::Nothing);
            };
            self.advance(&[], bytes)?;
            // What TLS says by itself goes with the next message, or now.
            self.flush()?;
            match limit {
                // Linux gave all that it had, and reports what comes later.
                Some(_) if is_short => return Ok(Left::Nothing),
                Some(limit) if bytes.len() - before >= limit => return Ok(Left::Perhaps),
                Some(_) | None => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.written < self.filled
    }
}

/// One step of rustls. How much of what was received it is done with comes back beside it.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    bytes: &mut &[u8],
    room: &mut Vec<u8>,
    filled: &mut usize,
    into: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    into.extend_from_slice(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Again),
            }
        },
        ConnectionState::EncodeTlsData(mut data) => loop {
            match data.encode(&mut room[*filled..]) {
                Ok(count) => {
                    *filled += count;
                    break Ok(Step::Again);
                }
                Err(EncodeError::InsufficientSize(short)) => {
                    room.resize(*filled + short.required_size, 0);
                }
                Err(EncodeError::AlreadyEncoded) => break Ok(Step::Again),
            }
        },
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::WriteTraffic(mut traffic) => loop {
            if bytes.is_empty() {
                break Ok(Step::Blocked);
            }
            match traffic.encrypt(bytes, &mut room[*filled..]) {
                Ok(count) => {
                    *filled += count;
                    *bytes = &[];
                }
                Err(EncryptError::InsufficientSize(short)) => {
                    room.resize(*filled + short.required_size, 0);
                }
                Err(EncryptError::EncryptExhausted) => break Err(Error::EncryptError),
            }
        },
        ConnectionState::BlockedHandshake => Ok(Step::Blocked),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Ended),
        // Nobody is offered early data; the enumeration is open.
        ConnectionState::ReadEarlyData(_) | _ => {
            Err(Error::General("a state of TLS that cannot be".into()))
        }
    };
    (discard, step)
}

fn made(error: Error) -> Broken {
    Broken::Tls(words_of(&error))
}

/// What happened, for who runs the hosts.
fn words_of(error: &Error) -> String {
    const OTHER: &str = "copy the same cluster.key to both hosts";
    match error {
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => format!("its certificate is of another cluster; {OTHER}"),
        Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        }) => format!(
            "another incarnation answers there: {}, not {}; it was restarted, or its address is \
             wrong",
            presented.join(" "),
            expected.to_str()
        ),
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            format!("it says that this host's certificate is of another cluster; {OTHER}")
        }
        Error::AlertReceived(
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown,
        ) => "it expected another incarnation here; this host was restarted, or its address is \
              wrong"
            .into(),
        Error::AlertReceived(AlertDescription::CertificateRequired)
        | Error::NoCertificatesPresented => "it has no certificate of this cluster".into(),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            format!("it does not speak TLS as hosts of a cluster do: {error}")
        }
        other => format!("TLS failed: {other}"),
    }
}
