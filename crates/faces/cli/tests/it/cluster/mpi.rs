//! Open MPI's transport by shared memory, between two hosts.

use std::process::Command;

use super::across::nothing_is_left;
use super::support::Net;

fn ring(net: &Net) -> String {
    let to = net.folder.path().join("ring");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/ring.c");
    let mut mpicc = Command::new("mpicc");
    mpicc.args(["-O2", "-pthread", "-o"]).arg(&to).arg(source);
    assert!(mpicc.status().unwrap().success());
    to.to_str().unwrap().to_owned()
}

/// `mpirun` beside the hosts, which reach it at the address of the switch. Its processes take one another to
/// be of one host, and have no way to each other but shared memory: none reads another's
/// memory by its process number, and none finds another's files.
fn mpirun(net: &Net, session: &str) -> Command {
    let mut mpirun = net.within("sw", "mpirun");
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PMIX_MCA_ptl_base_remote_connections", "1"),
        ("PMIX_MCA_ptl_base_if_include", "br0"),
        ("PMIX_MCA_gds", "hash"),
    ] {
        mpirun.env(name, value);
    }
    mpirun.arg("--oversubscribe");
    for (name, value) in [
        ("plm", "isolated"),
        ("pml", "ob1"),
        ("btl", "vader,self"),
        ("btl_vader_single_copy_mechanism", "none"),
        ("orte_tmpdir_base", session),
    ] {
        mpirun.args(["--mca", name, value]);
    }
    mpirun
}

#[test]
fn open_mpi_sends_messages_between_two_hosts_by_shared_memory() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let hosts = [net.bare_host(), net.bare_host()];
    let ring = ring(&net);
    let session = net.folder.path().join("session");
    std::fs::create_dir(&session).unwrap();
    let session = session.to_str().unwrap();
    let bare = mpirun(&net, session)
        .args(["-np", "2", &ring, "1"])
        .output();
    let bare = bare.unwrap();
    assert!(bare.status.success(), "{bare:?}");

    let mut both = mpirun(&net, session);
    let own = "mount -t tmpfs tmpfs \"$0\" && exec \"$@\"";
    let words = ["sh", "-c", own, session, &ring, "1"];
    for (host, between) in hosts.into_iter().zip(["", ":"]) {
        let run = net.run(host, &[], &words);
        both.args((!between.is_empty()).then_some(between));
        both.args(["-np", "1"])
            .arg(run.get_program())
            .args(run.get_args());
    }
    let got = both.output().unwrap();
    let told = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{told}");
    assert_eq!(got.stdout, bare.stdout, "{told}");
    let waited = "objects mapped; waited for other hosts ";
    assert_eq!(told.matches(waited).count(), 2, "{told}");
    assert!(!told.contains(&format!("{waited}0 times")), "{told}");
    nothing_is_left(&net);
}
