//! Host names, asked for once in a while instead of at every request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Uri;
use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// An answer is believed for so long.
const BELIEVED: Duration = Duration::from_secs(30);

/// Remembers addresses: the client asks before it looks whether it has a connection.
#[derive(Debug, Default)]
pub(crate) struct Remembering {
    system: DefaultResolver,
    known: Mutex<Known>,
}

/// By scheme, host and port: when it was asked for, and what the answer was.
type Known = HashMap<String, (Instant, Vec<SocketAddr>)>;

impl Remembering {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resolver for Remembering {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let key = format!("{:?} {:?}", uri.scheme(), uri.authority());
        let known = |known: &[SocketAddr]| {
            let mut all = self.empty();
            known.iter().for_each(|address| all.push(*address));
            all
        };
        let now = Instant::now();
        let old = self.lock().get(&key).cloned();
        if let Some((since, addresses)) = &old
            && now.duration_since(*since) < BELIEVED
        {
            return Ok(known(addresses));
        }
        match self.system.resolve(uri, config, timeout) {
            Ok(found) => {
                self.lock().insert(key, (now, found.to_vec()));
                Ok(found)
            }
            // A name server that fails says nothing about the server that was just there.
            Err(error) => old.map(|(_, addresses)| known(&addresses)).ok_or(error),
        }
    }
}
