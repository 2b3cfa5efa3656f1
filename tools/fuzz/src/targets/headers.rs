//! Headers of HTTP answers.

use std::time::SystemTime;

#[allow(dead_code)]
#[path = "../../../../crates/pagers/source/src/remote/headers.rs"]
mod headers;

/// Headers that say which bytes came, of which version, and when to come back.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    // What is read of them is compared with what was asked for.
    let _ = headers::content_range(text);
    let _ = headers::retry_after(text, SystemTime::UNIX_EPOCH);
    let _ = headers::entity_tag(text);
}

/// One of each, and what is nearly one.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "bytes 0-99/1000",
        "bytes 0-99/*",
        "bytes */1000",
        "bytes 18446744073709551615-0/1",
        "120",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "\"abc\"",
        "W/\"abc\"",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
