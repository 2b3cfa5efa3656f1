//! Memory files (`memfd_create`), and descriptors of shared memory that come over sockets.

use std::process::Command;

use crate::support;

use super::{MOST_MIB, compile, expect, may_mount, most_mib, run, small, text};

/// The interpreter that has Debian's PyTorch.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// `words` say "as it should be" without Farpage, and with it in plenty of memory and in little.
pub(super) fn means_the_same(source: &str, words: &[&str]) {
    let fixed = format!("{source}-static");
    for (name, flags) in [(source, &[][..]), (&fixed, &["-static"])] {
        let program = compile(&format!("{source}.c"), name, flags);
        let all: Vec<&str> = [&program[..]]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let bare = Command::new(&program).args(words).output().unwrap();
        assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
        if may_mount() {
            for ram in ["256M", "16M"] {
                expect(ram, &all);
            }
        }
    }
}

#[test]
fn memory_files_mean_what_they_mean_without() {
    means_the_same("memfd", &["calls"]);
}

#[test]
fn memory_files_work_in_another_namespace_of_processes() {
    if may_mount() {
        let program = compile("memfd.c", "memfd-apart", &[]);
        expect("32M", &[&program, "apart"]);
    }
}

#[test]
fn descriptors_that_come_over_sockets_can_be_read_and_mapped() {
    means_the_same("handed", &[]);
}

#[test]
fn a_memory_file_larger_than_ram_keeps_every_byte() {
    if may_mount() {
        let program = compile("memfd.c", "memfd-large", &[]);
        let said = expect("32M", &[&program, "large", "200"]);
        assert!(most_mib(&said) <= MOST_MIB, "{said}");
        assert!(said.contains("shared memory: 1 object mapped,"), "{said}");
    }
}

#[test]
fn memory_files_that_nobody_has_are_gone() {
    if !may_mount() {
        return;
    }
    let program = compile("memfd.c", "memfd-often", &[]);
    // Random bytes: together they would not fit into RAM and paging file.
    let script = "$FARPAGE run --ram 32M --compressed 0 --spill /var/tmp --spill-limit 64M --shm -- \
                  \"$@\"";
    let got = small(script, &[&program, "often", "40"]).output().unwrap();
    let said = text(&got.stderr);
    assert!(got.status.success(), "{said}");
    assert!(most_mib(&said) <= MOST_MIB, "{said}");
    assert!(said.contains("shared memory: 40 objects"), "{said}");
}

#[test]
fn memory_files_that_stay_with_linux_are_counted() {
    if !may_mount() {
        return;
    }
    let program = "
import mmap, os
fd = os.memfd_create('first')
os.ftruncate(fd, 4 << 20)
little = mmap.mmap(fd, 4096)
large = [mmap.mmap(fd, 4 << 20) for _ in range(2)]
large[0][5] = 5
assert little[5] == 5 == large[1][5]
";
    let got = run("32M", &["python3", "-c", program]);
    let said = text(&got.stderr);
    let line = "1 memory file stayed with Linux, beside the budget";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("shared memory: 0 objects"), "{said}");
}

/// A memory file that a process outside has before it is mapped is Linux's, for both.
#[test]
fn what_is_handed_out_of_the_run_stays_linuxs_or_is_said() {
    if !may_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket").display().to_string();
    let outside = "
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
other, _ = server.accept()
_, fds, _, _ = socket.recv_fds(other, 1, 2)
other.send(b'!')
other.recv(1)
print([os.pread(fd, 6, 0) for fd in fds])
";
    let inside = "
import mmap, os, socket, sys
other = socket.socket(socket.AF_UNIX)
until('the other listens', lambda: other.connect_ex(sys.argv[1]) == 0)
later, before = os.memfd_create('later'), os.memfd_create('before')
for fd in later, before:
    os.ftruncate(fd, 2 << 20)
mapped = mmap.mmap(before, 2 << 20)
mapped[:6] = b'mapped'
socket.send_fds(other, [b'!'], [later, before])
other.recv(1)
memory = mmap.mmap(later, 2 << 20)
memory[:6] = b'inside'
other.send(b'!')
";
    let script = "python3 -c \"$1\" \"$3\" & $FARPAGE run --ram 64M --spill /var/tmp --shm -- \
                  python3 -c \"$2\" \"$3\"; wait";
    let inside = [support::PYTHON, inside].concat();
    let got = small(script, &[outside, &inside, &path]).output().unwrap();
    let said = text(&got.stderr);
    let seen = "[b'inside', b'\\x00\\x00\\x00\\x00\\x00\\x00']\n";
    assert_eq!(text(&got.stdout), seen, "{said}");
    let line = "which farpage run --shm does not run: it sees zeros there";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert!(said.contains("shared memory: 1 object mapped,"), "{said}");
}

/// By the default strategy the workers hand descriptors over, of files that are unlinked; nothing of
/// them fits into `/dev/shm`.
#[test]
fn pytorch_loaders_hand_tensors_on_by_descriptors() {
    if !may_mount() {
        return;
    }
    let program = "
import torch
from torch.utils.data import DataLoader, Dataset
torch.multiprocessing.set_sharing_strategy('file_descriptor')
torch.set_num_threads(1)
class Rows(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, i):
        return torch.arange(1 << 18, dtype=torch.float32) + i
total = torch.zeros(1 << 18, dtype=torch.float64)
kept = []
for batch in DataLoader(Rows(), batch_size=8, num_workers=2, prefetch_factor=4):
    assert batch.is_shared()
    kept.append(batch)
for batch in kept:
    total += batch.to(torch.float64).sum(dim=0)
wanted = 160 * torch.arange(1 << 18, dtype=torch.float64) + 159 * 80
assert torch.equal(total, wanted)
print('as it should be')
";
    let said = expect("96M", &[SYSTEM_PYTHON, "-c", program]);
    assert!(said.contains("paged out "), "{said}");
    assert!(most_mib(&said) > 32.0, "{said}");
}
