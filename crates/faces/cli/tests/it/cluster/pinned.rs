//! Pages that programs keep at their host: host kernels in network namespaces, programs in C.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};

use farpage_testkit::{Started, until};

use super::foreign::{compile, said};
use super::support::{Kernel, Net};

struct Program {
    child: Started,
    hears: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Program {
    fn start(net: &Net, host: u8, program: &Path, kernel: &Kernel, what: &str) -> Self {
        let mut command = net.at(host, program);
        command.arg(what).env("FARPAGE_HOST", &kernel.socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Started::new(&mut command);
        let hears = child.stdin.take().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, hears, says }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn check(&mut self) -> String {
        self.hears.write_all(b"\n").unwrap();
        self.line()
    }

    fn ends(mut self) {
        drop(self.hears);
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn programs_in_c_keep_pages_at_their_host() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = compile(&net, "pinned", false);
    let kernels = [net.host(), net.host()];
    let bare = net.bare_host();
    let start = |host: u8, what: &str| {
        Program::start(&net, host, &program, &kernels[usize::from(host)], what)
    };
    let mut holds = start(0, "holds");
    assert_eq!(holds.line(), "holds");
    let (mut waits, mut killed) = (start(1, "waits"), start(1, "waits"));
    assert_eq!(
        (waits.line(), killed.line()),
        ("waits".into(), "waits".into())
    );
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(holds.check(), "kept");
    assert_eq!(waits.child.try_wait().unwrap(), None, "it waits");
    holds.ends();
    waits.ends();
    start(0, "refused").ends();
    let mut alone = net.at(bare, &program);
    alone.args(["refused", "etcd://10.79.0.1:2379/test"]);
    assert_eq!(said(alone.arg(net.key()).output().unwrap()), "done\n");
    // A host that is cut off has let go of its pages, and a program finds out.
    let mut holds = start(0, "holds");
    assert_eq!(
        (holds.line(), holds.check()),
        ("holds".into(), "kept".into())
    );
    net.until_members(2);
    kernels[0].signal("-STOP");
    net.until_members(1);
    // A host whose lease has ended is let in again, unless another has put it out before it wakes.
    until("the other host has put it out", || {
        !kernels[1].says(&["ls", "--hosts"]).contains("host0")
    });
    kernels[0].signal("-CONT");
    let mut said = String::new();
    until("the program finds out", || {
        said = holds.check();
        said != "kept"
    });
    assert!(said.contains("it was cut off from the cluster"), "{said}");
    holds.child.kill().unwrap();
    holds.child.wait().unwrap();
}
