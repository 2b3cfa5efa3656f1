//! The cluster's key: who has it is in the cluster.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Incarnation;

const KEY: &str = "cluster.key";
const CERTIFICATE: &str = "cluster.crt";
const HOW: &str = "make one with `farpage cluster init` and copy it to each host";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("cannot read the cluster's key {path}: {cause}; {HOW}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What Linux says.
        cause: io::Error,
    },
    /// Other users can use it.
    #[error(
        "the cluster's key {path} can be used by other users (mode {mode:03o}), who could enter \
         the cluster; run chmod 600 {path}, and make a new one if somebody may have read it"
    )]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Who may do what with it.
        mode: u32,
    },
    /// It is something else.
    #[error("{path} is not a cluster's key; {HOW}")]
    NotAKey {
        /// Which.
        path: PathBuf,
    },
    /// The certificate beside it was made by another key.
    #[error(
        "{path} belongs to another cluster than {beside} beside it; copy both from the same \
         folder, or the key alone"
    )]
    OtherCluster {
        /// Which.
        path: PathBuf,
        /// The certificate.
        beside: PathBuf,
    },
    /// There is one already.
    #[error(
        "{path} is there already, and a cluster's key is never replaced; give another folder, or \
         remove it if no host uses it"
    )]
    Exists {
        /// Which.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error(
        "cannot write {path}: {cause}; check the folder's permissions and the room on its disk"
    )]
    Write {
        /// Which.
        path: PathBuf,
        /// What Linux says.
        cause: io::Error,
    },
}

/// A cluster's certificate authority: each host that has it makes itself a certificate, and
/// believes those that others made themselves with it.
#[derive(Clone)]
pub struct ClusterKey(Arc<Authority>);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
    name: String,
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterKey({})", self.name())
    }
}

fn new_pair() -> KeyPair {
    KeyPair::generate().expect("Linux has random numbers")
}

/// What a host needs for TLS with others.
pub(crate) struct Identity {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl ClusterKey {
    /// Makes a new cluster's key and writes it to `folder`, with its certificate beside it. Only
    /// the key, `cluster.key`, is needed by the hosts.
    ///
    /// # Errors
    /// [`KeyError::Exists`] when there is one already; [`KeyError::Write`].
    pub fn create(folder: &Path) -> Result<Self, KeyError> {
        let pair = new_pair();
        let pem = pair.serialize_pem();
        let key = Self::of(pair);
        let certificate = key.0.certificate.pem();
        let path = folder.join(KEY);
        if path.exists() {
            return Err(KeyError::Exists { path });
        }
        // The key last: a folder that has it has all.
        for (name, contents) in [(CERTIFICATE, certificate), (KEY, pem)] {
            let path = folder.join(name);
            write(&path, &contents).map_err(|cause| KeyError::Write { path, cause })?;
        }
        Ok(key)
    }

    /// A new cluster's key that nobody else will ever have: for one host alone.
    #[must_use]
    pub fn unshared() -> Self {
        Self::of(new_pair())
    }

