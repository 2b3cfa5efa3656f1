//! What etcd answers, as JSON.
//!
//! Keys and values are in base64, and 64-bit numbers are strings; what is zero, false or empty is
//! left out. Versions differ in how they write a refusal, and in where they put spaces.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::store::Watched;
use crate::table::{Change, Entry, Snapshot};

/// An answer, or a line of one, has no more bytes. A record has a few hundred: a cluster of a
/// hundred thousand objects is read at once.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What is shown of a message of the server's.
const SHOWN_CHARS_MAX: usize = 200;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// etcd says that it does not do it.
    Refusal(Refusal),
    /// The connection failed, or what came is not what etcd says.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refusal(refusal) => f.write_str(&refusal.said),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// What etcd says instead of an answer, with a code of gRPC.
#[derive(Debug)]
pub(super) struct Refusal {
    code: i64,
    pub(super) said: String,
}

impl Refusal {
    /// False when another server, or the same one later, may answer.
    pub(super) fn is_final(&self) -> bool {
        const INVALID: i64 = 3;
        const NOT_FOUND: i64 = 5;
        const DENIED: i64 = 7;
        const EXHAUSTED: i64 = 8;
        const PRECONDITION: i64 = 9;
        const UNAUTHENTICATED: i64 = 16;
        matches!(
            self.code,
            INVALID | NOT_FOUND | DENIED | EXHAUSTED | PRECONDITION | UNAUTHENTICATED
        )
    }

    /// True when a new token helps, if there is a user.
    pub(super) fn is_of_token(&self) -> bool {
        [
            "invalid auth token",
            "revision of auth store is old",
            "user name is empty",
        ]
        .iter()
        .any(|said| self.said.contains(said))
    }
}

/// A number that may be written as a string.
fn int64<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Plain(i64),
        Quoted(String),
    }
    match Number::deserialize(from)? {
        Number::Plain(number) => Ok(number),
        Number::Quoted(text) => text.parse().map_err(D::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64.decode(text).map_err(D::Error::custom)
}

#[derive(Default, Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "int64")]
    revision: i64,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default, deserialize_with = "bytes")]
    key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    value: Vec<u8>,
    #[serde(default, deserialize_with = "int64")]
    mod_revision: i64,
}

impl KeyValue {
    /// `None` when the key is not text, as all of Farpage's are.
    fn entry(self) -> Option<(String, Entry)> {
        let entry = Entry {
            value: self.value,
            revision: self.mod_revision,
        };
        Some((String::from_utf8(self.key).ok()?, entry))
    }
}

/// What is at some keys.
#[derive(Deserialize)]
pub(super) struct Found {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

impl Found {
    pub(super) fn first(self) -> Option<Entry> {
        let first = self.kvs.into_iter().next()?;
        first.entry().map(|(_, entry)| entry)
    }

    pub(super) fn snapshot(self) -> Snapshot {
        let entries = self.kvs.into_iter().filter_map(KeyValue::entry);
        Snapshot {
            revision: self.header.revision,
            entries: entries.collect::<BTreeMap<_, _>>(),
        }
    }
}

/// Whether a transaction was done.
#[derive(Deserialize)]
pub(super) struct Done {
    #[serde(default)]
    pub(super) succeeded: bool,
}

/// A lease that was granted or kept; one that is over has no length.
#[derive(Deserialize)]
pub(super) struct Granted {
    #[serde(default, rename = "ID", deserialize_with = "int64")]
    pub(super) id: i64,
    #[serde(default, rename = "TTL", deserialize_with = "int64")]
    seconds: i64,
}

impl Granted {
    pub(super) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.max(0).unsigned_abs())
    }
}

/// What a user shows in place of the password.
#[derive(Deserialize)]
pub(super) struct Token {
    pub(super) token: String,
}

/// An answer of which nothing matters but that there is one.
#[derive(Deserialize)]
pub(super) struct Nothing {}

/// One of several answers to the same request.
#[derive(Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: T,
}

/// What is told of a watch.
#[derive(Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default, deserialize_with = "int64")]
    compact_revision: i64,
    #[serde(default)]
    events: Vec<KeyEvent>,
}

#[derive(Deserialize)]
struct KeyEvent {
    #[serde(default, rename = "type")]
    kind: Kind,
    kv: KeyValue,
}

#[derive(Default, Deserialize)]
enum Kind {
    #[default]
    #[serde(rename = "PUT")]
    Put,
    #[serde(rename = "DELETE")]
    Delete,
}

