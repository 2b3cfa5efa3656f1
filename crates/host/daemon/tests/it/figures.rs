//! What the host kernel tells of itself.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use farpage_client::{Error, Host, Refusal, Shared, times};
use farpage_object::PAGE_BYTES;

use crate::support::{PROGRAM, Program, RAM, run_host};

/// The host kernel, or another user; nothing when it is run as a test.
#[test]
fn the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("host") => run_host(),
        Ok(_) => looks(),
        Err(_) => {}
    }
}

/// Says what this user is told.
fn looks() -> ! {
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    let figures = host.figures().unwrap();
    let (seen, pagers) = (figures.objects.len(), figures.pagers.len());
    let messages = match host.messages("secret", 0) {
        Err(Error::Refused(refusal)) => refusal.to_string(),
        other => format!("{other:?}"),
    };
    println!(
        "> {seen} of {}, {pagers} pagers; {messages}",
        figures.objects_all
    );
    std::process::exit(0);
}

fn host() -> (tempfile::TempDir, Program, Host) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    let kernel = Program::start("figures::host", &socket);
    let host = Host::connect(&socket).unwrap();
    (folder, kernel, host)
}

fn write_all(shared: &Shared) {
    let pages = shared.words().iter().step_by(PAGE_BYTES / 8);
    pages.for_each(|word| word.store(1, Ordering::Relaxed));
}

#[test]
fn figures_say_what_there_is_who_has_it_and_how_fast_it_comes() {
    let (_folder, kernel, host) = host();
    let one = host.create("big", 3 * RAM).unwrap();
    let again = host.open("big").unwrap();
    let _unnamed = host.create("", 5000).unwrap();
    write_all(&one);
    write_all(&again);
    let figures = host.figures().unwrap();
    assert_eq!((figures.pid, figures.ram_bytes), (kernel.child.id(), RAM));
    assert_eq!((figures.objects_all, figures.objects.len()), (2, 2));
    let names = figures.objects.iter().map(|object| object.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["", "big"]);
    let big = &figures.objects[1];
    assert_eq!(
        big.mapped_by,
        [(std::process::id(), 2)],
        "once, with its count"
    );
    assert_eq!((big.bytes, big.wired_bytes), (3 * RAM, 0));
    assert!(big.dirty_bytes > 0 && big.resident_bytes >= big.dirty_bytes);
    assert!(
        big.paged_out_bytes >= 2 * RAM && big.paged_in_bytes > 0,
        "{big:?}"
    );
    let faults = times(&big.faults);
    assert!(faults.count() > 100 && faults.quantile_ns(0.5) <= faults.quantile_ns(0.99));
    let pager = &figures.pagers[big.pager as usize];
    assert_eq!((pager.name.as_str(), pager.errors), ("paging space", 0));
    assert!(pager.calls > 0 && !pager.is_silent(), "{pager:?}");
    assert_eq!((figures.no_room, figures.paging_space), (None, None));
}

#[test]
fn messages_of_an_object_are_told_while_somebody_asks() {
    let (_folder, _kernel, host) = host();
    let shared = host.create("x", 3 * RAM).unwrap();
    assert_eq!(host.messages("x", 0).unwrap(), (0, Vec::new()));
    for _ in 0..2 {
        write_all(&shared);
        // Who does not ask for a while is told no more.
        assert!(host.messages("x", 0).is_ok());
    }
    let mut from = 0;
    let (mut what, mut lost) = (Vec::new(), 0);
    loop {
        let (first, messages) = host.messages("x", from).unwrap();
        assert!(messages.len() <= 512);
        if messages.is_empty() {
            break;
        }
        lost += first - from;
        from = first + messages.len() as u64;
        for message in messages {
            assert!(message.offset + message.bytes <= 3 * RAM);
            what.push(message.what);
        }
    }
    for wanted in ["write", "return", "taken", "aside", "request", "supply"] {
        assert!(
            what.iter().any(|what| what == wanted),
            "{wanted}: {lost} lost of {from}"
        );
    }
    let many: Vec<Shared> = (0..16)
        .map(|n| host.create(&format!("n{n}"), 4096).unwrap())
        .collect();
    assert!(host.messages("x", from).is_ok());
    let told = many.iter().map(|one| host.messages(one.name(), 0).is_ok());
    assert_eq!(told.filter(|told| *told).count(), 15, "16 with that before");
    let refused = host.messages("y", 0);
    assert!(matches!(refused, Err(Error::Refused(Refusal::NotFound(_)))));
}

#[test]
fn another_user_is_told_nothing_of_objects_that_are_not_its_own() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root, to be another user");
    }
    let (folder, _kernel, host) = host();
    let _secret = host.create("secret", 4096).unwrap();
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let socket = folder.path().join("host");
    let program = folder.path().join("program");
    farpage_testkit::copy_program(std::env::current_exe().unwrap(), &program).unwrap();
    [folder.path(), &socket, &program]
        .into_iter()
        .for_each(open);
    let mut command = Command::new(program);
    command.args(["figures::the_program", "--exact", "--nocapture"]);
    command.env(PROGRAM, "looks").env("FARPAGE_HOST", &socket);
    let output = command.uid(65534).gid(65534).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("> 0 of 1, 0 pagers; 'secret' is another user's"),
        "{said}"
    );
}
