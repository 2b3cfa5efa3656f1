//! gRPC over a Unix socket; its messages are the bytes themselves.

use std::convert::Infallible;
use std::future::ready;

use bytes::{Buf, BufMut, Bytes};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tower::service_fn;

use super::super::Channel;

/// Messages without a format.
#[derive(Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, bytes: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(bytes);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A channel of one connection.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket").display().to_string();
    let server = super::start("gRPC_(tonic)", processor, bytes, &path);
    let runtime = super::runtime();
    let endpoint = Endpoint::from_shared(format!("unix:{path}")).expect("an address");
    let channel = runtime.block_on(endpoint.connect()).expect("a connection");
    let mut client = tonic::client::Grpc::new(channel);
    let path = PathAndQuery::from_static("/farpage.Bench/Echo");
    let body = Bytes::from(vec![1; bytes]);
    let call = Box::new(move || {
        runtime.block_on(async {
            client.ready().await.expect("a connection");
            let request = Request::new(body.clone());
            let answer = client.unary(request, path.clone(), Plain).await;
            assert_eq!(answer.expect("answered").get_ref().len(), body.len());
        });
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(args: &[String]) {
    let echo =
        service_fn(|call: Request<Bytes>| ready(Ok::<_, Status>(Response::new(call.into_inner()))));
    let service = service_fn(move |request| async move {
        let answer = tonic::server::Grpc::new(Plain).unary(echo, request).await;
        Ok::<_, Infallible>(answer)
    });
    super::runtime().block_on(async {
        let listener = UnixListener::bind(&args[1]).expect("a socket");
        super::ready();
        let callers = UnixListenerStream::new(listener);
        let served =
            Server::builder().serve_with_incoming_shutdown(service, callers, super::caller_gone());
        served.await.expect("the caller is gone");
    });
}
