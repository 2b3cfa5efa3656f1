//! The functions that the compiler calls without being asked: `memcpy` and its like.
//!
//! Short lengths are frequent and get plain moves; long ones get the string instructions, which
//! processors of the last ten years run at the speed of memory.

use core::arch::asm;

const STRING_INSTRUCTION_MIN: usize = 256;

/// Copies `n` bytes of at most 16, in two overlapping moves.
///
/// # Safety
/// As `memmove`.
#[inline(always)]
unsafe fn move_short(to: *mut u8, from: *const u8, n: usize) {
    macro_rules! ends {
        ($type:ty) => {{
            let last = n - size_of::<$type>();
            // SAFETY: both ends lie in the caller's ranges.
            let (head, tail) = unsafe {
                (
                    from.cast::<$type>().read_unaligned(),
                    from.add(last).cast::<$type>().read_unaligned(),
                )
            };
            // SAFETY: as above; both were read before anything is written.
            unsafe {
                to.cast::<$type>().write_unaligned(head);
                to.add(last).cast::<$type>().write_unaligned(tail);
            }
        }};
    }
    match n {
        8..=16 => ends!(u64),
        4..=7 => ends!(u32),
        2..=3 => ends!(u16),
        // SAFETY: one byte of the caller's ranges.
        1 => unsafe { to.write(from.read()) },
        _ => {}
    }
}

/// Copies more than 16 bytes upwards: right unless `to` lies inside `from .. from + n`.
///
/// # Safety
/// As `memmove`, but for that.
#[inline(always)]
unsafe fn copy_up(to: *mut u8, from: *const u8, n: usize) {
    if n >= STRING_INSTRUCTION_MIN {
        // SAFETY: forwarded to the caller.
        unsafe {
            asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: forwarded to the caller; 16 < n. The last 16 bytes are read first.
    unsafe {
        asm!(
            "movups {last}, [{from} + {n} - 16]",
            "xor {i:e}, {i:e}",
            "2:",
            "movups {x}, [{from} + {i}]",
            "movups [{to} + {i}], {x}",
            "add {i}, 16",
            "cmp {i}, {whole}",
            "jb 2b",
            "movups [{to} + {n} - 16], {last}",
            from = in(reg) from, to = in(reg) to, n = in(reg) n, whole = in(reg) n - 16,
            i = out(reg) _, x = out(xmm_reg) _, last = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: forwarded to the caller.
    unsafe {
        if n <= 16 {
            move_short(to, from, n)
        } else {
            copy_up(to, from, n)
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if n <= 16 {
        // SAFETY: forwarded to the caller.
        unsafe { move_short(to, from, n) };
    } else if to.addr().wrapping_sub(from.addr()) >= n {
        // SAFETY: forwarded to the caller; a target below the source is read before it is written.
        unsafe { copy_up(to, from, n) };
    } else {
        // SAFETY: forwarded to the caller; downwards, so that the source is read first.
        unsafe {
            asm!(
                "movups {first}, [{from}]",
                "2:",
                "movups {x}, [{from} + {i} - 16]",
                "movups [{to} + {i} - 16], {x}",
                "sub {i}, 16",
                "cmp {i}, 16",
                "ja 2b",
                "movups [{to}], {first}",
                from = in(reg) from, to = in(reg) to, i = inout(reg) n => _,
                x = out(xmm_reg) _, first = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") value as u8,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    let mut at = 0;
    while at + 8 <= n {
        // SAFETY: eight bytes of the caller's ranges.
        let (x, y) = unsafe {
            (
                a.add(at).cast::<u64>().read_unaligned(),
                b.add(at).cast::<u64>().read_unaligned(),
            )
        };
        if x != y {
            return if x.swap_bytes() < y.swap_bytes() {
                -1
            } else {
                1
            };
        }
        at += 8;
    }
    while at < n {
        // SAFETY: one byte of the caller's ranges.
        let (x, y) = unsafe { (a.add(at).read(), b.add(at).read()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
        at += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: forwarded to the caller.
    unsafe { memcmp(a, b, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's string has an end.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
