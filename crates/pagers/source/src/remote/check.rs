//! Whether an answer is the one to the question.

use std::time::SystemTime;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED};
use http::header::{HeaderMap, HeaderName, IF_MATCH, IF_UNMODIFIED_SINCE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use object_store::PutResult;

use crate::SourceError;
use crate::remote::client::BodyFailure;
use crate::remote::headers::{self, ContentRange, EntityTag};

const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");

/// What tells one version of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    tag: Option<EntityTag>,
    modified: Option<String>,
    /// Google's number of the version, which its store wants when it is replaced.
    pub(crate) generation: Option<String>,
    pub(crate) size: u64,
}

impl Version {
    pub(crate) fn of(headers: &HeaderMap, size: u64) -> Self {
        let tag = text(headers, ETAG).and_then(headers::entity_tag);
        Self {
            tag,
            modified: text(headers, LAST_MODIFIED).map(str::to_owned),
            generation: text(headers, GENERATION).map(str::to_owned),
            size,
        }
    }

    /// What was just written, as far as the store told. `None` when it did not tell the tag.
    pub(crate) fn written(written: &PutResult, size: u64) -> Option<Self> {
        let tag = written.e_tag.as_deref().and_then(headers::entity_tag)?;
        Some(Self {
            tag: Some(tag),
            modified: None,
            generation: written.version.clone(),
            size,
        })
    }

    /// `None` when only the size is known.
    pub(crate) fn text(&self) -> Option<String> {
        let tag = self.tag.as_ref().map(|tag| tag.text.clone());
        let size = self.size;
        tag.or_else(|| {
            self.modified
                .as_ref()
                .map(|date| format!("{size} bytes of {date}"))
        })
    }

    /// The tag, when the same one means the same bytes.
    pub(crate) fn strong_tag(&self) -> Option<&str> {
        let tag = self.tag.as_ref().filter(|tag| !tag.weak);
        tag.map(|tag| tag.text.as_str())
    }

    pub(crate) fn shown(&self) -> String {
        self.text().unwrap_or(format!("{} bytes", self.size))
    }

    /// The header that asks for this version or nothing. `If-Match`, for it is answered without a
    /// body when it fails; with `If-Range` the whole new file would come. A weak tag never
    /// matches, so there the date is asked for.
    pub(crate) fn condition(&self) -> Option<(HeaderName, HeaderValue)> {
        match (self.strong_tag(), &self.modified) {
            (Some(tag), _) => Some((IF_MATCH, HeaderValue::from_str(tag).ok()?)),
            (_, Some(date)) => Some((IF_UNMODIFIED_SINCE, HeaderValue::from_str(date).ok()?)),
            _ => None,
        }
    }

    /// Whether `other` may be this version. A server that sent a tag must go on sending it.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.tag, &other.tag) {
            (Some(tag), Some(others)) => tag.is(others) && self.size == other.size,
            (Some(_), None) => false,
            (None, _) => self == other,
        }
    }
}

/// A question that was asked, for the answer to be checked against.
pub(crate) struct Question<'a> {
    name: &'a str,
    version: &'a Version,
    offset: u64,
    pub(crate) bytes: u64,
}

