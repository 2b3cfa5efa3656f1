//! Which requests are answered: those of the page itself, and of programs that are no browser.

use std::net::IpAddr;

use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName};

/// What is answered.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Where it listens.
    pub port: u16,
    /// Other machines may ask.
    pub is_public: bool,
}

impl Rules {
    /// Refuses what may come from another web page: with another origin, or by a name that somebody
    /// else lets point here.
    ///
    /// # Errors
    /// The HTTP status, and why.
    pub fn check(self, method: &Method, headers: &HeaderMap) -> Result<(), (u16, String)> {
        if method != Method::GET && method != Method::HEAD {
            return Err((405, "there is nothing to change here".into()));
        }
        let one = |name: HeaderName| {
            let mut all = headers.get_all(name).iter();
            let first = all.next().map(|value| value.to_str().unwrap_or("?"));
            (first, all.next().is_some())
        };
        let (host, more) = one(header::HOST);
        let host = host.filter(|host| !more && self.is_here(host));
        let Some(host) = host else {
            let why = "the page is not at that name; ask for its address or for localhost";
            return Err((421, why.into()));
        };
        let (origin, more) = one(header::ORIGIN);
        if more || origin.is_some_and(|origin| origin != format!("http://{host}")) {
            return Err((403, "another web page asks; open this one by itself".into()));
        }
        let (site, _) = one(HeaderName::from_static("sec-fetch-site"));
        match site {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) => Err((403, "another web page asks; open this one by itself".into())),
        }
    }

    /// True of what this page may be called: a name that only this machine gives, or an address.
    fn is_here(self, host: &str) -> bool {
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (name, port) = match bracketed {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None => match host.rsplit_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (host, None),
            },
        };
        if port.map_or(Ok(80), str::parse) != Ok(self.port) {
            return false;
        }
        match name.parse::<IpAddr>() {
            Ok(address) => self.is_public || address.is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Rules = Rules {
        port: 7780,
        is_public: false,
    };

    fn check(rules: Rules, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        let checked = rules.check(&Method::GET, &map);
        checked.map_or_else(|(status, _)| status, |()| 200)
    }

    #[test]
    fn names_that_others_let_point_here_are_refused() {
        for host in [
            "127.0.0.1:7780",
            "localhost:7780",
            "LocalHost:7780",
            "[::1]:7780",
        ] {
            assert_eq!(check(OWN, &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example:7780",
            "127.0.0.1.evil.example:7780",
            "localhost",
            "127.0.0.1:80",
            "192.0.2.1:7780",
            "localhost:7780:7780",
            "",
        ] {
            assert_eq!(check(OWN, &[("host", host)]), 421, "{host}");
        }
        assert_eq!(check(OWN, &[]), 421, "none");
        let two = [("host", "localhost:7780"), ("host", "evil.example")];
        assert_eq!(check(OWN, &two), 421);
        let public = Rules {
            is_public: true,
            ..OWN
        };
        assert_eq!(check(public, &[("host", "192.0.2.1:7780")]), 200);
        assert_eq!(check(public, &[("host", "evil.example:7780")]), 421);
    }

    #[test]
    fn other_web_pages_are_refused_and_nothing_can_be_changed() {
        let with = |name, value| check(OWN, &[("host", "localhost:7780"), (name, value)]);
        assert_eq!(with("origin", "http://localhost:7780"), 200);
        for origin in [
            "http://evil.example",
            "null",
            "https://localhost:7780",
            "http://localhost",
        ] {
            assert_eq!(with("origin", origin), 403, "{origin}");
        }
        assert_eq!(
            (
                with("sec-fetch-site", "same-origin"),
                with("sec-fetch-site", "none")
            ),
            (200, 200)
        );
        assert_eq!(
            (
                with("sec-fetch-site", "cross-site"),
                with("sec-fetch-site", "x")
            ),
            (403, 403)
        );
        let refused = OWN.check(&Method::POST, &HeaderMap::new());
        assert_eq!(refused.unwrap_err().0, 405);
    }
}
