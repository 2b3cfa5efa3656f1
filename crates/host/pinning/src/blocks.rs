//! Page frames as a device is told of them.

use alloc::vec::Vec;

/// Frames one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The number of the first frame.
    pub first: u64,
    /// So many.
    pub frames: u64,
}

/// Merges the frames of pages, in the order of the pages, to blocks of consecutive ones: for a list of
/// scatter and gather. No block has more than `most` frames, of which there is at least one.
///
/// # Panics
/// When `most` is zero.
pub fn blocks(frames: impl IntoIterator<Item = u64>, most: u64) -> Vec<Block> {
    assert!(most > 0, "a block has a frame at least");
    let mut found: Vec<Block> = Vec::new();
    for frame in frames {
        match found.last_mut() {
            Some(last) if last.first + last.frames == frame && last.frames < most => {
                last.frames += 1;
            }
            Some(_) | None => found.push(Block {
                first: frame,
                frames: 1,
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first: u64, frames: u64) -> Block {
        Block { first, frames }
    }

    #[test]
    fn consecutive_frames_are_one_block_in_the_order_of_the_pages() {
        assert_eq!(
            blocks([7, 8, 9, 3, 4, 9, 8], u64::MAX),
            [block(7, 3), block(3, 2), block(9, 1), block(8, 1)]
        );
        assert_eq!(blocks([], 1), []);
    }

    #[test]
    fn a_device_that_takes_less_gets_more_blocks() {
        assert_eq!(blocks(0..5, 2), [block(0, 2), block(2, 2), block(4, 1)]);
    }
}
