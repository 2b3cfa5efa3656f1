//! Addresses, and what of them may be shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use url::Url;

use crate::SourceError;

/// Reads an address.
pub(crate) fn parse(text: &str) -> Result<Url, SourceError> {
    Url::parse(text).map_err(|error| {
        // What cannot be read may hold a password anywhere behind the scheme.
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        SourceError::Unsupported {
            name: format!("{scheme}://..."),
            cause: format!("its address cannot be read: {error}"),
            remedy: "write it as scheme://host/path".into(),
        }
    })
}

/// What messages call it: without user, password, query and fragment.
pub(crate) fn shown(url: &Url) -> String {
    let mut public = url.clone();
    public.set_query(None);
    public.set_fragment(None);
    let _ = public.set_username("");
    let _ = public.set_password(None);
    let query = if url.query().is_some() { "?..." } else { "" };
    format!("{public}{query}")
}

/// Parameters by which well-known stores sign an address: those that such an address has for sure, and others.
/// They say until when and by whom it may be used, and nothing of what is there.
const SIGNED: [(&[&str], &[&str]); 4] = [
    (&["signature", "awsaccesskeyid"], &["expires"]),
    (&["signature", "googleaccessid"], &["expires"]),
    (
        &["signature", "key-pair-id"],
        &["policy", "expires", "hash-algorithm"],
    ),
    (
        &["sig", "se"],
        &[
            "sv", "st", "sp", "sr", "si", "sip", "spr", "skoid", "sktid", "skt", "ske", "sks",
            "skv", "saoid", "suoid", "scid", "sdd",
        ],
    ),
];

/// What tells `url`, which has no credentials, from all others: all of it but what signs it, which is new each
/// time.
pub(crate) fn identity(url: &Url) -> String {
    let Some(query) = url.query() else {
        return url.as_str().into();
    };
    let name_of = |pair: &str| pair.split('=').next().unwrap_or(pair).to_ascii_lowercase();
    let names: Vec<String> = query.split('&').map(name_of).collect();
    let has = |name: &str| names.iter().any(|one| one == name);
    let is_signature = |name: &str| {
        let with_prefix =
            |prefix: &str| name.starts_with(prefix) && has(&format!("{prefix}signature"));
        let listed = |(marks, others): &(&[&str], &[&str])| {
            marks.iter().all(|mark| has(mark)) && (marks.contains(&name) || others.contains(&name))
        };
        with_prefix("x-amz-") || with_prefix("x-goog-") || SIGNED.iter().any(listed)
    };
    let pairs = query.split('&').zip(&names);
    let kept = pairs.filter(|(_, name)| !is_signature(name));
    let kept: Vec<&str> = kept.map(|(pair, _)| pair).collect();
    let mut plain = url.clone();
    plain.set_query((!kept.is_empty()).then(|| kept.join("&")).as_deref());
    plain.into()
}

/// Takes user and password out of `url`, and the fragment, which is never sent. Returns the header
/// that stands for them.
pub(crate) fn take_credentials(url: &mut Url) -> Option<HeaderValue> {
    url.set_fragment(None);
    let (user, password) = (url.username(), url.password());
    if user.is_empty() && password.is_none() {
        return None;
    }
    let plain = [
        unescape(user),
        b":".into(),
        unescape(password.unwrap_or("")),
    ]
    .concat();
    let header = format!("Basic {}", STANDARD.encode(plain));
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let mut header = HeaderValue::try_from(header).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Undoes percent signs.
fn unescape(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_password_nor_query_is_shown() {
        let url = parse("https://me:pw@host:8443/a/b.bin?X-Sig=secret#part").unwrap();
        assert_eq!(shown(&url), "https://host:8443/a/b.bin?...");
        let error = parse("http://me:pw@[oops/a?X-Sig=secret").unwrap_err();
        let text = error.to_string();
        assert!(!text.contains("pw") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn user_and_password_become_a_header() {
        let mut url = parse("https://Aladdin:open%20sesame@host/a").unwrap();
        let header = take_credentials(&mut url).unwrap();
        assert_eq!(header, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(url.as_str(), "https://host/a");
        assert!(take_credentials(&mut url).is_none());
        let mut plus = parse("https://a+b:c%2Bd@host/").unwrap();
        assert_eq!(take_credentials(&mut plus).unwrap(), "Basic YStiOmMrZA==");
        let mut and = parse("https://me:pa&ss%E4@host/").unwrap();
        let plain = [b"me:pa&ss".as_slice(), b"\xe4"].concat();
        let wanted = format!("Basic {}", STANDARD.encode(plain));
        assert_eq!(take_credentials(&mut and).unwrap(), wanted.as_str());
    }

    #[test]
    fn what_is_there_tells_addresses_apart_and_not_who_signed_them() {
        let of = |text: &str| identity(&parse(text).unwrap());
        assert_ne!(of("http://h/get?file=a"), of("http://h/get?file=b"));
        assert_ne!(of("http://h/get"), of("http://h/get?file=b"));
        // Without a signature these are parameters like others.
        assert_ne!(
            of("http://h/a?sv=1&expires=1"),
            of("http://h/a?sv=2&expires=1")
        );
        for (one, other) in [
            (
                "https://h/a?X-Amz-Signature=1&X-Amz-Date=1&versionId=7",
                "https://h/a?versionId=7&X-Amz-Date=2&X-Amz-Signature=2",
            ),
            (
                "https://h/a?X-Goog-Signature=1&X-Goog-Expires=1",
                "https://h/a?X-Goog-Signature=2&X-Goog-Expires=2",
            ),
            (
                "https://h/a?AWSAccessKeyId=A&Signature=1&Expires=1",
                "https://h/a?AWSAccessKeyId=A&Signature=2&Expires=2",
            ),
            (
                "https://h/a?Expires=1&Policy=1&Signature=1&Key-Pair-Id=K",
                "https://h/a?Expires=2&Policy=2&Signature=2&Key-Pair-Id=K",
            ),
            (
                "https://h/a?sv=1&se=1&sr=b&sp=r&sig=1",
                "https://h/a?sv=2&se=2&sr=b&sp=r&sig=2",
            ),
        ] {
            assert_eq!(of(one), of(other));
        }
        assert_ne!(
            of("https://h/a?X-Amz-Signature=1&versionId=7"),
            of("https://h/a?X-Amz-Signature=1&versionId=8")
        );
    }
}
