//! What else programs do with files of shared memory than to map, read and write them.

use super::memory_files::means_the_same;

#[test]
fn programs_and_scripts_in_dev_shm_are_executed() {
    means_the_same("executed", &[]);
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
fn what_lay_beyond_the_end_is_there_when_the_file_has_grown() {
    means_the_same("grown", &[]);
}
