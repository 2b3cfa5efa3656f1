//! ipc-channel's channels of bytes, its quickest.

use ipc_channel::ipc::{self, IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender};

use super::super::{Channel, server};

/// The ends that the caller uses.
type Ends = (IpcBytesSender, IpcBytesReceiver);

/// Two channels of bytes.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let (meeting, name) = IpcOneShotServer::<Ends>::new().expect("a server");
    let server = server("ipc-channel", processor, bytes, &name).spawn();
    let (_, (to, from)) = meeting.accept().expect("a client");
    let body = vec![1; bytes];
    let call = Box::new(move || {
        to.send(&body).expect("sent");
        assert_eq!(from.recv().expect("answered").len(), body.len());
    });
    Channel {
        server: server.expect("a child"),
        call,
    }
}

/// Sends back what comes in.
pub(super) fn serve(args: &[String]) {
    let meeting = IpcSender::<Ends>::connect(args[1].clone()).expect("a server");
    let (to_server, from_client) = ipc::bytes_channel().expect("a channel");
    let (to_client, from_server) = ipc::bytes_channel().expect("a channel");
    meeting.send((to_server, from_server)).expect("met");
    drop(meeting);
    while let Ok(body) = from_client.recv() {
        to_client.send(&body).expect("answered");
    }
}
