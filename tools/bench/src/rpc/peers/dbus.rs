//! D-Bus: two programs and a bus of their own, which runs on the server's processor.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use serde_bytes::{ByteBuf, Bytes};
use zbus::connection::Builder;

use super::super::Channel;

const NAME: &str = "org.farpage.Bench";
const OBJECT: &str = "/org/farpage/Bench";

struct Echo;

#[zbus::interface(name = "org.farpage.Bench")]
impl Echo {
    fn echo(&self, bytes: &Bytes) -> ByteBuf {
        bytes.to_owned()
    }
}

/// Ends when it is dropped, and with this process.
struct Bus(Child);

impl Bus {
    fn start(address: &str) -> Self {
        let mut daemon = Command::new("setpriv");
        daemon.args([
            "--pdeathsig",
            "KILL",
            "dbus-daemon",
            "--session",
            "--nofork",
        ]);
        daemon.args(["--syslog-only", "--print-address", "--address", address]);
        let mut daemon = daemon.stdout(Stdio::piped()).spawn().expect("setpriv");
        let mut said = daemon.stdout.take().expect("piped");
        let bus = Self(daemon);
        let is_ready = said.read_exact(&mut [0]);
        is_ready.expect("a bus; as root: apt-get install dbus");
        bus
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.0.kill().expect("a child");
        self.0.wait().expect("a child");
    }
}

/// A proxy of the server's one object.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:path={}/bus", folder.path().display());
    let server = super::start("D-Bus_(zbus)", processor, bytes, &address);
    let runtime = super::runtime();
    let proxy = runtime.block_on(async {
        let connection = Builder::address(&*address).build().await;
        let connection = connection.expect("a bus");
        zbus::Proxy::new(&connection, NAME, OBJECT, NAME).await
    });
    let proxy = proxy.expect("a proxy");
    let body = vec![1; bytes];
    let call = Box::new(move || {
        let answer = runtime.block_on(proxy.call("Echo", &Bytes::new(&body)));
        let answer: ByteBuf = answer.expect("answered");
        assert_eq!(answer.len(), body.len());
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(args: &[String]) {
    let _bus = Bus::start(&args[1]);
    super::runtime().block_on(async {
        let builder = Builder::address(&*args[1]).name(NAME);
        let connection = builder.serve_at(OBJECT, Echo).build().await;
        let _connection = connection.expect("a bus");
        super::ready();
        super::caller_gone().await;
    });
}
