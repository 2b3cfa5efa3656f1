//! iceoryx2: requests and responses in shared memory, and events to sleep until there is one.

use std::thread;

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::{client, server};
use iceoryx2::prelude::{Config, EventId, NodeBuilder, PortFactory as _, ServiceName, ipc};
use iceoryx2::service::port_factory::{event, request_response};
use rustix::process::Signal;

use super::super::Channel;

type Node = iceoryx2::node::Node<ipc::Service>;
type Calls = request_response::PortFactory<ipc::Service, [u8], (), [u8], ()>;
type Client = client::Client<ipc::Service, [u8], (), [u8], ()>;
type Server = server::Server<ipc::Service, [u8], (), [u8], ()>;
type Pending = PendingResponse<ipc::Service, [u8], (), [u8], ()>;
type Events = event::PortFactory<ipc::Service>;

/// Looks at memory before a processor is given away.
const POLLS: u32 = 30;
const CALLED: &str = "called";
const ANSWERED: &str = "answered";
/// The event of a caller that lets go of its notifier.
const GONE: EventId = EventId::new(1);

/// A client, and a notifier and a listener for its calls and their answers.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let (node, name) = (node(), name());
    let client = client(&calls(&node, &name), bytes);
    let server = super::start("iceoryx2", processor, bytes, &name);
    let called = notifier(&node, &name, CALLED);
    let answered = listener(&node, &name, ANSWERED);
    let body = vec![1; bytes];
    let call = Box::new(move || {
        let pending = send(&client, &body);
        called.notify().expect("sent");
        while !is_answered(&pending, &body) {
            answered.blocking_wait(|_| ()).expect("an event");
        }
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(args: &[String]) {
    end_with_caller();
    let node = node();
    let server = answerer(&calls(&node, &args[1]), &args[0]);
    let called = listener(&node, &args[1], CALLED);
    let answered = notifier(&node, &args[1], ANSWERED);
    super::ready();
    let mut gone = false;
    while !gone {
        let wait = called.blocking_wait(|event| gone |= event.id == GONE);
        wait.expect("an event");
        while answer(&server) {
            answered.notify().expect("sent");
        }
    }
}

/// A client that looks for its answers.
pub(super) fn connect_polling(processor: u32, bytes: usize) -> Channel {
    let (node, name) = (node(), name());
    let client = client(&calls(&node, &name), bytes);
    let server = super::start("iceoryx2,_polling", processor, bytes, &name);
    let body = vec![1; bytes];
    let call = Box::new(move || {
        let pending = send(&client, &body);
        while !poll(|| is_answered(&pending, &body)) {}
    });
    Channel { server, call }
}

/// Sends back what it finds.
pub(super) fn serve_polling(args: &[String]) {
    end_with_caller();
    let calls = calls(&node(), &args[1]);
    let server = answerer(&calls, &args[0]);
    super::ready();
    while calls.dynamic_config().number_of_clients() > 0 {
        poll(|| answer(&server));
    }
}

/// Looks often, then lets others run: the other side may have no other processor.
fn poll(mut is_there: impl FnMut() -> bool) -> bool {
    let found = (0..POLLS).any(|_| is_there());
    if !found {
        thread::yield_now();
    }
    found
}

fn send(client: &Client, body: &[u8]) -> Pending {
    let request = client.loan_slice_uninit(body.len()).expect("memory");
    request.write_from_slice(body).send().expect("sent")
}

fn is_answered(pending: &Pending, body: &[u8]) -> bool {
    let Some(answer) = pending.receive().expect("received") else {
        return false;
    };
    assert_eq!(answer.payload().len(), body.len());
    true
}

/// Sends one request back, when there is one.
fn answer(server: &Server) -> bool {
    let Some(request) = server.receive().expect("received") else {
        return false;
    };
    let bytes = request.payload();
    let response = request.loan_slice_uninit(bytes.len()).expect("memory");
    response.write_from_slice(bytes).send().expect("answered");
    true
}

fn end_with_caller() {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a parent");
}

fn name() -> String {
    format!("farpage-bench/{}", std::process::id())
}

fn node() -> Node {
    let node = NodeBuilder::new().config(&Config::default());
    node.create().expect("a node")
}

fn calls(node: &Node, name: &str) -> Calls {
    let service = node.service_builder(&named(name));
    let service = service.request_response::<[u8], [u8]>().open_or_create();
    service.expect("a service")
}

fn client(calls: &Calls, bytes: usize) -> Client {
    let client = calls.client_builder().initial_max_slice_len(bytes);
    client.create().expect("a client")
}

fn answerer(calls: &Calls, bytes: &str) -> Server {
    let bytes = bytes.parse().expect("bytes");
    let server = calls.server_builder().initial_max_slice_len(bytes);
    server.create().expect("a server")
}

fn events(node: &Node, name: &str, what: &str) -> Events {
    let service = node.service_builder(&named(&format!("{name}/{what}")));
    let service = service.event().notifier_dropped_event(GONE);
    service.open_or_create().expect("a service")
}

fn listener(node: &Node, name: &str, what: &str) -> Listener<ipc::Service> {
    let events = events(node, name, what);
    events.listener_builder().create().expect("a listener")
}

fn notifier(node: &Node, name: &str, what: &str) -> Notifier<ipc::Service> {
    let events = events(node, name, what);
    events.notifier_builder().create().expect("a notifier")
}

fn named(name: &str) -> ServiceName {
    name.try_into().expect("a name")
}
