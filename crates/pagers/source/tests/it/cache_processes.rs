//! The cache on the disk, shared by processes, some of which are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farpage_source::{Cache, Source};

use crate::made::Made;

const MIB: u64 = 1 << 20;
const FOLDER: &str = "FARPAGE_TEST_CACHE";
const WHO: &str = "FARPAGE_TEST_WHO";

/// Starts this test again as another process, number `who`.
fn start(test: &str, folder: &Path, who: u64) -> Child {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        &format!("cache_processes::{test}"),
        "--nocapture",
    ]);
    again.env(FOLDER, folder).env(WHO, who.to_string());
    again.stdout(Stdio::piped()).spawn().unwrap()
}

/// The folder and the number, in such a process.
fn started() -> Option<(std::path::PathBuf, u64)> {
    let folder = std::env::var_os(FOLDER)?;
    Some((folder.into(), std::env::var(WHO).unwrap().parse().unwrap()))
}

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn read_at_random(cache: &Cache, made: &Arc<Made>, seed: u64, times: u64) {
    let kept = cache.keep(made.clone());
    let mut dice = Dice(seed);
    for _ in 0..times {
        let bytes = dice.below(300_000);
        let at = dice.below(made_size(made) - bytes);
        assert!(made.matches(&*kept, at, bytes as usize), "{at} {bytes}");
    }
}

fn made_size(made: &Made) -> u64 {
    made.size()
}

fn disk_bytes(folder: &Path) -> u64 {
    let files = folder.read_dir().unwrap();
    let blocks = files.map(|file| file.unwrap().metadata().unwrap().blocks());
    blocks.sum::<u64>() * 512
}

#[test]
fn processes_share_what_they_fetch() {
    const SIZE: u64 = 16 * MIB - 1000;
    if let Some((folder, who)) = started() {
        let cache = Cache::open(&folder, 1 << 30).unwrap();
        read_at_random(&cache, &Arc::new(Made::new("a", SIZE)), who, 300);
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let test = "processes_share_what_they_fetch";
    let children = [1, 2, 3].map(|who| start(test, folder.path(), who));
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let cache = Cache::open(folder.path(), 1 << 30).unwrap();
    // A child that did not get the lock soon enough kept nothing of what it read then.
    let rest = Arc::new(Made::new("a", SIZE));
    assert!(rest.matches(&*cache.keep(rest.clone()), 0, SIZE as usize));
    let fetched: u64 = rest
        .reads
        .lock()
        .unwrap()
        .iter()
        .map(|read| read.end - read.start)
        .sum();
    assert!(fetched < SIZE / 2, "{fetched}: they kept little");
    let mut down = Made::new("a", SIZE);
    down.is_down = true;
    let all = cache.resident(&down);
    assert_eq!((all.len(), all[0].clone()), (1, 0..SIZE));
    let kept = cache.keep(Arc::new(down));
    assert!(Made::new("a", SIZE).matches(&*kept, 0, SIZE as usize));
    let usage = cache.usage().unwrap();
    assert_eq!(usage.damaged_pages, 0);
    assert_eq!(usage.bytes, (SIZE.next_multiple_of(4096)) + 4096);
}

#[test]
fn processes_with_objects_of_their_own_stay_below_one_limit() {
    const LIMIT: u64 = 4 * MIB;
    if let Some((folder, who)) = started() {
        let cache = Cache::open(&folder, LIMIT).unwrap();
        for round in 0..4 {
            let made = Arc::new(Made::new(&format!("{who} {round}"), 3 * MIB));
            read_at_random(&cache, &made, who, 60);
        }
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let test = "processes_with_objects_of_their_own_stay_below_one_limit";
    let mut children = [1, 2, 3].map(|who| start(test, folder.path(), who));
    let cache = Cache::open(folder.path(), LIMIT).unwrap();
    while children
        .iter_mut()
        .any(|child| child.try_wait().unwrap().is_none())
    {
        let bytes = cache.usage().unwrap().bytes;
        assert!(bytes <= LIMIT, "{bytes}");
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let usage = cache.usage().unwrap();
    assert!(usage.bytes > 0, "{usage:?}");
    let disk = disk_bytes(folder.path());
    assert!(disk <= LIMIT + 64 * 4096, "{disk}");
}

/// Fills the cache, over and over, until it is killed.
fn fill(folder: &Path, who: u64) {
    let cache = Cache::open(folder, 64 * MIB).unwrap();
    println!("ready");
    let mut dice = Dice(who);
    let mut space = vec![0; 400_000];
    loop {
        let kept = cache.keep(Arc::new(Made::new("a", 4 * MIB)));
        for _ in 0..50 {
            let bytes = 1 + dice.below(400_000);
            let at = dice.below(4 * MIB - bytes);
            kept.read_at(at, &mut space[..bytes as usize]).unwrap();
        }
        cache.clear().unwrap();
    }
}

#[test]
fn a_process_killed_while_it_fills_the_cache_leaves_nothing_wrong() {
    let test = "a_process_killed_while_it_fills_the_cache_leaves_nothing_wrong";
    if let Some((folder, who)) = started() {
        return fill(&folder, who);
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let cache = Cache::open(folder.path(), 64 * MIB).unwrap();
    let made = Made::new("a", 4 * MIB);
    let mut dice = Dice(1);
    let mut checked = 0;
    for kill in 0..5000 {
        // However slow the machine is, there is something to check.
        if kill >= 200 && checked > 50 * MIB {
            break;
        }
        cache.clear().unwrap();
        let mut child = start(test, folder.path(), kill);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines
            .map(Result::unwrap)
            .find(|line| line.ends_with("ready"));
        // At any instant: what is waited for is time itself. On a slow machine it takes more to do anything.
        let most_us = 12_000 * (1 + kill / 500);
        let end = Instant::now() + Duration::from_micros(dice.below(most_us));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Nothing can be fetched, so that what is said to be there must be there, and right.
        let mut down = Made::new("a", 4 * MIB);
        down.is_down = true;
        let ranges = cache.resident(&down);
        let kept = cache.keep(Arc::new(down));
        for range in ranges {
            checked += range.end - range.start;
            let bytes = (range.end - range.start) as usize;
            assert!(
                made.matches(&*kept, range.start, bytes),
                "kill {kill}: {range:?}"
            );
        }
        assert_eq!(cache.usage().unwrap().damaged_pages, 0, "kill {kill}");
    }
    assert!(checked > 50 * MIB, "{checked}");
    let kept: u64 = cache.resident(&made).iter().map(|r| r.end - r.start).sum();
    drop(cache.keep(Arc::new(made)));
    // What the killed ones had counted and did not write is not counted any more.
    assert_eq!(cache.usage().unwrap().bytes, kept + 4096);
}
