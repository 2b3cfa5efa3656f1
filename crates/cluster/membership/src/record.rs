//! What is stored: JSON with its version in front, so that an operator can read it and another
//! version is refused in words.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::names;
use crate::view::{Incarnation, Members, Slot};

/// The version of everything that is stored.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a note at most.
pub const NOTE_MAX: usize = 1024;
/// Copies of a page at most.
const REPLICAS_MAX: u8 = 3;
/// Microseconds that a host keeps a page at most: others wait as long.
const HOLD_US_MAX: u32 = 100_000;
/// Microseconds that copies are lent for, at least: an answer takes some.
const STALE_US_MIN: u32 = 1000;

/// What is wrong with something stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another version wrote it.
    #[error("version {0} wrote it and this is version {VERSION}; run one version on all hosts")]
    Version(u32),
    /// It is no record.
    #[error("it is no record of Farpage ({0}); was it written by hand?")]
    Garbled(String),
    /// It says what cannot be.
    #[error("{0}")]
    Wrong(String),
}

/// A shared object: a number never given twice in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u64);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who decides who may have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// The object's home.
    Simple,
    /// The owner of each page.
    Distributed,
}

/// When a host sees what another has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// At once: one host at a time may write to a page.
    #[default]
    Strict,
    /// When that has released it and this one acquired: several may write to different parts of a page.
    Release,
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Release => "release",
        })
    }
}

impl Consistency {
    fn is_strict(&self) -> bool {
        *self == Self::Strict
    }
}

/// What outlives all hosts of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Nothing.
    Volatile,
    /// What was flushed.
    Flushed,
}

/// The host at which an object begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Home {
    /// Where it was.
    pub slot: Slot,
    /// Which stay of it; when that is over, the object has no home.
    pub incarnation: Incarnation,
}

/// What an object is. The control plane checks and keeps it; it is for the hosts to keep to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its length; whole pages.
    pub bytes: u64,
    /// Bytes of its pages: a power of two, 512 at least.
    pub page_bytes: u64,
    /// Who decides who may have a page.
    pub scheduler: Scheduler,
    /// On how many hosts each page is, 1 to 3.
    pub replicas: u8,
    /// Microseconds that a page stays with threads that were let in to it; `None`: as hosts see fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_us: Option<u32>,
    /// Microseconds that what a host reads may be old by; `None`: it is what was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_us: Option<u32>,
    /// When a host sees what another has written.
    #[serde(default, skip_serializing_if = "Consistency::is_strict")]
    pub consistency: Consistency,
    /// Nobody writes to it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sealed: bool,
    /// What outlives them.
    pub durability: Durability,
    /// Where it begins.
    pub home: Home,
    /// The user who made it.
    pub uid: u32,
    /// It stays when no host holds it, as long as it has a name. Else its name goes with it.
    pub stays: bool,
    /// What its maker says of its contents: at most [`NOTE_MAX`] bytes.
    pub note: String,
}

impl Description {
    /// Refuses what cannot be.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        let page = self.page_bytes;
        let wrong = if !page.is_power_of_two() || page < 512 {
            format!("pages have a power of two of bytes, 512 or more, not {page}")
        } else if self.bytes == 0 || !self.bytes.is_multiple_of(page) {
            format!("{} bytes are no whole pages of {page}, or none", self.bytes)
        } else if self.note.len() > NOTE_MAX {
            let bytes = self.note.len();
            format!("a note has at most {NOTE_MAX} bytes, not {bytes}")
        } else if !(1..=REPLICAS_MAX).contains(&self.replicas) {
            format!(
                "a page is on 1 to {REPLICAS_MAX} hosts, not {}",
                self.replicas
            )
        } else if let Some(hold_us) = self.hold_us.filter(|hold_us| *hold_us > HOLD_US_MAX) {
            let (hold, most) = (hold_us / 1000, HOLD_US_MAX / 1000);
            format!("a host keeps a page for {most} ms at most, not {hold} ms: others wait for it")
        } else if self
            .stale_us
            .is_some_and(|stale_us| stale_us < STALE_US_MIN)
        {
            let least = STALE_US_MIN / 1000;
            format!(
                "what is read is {least} ms old at least, if it may be old: an answer takes some time"
            )
        } else {
            return Ok(());
        };
        Err(RecordError::Wrong(wrong))
    }
}

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// Its name, until that is removed.
    pub name: Option<String>,
    /// What it is.
    pub description: Description,
    /// Which host made it, and its how many-th: tells whether an attempt without an answer was done.
    pub(crate) made_by: Incarnation,
    pub(crate) attempt: u64,
}

/// A port that is found by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckedIn {
    /// The stay of the host at which it is; when that is over, it is gone.
    pub incarnation: Incarnation,
    /// What that host calls it.
    pub number: u64,
    /// The user whose it is.
    pub uid: u32,
}

pub(crate) fn encode_port(port: &CheckedIn) -> String {
    encode(port)
}

/// Reads a port.
pub(crate) fn decode_port(bytes: &[u8]) -> Result<CheckedIn, RecordError> {
    decode(bytes)
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    value: T,
}

fn encode<T: Serialize>(value: T) -> String {
    let version = VERSION;
    serde_json::to_string(&Envelope { version, value }).expect("these types are all of JSON")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let garbled = |why: serde_json::Error| RecordError::Garbled(why.to_string());
    let envelope: Envelope<IgnoredAny> = serde_json::from_slice(bytes).map_err(garbled)?;
    if envelope.version != VERSION {
        return Err(RecordError::Version(envelope.version));
    }
    let envelope: Envelope<T> = serde_json::from_slice(bytes).map_err(garbled)?;
    Ok(envelope.value)
}

