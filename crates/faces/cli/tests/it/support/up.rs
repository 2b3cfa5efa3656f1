//! A host kernel as a process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};

use farpage_client::Host;
use farpage_testkit::Started;
pub use farpage_testkit::{HANGS, until};

/// A host kernel in a folder of its own.
pub struct Up {
    pub folder: tempfile::TempDir,
    pub child: Started,
    /// One reader: it may have read more than it has told.
    pub output: Option<BufReader<ChildStdout>>,
}

impl Up {
    pub fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        let ram = ["--ram", "16M"];
        let ram: &[&str] = if more.contains(&"--ram") { &[] } else { &ram };
        command.arg("up").args(ram).arg("--socket");
        command.arg(folder.path().join("host"));
        command.arg("--spill").arg(folder.path()).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Started::new(&mut command);
        let output = child.stdout.take().map(BufReader::new);
        let mut up = Self {
            folder,
            child,
            output,
        };
        let line = up.line();
        assert!(line.contains("the host kernel answers at"), "{line}");
        up
    }

    /// The next line of what it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.output.as_mut().unwrap();
        output.read_line(&mut line).unwrap();
        line
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("host")
    }

    pub fn host(&self) -> Host {
        Host::connect(&self.socket()).unwrap()
    }

    pub fn asks(&self, what: &[&str]) -> Output {
        farpage(what, &self.socket()).output().unwrap()
    }

    pub fn says(&self, what: &[&str]) -> String {
        let output = self.asks(what);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends it; what it wrote to standard error.
    pub fn ends(mut self) -> String {
        self.signal("-TERM");
        let mut said = String::new();
        let errors = self.child.stderr.as_mut().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

pub fn farpage(what: &[&str], socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args(what).env("FARPAGE_HOST", socket);
    command
}
