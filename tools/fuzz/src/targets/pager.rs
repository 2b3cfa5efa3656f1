//! The memory-object protocol: what pagers and kernels say to each other.

use std::sync::OnceLock;
use std::time::Duration;

use farpage_client::pager::protocol::{
    DataWanted, OfferedCalls, OfferedClient, PageOrder, PagingCalls, PagingClient, Provided, Ready,
    RequestCalls, RequestClient,
};
use farpage_port::interface::{Answer, Both, Contents};
use farpage_port::{Node, ReceiveRight, SendRight, Sender};

use super::interface::{head, serve};

/// Takes whatever is well formed.
struct Anything;

impl OfferedCalls for Anything {
    fn init(&mut self, _: Sender, kernel: SendRight) -> Both<Result<Ready, String>, SendRight> {
        Both(Err("no".into()), kernel)
    }
}

impl PagingCalls for Anything {
    fn data_request(&mut self, _: Sender, _: u64, _: DataWanted) {}
    fn data_write(&mut self, _: Sender, _: u64, _: u64, contents: Contents) {
        assert!(contents.len() <= 1 << 16);
    }
    fn data_unlock(&mut self, _: Sender, _: u64) {}
    fn terminate(&mut self, _: Sender) {}
}

impl RequestCalls for Anything {
    fn data_provided(&mut self, _: Sender, _: u64, _: Provided, contents: Contents) {
        assert!(contents.len() <= 1 << 16);
    }
    fn data_unavailable(&mut self, _: Sender, _: u64, _: u64) {}
    fn data_error(&mut self, _: Sender, _: u64, why: String) {
        assert!(why.len() <= 1 << 16);
    }
    fn data_taken(&mut self, _: Sender, _: u64) {}
    fn data_refused(&mut self, _: Sender, _: u64, _: String) {}
    fn lock_request(
        &mut self,
        _: Sender,
        _: u64,
        _: u64,
        _: PageOrder,
        answer: Answer<Result<(), String>>,
    ) {
        answer.give(Ok(()));
    }
    fn set_attributes(&mut self, _: Sender, _: u32) {}
}

struct Heads {
    node: Node,
    port: ReceiveRight,
    offered: Vec<u8>,
    paging: Vec<u8>,
    request: Vec<u8>,
}

fn heads() -> &'static Heads {
    static HEADS: OnceLock<Heads> = OnceLock::new();
    HEADS.get_or_init(|| {
        let node = Node::new().expect("a Node");
        let port = node.port();
        let paging = PagingClient::new(port.make_send());
        let request = RequestClient::new(port.make_send());
        let offered = OfferedClient::new(port.make_send());
        let offered = offered.with_timeout(Duration::ZERO);
        Heads {
            paging: head(&port, || paging.terminate().expect("told")),
            request: head(&port, || request.data_taken(1).expect("told")),
            offered: head(&port, || drop(offered.init(node.port().make_send()))),
            node,
            port,
        }
    })
}

/// A pager and a kernel answer whatever they are told, or take no notice of it.
pub(crate) fn run(input: &[u8]) {
    let Some((which, input)) = input.split_first() else {
        return;
    };
    let it = heads();
    let (node, port) = (&it.node, &it.port);
    match which % 3 {
        0 => serve(node, port, &it.offered, input, &mut |call| {
            OfferedCalls::dispatch(&mut Anything, call)
        }),
        1 => serve(node, port, &it.paging, input, &mut |call| {
            PagingCalls::dispatch(&mut Anything, call)
        }),
        _ => serve(node, port, &it.request, input, &mut |call| {
            RequestCalls::dispatch(&mut Anything, call)
        }),
    }
}

/// A message of each kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0x01],
        vec![1, 0x00, 1, 2, 3, 1, 0, 1],
        vec![1, 0x10, 1, 2, 1, 3, 7, 8, 9],
        vec![1, 0x20, 4],
        vec![1, 0x30],
        vec![2, 0x00, 1, 0, 1, 1, 3, 7, 8, 9],
        vec![2, 0x02, 1, 0, 0, 0],
        vec![2, 0x10, 1, 4],
        vec![2, 0x20, 1, 2, b'n', b'o'],
        vec![2, 0x50, 1, 4, 1],
        vec![2, 0x60, 16],
    ]
}
