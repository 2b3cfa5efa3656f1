//! etcd. One server is talked to at a time; when it does not answer, the next.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, EventType, GetOptions,
    KeyValue, PutOptions, TlsOptions, TxnOp, WatchOptions, WatchStream,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::endpoint::EtcdEndpoint;
use crate::error::StoreError;
use crate::store::Watched;
use crate::table::{Change, Entry, Need, Snapshot, Txn, Write};

/// An etcd cluster.
pub(crate) struct Etcd {
    endpoint: EtcdEndpoint,
    /// An answer that takes longer does not come.
    attempt: Duration,
    session: Mutex<Option<Client>>,
    /// Grows with each change of the server.
    number: watch::Sender<usize>,
}

/// A watch, which ends with the session it is of.
pub(crate) struct EtcdWatch {
    stream: WatchStream,
    began: usize,
    number: watch::Receiver<usize>,
}

impl Etcd {
    pub(crate) fn new(endpoint: &EtcdEndpoint, attempt: Duration) -> Self {
        Self {
            endpoint: endpoint.clone(),
            attempt,
            session: Mutex::new(None),
            number: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self, number: usize) -> &str {
        &self.endpoint.servers[number % self.endpoint.servers.len()]
    }

    async fn client(&self, number: usize) -> Result<Client, Error> {
        if let Some(client) = &*self.lock() {
            return Ok(client.clone());
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.attempt)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = &self.endpoint.user {
            options = options.with_user(user, password);
        }
        let server = self.server(number);
        let address = match self.endpoint.tls {
            true => {
                options = options.with_tls(TlsOptions::new().with_native_roots());
                format!("https://{server}")
            }
            false => format!("http://{server}"),
        };
        let client = Client::connect([address], Some(options)).await?;
        // Another may have been faster; this one is as good.
        if *self.number.borrow() == number {
            *self.lock() = Some(client.clone());
        }
        Ok(client)
    }

    /// Asks once; a server that does not answer is left for the next.
    async fn ask<T>(
        &self,
        request: impl AsyncFnOnce(Client) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let number = *self.number.borrow();
        let both = async { request(self.client(number).await?).await };
        let why = match timeout(self.attempt, both).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match refusal(&error) {
                Some(said) => return Err(StoreError::Refused(said)),
                None => cause(&error),
            },
            Err(_) => String::from("no answer"),
        };
        self.leave(number);
        Err(StoreError::Silent(format!(
            "{}: {why}",
            self.server(number)
        )))
    }

    fn leave(&self, number: usize) {
        let mut session = self.lock();
        if *self.number.borrow() == number {
            *session = None;
            self.number.send_modify(|number| *number += 1);
        }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let got = self
            .ask(async |mut client| client.get(key, None).await)
            .await?;
        Ok(got.kvs().first().map(entry))
    }

    pub(crate) async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let options = GetOptions::new().with_prefix();
        let got = self
            .ask(async |mut client| client.get(prefix, Some(options)).await)
            .await?;
        let entries = got.kvs().iter();
        let entries = entries.filter_map(|kv| Some((kv.key_str().ok()?.into(), entry(kv))));
        Ok(Snapshot {
            revision: got.header().map_or(0, |header| header.revision()),
            entries: entries.collect(),
        })
    }

    pub(crate) async fn transact(&self, txn: &Txn) -> Result<bool, StoreError> {
        let needs: Vec<Compare> = txn.needs.iter().map(compare).collect();
        let writes: Vec<TxnOp> = txn.writes.iter().map(operation).collect();
        let txn = etcd_client::Txn::new().when(needs).and_then(writes);
        let done = self.ask(async |mut client| client.txn(txn).await).await?;
        Ok(done.succeeded())
    }

    pub(crate) async fn grant(&self, length: Duration) -> Result<(i64, Duration), StoreError> {
        let seconds = i64::try_from(length.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX);
        let granted = self
            .ask(async |mut client| client.lease_grant(seconds, None).await)
            .await?;
        Ok((granted.id(), length_of(granted.ttl())))
    }

    pub(crate) async fn keep(&self, lease: i64) -> Result<bool, StoreError> {
        // The first answer of a stream that is opened for it: no other can be taken for it.
        self.ask(
            async |client| match client.lease_client().keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(Error::LeaseKeepAliveError(said)) if said == "lease not found" => Ok(false),
                Err(error) => Err(error),
            },
        )
        .await
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.ask(async |mut client| client.lease_revoke(lease).await.map(drop))
            .await
    }

    pub(crate) async fn watch(&self, prefix: &str, from: i64) -> Result<EtcdWatch, StoreError> {
        let began = *self.number.borrow();
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let stream = self
            .ask(async |mut client| client.watch(prefix, Some(options)).await)
            .await?;
        let number = self.number.subscribe();
        Ok(EtcdWatch {
            stream,
            began,
            number,
        })
    }
}

