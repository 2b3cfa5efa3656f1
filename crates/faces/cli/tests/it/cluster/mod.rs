//! Hosts that have memory in common: real host kernels in network namespaces, and a real etcd.

mod across;
mod durable;
mod figures;
mod foreign;
mod heap;
mod locks;
mod mpi;
mod parallel;
mod pinned;
mod ports;
mod release;
mod runs;
mod stress;
mod support;
mod sysv;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use support::history::{self, Acted};
use support::{Kernel, Net, run_client};

use crate::checker;
use crate::support::up;

const SIGBUS: i32 = 7;
/// What each program of a history does.
const ROUNDS: u64 = 1000;

/// A program of a host; nothing when it is run as a test.
#[test]
fn the_client() {
    run_client();
}

#[test]
fn hosts_have_one_memory_which_goes_with_its_last_user() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(a.does("set 3 7"), "done");
    assert_eq!(b.does("get 3"), "7");
    assert_eq!(b.does("set 3 8"), "done");
    assert_eq!(a.does("get 3"), "8");
    a.send("add 10 4 2000");
    b.send("add 10 4 2000");
    assert_eq!((a.line(), b.line()), ("done".into(), "done".into()));
    assert_eq!(
        (a.does("sum 10 14"), b.does("sum 10 14")),
        ("4000".into(), "4000".into())
    );
    let said = one.says(&["ls", "--hosts"]);
    for part in [
        "host0",
        "host1",
        "this host",
        "10.79.0.3:7661  up",
        "grid  1.00 MiB  4.00 KiB",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(
        one.says(&["ls", "--hosts", "--json"])
            .contains("\"is_own\": true")
    );
    let trace = std::thread::scope(|scope| {
        let trace = scope.spawn(|| one.says(&["trace", "--count", "20", "grid"]));
        while !trace.is_finished() {
            assert_eq!(
                (a.does("set 20 1"), b.does("set 20 2")),
                ("done".into(), "done".into())
            );
        }
        trace.join().unwrap()
    });
    assert!(
        trace.contains("request") && trace.lines().count() >= 20,
        "{trace}"
    );
    let other = b.does("share grid 8192 4096");
    assert!(
        other.contains("there is an object 'grid' in the cluster, of 1.00 MiB"),
        "{other}"
    );
    assert!(
        b.does("share gone")
            .contains("there is no shared memory object 'gone'")
    );
    // It lives as long as anybody has it.
    assert!(a.ends().0.success());
    assert_eq!(b.does("get 3"), "8");
    assert!(b.ends().0.success());
    two.until(&["ls", "--hosts"], &["the cluster shares nothing"]);
    assert!(!two.says(&["ls"]).contains("grid"));
}