impl Told {
    pub(super) fn watched(self) -> Result<Watched, Failure> {
        if self.compact_revision != 0 {
            return Ok(Watched::Missed(None));
        }
        if self.canceled {
            // `rpc error: code = Unauthenticated desc = ...` where a code of gRPC is known.
            let said = self.cancel_reason.rsplit("desc = ").next();
            let said = shown(said.unwrap_or_default());
            return Err(Failure::Refusal(Refusal { code: 0, said }));
        }
        let changes = self.events.into_iter().filter_map(|event| {
            let (key, entry) = event.kv.entry()?;
            Some(Change {
                key,
                revision: entry.revision,
                value: match event.kind {
                    Kind::Put => Some(entry.value),
                    Kind::Delete => None,
                },
            })
        });
        Ok(Watched::Changes(changes.collect()))
    }
}

/// Reads an answer, or one of several, that came with this status of HTTP.
pub(super) fn answer<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, Failure> {
    let envelope: Result<Envelope, _> = serde_json::from_slice(body);
    let is_whole = match envelope {
        Ok(envelope) => match envelope.refusal() {
            Some(refusal) => return Err(Failure::Refusal(refusal)),
            None => envelope.header.is_some() || envelope.result.is_some(),
        },
        Err(_) => false,
    };
    if is_whole
        && status == 200
        && let Ok(answer) = serde_json::from_slice(body)
    {
        return Ok(answer);
    }
    Err(Failure::Broken(match status {
        // A server between, or one that begins or ends.
        500.. => format!("it answers with HTTP's status {status}"),
        _ => String::from(
            "what answers is no etcd of version 3.4 or later, or its JSON gateway is off \
             (--enable-grpc-gateway=false)",
        ),
    }))
}

