//! Memory whose home has a file of what was flushed.

use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farpage_testkit::pass;

use super::support::{Kernel, Net};

const PAGES: u64 = 1024;

/// Makes the memory with a file, also where it was there and is over.
fn make(home: &Kernel, file: &Path) {
    let file = file.to_str().unwrap();
    // Its name is there while a host of before is.
    home.says(&["rm", "--cluster", "grid"]);
    assert_eq!(home.says(&["create", "--file", file, "grid", "4M"]), "");
}

#[test]
fn what_was_flushed_is_there_when_all_hosts_have_died() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let file = net.folder.path().join("file");
    let (mut one, mut two, mut three) = (net.host(), net.host(), net.host());
    make(&two, &file);
    let (mut a, mut c) = (one.client(), three.client());
    assert_eq!(
        (a.does("share grid"), c.does("share grid")),
        ("done".into(), "done".into())
    );
    assert_eq!(a.does("fill 0 700"), "done");
    assert_eq!(c.does(&format!("fill 700 {PAGES}")), "done");
    let said = three.says(&["flush", "grid"]);
    assert!(said.starts_with("flushed 4.00 MiB in "), "{said}");
    assert!(one.says(&["ls", "--hosts"]).contains("durable"));
    assert_eq!(a.does("set 5 99"), "done", "which is not flushed");
    for host in [&mut one, &mut two, &mut three] {
        host.kill();
    }
    let one = net.start(0);
    make(&one, &file);
    let two = net.start(1);
    let mut b = two.client();
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(
        b.does(&format!("check 0 {PAGES}")),
        format!("[{PAGES}, 0, 0]")
    );
    // A host that ends in good order flushes.
    assert_eq!(b.does("set 5 77"), "done");
    let said = one.ends();
    assert!(
        said.contains("'grid' ends with this host, which has its file; all of it was flushed"),
        "{said}"
    );
    assert_eq!(b.does("get 6"), "", "it is told, and does not wait");
    let (_, said) = b.ends();
    assert!(
        said.contains("the host that has its file left the cluster"),
        "{said}"
    );
    let said = two.says(&["flush", "grid"]);
    assert!(said.contains("is not there any more"), "{said}");
    make(&two, &file);
    let mut b = two.client();
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(
        (b.does("get 5"), b.does("get 6")),
        ("77".into(), "7".into())
    );
}

#[test]
fn a_flush_that_is_cut_off_has_flushed_all_or_nothing() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let file = net.folder.path().join("file");
    let other = net.host();
    let mut home = net.host();
    make(&home, &file);
    let (mut least, mut cut) = (0, 0);
    for round in 1..=10u64 {
        let mut a = other.client();
        assert_eq!(a.does("share grid"), "done");
        let sum: u64 = a.does(&format!("sum 0 {PAGES}")).parse().unwrap();
        assert_eq!(sum % PAGES, 0, "all pages are as of one flush");
        let now = sum / PAGES;
        assert!(
            (least..=least + 1).contains(&now),
            "{now}, and {least} was flushed"
        );
        assert_eq!(a.does(&format!("all 0 {PAGES} {}", now + 1)), "done");
        let is_flushed = thread::scope(|scope| {
            let flushes = scope.spawn(|| other.says(&["flush", "grid"]));
            // In the middle of it, or not: at another time in each round.
            pass(Duration::from_millis(10 + 5 * round));
            home.kill();
            let said = flushes.join().unwrap();
            println!("{round}: {}", said.trim());
            said.starts_with("flushed ")
        });
        cut += u64::from(!is_flushed);
        least = now + u64::from(is_flushed);
        drop(a);
        home = net.start(1);
        make(&home, &file);
    }
    println!("{cut} of 10 were cut off");
}

/// The median of five, in milliseconds.
fn median(mut run: impl FnMut(u64) -> Duration) -> f64 {
    let mut all: Vec<Duration> = (0..5).map(&mut run).collect();
    all.sort_unstable();
    all[2].as_secs_f64() * 1e3
}