#[test]
fn what_is_created_stays_until_its_name_is_taken_away() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    assert_eq!(
        one.says(&["create", "--page-size", "64K", "kept", "2M"]),
        ""
    );
    let again = two.says(&["create", "kept", "2M"]);
    assert!(
        again.contains("there is a shared memory object 'kept' already"),
        "{again}"
    );
    two.until(
        &["ls", "--hosts"],
        &["kept  2.00 MiB  64.0 KiB  distributed"],
    );
    let mut b = two.client();
    assert_eq!(b.does("share kept"), "done");
    assert_eq!(b.does("set 20 5"), "done");
    assert!(b.ends().0.success());
    let mut a = one.client();
    assert_eq!(a.does("share kept"), "done");
    assert_eq!(a.does("get 20"), "5");
    assert_eq!(two.says(&["rm", "--cluster", "kept"]), "");
    assert_eq!(a.does("get 20"), "5", "who has it keeps it");
    assert!(a.ends().0.success());
    one.until(&["ls", "--hosts"], &["the cluster shares nothing"]);
    let gone = two.says(&["rm", "--cluster", "kept"]);
    assert!(
        gone.contains("there is no shared memory object 'kept'"),
        "{gone}"
    );
    for (what, why) in [
        (
            ["create", "--page-size", "3K", "x", "1M"],
            "give a power of two from 4K to 2M",
        ),
        (
            ["create", "--page-size", "4K", "a/b", "1M"],
            "'a/b' is no name",
        ),
    ] {
        let said = one.says(&what);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_host_that_dies_takes_only_what_it_alone_had() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, mut three) = (net.host(), net.host(), net.host());
    let (mut a, mut b, mut c) = (one.client(), two.client(), three.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("set 0 1"), "done", "this page will be lost");
    assert_eq!(c.does("set 1 2"), "done");
    assert_eq!(b.does("get 1"), "2", "of this one another has a copy");
    assert_eq!(b.does("set 2 3"), "done");
    a.send("add 8 4 20000");
    b.send("add 8 4 20000");
    three.kill();
    assert_eq!(
        (a.line(), b.line()),
        ("done".into(), "done".into()),
        "they go on"
    );
    assert_eq!(a.does("sum 8 12"), "40000");
    assert_eq!(
        (a.does("get 1"), a.does("get 2"), b.does("get 1")),
        ("2".into(), "3".into(), "2".into())
    );
    assert_eq!(a.does("set 1 9"), "done");
    assert_eq!(b.does("get 1"), "9");
    assert_eq!(b.does("get 0"), "", "it is told, and does not wait");
    let (status, said) = b.ends();
    assert_eq!(status.signal(), Some(SIGBUS));
    assert!(
        said.contains("were on a host that died, and nowhere else"),
        "{said}"
    );
    let hosts = one.says(&["ls", "--hosts"]);
    assert!(!hosts.contains("host2"), "{hosts}");
    // It comes back as another one, with nothing.
    let three = net.start(2);
    let mut c = three.client();
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("get 1"), "9");
}

/// Nobody reads what host kernels and programs say here until they have ended.
#[test]
fn much_that_is_lost_is_said_in_few_words_and_delays_nobody() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (mut one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(two.says(&["create", "grid", "16M"]), "");
    assert_eq!(a.does("share grid"), "done");
    assert_eq!(b.does("share grid"), "done");
    if a.does("fill 0 4096") != "done" {
        let (status, told) = a.ends();
        panic!("{status}: {told}, {}", one.ends());
    }
    one.kill();
    assert_eq!(b.does("check 0 4096"), "[0, 4096, 0]");
    let said = two.ends();
    let lines = said.matches("cannot page in 'grid'").count();
    assert!((1..100).contains(&lines), "{said}");
}

#[test]
fn a_host_that_ends_in_good_order_takes_nothing_with_it() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, three) = (net.host(), net.host(), net.host());
    assert_eq!(
        one.says(&["create", "--page-size", "16K", "kept", "8M"]),
        ""
    );
    assert_eq!(one.says(&["create", "--replicas", "2", "safe", "1M"]), "");
    let (mut a, mut kept, mut safe) = (one.client(), one.client(), one.client());
    assert_eq!(a.does("share grid 4194304 4096"), "done");
    assert_eq!(kept.does("share kept"), "done");
    assert_eq!(safe.does("share safe"), "done");
    let (mut b, mut c) = (two.client(), three.client());
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(a.does("fill 0 800"), "done");
    assert_eq!(kept.does("fill 8 2000"), "done");
    assert_eq!(safe.does("fill 0 200"), "done");
    assert_eq!(b.does("get 7"), "8");
    // What only programs of this host use ends with it.
    let mut own = one.client();
    assert_eq!(own.does("share own 4194304 4096"), "done");
    assert_eq!(own.does("fill 0 1024"), "done");
    let said = one.ends();
    assert_eq!(
        said,
        "farpage: lost, for still in use: 1 block of shared memory\n"
    );
    for client in [&mut b, &mut c] {
        assert_eq!(client.does("check 0 800"), "[800, 0, 0]");
        assert_eq!(client.does("sum 800 1024"), "0");
    }
    for (name, from, to) in [("kept", 8, 2000), ("safe", 0, 200)] {
        assert_eq!(b.does(&format!("share {name}")), "done");
        let wanted = format!("[{}, 0, 0]", to - from);
        assert_eq!(b.does(&format!("check {from} {to}")), wanted, "{name}");
    }
    // And again, by the next home.
    drop(b);
    assert_eq!(two.ends(), "");
    assert_eq!(c.does("check 0 800"), "[800, 0, 0]");
    assert_eq!(c.does("sum 800 1024"), "0");
    assert_eq!(c.does("share kept"), "done");
    assert_eq!(c.does("check 8 2000"), "[1992, 0, 0]");
    assert_eq!(c.does("sum 0 8"), "0");
    drop(c);
    let said = three.ends();
    assert!(said.contains("of 'kept' (no other host stays)"), "{said}");
}

