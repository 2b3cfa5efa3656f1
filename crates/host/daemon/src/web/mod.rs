//! A web page that shows live how the host kernel does, and its metrics.
//!
//! Whoever can connect can read it, and do nothing else. Web pages of others cannot: a browser says
//! where a request comes from and which name it looked up, and only this page's own are answered.

mod metrics;
mod request;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_client::{Figures, Host};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::sync::Semaphore;

use request::Rules;

use crate::hosts::{ClusterReading, Looks};
use crate::reading::HostReading;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// A page that has not asked for so long is closed.
const VIEWED: Duration = Duration::from_secs(5);
/// Looks that are kept: ten minutes.
const PAST: usize = 600;
/// Objects that are shown: those that have most in memory.
const OBJECTS_MAX: usize = 200;
/// Connections at a time; others wait.
const CONNECTIONS_MAX: usize = 32;
/// A request must be here after so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// How pages of Farpage look.
pub const STYLE: &str = include_str!("page.css");
/// Draws figures that pages of Farpage have in common, those of hosts included.
pub const FIGURES: &str = concat!(include_str!("figures.js"), include_str!("hosts.js"));
/// What draws the page.
const SCRIPT: &str = include_str!("page.js");

/// What was seen.
#[derive(Default)]
struct Seen {
    figures: Figures,
    reading: HostReading,
    past: VecDeque<Point>,
    /// When a page last asked.
    viewed: Option<Instant>,
}

/// A look, as the plots show it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    at_ms: u64,
    resident_bytes: u64,
    dirty_bytes: u64,
    compressed_bytes: u64,
    paged_bytes: u64,
    faults_per_second: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// What the page asks for every second.
#[derive(Serialize)]
struct Told<'a> {
    reading: &'a HostReading,
    past: Vec<Point>,
}

/// Starts to answer at `address`, for the host kernel at `socket`. Machines other than this one may
/// ask when it `is_public`. Returns where the page is.
///
/// # Errors
/// When the address cannot be had.
pub fn start(address: SocketAddr, is_public: bool, socket: PathBuf) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {address}; give another --web ADDR:PORT"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let rules = Rules {
        port: address.port(),
        is_public,
    };
    let seen = Arc::new(Mutex::new(Seen::default()));
    let looks = Arc::clone(&seen);
    let spawn = |name: &str| std::thread::Builder::new().name(name.into());
    spawn("web-looks").spawn(move || look(&socket, &looks))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot show a page")?;
    spawn("web").spawn(move || runtime.block_on(serve(listener, rules, seen)))?;
    Ok(address)
}

/// Looks at the host kernel for ever.
fn look(socket: &std::path::Path, seen: &Mutex<Seen>) {
    let cluster = Looks::start(socket.into()).ok();
    let mut host = None;
    loop {
        if host.is_none() {
            host = Host::connect(socket).ok();
        }
        match host.as_ref().map(Host::figures) {
            Some(Ok(figures)) => {
                // Other hosts have to look, too: only while somebody sees it.
                let viewed = lock(seen).viewed;
                let is_viewed = viewed.is_some_and(|at| at.elapsed() < VIEWED);
                let looks = cluster.as_ref().filter(|_| is_viewed);
                lock(seen).takes(figures, looks.and_then(Looks::last));
            }
            Some(Err(_)) | None => host = None,
        }
        std::thread::sleep(EVERY);
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, rules: Rules, seen: Arc<Mutex<Seen>>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return farpage_sys::say!("farpage: there is no web page: {error}"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many descriptors, most likely.
            tokio::time::sleep(EVERY).await;
            continue;
        };
        // A page is a few packets: none of them waits for another.
        let _ = stream.set_nodelay(true);
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let _place = place;
            let answer = |request| {
                let answer = answer(rules, &seen, &request);
                async move { Ok::<_, Infallible>(answer) }
            };
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE);
            let stream = TokioIo::new(stream);
            // Who goes away early has its reasons.
            let _ = builder.serve_connection(stream, service_fn(answer)).await;
        });
    }
}

