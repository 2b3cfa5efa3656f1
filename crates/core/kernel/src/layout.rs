//! Where things lie in the address space. The seccomp filter of `farpage run` knows the same
//! numbers: it tells managed from unmanaged memory by address alone.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::kernel::Kernel;

/// Managed memory, its shadow, and nothing else.
pub const WINDOW: [Range<usize>; 2] = [
    0x1_0000_0000..0x5500_0000_0000,
    0x5700_0000_0000..0x7000_0000_0000,
];
/// Where position-independent programs and their heaps lie.
pub const HEAP_AREA: Range<usize> = 0x5500_0000_0000..0x5700_0000_0000;
/// Where other programs and their heaps lie.
pub const LOW_AREA: Range<usize> = 0..0x1_0000_0000;

/// New mappings are placed from here, above the shadow memory of AddressSanitizer (up to
/// `0x1000_8000_0000`) ...
pub const PLACE_START: usize = 0x1100_0000_0000;
/// ... to here. Mappings that the program wants below are left where it wants them.
pub const PLACE_END: usize = 0x2A00_0000_0000;
/// Of that, where mappings lie whose faults are answered in the thread that faults. Which way it is
/// shows in the address alone.
pub(crate) const IN_THREAD_AREA: Range<usize> = 0x2600_0000_0000..PLACE_END;

const SHADOW: usize = 0x2A00_0000_0000;
const HEAP_SHADOW: usize = 0x0200_0000_0000;
const LOW_SHADOW: usize = 0x5900_0000_0000;

/// The address at which the page at `address` lies while it is aside. The distance is a multiple of
/// 2 MiB, so that huge pages move whole.
pub const fn shadow_of(address: usize) -> usize {
    if address < LOW_AREA.end {
        address + LOW_SHADOW
    } else if address >= HEAP_AREA.start {
        address + HEAP_SHADOW
    } else {
        address + SHADOW
    }
}

/// True when memory at `start .. end` can be managed: it and its shadow have their places.
pub(crate) fn manageable(start: usize, end: usize) -> bool {
    let inside = |area: Range<usize>| area.start <= start && end <= area.end;
    start < end && (inside(LOW_AREA) || inside(LOW_AREA.end..PLACE_END) || inside(HEAP_AREA))
}

/// True when memory at `start .. end` can be managed from now on.
pub(crate) fn may_begin(kernel: &Kernel, start: usize, end: usize) -> bool {
    manageable(start, end) && !kernel.leaves_new.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_lie_in_the_window_and_apart() {
        let areas = [LOW_AREA, LOW_AREA.end..PLACE_END, HEAP_AREA];
        let shadows = areas
            .clone()
            .map(|a| shadow_of(a.start)..shadow_of(a.end - 1) + 1);
        for (i, shadow) in shadows.iter().enumerate() {
            assert!(
                WINDOW
                    .iter()
                    .any(|w| w.start <= shadow.start && shadow.end <= w.end)
            );
            for (j, other) in shadows.iter().enumerate() {
                assert!(i == j || shadow.end <= other.start || other.end <= shadow.start);
            }
            for area in &areas {
                assert!(shadow.end <= area.start || area.end <= shadow.start);
            }
        }
    }
}
