//! etcd, by its JSON gateway. One server is talked to at a time; when it does not answer, the next.

mod answers;
mod http;
mod requests;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Response;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::endpoint::EtcdEndpoint;
use crate::error::StoreError;
use crate::store::Watched;
use crate::table::{Entry, Snapshot, Txn};
use answers::{Done, Failure, Found, Granted, Nothing, Streamed, Token, Told};
use http::{Connection, Lines, Transport};

/// Connections that wait for the next request. Few requests are made at the same time.
const IDLE_MAX: usize = 4;

/// An etcd cluster.
pub(crate) struct Etcd {
    endpoint: EtcdEndpoint,
    transport: Transport,
    /// An answer that takes longer does not come.
    attempt: Duration,
    session: Mutex<Session>,
    /// Grows with each change of the server.
    number: watch::Sender<usize>,
}

/// What there is of one server.
#[derive(Default)]
struct Session {
    idle: Vec<Connection>,
    /// Stands for the user and password.
    token: Option<HeaderValue>,
}

/// A watch, which ends with the session it is of.
pub(crate) struct EtcdWatch {
    lines: Lines,
    /// What was told already.
    first: Option<Watched>,
    began: usize,
    number: watch::Receiver<usize>,
}

impl Etcd {
    pub(crate) fn new(endpoint: &EtcdEndpoint, attempt: Duration) -> Self {
        Self {
            endpoint: endpoint.clone(),
            transport: Transport::new(endpoint.tls),
            attempt,
            session: Mutex::default(),
            number: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self, number: usize) -> &str {
        &self.endpoint.servers[number % self.endpoint.servers.len()]
    }

    fn leave(&self, number: usize) {
        let mut session = self.lock();
        if *self.number.borrow() == number {
            *session = Session::default();
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Does something with the session of a server, unless that was left.
    fn at<T>(&self, number: usize, work: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut session = self.lock();
        (*self.number.borrow() == number).then(|| work(&mut session))
    }

    async fn connection(&self, number: usize) -> Result<Connection, Failure> {
        let idle = self.at(number, |session| {
            session.idle.retain(|connection| !connection.is_closed());
            session.idle.pop()
        });
        match idle.flatten() {
            Some(connection) => Ok(connection),
            None => self.transport.connect(self.server(number)).await,
        }
    }

    /// Sends a request; what comes back begins with a status.
    async fn send(
        &self,
        number: usize,
        token: Option<HeaderValue>,
        (path, body): (&str, &Value),
    ) -> Result<(Connection, Response<Incoming>), Failure> {
        let mut connection = self.connection(number).await?;
        let (server, body) = (self.server(number), body.to_string());
        let response = http::send(&mut connection, server, path, token, body).await?;
        Ok((connection, response))
    }

    /// A request and the whole of its answer.
    async fn exchange<T: DeserializeOwned>(
        &self,
        number: usize,
        token: Option<HeaderValue>,
        request: (&str, &Value),
    ) -> Result<T, Failure> {
        let (connection, response) = self.send(number, token, request).await?;
        let status = response.status().as_u16();
        let body = http::read(response.into_body()).await?;
        self.at(number, |session| {
            if session.idle.len() < IDLE_MAX {
                session.idle.push(connection);
            }
        });
        answers::answer(status, &body)
    }

    /// What stands for the user and password, if there are any.
    async fn token(&self, number: usize) -> Result<Option<HeaderValue>, Failure> {
        let Some((name, password)) = &self.endpoint.user else {
            return Ok(None);
        };
        if let Some(Some(token)) = self.at(number, |session| session.token.clone()) {
            return Ok(Some(token));
        }
        let login = requests::of_login(name, password);
        let request = ("/v3/auth/authenticate", &login);
        let Token { token } = self.exchange(number, None, request).await?;
        let unreadable = |_| Failure::Broken("its token cannot be sent".into());
        let mut token = HeaderValue::try_from(token).map_err(unreadable)?;
        token.set_sensitive(true);
        self.at(number, |session| session.token = Some(token.clone()));
        Ok(Some(token))
    }

    /// Asks once, and once more with a new token when the old one is not taken; a server that does not
    /// answer is left for the next.
    async fn attempt<T>(
        &self,
        ask: impl AsyncFn(usize, Option<HeaderValue>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let number = *self.number.borrow();
        let asked = async {
            match ask(number, self.token(number).await?).await {
                Err(Failure::Refusal(refusal))
                    if refusal.is_of_token() && self.endpoint.user.is_some() =>
                {
                    self.at(number, |session| session.token = None);
                    ask(number, self.token(number).await?).await
                }
                other => other,
            }
        };
        let why = match timeout(self.attempt, asked).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Failure::Refusal(refusal))) if refusal.is_final() => {
                return Err(StoreError::Refused(refusal.said));
            }
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => String::from("no answer"),
        };
        self.leave(number);
        Err(StoreError::Silent(format!(
            "{}: {why}",
            self.server(number)
        )))
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, body: Value) -> Result<T, StoreError> {
        self.attempt(async |number, token| self.exchange(number, token, (path, &body)).await)
            .await
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found: Found = self.ask("/v3/kv/range", requests::of_key(key)).await?;
        Ok(found.first())
    }

    pub(crate) async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let found: Found = self.ask("/v3/kv/range", requests::under(prefix)).await?;
        Ok(found.snapshot())
    }

