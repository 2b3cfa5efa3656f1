//! What else programs do with files of shared memory than to map, read and write them.

use super::memory_files::means_the_same;

#[test]
fn programs_and_scripts_in_dev_shm_are_executed() {
    means_the_same("executed", &[]);
}
