//! Release consistency between hosts that are real: network namespaces, etcd, host kernels.

use std::path::Path;
use std::process::Stdio;

use farpage_testkit::Started;

use super::foreign::{compile, said};
use super::locks::sent;
use super::support::{Client, Kernel, Net};

const PAGES: u64 = 6;

fn clients(kernels: &[Kernel], name: &str, kind: &str) -> Vec<Client> {
    let mut clients: Vec<Client> = kernels.iter().map(Kernel::client).collect();
    for client in &mut clients {
        let share = format!("share {name} {} 4096 {kind}", PAGES * 4096);
        assert_eq!(client.does(&share), "done");
    }
    clients
}

#[test]
fn hosts_write_different_words_of_the_same_pages_between_barriers() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let kernels: Vec<Kernel> = (0..3).map(|_| net.host()).collect();
    for kind in ["distributed", "release"] {
        let mut clients = clients(&kernels, kind, kind);
        let before = sent(&kernels);
        for (own, client) in clients.iter_mut().enumerate() {
            client.send(&format!("rounds {own} 3 {PAGES} 30"));
        }
        for client in &mut clients {
            let said = client.line();
            println!(
                "{kind}: {said}, {} messages a round",
                (sent(&kernels) - before) / 30
            );
            assert!(said.starts_with("exact"), "{kind}: {said}");
        }
        let said = kernels[0].says(&["ls", "--hosts"]);
        assert!(said.contains(&format!("4.00 KiB  {kind}")), "{said}");
    }
}

#[test]
fn who_takes_a_lock_sees_what_all_wrote_who_had_it() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let kernels: Vec<Kernel> = (0..2).map(|_| net.host()).collect();
    let mut clients = clients(&kernels, "counts", "release");
    // Two programs of one host have one memory.
    clients.push(kernels[0].client());
    assert_eq!(clients[2].does("share counts 24576 4096 release"), "done");
    for client in &mut clients {
        client.send("locked 3 60");
    }
    for client in &mut clients {
        assert_eq!(client.line(), "done");
    }
    for client in &mut clients {
        assert_eq!(client.does("acquire"), "done");
        for page in 0..3 {
            assert_eq!(client.does(&format!("at {}", page * 4096 + 1600)), "180");
        }
    }
}

#[test]
fn what_is_written_is_seen_after_it_was_released_and_acquired() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let kernels: Vec<Kernel> = (0..2).map(|_| net.host()).collect();
    let mut clients = clients(&kernels, "grid", "release");
    assert_eq!(clients[1].does("get 3"), "0");
    assert_eq!(clients[0].does("set 3 7"), "done");
    assert_eq!(clients[1].does("set 4 8"), "done");
    assert_eq!(clients[1].does("get 3"), "0", "it has not acquired it");
    for call in ["release", "acquire"] {
        for client in &mut clients {
            assert_eq!(client.does(call), "done");
        }
    }
    assert_eq!(
        [clients[1].does("get 3"), clients[0].does("get 4")],
        ["7", "8"]
    );
    // What a program wrote that ended without is not lost while its host lives.
    assert_eq!(clients[1].does("set 5 9"), "done");
    drop(clients.pop());
    crate::support::up::until("a program that ended has released", || {
        assert_eq!(clients[0].does("acquire"), "done");
        clients[0].does("get 5") == "9"
    });
}

#[test]
fn what_release_consistency_cannot_have_is_refused() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let one = net.host();
    let create = ["create", "--consistency", "release", "grid", "1M"];
    assert_eq!(one.says(&create), "");
    let mut client = one.client();
    let said = client.does("share grid 1048576 4096");
    assert!(
        said.contains("with consistency release; open it as it is"),
        "{said}"
    );
    assert_eq!(client.does("share grid"), "done");
    let said = client.does("lock-in-it");
    assert!(said.contains("give the lock a name of its own"), "{said}");
    let said = client.does("heap-in-it");
    assert!(said.contains("with strict consistency"), "{said}");
    let said = one.says(&["seal", "grid"]);
    assert!(
        said.contains("'grid' cannot be sealed") && said.contains("strict consistency"),
        "{said}"
    );
}

#[test]
fn programs_in_c_write_every_other_number_mapped_or_by_calls() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (native, foreign) = (
        compile(&net, "released", false),
        compile(&net, "released", true),
    );
    let kernels = [net.host(), net.host()];
    let bare = net.bare_host();
    let native = |what: &str, host: u8| {
        let mut command = net.at(host, &native);
        command.args([what, &host.to_string()]);
        command.env("FARPAGE_HOST", &kernels[usize::from(host)].socket);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Started::new(&mut command)
    };
    let foreign = |what: &str, which: &str| {
        let mut command = net.at(bare, Path::new("qemu-s390x"));
        let store = "etcd://10.79.0.1:2379/test";
        command.arg(&foreign).args([what, which, store]);
        said(command.arg(net.key()).output().unwrap())
    };
    let ends = |child: Started| said(child.output());
    for one in [native("rounds", 0), native("rounds", 1)] {
        assert_eq!(ends(one), "done\n");
    }
    assert_eq!(foreign("write", "1"), "done\n");
    assert_eq!(ends(native("check", 0)), "done\n");
    assert_eq!(ends(native("write", 0)), "done\n");
    assert_eq!(foreign("check", "1"), "done\n");
    for said in [ends(native("refused", 0)), foreign("refused", "1")] {
        assert!(
            said.contains("1 replica") && said.contains("release"),
            "{said}"
        );
    }
}
