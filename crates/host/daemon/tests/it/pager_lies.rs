//! Pagers that lie, flood, and speak other versions: by hand, where the library would not let them.

use std::time::Duration;

use farpage_client::{Error, Host};
use farpage_port::interface::{Both, Contents, InvokeError};
use farpage_port::{Message, Node, ReceiveRight, SendRight, Sender, interface};
use serde::{Deserialize, Serialize};

use crate::support::pagers::{PAGE, SIGBUS, World, ends_by, send};
use crate::support::until;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    name: String,
    bytes: u64,
    writable: bool,
    cluster_pages: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Wanted {
    first: u64,
    pages: u64,
    needed: u64,
    write: bool,
    ahead: bool,
}

interface! {
    /// As it is declared.
    trait Offered, client OfferedByHand, "farpage.memory-object" version 1 {
        /// See there.
        fn init(kernel: SendRight) -> Both<Result<Ready, String>, SendRight>;
    }
}

interface! {
    /// As it is declared.
    trait Paging, client PagingByHand, "farpage.pager" version 2 {
        /// See there.
        fn data_request(id: u64, wanted: Wanted);
        /// See there.
        fn data_write(id: u64, first: u64, contents: Contents);
        /// See there.
        fn data_unlock(page: u64);
        /// See there.
        fn terminate();
    }
}

interface! {
    /// As it is declared.
    trait Request, client RequestByHand, "farpage.pager-request" version 2 {
        /// See there.
        fn data_provided(id: u64, how: (bool, bool), contents: Contents);
        /// See there.
        fn data_unavailable(id: u64, pages: u64);
        /// See there.
        fn data_error(id: u64, why: String);
        /// See there.
        fn data_taken(id: u64);
        /// See there.
        fn data_refused(id: u64, why: String);
        /// See there.
        fn lock_request(first: u64, pages: u64, order: u8) => Result<(), String>;
        /// See there.
        fn set_attributes(cluster_pages: u32);
    }
}

mod newer {
    farpage_port::interface! {
        /// What it will be.
        pub trait Offered, client OfferedByHand, "farpage.memory-object" version 2 {
            /// Knows more of kernels.
            fn init(kernel: farpage_port::SendRight, page_bytes: u32) -> ();
        }
    }
}

/// Neither precious nor locked.
const KEPT: (bool, bool) = (false, false);

/// What a liar does when it is asked for pages.
type Lie = fn(&RequestByHand, u64, Wanted);

struct Liar {
    about: Ready,
    lie: Lie,
    node: Node,
    kernel: Option<RequestByHand>,
    paging: Option<ReceiveRight>,
    is_over: bool,
}

impl Offered for Liar {
    fn init(&mut self, _: Sender, kernel: SendRight) -> Both<Result<Ready, String>, SendRight> {
        let port = self.node.port();
        port.set_limit(64);
        let right = port.make_send();
        self.kernel = Some(RequestByHand::new(kernel));
        self.paging = Some(port);
        Both(Ok(self.about.clone()), right)
    }
}

impl Paging for Liar {
    fn data_request(&mut self, _: Sender, id: u64, wanted: Wanted) {
        (self.lie)(self.kernel.as_ref().unwrap(), id, wanted);
    }

    fn data_write(&mut self, _: Sender, id: u64, _: u64, _: Contents) {
        self.kernel.as_ref().unwrap().data_taken(id).unwrap();
    }

    fn data_unlock(&mut self, _: Sender, page: u64) {
        unreachable!("page {page} is not locked");
    }

    fn terminate(&mut self, _: Sender) {
        self.is_over = true;
    }
}

/// How long a page may take: a pager that has lied may be started again in this time, and a fault waits so long.
const PAGE_MAX: Duration = Duration::from_secs(20);

