//! What others offer, each in the form that is its quickest here.

mod cap_n_proto;
mod dbus;
mod grpc;
mod iceoryx2;
mod ipc_channel;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};

use tokio::net::unix::pipe;
use tokio::runtime::{Builder, Runtime};

use super::Way;

pub(super) const WAYS: &[Way] = &[
    ("ipc-channel", ipc_channel::connect, ipc_channel::serve),
    ("iceoryx2", iceoryx2::connect, iceoryx2::serve),
    (
        "iceoryx2,_polling",
        iceoryx2::connect_polling,
        iceoryx2::serve_polling,
    ),
    ("capnp-rpc", cap_n_proto::connect, cap_n_proto::serve),
    ("gRPC_(tonic)", grpc::connect, grpc::serve),
    ("D-Bus_(zbus)", dbus::connect, dbus::serve),
];

/// Starts the server `name` and waits until it says that it is ready.
fn start(name: &str, processor: u32, bytes: usize, more: &str) -> Child {
    let mut server = super::server(name, processor, bytes, more);
    server.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = server.spawn().expect("a child");
    let mut said = child.stdout.take().expect("piped");
    said.read_exact(&mut [0]).expect("a server that is ready");
    child
}

/// Tells who started this server that it may call.
fn ready() {
    let mut stdout = std::io::stdout();
    stdout.write_all(b"\n").expect("said");
    stdout.flush().expect("said");
}

/// Waits until who started this server is gone, or waits for its end.
async fn caller_gone() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let stdin = pipe::Receiver::from_owned_fd(stdin.expect("a descriptor"));
    stdin.expect("a pipe").readable().await.expect("closed");
}

/// One thread, the one that calls `block_on`.
fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_io().build().expect("a runtime")
}
