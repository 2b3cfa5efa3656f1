//! What is on the machine that a run of tests could leave there.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// What names of the folders of tests begin with.
pub(super) const PREFIX: &str = "fpt-";

/// What there was at one moment, as people would name it.
#[derive(Debug)]
pub(crate) struct Machine(BTreeSet<String>);

impl Machine {
    pub(crate) fn look() -> Self {
        let mut all = BTreeSet::new();
        for folder in ["/dev/shm", "/var/tmp", "/run/netns"] {
            let ours = names(folder).filter(|name| is_ours(name));
            all.extend(ours.map(|name| format!("the file {folder}/{name}")));
        }
        // A user's folder of sockets stays in `/tmp`, as it does after any run; folders of tests do not.
        let of_tests = names("/tmp").filter(|name| name.starts_with(PREFIX));
        all.extend(of_tests.map(|name| format!("the folder /tmp/{name}")));
        all.extend(cgroups());
        all.extend(mounts());
        all.extend(swap_files());
        all.extend(loop_devices());
        all.extend(system_v());
        Self(all)
    }

    /// What is there now and was not `before`.
    pub(crate) fn new_since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

/// Whether a name is one that Farpage or its tests give. `farpage-xtask` is kept between runs.
fn is_ours(name: &str) -> bool {
    (name.contains("farpage") || name.starts_with(PREFIX)) && name != "farpage-xtask"
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

fn cgroups() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let hierarchies = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        kind.starts_with("cgroup").then_some(at)
    });
    let groups = hierarchies.flat_map(|at| {
        let ours = names(at).filter(|name| is_ours(name));
        ours.map(move |name| format!("the cgroup {at}/{name}"))
    });
    groups.collect()
}

fn mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let ours = places.filter(|at| at.split('/').any(is_ours));
    ours.map(|at| format!("the mount {at}")).collect()
}

fn swap_files() -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let files = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    files.map(|file| format!("the swap file {file}")).collect()
}

fn loop_devices() -> Vec<String> {
    let backing = |name: &String| {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
        Some(format!("the loop device {name} of {}", file.trim()))
    };
    let devices = names("/sys/block").filter(|name| name.starts_with("loop"));
    devices.filter_map(|name| backing(&name)).collect()
}

fn system_v() -> Vec<String> {
    let Ok(out) = Command::new("ipcs").output() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let objects = text.lines().filter(|line| line.starts_with("0x"));
    let named = objects.filter_map(|line| {
        let mut words = line.split_whitespace();
        let (key, id, owner) = (words.next()?, words.next()?, words.next()?);
        Some(format!("the System V object {id} (key {key}, of {owner})"))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::Machine;

    #[test]
    fn what_came_is_named() {
        let before = Machine::look();
        let name = format!("/dev/shm/farpage-left-{}", std::process::id());
        std::fs::write(&name, "").unwrap();
        let new = Machine::look().new_since(&before);
        std::fs::remove_file(&name).unwrap();
        assert!(new.contains(&format!("the file {name}")), "{new:?}");
        assert!(
            !Machine::look()
                .new_since(&before)
                .contains(&format!("the file {name}"))
        );
    }
}
