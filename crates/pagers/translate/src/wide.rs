//! The same loops, compiled three times: for any x86-64 processor, with AVX2, and with AVX-512.
#![allow(unsafe_code)]

use crate::step::Step;

cpufeatures::new!(avx2, "avx2");
cpufeatures::new!(avx512, "avx512f", "avx512bw", "avx512dq", "avx512vl");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Avx512,
    Avx2,
    Any,
}

/// A way of compiling the loops that this processor can run: there are no others of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vectors(Kind);

impl Vectors {
    /// All, the fastest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let all = [
            (avx512::get(), Kind::Avx512),
            (avx2::get(), Kind::Avx2),
            (true, Kind::Any),
        ];
        all.into_iter()
            .filter(|kind| kind.0)
            .map(|kind| Self(kind.1))
    }

    /// The fastest.
    pub(crate) fn best() -> Self {
        Self::all().next().unwrap_or(Self(Kind::Any))
    }

    /// [`Step::run_in`].
    pub(crate) fn run_in(self, step: Step, from: &[u8], to: &mut [u8]) -> u64 {
        match self.0 {
            // SAFETY: it needs AVX-512 F, BW, DQ and VL; `all` asked the processor and the system.
            Kind::Avx512 => unsafe { in_avx512(step, from, to) },
            // SAFETY: it needs AVX2; `all` asked the processor and the system.
            Kind::Avx2 => unsafe { in_avx2(step, from, to) },
            Kind::Any => step.run_in(from, to),
        }
    }

    /// [`Step::run_out`].
    pub(crate) fn run_out(self, step: Step, from: &[u8], to: &mut [u8]) -> u64 {
        match self.0 {
            // SAFETY: it needs AVX-512 F, BW, DQ and VL; `all` asked the processor and the system.
            Kind::Avx512 => unsafe { out_avx512(step, from, to) },
            // SAFETY: it needs AVX2; `all` asked the processor and the system.
            Kind::Avx2 => unsafe { out_avx2(step, from, to) },
            Kind::Any => step.run_out(from, to),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn in_avx512(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_in(from, to)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn out_avx512(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_out(from, to)
}

#[target_feature(enable = "avx2")]
fn in_avx2(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_in(from, to)
}

#[target_feature(enable = "avx2")]
fn out_avx2(step: Step, from: &[u8], to: &mut [u8]) -> u64 {
    step.run_out(from, to)
}