#[test]
fn what_one_program_opens_while_the_last_other_one_closes_it_stays() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b, mut c) = (one.client(), one.client(), two.client());
    let mut opened = 0;
    for number in 0..60 {
        assert_eq!(a.does(&format!("share short{number} 4096 4096")), "done");
        b.send(&format!("share short{number}"));
        a.send("drop");
        assert_eq!(a.line(), "done");
        if b.line() != "done" {
            continue;
        }
        opened += 1;
        assert_eq!(b.does("set 0 7"), "done");
        let found = c.does(&format!("share short{number}"));
        assert_eq!(found, "done", "after {opened}");
        assert_eq!(c.does("get 0"), "7");
        assert_eq!(
            (b.does("drop"), c.does("drop")),
            ("done".into(), "done".into())
        );
    }
    println!("opened {opened} of 60 times");
    assert!(opened > 0, "none was there any more");
    up::until("what nobody has is gone", || net.objects() == 0);
}

#[test]
fn what_no_other_host_takes_is_said_and_nobody_waits_for_ever() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, mut two, three) = (net.host(), net.host(), net.host());
    let (mut a, mut c) = (one.client(), three.client());
    assert_eq!(one.says(&["create", "grid", "48M"]), "");
    assert_eq!(a.does("share grid"), "done");
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(a.does("fill 0 12288"), "done");
    let owned = r#""owned": "#;
    assert!(
        two.says(&["ls", "--hosts", "--json"])
            .contains(&format!("{owned}0"))
    );
    one.signal("-TERM");
    // One of those who take it over dies.
    two.until(&["ls", "--hosts", "--json"], &[owned]);
    two.kill();
    one.ended();
    let found = c.does("check 0 12288");
    let found: Vec<u64> = found
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|number| number.parse().unwrap())
        .collect();
    println!("{found:?}");
    assert!(found[0] > 5000 && found[0] + found[1] == 12288, "{found:?}");
    // Nobody is left who could.
    let mut two = net.start(1);
    two.until(&["ls", "--hosts"], &["host2"]);
    two.signal("-STOP");
    let said = three.ends();
    assert!(said.contains("of 'grid' (no other host stays)"), "{said}");
    two.kill();
}

#[test]
fn of_memory_with_two_replicas_nothing_that_another_saw_dies_with_a_host() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, mut three) = (net.host(), net.host(), net.host());
    assert_eq!(three.says(&["create", "--replicas", "2", "grid", "1M"]), "");
    let said = one.says(&["create", "--replicas", "3", "more", "1M"]);
    assert!(said.contains("give 1 or 2 replicas"), "{said}");
    let (mut a, mut b, mut c) = (one.client(), two.client(), three.client());
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(client.does("share grid"), "done");
    }
    for page in 0..20 {
        assert_eq!(c.does(&format!("set {page} {}", page + 1)), "done");
    }
    assert_eq!(
        b.does("get 19"),
        "20",
        "all that was written before is on two hosts"
    );
    three.kill();
    assert_eq!(
        (a.does("sum 0 20"), b.does("sum 0 20")),
        ("210".into(), "210".into())
    );
    assert_eq!(a.does("set 3 104"), "done");
    assert_eq!(b.does("sum 0 20"), "310");
}

