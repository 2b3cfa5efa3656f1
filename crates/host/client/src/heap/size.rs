//! Sizes of blocks.

/// Bytes of a slab.
pub(crate) const SLAB_BYTES: u64 = 64 << 10;
/// Sizes of blocks that share a slab with others: eight steps of 16 bytes, then four steps for each
/// doubling up to 32 KiB, so that at most a fifth is lost. What is larger takes whole slabs.
pub(crate) const CLASSES: usize = 40;

const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < 8 {
            16 * (class as u32 + 1)
        } else {
            let step = 32 << ((class - 8) / 4);
            step * 4 + step * ((class as u32 - 8) % 4 + 1)
        };
        class += 1;
    }
    sizes
};

/// Bytes of a block of this class.
pub(crate) fn block_bytes(class: u8) -> u64 {
    u64::from(SIZES[usize::from(class)])
}

/// Blocks in a slab.
pub(crate) fn blocks(class: u8) -> usize {
    (SLAB_BYTES / block_bytes(class)) as usize
}

/// The smallest class that holds `bytes`; none for large blocks.
pub(crate) fn class(bytes: u64) -> Option<u8> {
    let class = SIZES.partition_point(|size| u64::from(*size) < bytes);
    u8::try_from(class).ok().filter(|_| class < CLASSES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL_MAX: u64 = 32 << 10;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        assert!(SIZES.is_sorted() && block_bytes(CLASSES as u8 - 1) == SMALL_MAX);
        for bytes in 0..=SMALL_MAX {
            let class = class(bytes).unwrap();
            assert!(block_bytes(class) >= bytes);
            assert!(class == 0 || block_bytes(class - 1) < bytes);
            assert!(bytes <= 16 || block_bytes(class) * 4 <= bytes * 5 + 60);
        }
        assert_eq!(class(SMALL_MAX + 1), None);
        assert_eq!(class(u64::MAX), None);
    }

    #[test]
    fn powers_of_two_have_blocks_of_their_own_size() {
        for shift in 4..=15 {
            let bytes = 1u64 << shift;
            assert_eq!(block_bytes(class(bytes).unwrap()), bytes);
        }
    }
}