/// Says what docs/cluster.md has of it.
#[test]
fn what_a_flush_costs_is_said_beside_what_the_disk_takes() {
    const BYTES: u64 = 32 << 20;
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let file = net.folder.path().join("file");
    let path = file.to_str().unwrap();
    let made = one.says(&[
        "create",
        "--page-size",
        "64K",
        "--file",
        path,
        "grid",
        "32M",
    ]);
    assert_eq!(made, "");
    let mut b = two.client();
    assert_eq!(b.does("share grid"), "done");
    let pages = BYTES / 4096;
    let writes = |b: &mut super::support::Client, pages: u64, word: u64| {
        assert_eq!(b.does(&format!("all 0 {pages} {word}")), "done");
        let began = Instant::now();
        assert!(one.says(&["flush", "grid"]).starts_with("flushed"));
        began.elapsed()
    };
    let all = median(|run| writes(&mut b, pages, run + 1));
    let few = median(|run| writes(&mut b, 1, run + 10));
    let contents = vec![7; BYTES as usize];
    let disk = median(|_| {
        let began = Instant::now();
        let mut file = std::fs::File::create(net.folder.path().join("bare")).unwrap();
        file.write_all(&contents).unwrap();
        file.sync_data().unwrap();
        began.elapsed()
    });
    println!(
        "32 MiB that another host wrote: {all:.0} ms to flush; written and synced by itself {disk:.0} ms \
         ({:.1} times); 64 KiB of them: {few:.0} ms",
        all / disk
    );
    assert_eq!(std::fs::metadata(&file).unwrap().len(), BYTES);
}

#[test]
fn what_cannot_have_a_file_or_be_flushed_is_refused() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, mut two) = (net.host(), net.host());
    let file = net.folder.path().join("file");
    let path = file.to_str().unwrap();
    let said = |host: &Kernel, what: &[&str], why: &str| {
        let said = host.says(what);
        assert!(said.contains(why), "{said}");
    };
    said(
        &one,
        &["create", "--file", "/no/such/file", "x", "1M"],
        "cannot open '/no/such/file'",
    );
    let simple = ["create", "--scheduler", "simple", "--file", path, "x", "1M"];
    said(
        &one,
        &simple,
        "only memory with the distributed scheduler, 1 replica and strict",
    );
    said(
        &one,
        &["create", "--replicas", "2", "--file", path, "x", "1M"],
        "1 replica and strict",
    );
    make(&one, &file);
    said(
        &two,
        &["create", "--file", path, "other", "4M"],
        "give each a file of its own",
    );
    said(&two, &["create", "--file", path, "other", "1M"], "other");
    assert_eq!(one.says(&["create", "volatile", "1M"]), "");
    said(
        &two,
        &["flush", "volatile"],
        "it has no file; make it with one (farpage create --file FILE",
    );
    said(
        &two,
        &["flush", "nothing"],
        "in the cluster; farpage ls --hosts shows what there is",
    );
    // What is refused leaves no file behind.
    let new = net.folder.path().join("new");
    let (simple, new) = (
        ["create", "--scheduler", "simple", "--file"],
        new.to_str().unwrap(),
    );
    said(
        &one,
        &[&simple[..], &[new, "x", "1M"]].concat(),
        "leave out the file",
    );
    said(
        &one,
        &["create", "--file", new, "volatile", "1M"],
        "'volatile' already",
    );
    let left = std::fs::read_dir(net.folder.path()).unwrap();
    let left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with("new")),
        "{left:?}"
    );
    // What a host that died had is lost, and is not flushed.
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(
        (a.does("share grid"), b.does("share grid")),
        ("done".into(), "done".into())
    );
    assert_eq!(b.does("fill 0 100"), "done");
    assert!(one.says(&["flush", "grid"]).starts_with("flushed 400 KiB"));
    assert_eq!(b.does("set 7 70"), "done");
    two.kill();
    assert_eq!(
        a.does("check 0 100"),
        "[99, 1, 0]",
        "all but what was written since"
    );
    said(
        &one,
        &["flush", "grid"],
        "cannot flush 'grid': a page of it died with the host that had it",
    );
    // Its name outlives its host, and it does not.
    let mut last = net.host();
    assert_eq!(
        last.says(&["create", "--scheduler", "simple", "own", "1M"]),
        ""
    );
    let ended = one.ends();
    assert!(ended.contains("nothing was flushed"), "{ended}");
    let three = net.host();
    last.kill();
    three.until(
        &["ls", "--hosts"],
        &[
            "'grid' is over: the host that had all of it has gone",
            "'own' is over",
        ],
    );
    said(&three, &["create", "own", "1M"], "'own' is over");
    said(
        &three,
        &["create", "--file", path, "grid", "4M"],
        "farpage rm --cluster 'grid'",
    );
    assert_eq!(three.says(&["rm", "--cluster", "own"]), "");
    assert_eq!(three.says(&["create", "own", "1M"]), "");
}
