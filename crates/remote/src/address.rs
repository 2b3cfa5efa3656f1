//! Addresses, and what of them may be shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use farpage_source::SourceError;
use http::HeaderValue;
use url::Url;

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
    let pair = format!("={}", text.replace('+', "%2B"));
    let mut pairs = url::form_urlencoded::parse(pair.as_bytes());
    pairs
        .next()
        .map_or_else(Vec::new, |(_, value)| value.into_owned().into())
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
    }
}