/// The record that says which version a cluster is of.
pub(crate) fn encode_format() -> String {
    encode("farpage-membership")
}

/// Refuses the record of a cluster of another version.
pub fn check_format(bytes: &[u8]) -> Result<(), RecordError> {
    match decode::<String>(bytes)?.as_str() {
        "farpage-membership" => Ok(()),
        other => Err(RecordError::Garbled(format!(
            "it names {:?}",
            names::shown(other)
        ))),
    }
}

/// Which key the hosts have, as it is stored.
pub(crate) fn encode_key(key: &str) -> String {
    encode(key)
}

/// As it was stored.
pub(crate) fn decode_key(bytes: &[u8]) -> Result<String, RecordError> {
    decode(bytes)
}

/// A number, as the next object's is stored.
pub(crate) fn encode_number(number: u64) -> String {
    encode(number)
}

/// Reads a number.
pub fn decode_number(bytes: &[u8]) -> Result<u64, RecordError> {
    decode(bytes)
}

/// Of whom a host has not heard.
pub(crate) fn encode_unheard(unheard: &BTreeSet<Incarnation>) -> String {
    encode(unheard)
}

/// Reads of whom a host has not heard.
pub(crate) fn decode_unheard(bytes: &[u8]) -> Result<BTreeSet<Incarnation>, RecordError> {
    decode(bytes)
}

pub(crate) fn encode_members(members: &Members) -> String {
    encode(members)
}

/// Reads the members of a view.
pub fn decode_members(bytes: &[u8]) -> Result<Members, RecordError> {
    let members: Members = decode(bytes)?;
    members.check()?;
    Ok(members)
}

pub(crate) fn encode_object(object: &Object) -> String {
    encode(object)
}

/// Reads an object.
pub fn decode_object(bytes: &[u8]) -> Result<Object, RecordError> {
    let object: Object = decode(bytes)?;
    object.description.check()?;
    match &object.name {
        Some(name) if !names::is_name(name) => {
            let what = format!("{:?} cannot name an object", names::shown(name));
            Err(RecordError::Wrong(what))
        }
        Some(_) | None => Ok(object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object {
            name: Some("grid".into()),
            description: Description {
                bytes: 8192,
                page_bytes: 4096,
                scheduler: Scheduler::Distributed,
                replicas: 2,
                hold_us: Some(0),
                stale_us: Some(1000),
                consistency: Consistency::Release,
                is_sealed: true,
                durability: Durability::Flushed,
                home: Home {
                    slot: Slot(3),
                    incarnation: Incarnation(7),
                },
                uid: 0,
                stays: true,
                note: String::new(),
            },
            made_by: Incarnation(7),
            attempt: 1,
        }
    }

    #[test]
    fn what_is_stored_can_be_read_by_people_and_again() {
        let text = encode_object(&object());
        assert!(
            text.contains(r#""version":1"#) && text.contains(r#""name":"grid""#),
            "{text}"
        );
        assert_eq!(decode_object(text.as_bytes()), Ok(object()));
        assert_eq!(decode_number(encode_number(9).as_bytes()), Ok(9));
        assert_eq!(check_format(encode_format().as_bytes()), Ok(()));
    }

    #[test]
    fn other_versions_and_garbage_are_refused_with_words() {
        let newer = encode_object(&object()).replace(r#""version":1"#, r#""version":2"#);
        assert_eq!(
            decode_object(newer.as_bytes()),
            Err(RecordError::Version(2))
        );
        let more = encode_object(&object()).replace("\"attempt\"", "\"mood\":1,\"attempt\"");
        for text in [
            "",
            "{",
            "7",
            r#"{"version":1}"#,
            &more,
            "\0\0",
            &"[".repeat(9000),
        ] {
            let refused = decode_object(text.as_bytes());
            assert!(
                matches!(refused, Err(RecordError::Garbled(_))),
                "{text:.60}: {refused:?}"
            );
        }
    }

    #[test]
    fn descriptions_that_cannot_be_are_refused() {
        type Change = fn(&mut Description);
        let changes: [Change; 8] = [
            |d| d.bytes = 0,
            |d| d.bytes = 4097,
            |d| d.page_bytes = 0,
            |d| d.page_bytes = 3000,
            |d| d.replicas = 0,
            |d| d.replicas = 4,
            |d| d.hold_us = Some(100_001),
            |d| d.stale_us = Some(999),
        ];
        for change in changes {
            let mut bad = object();
            change(&mut bad.description);
            let refused = decode_object(encode_object(&bad).as_bytes());
            assert!(matches!(refused, Err(RecordError::Wrong(_))), "{refused:?}");
        }
    }

    #[test]
    fn members_that_cannot_be_are_refused() {
        let member = r#"{"incarnation":1,"address":"1.2.3.4:5","name":"a","page_bytes":4096,
            "representation":{"little_endian":true,"pointer_bits":64,"architecture":"x"}}"#;
        let text = |next: u64, members: &str| {
            format!(r#"{{"version":1,"value":{{"next":{next},"members":{{{members}}}}}}}"#)
        };
        let read = |next, members: &str| decode_members(text(next, members).as_bytes());
        assert!(read(2, &format!("\"63\":{member}")).is_ok());
        assert!(read(2, &format!("\"64\":{member}")).is_err());
        assert!(read(1, &format!("\"0\":{member}")).is_err());
        assert!(read(2, &format!("\"0\":{member},\"1\":{member}")).is_err());
        assert!(read(2, &format!("\"0\":{}", member.replace("4096", "4095"))).is_err());
        assert!(read(2, &format!("\"0\":{}", member.replace("\"a\"", "\"a/b\""))).is_err());
    }
}