#[test]
fn with_the_simple_scheduler_hosts_have_one_memory_until_its_home_goes() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, mut two, three) = (net.host(), net.host(), net.host());
    let create = ["create", "--scheduler", "simple"];
    assert_eq!(one.says(&[&create[..], &["grid", "1M"]].concat()), "");
    let large = ["--page-size", "64K", "large", "96M"];
    assert_eq!(one.says(&[&create[..], &large].concat()), "");
    let both = one.says(&[&create[..], &["--replicas", "2", "x", "1M"]].concat());
    assert!(both.contains("give 1 replica"), "{both}");
    three.until(&["ls", "--hosts"], &["grid   1.00 MiB  4.00 KiB  simple"]);
    let (mut a, mut b, mut c) = (one.client(), two.client(), three.client());
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(client.does("share grid"), "done");
        client.send("add 8 4 2000");
    }
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(client.line(), "done");
    }
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(client.does("sum 8 12"), "6000");
    }
    assert_eq!(b.does("fill 100 150"), "done");
    assert_eq!(c.does("check 100 150"), "[50, 0, 0]");
    let (mut writer, mut reader) = (two.client(), three.client());
    assert_eq!(writer.does("share large"), "done");
    assert_eq!(reader.does("share large"), "done");
    assert_eq!(writer.does("fill 0 24576"), "done");
    assert_eq!(reader.does("check 0 24576"), "[24576, 0, 0]");
    // A host that dies takes only what nobody else has seen.
    assert_eq!(b.does("set 200 9"), "done");
    two.kill();
    assert_eq!(a.does("get 200"), "0");
    assert_eq!(a.does("check 100 150"), "[50, 0, 0]");
    // One that ends in good order gives that back.
    assert_eq!(c.does("fill 150 256"), "done");
    assert_eq!(three.ends(), "");
    assert_eq!(a.does("check 100 256"), "[156, 0, 0]");
    let three = net.start(2);
    let mut c = three.client();
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("check 100 256"), "[156, 0, 0]");
    let said = one.ends();
    assert!(
        said.contains("could not hand over 1.00 MiB of 'grid' (with the simple scheduler"),
        "{said}"
    );
    assert_eq!(c.does("get 5"), "", "it is told, and does not wait");
    let (status, said) = c.ends();
    assert_eq!(status.signal(), Some(SIGBUS));
    assert!(said.contains("its home was a host that died"), "{said}");
}