impl EtcdWatch {
    pub(crate) async fn next(&mut self) -> Result<Watched, StoreError> {
        let silent = |why: &str| StoreError::Silent(format!("the watch ended: {why}"));
        let began = self.began;
        let message = tokio::select! {
            message = self.stream.message() => message,
            _ = self.number.wait_for(|number| *number != began) => {
                return Err(silent("the server was left"));
            }
        };
        let message = message.map_err(|error| silent(&cause(&error)))?;
        let message = message.ok_or_else(|| silent("by the server"))?;
        if message.compact_revision() != 0 {
            return Ok(Watched::Missed(None));
        }
        if message.canceled() {
            return Err(silent(message.cancel_reason()));
        }
        let changes = message.events().iter().filter_map(|event| {
            let kv = event.kv()?;
            Some(Change {
                key: String::from(kv.key_str().ok()?),
                revision: kv.mod_revision(),
                value: match event.event_type() {
                    EventType::Put => Some(kv.value().to_vec()),
                    EventType::Delete => None,
                },
            })
        });
        Ok(Watched::Changes(changes.collect()))
    }
}

fn entry(kv: &KeyValue) -> Entry {
    Entry {
        value: kv.value().to_vec(),
        revision: kv.mod_revision(),
    }
}

fn length_of(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}

fn compare(need: &Need) -> Compare {
    match need {
        Need::Absent(key) => Compare::version(key.as_str(), CompareOp::Equal, 0),
        Need::Present(key) => Compare::version(key.as_str(), CompareOp::Greater, 0),
        Need::Unchanged(key, revision) => {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision)
        }
        Need::NoneUnder(prefix) => {
            Compare::version(prefix.as_str(), CompareOp::Equal, 0).with_prefix()
        }
    }
}

fn operation(write: &Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease));
            TxnOp::put(key.as_str(), value.as_str(), options)
        }
        Write::Delete(key) => TxnOp::delete(key.as_str(), None::<DeleteOptions>),
    }
}

/// What etcd says when it answers that it will not.
fn refusal(error: &Error) -> Option<String> {
    let Error::GRpcStatus(status) = error else {
        return None;
    };
    // tonic is no dependency of ours: its codes by their numbers in gRPC.
    const INVALID: i32 = 3;
    const NOT_FOUND: i32 = 5;
    const DENIED: i32 = 7;
    const EXHAUSTED: i32 = 8;
    const PRECONDITION: i32 = 9;
    const UNAUTHENTICATED: i32 = 16;
    let refusals = [
        INVALID,
        NOT_FOUND,
        DENIED,
        EXHAUSTED,
        PRECONDITION,
        UNAUTHENTICATED,
    ];
    let code = status.code() as i32;
    refusals
        .contains(&code)
        .then(|| String::from(status.message()))
}

/// What was wrong in the first place, in a few words: the libraries between say only that something was.
fn cause(error: &Error) -> String {
    let (mut error, message): (&dyn std::error::Error, _) = match error {
        Error::GRpcStatus(status) => (status, status.message()),
        other => (other, ""),
    };
    let is_alone = error.source().is_none();
    while let Some(source) = error.source() {
        error = source;
    }
    match is_alone && !message.is_empty() {
        true => String::from(message),
        false => {
            let said = error.to_string();
            let plain = said.split(" (os error").next();
            String::from(plain.unwrap_or_default())
        }
    }
}
