//! Object stores: which one an address names, and with which credentials it is asked.

use std::sync::Arc;
use std::{env, fs};

use http::{HeaderName, HeaderValue};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use crate::SourceError;
use crate::remote::client::Client;
use crate::remote::connector::Connector;
use crate::remote::{Options, address, profile, settings as names};

/// An object in a store.
pub(crate) struct Store {
    pub(crate) name: String,
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) parts: Arc<dyn MultipartStore>,
    pub(crate) path: Path,
    pub(crate) client: Client,
    /// No credentials are sent.
    pub(crate) anonymous: bool,
}

/// A store and whether it is asked without credentials.
type Built<S> = object_store::Result<(S, bool)>;

impl Store {
    /// `completion`: see [`Connector`].
    pub(crate) fn new(
        url: &str,
        options: &Options,
        completion: Option<(HeaderName, HeaderValue)>,
    ) -> Result<Self, SourceError> {
        let parsed = address::parse(url)?;
        let name = shown(&parsed);
        let refused = |cause: &str, remedy: &str| SourceError::Unsupported {
            name: name.clone(),
            cause: cause.into(),
            remedy: remedy.into(),
        };
        let path = Path::from_url_path(parsed.path()).ok();
        let path = path.filter(|path| !path.as_ref().is_empty());
        let path = path.ok_or_else(|| refused("it names no object", "add the object's name"))?;
        if parsed.fragment().is_some() {
            let cause = "what follows the # is no part of its address";
            return Err(refused(
                cause,
                "where it is part of the object's name, write %23",
            ));
        }
        if parsed.password().is_some() || parsed.query().is_some() {
            let remedy = "give credentials in the environment, and options as settings";
            return Err(refused("its address has a password or a query", remedy));
        }
        let connector = Connector {
            client: Client::new(options),
            completion,
        };
        let client = connector.client;
        let settings = &options.settings;
        let built = match parsed.scheme() {
            "s3" | "s3a" => s3(url, settings, connector).map(erase),
            "gs" => gcs(url, settings, connector).map(erase),
            _ => azure(url, settings, connector).map(erase),
        };
        let ((objects, parts), anonymous) = built.map_err(|error| {
            // What it says of a setting may show its value.
            let mut text = error.to_string();
            for (_, value) in settings.iter().filter(|(_, value)| !value.is_empty()) {
                text = text.replace(value, "...");
            }
            refused(&text, names::remedy(parsed.scheme()))
        })?;
        Ok(Self {
            name,
            objects,
            parts,
            path,
            client,
            anonymous,
        })
    }
}

type Erased = ((Arc<dyn ObjectStore>, Arc<dyn MultipartStore>), bool);

fn erase<S: ObjectStore + MultipartStore>((store, anonymous): (S, bool)) -> Erased {
    let store = Arc::new(store);
    ((Arc::clone(&store) as _, store as _), anonymous)
}

/// The address; the container of `abfs://container@account...` stands where others have a user.
fn shown(url: &Url) -> String {
    let name = address::shown(url);
    match url.scheme() {
        "abfs" | "abfss" if !url.username().is_empty() => {
            name.replacen("://", &format!("://{}@", url.username()), 1)
        }
        _ => name,
    }
}

