//! Where other hosts reach this one.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

/// Why there is no such address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// What was given is none.
    #[error("{0} is no address; give one of this host, such as 10.0.0.7 or 10.0.0.7:7661")]
    NoAddress(String),
    /// It is every address.
    #[error("{0} is none that other hosts can reach; give one of this host's own")]
    Unspecified(String),
    /// No port is free there, or it is not this host's.
    #[error("cannot listen at {0} ({1}); give an address of this host")]
    Listen(IpAddr, std::io::Error),
    /// None was given, and the way to the store does not tell.
    #[error("cannot tell by which address other hosts reach this one ({0}: {1}); give it")]
    Unknown(String, std::io::Error),
}

/// What was given, or else that from which the store at `url` is reached; at `port`, unless one was
/// given: 0 is any that is free.
///
/// # Errors
/// [`AddressError`].
pub fn address(given: Option<&str>, url: &str, port: u16) -> Result<SocketAddr, AddressError> {
    let mut address = match given {
        None => SocketAddr::new(towards(url)?, port),
        Some(given) => given
            .parse()
            .or_else(|_| given.parse().map(|ip: IpAddr| SocketAddr::new(ip, port)))
            .map_err(|_| AddressError::NoAddress(given.into()))?,
    };
    if address.ip().is_unspecified() {
        return Err(AddressError::Unspecified(address.ip().to_string()));
    }
    if address.port() == 0 {
        let probe = TcpListener::bind(address).and_then(|listener| listener.local_addr());
        let free = probe.map_err(|error| AddressError::Listen(address.ip(), error))?;
        address.set_port(free.port());
    }
    Ok(address)
}

/// The address of this host from which the first server of etcd is reached.
fn towards(url: &str) -> Result<IpAddr, AddressError> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let servers = rest.split('/').next().unwrap_or_default();
    let servers = servers
        .rsplit_once('@')
        .map_or(servers, |(_, servers)| servers);
    let first = servers.split(',').next().unwrap_or_default();
    let find = || {
        let any: IpAddr = [0, 0, 0, 0].into();
        let socket = UdpSocket::bind((any, 0)).or_else(|_| UdpSocket::bind("[::]:0"))?;
        // Nothing is sent: Linux only decides on the way there.
        socket.connect(first)?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    find().map_err(|error| AddressError::Unknown(first.into(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 7661;

    #[test]
    fn where_others_reach_a_host_is_given_or_found() {
        let given = |text| address(Some(text), "", PORT).map_err(|error| error.to_string());
        assert_eq!(given("10.0.0.7"), Ok("10.0.0.7:7661".parse().unwrap()));
        assert_eq!(given("10.0.0.7:9"), Ok("10.0.0.7:9".parse().unwrap()));
        assert_eq!(given("::1"), Ok("[::1]:7661".parse().unwrap()));
        assert!(given("here").unwrap_err().contains("here is no address"));
        assert!(given("0.0.0.0").unwrap_err().contains("can reach"));
        for url in ["etcd://127.0.0.1:2379/x", "etcd://me:word@127.0.0.1:1,b:2"] {
            let found = address(None, url, PORT).unwrap();
            assert_eq!(found, "127.0.0.1:7661".parse().unwrap());
            assert_ne!(address(None, url, 0).unwrap().port(), 0);
        }
        assert!(address(None, "etcd://no such host", PORT).is_err());
    }
}