/// Offers an object that is answered for by lies, until the kernel lets go of it.
fn lies(world: &World, name: &str, lie: Lie) -> std::thread::JoinHandle<()> {
    let host = Host::connect(&world.folder.path().join("host")).unwrap();
    let node = host.node().unwrap();
    let object = node.port();
    let right = object.make_send();
    let mut liar = Liar {
        about: Ready {
            name: name.into(),
            bytes: 1 << 20,
            writable: true,
            cluster_pages: 4,
        },
        lie,
        node: node.clone(),
        kernel: None,
        paging: None,
        is_over: false,
    };
    let serving = std::thread::spawn(move || {
        Offered::dispatch(&mut liar, object.receive(None).unwrap()).unwrap();
        let paging = liar.paging.take().unwrap();
        paging.notify_no_senders(1, &paging);
        while !liar.is_over {
            // A notice: the kernel has let go of it without a word.
            if Paging::dispatch(&mut liar, paging.receive(None).unwrap()).is_err() {
                break;
            }
        }
    });
    let mapped = host.map_object(&right, Some(PAGE_MAX)).unwrap();
    // It stays by its name as long as the client has it.
    std::thread::spawn(move || {
        let (host, mapped) = (host, mapped);
        let _ = serving.join();
        drop((mapped, host));
    })
}

fn pages(count: u64) -> Contents {
    vec![7; count as usize * PAGE].into()
}

/// What breaks the protocol, and what the host kernel says then.
const BREAK: [(&str, &str, Lie); 7] = [
    (
        "more",
        "supplied 5 pages where it was asked for 4",
        |kernel, id, wanted| {
            kernel
                .data_provided(id, KEPT, pages(wanted.pages + 1))
                .unwrap();
        },
    ),
    ("none", "supplied 0 pages", |kernel, id, _| {
        kernel.data_provided(id, KEPT, pages(0)).unwrap();
    }),
    ("part", "supplied a part of a page", |kernel, id, _| {
        kernel.data_provided(id, KEPT, vec![7; 100].into()).unwrap();
    }),
    ("unasked", "which it was not asked", |kernel, id, _| {
        kernel.data_provided(id + 1000, KEPT, pages(1)).unwrap();
    }),
    ("twice", "which it was not asked", |kernel, id, wanted| {
        if wanted.first == 0 {
            kernel.data_provided(id, KEPT, pages(1)).unwrap();
            kernel.data_provided(id, KEPT, pages(1)).unwrap();
        }
    }),
    (
        "zeros",
        "pages where it was asked for 4",
        |kernel, id, _| {
            kernel.data_unavailable(id, u64::MAX).unwrap();
        },
    ),
    ("taken", "which it was not asked", |kernel, _, _| {
        kernel.data_taken(77).unwrap();
    }),
];

#[test]
fn a_pager_that_lies_is_not_asked_any_more_and_fails_its_own_object_only() {
    let world = World::new();
    let honest = world.pager("honest 4000000 wait rw");
    let mut client = world.client("honest");
    // All at once: each waits as long as a page may take.
    let begun = BREAK.map(|(name, says, lie)| {
        let lying = lies(&world, name, lie);
        let mut victim = world.client(name);
        if name == "twice" {
            assert_eq!(victim.does("read 0"), 0x0707_0707_0707_0707u64.to_string());
        }
        send(&mut victim, "read 100");
        (name, says, lying, victim)
    });
    for (name, says, lying, victim) in begun {
        assert_eq!(ends_by(victim), Some(SIGBUS), "{name}");
        let errors = world.errors();
        let line = format!("the pager of '{name}'");
        let line = errors
            .lines()
            .find(|error| error.contains(&line))
            .unwrap_or("");
        assert!(
            line.contains(says) && line.contains("mend it; start it again"),
            "{name}: {errors}"
        );
        assert!(
            errors.contains(&format!("'{name}' at byte 409600: ")),
            "{errors}"
        );
        assert_eq!(client.does("fill 5"), "done");
        assert_eq!(client.does("check 5"), "right");
        lying.join().unwrap();
    }
    world.ends_clean("honest", honest);
    drop(client);
    world.ends();
}

