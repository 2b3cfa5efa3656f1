//! Sends the requests that `object_store` writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use ureq::Body;

use crate::SourceError;
use crate::remote::client::{Client, Failure};
use crate::remote::{check, headers, settings};

/// An answer to a control request is not longer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Where the answer to a request is put as it is, its body unread. Sent along with a request.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Response<Body>>>>);

impl Slot {
    pub(crate) fn take(&self) -> Option<Response<Body>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, answer: Response<Body>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }
}

/// Sends requests in the thread that makes them.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) client: Client,
    /// Added to the request that completes an upload in several parts, which `object_store` does
    /// not make conditional. S3 wants only its own headers signed.
    pub(crate) completion: Option<(HeaderName, HeaderValue)>,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or_default();
        if head.method == Method::POST && query.contains("uploadId=") {
            head.headers.extend(self.completion.clone());
        }
        let slot = head.extensions.remove::<Slot>();
        let body = match body.as_bytes() {
            Some(bytes) => bytes.clone(),
            None => HttpResponseBody::new(body).bytes().await?,
        };
        let host = head.uri.host().unwrap_or_default().to_owned();
        let no_answer = |failure| {
            let host = host.clone();
            HttpError::new(HttpErrorKind::Unknown, NoAnswer { host, failure })
        };
        let answer = self.send(head, &body).map_err(no_answer)?;
        if let Some(slot) = slot {
            let (mut head, body) = answer.into_parts();
            head.extensions.clear();
            let mut shown = Response::new(Bytes::new().into());
            *shown.status_mut() = head.status;
            *shown.headers_mut() = head.headers.clone();
            slot.put(Response::from_parts(head, body));
            return Ok(shown);
        }
        let (head, mut body) = answer.into_parts();
        let read = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let read = read.map_err(|error| no_answer(self.client.failure(error)))?;
        if !head.status.is_success() {
            let refused = Refused::new(head.status, &head.headers, &read);
            return Err(HttpError::new(HttpErrorKind::Unknown, refused));
        }
        Ok(Response::from_parts(head, Bytes::from(read).into()))
    }
}

impl Connector {
    fn send(&self, head: http::request::Parts, body: &Bytes) -> Result<Response<Body>, Failure> {
        let has_body = matches!(head.method, Method::PUT | Method::POST);
        if has_body {
            return self.client.send(Request::from_parts(head, &body[..]));
        }
        self.client.send(Request::from_parts(head, ()))
    }
}

/// There was no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no answer")]
pub(crate) struct NoAnswer {
    /// Who was asked.
    host: String,
    failure: Failure,
}

impl NoAnswer {
    /// What it means. `name`: of the object.
    fn of(&self, name: &str) -> SourceError {
        let settings = settings::of_place(name);
        let host = &self.host;
        let asked = |cause: &str| format!("{cause} (host {host}, which {settings} choose)");
        let failure = match &self.failure {
            Failure::Broken(cause) => Failure::Broken(asked(cause)),
            Failure::Refused(cause, remedy) => Failure::Refused(asked(cause), remedy),
        };
        failure.of(name)
    }
}

/// The answer was a refusal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("status {status}")]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    retry_after: Option<Duration>,
    /// The store's own word for it, say `SignatureDoesNotMatch`.
    code: Option<String>,
    /// Where the store says that it has the object.
    region: Option<String>,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let text = |name| check::text(headers, HeaderName::from_static(name)).map(str::to_owned);
        let retry_after = check::text(headers, RETRY_AFTER);
        Self {
            status,
            retry_after: retry_after.and_then(|t| headers::retry_after(t, SystemTime::now())),
            code: text("x-ms-error-code").or_else(|| code(&String::from_utf8_lossy(body))),
            region: text("x-amz-bucket-region"),
        }
    }

    fn is_about_keys(&self) -> bool {
        let words = ["Token", "AccessKey", "User"];
        let about = |code: &String| words.iter().any(|word| code.contains(word));
        self.code.as_ref().is_some_and(about)
    }

    /// What it means. `anonymous`: no credentials were sent.
    pub(crate) fn of(&self, name: &str, anonymous: bool) -> SourceError {
        let status = self.status;
        let code = self
            .code
            .as_ref()
            .map_or(String::new(), |code| format!(" ({code})"));
        let cause = format!("the store answered with status {status}{code}");
        let name = name.to_owned();
        match status.as_u16() {
            401 | 403 => denied(name, cause, anonymous),
            // Some stores say 400 of keys that have expired, and 404 of such that they don't know.
            400 | 404 if self.is_about_keys() => denied(name, cause, anonymous),
            404 | 410 => SourceError::not_found(name, cause),
            301 => {
                let region = self.region.as_deref().unwrap_or("the region of its bucket");
                let remedy = format!("set AWS_REGION to {region}");
                SourceError::Unsupported {
                    name,
                    cause,
                    remedy,
                }
            }
            307 | 408 | 409 | 425 | 429 | 500 | 502..=504 | 506..=599 => SourceError::Unreachable {
                name,
                cause,
                retry_after: self.retry_after,
            },
            _ => SourceError::Unsupported {
                name,
                cause,
                remedy: "check its address and the settings of the store".into(),
            },
        }
    }
}

fn denied(name: String, cause: String, anonymous: bool) -> SourceError {
    let remedy = match anonymous {
        true => "no credentials were found, so it was asked for without: set them",
        false => "check the credentials and what they allow",
    };
    SourceError::Denied {
        name,
        cause,
        remedy,
    }
}

/// The word between `<Code>` and `</Code>`. All else of such an answer may hold keys.
fn code(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then(|| code.into())
}

/// What of this kind lies under an error.
pub(crate) fn find<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What an error of `object_store` means.
pub(crate) fn explain(
    name: &str,
    anonymous: bool,
    error: &(dyn std::error::Error + 'static),
) -> SourceError {
    if let Some(refused) = find::<Refused>(error) {
        return refused.of(name, anonymous);
    }
    if let Some(none) = find::<NoAnswer>(error) {
        return none.of(name);
    }
    let code = code(&error.to_string());
    let cause = match &code {
        Some(code) => format!("the store answered {code}"),
        None => "the store's answer makes no sense, or its credentials cannot be had".into(),
    };
    match code.as_deref() {
        Some("InternalError" | "SlowDown" | "ServiceUnavailable" | "OperationAborted") => {
            SourceError::Unreachable {
                name: name.into(),
                cause,
                retry_after: None,
            }
        }
        _ => SourceError::Unsupported {
            name: name.into(),
            cause,
            remedy: "check its address, the credentials and the settings of the store".into(),
        },
    }
}