    pub(crate) async fn transact(&self, txn: &Txn) -> Result<bool, StoreError> {
        let done: Done = self
            .ask("/v3/kv/txn", requests::of_transaction(txn))
            .await?;
        Ok(done.succeeded)
    }

    pub(crate) async fn grant(&self, length: Duration) -> Result<(i64, Duration), StoreError> {
        let request = requests::of_grant(length);
        let granted: Granted = self.ask("/v3/lease/grant", request).await?;
        Ok((granted.id, granted.length()))
    }

    pub(crate) async fn keep(&self, lease: i64) -> Result<bool, StoreError> {
        // The only answer of a stream that is opened for it: no other can be taken for it.
        let request = requests::of_lease(lease);
        let kept: Streamed<Granted> = self.ask("/v3/lease/keepalive", request).await?;
        Ok(kept.result.length() > Duration::ZERO)
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let request = requests::of_lease(lease);
        let Nothing {} = self.ask("/v3/lease/revoke", request).await?;
        Ok(())
    }

    pub(crate) async fn watch(&self, prefix: &str, from: i64) -> Result<EtcdWatch, StoreError> {
        let began = *self.number.borrow();
        let request = requests::of_watch(prefix, from);
        // The first that is told is that the watch was made, or why not.
        let (lines, first) = self
            .attempt(async |number, token| {
                let request = ("/v3/watch", &request);
                let (_, response) = self.send(number, token, request).await?;
                let status = response.status().as_u16();
                let mut lines = Lines::of(response.into_body());
                let told: Streamed<Told> = answers::answer(status, &lines.next().await?)?;
                Ok((lines, told.result.watched()?))
            })
            .await?;
        Ok(EtcdWatch {
            lines,
            first: Some(first),
            began,
            number: self.number.subscribe(),
        })
    }
}

impl EtcdWatch {
    pub(crate) async fn next(&mut self) -> Result<Watched, StoreError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let silent = |why: &str| StoreError::Silent(format!("the watch ended: {why}"));
        let began = self.began;
        let line = tokio::select! {
            line = self.lines.next() => line,
            _ = self.number.wait_for(|number| *number != began) => {
                return Err(silent("the server was left"));
            }
        };
        let told = line.and_then(|line| answers::answer(200, &line));
        let watched = told.and_then(|told: Streamed<Told>| told.result.watched());
        watched.map_err(|failure| silent(&failure.to_string()))
    }
}