#[test]
fn what_is_sealed_all_hosts_read_and_who_writes_to_it_is_told() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, three) = (net.host(), net.host(), net.host());
    assert_eq!(one.says(&["create", "--hold", "20us", "weights", "1M"]), "");
    let (mut a, mut b) = (one.client(), two.client());
    for client in [&mut a, &mut b] {
        assert_eq!(client.does("share weights"), "done");
    }
    assert_eq!(b.does("fill 0 200"), "done");
    assert_eq!(a.does("check 0 100"), "[100, 0, 0]");
    assert_eq!(one.says(&["seal", "weights"]), "");
    three.until(&["ls", "--hosts"], &["weights  1.00 MiB  4.00 KiB  sealed"]);
    let mut c = three.client();
    assert_eq!(c.does("share weights"), "done");
    assert_eq!(c.does("check 0 200"), "[200, 0, 0]");
    assert_eq!(a.does("check 0 200"), "[200, 0, 0]");
    for (client, page) in [(b, 3), (a, 250)] {
        let mut client = client;
        assert_eq!(client.does(&format!("set {page} 9")), "", "it is told");
        let (status, said) = client.ends();
        assert_eq!(status.signal(), Some(SIGBUS));
        assert!(
            said.contains("it is sealed: its contents are final"),
            "{said}"
        );
    }
    assert_eq!(c.does("check 0 200"), "[200, 0, 0]");
    assert_eq!(
        one.says(&["create", "--scheduler", "simple", "own", "1M"]),
        ""
    );
    for (what, why) in [
        (&["seal", "own"][..], "'own' cannot be sealed"),
        (&["seal", "none"], "there is no shared memory object 'none'"),
        (
            &["create", "--hold", "1s", "x", "1M"],
            "100 ms at most, not 1000 ms",
        ),
        (&["create", "--hold", "5", "x", "1M"], "it has no unit"),
        (
            &["create", "--stale", "1us", "x", "1M"],
            "1 ms old at least",
        ),
        (
            &["create", "--stale", "9ms", "--replicas", "2", "x", "1M"],
            "may be old (stale) only with the distributed scheduler",
        ),
        (
            &[
                "create",
                "--consistency",
                "release",
                "--replicas",
                "2",
                "x",
                "1M",
            ],
            "that is with the distributed scheduler and 1 replica",
        ),
        (
            &[
                "create",
                "--consistency",
                "release",
                "--stale",
                "9ms",
                "x",
                "1M",
            ],
            "as old as the last acquire",
        ),
        (
            &[
                "create",
                "--consistency",
                "release",
                "--scheduler",
                "simple",
                "x",
                "1M",
            ],
            "leave out the consistency",
        ),
        (
            &["create", "--consistency", "late", "x", "1M"],
            "strict, release",
        ),
    ] {
        let said = two.says(what);
        assert!(said.contains(why), "{said}");
    }
}

/// Programs of so many hosts use words of an object at once, as long as a seed says; what each did.
fn histories(kernels: &[Kernel], seed: u64, name: &str, kind: &str) -> Vec<Vec<Acted>> {
    // Two of the first host.
    let hosts = (0..kernels.len()).chain([0]);
    let mut clients: Vec<_> = hosts.map(|host| kernels[host].client()).collect();
    // Both pages in one unit, or not.
    let unit = 4096 << (seed % 2);
    let share = format!("share {name} 8192 {unit} {kind}");
    for client in &mut clients {
        assert_eq!(client.does(&share), "done");
    }
    let count = clients.len();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&format!("history {seed} {number} {count} {ROUNDS}"));
    }
    let all = clients.iter_mut();
    all.map(|client| history::take(&client.line())).collect()
}

#[test]
fn what_programs_of_all_hosts_see_is_one_memory() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let kernels = [net.host(), net.host(), net.host()];
    let seeds = std::env::var("FARPAGE_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    for (seed, hosts) in (0..seeds).flat_map(|seed| [(seed * 2, 2), (seed * 2 + 1, 3)]) {
        for kind in ["distributed", "mirrored", "simple"] {
            let name = format!("{kind}-{seed}-{hosts}");
            let all = histories(&kernels[..hosts], seed, &name, kind);
            let of_others = history::reads_of_others(&all);
            println!("{name}: {of_others} reads of what another program wrote");
            assert!(of_others > 0, "{name}: each went alone");
            for word in 0..history::WORDS {
                let mut done = history::of_word(&all, word);
                let wrong = checker::wrong(&done);
                assert_eq!(wrong, None, "{name}, word {word}");
                // It would be seen that one read the first contents again.
                let reads = done.iter_mut().filter(|done| !done.is_write);
                let last = reads.max_by_key(|done| done.begun).unwrap();
                last.value = 0;
                assert!(checker::wrong(&done).is_some(), "{name}, word {word}");
            }
        }
    }
}

