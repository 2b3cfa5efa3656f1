//! Calls and answers of an interface that are not what was declared.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use farpage_port::interface::{Answer, Both, Contents, Fd};
use farpage_port::link::{Draft, Sealed};
use farpage_port::{
    Memory, Message, Node, ReceiveRight, Received, Right, SendOnceRight, SendRight, Sender,
    interface,
};

interface! {
    /// Takes one of each kind.
    pub(crate) trait Kinds, client KindsClient, "farpage.fuzz" version 1 {
        /// What serde knows.
        fn values(
            number: u64, text: String, list: Vec<(u16, Option<bool>)>, either: Result<i32, String>,
        ) -> Vec<Option<String>>;
        /// Rights.
        fn rights(send: SendRight, once: SendOnceRight) -> Both<u8, SendRight>;
        /// A receive right.
        fn receive(right: ReceiveRight);
        /// What is not looked at one by one.
        fn contents(before: u8, contents: Contents, after: u8) -> Contents;
        /// Memory and descriptors.
        fn memory(memory: Memory, file: Fd) -> Both<Memory, Fd>;
        /// Answered later.
        fn later(number: u32) => Result<String, u8>;
    }
}

struct Server;

impl Kinds for Server {
    fn values(
        &mut self,
        _: Sender,
        number: u64,
        text: String,
        list: Vec<(u16, Option<bool>)>,
        either: Result<i32, String>,
    ) -> Vec<Option<String>> {
        assert!(list.len() <= 1 << 16 && text.len() <= 1 << 16);
        vec![Some(text), either.err(), (number == 0).then(String::new)]
    }
    fn rights(&mut self, _: Sender, send: SendRight, _: SendOnceRight) -> Both<u8, SendRight> {
        Both(1, send)
    }
    fn receive(&mut self, _: Sender, _: ReceiveRight) {}
    fn contents(&mut self, _: Sender, _: u8, contents: Contents, _: u8) -> Contents {
        assert!(contents.len() <= 1 << 16);
        contents
    }
    fn memory(&mut self, _: Sender, memory: Memory, file: Fd) -> Both<Memory, Fd> {
        Both(memory, file)
    }
    fn later(&mut self, _: Sender, number: u32, answer: Answer<Result<String, u8>>) {
        let _ = match number % 3 {
            0 => return,
            1 => answer.give(Ok("later".into())),
            _ => answer.give(Err(2)),
        };
    }
}

/// A message as the input says: a byte for the method and what is beside, then the bytes, behind
/// the `head` of the interface or without it.
pub(crate) fn message(node: &Node, head: &[u8], input: &[u8]) -> Message {
    let [flags, bytes @ ..] = input else {
        return Message::new(0);
    };
    let mut message = Message::new(u32::from(flags >> 4));
    if flags & 8 == 0 {
        message.bytes.extend(head);
    }
    message.bytes.extend(bytes);
    message.bytes.truncate(64 << 10);
    if flags & 1 != 0 {
        let port = node.port();
        message.rights.push(port.make_send().into());
        message.rights.push(port.make_send_once().into());
        message.rights.push(port.into());
    }
    if flags & 2 != 0 {
        let draft = Draft::create(c"fuzz", 4096).expect("memory");
        let sealed = Sealed::new(draft).expect("sealed");
        message.memory.push(Memory::Donated(sealed.into()));
    }
    if flags & 4 != 0 {
        let file: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
        message.descriptors.push(file);
    }
    message
}

/// What an interface's messages begin with, learnt from one.
pub(crate) fn head(port: &ReceiveRight, tell: impl FnOnce()) -> Vec<u8> {
    tell();
    let received = port.receive(Some(Duration::ZERO)).expect("what was told");
    received.bytes[..12].to_vec()
}

struct Caller {
    node: Node,
    port: ReceiveRight,
    head: Vec<u8>,
    /// Makes calls, to be answered by what is sent here.
    answers: SyncSender<Vec<u8>>,
    done: std::sync::Mutex<Receiver<()>>,
}

fn caller() -> &'static Caller {
    static CALLER: OnceLock<Caller> = OnceLock::new();
    CALLER.get_or_init(|| {
        let node = Node::new().expect("a Node");
        let port = node.port();
        let client = KindsClient::new(port.make_send());
        let head = head(&port, || client.receive(node.port()).expect("told"));
        let (answers, calls) = sync_channel(0);
        let (finished, done) = sync_channel(0);
        let of_thread = (node.clone(), head.clone());
        std::thread::spawn(move || call(&of_thread.0, &of_thread.1, &calls, &finished));
        Caller {
            node,
            port,
            head,
            answers,
            done: std::sync::Mutex::new(done),
        }
    })
}

/// Calls every method; whoever answers says what the input says.
fn call(node: &Node, head: &[u8], inputs: &Receiver<Vec<u8>>, finished: &SyncSender<()>) {
    let input = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let port = node.port();
    let client = KindsClient::new(port.make_send());
    let answering = (node.clone(), head.to_vec(), std::sync::Arc::clone(&input));
    std::thread::spawn(move || {
        while let Ok(mut call) = port.receive(None) {
            let answer = message(
                &answering.0,
                &answering.1,
                &answering.2.lock().expect("mine"),
            );
            let _ = call.answer(answer);
        }
    });
    for next in inputs {
        *input.lock().expect("mine") = next;
        let _ = client.values(1, String::new(), Vec::new(), Ok(1));
        let _ = client.rights(node.port().make_send(), node.port().make_send_once());
        let _ = client.contents(1, vec![1].into(), 2);
        let _ = client.later(1);
        finished.send(()).expect("waited for");
    }
}

/// A server answers whatever it is asked, or says that it is garbled; a client gets an answer or an
/// error.
pub(crate) fn run(input: &[u8]) {
    let it = caller();
    serve(&it.node, &it.port, &it.head, input, &mut |call| {
        Server.dispatch(call)
    });
    it.answers.send(input.to_vec()).expect("the thread lives");
    it.done.lock().expect("mine").recv().expect("it lives");
}

/// Has `dispatch` answer what the input asks, and checks that it is answered.
pub(crate) fn serve(
    node: &Node,
    port: &ReceiveRight,
    head: &[u8],
    input: &[u8],
    dispatch: &mut dyn FnMut(Received) -> Result<(), Box<Received>>,
) {
    let reply = REPLY.with_borrow_mut(|reply| reply.take().unwrap_or_else(|| node.port()));
    let mut call = message(node, head, input);
    call.reply = Some(Right::SendOnce(reply.make_send_once()));
    port.make_send()
        .send(call, Some(Duration::ZERO))
        .expect("sent");
    let received = port.receive(Some(Duration::ZERO)).expect("the call");
    dispatch(received).expect("no notice");
    // An answer, or the notice that there is none.
    reply
        .receive(Some(Duration::ZERO))
        .expect("an end of the call");
    REPLY.set(Some(reply));
}

thread_local! {
    static REPLY: RefCell<Option<ReceiveRight>> = const { RefCell::new(None) };
}

/// A call of each method.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 5, 2, b'h', b'i', 1, 3, 1, 1, 0, 2],
        vec![0x11],
        vec![0x21],
        vec![0x30, 1, 1, 2, 7, 8, 2],
        vec![0x32, 1, 0, 2],
        vec![0x46],
        vec![0x50, 1],
        vec![0x58, 1, 2, 3],
    ]
}
