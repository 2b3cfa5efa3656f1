//! CRC32C (Castagnoli), with the processor's instruction where it has one.
//!
//! Own code because the crates for it either ask libstd for processor features at run time or, as
//! `no_std`, leave the instruction out.

const POLYNOMIAL: u32 = 0x82f6_3b78;
const BYTE: [u32; 256] = byte_table();

const fn byte_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = instruction::crc32c(bytes) {
        return crc;
    }
    by_table(bytes)
}

fn by_table(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (crc >> 8) ^ BYTE[((crc ^ u32::from(byte)) & 0xff) as usize]
    })
}

/// That of processors with SSE 4.2.
#[cfg(target_arch = "x86_64")]
mod instruction {
    use core::arch::x86_64::{__cpuid, _mm_crc32_u8, _mm_crc32_u64};
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::BYTE;

    /// Bytes of each of the three streams that run side by side.
    const STREAM: usize = 1360;

    const SKIP: [[u32; 256]; 4] = skip_table();

    /// The CRC32C of `bytes`. `None` where the processor has no instruction for it.
    pub(super) fn crc32c(bytes: &[u8]) -> Option<u32> {
        // SAFETY: the processor has SSE 4.2.
        has_instruction().then(|| unsafe { by_instruction(bytes) })
    }

    /// What [`STREAM`] zero bytes do to a CRC, for each value of each of its bytes.
    const fn skip_table() -> [[u32; 256]; 4] {
        let mut single = [0u32; 32];
        let mut bit = 0;
        while bit < 32 {
            let mut crc = 1u32 << bit;
            let mut step = 0;
            while step < STREAM {
                crc = (crc >> 8) ^ BYTE[(crc & 0xff) as usize];
                step += 1;
            }
            single[bit] = crc;
            bit += 1;
        }
        let mut table = [[0u32; 256]; 4];
        let mut at = 0;
        while at < 4 * 256 {
            let (place, value) = (at / 256, at % 256);
            let mut bit = 0;
            while bit < 8 {
                if value >> bit & 1 == 1 {
                    table[place][value] ^= single[place * 8 + bit];
                }
                bit += 1;
            }
            at += 1;
        }
        table
    }

    fn skip(crc: u32) -> u32 {
        SKIP[0][(crc & 0xff) as usize]
            ^ SKIP[1][(crc >> 8 & 0xff) as usize]
            ^ SKIP[2][(crc >> 16 & 0xff) as usize]
            ^ SKIP[3][(crc >> 24) as usize]
    }

    fn has_instruction() -> bool {
        static KNOWN: AtomicU32 = AtomicU32::new(0);
        match KNOWN.load(Ordering::Relaxed) {
            0 => {
                #[allow(
                    unused_unsafe,
                    reason = "it is a safe function in newer versions of Rust"
                )]
                // SAFETY: every x86-64 processor has this instruction.
                let about = unsafe { __cpuid(1) };
                let has = about.ecx >> 20 & 1 == 1;
                KNOWN.store(if has { 2 } else { 1 }, Ordering::Relaxed);
                has
            }
            known => known == 2,
        }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
    }

    #[target_feature(enable = "sse4.2")]
    fn by_instruction(bytes: &[u8]) -> u32 {
        let mut crc = u64::from(!0u32);
        let mut threes = bytes.chunks_exact(3 * STREAM);
        for three in &mut threes {
            let (mut b, mut c) = (0, 0);
            let (first, rest) = three.split_at(STREAM);
            let (second, third) = rest.split_at(STREAM);
            for at in (0..STREAM).step_by(8) {
                crc = _mm_crc32_u64(crc, word(first, at));
                b = _mm_crc32_u64(b, word(second, at));
                c = _mm_crc32_u64(c, word(third, at));
            }
            crc = u64::from(skip(skip(crc as u32) ^ b as u32) ^ c as u32);
        }
        let mut eights = threes.remainder().chunks_exact(8);
        for eight in &mut eights {
            crc = _mm_crc32_u64(crc, word(eight, 0));
        }
        !eights
            .remainder()
            .iter()
            .fold(crc as u32, |crc, &byte| _mm_crc32_u8(crc, byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(by_table(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn instruction_and_table_agree() {
        let bytes: [u8; 9000] = core::array::from_fn(|i| (i * i % 251) as u8);
        for length in [0, 1, 7, 8, 9, 1360, 4079, 4080, 4081, 4096, 8160, 9000] {
            assert_eq!(crc32c(&bytes[..length]), by_table(&bytes[..length]));
        }
    }
}
