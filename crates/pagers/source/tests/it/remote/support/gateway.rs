//! A real store that speaks S3.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use farpage_source::remote::{ObjectSource, ObjectWriter, Options, open};
use tempfile::TempDir;

use super::{Process, free_address, quick, tool, upload};

pub const KEY: &str = "FARPAGETESTKEY";
pub const SECRET: &str = "a-secret-that-nobody-sees";

pub struct Gateway {
    folder: TempDir,
    process: Process,
}

/// A store with one empty bucket, called `bucket`.
pub fn gateway() -> Gateway {
    gateway_at(free_address())
}

/// The same, at this address.
pub fn gateway_at(address: SocketAddr) -> Gateway {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bucket")).unwrap();
    let process = start(folder.path(), address);
    Gateway { folder, process }
}

fn start(folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(tool("bin/versitygw"));
    command
        .args([
            "--access",
            KEY,
            "--secret",
            SECRET,
            "--quiet",
            "--keep-alive",
        ])
        .args(["--port", &address.to_string(), "posix"])
        .arg(folder);
    Process::start(&mut command, address)
}

impl Gateway {
    pub fn options(&self) -> Options {
        settings(&self.endpoint(), KEY, SECRET)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.process.address)
    }

    pub fn put(&self, url: &str, bytes: &[u8]) -> String {
        let writer = ObjectWriter::create(url, &self.options()).unwrap();
        upload(&writer, bytes).unwrap()
    }

    /// Replaces an object.
    #[allow(dead_code, reason = "tests of crate farpage use it")]
    pub fn put_again(&self, url: &str, bytes: &[u8]) -> String {
        let there = ObjectSource::open(url, &self.options()).unwrap();
        upload(&there.writer().unwrap(), bytes).unwrap()
    }

    pub fn read(&self, url: &str) -> Vec<u8> {
        let source = open(url, &self.options()).unwrap();
        let mut all = vec![0; source.size() as usize];
        source.read_at(0, &mut all).unwrap();
        all
    }
}

pub fn settings(endpoint: &str, key: &str, secret: &str) -> Options {
    let pairs = [
        ("aws_endpoint_url", endpoint),
        ("aws_access_key_id", key),
        ("aws_secret_access_key", secret),
    ];
    Options {
        settings: pairs.map(|(k, v)| (k.into(), v.into())).into(),
        ..quick()
    }
}