#[test]
fn without_etcd_what_is_shared_goes_on_and_nothing_new_is_made() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(a.does("set 0 1"), "done");
    one.goes_on_without_etcd();
    two.goes_on_without_etcd();
    net.kill_etcd();
    one.until(&["ls", "--hosts"], &["the cluster's store does not answer"]);
    // Longer than any lease.
    let began = std::time::Instant::now();
    let mut count = 0;
    while began.elapsed() < std::time::Duration::from_secs(9) {
        assert_eq!(
            (a.does("add 0 1 1"), b.does("add 0 1 1")),
            ("done".into(), "done".into())
        );
        count += 2;
    }
    assert_eq!(a.does("get 0"), (count + 1).to_string());
    let refused = a.does("share other 4096 4096");
    assert!(refused.contains("the cluster could not do it"), "{refused}");
    net.start_etcd();
    two.until(&["ls", "--hosts"], &["view"]);
    up::until("it can be made again", || {
        a.does("share third 4096 4096") == "done"
    });
}

#[test]
fn a_host_that_is_cut_off_stops_and_says_why_and_the_others_go_on() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, three) = (net.host(), net.host(), net.host());
    let (mut a, mut b, mut c) = (one.client(), two.client(), three.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("set 5 1"), "done");
    assert_eq!(a.does("get 5"), "1");
    net.plug(2, false);
    one.until(&["ls", "--hosts"], &["host0", "host1"]);
    up::until("it is not among them", || {
        !one.says(&["ls", "--hosts"]).contains("host2")
    });
    // It was fenced before.
    assert_eq!(c.does("get 5"), "", "it may not use what others may change");
    let (status, said) = c.ends();
    assert_eq!(status.signal(), Some(SIGBUS));
    assert!(said.contains("this host is out of the cluster"), "{said}");
    assert_eq!(a.does("set 5 2"), "done");
    assert_eq!(b.does("get 5"), "2");
    let listed = three.says(&["ls", "--hosts"]);
    assert!(
        listed.contains("this host is out of the cluster"),
        "{listed}"
    );
    net.plug(2, true);
    // It joins again by itself, as a new host.
    three.until(&["ls", "--hosts"], &["host0", "host1", "host2"]);
    let mut c = three.client();
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("get 5"), "2");
    assert_eq!(c.does("set 6 3"), "done");
    assert_eq!(b.does("get 6"), "3");
    let said = three.ends();
    for what in [
        "this host is out of the cluster: ",
        "is in the cluster again",
    ] {
        assert_eq!(said.matches(what).count(), 1, "{said}");
    }
}

#[test]
fn of_two_hosts_that_do_not_reach_one_another_one_leaves_until_they_do() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, three) = (net.host(), net.host(), net.host());
    let (mut a, mut b, mut c) = (one.client(), two.client(), three.client());
    assert_eq!(a.does("share grid 1048576 4096 mirrored"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("set 5 1"), "done");
    assert_eq!(b.does("get 5"), "1");
    net.cut(1, 2, true);
    up::until("the later one leaves", || {
        !one.says(&["ls", "--hosts"]).contains("host2")
    });
    // The others go on, and it is told.
    assert_eq!(a.does("set 5 2"), "done");
    assert_eq!(b.does("get 5"), "2");
    assert_eq!(c.does("check 5 6"), "[0, 1, 0]");
    // It stays away while the cut lasts.
    let said = three.until(&["ls", "--hosts"], &["do not reach one another"]);
    assert!(said.contains("it and host1 do not reach"), "{said}");
    net.cut(1, 2, false);
    for host in [&one, &two, &three] {
        host.until(&["ls", "--hosts"], &["host0", "host1", "host2"]);
    }
    assert_eq!(c.does("share grid"), "done");
    assert_eq!(c.does("get 5"), "2");
}