    /// Reads a key. `path` is the file, or the folder that it is in.
    ///
    /// # Errors
    /// When it is not there, open to others, not a key, or not that of the certificate beside it.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let path = match path.is_dir() {
            true => path.join(KEY),
            false => path.to_owned(),
        };
        let read = || {
            let mode = fs::metadata(&path)?.mode() & 0o777;
            Ok((mode, fs::read(&path)?))
        };
        let (mode, pem) = match read() {
            Ok(read) => read,
            Err(cause) => return Err(KeyError::Read { path, cause }),
        };
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path, mode });
        }
        let pair = PrivateKeyDer::from_pem_slice(&pem).ok();
        let Some(pair) = pair.and_then(|der| KeyPair::try_from(&der).ok()) else {
            return Err(KeyError::NotAKey { path });
        };
        let key = Self::of(pair);
        let beside = path.with_file_name(CERTIFICATE);
        match CertificateDer::from_pem_file(&beside) {
            Ok(certificate) if !key.is_of(&certificate) => {
                Err(KeyError::OtherCluster { path, beside })
            }
            // Most hosts have the key alone.
            Ok(_) | Err(_) => Ok(key),
        }
    }

    /// The cluster's name: it says which key it is, without giving it away.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    fn of(pair: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        let id = params.key_identifier(&pair);
        let name: String = id
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        params.distinguished_name.remove(DnType::CommonName);
        let subject = format!("farpage cluster {name}");
        params.distinguished_name.push(DnType::CommonName, subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        // Signed anew by each host: what is believed is its name and its key, which are the same.
        let certificate = params.self_signed(&pair).expect("a key can sign its own");
        Self(Arc::new(Authority {
            certificate,
            issuer: Issuer::new(params, pair),
            name,
        }))
    }

    fn is_of(&self, certificate: &CertificateDer<'static>) -> bool {
        let anchor = |der: &CertificateDer<'static>| {
            let mut store = RootCertStore::empty();
            store.add(der.clone()).ok()?;
            store.roots.pop().map(|root| root.subject_public_key_info)
        };
        anchor(certificate) == anchor(self.0.certificate.der())
    }

    /// A certificate for `incarnation`, known to nobody but this process, and what goes with it.
    pub(crate) fn identity(&self, incarnation: Incarnation) -> Result<Identity, rustls::Error> {
        let general = |error: rcgen::Error| rustls::Error::General(error.to_string());
        let pair = KeyPair::generate().map_err(general)?;
        let params = CertificateParams::new(vec![name_of(incarnation)]).map_err(general)?;
        let leaf = params.signed_by(&pair, &self.0.issuer).map_err(general)?;
        let chain = vec![leaf.der().clone()];
        let private = || PrivateKeyDer::Pkcs8(pair.serialize_der().into());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.certificate.der().clone())?;
        let (roots, provider) = (Arc::new(roots), provider());
        let wrong =
            |error: rustls::client::VerifierBuilderError| rustls::Error::General(error.to_string());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(verifier.build().map_err(wrong)?)
            .with_client_auth_cert(chain.clone(), private())?;
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.build().map_err(wrong)?)
            .with_single_cert(chain, private())?;
        server.send_tls13_tickets = 0;
        Ok(Identity {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }
}

/// What a certificate for this incarnation is made out to.
fn name_of(incarnation: Incarnation) -> String {
    format!("{}.farpage.internal", incarnation.0)
}

/// As above, for who expects it.
pub(crate) fn server_name(incarnation: Incarnation) -> ServerName<'static> {
    ServerName::try_from(name_of(incarnation)).expect("digits and letters")
}

/// AES of 128 bits first: it costs least where the processor has it.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider {
        cipher_suites,
        ..ring::default_provider()
    })
}

fn write(path: &Path, contents: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_key_that_was_made_is_read_again_from_its_file_and_its_folder() {
        let folder = folder();
        let made = ClusterKey::create(folder.path()).unwrap();
        for path in [folder.path(), &folder.path().join(KEY)] {
            assert_eq!(ClusterKey::load(path).unwrap().name(), made.name());
        }
        for name in [KEY, CERTIFICATE] {
            let mode = fs::metadata(folder.path().join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_key_is_never_replaced() {
        let folder = folder();
        let made = ClusterKey::create(folder.path()).unwrap();
        let text = ClusterKey::create(folder.path()).unwrap_err().to_string();
        assert!(text.contains("never replaced"), "{text}");
        assert_eq!(ClusterKey::load(folder.path()).unwrap().name(), made.name());
    }

    #[test]
    fn no_key_is_told_with_what_to_do() {
        let text = ClusterKey::load(Path::new("/nowhere/x"))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("/nowhere/x") && text.contains("cluster init"),
            "{text}"
        );
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let folder = folder();
        ClusterKey::create(folder.path()).unwrap();
        let open = fs::Permissions::from_mode(0o640);
        fs::set_permissions(folder.path().join(KEY), open).unwrap();
        let text = ClusterKey::load(folder.path()).unwrap_err().to_string();
        assert!(
            text.contains("mode 640") && text.contains("chmod 600"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let folder = folder();
        let path = folder.path().join("other");
        for contents in [
            "",
            "hello",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let _ = fs::remove_file(&path);
            write(&path, contents).unwrap();
            let error = ClusterKey::load(&path).unwrap_err();
            assert!(matches!(error, KeyError::NotAKey { .. }), "{error}");
        }
    }

    #[test]
    fn a_key_beside_the_certificate_of_another_cluster_is_refused() {
        let (folder, other) = (folder(), tempfile::tempdir().unwrap());
        ClusterKey::create(folder.path()).unwrap();
        ClusterKey::create(other.path()).unwrap();
        fs::copy(other.path().join(KEY), folder.path().join(KEY)).unwrap();
        let error = ClusterKey::load(folder.path()).unwrap_err();
        assert!(matches!(error, KeyError::OtherCluster { .. }), "{error}");
        fs::remove_file(folder.path().join(CERTIFICATE)).unwrap();
        ClusterKey::load(folder.path()).unwrap();
    }
}
