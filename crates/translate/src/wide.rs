//! The same loops, compiled twice: for any x86-64 processor, and for one with AVX2.
#![allow(unsafe_code)]

use crate::step::Step;

#[cfg(target_arch = "x86_64")]
cpufeatures::new!(avx2, "avx2");

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn in_avx2(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_in(from, to)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn out_avx2(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_out(from, to)
}

/// [`Step::run_in`], as fast as the processor can.
pub(crate) fn translate_in(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if avx2::get() {
        // SAFETY: `in_avx2` needs AVX2; the processor and the system were just asked for it.
        return unsafe { in_avx2(step, from, to) };
    }
    step.run_in(from, to)
}

/// [`Step::run_out`], as fast as the processor can.
pub(crate) fn translate_out(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if avx2::get() {
        // SAFETY: `out_avx2` needs AVX2; the processor and the system were just asked for it.
        return unsafe { out_avx2(step, from, to) };
    }
    step.run_out(from, to)
}