fn answer<B>(rules: Rules, seen: &Mutex<Seen>, request: &Request<B>) -> Response<Full<Bytes>> {
    let (status, kind, body) = match rules.check(request.method(), request.headers()) {
        Err((status, why)) => (
            status,
            "text/plain; charset=utf-8",
            format!("{why}\n").into(),
        ),
        Ok(()) => match contents(seen, request.uri()) {
            Some((kind, body)) => (200, kind, body),
            None => (
                404,
                "text/plain; charset=utf-8",
                Bytes::from("there is no such page\n"),
            ),
        },
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = hyper::StatusCode::from_u16(status).expect("one of ours");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    protect(headers);
    response
}

/// What a browser may do with an answer: show it, by itself.
fn protect(headers: &mut HeaderMap) {
    const RULES: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                         script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                         frame-ancestors 'none'";
    for (name, value) in [
        ("content-security-policy", RULES),
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn contents(seen: &Mutex<Seen>, uri: &hyper::Uri) -> Option<(&'static str, Bytes)> {
    match uri.path() {
        "/" => Some(("text/html; charset=utf-8", page().into())),
        "/figures.json" => {
            let since = uri.query().and_then(|query| query.strip_prefix("since="));
            let since = since.and_then(|since| since.parse().ok()).unwrap_or(0);
            let mut seen = lock(seen);
            seen.viewed = Some(Instant::now());
            let body = seen.told(since)?;
            Some(("application/json", body.into()))
        }
        "/metrics" => {
            let figures = lock(seen).figures.clone();
            Some((metrics::KIND, metrics::text(&figures).into()))
        }
        _ => None,
    }
}

fn page() -> String {
    include_str!("page.html")
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", &[FIGURES, SCRIPT].concat())
}

impl Seen {
    fn takes(&mut self, mut figures: Figures, cluster: Option<ClusterReading>) {
        let most = |one: &farpage_client::ObjectFigures| std::cmp::Reverse(one.resident_bytes);
        figures.objects.sort_by_key(most);
        figures.objects.truncate(OBJECTS_MAX);
        let before = (self.figures.at_ns > 0).then_some(&self.figures);
        let reading = HostReading::new(before, &figures).with(cluster);
        let files = reading.paging_space.iter().flat_map(|space| &space.files);
        self.past.push_back(Point {
            at_ms: reading.at_ms,
            resident_bytes: reading.resident_bytes,
            dirty_bytes: reading.dirty_bytes,
            compressed_bytes: reading.compressed_bytes,
            paged_bytes: files.map(|file| file.used_bytes).sum(),
            faults_per_second: reading.faults.per_second,
            p50_us: reading.faults.p50_us,
            p99_us: reading.faults.p99_us,
        });
        if self.past.len() > PAST {
            self.past.pop_front();
        }
        (self.figures, self.reading) = (figures, reading);
    }

    /// What there is since a time, as JSON.
    fn told(&self, since_ms: u64) -> Option<String> {
        let past = self.past.iter().filter(|point| point.at_ms > since_ms);
        let told = Told {
            reading: &self.reading,
            past: past.copied().collect(),
        };
        serde_json::to_string(&told).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::figures;

    #[test]
    fn a_page_is_where_it_is_asked_for() {
        let socket = PathBuf::from("/no/such/socket");
        for (address, is_public) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
            let address: SocketAddr = address.parse().unwrap();
            let page = start(address, is_public, socket.clone()).unwrap();
            assert!(page.ip() == address.ip() && page.port() != 0, "{page}");
        }
    }

    #[test]
    fn the_past_is_told_once_and_is_bounded() {
        let mut seen = Seen::default();
        (0..PAST as u64 + 50).for_each(|time| seen.takes(figures(time), None));
        let told = |since| -> serde_json::Value {
            serde_json::from_str(&seen.told(since).unwrap()).unwrap()
        };
        let all = told(0);
        assert_eq!(all["past"].as_array().unwrap().len(), PAST);
        assert_eq!(all["reading"]["objects"][0]["faulted"]["per_second"], 0.5);
        let last = all["past"][PAST - 2]["at_ms"].as_u64().unwrap();
        assert_eq!(told(last)["past"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_page_needs_nothing_of_others() {
        let page = page();
        for outside in ["http:", "https:", "//cdn", "src=", "@import", "url("] {
            let own = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(outside), "{outside}");
        }
        assert!(
            !page.contains("innerHTML"),
            "names are of others, and no markup"
        );
    }
}
