//! One request and its answer.

use std::io::{self, Read};
use std::time::Duration;

use farpage_sys::of_process::OfProcess;
use http::{Request, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, AsSendBody, Body};

use crate::SourceError;
use crate::remote::Options;
use crate::remote::resolver::Remembering;

/// Connections that wait for the next request, to one server and to all.
const IDLE_PER_HOST: usize = 64;
const IDLE: usize = 256;

/// What is read at once. Of 128 KiB a read of megabytes takes a third more of the processor.
const INPUT_BYTES: usize = 256 * 1024;

/// The connections of the process: a forked child must not write into its parent's.
static AGENT: OfProcess<Agent> = OfProcess::new();

fn new_agent() -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .input_buffer_size(INPUT_BYTES)
        .max_idle_connections(IDLE)
        .max_idle_connections_per_host(IDLE_PER_HOST)
        .user_agent(concat!("farpage/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .tls_config(tls.build())
        .build();
    Agent::with_parts(config, DefaultConnector::default(), Remembering::default())
}

/// How requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    connect: Duration,
    silence: Duration,
}

impl Client {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            connect: options.connect_timeout,
            silence: options.silence_timeout,
        }
    }

    /// Sends `request` and returns the head of the answer, whatever its status.
    pub(crate) fn send(self, request: Request<impl AsSendBody>) -> Result<Response<Body>, Failure> {
        let agent = AGENT.get(new_agent);
        let request = agent
            .configure_request(request)
            .timeout_connect(Some(self.connect))
            .timeout_per_read(Some(self.silence))
            .timeout_per_write(Some(self.silence))
            .build();
        agent.run(request).map_err(|error| self.failure(error))
    }

    /// Fills `buffer` with the body of an answer, which must have just as many bytes.
    pub(crate) fn read(self, body: &mut Body, buffer: &mut [u8]) -> Result<(), BodyFailure> {
        let bytes = buffer.len();
        let mut reader = body.as_reader();
        let mut done = 0;
        while done < bytes {
            match reader.read(&mut buffer[done..]) {
                Ok(0) => return Err(BodyFailure::Ends(done)),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let failure = self.failure(error.into());
                    return Err(BodyFailure::Broken(done, failure));
                }
            }
        }
        // Only a body that was read to its end gives back its connection.
        match reader.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(BodyFailure::GoesOn),
            Err(error) => Err(BodyFailure::Broken(done, self.failure(error.into()))),
        }
    }

    pub(crate) fn failure(self, error: ureq::Error) -> Failure {
        use ureq::Error;
        match error {
            Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Failure::Broken(format!("no connection within {:?}", self.connect))
            }
            Error::Timeout(_) => Failure::Broken(format!("no answer for {:?}", self.silence)),
            Error::Io(error) => io_failure(&error),
            Error::Rustls(error) => tls_failure(&error),
            Error::HostNotFound => Failure::Broken("its host has no address".into()),
            Error::ConnectionFailed => Failure::Broken("no connection could be made".into()),
            Error::ConnectProxyFailed(_) => Failure::Broken("the proxy refuses to connect".into()),
            Error::InvalidProxyUrl => Failure::Refused(
                "the address of the proxy cannot be read".into(),
                "set HTTPS_PROXY and its like right",
            ),
            // Neither shows addresses.
            Error::Protocol(error) => Failure::Broken(format!("not HTTP: {error}")),
            Error::LargeResponseHeader(..) => Failure::Broken("its headers are too long".into()),
            Error::Http(_) | Error::BadUri(_) => Failure::Refused(
                "a request for it cannot be written".into(),
                "check its address and the headers",
            ),
            _ => Failure::Broken("the request failed".into()),
        }
    }
}

/// What the C libraries say when a name server knows that there is no such host. When it cannot be
/// asked they say something else.
const UNKNOWN_HOST: [&str; 2] = ["Name or service not known", "Name does not resolve"];

fn io_failure(error: &io::Error) -> Failure {
    let tls = error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>());
    if let Some(tls) = tls {
        return tls_failure(tls);
    }
    let text = error.to_string();
    if UNKNOWN_HOST.iter().any(|unknown| text.contains(unknown)) {
        return Failure::Refused("there is no host of that name".into(), "check the name");
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::Broken("the connection was closed".into()),
        _ => Failure::Broken(text),
    }
}

fn tls_failure(error: &rustls::Error) -> Failure {
    match error {
        rustls::Error::InvalidCertificate(_) => Failure::Refused(
            format!("its certificate is not trusted: {error}"),
            "set SSL_CERT_FILE to the certificates of its authority",
        ),
        _ => Failure::Broken(format!("TLS failed: {error}")),
    }
}

/// Why there was no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It may come at another try.
    Broken(String),
    /// It will not come. With what helps.
    Refused(String, &'static str),
}

impl Failure {
    pub(crate) fn of(self, name: &str) -> SourceError {
        match self {
            Self::Broken(cause) => SourceError::Unreachable {
                name: name.into(),
                cause,
                retry_after: None,
            },
            Self::Refused(cause, remedy) => SourceError::Unsupported {
                name: name.into(),
                cause,
                remedy: remedy.into(),
            },
        }
    }
}

/// What was wrong with a body.
#[derive(Clone, Debug)]
pub(crate) enum BodyFailure {
    /// The connection broke after so many bytes.
    Broken(usize, Failure),
    /// It ended after so many bytes.
    Ends(usize),
    /// It goes on after the last byte.
    GoesOn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_exist_is_not_waited_for_and_a_silent_name_server_is() {
        let lookup = |text: &str| {
            let text = format!("failed to lookup address information: {text}");
            io_failure(&io::Error::other(text)).of("far")
        };
        let unknown = lookup("Name or service not known");
        assert!(
            matches!(unknown, SourceError::Unsupported { .. }),
            "{unknown}"
        );
        assert!(lookup("Temporary failure in name resolution").is_transient());
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_no_matter_of_time() {
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let error = io_failure(&io::Error::other(expired)).of("far");
        assert!(!error.is_transient(), "{error}");
        let broken = rustls::Error::General("broken".into());
        assert!(
            io_failure(&io::Error::other(broken))
                .of("far")
                .is_transient()
        );
    }
}