/// What each answer is in: a header, the result of a stream, or a refusal. Version 3.4 refuses with
/// `{"error": TEXT, "code": N}`, later ones with `{"code": N, "message": TEXT}`, and a stream with
/// `{"error": {...}}`, where the code has one of two names.
#[derive(Deserialize)]
struct Envelope {
    header: Option<IgnoredAny>,
    result: Option<IgnoredAny>,
    error: Option<Error>,
    message: Option<String>,
    code: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Error {
    Text(String),
    OfStream {
        #[serde(alias = "grpc_code")]
        code: i64,
        message: String,
    },
}

impl Envelope {
    fn refusal(&self) -> Option<Refusal> {
        let (code, said) = match (&self.error, &self.message) {
            (Some(Error::OfStream { code, message }), _) => (*code, message),
            (Some(Error::Text(said)), None) | (_, Some(said)) => (self.code?, said),
            (None, None) => return None,
        };
        let said = shown(said);
        Some(Refusal { code, said })
    }
}

/// Text of the server's, in one line of some length.
fn shown(said: &str) -> String {
    let said = said.chars().map(|c| if c.is_control() { ' ' } else { c });
    said.take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused<T: DeserializeOwned>(status: u16, body: &str) -> Failure {
        match answer::<T>(status, body.as_bytes()) {
            Ok(_) => panic!("taken for an answer: {body}"),
            Err(failure) => failure,
        }
    }

    #[test]
    fn refusals_are_read_in_each_form() {
        let said = "etcdserver: requested lease not found";
        for body in [
            format!(r#"{{"error":"{said}","code":5}}"#),
            format!(r#"{{"error":"{said}","message":"{said}","code":5}}"#),
            format!(r#"{{"code":5, "message":"{said}", "details":[]}}"#),
            format!(r#"{{"error":{{"grpc_code":5,"http_code":404,"message":"{said}"}}}}"#),
            format!(r#"{{"error":{{"code":5, "message":"{said}", "details":[]}}}}"#),
        ] {
            for status in [200, 404] {
                let Failure::Refusal(refusal) = refused::<Found>(status, &body) else {
                    panic!("not read: {body}");
                };
                assert_eq!((refusal.code, refusal.said.as_str()), (5, said));
                assert!(refusal.is_final() && !refusal.is_of_token());
            }
        }
        let body = r#"{"error":{"code":14,"message":"etcdserver: no leader"}}"#;
        let Failure::Refusal(refusal) = refused::<Streamed<Told>>(200, body) else {
            panic!("not read: {body}");
        };
        assert!(!refusal.is_final());
    }

    #[test]
    fn what_etcd_does_not_say_is_told_from_what_it_says() {
        for body in [
            "",
            "404 page not found",
            "<html>",
            "null",
            "[]",
            "{}",
            "17",
            r#"{"error":"x"}"#,
            r#"{"error":{}}"#,
            r#"{"error":"x","code":"5"}"#,
            r#"{"message":"x"}"#,
            r#"{"header":{},"header":{}}"#,
            r#"{"header":{"revision":"x"},"kvs":[]}"#,
            r#"{"header":{"revision":"9223372036854775808"}}"#,
            r#"{"header":{},"kvs":[{"key":"*"}]}"#,
            r#"{"header":{},"kvs":[{"key":"YQ=="}"#,
            r#"{"header":{},"kvs":{}}"#,
        ] {
            let said = refused::<Found>(200, body).to_string();
            assert!(said.contains("--enable-grpc-gateway"), "{body}: {said}");
        }
        let deep = "[".repeat(1 << 20);
        refused::<Found>(200, &deep);
        refused::<Found>(200, &format!(r#"{{"header":{{}},"kvs":{deep}"#));
        let whole = r#"{"header":{"revision":"3"}}"#;
        let said = refused::<Found>(404, whole).to_string();
        assert!(said.contains("--enable-grpc-gateway"), "{said}");
        let said = refused::<Found>(503, "<html>").to_string();
        assert!(said.contains("503"), "{said}");
    }

    #[test]
    fn long_words_and_controls_of_a_server_are_not_shown() {
        let body = json!({ "error": format!("a\n\u{1b}[31m{}", "b".repeat(1000)), "code": 3 });
        let said = refused::<Found>(400, &body.to_string()).to_string();
        assert!(said.starts_with("a  [31mb") && said.len() == SHOWN_CHARS_MAX);
    }

    #[test]
    fn what_is_stored_is_read() {
        let body = r#"{"header":{"cluster_id":"1","revision":"7"}, "kvs":[
            {"key":"YS9i","create_revision":"2","mod_revision":"3","version":"2","value":"eA=="},
            {"key":"YS9j","mod_revision":4}, {"key":"/w==","mod_revision":"5"}], "count":"3"}"#;
        let found: Found = answer(200, body.as_bytes()).expect("an answer");
        let snapshot = found.snapshot();
        assert_eq!(snapshot.revision, 7);
        let entry = |value: &str, revision| Entry {
            value: value.into(),
            revision,
        };
        let expected = [("a/b".into(), entry("x", 3)), ("a/c".into(), entry("", 4))];
        assert_eq!(snapshot.entries, BTreeMap::from(expected));
    }

    #[test]
    fn leases_that_are_over_have_no_length() {
        let kept =
            |body: &str| -> Streamed<Granted> { answer(200, body.as_bytes()).expect("an answer") };
        let there = kept(r#"{"result":{"header":{},"ID":"-7","TTL":"5"}}"#).result;
        assert_eq!((there.id, there.length()), (-7, Duration::from_secs(5)));
        for body in [r#"{"result":{"ID":"7"}}"#, r#"{"result":{"TTL":"-1"}}"#] {
            assert_eq!(kept(body).result.length(), Duration::ZERO);
        }
    }

    #[test]
    fn a_watch_tells_changes_gaps_and_its_end() {
        let told = |body: &str| {
            let told: Streamed<Told> = answer(200, body.as_bytes()).expect("an answer");
            told.result.watched()
        };
        let changes = told(
            r#"{"result":{"header":{},"events":[{"kv":{"key":"YQ==","mod_revision":"2","value":"eA=="}},
            {"type":"DELETE","kv":{"key":"Yg==","mod_revision":"3"}}]}}"#,
        );
        let Ok(Watched::Changes(changes)) = changes else {
            panic!("no changes");
        };
        let change = |key: &str, revision, value: Option<&str>| Change {
            key: key.into(),
            revision,
            value: value.map(Into::into),
        };
        assert_eq!(changes, [change("a", 2, Some("x")), change("b", 3, None)]);
        let made = told(r#"{"result":{"created":true}}"#);
        assert!(matches!(made, Ok(Watched::Changes(changes)) if changes.is_empty()));
        let gap = told(r#"{"result":{"canceled":true,"compact_revision":"2"}}"#);
        assert!(matches!(gap, Ok(Watched::Missed(None))));
        let ended = told(
            r#"{"result":{"canceled":true,"cancel_reason":
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#,
        );
        let Err(Failure::Refusal(refusal)) = ended else {
            panic!("not ended");
        };
        assert_eq!(refusal.said, "etcdserver: invalid auth token");
        assert!(refusal.is_of_token());
        refused::<Streamed<Told>>(200, r#"{"result":{"events":[{"type":"MOVE","kv":{}}]}}"#);
    }
}
