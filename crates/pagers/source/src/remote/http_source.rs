//! Files on HTTP servers.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, LOCATION, RANGE};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use ureq::Body;
use url::Url;

use crate::remote::check::{self, Question, Version};
use crate::remote::client::Client;
use crate::remote::{Options, address, headers};
use crate::{Reach, Source, SourceError};

/// A chain of redirections is not longer.
const REDIRECTIONS_MAX: usize = 10;

/// A file on an HTTP server that serves ranges.
pub struct HttpSource {
    name: String,
    /// Its address, for who keeps what it has: two of one name may be two files.
    identity: String,
    server: Server,
    version: Version,
    /// Where the last redirection led. Such addresses expire; then `origin` is asked again.
    place: Mutex<Arc<Url>>,
}

/// Where and how to ask.
struct Server {
    client: Client,
    origin: Url,
    /// Sent to `origin` alone: they may hold credentials.
    headers: HeaderMap,
}

impl HttpSource {
    /// Opens the file at `url`. One request for its first byte tells its size, its version and
    /// whether ranges are served; a `HEAD` would not tell the last, and signed addresses refuse
    /// it.
    ///
    /// # Errors
    /// [`SourceError::NotFound`], [`SourceError::Denied`]; [`SourceError::Unsupported`] when the
    /// server does not serve ranges, or its certificate is not trusted;
    /// [`SourceError::TimedOut`] when it could not be reached.
    pub fn open(url: &str, options: &Options) -> Result<Self, SourceError> {
        let mut origin = address::parse(url)?;
        let name = address::shown(&origin);
        let mut headers = HeaderMap::new();
        if let Some(credentials) = address::take_credentials(&mut origin) {
            headers.insert(AUTHORIZATION, credentials);
        }
        add_headers(&name, &mut headers, &options.headers)?;
        let server = Server {
            client: Client::new(options),
            origin,
            headers,
        };
        let identity = address::identity(&server.origin);
        let (version, place) = options.retry.run(|| first_look(&name, &server))?;
        Ok(Self {
            name,
            identity,
            server,
            version,
            place: Mutex::new(Arc::new(place)),
        })
    }

    fn place(&self) -> Arc<Url> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&place)
    }

    fn set_place(&self, place: Url) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(place);
    }

    /// Asks where the last redirection led, and from the start where that is no longer good.
    fn ask(&self, headers: &HeaderMap) -> Result<Response<Body>, SourceError> {
        let place = self.place();
        let origin = &self.server.origin;
        let asked = self.server.follow(&self.name, &place, headers);
        // The next try may be led elsewhere.
        let (mut answer, mut found) = asked.inspect_err(|_| self.set_place(origin.clone()))?;
        let refused = matches!(answer.status().as_u16(), 400 | 401 | 403 | 404 | 410);
        if refused && *place != *origin {
            (answer, found) = self.server.follow(&self.name, origin, headers)?;
        }
        if found != *place {
            self.set_place(found);
        }
        Ok(answer)
    }
}

impl Source for HttpSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn size(&self) -> u64 {
        self.version.size
    }

    fn version(&self) -> Option<String> {
        self.version.text()
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = buffer.len() as u64;
        let question = Question::new(&self.name, &self.version, offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let mut headers = range(offset, offset + bytes - 1);
        headers.extend(self.version.condition());
        let mut answer = self.ask(&headers)?;
        question.check(answer.status(), answer.headers())?;
        let read = self.server.client.read(answer.body_mut(), buffer);
        read.map_err(|failure| question.body_error(failure))
    }
}

impl Server {
    /// Asks `start`, goes where it redirects, and returns the answer and where it came from.
    fn follow(
        &self,
        name: &str,
        start: &Url,
        headers: &HeaderMap,
    ) -> Result<(Response<Body>, Url), SourceError> {
        let mut place = start.clone();
        for _ in 0..=REDIRECTIONS_MAX {
            let mut request = Request::get(place.as_str());
            if let Some(all) = request.headers_mut() {
                *all = headers.clone();
                if place.origin() == self.origin.origin() {
                    all.extend(self.headers.clone());
                }
            }
            let request = request.body(()).map_err(|_| {
                refused(
                    name,
                    "a request for it cannot be written",
                    "check its address",
                )
            })?;
            let answer = self
                .client
                .send(request)
                .map_err(|failure| failure.of(name))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((answer, place));
            }
            let to = check::text(answer.headers(), LOCATION).and_then(|to| place.join(to).ok());
            let to = to.filter(|to| matches!(to.scheme(), "http" | "https"));
            let to = to.ok_or_else(|| {
                let cause = "the server redirects it to an address that cannot be read";
                refused(name, cause, "check its address")
            })?;
            if (place.scheme(), to.scheme()) == ("https", "http") {
                let cause = "the server redirects it to an address without encryption";
                return Err(refused(name, cause, "if you trust that, open that address"));
            }
            place = to;
        }
        let cause = "the server redirects it again and again";
        Err(refused(name, cause, "check its address"))
    }
}

/// Asks for the first byte.
fn first_look(name: &str, server: &Server) -> Result<(Version, Url), SourceError> {
    let (answer, place) = server.follow(name, &server.origin, &range(0, 0))?;
    let headers = answer.headers();
    let text = |header| check::text(headers, header);
    let range = text(CONTENT_RANGE).and_then(headers::content_range);
    let length: Option<u64> = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let size = match (
        answer.status(),
        range.map(|range| (range.range, range.total)),
    ) {
        (StatusCode::PARTIAL_CONTENT, Some((Some((0, 0)), Some(size)))) => size,
        (StatusCode::PARTIAL_CONTENT, Some((Some((0, 0)), None))) => {
            let cause = "its server does not say how long it is";
            return Err(refused(name, cause, "download it, and open the copy"));
        }
        (StatusCode::PARTIAL_CONTENT, _) => {
            let cause = "its server was asked for one byte and answered with others";
            return Err(refused(name, cause, "download it, and open the copy"));
        }
        // An empty file has no first byte.
        (StatusCode::RANGE_NOT_SATISFIABLE, Some((None, Some(0)))) => 0,
        (StatusCode::OK, _) if length == Some(0) => 0,
        (StatusCode::OK, _) => {
            let cause = "its server does not serve parts of files (ranges)";
            return Err(refused(name, cause, "download it, and open the copy"));
        }
        (status, _) => return Err(check::refusal(name, status, headers)),
    };
    let version = Version::of(headers, size);
    let mut body = answer.into_body();
    if size > 0 {
        // Gives the connection back. What the byte is does not matter, nor if it can't be had.
        let _ = server.client.read(&mut body, &mut [0]);
    }
    Ok((version, place))
}

fn range(first: u64, last: u64) -> HeaderMap {
    let range = HeaderValue::try_from(format!("bytes={first}-{last}"));
    range.into_iter().map(|range| (RANGE, range)).collect()
}

fn add_headers(
    name: &str,
    all: &mut HeaderMap,
    more: &[(String, String)],
) -> Result<(), SourceError> {
    for (key, value) in more {
        let pair = (HeaderName::try_from(key), HeaderValue::try_from(value));
        let (Ok(key), Ok(mut value)) = pair else {
            let cause = "one of its headers cannot be sent";
            return Err(refused(
                name,
                cause,
                "remove line breaks and the like from it",
            ));
        };
        value.set_sensitive(true);
        all.insert(key, value);
    }
    Ok(())
}

fn refused(name: &str, cause: &str, remedy: &str) -> SourceError {
    SourceError::Unsupported {
        name: name.into(),
        cause: cause.into(),
        remedy: remedy.into(),
    }
}