#[test]
fn garbage_and_floods_of_a_pager_are_borne() {
    let mut world = World::new();
    let honest = world.pager("honest 4000000 wait rw");
    let mut client = world.client("honest");
    let lying = lies(&world, "floods", |kernel, id, wanted| {
        for round in 0..3000u32 {
            let bytes: Vec<u8> = (0..round % 200).map(|at| (at * round) as u8).collect();
            let garbage = Message {
                bytes,
                ..Message::new(round % 9)
            };
            kernel.right().send(garbage, None).unwrap();
            kernel.set_attributes(round << 20).unwrap();
        }
        round_trips(kernel);
        kernel.data_provided(id, KEPT, pages(wanted.pages)).unwrap();
    });
    let mut victim = world.client("floods");
    send(&mut victim, "read 100");
    for round in 0..5 {
        assert_eq!(client.does(&format!("fill {round}")), "done");
        assert_eq!(client.does(&format!("check {round}")), "right");
    }
    assert_eq!(victim.line(), 0x0707_0707_0707_0707u64.to_string());
    victim.dies();
    until("it is let go of", || {
        let listed = world.host.list().unwrap();
        listed.iter().all(|one| one.mapped_by.len() < 2)
    });
    world.kernel_lives();
    drop(client);
    world.ends_clean("honest", honest);
    drop(world);
    lying.join().unwrap();
}

/// Orders that make no sense.
fn round_trips(kernel: &RequestByHand) {
    for (first, pages) in [(u64::MAX, u64::MAX), (0, 0), (1 << 60, 9)] {
        for order in 0..4 {
            let _ = kernel.lock_request(first, pages, order).unwrap();
        }
    }
    assert!(matches!(
        kernel.lock_request(0, 1, 9),
        Err(InvokeError::Garbled("arguments", _))
    ));
}

#[test]
fn a_pager_of_another_version_is_told_which_to_update() {
    struct Newer;
    impl newer::Offered for Newer {
        fn init(&mut self, _: Sender, _: SendRight, _: u32) {}
    }
    let world = World::new();
    let node = world.host.node().unwrap();
    let object = node.port();
    let right = object.make_send();
    let serving = std::thread::spawn(move || {
        let received = object.receive(None).unwrap();
        newer::Offered::dispatch(&mut Newer, received).unwrap();
    });
    let error = world.host.map_object(&right, None).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, Error::Refused(_)), "{text}");
    let versions = "the server speaks version 2 of farpage.memory-object, this program version 1";
    assert!(
        text.contains(versions) && text.contains("update the older"),
        "{text}"
    );
    serving.join().unwrap();
    world.ends();
}

#[test]
fn while_a_pager_does_not_begin_others_do_and_too_many_are_refused() {
    let world = World::new();
    let pager = world.pager("x 40960 wait rw");
    let node = world.host.node().unwrap();
    let silent: Vec<ReceiveRight> = (0..12).map(|_| node.port()).collect();
    let socket = world.folder.path().join("host");
    let refused: Vec<String> = std::thread::scope(|scope| {
        let ask = |port: &ReceiveRight| {
            let (right, host) = (port.make_send(), &world.host);
            scope.spawn(move || host.map_object(&right, None).err().unwrap().to_string())
        };
        let asking: Vec<_> = silent.iter().map(ask).collect();
        let other = Host::connect(&socket).unwrap();
        let mut client = world.client("x");
        assert_eq!(client.does("fill 2"), "done");
        assert_eq!(other.open("x").unwrap().bytes(), 40960);
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let count = |what: &str| refused.iter().filter(|why| why.contains(what)).count();
    assert!(count("too many pagers begin") > 0, "{refused:?}");
    assert!(
        count("it does not begin: no answer came in time") > 0,
        "{refused:?}"
    );
    until("the pager has all", || world.stored("x").len() == 5120);
    world.ends_clean("x", pager);
    drop(silent);
    world.ends();
}
