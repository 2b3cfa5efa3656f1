//! Files on nginx: what a server of others makes of our questions.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use farpage_source::remote::{HttpSource, open};
use farpage_source::{Source, SourceError};
use tempfile::TempDir;

use crate::remote::support::{Process, free_address, pattern, quick};

const SIZE: usize = 3_000_000;

struct Nginx {
    folder: TempDir,
    process: Process,
    encrypted: SocketAddr,
}

/// nginx with the file `/a.bin`, over HTTP and HTTPS.
fn nginx() -> Nginx {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for name in ["files", "files/private", "files/whole"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    for name in ["files/a.bin", "files/private/a.bin", "files/whole/a.bin"] {
        fs::write(path.join(name), pattern(SIZE, 1)).unwrap();
    }
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(path.join("certificate.pem"), certified.cert.pem()).unwrap();
    fs::write(path.join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    fs::write(path.join("passwords"), "me:{PLAIN}open sesame\n").unwrap();
    let (plain, encrypted) = (free_address(), free_address());
    let configuration = path.join("nginx.conf");
    fs::write(&configuration, text(path, plain, encrypted)).unwrap();
    let mut command = Command::new("nginx");
    // Debian has it where only the superuser looks.
    let search = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{search}:/usr/sbin:/sbin"));
    command.arg("-c").arg(&configuration).arg("-p").arg(path);
    let process = Process::start(&mut command, plain);
    Nginx {
        folder,
        process,
        encrypted,
    }
}

fn text(folder: &Path, plain: SocketAddr, encrypted: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
            fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4;
            scgi_temp_path {folder}/t5;
            server {{
                listen {plain};
                listen {encrypted} ssl;
                ssl_certificate {folder}/certificate.pem;
                ssl_certificate_key {folder}/key.pem;
                root {folder}/files;
                location /whole/ {{ max_ranges 0; }}
                location /down {{ return 302 http://{plain}/a.bin; }}
                location /private/ {{
                    auth_basic it; auth_basic_user_file {folder}/passwords;
                }}
            }}
        }}"
    )
}

impl Nginx {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.process.address)
    }

    fn encrypted_url(&self, path: &str) -> String {
        format!("https://{}{path}", self.encrypted)
    }

    fn open(&self) -> HttpSource {
        HttpSource::open(&self.url("/a.bin"), &quick()).unwrap()
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("files/a.bin")
    }
}

fn check(source: &dyn Source) {
    let bytes = pattern(SIZE, 1);
    assert_eq!(source.size(), SIZE as u64);
    for (start, count) in [(0, SIZE), (SIZE - 1, 1), (4095, 70_000), (1, 1)] {
        let mut read = vec![0; count];
        source.read_at(start as u64, &mut read).unwrap();
        assert!(read == bytes[start..start + count], "{start} {count}");
    }
}

#[test]
fn a_file_on_nginx_reads_as_it_is() {
    let nginx = nginx();
    let source = nginx.open();
    assert!(source.version().is_some());
    check(&source);
}

#[test]
fn a_file_on_nginx_that_is_replaced_or_cut_or_written_to_has_changed() {
    let nginx = nginx();
    let changed = |source: &HttpSource| {
        let error = source.read_at(0, &mut [0; 10]).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    };
    let source = nginx.open();
    let new = nginx.folder.path().join("new");
    fs::write(&new, pattern(SIZE + 1, 2)).unwrap();
    fs::rename(&new, nginx.file()).unwrap();
    changed(&source);
    let source = nginx.open();
    fs::write(nginx.file(), pattern(SIZE / 2, 2)).unwrap();
    changed(&source);
    let beyond = source.read_at(SIZE as u64 - 10, &mut [0; 10]).unwrap_err();
    assert!(matches!(beyond, SourceError::Changed { .. }), "{beyond}");
    let source = nginx.open();
    fs::remove_file(nginx.file()).unwrap();
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
}

#[test]
fn nginx_without_ranges_is_refused() {
    let error = open(&nginx().url("/whole/a.bin"), &quick()).err();
    let error = error.expect("refused");
    assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
}

#[test]
fn a_password_in_the_address_opens_what_is_closed_without() {
    let nginx = nginx();
    let error = open(&nginx.url("/private/a.bin"), &quick()).err();
    let error = error.expect("refused");
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    let host = nginx.process.address;
    let url = format!("http://me:open%20sesame@{host}/private/a.bin");
    let source = open(&url, &quick()).unwrap();
    assert_eq!(source.name(), nginx.url("/private/a.bin"));
    check(&*source);
}

#[test]
fn a_certificate_is_believed_when_its_authority_is_and_not_otherwise() {
    const NAME: &str = "a_certificate_is_believed_when_its_authority_is_and_not_otherwise";
    if let Ok(url) = std::env::var("FARPAGE_TEST_CHILD") {
        check(&*open(&url, &quick()).unwrap());
        let down = url.replace("/a.bin", "/down");
        let error = open(&down, &quick()).err().expect("refused");
        assert!(error.to_string().contains("without encryption"), "{error}");
        return;
    }
    let nginx = nginx();
    let url = nginx.encrypted_url("/a.bin");
    let error = open(&url, &quick()).err().expect("refused");
    assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", &format!("remote::nginx::{NAME}")])
        .env("FARPAGE_TEST_CHILD", &url)
        .env("SSL_CERT_FILE", nginx.folder.path().join("certificate.pem"));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}
