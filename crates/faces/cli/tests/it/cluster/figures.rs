//! What hosts tell of pages: who has them, what they cost, and which words of them hosts write.

use super::support::Net;
use crate::support::up::until;

#[test]
fn pages_that_cost_most_are_told_over_all_hosts() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    let quiet = one.says(&["pages", "grid"]);
    assert!(quiet.contains("no message was sent"), "{quiet}");
    assert_eq!(b.does("share grid"), "done");
    for round in 0..20 {
        assert_eq!(a.does(&format!("set 17 {round}")), "done");
        assert_eq!(b.does(&format!("set 17 {round}")), "done");
    }
    assert_eq!(a.does("set 18 1"), "done");
    assert_eq!(b.does("get 18"), "1");
    // The same, whoever is asked.
    let said = one.says(&["pages", "grid"]);
    assert_eq!(said, two.says(&["pages", "grid"]));
    let lines: Vec<Vec<&str>> = said
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let of = |page: &str| lines.iter().position(|line| line.first() == Some(&page));
    let (hot, read) = (of("17").expect(&said), of("18").expect(&said));
    assert!(hot < read, "{said}");
    assert_eq!(lines[hot][1..4], ["0x11000", "host1", "-"], "{said}");
    // 39 times it was at the other host: 2 messages each.
    assert_eq!(lines[hot][4..], ["0", "39", "0", "78", "0", "39"], "{said}");
    assert_eq!(
        lines[read][2..8],
        ["host0", "host1", "1", "0", "0", "2"],
        "{said}"
    );
    let each = one.says(&["pages", "--hosts", "--page", "18", "grid"]);
    assert!(each.contains("a copy of host0's"), "{each}");
    let json = two.says(&["pages", "--json", "--most", "1", "grid"]);
    assert!(
        json.contains("\"page\": 17") && !json.contains("\"page\": 18"),
        "{json}"
    );
    for (what, why) in [
        (
            vec!["pages", "gone"],
            "there is no shared memory object 'gone'",
        ),
        (vec!["pages", "--most", "0", "grid"], "give 1 to 256"),
        (
            vec!["pages", "--page", "256", "grid"],
            "has no page 256; give 0 to 255",
        ),
        (
            vec!["pages", "--words", "0", "grid"],
            "takes 1 to 3600 seconds",
        ),
    ] {
        let said = one.says(&what);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn hosts_that_write_different_words_of_a_page_are_named() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    // Words 0 and 64 of page 3; word 0 of page 4 by both.
    let work = |a: &mut super::support::Client, b: &mut super::support::Client, round: u64| {
        for (client, word) in [(a, 3 * 512), (b, 3 * 512 + 64)] {
            assert_eq!(client.does(&format!("put {word} {round}")), "done");
            assert_eq!(
                client.does(&format!("put {} {}", 4 * 512, round * 1000 + word)),
                "done"
            );
        }
    };
    (1..4).for_each(|round| work(&mut a, &mut b, round));
    let (mut round, mut said) = (4, String::new());
    until("both hosts write while it looks", || {
        said = std::thread::scope(|scope| {
            let looks = scope.spawn(|| one.says(&["pages", "--words", "3", "grid"]));
            while !looks.is_finished() {
                work(&mut a, &mut b, round);
                round += 1;
            }
            looks.join().unwrap()
        });
        let parts = [
            "page 3 (offset 0x3000): hosts change different words: false sharing",
            "host0: word 0, in",
            "host1: word 64, in",
            "faults of ",
            "page 4 (offset 0x4000): hosts change the same word",
        ];
        parts.iter().all(|part| said.contains(part))
    });
    // Which process, and in which of its functions.
    for client in [&a, &b] {
        // The thread has the test's name, of which Linux keeps 15 bytes.
        let begin = format!("faults of {} cluster::the_cl in ", client.process());
        let places = said.split(&begin).skip(1);
        let mut places = places.map(|place| place.lines().next().unwrap());
        assert!(places.any(|place| place.contains("put_word")), "{said}");
    }
    println!("{said}");
}

#[test]
fn hosts_show_what_each_owns_and_sends_to_which() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (one.client(), two.client());
    assert_eq!(a.does("share grid 1048576 4096"), "done");
    assert_eq!(b.does("share grid"), "done");
    assert_eq!(b.does("fill 64 192"), "done");
    assert_eq!(a.does("fill 0 64"), "done");
    let (stats, plot) = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut stats = String::new();
            // On a busy machine nothing may be sent between its two looks.
            until("both have sent something", || {
                stats = one.says(&["stats"]);
                !stats.contains(" 0, 0 B")
            });
            (stats, two.says(&["plot", "--cluster=1", "-o", "-"]))
        });
        let mut round = 0;
        while !looks.is_finished() {
            assert_eq!(a.does(&format!("set 200 {round}")), "done");
            assert_eq!(b.does(&format!("set 200 {round}")), "done");
            round += 1;
        }
        looks.join().unwrap()
    });
    let line = |begin: &str| {
        let mut lines = stats.lines().filter(|line| line.starts_with(begin));
        lines.next().expect(&stats).to_owned()
    };
    assert!(stats.contains("OWNED BY"), "{stats}");
    assert!(stats.contains("host0 25%, host1 50%"), "{stats}");
    assert!(line("HOST  ").contains("TO host0"), "{stats}");
    for host in ["host0 (this) ", "host1 "] {
        let line = line(host);
        assert!(
            !line.contains(" - ") && !line.contains(" 0, 0 B"),
            "{stats}"
        );
    }
    for part in ["\"messages_per_second\":", "\"name\":\"host1\"", "</html>"] {
        assert!(plot.contains(part), "{part} in {plot}");
    }
    let none = one.says(&["plot", "--cluster=0"]);
    assert!(none.contains("--cluster takes 1 to 3600 seconds"), "{none}");
    // One that is gone tells nothing more, and is not waited for.
    let mut two = two;
    two.kill();
    one.until(&["stats"], &["HOST"]);
}