impl<'a> Question<'a> {
    /// Asks for the `bytes` bytes from `offset` on, which must be there.
    pub(crate) fn new(
        name: &'a str,
        version: &'a Version,
        offset: u64,
        bytes: u64,
    ) -> Result<Self, SourceError> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > version.size) {
            return Err(SourceError::Short {
                name: name.into(),
                offset,
                bytes: bytes.min(u64::MAX - offset),
                end: version.size,
            });
        }
        Ok(Self {
            name,
            version,
            offset,
            bytes,
        })
    }

    /// Accepts the head of an answer when its body must be the bytes asked for.
    pub(crate) fn check(&self, status: StatusCode, headers: &HeaderMap) -> Result<(), SourceError> {
        let range = text(headers, CONTENT_RANGE).and_then(headers::content_range);
        let size = self.version.size;
        match status {
            StatusCode::PARTIAL_CONTENT => self.partial(headers, range),
            StatusCode::OK => {
                let length = text(headers, CONTENT_LENGTH).and_then(|l| l.parse().ok());
                self.same(headers, length.unwrap_or(size))?;
                Err(self.wrong("all of the file, as if no range had been asked for"))
            }
            StatusCode::PRECONDITION_FAILED => {
                let now = text(headers, ETAG).unwrap_or("another version");
                Err(self.changed(now.into()))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let end = range.and_then(|range| range.total).unwrap_or(size);
                self.same(headers, end)?;
                Err(self.wrong("that it has no such bytes (status 416)"))
            }
            other => Err(refusal(self.name, other, headers)),
        }
    }

    fn partial(&self, headers: &HeaderMap, range: Option<ContentRange>) -> Result<(), SourceError> {
        if let Some(coding) = text(headers, CONTENT_ENCODING).filter(|c| *c != "identity") {
            return Err(self.wrong(&format!("bytes in the coding '{coding}'")));
        }
        let Some(range) = range else {
            return Err(self.wrong("a part without saying which (no valid Content-Range)"));
        };
        self.same(headers, range.total.unwrap_or(self.version.size))?;
        let wanted = (self.offset, self.offset + self.bytes - 1);
        match range.range {
            Some(got) if got == wanted => {}
            Some((first, last)) => {
                let end = u128::from(last) + 1;
                return Err(self.wrong(&format!("bytes {first} to {end}")));
            }
            None => return Err(self.wrong("a part that is none")),
        }
        match text(headers, CONTENT_LENGTH) {
            Some(length) if length.parse() != Ok(self.bytes) => {
                Err(self.wrong(&format!("a body of {length} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// That the version is the one asked for.
    fn same(&self, headers: &HeaderMap, size: u64) -> Result<(), SourceError> {
        let now = Version::of(headers, size);
        match self.version.is(&now) {
            true => Ok(()),
            false => Err(self.changed(now.shown())),
        }
    }

    /// What went wrong with the body of an answer whose head was right.
    pub(crate) fn body_error(&self, failure: BodyFailure) -> SourceError {
        let bytes = self.bytes;
        let broken = |cause: String| SourceError::Unreachable {
            name: self.name.into(),
            cause,
            retry_after: None,
        };
        match failure {
            BodyFailure::GoesOn => self.wrong("more bytes than that"),
            BodyFailure::Ends(done) => {
                broken(format!("the answer ended after {done} of {bytes} bytes"))
            }
            BodyFailure::Broken(done, failure) => match failure.of(self.name) {
                SourceError::Unreachable { cause, .. } => {
                    broken(format!("{cause} after {done} of {bytes} bytes"))
                }
                other => other,
            },
        }
    }

    fn changed(&self, is: String) -> SourceError {
        SourceError::Changed {
            name: self.name.into(),
            was: self.version.shown(),
            is,
            remedy: "open it again",
        }
    }

    fn wrong(&self, answer: &str) -> SourceError {
        SourceError::WrongRange {
            name: self.name.into(),
            offset: self.offset,
            bytes: self.bytes,
            answer: answer.into(),
        }
    }
}

/// What a status that brings no bytes means.
pub(crate) fn refusal(name: &str, status: StatusCode, headers: &HeaderMap) -> SourceError {
    let name = name.to_owned();
    let cause = format!("the server answered with status {status}");
    let now = SystemTime::now();
    match status.as_u16() {
        404 | 410 => SourceError::not_found(name, cause),
        401 => SourceError::Denied {
            name,
            cause,
            remedy: "give credentials: user and password in its address, or a header",
        },
        403 => SourceError::Denied {
            name,
            cause,
            remedy: "use credentials that may read it, or an address that has not expired",
        },
        407 => SourceError::Denied {
            name,
            cause,
            remedy: "give user and password of the proxy in HTTPS_PROXY",
        },
        408 | 425 | 429 | 500 | 502..=504 | 506..=599 => SourceError::Unreachable {
            name,
            cause,
            retry_after: text(headers, RETRY_AFTER).and_then(|t| headers::retry_after(t, now)),
        },
        _ => SourceError::Unsupported {
            name,
            cause,
            remedy: "check its address; if a browser can read it, download it".into(),
        },
    }
}

/// A header as text. What is not text is as good as missing.
pub(crate) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    /// What becomes of an answer to the question for bytes 10 to 20 of 100.
    fn answered(opened: &[(&str, &str)], status: u16, answer: &[(&str, &str)]) -> String {
        let version = Version::of(&head(opened), 100);
        let question = Question::new("far", &version, 10, 10).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        match question.check(status, &head(answer)) {
            Ok(()) => "right".into(),
            Err(SourceError::Changed { is, .. }) => format!("changed: {is}"),
            Err(SourceError::WrongRange { answer, .. }) => format!("wrong: {answer}"),
            Err(other) => panic!("{other}"),
        }
    }

    const RANGE: (&str, &str) = ("content-range", "bytes 10-19/100");
    const DATE: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
    const LATER: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:01 GMT");
    const TAG: (&str, &str) = ("etag", "\"a\"");

    #[test]
    fn the_range_asked_for_is_accepted_and_no_other() {
        assert_eq!(answered(&[], 206, &[RANGE]), "right");
        assert_eq!(
            answered(&[], 206, &[("content-range", "bytes 10-19/*")]),
            "right"
        );
        for range in [
            "bytes 9-18/100",
            "bytes 10-18/100",
            "bytes 10-20/100",
            "bytes */100",
        ] {
            let said = answered(&[], 206, &[("content-range", range)]);
            assert!(said.starts_with("wrong"), "{range}: {said}");
        }
        let longer = answered(&[], 206, &[RANGE, ("content-length", "11")]);
        assert_eq!(longer, "wrong: a body of 11 bytes");
        assert!(answered(&[], 206, &[]).starts_with("wrong"));
        assert!(answered(&[], 416, &[]).starts_with("wrong"));
    }

    #[test]
    fn compressed_bytes_are_not_the_bytes() {
        let gzip = answered(&[], 206, &[RANGE, ("content-encoding", "gzip")]);
        assert_eq!(gzip, "wrong: bytes in the coding 'gzip'");
        let identity = answered(&[], 206, &[RANGE, ("content-encoding", "identity")]);
        assert_eq!(identity, "right");
    }

    #[test]
    fn another_size_tag_or_date_is_a_change() {
        let larger = ("content-range", "bytes 10-19/101");
        assert_eq!(answered(&[], 206, &[larger]), "changed: 101 bytes");
        assert_eq!(answered(&[TAG], 206, &[RANGE, TAG]), "right");
        assert_eq!(answered(&[TAG], 206, &[RANGE]), "changed: 100 bytes");
        assert_eq!(
            answered(&[TAG], 206, &[RANGE, ("etag", "\"b\"")]),
            "changed: \"b\""
        );
        assert_eq!(answered(&[DATE], 206, &[RANGE, DATE]), "right");
        assert!(answered(&[DATE], 206, &[RANGE, LATER]).starts_with("changed"));
        // A copy of the same bytes on another machine may have another date.
        assert_eq!(answered(&[TAG, DATE], 206, &[RANGE, TAG, LATER]), "right");
        assert_eq!(answered(&[TAG], 412, &[]), "changed: another version");
    }

    #[test]
    fn all_of_the_file_is_wrong_and_all_of_another_is_a_change() {
        let all = ("content-length", "100");
        assert!(answered(&[TAG], 200, &[TAG, all]).starts_with("wrong"));
        assert!(answered(&[TAG], 200, &[("etag", "\"b\""), all]).starts_with("changed"));
    }
}
