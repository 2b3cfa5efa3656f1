//! What a filter of a program's answers to a call, without its being installed.

use super::Instruction;

/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xC000_003E;
/// Bytes of `struct seccomp_data`.
const DATA_BYTES: u32 = 64;
const MEMORY_WORDS: usize = 16;

/// A call, as filters see it.
#[derive(Clone, Copy, Debug)]
pub struct JudgedCall {
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub args: [u64; 6],
}

impl JudgedCall {
    /// The word at `offset` of `struct seccomp_data`; where the call is made is not known.
    fn word(&self, offset: u32) -> Option<u32> {
        match offset {
            0 => Some(self.number),
            4 => Some(X86_64),
            8 | 12 => Some(0),
            16..DATA_BYTES if offset.is_multiple_of(4) => {
                let index = (offset - 16) / 8;
                let arg = self.args[index as usize];
                let shift = offset % 8 * 8;
                Some((arg >> shift) as u32)
            }
            _ => None,
        }
    }
}

/// What `filter` answers to `call`: `SECCOMP_RET_ALLOW` and its like, with their data. `None` for
/// what is no filter.
#[must_use]
pub fn judge(filter: &[Instruction], call: &JudgedCall) -> Option<u32> {
    let (mut a, mut x) = (0u32, 0u32);
    let mut memory = [0u32; MEMORY_WORDS];
    let mut at = 0usize;
    loop {
        let instruction = filter.get(at)?;
        let (code, k) = (instruction.code, instruction.k);
        let cell = memory.get_mut(k as usize % MEMORY_WORDS)?;
        let operand = if code & 0x08 == 0 { k } else { x };
        at += 1;
        match code & 0x07 {
            // Loads into A and X: a constant, a word of the call, a word of memory, the length of
            // the data.
            0 | 1 => {
                let value = match code & 0xe0 {
                    0x00 => k,
                    0x20 => call.word(k)?,
                    0x60 => *cell,
                    0x80 => DATA_BYTES,
                    _ => return None,
                };
                *(if code & 1 == 0 { &mut a } else { &mut x }) = value;
            }
            2 => *cell = a,
            3 => *cell = x,
            4 => a = compute(code & 0xf0, a, operand)?,
            5 => {
                let holds = match code & 0xf0 {
                    0x00 => {
                        at += k as usize;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                let skipped = if holds {
                    instruction.jt
                } else {
                    instruction.jf
                };
                at += usize::from(skipped);
            }
            6 => return Some(if code & 0x18 == 0x10 { a } else { k }),
            _ if code & 0xf8 == 0 => x = a,
            _ => a = x,
        }
    }
}

fn compute(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b)?,
        0x70 => a.checked_shr(b)?,
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const TRAP: u32 = 0x0003_0000;

    const fn step(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn answer(filter: &[Instruction], number: u32, args: [u64; 6]) -> Option<u32> {
        judge(filter, &JudgedCall { number, args })
    }

    #[test]
    fn calls_are_told_apart_by_number_and_by_both_halves_of_an_argument() {
        let filter = [
            step(0x20, 0, 0, 0),
            step(0x15, 0, 4, 16),
            step(0x20, 0, 0, 28),
            step(0x15, 0, 2, 1),
            step(0x20, 0, 0, 24),
            step(0x45, 1, 0, 0x80),
            step(0x06, 0, 0, ALLOW),
            step(0x06, 0, 0, TRAP),
        ];
        assert_eq!(answer(&filter, 15, [0; 6]), Some(ALLOW));
        assert_eq!(answer(&filter, 16, [0, 0x80, 0, 0, 0, 0]), Some(ALLOW));
        assert_eq!(answer(&filter, 16, [0, 1 << 32, 0, 0, 0, 0]), Some(ALLOW));
        let args = [0, 1 << 32 | 0x81, 0, 0, 0, 0];
        assert_eq!(answer(&filter, 16, args), Some(TRAP));
    }

    #[test]
    fn what_is_computed_and_kept_is_what_is_answered() {
        let filter = [
            step(0x20, 0, 0, 0),
            step(0x02, 0, 0, 3),
            step(0x54, 0, 0, 0xf),
            step(0x07, 0, 0, 0),
            step(0x60, 0, 0, 3),
            step(0x1c, 0, 0, 0),
            step(0x64, 0, 0, 16),
            step(0x16, 0, 0, 0),
        ];
        assert_eq!(answer(&filter, 0x13, [0; 6]), Some(0x10 << 16));
    }

    #[test]
    fn what_is_no_filter_has_no_answer() {
        assert_eq!(answer(&[], 1, [0; 6]), None);
        assert_eq!(answer(&[step(0x20, 0, 0, 2)], 1, [0; 6]), None);
        assert_eq!(answer(&[step(0x05, 0, 0, 9)], 1, [0; 6]), None);
        assert_eq!(answer(&[step(0x34, 0, 0, 0)], 1, [0; 6]), None);
    }
}
