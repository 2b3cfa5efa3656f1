//! An etcd that is reached over TLS.

use std::path::Path;
use std::process::Command;

use farpage_membership::{Control, Event};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::{Etcd, LONG, config, description, join, wait_for};

/// Where the process of [`believes`] finds etcd, and what it expects.
const ENDPOINT: &str = "FARPAGE_TLS_ENDPOINT";
const IS_TRUSTED: &str = "FARPAGE_TLS_IS_TRUSTED";

/// Writes an authority and a server's certificate of it.
fn certify(folder: &Path) {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("room");
    let key = || KeyPair::generate().expect("a key");
    let authority = |name: &str| {
        let mut authority = CertificateParams::new([]).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("signed");
        write(name, authority.pem());
        authority
    };
    let authority_of_etcd = authority("authority.pem");
    authority("other.pem");
    let server_key = key();
    let server = CertificateParams::new([String::from("127.0.0.1")]).expect("a name");
    let server = server.signed_by(&server_key, &authority_of_etcd);
    write("server.pem", server.expect("signed").pem());
    write("server.key", server_key.serialize_pem());
}

/// Not a test by itself: a process with authorities of its own.
#[test]
fn tls_process() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        return;
    };
    if std::env::var_os(IS_TRUSTED).is_none() {
        let mut config = config(&endpoint, "a", LONG);
        config.wait = std::time::Duration::ZERO;
        let said = Control::join(config).err().expect("refused").to_string();
        return assert!(said.contains("invalid peer certificate"), "{said}");
    }
    let (a, b) = (join(&endpoint, "a", LONG), join(&endpoint, "b", LONG));
    let made = a.make(Some("x"), description(&a)).expect("made");
    wait_for(&b, "it is seen", |event| {
        matches!(event, Event::Made(id, _) if *id == made).then_some(())
    });
    assert_eq!(b.find("x").expect("it is there").0, made);
}

/// Whether such a process ends well that trusts an authority.
fn believes(etcd: &Etcd, authority: &Path, is_trusted: bool) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", "tls::tls_process", "--nocapture"])
        .env("SSL_CERT_FILE", authority)
        .env(ENDPOINT, etcd.endpoint().replace("etcd:", "etcds:"));
    if is_trusted {
        child.env(IS_TRUSTED, "1");
    }
    let output = child.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_server_is_believed_when_its_authority_is_and_not_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    certify(folder.path());
    let path = |name: &str| folder.path().join(name);
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let Some(etcd) = Etcd::start_with(&[
        "--cert-file",
        certificate.to_str().expect("text"),
        "--key-file",
        key.to_str().expect("text"),
    ]) else {
        return;
    };
    believes(&etcd, &path("authority.pem"), true);
    believes(&etcd, &path("other.pem"), false);
    // Without TLS nothing can be asked there.
    let mut plain = config(&etcd.endpoint(), "a", LONG);
    plain.wait = std::time::Duration::ZERO;
    let said = Control::join(plain).err().expect("refused").to_string();
    assert!(said.contains("did not answer"), "{said}");
}
