//! `farpage run --cluster`: stress-ng's own checks of what programs share, at two hosts at once.

use super::across::{nothing_is_left, said, start};
use super::support::Net;

/// What is shared by name or key (`shm`, `shm-sysv`, `sem-sysv`), and what stays with its host (`sem`:
/// in memory without a name, `msg`: a queue without a key). `sem` goes on until the time is over, and the
/// others until they have done so much.
const STRESS: &str = "stress='stress-ng --verify --metrics'
    $stress --timeout 2 --sem 1 &
    $stress --timeout 200 \
    --shm 1 --shm-bytes 1M --shm-objs 4 --shm-ops 4 \
    --shm-sysv 1 --shm-sysv-bytes 1M --shm-sysv-segs 4 --shm-sysv-ops 4 \
    --sem-sysv 1 --sem-sysv-ops 1000 --msg 1 --msg-ops 1000 && wait $!";

#[test]
fn what_stress_ng_checks_holds_at_two_hosts_at_once() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let hosts = [net.bare_host(), net.bare_host()];
    let runs = hosts.map(|host| start(net.run(host, &[], &["sh", "-c", STRESS])));
    for told in runs.map(said).map(|(out, told)| out + &told) {
        assert_eq!(
            told.matches("successful run completed").count(),
            2,
            "{told}"
        );
        assert!(!told.contains("fail:"), "{told}");
        for stressor in ["shm", "shm-sysv", "sem", "sem-sysv", "msg"] {
            assert!(operations(&told, stressor) > 0, "{stressor}: {told}");
        }
        // Blocks and segments were the cluster's.
        assert!(!told.contains(": 0 objects mapped; waited for"), "{told}");
    }
    nothing_is_left(&net);
}

/// How often a stressor came through, as its line of figures says.
fn operations(told: &str, stressor: &str) -> u64 {
    let lines = told.lines().filter(|line| line.contains("metrc:"));
    let mut words = lines.map(|line| line.split_whitespace().skip(3));
    let count = words.find_map(|mut words| {
        let is_it = words.next() == Some(stressor);
        is_it.then(|| words.next()?.parse().ok()).flatten()
    });
    count.unwrap_or(0)
}
