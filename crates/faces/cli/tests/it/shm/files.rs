//! What else programs do with files of shared memory than to map, read and write them.

use super::memory_files::means_the_same;
use super::{LEFT, compile, expect, may_mount, small, text};

#[test]
fn programs_and_scripts_in_dev_shm_are_executed() {
    means_the_same("executed", &[]);
}

/// Their owner needs no right to write to them, and neither does Farpage.
#[test]
fn programs_in_dev_shm_that_nobody_may_write_to_are_executed() {
    if !may_mount() {
        return;
    }
    let program = compile("executed.c", "executed-by-its-owner", &[]);
    let script = format!(
        "setpriv --inh-caps=-dac_override,-dac_read_search --bounding-set=-dac_override,-dac_read_search \
         $FARPAGE run --quiet --ram 16M --spill /var/tmp --shm -- \"$1\" {LEFT}"
    );
    let got = small(&script, &[&program]).output().unwrap();
    assert_eq!(text(&got.stdout), "as it should be\n", "{got:?}");
    assert!(got.status.success(), "{got:?}");
}

#[test]
fn children_do_not_get_shared_memory_that_is_left_out_for_them() {
    means_the_same("left_out", &[]);
}

#[test]
fn times_flags_and_copies_are_those_of_linux() {
    means_the_same("file_calls", &[]);
}

#[test]
fn a_file_is_emptied_for_a_program_that_is_spawned() {
    means_the_same("file_calls", &["spawned"]);
}

/// A process that cannot reach the supervisor has the files that nobody mapped.
#[test]
fn few_descriptors_are_enough_for_files_that_nobody_maps() {
    if !may_mount() {
        return;
    }
    let script = format!(
        "setpriv --inh-caps=-sys_resource --bounding-set=-sys_resource \
         $FARPAGE run --quiet --shm -- sh -c 'ulimit -n 256; echo as it should be > /dev/shm/few; \
         cat /dev/shm/few; rm /dev/shm/few' {LEFT}"
    );
    let got = small(&script, &[]).output().unwrap();
    assert_eq!(text(&got.stdout), "as it should be\n", "{got:?}");
    assert!(got.status.success(), "{got:?}");
}

#[test]
fn what_lay_beyond_the_end_is_there_when_the_file_has_grown() {
    means_the_same("grown", &[]);
}

#[test]
fn an_archive_of_a_sparse_file_has_its_bytes() {
    if !may_mount() {
        return;
    }
    // One that is written, one that was emptied and written, and one that is only mapped.
    let script = "cd /dev/shm && head -c 3000000 /dev/urandom > a && head -c 3000000 /dev/urandom > b && \
                  cat a > b && python3 -c 'import mmap; f = open(\"c\", \"w+b\"); f.truncate(3000000); \
                  m = mmap.mmap(f.fileno(), 3000000); m[1000000:1000003] = b\"abc\"' && \
                  tar -cSf /tmp/$$.tar a b c && mkdir out && tar -xf /tmp/$$.tar -C out && rm /tmp/$$.tar && \
                  cmp a b && for each in a b c; do cmp $each out/$each || exit 1; done && \
                  rm -r a b c out && echo as it should be";
    expect("32M", &["sh", "-c", script]);
}

#[test]
fn a_robust_lock_whose_page_is_out_tells_that_its_owner_has_ended() {
    means_the_same("robust", &[]);
}
