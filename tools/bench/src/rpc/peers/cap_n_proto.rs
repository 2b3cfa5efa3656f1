//! Cap'n Proto over a pair of sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net;
use std::process::Stdio;
use std::rc::Rc;

use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use echo_capnp::echo;
use tokio::io::{BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::task::LocalSet;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::super::{Channel, server};

capnp::generated_code!(mod echo_capnp);

type Network = twoparty::VatNetwork<Compat<BufReader<OwnedReadHalf>>>;

struct Echo;

impl echo::Server for Echo {
    async fn echo(
        self: Rc<Self>,
        call: echo::EchoParams,
        mut answer: echo::EchoResults,
    ) -> capnp::Result<()> {
        answer.get().set_bytes(call.get()?.get_bytes()?);
        Ok(())
    }
}

/// A connection and its one object.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let (own, other) = net::UnixStream::pair().expect("a pair");
    let mut server = server("capnp-rpc", processor, bytes, "");
    let other = Stdio::from(OwnedFd::from(other));
    let server = server.stdin(other).spawn().expect("a child");
    let (runtime, tasks) = (super::runtime(), LocalSet::new());
    let echo: echo::Client = {
        let _in_runtime = runtime.enter();
        let mut rpc = RpcSystem::new(Box::new(network(own, Side::Client)), None);
        let echo = rpc.bootstrap(Side::Server);
        tasks.spawn_local(rpc);
        echo
    };
    let body = vec![1; bytes];
    let call = Box::new(move || {
        tasks.block_on(&runtime, async {
            let mut request = echo.echo_request();
            request.get().set_bytes(&body);
            let answer = request.send().promise.await.expect("answered");
            let answer = answer.get().expect("an answer");
            assert_eq!(answer.get_bytes().expect("bytes").len(), body.len());
        });
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(_: &[String]) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = net::UnixStream::from(socket.expect("a descriptor"));
    let echo: echo::Client = capnp_rpc::new_client(Echo);
    LocalSet::new().block_on(&super::runtime(), async {
        let network = network(socket, Side::Server);
        let rpc = RpcSystem::new(Box::new(network), Some(echo.client));
        rpc.await.expect("the caller is gone");
    });
}

fn network(socket: net::UnixStream, side: Side) -> Network {
    socket.set_nonblocking(true).expect("a socket");
    let (from, to) = UnixStream::from_std(socket).expect("a socket").into_split();
    let (from, to) = (
        BufReader::new(from).compat(),
        BufWriter::new(to).compat_write(),
    );
    twoparty::VatNetwork::new(from, to, side, Default::default())
}
