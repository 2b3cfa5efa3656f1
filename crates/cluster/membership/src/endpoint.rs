//! Where the store is.

use std::fmt;

use crate::embedded::Embedded;
use crate::error::EndpointError;
use crate::names;

/// Where hosts find each other.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// An etcd cluster.
    Etcd(EtcdEndpoint),
    /// A store in this process. Who has a clone of it is in the same cluster, so this is for one
    /// host; nothing of it outlives the process.
    Embedded(Embedded),
}

/// An etcd cluster, and the name of a cluster of hosts in it.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// With certificates of the system's authorities.
    pub(crate) tls: bool,
    /// User and password.
    pub(crate) user: Option<(String, String)>,
    /// Each `host:port`.
    pub(crate) servers: Vec<String>,
    /// What all keys begin with, without slashes around it.
    pub(crate) cluster: String,
}

impl Endpoint {
    /// Reads `etcd://[user:password@]host:port[,host:port...]/name`; `etcds://` is the same over
    /// TLS, and `embedded:` a new store in this process.
    ///
    /// ```
    /// use farpage_membership::Endpoint;
    /// let endpoint = Endpoint::parse("etcd://ana:secret@10.0.0.1:2379,10.0.0.2:2379/lab")?;
    /// assert_eq!(endpoint.to_string(), "etcd://10.0.0.1:2379,10.0.0.2:2379/lab");
    /// # Ok::<(), farpage_membership::EndpointError>(())
    /// ```
    ///
    /// # Errors
    /// Whatever else it is, in words that do not repeat the password.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        if text == "embedded:" {
            return Ok(Self::Embedded(Embedded::new()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(EndpointError::Scheme(String::from("none")));
        };
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            other => return Err(EndpointError::Scheme(names::shown(other))),
        };
        // A password may have any character but the one that ends it.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(login(user)?), rest),
            None => (None, rest),
        };
        let (servers, cluster) = rest.split_once('/').ok_or(EndpointError::NoCluster)?;
        let servers = servers.split(',').map(server).collect::<Result<_, _>>()?;
        let cluster = cluster.trim_end_matches('/');
        if cluster.is_empty() {
            return Err(EndpointError::NoCluster);
        }
        if !names::is_name(cluster) {
            return Err(EndpointError::Cluster(names::shown(cluster)));
        }
        let cluster = String::from(cluster);
        Ok(Self::Etcd(EtcdEndpoint {
            tls,
            user,
            servers,
            cluster,
        }))
    }
}

fn login(text: &str) -> Result<(String, String), EndpointError> {
    match text.split_once(':') {
        Some((user, password)) if !user.is_empty() => Ok((user.into(), password.into())),
        Some(_) | None => Err(EndpointError::Login),
    }
}

fn server(text: &str) -> Result<String, EndpointError> {
    let bad = || EndpointError::Server(names::shown(text));
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let numbers = |c: char| c.is_ascii_hexdigit() || ":.".contains(c);
    let is_host = match bracketed {
        true => host[1..host.len() - 1].chars().all(numbers),
        false => !host.is_empty() && host.chars().all(plain),
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0) && !port.starts_with('+');
    if !is_host || !is_port {
        return Err(bad());
    }
    Ok(String::from(text))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd(etcd) => etcd.fmt(f),
            Self::Embedded(_) => f.write_str("embedded:"),
        }
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.servers.join(","), self.cluster)
    }
}

/// Without the password.
impl fmt::Debug for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(text: &str) -> EtcdEndpoint {
        match Endpoint::parse(text) {
            Ok(Endpoint::Etcd(etcd)) => etcd,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn servers_users_and_names_are_read() {
        let one = etcd("etcd://a:2379/name");
        assert_eq!((one.tls, one.user), (false, None));
        assert_eq!(
            (one.servers, one.cluster),
            (vec!["a:2379".into()], "name".into())
        );
        let more = etcd("etcds://u:p@/:w@a.example:2379,[::1]:2380/x y/");
        assert_eq!(more.user, Some(("u".into(), "p@/:w".into())));
        assert_eq!(more.servers, ["a.example:2379", "[::1]:2380"]);
        assert_eq!((more.tls, more.cluster.as_str()), (true, "x y"));
        assert!(matches!(
            Endpoint::parse("embedded:"),
            Ok(Endpoint::Embedded(_))
        ));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_words() {
        for (text, word) in [
            ("", "etcd://"),
            ("a:2379/name", "etcd://"),
            ("http://a:2379/name", "http"),
            ("etcd://a:2379", "name"),
            ("etcd://a:2379/", "name"),
            ("etcd://a:2379/x/y", "x/y"),
            ("etcd:///name", "port"),
            ("etcd://a/name", "port"),
            ("etcd://a:0/name", "port"),
            ("etcd://a:+1/name", "port"),
            ("etcd://a:65536/name", "port"),
            ("etcd://a:1,/name", "port"),
            ("etcd://a b:1/name", "port"),
            ("etcd://[::1:1/name", "port"),
            ("etcd://u@a:1/name", "password"),
            ("etcd://:p@a:1/name", "password"),
        ] {
            let said = Endpoint::parse(text).expect_err(text).to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn passwords_are_never_shown() {
        let endpoint = etcd("etcd://u:hush@a:1/name");
        assert!(!format!("{endpoint} {endpoint:?}").contains("hush"));
        for text in [
            "etcd://u:hush@a/name",
            "etcd://u:hush@a:1",
            "etcd://:hush@a:1/n",
        ] {
            let said = Endpoint::parse(text).expect_err(text).to_string();
            assert!(!said.contains("hush"), "{said}");
        }
    }
}
