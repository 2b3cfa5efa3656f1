//! Objects in a store that speaks as Azure's does.

use std::process::Command;

use farpage_source::remote::{ObjectSource, ObjectWriter, Options, open};
use farpage_source::{Source, SourceError};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequestBody;
use tempfile::TempDir;

use crate::remote::support::{Process, free_address, pattern, quick, tool, upload};

const ACCOUNT: &str = "farpage";
const KEY: &str = "YS1rZXktdGhhdC1ub2JvZHktc2Vlcw==";
const MIB: usize = 1 << 20;

struct Azurite {
    _folder: TempDir,
    process: Process,
}

/// A store with one empty container, `box`.
fn azurite() -> Azurite {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut command = Command::new(tool("node_modules/.bin/azurite-blob"));
    command
        .args([
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            &address.port().to_string(),
        ])
        .args([
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",
            "--location",
        ])
        .arg(folder.path())
        .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"));
    let azurite = Azurite {
        _folder: folder,
        process: Process::start(&mut command, address),
    };
    azurite.make_container();
    azurite
}

impl Azurite {
    fn endpoint(&self) -> String {
        format!("http://{}/{ACCOUNT}", self.process.address)
    }

    fn make_container(&self) {
        let key = AzureCredential::AccessKey(AzureAccessKey::try_new(KEY).unwrap());
        let mut request = http::Request::put(format!("{}/box?restype=container", self.endpoint()))
            .header("x-ms-version", "2023-11-03")
            .header("content-length", "0")
            .body(HttpRequestBody::empty())
            .unwrap();
        let authorizer = AzureAuthorizer::new(&key, ACCOUNT);
        authorizer.try_authorize(&mut request).unwrap();
        let made = ureq::run(request.map(|_| "")).unwrap();
        assert_eq!(made.status(), 201);
    }

    fn options(&self, key: &str) -> Options {
        let pairs = [
            ("azure_storage_endpoint", self.endpoint()),
            ("azure_storage_account_name", ACCOUNT.into()),
            ("azure_storage_account_key", key.into()),
        ];
        Options {
            settings: pairs.map(|(k, v)| (k.into(), v)).into(),
            ..quick()
        }
    }

    fn put(&self, url: &str, bytes: &[u8]) {
        let writer = ObjectWriter::create(url, &self.options(KEY)).unwrap();
        upload(&writer, bytes).unwrap();
    }
}

#[test]
fn a_blob_reads_as_it_was_written_in_parts_and_whole() {
    let azurite = azurite();
    for (url, bytes) in [
        ("az://box/deep/large", 20 * MIB + 3),
        ("abfs://box/small", 5000),
    ] {
        let data = pattern(bytes, 1);
        azurite.put(url, &data);
        let source = open(url, &azurite.options(KEY)).unwrap();
        assert_eq!((source.name(), source.size()), (url, bytes as u64));
        for (start, count) in [(0, bytes), (bytes - 1, 1), (4095, 700)] {
            let mut read = vec![0; count];
            source.read_at(start as u64, &mut read).unwrap();
            assert!(read == data[start..start + count], "{start} {count}");
        }
    }
    azurite.put("az://box/empty", b"");
    let empty = open("az://box/empty", &azurite.options(KEY)).unwrap();
    assert_eq!(empty.size(), 0);
}

#[test]
fn a_blob_replaced_under_us_has_changed_and_is_not_overwritten() {
    let azurite = azurite();
    for bytes in [10_000, 9 * MIB] {
        let url = format!("az://box/{bytes}");
        azurite.put(&url, &pattern(bytes, 1));
        let source = ObjectSource::open(&url, &azurite.options(KEY)).unwrap();
        let (first, second) = (source.writer().unwrap(), source.writer().unwrap());
        upload(&first, &pattern(bytes, 2)).unwrap();
        let error = source.read_at(0, &mut [0; 100]).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        let error = upload(&second, &pattern(bytes, 3)).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        let mut read = vec![0; bytes];
        let now = open(&url, &azurite.options(KEY)).unwrap();
        now.read_at(0, &mut read).unwrap();
        assert!(read == pattern(bytes, 2));
    }
}

#[test]
fn what_was_uploaded_is_read_in_its_own_version() {
    let azurite = azurite();
    for bytes in [10_000, 9 * MIB] {
        let url = format!("az://box/{bytes}");
        let writer = ObjectWriter::create(&url, &azurite.options(KEY)).unwrap();
        for byte in [1, 2] {
            let written = writer.upload(bytes as u64, &|_, buffer| {
                buffer.fill(byte);
                Ok(())
            });
            let written = written.unwrap();
            let anew = open(&url, &azurite.options(KEY)).unwrap();
            assert_eq!(written.version(), anew.version());
            let mut read = vec![0; 5000];
            written.read_at(777, &mut read).unwrap();
            assert_eq!(read, [byte; 5000]);
        }
    }
}

#[test]
fn a_wrong_key_is_denied_and_a_missing_blob_is_not_found() {
    let azurite = azurite();
    let wrong = "b3RoZXI=";
    let error = open("az://box/a", &azurite.options(wrong)).err();
    let error = error.expect("refused");
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    assert!(!format!("{error:?}").contains(wrong), "{error}");
    for url in ["az://box/none", "az://none/a"] {
        let error = open(url, &azurite.options(KEY)).err().expect("refused");
        assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
    }
}