#[test]
fn a_program_outlives_its_hosts_stay_without_what_it_had_in_it() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096 mirrored"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(b.does("take 0"), "Taken");
    assert_eq!(b.does("set 1 7"), "done");
    assert_eq!(a.does("get 1"), "7");
    assert!(b.does("check 1 2").starts_with("[0, 0"), "it is there");
    // Stopped for too long: what it had is the others'.
    let view = two.view();
    two.signal("-STOP");
    up::until("it is not among them", || {
        !one.says(&["ls", "--hosts"]).contains("host1")
    });
    assert_eq!(a.does("take 0"), "HolderDied");
    two.signal("-CONT");
    // In a view of its old stay it may still see both.
    up::until("it has joined again", || {
        let listed = two.says(&["ls", "--hosts"]);
        ["host0", "host1"].iter().all(|host| listed.contains(host)) && two.view() > view
    });
    assert_eq!(
        b.does("check 1 2"),
        "[0, 1, 0]",
        "of that stay nothing is left"
    );
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(b.does("get 1"), "7");
    // The process is the same, and its number another one: it has nothing that it had, and what it takes
    // now is its own.
    assert_eq!(a.does("right 0"), "done");
    assert_eq!(b.does("try 0 100"), "TimedOut");
    assert_eq!(a.does("give 0"), "done");
    assert_eq!(b.does("take 0"), "Taken");
    assert_eq!(a.does("try 0 1500"), "TimedOut");
    assert_eq!(b.does("give 0"), "done");
    assert_eq!(a.does("take 0"), "Taken");
}

#[test]
fn a_host_alone_needs_no_etcd_and_no_key() {
    use std::sync::atomic::Ordering;

    let up = up::Up::start(&["--cluster", "embedded:"]);
    assert_eq!(up.says(&["create", "grid", "1M"]), "");
    let (first, second) = (up.host(), up.host());
    let open = |host: &farpage_client::Host| host.shared("grid", None).unwrap().0;
    let (one, other) = (open(&first), open(&second));
    one.words()[7].store(5, Ordering::SeqCst);
    assert_eq!(other.words()[7].load(Ordering::SeqCst), 5);
    let lock = |host| farpage_client::sync::Mutex::named(host, "turn", 1).unwrap();
    drop(lock(&first).lock().unwrap());
    drop(lock(&second).lock().unwrap());
    let listed = up.says(&["ls", "--hosts"]);
    assert!(
        listed.contains("at embedded:") && listed.contains("grid"),
        "{listed}"
    );
    let refused = up.asks(&["create", "grid", "1M"]);
    assert!(!refused.status.success(), "the name is taken");
    drop((one, other));
    up.ends();
}

#[test]
fn what_cannot_be_joined_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let run = |what: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_farpage"))
            .args(what)
            .output()
            .unwrap();
        assert!(!done.status.success(), "{what:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    let key = key.to_str().unwrap();
    let init = Command::new(env!("CARGO_BIN_EXE_farpage"))
        .args(["cluster", "init", key])
        .output();
    let said = String::from_utf8(init.unwrap().stdout).unwrap();
    assert!(said.contains("copy it to each host"), "{said}");
    assert!(run(&["cluster", "init", key]).contains("is never replaced"));
    let socket = folder.path().join("host");
    let up = |cluster: &str, key: &str| {
        let socket = socket.to_str().unwrap();
        let what = [
            "up",
            "--ram",
            "16M",
            "--socket",
            socket,
            "--cluster",
            cluster,
        ];
        run(&[&what[..], &["--cluster-key", key]].concat())
    };
    let said = up("http://x", key);
    assert!(said.contains("no store has the scheme http"), "{said}");
    let said = up("etcd://127.0.0.1:1/x", key);
    assert!(
        said.contains("did not answer in") && said.contains("127.0.0.1:1"),
        "{said}"
    );
    let said = up("etcd://127.0.0.1:1/x", "/nowhere");
    assert!(said.contains("/nowhere"), "{said}");
    let said = run(&["up", "--ram", "16M", "--cluster", "etcd://127.0.0.1:1/x"]);
    assert!(said.contains("--cluster-key"), "{said}");
}
