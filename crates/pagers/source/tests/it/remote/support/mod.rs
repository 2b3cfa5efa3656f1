//! Servers of others, started for a test.

pub mod gateway;
pub mod proxy;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farpage_source::remote::{ObjectWriter, Options};
use farpage_source::{Retry, Source, SourceError};
use farpage_testkit::until;

/// What `cargo xtask setup` installed.
pub fn tool(path: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.tools");
    let tool = tools.join(path);
    assert!(
        tool.exists(),
        "{} is missing: run cargo xtask setup",
        tool.display()
    );
    tool
}

/// A server, until it is dropped.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// Starts `command`, which listens on `address`, and returns when it does.
    pub fn start(command: &mut Command, address: SocketAddr) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut process = Self { child, address };
        until(&format!("{command:?} listens"), || {
            let ended = process.child.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} ended with {ended:?}");
            TcpStream::connect(address).is_ok()
        });
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody listens on.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

/// `bytes` bytes that depend on where they are.
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let at = |i: u64| ((i ^ (seed << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..bytes as u64).map(at).collect()
}

/// Gives up early.
pub fn quick() -> Options {
    Options {
        silence_timeout: Duration::from_secs(120),
        retry: Retry {
            deadline: Duration::from_secs(5),
        },
        ..Options::default()
    }
}

/// Uploads all of `bytes`; the new version.
pub fn upload(writer: &ObjectWriter, bytes: &[u8]) -> Result<String, SourceError> {
    let written = writer.upload(bytes.len() as u64, &|offset, buffer| {
        let start = offset as usize;
        buffer.copy_from_slice(&bytes[start..start + buffer.len()]);
        Ok(())
    })?;
    Ok(written.version().expect("a store tells the version"))
}
