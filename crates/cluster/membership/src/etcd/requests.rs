//! What etcd is asked, as JSON: keys and values in base64, 64-bit numbers as strings.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::table::{Need, Txn, Write};

/// The request for a key.
pub(super) fn of_key(key: &str) -> Value {
    json!({ "key": BASE64.encode(key) })
}

/// The request for all keys that begin so.
pub(super) fn under(prefix: &str) -> Value {
    json!({ "key": BASE64.encode(prefix), "range_end": BASE64.encode(end_of(prefix)) })
}

/// The first key behind all that begin so. No byte of UTF-8 is the greatest that there is.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = Vec::from(prefix);
    *end.last_mut().expect("a prefix is not empty") += 1;
    end
}

pub(super) fn of_transaction(txn: &Txn) -> Value {
    json!({
        "compare": txn.needs.iter().map(compare).collect::<Vec<_>>(),
        "success": txn.writes.iter().map(operation).collect::<Vec<_>>(),
    })
}

pub(super) fn of_grant(length: Duration) -> Value {
    json!({ "TTL": (length.as_secs_f64().ceil() as i64).to_string() })
}

pub(super) fn of_lease(lease: i64) -> Value {
    json!({ "ID": lease.to_string() })
}

pub(super) fn of_login(name: &str, password: &str) -> Value {
    json!({ "name": name, "password": password })
}

pub(super) fn of_watch(prefix: &str, from: i64) -> Value {
    let mut create = under(prefix);
    create["start_revision"] = from.to_string().into();
    json!({ "create_request": create })
}

fn compare(need: &Need) -> Value {
    let (mut compare, result) = match need {
        Need::Absent(key) => (of_key(key), "EQUAL"),
        Need::Present(key) => (of_key(key), "GREATER"),
        Need::Unchanged(key, _) => (of_key(key), "EQUAL"),
        Need::NoneUnder(prefix) => (under(prefix), "EQUAL"),
    };
    compare["result"] = result.into();
    match need {
        Need::Unchanged(_, revision) => {
            compare["target"] = "MOD".into();
            compare["mod_revision"] = revision.to_string().into();
        }
        // The version of what is not there is zero.
        Need::Absent(_) | Need::Present(_) | Need::NoneUnder(_) => {
            compare["target"] = "VERSION".into();
            compare["version"] = "0".into();
        }
    }
    compare
}

fn operation(write: &Write) -> Value {
    match write {
        Write::Put { key, value, lease } => {
            let mut put = of_key(key);
            put["value"] = BASE64.encode(value).into();
            if let Some(lease) = lease {
                put["lease"] = lease.to_string().into();
            }
            json!({ "request_put": put })
        }
        Write::Delete(key) => json!({ "request_delete_range": of_key(key) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_etcd_reads_them() {
        assert_eq!(
            under("a/"),
            json!({ "key": "YS8=", "range_end": "YTA=" }),
            "from a/ to a0"
        );
        let txn = Txn {
            needs: vec![
                Need::Absent("a".into()),
                Need::Unchanged("a".into(), i64::MAX),
                Need::NoneUnder("a/".into()),
            ],
            writes: vec![
                Write::Put {
                    key: "a".into(),
                    value: "x".into(),
                    lease: Some(7),
                },
                Write::Delete("a".into()),
            ],
        };
        assert_eq!(
            of_transaction(&txn),
            json!({
                "compare": [
                    { "key": "YQ==", "result": "EQUAL", "target": "VERSION", "version": "0" },
                    { "key": "YQ==", "result": "EQUAL", "target": "MOD",
                      "mod_revision": "9223372036854775807" },
                    { "key": "YS8=", "range_end": "YTA=", "result": "EQUAL", "target": "VERSION",
                      "version": "0" },
                ],
                "success": [
                    { "request_put": { "key": "YQ==", "value": "eA==", "lease": "7" } },
                    { "request_delete_range": { "key": "YQ==" } },
                ],
            })
        );
    }
}