/// Tries are counted in one place, which is not here.
fn once() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// Keys come from the settings, the environment, the profile; then from the services that the
/// environment names (web identity, container); then, on a machine of Amazon's, from its role.
/// Where there is none of all that, the object is asked for without.
fn s3(
    url: &str,
    settings: &[(String, String)],
    connector: Connector,
) -> Built<object_store::aws::AmazonS3> {
    use AmazonS3ConfigKey as Key;
    let mut builder = AmazonS3Builder::from_env().with_url(url);
    for (key, value) in settings {
        builder = builder.with_config(key.to_ascii_lowercase().parse()?, value);
    }
    let has = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let mut profile = profile::load();
    if has(&builder, Key::AccessKeyId) || has(&builder, Key::SecretAccessKey) {
        profile.retain(|key, _| !key.starts_with("aws_"));
    }
    for (name, key) in [
        ("aws_access_key_id", Key::AccessKeyId),
        ("aws_secret_access_key", Key::SecretAccessKey),
        ("aws_session_token", Key::Token),
        ("region", Key::Region),
        ("endpoint_url", Key::Endpoint),
    ] {
        if let Some(value) = profile.get(name).filter(|_| !has(&builder, key)) {
            builder = builder.with_config(key, value);
        }
    }
    let sources = [
        Key::AccessKeyId,
        Key::SecretAccessKey,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
    ];
    let found = sources.into_iter().any(|key| has(&builder, key));
    let role = is_machine_of("Amazon EC2") && env::var_os("AWS_EC2_METADATA_DISABLED").is_none();
    let anonymous = is_true(builder.get_config_value(&Key::SkipSignature)) || !(found || role);
    let builder = builder.with_skip_signature(anonymous);
    let store = builder
        .with_retry(once())
        .with_http_connector(connector)
        .build()?;
    Ok((store, anonymous))
}

/// Credentials come from the settings, the environment, the file that `gcloud` keeps; then, on a
/// machine of Google's, from its service account. Where there is none, none are sent.
fn gcs(
    url: &str,
    settings: &[(String, String)],
    connector: Connector,
) -> Built<object_store::gcp::GoogleCloudStorage> {
    use GoogleConfigKey as Key;
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url);
    for (key, value) in settings {
        builder = builder.with_config(key.to_ascii_lowercase().parse()?, value);
    }
    let sources = [
        Key::ServiceAccount,
        Key::ServiceAccountKey,
        Key::ApplicationCredentials,
    ];
    let found = sources
        .into_iter()
        .any(|key| builder.get_config_value(&key).is_some());
    let usual = ".config/gcloud/application_default_credentials.json";
    let file = env::home_dir().is_some_and(|home| home.join(usual).exists());
    let skip = is_true(builder.get_config_value(&Key::SkipSignature));
    let anonymous = skip || !(found || file || is_machine_of("Google"));
    let builder = builder.with_skip_signature(anonymous);
    let store = builder
        .with_retry(once())
        .with_http_connector(connector)
        .build()?;
    Ok((store, anonymous))
}

/// Credentials come from the settings and the environment; then, on a machine of Microsoft's, from
/// its managed identity. Where there is none, none are sent.
fn azure(
    url: &str,
    settings: &[(String, String)],
    connector: Connector,
) -> Built<object_store::azure::MicrosoftAzure> {
    use AzureConfigKey as Key;
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url);
    for (key, value) in settings {
        builder = builder.with_config(key.to_ascii_lowercase().parse()?, value);
    }
    let sources = [
        Key::AccessKey,
        Key::SasKey,
        Key::Token,
        Key::ClientId,
        Key::MsiEndpoint,
        Key::FederatedTokenFile,
    ];
    let found = sources
        .into_iter()
        .any(|key| builder.get_config_value(&key).is_some());
    let on = |key| is_true(builder.get_config_value(&key));
    let found = found || on(Key::UseEmulator) || on(Key::UseAzureCli);
    let anonymous = on(Key::SkipSignature) || !(found || is_machine_of("Microsoft Corporation"));
    let builder = builder.with_skip_signature(anonymous);
    let store = builder
        .with_retry(once())
        .with_http_connector(connector)
        .build()?;
    Ok((store, anonymous))
}

fn is_true(value: Option<String>) -> bool {
    value.is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
}

/// Who made this machine. Only there is its metadata service asked: elsewhere nobody would answer.
fn is_machine_of(vendor: &str) -> bool {
    let made_by = fs::read_to_string("/sys/class/dmi/id/sys_vendor");
    made_by.is_ok_and(|text| text.trim() == vendor)
}
