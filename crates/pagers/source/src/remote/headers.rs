//! What servers write into headers. No I/O here: these take whatever bytes a server sends.

use std::time::{Duration, SystemTime};

/// `Content-Range` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The first byte and the last one. `None` when the range asked for could not be had.
    pub range: Option<(u64, u64)>,
    /// The size of all. `None` when the server does not know.
    pub total: Option<u64>,
}

/// Reads a `Content-Range`: `bytes 0-9/100`, `bytes 0-9/*`, `bytes */100`.
pub fn content_range(text: &str) -> Option<ContentRange> {
    let (unit, rest) = text.trim().split_once(' ')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (range, total) = rest.trim().split_once('/')?;
    let total = match total.trim() {
        "*" => None,
        number => Some(digits(number)?),
    };
    if range.trim() == "*" {
        return total.map(|_| ContentRange { range: None, total });
    }
    let (first, last) = range.split_once('-')?;
    let (first, last) = (digits(first.trim())?, digits(last.trim())?);
    let fits = first <= last && total.is_none_or(|total| last < total);
    fits.then_some(ContentRange {
        range: Some((first, last)),
        total,
    })
}

/// No server is believed that asks for more.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Reads a `Retry-After`, in seconds or as a date, as the time from `now` on: an hour at most.
pub fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let asked = match digits(text) {
        Some(seconds) => Duration::from_secs(seconds),
        None => {
            let date = httpdate::parse_http_date(text).ok()?;
            date.duration_since(now).unwrap_or_default()
        }
    };
    Some(asked.min(RETRY_AFTER_MAX))
}

/// An entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityTag {
    /// As it was sent, with its quotes, without `W/`.
    pub text: String,
    /// True when the bytes may differ under the same tag.
    pub weak: bool,
}

impl EntityTag {
    /// Whether `other` is the same tag, with quotes or without.
    pub fn is(&self, other: &Self) -> bool {
        self.weak == other.weak && self.text.trim_matches('"') == other.text.trim_matches('"')
    }
}

/// Reads an `ETag`. Quotes may be missing: some servers forget them.
pub fn entity_tag(text: &str) -> Option<EntityTag> {
    let text = text.trim();
    let (text, weak) = match text.strip_prefix("W/") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let is_visible = |byte: u8| byte == 0x21 || (0x23..=0x7e).contains(&byte) || byte >= 0x80;
    let inner = match text.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None if text.is_empty() => return None,
        None => text,
    };
    inner.bytes().all(is_visible).then(|| EntityTag {
        text: text.into(),
        weak,
    })
}

/// A number of digits alone: no sign, no blanks.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read_exactly_or_not_at_all() {
        let read = |text| content_range(text).map(|r| (r.range, r.total));
        assert_eq!(read("bytes 0-9/100"), Some((Some((0, 9)), Some(100))));
        assert_eq!(read("Bytes 5-5/*"), Some((Some((5, 5)), None)));
        assert_eq!(read("bytes */0"), Some((None, Some(0))));
        let max = format!("bytes {0}-{0}/*", u64::MAX);
        assert_eq!(read(&max), Some((Some((u64::MAX, u64::MAX)), None)));
        for wrong in [
            "",
            "bytes",
            "bytes ",
            "bytes 0-9",
            "bytes */*",
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes -5/100",
            "bytes +0-9/100",
            "bytes 0-9/1e2",
            "pages 0-9/100",
            "bytes 0-18446744073709551616/*",
        ] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT").unwrap();
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(retry_after("120", now), seconds(120));
        assert_eq!(
            retry_after("Wed, 21 Oct 2015 07:28:30 GMT", now),
            seconds(30)
        );
        assert_eq!(
            retry_after("Wed, 21 Oct 2015 07:00:00 GMT", now),
            seconds(0)
        );
        // Seconds until the end of the world.
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(retry_after("18446744073709551615", now), hour);
        for wrong in ["", "-1", "1.5", "soon", "99999999999999999999"] {
            assert_eq!(retry_after(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn entity_tags_are_strong_or_weak() {
        let read = |text| entity_tag(text).map(|tag| (tag.text, tag.weak));
        assert_eq!(read("\"a-1\""), Some(("\"a-1\"".into(), false)));
        assert_eq!(read("W/\"a\""), Some(("\"a\"".into(), true)));
        assert_eq!(read("abc"), Some(("abc".into(), false)));
        for wrong in ["", "\"", "\"a", "a\"b", "W/", "\"a b\"", "\"a\r\nX: b\""] {
            assert_eq!(entity_tag(wrong), None, "{wrong}");
        }
    }
}
