//! Host names, asked for once in a while instead of at every request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
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
    known: Mutex<HashMap<String, (Instant, Vec<SocketAddr>)>>,
}

impl Resolver for Remembering {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let key = format!("{:?} {:?}", uri.scheme(), uri.authority());
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (since, _)| now.duration_since(*since) < BELIEVED);
        if let Some((_, addresses)) = known.get(&key) {
            let mut all = self.empty();
            addresses.iter().for_each(|address| all.push(*address));
            return Ok(all);
        }
        drop(known);
        let found = self.system.resolve(uri, config, timeout)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, (now, found.to_vec()));
        Ok(found)
    }
}
