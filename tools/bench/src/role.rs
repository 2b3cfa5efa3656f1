//! Parts of a measurement that are processes of their own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use farpage_daemon::Service;

/// One that ends with this process's interest in it.
pub struct Role {
    pub child: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// This program again.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output }
    }

    /// The next that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "it ended");
        line.trim().to_owned()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of a host kernel, until it is killed.
pub fn serves(service: Service, socket: &Path) -> ! {
    let _listening = service.listen(socket).expect("a socket");
    println!("ready");
    let Err(error) = service.run();
    panic!("{error}");
}
