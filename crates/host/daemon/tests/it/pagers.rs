//! Pagers in other processes, that answer, hang, die and come back: all of them processes.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_client::pager::MemoryObjects;
use farpage_client::{Error, Host, Refusal};
use farpage_object::PageRange;

use crate::support::pagers::{
    PAGE, SIGBUS, SIGSEGV, Stored, World, ends_by, run_client, run_pager, send,
};
use crate::support::{PROGRAM, RAM, run_host, until, until_gone};

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("host") => run_host(),
        Ok("pager") => run_pager(),
        Ok("client") => run_client(),
        _ => {}
    }
}

#[test]
fn what_is_written_comes_back_from_a_pager_in_another_process() {
    let world = World::new();
    let bytes = 3 * RAM;
    let pager = world.pager(&format!("x {bytes} wait rw"));
    let (mut one, mut other) = (world.client("x"), world.client("x"));
    assert_eq!(one.does("read 5"), "0", "zeros where there are no contents");
    assert_eq!(one.does("fill 7"), "done");
    assert_eq!(other.does("check 7"), "right");
    assert_eq!(other.does("fill 100"), "done");
    assert_eq!(one.does("check 100"), "right");
    assert!(world.host.status().unwrap().resident_bytes <= RAM + (1 << 20));
    // Written back when nobody maps it any more, though the pager lives.
    drop((one, other));
    world.until_stored("x", 100, bytes);
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn what_nobody_has_any_more_is_with_its_pager() {
    let world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let mut client = world.client("x");
    assert_eq!(client.does("fill 3"), "done");
    client.dies();
    // The pager itself holds the object; it is not mapped, and lives on in memory.
    let mut client = world.client("x");
    assert_eq!(client.does("check 3"), "right");
    assert_eq!(pager.does("clean 0 10"), "done");
    assert!(
        world
            .stored("x")
            .iter()
            .enumerate()
            .all(|(at, word)| *word == at as u64 / 512 + 3)
    );
    assert_eq!(client.does("write 2 99"), "done");
    assert_eq!(pager.does("flush 0 10"), "done");
    assert_eq!(world.stored("x")[2 * 512], 99);
    assert_eq!(client.does("read 2"), "99");
    drop((client, pager));
    world.ends();
}

#[test]
fn who_writes_to_what_can_only_be_read_is_ended() {
    let world = World::new();
    std::fs::write(world.folder.path().join("x"), vec![1; 100_000]).unwrap();
    let pager = world.pager("x 100000 wait ro");
    let mut client = world.client("x");
    assert_eq!(client.does("read 3"), 0x0101_0101_0101_0101u64.to_string());
    send(&mut client, "write 3 4");
    assert_eq!(ends_by(client), Some(SIGSEGV));
    pager.dies();
    world.ends();
}

#[test]
fn a_page_that_the_pager_does_not_have_is_an_error_that_says_why() {
    let world = World::new();
    std::fs::write(world.folder.path().join("x"), vec![1; 100_000]).unwrap();
    let pager = world.pager("x 100000 wait ro");
    let (mut client, mut other) = (world.client("x"), world.client("x"));
    send(&mut client, "read 13");
    assert_eq!(ends_by(client), Some(SIGBUS));
    let line = format!("cannot page in 'x' at byte {}: ", 13 * PAGE);
    let errors = world.errors();
    assert!(
        errors.contains(&line) && errors.contains("page 13 brings bad luck"),
        "{errors}"
    );
    assert_ne!(other.does("read 12"), "0");
    drop((other, pager));
    world.ends();
}

#[test]
fn a_pager_that_hangs_holds_up_its_own_object_and_only_until_patience_ends() {
    let world = World::new();
    let mut hangs = world.pager("hangs 8000000 500 rw");
    let pager = world.pager("x 12000000 wait rw");
    let mut waits = world.client("hangs");
    assert_eq!(hangs.does("hold"), "done");
    send(&mut waits, "read 3");
    until("it is asked", || hangs.does("held") == "1");
    let mut client = world.client("x");
    assert_eq!(client.does("fill 9"), "done");
    assert_eq!(client.does("check 9"), "right");
    assert_eq!(ends_by(waits), Some(SIGBUS));
    let errors = world.errors();
    assert!(
        errors.contains("'hangs' at byte 12288") && errors.contains("does not answer"),
        "{errors}"
    );
    assert!(errors.contains("start it again"), "{errors}");
    assert!(world.pager_of("hangs").is_behind);
    // Too late for that one, and in time for another: on a busy machine not for each.
    assert_eq!(hangs.does("go"), "done");
    until("it is in time", || {
        let mut next = world.client("hangs");
        send(&mut next, "read 3");
        match next.line_or_end() {
            Some(line) => line == "0",
            None => {
                assert_eq!(ends_by(next), Some(SIGBUS));
                false
            }
        }
    });
    until("it keeps up", || !world.pager_of("hangs").is_behind);
    client.dies();
    world.until_stored("x", 9, 12_001_280);
    world.ends_clean("x", pager);
    hangs.dies();
    world.ends();
}

#[test]
fn threads_wait_for_a_pager_that_died_and_the_next_one_answers() {
    let world = World::new();
    for step in ["die-in-request 0", "die-in-request 3"] {
        let mut pager = world.pager("x 4000000 wait rw");
        let mut client = world.client("x");
        assert_eq!(pager.does(step), "done");
        send(&mut client, "fill 5");
        assert_eq!(ends_by(pager), Some(6));
        until("it is known to be gone", || !world.pager_of("x").is_up);
        let pager = world.pager("x 4000000 wait rw");
        assert_eq!(client.line(), "done");
        assert_eq!(client.does("check 5"), "right");
        client.dies();
        world.until_stored("x", 5, 4_001_792);
        world.ends_clean("x", pager);
        until_gone(&world.host);
    }
    world.ends();
}

#[test]
fn a_pager_that_dies_fails_its_threads_when_patience_ends() {
    let world = World::new();
    let mut pager = world.pager("x 4000000 3000 rw");
    let mut client = world.client("x");
    assert_eq!(pager.does("hold"), "done");
    send(&mut client, "read 9");
    until("it is asked", || pager.does("held") == "1");
    pager.dies();
    until("it is known to be gone", || !world.pager_of("x").is_up);
    assert_eq!(ends_by(client), Some(SIGBUS));
    let errors = world.errors();
    assert!(
        errors.contains("'x' at byte 36864: its pager (process"),
        "{errors}"
    );
    assert!(
        errors.contains(") is gone") && errors.contains("start it again"),
        "{errors}"
    );
    world.ends();
}

#[test]
fn what_a_pager_does_not_take_is_kept_and_given_to_it_later() {
    let world = World::new();
    let bytes = 3 * RAM;
    let mut pager = world.pager(&format!("x {bytes} wait rw"));
    let mut client = world.client("x");
    assert_eq!(pager.does("hold-writes"), "done");
    // More than memory holds: it goes to the default pager meanwhile, and comes back from there.
    assert_eq!(client.does("fill 7"), "done");
    assert_eq!(client.does("check 7"), "right");
    assert_eq!(client.does("fill 8"), "done");
    let listed = world.pager_of("x");
    assert!(listed.kept_bytes > RAM && listed.is_behind, "{listed:?}");
    assert_eq!(pager.does("go-writes"), "done");
    until("it has taken all", || world.pager_of("x").kept_bytes == 0);
    assert_eq!(client.does("check 8"), "right");
    client.dies();
    world.until_stored("x", 8, bytes);
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn what_a_pager_refuses_is_kept_and_offered_again() {
    let world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let mut client = world.client("x");
    assert_eq!(pager.does("refuse-writes"), "done");
    assert_eq!(client.does("fill 3"), "done");
    let refused = pager.does("clean 0 10");
    assert!(refused.ends_with("the disk is full"), "{refused}");
    assert_eq!(world.pager_of("x").kept_bytes, 40960);
    let errors = world.errors();
    assert!(
        errors.contains("does not take modified pages: the disk is full"),
        "{errors}"
    );
    assert_eq!(pager.does("take-writes"), "done");
    until("it has taken all", || world.pager_of("x").kept_bytes == 0);
    assert!(
        world
            .stored("x")
            .iter()
            .enumerate()
            .all(|(at, word)| *word == at as u64 / 512 + 3)
    );
    drop((client, pager));
    world.ends();
}

#[test]
fn a_pager_that_dies_while_it_is_written_to_loses_nothing() {
    let world = World::new();
    let bytes = 3 * RAM;
    let what = format!("x {bytes} wait rw");
    for (round, dies_in) in [0, 1, 30].into_iter().enumerate() {
        let add = round as u64 * 10;
        let mut pager = world.pager(&what);
        let mut client = world.client("x");
        assert_eq!(pager.does(&format!("die-in-write {dies_in}")), "done");
        send(&mut client, &format!("fill {add}"));
        assert_eq!(ends_by(pager), Some(6));
        let pager = world.pager(&what);
        assert_eq!(client.line(), "done");
        assert_eq!(client.does(&format!("check {add}")), "right");
        client.dies();
        world.until_stored("x", add, bytes);
        world.ends_clean("x", pager);
        until_gone(&world.host);
    }
    world.ends();
}

#[test]
fn modified_pages_of_a_pager_that_is_gone_wait_for_the_next() {
    let world = World::new();
    let pager = world.pager("x 40960 wait rw");
    let mut client = world.client("x");
    assert_eq!(client.does("fill 4"), "done");
    pager.dies();
    until("it is known to be gone", || !world.pager_of("x").is_up);
    client.dies();
    until("it is kept", || world.pager_of("x").kept_bytes == 40960);
    assert_eq!(
        world.host.list().unwrap().len(),
        1,
        "it is not lost with its last user"
    );
    // One with another size is another object.
    let mut other = world.start("pager");
    let refused = other.does("offer x 4096 wait rw");
    assert!(refused.contains("answers for 'x' already"), "{refused}");
    let pager = world.pager("x 40960 wait rw");
    world.until_stored("x", 4, 40960);
    world.ends_clean("x", pager);
    drop(other);
    world.ends();
}

#[test]
fn a_request_that_the_pager_drops_is_an_error() {
    let world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let mut client = world.client("x");
    assert_eq!(pager.does("hold"), "done");
    send(&mut client, "read 1");
    until("it is asked", || pager.does("held") == "1");
    assert_eq!(pager.does("drop"), "done");
    assert_eq!(ends_by(client), Some(SIGBUS));
    drop(pager);
    world.ends();
}

#[test]
fn a_name_has_one_pager_and_what_is_no_object_is_refused() {
    let world = World::new();
    let pager = world.pager("x 40960 wait rw");
    let mut other = world.start("pager");
    let refused = other.does("offer x 40960 wait rw");
    assert!(
        refused.contains(&format!("process {} answers for 'x'", pager.child.id())),
        "{refused}"
    );
    assert!(matches!(
        world.host.create("x", 10),
        Err(Error::Refused(Refusal::Exists(_)))
    ));
    let shared = world.host.create("y", 10).unwrap();
    let refused = other.does("offer y 40960 wait rw");
    assert!(refused.contains("'y' already"), "{refused}");
    let refused = other.does("offer z 0 wait rw");
    assert!(refused.contains("of 0 bytes cannot be made"), "{refused}");
    let node = world.host.node().unwrap();
    let error = world
        .host
        .map_object(&node.port().make_send(), None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("pager"), "{error}");
    drop((shared, pager, other));
    world.ends();
}

#[test]
fn an_object_is_mapped_by_who_was_given_a_right_to_it() {
    let world = World::new();
    let stored = Stored::new("given", 50_000, true, tempfile::tempfile().unwrap());
    // The pager listens somewhere, and gives a right to its object to whoever comes.
    let node = farpage_port::Node::new().unwrap();
    let objects = MemoryObjects::new(&node).unwrap();
    let right = objects.add(stored.clone());
    let path = world.folder.path().join("pager");
    let listening = node.listen(&path, &right).unwrap();
    let client = Host::connect(&world.folder.path().join("host")).unwrap();
    let given = client.node().unwrap().connect(&path, None).unwrap();
    let one = client
        .map_object(&given, Some(Duration::from_secs(9)))
        .unwrap();
    one.words()[700].store(5, Ordering::Relaxed);
    let other = world.host.open("given").unwrap();
    assert_eq!(other.words()[700].load(Ordering::Relaxed), 5);
    assert_eq!((other.bytes(), one.name()), (50_000, "given"));
    drop((one, other));
    until("it has taken all", || {
        stored.told.lock().unwrap().ended == 1
    });
    let mut word = [0; 8];
    stored.file.read_exact_at(&mut word, 5600).unwrap();
    assert_eq!(u64::from_le_bytes(word), 5);
    drop(listening);
    world.ends();
}

#[test]
fn a_host_kernel_that_is_to_end_hands_over_what_was_modified() {
    let mut world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let mut slow = world.pager("slow 4096 wait rw");
    let (mut client, mut other) = (world.client("x"), world.client("slow"));
    assert_eq!(client.does("fill 6"), "done");
    assert_eq!(other.does("fill 1"), "done");
    // Late, and taken in the end.
    assert_eq!(slow.does("hold-writes"), "done");
    send(&mut world.kernel, "end");
    until("it is late", || {
        slow.does("writes") == "1" && world.pager_of("slow").is_behind
    });
    assert_eq!(slow.does("go-writes"), "done");
    assert_eq!(world.kernel.line(), "0");
    assert_eq!(
        (pager.does("writes"), world.stored("x").len()),
        ("2".into(), 5120)
    );
    world.until_stored("x", 6, 40960);
    assert_eq!(world.stored("slow")[0], 1);
    // What a pager does not take is counted.
    assert_eq!(client.does("fill 7"), "done");
    pager.dies();
    until("it is known to be gone", || !world.pager_of("x").is_up);
    assert_eq!(world.kernel.does("end"), "40960");
    let pager = world.pager("x 40960 wait rw");
    world.until_stored("x", 7, 40960);
    world.ends_clean("x", pager);
    drop((client, other, slow));
    world.ends();
}

#[test]
fn one_pager_serves_several_kernels() {
    let (one, other) = (World::new(), World::new());
    let stored = Stored::new("both", 50_000, true, tempfile::tempfile().unwrap());
    let first = one.host.offer(stored.clone(), None).unwrap();
    let second = other.host.offer(stored.clone(), None).unwrap();
    let (mut writes, mut reads) = (one.client("both"), other.client("both"));
    assert_eq!(writes.does("write 3 17"), "done");
    assert_eq!(reads.does("read 3"), "0");
    let all = PageRange::new(0, 13);
    let kernels = stored.kernels.lock().unwrap().clone();
    assert_eq!(kernels.len(), 2);
    // What one has written the other sees when the pager wants it so.
    kernels[0].flush(all).unwrap();
    kernels[1].flush(all).unwrap();
    assert_eq!(reads.does("read 3"), "17");
    // One of them dies.
    let World {
        kernel,
        host,
        folder,
    } = one;
    drop((writes, first));
    kernel.dies();
    until("its end is told", || stored.told.lock().unwrap().ended == 1);
    assert_eq!(reads.does("write 4 1"), "done");
    assert!(kernels[0].clean(all).is_err());
    kernels[1].clean(all).unwrap();
    drop((reads, second, host, folder));
    other.ends();
}
