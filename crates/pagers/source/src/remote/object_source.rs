//! Objects in object stores.

use std::io::Read;

use http::Response;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use object_store::{GetOptions, GetRange};
use ureq::Body;

use crate::remote::check::{self, Question, Version};
use crate::remote::connector::{self, Refused, Slot};
use crate::remote::store::Store;
use crate::remote::{ObjectWriter, Options, headers};
use crate::{Reach, Source, SourceError};

/// No more is read of what a store says of a refusal.
const REFUSAL_BYTES_MAX: u64 = 64 * 1024;

/// An object in S3 (or what speaks like it), Google Cloud Storage or Azure Blob Storage.
///
/// Credentials come from the settings, the environment, and what the store's own tools keep:
/// - `s3://`: `AWS_ACCESS_KEY_ID` and its like; the profile `AWS_PROFILE` of `~/.aws`; web
///   identity; the container's; on a machine of Amazon's its role. `AWS_REGION` and
///   `AWS_ENDPOINT_URL` say where.
/// - `gs://`: `GOOGLE_APPLICATION_CREDENTIALS`, the file of `gcloud`; on a machine of Google's its
///   service account.
/// - `az://container/`, `abfs://container@account.dfs.core.windows.net/`:
///   `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY` and their like; on a machine of
///   Microsoft's its managed identity.
///
/// Where none of these are, the object is asked for without credentials: public ones can be read.
pub struct ObjectSource {
    store: Store,
    version: Version,
    url: String,
    options: Options,
}

impl ObjectSource {
    /// Opens the object at `url`.
    ///
    /// # Errors
    /// [`SourceError::NotFound`], [`SourceError::Denied`]; [`SourceError::Unsupported`] for wrong
    /// settings; [`SourceError::TimedOut`] when the store could not be reached.
    pub fn open(url: &str, options: &Options) -> Result<Self, SourceError> {
        let store = Store::new(url, options, None)?;
        let version = options.retry.run(|| look(&store))?;
        Ok(Self::of(store, version, url.into(), options.clone()))
    }

    pub(crate) fn of(store: Store, version: Version, url: String, options: Options) -> Self {
        Self {
            store,
            version,
            url,
            options,
        }
    }

    /// What replaces the whole object, as long as it is the version opened here.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] when the store did not tell the version of the object.
    pub fn writer(&self) -> Result<ObjectWriter, SourceError> {
        ObjectWriter::of(&self.url, &self.options, self.version.clone())
    }
}

impl Source for ObjectSource {
    fn name(&self) -> &str {
        &self.store.name
    }

    fn size(&self) -> u64 {
        self.version.size
    }

    fn version(&self) -> Option<String> {
        self.version.text()
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        read(&self.store, &self.version, offset, buffer)
    }
}

/// Fills `buffer` with the bytes of that version from `offset` on.
pub(crate) fn read(
    store: &Store,
    version: &Version,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), SourceError> {
    let question = Question::new(&store.name, version, offset, buffer.len() as u64)?;
    if buffer.is_empty() {
        return Ok(());
    }
    let options = GetOptions {
        range: Some(GetRange::Bounded(offset..offset + question.bytes)),
        if_match: version.strong_tag().map(str::to_owned),
        ..GetOptions::default()
    };
    let mut answer = ask(store, options)?;
    question.check(answer.status(), answer.headers())?;
    let read = store.client.read(answer.body_mut(), buffer);
    read.map_err(|failure| question.body_error(failure))
}

/// Asks for the object. Its bytes are not read yet; refusals other than a changed version are
/// errors already.
fn ask(store: &Store, mut options: GetOptions) -> Result<Response<Body>, SourceError> {
    let slot = Slot::default();
    options.extensions.insert(slot.clone());
    let got = pollster::block_on(store.objects.get_opts(&store.path, options));
    let Some(mut answer) = slot.take() else {
        // Nobody was asked: credentials could not be had, or there was no answer.
        return Err(match got {
            Err(error) => connector::explain(&store.name, store.anonymous, &error),
            Ok(_) => unreachable!("an answer without a request"),
        });
    };
    let status = answer.status();
    if status.is_success() || matches!(status.as_u16(), 412 | 416) {
        return Ok(answer);
    }
    let mut body = Vec::new();
    let limited = answer.body_mut().as_reader().take(REFUSAL_BYTES_MAX);
    // Only the code is wanted from it.
    let _ = { limited }.read_to_end(&mut body);
    let refused = Refused::new(status, answer.headers(), &body);
    Err(refused.of(&store.name, store.anonymous))
}

/// The version that is there now. Its first byte is asked for: a refusal of that says why, one of
/// a `HEAD` has no room to. An empty object has none.
pub(crate) fn look(store: &Store) -> Result<Version, SourceError> {
    let first = GetOptions {
        range: Some(GetRange::Bounded(0..1)),
        ..GetOptions::default()
    };
    let mut answer = ask(store, first)?;
    let range = check::text(answer.headers(), CONTENT_RANGE).and_then(headers::content_range);
    let mut size = range.and_then(|range| range.total);
    if size.is_none() {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        answer = ask(store, head)?;
        let length = check::text(answer.headers(), CONTENT_LENGTH);
        size = length.filter(|length| *length == "0").map(|_| 0);
    }
    let size = size.ok_or_else(|| SourceError::Unsupported {
        name: store.name.clone(),
        cause: "the store does not say how long it is, or does not serve parts of it".into(),
        remedy: "download it, and open the copy".into(),
    })?;
    let version = Version::of(answer.headers(), size);
    if size > 0 {
        // Gives the connection back. What the byte is does not matter, nor if it can't be had.
        let _ = store.client.read(answer.body_mut(), &mut [0]);
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::Retry;

    use super::*;

    fn refused(url: &str, settings: &[(&str, &str)]) -> String {
        let own = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
        let options = Options {
            settings: settings.iter().map(own).collect(),
            retry: Retry {
                deadline: Duration::ZERO,
            },
            ..Options::default()
        };
        let error = ObjectSource::open(url, &options).err().expect("refused");
        error.to_string()
    }

    #[test]
    fn a_store_that_does_not_answer_is_named_with_the_settings_that_choose_it() {
        // Nobody listens on that port.
        let settings = [
            ("aws_endpoint_url", "http://127.0.0.1:1"),
            ("aws_allow_http", "true"),
            ("aws_skip_signature", "true"),
        ];
        let message = refused("s3://bucket/key", &settings);
        let names = "(host 127.0.0.1, which AWS_ENDPOINT_URL and AWS_REGION choose)";
        assert!(message.contains(names), "{message}");
        let settings = [
            ("azure_storage_account_name", "account"),
            ("azure_storage_endpoint", "http://127.0.0.1:1"),
            ("azure_allow_http", "true"),
            ("azure_skip_signature", "true"),
        ];
        let message = refused("az://container/key", &settings);
        let names = "which AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT choose)";
        assert!(message.contains(names), "{message}");
    }

    #[test]
    fn a_store_that_lacks_settings_names_them() {
        let message = refused("az://container/key", &[]);
        assert!(
            message.contains("set AZURE_STORAGE_ACCOUNT_NAME"),
            "{message}"
        );
        let message = refused("gs://bucket/key", &[("google_service_account_key", "{}")]);
        assert!(
            message.contains("GOOGLE_APPLICATION_CREDENTIALS"),
            "{message}"
        );
    }
}
