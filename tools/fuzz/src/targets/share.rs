//! What servers of shared memory tell each other.

use farpage_server::wire;

pub(crate) fn run(input: &[u8]) {
    if let Some((again, contents)) = wire::read_and_write(input) {
        // What is written is read as the same.
        let (twice, none) = wire::read_and_write(&again).expect("it was written");
        assert!(none.is_empty() && twice == again);
        assert!(contents.len() <= input.len());
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    wire::samples()
}
