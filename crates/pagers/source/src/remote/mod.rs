//! Sources behind a network: files on HTTP servers and objects in object stores.
//!
//! [`open`] takes an address. What was opened is one version, told by its entity tag, and every
//! answer is checked to be the bytes asked for, of that version. A read is one request in the
//! thread that makes it; it is never repeated here: what may succeed later is reported as
//! [`SourceError::Unreachable`], and who reads decides ([`Retry`]). Credentials never appear in
//! messages, nor do query strings, which may hold some.

mod address;
mod check;
mod client;
mod connector;
#[doc(hidden)]
pub mod headers;
mod http_source;
mod object_source;
mod profile;
mod resolver;
mod settings;
mod store;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use crate::{Retry, Source, SourceError};

pub use http_source::HttpSource;
pub use object_source::ObjectSource;
pub use upload::ObjectWriter;

/// How servers are talked to.
#[derive(Clone)]
pub struct Options {
    /// Headers of each request to an HTTP server, say `Authorization`. They are not sent to other
    /// servers that it redirects to.
    pub headers: Vec<(String, String)>,
    /// Settings of the object store by their usual names, say `aws_region`, `aws_endpoint_url`,
    /// `google_service_account`, `azure_storage_account_key`. They go before the environment.
    pub settings: Vec<(String, String)>,
    /// A connection that is not made by then has failed.
    pub connect_timeout: Duration,
    /// A server that is silent for so long has failed.
    pub silence_timeout: Duration,
    /// How long opening is tried, and each part of an upload.
    pub retry: Retry,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            headers: Vec::new(),
            settings: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(30),
            retry: Retry {
                deadline: Duration::from_secs(20),
            },
        }
    }
}

/// Whether `url` names an object in a store, which can be replaced ([`ObjectWriter`]).
///
/// # Errors
/// [`SourceError::Unsupported`] for what is no address.
pub fn is_object(url: &str) -> Result<bool, SourceError> {
    Ok(is_store(address::parse(url)?.scheme()))
}

fn is_store(scheme: &str) -> bool {
    matches!(scheme, "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss")
}

/// Opens what `url` names: `http://` and `https://`, `s3://`, `gs://`, `az://` and `abfs://`.
///
/// ```
/// use farpage_source::remote::{Options, open};
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("rows.npy"), [7; 4096])?;
/// # let speed = farpage_testkit::server::Speed::default();
/// # let server = farpage_testkit::server::Server::start(folder.path(), speed)?;
/// # let url = server.url("/rows.npy");
/// let rows = open(&url, &Options::default())?;
/// let mut row = [0; 64];
/// rows.read_at(128, &mut row)?;
/// # assert_eq!((row, rows.size()), ([7; 64], 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`HttpSource::open`] and [`ObjectSource::open`]; [`SourceError::Unsupported`] for
/// another scheme.
pub fn open(url: &str, options: &Options) -> Result<Arc<dyn Source>, SourceError> {
    let address = address::parse(url)?;
    match address.scheme() {
        "http" | "https" => Ok(Arc::new(HttpSource::open(url, options)?)),
        scheme if is_store(scheme) => Ok(Arc::new(ObjectSource::open(url, options)?)),
        "file" => Err(SourceError::Unsupported {
            cause: "it names a file of another host".into(),
            remedy: "give the path of a file of this host, or file:///path".into(),
            name: address::shown(&address),
        }),
        other => Err(SourceError::Unsupported {
            cause: format!("there is no way to read '{other}://'"),
            remedy: "use http, https, s3, gs, az or abfs, or the path of a local file".into(),
            name: address::shown(&address),
        }),
    }
}
